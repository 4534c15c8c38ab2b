/* emit.c: where a gradient leaves: the sink, written once for all families.
 *
 * A family hands over rows of PD in published order; the sink scales them by nu and writes them as
 * a gradient, or through SGD or AdamW straight into the weight, in the caller's dtype.  The
 * formulas are those of torch.optim.SGD and torch.optim.AdamW (decoupled weight decay, arXiv
 * 1711.05101). The optimizer state is f32 whatever the weight's dtype. */
#include "core/core.h"
#include "model/model.h"
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

/* What goes into an update: scale d + k u, and scale d alone where there is no u.  A family whose PD
 * is a multiple of the gradient and a rank-one term needs no array for it. */
typedef struct direction {
  const float *d, *u;
  float scale, k;
} direction;

/* x = scale x + k u, where x is the gradient itself. */
NG_CLONES static void rescale(float *restrict x, const float *restrict u, int64_t n, float scale,
                              float k) {
  if (u == NULL) {
    for (int64_t i = 0; i < n; i++) {
      x[i] = scale * x[i];
    }
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    x[i] = scale * x[i] + k * u[i];
  }
}

/* The same in double. */
NG_CLONES static void rescale_wide(float *restrict x, const float *restrict u, int64_t n,
                                   double scale, double k) {
  for (int64_t i = 0; i < n; i++) {
    x[i] = (float)(scale * (double)x[i] + (u == NULL ? 0.0 : k * (double)u[i]));
  }
}

/* Numbers of one SGD step; `pair` is a constant where it is called, so each loop has no choice. */
typedef struct sgd_numbers {
  float lr, mu, keep, decay, take, old;
  bool moments, nesterov;
} sgd_numbers;

static inline __attribute__((always_inline)) void sgd_loop(const sgd_numbers *s, float *restrict m,
                                                           float *restrict w, const direction *of,
                                                           int64_t n, bool pair, bool moments,
                                                           bool nesterov) {
  const float *restrict d = of->d, *restrict u = of->u;
  const float scale = of->scale, k = of->k, lr = s->lr, mu = s->mu, keep = s->keep,
              decay = s->decay, take = s->take, old = s->old;
  for (int64_t i = 0; i < n; i++) {
    const float pd = pair ? scale * d[i] + k * u[i] : scale * d[i];
    const float g = pd + decay * w[i];
    float step = g;
    if (moments) {
      m[i] = old * m[i] + take * g;
      step = nesterov ? g + mu * m[i] : m[i];
    }
    w[i] = keep * w[i] - lr * step;
  }
}

NG_CLONES static void sgd_tile(const sgd_numbers *s, float *m, float *w, const direction *of,
                               int64_t n) {
  const bool pair = of->u != NULL;
  if (!s->moments) {
    if (pair) {
      sgd_loop(s, m, w, of, n, true, false, false);
    } else {
      sgd_loop(s, m, w, of, n, false, false, false);
    }
  } else if (s->nesterov) {
    if (pair) {
      sgd_loop(s, m, w, of, n, true, true, true);
    } else {
      sgd_loop(s, m, w, of, n, false, true, true);
    }
  } else {
    if (pair) {
      sgd_loop(s, m, w, of, n, true, true, false);
    } else {
      sgd_loop(s, m, w, of, n, false, true, false);
    }
  }
}

static sgd_numbers sgd_of(const ng_sink *s) {
  const ng_sgd *h = &s->sgd;
  return (sgd_numbers){
      .lr = (float)h->lr,
      .mu = (float)h->momentum,
      .keep = h->decoupled ? (float)(1.0 - h->lr * h->weight_decay) : 1.0f,
      .decay = h->decoupled ? 0.0f : (float)h->weight_decay,
      .take = s->first ? 1.0f : (float)(1.0 - h->dampening),
      .old = s->first ? 0.0f : (float)h->momentum,
      .moments = h->momentum != 0.0,
      .nesterov = h->nesterov != 0,
  };
}

typedef struct adamw_numbers {
  float b1, b2, n1, n2, keep, step, root, eps;
} adamw_numbers;

static inline __attribute__((always_inline)) void adamw_loop(const adamw_numbers *a,
                                                             float *restrict m, float *restrict v,
                                                             float *restrict w, const direction *of,
                                                             int64_t n, bool pair) {
  const float *restrict d = of->d, *restrict u = of->u;
  const float scale = of->scale, k = of->k, b1 = a->b1, b2 = a->b2, n1 = a->n1, n2 = a->n2,
              keep = a->keep, step = a->step, root = a->root, eps = a->eps;
  for (int64_t i = 0; i < n; i++) {
    const float g = pair ? scale * d[i] + k * u[i] : scale * d[i];
    m[i] = b1 * m[i] + n1 * g;
    v[i] = b2 * v[i] + n2 * (g * g);
    w[i] = keep * w[i] - step * (m[i] / (sqrtf(v[i]) * root + eps));
  }
}

NG_CLONES static void adamw_tile(const adamw_numbers *a, float *m, float *v, float *w,
                                 const direction *of, int64_t n) {
  if (of->u != NULL) {
    adamw_loop(a, m, v, w, of, n, true);
  } else {
    adamw_loop(a, m, v, w, of, n, false);
  }
}

static adamw_numbers adamw_of(const ng_sink *s) {
  const ng_adamw *h = &s->adamw;
  return (adamw_numbers){
      .b1 = (float)h->beta1,
      .b2 = (float)h->beta2,
      .n1 = (float)(1.0 - h->beta1),
      .n2 = (float)(1.0 - h->beta2),
      .keep = (float)(1.0 - h->lr * h->weight_decay),
      .step = (float)s->step_size,
      .root = (float)(1.0 / s->root),
      .eps = (float)h->eps,
  };
}

/* n weights from `at` in the moments: through SGD or AdamW. */
static void update(const ng_sink *s, ng_slot *slot, int64_t at, float *w, const direction *of,
                   int64_t n) {
  float *m = slot->m == NULL ? NULL : slot->m + at;
  if (s->kind == NG_SINK_SGD) {
    const sgd_numbers numbers = sgd_of(s);
    sgd_tile(&numbers, m, w, of, n);
  } else {
    const adamw_numbers numbers = adamw_of(s);
    adamw_tile(&numbers, m, slot->v + at, w, of, n);
  }
}

/* A tile of what a gradient would become. */
static void probe(const ng_sink *s, ng_dtype dtype, const float *values, int64_t n) {
  uint32_t narrow[TILE];
  ng_from_f32(narrow, dtype, values, n);
  if (!ng_all_finite(narrow, dtype, n)) atomic_store(s->overflows, true);
}

static ng_view *target(const ng_sink *s, ng_slot *slot) {
  const bool gradient = s->kind == NG_SINK_GRADIENT || s->kind == NG_SINK_PROBE;
  return gradient ? &slot->grad : &slot->weight;
}

void ng_sink_row(const ng_sink *s, ng_slot *slot, int64_t row, const float *values, double scale) {
  float tile[TILE];
  ng_view *to = target(s, slot);
  char *dst = row_of(to, row);
  const int64_t size = ng_dtype_size(to->dtype);
  for (int64_t c = 0; c < slot->cols; c += TILE) {
    const int64_t n = ng_min64(TILE, slot->cols - c);
    const bool straight = to->dtype == NG_F32 && s->kind != NG_SINK_PROBE;
    float *direct = straight ? (float *)(void *)(dst + c * size) : tile;
    if (s->kind == NG_SINK_GRADIENT || s->kind == NG_SINK_PROBE) {
      memcpy(direct, values + c, (size_t)n * sizeof *direct);
      rescale(direct, NULL, n, (float)scale, 0.0f);
      if (s->kind == NG_SINK_PROBE) {
        probe(s, to->dtype, tile, n);
        continue;
      }
    } else {
      const direction of = {values + c, NULL, (float)scale, 0.0f};
      if (direct == tile) ng_to_f32(tile, dst + c * size, to->dtype, n);
      update(s, slot, row * slot->cols + c, direct, &of, n);
    }
    if (direct == tile) ng_from_f32(dst + c * size, to->dtype, tile, n);
  }
}

void ng_sink_span(const ng_sink *s, ng_slot *slot, int64_t row, int64_t col, int64_t n,
                  const ng_pair *pair) {
  float seen[TILE], tile[TILE];
  const ng_view *from = &slot->grad, *to = target(s, slot);
  const bool copies = pair->wide || s->kind == NG_SINK_PROBE; /* the gradient stays as it is */
  const bool straight = from->dtype == NG_F32 && to->dtype == NG_F32 && !copies;
  char *src = (char *)row_of(from, row) + col * ng_dtype_size(from->dtype);
  char *dst = (char *)row_of(to, row) + col * ng_dtype_size(to->dtype);
  for (int64_t c = 0, m; c < n; c += m) {
    m = straight ? n : ng_min64(TILE, n - c);
    char *x = src + c * ng_dtype_size(from->dtype), *y = dst + c * ng_dtype_size(to->dtype);
    float *d = from->dtype == NG_F32 && !copies ? (float *)(void *)x : seen;
    float *w = to->dtype == NG_F32 ? (float *)(void *)y : tile;
    const float *u = pair->u == NULL ? NULL : pair->u + c;
    direction of = {d, u, (float)pair->scale, (float)pair->k};
    if (d == seen) ng_to_f32(seen, x, from->dtype, m);
    if (pair->wide) {
      rescale_wide(seen, u, m, pair->scale, pair->k);
      of = (direction){seen, NULL, 1.0f, 0.0f};
    }
    if (s->kind == NG_SINK_GRADIENT || s->kind == NG_SINK_PROBE) {
      if (!pair->wide) rescale(d, u, m, of.scale, of.k);
      if (s->kind == NG_SINK_PROBE) {
        probe(s, to->dtype, seen, m);
      } else if (d == seen) {
        ng_from_f32(y, to->dtype, seen, m);
      }
      continue;
    }
    if (w == tile) ng_to_f32(tile, y, to->dtype, m);
    update(s, slot, row * slot->cols + col + c, w, &of, m);
    if (w == tile) ng_from_f32(y, to->dtype, tile, m);
  }
}
