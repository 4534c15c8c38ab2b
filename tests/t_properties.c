/* t_properties.c: properties of the operator P for any data: many inputs, no stored answers.  Each property runs
 * on every row of families.c that promises it, with every linear algebra; families.h explains the tolerances.
 * t_properties_data.c tests order and shape of the data, t_properties_life.c ranks, resuming and faults. */
#include "families.h"
#include "unit_test.h"

#include <math.h>
#include <string.h>

/* The row's options without clip. */
static ng_options options_without_clip(const variant *v) {
  ng_options o = v_options(v);
  fixture_set(&o, "clip", "none");
  return o;
}

/* ---- against the prediction ------------------------------------------------------------------*/

/* With micro-batches of any size, sums and means, layers used twice, and a changed damping. */
static void results_match_the_prediction(const variant *v) {
  rng r = {test_seed() + 21};
  test_case *s = v_new_layers(v, 3, 1);
  s->uses[1] = s->uses[2] = 2;
  for (int32_t t = 0; t < 3; t++) {
    for (int c = 0; c < 3; c++) {
      ng_batch *b = &case_add_micro(s, t, 0, 1 + (c + 2 * t) % 4)->batch;
      b->reduction = c == 1 ? NG_MEAN : NG_SUM;
      b->loss_scale = c == 2 ? 0.5 : 1;
    }
  }
  if (strcmp(v->f->knob, "damping") == 0) s->damping[1] = 0.25;
  case_fill(s, &r);
  const ng_options o = v_options(v);
  v_must_match_prediction(v, "prediction", s, &o);
  case_destroy(&s);
}

/* With one sample, one input and one output, with and without bias, and with zero inputs or gradients. */
static void sizes_of_one_match_prediction(const variant *v) {
  enum { PLAIN, BIAS, CONV, NORM, WORDS, KINDS };
  for (int k = 0; k < KINDS * 2 * 3; k++) {
    rng r = {test_seed() + 22};
    test_case *s = case_create(2, 1);
    const int kind = k % KINDS, zero = k / KINDS / 2; /* zero: none, inputs, output gradients */
    if ((kind == NORM && !(v->f->promises & NORMS)) ||
        (kind == WORDS && !(v->f->promises & TOKENS)))
      case_linear(s, 1, 1, true,
                  1); /* if the row does not promise this kind of layer, use a linear layer */
    else if (kind == NORM)
      case_norm(s, NG_BATCH_NORM, 1, 1, 1)->norm_input = NG_NORM_NORMALISED;
    else if (kind == WORDS)
      case_embedding(s, 1, 1, 1);
    else if (kind == CONV)
      case_conv(s, 1, 1, 1, 1, 1, 1, false);
    else
      case_linear(s, 1, 1, kind == BIAS, 1);
    case_set_positions(s);
    for (int32_t t = 0; t < 2; t++) {
      (void)case_add_micro(s, t, 0, k / KINDS % 2 ? 4 : 1);
    }
    case_fill(s, &r);
    for (int32_t t = 0; t < 2 && zero > 0; t++)
      v_clear_array(s, &s->micro[t][0][0], 0, zero == 2);
    const ng_options o = options_without_clip(v);
    v_must_match_prediction(v, "sizes of one", s, &o);
    case_destroy(&s);
  }
}

/* Curvature plus damping, applied to P, gives D.  A and G are summed here by definition; for vectors they are
 * products of means. */
static void expect_inverse(const variant *v, int B, int in, int q, bool bias) {
  enum { MOST = 4 };
  const int p = in + bias, n = p * q;
  rng r = {test_seed() + 4};
  test_case *s = case_create(1, 1);
  case_linear(s, in, q, bias, 1);
  case_micro *m = case_add_micro(s, 0, 0, B); /* a mean loss: delta = B g */
  case_fill(s, &r);
  ng_options o = options_without_clip(v);
  fixture_set_real(&o, "damping", 0.5);
  double A[MOST * MOST] = {0}, G[MOST * MOST] = {0}, a[MOST] = {0}, g[MOST] = {0};
  for (int k = 0; k < B; k++) {
    const double *x = m->a[0][0] + in * k, *y = m->g[0][0] + q * k;
    for (int i = 0; i < p * p; i++)
      A[i] += (i / p < in ? x[i / p] : 1) * (i % p < in ? x[i % p] : 1) / B;
    for (int i = 0; i < q * q; i++)
      G[i] += B * y[i / q] * y[i % q];
    for (int i = 0; i < p; i++)
      a[i] += (i < in ? x[i] : 1) / B;
    for (int i = 0; i < q; i++)
      g[i] += y[i];
  }
  /* each: the damping that is added to G (x) A; mean_a, mean_g: means of the diagonals */
  double each = o.base.damping, mean_a = 0, mean_g = 0;
  for (int i = 0; i < p; i++)
    mean_a += A[i * p + i] / p;
  for (int i = 0; i < q; i++)
    mean_g += G[i * q + i] / q;
  if (v->f->promises & VECTORS) {
    for (int i = 0; i < p * p; i++)
      A[i] = a[i / p] * a[i % p];
    for (int i = 0; i < q * q; i++)
      G[i] = g[i / q] * g[i % q];
  } else if (o.base.damping_split != NG_SPLIT_JOINT) {
    const bool full = o.base.damping_split == NG_SPLIT_FULL;
    const double pi = sqrt(mean_a / mean_g), root = sqrt(o.base.damping);
    for (int i = 0; i < p; i++)
      A[i * p + i] += full ? o.base.damping : root * pi;
    for (int i = 0; i < q; i++)
      G[i * q + i] += full ? o.base.damping : root / pi;
    each = 0; /* the damping is in A and in G */
  }
  case_result result = v_run(v, s, &o);
  const double *PD = result.P[0][0], *D = s->D[0][0];
  for (int i = 0; i < n; i++) {
    double back = each * PD[i];
    for (int k = 0; k < n; k++)
      back += G[i / p * q + k / p] * PD[k] * A[k % p * p + i % p];
    if (!(fabs(back - D[i]) <= v_tolerance(v, s, &o) * v_largest(D, n)))
      v_fail(v, "curvature PD: entry %d of %d is %.9g, should be %.9g", i, n, back, D[i]);
  }
  case_free_result(&result);
  case_destroy(&s);
}

static void direction_solves_damped_system(const variant *v) {
  expect_inverse(v, 9, 3, 2, true);
  /* scalars: P = D / (a^2 g^2 + lambda), or with damped factors */
  expect_inverse(v, 1, 1, 1, false);
  expect_inverse(v, 1, 1, 1, true);
}

/* ---- linear, symmetric, positive -------------------------------------------------------------*/

/* The unclipped PD of three gradients: x, y and 2 x - y / 2. */
typedef struct three_runs {
  test_case *s[3];
  case_result r[3];
  double tolerance;
} three_runs;

static three_runs run_three_gradients(const variant *v) {
  three_runs x;
  rng other = {test_seed() + 77};
  const ng_options o = options_without_clip(v);
  for (int k = 0; k < 3; k++)
    x.s[k] = v_new_uneven_case(v, 1, 1, 1);
  for (int32_t l = 0; l < x.s[0]->layers; l++) {
    for (int64_t i = 0; i < case_weight_count(x.s[0], l); i++) {
      x.s[1]->D[0][l][i] = rng_value(&other);
      x.s[2]->D[0][l][i] = 2 * x.s[0]->D[0][l][i] - x.s[1]->D[0][l][i] / 2;
    }
  }
  for (int k = 0; k < 3; k++)
    x.r[k] = v_run(v, x.s[k], &o);
  x.tolerance = v_tolerance(v, x.s[0], &o);
  return x;
}

static void free_three_runs(three_runs *x) {
  for (int k = 0; k < 3; k++) {
    case_free_result(&x->r[k]);
    case_destroy(&x->s[k]);
  }
}

static void operator_is_linear(const variant *v) {
  three_runs x = run_three_gradients(v);
  for (int32_t l = 0; l < x.s[0]->layers; l++) {
    const int64_t n = case_weight_count(x.s[0], l);
    const double *Px = x.r[0].P[0][l], *Py = x.r[1].P[0][l], *Pz = x.r[2].P[0][l];
    const double size = 2 * v_largest(Px, n) + v_largest(Py, n) / 2;
    for (int64_t i = 0; i < n; i++) {
      if (!(fabs(Pz[i] - 2 * Px[i] + Py[i] / 2) <= x.tolerance * size))
        v_fail(v, "%s, entry %d: %g, not %g", x.s[0]->name[l], (int)i, Pz[i],
               2 * Px[i] - Py[i] / 2);
    }
  }
  free_three_runs(&x);
}

static void operator_is_symmetric(const variant *v) {
  three_runs z = run_three_gradients(v);
  for (int32_t l = 0; l < z.s[0]->layers; l++) {
    const int64_t n = case_weight_count(z.s[0], l);
    const double *x = z.s[0]->D[0][l], *y = z.s[1]->D[0][l];
    const double *Px = z.r[0].P[0][l], *Py = z.r[1].P[0][l];
    const double size =
        sqrt(v_dot(x, x, n) * v_dot(Py, Py, n)) + sqrt(v_dot(y, y, n) * v_dot(Px, Px, n));
    if (!(fabs(v_dot(y, Px, n) - v_dot(x, Py, n)) <= z.tolerance * size))
      v_fail(v, "%s: <y, Px> %g, <x, Py> %g", z.s[0]->name[l], v_dot(y, Px, n), v_dot(x, Py, n));
  }
  free_three_runs(&z);
}

static void operator_is_positive(const variant *v) {
  if (has_promise(v, LATE)) return;
  three_runs x = run_three_gradients(v);
  for (int k = 0; k < 3; k++) {
    double inner = 0;
    for (int32_t l = 0; l < x.s[k]->layers; l++) {
      const double one = v_dot(x.s[k]->D[0][l], x.r[k].P[0][l], case_weight_count(x.s[k], l));
      if (!(one > 0)) v_fail(v, "%s: <x, Px> is %g", x.s[k]->name[l], one);
      inner += one;
    }
    if (!(fabs(x.r[k].inner[0] - inner) <= x.tolerance * inner))
      v_fail(v, "reported <x, Px> is %g, not %g", x.r[k].inner[0], inner);
  }
  free_three_runs(&x);
}

/* ---- limits ----------------------------------------------------------------------------------*/

static void scale_gradients(test_case *s, double factor) {
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t l = 0; l < s->layers; l++) {
      for (int64_t i = 0; i < case_weight_count(s, l); i++)
        s->D[t][l][i] *= factor;
    }
  }
}

static void zero_gradients_give_zero(const variant *v) {
  for (int k = 0; k < V_CLIPS; k++) {
    test_case *s = v_new_uneven_case(v, 1, 1, 2);
    ng_options o = v_options(v);
    fixture_set(&o, "clip", v_clips[k]);
    fixture_set_real(&o, "clip_bound", k < V_BOUNDED ? 0 : 0.001);
    v_add_weights(s);
    scale_gradients(s, 0);
    case_result r = v_run(v, s, &o);
    if (r.nu[0] != 1 || r.inner[0] != 0)
      v_fail(v, "%s: nu %g, <D, PD> %g", v_clips[k], r.nu[0], r.inner[0]);
    for (int32_t l = 0; l < s->layers; l++) {
      if (!(v_largest(r.P[0][l], case_weight_count(s, l)) == 0))
        v_fail(v, "%s: not zero", v_clips[k]);
    }
    case_free_result(&r);
    case_destroy(&s);
  }
}

/* Fail unless damping^power P is D, up to `part` of the largest entry.  Norms have a damping of their own. */
static void expect_scaled_gradient(const variant *v, const char *what, const test_case *s,
                                   const ng_options *o, double part) {
  case_result r = v_run(v, s, o);
  for (int32_t l = 0; l < s->layers; l++) {
    const double lambda = pow(o->base.damping, v->f->power) *
                          (s->layer[l].kind == NG_NORM ? o->base.norm_damping : 1);
    const int64_t n = case_weight_count(s, l);
    for (int64_t i = 0; i < n; i++) {
      const double e = fabs(lambda * r.P[0][l][i] - s->D[0][l][i]);
      if (!(e <= part * v_largest(s->D[0][l], n)))
        v_fail(v, "%s, %s: off by %g", what, s->name[l], e);
    }
  }
  case_free_result(&r);
}

static void large_damping_scales_gradient(const variant *v) {
  test_case *s = v_new_uneven_case(v, 1, 1, 3);
  ng_options o = options_without_clip(v);
  fixture_set_real(&o, "damping", 1e10);
  expect_scaled_gradient(v, "damping 1e10", s, &o, v->f->tail + 2 * v->f->growth * unit);
  case_destroy(&s);
}

/* Zero inputs, zero output gradients or both leave only the damping.  One zero side is enough if the damping is
 * added to the product of A and G.  Layers have no bias, because its input is 1. */
static void no_curvature_scales_gradient(const variant *v) {
  for (int k = 0; k < 3; k++) {
    test_case *s = v_new_even_case(v, 1, 1, 23);
    case_micro *m = &s->micro[0][0][0];
    ng_options o = options_without_clip(v);
    const bool product = v->f->promises & VECTORS || o.base.damping_split == NG_SPLIT_JOINT;
    /* without decay, part of the initial identity would remain */
    fixture_set_real(&o, "stat_decay", 0);
    for (int32_t l = 0; l < s->layers; l++) {
      s->layer[l].bias = 0;
      if (k != 1) v_clear_array(s, m, l, false);
      if (k != 0) v_clear_array(s, m, l, true);
    }
    if (k == 2 || (product && v->f->promises & (k == 0 ? READS_INPUT : READS_OUTPUT)))
      expect_scaled_gradient(v, "no curvature", s, &o, 2 * v->f->growth * unit);
    case_destroy(&s);
  }
}

/* Gradients whose squares f32 cannot hold give the scaled results of gradients near 1. */
static void extreme_gradients_only_scale(const variant *v) {
  static const double size[] = {1e25, 1e-30};
  test_case *s = v_new_uneven_case(v, 1, 1, 24);
  ng_options o = v_options(v);
  fixture_set(&o, "clip", "rescale");
  case_result one = v_run(v, s, &o);
  const double tolerance = v_tolerance(v, s, &o);
  for (int k = 0; k < 2; k++) {
    test_case *far = v_new_uneven_case(v, 1, 1, 24);
    scale_gradients(far, size[k]);
    case_result r = v_run(v, far, &o);
    for (int32_t l = 0; l < s->layers; l++) {
      for (int64_t i = 0; i < case_weight_count(s, l); i++)
        r.P[0][l][i] /= size[k];
    }
    v_must_match(v, k ? "1e-30" : "1e25", s, &r, &one, tolerance);
    case_free_result(&r);
    case_destroy(&far);
  }
  case_free_result(&one);
  case_destroy(&s);
}

/* ---- clips -----------------------------------------------------------------------------------*/

/* Return whether entry i of D belongs to the slot: 0 is the weight, 1 the bias, the last column of D.  Each slot has
 * its own clip factor. */
static bool is_in_slot(const test_case *s, int32_t l, int64_t i, int slot) {
  const int64_t p = oracle_columns(&s->layer[l]);
  return (s->layer[l].bias && i % p == p - 1) == (slot == 1);
}

static double compute_slot_norm(const test_case *s, int32_t l, const double *x, int slot,
                                int64_t *count) {
  double sum = 0;
  *count = 0;
  for (int64_t i = 0; i < case_weight_count(s, l); i++) {
    if (!is_in_slot(s, l, i, slot)) continue;
    sum += x[i] * x[i];
    ++*count;
  }
  return sqrt(sum);
}

/* The clip factor of one slot by the formula of natgrad.h, from the unclipped PD and the gradient; lr = 0.1. */
static double compute_clip_factor(const ng_options *o, const test_case *s, const case_result *plain,
                                  int32_t t, int32_t l, int slot) {
  double inner = 0, d2 = 0, pd2 = 0;
  int64_t n;
  for (int32_t k = 0; k < s->layers; k++) {
    const double *D = s->D[t][k], *P = plain->P[t][k];
    inner += v_dot(P, D, case_weight_count(s, k));
    d2 += v_dot(D, D, case_weight_count(s, k));
    pd2 += v_dot(P, P, case_weight_count(s, k));
  }
  const double length = compute_slot_norm(s, l, plain->P[t][l], slot, &n);
  if (o->base.clip == NG_CLIP_KL) return fmin(1, sqrt(o->base.kl_clip / (0.01 * inner)));
  if (o->base.clip == NG_CLIP_RESCALE) return sqrt(d2 / pd2);
  if (o->base.clip == NG_CLIP_NORM) return fmin(1, o->base.clip_bound / sqrt(pd2));
  if (o->base.clip == NG_CLIP_RATIO)
    return fmin(50, o->base.clip_bound * compute_slot_norm(s, l, s->W[l], slot, &n) / length);
  if (o->base.clip == NG_CLIP_VALUE) return 1;
  return 1 / fmax(1, length / sqrt((double)n) / o->base.clip_bound);
}

/* Compare each clip factor with its formula, with tight bounds and with bounds that clip nothing (a ratio is at most
 * 50). */
static void clips_match_their_formulas(const variant *v) {
  if (has_promise(v, LATE)) return;
  static const struct {
    const char *clip;
    double kl_clip, bound;
  } how[] = {{"kl", 1e-8, 0},  {"kl", 1e-3, 0},  {"kl", 1e6, 0},      {"rescale", 1, 0},
             {"norm", 1, 0.1}, {"norm", 1, 1e9}, {"ratio", 1, 0.001}, {"ratio", 1, 1e6},
             {"rms", 1, 0.01}, {"rms", 1, 1e9},  {"value", 1, 0.01}};
  test_case *s = v_new_uneven_case(v, 2, 1, 14);
  ng_options o = options_without_clip(v);
  v_add_weights(s);
  case_result plain = v_run(v, s, &o);
  /* Sums of a few hundred f32 products.  Families that do not store PD compute it again, with nu in it. */
  const double part = 64 * unit + (v->f->promises & VECTORS ? v_tolerance(v, s, &o) : 0);
  assert_true(plain.nu[0] == 1 && plain.nu[1] == 1);
  for (size_t k = 0; k < sizeof how / sizeof how[0]; k++) {
    fixture_set(&o, "clip", how[k].clip);
    fixture_set_real(&o, "kl_clip", how[k].kl_clip);
    fixture_set_real(&o, "clip_bound", how[k].bound);
    const bool value = o.base.clip == NG_CLIP_VALUE;
    case_result r = v_run(v, s, &o);
    for (int32_t t = 0; t < 2; t++) {
      double least = INFINITY;
      for (int32_t l = 0; l < s->layers; l++) {
        for (int slot = 0; slot < 1 + s->layer[l].bias; slot++) {
          const double f = compute_clip_factor(&o, s, &plain, t, l, slot);
          for (int64_t i = 0; i < case_weight_count(s, l); i++) {
            const double all = f * plain.P[t][l][i], bound = value ? o.base.clip_bound : INFINITY;
            const double want = fmax(-bound, fmin(bound, all));
            const double most = f * v_largest(plain.P[t][l], case_weight_count(s, l));
            if (is_in_slot(s, l, i, slot) && !(fabs(r.P[t][l][i] - want) <= part * most))
              v_fail(v, "%s, %s: %g, not %g", how[k].clip, s->name[l], r.P[t][l][i], want);
          }
          least = fmin(least, f);
        }
      }
      if (!(fabs(r.nu[t] - least) <= part * least))
        v_fail(v, "%s: nu is %g, not %g", how[k].clip, r.nu[t], least);
      const bool one = how[k].bound == 0 || o.base.clip == NG_CLIP_NORM;
      for (int32_t l = 0; l < s->layers && one && v->f->promises & HALVES; l++) {
        /* stored PD is rounded once more */
        for (int64_t i = 0; i < case_weight_count(s, l); i++) {
          const double want = r.nu[t] * plain.P[t][l][i];
          if (!(fabs(r.P[t][l][i] - want) <= 4 * unit * fabs(want)))
            v_fail(v, "%s, %s: %g, not nu PD = %g", how[k].clip, s->name[l], r.P[t][l][i], want);
        }
      }
    }
    case_free_result(&r);
  }
  case_free_result(&plain);
  case_destroy(&s);
}

/* Zero, tiny and huge norms give finite results.  A tensor with zero weights is not clipped by the ratio. */
static void clips_of_extreme_norms_are_finite(const variant *v) {
  static const double size[] = {1e-44, 1e-30, 1e25};
  for (int k = 4 * V_BOUNDED; k < 4 * V_CLIPS; k++) {
    test_case *s = v_new_uneven_case(v, 1, 1, 2);
    ng_options o = v_options(v);
    fixture_set(&o, "clip", v_clips[k / 4]);
    fixture_set_real(&o, "clip_bound", 0.001);
    v_add_weights(s);
    if (k % 4 < 3) scale_gradients(s, size[k % 4]);
    for (int32_t l = 0; l < s->layers && k % 4 == 3; l++)
      memset(s->W[l], 0, sizeof(double) * (size_t)case_weight_count(s, l));
    case_result r = v_run(v, s, &o);
    for (int32_t l = 0; l < s->layers; l++) {
      for (int64_t i = 0; i < case_weight_count(s, l); i++) {
        if (!isfinite(r.P[0][l][i])) v_fail(v, "%s, case %d: not finite", v_clips[k / 4], k % 4);
      }
    }
    if (k % 4 == 3 && o.base.clip == NG_CLIP_RATIO) {
      const ng_options plain = options_without_clip(v);
      v_runs_must_match(v, "weights of 0", s, &o, s, &plain, 8 * unit);
    }
    case_free_result(&r);
    case_destroy(&s);
  }
}

/* ---- statistics and inverses in half precision -----------------------------------------------*/

/* Each entry is rounded by half a unit in the last place (2^-9 to 2^-8 of its value in bf16, 2^-12 to 2^-11 in f16),
 * twice (two folds, or an inverse and its factor), on both sides.  The condition number multiplies this error. */
static void half_precision_error_is_bounded(const variant *v) {
  static const char *const name[] = {"bf16", "f16"};
  static const double half[] = {0x1p-8, 0x1p-11};
  test_case *s = v_new_uneven_case(v, 2, 1, 15);
  ng_options o = v_options(v);
  fixture_set_real(&o, "damping", 100);
  case_result x = v_run(v, s, &o);
  const double condition = v_tolerance(v, s, &o) / (2 * v->f->growth * unit);
  for (int k = 0; k < 4; k++) {
    ng_options h = o;
    fixture_set(&h, k / 2 ? "inverse_dtype" : "factor_dtype", name[k % 2]);
    case_result y = v_run(v, s, &h);
    double gap = 0;
    for (int32_t l = 0; l < s->layers; l++)
      gap = fmax(gap, case_gap(s, 1, l, &y, &x));
    if (!(gap > 0 && gap <= 4 * half[k % 2] * condition))
      v_fail(v, "%s in %s: error %.3g, condition %.3g", k / 2 ? "inverses" : "factors", name[k % 2],
             gap, condition);
    case_free_result(&y);
  }
  case_free_result(&x);
  case_destroy(&s);
}

int main(void) {
  static const property list[] = {
      {"as predicted", PREDICTED, results_match_the_prediction},
      {"sizes of one", PREDICTED, sizes_of_one_match_prediction},
      {"solves the damped system", SOLVES, direction_solves_damped_system},
      {"linear in the gradient", LINEAR, operator_is_linear},
      {"symmetric", SYMMETRIC, operator_is_symmetric},
      {"positive", EVERYONE, operator_is_positive},
      {"zero gives zero", EVERYONE, zero_gradients_give_zero},
      {"large damping", LINEAR, large_damping_scales_gradient},
      {"no curvature", LINEAR, no_curvature_scales_gradient},
      {"far from one", LINEAR, extreme_gradients_only_scale},
      {"clips by their formulas", EVERYONE, clips_match_their_formulas},
      {"clips at the ends", READS_INPUT, clips_of_extreme_norms_are_finite},
      {"kept in half precision", HALVES, half_precision_error_is_bounded},
  };
  return PROPERTIES_MAIN("properties", list);
}
