/* t_family.c: families that the library does not know, mixed with those that it has: what a family owes
 * is all that it owes.  The toys of toys.c run beside Kronecker and rank-one layers, on 1 to 4 ranks, at
 * every fraction of workers, with both folds; they are saved, resumed, skipped and reported by code that
 * has never heard of them.
 *
 * Tolerance.  Ranks that see the same samples have the statistics of one rank but for the rounding of
 * a sum and a division: 1e-5 is some 80 roundings.  Everything else is compared bit for bit. */
#include "ranks.h"
#include "step/step.h"
#include "toys.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "draw.h"

/* ---- a model of every family -----------------------------------------------------------------*/

enum { FC, CONV, R1, TOY, TOY2, ALL, ALL_FC, PLAIN, ENTRIES, STEPS = 5, MOST_RANKS = 4 };
enum { B = 4, SHOWN = 4 * 3 * 5 * 5, BIGGEST = 130, PARAMETERS = 2 * BIGGEST };

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

typedef struct life {
  const char *set; /* options "name=value ..." */
  int32_t ranks;
  const char *save, *load;     /* after step 2; before step 2, of a life that begins there */
  int32_t bad_step, bad_entry; /* a NaN in this gradient, at this step and again not; -1: none */
  bool plain;                  /* no toys are registered */
  void (*place)(ng_block *b, ng_stat *s);
  bool post; /* the first layer's statistics are posted before the others are seen */
  float out[MOST_RANKS][STEPS][ENTRIES][PARAMETERS];
  double clip[MOST_RANKS][STEPS];
  ng_status status[MOST_RANKS][STEPS];
  char why[MOST_RANKS][256];
  toy_commits commits[MOST_RANKS];
  double reported[MOST_RANKS];
  char explained[MOST_RANKS][ENTRIES][32];
  int32_t in_flight[MOST_RANKS], again[MOST_RANKS], changed[MOST_RANKS];
} life;

/* Everybody sees the same: what a layer is shown and a gradient depend on the step and the entry. */
static void draw(float *x, int64_t n, int32_t step, int32_t at) {
  rng r = {test_seed() ^ (uint64_t)(step * 100 + at)};
  for (int64_t i = 0; i < n; i++) {
    x[i] = (float)rng_value(&r);
  }
}

static ng_status add(ng_precond *p, const entry *e) {
  int32_t index;
  if (e->out == 0) return ng_add_tensor(p, e->name, e->weights, &index);
  if (e == &model[CONV]) return ng_add_conv2d(p, e->name, e->in, e->out, 3, 1, 1, 5, 5, 0, &index);
  return ng_add_linear(p, e->name, e->in, e->out, 1, &index);
}

static ng_status bind(ng_precond *p, int32_t i, float *grad) {
  const entry *e = &model[i];
  const int64_t rows = e->out == 0 ? 1 : e->out;
  const ng_view w = ng_view_of(grad, rows, e->weights / rows, NG_F32);
  const ng_view b = ng_view_of(grad + e->weights, 1, e->biases, NG_F32);
  const ng_status st = ng_bind_grad(p, i, NG_WEIGHT, &w);
  return st == NG_OK && e->biases > 0 ? ng_bind_grad(p, i, NG_BIAS, &b) : st;
}

static ng_status show(ng_precond *p, int32_t i, int32_t step) {
  float a[SHOWN], g[SHOWN];
  const entry *e = &model[i];
  const int64_t pixels = i == CONV ? 25 : 1;
  if (e->out == 0 || i == ALL_FC) return NG_OK;
  draw(a, B * e->in * pixels, step, 20 + i);
  draw(g, B * e->out * pixels, step, 40 + i);
  const ng_view in = ng_view_of(a, B, e->in * pixels, NG_F32);
  const ng_view out = ng_view_of(g, B, e->out * pixels, NG_F32);
  const ng_status st = ng_observe_input(p, i, &in, NG_COPY);
  return st == NG_OK ? ng_observe_output_grad(p, i, &out, NG_COPY) : st;
}

static ng_status set_all(ng_options *o, const char *text, char *why, size_t size) {
  char copy[512], *rest = copy;
  (void)snprintf(copy, sizeof copy, "%s", text);
  for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
    char *value = strchr(word, '=');
    *value++ = 0;
    const ng_status st = ng_options_set(o, word, value, why, size);
    if (st != NG_OK) return st;
  }
  return NG_OK;
}

/* ---- a transport that is in no hurry ---------------------------------------------------------*/

/* start only notes what is wanted; wait does it: as late as it may, in the same order on all ranks. */
typedef struct lazy {
  ng_transport inner;
  int32_t under_way;
} lazy;

static ng_status lazy_run(void *user, const ng_collective *c) {
  return ((lazy *)user)->inner.run(((lazy *)user)->inner.user, c);
}
static ng_status lazy_start(void *user, const ng_collective *c, void **request) {
  ((lazy *)user)->under_way++;
  memcpy(request, &c, sizeof c);
  return NG_OK;
}
static ng_status lazy_wait(void *user, void *request) {
  ((lazy *)user)->under_way--;
  return lazy_run(user, request);
}
static ng_status lazy_group(void *user, const int32_t *ranks, int32_t n, void **group) {
  return ((lazy *)user)->inner.group_create(((lazy *)user)->inner.user, ranks, n, group);
}
static void lazy_ungroup(void *user, void *group) {
  ((lazy *)user)->inner.group_destroy(((lazy *)user)->inner.user, group);
}
static void lazy_abort(void *user) { ((lazy *)user)->inner.abort(((lazy *)user)->inner.user); }

/* ---- living ----------------------------------------------------------------------------------*/

static ng_status one_step(life *l, int32_t rank, ng_precond *p, int32_t step, lazy *wire,
                          int32_t bad) {
  float *grad = &l->out[rank][step][0][0];
  ng_batch batch;
  ng_status st = ng_batch_init(&batch);
  batch.samples = B;
  if (st == NG_OK) st = ng_begin(p, &batch);
  for (int32_t i = 0; i < ENTRIES && st == NG_OK; i++) {
    float *mine = grad + i * PARAMETERS;
    draw(mine, model[i].weights + model[i].biases, step, i);
    if (step == l->bad_step && i == bad) mine[model[i].weights - 1] = NAN;
    st = bind(p, i, mine);
    if (st == NG_OK) st = show(p, i, step);
    if (st == NG_OK && l->post && i == FC) {
      st = ng_exchange_post_block(p, p->block[0]);
      l->in_flight[rank] += wire->under_way;
      l->again[rank] = show(p, FC, step) == NG_ERR_STATE;
    }
  }
  return st == NG_OK ? ng_step(p, 0.1) : st;
}

/* Gradients that are not what was drawn. */
static int32_t changed(const life *l, int32_t rank, int32_t step) {
  int32_t n = 0;
  for (int32_t i = 0; i < ENTRIES; i++) {
    float d[PARAMETERS];
    draw(d, model[i].weights + model[i].biases, step, i);
    for (int64_t e = 0; e < model[i].weights + model[i].biases; e++) {
      const float x = l->out[rank][step][i][e];
      n += x - x == 0.0f && memcmp(&x, &d[e], sizeof x) != 0;
    }
  }
  return n;
}

static void look_at(life *l, int32_t rank, const ng_precond *p) {
  ng_explain_row row = {.struct_size = sizeof row};
  ng_layer_report report = {.struct_size = sizeof report};
  for (int32_t i = 0; ng_explain(p, i, &row) == NG_OK; i++) {
    (void)snprintf(l->explained[rank][row.index], sizeof l->explained[0][0], "%s", row.family);
    if (i + 1 == ng_explain_count(p)) break;
  }
  if (l->plain) return;
  for (int32_t i = 0; i < p->blocks; i++) {
    if (p->block[i]->family == &toy_total) l->commits[rank] = toy_total_commits(p->block[i]);
  }
  if (ng_report_layer(p, ALL, &report) == NG_OK) l->reported[rank] = report.pi;
}

static ng_status live(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  const ng_family beside = toy_beside();
  ng_context_config c;
  ng_options o;
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  char *why = l->why[rank];
  lazy wire = {.inner = *t};
  ng_transport slow = *t;
  slow.user = &wire;
  slow.run = lazy_run;
  slow.start = lazy_start;
  slow.wait = lazy_wait;
  slow.abort = lazy_abort;
  if (slow.group_create != NULL) {
    slow.group_create = lazy_group;
    slow.group_destroy = lazy_ungroup;
  }
  ng_status st = ng_context_config_init(&c);
  c.threads = 1 + rank % 2;
  c.linalg = "ref";
  if (l->ranks > 1) c.transport = l->post ? &slow : t;
  if (st == NG_OK) st = ng_context_create(&c, why, 256, &ctx);
  if (st == NG_OK) st = ng_options_init(&o);
  if (st == NG_OK) st = set_all(&o, l->set, why, 256);
  const ng_family *const toy[] = {&toy_diagonal, &toy_total, &beside};
  for (int i = 0; i < 3 && st == NG_OK && !l->plain; i++) {
    st = ng_family_register(ctx, toy[i], why, 256);
  }
  if (st == NG_OK) ctx->place = l->place;
  if (st == NG_OK) st = ng_precond_create(ctx, &o, &p);
  for (int32_t i = 0; i < ENTRIES && st == NG_OK; i++) {
    st = add(p, &model[i]);
  }
  if (st == NG_OK) st = ng_ready(p);
  if (st == NG_OK && l->load != NULL) st = ng_load(p, l->load);
  for (int32_t step = l->load != NULL ? 2 : 0; step < STEPS && st == NG_OK; step++) {
    if (step == 2 && l->save != NULL) st = ng_save(p, l->save);
    if (st == NG_OK) st = one_step(l, rank, p, step, &wire, l->bad_entry);
    l->status[rank][step] = st;
    if (st == NG_SKIPPED) { /* and again, as it should have been */
      l->changed[rank] += changed(l, rank, step);
      (void)snprintf(why, 256, "%s", ng_last_error(ctx));
      st = one_step(l, rank, p, step, &wire, -1);
    }
    ng_report r = {.struct_size = sizeof r};
    if (st == NG_OK) st = ng_report_read(p, &r);
    l->clip[rank][step] = r.clip;
  }
  if (st < NG_OK && why[0] == 0) (void)snprintf(why, 256, "%s", ng_last_error(ctx));
  if (st == NG_OK) look_at(l, rank, p);
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
  return st;
}

static life *new_life(const char *set, int32_t ranks) {
  life *l = calloc(1, sizeof *l);
  assert_non_null(l);
  l->set = set;
  l->ranks = ranks;
  l->bad_step = l->bad_entry = -1;
  return l;
}

/* Every rank ends well and with the same bits. */
static life *lived(life *l) {
  if (ranks_run(l->ranks, live, l, NULL) != NG_OK) {
    for (int32_t r = 0; r < l->ranks; r++) {
      print_error("%s, rank %d: %s\n", l->set, r, l->why[r]);
    }
    fail();
  }
  for (int32_t r = 1; r < l->ranks; r++) {
    assert_memory_equal(l->out[0], l->out[r], sizeof l->out[0]);
    assert_memory_equal(l->clip[0], l->clip[r], sizeof l->clip[0]);
  }
  return l;
}

static void same_from(const life *x, const life *y, int32_t step) {
  assert_memory_equal(x->out[0][step], y->out[0][step],
                      sizeof x->out[0][0] * (size_t)(STEPS - step));
}

/* ---- what the toys should give ---------------------------------------------------------------*/

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

static void as_predicted(const life *l) {
  static const int32_t toys[] = {TOY, TOY2, ALL, ALL_FC};
  for (int k = 0; k < 4; k++) {
    double v[PARAMETERS] = {0}, want[PARAMETERS];
    for (int32_t step = 0; step < STEPS; step++) {
      predict(toys[k], step, v, want);
      for (int64_t e = 0; e < model[toys[k]].weights + model[toys[k]].biases; e++) {
        const double got = (double)l->out[0][step][toys[k]][e], w = want[e] * l->clip[0][step];
        if (!(fabs(got - w) <= 1e-5 * fabs(w))) {
          fail_msg("%s, %d ranks, step %d, %s[%d]: %g, expected %g", l->set, l->ranks, step,
                   model[toys[k]].name, (int)e, got, w);
        }
      }
    }
  }
}

static void close_to(const life *x, const life *y) {
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

#define COMMON "damping=0.3 stat_decay=0.9 kl_clip=0.01 solve_period=1 "
static const char *const folds[] = {COMMON "fold=sum", COMMON "fold=direct"};

static const char *with(char text[512], const char *set, const char *more) {
  (void)snprintf(text, 512, "%.250s %.250s", set, more);
  return text;
}

/* ---- tests -----------------------------------------------------------------------------------*/

static void test_explained(void **state) {
  (void)state;
  static const char *const family[ENTRIES] = {
      [FC] = "kronecker",  [CONV] = "kronecker", [R1] = "beside",    [TOY] = "diagonal",
      [TOY2] = "diagonal", [ALL] = "total",      [ALL_FC] = "total", [PLAIN] = "none"};
  life *l = lived(new_life(folds[0], 1));
  for (int32_t i = 0; i < ENTRIES; i++) {
    assert_string_equal(l->explained[0][i], family[i]);
  }
  assert_true(l->reported[0] > 0);
  assert_int_equal(l->commits[0].taken, STEPS);
  assert_int_equal(l->commits[0].skipped, 0);
  /* Without toys the others are the library's, and the tensor of a toy stays as it is. */
  life *plain = new_life(folds[0], 1);
  plain->plain = true;
  (void)ranks_run(1, live, plain, NULL); /* "all.fc" is never observed: refused by name */
  assert_non_null(strstr(plain->why[0], "'all.fc' was never observed"));
  free(plain);
  free(l);
}

/* 1 to 4 ranks, every fraction, both folds: formulas hold, fractions do not matter to a bit. */
static void test_ranks_and_fractions(void **state) {
  (void)state;
  static const char *const fraction[] = {"grad_worker_fraction=0", "grad_worker_fraction=0.5",
                                         "grad_worker_fraction=1"};
  static const char *const clip[] = {"clip=kl", "clip=rms clip_bound=0.1", "clip=none"};
  char text[512], more[512];
  for (int f = 0; f < 2; f++) {
    for (int c = 0; c < 3; c++) {
      life *one = lived(new_life(with(more, folds[f], clip[c]), 1));
      if (c != 1) as_predicted(one);
      for (int32_t ranks = 2; ranks <= MOST_RANKS; ranks++) {
        life *whole = NULL;
        for (int k = 2; k >= 0; k--) {
          if (k == 1 && ranks % 2 != 0) continue;
          life *l = lived(new_life(with(text, more, fraction[k]), ranks));
          close_to(l, one);
          if (whole == NULL) {
            whole = l;
            continue;
          }
          same_from(l, whole, 0);
          free(l);
        }
        free(whole);
      }
      free(one);
    }
  }
}

static void test_resume(void **state) {
  (void)state;
  char path[] = "/tmp/natgrad-family-XXXXXX", text[512];
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  (void)close(fd);
  for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
    for (int f = 0; f < 2; f++) {
      const char *set = with(text, folds[f], ranks % 2 == 0 ? "grad_worker_fraction=0.5" : "");
      life *whole = new_life(set, ranks), *rest = new_life(set, ranks);
      whole->save = rest->load = path;
      (void)lived(whole);
      (void)lived(rest);
      same_from(rest, whole, 2);
      free(whole);
      free(rest);
    }
  }
  (void)unlink(path);
}

/* A NaN in the gradient of each kind of entry: the step is skipped on all ranks and gradients stay.  What
 * was observed counts (twice, as the step is taken again), but not the gradient that was refused. */
static void test_skip(void **state) {
  (void)state;
  static const int32_t bad[] = {FC, R1, TOY, ALL, ALL_FC};
  char text[512];
  for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks += 3) {
    for (int k = 0; k < 5; k++) {
      const char *set = with(text, folds[0], "grad_worker_fraction=0 clip=none");
      life *good = lived(new_life(set, ranks)), *l = new_life(set, ranks);
      l->bad_step = 2;
      l->bad_entry = bad[k];
      (void)lived(l);
      for (int32_t r = 0; r < ranks; r++) {
        assert_int_equal(l->status[r][2], NG_SKIPPED);
        assert_int_equal(l->commits[r].skipped, 1);
        assert_int_equal(l->commits[r].taken, STEPS);
        assert_int_equal(l->changed[r], 0);
      }
      for (int32_t step = 0; step < STEPS; step++) {
        for (int32_t i = 0; i < ENTRIES; i++) {
          const bool forgetful = i == ALL || i == ALL_FC || i == PLAIN;
          if (step >= 2 && !forgetful && i != bad[k]) continue;
          if (step >= 2 && (bad[k] == FC || bad[k] == R1) && i == bad[k]) continue;
          assert_memory_equal(l->out[0][step][i], good->out[0][step][i], sizeof l->out[0][step][i]);
        }
      }
      free(good);
      free(l);
    }
  }
}

/* A and G on different ranks, and the toy's v on a third: the same bits. */
static void elsewhere(ng_block *b, ng_stat *s) {
  const ng_grid *g = &b->p->grid;
  const int32_t at = (int32_t)(s - b->stat) + 1 + b->number;
  s->owner = b->column + at % g->m * g->n; /* of the block's column */
}

static void test_owners(void **state) {
  (void)state;
  static const char *const solver[] = {"solver=cholesky", "solver=eigen",
                                       "solver=eigen damping_split=joint prediv=1",
                                       "damping_leak=1 solver=eigen"};
  char text[512], more[512];
  for (int k = 0; k < 4; k++) {
    for (int32_t ranks = 2; ranks <= MOST_RANKS; ranks++) {
      const char *set = with(more, folds[k % 2], solver[k]);
      if (ranks == 4) set = with(text, set, "grad_worker_fraction=0.5");
      life *l = new_life(set, ranks), *together = lived(new_life(set, ranks));
      l->place = elsewhere;
      (void)lived(l);
      same_from(l, together, 0);
      free(l);
      free(together);
    }
  }
}

/* Sums of the first layer leave while others are still observed; a transport that does everything as
 * late as it may gives the same bits.  What has left is closed. */
static void test_posted(void **state) {
  (void)state;
  for (int32_t ranks = 2; ranks <= MOST_RANKS; ranks++) {
    life *l = new_life(folds[0], ranks), *waited = lived(new_life(folds[0], ranks));
    l->post = true;
    (void)lived(l);
    same_from(l, waited, 0);
    for (int32_t r = 0; r < ranks; r++) {
      assert_int_equal(l->in_flight[r], STEPS); /* one message each step, and nothing else */
      assert_true(l->again[r]);
    }
    free(l);
    free(waited);
  }
}

/* ---- registration ----------------------------------------------------------------------------*/

static void refused(ng_context *ctx, const ng_family *f, const char *says) {
  char why[256] = "";
  const int32_t before = ctx->families;
  assert_int_equal(ng_family_register(ctx, f, why, sizeof why), NG_ERR_ARG);
  if (strstr(why, says) == NULL) fail_msg("'%s' does not say '%s'", why, says);
  assert_int_equal(ctx->families, before);
}

static void test_registered(void **state) {
  (void)state;
  ng_context *ctx = NULL;
  assert_int_equal(ng_context_create(NULL, NULL, 0, &ctx), NG_OK);
  assert_int_equal(ctx->families, 2);
#define WITHOUT(entry)                                                                             \
  do {                                                                                             \
    ng_family f = toy_diagonal;                                                                    \
    f.entry = NULL;                                                                                \
    refused(ctx, &f, "'diagonal': " #entry " is missing");                                         \
  } while (0)
  WITHOUT(fits);
  WITHOUT(check);
  WITHOUT(create);
  WITHOUT(destroy);
  WITHOUT(statistics);
  WITHOUT(plan);
  WITHOUT(observe);
  WITHOUT(measure);
  WITHOUT(emit_tile);
  ng_family f = toy_diagonal;
  f.shared = NULL;
  refused(ctx, &f, "solve and shared");
  f = toy_diagonal;
  f.version = NG_FAMILY_VERSION + 1;
  refused(ctx, &f, "version is 3, expected 2");
  f = toy_diagonal;
  f.name = "kronecker";
  refused(ctx, &f, "is there already");
  refused(ctx, NULL, "NULL");
  char name[NG_FAMILIES_MAX][16];
  ng_family many[NG_FAMILIES_MAX];
  for (int i = 2; i <= NG_FAMILIES_MAX; i++) {
    ng_family *m = &many[i - 2];
    *m = toy_diagonal;
    (void)snprintf(name[i - 2], sizeof name[0], "f%d", i);
    m->name = name[i - 2];
    if (i < NG_FAMILIES_MAX) {
      assert_int_equal(ng_family_register(ctx, m, NULL, 0), NG_OK);
    } else {
      refused(ctx, m, "there is room for 16");
    }
  }
  ng_context_destroy(&ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_explained),  cmocka_unit_test(test_ranks_and_fractions),
      cmocka_unit_test(test_resume),     cmocka_unit_test(test_skip),
      cmocka_unit_test(test_owners),     cmocka_unit_test(test_posted),
      cmocka_unit_test(test_registered),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
