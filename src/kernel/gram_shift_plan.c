/* gram_shift_plan.c: geometry, sizes and costs of the displacements of gram_shift.c.
 *
 * In: a convolution, numbers of channels and samples. Out: for each axis and displacement, the coordinates of the common
 * sum M[0, 0] that are missing in a block; the size of the scratch; the predicted time. */
#include "kernel/gram_shift.h"
#include "kernel/pixels.h"

/* ---- one axis --------------------------------------------------------------------------------*/

ng_axis ng_conv_axis(const ng_conv *c, int32_t i) {
  return (ng_axis){.size = i == 0 ? c->height : c->width,
                   .taps = c->kernel[i],
                   .step = c->dilation[i],
                   .pad = c->padding[i],
                   .out = i == 0 ? c->out_height : c->out_width};
}

static ng_range intersect(ng_range a, ng_range b) {
  return (ng_range){ng_max64(a.from, b.from), ng_min64(a.to, b.to)};
}

/* At output position u, tap k covers coordinate k step - pad + u (stride 1). Return the range of these coordinates over
 * all u, without those outside the image. */
static ng_range tap_range(const ng_axis *a, int64_t k) {
  const int64_t first = k * a->step - a->pad;
  return intersect((ng_range){first, first + a->out}, (ng_range){0, a->size});
}

/* Return the coordinates r such that r and r + d step are inside the image. */
static ng_range paired_coordinates(const ng_axis *a, int64_t d) {
  return intersect((ng_range){0, a->size}, (ng_range){-d * a->step, a->size - d * a->step});
}

/* Set *low and *high to how many paired coordinates are missing in block (k, k + d) at each end. Return false if all are
 * missing. */
static bool missing_ends(const ng_axis *a, int64_t d, int64_t k, int64_t *low, int64_t *high) {
  const ng_range all = paired_coordinates(a, d), mine = intersect(all, tap_range(a, k));
  if (mine.from >= mine.to) return false;
  *low = mine.from - all.from;
  *high = all.to - mine.to;
  return true;
}

ng_range ng_axis_paired_taps(const ng_axis *a, int64_t d) {
  return (ng_range){ng_max64(0, -d), ng_min64(a->taps, a->taps - d)};
}

/* low, high: how many coordinates at each end are missing in some block of displacement d. */
ng_strips ng_find_strips(const ng_axis *a, int64_t d) {
  ng_strips s = {.inner = paired_coordinates(a, d)};
  const ng_range taps = ng_axis_paired_taps(a, d);
  for (int64_t k = taps.from; k < taps.to; k++) {
    int64_t low, high;
    if (!missing_ends(a, d, k, &low, &high)) continue;
    s.low = ng_max64(s.low, low);
    s.high = ng_max64(s.high, high);
  }
  return s;
}

int64_t ng_strip_coordinate(const ng_strips *s, int64_t i) {
  return i <= s->low ? s->inner.from + i - 1 : s->inner.to - (i - s->low);
}

int64_t ng_list_strip_terms(const ng_axis *a, const ng_strips *s, int64_t d, int64_t k,
                            int64_t *index) {
  int64_t low = 0, high = 0, n = 0;
  if (!missing_ends(a, d, k, &low, &high)) return 0;
  index[n++] = 0;
  for (int64_t i = 1; i <= low; i++) {
    index[n++] = i;
  }
  for (int64_t i = 1; i <= high; i++) {
    index[n++] = s->low + i;
  }
  return n;
}

/* ---- size and cost ---------------------------------------------------------------------------*/

enum {
  MOST_TAPS = 256,      /* most taps along an axis */
  TILE_ROWS = 16384,    /* pixels times samples; large, because each tile adds all blocks to S */
  TILE_FLOATS = 1 << 22 /* 16 MiB */
};

/* A column that is missing in some block at the left end, and the column displaced from that column, are both to the left
 * of the first column under the last tap. The right end is symmetric. */
int64_t ng_shift_edge_columns(const ng_conv *c) {
  return ng_max64(0, (c->kernel[1] - 1) * c->dilation[1] - c->padding[1]);
}

int64_t ng_shift_copied_columns(const ng_conv *c) {
  return ng_min64(c->width, 2 * ng_shift_edge_columns(c));
}

int64_t ng_shift_pixels(const ng_conv *c) {
  return ng_times(c->height, c->width + ng_shift_copied_columns(c));
}

/* Return the largest number of matrices M of a displacement; each has channels^2 floats. */
static int64_t product_count(const ng_conv *c) {
  const ng_axis v = ng_conv_axis(c, 0), h = ng_conv_axis(c, 1);
  int64_t most = 0;
  for (int64_t dy = 0; dy < v.taps; dy++) {
    for (int64_t dx = 0; dx < h.taps; dx++) {
      const ng_strips sy = ng_find_strips(&v, dy), sx = ng_find_strips(&h, dx);
      most = ng_max64(most, ng_count_strip_indices(&sy) * ng_count_strip_indices(&sx));
    }
  }
  return most;
}

/* With large padding, or a kernel as wide as the image, so many rows and columns are missing in blocks that the plain
 * method is faster. NG_SHIFT_MAX_PRODUCTS and TILE_FLOATS exclude these cases. */
bool ng_conv_shift_fits(const ng_conv *c, int64_t channels) {
  /* This limit bounds the time of product_count, which visits all pairs of taps. */
  if (c->kernel[0] > MOST_TAPS || c->kernel[1] > MOST_TAPS) return false;
  return c->stride[0] == 1 && c->stride[1] == 1 &&
         ng_times(channels, ng_shift_pixels(c)) <= TILE_FLOATS &&
         product_count(c) <= NG_SHIFT_MAX_PRODUCTS;
}

/* A tile needs many samples, because its samples are the rows that a GEMM sums for each pixel. */
int64_t ng_shift_tile_samples(const ng_conv *c, int64_t channels) {
  const int64_t by_rows = TILE_ROWS / (c->height * c->width);
  return ng_max64(1, ng_min64(by_rows, TILE_FLOATS / (channels * ng_shift_pixels(c))));
}

ng_shift_layout ng_shift_layout_of(const ng_conv *c, int64_t channels, int64_t tile) {
  ng_shift_layout l;
  l.products = ng_round16(tile);
  l.gram = l.products + ng_round16(product_count(c) * channels * channels);
  l.total = l.gram + ng_round16(ng_sym_count(channels));
  return l;
}

int64_t ng_conv_shift_scratch(const ng_conv *c, int64_t channels) {
  /* Groups of fewer channels need no more scratch. `widest`: all channels, or as many as fit a tile of one sample. */
  const int64_t widest = ng_min64(channels, TILE_FLOATS / ng_shift_pixels(c));
  const int64_t by_rows = ng_max64(1, TILE_ROWS / (c->height * c->width));
  const int64_t tile = ng_min64(by_rows * widest * ng_shift_pixels(c), TILE_FLOATS);
  return ng_shift_layout_of(c, widest, tile).total;
}

/* Model of both costs: one core at 250 GFLOP/s, fitted to OpenBLAS on a processor with AVX-512. A GEMM of C by C columns
 * reaches C / (C + 16) of that rate (C < 4: a third of this), a SYRK of order p reaches p / (p + 70). Other costs: a call
 * of GEMM 1 us; a float of the tile or of an added matrix 0.15 ns; a float of a patch 0.35 ns; a kernel row of a patch
 * 3 ns; for each tile, a float of the factor 0.12 ns. Measured times of 3 to 512 channels, 56x56 to 2x2 pixels and 4 or
 * 32 samples differ from the model by up to 20 %. */
double ng_conv_shift_cost(const ng_conv *c, int64_t channels, int64_t samples) {
  const ng_axis v = ng_conv_axis(c, 0), h = ng_conv_axis(c, 1);
  const double C = (double)channels, per_flop = (C + 16.0) / C / (C < 4.0 ? 83.0 : 250.0);
  const int64_t most = ng_shift_tile_samples(c, channels), tiles = (samples + most - 1) / most;
  double rows = 0, calls = 0, moved = 0;
  for (int64_t dy = 0; dy < v.taps; dy++) {
    for (int64_t dx = dy == 0 ? 0 : 1 - h.taps; dx < h.taps; dx++) {
      const ng_strips sy = ng_find_strips(&v, dy), sx = ng_find_strips(&h, dx);
      const int64_t height = sy.inner.to - sy.inner.from, width = sx.inner.to - sx.inner.from;
      if (height <= 0 || width <= 0) continue;
      const int64_t ny = ng_count_strip_indices(&sy), nx = ng_count_strip_indices(&sx);
      const ng_range ky = ng_axis_paired_taps(&v, dy), kx = ng_axis_paired_taps(&h, dx);
      const double call = (double)((dx == 0 ? 1 : height) + ny * nx - 1);
      rows += (double)((height + ny - 1) * (width + nx - 1)) * (dy == 0 && dx == 0 ? 0.6 : 1.0);
      calls += call;
      moved += call + (double)((ky.to - ky.from) * (kx.to - kx.from)) * 3.0;
    }
  }
  const double packed = (double)(samples * ng_shift_pixels(c)) * C;
  return 2.0 * C * C * rows * (double)samples * per_flop + calls * (double)tiles * 1000.0 +
         (moved * C * C * (double)tiles + packed) * 0.15;
}

double ng_conv_plain_cost(const ng_conv *c, int64_t channels, int64_t samples) {
  const double p = (double)(c->kernel[0] * c->kernel[1] * channels);
  const double rows = (double)(samples * c->out_height * c->out_width);
  const double tiles = rows / (double)ng_tile_rows(c->kernel[0] * c->kernel[1] * channels) + 1.0;
  return p * (p + 70.0) * rows / 250.0 + (p * 0.35 + (double)c->kernel[0] * 3.0) * rows +
         p * p * tiles * 0.12;
}
