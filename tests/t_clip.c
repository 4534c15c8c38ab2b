/* t_clip: the clips that look at norms, where numbers are awkward: every method with f32 and bf16
 * gradients and weights in rows with room between them; weights of zeros, a gradient of zeros, of
 * 1e-44 and 1e25, a weight that is not a number, fused SGD.  Formulas: t_option_effects. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "natgrad.h"

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

static ng_view view(matrix *m) {
  ng_view v = m->half ? ng_view_of(m->narrow, ROWS, COLS, NG_BF16)
                      : ng_view_of(m->wide, ROWS, COLS, NG_F32);
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
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  ng_options o;
  int32_t fc = -1;
  matrix g, w;
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
  assert_int_equal(ng_context_create(NULL, NULL, 0, &ctx), NG_OK);
  assert_int_equal(ng_options_init(&o), NG_OK);
  assert_int_equal(ng_options_set_method(&o, t->method, NULL, 0), NG_OK);
  o.clip = t->clip;
  o.clip_bound = 0.001;
  o.update = t->update;
  assert_int_equal(ng_precond_create(ctx, &o, &p), NG_OK);
  assert_int_equal(ng_add_linear(p, "fc", COLS, ROWS, 1, &fc), NG_OK);
  const ng_view dw = view(&g), weight = view(&w), dbias = ng_view_of(db, 1, ROWS, NG_F32);
  const ng_view bias = ng_view_of(b, 1, ROWS, NG_F32), in = ng_view_of(a, 4, COLS, NG_F32);
  const ng_view out = ng_view_of(d, 4, ROWS, NG_F32);
  assert_int_equal(ng_bind_grad(p, fc, NG_WEIGHT, &dw), NG_OK);
  assert_int_equal(ng_bind_grad(p, fc, NG_BIAS, &dbias), NG_OK);
  assert_int_equal(ng_bind_weight(p, fc, NG_WEIGHT, &weight), NG_OK);
  assert_int_equal(ng_bind_weight(p, fc, NG_BIAS, &bias), NG_OK);
  assert_int_equal(ng_ready(p), NG_OK);
  ng_batch batch;
  assert_int_equal(ng_batch_init(&batch), NG_OK);
  batch.samples = 4;
  assert_int_equal(ng_begin(p, &batch), NG_OK);
  assert_int_equal(ng_observe_input(p, fc, &in, NG_COPY), NG_OK);
  assert_int_equal(ng_observe_output_grad(p, fc, &out, NG_COPY), NG_OK);
  const bool sgd = strcmp(t->update, "sgd") == 0;
  ng_sgd how;
  assert_int_equal(ng_sgd_init(&how), NG_OK);
  how.lr = 1;
  t->st = sgd ? ng_step_sgd(p, &how) : ng_step(p, 0.1);
  ng_report report = {.struct_size = sizeof report};
  assert_int_equal(ng_report_read(p, &report), NG_OK);
  t->nu = report.clip;
  for (int i = 0; i < ROWS; i++) {
    for (int k = 0; k < COLS; k++)
      t->out[i * COLS + k] = at(sgd ? &w : &g, i, k);
    for (int k = COLS; k < STRIDE; k++)
      assert_true(isnan(at(&g, i, k)) && isnan(at(&w, i, k)));
    t->out[ROWS * COLS + i] = sgd ? b[i] : db[i];
  }
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
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
