/* gram_conv.c: the input factor of a convolution (Grosse & Martens 2016, arXiv 1602.01407, equations 11 to 13).
 *
 * In: images in any strides and dtype. Out: S += alpha sum over samples and output positions of a a'; a is the
 * zero-padded patch in the order (kernel offset, channel), followed by a 1 for a bias.
 *
 * The plain method writes patches as rows of a tile (im2col) and computes the Gram matrix of the tile. It accepts every
 * geometry, and is the oracle of the fast method for stride 1 (gram_shift.c), which stores no patches. If each patch is
 * one pixel, gram_rows.c computes the factor.
 *
 * The threads of the queue fill a tile; then one thread calls BLAS, which has threads of its own. BLAS multiplies
 * by alpha when it adds the tile to S. */
#include "kernel/gram_shift.h"
#include "kernel/pixels.h"

/* ---- patches ---------------------------------------------------------------------------------*/

/* kernel_height: how many image rows a kernel covers, dilation included; padded_width: pixels of a padded image row. */
static int64_t kernel_height(const ng_conv *c) { return (c->kernel[0] - 1) * c->dilation[0] + 1; }
static int64_t padded_width(const ng_conv *c) { return c->width + 2 * c->padding[1]; }

int64_t ng_patch_window_floats(const ng_conv *c, int64_t channels) {
  return ng_round16(ng_times(ng_times(kernel_height(c), padded_width(c)), channels));
}

/* Return the slot of image row y, which is negative in the padding. The window is a ring of rows. */
static int64_t ring_slot(int64_t y, int64_t span) { return (y % span + span) % span; }

/* Load row y of image n, with its horizontal padding, into its slot of the window; a row of the vertical padding is 0. */
static void load_image_row(const ng_gram *g, float *window, int64_t n, int64_t y) {
  const ng_conv *c = &g->conv;
  const ng_pixels in = {&g->x, g->c0, g->c1};
  const int64_t wide = g->c1 - g->c0, row = padded_width(c) * wide;
  float *to = window + ring_slot(y, kernel_height(c)) * row;
  memset(to, 0, (size_t)row * sizeof *to);
  if (y < 0 || y >= c->height) return;
  ng_pixels_load(&in, n, y * c->width, c->width, to + c->padding[1] * wide, wide);
}

/* Copy n floats. A call of memcpy takes longer than the copy of few floats, so overlapping copies of constant size copy them. */
static inline void copy_floats(float *to, const float *from, int64_t n) {
  if (n >= 4 && n <= 8) {
    memcpy(to, from, 4 * sizeof *to);
    memcpy(to + n - 4, from + n - 4, 4 * sizeof *to);
  } else if (n > 8 && n <= 16) {
    memcpy(to, from, 8 * sizeof *to);
    memcpy(to + n - 8, from + n - 8, 8 * sizeof *to);
  } else {
    memcpy(to, from, (size_t)n * sizeof *to);
  }
}

/* Copy `count` neighbouring patches from the window to rows at distance ld. The first pixel of the first patch is at image row y0
 * and padded column x0. Without horizontal dilation, the pixels under a kernel row are contiguous. */
static void copy_patches(const ng_gram *g, const float *window, int64_t y0, int64_t x0,
                         int64_t count, float *out, int64_t ld) {
  const ng_conv *c = &g->conv;
  const int64_t wide = g->c1 - g->c0, row = padded_width(c) * wide, span = kernel_height(c);
  const int64_t runs = c->dilation[1] == 1 ? 1 : c->kernel[1], length = c->kernel[1] / runs * wide;
  for (int64_t ky = 0; ky < c->kernel[0]; ky++) {
    const float *from = window + ring_slot(y0 + ky * c->dilation[0], span) * row + x0 * wide;
    for (int64_t run = 0; run < runs; run++, from += c->dilation[1] * wide, out += length) {
      for (int64_t i = 0; i < count; i++) {
        copy_floats(out + i * ld, from + i * c->stride[1] * wide, length);
      }
    }
  }
  for (int64_t i = 0; i < count && g->has_ones; i++) {
    out[i * ld] = 1.0f;
  }
}

/* Fill the rows of piece i with patches. Each piece has a window of its own: kernel_height padded image rows, of which row
 * y is in ring_slot(y). */
void ng_copy_patches(void *arg, int32_t i) {
  const ng_gram_tile *t = arg;
  const ng_conv *c = &t->g->conv;
  float *window = t->scratch + i * ng_patch_window_floats(c, t->g->c1 - t->g->c0);
  int64_t from, to, last_n = -1, next = 0; /* the window contains rows < next of image last_n */
  ng_piece_bounds(t->count, t->pieces, i, &from, &to);
  for (int64_t k = from; k < to;) {
    const int64_t g = t->first + k, n = g / (c->out_height * c->out_width),
                  oy = g / c->out_width % c->out_height;
    const int64_t y0 = oy * c->stride[0] - c->padding[0];
    for (int64_t y = n == last_n ? ng_max64(y0, next) : y0; y < y0 + kernel_height(c); y++) {
      load_image_row(t->g, window, n, y);
    }
    last_n = n;
    next = y0 + kernel_height(c);
    const int64_t ox = g % c->out_width, count = ng_min64(c->out_width - ox, to - k);
    copy_patches(t->g, window, y0, ox * c->stride[1], count, t->to + k * t->ld, t->ld);
    k += count;
  }
}

/* ---- mean or sum of the patches of a sample, by box sums (box.c) ---*/

static ng_conv with_channels(const ng_conv *c, int64_t channels) {
  ng_conv n = *c;
  n.channels = channels;
  return n;
}

/* Return how many floats of scratch a piece needs for the sums of all taps and for ng_sum_sample_patches, both in double,
 * because the values of many positions may cancel. */
static int64_t reduce_scratch(const ng_conv *c, int64_t channels) {
  const ng_conv box = with_channels(c, channels);
  return 2 * (ng_round16(ng_times(channels, ng_conv_taps(c))) +
              ng_round16(ng_sample_patches_scratch(&box)));
}

/* Fill the rows of piece i with one row for each sample: KFAC-reduce (Eschenhagen et al. 2023) forms the outer product
 * of the mean (reduce == 1) or sum (reduce == 2) of all patches of a sample. The 1 of the bias is averaged or summed, too. */
static void reduce_samples(void *arg, int32_t i) {
  const ng_gram_tile *t = arg;
  const ng_conv *c = &t->g->conv;
  const int64_t wide = t->g->c1 - t->g->c0, taps = ng_conv_taps(c), cols = taps * wide;
  const double positions = (double)(c->out_height * c->out_width),
               factor = t->g->reduce == 1 ? 1.0 / positions : 1.0;
  double *sum = (double *)(void *)(t->scratch + i * reduce_scratch(c, wide));
  ng_box box = {.x = t->g->x, .samples = 1, .conv = with_channels(c, wide), .out = sum};
  int64_t from, to;
  ng_piece_bounds(t->count, t->pieces, i, &from, &to);
  for (int64_t k = from; k < to; k++) {
    float *out = t->to + k * t->ld;
    box.x.data = ng_view_at(&t->g->x, t->first + k, 0, t->g->c0);
    ng_sum_sample_patches(&box, sum + ng_round16(cols));
    for (int64_t j = 0; j < cols; j++) {
      /* convert the order [channel][offset] to [offset][channel] */
      out[j] = (float)(sum[j % wide * taps + j / wide] * factor);
    }
    if (t->g->has_ones) out[cols] = (float)(positions * factor);
  }
}

/* ---- the plain method -------------------------------------------------------------------------*/

void ng_gram_conv_plain(ng_queue *q, const ng_gram *g, float *scratch) {
  const ng_conv *c = &g->conv;
  const int64_t cols = ng_conv_taps(c) * (g->c1 - g->c0) + (g->has_ones ? 1 : 0);
  if (g->reduce != 0) {
    const int64_t pixels = c->height * c->width;
    ng_add_gram_by_tiles(q, g, g->samples, cols, pixels, reduce_samples, scratch);
  } else {
    const int64_t patches = g->samples * c->out_height * c->out_width;
    ng_add_gram_by_tiles(q, g, patches, cols, cols, ng_copy_patches, scratch);
  }
}

/* ---- choice of the method ---------------------------------------------------------------------*/

/* Choose the cheapest method. The choice depends on the geometry and the number of samples, not on values or threads,
 * so it is the same in every run. */
void ng_cpu_add_conv_grams(ng_queue *q, const ng_gram *g, int64_t n, float *scratch) {
  for (const ng_gram *end = g + n; g < end; g++) {
    const ng_conv *c = &g->conv;
    const int64_t channels = g->c1 - g->c0;
    if (g->S64 != NULL) {
      ng_ref_add_conv_grams(q, g, 1, scratch);
    } else if (ng_conv_is_pointwise(c)) {
      ng_cpu_add_row_grams(q, g, 1, scratch);
    } else if (g->reduce == 0 && ng_conv_shift_fits(c, channels) &&
               ng_conv_shift_cost(c, channels, g->samples) <
                   ng_conv_plain_cost(c, channels, g->samples)) {
      ng_gram_conv_shift(q, g, scratch);
    } else {
      ng_gram_conv_plain(q, g, scratch);
    }
  }
}

/* The scratch is enough for every method: the choice depends on the samples, which are unknown at ng_ready. */
int64_t ng_gram_conv_scratch(const ng_queue *q, const ng_conv *conv, int64_t in, int64_t out) {
  const int64_t tile = ng_tile_floats(ng_conv_taps(conv) * in + 1);
  const int64_t piece = ng_max64(ng_patch_window_floats(conv, in), reduce_scratch(conv, in));
  int64_t floats = ng_plus(tile, ng_times(q->threads, piece));
  floats = ng_max64(floats, ng_tile_floats(ng_max64(in, out) + 1));
  if (ng_conv_shift_fits(conv, 1)) { /* a group of channels may fit even if all channels do not */
    floats = ng_max64(floats, ng_conv_shift_scratch(conv, in));
  }
  return floats;
}
