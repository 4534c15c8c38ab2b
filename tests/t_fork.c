/* t_fork.c: a context after fork().  Calls of the child fail with one message; the child destroys its copies without
 * waiting, and creates its own context.  Nothing changes for the parent and for other ranks.
 *
 * A child never asserts: its exit code is the line of the first failure (modulo 200, and 1 instead of 0), or a signal
 * ends it if it hangs. */
#include "unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/core.h"
#include "draw.h"
#include "fixture.h"
#include "ranks.h"

enum { B = 4, IN = 6, OUT = 5, STEPS = 3, RANKS = 4 };

#define CHILD(x)                                                                                   \
  do {                                                                                             \
    if (!(x)) return __LINE__ % 200 == 0 ? 1 : __LINE__ % 200;                                     \
  } while (0)

typedef struct model {
  fixture f;
  float a[B * IN], g[B * OUT], w[OUT * IN], grad[OUT * IN];
} model;

static ng_status open_model(model *m, const char *options, const fixture_how *how) {
  rng_fill(&(rng){3}, m->w, OUT * IN);
  rng_fill(&(rng){4}, m->grad, OUT * IN);
  ng_status st = fixture_open(&m->f, options, how);
  if (st == NG_OK)
    st = fixture_add_entries(&m->f, &(fixture_entry){"fc", OUT, IN, false}, 1, m->grad, m->w);
  return st == NG_OK ? ng_ready(m->f.p) : st;
}

static ng_status observe(model *m, int step) {
  rng_fill(&(rng){10 + (uint64_t)step}, m->a, B * IN);
  rng_fill(&(rng){20 + (uint64_t)step}, m->g, B * OUT);
  const plane a = plane_of(m->a, B, IN, NG_F32), g = plane_of(m->g, B, OUT, NG_F32);
  return fixture_begin_and_observe(&m->f, B, 0, &a, &g);
}

static ng_status take_step(model *m, int step) {
  const ng_sgd how = fixture_sgd(0.1, 0.9);
  const ng_status st = observe(m, step);
  return st == NG_OK ? ng_step_sgd(m->f.p, &how, 1) : st;
}

/* ---- in the child ----------------------------------------------------------------------------*/

static bool is_refused(const ng_context *ctx, ng_status st, pid_t parent) {
  char line[128];
  (void)snprintf(line, sizeof line,
                 "this context belongs to process %lld; create a context in this process",
                 (long long)parent);
  const bool fits = st == NG_ERR_STATE && strcmp(ng_last_error(ctx), line) == 0;
  if (!fits) fprintf(stderr, "child: %s: '%s'\n", ng_status_name(st), ng_last_error(ctx));
  return fits;
}

/* Every kind of call fails. */
static int check_all_refused(model *m, pid_t parent) {
  ng_context *ctx = m->f.ctx;
  ng_precond *p = m->f.p, *other = NULL;
  const ng_batch batch = batch_of(B);
  char value[64];
  int32_t index;
  const ng_sgd how = fixture_sgd(0.1, 0.9);
  const plane a = plane_of(m->a, B, IN, NG_F32), g = plane_of(m->g, B, OUT, NG_F32);
  const plane grad = plane_of(m->grad, OUT, IN, NG_F32);
  CHILD(is_refused(ctx, ng_precond_create(ctx, NULL, &other), parent) && other == NULL);
  CHILD(is_refused(ctx, ng_add_linear(p, "two", 2, 2, 0, &index), parent));
  CHILD(is_refused(ctx, ng_add_tensor(p, "three", 2, &index), parent));
  CHILD(is_refused(ctx, plane_bind_grad(p, 0, NG_WEIGHT, &grad), parent));
  CHILD(is_refused(ctx, plane_bind_weight(p, 0, NG_WEIGHT, &grad), parent));
  CHILD(is_refused(ctx, ng_bind(p, NULL, 0), parent));
  CHILD(is_refused(ctx, ng_freeze(p, 0, 1), parent));
  CHILD(is_refused(ctx, ng_set_group(p, 0, NG_BOTH, 0), parent));
  CHILD(is_refused(ctx, ng_ready(p), parent));
  CHILD(is_refused(ctx, ng_begin(p, &batch), parent));
  CHILD(ng_wants(p, 0) == 0);
  CHILD(is_refused(ctx, plane_observe_input(p, 0, &a, NG_COPY), parent));
  CHILD(is_refused(ctx, plane_observe_output_grad(p, 0, &g, NG_COPY), parent));
  CHILD(is_refused(ctx, ng_reset_batch(p), parent));
  CHILD(is_refused(ctx, ng_step(p, 0.1), parent));
  CHILD(is_refused(ctx, ng_step_sgd(p, &how, 1), parent));
  CHILD(is_refused(ctx, ng_set(p, "damping", "0.5"), parent));
  CHILD(is_refused(ctx, ng_set_real(p, "damping", 0.5), parent));
  CHILD(is_refused(ctx, ng_get(p, "damping", value, sizeof value), parent));
  CHILD(is_refused(ctx, ng_save(p, "/nonexistent/fork"), parent));
  CHILD(is_refused(ctx, ng_load(p, "/nonexistent/fork"), parent));
  ng_report r = {.struct_size = sizeof r};
  CHILD(is_refused(ctx, ng_report_read(p, &r), parent));
  CHILD(ng_context_threads(ctx) >= 1);
  return 0;
}

/* Train with a new context of the child. */
static int train_own_model(int32_t threads, const model *parent) {
  model m = {.f = {.p = NULL}};
  CHILD(open_model(&m, "method=eva update=sgd",
                   &(fixture_how){.linalg = "ref", .threads = threads}) == NG_OK);
  for (int s = 0; s < STEPS; s++) {
    CHILD(take_step(&m, s) == NG_OK);
  }
  CHILD(memcmp(m.w, parent->w, sizeof m.w) != 0); /* the parent has made one step less */
  fixture_close(&m.f);
  return 0;
}

static int test_in_child(model *m, allocator *memory, int32_t threads, pid_t parent) {
  const int64_t before = memory->held;
  int line = check_all_refused(m, parent);
#if defined(__SANITIZE_THREAD__)
  threads = 1; /* the thread sanitizer does not support threads of a child */
#endif
  if (line == 0) line = train_own_model(threads, m);
  if (line != 0) return line;
  CHILD(memory->held == before); /* no memory was freed */
  fixture_close(&m->f);
  CHILD(m->f.p == NULL && m->f.ctx == NULL && memory->held == 0);
  return 0;
}

/* ---- the parent ------------------------------------------------------------------------------*/

static void must_end_well(pid_t child) {
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status)) fail_msg("the child was ended by signal %d", WTERMSIG(status));
  if (WEXITSTATUS(status) != 0)
    fail_msg("the child failed in line %d (modulo 200)", WEXITSTATUS(status));
}

/* `numbered`: detect a fork by process id only, as on systems without MADV_WIPEONFORK. */
static void check_fork(int32_t threads, bool numbered) {
  model plain = {.f = {.p = NULL}}, m = {.f = {.p = NULL}};
  allocator memory = {0};
  const ng_context_config c = allocator_config(&memory);
  const fixture_how how = {.linalg = "ref", .threads = threads, .config = &c};
  fixture_ok(&plain.f, open_model(&plain, "method=eva update=sgd",
                                  &(fixture_how){.linalg = "ref", .threads = threads}));
  fixture_ok(&m.f, open_model(&m, "method=eva update=sgd", &how));
  if (numbered) ng_process_unmark(m.f.ctx);
  for (int s = 0; s < STEPS; s++) {
    fixture_ok(&plain.f, take_step(&plain, s));
    fixture_ok(&m.f, observe(&m, s));
    if (s == STEPS - 1) { /* fork within a step */
      const pid_t parent = getpid(), child = fork();
      if (child == 0) {
        (void)alarm((unsigned)ranks_timeout_seconds());
        _exit(test_in_child(&m, &memory, threads, parent));
      }
      must_end_well(child);
    }
    const ng_sgd sgd = fixture_sgd(0.1, 0.9);
    fixture_ok(&m.f, ng_step_sgd(m.f.p, &sgd, 1));
  }
  assert_memory_equal(m.w, plain.w, sizeof m.w);
  fixture_close(&m.f);
  fixture_close(&plain.f);
  assert_int_equal(memory.held, 0);
}

static void a_child_may_only_destroy_its_copies(void **state) {
  for (int32_t threads = 1; threads <= 2; threads++) {
    check_fork(threads, false);
    check_fork(threads, true);
  }
}

/* ---- ranks -----------------------------------------------------------------------------------*/

/* A grid of two by two ranks; the child must not destroy its groups, which the ranks still use. */
typedef struct fork_run {
  pid_t child;
  void (*destroy)(void *user, void *group); /* the original function of the transport */
  float w[RANKS][OUT * IN];
} fork_run;

/* In a child, group_destroy would change data of the parent's ranks, or wait for a lock for ever. */
static _Thread_local fork_run *current;
static _Thread_local int destroyed;
static void count_group_destroy(void *user, void *group) {
  destroyed++;
  current->destroy(user, group);
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  fork_run *all = arg;
  ng_transport mine = *t;
  model m = {.f = {.p = NULL}};
  current = all;
  mine.group_destroy = count_group_destroy;
  ng_status st = open_model(&m, "method=natgrad grad_worker_fraction=0.5 update=sgd",
                            &(fixture_how){.linalg = "ref", .threads = 1, .transport = &mine});
  for (int s = 0; s < STEPS && st == NG_OK; s++) {
    if (rank == 0 && s == 1) {
      (void)usleep(50000); /* wait until the other ranks wait in their step */
      all->child = fork();
      if (all->child == 0) {
        (void)alarm((unsigned)ranks_timeout_seconds());
        const int before = destroyed, bad = ng_step(m.f.p, 0.1) != NG_ERR_STATE;
        fixture_close(&m.f);
        _exit(bad ? 1 : destroyed > before ? 2 : 0);
      }
    }
    st = take_step(&m, s);
  }
  memcpy(all->w[rank], m.w, sizeof m.w);
  fixture_close(&m.f);
  return st == NG_OK && destroyed == 0 ? NG_ERR_STATE
                                       : st; /* groups were destroyed after the run */
}

static void a_child_leaves_the_groups_of_the_ranks(void **state) {
  fork_run *all = calloc(1, sizeof *all);
  assert_non_null(all);
  ng_threads *group;
  ng_transport t[RANKS];
  assert_int_equal(ng_threads_create(RANKS, &group), NG_OK);
  for (int32_t r = 0; r < RANKS; r++) {
    assert_int_equal(ng_threads_transport(group, r, &t[r], sizeof t[r]), NG_OK);
  }
  all->destroy = t[0].group_destroy;
  assert_int_equal(ranks_run_on(RANKS, t, run_rank, all, NULL), NG_OK);
  ng_threads_destroy(&group);
  must_end_well(all->child);
  for (int r = 1; r < RANKS; r++) {
    assert_memory_equal(all->w[0], all->w[r], sizeof all->w[0]);
  }
  free(all);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_child_may_only_destroy_its_copies),
                                     cmocka_unit_test(a_child_leaves_the_groups_of_the_ranks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
