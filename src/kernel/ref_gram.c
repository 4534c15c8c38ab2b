/* ref_gram.c: the sums over observed arrays of gram_rows.c, gram_conv.c, spatial.c, box.c and squares.c, element by element. */
#include <math.h>

#include "kernel/pixels.h"

/* ---- elements --------------------------------------------------------------------------------*/

double ng_view_element(const ng_view *v, int64_t n, int64_t s, int64_t c) {
  return ng_element_at(ng_view_at(v, n, s, c), v->dtype, 0);
}

/* Return channel ch of sample n under kernel offset k at output position s; 0 outside the image. */
static double patch_element(const ng_view *v, const ng_conv *c, int64_t n, int64_t s, int64_t k,
                            int64_t ch) {
  const int64_t i = k / c->kernel[1], j = k % c->kernel[1];
  const int64_t y = s / c->out_width * c->stride[0] + i * c->dilation[0] - c->padding[0];
  const int64_t x = s % c->out_width * c->stride[1] + j * c->dilation[1] - c->padding[1];
  if (y < 0 || y >= c->height || x < 0 || x >= c->width) return 0.0;
  return ng_view_element(v, n, y * c->width + x, ch);
}

/* ---- Gram matrices ---------------------------------------------------------------------------*/

/* row <- row + times r, where r is row s of sample n: columns [c0, c1) of a position, or of a patch, then a 1. */
static void add_row(const ng_gram *g, bool patches, int64_t n, int64_t s, double times,
                    double *row) {
  const int64_t C = g->c1 - g->c0, taps = patches ? ng_conv_taps(&g->conv) : 1;
  for (int64_t k = 0; k < taps; k++) {
    for (int64_t c = 0; c < C; c++) {
      row[k * C + c] += times * (patches ? patch_element(&g->x, &g->conv, n, s, k, g->c0 + c)
                                         : ng_view_element(&g->x, n, s, g->c0 + c));
    }
  }
  if (g->has_ones) row[taps * C] += times;
}

/* Add rows [from, to) of the Gram matrix of order p to S. Scratch: sum [to - from, p], row [p]. */
static void add_strip(const ng_gram *g, bool patches, int64_t p, int64_t from, int64_t to,
                      double *row, double *sum) {
  const int64_t S = patches ? g->conv.out_height * g->conv.out_width : g->x.positions;
  /* A sample has `rows` rows, and a row is a sum over `each` positions. */
  const int64_t rows = g->reduce != 0 ? 1 : S, each = S / rows;
  const double times = g->reduce == 1 ? 1.0 / (double)S : 1.0;
  memset(sum, 0, (size_t)((to - from) * p) * sizeof *sum);
  for (int64_t r = 0; r < g->samples * rows; r++) {
    memset(row, 0, (size_t)p * sizeof *row);
    for (int64_t s = 0; s < each; s++) {
      add_row(g, patches, r / rows, r % rows + s, times, row);
    }
    for (int64_t i = from; i < to; i++) {
      for (int64_t j = 0; j <= i; j++) {
        sum[(i - from) * p + j] += row[i] * row[j];
      }
    }
  }
  for (int64_t i = from; i < to; i++) {
    for (int64_t j = 0; j <= i; j++) {
      const int64_t at = ng_sym_at(p, i, j);
      const double more = sum[(i - from) * p + j];
      if (g->S64 != NULL) {
        g->S64[at] += g->alpha * more;
      } else {
        g->S.a[at] = (float)((double)g->S.a[at] + (double)(float)g->alpha * more);
      }
    }
  }
}

/* Add the Gram matrices to S in strips of as many rows as fit the scratch. */
static void add_grams(const ng_gram *g, int64_t n, bool patches, float *scratch) {
  double *row = (double *)(void *)scratch;
  for (const ng_gram *end = g + n; g < end; g++) {
    const int64_t taps = patches ? ng_conv_taps(&g->conv) : 1;
    const int64_t p = taps * (g->c1 - g->c0) + (g->has_ones ? 1 : 0);
    const int64_t strip = ng_tile_floats(p) / 2 / p - 1;
    for (int64_t i = 0; i < p && g->samples > 0; i += strip) {
      add_strip(g, patches, p, i, ng_min64(p, i + strip), row, row + p);
    }
  }
}

void ng_ref_add_row_grams(ng_queue *q, const ng_gram *g, int64_t n, float *scratch) {
  (void)q;
  add_grams(g, n, false, scratch);
}

void ng_ref_add_conv_grams(ng_queue *q, const ng_gram *g, int64_t n, float *scratch) {
  (void)q;
  add_grams(g, n, true, scratch);
}

/* Return the sum of x[s] x[s + (y, x)] over samples, channels and pixels s; pixels outside the image are 0. */
static double correlation(const ng_gram *g, int64_t y, int64_t x) {
  const ng_conv *c = &g->conv;
  double sum = 0.0;
  for (int64_t s = 0; s < c->height * c->width; s++) {
    const int64_t row = s / c->width + y, column = s % c->width + x;
    if (row < 0 || row >= c->height || column < 0 || column >= c->width) continue;
    for (int64_t n = 0; n < g->samples; n++) {
      for (int64_t channel = g->c0; channel < g->c1; channel++) {
        sum += ng_view_element(&g->x, n, s, channel) *
               ng_view_element(&g->x, n, row * c->width + column, channel);
      }
    }
  }
  return sum;
}

void ng_ref_add_spatial_grams(ng_queue *q, const ng_gram *g, int64_t n, float *scratch) {
  (void)q, (void)scratch;
  for (const ng_gram *end = g + n; g < end; g++) {
    const ng_conv *c = &g->conv;
    const int64_t width = c->kernel[1], taps = ng_conv_taps(c);
    for (int64_t l = 0; l < taps; l++) {
      for (int64_t k = 0; k <= l; k++) {
        const int64_t at = ng_sym_at(taps, l, k);
        const double sum = correlation(g, (l / width - k / width) * c->dilation[0],
                                       (l % width - k % width) * c->dilation[1]);
        if (g->S64 != NULL) {
          g->S64[at] += g->alpha * sum;
        } else {
          g->S.a[at] = (float)((double)g->S.a[at] + (double)(float)g->alpha * sum);
        }
      }
    }
  }
}

/* ---- squared gradients of samples -----------------------------------------------------------------*/

/* y [p] <- the sum over positions of <vector i of Q_G, g_ns> a_ns; row: scratch. */
static void project_sample(const ng_sample_squares *k, int64_t n, int64_t i, int64_t p, double *row,
                           double *y) {
  const int64_t q = k->g1 - k->g0;
  const ng_gram rows = {
      .x = k->x, .c0 = k->a0, .c1 = k->a1, .has_ones = k->has_ones, .conv = k->conv};
  memset(y, 0, (size_t)p * sizeof *y);
  for (int64_t s = 0; s < k->positions; s++) {
    double along = 0.0;
    for (int64_t c = 0; c < q; c++) {
      along += (double)k->QG[i * q + c] * ng_view_element(&k->g, n, s, k->g0 + c);
    }
    memset(row, 0, (size_t)p * sizeof *row);
    add_row(&rows, k->is_conv, n, s, 1.0, row);
    for (int64_t c = 0; c < p; c++) {
      y[c] += along * row[c];
    }
  }
}

void ng_ref_add_sample_squares(ng_queue *q, const ng_sample_squares *k, int64_t n, float *scratch) {
  (void)q;
  for (const ng_sample_squares *end = k + n; k < end; k++) {
    const int64_t taps = k->is_conv ? ng_conv_taps(&k->conv) : 1,
                  p = taps * (k->a1 - k->a0) + (k->has_ones ? 1 : 0);
    double *row = (double *)(void *)scratch, *y = row + p, *sum = y + p;
    for (int64_t i = 0; i < k->g1 - k->g0; i++) {
      memset(sum, 0, (size_t)p * sizeof *sum);
      for (int64_t s = 0; s < k->samples; s++) {
        project_sample(k, s, i, p, row, y);
        for (int64_t j = 0; j < p; j++) {
          double u = 0.0;
          for (int64_t c = 0; c < p; c++) {
            u += (double)k->QA[j * p + c] * y[c];
          }
          sum[j] += u * u;
        }
      }
      for (int64_t j = 0; j < p; j++) {
        float *const v = &k->V[i * k->ld + j];
        *v = (float)((double)*v + (double)(float)k->alpha * sum[j]);
      }
    }
  }
}

/* ---- sums ------------------------------------------------------------------------------------*/

void ng_ref_sum_patches(ng_queue *q, const ng_box *b, int64_t n, double *scratch) {
  (void)q, (void)scratch;
  for (const ng_box *end = b + n; b < end; b++) {
    const int64_t taps = ng_conv_taps(&b->conv), patches = b->conv.out_height * b->conv.out_width;
    double zero = 0.0; /* NaN if an input is not finite, also outside the patches */
    for (int64_t k = 0; k < b->samples * b->x.positions * b->x.columns; k++) {
      const int64_t s = k / b->x.columns;
      zero +=
          0.0 * ng_view_element(&b->x, s / b->x.positions, s % b->x.positions, k % b->x.columns);
    }
    for (int64_t i = 0; i < b->conv.channels * taps; i++) {
      double sum = i == 0 ? zero : 0.0;
      for (int64_t s = 0; s < b->samples * patches; s++) {
        sum += patch_element(&b->x, &b->conv, s / patches, s % patches, i % taps, i / taps);
      }
      b->out[i] = sum;
    }
  }
}

void ng_ref_sum_squares(ng_queue *q, const ng_squares *s, int64_t n) {
  (void)q;
  for (const ng_squares *end = s + n; s < end; s++) {
    const int64_t S = s->x.positions;
    for (int64_t c = 0; c < s->x.columns; c++) {
      double all = 0.0;
      for (int64_t i = 0; i < s->samples; i++) {
        double sum = 0.0;
        for (int64_t p = 0; p < S; p++) {
          const double x = ng_view_element(&s->x, i, p, c);
          sum += s->reduce == 0 ? x * x : x;
        }
        if (s->reduce == 1) sum /= (double)S;
        all += s->reduce == 0 ? sum : sum * sum;
      }
      s->out[c] = all;
    }
  }
}
