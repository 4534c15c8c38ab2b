/* t_plan_places.c: the planned memory and messages of each rank under every placement and fraction, against the
 * published formula (KAISA, SC'21, arXiv 2107.01739): averages of all layers, results of the layers of its column.
 * Differences: one triangle of a symmetric matrix, pieces rounded up to 64 bytes, averages on their owners with
 * statistics = owner or local.  Columns and owners come from ng_assign, which t_assign tests.  t_plan compares
 * planned with counted bytes. */
#include "fixture.h"
#include "model/assign.h"
#include "model/model.h"
#include "unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 7, W = 12 };
static const int64_t order[LAYERS][2] = {{147, 64}, {577, 30}, {33, 10}, {90, 90},
                                         {64, 256}, {20, 21},  {300, 12}};
static const char *const name[LAYERS] = {"f", "b", "a", "e", "c", "g", "d"};

typedef struct plan_case {
  ng_placement placement;
  const char *name;
  int32_t m;
  bool together;
  const char *statistics;
} plan_case;

static int64_t round_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }
static int64_t triangle_bytes(int64_t n) { return round_up(4 * (n * (n + 1) / 2)); }
/* The bytes of an inverse and of the cache line that describes its solve. */
static int64_t result_bytes(int64_t n) { return triangle_bytes(n) + 64; }
static double cube(int64_t n) { return (double)n * (double)n * (double)n; }

/* Assign blocks to ranks from inputs computed here: solve costs n^3 (n^2 if placed by memory), the cost of the products
 * of each step, and the weight 20 / solve_period. */
static void assign(const plan_case *c, ng_assign_block work[LAYERS], ng_task task[LAYERS][2]) {
  ng_assignment a = {.placement = c->placement,
                     .one_owner = c->together,
                     .m = c->m,
                     .n = W / c->m,
                     .weight = 20.0 / 50,
                     .block = work,
                     .blocks = LAYERS,
                     .tasks = 2 * LAYERS};
  for (int i = 0; i < LAYERS; i++) {
    const int64_t p = order[i][0], q = order[i][1];
    const bool memory = c->placement == NG_PLACEMENT_KAISA_MEMORY;
    task[i][0] = (ng_task){.name = "A", .cost = memory ? (double)(p * p) : cube(p)};
    task[i][1] = (ng_task){.name = "G", .cost = memory ? (double)(q * q) : cube(q)};
    work[i] = (ng_assign_block){
        .name = name[i], .task = task[i], .tasks = 2, .step_cost = 2.0 * (double)(p * q * (p + q))};
  }
  a.scratch = malloc(ng_assign_scratch(&a));
  assert_non_null(a.scratch);
  ng_assign(&a);
  free(a.scratch);
}

static void expect_plan(const plan_case *c) {
  char options[256];
  ng_assign_block work[LAYERS];
  ng_task task[LAYERS][2];
  fixture f;
  const bool all = strcmp(c->statistics, "all") == 0, local = strcmp(c->statistics, "local") == 0;
  const bool owner = !all && !local;
  (void)snprintf(
      options, sizeof options,
      "method=natgrad gradient_rows=0 solve_period=50 stat_bucket_mb=1000 placement=%s colocate=%d "
      "statistics=%s grad_worker_fraction=%.17g",
      c->name, c->together, c->statistics, (double)c->m / W);
  assert_int_equal(fixture_open(&f, options, &(fixture_how){.threads = 1}), NG_OK);
  for (int i = 0; i < LAYERS; i++)
    fixture_ok(&f, ng_add_linear(f.p, name[i], order[i][0], order[i][1], 0, NULL));
  assign(c, work, task);
  for (int32_t r = 0; r < W; r++) {
    ng_rank_plan plan, want;
    plan = (ng_rank_plan){.struct_size = sizeof plan};
    memset(&want, 0, sizeof want);
    fixture_ok(&f, ng_plan_ranks(f.p, W, r, 1, &plan));
    for (int i = 0; i < LAYERS; i++) {
      const bool held = r % (W / c->m) == work[i].column;
      for (int k = 0; k < 2; k++) {
        const bool own = task[i][k].owner == r;
        if (all || own) want.factors += triangle_bytes(order[i][k]);
        if (!local || own) want.sums += triangle_bytes(order[i][k]);
        if (held) want.results += result_bytes(order[i][k]);
        want.solve_cost += own ? cube(order[i][k]) : 0;
        if (c->m > 1) want.share_bytes += held ? result_bytes(order[i][k]) : 0;
      }
      /* the traces of A and G are sent to the owner of the other side */
      if (held && owner && task[i][0].owner != task[i][1].owner) want.trace_bytes += 16;
      const int64_t pd = round_up(order[i][0] * order[i][1] * 4);
      want.direction += pd;
      if (c->m < W) want.deliver_bytes += pd;
      want.held += held;
      want.owned += work[i].owner == r;
    }
    const struct {
      const char *what;
      int64_t planned, expected;
    } row[] = {{"factors", plan.factors, want.factors},
               {"sums", plan.sums, want.sums},
               {"results", plan.results, want.results},
               {"direction", plan.direction, want.direction},
               {"share", plan.share_bytes, want.share_bytes},
               {"deliver", plan.deliver_bytes, want.deliver_bytes},
               {"tell", plan.trace_bytes, want.trace_bytes},
               {"held", plan.held, want.held},
               {"owned", plan.owned, want.owned},
               {"scattered", plan.scatter_bytes, all || local ? 0 : plan.sums_bytes},
               {"solve", (int64_t)plan.solve_cost, (int64_t)want.solve_cost}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
      if (row[i].planned != row[i].expected)
        fail_msg("%s, rank %d: %s is %lld, expected %lld", options, r, row[i].what,
                 (long long)row[i].planned, (long long)row[i].expected);
    }
    if (local) assert_int_equal(plan.sums_bytes, 0);
  }
  fixture_close(&f);
}

static void plans_match_the_published_formula(void **state) {
  static const struct {
    ng_placement placement;
    const char *name;
  } row[] = {{NG_PLACEMENT_ROUND_ROBIN, "round-robin"},
             {NG_PLACEMENT_KAISA, "kaisa"},
             {NG_PLACEMENT_MPD_KFAC, "mpd-kfac"},
             {NG_PLACEMENT_CONTIGUOUS, "contiguous"},
             {NG_PLACEMENT_SPNGD, "spngd"},
             {NG_PLACEMENT_BALANCED, "balanced"},
             {NG_PLACEMENT_KAISA_MEMORY, "kaisa-memory"}};
  static const char *const statistics[] = {"all", "owner", "local"};
  int checked = 0;
  for (int32_t m = 1; m <= W; m++) {
    for (int k = 0; k < 7 * 3 * 2 && W % m == 0; k++) {
      plan_case c = {.placement = row[k % 7].placement,
                     .name = row[k % 7].name,
                     .m = m,
                     .together = k / 21 == 0,
                     .statistics = statistics[k / 7 % 3]};
      const bool one = strcmp(c.statistics, "local") == 0;
      if (!c.together && (c.placement == NG_PLACEMENT_SPNGD || (one && m > 1))) continue;
      /* mpd-kfac separates A and G if there are more ranks than layers, but local sums need one owner */
      if (c.placement == NG_PLACEMENT_MPD_KFAC && one) c.placement = NG_PLACEMENT_ROUND_ROBIN;
      expect_plan(&c);
      checked++;
    }
  }
  assert_true(checked > 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(plans_match_the_published_formula)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
