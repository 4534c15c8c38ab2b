/* t_owned.c: numbers of a state that ranks do not share come from the owner of each block.
 *
 * With statistics = local a leak of the damping (options.damping_leak) is in the average of its owner alone,
 * and so is the number that says how large it is.  Oracle: the owner's own numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fixture.h"
#include "ranks.h"
#include "state/state.h"

enum { RANKS = 2, LAYERS = 3, MOST = 128 };

typedef struct life {
  double own[RANKS][MOST], got[RANKS][MOST];
  int32_t owner[MOST], count; /* of each number, as its block has it */
} life;

typedef struct walk {
  life *l;
  int32_t rank, owner, at;
} walk;

static ng_status note(void *arg, ng_number *n) {
  walk *w = arg;
  w->l->own[w->rank][w->at] = *n->value;
  if (w->rank == 0) w->l->owner[w->at] = w->owner;
  w->at++;
  return NG_OK;
}

static ng_status live(int32_t rank, ng_transport *t, void *arg) {
  static const char *const name[LAYERS] = {"a", "b", "c"};
  life *l = arg;
  fixture f;
  float d[LAYERS][6], a[6] = {1, -0.5f, 0.25f, 0.5f, 2, -1}, g[4] = {1, 0.5f, -0.25f, 1};
  ng_status st = fixture_open(&f,
                              "method=natgrad statistics=local grad_worker_fraction=0 "
                              "damping_split=full damping_leak=1 damping=0.5",
                              &(fixture_how){.linalg = "ref", .threads = 1, .transport = t});
  for (int32_t i = 0; i < LAYERS && st == NG_OK; i++) {
    const plane grad[2] = {plane_of(d[i], 2, 3, NG_F32), {.rows = 0}};
    st = fixture_linear(&f, name[i], grad, NULL);
  }
  if (st == NG_OK) st = ng_ready(f.p);
  for (int s = 0; s < 2 && st == NG_OK; s++) {
    for (int i = 0; i < LAYERS * 6; i++)
      d[i / 6][i % 6] = 0.1f * (float)(i + 1);
    st = fixture_begin(&f, 2);
    for (int32_t i = 0; i < LAYERS && st == NG_OK; i++) {
      const plane in = plane_of(a, 2, 3, NG_F32), out = plane_of(g, 2, 2, NG_F32);
      st = fixture_observe(&f, i, &in, &out);
    }
    if (st == NG_OK) st = ng_step(f.p, 0.1);
  }
  walk w = {l, rank, 0, 0};
  if (st == NG_OK && ng_state_values(f.p) > MOST) st = NG_ERR_ARG;
  for (int32_t i = 0; i < LAYERS && st == NG_OK; i++) {
    w.owner = f.p->block[i]->owner;
    st = ng_block_numbers(f.p->block[i], note, &w);
  }
  if (rank == 0) l->count = w.at;
  if (st == NG_OK) ng_state_get(f.p, l->got[rank]);
  fixture_close(&f);
  return st;
}

static void numbers_are_the_owners(void **state) {
  (void)state;
  static life l;
  int differ[RANKS] = {0, 0};
  assert_int_equal(ranks_run(RANKS, live, &l, NULL), NG_OK);
  for (int32_t i = 0; i < l.count; i++) {
    const int32_t owner = l.owner[i];
    assert_true(l.got[0][i] + l.got[1][i] == l.own[owner][i]);
    assert_true(l.got[1 - owner][i] == 0.0);
    differ[owner] += l.own[0][i] != l.own[1][i];
  }
  assert_true(differ[0] > 0 && differ[1] > 0); /* else it would not matter who is asked */
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_are_the_owners)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
