/* spatial.c: correlations between the kernel positions of a convolution, pooled over channels.
 *
 * In: images in any layout and dtype. Out: S += alpha R, for kernel positions k and l at pixels with the distance l - k:
 *
 *     R[k, l] = sum over samples, channels and pixels s of x[s] x[s + (l - k) dilation]
 *
 * R is an autocorrelation, so it has no negative eigenvalue, and R[k, l] depends only on l - k (Grosse & Martens 2016,
 * arXiv 1602.01407, section 3.1: spatial homogeneity). The image is 0 outside its borders.
 *
 * The code copies an image once, with zeros between its rows. Then a distance is a constant offset in memory, and a sum over
 * all pixels is the inner product of the copy and the shifted copy. */
#include <string.h>

#include "kernel/pixels.h"
#include "simd.h"

enum {
  LANES = 16,
  TOGETHER = 4,  /* number of distances whose products one loop sums */
  CHUNK = 2048,  /* elements whose products are summed in f32; longer sums are in double */
  CHANNELS = 16, /* number of channels in a unit of work */
  UNITS = 256    /* number of units whose sums are stored at once */
};

typedef struct job {
  const ng_gram *g;
  /* the units in progress: index of the first one, and their number; a unit has CHANNELS channels of one sample */
  int64_t first, units;
  int64_t blocks; /* number of units of one sample */
  /* number of pixels from one row of the copy to the next; number of pixels of the copy */
  int64_t row, floats;
  /* number of distances, rounded up to a multiple of TOGETHER; the added ones are not used */
  int64_t distances;
  int32_t pieces;
  int64_t *offset; /* [distances] each distance as an offset in pixels */
  double *sum;     /* [units, distances] the sums of each unit */
  float *copy;     /* a copy of one image for each piece */
} job;

/* Return the number of distances l - k >= 0 in row-major order. */
static int64_t count_distances(const ng_conv *c) {
  return (c->kernel[0] - 1) * (2 * c->kernel[1] - 1) + c->kernel[1];
}

static job make_job(const ng_conv *c, float *scratch) {
  const int64_t n = (count_distances(c) + TOGETHER - 1) / TOGETHER * TOGETHER;
  job j = {.distances = n, .row = c->width + (c->kernel[1] - 1) * c->dilation[1]};
  j.floats = (c->height + (c->kernel[0] - 1) * c->dilation[0]) * j.row + j.row;
  j.offset = (int64_t *)(void *)scratch;
  j.sum = (double *)(void *)(scratch + 2 * ng_round16(n));
  j.copy = (float *)(void *)(j.sum + UNITS * n);
  return j;
}

int64_t ng_spatial_scratch(const ng_queue *q, const ng_conv *c) {
  const job j = make_job(c, NULL);
  return 2 * ng_round16(j.distances) + 2 * UNITS * j.distances +
         q->threads * ng_round16(j.floats * ng_min64(CHANNELS, c->channels));
}

/* sum[i] += sum over k < n of x[k] x[k + offset[i] * by], for i < TOGETHER. */
NG_CLONES static void correlate(const float *restrict x, int64_t n, const int64_t *offset,
                                int64_t by, double *sum) {
  const float *y0 = x + offset[0] * by, *y1 = x + offset[1] * by, *y2 = x + offset[2] * by,
              *y3 = x + offset[3] * by;
  float s[TOGETHER][LANES] = {{0.0f}};
  const int64_t whole = n / LANES * LANES;
  for (int64_t k = 0; k < whole; k += LANES) {
    for (int i = 0; i < LANES; i++) {
      s[0][i] += x[k + i] * y0[k + i];
      s[1][i] += x[k + i] * y1[k + i];
      s[2][i] += x[k + i] * y2[k + i];
      s[3][i] += x[k + i] * y3[k + i];
    }
  }
  for (int64_t k = whole; k < n; k++) {
    s[0][k - whole] += x[k] * y0[k];
    s[1][k - whole] += x[k] * y1[k];
    s[2][k - whole] += x[k] * y2[k];
    s[3][k - whole] += x[k] * y3[k];
  }
  for (int t = 0; t < TOGETHER; t++) {
    for (int i = 0; i < LANES; i++) {
      sum[t] += (double)s[t][i];
    }
  }
}

/* Sum the products of CHANNELS channels of one sample. The copy has the channels of a pixel adjacent, in any layout of the
 * image: then rows of small images are long enough for vectors. */
static void sum_unit(const job *j, int64_t unit, float *copy, double *sum) {
  const ng_gram *g = j->g;
  const ng_conv *c = &g->conv;
  const int64_t from = g->c0 + unit % j->blocks * CHANNELS, to = ng_min64(g->c1, from + CHANNELS);
  const int64_t wide = to - from, row = j->row * wide, n = c->height * row;
  const ng_pixels in = {&g->x, from, to};
  memset(copy, 0, (size_t)(j->floats * wide) * sizeof *copy);
  memset(sum, 0, (size_t)j->distances * sizeof *sum);
  for (int64_t y = 0; y < c->height; y++) {
    ng_pixels_load(&in, unit / j->blocks, y * c->width, c->width, copy + y * row, wide);
  }
  for (int64_t at = 0; at < n; at += CHUNK) {
    for (int64_t d = 0; d < j->distances; d += TOGETHER) {
      correlate(copy + at, ng_min64(CHUNK, n - at), j->offset + d, wide, sum + d);
    }
  }
}

static void sum_piece(void *arg, int32_t piece) {
  const job *j = arg;
  float *copy = j->copy + piece * ng_round16(j->floats * ng_min64(CHANNELS, j->g->conv.channels));
  int64_t from, to;
  ng_piece_bounds(j->units, j->pieces, piece, &from, &to);
  for (int64_t u = from; u < to; u++) {
    sum_unit(j, j->first + u, copy, j->sum + u * j->distances);
  }
}

/* Add the sums of the present units to S, unit after unit, so that the bits do not depend on the number of threads. */
static void add_sums(const job *j) {
  const ng_conv *c = &j->g->conv;
  const int64_t width = c->kernel[1], taps = ng_conv_taps(c);
  double *total = j->sum;
  for (int64_t u = 1; u < j->units; u++) {
    for (int64_t d = 0; d < j->distances; d++) {
      total[d] += j->sum[u * j->distances + d];
    }
  }
  for (int64_t l = 0; l < taps; l++) {
    for (int64_t k = 0; k <= l; k++) {
      const int64_t d = (l / width - k / width) * (2 * width - 1) + l % width - k % width;
      float *to = &j->g->S.a[ng_sym_at(taps, l, k)];
      *to = (float)((double)*to + (double)(float)j->g->alpha * total[d]);
    }
  }
}

static void add_correlations(ng_queue *q, const ng_gram *g, float *scratch) {
  const ng_conv *c = &g->conv;
  job j = make_job(c, scratch);
  j.g = g;
  j.blocks = (g->c1 - g->c0 + CHANNELS - 1) / CHANNELS;
  for (int64_t d = 0; d < j.distances; d++) {
    const int64_t k = d + c->kernel[1] - 1, wide = 2 * c->kernel[1] - 1;
    j.offset[d] =
        k / wide * c->dilation[0] * j.row + (k % wide - c->kernel[1] + 1) * c->dilation[1];
    if (d >= count_distances(c)) j.offset[d] = 0;
  }
  for (; j.first < g->samples * j.blocks; j.first += j.units) {
    j.units = ng_min64(UNITS, g->samples * j.blocks - j.first);
    j.pieces = ng_queue_pieces(q, j.units * CHANNELS * j.floats * TOGETHER);
    ng_queue_run(q, j.pieces, sum_piece, &j);
    add_sums(&j);
  }
}

void ng_cpu_add_spatial_grams(ng_queue *q, const ng_gram *g, int64_t n, float *scratch) {
  for (const ng_gram *end = g + n; g < end; g++) {
    if (g->S64 != NULL) {
      ng_ref_add_spatial_grams(q, g, 1, scratch);
    } else {
      add_correlations(q, g, scratch);
    }
  }
}
