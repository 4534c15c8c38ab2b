/* init.c: the initialisers of structs whose defaults are not all 0.
 *
 * In: the caller's struct and the caller's sizeof.  Out: struct_size = that size, defaults in the
 * fields there are, zeros elsewhere, nothing behind `size`: an older header's struct ends earlier, a
 * newer one's later.  There is nothing to fail: NULL and a size without room for struct_size are left
 * alone, and the call that takes the struct then says that its struct_size is wrong. */
#include "core/core.h"

#include <math.h>

/* `standard` is the struct of this library, cut or padded to the caller's; static, so that its padding
 * is zero, too. */
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

/* shard_axis -1: not sharded. */
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

/* No number of samples: 1 would be wrong and fit nearly everything, 0 is what a rank without any says. */
void ng_batch_init(ng_batch *b, size_t size) {
  static const ng_batch d = {.samples = -1, .reduction = NG_MEAN, .loss_scale = 1.0};
  fill(b, size, &d, sizeof d);
}

/* No momentum, no decay; of lr only the caller knows a value, and NaN is refused. */
void ng_sgd_init(ng_sgd *s, size_t size) {
  static const ng_sgd d = {.lr = NAN};
  fill(s, size, &d, sizeof d);
}

/* The defaults of torch.optim.AdamW, but for lr, which has to be given as well. */
void ng_adamw_init(ng_adamw *a, size_t size) {
  static const ng_adamw d = {
      .lr = NAN, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
  fill(a, size, &d, sizeof d);
}
