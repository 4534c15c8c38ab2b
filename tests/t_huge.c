/* t_huge.c: numbers of any magnitude in gradients, observations, weights and learning rates, on 1 and 4 ranks.
 *
 * An element whose update is not finite in its dtype keeps its old value; all other elements change as without it.
 * Oracles: the formulas of SGD and AdamW for the huge element; for all other elements the same run with an ordinary
 * number instead; for gradients of 16 bits the same step in f32, rounded.
 *
 * With every method, weights and all arrays of the state stay finite after one huge number, and later steps count. */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernel/kernel.h"
#include "ranks.h"
#include "huge_model.h"

enum { BEFORE = 3, AFTER = 40, REFUSED = 3, ROWS = 4, RANKS = 4 };

static const update updates[] = {
    {"plain", .lr = 0.1},
    {"decoupled", .lr = 0.1, .decay = 1e-3, .decoupled = 1},
    {"momentum", .lr = 1e-3, .momentum = 0.9, .decay = 1e-4},
    {"long momentum", .lr = 1e-3, .momentum = 0.99},
    {"damped", .lr = 0.1, .momentum = 0.9, .dampening = 0.9},
    {"nesterov", .lr = 0.1, .momentum = 0.9, .nesterov = 1},
    {"large rate", .lr = 1e10, .momentum = 0.9},
    {"adamw", .lr = 1e-3, .decay = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    {"short adamw", .lr = 0.1, .beta1 = 0.9, .beta2 = 0.5, .eps = 1e-8},
    {"adamw, large rate", .lr = 1e38, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
};
enum { UPDATES = sizeof updates / sizeof *updates };
static const double sizes[] = {1e5, 1e7, 1e10, 1e15, 1e19, 1e25, 1e38, 3e38};
enum { SIZES = sizeof sizes / sizeof *sizes };
static const ng_dtype types[] = {NG_F32, NG_BF16, NG_F16};

/* ---- one element -----------------------------------------------------------------------------*/

/* Return x rounded to dtype t. If the rounded x is not finite, set *stayed and return `old`. */
static float round_or_keep(float x, float old, ng_dtype t, int *stayed) {
  uint32_t bits;
  ng_from_f32(&bits, t, &x, 1);
  if (!ng_are_finite(&bits, t, 1)) {
    *stayed = 1;
    return old;
  }
  ng_to_f32(&x, &bits, t, 1);
  return x;
}

/* Return element e after update number BEFORE, counted from 0, with gradient d. */
static element expected_update(const update *by, element e, float d, ng_dtype t, int *stayed) {
  const float lr = (float)by->lr, mu = (float)by->momentum, b1 = (float)by->beta1,
              b2 = (float)by->beta2, n = BEFORE + 1;
  *stayed = 0;
  if (by->beta2 > 0) {
    const float root = (float)(1.0 / sqrt(1.0 - pow(by->beta2, (double)n)));
    const float rate = (float)(by->lr / (1.0 - pow(by->beta1, (double)n)));
    const float first = b1 * e.m + (float)(1.0 - by->beta1) * d;
    const float second = b2 * e.v + (float)(1.0 - by->beta2) * (d * d);
    const float w =
        (float)(1.0 - by->lr * by->decay) * e.w - rate * (first / (sqrtf(second) * root + 1e-8f));
    return (element){round_or_keep(w, e.w, t, stayed), round_or_keep(first, e.m, NG_F32, stayed),
                     round_or_keep(second, e.v, NG_F32, stayed)};
  }
  const float g = d + (by->decoupled ? 0.0f : (float)by->decay) * e.w;
  const float m = by->momentum == 0 ? g : mu * e.m + (float)(1.0 - by->dampening) * g;
  const float step = by->nesterov ? g + mu * m : m;
  const float w = (by->decoupled ? (float)(1.0 - by->lr * by->decay) : 1.0f) * e.w - lr * step;
  return (element){round_or_keep(w, e.w, t, stayed), round_or_keep(m, e.m, NG_F32, stayed), e.v};
}

typedef struct element_run {
  const char *line;
  const update *by;
  ng_dtype type;
  int place;
  double size;
  element before[RANKS], after[RANKS][ALL];
  ng_status status[RANKS], next[RANKS];
  int64_t overflowed[RANKS];
  char message[RANKS][200];
} element_run;

static ng_status run_element(int32_t rank, ng_transport *t, void *arg) {
  element_run *x = arg;
  model m;
  ng_status st = model_open(&m, x->line, x->by, NG_F32, x->type, t);
  for (int i = 0; i < BEFORE && st == NG_OK; i++)
    st = fill_and_step(&m, x->by, NOWHERE, 0);
  if (st == NG_OK) {
    ng_report r = {.struct_size = sizeof r};
    x->before[rank] = element_of(&m, x->place);
    x->status[rank] = fill_and_step(&m, x->by, x->place, x->size);
    (void)snprintf(x->message[rank], sizeof x->message[rank], "%s", ng_last_error(m.f.ctx));
    for (int i = 0; i < ALL; i++)
      x->after[rank][i] = element_of(&m, i);
    st = ng_report_read(m.f.p, &r);
    x->overflowed[rank] = r.overflowed;
    x->next[rank] = fill_and_step(&m,
                                  &(update){.lr = 1e-300,
                                            .momentum = x->by->momentum,
                                            .beta1 = x->by->beta1,
                                            .beta2 = x->by->beta2,
                                            .eps = x->by->eps},
                                  NOWHERE, 0);
  }
  fixture_close(&m.f);
  return st;
}

/* An element of the tensor: rank 1 owns its update, and other elements do not depend on it. */
static void compare_one_element(const update *by, ng_dtype type, double size, int32_t ranks,
                                bool owned) {
  static element_run x, y;
  int stayed;
  x = (element_run){.line =
                        owned ? "method=eva clip=none update_ranks=owner" : "method=eva clip=none",
                    .by = by,
                    .type = type,
                    .place = ALL - 2,
                    .size = size};
  y = x;
  y.size = 0;
  if (ranks_run(ranks, run_element, &x, NULL) < NG_OK ||
      ranks_run(ranks, run_element, &y, NULL) < NG_OK)
    fail_msg("%s: a run failed", by->name);
  for (int r = 0; r < ranks; r++) {
    const bool writes = !owned || r == 1 % ranks;
    const element e =
        expected_update(by, x.before[owned ? 1 % ranks : r], (float)size, type, &stayed);
    const element *is = &x.after[r][x.place];
    bool same = is->w == e.w && (!writes || (is->m == e.m && is->v == e.v));
    for (int i = 0; i < ALL; i++)
      same = same && (i == x.place || memcmp(&x.after[r][i], &y.after[r][i], sizeof *is) == 0);
    same = same && x.overflowed[r] == (stayed && writes) && y.status[r] == NG_OK &&
           x.status[r] == (stayed && writes ? NG_RESCUED : NG_OK) &&
           /* AdamW: a momentum of 3e38 over a small second moment overflows again */
           (by->beta2 > 0 || x.next[r] == (stayed && owned && ranks > 1 ? NG_RESCUED : NG_OK));
    if (same && (!stayed || !writes || strstr(x.message[r], "'t': elements whose") != NULL))
      continue;
    fail_msg("%s, %s weights, %g, rank %d of %d: %s, then %s (%s), %d elements; %g %g %g, "
             "expected %g %g %g",
             by->name, ng_dtype_name(type), size, r, ranks, ng_status_name(x.status[r]),
             ng_status_name(x.next[r]), x.message[r], (int)x.overflowed[r], (double)is->w,
             (double)is->m, (double)is->v, (double)e.w, (double)e.m, (double)e.v);
  }
}

static void a_huge_element_keeps_its_value(void **state) {
  for (int i = 0; i < UPDATES * 3 * SIZES; i++) {
    const update *by = &updates[i / (3 * SIZES)];
    if (by->lr > 1e5) continue; /* with a larger lr every element would overflow */
    compare_one_element(by, types[i / SIZES % 3], sizes[i % SIZES], 1, false);
    if (i % 2 == 0)
      compare_one_element(by, types[i / SIZES % 3], sizes[i % SIZES], RANKS, i % 4 == 0);
  }
}

/* ---- gradients in place ----------------------------------------------------------------------*/

/* The gradient is the step in f32, rounded; an element out of range stays. */
static ng_status write_gradient(int32_t rank, ng_transport *t, void *arg) {
  const char *line = arg;
  bool fine = true;
  for (int k = 0; k < 2; k++) {
    const ng_dtype type = k == 0 ? NG_F16 : NG_BF16;
    const double size = k == 0 ? 60000 : 0x1.8p127;
    model m, wide;
    uint32_t raw[ALL];
    ng_report r = {.struct_size = sizeof r}, of_wide = {.struct_size = sizeof r};
    ng_status st = model_open(&m, line, &in_place, type, NG_F32, t);
    if (st == NG_OK) st = model_open(&wide, line, &in_place, NG_F32, NG_F32, t);
    if (st == NG_OK) {
      fill_model(&m, 3, size);
      fill_model(&wide, 3, size);
      memcpy(raw, wide.grad, sizeof raw);
      const ng_status is = observe_and_step(&m, &in_place);
      st = observe_and_step(&wide, &in_place);
      fine = fine && (is != NG_RESCUED || strstr(ng_last_error(m.f.ctx), "'fc.weight'") != NULL);
      if (st >= NG_OK) st = ng_report_read(m.f.p, &r);
      if (st == NG_OK) st = ng_report_read(wide.f.p, &of_wide);
      int64_t stayed = of_wide.overflowed;
      for (int i = 0; i < FC; i++) {
        int mine = 0;
        const float old = get(raw, NG_F32, i);
        fine = fine &&
               get(m.grad, type, i) == round_or_keep(get(wide.grad, NG_F32, i), old, type, &mine);
        stayed += mine;
      }
      /* intermediate arrays of K-FAC overflow */
      const bool refused = is == NG_SKIPPED && type == NG_BF16 && strstr(line, "eva") == NULL;
      fine = fine && (is == NG_RESCUED || refused) && r.overflowed == stayed;
      fine = fine && refused == (stayed == 0);
      if (!fine && rank == 0)
        (void)fprintf(stderr, "%s, %s: %s, %d elements, expected %d\n", line, ng_dtype_name(type),
                      ng_status_name(is), (int)r.overflowed, (int)stayed);
    }
    fixture_close(&m.f);
    fixture_close(&wide.f);
    if (st != NG_OK) return st;
  }
  return fine ? NG_OK : NG_ERR_STATE;
}

static void gradients_out_of_range_keep_their_value(void **state) {
  static char line[][80] = {"method=eva clip=none damping=0.5",
                            "method=natgrad clip=none damping=0.5"};
  for (size_t i = 0; i < sizeof line / sizeof *line; i++)
    for (int32_t ranks = 1; ranks <= RANKS; ranks += RANKS - 1)
      assert_int_equal(ranks_run(ranks, write_gradient, line[i], NULL), NG_OK);
}

/* ---- a non-finite weight ---------------------------------------------------------------------*/

/* A NaN or Inf that the caller wrote stays, and the other elements change; after a correction all change. */
static void a_non_finite_weight_stays(void **state) {
  for (int i = 0; i < 3 * 3; i++) {
    const float strange[] = {NAN, INFINITY, -INFINITY}, one = 1;
    const ng_dtype type = types[i / 3];
    model m;
    fixture_ok(&m.f, model_open(&m, "method=eva", &updates[2], NG_F32, type, NULL));
    assert_int_equal(fill_and_step(&m, &updates[2], NOWHERE, 0), NG_OK);
    for (int k = 0; k < 3; k++) {
      uint32_t was[ALL];
      ng_from_f32(address_of(m.weight, type, 7), type, k < 2 ? &strange[i % 3] : &one, 1);
      memcpy(was, m.weight, sizeof was);
      assert_int_equal(fill_and_step(&m, &(update){.lr = 1, .momentum = 0.9}, NOWHERE, 0),
                       k < 2 ? NG_RESCUED : NG_OK);
      int moved = 0; /* a small gradient may round away */
      for (int j = 0; j < ALL; j++)
        moved += memcmp(address_of(was, type, j), address_of(m.weight, type, j),
                        (size_t)ng_dtype_size(type)) != 0;
      assert_int_equal(memcmp(address_of(was, type, 7), address_of(m.weight, type, 7), 2) == 0,
                       k < 2);
      assert_in_range(moved, ALL / 2, ALL);
      assert_true(k == 2 || strstr(ng_last_error(m.f.ctx), "'fc.weight': elements") != NULL);
    }
    fixture_close(&m.f);
  }
}

/* ---- one huge step between ordinary steps ----------------------------------------------------*/

typedef struct huge_run {
  const char *line;
  update by, huge; /* updates of ordinary steps; update of the huge step */
  ng_dtype type;
  /* place of the huge number; number of ordinary steps before and after the huge step */
  int place, before, after;
  double size;
  bool state;               /* also check every array of the state */
  ng_status status[RANKS];  /* status of the huge step on each rank */
  int skipped[RANKS];       /* number of ordinary steps that were skipped */
  char message[RANKS][200]; /* message of the huge step */
} huge_run;

/* Return the name of a non-finite array of the state, or NULL. */
static const char *first_nonfinite_array(const model *m) {
  static _Thread_local ng_field_info info;
  unsigned char bytes[8192];
  for (int32_t i = 0; i < ng_state_count(m->f.p); i++) {
    info = (ng_field_info){.struct_size = sizeof info};
    if (ng_state_at(m->f.p, i, &info) != NG_OK) return "ng_state_at";
    if (info.dtype == NG_U8 || info.dtype == NG_I32) continue;
    const ng_status st = ng_state_read(m->f.p, i, bytes, info.bytes);
    if (st == NG_ERR_STATE) continue; /* another rank stores this array */
    if (st != NG_OK) return "ng_state_read";
    if (!ng_are_finite(bytes, info.dtype, info.bytes / ng_dtype_size(info.dtype))) return info.name;
  }
  return NULL;
}

static ng_status try_huge_number(int32_t rank, ng_transport *t, void *arg) {
  huge_run *x = arg;
  model m;
  ng_status st = model_open(&m, x->line, &x->by, NG_F32, x->type, t);
  x->skipped[rank] = 0;
  for (int i = 0; i <= x->before + x->after && st >= NG_OK; i++) {
    const bool huge = i == x->before;
    st = fill_and_step(&m, huge ? &x->huge : &x->by, huge ? x->place : NOWHERE, x->size);
    if (huge) {
      x->status[rank] = st;
      (void)snprintf(x->message[rank], sizeof x->message[rank], "%s", ng_last_error(m.f.ctx));
    }
    const char *bad = !ng_are_finite(m.weight, x->type, ALL) ? "a weight"
                      : x->state && i >= x->before           ? first_nonfinite_array(&m)
                                                             : NULL;
    if (bad != NULL && st >= NG_OK) {
      (void)fprintf(stderr, "%s, %s, %g: '%s' is not finite after step %d\n", x->line, x->by.name,
                    x->size, bad, i);
      st = NG_ERR_STATE;
    }
    x->skipped[rank] += !huge && st == NG_SKIPPED;
  }
  if (st < NG_OK) {
    (void)fprintf(stderr, "%s, %s, %g: %s (%s)\n", x->line, x->by.name, x->size, ng_status_name(st),
                  m.f.ctx == NULL ? m.f.message : ng_last_error(m.f.ctx));
    if (t != NULL) t->abort(t->user); /* abort, so that no rank waits for this rank */
  }
  fixture_close(&m.f);
  return st < NG_OK ? st : NG_OK;
}

/* Run; return the number of ordinary steps that were skipped, which is the same on all ranks. */
static int count_skipped(huge_run *x, int32_t ranks) {
  assert_int_equal(
      ranks > 1 ? ranks_run(ranks, try_huge_number, x, NULL) : try_huge_number(0, NULL, x), NG_OK);
  for (int32_t r = 1; r < ranks; r++) {
    assert_int_equal(x->skipped[r], x->skipped[0]);
    assert_int_equal(x->status[r], x->status[0]);
  }
  return x->skipped[0];
}

static void must_skip_no_later_step(huge_run *x, int32_t ranks) {
  const int n = count_skipped(x, ranks);
  if (n > 0)
    fail_msg("%s, %g, %d ranks: %d ordinary steps were skipped", x->line, x->size, ranks, n);
}

/* Train with a huge gradient on one rank and, in 1 of 241 runs, on four ranks: threads that wait for each other are slow on
 * a busy machine. */
static void try_huge_gradients(const char *line) {
  for (int k = 0; k < UPDATES * 3; k++) {
    const update *by = &updates[k / 3];
    const bool window = strstr(line, "window") != NULL;
    huge_run x = {.line = line,
                  .by = *by,
                  .huge = *by,
                  .type = types[k % 3],
                  .place = NOWHERE,
                  .before = BEFORE,
                  .after = AFTER};
    const int calm = count_skipped(&x, 1);
    for (int i = 0; i < 2 * SIZES; i++) {
      x.place = i % 2 ? 3 : ALL - 2;
      x.size = sizes[i / 2];
      const int32_t ranks = (16 * k + i) % 241 == 0 ? RANKS : 1;
      x.after = ranks == 1 ? AFTER : AFTER / 5;
      const int n = count_skipped(&x, ranks);
      if (n > calm + (window ? REFUSED + ROWS : 0))
        fail_msg("%s, %s, %s weights: after a gradient of %g %d of %d steps were skipped (%d "
                 "without it)",
                 line, by->name, ng_dtype_name(x.type), x.size, n, x.after, calm);
    }
  }
}

/* Train with a huge number in a gradient or an observation. */
static void try_huge_numbers(const char *line) {
  static const int place[] = {3, IN * OUT + 1, ALL - 2, ALL + 1, ALL + IN + 1};
  static const double huge[] = {1e10, 1e20, 1e25, 1e37, 3e38};
  for (int i = 0; i < 5 * 5; i++) {
    huge_run x = {.line = line,
                  .by = in_place,
                  .huge = in_place,
                  .type = NG_F32,
                  .place = place[i % 5],
                  .size = huge[i / 5],
                  .before = 2,
                  .after = 8,
                  .state = true};
    must_skip_no_later_step(&x, 1);
    if (i == 12) must_skip_no_later_step(&x, RANKS);
  }
}

static void all_methods_stay_finite(void **state) {
  for (int32_t i = 0; i < ng_method_count(); i++) {
    ng_method_info info = {.struct_size = sizeof info};
    char line[128];
    assert_int_equal(ng_method_at(i, &info), NG_OK);
    const bool rows = strcmp(info.family, "window") == 0 && strncmp(info.name, "topk", 4) != 0;
    (void)snprintf(line, sizeof line, "method=%s%s", info.name, rows ? " window=4" : "");
    try_huge_gradients(line);
    try_huge_numbers(line);
  }
}

/* Stores, momenta and dtypes that are no method's default. */
static void combined_options_stay_finite(void **state) {
  static const char *const keeps[] = {
      "method=topk-sgd window_momentum=0.9",
      "method=topk-sgd window_momentum=0.9 window_feedback_lr=0",
      "method=topk-sgd window_momentum=0.9 window_feedback_lr=0 clip=kl",
      "method=topk-sgd window_momentum=0.9 window_momentum_form=average",
      "method=topk-sgd window_store=dense window_momentum=0.9",
      "method=mfac window=4 window_momentum=0.9",
      "method=mfac window=4 window_momentum=0.9 window_momentum_form=heavy-ball",
      "method=mfac window=4 window_momentum=0.9 window_momentum_form=gradient",
      "method=ggt window=4 window_momentum=0.9",
      "method=ggt window=4 window_momentum=0.9 damping=1e-10",
      "method=efcp window=4 window_density=0.3 window_fill=added",
      "method=efcp window=4 window_density=0.1 window_fill=added window_dtype=bf16",
      "method=efcp window=4 window_density=0.3 window_fill=error",
      "method=efcp window=4 window_density=0.3 clip=kl",
      "method=lowrank-mfac window=4 window_fill=added",
      "method=natgrad clip=none",
  };
  static const char *const line[] = {
      "method=topk-adam window_density=1",
      "method=topk-adagrad window_density=1",
      "method=topk-adagrad window_density=0.3 window_dtype=bf16",
      "method=natgrad factor_dtype=f16 inverse_dtype=f16",
      "method=natgrad factor_dtype=bf16 damping_leak=owner damping_split=full",
      "method=mfac window=3 window_dtype=bf16",
      "method=mfac window=3 window_momentum=0.9 window_momentum_form=heavy-ball",
      "method=efcp window=3 window_density=0.2 window_dtype=bf16 window_momentum=0.5",
      "method=lowrank-mfac window=3 window_rank=2",
      "method=ggt window=3 window_forget=0",
      "method=ggt window=3 window_forget=0.5 window_momentum=0.9",
      "method=topk-adam window_density=0.3 window_feedback_lr=1",
  };
  for (size_t i = 0; i < sizeof keeps / sizeof *keeps; i++)
    try_huge_gradients(keeps[i]);
  for (size_t i = 0; i < sizeof line / sizeof *line; i++)
    try_huge_numbers(line[i]);
}

/* Take one step with a huge learning rate; rows of the window are lr x. */
static void a_huge_rate_leaves_weights_finite(void **state) {
  static const char *const line[] = {
      "method=topk-adam window_density=0.3 window_feedback_lr=1",
      "method=topk-adam window_density=0.01 window_feedback_lr=1 window_dtype=bf16",
      "method=topk-adagrad window_function=step window_density=0.1 window_feedback_lr=1"};
  static const double lr[] = {1e10, 1e20, 1e27, 1e29, 1e37, 1e38, 1e300};
  for (int i = 0; i < 3 * 7; i++) {
    huge_run x = {.line = line[i / 7],
                  .by = {.name = "ng_step", .lr = i % 2 ? 1e-10 : 0.01, .in_place = true},
                  .huge = {.lr = lr[i % 7], .in_place = true},
                  .type = NG_F32,
                  .place = NOWHERE,
                  .before = 1,
                  .after = 8,
                  .state = true};
    must_skip_no_later_step(&x, i % 2 ? 1 : RANKS);
    assert_int_equal(x.status[0], lr[i % 7] < 1e28 ? NG_OK : NG_RESCUED);
    if (x.status[0] == NG_RESCUED) assert_non_null(strstr(x.message[0], "kept their old value"));
  }
}

/* Error feedback and momentum of x are in every later direction, and AdamW squares the direction.  Windows of M-FAC
 * and GGT, in steps with and without a new row. */
static void stored_overflow_is_reset_under_adamw(void **state) {
  static const char *const line[] = {
      "damping=1e-5 method=ggt window=8 window_store=lowrank",
      "damping=1e-5 method=ggt window=8 window_store=topk window_density=0.3",
      "damping=1e-5 method=sparse-ggt window=8 window_feedback_lr=1 window_density=0.3",
      "damping=1e-5 method=efcp window=8 window_density=0.3 window_fill=rest",
      "damping=1e-5 method=lowrank-mfac window=8 window_fill=added",
      "damping=1e-5 method=mfac window=8 window_momentum=0.9 window_momentum_form=gradient",
      "damping=1e-5 method=mfac window=8 window_momentum=0.9 window_momentum_form=gradient "
      "stat_period=2"};
  static const double size[] = {1e11, 1e13, 1e16, 1e20, 1e25, 1e30, 1e37, 3e38};
  for (int i = 0; i < 2 * 7 * 8; i++) {
    const int before = 2 + i / 8 % 2;
    huge_run x = {.line = line[i / 16],
                  .by = updates[7],
                  .huge = updates[7],
                  .type = NG_F32,
                  .place = 3,
                  .size = size[i % 8],
                  .before = before,
                  .after = 19 - before,
                  .state = true};
    must_skip_no_later_step(&x, i % 9 == 1 ? RANKS : 1);
    assert_true(x.status[0] != NG_SKIPPED || x.size > 1e12);
  }
}

/* With lr = 0 rows are 0, and a momentum that would overflow keeps its value. */
static void a_zero_rate_keeps_the_momentum(void **state) {
  const update at_rest = {.in_place = true};
  model m;
  fixture_ok(&m.f, model_open(&m,
                              "method=topk-adagrad window_function=step window_momentum=0.9 "
                              "window_momentum_form=heavy-ball window_feedback_lr=1",
                              &in_place, NG_F32, NG_F32, NULL));
  assert_int_equal(fill_and_step(&m, &at_rest, 3, 3e38), NG_OK);
  assert_int_equal(fill_and_step(&m, &at_rest, 3, 3e38), NG_RESCUED);
  assert_null(first_nonfinite_array(&m));
  fixture_close(&m.f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_huge_element_keeps_its_value),
      cmocka_unit_test(gradients_out_of_range_keep_their_value),
      cmocka_unit_test(a_non_finite_weight_stays),
      cmocka_unit_test(all_methods_stay_finite),
      cmocka_unit_test(combined_options_stay_finite),
      cmocka_unit_test(a_huge_rate_leaves_weights_finite),
      cmocka_unit_test(a_zero_rate_keeps_the_momentum),
      cmocka_unit_test(stored_overflow_is_reset_under_adamw),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
