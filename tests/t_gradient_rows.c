/* t_gradient_rows.c: the direction of a linear layer from the rows of its inputs and output gradients (gradient_rows) equals the
 * direction that the layer computes from its gradient (gradient_rows = 0), to rounding.
 *
 * The two formulas round differently. So if both directions have the same bits, the rows were not used. Rows must be used if and only
 * if the gradient is a multiple of the product of the rows. */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "draw.h"
#include "fixture.h"

enum {
  IN = 40,
  OUT = 36,
  SAMPLES = 4,
  POSITIONS = 3,
  CALLS = 3,
  MOST = CALLS * SAMPLES * POSITIONS
};

typedef enum change {
  NO_CHANGE,
  DECAY,         /* the caller has added 1e-3 times a weight */
  ONE_ELEMENT,   /* one element is 1e-3 of the norm larger */
  SMALL_DECAY,   /* as DECAY, 2e-6 of the norm of the gradient */
  EQUAL_COLUMNS, /* columns 0 and 4 are their mean, as of tied inputs */
  NO_BIAS_GRADIENT
} change;

typedef struct rows_case {
  const char *name, *options;
  bool bias;
  int calls;         /* micro-batches of SAMPLES samples */
  int64_t positions; /* 1: arrays [samples, columns] */
  bool positions_first;
  bool strided;  /* columns are not adjacent */
  double factor; /* of the gradient */
  double loss_scale;
  change change;
  bool uses_rows;
} rows_case;

#define KFAC "method=natgrad;clip=none;damping=10"
static const rows_case cases[] = {
    {"bias", KFAC, true, 1, 1, false, false, 1, 1, NO_CHANGE, true},
    {"no bias", KFAC, false, 1, 1, false, false, 1, 1, NO_CHANGE, true},
    {"clip by all layers", "method=natgrad;clip=kl;damping=10", true, 1, 1, false, false, 1, 1,
     NO_CHANGE, true},
    {"three micro-batches", KFAC, true, 3, 1, false, false, 1, 1, NO_CHANGE, true},
    {"positions", KFAC, true, 1, POSITIONS, false, false, 1, 1, NO_CHANGE, true},
    {"positions first", KFAC, true, 1, POSITIONS, true, false, 1, 1, NO_CHANGE, true},
    {"strided columns", KFAC, true, 1, 1, false, true, 1, 1, NO_CHANGE, true},
    {"diagonal blocks", KFAC ";factor_blocks=3", true, 2, 1, false, false, 1, 1, NO_CHANGE, false},
    {"diagonal G", KFAC ";output_factor=diagonal", true, 1, 1, false, false, 1, 1, NO_CHANGE,
     false},
    {"bf16 inverses", KFAC ";inverse_dtype=bf16", true, 1, 1, false, false, 1, 1, NO_CHANGE, true},
    {"clipped by the caller", KFAC, true, 1, 1, false, false, 0.3, 1, NO_CHANGE, true},
    {"loss scale", KFAC, true, 2, 1, false, false, 1, 1024, NO_CHANGE, true},
    {"first samples only in A and G", KFAC ";stat_batch=2", true, 1, 1, false, false, 1, 1,
     NO_CHANGE, true},
    {"too many rows", KFAC ";gradient_rows=3", true, 1, 1, false, false, 1, 1, NO_CHANGE, false},
    {"rows save too little", KFAC, true, 3, POSITIONS, false, false, 1, 1, NO_CHANGE, false},
    {"eigen", "method=natgrad;clip=none;solver=eigen", true, 1, 1, false, false, 1, 1, NO_CHANGE,
     false},
    {"f64 inverses", KFAC ";inverse_dtype=f64", true, 1, 1, false, false, 1, 1, NO_CHANGE, false},
    {"a published method", "method=kaisa;solver=cholesky;damping_split=full;clip=none", true, 1, 1,
     false, false, 1, 1, NO_CHANGE, false},
    {"weight decay", KFAC, true, 1, 1, false, false, 1, 1, DECAY, false},
    {"one element", KFAC, true, 1, 1, false, false, 1, 1, ONE_ELEMENT, false},
    {"small weight decay, large inverses",
     "method=natgrad;clip=none;damping=1e-4;stat_decay=0;solve_period=1", true, 1, 1, false, false,
     1, 1, SMALL_DECAY, false},
    {"equal columns", KFAC, true, 1, 1, false, false, 1, 1, EQUAL_COLUMNS, false},
    {"no gradient of the bias", KFAC, true, 1, 1, false, false, 1, 1, NO_BIAS_GRADIENT, false},
};
enum { CASES = sizeof cases / sizeof *cases, STEPS = 3 };

typedef struct gradient {
  float w[OUT * IN], bias[OUT];
} gradient;

/* Element (call, row, column) of the inputs (key 1) and output gradients (key 2) of a step. */
static float element(int step, int key, int64_t row, int64_t col) {
  return draw_at(1000 * step + key, row * 64 + col);
}

/* D = factor g' a / loss_scale, where g already has the loss scale. */
static void fill_gradient(const rows_case *c, int step, gradient *D) {
  const int64_t rows = c->calls * SAMPLES * c->positions;
  double square = 0.0;
  for (int64_t o = 0; o < OUT; o++) {
    for (int64_t i = 0; i <= IN; i++) {
      double sum = 0.0;
      for (int64_t r = 0; r < rows; r++)
        sum += element(step, 2, r, o) * (i == IN ? 1.0 : element(step, 1, r, i));
      *(i == IN ? &D->bias[o] : &D->w[o * IN + i]) = (float)(c->factor * sum);
      square += sum * sum;
    }
  }
  for (int64_t k = 0; c->change == DECAY && k < OUT * IN; k++)
    D->w[k] += 1e-3f * draw_at(7, k);
  if (c->change == ONE_ELEMENT) D->w[IN + 1] += (float)(1e-3 * sqrt(square));
  const float small = (float)(2e-6 * sqrt(square / (OUT * IN)));
  for (int64_t k = 0; c->change == SMALL_DECAY && k < OUT * IN; k++)
    D->w[k] += small * draw_at(7, k);
  for (float *row = D->w; c->change == EQUAL_COLUMNS && row < D->w + OUT * IN; row += IN)
    row[0] = row[4] = 0.5f * (row[0] + row[4]);
  for (int64_t o = 0; c->change == NO_BIAS_GRADIENT && o < OUT; o++)
    D->bias[o] = 0.0f;
}

/* Observe micro-batch `call` of a step: its rows follow the rows of the calls before it. */
static void observe(fixture *f, const rows_case *c, int step, int call) {
  static float x[2 * MOST * IN];
  const int64_t rows = SAMPLES * c->positions, by = c->strided ? 2 : 1;
  ng_batch batch = batch_of(SAMPLES);
  batch.loss_scale = c->loss_scale;
  batch.reduction = NG_SUM;
  fixture_ok(f, ng_begin(f->p, &batch));
  for (int key = 1; key <= 2; key++) {
    const int64_t cols = key == 1 ? IN : OUT;
    for (int64_t r = 0; r < rows; r++) {
      for (int64_t k = 0; k < cols; k++)
        x[(r * cols + k) * by] =
            element(step, key, call * rows + r, k) * (key == 2 ? (float)c->loss_scale : 1.0f);
    }
    const bool first = c->positions_first;
    ng_array a = {.data = x, .dtype = NG_F32, .mem = NG_HOST, .ndim = c->positions > 1 ? 3 : 2};
    const int64_t shape[] = {first ? c->positions : SAMPLES, first ? SAMPLES : c->positions, cols};
    int64_t full[3], strides[3] = {shape[1] * cols * by, cols * by, by};
    memcpy(full, shape, sizeof full);
    if (c->positions == 1) {
      full[1] = cols;
      strides[0] = cols * by;
      strides[1] = by;
    }
    a.shape = full;
    a.stride = strides;
    fixture_ok(f, key == 1 ? ng_observe_input(f->p, 0, &a, NG_COPY)
                           : ng_observe_output_grad(f->p, 0, &a, NG_COPY));
    memset(x, 0xff, sizeof x); /* the library may not read the array later */
  }
}

/* Run STEPS steps; D: the directions; wanted: the expected ng_wants, or NULL. If `skips`, step 1 observes nothing. */
static void run(const rows_case *c, const char *more, bool skips, const bool *wanted,
                gradient D[STEPS]) {
  char line[300];
  (void)snprintf(line, sizeof line, "%s%s", c->options, more);
  fixture f;
  const fixture_how how = {.threads = 1};
  fixture_ok(&f, fixture_open(&f, line, &how));
  ng_layer d = layer_of(NG_LINEAR, "fc", IN, OUT);
  d.bias = c->bias;
  d.order = c->positions_first ? NG_POSITIONS_FIRST : NG_SAMPLES_FIRST;
  fixture_ok(&f, ng_add_layer(f.p, &d, NULL));
  fixture_ok(&f, ng_ready(f.p));
  for (int s = 0; s < STEPS; s++) {
    fill_gradient(c, s, &D[s]);
    const plane w = plane_of(D[s].w, OUT, IN, NG_F32), bias = plane_of(D[s].bias, 1, OUT, NG_F32);
    fixture_ok(&f, fixture_bind(&f, 0, NG_WEIGHT, &w, NULL));
    if (c->bias) fixture_ok(&f, fixture_bind(&f, 0, NG_BIAS, &bias, NULL));
    if (wanted != NULL && (ng_wants(f.p, 0) != 0) != wanted[s])
      fail_msg("%s: step %d: ng_wants is %d", line, s, !wanted[s]);
    for (int call = 0; call < c->calls && !(skips && s == 1); call++)
      observe(&f, c, s, call);
    fixture_ok(&f, ng_step(f.p, 0.1));
  }
  fixture_close(&f);
}

static double relative_difference(const float *x, const float *y, int64_t n) {
  double difference = 0.0, norm = 0.0;
  for (int64_t i = 0; i < n; i++) {
    difference += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
    norm += (double)y[i] * y[i];
  }
  return sqrt(difference / norm);
}

/* The products have at most 36 terms in f32, and the damped matrices a condition number of about 10, so directions differ by
 * a few roundings: 2e-6. */
static void directions_equal_those_from_the_gradient(void **state) {
  for (const rows_case *c = cases; c < cases + CASES; c++) {
    static gradient rows[STEPS], plain[STEPS];
    run(c, "", false, NULL, rows);
    run(c, ";gradient_rows=0", false, NULL, plain);
    for (int s = 0; s < STEPS; s++) {
      const int64_t n = OUT * IN + (c->bias ? OUT : 0);
      const double off = relative_difference(rows[s].w, plain[s].w, n);
      if (!(off <= 2e-6)) fail_msg("%s: step %d: relative difference %.2e", c->name, s, off);
      const bool equal = memcmp(rows[s].w, plain[s].w, (size_t)n * sizeof(float)) == 0;
      if (equal == c->uses_rows)
        fail_msg("%s: step %d: the rows were %sused", c->name, s, equal ? "not " : "");
    }
  }
}

/* In steps without a due statistic, the caller is asked for the rows until the gradient is not their product. Then rows are stored
 * again in the next step with due statistics. Without a call of ng_observe_*, rows of an earlier step are not used. */
static void rows_are_wanted_in_every_step(void **state) {
  static const struct {
    const char *name;
    change change;
    bool skips_step_1, wanted[STEPS], uses_rows[STEPS];
  } list[] = {
      {"product", NO_CHANGE, false, {true, true, true}, {true, true, true}},
      {"weight decay", DECAY, false, {true, false, true}, {false, false, false}},
      {"not observed", NO_CHANGE, true, {true, true, true}, {true, false, true}},
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    rows_case c = cases[0];
    static gradient rows[STEPS], plain[STEPS];
    c.options = KFAC ";stat_period=2";
    c.change = list[i].change;
    const bool skips = list[i].skips_step_1;
    run(&c, "", skips, list[i].wanted, rows);
    run(&c, ";gradient_rows=0", skips, (const bool[]){true, false, true}, plain);
    for (int s = 0; s < STEPS; s++) {
      if ((memcmp(&rows[s], &plain[s], sizeof rows[s]) != 0) != list[i].uses_rows[s])
        fail_msg("%s: step %d: the rows were %sused", list[i].name, s,
                 list[i].uses_rows[s] ? "not " : "");
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(directions_equal_those_from_the_gradient),
      cmocka_unit_test(rows_are_wanted_in_every_step),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
