/* t_plan_places.c: what each rank holds and sends under every placement and fraction, planned, against the published
 * formula (KAISA, SC'21, arXiv 2107.01739: averages of all layers, results of the layers of its column), with one
 * triangle of a symmetric matrix instead of all of it, pieces rounded up to 64 bytes, and averages on their owners
 * where they are nowhere else.  Columns and owners are those of the pure assignment, of which t_assign has examples.
 * That planned bytes are counted bytes is t_plan's. */
#include "fixture.h"
#include "model/assign.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 7, W = 12 };
static const int64_t order[LAYERS][2] = {{147, 64}, {577, 30}, {33, 10}, {90, 90},
                                         {64, 256}, {20, 21},  {300, 12}};
static const char *const name[LAYERS] = {"f", "b", "a", "e", "c", "g", "d"};

/* What a rank keeps of a block that it preconditions: inverses; eigenvectors and eigenvalues; and what is divided by. */
typedef enum kept { INVERSES, BASES } kept;

typedef struct plan_case {
  ng_placement placement;
  const char *text; /* of the options, but for the fraction; %s: the placement's name */
  int32_t m;
  bool together;
  const char *statistics;
  kept kept;
  int64_t inverse, factor; /* bytes of a number; 0: 4 */
} plan_case;

static int64_t piece(int64_t bytes) { return (bytes + 63) / 64 * 64; }
static int64_t triangle(int64_t n, int64_t size) { return piece(n * (n + 1) / 2 * size); }
static double cube(int64_t n) { return (double)n * (double)n * (double)n; }

/* The same with the library's inputs written down again: n^3, products of each step, 20 / solve_period. */
static void assign(const plan_case *c, ng_work work[LAYERS], ng_task task[LAYERS][2]) {
  ng_assignment a = {.placement = c->placement,
                     .together = c->together,
                     .m = c->m,
                     .n = W / c->m,
                     .weight = 20.0 / 50,
                     .work = work,
                     .works = LAYERS,
                     .tasks = 2 * LAYERS};
  for (int i = 0; i < LAYERS; i++) {
    const int64_t p = order[i][0], q = order[i][1];
    task[i][0] = (ng_task){.name = "A", .cost = cube(p)};
    task[i][1] = (ng_task){.name = "G", .cost = cube(q)};
    work[i] = (ng_work){
        .name = name[i], .task = task[i], .tasks = 2, .each = 2.0 * (double)(p * q * (p + q))};
  }
  a.room = malloc(ng_assign_room(&a));
  assert_non_null(a.room);
  ng_assign(&a);
  free(a.room);
}

/* Of one side of a layer, with a line that says how the solve went; eigenvalues are f32. */
static int64_t results_of(const plan_case *c, int i, int k) {
  const int64_t n = order[i][k], size = c->inverse > 0 ? c->inverse : 4;
  if (c->kept == INVERSES) return triangle(n, size) + 64;
  return piece(n * n * size) + piece(n * 4) + 64;
}

static void check(const plan_case *c) {
  char options[256];
  ng_work work[LAYERS];
  ng_task task[LAYERS][2];
  fixture f;
  const bool all = strcmp(c->statistics, "all") == 0, local = strcmp(c->statistics, "local") == 0;
  const bool owner = !all && !local;
  (void)snprintf(options, sizeof options, "%s grad_worker_fraction=%.17g", c->text,
                 (double)c->m / W);
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
        if (all || own) want.factors += triangle(order[i][k], c->factor > 0 ? c->factor : 4);
        if (!local || own) want.sums += triangle(order[i][k], 4);
        if (held) want.results += results_of(c, i, k);
        want.solve_cost += own ? cube(order[i][k]) : 0;
        if (c->m > 1) want.share_bytes += held ? results_of(c, i, k) : 0;
      }
      /* a mean of A and one of G, to the other's owner */
      if (held && owner && task[i][0].owner != task[i][1].owner) want.trace_bytes += 16;
      const int64_t pd = piece(order[i][0] * order[i][1] * 4);
      want.direction += pd;
      if (c->m < W) want.deliver_bytes += pd;
      want.held += held;
      want.owned += work[i].owner == r;
    }
    const struct {
      const char *what;
      int64_t is, should;
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
      if (row[i].is != row[i].should)
        fail_msg("%s, rank %d: %s is %lld, expected %lld", options, r, row[i].what,
                 (long long)row[i].is, (long long)row[i].should);
    }
    if (local) assert_int_equal(plan.sums_bytes, 0);
  }
  fixture_close(&f);
}

static void as_published(void **state) {
  (void)state;
  static const struct {
    ng_placement placement;
    const char *text;
  } row[] = {{NG_PLACEMENT_ROUND_ROBIN, "round-robin"},
             {NG_PLACEMENT_KAISA, "kaisa"},
             {NG_PLACEMENT_MPD_KFAC, "mpd-kfac"},
             {NG_PLACEMENT_CONTIGUOUS, "contiguous"},
             {NG_PLACEMENT_SPNGD, "spngd"},
             {NG_PLACEMENT_BALANCED, "balanced"}};
  static const char *const statistics[] = {"all", "owner", "local"};
  int checked = 0;
  for (int32_t m = 1; m <= W; m++) {
    for (int k = 0; k < 6 * 3 * 2 && W % m == 0; k++) {
      char text[256];
      plan_case c = {.placement = row[k % 6].placement,
                     .text = text,
                     .m = m,
                     .together = k / 18 == 0,
                     .statistics = statistics[k / 6 % 3]};
      (void)snprintf(text, sizeof text,
                     "method=natgrad solve_period=50 stat_bucket_mb=1000 "
                     "placement=%s colocate=%d statistics=%s",
                     row[k % 6].text, c.together, c.statistics);
      const bool one = strcmp(c.statistics, "local") == 0;
      if (!c.together && (c.placement == NG_PLACEMENT_SPNGD || (one && m > 1))) continue;
      /* takes A and G apart by itself where there are more ranks than layers, and their sums are of all samples */
      if (c.placement == NG_PLACEMENT_MPD_KFAC && one) c.placement = NG_PLACEMENT_ROUND_ROBIN;
      check(&c);
      checked++;
    }
  }
  assert_true(checked > 100);
}

/* The published rows as they are, and what their arguments make of them; COMM-OPT, HYBRID-OPT and MEM-OPT where they have the
 * choice (fraction 0: they have none). */
static void methods_hold_what_they_say(void **state) {
  (void)state;
  static const struct {
    plan_case c;
    bool any_fraction;
  } row[] = {
      {{NG_PLACEMENT_KAISA, "method=kaisa", 0, true, "all", BASES, 0, 0}, true},
      {{NG_PLACEMENT_KAISA, "method=kaisa inverse_dtype=bf16 factor_dtype=f16", 0, true, "all",
        BASES, 2, 2},
       true},
      {{NG_PLACEMENT_KAISA, "method=kaisa prediv=0", 0, true, "all", BASES, 0, 0}, true},
      {{NG_PLACEMENT_KAISA, "method=kaisa prediv=0 colocate=0", 0, false, "all", BASES, 0, 0},
       true},
      {{NG_PLACEMENT_KAISA,
        "method=kaisa solver=cholesky prediv=0 damping_split=full solve_period=50 "
        "inverse_dtype=bf16",
        0, true, "all", INVERSES, 2, 0},
       true},
      {{NG_PLACEMENT_MPD_KFAC, "method=mpd-kfac", 12, true, "all", BASES, 0, 0}, false},
      {{NG_PLACEMENT_ROUND_ROBIN, "method=mpd-kfac placement=round-robin", 12, true, "all", BASES,
        0, 0},
       false},
      {{NG_PLACEMENT_ROUND_ROBIN, "method=dp-kfac", 1, true, "local", BASES, 0, 0}, false},
      {{NG_PLACEMENT_SPNGD, "method=spngd solve_period=50", 1, true, "owner", INVERSES, 0, 0},
       false},
      {{NG_PLACEMENT_BALANCED, "method=natgrad solve_period=50", 0, true, "all", INVERSES, 0, 0},
       true}};
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    for (int32_t m = 1; m <= W; m++) {
      plan_case c = row[i].c;
      char text[256];
      if (W % m != 0 || (!row[i].any_fraction && m != c.m)) continue;
      c.m = m;
      (void)snprintf(text, sizeof text, "%s stat_bucket_mb=1000", row[i].c.text);
      c.text = text;
      check(&c);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(as_published),
                                     cmocka_unit_test(methods_hold_what_they_say)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
