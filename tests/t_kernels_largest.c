/* t_kernels_largest.c: conformance of the entries that select the largest elements: `cpu` against `ref`, with one and
 * three pieces. The k largest elements equal the first k of a full sort; their rows, counts and packed entries have
 * equal bits. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"
#include "kernels.h"

enum {
  QUEUES = KERNELS_QUEUES,
  GROUPS = 4,
  MOST = 210000
}; /* MOST: so many elements that all threads work on one group */

typedef struct entry {
  float size;
  int32_t at;
} entry;

static int by_size(const void *a, const void *b) {
  const entry *one = a, *two = b;
  if (one->size != two->size) return one->size < two->size ? 1 : -1;
  return one->at < two->at ? -1 : 1;
}

/* Draw a number. how: few different values; any value; tiny values; values that differ in the last bits; mostly
 * zeros. */
static float drawn(rng *r, int how) {
  const double sign = rng_below(r, 2) == 0 ? 1.0 : -1.0, y = rng_real(r);
  if (how == 0) return (float)(sign * (double)rng_below(r, 4));
  if (how == 1) return (float)(sign * ldexp(y, (int)rng_below(r, 240) - 121));
  if (how == 2) return (float)(sign * y * 1e-42);
  if (how == 3) return (float)(sign * (1.0 + 4e-4 * y));
  return y < 0.97 ? 0.0F : (float)(sign * y);
}

/* Memory of all groups of one queue. */
typedef struct selected {
  float x[MOST], value[MOST], entries[MOST];
  int32_t chosen[MOST], begin[64];
  uint16_t index[MOST];
} selected;

static selected sets[QUEUES];
static float drawn_x[MOST], error[MOST];

/* Divide MOST or few elements into groups; each has a row entry of `size` >= k. Return their number of elements. */
static int64_t draw_groups(rng *r, ng_largest *g) {
  int64_t at = 0;
  const bool wide = rng_below(r, 8) == 0;
  const int how = (int)rng_below(r, 5);
  for (int i = 0; i < GROUPS; i++) {
    const int64_t n = wide && i == 1 ? 200000 : 1 + rng_below(r, i == 2 ? 2000 : 40);
    g[i] = (ng_largest){
        .n = n, .k = 1 + rng_below(r, n), .dtype = rng_below(r, 2) == 0 ? NG_F32 : NG_BF16};
    if (wide && i == 1) g[i].k = rng_between(r, 1, 5000);
    g[i].size = ng_min64(n, g[i].k + rng_below(r, 3));
    g[i].blocks = (n + NG_FLAT_BLOCK - 1) / NG_FLAT_BLOCK;
    at += n;
  }
  for (int64_t i = 0; i < at; i++) {
    drawn_x[i] = drawn(r, how);
    error[i] = rng_below(r, 4) == 0 ? -2.0F * drawn_x[i] : drawn(r, how);
  }
  for (int64_t i = 100000; i < at; i++) {
    drawn_x[i] = error[i] = 0.0F; /* blocks without entries */
  }
  if (rng_below(r, 4) == 0) drawn_x[0] = 3e38F, error[0] = 2e38F; /* the sum overflows */
  return at;
}

/* Point the groups to the memory of one queue. */
static void place_groups(ng_largest *g, selected *a, bool sums) {
  int64_t at = 0, to = 0, block = 0;
  for (int i = 0; i < GROUPS; i++) {
    g[i].x = a->x + at, g[i].error = sums ? error + at : NULL, g[i].by = 2.0F;
    g[i].chosen = a->chosen + at;
    g[i].value = a->value + at, g[i].index = a->index + at;
    g[i].begin = a->begin + block, g[i].first = to;
    at += g[i].n, to += g[i].size, block += g[i].blocks;
  }
}

/* The largest elements of group g of queue 0 are the first ones of a stable sort. */
static void compare_with_sort(const ng_largest *g, const float *sums) {
  static entry want[MOST];
  static bool in[MOST];
  for (int64_t i = 0; i < g->n; i++) {
    want[i] = (entry){fabsf(sums[i]), (int32_t)i};
    in[i] = false;
  }
  qsort(want, (size_t)g->n, sizeof *want, by_size);
  for (int64_t i = 0; i < g->k; i++) {
    in[want[i].at] = true;
  }
  for (int64_t i = 0, out = 0; i < g->n; i++) {
    if (in[i]) assert_int_equal(g->chosen[out++], i);
  }
}

/* With by = 2 the product of `by` and x is exact, so cpu and ref round only the sum, and have equal bits. */
static void selection_and_rows(void **state) {
  static int32_t count[3 * NG_LARGEST_COUNTS];
  static float sums[MOST];
  rng r = {test_seed()};
  for (int64_t t = 0; t < test_repetitions(80); t++) {
    ng_largest g[GROUPS];
    const int64_t n = draw_groups(&r, g);
    const bool with_error = rng_below(&r, 2) == 0;
    int i = 0;
    EACH_QUEUE(q) {
      selected *a = memset(&sets[i], 0, sizeof *sets);
      memcpy(a->x, drawn_x, (size_t)n * sizeof *drawn_x);
      memset(count, 0x5a, sizeof count); /* scratch and old rows have any contents */
      memset(a->value, 0x5a, sizeof a->value);
      memset(a->index, 0x5a, sizeof a->index);
      place_groups(g, a, with_error);
      ng_kernels(&q)->select_largest(&q, g, GROUPS, count);
      ng_queue_wait(&q);
      if (i == 0) memcpy(sums, a->x, sizeof sums);
      for (int k = 0; k < GROUPS && i == 0; k++) {
        compare_with_sort(&g[k], sums + (g[k].x - a->x));
      }
      ng_kernels(&q)->store_largest(&q, g, GROUPS);
      for (int k = 0; k < GROUPS; k++) { /* unused after the k-th: scratch */
        const ng_largest_pack p = {.dtype = g[k].dtype,
                                   .n = g[k].k,
                                   .value = g[k].value,
                                   .index = g[k].index,
                                   .entry = (double *)(void *)a->entries};
        ng_largest_pack back = p;
        uint16_t index[2000];
        float value[2000];
        ng_queue_wait(&q);
        memset(g[k].chosen + g[k].k, 0, (size_t)(g[k].n - g[k].k) * sizeof *g[k].chosen);
        for (int64_t j = g[k].k; j < g[k].size; j++) {
          const int64_t bytes = ng_dtype_size(p.dtype);
          assert_memory_equal((char *)p.value + j * bytes, &(float){0.0F}, (size_t)bytes);
          assert_int_equal(p.index[j], 0);
        }
        if (p.n > 2000) continue;
        back.value = value, back.index = index, back.unpacks = true;
        ng_kernels(&q)->pack_largest(&q, &p, 1);
        ng_kernels(&q)->pack_largest(&q, &back, 1);
        ng_queue_wait(&q);
        assert_memory_equal(index, p.index, (size_t)p.n * sizeof *index);
        assert_memory_equal(value, p.value, (size_t)(p.n * ng_dtype_size(p.dtype)));
      }
      assert_memory_equal(a, &sets[0], sizeof *a);
      i++;
    }
  }
}

static void counts_of_keys(void **state) {
  rng r = {test_seed()};
  for (int64_t t = 0; t < test_repetitions(60); t++) {
    static double count[QUEUES][2048];
    static const int32_t digits[] = {11, 10, 10, 0}, shift[] = {20, 10, 0, 0};
    const int round = (int)rng_below(&r, 4);
    ng_largest g[GROUPS];
    int64_t selected_of[QUEUES];
    (void)draw_groups(&r, g);
    ng_largest v = {.x = sets[0].x, .n = g[0].n, .digits = digits[round], .shift = shift[round]};
    uint32_t key;
    memcpy(&key, &drawn_x[rng_below(&r, g[0].n)], sizeof key);
    v.prefix = (key & 0x7fffffffU) >> (digits[round] + shift[round]);
    if (round == 0) v.error = error, v.by = 2.0F;
    v.equal = rng_below(&r, 5);
    int i = 0;
    EACH_QUEUE(q) {
      memcpy(sets[i].x, drawn_x, sizeof drawn_x);
      memset(sets[i].chosen, 0, 50 * sizeof *sets[i].chosen);
      memset(count[i], 0, sizeof count[i]);
      v.x = sets[i].x, v.count = count[i], v.chosen = sets[i].chosen;
      v.selected = &selected_of[i];
      ng_kernels(&q)->count_largest(&q, &v, 1);
      ng_kernels(&q)->collect_largest(&q, &v, 1);
      ng_queue_wait(&q);
      assert_memory_equal(count[i], count[0], sizeof count[0]);
      assert_memory_equal(sets[i].x, sets[0].x, sizeof sets[0].x);
      assert_int_equal(selected_of[i], selected_of[0]);
      const size_t listed = (size_t)selected_of[0] * sizeof *v.chosen;
      assert_memory_equal(sets[i++].chosen, sets[0].chosen, listed);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(selection_and_rows),
      cmocka_unit_test(counts_of_keys),
  };
  return cmocka_run_group_tests_name("selections", tests, NULL, NULL);
}
