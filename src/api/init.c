/* init.c: initialise the caller's structs whose defaults are not all 0.
 *
 * `size` is the size of the struct in the caller's header, which may be older or newer than the library.  If the struct
 * is NULL or `size` too small for struct_size, nothing happens; the call that gets the struct reports the error. */
#include "core/core.h"

#include <math.h>

/* Set struct_size = size, the other fields within `size` to their defaults, and bytes beyond `ours` to 0.  `defaults`
 * has `ours` bytes and is static, so that its padding is 0. */
static void init_struct(void *out, size_t size, const void *defaults, size_t ours) {
  if (out == NULL || size < sizeof size) return;
  memset(out, 0, size);
  memcpy(out, defaults, size < ours ? size : ours);
  memcpy(out, &size, sizeof size);
}

void ng_context_config_init(ng_context_config *c, size_t size) {
  static const ng_context_config d = {.log_level = NG_LOG_WARN};
  init_struct(c, size, &d, sizeof d);
}

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
  init_struct(l, size, &d, sizeof d);
  if (l != NULL && size >= offsetof(ng_layer, kind) + sizeof kind) l->kind = kind;
}

/* samples = -1 means "not set", because 0 is valid for a rank without samples. */
void ng_batch_init(ng_batch *b, size_t size) {
  static const ng_batch d = {.samples = -1, .reduction = NG_MEAN, .loss_scale = 1.0};
  init_struct(b, size, &d, sizeof d);
}

/* lr = NaN means "not set". */
void ng_sgd_init(ng_sgd *s, size_t size) {
  static const ng_sgd d = {.lr = NAN};
  init_struct(s, size, &d, sizeof d);
}

/* As torch.optim.AdamW, but without a default of lr. */
void ng_adamw_init(ng_adamw *a, size_t size) {
  static const ng_adamw d = {
      .lr = NAN, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
  init_struct(a, size, &d, sizeof d);
}
