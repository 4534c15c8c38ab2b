/* t_shared_batch.c: ranks that say of which micro-batch their samples are a part (ng_batch.whole) are one rank with all
 * of it, in every row whose statistics are summed over ranks: uneven shards, a mean loss on each, stat_batch as
 * published, in the middle of a shard, and within the first. */
#include "families.h"
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 3 }; /* what a solve leaves in an average shows from the second on */

/* One micro-batch a step; g as if losses were summed. */
static scene *shards(const variant *v, int32_t steps, int32_t ranks) {
  rng r = {test_seed() ^ 41};
  scene *s = v_layers_of(v, steps, ranks);
  for (int32_t t = 0; t < steps; t++) {
    for (int32_t k = 0; k < ranks; k++)
      scene_call(s, t, k, 1 + (3 * k + t) % 5)->batch.reduction = NG_SUM;
  }
  scene_fill(s, &r);
  return s;
}

static void say_whole(scene *s) {
  for (int32_t t = 0; t < s->steps; t++) {
    int64_t whole = 0;
    for (int32_t k = 0; k < s->ranks; k++) {
      s->micro[t][k][0].batch.first = whole;
      whole += s->micro[t][k][0].batch.samples;
    }
    for (int32_t k = 0; k < s->ranks; k++)
      s->micro[t][k][0].batch.whole = whole;
  }
}

static void as_one_rank(const variant *v) {
  static const double take[] = {-1, 0, 2, 5};
  static const int32_t crowd[] = {2, 5};
  ng_options usual = v_options(v);
  if (v->f->shards == NO_PARTS)
    return; /* an owner's samples alone; batches that normalise themselves */
  for (size_t k = 0; k < sizeof crowd / sizeof crowd[0]; k++) {
    scene *s = shards(v, STEPS, crowd[k]), *whole = scene_merge(s);
    for (int mean = 0; mean < 2; mean++) {
      if (mean != 0) {
        v_means(s);
        v_means(whole);
      }
      say_whole(s);
      for (size_t i = 0; i < sizeof take / sizeof take[0]; i++) {
        ng_options o = usual;
        if (take[i] == (double)usual.stat_batch) continue; /* that is as published */
        if (take[i] >= 0) fixture_real(&o, "stat_batch", take[i]);
        v_equal(v, mean != 0 ? "a shared mean" : "a shared sum", s, &o, whole, &o,
                v_tolerance(v, whole, &o));
      }
    }
    scene_destroy(&s);
    scene_destroy(&whole);
  }
}

/* What cannot be is refused, and nothing has begun. */
static void refused(const variant *v) {
  static const struct {
    int64_t samples, whole, first;
  } bad[] = {{3, 0, 1},        {3, 2, 0},  {3, 4, 2},
             {3, 4, -1},       {3, -4, 0}, {3, (INT64_C(1) << 31) + 1, 0},
             {3, 3, INT64_MAX}};
  const ng_options o = v_options(v);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    scene *s = v_even(v, 1, 1, 42);
    scene_result r;
    ng_batch *b = &s->micro[0][0][0].batch;
    b->whole = bad[i].whole;
    b->first = bad[i].first;
    scene_play(s, &o, &(scene_look){.linalg = v->linalg}, &r);
    if (r.status != NG_ERR_ARG || strstr(r.message, "first is") == NULL)
      v_fail(v, "place %d: %s %s", (int)i, ng_status_name(r.status), r.message);
    scene_forget(&r);
    scene_destroy(&s);
  }
}

/* Ranks that say it of different batches are told so. */
static void of_one_batch(const variant *v) {
  const ng_options o = v_options(v);
  for (int by = -3; by <= 3; by += 6) { /* its samples are 3 */
    scene *s = v_even(v, 2, 3, 43);
    scene_result r;
    say_whole(s);
    s->micro[1][1][0].batch.whole += by < 0 ? -s->micro[1][1][0].batch.whole : by;
    if (by < 0) s->micro[1][1][0].batch.first = 0;
    scene_play(s, &o, &(scene_look){.linalg = v->linalg}, &r);
    if (r.status != NG_ERR_STATE || strstr(r.message, "ng_batch.whole differs") == NULL)
      v_fail(v, "a whole of %d more: %s %s", by, ng_status_name(r.status), r.message);
    scene_forget(&r);
    scene_destroy(&s);
  }
}

int main(void) {
  static const property list[] = {{"as one rank", READS_INPUT, as_one_rank},
                                  {"refused", EVERYONE, refused},
                                  {"of one batch", READS_INPUT, of_one_batch}};
  return PROPERTIES_MAIN("shared batches", list);
}
