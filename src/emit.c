/* emit.c: where a gradient leaves: the sink, written once for all families.
 *
 * A family hands over rows of PD in published order; the sink scales them by nu and writes them as
 * a gradient, or through SGD or AdamW straight into the weight, in the caller's dtype.  The
 * formulas are those of torch.optim.SGD and torch.optim.AdamW (decoupled weight decay, arXiv
 * 1711.05101). The optimizer state is f32 whatever the weight's dtype. */
#include "convert.h"
#include "internal.h"
#include "simd.h"

#include <math.h>

ng_status ng_sgd_init_sized(ng_sgd *s, size_t size) {
  if (s == NULL || size < sizeof(size_t)) return NG_ERR_ARG;
  memset(s, 0, size);
  const size_t given = size;
  memcpy(s, &given, sizeof given);
  return NG_OK;
}

ng_status ng_adamw_init_sized(ng_adamw *a, size_t size) {
  if (a == NULL || size < sizeof(size_t)) return NG_ERR_ARG;
  ng_adamw d;
  memset(&d, 0, sizeof d);
  d.struct_size = size;
  d.beta1 = 0.9;
  d.beta2 = 0.999;
  d.eps = 1e-8;
  d.weight_decay = 0.01;
  memset(a, 0, size);
  memcpy(a, &d, size < sizeof d ? size : sizeof d);
  return NG_OK;
}

static void *row_of(const ng_view *v, int64_t row) {
  return (char *)v->data + row * v->row_stride * ng_dtype_size(v->dtype);
}

bool ng_grad_row(const ng_slot *slot, int64_t row, float *out) {
  const void *src = row_of(&slot->grad, row);
  if (!ng_all_finite(src, slot->grad.dtype, slot->cols)) return false;
  ng_to_f32(out, src, slot->grad.dtype, slot->cols);
  return true;
}

/* One tile of a row, small enough for the stack and the first cache. */
enum { TILE = 512 };

NG_CLONES static void sgd_tile(const ng_sink *s, float *m, float *w, const float *d, int64_t n,
                               float scale) {
  const float lr = (float)s->sgd.lr, mu = (float)s->sgd.momentum;
  const float keep = s->sgd.decoupled ? (float)(1.0 - s->sgd.lr * s->sgd.weight_decay) : 1.0f;
  const float decay = s->sgd.decoupled ? 0.0f : (float)s->sgd.weight_decay;
  const float take = s->first ? 1.0f : (float)(1.0 - s->sgd.dampening);
  const float old = s->first ? 0.0f : mu;
  const bool moments = s->sgd.momentum != 0.0, nesterov = s->sgd.nesterov != 0;
  for (int64_t i = 0; i < n; i++) {
    const float g = scale * d[i] + decay * w[i];
    float step = g;
    if (moments) {
      m[i] = old * m[i] + take * g;
      step = nesterov ? g + mu * m[i] : m[i];
    }
    w[i] = keep * w[i] - lr * step;
  }
}

NG_CLONES static void adamw_tile(const ng_sink *s, float *m, float *v, float *w, const float *d,
                                 int64_t n, float scale) {
  const float b1 = (float)s->adamw.beta1, b2 = (float)s->adamw.beta2;
  const float n1 = (float)(1.0 - s->adamw.beta1), n2 = (float)(1.0 - s->adamw.beta2);
  const float keep = (float)(1.0 - s->adamw.lr * s->adamw.weight_decay);
  const float step = (float)s->step_size, root = (float)(1.0 / s->root), eps = (float)s->adamw.eps;
  for (int64_t i = 0; i < n; i++) {
    const float g = scale * d[i];
    m[i] = b1 * m[i] + n1 * g;
    v[i] = b2 * v[i] + n2 * (g * g);
    w[i] = keep * w[i] - step * (m[i] / (sqrtf(v[i]) * root + eps));
  }
}

void ng_sink_row(const ng_sink *s, ng_slot *slot, int64_t row, const float *values, double scale) {
  const float nu = (float)scale;
  float tile[TILE];
  ng_view *to = s->kind == NG_SINK_GRADIENT ? &slot->grad : &slot->weight;
  char *dst = row_of(to, row);
  const int64_t size = ng_dtype_size(to->dtype);
  for (int64_t c = 0; c < slot->cols; c += TILE) {
    const int64_t n = ng_min64(TILE, slot->cols - c), at = row * slot->cols + c;
    float *direct = to->dtype == NG_F32 ? (float *)(void *)(dst + c * size) : tile;
    if (s->kind == NG_SINK_GRADIENT) {
      for (int64_t i = 0; i < n; i++) {
        direct[i] = nu * values[c + i];
      }
    } else {
      if (direct == tile) ng_to_f32(tile, dst + c * size, to->dtype, n);
      float *m = slot->m == NULL ? NULL : slot->m + at;
      if (s->kind == NG_SINK_SGD) {
        sgd_tile(s, m, direct, values + c, n, nu);
      } else {
        adamw_tile(s, m, slot->v + at, direct, values + c, n, nu);
      }
    }
    if (direct == tile) ng_from_f32(dst + c * size, to->dtype, tile, n);
  }
}
