/* t_family.c: families that a test registers (toys.c), in one model with Kronecker and rank-one layers, on 1 to 4
 * ranks, with every fraction of workers: save, resume, skipped steps, reports, refused families.
 *
 * Tolerance.  Ranks with the same samples have the statistics of one rank up to the rounding of a sum and a division:
 * 1e-5 is about 80 roundings.  All other comparisons are exact. */
#include "draw.h"
#include "fixture.h"
#include "folder.h"
#include "ranks.h"
#include "step/step.h"
#include "late.h"
#include "toys.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- a model of every family -----------------------------------------------------------------*/

enum { FC, CONV, R1, TOY, TOY2, ALL, ALL_FC, PLAIN, ENTRIES, STEPS = 5, MOST_RANKS = 4 };
enum { B = 4, MOST_OBSERVED = 4 * 3 * 5 * 5, BIGGEST = 130, PARAMETERS = 2 * BIGGEST };

typedef struct entry {
  const char *name;
  int64_t in, out, weights, biases; /* out 0: a tensor */
} entry;

static const entry model[ENTRIES] = {
    [FC] = {"fc", 6, 4, 24, 4},         [CONV] = {"conv", 2, 3, 2 * 3 * 9, 0},
    [R1] = {"r1", 5, 3, 15, 3},         [TOY] = {"toy", 0, 0, 130, 0},
    [TOY2] = {"toy2", 0, 0, 7, 0},      [ALL] = {"all", 0, 0, 90, 0},
    [ALL_FC] = {"all.fc", 5, 6, 30, 6}, [PLAIN] = {"plain", 0, 0, 11, 0},
};

typedef struct family_run {
  const char *set; /* options "name=value ..." */
  int32_t ranks;
  const char *save, *load; /* save before step 2; load and begin with step 2 */
  int32_t bad_step,
      bad_entry; /* a NaN in this gradient at this step, which is then repeated; -1: none */
  bool plain;    /* do not register the toys */
  bool late;     /* entries run at the wait (late.h) */
  const ng_family *extra;                                       /* one more family, with priority */
  ng_status (*hook)(int32_t rank, ng_precond *p, int32_t step); /* before each ng_step */
  void (*place)(ng_block *b, ng_stat *s);
  float out[MOST_RANKS][STEPS][ENTRIES][PARAMETERS];
  double clip[MOST_RANKS][STEPS];
  ng_status status[MOST_RANKS][STEPS];
  char message[MOST_RANKS][256];
  toy_commits commits[MOST_RANKS];
  double reported[MOST_RANKS];
  char explained[MOST_RANKS][ENTRIES][32];
  int32_t changed[MOST_RANKS];
} family_run;

static void draw(float *x, int64_t n, int32_t step, int32_t at) {
  rng r = {test_seed() ^ (uint64_t)(step * 100 + at)};
  rng_values(&r, x, n);
}

static ng_status add(ng_precond *p, const entry *e) {
  int32_t index;
  if (e->out == 0) return ng_add_tensor(p, e->name, e->weights, &index);
  if (e == &model[CONV]) return plane_conv2d(p, e->name, e->in, e->out, 3, 1, 1, 5, 5, 0, &index);
  return ng_add_linear(p, e->name, e->in, e->out, 1, &index);
}

static ng_status bind(ng_precond *p, int32_t i, float *grad) {
  const entry *e = &model[i];
  const int64_t rows = e->out == 0 ? 1 : e->out;
  const plane w = plane_of(grad, rows, e->weights / rows, NG_F32);
  const plane b = plane_of(grad + e->weights, 1, e->biases, NG_F32);
  const ng_status st = plane_bind_grad(p, i, NG_WEIGHT, &w);
  return st == NG_OK && e->biases > 0 ? plane_bind_grad(p, i, NG_BIAS, &b) : st;
}

static ng_status observe_entry(ng_precond *p, int32_t i, int32_t step) {
  float a[MOST_OBSERVED], g[MOST_OBSERVED];
  const entry *e = &model[i];
  const int64_t pixels = i == CONV ? 25 : 1;
  if (e->out == 0 || i == ALL_FC) return NG_OK;
  draw(a, B * e->in * pixels, step, 20 + i);
  draw(g, B * e->out * pixels, step, 40 + i);
  plane in = plane_of(a, B, e->in, NG_F32), out = plane_of(g, B, e->out, NG_F32);
  if (i == CONV) {
    in = plane_images(a, PLANE_NCHW, B, e->in, 5, 5, NG_F32);
    out = plane_images(g, PLANE_NCHW, B, e->out, 5, 5, NG_F32);
  }
  const ng_status st = plane_input(p, i, &in, NG_COPY);
  return st == NG_OK ? plane_output_grad(p, i, &out, NG_COPY) : st;
}

/* ---- runs ------------------------------------------------------------------------------------*/

static ng_status one_step(family_run *run, int32_t rank, fixture *f, int32_t step, int32_t bad) {
  ng_status st = fixture_begin(f, B);
  for (int32_t i = 0; i < ENTRIES && st == NG_OK; i++) {
    float *mine = run->out[rank][step][i];
    draw(mine, model[i].weights + model[i].biases, step, i);
    if (step == run->bad_step && i == bad) mine[model[i].weights - 1] = NAN;
    st = bind(f->p, i, mine);
    if (st == NG_OK) st = observe_entry(f->p, i, step);
  }
  if (st == NG_OK && run->hook != NULL) st = run->hook(rank, f->p, step);
  return st == NG_OK ? ng_step(f->p, 0.1) : st;
}

/* Count elements of gradients that differ from the drawn ones. */
static int32_t changed(const family_run *run, int32_t rank, int32_t step) {
  int32_t n = 0;
  for (int32_t i = 0; i < ENTRIES; i++) {
    float d[PARAMETERS];
    draw(d, model[i].weights + model[i].biases, step, i);
    for (int64_t e = 0; e < model[i].weights + model[i].biases; e++) {
      const float x = run->out[rank][step][i][e];
      n += x - x == 0.0f && memcmp(&x, &d[e], sizeof x) != 0;
    }
  }
  return n;
}

static void read_reports(family_run *run, int32_t rank, const ng_precond *p) {
  ng_explain_row row = {.struct_size = sizeof row};
  ng_layer_report report = {.struct_size = sizeof report};
  for (int32_t i = 0; ng_explain(p, i, &row) == NG_OK; i++) {
    (void)snprintf(run->explained[rank][row.index], sizeof run->explained[0][0], "%s", row.family);
    if (i + 1 == ng_explain_count(p)) break;
  }
  if (run->plain) return;
  for (int32_t i = 0; i < p->blocks; i++) {
    if (p->block[i]->family == &toy_total) run->commits[rank] = toy_total_commits(p->block[i]);
  }
  if (ng_report_layer(p, ALL, &report) == NG_OK) run->reported[rank] = report.pi;
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  family_run *run = arg;
  const ng_family beside = toy_beside();
  const ng_family *const toy[] = {&toy_diagonal, &toy_total, &beside};
  char *why = run->message[rank];
  fixture f;
  const fixture_how how = {
      .linalg = "ref", .threads = 1 + rank % 2, .transport = run->ranks > 1 ? t : NULL};
  ng_status st = fixture_open(&f, run->set, &how);
  for (int i = 0; i < 3 && st == NG_OK && !run->plain; i++)
    ng_family_register(f.ctx, toy[i]);
  if (st == NG_OK && run->extra != NULL) ng_family_register(f.ctx, run->extra);
  if (st == NG_OK) f.ctx->place = run->place;
  for (int32_t i = 0; i < ENTRIES && st == NG_OK; i++)
    st = add(f.p, &model[i]);
  if (st == NG_OK) st = ng_ready(f.p);
  if (st == NG_OK && run->late) late_queue(f.ctx->queue, &ng_linalg_ref);
  if (st == NG_OK && run->load != NULL) st = ng_load(f.p, run->load);
  for (int32_t step = run->load != NULL ? 2 : 0; step < STEPS && st == NG_OK; step++) {
    if (step == 2 && run->save != NULL) st = ng_save(f.p, run->save);
    if (st == NG_OK) st = one_step(run, rank, &f, step, run->bad_entry);
    run->status[rank][step] = st;
    if (st == NG_SKIPPED) { /* repeat without the NaN */
      run->changed[rank] += changed(run, rank, step);
      (void)snprintf(why, 256, "%s", ng_last_error(f.ctx));
      st = one_step(run, rank, &f, step, -1);
    }
    ng_report r = {.struct_size = sizeof r};
    if (st == NG_OK) st = ng_report_read(f.p, &r);
    run->clip[rank][step] = r.clip;
  }
  if (st < NG_OK && why[0] == 0)
    (void)snprintf(why, 256, "%.255s", f.ctx != NULL ? ng_last_error(f.ctx) : f.message);
  if (st == NG_OK) read_reports(run, rank, f.p);
  fixture_close(&f);
  return st;
}

static family_run *new_run(const char *set, int32_t ranks) {
  family_run *run = calloc(1, sizeof *run);
  assert_non_null(run);
  run->set = set;
  run->ranks = ranks;
  run->bad_step = run->bad_entry = -1;
  return run;
}

static family_run *new_run_with(const ng_family *extra, const char *set, int32_t ranks) {
  family_run *run = new_run(set, ranks);
  run->extra = extra;
  return run;
}

/* Run; all ranks succeed with the same bits. */
static family_run *completed(family_run *run) {
  if (ranks_run(run->ranks, run_rank, run, NULL) != NG_OK) {
    for (int32_t r = 0; r < run->ranks; r++) {
      print_error("%s, rank %d: %s\n", run->set, r, run->message[r]);
    }
    fail();
  }
  for (int32_t r = 1; r < run->ranks; r++) {
    assert_memory_equal(run->out[0], run->out[r], sizeof run->out[0]);
    assert_memory_equal(run->clip[0], run->clip[r], sizeof run->clip[0]);
  }
  return run;
}

static void same_from(const family_run *x, const family_run *y, int32_t step) {
  assert_memory_equal(x->out[0][step], y->out[0][step],
                      sizeof x->out[0][0] * (size_t)(STEPS - step));
}

/* Two runs have the same bits from this step on. */
static void must_equal(family_run *x, family_run *y, int32_t step) {
  (void)completed(x);
  (void)completed(y);
  same_from(x, y, step);
  free(x);
  free(y);
}

/* ---- expected results of the toys ------------------------------------------------------------*/

static const double LAMBDA = 0.3, RHO = 0.9;

/* PD before the clip, in double; v is the toy's average. */
static void predict(int32_t i, int32_t step, double v[PARAMETERS], double *out) {
  float d[PARAMETERS];
  double all = 0;
  for (int k = 0; k < 2; k++) {
    const int32_t at = k == 0 ? ALL : ALL_FC;
    const int64_t n = model[at].weights + model[at].biases;
    draw(d, n, step, at);
    for (int64_t e = 0; e < n; e++)
      all += (double)d[e] * (double)d[e];
  }
  const int64_t n = model[i].weights + model[i].biases;
  draw(d, n, step, i);
  for (int64_t e = 0; e < n; e++) {
    const double x = (double)d[e];
    v[e] = step == 0 ? x * x : RHO * v[e] + (1 - RHO) * x * x;
    out[e] = i == ALL || i == ALL_FC ? x / (LAMBDA + all) : x / (LAMBDA + sqrt(v[e]));
  }
}

static void as_predicted(const family_run *run) {
  static const int32_t toys[] = {TOY, TOY2, ALL, ALL_FC};
  for (int k = 0; k < 4; k++) {
    double v[PARAMETERS] = {0}, want[PARAMETERS];
    for (int32_t step = 0; step < STEPS; step++) {
      predict(toys[k], step, v, want);
      for (int64_t e = 0; e < model[toys[k]].weights + model[toys[k]].biases; e++) {
        const double got = (double)run->out[0][step][toys[k]][e], w = want[e] * run->clip[0][step];
        if (!(fabs(got - w) <= 1e-5 * fabs(w))) {
          fail_msg("%s, %d ranks, step %d, %s[%d]: %g, expected %g", run->set, run->ranks, step,
                   model[toys[k]].name, (int)e, got, w);
        }
      }
    }
  }
}

static void close_to(const family_run *x, const family_run *y) {
  for (int32_t step = 0; step < STEPS; step++) {
    for (int32_t i = 0; i < ENTRIES; i++) {
      double most = 0, gap = 0;
      for (int64_t e = 0; e < model[i].weights + model[i].biases; e++) {
        most = fmax(most, fabs((double)y->out[0][step][i][e]));
        gap = fmax(gap, fabs((double)x->out[0][step][i][e] - (double)y->out[0][step][i][e]));
      }
      assert_true(gap <= 1e-5 * most);
    }
  }
}

#define UNCLIPPED "damping=0.3 stat_decay=0.9 solve_period=1 clip=none "
#define COMMON "damping=0.3 stat_decay=0.9 kl_clip=0.01 solve_period=1 "

static const char *with(char text[512], const char *set, const char *more) {
  (void)snprintf(text, 512, "%.250s %.250s", set, more);
  return text;
}

/* ---- tests -----------------------------------------------------------------------------------*/

static void test_explained(void **state) {
  static const char *const family[ENTRIES] = {
      [FC] = "kronecker",  [CONV] = "kronecker", [R1] = "beside",    [TOY] = "diagonal",
      [TOY2] = "diagonal", [ALL] = "total",      [ALL_FC] = "total", [PLAIN] = "none"};
  family_run *run = completed(new_run(COMMON, 1));
  for (int32_t i = 0; i < ENTRIES; i++) {
    assert_string_equal(run->explained[0][i], family[i]);
  }
  assert_true(run->reported[0] > 0);
  assert_int_equal(run->commits[0].taken, STEPS);
  assert_int_equal(run->commits[0].skipped, 0);
  /* Without toys, their layers belong to families of the library, and the tensor of a toy is not preconditioned. */
  family_run *plain = new_run(COMMON, 1);
  plain->plain = true;
  (void)ranks_run(1, run_rank, plain, NULL); /* "all.fc" is not observed: an error with its name */
  assert_non_null(strstr(plain->message[0], "'all.fc' was never observed"));
  free(plain);
  free(run);
}

/* 1 to 4 ranks, every fraction: results equal the formulas, and have the same bits with all fractions. */
static void test_ranks_and_fractions(void **state) {
  static const char *const fraction[] = {"grad_worker_fraction=0", "grad_worker_fraction=0.5",
                                         "grad_worker_fraction=1"};
  static const char *const clip[] = {"clip=kl", "clip=rms clip_bound=0.1", "clip=none"};
  char text[512], more[512];
  for (int c = 0; c < 3; c++) {
    family_run *one = completed(new_run(with(more, COMMON, clip[c]), 1));
    if (c != 1) as_predicted(one);
    for (int32_t ranks = 2; ranks <= MOST_RANKS; ranks++) {
      family_run *whole = NULL;
      for (int k = 2; k >= 0; k--) {
        if (k == 1 && ranks % 2 != 0) continue;
        family_run *run = completed(new_run(with(text, more, fraction[k]), ranks));
        close_to(run, one);
        if (whole == NULL) {
          whole = run;
          continue;
        }
        same_from(run, whole, 0);
        free(run);
      }
      free(whole);
    }
    free(one);
  }
}

/* The engine stores the direction of the family `diagonal` by the kernel `store`, and sends it to the other ranks. */
static void test_late(void **state) {
  char text[512];
  for (int k = 0; k < 2; k++) {
    const char *clip =
        k == 0 ? "grad_worker_fraction=0" : "grad_worker_fraction=0 clip=rms clip_bound=0.1";
    family_run *late = new_run(with(text, COMMON, clip), 3);
    late->late = true;
    must_equal(late, new_run(text, 3), 0);
  }
}

/* clip = norm over families with different `measure`, also with solver = product: the norm of all directions is
 * clip_bound. */
static void test_norm(void **state) {
  static const char *const set[] = {
      COMMON "clip=norm clip_bound=0.01",
      "solver=product radius=0.5 solve_period=1 clip=norm clip_bound=0.01"};
  for (int k = 0; k < 2; k++) {
    for (int32_t ranks = 1; ranks <= 3; ranks++) {
      family_run *run = completed(new_run(set[k], ranks));
      for (int32_t step = 0; step < STEPS; step++) {
        double sum = 0;
        for (int32_t i = 0; i < PLAIN; i++) {
          for (int64_t e = 0; e < model[i].weights + model[i].biases; e++) {
            const double x = (double)run->out[0][step][i][e];
            sum += x * x;
          }
        }
        assert_true(run->clip[0][step] < 1);
        assert_true(fabs(sqrt(sum) - 0.01) <= 1e-5 * 0.01);
      }
      free(run);
    }
  }
}

static void test_resume(void **state) {
  const char *path = in_folder("state");
  char text[512];
  for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
    const char *set = with(text, COMMON, ranks % 2 == 0 ? "grad_worker_fraction=0.5" : "");
    family_run *whole = new_run(set, ranks), *resumed = new_run(set, ranks);
    whole->save = resumed->load = path;
    must_equal(whole, resumed, 2);
  }
}

/* A NaN in the gradient of each kind of entry: the step is skipped on all ranks and gradients stay.  Observations
 * enter the averages (twice, as the step is repeated), the gradient with the NaN does not. */
static void test_skip(void **state) {
  static const int32_t bad[] = {FC, R1, TOY, ALL, ALL_FC};
  char text[512];
  for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks += 3) {
    for (int k = 0; k < 5; k++) {
      const char *set = with(text, COMMON, "grad_worker_fraction=0 clip=none");
      family_run *good = completed(new_run(set, ranks)), *run = new_run(set, ranks);
      run->bad_step = 2;
      run->bad_entry = bad[k];
      (void)completed(run);
      for (int32_t r = 0; r < ranks; r++) {
        assert_int_equal(run->status[r][2], NG_SKIPPED);
        assert_int_equal(run->commits[r].skipped, 1);
        assert_int_equal(run->commits[r].taken, STEPS);
        assert_int_equal(run->changed[r], 0);
      }
      for (int32_t step = 0; step < STEPS; step++) {
        for (int32_t i = 0; i < ENTRIES; i++) {
          const bool forgetful = i == ALL || i == ALL_FC || i == PLAIN;
          if (step >= 2 && !forgetful && i != bad[k]) continue;
          if (step >= 2 && (bad[k] == FC || bad[k] == R1) && i == bad[k]) continue;
          assert_memory_equal(run->out[0][step][i], good->out[0][step][i],
                              sizeof run->out[0][step][i]);
        }
      }
      free(good);
      free(run);
    }
  }
}

/* Averages on the owner only, or on every rank from equal sums. */
static ng_spread spread_of_v;

static void spread_v(ng_block *b, ng_stat *s) {
  if (b->family == &toy_diagonal) s->spread = spread_of_v;
}

static void test_spreads(void **state) {
  static const ng_spread spreads[] = {NG_SPREAD_OWNER, NG_SPREAD_SAME};
  char text[512];
  for (int k = 0; k < 2; k++) {
    for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
      family_run *run = new_run(with(text, COMMON, "grad_worker_fraction=0"), ranks);
      spread_of_v = spreads[k];
      run->place = spread_v;
      as_predicted(completed(run));
      free(run);
    }
  }
}

static void only_owner(ng_block *b, ng_stat *s) {
  if (s->rule.averaged) s->spread = NG_SPREAD_OWNER;
}

/* The scale of an emitted direction is in the delivered values. */
static void emit_twice(const ng_block *b, int32_t k, int32_t g, double factor, ng_direction *e) {
  toy_diagonal.emit(b, k, g, factor, e);
  e->scale = 2.0 * factor;
}

static void test_delivered_values(void **state) {
  ng_family twice = toy_diagonal;
  twice.name = "twice";
  twice.emit = emit_twice;
  must_equal(new_run_with(&twice, UNCLIPPED "grad_worker_fraction=1", 2),
             new_run_with(&twice, UNCLIPPED "grad_worker_fraction=0", 2), 0);
}

/* ---- ranks -----------------------------------------------------------------------------------*/

static bool first_fits(const ng_settings *o, const ng_entry *e) {
  return strcmp(e->d.name, "fc") == 0;
}

/* Sums that travel and sums that only their owner has alternate: all ranks have the same messages. */
static void test_messages(void **state) {
  ng_family first = toy_total; /* its statistic comes before conv, whose factors are local */
  first.name = "first";
  first.scope = NG_SCOPE_LAYER;
  first.fits = first_fits;
  family_run *one = new_run_with(&first, UNCLIPPED, 1);
  (void)completed(one);
  for (int32_t ranks = 2; ranks <= MOST_RANKS; ranks++) {
    family_run *run =
        new_run_with(&first, UNCLIPPED "statistics=local grad_worker_fraction=0", ranks);
    close_to(completed(run), one); /* all ranks have the same samples */
    free(run);
  }
  free(one);
  /* only the owner of a rank-one layer computes the norms for clip = rms */
  free(completed(
      new_run("damping=0.3 clip=rms clip_bound=0.1 statistics=local grad_worker_fraction=0", 2)));
}

/* A and G on different ranks: with eigen-prediv the divisors are computed when their own block is solved, not when
 * another block is. */
static void separate_owners(ng_block *b, ng_stat *s) {
  const ng_grid *g = &b->p->grid;
  s->owner = b->column + (int32_t)(s - b->stat + b->index) % g->m * g->n;
}

static ng_status own_period(int32_t rank, ng_precond *p, int32_t step) {
  if (step > 0 && ng_set_real(p, "damping", step == 1 ? 0.15 : 0.075) != NG_OK) return NG_ERR_STATE;
  p->block[1]->base.solve_period = 1;
  return NG_OK;
}

static void test_divided_ahead(void **state) {
  const char *set = "solver=eigen-prediv damping_split=joint damping=0.3 clip=none solve_period=3";
  for (int32_t ranks = 2; ranks <= 3; ranks++) {
    family_run *run = new_run(set, ranks), *together = new_run(set, ranks);
    run->place = separate_owners;
    run->hook = together->hook = own_period;
    must_equal(run, together, 0);
  }
}

/* ---- failed observations ---------------------------------------------------------------------*/

/* The family fails to observe on one rank. */
static _Thread_local bool cannot_observe;
static ng_status observe_or_not(ng_block *b, const ng_obs *o) {
  return cannot_observe ? ng_fail(b->ctx, NG_ERR_NOMEM, "'%s' cannot observe", b->name)
                        : toy_diagonal.observe(b, o);
}

static ng_status fail_on_one_rank(int32_t rank, ng_precond *p, int32_t step) {
  if (step != 1) return NG_OK;
  cannot_observe = rank == 1;
  const ng_status st = ng_step(p, 0.1);
  cannot_observe = false;
  return st == NG_ERR_NOMEM ? NG_OK : NG_ERR_STATE;
}

static void test_failed_observation(void **state) {
  ng_family sees = toy_diagonal;
  sees.name = "sees";
  sees.observe = observe_or_not;
  for (int32_t ranks = 2; ranks <= 3; ranks++) {
    family_run *run = new_run_with(&sees, UNCLIPPED, ranks);
    run->hook = fail_on_one_rank;
    must_equal(run, new_run(UNCLIPPED, ranks), 0);
  }
}

/* A family returns NG_SKIPPED from `observe`: the step does not count. */
static ng_status refuses(ng_block *b, const ng_obs *o) {
  return b->p->steps == 1 && b->ctx->rank == 0 ? NG_SKIPPED : toy_diagonal.observe(b, o);
}

static void test_observation_refused(void **state) {
  ng_family f = toy_diagonal;
  f.name = "refuses";
  f.observe = refuses;
  for (int32_t ranks = 1; ranks <= 2; ranks++) {
    family_run *run = new_run_with(&f, UNCLIPPED, ranks);
    assert_int_equal(ranks_run(ranks, run_rank, run, NULL), NG_SKIPPED);
    for (int32_t r = 0; r < ranks; r++)
      assert_true(run->status[r][0] == NG_OK && run->status[r][1] == NG_SKIPPED);
    free(run);
  }
}

/* ---- refused by ng_ready, with the name ------------------------------------------------------*/

static void must_be_refused(family_run *run, ng_status st, const char *says) {
  assert_int_equal(ranks_run(run->ranks, run_rank, run, NULL), st);
  for (int32_t r = 0; r < run->ranks; r++) {
    if (strstr(run->message[r], says) == NULL)
      fail_msg("rank %d: '%s', not '%s'", r, run->message[r], says);
  }
  free(run);
}

static void far_owner(ng_block *b, ng_stat *s) { s->owner = b->ctx->ranks; }
static void other_column(ng_block *b, ng_stat *s) { s->owner = (b->column + 1) % b->p->grid.n; }
static void split_owners(ng_block *b, ng_stat *s) {
  if (b->stats == 2) s->spread = NG_SPREAD_OWNER;
  s->owner = (int32_t)(s - b->stat) % b->ctx->ranks;
}
/* One rank has other owners, so its messages would differ. */
static void shifted_owner(ng_block *b, ng_stat *s) {
  if (b->ctx->rank == 1) s->owner = (s->owner + 1) % b->ctx->ranks;
}

static void half_vector(ng_block *b, ng_stat *s) {
  if (!s->symmetric) s->average_dtype = NG_BF16;
}
static void wide_average(ng_block *b, ng_stat *s) {
  if (s->rule.averaged) s->sum_dtype = NG_F64;
}
static void sees_two(ng_block *b, ng_stat *s) {
  s->observed = NG_OBSERVED_INPUT | NG_OBSERVED_OUTGRAD;
}

static void test_refused_families(void **state) {
  static const struct {
    void (*place)(ng_block *b, ng_stat *s);
    const char *set, *says;
  } wrong[] = {
      {far_owner, UNCLIPPED, "its owner is not in the block's column"},
      {other_column, UNCLIPPED "grad_worker_fraction=0", "its owner is not in the block's column"},
      {split_owners, UNCLIPPED, "the family needs both on one rank"},
      {only_owner, UNCLIPPED "grad_worker_fraction=1", "sends no results to other ranks"},
      {half_vector, UNCLIPPED, "averages are f32"},
      {wide_average, UNCLIPPED, "over sums in f32"},
      {sees_two, UNCLIPPED, "exactly one kind of observation"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    family_run *run = new_run(wrong[i].set, 2);
    run->place = wrong[i].place;
    must_be_refused(run, NG_ERR_ARG, wrong[i].says);
  }
  family_run *run = new_run(UNCLIPPED "grad_worker_fraction=1", 3);
  run->place = shifted_owner;
  must_be_refused(run, NG_ERR_COMM, "owners of blocks of 1 of 3 ranks differ from rank 0");
  ng_family named = toy_total; /* "plain" is a tensor of the model: two entries of one name */
  named.name = "plain";
  named.fits = first_fits;
  must_be_refused(new_run_with(&named, UNCLIPPED, 1), NG_ERR_ARG,
                  "'plain': a block of several layers has this name");
  ng_family shares = toy_diagonal;
  shares.name = "shares";
  shares.create = toy_total.create; /* slices and a solve */
  shares.fits = first_fits;
  must_be_refused(new_run_with(&shares, UNCLIPPED "grad_worker_fraction=0", 2), NG_ERR_ARG,
                  "needs grad_worker_fraction = 1");
}

/* `check` of a family sees its options and values from ng_set. */
static ng_status no_half(const ng_options *o, char *message, size_t size) {
  if (o->base.damping != 0.5) return NG_OK;
  return ng_fail_to(message, size, NG_ERR_ARG, "damping = 0.5 is not for toys");
}

static ng_status set_half(int32_t rank, ng_precond *p, int32_t step) {
  if (step != 1) return NG_OK;
  const double before = p->block[0]->base.damping;
  if (ng_set(p, "damping", "0.5") != NG_ERR_ARG) return NG_ERR_STATE;
  if (strstr(ng_last_error(p->ctx), "not for toys") == NULL) return NG_ERR_STATE;
  return p->block[0]->base.damping == before ? NG_OK : NG_ERR_STATE;
}

static void test_set(void **state) {
  ng_family picky = toy_diagonal;
  picky.name = "picky";
  picky.check = no_half;
  family_run *run = new_run_with(&picky, UNCLIPPED, 1);
  run->hook = set_half;
  free(completed(run));
  must_be_refused(new_run_with(&picky, "damping=0.5 clip=none", 1), NG_ERR_ARG,
                  "layer 'toy': options: damping = 0.5 is not for toys");
}

/* solve_period applies to a family with NG_TRAIT_SOLVES, also under a method whose family lacks the trait. */
static int32_t solved;
static ng_status solve_counted(ng_block *b) {
  solved++;
  return toy_diagonal.solve(b);
}

static void test_solve_period(void **state) {
  static const uint32_t traits[] = {0, NG_TRAIT_SOLVES};
  static const int32_t solves[] = {STEPS, 1}; /* of a block; the default period exceeds STEPS */
  ng_family periodic = toy_diagonal;
  periodic.solve = solve_counted;
  for (int k = 0; k < 2; k++) {
    periodic.traits = traits[k];
    family_run *run = new_run_with(&periodic, "method=eva-natgrad damping=0.3 clip=none", 1);
    solved = 0;
    free(completed(run));
    assert_int_equal(solved, 2 * solves[k]); /* toy and toy2 */
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_explained),
      cmocka_unit_test(test_ranks_and_fractions),
      cmocka_unit_test(test_late),
      cmocka_unit_test(test_norm),
      cmocka_unit_test(test_resume),
      cmocka_unit_test(test_skip),
      cmocka_unit_test(test_spreads),
      cmocka_unit_test(test_delivered_values),
      cmocka_unit_test(test_observation_refused),
      cmocka_unit_test(test_messages),
      cmocka_unit_test(test_divided_ahead),
      cmocka_unit_test(test_failed_observation),
      cmocka_unit_test(test_refused_families),
      cmocka_unit_test(test_set),
      cmocka_unit_test(test_solve_period),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
