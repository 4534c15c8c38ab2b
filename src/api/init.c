/* init.c: initialise structs whose defaults are not all 0.
 *
 * In: the caller's struct and its sizeof, which a header of another version may define smaller or
 * larger.  Out: struct_size, the defaults of the fields within that size, zeros elsewhere.
 *
 * NULL, or a size too small for struct_size, leaves the struct unchanged.  The call that takes the struct
 * then reports an invalid struct_size. */
#include "core/core.h"

#include <math.h>

/* Write struct_size = size, then the defaults of the fields within size, then zeros. ours: bytes of `standard`, which
 * must be static, so that its padding is zero, too. */
static void fill(void *out, size_t size, const void *standard, size_t ours) {
  if (out == NULL || size < sizeof size) return;
  memset(out, 0, size);
  memcpy(out, standard, size < ours ? size : ours);
  memcpy(out, &size, sizeof size);
}

void ng_context_config_init(ng_context_config *c, size_t size) {
  static const ng_context_config d = {.log_level = NG_LOG_WARN};
  fill(c, size, &d, sizeof d);
}

/* By default a layer is not sharded: shard_axis = -1. */
void ng_layer_init(ng_layer *l, ng_kind kind, size_t size) {
  static const ng_layer d = {
      .order = NG_SAMPLES_FIRST,
      .kernel = {1, 1},
      .stride = {1, 1},
      .dilation = {1, 1},
      .groups = 1,
      .norm_eps = 1e-5,
      .norm_input = NG_NORM_RAW,
      .token_dtype = NG_I64,
      .shard_axis = -1,
      .norm_kind = NG_BATCH_NORM,
  };
  fill(l, size, &d, sizeof d);
  if (l != NULL && size >= offsetof(ng_layer, kind) + sizeof kind) l->kind = kind;
}

/* samples has no default: 0 is valid for a rank without samples, so -1 marks a missing number. */
void ng_batch_init(ng_batch *b, size_t size) {
  static const ng_batch d = {.samples = -1, .reduction = NG_MEAN, .loss_scale = 1.0};
  fill(b, size, &d, sizeof d);
}

/* lr has no default: NaN is refused. */
void ng_sgd_init(ng_sgd *s, size_t size) {
  static const ng_sgd d = {.lr = NAN};
  fill(s, size, &d, sizeof d);
}

/* The defaults of torch.optim.AdamW, except lr, which has no default. */
void ng_adamw_init(ng_adamw *a, size_t size) {
  static const ng_adamw d = {
      .lr = NAN, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
  fill(a, size, &d, sizeof d);
}
