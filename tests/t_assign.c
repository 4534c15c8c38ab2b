/* t_assign.c: owners by each placement: examples of the published programs (KAISA, SC'21, arXiv 2107.01739;
 * lzhangbv/kfac_pytorch; chainerkfac), brute force for the best contiguous partition, random models for `balanced`. */
#include "draw.h"
#include "model/assign.h"
#include "resnet50.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BLOCKS = 64, MOST_TASKS = 8 };

typedef struct model {
  ng_assignment a;
  ng_assign_block work[MOST_BLOCKS];
  ng_task task[MOST_BLOCKS][MOST_TASKS];
} model;

static const char *const letter[] = {"A", "B", "C", "D", "E", "F", "G", "H"};

static void add_block(model *m, const char *name, int tasks, const double *cost, double each) {
  const int32_t i = m->a.blocks++;
  m->work[i] =
      (ng_assign_block){.name = name, .task = m->task[i], .tasks = tasks, .step_cost = each};
  for (int k = 0; k < tasks; k++) {
    /* a layer has two tasks, "A" and "G" */
    m->task[i][k] = (ng_task){.name = letter[tasks == 2 && k == 1 ? 6 : k], .cost = cost[k]};
  }
  m->a.tasks += tasks;
}

/* Assign on W ranks, `rows` ranks in a column; check that the result is legal. */
static void assign_owners(model *m, ng_placement how, int32_t W, int32_t rows, bool together) {
  m->a.placement = how;
  m->a.one_owner = together;
  m->a.m = rows;
  m->a.n = W / rows;
  m->a.block = m->work;
  m->a.scratch = malloc(ng_assign_scratch(&m->a));
  assert_non_null(m->a.scratch);
  ng_assign(&m->a);
  for (int32_t i = 0; i < m->a.blocks; i++) {
    const ng_assign_block *w = &m->work[i];
    assert_in_range(w->column, 0, m->a.n - 1);
    assert_in_range(w->owner, 0, W - 1);
    assert_int_equal(w->owner % m->a.n, w->column);
    for (int32_t k = 0; k < w->tasks; k++) {
      assert_in_range(w->task[k].owner, 0, W - 1);
      assert_int_equal(w->task[k].owner % m->a.n, w->column);
      if (k == 0) assert_int_equal(w->owner, w->task[k].owner);
      if (together && how != NG_PLACEMENT_MPD_KFAC) assert_int_equal(w->task[k].owner, w->owner);
    }
  }
}

/* Return weight x the largest load of a rank + the largest `each` of a column. */
static double cost_of(const model *m) {
  double load[256] = {0}, each[256] = {0}, most[2] = {0, 0};
  for (int32_t i = 0; i < m->a.blocks; i++) {
    const ng_assign_block *w = &m->work[i];
    each[w->column] += w->step_cost;
    most[1] = fmax(most[1], each[w->column]);
    for (int32_t k = 0; k < w->tasks; k++) {
      load[w->task[k].owner] += w->task[k].cost;
      most[0] = fmax(most[0], load[w->task[k].owner]);
    }
  }
  return m->a.weight * most[0] + most[1];
}

static void free_scratch(model *m) {
  free(m->a.scratch);
  m->a.scratch = NULL;
}

/* ---- KAISA -----------------------------------------------------------------------------------*/

/* Owners of two layers as text: one digit per factor. */
static void owners_match_examples_of_kaisa(void **state) {
  static const struct {
    double cost[2][MOST_TASKS]; /* 0: no further task */
    int32_t W, m;
    /* 1: A and G on one rank; 0: on two ranks; 2: the result is the same in both cases */
    int together;
    const char *owner[2];
  } row[] = {
      {{{1, 1}, {1, 1}}, 1, 1, 2, {"00", "00"}},
      {{{1, 2}, {3, 4}}, 4, 4, 1, {"11", "00"}},
      {{{1, 2}, {3, 4}}, 4, 4, 0, {"32", "10"}},
      {{{1}}, 8, 8, 2, {"0"}},
      {{{1, 2}}, 8, 8, 0, {"10"}},
      {{{1, 1}}, 8, 8, 0, {"10"}},
      {{{1, 100, 5, 2}, {.01, .01, .01, .01}}, 8, 8, 0, {"3012", "7654"}},
      {{{1, 100, 5, 2}, {.01, .01, .01, .01, .01, .01, .01, .01}}, 8, 8, 0, {"3012", "76547654"}},
      {{{1, 100, 5, 2}, {.01, .01, .01, .01, .01, .01, .01, .01}}, 2, 2, 0, {"1011", "11111111"}},
      {{{1, 100, 5, 2}, {.01, .01, .01, .01}}, 8, 4, 0, {"6024", "7531"}},
      {{{1, 100, 5, 2}, {.01, .01, .01, .01, .01, .01, .01, .01}}, 8, 4, 0, {"6024", "75317531"}},
      {{{1, 100, 5, 2}, {.01, .01, .01, .01}}, 2, 1, 0, {"0000", "1111"}},
      {{{1, 100, 5, 2}, {.01, .01, .01, .01}}, 2, 2, 1, {"0000", "1111"}},
      {{{0}}, 8, 4, 2, {NULL}},
  };
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    for (int together = 0; together < 2; together++) {
      if (row[i].together != 2 && row[i].together != together) continue;
      model m = {0};
      for (int l = 0; l < 2; l++) {
        int tasks = 0;
        while (tasks < MOST_TASKS && row[i].cost[l][tasks] > 0)
          tasks++;
        if (tasks > 0) add_block(&m, "layer", tasks, row[i].cost[l], 0);
      }
      assign_owners(&m, NG_PLACEMENT_KAISA, row[i].W, row[i].m, together);
      for (int32_t l = 0; l < m.a.blocks; l++) {
        char got[MOST_TASKS + 1] = "";
        for (int32_t k = 0; k < m.work[l].tasks; k++)
          got[k] = (char)('0' + m.task[l][k].owner);
        if (strcmp(got, row[i].owner[l]) != 0)
          fail_msg("example %d, layer %d: owners %s, not %s", (int)i, l, got, row[i].owner[l]);
      }
      free_scratch(&m);
    }
  }
}

static void add_resnet50(model *m, int power) {
  for (int i = 0; i < 54; i++) {
    const double p = resnet50[i][0], q = resnet50[i][1];
    const double cost[2] = {power == 3 ? p * p * p : p * p, power == 3 ? q * q * q : q * q};
    add_block(m, "layer", 2, cost, 2 * p * q * (p + q));
  }
}

static double find_loads(const model *m, int32_t W, double *load) {
  double most = 0;
  memset(load, 0, (size_t)W * sizeof *load);
  for (int32_t i = 0; i < m->a.blocks; i++)
    for (int32_t k = 0; k < m->work[i].tasks; k++)
      load[m->task[i][k].owner] += m->task[i][k].cost;
  for (int32_t r = 0; r < W; r++)
    most = load[r] > most ? load[r] : most;
  return most;
}

static double load_over_mean(const model *m, int32_t W) {
  double load[128], sum = 0;
  const double most = find_loads(m, W, load);
  for (int32_t r = 0; r < W; r++)
    sum += load[r];
  return most * W / sum;
}

static void owners_of_a_resnet50_match_kaisa(void **state) {
  static const char comm[] = "223202313102022113220103331123033123033123020330112233";
  static const char hybrid[] = "213202310132013223201013232213033213033213010330112233";
  static const double loads[4] = {113206886400, 113194565632, 113194072139, 113203143169};
  double load[4];
  model m = {0};
  add_resnet50(&m, 3);
  assign_owners(&m, NG_PLACEMENT_KAISA, 4, 4, true);
  for (int i = 0; i < 54; i++)
    assert_int_equal(m.work[i].owner, comm[i] - '0');
  (void)find_loads(&m, 4, load);
  for (int r = 0; r < 4; r++)
    assert_true(load[r] == loads[r]); /* whole numbers below 2^53 */
  assert_true(load_over_mean(&m, 4) > 1.00005 && load_over_mean(&m, 4) < 1.00015);
  free_scratch(&m);
  assign_owners(&m, NG_PLACEMENT_KAISA, 4, 2, true);
  for (int i = 0; i < 54; i++)
    assert_int_equal(m.work[i].owner, hybrid[i] - '0');
  free_scratch(&m);
  static const double ratio[] = {1.1177, 1.7311}; /* eight ranks: n^2, n^3 */
  for (int power = 2; power <= 3; power++) {
    model eight = {0};
    add_resnet50(&eight, power);
    assign_owners(&eight, NG_PLACEMENT_KAISA, 8, 8, true);
    assert_true(load_over_mean(&eight, 8) > ratio[power - 2] - 5e-5 &&
                load_over_mean(&eight, 8) < ratio[power - 2] + 5e-5);
    free_scratch(&eight);
  }
}

/* ---- round-robin, by name --------------------------------------------------------------------*/

/* Rank i mod W owns block i on every grid.  As in MPD-KFAC, with more ranks than layers A and G have different owners:
 * A of layer k is on rank 2 k mod W, G on the next rank; with several columns both are in one column. */
static void round_robin_gives_blocks_in_turn(void **state) {
  static const double one[2] = {5, 3};
  /* round-robin also assigns a block without tasks, so this block uses up a rank */
  model mixed = {0};
  for (int i = 0; i < 3; i++)
    add_block(&mixed, "layer", i == 1 ? 0 : 2, one, 0);
  assign_owners(&mixed, NG_PLACEMENT_ROUND_ROBIN, 4, 4, false);
  for (int32_t i = 0; i < 3; i++)
    assert_int_equal(mixed.work[i].owner, i == 0 ? 0 : i + 1);
  free_scratch(&mixed);
  for (int32_t W = 1; W <= 12; W++) {
    for (int32_t rows = 1; rows <= W; rows++) {
      if (W % rows != 0) continue;
      model m = {0};
      for (int i = 0; i < 7; i++)
        add_block(&m, "layer", 2, one, 0);
      assign_owners(&m, NG_PLACEMENT_ROUND_ROBIN, W, rows, true);
      for (int32_t i = 0; i < 7; i++)
        assert_int_equal(m.work[i].owner, i % W);
      free_scratch(&m);
      assign_owners(&m, NG_PLACEMENT_ROUND_ROBIN, W, rows, false);
      for (int32_t i = 0; i < 7 && rows == W; i++) {
        assert_int_equal(m.task[i][0].owner, 2 * i % W);
        assert_int_equal(m.task[i][1].owner, (2 * i + 1) % W);
      }
      for (int32_t i = 0; i < 7; i++)
        assert_int_equal(m.work[i].column, i % (W / rows));
      free_scratch(&m);
      assign_owners(&m, NG_PLACEMENT_MPD_KFAC, W, rows, true);
      for (int32_t i = 0; i < 7; i++) {
        const bool separate = W > 7;
        if (!separate) assert_int_equal(m.work[i].owner, i % W);
        if (rows == 1 || !separate) assert_int_equal(m.task[i][0].owner, m.task[i][1].owner);
        if (separate && rows == W) assert_int_equal(m.task[i][0].owner, 2 * i % W);
        if (separate && rows > 1) assert_true(m.task[i][0].owner != m.task[i][1].owner);
      }
      free_scratch(&m);
    }
  }
}

/* Sort by name, then assign runs with nearly equal numbers of blocks; with fewer blocks than ranks some ranks have
 * none. */
static void spngd_assigns_equal_runs_by_name(void **state) {
  static const char *const name[7] = {"g", "b", "a", "f", "c", "e", "d"};
  static const struct {
    int32_t W;
    const char *owner; /* owner of each block a, b, c, ..., as text */
  } row[] = {{1, "0000000"}, {2, "0000111"}, {3, "0001122"},
             {4, "0011223"}, {7, "0123456"}, {8, "0123456"}};
  static const double one[2] = {5, 3};
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    model m = {0};
    for (int k = 0; k < 7; k++)
      add_block(&m, name[k], 2, one, 0);
    assign_owners(&m, NG_PLACEMENT_SPNGD, row[i].W, 1, true);
    for (int k = 0; k < 7; k++)
      assert_int_equal(m.work[k].owner, row[i].owner[name[k][0] - 'a'] - '0');
    free_scratch(&m);
  }
}

/* ---- contiguous ------------------------------------------------------------------------------*/

enum { MOST_PARTS = 32, MOST_N = 108 };

static double partition_loads(int32_t n, const double *w, int32_t parts, int32_t *part,
                              double *load) {
  double most = 0;
  ng_partition(n, w, parts, part);
  memset(load, 0, (size_t)parts * sizeof *load);
  for (int32_t i = 0; i < n; i++) {
    assert_in_range(part[i], 0, parts - 1);
    load[part[i]] += w[i];
  }
  for (int32_t k = 0; k < parts; k++)
    most = load[k] > most ? load[k] : most;
  return most;
}

static void partitions_match_examples(void **state) {
  static const struct {
    double w[10];
    int32_t n, parts;
    const char *part;
    double load[4];
  } row[] = {{{1, 2, 3, 4, 5, 6, 7, 8, 9}, 9, 3, "000001122", {15, 13, 17}},
             {{5, 5, 5, 5}, 4, 2, "0011", {10, 10}},
             {{9, 1, 1, 1, 1, 1, 1}, 7, 3, "0111111", {9, 6, 0}},
             {{1, 1, 1, 1, 10}, 5, 3, "00021", {3, 10, 1}},
             {{3, 1, 4, 1, 5, 9, 2, 6, 5, 3}, 10, 4, "0000311222", {9, 11, 14, 5}}};
  int32_t part[MOST_N];
  double load[MOST_PARTS];
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    (void)partition_loads(row[i].n, row[i].w, row[i].parts, part, load);
    for (int32_t k = 0; k < row[i].n; k++)
      assert_int_equal(part[k], row[i].part[k] - '0');
    for (int32_t k = 0; k < row[i].parts; k++)
      assert_true(load[k] == row[i].load[k]);
  }
  /* orders of A, then orders of G from the last layer to the first */
  static const double four[] = {20627, 19968, 20969, 20928};
  static const double eight[] = {10387, 11264, 10752, 8192, 11776, 11753, 11776, 6592};
  double w[MOST_N], sum = 0;
  for (int i = 0; i < 54; i++) {
    w[i] = resnet50[i][0];
    w[107 - i] = resnet50[i][1];
    sum += w[i] + w[107 - i];
  }
  assert_true(sum == 82492);
  assert_true(partition_loads(MOST_N, w, 4, part, load) == 20969);
  for (int k = 0; k < 4; k++)
    assert_true(load[k] == four[k]);
  assert_true(partition_loads(MOST_N, w, 8, part, load) == 11776);
  for (int k = 0; k < 8; k++)
    assert_true(load[k] == eight[k]);
  assert_true(partition_loads(MOST_N, w, 32, part, load) == 4608);
}

/* The smallest largest sum of all partitions. */
static double least_largest_sum(int32_t n, const double *w, int32_t parts) {
  double sum = 0, best = -1;
  if (parts == 1) {
    for (int32_t i = 0; i < n; i++)
      sum += w[i];
    return sum;
  }
  for (int32_t i = 0; i <= n; i++) { /* i blocks in the first part */
    const double rest = least_largest_sum(n - i, w + i, parts - 1), most = rest > sum ? rest : sum;
    if (best < 0 || most < best) best = most;
    if (i < n) sum += w[i];
  }
  return best;
}

static void partitions_have_the_least_largest_sum(void **state) {
  rng r = {test_seed()};
  int32_t part[MOST_N];
  double load[MOST_PARTS], w[9];
  for (int64_t t = 0; t < test_repetitions(2000); t++) {
    const int32_t n = (int32_t)rng_between(&r, 1, 9), parts = (int32_t)rng_between(&r, 1, 5);
    for (int32_t i = 0; i < n; i++)
      w[i] = (double)(rng_below(&r, 3) == 0 ? rng_below(&r, 1000) : rng_below(&r, 10));
    assert_true(partition_loads(n, w, parts, part, load) == least_largest_sum(n, w, parts));
  }
}

/* Runs of blocks; if A and G are separate, runs of A, then of G from the last block to the first. */
static void contiguous_runs_have_the_least_load(void **state) {
  static const double cost[5][2] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {9, 1}};
  model m = {0};
  for (int i = 0; i < 5; i++)
    add_block(&m, "layer", 2, cost[i], 0);
  assign_owners(&m, NG_PLACEMENT_CONTIGUOUS, 3, 1, true); /* sums 2 3 4 5 10 in three */
  static const int32_t owner[5] = {0, 0, 0, 1, 2};        /* 9 5 10 */
  for (int i = 0; i < 5; i++)
    assert_int_equal(m.work[i].owner, owner[i]);
  free_scratch(&m);
  assign_owners(&m, NG_PLACEMENT_CONTIGUOUS, 3, 3, false); /* 1 2 3 4, 9 1, 1 1 1 1 */
  static const int32_t first[5] = {0, 0, 0, 0, 1}, second[5] = {2, 2, 2, 2, 1};
  for (int i = 0; i < 5; i++) {
    assert_int_equal(m.task[i][0].owner, first[i]);
    assert_int_equal(m.task[i][1].owner, second[i]);
  }
  free_scratch(&m);
  assign_owners(&m, NG_PLACEMENT_CONTIGUOUS, 4, 2, false); /* columns of 2 3 4 5 and 10 */
  for (int i = 0; i < 5; i++)
    assert_int_equal(m.work[i].column, i < 4 ? 0 : 1);
  free_scratch(&m);
}

/* ---- balanced --------------------------------------------------------------------------------*/

static void draw_model(rng *r, model *m) {
  const int64_t works = rng_between(r, 0, 24), kind = rng_below(r, 3);
  memset(m, 0, sizeof *m);
  for (int64_t i = 0; i < works; i++) {
    double cost[3];
    const int tasks = (int)(rng_below(r, 8) == 0 ? rng_below(r, 4) : 2);
    for (int k = 0; k < tasks; k++) {
      const double n = (double)rng_between(r, 1, kind == 0 ? 8 : kind == 1 ? 4608 : 64);
      /* integer costs in some cases, real costs in others */
      cost[k] = kind == 2 ? rng_real(r) : n * n * n;
    }
    add_block(m, "layer", tasks, cost, rng_below(r, 4) == 0 ? 0 : rng_real(r) * 1e9);
  }
  static const double weight[] = {0, 1, 0.2, 1e-3, 1e3};
  m->a.weight = weight[rng_below(r, 5)];
}

/* Move all tasks of a block to a rank. */
static void move_block(ng_assign_block *w, int32_t rank, int32_t columns) {
  w->column = rank % columns;
  w->owner = rank;
  for (int32_t k = 0; k < w->tasks; k++)
    w->task[k].owner = rank;
}

/* The search ends when no move of one block lowers the price. */
static void no_single_move_is_cheaper(void **state) {
  rng r = {test_seed() + 1};
  for (int64_t t = 0; t < test_repetitions(300); t++) {
    static model m;
    draw_model(&r, &m);
    const int32_t rows = (int32_t)rng_between(&r, 1, 4), W = rows * (int32_t)rng_between(&r, 1, 4);
    assign_owners(&m, NG_PLACEMENT_BALANCED, W, rows, true);
    const double found = cost_of(&m);
    for (int32_t i = 0; i < m.a.blocks; i++) {
      const int32_t owner = m.work[i].owner;
      for (int32_t rank = 0; rank < W; rank++) {
        move_block(&m.work[i], rank, m.a.n);
        if (cost_of(&m) < found * (1 - 1e-9))
          fail_msg("%d blocks on %d ranks in %d columns: block %d on rank %d costs %.17g instead "
                   "of %.17g",
                   m.a.blocks, W, m.a.n, i, rank, cost_of(&m), found);
      }
      move_block(&m.work[i], owner, m.a.n);
    }
    free_scratch(&m);
  }
}

static void balanced_never_costs_more_than_kaisa(void **state) {
  rng r = {test_seed()};
  static const int32_t ranks[] = {1, 2, 3, 4, 6, 8, 16, 64};
  int64_t better = 0, all = 0;
  for (int64_t t = 0; t < test_repetitions(1500); t++) {
    static model m, again;
    draw_model(&r, &m);
    const int32_t W = ranks[rng_below(&r, 8)];
    int32_t rows = (int32_t)rng_between(&r, 1, W);
    while (W % rows != 0)
      rows--;
    const bool together = rng_below(&r, 2) == 0;
    assign_owners(&m, NG_PLACEMENT_KAISA, W, rows, together);
    const double kaisa = cost_of(&m);
    free_scratch(&m);
    again = m;
    for (int32_t i = 0; i < m.a.blocks; i++)
      again.work[i].task = again.task[i];
    assign_owners(&m, NG_PLACEMENT_BALANCED, W, rows, together);
    assign_owners(&again, NG_PLACEMENT_BALANCED, W, rows, together);
    const double ours = cost_of(&m);
    /* sums change as blocks move: 100 roundings of the total */
    if (!(ours <= kaisa * (1 + 1e-12)))
      fail_msg("%d blocks on %d ranks, columns of %d: %.17g, and KAISA %.17g", m.a.blocks, W, rows,
               ours, kaisa);
    better += ours < 0.999 * kaisa;
    all++;
    for (int32_t i = 0; i < m.a.blocks; i++) { /* a second call gives the same result */
      assert_int_equal(m.work[i].column, again.work[i].column);
      for (int32_t k = 0; k < m.work[i].tasks; k++)
        assert_int_equal(m.task[i][k].owner, again.task[i][k].owner);
    }
    free_scratch(&m);
    free_scratch(&again);
  }
  printf("better than KAISA's by more than 0.1 %% in %lld of %lld\n", (long long)better,
         (long long)all);
  assert_true(4 * better > all);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(owners_match_examples_of_kaisa),
                                     cmocka_unit_test(owners_of_a_resnet50_match_kaisa),
                                     cmocka_unit_test(round_robin_gives_blocks_in_turn),
                                     cmocka_unit_test(spngd_assigns_equal_runs_by_name),
                                     cmocka_unit_test(partitions_match_examples),
                                     cmocka_unit_test(partitions_have_the_least_largest_sum),
                                     cmocka_unit_test(contiguous_runs_have_the_least_load),
                                     cmocka_unit_test(no_single_move_is_cheaper),
                                     cmocka_unit_test(balanced_never_costs_more_than_kaisa)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
