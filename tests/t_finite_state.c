/* t_finite_state.c: what a run keeps stays finite.  One number of any size in a gradient or an observation,
 * between ordinary steps, in all methods: no array of the state is ever Inf or NaN, and the ordinary steps after it
 * are taken.
 *
 * The oracle is the promise itself, asked of every array that ng_state_read gives. */
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
#include "fixture.h"
#include "ranks.h"
#include "family/window.h"

enum { IN = 5, OUT = 3, COUNT = 7, WEIGHTS = IN * OUT, ALL = WEIGHTS + OUT + COUNT, AFTER = 8 };
static const double wild[] = {1e10, 1e20, 1e25, 1e37, 3e38};

typedef struct model {
  fixture f;
  const char *line;
  double size; /* of the wild number */
  float grad[ALL], weight[ALL], a[IN], g[OUT];
} model;

/* With its weights bound, if `line` has an update that moves them. */
static void begin(model *m, const char *line, double size) {
  const bool moves = strstr(line, "update=") != NULL;
  memset(m, 0, sizeof *m);
  m->line = line;
  m->size = size;
  fixture_ok(&m->f, fixture_open(&m->f, line, &(fixture_how){.threads = 1}));
  const plane grad[2] = {plane_of(m->grad, OUT, IN, NG_F32),
                         plane_of(m->grad + WEIGHTS, 1, OUT, NG_F32)};
  const plane t = plane_of(m->grad + WEIGHTS + OUT, 1, COUNT, NG_F32);
  const plane weight[2] = {plane_of(m->weight, OUT, IN, NG_F32),
                           plane_of(m->weight + WEIGHTS, 1, OUT, NG_F32)};
  const plane of_t = plane_of(m->weight + WEIGHTS + OUT, 1, COUNT, NG_F32);
  fixture_ok(&m->f, fixture_linear(&m->f, "fc", grad, moves ? weight : NULL));
  fixture_ok(&m->f, fixture_tensor(&m->f, "t", &t, moves ? &of_t : NULL));
  fixture_ok(&m->f, ng_ready(m->f.p));
}

/* Every array finite; where it was, in text. */
static void look(model *m, const char *when) {
  for (int32_t i = 0; i < ng_state_count(m->f.p); i++) {
    ng_field_info info = {.struct_size = sizeof info};
    fixture_ok(&m->f, ng_state_at(m->f.p, i, &info));
    if (info.dtype == NG_U8 || info.dtype == NG_I32) continue;
    void *bytes = malloc((size_t)info.bytes + 1);
    fixture_ok(&m->f, ng_state_read(m->f.p, i, bytes, info.bytes));
    const bool fine = ng_all_finite(bytes, info.dtype, info.bytes / ng_dtype_size(info.dtype));
    free(bytes);
    if (!fine) fail_msg("%s, %g, %s: '%s' is not finite", m->line, m->size, when, info.name);
  }
}

/* Numbers about 1, and among them one of m->size, where `place` says: no gradient, or an observation. */
static ng_status play(model *m, rng *r, int64_t place, double lr) {
  for (int i = 0; i < ALL; i++)
    m->grad[i] = (float)rng_value(r);
  for (int i = 0; i < IN; i++)
    m->a[i] = (float)rng_value(r);
  for (int i = 0; i < OUT; i++)
    m->g[i] = (float)rng_value(r);
  if (place >= 0 && place < ALL) m->grad[place] = (float)m->size;
  if (place >= ALL && place < ALL + IN) m->a[place - ALL] = (float)m->size;
  if (place >= ALL + IN) m->g[place - ALL - IN] = (float)m->size;
  const plane a = plane_of(m->a, 1, IN, NG_F32), g = plane_of(m->g, 1, OUT, NG_F32);
  const ng_status st = fixture_show(&m->f, 1, 0, &a, &g);
  const ng_sgd by = fixture_sgd(lr, 0);
  return st < NG_OK ? st : fixture_step(&m->f, &by);
}

static void taken(const model *m, ng_status st, int step) {
  if (st == NG_OK || st == NG_RESCUED) return;
  fail_msg("%s, %g, ordinary step %d: %s (%s)", m->line, m->size, step, ng_status_name(st),
           ng_last_error(m->f.ctx));
}

static void one_wild_number(const char *line) {
  static const int64_t place[] = {3, WEIGHTS + 1, ALL - 2, ALL + 1, ALL + IN + 1};
  rng r = {test_seed()};
  for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
    for (size_t k = 0; k < sizeof place / sizeof *place; k++) {
      model m;
      begin(&m, line, wild[i]);
      for (int t = 0; t < 2; t++)
        taken(&m, play(&m, &r, -1, 0.1), t - 2);
      const ng_status st = play(&m, &r, place[k], 0.1);
      if (st < NG_OK) fail_msg("%s, %g: %s", line, wild[i], ng_last_error(m.f.ctx));
      look(&m, ng_status_name(st));
      for (int t = 0; t < AFTER; t++) {
        taken(&m, play(&m, &r, -1, 0.1), t);
        look(&m, "later");
      }
      fixture_close(&m.f);
    }
  }
}

static void of_all_methods(void **state) {
  (void)state;
  for (int32_t i = 0; i < ng_method_count(); i++) {
    ng_method_info info = {.struct_size = sizeof info};
    char line[128];
    assert_int_equal(ng_method_at(i, &info), NG_OK);
    (void)snprintf(line, sizeof line, "method=%s", info.name);
    one_wild_number(line);
  }
}

/* Stores, momenta and dtypes that no method has by itself. */
static void of_other_lines(void **state) {
  (void)state;
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
  rng r = {test_seed()};
  for (size_t i = 0; i < sizeof line / sizeof *line; i++) {
    for (size_t k = 0; k < sizeof lr / sizeof *lr; k++) {
      model m;
      begin(&m, line[i], lr[k]);
      taken(&m, play(&m, &r, -1, 0.1), -1);
      const ng_status st = play(&m, &r, -1, lr[k]);
      assert_int_equal(st, lr[k] < 1e28 ? NG_OK : NG_RESCUED);
      if (st == NG_RESCUED && strstr(ng_last_error(m.f.ctx), "kept their old value") == NULL)
        fail_msg("%s", ng_last_error(m.f.ctx));
      for (int t = 0; t < AFTER; t++) {
        taken(&m, play(&m, &r, -1, t % 2 ? 1e-10 : 0.01), t);
        look(&m, "later");
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
  rng r = {test_seed()};
  for (size_t i = 0; i < 2 * sizeof line / sizeof *line; i++) {
    for (size_t k = 0; k < sizeof size / sizeof *size; k++) {
      const int wild_step = 2 + (int)i % 2;
      char whole[160];
      model m;
      (void)snprintf(whole, sizeof whole, "%s damping=1e-5 update=adamw", line[i / 2]);
      begin(&m, whole, size[k]);
      for (int t = 0; t < 20; t++) {
        const ng_status st = play(&m, &r, t == wild_step ? 3 : -1, 1e-3);
        if (t == wild_step && st == NG_SKIPPED && size[k] > 1e12) continue;
        taken(&m, st, t);
      }
      look(&m, "later");
      fixture_close(&m.f);
    }
  }
}

/* With lr = 0 nothing is sent, and the momentum that would overflow keeps its value. */
static void where_nothing_is_sent(void **state) {
  (void)state;
  model m;
  rng r = {test_seed()};
  begin(&m,
        "method=topk-adagrad window_function=step window_momentum=0.9 "
        "window_momentum_form=heavy-ball window_feedback_lr=1",
        3e38);
  assert_int_equal(play(&m, &r, 3, 0), NG_OK);
  assert_int_equal(play(&m, &r, 3, 0), NG_RESCUED);
  look(&m, "later");
  fixture_close(&m.f);
}

/* ---- states ----------------------------------------------------------------------------------*/

enum { RANKS = 2 };
typedef struct fault {
  const char *line, *says;
  void (*make)(ng_precond *p);
} fault;

typedef struct faulty {
  const fault *is;
  bool parts;
  char path[FIXTURE_FILE], why[RANKS][200];
} faulty;

static void average(ng_precond *p) {
  ((float *)p->block[0]->stat[0].part[0].average)[2] = INFINITY;
}
static void second(ng_precond *p) { p->entry[0]->slot[0].v[2] = -FLT_TRUE_MIN; }
static void squares(ng_precond *p) { ng_window_of(p->block[0])->s[ALL - 1] = -1.0F; }

/* Of means of squares none is below 0: a root of it would stop every step after it. */
#define FIRST "method=mfac window=1 window_store=topk window_density=0.5 window_function="
static const fault faults[] = {
    {"method=natgrad", "'fc/A' holds a number that is not finite", average},
    {"method=eva update=adamw", "'fc/second.weight' holds a number below 0", second},
    {FIRST "adam", "'window/second' holds a number below 0", squares},
    {FIRST "adagrad", "'window/second' holds a number below 0", squares},
};
#undef FIRST

static ng_status open_rank(model *m, const char *line, ng_transport *t) {
  memset(m, 0, sizeof *m);
  ng_status st = fixture_open(&m->f, line, &(fixture_how){.threads = 1, .transport = t});
  const plane grad[2] = {plane_of(m->grad, OUT, IN, NG_F32), {0}};
  const plane rest = plane_of(m->grad + WEIGHTS, 1, ALL - WEIGHTS, NG_F32);
  if (st == NG_OK) st = fixture_linear(&m->f, "fc", grad, grad);
  if (st == NG_OK) st = fixture_tensor(&m->f, "t", &rest, &rest);
  return st == NG_OK ? ng_ready(m->f.p) : st;
}

/* What a fault put there, saved as it is, and loaded by another model. */
static ng_status save_and_load(int32_t rank, ng_transport *t, void *arg) {
  faulty *x = arg;
  model m;
  ng_status st = open_rank(&m, x->is->line, t);
  if (st == NG_OK) x->is->make(m.f.p);
  if (st == NG_OK) st = x->parts ? ng_save_parts(m.f.p, x->path) : ng_save(m.f.p, x->path);
  fixture_close(&m.f);
  if (st == NG_OK) st = open_rank(&m, x->is->line, t);
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
    ng_status st[RANKS];
    x.is = &faults[i / 2];
    x.parts = i % 2 == 1;
    fixture_file(x.path, "t_finite_state");
    (void)ranks_run(RANKS, save_and_load, &x, st);
    for (int r = 0; r < RANKS; r++) {
      if (st[r] != NG_ERR_FILE || strstr(x.why[r], x.is->says) == NULL)
        fail_msg("%s, parts %d, rank %d: %s, %s", x.is->line, x.parts, r, ng_status_name(st[r]),
                 x.why[r]);
    }
    remove_all(x.path);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(of_all_methods),   cmocka_unit_test(of_other_lines),
      cmocka_unit_test(a_wild_rate),      cmocka_unit_test(where_nothing_is_sent),
      cmocka_unit_test(kept_under_adamw), cmocka_unit_test(a_state_that_is_not),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
