/* t_placements.c: who solves a block and who holds its results is a matter of memory, time and messages only: under
 * every placement, with A and G of a layer on one rank or on two, for every fraction that so many ranks allow, with
 * averages kept by all ranks or each by its owner alone, the numbers are the same; and they are those of one rank with
 * the whole batch, where the row promises that.
 *
 * The same: the clip adds up blocks by their owners, so nu may differ in the last bit of a double, and what it
 * multiplies in that of an f32. */
#include "families.h"
#include "ranks.h"
#include "unit_test.h"

#include <stdio.h>
#include <string.h>

#if defined(NG_TEST_MPI)
enum { CROWDS = 1 };
static int32_t crowd_of(int k) { return k == 0 ? ranks_there() : 0; }
#else
static const int32_t crowd[] = {2, 3, 4, 8};
enum { CROWDS = sizeof crowd / sizeof crowd[0] };
static int32_t crowd_of(int k) { return crowd[k]; }
#endif

static bool has(const variant *v, unsigned promise) { return (v->f->promises & promise) != 0; }

/* Ways to spread a run: 0 is the row's own with grad_worker_fraction = 0. */
typedef struct way {
  int32_t placement, workers;
  bool colocate, owner;
} way;

static const char *const placement[] = {"round-robin", "kaisa", "mpd-kfac",
                                        "contiguous",  "spngd", "balanced"};
enum { PLACEMENTS = sizeof placement / sizeof placement[0] };

/* A norm has no results that its owner could send to others, but its whole matrix has. */
static bool is_way(const variant *v, const ng_options *o, way w, int32_t ranks) {
  const bool norms = strstr(v->f->name, "norm") != NULL && strstr(v->f->name, "full") == NULL;
  if (ranks % w.workers != 0) return false;
  if (w.owner && o->base.statistics != NG_STATISTICS_ALL) return false; /* it is the row's own */
  if (w.owner && norms && w.workers > 1) return false;
  return w.colocate || strcmp(placement[w.placement], "spngd") != 0;
}

static void take(ng_options *o, way w, int32_t ranks) {
  fixture_set(o, "placement", placement[w.placement]);
  fixture_set(o, "colocate", w.colocate ? "1" : "0");
  if (w.owner) fixture_set(o, "statistics", "owner");
  fixture_real(o, "grad_worker_fraction", (double)w.workers / ranks);
}

/* All ways against the first; the first against `whole`, if there is one. */
static void every_way(const variant *v, const test_case *s, const ng_options *usual,
                      const case_result *whole, double tolerance) {
  case_result first = {.status = NG_OK};
  int played = 0;
  const int32_t half = 2 * PLACEMENTS * s->ranks;
  for (int32_t k = 0; k < 2 * half; k++) {
    const way w = {k / 2 % PLACEMENTS, 1 + k % half / 2 / PLACEMENTS, k % 2 == 0, k >= half};
    ng_options o = *usual;
    if (!is_way(v, usual, w, s->ranks)) continue;
    char what[96];
    (void)snprintf(what, sizeof what, "%d ranks, %d workers, placement=%s colocate=%d%s", s->ranks,
                   w.workers, placement[w.placement], w.colocate, w.owner ? " owner" : "");
    take(&o, w, s->ranks);
    case_result r = v_run(v, s, &o);
    if (played++ == 0) {
      first = r;
      continue;
    }
    v_same(v, what, s, &r, &first, 2 * unit);
    case_free_result(&r);
  }
  assert_true(played > PLACEMENTS);
  if (whole != NULL) v_same(v, "one rank with the whole batch", s, &first, whole, tolerance);
  case_free_result(&first);
}

/* A row of each way to solve and of each kind of block; not DP-KFAC, whose statistics are an owner's samples.
 * Uneven shards where the row knows them; the others are only compared with themselves. */
static void placements(const variant *v) {
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
  bool mine = false;
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
    mine = mine || strcmp(v->f->name, row[i]) == 0;
  if (!mine) return;
  const bool merges = v->f->shards == ANY_PARTS;
  /* what leaks is an owner's whole shift, or of all ranks that sum a share: two different numbers */
  if (strcmp(v->f->name, "mpd-kfac, inverse") == 0) fixture_set(&usual, "statistics", "owner");
  const bool all =
      merges && strcmp(v->linalg, "ref") == 0 &&
      (strcmp(v->f->name, "natgrad, cholesky, pi") == 0 || strncmp(v->f->name, "spngd", 5) == 0);
  for (int k = 0; k < CROWDS; k++) {
    if (!all && crowd_of(k) != 4) continue; /* natgrad and spngd on all, the others on four */
    test_case *s = has(v, ALIKE) ? v_even(v, 2, crowd_of(k), 41) : v_uneven(v, 2, crowd_of(k), 41);
    test_case *whole = merges ? case_merge(s) : NULL;
    case_result y;
    if (merges) y = v_run(v, whole, &usual);
    every_way(v, s, &usual, merges ? &y : NULL, merges ? v_tolerance(v, s, &usual) : 0);
    if (merges) case_free_result(&y);
    if (merges) case_destroy(&whole);
    case_destroy(&s);
  }
}

int main(void) {
  static const property list[] = {{"placements", FRACTIONS, placements}};
  return PROPERTIES_MAIN("placements", list);
}
