/* t_comm.c: conformance of the transports self, user and threads, and of MPI in its own program (transports.h): the
 * contracts of comm.h and of ng_transport.run, and the bits of sums with threads and MPI.  t_comm_faults.c tests
 * errors. */
#include "draw.h"
#include "transports.h"
#include "unit_test.h"

#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- the contract of comm.h ------------------------------------------------------------------*/

static const ng_dtype summed[] = {NG_F32, NG_F64, NG_F16, NG_BF16};
static const ng_dtype moved[] = {NG_F32, NG_F64, NG_F16, NG_BF16, NG_I32, NG_I64, NG_U8};

/* Return the sum of element i over n ranks. */
static double expected_sum(const int32_t *ranks, int32_t n, int64_t i) {
  double sum = 0.0;
  for (int32_t m = 0; m < n; m++)
    sum += rank_value(ranks[m], i);
  return sum;
}

/* A buffer with the elements of a rank. */
static guarded new_rank_buffer(int64_t count, ng_dtype t, int32_t rank) {
  guarded b = guarded_new(count, t);
  for (int64_t i = 0; i < count; i++)
    put(b.data, t, i, rank_value(rank, i));
  return b;
}

/* Sum, or broadcast from the world rank `root` >= 0; `ranks`: the world ranks of the members. */
static ng_status check_reduction(ng_comm *c, const ng_group *g, const int32_t *ranks, int32_t root,
                                 ng_dtype t, int64_t count) {
  guarded b = new_rank_buffer(count, t, c->rank);
  const int64_t before = c->bytes;
  const ng_status st = root < 0 ? ng_comm_sum(c, g, b.data, count, t)
                                : ng_comm_broadcast(c, g, b.data, count, t, root);
  bool right = guarded_intact(&b);
  for (int64_t i = 0; i < count; i++) {
    const double want = root < 0 ? expected_sum(ranks, g->n, i) : rank_value(root, i);
    right = right && get(b.data, t, i) == want;
  }
  free(b.base);
  DO(st);
  NEED(right);
  NEED(c->bytes - before == (g->n > 1 ? count * ng_dtype_size(t) : 0));
  return NG_OK;
}

static ng_status check_slices(ng_comm *c, const ng_group *g, const int32_t *ranks, ng_dtype t,
                              int32_t pattern, bool gather) {
  int64_t counts[128], total = 0, begin = 0;
  for (int32_t m = 0; m < g->n; m++) {
    counts[m] = element_count(pattern, m);
    if (m == g->index) begin = total;
    total += counts[m];
  }
  guarded b = new_rank_buffer(total, t, c->rank);
  for (int64_t i = 0; i < total && gather; i++) {
    if (i < begin || i >= begin + counts[g->index]) put(b.data, t, i, 77.0);
  }
  const int64_t before = c->bytes;
  const ng_status st =
      gather ? ng_comm_gather(c, g, b.data, counts, t) : scatter_sum(c, g, b.data, counts, t);
  bool right = guarded_intact(&b);
  for (int64_t i = 0, m = 0, end = counts[0]; i < total; i++) {
    while (i >= end)
      end += counts[++m];
    const double want = gather ? rank_value(ranks[m], i) : expected_sum(ranks, g->n, i);
    if (gather || m == g->index) right = right && get(b.data, t, i) == want;
  }
  free(b.base);
  DO(st);
  NEED(right);
  NEED(c->bytes - before == (g->n > 1 ? total * ng_dtype_size(t) : 0));
  return NG_OK;
}

/* Every collective on a group. */
static ng_status check_group(ng_comm *c, const ng_group *g, const int32_t *ranks) {
  static const int64_t count[] = {0, 1, 300};
  NEED(ranks[g->index] == c->rank);
  for (size_t k = 0; k < 3; k++) {
    for (size_t d = 0; d < 4; d++)
      DO(check_reduction(c, g, ranks, -1, summed[d], count[k]));
    for (int32_t m = 0; m < g->n; m++)
      DO(check_reduction(c, g, ranks, ranks[m], moved[(k + (size_t)m) % 7], count[k]));
  }
  for (int32_t pattern = 0; pattern < 3; pattern++) {
    for (size_t d = 0; d < 7; d++) {
      DO(check_slices(c, g, ranks, moved[d], pattern, true));
      if (d < 4) DO(check_slices(c, g, ranks, summed[d], pattern, false));
    }
  }
  return NG_OK;
}

static ng_status check_world(ng_comm *c, const ng_transport *t, const comm_case *how) {
  const ng_group g = ng_group_world(c);
  NEED(g.n == how->n && g.index == c->rank);
  for (int32_t root = 0; root < g.n; root++) {
    for (size_t d = 0; d < 7; d++)
      DO(check_reduction(c, &g, all_ranks, root, moved[d], 33));
  }
  DO(check_group(c, &g, all_ranks));
  if (how->piece) return NG_OK;
  DO(check_reduction(c, &g, all_ranks, -1, NG_F32, 100000));
  DO(check_reduction(c, &g, all_ranks, g.n - 1, NG_U8, 100000));
  DO(check_slices(c, &g, all_ranks, NG_BF16, 3, true));
  return check_slices(c, &g, all_ranks, NG_F64, 3, false);
}

static void world_collectives_are_correct(void **state) { on_all_transports(check_world); }

/* ---- groups ----------------------------------------------------------------------------------*/

/* Write the members of group k of 13: columns and rows of grids with 2 and 3 columns, and an irregular group. */
static int32_t list_group(int32_t k, int32_t n, int32_t *ranks) {
  int32_t count = 0;
  for (int32_t r = 0; r < n; r++) {
    const bool in = k < 2    ? r % 2 == k
                    : k < 6  ? r / 2 == k - 2
                    : k < 9  ? r % 3 == k - 6
                    : k < 12 ? r / 3 == k - 9
                             : r == 0 || r == n - 1 || r == n / 3;
    if (in) ranks[count++] = r;
  }
  return count;
}

static ng_status check_groups(ng_comm *c, const ng_transport *t, const comm_case *how) {
  ng_group g[13];
  int32_t ranks[13][MOST_RANKS];
  for (int32_t k = 0; k < 13; k++) {
    const int32_t n = list_group(k, how->n, ranks[k]);
    g[k] = (ng_group){.index = -1};
    if (n == 0) continue;
    const ng_status st = ng_group_create(c, ranks[k], n, &g[k]);
    if (how->which == USER_NO_GROUPS && n > 1 && n < how->n) {
      NEED(st == NG_ERR_ABSENT); /* later calls work */
      g[k] = (ng_group){.index = -1};
      continue;
    }
    DO(st);
    NEED(g[k].n == n);
    NEED((g[k].handle != NULL) == (n > 1 && n < how->n && g[k].index >= 0));
  }
  /* A call of a rank outside the group does nothing. */
  for (int32_t k = 0; k < 13; k++) {
    if (g[k].index >= 0) {
      DO(check_group(c, &g[k], ranks[k]));
    } else {
      double x = 1.0;
      DO(ng_comm_sum(c, &g[k], &x, 1, NG_F64));
      NEED(x == 1.0);
    }
  }
  /* Disjoint groups with different numbers of calls: column 0 calls three times as often. */
  for (int32_t k = 0; k < 2; k++) {
    for (int32_t turn = 0; g[k].index >= 0 && turn < 90 >> (k * 2); turn++)
      DO(check_reduction(c, &g[k], ranks[k], -1, NG_F32, 5 + turn % 3));
  }
  for (int32_t k = 0; k < 13; k++) {
    ng_group_destroy(c, &g[k]);
    NEED(g[k].handle == NULL && g[k].index < 0);
  }
  const ng_group world = ng_group_world(c);
  return check_reduction(c, &world, all_ranks, -1, NG_F64, 3);
}

static void group_collectives_are_correct(void **state) { on_all_transports(check_groups); }

/* ng_group_create exchanges the ranks of the members in messages of 64. */
static ng_status check_wide_group(int32_t rank, ng_transport *t, void *arg) {
  ng_comm c;
  int32_t ranks[70];
  ng_group g;
  t->kinds = 0;
  DO(ng_comm_init(&c, t, NULL, 0));
  for (int32_t i = 0; i < 67; i++) {
    ranks[i] = i + i / 30; /* without 30 and 61 */
  }
  DO(ng_group_create(&c, ranks, 67, &g));
  NEED((g.index < 0) == (rank == 30 || rank == 61 || rank == 69));
  ng_status st = NG_OK;
  if (g.index >= 0) st = check_slices(&c, &g, ranks, NG_I32, 1, true);
  ng_group_destroy(&c, &g);
  if (st != NG_OK) t->abort(t->user);
  return st;
}

static void a_group_of_67_ranks_is_created(void **state) {
  assert_int_equal(ranks_run(70, check_wide_group, NULL, NULL), NG_OK);
}

static ng_status post_in_pieces(ng_comm *c, const ng_transport *t, const comm_case *how) {
  const ng_group world = ng_group_world(c);
  ng_request q;
  double x[20] = {1.0};
  DO(ng_comm_post_sum(c, &world, x, 20, NG_F64, &q));
  DO(ng_comm_wait(c, &q));
  NEED(x[0] == (double)how->n);
  return check_world(c, t, how);
}

static void no_message_exceeds_the_limit(void **state) {
  for (which w = FIRST_WIRED; w < WHICH; w++) {
    tap taps[MOST_RANKS] = {{.fail_at = 0}};
    comm_case how = {.which = w, .n = at_most_ranks(w, 3), .piece = 7};
    assert_int_equal(run_comm_case(&how, post_in_pieces, taps, NULL), NG_OK);
    assert_int_equal(taps[1].most_elements, 7);
    how.piece = 0; /* without the limit messages are larger */
    assert_int_equal(run_comm_case(&how, post_in_pieces, taps, NULL), NG_OK);
    assert_true(taps[1].most_elements > 7);
  }
}

/* ---- post and wait ---------------------------------------------------------------------------*/

/* After all ranks have posted, rank 0 calls ng_comm_test until the sum is complete on all ranks; each call sums a
 * chunk. Transports without `test` compute the sum in wait or in start. */
static ng_status sum_by_tests(ng_comm *c, const ng_transport *t, const comm_case *how) {
  /* number of chunks; number of elements of these chunks (CHUNK of threads.c) */
  enum { CHUNKS = 5, MANY = CHUNKS << 15 };
  static _Thread_local float x[MANY];
  const ng_group world = ng_group_world(c);
  const bool can = how->which != SELF && t->test != NULL && c->size > 1 && how->piece == 0;
  const bool exact = how->which == THREADS;
  const int64_t many = how->piece == 0 ? MANY : 100; /* pieces of seven need many calls */
  double word = 0.0;
  ng_request q;
  for (int64_t i = 0; i < many; i++)
    x[i] = (float)rank_value(c->rank, i);
  DO(ng_comm_post_sum(c, &world, x, many, NG_F32, &q));
  DO(ng_comm_sum(c, &world, &word, 1, NG_F64));
  int32_t asked = 0;
  for (; c->rank == 0 && can && !q.done; asked++) {
    NEED(!exact || asked <= CHUNKS);
    DO(ng_comm_test(c, &q));
  }
  NEED(c->rank != 0 || !can || !exact || asked == CHUNKS); /* no other rank summed a chunk */
  DO(ng_comm_sum(c, &world, &word, 1, NG_F64));
  /* rank 0 tests the complete request a second time, which has no effect */
  DO(ng_comm_test(c, &q));
  NEED(!can || q.done || (!exact && c->rank != 0));
  if (!can || !q.done) DO(ng_comm_wait(c, &q));
  for (int64_t i = 0; i < many; i++)
    NEED((double)x[i] == expected_sum(all_ranks, c->size, i));
  return ng_comm_wait(c, &q);
}

/* The second of two ranks posts after 100 tests of the first returned "not complete". */
static ng_status test_before_last_post(ng_comm *c, const ng_transport *t, const comm_case *how) {
  atomic_int *asked = how->arg;
  const ng_group world = ng_group_world(c);
  float x = (float)(c->rank + 1);
  ng_request q;
  while (c->rank == 1 && atomic_load(asked) < 100)
    (void)sched_yield();
  DO(ng_comm_post_sum(c, &world, &x, 1, NG_F32, &q));
  for (int k = 0; c->rank == 0 && k < 100; k++) {
    DO(ng_comm_test(c, &q));
    NEED(!q.done && x == 1.0f);
    (void)atomic_fetch_add(asked, 1);
  }
  while (!q.done)
    DO(ng_comm_test(c, &q));
  NEED(x == 3.0f);
  return ng_comm_wait(c, &q);
}

static void a_test_before_all_ranks_posted_is_not_complete(void **state) {
  atomic_int asked = 0;
  const comm_case how = {.which = THREADS, .n = 2, .arg = &asked};
  assert_int_equal(run_comm_case(&how, test_before_last_post, NULL, NULL), NG_OK);
}

static void one_rank_completes_a_posted_sum(void **state) { on_all_transports(sum_by_tests); }

/* Post six sums, long, short and empty, of all ranks and of a group, with a broadcast between.  Every rank waits
 * in another order, and twice for each sum. */
static ng_status post_and_wait(ng_comm *c, const ng_transport *t, const comm_case *how) {
  enum { POSTS = 6, MANY = 20011 };
  static _Thread_local float x[POSTS * MANY];
  const ng_group world = ng_group_world(c);
  const int64_t many = how->piece == 0 ? MANY : 211;
  const int64_t count[POSTS] = {5, many, 0, many, 5, many}; /* number 4: in the group */
  const int32_t last = how->n - 1, most[2] = {0, last};
  ng_group ends = {.index = -1};
  ng_request q[POSTS];
  if (how->which != USER_NO_GROUPS && how->n > 2) DO(ng_group_create(c, most, 2, &ends));
  const int64_t before = c->bytes, grouped = ends.index >= 0 ? 5 : 0;
  for (int64_t i = 0; i < POSTS * MANY; i++)
    x[i] = (float)rank_value(c->rank, i);
  for (int64_t k = 0; k < POSTS; k++) {
    DO(ng_comm_post_sum(c, k == 4 ? &ends : &world, x + k * MANY, count[k], NG_F32, &q[k]));
    if (k == 3) DO(check_reduction(c, &world, all_ranks, last, NG_I64, 5));
  }
  for (int64_t j = 0; j < 2 * POSTS; j++) {
    const int64_t at = j / 2;
    DO(ng_comm_wait(c, &q[c->rank % 2 ? POSTS - 1 - at : (at + 2 * c->rank) % POSTS]));
  }
  for (int64_t i = 0; i < POSTS * MANY; i++) {
    const int64_t k = i / MANY;
    const bool is_summed = i % MANY < count[k] && (k != 4 || ends.index >= 0);
    const double sum = k == 4 ? expected_sum(most, 2, i) : expected_sum(all_ranks, how->n, i);
    NEED((double)x[i] == (is_summed ? sum : rank_value(c->rank, i)));
  }
  ng_group_destroy(c, &ends);
  NEED(c->bytes - before == (how->n > 1 ? (5 + 3 * many + grouped) * 4 + 5 * 8 : 0));
  return NG_OK;
}

/* Nothing to send, and a request struct that was used before: the requests are complete after the post. */
static ng_status post_empty(ng_comm *c, const ng_transport *t, const comm_case *how) {
  const ng_group world = ng_group_world(c);
  const ng_request used = {.started = true};
  float x = 1.0f;
  ng_request q = used;
  DO(ng_comm_post_broadcast(c, &world, &x, 0, NG_F32, 0, &q));
  NEED(q.done && !q.started);
  q = used;
  DO(ng_comm_post_sum(c, &world, &x, 0, NG_F32, &q));
  NEED(q.done && !q.started && x == 1.0f);
  return ng_comm_wait(c, &q);
}

static void posts_overlap_and_complete_in_any_order(void **state) {
  on_all_transports(post_empty);
  on_all_transports(post_and_wait);
}

/* ---- the contract of ng_transport.run itself -------------------------------------------------*/

/* After a call, in place or not, `send` is unchanged and `recv` has the result. */
static ng_status check_run(const ng_transport *t, ng_coll_kind kind, ng_dtype d, bool in_place,
                           int32_t root) {
  int64_t counts[MOST_RANKS], total = 0, begin = 0;
  for (int32_t m = 0; m < t->size; m++) {
    counts[m] = 3 + element_count(1, m);
    if (m == t->rank) begin = total;
    total += counts[m];
  }
  const int64_t mine = counts[t->rank];
  const int64_t sends = kind == NG_ALL_GATHER ? mine : total;
  const int64_t receives = kind == NG_REDUCE_SCATTER ? mine : total;
  guarded whole = guarded_new(total, d), other = guarded_new(receives, d);
  char *send = whole.data, *recv = other.data;
  const int64_t to_part = begin * ng_dtype_size(d);
  if (in_place) recv = send + (kind == NG_REDUCE_SCATTER ? to_part : 0);
  if (in_place && kind == NG_ALL_GATHER) send += to_part;
  for (int64_t i = 0; i < sends; i++)
    put(send, d, i, rank_value(t->rank, i));
  ng_collective c = collective_of(kind, d, send, recv);
  c.root = root;
  c.count = total;
  c.counts = counts;
  const ng_status st = t->run(t->user, &c);
  bool right = guarded_intact(&whole) && guarded_intact(&other), kept = true;
  for (int64_t i = 0; !in_place && i < sends; i++)
    kept = kept && get(send, d, i) == rank_value(t->rank, i);
  for (int64_t i = 0, at = 0, m = 0; i < receives; i++) {
    double want = 0.0;
    if (kind == NG_BROADCAST) {
      want = rank_value(root, i);
    } else if (kind == NG_ALL_GATHER) {
      while (i - at >= counts[m])
        at += counts[m++];
      want = rank_value((int32_t)m, i - at);
    } else {
      want = expected_sum(all_ranks, t->size, kind == NG_REDUCE_SCATTER ? begin + i : i);
    }
    right = right && get(recv, d, i) == want;
  }
  free(whole.base);
  free(other.base);
  DO(st);
  NEED(right && kept);
  return NG_OK;
}

static ng_status check_all_runs(ng_comm *c, const ng_transport *t, const comm_case *how) {
  if (how->which == SELF) return NG_OK; /* no ng_transport.run */
  for (int32_t in_place = 0; in_place < 2; in_place++) {
    for (size_t d = 0; d < 7; d++) {
      if (d < 4) DO(check_run(t, NG_ALL_REDUCE, moved[d], in_place, 0));
      for (int32_t root = 0; root < t->size; root++)
        DO(check_run(t, NG_BROADCAST, moved[d], in_place, root));
      if ((t->kinds >> NG_ALL_GATHER & 1u) == 0) continue;
      if (d < 4) DO(check_run(t, NG_REDUCE_SCATTER, moved[d], in_place, 0));
      DO(check_run(t, NG_ALL_GATHER, moved[d], in_place, 0));
    }
  }
  return NG_OK;
}

static void run_leaves_the_send_buffer(void **state) { on_all_transports(check_all_runs); }

/* ---- threads, MPI: the same bits -------------------------------------------------------------*/

enum { LONG = 70001 }; /* three chunks of threads.c, the last one of odd length */

/* With so different magnitudes a sum depends on its order. */
static double draw_any_magnitude(rng *r) {
  const double x = 2.0 * rng_real(r) - 1.0;
  const int64_t size = rng_below(r, 4);
  return size == 0 ? x : size == 1 ? x * 1e6 : size == 2 ? x * 1e-6 : x * 1e17;
}

/* The oracle adds the ranks' numbers in rank order in double and rounds once. */
static ng_status check_sum_bits(ng_comm *c, const ng_transport *t, const comm_case *how) {
  static _Thread_local double x[LONG], want[LONG], narrow[LONG]; /* narrow: the sums of y */
  static _Thread_local float y[LONG];
  const ng_group world = ng_group_world(c);
  for (int32_t r = 0; r < how->n; r++) {
    rng s = {how->seed + 977u * (uint64_t)r};
    for (int64_t i = 0; i < LONG; i++) {
      const double v = draw_any_magnitude(&s);
      want[i] = r == 0 ? v : want[i] + v;
      narrow[i] = (r == 0 ? 0.0 : narrow[i]) + (double)(float)v;
      if (r == c->rank) x[i] = v;
      if (r == c->rank) y[i] = (float)v;
    }
  }
  DO(ng_comm_sum(c, &world, x, LONG, NG_F64));
  DO(ng_comm_sum(c, &world, y, LONG, NG_F32));
  NEED(memcmp(x, want, sizeof x) == 0);
  for (int64_t i = 0; i < LONG; i++)
    NEED(y[i] == (float)narrow[i]);
  return NG_OK;
}

static void sums_have_the_bits_of_rank_order(void **state) {
  const uint64_t seed = test_seed();
  for (int32_t i = 3; rank_count(LAST_WHICH, i / 3) > 0; i++) { /* three repetitions */
    const comm_case how = {.which = LAST_WHICH, .n = rank_count(LAST_WHICH, i / 3), .seed = seed};
    const ng_status st = run_comm_case(&how, check_sum_bits, NULL, NULL);
    if (st != NG_OK)
      fail_msg("%d ranks: %s; NG_TEST_SEED=%" PRIu64, (int)how.n, ng_status_name(st), seed);
  }
}

/* A large number on rank 0 and ones on the other ranks: a sum in the narrow type would lose the ones.  With 8 ranks
 * 263, 2055 and 16777223 lie half way between two numbers of the type; ties round to even. */
static ng_status check_narrow_sums(ng_comm *c, const ng_transport *t, const comm_case *how) {
  static const ng_dtype type[] = {NG_BF16, NG_F16, NG_F32};
  static const double large[] = {256.0, 2048.0, 16777216.0}, want[] = {264.0, 2056.0, 16777224.0};
  const ng_group world = ng_group_world(c);
  for (size_t k = 0; k < 3; k++) {
    double room, once;
    put(&room, type[k], 0, c->rank == 0 ? large[k] : 1.0);
    DO(ng_comm_sum(c, &world, &room, 1, type[k]));
    put(&once, type[k], 0, large[k] + how->n - 1);
    NEED(get(&room, type[k], 0) == get(&once, type[k], 0));
    NEED(how->n != 8 || get(&room, type[k], 0) == want[k]);
  }
  return NG_OK;
}

static void narrow_sums_are_rounded_once(void **state) {
  const comm_case how = {.which = LAST_WHICH, .n = at_most_ranks(LAST_WHICH, 8)};
  assert_int_equal(run_comm_case(&how, check_narrow_sums, NULL, NULL), NG_OK);
}

/* ---- ranks.h ---------------------------------------------------------------------------------*/

static ng_status return_given_status(int32_t rank, ng_transport *t, void *arg) {
  return t->rank == rank ? ((const ng_status *)arg)[rank] : NG_ERR_STATE;
}

static void ranks_run_returns_the_worst_status(void **state) {
  const ng_status bad[] = {NG_SKIPPED, NG_ERR_ARG, NG_ERR_COMM, NG_OK};
  const ng_status good[] = {NG_OK, NG_SKIPPED, NG_RESCUED};
  ng_status each[4];
  assert_int_equal(ranks_run(4, return_given_status, (void *)(uintptr_t)bad, each), NG_ERR_COMM);
  assert_memory_equal(each, bad, sizeof bad);
  assert_int_equal(ranks_run(3, return_given_status, (void *)(uintptr_t)good, NULL), NG_SKIPPED);
}

/* The MPI program has no tests that need threads in one process. */
int main(void) {
  const struct CMUnitTest tests[] = {
#if !defined(NG_TEST_MPI)
    cmocka_unit_test(ranks_run_returns_the_worst_status),
    cmocka_unit_test(a_group_of_67_ranks_is_created),
    cmocka_unit_test(a_test_before_all_ranks_posted_is_not_complete),
#endif
    cmocka_unit_test(world_collectives_are_correct),
    cmocka_unit_test(group_collectives_are_correct),
    cmocka_unit_test(no_message_exceeds_the_limit),
    cmocka_unit_test(one_rank_completes_a_posted_sum),
    cmocka_unit_test(posts_overlap_and_complete_in_any_order),
    cmocka_unit_test(run_leaves_the_send_buffer),
    cmocka_unit_test(sums_have_the_bits_of_rank_order),
    cmocka_unit_test(narrow_sums_are_rounded_once),
  };
  return RANKS_TESTS("comm", tests);
}
