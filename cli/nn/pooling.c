/* pooling.c: maximum and mean over windows, mean over an image. Positions outside the image do not count. */
#include "node.h"
#include "simd.h"

#include <string.h>

/* The window of one output position: the input positions [y0, y1) x [x0, x1) of a sample. */
typedef struct window {
  int64_t sample, out, y0, y1, x0, x1; /* out: offset of the output position */
} window;

typedef struct job {
  nn *n;
  node *v;
  nn_shape x;
  int64_t samples;
  int32_t pieces;
  float *clears; /* gradient of the input, to set to 0 first; NULL: none */
  void (*each)(const struct job *j, const window *w);
} job;

typedef struct kind {
  nn_op op;
  void (*forward)(const job *j, const window *w);
  void (*backward)(const job *j, const window *w);
} kind;

static const kind *get_kind(const node *v) { return (const kind *)(const void *)v->op; }

/* Set [*from, *to) to the range of the window that lies inside the image, along one axis of `size` positions. */
static void clip_window(int64_t position, const node *v, int64_t size, int64_t *from, int64_t *to) {
  *from = position * v->stride - v->padding;
  *to = *from + v->kernel < size ? *from + v->kernel : size;
  if (*from < 0) *from = 0;
}

static int64_t get_offset(const job *j, int64_t sample, int64_t y, int64_t x) {
  return ((sample * j->x.height + y) * j->x.width + x) * j->x.channels;
}

/* Call `each` for every output position of the samples of piece i. */
static void visit_piece_windows(void *arg, int32_t i) {
  const job *j = arg;
  const node *v = j->v;
  int64_t first, last;
  nn_find_range(j->samples, j->pieces, i, 1, &first, &last);
  if (j->clears != NULL)
    memset(j->clears + get_offset(j, first, 0, 0), 0,
           (size_t)((last - first) * nn_count_values(j->x)) * sizeof *j->clears);
  for (int64_t s = first; s < last; s++) {
    for (int64_t y = 0; y < v->shape.height; y++) {
      for (int64_t x = 0; x < v->shape.width; x++) {
        window w = {.sample = s};
        w.out = ((s * v->shape.height + y) * v->shape.width + x) * v->shape.channels;
        clip_window(y, v, j->x.height, &w.y0, &w.y1);
        clip_window(x, v, j->x.width, &w.x0, &w.x1);
        j->each(j, &w);
      }
    }
  }
}

static void visit_windows(nn *n, node *v, int64_t samples, float *clears,
                          void (*each)(const job *j, const window *w)) {
  const nn_shape x = get_input(n, v, 0)->shape;
  const int64_t pieces = nn_count_pieces(n, samples * nn_count_values(x));
  job j = {n, v, x, samples, (int32_t)(pieces < samples ? pieces : samples), clears, each};
  nn_run_pieces(n, j.pieces, visit_piece_windows, &j);
}

static void forward(nn *n, node *v, int64_t samples, nn_mode mode) {
  (void)mode;
  visit_windows(n, v, samples, NULL, get_kind(v)->forward);
}

static void backward(nn *n, node *v, int64_t samples, bool params) {
  (void)params;
  float *dx = get_input(n, v, 0)->grad;
  if (dx != NULL) visit_windows(n, v, samples, v->adds[0] ? NULL : dx, get_kind(v)->backward);
}

/* ---- maximum: saved has the image position of each maximum --------------------------------------- */

NG_CLONES static void update_max(const float *x, int32_t position, int64_t c, float *y,
                                 int32_t *which) {
  for (int64_t k = 0; k < c; k++) {
    const int larger = x[k] > y[k] || x[k] != x[k]; /* propagate NaN */
    y[k] = larger ? x[k] : y[k];
    which[k] = larger ? position : which[k];
  }
}

static void max_forward(const job *j, const window *w) {
  const float *x = j->n->nodes[j->v->input[0]].out;
  const int64_t c = j->x.channels;
  float *y = j->v->out + w->out;
  int32_t *which = (int32_t *)j->v->saved + w->out;
  const int32_t start = (int32_t)(w->y0 * j->x.width + w->x0);
  memcpy(y, x + get_offset(j, w->sample, w->y0, w->x0), (size_t)c * sizeof *y);
  for (int64_t k = 0; k < c; k++)
    which[k] = start;
  for (int64_t a = w->y0; a < w->y1; a++) {
    for (int64_t b = w->x0; b < w->x1; b++)
      update_max(x + get_offset(j, w->sample, a, b), (int32_t)(a * j->x.width + b), c, y, which);
  }
}

static void max_backward(const job *j, const window *w) {
  const int64_t c = j->x.channels;
  const float *dy = j->v->grad + w->out;
  const int32_t *which = (const int32_t *)j->v->saved + w->out;
  float *dx = j->n->nodes[j->v->input[0]].grad + get_offset(j, w->sample, 0, 0);
  for (int64_t k = 0; k < c; k++)
    dx[which[k] * c + k] += dy[k];
}

/* ---- mean ------------------------------------------------------------------------------------- */

NG_CLONES static void add_scaled_channels(const float *x, float scale, int64_t c, float *y) {
  for (int64_t k = 0; k < c; k++)
    y[k] += scale * x[k];
}

static float get_weight(const window *w) {
  return 1.0F / (float)((w->y1 - w->y0) * (w->x1 - w->x0));
}

static void mean_forward(const job *j, const window *w) {
  const float *x = j->n->nodes[j->v->input[0]].out;
  float *y = j->v->out + w->out;
  memset(y, 0, (size_t)j->x.channels * sizeof *y);
  for (int64_t a = w->y0; a < w->y1; a++) {
    for (int64_t b = w->x0; b < w->x1; b++)
      add_scaled_channels(x + get_offset(j, w->sample, a, b), get_weight(w), j->x.channels, y);
  }
}

static void mean_backward(const job *j, const window *w) {
  float *dx = j->n->nodes[j->v->input[0]].grad;
  for (int64_t a = w->y0; a < w->y1; a++) {
    for (int64_t b = w->x0; b < w->x1; b++)
      add_scaled_channels(j->v->grad + w->out, get_weight(w), j->x.channels,
                          dx + get_offset(j, w->sample, a, b));
  }
}

/* ---- kinds ------------------------------------------------------------------------------------ */

static int64_t count_max_saved_bytes(const nn *n, const node *v) {
  return n->batch * nn_count_values(v->shape) * (int64_t)sizeof(int32_t);
}
static const kind max_kind = {
    {"max pool", false, false, false, forward, backward, NULL, count_max_saved_bytes},
    max_forward,
    max_backward};
static const kind mean_kind = {{"average pool", false, false, false, forward, backward, NULL, NULL},
                               mean_forward,
                               mean_backward};

static int add_pooling(nn *n, const nn_op *op, int x, int64_t kernel, int64_t stride,
                       int64_t padding, bool up) {
  if (x < 0) return -1;
  const nn_shape s = nn_get_shape(n, x);
  if (kernel < 1 || stride < 1 || padding < 0 || padding >= kernel)
    return nn_fail(n, "%s: kernel and stride are at least 1, padding less than the kernel",
                   op->name);
  if (s.height + 2 * padding < kernel || s.width + 2 * padding < kernel)
    return nn_fail(n, "%s: an image of %lldx%lld is smaller than the window %lldx%lld", op->name,
                   (long long)s.height, (long long)s.width, (long long)kernel, (long long)kernel);
  const int64_t more = up ? stride - 1 : 0;
  const nn_shape to = {(s.height + 2 * padding - kernel + more) / stride + 1,
                       (s.width + 2 * padding - kernel + more) / stride + 1, s.channels};
  node *v = nn_add_node(n, op, x, -1, to);
  if (v == NULL) return -1;
  v->kernel = kernel;
  v->stride = stride;
  v->padding = padding;
  return v->number;
}

int nn_add_max_pool(nn *n, int x, int64_t kernel, int64_t stride, int64_t padding) {
  return add_pooling(n, &max_kind.op, x, kernel, stride, padding, false);
}

int nn_add_average_pool(nn *n, int x, int64_t kernel, int64_t stride) {
  return add_pooling(n, &mean_kind.op, x, kernel, stride, 0, true);
}

/* One square window covers the image; its positions outside the image are not averaged. */
int nn_add_global_pool(nn *n, int x) {
  if (x < 0) return -1;
  const nn_shape s = nn_get_shape(n, x);
  node *v = nn_add_node(n, &mean_kind.op, x, -1, (nn_shape){1, 1, s.channels});
  if (v == NULL) return -1;
  v->kernel = v->stride = s.height > s.width ? s.height : s.width;
  return v->number;
}
