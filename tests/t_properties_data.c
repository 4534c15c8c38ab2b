/* t_properties_data.c: changes of the data that must not matter, or in a known way: micro-batches, order and
 * layout of observations, threads, scale of the loss, groups, bias, frozen layers.  Each property runs on every
 * row of families.c that promises it, with every linear algebra; families.h explains the tolerances. */
#include "families.h"
#include "unit_test.h"

#include <math.h>
#include <string.h>

static void copy_numbers(double *to, const double *from, int64_t n) {
  memcpy(to, from, sizeof *to * (size_t)n);
}

/* ---- parts of a batch ------------------------------------------------------------------------*/

/* Micro-batches of one rank equal one micro-batch: with summed losses, then with mean losses. */
static void micro_batches_equal_one_batch(const variant *v) {
  if (v->f->calls == NO_PARTS) return;
  rng r = {test_seed() + 5};
  test_case *s = v_new_layers(v, 3, 1);
  for (int32_t t = 0; t < 3; t++) {
    for (int c = 0; c < 4; c++) {
      const int64_t samples = v->f->calls == ANY_PARTS ? 1 + (c + t) % 4 : 2;
      case_add_micro(s, t, 0, samples)->batch.reduction = NG_SUM;
    }
  }
  case_fill(s, &r);
  test_case *whole = case_merge(s);
  const ng_options o = v_options(v);
  const double tolerance = v_tolerance(v, s, &o);
  v_runs_must_match(v, "micro-batches", s, &o, whole, &o, tolerance);
  if (v->f->calls == ANY_PARTS) {
    v_average_losses(s);
    v_runs_must_match(v, "micro-batches of mean losses", s, &o, whole, &o, tolerance);
  }
  case_destroy(&s);
  case_destroy(&whole);
}

/* Two uses of a layer in a micro-batch count as one batch of both. */
static void two_uses_equal_one_batch(const variant *v) {
  if (v->f->calls == NO_PARTS) return;
  rng r = {test_seed() + 8};
  test_case *s = v_new_layers(v, 1, 1), *one = v_new_layers(v, 1, 1);
  for (int32_t l = 0; l < s->layers; l++)
    s->uses[l] = 2;
  case_micro *m = case_add_micro(s, 0, 0, 3), *w = case_add_micro(one, 0, 0, 6);
  m->batch.reduction = w->batch.reduction = NG_SUM;
  case_fill(s, &r);
  case_fill(one, &r);
  for (int32_t l = 0; l < s->layers; l++) {
    const int64_t na = case_input_count(s, l, 3), ng = case_output_count(s, l, 3);
    copy_numbers(one->D[0][l], s->D[0][l], case_weight_count(s, l));
    for (int u = 0; u < 2; u++) {
      copy_numbers(w->a[l][0] + u * na, m->a[l][u], na);
      copy_numbers(w->g[l][0] + u * ng, m->g[l][u], ng);
    }
  }
  const ng_options o = v_options(v);
  v_runs_must_match(v, "shared weights", s, &o, one, &o, v_tolerance(v, one, &o));
  case_destroy(&s);
  case_destroy(&one);
}

/* ---- the scale of the loss -------------------------------------------------------------------*/

/* The options of v without clip and without the initial identity, which does not scale with the data. */
static ng_options options_without_identity(const variant *v) {
  ng_options o = v_options(v);
  fixture_set(&o, "clip", "none");
  if (o.base.stat_start == NG_START_IDENTITY) fixture_set_real(&o, "stat_decay", 0);
  return o;
}

static void multiply_results(const test_case *s, case_result *r, double c) {
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t l = 0; l < s->layers; l++) {
      for (int64_t i = 0; i < case_weight_count(s, l); i++)
        r->P[t][l][i] *= c;
    }
  }
}

/* Fail unless `other` has `by` times the curvature of `s`. */
static void expect_curvature(const variant *v, const char *what, const test_case *s,
                             const test_case *other, double by) {
  const ng_options o = options_without_identity(v);
  ng_options turned = o;
  const double factor = v_scale_knob(v, &turned, by);
  case_result x = v_run(v, s, &o), y = v_run(v, other, &turned);
  multiply_results(s, &y, factor);
  v_must_match(v, what, s, &y, &x, v_tolerance(v, s, &o));
  case_free_result(&x);
  case_free_result(&y);
}

/* Doubling a batch with a mean loss halves g; the row of families.c states how the curvature changes. */
static void repeated_samples_scale_curvature(const variant *v) {
  if (v->f->repeat == 0) return;
  rng r = {test_seed() + 9};
  test_case *s = v_new_layers(v, 1, 1), *twice = v_new_layers(v, 1, 1);
  case_micro *m = case_add_micro(s, 0, 0, 4), *w = case_add_micro(twice, 0, 0, 8);
  case_fill(s, &r);
  case_fill(twice, &r);
  for (int32_t l = 0; l < s->layers; l++) {
    const int64_t na = case_input_count(s, l, 4), ng = case_output_count(s, l, 4);
    for (int64_t i = 0; i < 2 * na; i++)
      w->a[l][0][i] = m->a[l][0][i % na];
    for (int64_t i = 0; i < 2 * ng; i++)
      w->g[l][0][i] = m->g[l][0][i % ng] / 2;
    copy_numbers(twice->D[0][l], s->D[0][l], case_weight_count(s, l));
  }
  expect_curvature(v, "duplicate batch", s, twice, 1 / v->f->repeat);
  case_destroy(&s);
  case_destroy(&twice);
}

/* g times a power of two, with loss_scale set, gives the same bits. */
static void loss_scale_changes_no_bit(const variant *v) {
  test_case *s = v_new_uneven_case(v, 2, 1, 10), *scaled = v_new_uneven_case(v, 2, 1, 10);
  v_scale_losses(scaled, 8);
  for (int32_t t = 0; t < 2; t++) {
    for (int32_t c = 0; c < s->calls[t][0]; c++)
      scaled->micro[t][0][c].batch.loss_scale = 8;
  }
  const ng_options o = v_options(v);
  v_runs_must_match(v, "loss scale", scaled, &o, s, &o, 0);
  case_destroy(&s);
  case_destroy(&scaled);
}

/* g times c without loss_scale gives c^2 times the curvature and the same gradient. */
static void scaled_loss_scales_curvature(const variant *v) {
  test_case *s = v_new_uneven_case(v, 2, 1, 10), *scaled = v_new_uneven_case(v, 2, 1, 10);
  v_scale_losses(scaled, 8);
  expect_curvature(v, "scaled loss", s, scaled, 64);
  case_destroy(&s);
  case_destroy(&scaled);
}

/* Fill the inputs or the output gradients of layer l with NaN, the tokens of an embedding with 1e6. */
static void fill_with_nan(test_case *s, int32_t l, bool grad) {
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t c = 0; c < s->calls[t][0]; c++) {
      case_micro *m = &s->micro[t][0][c];
      double *x = grad ? m->g[l][0] : m->a[l][0];
      const int64_t n = grad ? case_output_count(s, l, m->batch.samples)
                             : case_input_count(s, l, m->batch.samples);
      for (int64_t i = 0; i < n; i++)
        x[i] = s->layer[l].kind == NG_EMBEDDING && !grad ? 1e6 : (double)NAN;
    }
  }
}

static void unread_arrays_may_hold_nan(const variant *v) {
  const bool input = v->f->promises & READS_INPUT, output = v->f->promises & READS_OUTPUT;
  if (input && output) return;
  test_case *s = v_new_uneven_case(v, 2, 1, 25), *other = v_new_uneven_case(v, 2, 1, 25);
  const ng_options o = v_options(v);
  for (int32_t l = 0; l < s->layers; l++) {
    if (!input) fill_with_nan(other, l, false);
    if (!output) fill_with_nan(other, l, true);
  }
  case_result x = v_run(v, s, &o),
              y = v_run_setup(v, other, &o, (case_setup){.observe_unwanted = true});
  v_must_match(v, "not read", s, &y, &x, 0);
  case_free_result(&x);
  case_free_result(&y);
  case_destroy(&s);
  case_destroy(&other);
}

static void frozen_layers_change_no_other(const variant *v) {
  test_case *s = v_new_uneven_case(v, 2, 1, 26), *other = v_new_uneven_case(v, 2, 1, 26);
  s->layer[1].frozen = other->layer[1].frozen = 1;
  fill_with_nan(other, 1, false);
  fill_with_nan(other, 1, true);
  /* the gradient of the frozen layer may be anything */
  for (int64_t i = 0; i < case_weight_count(s, 1); i++)
    other->D[0][1][i] = 4 - other->D[0][1][i];
  const ng_options o = v_options(v);
  case_result x = v_run(v, s, &o),
              y = v_run_setup(v, other, &o, (case_setup){.observe_unwanted = true});
  for (int32_t t = 0; t < 2; t++) {
    assert_memory_equal(x.P[t][1], s->D[t][1], sizeof(double) * (size_t)case_weight_count(s, 1));
    assert_memory_equal(y.P[t][1], other->D[t][1],
                        sizeof(double) * (size_t)case_weight_count(s, 1));
    copy_numbers(y.P[t][1], x.P[t][1], case_weight_count(s, 1));
  }
  v_must_match(v, "others beside a frozen layer", s, &y, &x, 0);
  case_free_result(&x);
  case_free_result(&y);
  case_destroy(&s);
  case_destroy(&other);
}

/* ---- order and shape -------------------------------------------------------------------------*/

/* Top-k selects the first of equal gradients, which depends on the order of layers.  So make all gradients
 * different, by less than the spacing of the numbers. */
static void make_all_different(test_case *s) {
  int64_t at = 0;
  for (int32_t l = 0; l < s->layers; l++) {
    for (int64_t i = 0; i < case_weight_count(s, l); i++, at++) {
      for (int32_t t = 0; t < s->steps; t++)
        s->D[t][l][i] += (double)at * 0x1p-18;
    }
  }
}

static void order_does_not_matter(const variant *v) {
  rng r = {test_seed() + 7};
  test_case *s = v_new_uneven_case(v, 2, 1, 7);
  make_all_different(s);
  test_case *shuffled = case_shuffle(s, &r);
  const ng_options o = v_options(v);
  case_result x = v_run(v, s, &o), y = v_run(v, shuffled, &o),
              z = v_run_setup(v, s, &o, (case_setup){.reverse = true});
  v_must_match(v, "order of samples", s, &y, &x, v_tolerance(v, s, &o));
  /* Layers interact only in the sums of the clip, which are in double. */
  v_must_match(v, "order of layers", s, &z, &x, 8 * unit);
  case_free_result(&x);
  case_free_result(&y);
  case_free_result(&z);
  case_destroy(&s);
  case_destroy(&shuffled);
}

/* The layout changes no bit.  The dtype may change the order in which scales and sums are rounded, although the
 * numbers are exact in all dtypes. */
static void layout_and_dtype_do_not_matter(const variant *v) {
  static const struct {
    const char *name;
    case_setup setup;
    bool same_bits;
  } how[] = {
      {"again", {0}, true},
      {"rows with a gap", {.pad = 5}, true},
      {"positions declared, all shown",
       {.declare_positions = true, .observe_unwanted = true},
       true},
      {"NHWC", {.layout = PLANE_NHWC}, true},
      {"positions first", {.order = NG_POSITIONS_FIRST, .declare_positions = true}, true},
      {"three threads", {.threads = 3}, true},
      {"bf16", {.observed = NG_BF16}, false},
      {"f16", {.observed = NG_F16}, false},
      {"NHWC with a gap, f16", {.layout = PLANE_NHWC, .pad = 2, .observed = NG_F16}, false},
  };
  test_case *s = v_new_uneven_case(v, 2, 1, 12);
  const ng_options o = v_options(v);
  const double tolerance = v_tolerance(v, s, &o);
  case_result x = v_run(v, s, &o);
  for (size_t k = 0; k < sizeof how / sizeof how[0]; k++) {
    case_result y = v_run_setup(v, s, &o, how[k].setup);
    v_must_match(v, how[k].name, s, &y, &x, how[k].same_bits ? 0 : tolerance);
    case_free_result(&y);
  }
  case_free_result(&x);
  case_destroy(&s);
}

/* Half-precision gradients that are exact in both dtypes are computed in f32 and rounded once, to nearest: half a
 * unit of bf16 or f16, or half of the smallest step of f16. */
static void half_gradients_are_rounded_once(const variant *v) {
  static const ng_dtype type[] = {NG_BF16, NG_F16};
  test_case *s = v_new_uneven_case(v, 2, 1, 12);
  const ng_options o = v_options(v);
  case_result x = v_run(v, s, &o);
  for (int k = 0; k < 2; k++) {
    const double half = k == 0 ? 0x1p-8 : 0x1p-11;
    case_result y = v_run_setup(v, s, &o, (case_setup){.gradient = type[k], .pad = 1});
    for (int32_t t = 0; t < 2; t++) {
      if (!(fabs(y.nu[t] / x.nu[t] - 1) <= 8 * unit)) v_fail(v, "nu %g, %g", y.nu[t], x.nu[t]);
      for (int32_t l = 0; l < s->layers; l++) {
        for (int64_t i = 0; i < case_weight_count(s, l); i++) {
          const double want = x.P[t][l][i], got = y.P[t][l][i];
          if (!(fabs(got - want) <= half * fabs(want) + 0x1p-25))
            v_fail(v, "%s in %s: %g, not %g", s->name[l], ng_dtype_name(type[k]), got, want);
        }
      }
    }
    case_free_result(&y);
  }
  case_free_result(&x);
  case_destroy(&s);
}

/* Any number of threads gives the same bits, in layers large enough to be cut.  Methods with vectors have rows longer
 * than a tile and are compared with the prediction, which takes too long for matrices.  Methods with matrices have a
 * factor and a gradient that threads share. */
static void threads_change_no_bit(const variant *v) {
  rng r = {test_seed() + 3};
  const bool vectors = v->f->promises & VECTORS;
  const int32_t steps = vectors ? 2 : 1;
  ng_options o = v_options(v);
  if (vectors)
    fixture_set_real(&o, "damping",
                     1000); /* a large damping gives a good condition, so the tolerance is tight */
  test_case *s = case_create(steps, 1);
  /* 150, 12: products of larger layers are cut into pieces (linalg/blas.c), whose number depends on the threads */
  case_linear(s, vectors ? 20011 : 150, vectors ? 3 : 50, true, 1);
  case_linear(s, vectors ? 130 : 12, vectors ? 400 : 20, true, 2);
  ng_layer *l = case_conv(s, vectors ? 70 : 7, vectors ? 33 : 17, 3, 3, 9, 8, false);
  l->padding[0] = l->padding[1] = 1;
  for (int k = NG_BATCH_NORM; v->f->promises & NORMS && k <= NG_GROUP_NORM; k++)
    case_norm(s, (ng_norm_kind)k, 40, 30, 30);
  case_set_positions(s);
  for (int32_t t = 0; t < steps; t++)
    (void)case_add_micro(s, t, 0, 3);
  case_fill(s, &r);
  case_result want;
  if (vectors && v->f->predict == NULL) fail_msg("%s: VECTORS needs `predict`", v->f->name);
  if (vectors) v->f->predict(s, &o, &want);
  for (int k = 0; k < steps; k++) {
    case_setup setup = {.threads = 1, .layout = k == 0 ? PLANE_NCHW : PLANE_NHWC};
    case_result x = v_run_setup(v, s, &o, setup);
    if (vectors) v_must_match(v, "wide layers", s, &x, &want, 8 * v->f->growth * unit);
    for (setup.threads = 2; setup.threads <= (vectors ? 7 : 2); setup.threads += 5) {
      case_result y = v_run_setup(v, s, &o, setup);
      v_must_match(v, "threads", s, &y, &x, 0);
      case_free_result(&y);
    }
    case_free_result(&x);
  }
  if (vectors) case_free_result(&want);
  case_destroy(&s);
}

/* ---- layers ----------------------------------------------------------------------------------*/

/* A bias equals an additional input of ones; for a 1x1 convolution, an image of ones. */
static void bias_equals_an_input_of_ones(const variant *v) {
  if (v->f->promises & SHAPED) return;
  for (int k = 0; k < 3 * 2; k++) {
    enum { B = 6, IN = 4, OUT = 3, HW = 6 };
    rng r = {test_seed() + 11};
    test_case *s = case_create(2, 1), *ones = case_create(2, 1);
    const bool conv = k / 2 == 2;
    const int64_t S = conv ? HW : 1 + 2 * (k / 2);
    if (conv) {
      case_conv(s, IN, OUT, 1, 1, 2, 3, true);
      case_conv(ones, IN + 1, OUT, 1, 1, 2, 3, false);
      case_set_positions(s);
      case_set_positions(ones);
    } else {
      case_linear(s, IN, OUT, true, S);
      case_linear(ones, IN + 1, OUT, false, S);
    }
    for (int32_t t = 0; t < 2; t++) {
      (void)case_add_micro(s, t, 0, B);
      (void)case_add_micro(ones, t, 0, B);
    }
    case_fill(s, &r);
    case_fill(ones, &r);
    for (int32_t t = 0; t < 2; t++) {
      const double *from = s->micro[t][0][0].a[0][0];
      double *to = ones->micro[t][0][0].a[0][0];
      /* the 1 is the last number of each row, or the last plane of each image */
      const int64_t row = conv ? IN * HW : IN, one = conv ? HW : 1, rows = conv ? B : B * S;
      for (int64_t i = 0; i < rows * (row + one); i++) {
        const int64_t j = i % (row + one);
        to[i] = j < row ? from[i / (row + one) * row + j] : 1;
      }
      copy_numbers(ones->micro[t][0][0].g[0][0], s->micro[t][0][0].g[0][0], B * S * OUT);
      copy_numbers(ones->D[t][0], s->D[t][0], OUT * (IN + 1));
    }
    ng_options o = v_options(v);
    if (o.base.stat_scale == NG_SCALE_TEXTBOOK && v->f->promises & READS_INPUT)
      fixture_set(&o, "positions", k % 2 ? "reduce" : "expand");
    v_runs_must_match(v, conv ? "bias of a convolution" : "bias", s, &o, ones, &o,
                      v_tolerance(v, s, &o));
    case_destroy(&s);
    case_destroy(&ones);
  }
}

/* A convolution in two groups equals two convolutions on the channels of each group. */
static void groups_equal_convolutions(const variant *v) {
  for (int one_by_one = 0; one_by_one < 2; one_by_one++) {
    rng r = {test_seed() + 16};
    test_case *s = case_create(2, 1), *apart = case_create(2, 1);
    const int64_t k = one_by_one ? 1 : 3, hw = 30, B = 4, S = one_by_one ? 30 : 12;
    case_conv(s, 6, 4, k, k, 5, 6, true)->groups = 2;
    for (int g = 0; g < 2; g++)
      case_conv(apart, 3, 2, k, k, 5, 6, true);
    case_set_positions(s);
    case_set_positions(apart);
    for (int32_t t = 0; t < 2; t++) {
      (void)case_add_micro(s, t, 0, B);
      (void)case_add_micro(apart, t, 0, B);
    }
    case_fill(s, &r);
    case_fill(apart, &r);
    const int64_t half = case_weight_count(apart, 0);
    for (int32_t t = 0; t < 2; t++) {
      const case_micro *from = &s->micro[t][0][0];
      case_micro *to = &apart->micro[t][0][0];
      for (int64_t g = 0; g < 2; g++) {
        copy_numbers(apart->D[t][g], s->D[t][0] + g * half, half);
        for (int64_t b = 0; b < B; b++) {
          copy_numbers(to->a[g][0] + b * 3 * hw, from->a[0][0] + (b * 6 + g * 3) * hw, 3 * hw);
          copy_numbers(to->g[g][0] + b * 2 * S, from->g[0][0] + (b * 4 + g * 2) * S, 2 * S);
        }
      }
    }
    const ng_options o = v_options(v);
    case_result x = v_run(v, s, &o), y = v_run(v, apart, &o);
    const double tolerance = v_tolerance(v, apart, &o);
    for (int32_t t = 0; t < 2; t++) {
      const double most = fmax(v_largest(y.P[t][0], half), v_largest(y.P[t][1], half));
      for (int64_t i = 0; i < 2 * half; i++) {
        const double want = y.P[t][i / half][i % half];
        if (!(fabs(x.P[t][0][i] - want) <= tolerance * most))
          v_fail(v, "step %d, entry %d of the groups: %.7g, apart %.7g", t, (int)i, x.P[t][0][i],
                 want);
      }
    }
    case_free_result(&x);
    case_free_result(&y);
    case_destroy(&s);
    case_destroy(&apart);
  }
}

int main(void) {
  static const property list[] = {
      {"micro-batches", EVERYONE, micro_batches_equal_one_batch},
      {"shared weights", EVERYONE, two_uses_equal_one_batch},
      {"duplicate batch", EVERYONE, repeated_samples_scale_curvature},
      {"loss scale", EVERYONE, loss_scale_changes_no_bit},
      {"scaled loss", SCALES, scaled_loss_scales_curvature},
      {"not read", EVERYONE, unread_arrays_may_hold_nan},
      {"frozen", EVERYONE, frozen_layers_change_no_other},
      {"order", EVERYONE, order_does_not_matter},
      {"setups", EVERYONE, layout_and_dtype_do_not_matter},
      {"half gradients", EVERYONE, half_gradients_are_rounded_once},
      {"threads", EVERYONE, threads_change_no_bit},
      {"bias", EVERYONE, bias_equals_an_input_of_ones},
      {"groups", IN_GROUPS, groups_equal_convolutions},
  };
  return PROPERTIES_MAIN("properties of data", list);
}
