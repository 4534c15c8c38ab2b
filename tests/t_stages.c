/* t_stages.c: pipeline stages, each with layers and ranks of its own.
 *
 * The oracle is K-FAC in double over the layers of all stages.  nu counts each layer once and has the same bits on
 * all ranks.  PD agrees to 1e-5 of its largest number (rounding of f32 at this damping).  A fault in one stage
 * ends the step in all stages. */
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"
#include "fixture.h"
#include "oracle.h"
#include "ranks.h"
#include "tap.h"

enum { STAGES = 3, DATA = 2, RANKS = STAGES * DATA, STEPS = 3, ROOM = 64 }; /* the largest */

static const struct {
  const char *name;
  int64_t in, out;
} layer[STAGES] = {{"first", 5, 4}, {"second", 4, 6}, {"third", 6, 3}};

typedef enum fault { NONE, NAN_INPUT, NAN_GRADIENT, UNOBSERVED, OPTIONS, RATE, SHORT } fault;
enum { FAULTS = SHORT + 1 };

typedef struct outcome {
  float out[STEPS][ROOM];
  double nu[STEPS];
  ng_status status[STEPS], ready;
  char message[512];
} outcome;

typedef struct test_run {
  const char *options;
  fault fault; /* fault of the last stage in step 1; on its first rank only, if possible */
  /* number of the call that fails on rank `who`, of the data group and of the stage group; 0: none */
  int32_t fail[2];
  int32_t who;
  ranks_grid grid; /* the grid of ranks has one row per stage */
  outcome rank[RANKS];
} test_run;

/* ---- the grid --------------------------------------------------------------------------------*/

/* Over MPI, where processes are few: two stages, each on half of the processes. */
static int32_t count_stages(void) {
#if defined(NG_TEST_MPI)
  return 2;
#else
  return STAGES;
#endif
}

static int32_t data_ranks(void) {
#if defined(NG_TEST_MPI)
  return ranks_process_count() / 2;
#else
  return DATA;
#endif
}

/* ---- one rank --------------------------------------------------------------------------------*/

static ng_status observe_step(fixture *f, const test_run *x, int32_t stage, int32_t data,
                              int64_t t) {
  float a[ROOM], g[ROOM];
  const int64_t B = 3 + data;
  const bool me = stage == count_stages() - 1 && t == 1, one = me && data == 0;
  for (int64_t k = 0; k < B * layer[stage].in; k++)
    a[k] = (float)rng_value_at(t, stage * 8 + data, 0, k);
  for (int64_t k = 0; k < B * layer[stage].out; k++)
    g[k] = (float)rng_value_at(t, stage * 8 + data, 1, k);
  if (one && x->fault == NAN_INPUT) a[0] = NAN;
  const plane in = plane_of(a, B, layer[stage].in, NG_F32),
              out = plane_of(g, B, layer[stage].out, NG_F32);
  const bool hide = stage == count_stages() - 1 && x->fault == UNOBSERVED;
  return fixture_begin_and_observe(f, B, 0, hide ? NULL : &in, hide ? NULL : &out);
}

static ng_status train_rank(int32_t rank, test_run *x, fixture *f, tap t[2]) {
  const int32_t stage = rank / data_ranks(), data = rank % data_ranks();
  outcome *o = &x->rank[rank];
  ng_transport with[2];
  memset(t, 0, 2 * sizeof *t);
  ng_status st = ranks_grid_transport(&x->grid, rank, true, &t[0].inner);
  if (st == NG_OK) st = ranks_grid_transport(&x->grid, rank, false, &t[1].inner);
  if (st != NG_OK) return st;
  for (int i = 0; i < 2; i++) {
    t[i].fail_at = rank == x->who ? x->fail[i] : 0;
    with[i] = tap_transport(&t[i], NO_START);
  }
  ng_context_config c;
  ng_context_config_init(&c, sizeof c);
  c.threads = 1;
  c.transport = &with[0];
  c.stage_group = &with[1];
  st = fixture_open(f, x->options, &(fixture_how){.config = &c});
  float grad[ROOM], weight[ROOM];
  const int64_t in = layer[stage].in, out = layer[stage].out;
  for (int64_t k = 0; k < ROOM; k++)
    weight[k] = (float)rng_value_at(-1, stage, 0, k);
  const bool shorter = rank == count_stages() * data_ranks() - 1 && x->fault == SHORT;
  const plane g[2] = {plane_of(grad, out, in - shorter, NG_F32),
                      plane_of(grad + out * in, 1, out, NG_F32)};
  const plane w[2] = {plane_of(weight, out, in - shorter, NG_F32),
                      plane_of(weight + out * in, 1, out, NG_F32)};
  if (st == NG_OK) st = fixture_add_linear(f, layer[stage].name, g, w);
  if (st == NG_OK) st = ng_ready(f->p);
  o->ready = st;
  const bool late = stage == count_stages() - 1;
  for (int64_t s = 0; s < STEPS && st >= NG_OK; s++) {
    st = observe_step(f, x, stage, data, s);
    if (st < NG_OK) return st;
    for (int64_t k = 0; k < out * (in + 1); k++) {
      const int64_t r = k / (in + 1), col = k % (in + 1);
      grad[col < in ? r * in + col : out * in + r] = (float)rng_value_at(s, -2, stage, k);
    }
    if (late && s == 1 && x->fault == NAN_GRADIENT) grad[1] = NAN;
    if (late && s == 1 && x->fault == OPTIONS) st = ng_set_real(f->p, "damping", 0.7);
    if (st < NG_OK) return st;
    ng_sgd how = fixture_sgd(late && s == 1 && x->fault == RATE ? 0.2 : 0.1, 0.0);
    st = fixture_step(f, &how);
    o->status[s] = st;
    ng_report r = {.struct_size = sizeof r};
    if (ng_report_read(f->p, &r) == NG_OK) o->nu[s] = r.clip;
    memcpy(o->out[s], grad, sizeof grad);
  }
  return st;
}

static ng_status run_rank(int32_t rank, ng_transport *unused, void *arg) {
  test_run *x = arg;
  fixture f;
  memset(&f, 0, sizeof f);
  tap t[2];
  const ng_status st = train_rank(rank, x, &f, t);
  (void)snprintf(x->rank[rank].message, sizeof x->rank[rank].message, "%s",
                 f.message[0] != 0 ? f.message : fixture_message(&f));
  fixture_close(&f);
  for (int i = 0; i < 2; i++)
    ranks_grid_release(&t[i].inner);
  return st;
}

static test_run *run_stages(test_run how, ng_status each[RANKS]) {
  test_run *x = malloc(sizeof *x);
  assert_non_null(x);
  *x = how;
  const int32_t S = count_stages(), D = data_ranks();
  assert_int_equal(ranks_grid_open(&x->grid, S, D), NG_OK);
  (void)ranks_run(S * D, run_rank, x, each);
  ranks_grid_close(&x->grid);
  for (int32_t r = 0; r < S * D; r++) {
    ranks_broadcast_bytes(r, &x->rank[r], sizeof x->rank[r]);
  }
  return x;
}

/* ---- one clip --------------------------------------------------------------------------------*/

static void all_stages_share_one_clip_factor(void **state) {
  const int32_t S = count_stages(), W = data_ranks();
  static const char *const options[] = {
      "method=natgrad damping=0.3 stat_period=1 solve_period=1 kl_clip=0.0001",
      "method=natgrad damping=0.3 stat_period=1 solve_period=1 clip=rescale grad_worker_fraction=0",
      "method=kaisa damping=0.3 kl_clip=0.0001"};
  for (size_t k = 0; k < sizeof options / sizeof options[0]; k++) {
    ng_status each[RANKS];
    test_run *x = run_stages((test_run){.options = options[k], .who = -1}, each);
    ng_options opt = fixture_parse_options(options[k]);
    oracle *o = oracle_create(&opt, W);
    for (int i = 0; i < S; i++) {
      ng_layer d = layer_of(NG_LINEAR, layer[i].name, layer[i].in, layer[i].out);
      d.bias = 1;
      assert_int_equal(oracle_add_layer(o, &d), i);
    }
    for (int64_t t = 0; t < STEPS; t++) {
      double D[STAGES][ROOM], P[STAGES][ROOM], a[ROOM];
      const double *from[STAGES];
      double *to[STAGES];
      for (int32_t g = 0; g < W; g++) {
        const ng_batch b = batch_of(3 + g);
        oracle_begin(o, g, &b);
        for (int i = 0; i < S; i++) {
          for (int64_t j = 0; j < b.samples * layer[i].in; j++)
            a[j] = rng_value_at(t, i * 8 + g, 0, j);
          oracle_observe_input(o, g, i, a, 1);
          for (int64_t j = 0; j < b.samples * layer[i].out; j++)
            a[j] = rng_value_at(t, i * 8 + g, 1, j);
          oracle_observe_output_grad(o, g, i, a, 1);
        }
      }
      for (int i = 0; i < S; i++) {
        for (int64_t j = 0; j < ROOM; j++)
          D[i][j] = rng_value_at(t, -2, i, j);
        from[i] = D[i];
        to[i] = P[i];
      }
      const double nu = oracle_step(o, 0.1, from, to);
      for (int32_t r = 0; r < S * W; r++) {
        if (each[r] != NG_OK) fail_msg("rank %d: %s", r, x->rank[r].message);
        const int s = r / W;
        const int64_t in = layer[s].in, out = layer[s].out;
        double most = 0.0;
        for (int64_t j = 0; j < out * (in + 1); j++)
          most = fmax(most, fabs(P[s][j]));
        for (int64_t j = 0; j < out * (in + 1); j++) {
          const int64_t row = j / (in + 1), col = j % (in + 1);
          const float got = x->rank[r].out[t][col < in ? row * in + col : out * in + row];
          assert_true(fabs((double)got - P[s][j]) < 1e-5 * most);
        }
        assert_true(fabs(x->rank[r].nu[t] / nu - 1.0) < 1e-5);
        assert_true(x->rank[r].nu[t] == x->rank[0].nu[t]);
      }
      assert_true(nu < 1.0 || k == 1);
    }
    oracle_destroy(&o);
    free(x);
  }
}

/* ---- one status ------------------------------------------------------------------------------*/

#define BASE "method=natgrad damping=0.3 stat_period=1 solve_period=1"

static void all_stages_return_one_status(void **state) {
  static const struct {
    ng_status st, ready;
    int step;
    const char *message;
  } how[FAULTS] = {[NONE] = {NG_OK, NG_OK, 2, ""},
                   [NAN_INPUT] = {NG_SKIPPED, NG_OK, 1, "not finite"},
                   [NAN_GRADIENT] = {NG_SKIPPED, NG_OK, 1, "not finite"},
                   [UNOBSERVED] = {NG_ERR_STATE, NG_OK, 0, ""},
                   [OPTIONS] = {NG_ERR_STATE, NG_OK, 1, "pipeline stages"},
                   [RATE] = {NG_ERR_STATE, NG_OK, 1, "pipeline stages"},
                   [SHORT] = {NG_ERR_COMM, NG_ERR_COMM, -1, ""}};
  for (int k = 0; k < FAULTS; k++) {
    if (k == SHORT && data_ranks() == 1) continue; /* no rank of the stage has another layer */
    ng_status each[RANKS];
    test_run *x = run_stages((test_run){.options = BASE, .fault = (fault)k, .who = -1}, each);
    for (int32_t r = 0; r < count_stages() * data_ranks(); r++) {
      const outcome *o = &x->rank[r];
      assert_int_equal(o->ready, how[k].ready);
      if (how[k].step < 0) continue;
      if (o->status[how[k].step] != how[k].st)
        fail_msg("fault %d: step %d of rank %d returned %d, expected %d: %s", k, how[k].step, r,
                 o->status[how[k].step], how[k].st, o->message);
      if (how[k].st < 0 && strstr(o->message, how[k].message) == NULL)
        fail_msg("fault %d: rank %d has the message '%s', expected '%s'", k, r, o->message,
                 how[k].message);
      if (how[k].st >= 0) assert_int_equal(o->status[2], NG_OK);
    }
    free(x);
  }
}

/* No rank hangs.  A rank outside the group of the failed collective returns NG_OK if it has finished its last step.
 * All other ranks return NG_ERR_COMM. */
static void failing_collectives_end_all_ranks(void **state) {
  const int32_t D = data_ranks(), W = count_stages() * D;
  for (int which = 0; which < 2; which++) {
    int32_t k = 1;
    if (which == 0 && D == 1) continue; /* the stage of this rank has no other rank */
    for (bool fails = true; fails; k++) {
      ng_status each[RANKS];
      test_run *x = run_stages((test_run){.options = BASE " grad_worker_fraction=0",
                                          .who = k % W,
                                          .fail = {which == 0 ? k : 0, which == 1 ? k : 0}},
                               each);
      fails = each[x->who] != NG_OK;
      for (int32_t r = 0; r < W; r++) {
        const bool beside = which == 0 ? r / D == x->who / D : r % D == x->who % D;
        const outcome *o = &x->rank[r];
        const bool done = !beside && o->status[STEPS - 1] == NG_OK && o->nu[STEPS - 1] > 0.0;
        if (each[r] != (fails ? NG_ERR_COMM : NG_OK) && !(each[r] == NG_OK && done))
          fail_msg("collective %d of the %s group: rank %d returned %s: %s", k,
                   which == 0 ? "data" : "stage", r, ng_status_name(each[r]), o->message);
      }
      free(x);
    }
    assert_true(k > 6);
  }
}

/* ---- a stage group on some ranks only --------------------------------------------------------*/

typedef struct partial_group {
  int32_t who; /* the rank with a stage group */
  char why[DATA][512];
} partial_group;

static ng_status give_group_to_one_rank(int32_t rank, ng_transport *t, void *arg) {
  partial_group *x = arg;
  ng_threads *alone;
  ng_transport self;
  fixture f;
  ng_context_config c;
  ng_context_config_init(&c, sizeof c);
  c.threads = 1;
  c.transport = t;
  ng_status st = ng_threads_create(1, &alone);
  if (st == NG_OK) st = ng_threads_transport(alone, 0, &self, sizeof self);
  if (st != NG_OK) return st;
  if (rank == x->who) c.stage_group = &self;
  st = fixture_open(&f, BASE, &(fixture_how){.config = &c});
  float grad[4], weight[4];
  const plane g[2] = {plane_of(grad, 2, 2, NG_F32)}, w[2] = {plane_of(weight, 2, 2, NG_F32)};
  if (st == NG_OK) st = fixture_add_linear(&f, "fc", g, w);
  if (st == NG_OK) st = ng_ready(f.p);
  (void)snprintf(x->why[rank], sizeof x->why[0], "%s", ng_last_error(f.ctx));
  fixture_close(&f);
  ng_threads_destroy(&alone);
  return st;
}

static void stage_groups_on_some_ranks_are_refused(void **state) {
  for (int32_t who = 0; who < DATA; who++) {
    partial_group x = {.who = who};
    ng_status each[DATA];
    (void)ranks_run(DATA, give_group_to_one_rank, &x, each);
    for (int32_t r = 0; r < DATA; r++) {
      assert_int_equal(each[r], NG_ERR_COMM);
      if (x.why[r][0] != 0 && strstr(x.why[r], "stage_group is given on 1 of 2 ranks") == NULL)
        fail_msg("%s", x.why[r]);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_stages_share_one_clip_factor),
      cmocka_unit_test(all_stages_return_one_status),
      cmocka_unit_test(stage_groups_on_some_ranks_are_refused),
      cmocka_unit_test(failing_collectives_end_all_ranks),
  };
  return RANKS_TESTS("stages", tests);
}
