/* families_cases.c: test cases, runs and tolerances for the properties; see families.h. */
#include "families.h"
#include "unit_test.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layer_oracle.h"

/* ---- for properties --------------------------------------------------------------------------*/

void v_fail(const variant *v, const char *format, ...) {
  char text[400];
  va_list args;
  va_start(args, format);
  (void)vsnprintf(text, sizeof text, format, args);
  va_end(args);
  fail_msg("NG_TEST_SEED=%" PRIu64 " %s on %s: %s", test_seed(), v->f->name, v->linalg, text);
}

ng_options v_options(const variant *v) { return fixture_parse_options(v->f->options); }

double v_scale_knob(const variant *v, ng_options *o, double by) {
  if (strcmp(v->f->knob, "radius") == 0) {
    o->base.radius /= by;
    return 1;
  }
  o->base.damping *= by;
  return by;
}

case_result v_run_setup(const variant *v, const test_case *s, const ng_options *o,
                        case_setup setup) {
  case_result r;
  setup.linalg = v->linalg;
  case_run(s, o, &setup, &r);
  if (r.status != NG_OK) v_fail(v, "%s %s", ng_status_name(r.status), r.message);
  if (!(r.rank_gap == 0)) v_fail(v, "ranks differ by %g", r.rank_gap);
  if (r.allocations > 0) v_fail(v, "%d allocations in steps", (int)r.allocations);
  return r;
}

case_result v_run(const variant *v, const test_case *s, const ng_options *o) {
  return v_run_setup(v, s, o, (case_setup){0});
}

/* Return the condition of the worst layer and step. */
static double worst_condition(const test_case *s, const case_result *predicted) {
  double c = 1;
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t l = 0; l < s->layers; l++)
      c = fmax(c, predicted->condition[t][l]);
  }
  return c;
}

double v_tolerance(const variant *v, const test_case *s, const ng_options *o) {
  case_result r;
  if (v->f->predict == NULL) return 2 * v->f->growth * unit;
  v->f->predict(s, o, &r);
  const double c = worst_condition(s, &r);
  case_free_result(&r);
  return 2 * v->f->growth * unit * c;
}

void v_must_match_prediction(const variant *v, const char *what, const test_case *s,
                             const ng_options *o) {
  case_result want, got = v_run(v, s, o);
  v->f->predict(s, o, &want);
  v_must_match(v, what, s, &got, &want, v->f->growth * unit * worst_condition(s, &want));
  case_free_result(&want);
  case_free_result(&got);
}

void v_must_match(const variant *v, const char *what, const test_case *s, const case_result *x,
                  const case_result *y, double tolerance) {
  for (int32_t t = 0; t < s->steps; t++) {
    double e = fabs(x->nu[t] - y->nu[t]) / y->nu[t];
    int32_t worst = -1;
    for (int32_t l = 0; l < s->layers; l++) {
      const double gap = case_gap(s, t, l, x, y);
      if (!(gap <= e)) {
        e = gap;
        worst = l;
      }
    }
    if (!(e <= tolerance))
      v_fail(v, "%s, step %d, %s: %.3g > %.3g", what, t, worst < 0 ? "nu" : s->name[worst], e,
             tolerance);
  }
}

void v_runs_must_match(const variant *v, const char *what, const test_case *x, const ng_options *ox,
                       const test_case *y, const ng_options *oy, double tolerance) {
  case_result r = v_run(v, x, ox), q = v_run(v, y, oy);
  v_must_match(v, what, y, &r, &q, tolerance);
  case_free_result(&r);
  case_free_result(&q);
}

/* ---- test cases ------------------------------------------------------------------------------*/

static void add_grouped_conv(test_case *s) {
  ng_layer *l = case_conv(s, 4, 6, 3, 2, 7, 5, true);
  l->groups = l->stride[0] = l->dilation[1] = 2;
  l->padding[0] = 1;
}

/* The properties of a linear layer use the first layer, the properties of a convolution the last layer. */
static void add_norms_between(const variant *v, test_case *s) {
  case_linear(s, 7, 4, true, 1);
  case_norm(s, NG_LAYER_NORM, 5, 1, 3);
  ng_layer *l = case_norm(s, NG_BATCH_NORM, 4, 3, 2);
  if (!(v->f->promises & RAW)) l->norm_input = NG_NORM_NORMALISED;
  l = case_norm(s, NG_GROUP_NORM, 6, 2, 3);
  l->groups = 2;
  l->bias = 0;
  if (v->f->promises & TOKENS) case_embedding(s, 9, 4, 2)->token_dtype = NG_I32;
  add_grouped_conv(s);
}

test_case *v_new_layers(const variant *v, int32_t steps, int32_t ranks) {
  test_case *s = case_create(steps, ranks);
  if (v->f->promises & NORMS) {
    add_norms_between(v, s);
    case_set_positions(s);
    return s;
  }
  case_linear(s, 7, 4, true, 1);
  case_linear(s, 5, 3, false, 3);
  /* A = S (x) C needs more channels than kernel positions. */
  const bool spatial = v_options(v).base.spatial == NG_SPATIAL_FACTORED;
  ng_layer *l = case_conv(s, 3, 4, spatial ? 1 : 3, spatial ? 2 : 3, 5, 6, true);
  l->padding[0] = l->padding[1] = 1;
  add_grouped_conv(s);
  case_set_positions(s);
  return s;
}

static test_case *new_filled_case(const variant *v, int32_t steps, int32_t ranks, uint64_t salt,
                                  bool even) {
  rng r = {test_seed() ^ salt};
  test_case *s = v_new_layers(v, steps, ranks);
  for (int32_t t = 0; t < steps; t++) {
    for (int32_t k = 0; k < ranks; k++) {
      for (int64_t c = even ? 1 : 1 + (k + t) % 2; c > 0; c--)
        case_add_micro(s, t, k, even ? 3 : 1 + (3 * k + t + c) % 5)->batch.reduction = NG_SUM;
    }
  }
  case_fill(s, &r);
  return s;
}

test_case *v_new_uneven_case(const variant *v, int32_t steps, int32_t ranks, uint64_t salt) {
  return new_filled_case(v, steps, ranks, salt, false);
}

test_case *v_new_even_case(const variant *v, int32_t steps, int32_t ranks, uint64_t salt) {
  return new_filled_case(v, steps, ranks, salt, true);
}

static void scale_losses(test_case *s, double c, bool by_samples) {
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t r = 0; r < s->ranks; r++) {
      for (int32_t k = 0; k < s->calls[t][r]; k++) {
        case_micro *m = &s->micro[t][r][k];
        if (by_samples) m->batch.reduction = NG_MEAN;
        for (int32_t l = 0; l < s->layers; l++) {
          for (int32_t u = 0; u < s->uses[l]; u++) {
            for (int64_t i = 0; i < case_output_count(s, l, m->batch.samples); i++)
              m->g[l][u][i] *= by_samples ? 1 / (double)m->batch.samples : c;
          }
        }
      }
    }
  }
}

void v_average_losses(test_case *s) { scale_losses(s, 1, true); }
void v_scale_losses(test_case *s, double c) { scale_losses(s, c, false); }

void v_add_weights(test_case *s) {
  for (int32_t l = 0; l < s->layers; l++) {
    s->W[l] = zeros(case_weight_count(s, l));
    for (int64_t i = 0; i < case_weight_count(s, l); i++)
      s->W[l][i] = 1 + (double)(i % 7) / 8;
  }
}

void v_clear_array(const test_case *s, case_micro *m, int32_t l, bool grad) {
  const bool tokens = s->layer[l].kind == NG_EMBEDDING && !grad;
  const int64_t B = m->batch.samples,
                n = grad ? case_output_count(s, l, B) : case_input_count(s, l, B);
  for (int32_t u = 0; u < s->uses[l]; u++) {
    for (int64_t i = 0; i < n; i++)
      (grad ? m->g : m->a)[l][u][i] = tokens ? NG_NO_TOKEN : 0;
  }
}

const char *const v_clips[V_CLIPS] = {"none", "kl", "rescale", "norm", "ratio", "rms", "value"};

/* ---- numbers ---------------------------------------------------------------------------------*/

double v_dot(const double *x, const double *y, int64_t n) {
  double s = 0;
  for (int64_t i = 0; i < n; i++)
    s += x[i] * y[i];
  return s;
}

double v_largest(const double *x, int64_t n) {
  double most = 0;
  for (int64_t i = 0; i < n; i++)
    most = fmax(most, fabs(x[i]));
  return most;
}
