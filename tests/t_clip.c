/* t_clip: the clips that look at norms, where numbers are awkward: every method with f32 and bf16
 * gradients and weights in rows with room between them; weights of zeros, a gradient of zeros, of
 * 1e-44 and 1e25, a weight that is not a number, fused SGD.  Formulas: t_option_clip. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "plane.h"
#include "fixture.h"

enum { ROWS = 7, COLS = 19, STRIDE = 24, ALL = ROWS * COLS + ROWS };

static uint16_t to_bf16(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static float from_bf16(uint16_t h) {
  const uint32_t u = (uint32_t)h << 16;
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

typedef struct matrix {
  bool half;
  float wide[ROWS * STRIDE];
  uint16_t narrow[ROWS * STRIDE];
} matrix;

/* Between the rows: not a number, which nobody may read or change. */
static void fill(matrix *m, bool half, float scale, int salt) {
  m->half = half;
  for (int i = 0; i < ROWS * STRIDE; i++) {
    m->wide[i] = i % STRIDE < COLS ? scale * sinf((float)(i * 7 + salt)) : NAN;
    m->narrow[i] = i % STRIDE < COLS ? to_bf16(m->wide[i]) : 0x7fc0;
  }
}

static float at(const matrix *m, int r, int c) {
  const int i = r * STRIDE + c;
  return m->half ? from_bf16(m->narrow[i]) : m->wide[i];
}

static plane view(matrix *m) {
  plane v =
      m->half ? plane_of(m->narrow, ROWS, COLS, NG_BF16) : plane_of(m->wide, ROWS, COLS, NG_F32);
  v.row_stride = STRIDE;
  return v;
}

typedef struct trial {
  const char *method, *clip, *update;
  bool half;
  float gradient, weight, bias; /* scales; of the bias itself */
  ng_status st;
  double nu;
  float out[ALL]; /* the gradient after ng_step, the weight after ng_step_sgd; the bias last */
} trial;

static void play(trial *t) {
  fixture f;
  matrix g, w;
  char set[128];
  float db[ROWS], b[ROWS], a[4 * COLS], d[4 * ROWS];
  fill(&g, t->half, t->gradient, 1);
  fill(&w, t->half, t->weight, 5);
  for (int i = 0; i < ROWS; i++)
    db[i] = t->gradient * cosf((float)i);
  for (int i = 0; i < ROWS; i++)
    b[i] = t->bias;
  for (int i = 0; i < 4 * COLS; i++)
    a[i] = sinf((float)i);
  for (int i = 0; i < 4 * ROWS; i++)
    d[i] = cosf((float)i) / 4;
  const plane grad[2] = {view(&g), plane_of(db, 1, ROWS, NG_F32)};
  const plane weight[2] = {view(&w), plane_of(b, 1, ROWS, NG_F32)};
  const plane in = plane_of(a, 4, COLS, NG_F32), out = plane_of(d, 4, ROWS, NG_F32);
  (void)snprintf(set, sizeof set, "method=%s clip=%s clip_bound=%s update=%s", t->method, t->clip,
                 strcmp(t->clip, "none") == 0 ? "0" : "0.001", t->update);
  fixture_ok(&f, fixture_open(&f, set, NULL));
  fixture_ok(&f, fixture_linear(&f, "fc", grad, weight));
  fixture_ok(&f, ng_ready(f.p));
  fixture_ok(&f, fixture_show(&f, 4, 0, &in, &out));
  const bool sgd = strcmp(t->update, "sgd") == 0;
  const ng_sgd how = fixture_sgd(sgd ? 1 : 0.1, 0);
  t->st = fixture_step(&f, &how);
  ng_report report = {.struct_size = sizeof report};
  fixture_ok(&f, ng_report_read(f.p, &report));
  t->nu = report.clip;
  for (int i = 0; i < ROWS; i++) {
    for (int k = 0; k < COLS; k++)
      t->out[i * COLS + k] = at(sgd ? &w : &g, i, k);
    for (int k = COLS; k < STRIDE; k++)
      assert_true(isnan(at(&g, i, k)) && isnan(at(&w, i, k)));
    t->out[ROWS * COLS + i] = sgd ? b[i] : db[i];
  }
  fixture_close(&f);
}

static void numbers(const trial *t, const char *what) {
  if (t->st != NG_OK) fail_msg("%s, %s, %s: %s", t->method, t->clip, what, ng_status_name(t->st));
  for (int i = 0; i < ALL; i++) {
    if (!isfinite(t->out[i])) fail_msg("%s, %s, %s: entry %d", t->method, t->clip, what, i);
  }
}

/* One factor a tensor: 2 % are three roundings of bf16, looked at where they are relative. */
static void one_factor(const trial *none, const trial *t) {
  double low = INFINITY, high = 0;
  for (int i = 0; i < ROWS * COLS; i++) {
    if (fabsf(none->out[i]) < 1e-3f) continue;
    low = fmin(low, (double)t->out[i] / (double)none->out[i]);
    high = fmax(high, (double)t->out[i] / (double)none->out[i]);
  }
  if (!(low > 0 && high < 1.02 * low)) fail_msg("%s, %s: %g to %g", t->method, t->clip, low, high);
}

static void awkward(void **state) {
  (void)state;
  static const char *const methods[] = {"natgrad",     "kaisa",  "eva", "eva-f",
                                        "eva-natgrad", "adasgd", "sam", "eva-kfac"};
  static const char *const clips[] = {"norm", "ratio", "rms"};
  for (int k = 0; k < 8 * 3 * 2; k++) {
    const trial usual = {.method = methods[k / 6],
                         .clip = clips[k / 2 % 3],
                         .update = "gradient",
                         .half = k % 2 == 1,
                         .gradient = 1,
                         .weight = 1};
    trial none = usual, t = usual;
    none.clip = "none";
    play(&none);
    play(&t);
    numbers(&t, "as usual");
    one_factor(&none, &t);
    if (strcmp(t.clip, "ratio") == 0) { /* the bias is zero: it goes unclipped */
      assert_true(fabsf(t.out[ROWS * COLS] / none.out[ROWS * COLS] - 1) < 1e-6f);
    }
    t = usual;
    t.weight = 0;
    play(&t);
    numbers(&t, "weights of zeros");
    t = usual;
    t.gradient = 0;
    t.bias = 1; /* one that is zero would be unclipped in any case */
    play(&t);
    numbers(&t, "a gradient of zeros");
    for (int i = 0; i < ALL; i++)
      assert_true(t.out[i] == 0);
    assert_true(t.nu == 1);
    t.bias = 0;
    t.gradient = 1e-44f; /* hardly a number: its square is none */
    play(&t);
    numbers(&t, "1e-44");
    t.gradient = 1e-30f;
    play(&t);
    numbers(&t, "1e-30");
    t.gradient = 1e25f;
    play(&t);
    numbers(&t, "1e25");
    t = usual;
    t.update = "sgd";
    play(&t);
    numbers(&t, "sgd");
    t = usual;
    t.weight = NAN;
    play(&t);
    assert_int_equal(t.st, strcmp(t.clip, "ratio") == 0 ? NG_SKIPPED : NG_OK);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(awkward)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
