/* t_placements.c: the placement changes memory, time and messages, but no results: every placement, A and G of a
 * layer on one rank or two, every allowed grad_worker_fraction, averages on all ranks or on owners.  Results also
 * equal one rank with the whole batch, for rows that promise this.
 *
 * Tolerance: the clip sums blocks by owner, so nu may differ in the last bit of a double, and PD in the last bit
 * of an f32. */
#include "families.h"
#include "ranks.h"
#include "unit_test.h"

#include <stdio.h>
#include <string.h>

#if defined(NG_TEST_MPI)
enum { RANK_COUNTS = 1 };
static int32_t rank_count(int k) { return k == 0 ? ranks_process_count() : 0; }
#else
static const int32_t rank_counts[] = {2, 3, 4, 8};
enum { RANK_COUNTS = sizeof rank_counts / sizeof rank_counts[0] };
static int32_t rank_count(int k) { return rank_counts[k]; }
#endif

/* Ways to divide the work.  The first has the row's options with grad_worker_fraction = 0. */
typedef struct division {
  int32_t placement, workers;
  bool colocate, owner;
} division;

static const char *const placement[] = {"round-robin", "kaisa", "mpd-kfac",
                                        "contiguous",  "spngd", "balanced"};
enum { PLACEMENTS = sizeof placement / sizeof placement[0] };

/* A norm block has no results to send to other workers, except its whole matrix. */
static bool is_valid_division(const variant *v, const ng_options *o, division w, int32_t ranks) {
  const bool norms = strstr(v->f->name, "norm") != NULL && strstr(v->f->name, "full") == NULL;
  if (ranks % w.workers != 0) return false;
  if (w.owner && o->base.statistics != NG_STATISTICS_ALL)
    return false; /* the row sets another value */
  if (w.owner && norms && w.workers > 1) return false;
  return w.colocate || strcmp(placement[w.placement], "spngd") != 0;
}

static void set_division(ng_options *o, division w, int32_t ranks) {
  fixture_set(o, "placement", placement[w.placement]);
  fixture_set(o, "colocate", w.colocate ? "1" : "0");
  if (w.owner) fixture_set(o, "statistics", "owner");
  fixture_set_real(o, "grad_worker_fraction", (double)w.workers / ranks);
}

/* Compare all ways with the first, and the first with `whole` unless it is NULL. */
static void compare_all_divisions(const variant *v, const test_case *s, const ng_options *usual,
                                  const case_result *whole, double tolerance) {
  case_result first = {.status = NG_OK};
  int runs = 0;
  const int32_t half = 2 * PLACEMENTS * s->ranks;
  for (int32_t k = 0; k < 2 * half; k++) {
    const division w = {k / 2 % PLACEMENTS, 1 + k % half / 2 / PLACEMENTS, k % 2 == 0, k >= half};
    ng_options o = *usual;
    if (!is_valid_division(v, usual, w, s->ranks)) continue;
    char what[96];
    (void)snprintf(what, sizeof what, "%d ranks, %d workers, placement=%s colocate=%d%s", s->ranks,
                   w.workers, placement[w.placement], w.colocate, w.owner ? " owner" : "");
    set_division(&o, w, s->ranks);
    case_result r = v_run(v, s, &o);
    if (runs++ == 0) {
      first = r;
      continue;
    }
    v_must_match(v, what, s, &r, &first, 2 * unit);
    case_free_result(&r);
  }
  assert_true(runs > PLACEMENTS);
  if (whole != NULL) v_must_match(v, "one rank with the whole batch", s, &first, whole, tolerance);
  case_free_result(&first);
}

/* For one row per solver and per kind of block, without DP-KFAC, whose statistics are the owner's samples.  Shards are
 * uneven if the row supports it. */
static void placements_change_no_result(const variant *v) {
  ng_options usual = v_options(v);
  static const char *const row[] = {"natgrad, cholesky, pi",
                                    "natgrad, eigen, joint",
                                    "natgrad, eigen, pi",
                                    "kaisa",
                                    "mpd-kfac",
                                    "mpd-kfac, inverse",
                                    "sam",
                                    "spngd",
                                    "spngd, raw batch norms and tokens",
                                    "natgrad, norm units and tokens",
                                    "natgrad, full norms and tokens"};
  bool listed = false;
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
    listed = listed || strcmp(v->f->name, row[i]) == 0;
  if (!listed) return;
  const bool merges = v->f->shards == ANY_PARTS;
  /* damping_leak = owner adds more damping on an owner than on ranks that sum a share */
  if (strcmp(v->f->name, "mpd-kfac, inverse") == 0) fixture_set(&usual, "statistics", "owner");
  const bool all =
      merges && strcmp(v->linalg, "ref") == 0 &&
      (strcmp(v->f->name, "natgrad, cholesky, pi") == 0 || strncmp(v->f->name, "spngd", 5) == 0);
  for (int k = 0; k < RANK_COUNTS; k++) {
    /* natgrad and spngd on all numbers of ranks, the others on four */
    if (!all && rank_count(k) != 4) continue;
    test_case *s = has_promise(v, ALIKE) ? v_new_even_case(v, 2, rank_count(k), 41)
                                         : v_new_uneven_case(v, 2, rank_count(k), 41);
    test_case *whole = merges ? case_merge(s) : NULL;
    case_result y;
    if (merges) y = v_run(v, whole, &usual);
    compare_all_divisions(v, s, &usual, merges ? &y : NULL, merges ? v_tolerance(v, s, &usual) : 0);
    if (merges) case_free_result(&y);
    if (merges) case_destroy(&whole);
    case_destroy(&s);
  }
}

int main(void) {
  static const property list[] = {{"placements", FRACTIONS, placements_change_no_result}};
  return PROPERTIES_MAIN("placements", list);
}
