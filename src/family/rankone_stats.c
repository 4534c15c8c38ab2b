/* rankone_stats.c: from observations to the mean vectors a and g of a rank-one block.
 *
 * In come checked views; out go means over samples and positions.  A convolution's a is the mean of
 * its patches, and that is a sum over a box of the mean image for each kernel offset: the image is
 * averaged over samples first, then over rows, then over columns, and no patch is ever made.  Sums
 * are in double; they are finite only if every number read was, so nothing is scanned beforehand.
 *
 * Scale (docs/algorithms.md): m the mean over samples and positions, S positions of one sample, c
 * the samples of the micro-batch for a mean loss and 1 for a sum,
 *
 *                          a            g
 *     eva                  m            m / loss_scale               lzhangbv/eva
 *     textbook, expand     sqrt(S) m    c m / loss_scale
 *     textbook, reduce     m            c S m / loss_scale */
#include "family/rankone.h"

#include <math.h>

#include "core/core.h"
#include "stat/read.h"
#include "simd.h"

/* Doubles of a piece's working set that should stay in the nearest caches. */
enum { PLANE = 4096, NARROW = 8, WIDE = 64, TILE = 512 };

typedef struct job {
  const ng_box *box;
  ng_view v;
  int64_t by_sample, by_pixel, by_channel;
  int64_t take;
  int32_t pieces;
  double *out;  /* [channels][offsets]: sums over samples and positions */
  double *room; /* of all pieces */
  int64_t each;
  bool bad[256];
} job;

/* ---- sums ------------------------------------------------------------------------------------*/

/* acc[i] += sum over rows of x[row * stride + i]; four rows at a time, because acc costs as much as
 * a row. */
NG_CLONES static void add_floats(double *restrict acc, const float *restrict x, int64_t stride,
                                 int64_t rows, int64_t n) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4, x += 4 * stride) {
    const float *restrict x1 = x + stride, *restrict x2 = x1 + stride, *restrict x3 = x2 + stride;
    for (int64_t i = 0; i < n; i++) {
      acc[i] += ((double)x[i] + (double)x1[i]) + ((double)x2[i] + (double)x3[i]);
    }
  }
  for (; r < rows; r++, x += stride) {
    for (int64_t i = 0; i < n; i++) {
      acc[i] += (double)x[i];
    }
  }
}

NG_CLONES static void add_doubles(double *restrict acc, const double *restrict x, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    acc[i] += x[i];
  }
}

/* Adds rows of n elements each, the first from index `at` of the view. */
static void add(const job *j, double *acc, int64_t at, int64_t stride, int64_t rows, int64_t n) {
  const ng_dtype t = j->v.dtype;
  if (t == NG_F32) {
    add_floats(acc, (const float *)j->v.data + at, stride, rows, n);
    return;
  }
  float line[TILE];
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t i = 0; i < n; i += TILE) {
      const int64_t m = ng_min64(TILE, n - i);
      ng_to_f32(line, (const char *)j->v.data + (at + r * stride + i) * ng_dtype_size(t), t, m);
      add_floats(acc + i, line, 0, 1, m);
    }
  }
}

static bool all_numbers(const double *x, int64_t n) {
  double zero = 0.0;
  for (int64_t i = 0; i < n; i++) {
    zero += x[i] - x[i];
  }
  return zero == 0.0;
}

static void clear(double *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

/* Output positions u of one axis whose tap `k` falls on pixels, as [*from, *to). */
static void reach(const ng_box *b, int axis, int64_t k, int64_t *from, int64_t *to) {
  const int64_t size = axis == 0 ? b->height : b->width, stride = b->stride[axis];
  const int64_t first = b->padding[axis] - k * b->dilation[axis]; /* u stride >= first */
  const int64_t last = size - 1 + first;                          /* u stride <= last */
  *from = first > 0 ? (first + stride - 1) / stride : 0;
  *to = last < 0 ? 0 : ng_min64(last / stride + 1, b->positions[axis]);
}

/* The pixel that tap k of output position u sees. */
static int64_t pixel(const ng_box *b, int axis, int64_t k, int64_t u) {
  return u * b->stride[axis] + k * b->dilation[axis] - b->padding[axis];
}

/* ---- channels first: a plane [channel][y][x] at a time ---------------------------------------*/

static void box_plane(const ng_box *b, const double *plane, double *rows, double *out) {
  for (int64_t i = 0; i < b->kernel[0]; i++) {
    int64_t from, to;
    reach(b, 0, i, &from, &to);
    clear(rows, b->width);
    for (int64_t u = from; u < to; u++) {
      add_doubles(rows, plane + pixel(b, 0, i, u) * b->width, b->width);
    }
    for (int64_t k = 0; k < b->kernel[1]; k++) {
      double sum = 0.0;
      reach(b, 1, k, &from, &to);
      for (int64_t v = from; v < to; v++) {
        sum += rows[pixel(b, 1, k, v)];
      }
      out[i * b->kernel[1] + k] = sum;
    }
  }
}

static int64_t plane_channels(const ng_box *b) {
  return ng_max64(1, ng_min64(b->channels, PLANE / (b->height * b->width)));
}

static void first_piece(const job *j, int64_t c0, int64_t c1, double *room, bool *bad) {
  const ng_box *b = j->box;
  const int64_t pixels = b->height * b->width, most = plane_channels(b);
  double *plane = room, *rows = room + most * pixels;
  for (int64_t c = c0; c < c1; c += most) {
    const int64_t n = ng_min64(most, c1 - c);
    clear(plane, n * pixels);
    add(j, plane, c * pixels, j->by_sample, j->take, n * pixels);
    if (!all_numbers(plane, n * pixels)) *bad = true;
    for (int64_t i = 0; i < n; i++) {
      double *out = j->out + (c + i) * b->offsets;
      if (b->whole) {
        out[0] = 0.0;
        for (int64_t x = 0; x < pixels; x++) {
          out[0] += plane[i * pixels + x];
        }
      } else {
        box_plane(b, plane + i * pixels, rows, out);
      }
    }
  }
}

/* ---- channels last: a row of pixels at a time, some channels of each -------------------------*/

static int64_t line_channels(const ng_box *b) {
  const int64_t n = b->whole ? WIDE : ng_max64(NARROW, ng_min64(WIDE, PLANE / b->width));
  return ng_min64(n, b->channels);
}

/* sums[i] [x][channel]: rows of pixels that kernel row i sees. */
static void box_lines(const job *j, int64_t c, int64_t n, double *line, double *sums, bool *bad) {
  const ng_box *b = j->box;
  const int64_t wide = b->width * n;
  clear(sums, b->kernel[0] * wide);
  for (int64_t y = 0; y < b->height; y++) {
    clear(line, wide);
    const int64_t at = y * b->width * j->by_pixel + c;
    if (n == j->by_pixel) {
      add(j, line, at, j->by_sample, j->take, wide);
    } else {
      for (int64_t x = 0; x < b->width; x++) {
        add(j, line + x * n, at + x * j->by_pixel, j->by_sample, j->take, n);
      }
    }
    if (!all_numbers(line, wide)) *bad = true;
    for (int64_t i = 0; i < b->kernel[0]; i++) {
      const int64_t top = y + b->padding[0] - i * b->dilation[0];
      if (top < 0 || top % b->stride[0] != 0 || top / b->stride[0] >= b->positions[0]) continue;
      add_doubles(sums + i * wide, line, wide);
    }
  }
  for (int64_t i = 0; i < b->kernel[0]; i++) {
    for (int64_t k = 0; k < b->kernel[1]; k++) {
      int64_t from, to;
      reach(b, 1, k, &from, &to);
      clear(line, n);
      for (int64_t v = from; v < to; v++) {
        add_doubles(line, sums + i * wide + pixel(b, 1, k, v) * n, n);
      }
      for (int64_t m = 0; m < n; m++) {
        j->out[(c + m) * b->offsets + i * b->kernel[1] + k] = line[m];
      }
    }
  }
}

static void last_piece(const job *j, int64_t c0, int64_t c1, double *room, bool *bad) {
  const ng_box *b = j->box;
  const int64_t most = line_channels(b), pixels = b->height * b->width;
  for (int64_t c = c0; c < c1; c += most) {
    const int64_t n = ng_min64(most, c1 - c);
    if (!b->whole) {
      box_lines(j, c, n, room, room + b->width * n, bad);
      continue;
    }
    clear(room, n);
    for (int64_t s = 0; s < j->take; s++) {
      add(j, room, s * j->by_sample + c, j->by_pixel, pixels, n);
    }
    if (!all_numbers(room, n)) *bad = true;
    memcpy(j->out + c, room, (size_t)n * sizeof *room);
  }
}

static void piece(void *arg, int32_t i) {
  job *j = arg;
  int64_t from, to;
  ng_share(j->box->channels, j->pieces, i, &from, &to);
  j->bad[i] = false;
  if (j->by_channel == 1) {
    last_piece(j, from, to, j->room + i * j->each, &j->bad[i]);
  } else {
    first_piece(j, from, to, j->room + i * j->each, &j->bad[i]);
  }
}

/* ---- observe ---------------------------------------------------------------------------------*/

/* Doubles one piece works with: the larger of both orders. */
static int64_t piece_room(const ng_box *b) {
  const int64_t first = plane_channels(b) * b->height * b->width + b->width;
  const int64_t last = line_channels(b) * (b->whole ? 1 : b->width * (1 + b->kernel[0]));
  return ng_round16(ng_max64(first, last));
}

int64_t ng_rankone_scratch(const ng_block *b) {
  const ng_rankone *k = ng_rankone_of(b);
  int64_t most = 0;
  for (int i = 0; i < 2; i++) {
    const ng_mean *m = &k->side[i];
    const int64_t pieces = ng_min64(ng_threads_of(b->p->ctx), 256);
    most = ng_max64(most, ng_round16(m->n) + pieces * piece_room(&m->box));
  }
  return most;
}

/* What the mean is multiplied by. */
static double scale_of(const ng_block *b, const ng_obs *o) {
  const double S = (double)o->positions, c = o->reduction == NG_MEAN ? (double)o->samples : 1.0;
  const bool reduce = b->opt.positions == NG_POSITIONS_REDUCE;
  if (b->opt.stat_scale == NG_SCALE_EVA) return o->grad ? 1.0 / o->loss_scale : 1.0;
  if (!o->grad) return reduce ? 1.0 : sqrt(S);
  return (reduce ? c * S : c) / o->loss_scale;
}

static void read_as(const ng_block *b, const ng_obs *o, job *j, ng_box *line) {
  const ng_layer *d = &b->entry->d;
  const ng_box *box = &ng_rankone_of(b)->side[o->grad].box;
  j->v = o->v;
  j->box = box;
  if (d->kind == NG_CONV2D) {
    const bool last = d->layout == NG_NHWC;
    j->by_sample = o->v.row_stride;
    j->by_pixel = last ? box->channels : 1;
    j->by_channel = last ? 1 : box->height * box->width;
    return;
  }
  *line = *box;
  line->width = o->positions;
  j->box = line;
  j->by_channel = 1;
  j->by_pixel = d->order == NG_SAMPLES_FIRST ? o->v.row_stride : o->samples * o->v.row_stride;
  j->by_sample = d->order == NG_SAMPLES_FIRST ? o->positions * o->v.row_stride : o->v.row_stride;
}

ng_status ng_rankone_observe(ng_block *b, const ng_obs *o) {
  ng_rankone *k = ng_rankone_of(b);
  ng_mean *m = &k->side[o->grad];
  const int64_t take = ng_average_take(b, o);
  ng_box line;
  job j;
  read_as(b, o, &j, &line);
  const int64_t n = j.box->channels * j.box->offsets;
  j.take = take;
  j.out = k->scratch;
  j.room = k->scratch + ng_round16(m->n);
  j.each = piece_room(&m->box);
  j.pieces = ng_pieces(b->p->ctx, take * j.box->channels * j.box->height * j.box->width);
  j.pieces = (int32_t)ng_min64(ng_min64(j.pieces, 256), j.box->channels);
  ng_parallel(b->p->ctx, j.pieces, piece, &j);
  for (int32_t i = 0; i < j.pieces; i++) {
    if (j.bad[i]) return NG_SKIPPED;
  }
  const ng_mix mix = ng_average_call(b, &m->average, take);
  const double scale = mix.fresh * scale_of(b, o);
  const double mean = scale / ((double)take * (double)o->positions);
  for (int64_t i = 0; i < m->n; i++) {
    const double fresh = i < n ? mean * j.out[i] : scale; /* the bias sees ones */
    m->sum[i] = (float)(mix.old * (double)m->sum[i] + fresh);
  }
  return NG_OK;
}

/* ---- weights, scale, fold --------------------------------------------------------------------*/

void ng_rankone_weights(ng_block *b, double w[4], bool set) {
  ng_rankone *k = ng_rankone_of(b);
  ng_average_weights(&k->side[NG_MEAN_A].average, &k->side[NG_MEAN_G].average, w, set);
}

void ng_rankone_scale(ng_block *b) {
  ng_rankone *k = ng_rankone_of(b);
  ng_queue *q = b->p->ctx->queue;
  for (int i = 0; i < 2; i++) {
    ng_mean *m = &k->side[i];
    const double own = ng_average_own(b, &m->average);
    if (own != 1.0) ng_on(q)->scale(q, m->n, m->sum, own);
  }
}

static void forget(ng_queue *q, ng_mean *m) {
  if (m->average.w > 0.0 || m->average.total > 0.0) ng_on(q)->scale(q, m->n, m->sum, 0.0);
  ng_average_close(&m->average);
}

/* Sums may overflow although every value was finite: then this side keeps its average. */
ng_status ng_rankone_fold(ng_block *b) {
  ng_rankone *k = ng_rankone_of(b);
  ng_queue *q = b->p->ctx->queue;
  ng_status st = NG_OK;
  for (int i = 0; i < 2; i++) {
    ng_mean *m = &k->side[i];
    if (!(m->average.total > 0.0)) continue;
    ng_on(q)->finite(q, m->n, m->sum, NG_F32, &m->finite);
    ng_queue_wait(q);
    if (!ng_info_read(q, &m->finite)) {
      st = ng_fail(b->p->ctx, NG_SKIPPED, "layer '%s': the sum of %s overflowed", b->entry->d.name,
                   i == NG_MEAN_A ? "inputs" : "output gradients");
      forget(q, m);
      continue;
    }
    const ng_mix mix = ng_average_fold(b, &m->average);
    ng_on(q)->fold_wide(q, m->n, m->mean, m->sum, mix.old, mix.fresh);
    m->average.started = true;
    ng_average_close(&m->average);
  }
  ng_queue_wait(q); /* the tiles of the gradient are walked here, on the host, with the averages */
  return st;
}

void ng_rankone_forget(ng_block *b) {
  ng_rankone *k = ng_rankone_of(b);
  forget(b->p->ctx->queue, &k->side[NG_MEAN_A]);
  forget(b->p->ctx->queue, &k->side[NG_MEAN_G]);
}
