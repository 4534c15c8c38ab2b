/* bits_case.c: see bits.h.  Parse the text of a case; make its arrays.  A number is a function of its place and uses
 * all bits of an f32, so another order of summation gives other results. */
#include "bits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "draw.h"

/* ---- the text --------------------------------------------------------------------------------*/

static const struct number_row {
  const char *name;
  size_t at;
  double standard;
} number_row[] = {
#define X(name, standard) {#name, offsetof(bits_case, name), standard},
    BITS_NUMBERS(X)
#undef X
};

static const struct word_row {
  const char *name;
  size_t at;
  const char *standard;
} word_row[] = {
#define X(name, standard) {#name, offsetof(bits_case, name), standard},
    BITS_WORDS(X)
#undef X
};

void bits_require(bool fine, const char *what) {
  if (fine) return;
  fprintf(stderr, "bits: %s\n", what);
  exit(2);
}

static bool set_word(bits_case *c, const char *name, const char *value) {
  for (int32_t i = 0; i < COUNT(number_row); i++) {
    if (!same_text(number_row[i].name, name)) continue;
    const double x = strtod(value, NULL);
    memcpy((char *)c + number_row[i].at, &x, sizeof x);
    return true;
  }
  for (int32_t i = 0; i < COUNT(word_row); i++) {
    if (!same_text(word_row[i].name, name)) continue;
    memcpy((char *)c + word_row[i].at, &value, sizeof value);
    return true;
  }
  return false;
}

ng_status bits_parse(bits_case *c, const char *text) {
  memset(c, 0, sizeof *c);
  for (int32_t i = 0; i < COUNT(number_row); i++) {
    memcpy((char *)c + number_row[i].at, &number_row[i].standard, sizeof(double));
  }
  for (int32_t i = 0; i < COUNT(word_row); i++) {
    memcpy((char *)c + word_row[i].at, &word_row[i].standard, sizeof word_row[i].standard);
  }
  bits_require(strlen(text) < sizeof c->text, "a case is too long");
  memcpy(c->text, text, strlen(text) + 1);
  char *rest = NULL, *word = strtok_r(c->text, " ", &rest);
  bits_require(word != NULL, "an empty case");
  ng_status st = ng_options_create(NULL, NULL, 0, &c->opt);
  if (st == NG_OK) st = ng_options_set(c->opt, "method", word, NULL, 0);
  while (st == NG_OK && (word = strtok_r(NULL, " ", &rest)) != NULL) {
    char *value = strchr(word, '=');
    bits_require(value != NULL, word);
    *value++ = 0;
    for (char *at = value; *at != 0; at++) {
      if (*at == ';') *at = ' ';
    }
    if (!set_word(c, word, value)) st = ng_options_set(c->opt, word, value, NULL, 0);
  }
  return st;
}

void bits_free(bits_case *c) { ng_options_destroy(&c->opt); }

/* ---- models ----------------------------------------------------------------------------------*/

#define AXES(n, m)                                                                                 \
  { n, m }
#define LINEAR(name, in, out, bias, frozen, positions)                                             \
  {                                                                                                \
    name, NG_LINEAR, in, out, bias, frozen, positions, AXES(1, 1), AXES(1, 1), AXES(0, 0), 1, 1,   \
        AXES(0, 0)                                                                                 \
  }
#define TENSOR(name, count)                                                                        \
  { name, (ng_kind)0, count, 1, 0, 0, 1, AXES(1, 1), AXES(1, 1), AXES(0, 0), 1, 1, AXES(0, 0) }
#define CONV(name, in, out, bias, kernel, stride, padding, dilation, groups, image)                \
  { name, NG_CONV2D, in, out, bias, 0, 1, kernel, stride, padding, dilation, groups, image }

/* Every kind and geometry, small. */
static const bits_layer mix[] = {
    LINEAR("fc1", 7, 5, 1, 0, 1),
    CONV("conv", 4, 6, 1, AXES(3, 2), AXES(1, 1), AXES(1, 0), 1, 2, AXES(5, 4)),
    CONV("block/down", 3, 4, 0, AXES(3, 3), AXES(2, 2), AXES(1, 1), 1, 1, AXES(6, 6)),
    TENSOR("gamma", 6),
    LINEAR("ice", 4, 2, 1, 1, 1),
    LINEAR("seq", 5, 3, 0, 0, 3),
    CONV("same", 4, 5, 1, AXES(3, 3), AXES(1, 1), AXES(1, 1), 1, 1, AXES(6, 5)),
    CONV("point", 6, 5, 1, AXES(1, 1), AXES(1, 1), AXES(0, 0), 1, 1, AXES(3, 4)),
    CONV("holes", 3, 4, 0, AXES(3, 3), AXES(1, 2), AXES(2, 2), 2, 1, AXES(7, 6)),
    CONV("points", 4, 4, 1, AXES(1, 1), AXES(2, 2), AXES(0, 0), 1, 2, AXES(5, 5)),
    LINEAR("tokens", 4, 6, 1, 0, 5),
};
/* Wide enough to split every loop into tiles for several threads. */
static const bits_layer broad[] = {
    LINEAR("fc", 300, 40, 1, 0, 1),
    LINEAR("seq", 90, 30, 1, 0, 37),
    CONV("same", 24, 40, 1, AXES(3, 3), AXES(1, 1), AXES(1, 1), 1, 1, AXES(12, 11)),
    CONV("point", 70, 40, 1, AXES(1, 1), AXES(1, 1), AXES(0, 0), 1, 1, AXES(9, 9)),
    CONV("down", 34, 20, 0, AXES(3, 3), AXES(2, 2), AXES(1, 1), 1, 1, AXES(9, 8)),
    LINEAR("head", 12, 530, 1, 0, 1),
    TENSOR("scale", 17000),
};
/* Rows longer than a tile of gradients. */
static const bits_layer lengthy[] = {
    LINEAR("wide", 20500, 3, 1, 0, 1),
    LINEAR("body", 600, 9, 0, 0, 1),
    CONV("all", 300, 5, 1, AXES(4, 4), AXES(1, 1), AXES(0, 0), 1, 1, AXES(4, 4)),
    TENSOR("vocabulary", 40000),
};
/* For batches of hundreds of samples: more rows than a tile has. */
static const bits_layer tall[] = {
    LINEAR("many", 4200, 2, 0, 0, 1),
    LINEAR("rows", 3, 2, 1, 0, 30),
    CONV("same", 2, 3, 1, AXES(3, 3), AXES(1, 1), AXES(1, 1), 1, 1, AXES(6, 6)),
    CONV("down", 2, 3, 1, AXES(3, 3), AXES(1, 2), AXES(1, 1), 1, 1, AXES(6, 9)),
};
/* The factors of this layer become singular with few samples. */
static const bits_layer single[] = {LINEAR("fc", 2, 2, 0, 0, 1)};

const bits_layer *bits_layers_of(const char *name, int32_t *layers) {
  static const struct {
    const char *name;
    const bits_layer *layer;
    int32_t layers;
  } model[] = {{"mix", mix, COUNT(mix)},
               {"large", broad, COUNT(broad)},
               {"long", lengthy, COUNT(lengthy)},
               {"tall", tall, COUNT(tall)},
               {"one", single, COUNT(single)}};
  for (int32_t i = 0; i < COUNT(model); i++) {
    if (!same_text(model[i].name, name)) continue;
    *layers = model[i].layers;
    return model[i].layer;
  }
  bits_require(false, name);
  return NULL;
}

/* ---- arrays ----------------------------------------------------------------------------------*/

static ng_dtype dtype_of(const char *name) {
  return same_text(name, "f16") ? NG_F16 : same_text(name, "bf16") ? NG_BF16 : NG_F32;
}

/* Store x rounded toward zero; subnormal numbers become 0. */
static void store_truncated(const plane *v, int64_t row, int64_t col, float x) {
  const int64_t i = row * v->row_stride + col;
  uint32_t w;
  memcpy(&w, &x, sizeof w);
  if (v->dtype == NG_F32) {
    ((float *)v->data)[i] = x;
  } else if (v->dtype == NG_BF16) {
    ((uint16_t *)v->data)[i] = (uint16_t)(w >> 16);
  } else {
    const int32_t e = (int32_t)(w >> 23 & 0xff) - 112;
    const uint32_t m = e <= 0 ? 0 : e > 30 ? 0x7c00 : (uint32_t)e << 10 | (w >> 13 & 0x3ff);
    ((uint16_t *)v->data)[i] = (uint16_t)((w >> 16 & 0x8000) | (isnan(x) ? 0x7e00 : m));
  }
}

/* Aligned, because results of BLAS may depend on addresses; filled with NaN, because the library must not read or write
 * between the rows. */
static plane new_array(const bits_array_inputs *from, int64_t rows, int64_t cols, ng_dtype t) {
  plane v = plane_of(NULL, rows, cols, t);
  v.row_stride = cols + (int64_t)from->c->pad;
  const size_t bytes = (size_t)(rows * v.row_stride * ng_dtype_size(t));
  v.data = aligned_alloc(64, (bytes + 63) / 64 * 64);
  bits_require(v.data != NULL, "no memory");
  memset(v.data, 0xff, bytes);
  return v;
}

size_t bits_plane_bytes(const plane *v) {
  return (size_t)(v->rows * v->row_stride * ng_dtype_size(v->dtype));
}

/* ---- numbers ---------------------------------------------------------------------------------*/

/* Return a number in (-1, 1) from 24 random bits. */
static float draw_number(uint64_t key, int64_t i) {
  const uint64_t h = rng_mix(key + (uint64_t)(i + 1) * UINT64_C(0x9e3779b97f4a7c15));
  return (float)((int64_t)(h >> 40) - (1 << 23)) * 0x1p-23f;
}

static uint64_t array_key(int64_t step, int64_t who, int64_t layer, int64_t what) {
  return rng_mix(rng_mix((uint64_t)(step * 1000 + who)) + (uint64_t)(layer * 16 + what));
}

/* Number i of an array: term `place` of `count` terms of a sum, which are `step` elements apart.  In every group of
 * four terms two large ones cancel, with a small one between them: the rounding of the sum depends on its order. */
static float cancelling_term(uint64_t key, int64_t i, int64_t place, int64_t count, int64_t step,
                             float most) {
  const int64_t in_group = place % 4;
  if (in_group % 2 != 0 || place - in_group + 4 > count) return draw_number(key, i);
  return (in_group == 0 ? most : -most) * draw_number(key + 1, i - in_group * step);
}

static float observed_value(const bits_array_inputs *from, const bits_layer *d, const plane *v,
                            uint64_t key, int64_t i, int64_t each, bool grad) {
  const bits_case *c = from->c;
  const float most = v->dtype == NG_F16 ? 0x1p10f : 0x1p40f;
  const bool nhwc = same_text(c->layout, "nhwc");
  if (same_text(c->values, "zero") && !grad) return 0;
  if (same_text(c->values, "same")) return draw_number(key, i % each);
  if (same_text(c->values, "cancel")) {
    return cancelling_term(key, i, i / each, v->rows * v->cols / each, each, most);
  }
  if (!same_text(c->values, "rows")) return draw_number(key, i);
  const int64_t channels = grad ? d->out : d->in, pixels = each / channels;
  const int64_t step = d->kind == NG_LINEAR ? channels : d->image[1] * (nhwc ? channels : 1);
  const int64_t place = d->kind == NG_LINEAR || nhwc ? i % each / step : i % pixels / step;
  return cancelling_term(key, i, place, d->kind == NG_LINEAR ? pixels : pixels / d->image[1], step,
                         most);
}

plane bits_new_observed(const bits_array_inputs *from, int64_t step, int64_t call, int64_t samples,
                        int32_t l, bool grad) {
  const bits_case *c = from->c;
  const bits_layer *d = &from->layer[l];
  const bool same = same_text(c->values, "same");
  int64_t rows = samples * d->positions, cols = grad ? d->out : d->in, size[2] = {1, 1};
  for (int i = 0; i < 2 && d->kind == NG_CONV2D; i++) {
    const int64_t reach = d->dilation * (d->kernel[i] - 1) + 1;
    const int64_t room = d->image[i] + 2 * d->padding[i] - reach;
    size[i] = grad ? room / d->stride[i] + 1 : d->image[i];
    cols *= size[i];
  }
  plane v = new_array(from, rows, cols, dtype_of(c->shown));
  if (d->kind == NG_CONV2D) {
    v.order = same_text(c->layout, "nhwc") ? PLANE_NHWC : PLANE_NCHW;
    v.channels = grad ? d->out : d->in;
    v.height = size[0];
    v.width = size[1];
  }
  const uint64_t key = array_key(step, same ? 0 : from->rank * 40 + call, l, grad);
  const double by = grad ? c->gsize : c->size * pow(c->grow, (double)step);
  const int64_t each = rows / samples * cols;
  for (int64_t i = 0; i < rows * cols; i++) {
    const float x = observed_value(from, d, &v, key, i, each, grad);
    store_truncated(&v, i / cols, i % cols, (float)((double)x * by));
  }
  const bool here = from->is_last && call % 16 == 0 && (int32_t)c->nan_layer == l;
  if (here && (int64_t)(grad ? c->nan_outgrad : c->nan_input) == step) {
    store_truncated(&v, rows - 1, cols - 1, (float)NAN);
  }
  return v;
}

/* ---- parameters ------------------------------------------------------------------------------*/

plane bits_new_parameter(const bits_array_inputs *from, int32_t l, ng_param which,
                         const char *dtype) {
  const bits_layer *d = &from->layer[l];
  const int64_t cols = d->in / d->groups * d->kernel[0] * d->kernel[1];
  if (which == NG_WEIGHT) return new_array(from, d->out, cols, dtype_of(dtype));
  return d->bias ? new_array(from, 1, d->out, dtype_of(dtype)) : plane_of(NULL, 0, 0, NG_F32);
}

void bits_fill_weight(const bits_array_inputs *from, int32_t l, ng_param which, const plane *to) {
  const uint64_t key = array_key(0, 991, l, which);
  for (int64_t i = 0; i < to->rows * to->cols; i++) {
    store_truncated(to, i / to->cols, i % to->cols, from->c->zero > 0 ? 0 : draw_number(key, i));
  }
}

void bits_fill_gradient(const bits_array_inputs *from, int64_t step, int32_t l, ng_param which,
                        const plane *to) {
  const bits_case *c = from->c;
  const uint64_t key = array_key(step, 990, l, 2 + which);
  const uint64_t of_a = array_key(step, 0, l, 0), of_g = array_key(step, 0, l, 1);
  for (int64_t i = 0; i < to->rows * to->cols; i++) {
    const int64_t row = i / to->cols, col = i % to->cols;
    float x = draw_number(key, i);
    if (same_text(c->values, "cancel")) x = cancelling_term(key, i, col, to->cols, 1, 0x1p8f);
    if (c->along > 0 && l == 0) {
      const float ga = which == NG_BIAS ? draw_number(of_g, col)
                                        : draw_number(of_g, row) * draw_number(of_a, col);
      x = (float)(c->along * (double)ga + (1 - c->along) * (double)x);
    }
    store_truncated(to, row, col, (float)((double)x * c->dsize));
  }
  const bool here = from->is_last && (int32_t)c->nan_layer == l && (int64_t)c->nan_grad == step;
  if (here && which == NG_WEIGHT) store_truncated(to, 0, to->cols - 1, (float)NAN);
}
