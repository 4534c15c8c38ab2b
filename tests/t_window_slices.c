/* t_window_slices.c: where the slices of ranks begin (statistics = sharded): as near to equal shares as a store can
 * be cut, of two places that are as near the first.  Top-k by layer and low rank are cut between parameters, top-k of all and by
 * blocks where blocks of indices begin, dense rows anywhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "draw.h"
#include "family/window.h"
#include "fixture.h"
#include "model/model.h"
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 4, MOST = 4, BLOCK = 32768, BORDERS = 64 };

typedef struct model {
  const char *options;
  int64_t size[TENSORS], cut[MOST][MOST + 1];
  int32_t tensors, ranks;
  float *g;
} model;

static ng_status look(int32_t rank, ng_transport *t, void *arg) {
  model *m = arg;
  fixture f = {0};
  ng_status st = fixture_open(&f, m->options, &(fixture_how){.threads = 1, .transport = t});
  float *g = m->g;
  for (int32_t i = 0; i < m->tensors && st == NG_OK; g += m->size[i++]) {
    char name[8] = {(char)('a' + i), 0};
    const plane v = plane_of(g, 1, m->size[i], NG_F32);
    st = fixture_tensor(&f, name, &v, NULL);
  }
  if (st == NG_OK) st = ng_ready(f.p);
  if (st == NG_OK)
    memcpy(m->cut[rank], ng_window_of(f.p->block[0])->cut,
           (size_t)(m->ranks + 1) * sizeof **m->cut);
  fixture_close(&f);
  return st;
}

static int64_t nearest(const int64_t *border, int n, int64_t at) {
  int64_t best = 0;
  for (int i = 0; i < n; i++)
    if (llabs(border[i] - at) < llabs(best - at)) best = border[i];
  return best;
}

/* Every `step` of a run, and its end; 0: its end alone. */
static int put_borders(int64_t *border, int n, int64_t from, int64_t to, int64_t step) {
  for (int64_t at = from + step; step > 0 && at < to; at += step)
    border[n++] = at;
  border[n++] = to;
  return n;
}

static void near_equal_shares(void **state) {
  static const char *const stores[] = {"method=mfac", "method=efcp window_topk=layer",
                                       "method=efcp window_topk=block", "method=lowrank-mfac",
                                       "method=efcp"};
  (void)state;
  rng r = {test_seed()};
  for (int64_t n = 0; n < test_times(120); n++) {
    const int kind = (int)(n % 5);
    const bool blocks = kind == 2 || kind == 4;
    char options[120];
    int64_t border[BORDERS] = {0}, all = 0;
    int borders = 0;
    model m = {.options = options,
               .tensors = 1 + (int32_t)rng_below(&r, TENSORS),
               .ranks = 2 + (int32_t)rng_below(&r, MOST - 1)};
    (void)snprintf(options, sizeof options, "%s window=2 statistics=sharded", stores[kind]);
    for (int32_t i = 0; i < m.tensors; i++) {
      m.size[i] = 1 + rng_below(&r, blocks && n % 10 < 5 ? 3 * BLOCK : 40);
      if (kind % 2 == 1) borders = put_borders(border, borders, all, all + m.size[i], 0);
      all += m.size[i];
    }
    if (blocks) borders = put_borders(border, 0, 0, all, BLOCK);
    m.g = calloc((size_t)all, sizeof *m.g);
    assert_non_null(m.g);
    const ng_status st = ranks_run(m.ranks, look, &m, NULL);
    if (st != NG_OK) fail_msg("%s: %s", options, ng_status_name(st));
    for (int32_t k = 0; k <= m.ranks; k++) {
      int64_t from, to;
      ng_share(all, m.ranks, k < m.ranks ? k : 0, &from, &to);
      const int64_t want = k == m.ranks ? all : kind == 0 ? from : nearest(border, borders, from);
      for (int32_t rank = 0; rank < m.ranks; rank++)
        if (m.cut[rank][k] != want)
          fail_msg("%s: slice %d of %d of %lld begins at %lld, expected %lld", options, k, m.ranks,
                   (long long)all, (long long)m.cut[rank][k], (long long)want);
    }
    free(m.g);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(near_equal_shares)};
  return cmocka_run_group_tests_name("slices of windows", tests, NULL, NULL);
}
