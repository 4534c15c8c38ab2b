/* t_queue.c: the rule of the queue: a caller reads results, and changes inputs, only after ng_queue_wait.
 *
 * First the rule alone, then every user of a queue: on each backend of the library, and on `late` over this backend.
 * Both must give the same bits. */
#include "unit_test.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plane.h"
#include "late.h"
#include "model/model.h"
#include "ranks.h"
#include "sim.h"

/* ---- the rule of the queue -------------------------------------------------------------------*/

static void entries_are_pending_until_the_wait(void **state) {
  for (int32_t i = 0; test_backend(i) != NULL; i++) {
    ng_queue q = {.backend = test_backend(i), .threads = 1};
    float x[3] = {1.0f, 2.0f, 3.0f};
    int finite = -1;
    assert_true(ng_queue_is_settled(&q));
    ng_linalg(&q)->scale(&q, 3, x, NG_F32, 2.0);
    assert_false(ng_queue_is_settled(&q));
    ng_linalg(&q)->check_finite(&q, 3, x, NG_F32, &finite);
    assert_int_equal(q.pending, 2);
    ng_queue_wait(&q);
    assert_true(ng_queue_is_settled(&q));
    assert_int_equal(ng_read_info(&q, &finite), 1);
    (void)q.backend->linalg->eigen_work(&q, 3, NG_F32); /* a size query is not pending work */
    assert_true(ng_queue_is_settled(&q));
  }
}

static void late_entries_run_in_order_at_the_wait(void **state) {
  ng_queue q = {.backend = &late_ref.backend, .threads = 1};
  float a[3] = {4.0f, 2.0f, 5.0f};
  const ng_sym S = {a, 2};
  const int64_t corner = ng_sym_at(2, 0, 0);
  double trace = -1.0;
  int info = -1;
  a[corner] = 0.0f;
  ng_linalg(&q)->shift_diagonal(&q, 2, a, NG_F32, false, 9.0);
  ng_linalg(&q)->trace(&q, 2, a, NG_F32, false, &trace);
  ng_linalg(&q)->factor(&q, S.n, S.a, NG_F32, &info);
  assert_int_equal(late_waiting(), 3);
  assert_true(info == -1 && trace == -1.0 && a[corner] == 0.0f);
  const double expected = 18.0 + (double)a[ng_sym_at(2, 1, 1)];
  ng_queue_wait(&q);
  assert_int_equal(late_waiting(), 0);
  assert_int_equal(ng_read_info(&q, &info), 0);
  assert_true(*ng_read_numbers(&q, &trace) == expected);
  assert_true(a[corner] == 3.0f);
}

#if defined(NG_DEBUG)
/* Read an info or a number in a child process, with or without waiting.  Return the signal that ended it, or 0. */
static int read_in_child(bool wait, bool number) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    ng_queue q = {.backend = &ng_backend_ref, .threads = 1};
    float a[1] = {4.0f};
    const ng_sym S = {a, 1};
    double trace = 0.0;
    int info = 1;
    (void)close(STDERR_FILENO); /* hide the message of assert */
    (void)signal(SIGABRT, SIG_DFL);
    ng_linalg(&q)->trace(&q, 1, a, NG_F32, false, &trace);
    ng_linalg(&q)->factor(&q, S.n, S.a, NG_F32, &info);
    if (wait) ng_queue_wait(&q);
    const bool right = number ? *ng_read_numbers(&q, &trace) == 4.0 : ng_read_info(&q, &info) == 0;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status)) return WTERMSIG(status);
  assert_int_equal(WEXITSTATUS(status), 0);
  return 0;
}
#endif

static void forgotten_wait_is_noticed(void **state) {
#if defined(NG_DEBUG)
  for (int number = 0; number < 2; number++) {
    assert_int_equal(read_in_child(true, number), 0);
    assert_int_equal(read_in_child(false, number), SIGABRT);
  }
#else
  skip(); /* release builds do not assert; asan, tsan and dev do */
#endif
}

/* In a child process, enqueue entries whose memory faults before the wait, and read a result (0), a result of `store`
 * (1), a number (2), or an array beside a result (3), with or without waiting.  Return the child's exit status. */
static int access_in_child(int what, bool wait) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    ng_queue q = {.backend = &late_ref.backend, .threads = 1};
    float *x = q.backend->alloc(NULL, 64), g[4] = {1.0f, 2.0f, 3.0f, 4.0f}, *to[1];
    double *number = q.backend->alloc(NULL, sizeof *number);
    _Atomic int64_t kept = 0;
    const ng_place grad = {.data = g,
                           .dtype = NG_F32,
                           .has_dense_rows = true,
                           .axes = 1,
                           .row_stride = 2,
                           .extent = {2},
                           .stride = {1}};
    const ng_direction e = {.D = {&grad, 0, 2, 0, 2}, .scale = 2.0, .overflowed = &kept};
    if (freopen("/dev/null", "w", stderr) == NULL) _exit(1);
    if (q.backend->open(&q) != NULL) _exit(1);
    to[0] = x + 4;
    x[0] = 3.0f, x[12] = 5.0f;
    ng_linalg(&q)->scale(&q, 4, x, NG_F32, 2.0);
    ng_kernels(&q)->store_directions(&q, &e, to, 1);
    ng_linalg(&q)->find_largest(&q, 4, x, NG_F32, number);
    if (wait) ng_queue_wait(&q);
    const double is[] = {(double)*(volatile float *)&x[what == 0   ? 0
                                                       : what == 1 ? 7
                                                                   : 12],
                         what == 2 ? *(volatile double *)number : 0.0};
    _exit(is[what == 2] == (double[]){6.0, 8.0, 6.0, 5.0}[what] ? 0 : 1);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

static void access_before_the_wait_ends_process(void **state) {
  for (int what = 0; what < 4; what++) {
    assert_int_equal(access_in_child(what, true), 0);
    assert_int_equal(access_in_child(what, false), what == 3 ? 0 : LATE_FAULT);
  }
}

/* ---- whole steps -----------------------------------------------------------------------------*/

enum { STEPS = 6, RANKS = 3 };

typedef struct comparison {
  sim_setup how;
  const ng_backend *backend[2];   /* the backend itself, and `late` over this backend */
  uint64_t hash[2][RANKS][STEPS]; /* hashes of state, gradients and weights: at once, late */
  atomic_bool unsettled;          /* a public function returned with pending work */
} comparison;

/* Before a step, make an observation that ng_reset_batch discards, and take a step that is skipped. */
static ng_status interrupt_step(sim *s, int64_t k, comparison *b) {
  const ng_layer *l = &s->layer[0];
  const ng_sgd how = fixture_sgd(0.1, 0);
  ng_status st = NG_OK;
  /* these methods do not observe output gradients */
  if (ng_in_list("adasgd|eva-f|mfac|efcp|ggt|lowrank-mfac|topk-adam|topk-adagrad", b->how.method))
    return st;
  for (int skip = 0; skip < 2 && st == NG_OK; skip++) {
    st = sim_begin(s, k);
    const int64_t samples = 4 + s->rank + k % 2;
    for (int64_t i = 0; i < samples * l->in; i++) {
      s->observation[i] = 0.25f * (float)(i % 7);
    }
    if (st == NG_OK && ng_wants(s->p, s->index[0])) {
      const plane a = plane_of(s->observation, samples, l->in, NG_F32);
      const plane g = plane_of(s->observation, samples, l->out, NG_F32);
      st = plane_observe_input(s->p, s->index[0], &a, NG_COPY);
      s->observation[0] = INFINITY;
      if (st == NG_OK && skip) st = plane_observe_output_grad(s->p, s->index[0], &g, NG_COPY);
      if (st == NG_SKIPPED) st = NG_OK; /* observing may already report the Inf */
    }
    if (st != NG_OK) return st;
    st = skip ? fixture_step(&s->f, &how) : ng_reset_batch(s->p);
    if (skip) st = st == NG_SKIPPED ? NG_OK : NG_ERR_STATE;
    if (!ng_queue_is_settled(s->ctx->queue) || late_waiting() > 0) b->unsettled = true;
  }
  return st;
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  comparison *b = arg;
  ng_status st = NG_OK;
  for (int late = 0; late < 2 && st >= NG_OK; late++) {
    sim s;
    sim_setup how = b->how;
    how.backend = b->backend[late];
    st = sim_open(&s, &how, t, NULL);
    if (st == NG_OK && !ng_queue_is_settled(s.ctx->queue)) b->unsettled = true;
    for (int64_t k = 0; k < STEPS && st >= NG_OK; k++) {
      if (k == 2) st = interrupt_step(&s, k, b);
      if (st >= NG_OK) st = sim_step(&s, k);
      if (!ng_queue_is_settled(s.ctx->queue) || late_waiting() > 0) b->unsettled = true;
      b->hash[late][rank][k] =
          sim_hash(sim_fingerprint(&s), s.grad, (size_t)s.weight_count * sizeof *s.grad);
    }
    if (st < NG_OK) {
      fprintf(stderr, "%s %s: %s%s\n", b->how.method, b->how.set, s.message,
              s.ctx ? ng_last_error(s.ctx) : "");
    }
    sim_close(&s);
  }
  return st;
}

static void compare_queues(const sim_setup *how, const ng_backend *on, int32_t ranks) {
  const late_backend late = late_over(on);
  comparison b = {.how = *how, .backend = {on, &late.backend}};
  assert_true(ranks_run(ranks, run_rank, &b, NULL) >= NG_OK);
  for (int32_t r = 0; r < ranks; r++) {
    for (int k = 0; k < STEPS; k++) {
      if (b.hash[0][r][k] != b.hash[1][r][k]) {
        fail_msg("%s %s: %d ranks: step %d differs on rank %d", how->method, how->set, ranks, k, r);
      }
    }
    assert_true(b.hash[0][r][STEPS - 1] != b.hash[0][r][STEPS - 2]);
  }
  if (b.unsettled)
    fail_msg("%s %s, %d ranks: a public function returned before its wait", how->method, how->set,
             ranks);
}

#define PERIODS "stat_period=2 solve_period=3"

static const sim_setup rows[] = {
    {.method = "natgrad", .set = "", .threads = 2},
    {.method = "natgrad", .set = "stat_period=2 solve_period=1 update=sgd"},
    {.method = "natgrad", .set = PERIODS " update=sgd", .micro = 2},
    {.method = "natgrad", .set = "clip=ratio clip_bound=0.1 update=adamw"},
    {.method = "natgrad", .set = "clip=rms clip_bound=0.1 inverse_dtype=f16"},
    {.method = "natgrad", .set = PERIODS " factor_dtype=f64 inverse_dtype=f64 update=sgd"},
    {.method = "natgrad",
     .set = "solver=eigen damping_split=joint factor_dtype=f64 inverse_dtype=f64"},
    {.method = "natgrad", .set = PERIODS " factor_dtype=bf16 inverse_dtype=f16 update=sgd"},
    {.method = "natgrad", .set = "solver=eigen damping_split=joint inverse_dtype=bf16 " PERIODS},
    {.method = "natgrad", .set = "solver=eigen-prediv damping_split=joint update=adamw " PERIODS},
    {.method = "natgrad", .set = "solver=eigen-prediv damping_split=pi inverse_dtype=f16"},
    {.method = "natgrad", .set = "max_factor=8 factor_blocks=2", .vary = SIM_NHWC},
    {.method = "natgrad", .set = "calls=ema stat_start=identity factor_dtype=f16", .micro = 2},
    {.method = "natgrad", .set = "calls=last", .micro = 3},
    {.method = "kaisa", .set = "solver=cholesky damping_split=full factor_dtype=bf16"},
    {.method = "mpd-kfac",
     .set = "solver=cholesky eigen_floor=0 damping_split=pi damping_leak=owner " PERIODS},
    {.method = "dp-kfac", .set = "update=sgd " PERIODS},
    {.method = "eva", .set = "stat_period=2 update=sgd"},
    {.method = "eva-natgrad", .set = "calls=ema", .micro = 2},
    {.method = "eva-f", .set = "clip=ratio clip_bound=0.1 update=sgd"},
    {.method = "adasgd", .set = "update=sgd clip=rms clip_bound=0.1"},
    {.method = "sam", .set = "update=sgd stat_scale=textbook inverse_dtype=bf16 " PERIODS},
    {.method = "sam", .set = "clip=rms clip_bound=0.1"},
    {.method = "eva-kfac", .set = "update=sgd " PERIODS},
    {.method = "mfac", .set = "window=3 update=sgd"},
    {.method = "mfac", .set = "window=3 window_store=topk window_density=0.3 update=adamw"},
    {.method = "efcp", .set = "window=3"},
    {.method = "ggt", .set = "window=3 update=sgd"},
    {.method = "ggt",
     .set = "window=3 window_momentum=0.9 window_momentum_form=gradient stat_period=2"},
    {.method = "mfac", .set = "window=3 stat_period=2 window_scope=parameter window_dtype=bf16"},
    {.method = "efcp",
     .set = "window=3 window_store=topk-layer window_density=0.3 window_fill=added "
            "window_decay=0.1 window_decay_form=direction"},
    {.method = "efcp", .set = "window=3 window_fill=error window_mask=1 window_scope=parameter"},
    {.method = "lowrank-mfac", .set = "window=3 window_rank=1 window_momentum=0.3 update=sgd"},
    {.method = "topk-adam", .set = "window_density=0.3 window_store=topk-layer"},
    {.method = "topk-adagrad", .set = "window_density=0.3 update=sgd"},
    {.method = "kfac-adam", .set = PERIODS},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static void steps_wait_for_their_results(void **state) {
  for (int i = 0; i < ROWS; i++) {
    for (int32_t k = 0; ng_backend_at(k) != NULL; k++) {
      compare_queues(&rows[i], ng_backend_at(k), 1);
    }
  }
}

static void steps_on_ranks_wait_for_their_results(void **state) {
  for (int i = 0; i < ROWS; i++) {
    compare_queues(&rows[i], &ng_backend_ref, 2);
  }
  static const sim_setup spread[] = {
      {.method = "natgrad", .set = "grad_worker_fraction=0 update=sgd"},
      {.method = "kaisa", .set = "grad_worker_fraction=0 " PERIODS},
      {.method = "natgrad", .set = "statistics=local grad_worker_fraction=1"},
      {.method = "natgrad", .set = "wire_dtype=bf16 calls=ema", .micro = 2},
      {.method = "natgrad", .set = "update=sgd update_ranks=owner statistics=owner"},
      {.method = "mfac", .set = "window=3 statistics=sharded stat_period=2"},
      {.method = "efcp", .set = "window=3 statistics=sharded window_density=0.3"},
  };
  for (size_t i = 0; i < sizeof spread / sizeof spread[0]; i++) {
    compare_queues(&spread[i], &ng_backend_ref, RANKS);
  }
}

/* Functions that fail in single precision, by their info or by a wrong result, so that the ladder takes over. */
static void report_failure(ng_queue *q, int64_t n, void *S, ng_dtype t, int *info) {
  if (t == NG_F64) {
    ng_linalg_ref.factor(q, n, S, t, info);
  } else {
    *info = 1;
  }
}
static void return_zeros(ng_queue *q, int64_t n, void *S, ng_dtype t, int *info) {
  if (t == NG_F64) {
    ng_linalg_ref.factor(q, n, S, t, info);
  } else {
    ng_linalg_ref.scale(q, ng_sym_count(n), S, t, 0.0);
    *info = 0;
  }
}
static void return_no_vectors(ng_queue *q, int64_t n, void *V, ng_dtype t, void *w, void *work,
                              int *info) {
  if (t == NG_F64) {
    ng_linalg_ref.eigen(q, n, V, t, w, work, info);
    return;
  }
  memset(V, 0, (size_t)(n * n) * sizeof(float));
  memset(w, 0, (size_t)n * sizeof(float));
  *info = n % 2 == 0;
}

static void fallbacks_wait_for_their_results(void **state) {
  static const sim_setup hard[] = {
      {.method = "natgrad", .set = "factor_dtype=bf16"},
      {.method = "natgrad", .set = "solve_period=1 inverse_dtype=bf16"},
      {.method = "natgrad", .set = "solver=eigen damping_split=joint factor_dtype=f16"},
  };
  for (int way = 0; way < 2; way++) {
    ng_linalg_ops linalg = ng_linalg_ref;
    linalg.factor = way == 0 ? report_failure : return_zeros;
    linalg.eigen = return_no_vectors;
    ng_backend broken = ng_backend_ref;
    broken.linalg = &linalg;
    for (size_t i = 0; i < sizeof hard / sizeof hard[0]; i++) {
      compare_queues(&hard[i], &broken, 1);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(entries_are_pending_until_the_wait),
      cmocka_unit_test(late_entries_run_in_order_at_the_wait),
      cmocka_unit_test(forgotten_wait_is_noticed),
      cmocka_unit_test(access_before_the_wait_ends_process),
      cmocka_unit_test(steps_wait_for_their_results),
      cmocka_unit_test(steps_on_ranks_wait_for_their_results),
      cmocka_unit_test(fallbacks_wait_for_their_results),
  };
  return cmocka_run_group_tests_name("queue", tests, NULL, NULL);
}
