/* t_huge.c: numbers of any size in gradients, observations, weights and learning rates.
 *
 * An element whose update is not finite in its dtype keeps its old value; everything else moves as without it.
 * Oracles: the formulas of SGD and AdamW for the huge element; for all other elements the same run with an ordinary
 * number in its place; for gradients of 16 bits the same step in f32, rounded.  On 1 and 4 ranks.
 *
 * Every method: weights and all arrays of the state stay finite after one huge number, and later steps are taken.
 * A state that is not finite is rejected by name. */
#include <float.h>
#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "draw.h"
#include "family/window.h"
#include "fixture.h"
#include "ranks.h"
#include "step/step.h"

enum { IN = 5, OUT = 3, COUNT = 7, FC = IN * OUT + OUT, ALL = FC + COUNT };
enum { BEFORE = 3, AFTER = 40, REFUSED = 3, ROWS = 4, NOWHERE = -1, RANKS = 4 };

/* The numbers of an update: of SGD, of AdamW if beta2 > 0, or of ng_step. */
typedef struct how {
  const char *name;
  double lr, momentum, dampening, decay, beta1, beta2;
  int32_t nesterov, decoupled;
  bool in_place; /* ng_step */
} how;
static const how hows[] = {
    {"plain", .lr = 0.1},
    {"decoupled", .lr = 0.1, .decay = 1e-3, .decoupled = 1},
    {"momentum", .lr = 1e-3, .momentum = 0.9, .decay = 1e-4},
    {"long momentum", .lr = 1e-3, .momentum = 0.99},
    {"damped", .lr = 0.1, .momentum = 0.9, .dampening = 0.9},
    {"nesterov", .lr = 0.1, .momentum = 0.9, .nesterov = 1},
    {"large rate", .lr = 1e10, .momentum = 0.9},
    {"adamw", .lr = 1e-3, .decay = 0.01, .beta1 = 0.9, .beta2 = 0.999},
    {"short adamw", .lr = 0.1, .beta1 = 0.9, .beta2 = 0.5},
    {"adamw, large rate", .lr = 1e38, .beta1 = 0.9, .beta2 = 0.999},
};
enum { HOWS = sizeof hows / sizeof *hows };
static const double sizes[] = {1e5, 1e7, 1e10, 1e15, 1e19, 1e25, 1e38, 3e38};
enum { SIZES = sizeof sizes / sizeof *sizes };
static const ng_dtype types[] = {NG_F32, NG_BF16, NG_F16};
static const how in_place = {.name = "ng_step", .lr = 0.1, .in_place = true};

/* A linear layer with a bias, and a tensor.  Gradients are `grads`, weights `type`; the other is f32. */
typedef struct model {
  fixture f;
  rng r;
  char line[200];
  ng_dtype grads, type;
  uint32_t grad[ALL], weight[ALL];
  float a[IN], g[OUT];
} model;

static void *at(uint32_t *of, ng_dtype t, int64_t i) { return (char *)of + i * ng_dtype_size(t); }

static float get(const uint32_t *of, ng_dtype t, int64_t i) {
  float x;
  ng_to_f32(&x, (const char *)of + i * ng_dtype_size(t), t, 1);
  return x;
}

static ng_status begin(model *m, const char *line, const how *by, ng_dtype grads, ng_dtype type,
                       const ng_transport *transport) {
  static const int64_t rows[] = {OUT, 1, 1}, cols[] = {IN, OUT, COUNT}, from[] = {0, IN * OUT, FC};
  plane grad[3], weight[3];
  memset(m, 0, sizeof *m);
  m->r.state = test_seed();
  m->grads = grads;
  m->type = type;
  (void)snprintf(m->line, sizeof m->line, "%s update=%s", line,
                 by->beta2 > 0  ? "adamw"
                 : by->in_place ? "gradient"
                                : "sgd");
  ng_status st = fixture_open(&m->f, m->line, &(fixture_how){.threads = 1, .transport = transport});
  for (int i = 0; i < ALL; i++) {
    const float x = (float)rng_value(&m->r);
    ng_from_f32(at(m->weight, type, i), type, &x, 1);
  }
  for (int k = 0; k < 3; k++) {
    grad[k] = plane_of(at(m->grad, grads, from[k]), rows[k], cols[k], grads);
    weight[k] = plane_of(at(m->weight, type, from[k]), rows[k], cols[k], type);
  }
  if (st == NG_OK) st = fixture_linear(&m->f, "fc", grad, weight);
  if (st == NG_OK) st = fixture_tensor(&m->f, "t", &grad[2], &weight[2]);
  return st == NG_OK ? ng_ready(m->f.p) : st;
}

/* Ordinary numbers, exact in all dtypes, and at `place` one of that size: in a gradient, or in an observation. */
static void fill(model *m, int place, double size) {
  for (int i = 0; i < ALL; i++) {
    float x = (float)rng_value(&m->r) / 16;
    if (i == place && size > 0) x = (float)size;
    ng_from_f32(at(m->grad, m->grads, i), m->grads, &x, 1);
  }
  for (int i = 0; i < IN; i++)
    m->a[i] = (float)rng_value(&m->r);
  for (int i = 0; i < OUT; i++)
    m->g[i] = (float)rng_value(&m->r);
  if (place >= ALL && place < ALL + IN) m->a[place - ALL] = (float)size;
  if (place >= ALL + IN) m->g[place - ALL - IN] = (float)size;
}

static ng_status step(model *m, const how *by) {
  const plane a = plane_of(m->a, 1, IN, NG_F32), g = plane_of(m->g, 1, OUT, NG_F32);
  const ng_status st = fixture_show(&m->f, 1, 0, &a, &g);
  if (st < NG_OK) return st;
  if (by->in_place) return ng_step(m->f.p, by->lr);
  if (by->beta2 > 0) {
    ng_adamw h;
    ng_adamw_init(&h, sizeof h);
    h.lr = by->lr;
    h.beta1 = by->beta1;
    h.beta2 = by->beta2;
    h.weight_decay = by->decay;
    return ng_step_adamw(m->f.p, &h, 1);
  }
  ng_sgd h = fixture_sgd(by->lr, by->momentum);
  h.dampening = by->dampening;
  h.weight_decay = by->decay;
  h.nesterov = by->nesterov;
  h.decoupled = by->decoupled;
  return ng_step_sgd(m->f.p, &h, 1);
}

static ng_status play(model *m, const how *by, int place, double size) {
  fill(m, place, size);
  return step(m, by);
}

/* ---- one element -----------------------------------------------------------------------------*/

/* Weight, momentum and second moment of an element, as they are stored. */
typedef struct element {
  float w, m, v;
} element;

static element element_of(const model *m, int i) {
  const ng_slot *s = &m->f.p->entry[i < FC ? 0 : 1]->slot[i >= IN * OUT && i < FC];
  const int k = i < IN * OUT ? i : i < FC ? i - IN * OUT : i - FC;
  return (element){get(m->weight, m->type, i), s->m == NULL ? 0 : s->m[k],
                   s->v == NULL ? 0 : s->v[k]};
}

/* x if it is finite in dtype t, else `old`: the rule.  Counts an old value that stays. */
static float keep(float x, float old, ng_dtype t, int *stayed) {
  uint32_t room;
  ng_from_f32(&room, t, &x, 1);
  if (!ng_all_finite(&room, t, 1)) {
    *stayed = 1;
    return old;
  }
  ng_to_f32(&x, &room, t, 1);
  return x;
}

/* The update with number BEFORE, counted from 0, of an element with gradient d. */
static element oracle(const how *by, element e, float d, ng_dtype t, int *stayed) {
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
    return (element){keep(w, e.w, t, stayed), keep(first, e.m, NG_F32, stayed),
                     keep(second, e.v, NG_F32, stayed)};
  }
  const float g = d + (by->decoupled ? 0.0f : (float)by->decay) * e.w;
  const float m = by->momentum == 0 ? g : mu * e.m + (float)(1.0 - by->dampening) * g;
  const float step = by->nesterov ? g + mu * m : m;
  const float w = (by->decoupled ? (float)(1.0 - by->lr * by->decay) : 1.0f) * e.w - lr * step;
  return (element){keep(w, e.w, t, stayed), keep(m, e.m, NG_F32, stayed), e.v};
}

typedef struct trial {
  const char *line;
  const how *by;
  ng_dtype type;
  int place;
  double size;
  element before[RANKS], after[RANKS][ALL];
  ng_status status[RANKS], next[RANKS];
  int64_t overflowed[RANKS];
  char said[RANKS][200];
} trial;

static ng_status run(int32_t rank, ng_transport *t, void *arg) {
  trial *x = arg;
  model m;
  ng_status st = begin(&m, x->line, x->by, NG_F32, x->type, t);
  for (int i = 0; i < BEFORE && st == NG_OK; i++)
    st = play(&m, x->by, NOWHERE, 0);
  if (st == NG_OK) {
    ng_report r = {.struct_size = sizeof r};
    x->before[rank] = element_of(&m, x->place);
    x->status[rank] = play(&m, x->by, x->place, x->size);
    (void)snprintf(x->said[rank], sizeof x->said[rank], "%s", ng_last_error(m.f.ctx));
    for (int i = 0; i < ALL; i++)
      x->after[rank][i] = element_of(&m, i);
    st = ng_report_read(m.f.p, &r);
    x->overflowed[rank] = r.overflowed;
    x->next[rank] = play(&m,
                         &(how){.lr = 1e-300,
                                .momentum = x->by->momentum,
                                .beta1 = x->by->beta1,
                                .beta2 = x->by->beta2},
                         NOWHERE, 0);
  }
  fixture_close(&m.f);
  return st;
}

/* The tensor is entry 1, so rank 1 owns its update; its gradient needs no curvature, so other elements do not depend
 * on it. */
static void one_element(const how *by, ng_dtype type, double size, int32_t ranks, bool owned) {
  static trial x, y;
  int stayed;
  x = (trial){.line = owned ? "method=eva clip=none update_ranks=owner" : "method=eva clip=none",
              .by = by,
              .type = type,
              .place = ALL - 2,
              .size = size};
  y = x;
  y.size = 0;
  if (ranks_run(ranks, run, &x, NULL) < NG_OK || ranks_run(ranks, run, &y, NULL) < NG_OK)
    fail_msg("%s: it did not run", by->name);
  for (int r = 0; r < ranks; r++) {
    const bool writes = !owned || r == 1 % ranks;
    const element e = oracle(by, x.before[owned ? 1 % ranks : r], (float)size, type, &stayed);
    const element *is = &x.after[r][x.place];
    bool same = is->w == e.w && (!writes || (is->m == e.m && is->v == e.v));
    for (int i = 0; i < ALL; i++)
      same = same && (i == x.place || memcmp(&x.after[r][i], &y.after[r][i], sizeof *is) == 0);
    same = same && x.overflowed[r] == (stayed && writes) && y.status[r] == NG_OK &&
           x.status[r] == (stayed && writes ? NG_RESCUED : NG_OK) &&
           /* a momentum of 3e38 over a small second moment is Inf once more */
           (by->beta2 > 0 || x.next[r] == (stayed && owned && ranks > 1 ? NG_RESCUED : NG_OK));
    if (same && (!stayed || !writes || strstr(x.said[r], "'t': elements whose") != NULL)) continue;
    fail_msg("%s, %s weights, %g, rank %d of %d: %s, then %s (%s), %d elements; %g %g %g, "
             "expected %g %g %g",
             by->name, ng_dtype_name(type), size, r, ranks, ng_status_name(x.status[r]),
             ng_status_name(x.next[r]), x.said[r], (int)x.overflowed[r], (double)is->w,
             (double)is->m, (double)is->v, (double)e.w, (double)e.m, (double)e.v);
  }
}

static void one_element_keeps_its_value(void **state) {
  (void)state;
  for (int i = 0; i < HOWS * 3 * SIZES; i++) {
    const how *by = &hows[i / (3 * SIZES)];
    if (by->lr > 1e5) continue; /* every element overflows */
    one_element(by, types[i / SIZES % 3], sizes[i % SIZES], 1, false);
    if (i % 2 == 0) one_element(by, types[i / SIZES % 3], sizes[i % SIZES], RANKS, i % 4 == 0);
  }
}

/* ---- gradients in place ----------------------------------------------------------------------*/

/* The step in f32, rounded, or the raw gradient where that does not fit. */
static ng_status write_gradient(int32_t rank, ng_transport *t, void *arg) {
  const char *line = arg;
  bool fine = true;
  for (int k = 0; k < 2; k++) {
    const ng_dtype type = k == 0 ? NG_F16 : NG_BF16;
    const double size = k == 0 ? 60000 : 0x1.8p127;
    model m, wide;
    uint32_t raw[ALL];
    ng_report r = {.struct_size = sizeof r}, of_wide = {.struct_size = sizeof r};
    ng_status st = begin(&m, line, &in_place, type, NG_F32, t);
    if (st == NG_OK) st = begin(&wide, line, &in_place, NG_F32, NG_F32, t);
    if (st == NG_OK) {
      fill(&m, 3, size);
      fill(&wide, 3, size);
      memcpy(raw, wide.grad, sizeof raw);
      const ng_status is = step(&m, &in_place);
      st = step(&wide, &in_place);
      fine = fine && (is != NG_RESCUED || strstr(ng_last_error(m.f.ctx), "'fc.weight'") != NULL);
      if (st >= NG_OK) st = ng_report_read(m.f.p, &r);
      if (st == NG_OK) st = ng_report_read(wide.f.p, &of_wide);
      int64_t stayed = of_wide.overflowed;
      for (int i = 0; i < FC; i++) {
        int mine = 0;
        const float old = get(raw, NG_F32, i);
        fine = fine && get(m.grad, type, i) == keep(get(wide.grad, NG_F32, i), old, type, &mine);
        stayed += mine;
      }
      /* the arrays of K-FAC overflow on the way to PD */
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

static void gradients_that_do_not_fit(void **state) {
  (void)state;
  static char line[][80] = {"method=eva clip=none damping=0.5",
                            "method=natgrad clip=none damping=0.5"};
  for (size_t i = 0; i < sizeof line / sizeof *line; i++)
    for (int32_t ranks = 1; ranks <= RANKS; ranks += RANKS - 1)
      assert_int_equal(ranks_run(ranks, write_gradient, line[i], NULL), NG_OK);
}

/* ---- a weight that is not finite -------------------------------------------------------------*/

/* The caller's NaN or Inf stays, the other elements move, until the caller mends it. */
static void a_weight_that_is_not_finite(void **state) {
  (void)state;
  for (int i = 0; i < 3 * 3; i++) {
    const float strange[] = {NAN, INFINITY, -INFINITY}, one = 1;
    const ng_dtype type = types[i / 3];
    model m;
    fixture_ok(&m.f, begin(&m, "method=eva", &hows[2], NG_F32, type, NULL));
    assert_int_equal(play(&m, &hows[2], NOWHERE, 0), NG_OK);
    for (int k = 0; k < 3; k++) {
      uint32_t was[ALL];
      ng_from_f32(at(m.weight, type, 7), type, k < 2 ? &strange[i % 3] : &one, 1);
      memcpy(was, m.weight, sizeof was);
      assert_int_equal(play(&m, &(how){.lr = 1, .momentum = 0.9}, NOWHERE, 0),
                       k < 2 ? NG_RESCUED : NG_OK);
      int moved = 0; /* a small gradient may round away */
      for (int j = 0; j < ALL; j++)
        moved += memcmp(at(was, type, j), at(m.weight, type, j), (size_t)ng_dtype_size(type)) != 0;
      assert_int_equal(memcmp(at(was, type, 7), at(m.weight, type, 7), 2) == 0, k < 2);
      assert_in_range(moved, ALL / 2, ALL);
      assert_true(k == 2 || strstr(ng_last_error(m.f.ctx), "'fc.weight': elements") != NULL);
    }
    fixture_close(&m.f);
  }
}

/* ---- states ----------------------------------------------------------------------------------*/

enum { ORDINARY = 8, FAULTY = 2 };

/* Every array is finite. */
static void look(model *m, double size, const char *when) {
  for (int32_t i = 0; i < ng_state_count(m->f.p); i++) {
    ng_field_info info = {.struct_size = sizeof info};
    fixture_ok(&m->f, ng_state_at(m->f.p, i, &info));
    if (info.dtype == NG_U8 || info.dtype == NG_I32) continue;
    void *bytes = malloc((size_t)info.bytes + 1);
    fixture_ok(&m->f, ng_state_read(m->f.p, i, bytes, info.bytes));
    const bool fine = ng_all_finite(bytes, info.dtype, info.bytes / ng_dtype_size(info.dtype));
    free(bytes);
    if (!fine) fail_msg("%s, %g, %s: '%s' is not finite", m->line, size, when, info.name);
  }
}

static void taken(const model *m, double size, ng_status st, int step) {
  if (st == NG_OK || st == NG_RESCUED) return;
  fail_msg("%s, %g, ordinary step %d: %s (%s)", m->line, size, step, ng_status_name(st),
           ng_last_error(m->f.ctx));
}

/* One number between ordinary steps of ng_step. */
static void one_wild_number(const char *line) {
  static const int place[] = {3, IN * OUT + 1, ALL - 2, ALL + 1, ALL + IN + 1};
  static const double wild[] = {1e10, 1e20, 1e25, 1e37, 3e38};
  for (int i = 0; i < 5 * 5; i++) {
    const double size = wild[i / 5];
    model m;
    fixture_ok(&m.f, begin(&m, line, &in_place, NG_F32, NG_F32, NULL));
    for (int t = 0; t < 2; t++)
      taken(&m, size, play(&m, &in_place, NOWHERE, 0), t - 2);
    const ng_status st = play(&m, &in_place, place[i % 5], size);
    if (st < NG_OK) fail_msg("%s, %g: %s", line, size, ng_last_error(m.f.ctx));
    look(&m, size, ng_status_name(st));
    for (int t = 0; t < ORDINARY; t++) {
      taken(&m, size, play(&m, &in_place, NOWHERE, 0), t);
      look(&m, size, "later");
    }
    fixture_close(&m.f);
  }
}

/* ---- all methods -----------------------------------------------------------------------------*/

/* How many of AFTER steps behind a huge gradient were skipped; weights are finite after each. */
static int skipped(const char *line, const how *by, ng_dtype type, int place, double size) {
  model m;
  int n = 0;
  fixture_ok(&m.f, begin(&m, line, by, NG_F32, type, NULL));
  for (int i = 0; i <= BEFORE + AFTER; i++) {
    const ng_status st = play(&m, by, i == BEFORE ? place : NOWHERE, size);
    if (st < NG_OK || !ng_all_finite(m.weight, type, ALL))
      fail_msg("%s, %s, %g: %s (%s)", m.line, by->name, size, ng_status_name(st),
               ng_last_error(m.f.ctx));
    n += i > BEFORE && st == NG_SKIPPED;
  }
  fixture_close(&m.f);
  return n;
}

static void of_line(const char *line) {
  for (int k = 0; k < HOWS * 3; k++) {
    const how *by = &hows[k / 3];
    const bool window = strstr(line, "window") != NULL;
    const int calm = skipped(line, by, types[k % 3], NOWHERE, 0);
    for (int i = 0; i < 2 * SIZES; i++) {
      const int n = skipped(line, by, types[k % 3], i % 2 ? 3 : ALL - 2, sizes[i / 2]);
      if (n > calm + (window ? REFUSED + ROWS : 0))
        fail_msg(
            "%s, %s, %s weights: after a gradient of %g %d of %d steps were skipped (%d without "
            "it)",
            line, by->name, ng_dtype_name(types[k % 3]), sizes[i / 2], n, AFTER, calm);
    }
  }
}

static void after_all_methods(void **state) {
  (void)state;
  for (int32_t i = 0; i < ng_method_count(); i++) {
    ng_method_info info = {.struct_size = sizeof info};
    char line[128];
    assert_int_equal(ng_method_at(i, &info), NG_OK);
    const bool rows = strcmp(info.family, "window") == 0 && strncmp(info.name, "topk", 4) != 0;
    (void)snprintf(line, sizeof line, "method=%s%s", info.name, rows ? " window=4" : "");
    of_line(line);
    one_wild_number(line);
  }
}

/* Stores, momenta and dtypes that no method has by itself. */
static void after_other_lines(void **state) {
  (void)state;
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
    of_line(keeps[i]);
  for (size_t i = 0; i < sizeof line / sizeof *line; i++)
    one_wild_number(line[i]);
}

/* One step with a wild learning rate where lr x enters: the later ones are taken, and what was left over is sent. */
static void a_wild_rate(void **state) {
  (void)state;
  static const char *const line[] = {
      "method=topk-adam window_density=0.3 window_feedback_lr=1",
      "method=topk-adam window_density=0.01 window_feedback_lr=1 window_dtype=bf16",
      "method=topk-adagrad window_function=step window_density=0.1 window_feedback_lr=1"};
  static const double lr[] = {1e10, 1e20, 1e27, 1e29, 1e37, 1e38, 1e300};
  for (size_t i = 0; i < sizeof line / sizeof *line; i++) {
    for (size_t k = 0; k < sizeof lr / sizeof *lr; k++) {
      model m;
      fixture_ok(&m.f, begin(&m, line[i], &in_place, NG_F32, NG_F32, NULL));
      taken(&m, lr[k], play(&m, &in_place, NOWHERE, 0), -1);
      how by = in_place;
      by.lr = lr[k];
      const ng_status st = play(&m, &by, NOWHERE, 0);
      assert_int_equal(st, lr[k] < 1e28 ? NG_OK : NG_RESCUED);
      if (st == NG_RESCUED && strstr(ng_last_error(m.f.ctx), "kept their old value") == NULL)
        fail_msg("%s", ng_last_error(m.f.ctx));
      for (int t = 0; t < ORDINARY; t++) {
        by.lr = t % 2 ? 1e-10 : 0.01;
        taken(&m, lr[k], play(&m, &by, NOWHERE, 0), t);
        look(&m, lr[k], "later");
      }
      fixture_close(&m.f);
    }
  }
}

/* What error feedback or momentum on x keeps is in every later direction, and AdamW squares it.  M-FAC's and GGT's
 * windows, in steps in which rows enter and in others. */
static void kept_under_adamw(void **state) {
  (void)state;
  static const char *const line[] = {
      "method=ggt window=8 window_store=lowrank",
      "method=ggt window=8 window_store=topk window_density=0.3",
      "method=sparse-ggt window=8 window_feedback_lr=1 window_density=0.3",
      "method=efcp window=8 window_density=0.3 window_fill=rest",
      "method=lowrank-mfac window=8 window_fill=added",
      "method=mfac window=8 window_momentum=0.9 window_momentum_form=gradient",
      "method=mfac window=8 window_momentum=0.9 window_momentum_form=gradient stat_period=2"};
  static const double size[] = {1e11, 1e13, 1e16, 1e20, 1e25, 1e30, 1e37, 3e38};
  for (size_t i = 0; i < 2 * sizeof line / sizeof *line; i++) {
    for (size_t k = 0; k < sizeof size / sizeof *size; k++) {
      const int wild_step = 2 + (int)i % 2;
      char whole[160];
      model m;
      (void)snprintf(whole, sizeof whole, "%s damping=1e-5", line[i / 2]);
      fixture_ok(&m.f, begin(&m, whole, &hows[7], NG_F32, NG_F32, NULL));
      for (int t = 0; t < 20; t++) {
        const ng_status st = play(&m, &hows[7], t == wild_step ? 3 : NOWHERE, size[k]);
        if (t == wild_step && st == NG_SKIPPED && size[k] > 1e12) continue;
        taken(&m, size[k], st, t);
      }
      look(&m, size[k], "later");
      fixture_close(&m.f);
    }
  }
}

/* With lr = 0 nothing is sent, and the momentum that would overflow keeps its value. */
static void where_nothing_is_sent(void **state) {
  (void)state;
  const how at_rest = {.in_place = true};
  model m;
  fixture_ok(&m.f, begin(&m,
                         "method=topk-adagrad window_function=step window_momentum=0.9 "
                         "window_momentum_form=heavy-ball window_feedback_lr=1",
                         &in_place, NG_F32, NG_F32, NULL));
  assert_int_equal(play(&m, &at_rest, 3, 3e38), NG_OK);
  assert_int_equal(play(&m, &at_rest, 3, 3e38), NG_RESCUED);
  look(&m, 3e38, "later");
  fixture_close(&m.f);
}

typedef struct fault {
  const char *line, *says;
  const how *by;
  void (*make)(ng_precond *p);
} fault;

typedef struct faulty {
  const fault *is;
  bool parts;
  char path[FIXTURE_FILE], why[FAULTY][200];
} faulty;

static void average(ng_precond *p) {
  ((float *)p->block[0]->stat[0].part[0].average)[2] = INFINITY;
}
static void second(ng_precond *p) { p->entry[0]->slot[0].v[2] = -FLT_TRUE_MIN; }
static void squares(ng_precond *p) { ng_window_of(p->block[0])->s[ALL - 1] = -1.0F; }

/* Of means of squares none is below 0: a root of it would stop every step after it. */
#define FIRST "method=mfac window=1 window_store=topk window_density=0.5 window_function="
static const fault faults[] = {
    {"method=natgrad", "'fc/A' holds a number that is not finite", &in_place, average},
    {"method=eva", "'fc/second.weight' holds a number below 0", &hows[7], second},
    {FIRST "adam", "'window/second' holds a number below 0", &in_place, squares},
    {FIRST "adagrad", "'window/second' holds a number below 0", &in_place, squares},
};
#undef FIRST

/* What a fault put there, saved as it is, and loaded by another model. */
static ng_status save_and_load(int32_t rank, ng_transport *t, void *arg) {
  faulty *x = arg;
  model m;
  ng_status st = begin(&m, x->is->line, x->is->by, NG_F32, NG_F32, t);
  if (st == NG_OK) x->is->make(m.f.p);
  if (st == NG_OK) st = x->parts ? ng_save_parts(m.f.p, x->path) : ng_save(m.f.p, x->path);
  fixture_close(&m.f);
  if (st == NG_OK) st = begin(&m, x->is->line, x->is->by, NG_F32, NG_F32, t);
  if (st != NG_OK) return st;
  st = ng_load(m.f.p, x->path);
  (void)snprintf(x->why[rank], sizeof x->why[rank], "%s", ng_last_error(m.f.ctx));
  fixture_close(&m.f);
  return st;
}

static void remove_all(const char *path) {
  char pattern[FIXTURE_FILE + 1];
  glob_t found;
  (void)snprintf(pattern, sizeof pattern, "%s*", path);
  assert_int_equal(glob(pattern, 0, NULL, &found), 0);
  for (size_t i = 0; i < found.gl_pathc; i++)
    assert_int_equal(unlink(found.gl_pathv[i]), 0);
  globfree(&found);
}

static void a_state_that_is_not(void **state) {
  (void)state;
  for (int i = 0; i < 2 * (int)(sizeof faults / sizeof faults[0]); i++) {
    static faulty x;
    ng_status st[FAULTY];
    x.is = &faults[i / 2];
    x.parts = i % 2 == 1;
    fixture_file(x.path, "t_huge");
    (void)ranks_run(FAULTY, save_and_load, &x, st);
    for (int r = 0; r < FAULTY; r++) {
      if (st[r] != NG_ERR_FILE || strstr(x.why[r], x.is->says) == NULL)
        fail_msg("%s, parts %d, rank %d: %s, %s", x.is->line, x.parts, r, ng_status_name(st[r]),
                 x.why[r]);
    }
    remove_all(x.path);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_element_keeps_its_value), cmocka_unit_test(gradients_that_do_not_fit),
      cmocka_unit_test(a_weight_that_is_not_finite), cmocka_unit_test(after_all_methods),
      cmocka_unit_test(after_other_lines),           cmocka_unit_test(a_wild_rate),
      cmocka_unit_test(where_nothing_is_sent),       cmocka_unit_test(kept_under_adamw),
      cmocka_unit_test(a_state_that_is_not),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
