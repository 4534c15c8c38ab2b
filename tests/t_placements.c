/* t_placements.c: who solves a block and who holds its results is a matter of memory, time and messages only: under
 * every placement, with A and G of a layer on one rank or on two, for every fraction that so many ranks allow, the
 * numbers are the same; and they are those of one rank with the whole batch, where the row promises that.
 *
 * The same: the clip adds up blocks by their owners, so nu may differ in the last bit of a double, and what it
 * multiplies in that of an f32. */
#include "families.h"
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#if defined(NG_TEST_MPI)
enum { CROWDS = 1 };
static int32_t crowd_of(int k) { return k == 0 ? ranks_there() : 0; }
#else
static const int32_t crowd[] = {2, 3, 4, 8};
enum { CROWDS = sizeof crowd / sizeof crowd[0] };
static int32_t crowd_of(int k) { return crowd[k]; }
#endif

static bool has(const variant *v, unsigned promise) { return (v->f->promises & promise) != 0; }

/* Ways to spread a run: 0 is the row's own with grad_worker_fraction = 0.  False: not a way. */
typedef struct way {
  int32_t placement, workers;
  bool colocate;
} way;

static const char *const placement[] = {"round-robin", "kaisa", "mpd-kfac",
                                        "contiguous",  "spngd", "balanced"};
enum { PLACEMENTS = sizeof placement / sizeof placement[0] };

static bool is_way(const ng_options *o, way w, int32_t ranks) {
  if (ranks % w.workers != 0) return false;
  if (strcmp(placement[w.placement], "spngd") == 0 && !w.colocate) return false;
  /* one rank that alone keeps averages keeps both, so with more that hold results nothing may be apart */
  return w.colocate || w.workers == 1 || strcmp(o->statistics, "owner") != 0;
}

static void take(ng_options *o, way w, int32_t ranks) {
  fixture_set(o, "placement", placement[w.placement]);
  fixture_set(o, "colocate", w.colocate ? "1" : "0");
  fixture_real(o, "grad_worker_fraction", (double)w.workers / ranks);
}

/* All ways against the first; the first against `whole`, if there is one. */
static void every_way(const variant *v, const scene *s, const ng_options *usual,
                      const scene_result *whole, double tolerance) {
  scene_result first = {.status = NG_OK};
  int played = 0;
  for (int32_t k = 0; k < 2 * PLACEMENTS * s->ranks; k++) {
    const way w = {k / 2 % PLACEMENTS, 1 + k / 2 / PLACEMENTS, k % 2 == 0};
    ng_options o = *usual;
    if (!is_way(usual, w, s->ranks)) continue;
    char what[96];
    (void)snprintf(what, sizeof what, "%d ranks, %d workers, placement=%s colocate=%d", s->ranks,
                   w.workers, placement[w.placement], w.colocate);
    take(&o, w, s->ranks);
    scene_result r = v_play(v, s, &o);
    if (played++ == 0) {
      first = r;
      continue;
    }
    v_same(v, what, s, &r, &first, 2 * unit);
    scene_forget(&r);
  }
  assert_true(played > PLACEMENTS);
  if (whole != NULL) v_same(v, "one rank with the whole batch", s, &first, whole, tolerance);
  scene_forget(&first);
}

/* A row of each way to solve and of each kind of block; not DP-KFAC, whose statistics are an owner's samples.
 * Uneven shards where the row knows them; the others are only compared with themselves. */
static void placements(const variant *v) {
  const ng_options usual = v_options(v);
  static const char *const row[] = {"natgrad, cholesky, pi",
                                    "natgrad, eigen, joint",
                                    "kaisa",
                                    "mpd-kfac",
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
  const bool all =
      merges && strcmp(v->linalg, "ref") == 0 &&
      (strcmp(v->f->name, "natgrad, cholesky, pi") == 0 || strncmp(v->f->name, "spngd", 5) == 0);
  for (int k = 0; k < CROWDS; k++) {
    if (!all && crowd_of(k) != 4) continue; /* natgrad and spngd on all, the others on four */
    scene *s = has(v, ALIKE) ? v_even(v, 2, crowd_of(k), 41) : v_uneven(v, 2, crowd_of(k), 41);
    scene *whole = merges ? scene_merge(s) : NULL;
    scene_result y;
    if (merges) y = v_play(v, whole, &usual);
    every_way(v, s, &usual, merges ? &y : NULL, merges ? v_tolerance(v, s, &usual) : 0);
    if (merges) scene_forget(&y);
    if (merges) scene_destroy(&whole);
    scene_destroy(&s);
  }
}

int main(void) {
  static const property list[] = {{"placements", FRACTIONS, placements}};
  return PROPERTIES_MAIN("placements", list);
}
