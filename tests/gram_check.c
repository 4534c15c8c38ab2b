/* gram_check.c: see gram_check.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"
#include "gram_check.h"

static rng numbers;

uint64_t draw(void) { return rng_next(&numbers); }
int64_t between(int64_t low, int64_t high) { return rng_between(&numbers, low, high); }
double uniform(void) { return rng_real(&numbers); }

void seed_numbers(void) { numbers.state = test_seed(); }

void *need(int64_t bytes) {
  void *p = NULL;
  assert_int_equal(posix_memalign(&p, 64, (size_t)(bytes > 0 ? bytes : 1)), 0);
  return p;
}

ng_context *context(const char *linalg, int32_t threads) {
  ng_context_config config;
  char message[256] = "";
  ng_context *ctx = NULL;
  ng_context_config_init(&config, sizeof config);
  config.linalg = linalg;
  config.threads = threads;
  if (ng_context_create(NG_VERSION, &config, message, sizeof message, &ctx) != NG_OK) {
    fail_msg("%s", message);
  }
  return ctx;
}

const char *const names[NAMES] = {
    "ref",
#if defined(NG_HAVE_BLAS)
    "cpu",
#endif
};

/* ---- guarded memory --------------------------------------------------------------------------*/

enum { GUARD = 64 };

float *guarded(int64_t floats) {
  float *p = need((floats + GUARD) * 4);
  for (int64_t i = 0; i < floats + GUARD; i++) {
    p[i] = i < floats ? NAN : 4711.0f;
  }
  return p;
}

void release(float *p, int64_t floats, const char *what) {
  for (int64_t i = floats; i < floats + GUARD; i++) {
    if (p[i] != 4711.0f) fail_msg("%s: written %d beyond its end", what, (int)(i - floats));
  }
  free(p);
}

ng_sym start(int64_t n, double *dense) {
  ng_sym S = {.a = guarded(ng_sym_count(n)), .n = n};
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j <= i; j++) {
      const double v = (double)((i * 7 + j * 3) % 9 - 4);
      S.a[ng_sym_at(S.n, i, j)] = (float)v;
      dense[i * n + j] = dense[j * n + i] = v;
    }
  }
  return S;
}

void compare(ng_sym S, const double *want, double tolerance, const char *what) {
  double largest = 0, worst = 0;
  for (int64_t i = 0; i < S.n * S.n; i++) {
    largest = fmax(largest, fabs(want[i]));
  }
  for (int64_t i = 0; i < S.n; i++) {
    for (int64_t j = 0; j <= i; j++) {
      const double got = (double)ng_sym_get(S, i, j), d = fabs(got - want[i * S.n + j]);
      if (!(d <= tolerance * largest)) {
        fail_msg("%s: NG_TEST_SEED=%llu: entry (%d, %d) of %d is %.9g, expected %.9g, off by %.2g "
                 "of the largest, allowed %.2g",
                 what, (unsigned long long)test_seed(), (int)i, (int)j, (int)S.n, got,
                 want[i * S.n + j], d / largest, tolerance);
      }
      worst = fmax(worst, d);
    }
  }
}

void outer(double *want, int64_t n, const double *r, double alpha) {
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < n; j++) {
      want[i * n + j] += alpha * r[i] * r[j];
    }
  }
}

double grid_value(void) { return (double)between(-15, 15) / 8; }

static void put(void *data, ng_dtype t, int64_t i, double v) {
  if (t == NG_F32) {
    ((float *)data)[i] = (float)v;
  } else {
    ((uint16_t *)data)[i] = t == NG_F16 ? ng_f32_to_f16((float)v) : ng_f32_to_bf16((float)v);
  }
}

ng_dtype any_dtype(void) {
  static const ng_dtype all[] = {NG_F32, NG_F32, NG_BF16, NG_F16};
  return all[between(0, 3)];
}

/* ---- ways to lie -----------------------------------------------------------------------------*/

lie any_lie(void) { return (lie)between(0, LIES - 1); }

shown lay_out(lie how, int64_t samples, int64_t columns, int64_t height, int64_t width,
              ng_dtype t) {
  static const int inner[3][4] = {{3, 2, 1, 0}, {1, 3, 2, 0}, {1, 3, 0, 2}};
  const int64_t extent[4] = {samples, columns, height, width};
  int order[4] = {0, 1, 2, 3};
  shown s = {.how = how};
  for (int i = 0; i < 4; i++) {
    const int k = (int)between(i, 3), swap = order[i];
    order[i] = how == LIE_ANY ? order[k] : inner[how][i];
    if (how == LIE_ANY) order[k] = swap;
  }
  int64_t next = how == LIE_ANY ? between(1, 2) : 1;
  for (int i = 0; i < 4; i++) {
    s.by[order[i]] = next;
    next *= extent[order[i]];
    if (how == LIE_ANY || i == 2) next += draw() % 2 ? 0 : between(1, 5);
  }
  s.data = need(next * 4);
  for (int64_t i = 0; i < next; i++) {
    put(s.data, t, i, NAN);
  }
  s.v = (ng_view){.data = s.data,
                  .dtype = t,
                  .samples = samples,
                  .positions = height * width,
                  .columns = columns,
                  .by_sample = s.by[0],
                  .by_column = s.by[1],
                  .by_position = width == 1 ? s.by[2] : s.by[3],
                  .run = height * width};
  if (height > 1 && width > 1 && s.by[2] != width * s.by[3]) {
    s.v.run = width;
    s.v.axes = 1;
    s.v.extent[0] = height;
    s.v.step[0] = s.by[2];
  }
  return s;
}

void show(const shown *s, int64_t n, int64_t c, int64_t y, int64_t x, double value) {
  put(s->data, s->v.dtype, n * s->by[0] + c * s->by[1] + y * s->by[2] + x * s->by[3], value);
}

/* ---- convolutions ----------------------------------------------------------------------------*/

const char *title(const picture *g, const char *who) {
  static char text[300];
  const ng_conv *c = &g->c;
  (void)snprintf(
      text, sizeof text,
      "%s: %s %s %d channels [%d,%d) %dx%d kernel %dx%d stride %d,%d pad %d,%d dil %d,%d "
      "samples %d take %d one %d reduce %d",
      who, (const char *[]){"NCHW", "NHWC", "HNWC", "any"}[g->how], ng_dtype_name(g->t),
      (int)c->channels, (int)g->c0, (int)g->c1, (int)c->height, (int)c->width, (int)c->kernel[0],
      (int)c->kernel[1], (int)c->stride[0], (int)c->stride[1], (int)c->padding[0],
      (int)c->padding[1], (int)c->dilation[0], (int)c->dilation[1], (int)g->samples, (int)g->take,
      g->one, g->reduce);
  return text;
}

bool finish(ng_conv *c) {
  int64_t out[2];
  for (int i = 0; i < 2; i++) {
    const int64_t room =
        (i == 0 ? c->height : c->width) + 2 * c->padding[i] - c->dilation[i] * (c->kernel[i] - 1);
    if (room < 1) return false;
    out[i] = (room - 1) / c->stride[i] + 1;
  }
  c->oh = out[0];
  c->ow = out[1];
  return true;
}

picture any_picture(bool stride_one) {
  picture g = {.t = any_dtype(),
               .how = any_lie(),
               .samples = between(1, 5),
               .one = draw() % 2 != 0,
               .reduce = draw() % 3 ? 0 : (int)between(1, 2)};
  ng_conv *c = &g.c;
  do {
    *c = (ng_conv){.channels = between(1, 9),
                   .height = between(1, 9),
                   .width = between(1, 9),
                   .out = between(1, 9)};
    for (int i = 0; i < 2; i++) {
      c->kernel[i] = between(1, 5);
      c->stride[i] = stride_one ? 1 : between(1, 3);
      c->padding[i] = draw() % 2 ? (c->kernel[i] - 1) / 2 : between(0, c->kernel[i]);
      c->dilation[i] = draw() % 4 ? 1 : 2;
    }
  } while (!finish(c));
  g.take = between(1, g.samples);
  g.c0 = draw() % 2 ? 0 : between(0, c->channels - 1);
  g.c1 = draw() % 2 ? c->channels : between(g.c0 + 1, c->channels);
  return g;
}

shown images(const picture *g, int64_t channels, int64_t h, int64_t w, double *value,
             double (*next)(void)) {
  const shown v = lay_out(g->how, g->samples, channels, h, w, g->t);
  for (int64_t n = 0; n < g->samples; n++) {
    for (int64_t c = 0; c < channels; c++) {
      for (int64_t s = 0; s < h * w; s++) {
        const bool used = n < g->take && c >= g->c0 && c < g->c1;
        const double x = used ? next() : NAN;
        value[(n * channels + c) * h * w + s] = x;
        show(&v, n, c, s / w, s % w, x);
      }
    }
  }
  return v;
}

void patch_of(const picture *g, const double *x, int64_t oy, int64_t ox, double *row) {
  const ng_conv *c = &g->c;
  for (int64_t ky = 0; ky < c->kernel[0]; ky++) {
    for (int64_t kx = 0; kx < c->kernel[1]; kx++) {
      const int64_t iy = oy * c->stride[0] + ky * c->dilation[0] - c->padding[0];
      const int64_t ix = ox * c->stride[1] + kx * c->dilation[1] - c->padding[1];
      for (int64_t i = g->c0; i < g->c1; i++) {
        const bool inside = iy >= 0 && iy < c->height && ix >= 0 && ix < c->width;
        *row++ = inside ? x[(i * c->height + iy) * c->width + ix] : 0;
      }
    }
  }
  if (g->one) *row = 1;
}

int64_t order_of(const picture *g) {
  return g->c.kernel[0] * g->c.kernel[1] * (g->c1 - g->c0) + g->one;
}

void naive_input(const picture *g, const double *value, double alpha, double *want) {
  const ng_conv *c = &g->c;
  const int64_t n = order_of(g);
  const double S = (double)(c->oh * c->ow), factor = g->reduce == 1 ? 1 / S : 1;
  double *row = need(n * 8), *sum = need(n * 8);
  for (int64_t s = 0; s < g->take; s++) {
    memset(sum, 0, (size_t)n * 8);
    for (int64_t i = 0; i < c->oh * c->ow; i++) {
      patch_of(g, value + s * c->channels * c->height * c->width, i / c->ow, i % c->ow, row);
      if (g->reduce == 0) outer(want, n, row, alpha);
      for (int64_t k = 0; k < n; k++) {
        sum[k] += row[k] * factor;
      }
    }
    if (g->reduce != 0) outer(want, n, sum, alpha);
  }
  free(row);
  free(sum);
}
