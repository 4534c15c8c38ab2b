/* t_kernels_window.c: conformance of the entries for windows: `cpu` against `ref`, with one and three pieces.
 *
 *   rows        products and combinations of whole (f32, bf16), sparse and low-rank rows
 *   power       power iterations of low-rank rows: P is orthonormal, P Q' + the residual is the matrix
 *   flat        every pass over vectors, for gradients and weights of every dtype and layout, masked and excluded
 *
 * cpu with three pieces has the bits of one piece. Tolerances: see each test. Selections: t_kernels_largest.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "draw.h"
#include "kernels.h"

enum { QUEUES = KERNELS_QUEUES, RANGES = 5, PLACES = 21, ALL = 72100, ENTRIES = 400, BLOCKS = 9 };

/* Memory of one window; values are at most 1. */
static float f32[PLACES * ALL], x[ALL], u0[ALL], u[QUEUES][ALL];
static uint16_t bf16[PLACES * ALL], positions[PLACES * ENTRIES];
static int32_t begin[PLACES * BLOCKS];
static ng_flat_range range[RANGES];
static ng_low_rank_shape factors[RANGES];
static double tile[3 * NG_FLAT_BLOCK], unit[64 * PLACES], c[2 * PLACES], dots[QUEUES][2 * PLACES];
static int64_t place[PLACES];

static float value(rng *r) { return (float)(2.0 * rng_real(r) - 1.0); }

/* Draw ranges of random sizes, one range empty; return the number of elements of all ranges. */
static int64_t draw_ranges(rng *r, int64_t most) {
  int64_t at = 0, chunks = 0;
  for (int i = 0; i < RANGES; i++) {
    const int64_t n = i == 2 ? 0 : 1 + rng_below(r, rng_below(r, 2) == 0 ? 70 : most);
    range[i] = (ng_flat_range){.at = at, .n = n, .first_chunk = chunks, .part = i > 2};
    at += n;
    chunks += ng_count_range_chunks(n);
  }
  return at;
}

static void draw_whole(rng *r, ng_rows *G) {
  G->stride = draw_ranges(r, rng_below(r, 3) == 0 ? 18000 : 1500); /* 18000: several chunks */
  G->dtype = rng_below(r, 2) == 0 ? NG_F32 : NG_BF16;
  G->value = G->dtype == NG_F32 ? (const void *)f32 : (const void *)bf16;
}

/* The rank has the blocks from first_block on; without a first_block, rows of one rank with positions before. */
static void draw_sparse(rng *r, ng_rows *G) {
  int64_t at = 0;
  G->dtype = rng_below(r, 2) == 0 ? NG_F32 : NG_BF16;
  G->value = G->dtype == NG_F32 ? (const void *)f32 : (const void *)bf16;
  G->stride = rng_between(r, BLOCKS, ENTRIES);
  G->ranges = 2;
  G->first_block = rng_below(r, 2) * 3;
  G->before = G->first_block == 0 ? rng_below(r, 50) : 0;
  G->blocks = G->first_block == 0 ? 2 : BLOCKS;
  for (int i = 0; i < 2; i++) {
    range[i] = (ng_flat_range){.at = at, .n = i == 0 ? NG_FLAT_BLOCK : 1000, .part = i};
    at += range[i].n;
  }
  for (int64_t p = 0; p < PLACES; p++) {
    int64_t from = G->before;
    for (int64_t i = 0; i < G->blocks; i++) {
      begin[p * G->blocks + i] = (int32_t)from;
      from = rng_between(r, from, G->before + G->stride);
    }
    for (int64_t e = 0, step = rng_below(r, 1000); e < G->stride; e++, step += 7) {
      positions[p * G->stride + e] = (uint16_t)(step % 1000); /* all different */
    }
  }
}

static void draw_low_rank(rng *r, ng_rows *G) {
  int64_t at = 0, chunks = 0, floats = 0;
  for (int i = 0; i < RANGES; i++) {
    ng_low_rank_shape *v = &factors[i];
    v->cols = i == 2 ? 0 : 1 + rng_below(r, i == 0 ? 3000 : 40);
    v->rows = 1 + rng_below(r, i == 0 ? 4 : 30);
    v->rank = rng_below(r, ng_min64(4, v->rows));
    v->at = floats;
    range[i] =
        (ng_flat_range){.at = at, .n = v->rows * v->cols, .first_chunk = chunks, .part = i > 2};
    floats += v->rank > 0 ? v->rank * (v->rows + v->cols) : range[i].n;
    at += range[i].n;
    chunks += ng_count_range_chunks(range[i].n);
  }
  G->stride = floats;
  G->value = f32;
  G->dtype = NG_F32;
}

static int fill_memory(void **state) {
  rng r = {test_seed()};
  (void)state;
  for (int i = 0; i < PLACES * ALL; i++) {
    f32[i] = value(&r);
    bf16[i] = ng_f32_to_bf16(f32[i]);
  }
  for (int i = 0; i < ALL; i++) {
    x[i] = value(&r), u0[i] = value(&r);
  }
  return 0;
}

/* Choose rows in use, the last of which is the row at head. */
static ng_rows draw_rows(rng *r, ng_rows_kind kind) {
  ng_rows G = {.kind = kind, .range = range, .ranges = RANGES, .places = PLACES, .place = place};
  G.used = rng_between(r, 1, PLACES - 1);
  G.index = positions, G.begin = begin, G.factors = factors, G.tile = tile, G.partial_sums = unit,
  G.c = c;
  for (int i = 0; i < 2 * PLACES; i++) {
    c[i] = (double)value(r);
  }
  if (kind == NG_ROWS_WHOLE) draw_whole(r, &G);
  if (kind == NG_ROWS_SPARSE) draw_sparse(r, &G);
  if (kind == NG_ROWS_LOW_RANK) draw_low_rank(r, &G);
  const int64_t first = rng_below(r, PLACES);
  for (int64_t j = 0; j < G.used; j++) {
    place[j] = (first + j) % PLACES;
  }
  G.head = place[G.used - 1];
  return G;
}

/* Compute the products on each queue into `dots`; u is unused. Return the number of queues. */
static int run_products(ng_rows G) {
  int i = 0;
  EACH_QUEUE(q) {
    for (int p = 0; p < 2 * PLACES; p++) {
      dots[i][p] = 0.5; /* products of places without a row in use must not change */
    }
    G.k = dots[i++];
    ng_kernels(&q)->multiply_rows(&q, &G, 1);
    ng_queue_wait(&q);
  }
  return i;
}

/* A sum of n products has n rounding errors of 2^-53; low rank: of each of rank^2 terms. */
static void products_of_rows(void **state) {
  rng r = {test_seed()};
  for (int64_t t = 0; t < test_repetitions(60); t++) {
    ng_rows G = draw_rows(&r, (ng_rows_kind)(t % 3));
    const bool own = G.kind != NG_ROWS_WHOLE && rng_below(&r, 2) == 0;
    double single[2 * PLACES] = {0.0};
    G.x = own ? NULL : x;
    for (int i = run_products(G); i-- > 0;) {
      assert_memory_equal(dots[i], dots[i / 2 * 2], sizeof dots[0]);
      for (int p = 0; p < 2 * PLACES; p++) {
        assert_true(fabs(dots[0][p] - dots[i][p]) <= 0x1p-53 * 16.0 * ALL);
      }
    }
    const int64_t row = place[rng_below(
        &r,
        G.used)]; /* a product of several rows in one call has the bits of a product of one row */
    ng_queue q = kernels_queue(0);
    G.place = &row, G.used = 1, G.k = single;
    single[row] = single[PLACES + row] = 0.5;
    ng_kernels(&q)->multiply_rows(&q, &G, 1);
    ng_queue_wait(&q);
    assert_true(single[row] == dots[0][row] && single[PLACES + row] == dots[0][PLACES + row]);
  }
}

/* Both implementations round a sum in double to f32: they are equal or neighbours. */
static void combinations_of_rows(void **state) {
  rng r = {test_seed()};
  for (int64_t t = 0; t < test_repetitions(60); t++) {
    ng_rows G = draw_rows(&r, (ng_rows_kind)(t % 3));
    const double by[2] = {rng_below(&r, 2) == 0 ? 0.0 : 0.7, -1.3};
    int i = 0;
    G.by = by;
    EACH_QUEUE(q) {
      memcpy(u[i], u0, sizeof u0);
      if (by[0] == 0.0) u[i][0] = NAN; /* if by = 0, u must not be read */
      G.u = u[i++];
      ng_kernels(&q)->combine_rows(&q, &G, 1);
      ng_queue_wait(&q);
    }
    while (i-- > 0) {
      assert_memory_equal(u[i], u[i / 2 * 2], sizeof u[0]);
      for (int64_t k = 0; k < ALL; k++) {
        const double one = (double)u[0][k], other = (double)u[i][k];
        assert_true(fabs(one - other) <= 0x1p-23 * fabs(other) + 1e-12);
      }
    }
  }
}

/* ---- passes ----------------------------------------------------------------------------------*/

/* The vectors that a pass reads and writes. */
typedef struct vectors {
  float to[ALL], x[ALL], next_s[ALL];
  uint8_t mask[ALL];
} vectors;

static const ng_dtype dtypes[] = {NG_F32, NG_BF16, NG_F16, NG_F64};

/* A parameter of a range, from its element r->from on: dense, or channels-last with 3 offsets a channel. */
static void draw_place(rng *r, ng_place *v, ng_flat_range *of, char *memory) {
  const int64_t cols = of->cols, offsets = rng_below(r, 2) == 0 ? 1 : 3;
  const bool dense = offsets == 1;
  *v = (ng_place){.data = memory, .dtype = dtypes[rng_below(r, 4)], .has_dense_rows = dense};
  v->axes = dense ? 1 : 2;
  v->row_stride = cols;
  v->extent[0] = cols / offsets, v->stride[0] = 1;
  v->extent[1] = offsets, v->stride[1] = cols / offsets;
  for (int64_t i = 0; i < of->from + of->n + cols; i++) {
    const float y = rng_below(r, 9) == 0 ? 0.0F : value(r);
    ng_from_f32(memory + i * ng_dtype_size(v->dtype), v->dtype, &y, 1);
  }
}

/* Mostly moderate values; sometimes zeros, and values whose squares and products overflow f32. */
static void draw_vectors(rng *r, vectors *a, float *v, float *s) {
  const float huge = rng_below(r, 2) == 0 ? 3e38F : 1.0F;
  for (int64_t i = 0; i < ALL; i++) {
    a->to[i] = rng_below(r, 3) == 0 ? 0.0F : huge * value(r);
    a->x[i] = huge * value(r);
    a->next_s[i] = value(r);
    v[i] = huge * value(r);
    s[i] = fabsf(huge * value(r));
    a->mask[i] = rng_below(r, 4) != 0;
  }
}

/* cpu and ref compute elements in double, so their bits are equal. READ and DECAY count lines, ref elements. A sum of n
 * terms has n errors of 2^-53 of the sum of magnitudes. */
static void passes_over_vectors(void **state) {
  static vectors drawn, done[QUEUES];
  static float v[ALL], s[ALL];
  static char memory[2][RANGES][8 * 20000];
  static ng_place grad[RANGES], weight[RANGES];
  rng r = {test_seed()};
  for (int64_t t = 0; t < test_repetitions(6 * NG_FLAT_OPS); t++) {
    const ng_flat_op op = (ng_flat_op)(t % NG_FLAT_OPS);
    const bool masked = rng_below(&r, 2) == 0, optional = rng_below(&r, 2) == 0;
    double out[QUEUES][3], sums[3 * 64];
    int i = 0;
    draw_ranges(&r, 17000);
    draw_vectors(&r, &drawn, v, s);
    for (int k = 0; k < RANGES; k++) {
      range[k].is_excluded = rng_below(&r, 3) == 0;
      range[k].cols = 3 * rng_between(&r, 1, 50);
      range[k].from = rng_below(&r, 2000);
      range[k].grad = &grad[k], range[k].weight = &weight[k];
      draw_place(&r, &grad[k], &range[k], memory[0][k]);
      draw_place(&r, &weight[k], &range[k], memory[1][k]);
    }
    EACH_QUEUE_THEN_DEVICE(q) {
      vectors *a = &done[i];
      memcpy(a, &drawn, sizeof drawn);
      const bool fills = op == NG_FLAT_FILL || op == NG_FLAT_MIX || op == NG_FLAT_ADAM;
      const ng_flat_pass p = {
          .op = op,
          .range = range,
          .ranges = RANGES,
          .to = a->to,
          .x = fills && !(op == NG_FLAT_FILL && optional) ? a->x : NULL,
          .next_s = a->next_s,
          .v = op == NG_FLAT_CLEAR && optional ? NULL : v,
          .s = op == NG_FLAT_ADAM && optional ? NULL : s,
          .mask = masked || op == NG_FLAT_MASK ? a->mask : NULL,
          .old = 0.9,
          .take = 1.5,
          .forget = 0.7,
          .add = 0.4,
          .m = 2.0,
          .m2 = 3.0,
          .eps = 0.1,
          .limit = optional ? 0.999 : 1e30,
          .partial_sums = sums,
          .out = out[i++],
      };
      ng_kernels(&q)->run_flat_passes(&q, &p, 1);
      ng_queue_wait(&q);
    }
    while (i-- > 0) {
      const double *one = out[0], *other = out[i];
      assert_memory_equal(&done[0], &done[i], sizeof done[0]);
      if (i <= kernels_last_queue()) assert_memory_equal(other, out[i / 2 * 2], sizeof out[0]);
      for (int j = 0; j < 3; j++) {
        const bool counts_lines = op == NG_FLAT_READ || op == NG_FLAT_DECAY;
        const double size = j == 0 ? sqrt(other[1] * other[2]) : other[j]; /* Cauchy-Schwarz */
        const double near = op == NG_FLAT_MEASURE ? 0x1p-53 * ALL * size : 0.0;
        if (counts_lines) assert_true((one[j] == 0.0) == (other[j] == 0.0));
        if (!counts_lines) assert_true(fabs(one[j] - other[j]) <= near);
      }
    }
  }
}

/* ---- power iterations ------------------------------------------------------------------------*/

enum { SIDE = 60, RANK = 3, FACTORS = 2 * RANK * SIDE };

/* Memory of one power iteration of one queue. */
typedef struct powers {
  float a[2][SIDE * SIDE], e[2][SIDE * SIDE], from[2][FACTORS], to[2][FACTORS];
  double work[FACTORS];
} powers;

/* A random matrix with error feedback, or a matrix of rank 1, which has one column of P. */
static ng_low_rank draw_power(rng *r, powers *p) {
  ng_low_rank w = {.by = 1.5, .is_excluded = rng_below(r, 5) == 0};
  const bool rank_one = rng_below(r, 4) == 0;
  w.shape.rows = rng_between(r, 1, SIDE), w.shape.cols = rng_between(r, 1, SIDE);
  w.shape.rank = rng_below(r, 1 + ng_min64(RANK, ng_min64(w.shape.rows, w.shape.cols)));
  memset(p, 0, sizeof *p);
  for (int i = 0; i < SIDE * SIDE; i++) {
    const int64_t row = i / w.shape.cols, col = i % w.shape.cols;
    p->a[0][i] = rank_one ? (float)((1 + row % 5) * (1 + col % 7)) : value(r);
    p->e[0][i] = rank_one ? 0.0F : value(r);
    p->e[1][i] = 0x1p-26F * p->e[0][i];
  }
  for (int i = 0; i < FACTORS; i++) {
    p->from[0][i] = value(r);
    p->from[1][i] = 0x1p-26F * value(r);
  }
  return w;
}

/* Errors of a sum of up to 60 products of numbers up to 100 are below 1e-11; f32 numbers may be neighbours. */
static void compare_pairs(float p[2][SIDE * SIDE], float w[2][SIDE * SIDE], int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const double one = (double)p[0][i] + (double)p[1][i], two = (double)w[0][i] + (double)w[1][i];
    assert_true(fabs(one - two) <= 1e-9);
    assert_true(fabs((double)p[0][i] - (double)w[0][i]) <= 0x1p-23 * fabs(two) + 1e-9);
  }
}

static void check_power(const ng_low_rank *w, const powers *p, const powers *before) {
  const int64_t rows = w->shape.rows, cols = w->shape.cols, behind = w->shape.rank * rows;
  for (int64_t i = 0; i < rows * cols; i++) {
    double sum = (double)p->a[0][i] + (double)p->a[1][i];
    for (int64_t a = 0; a < w->shape.rank; a++) {
      sum += p->work[a * rows + i / cols] * p->work[behind + a * cols + i % cols];
    }
    double want = (double)before->a[0][i];
    if (w->e.x != NULL)
      want = (double)before->e[0][i] + (double)before->e[1][i] + w->by * (double)before->a[0][i];
    assert_true(fabs(sum - want) <= 1e-9);
  }
  for (int64_t a = 0; a < w->shape.rank * w->shape.rank; a++) {
    const double *one = p->work + a / w->shape.rank * rows,
                 *two = p->work + a % w->shape.rank * rows;
    double sum = 0.0, square = 0.0;
    for (int64_t r = 0; r < rows; r++) {
      sum += one[r] * two[r], square += one[r] * one[r];
    }
    assert_true(fabs(sum - (one == two && square > 0.0 ? 1.0 : 0.0)) <= 1e-6);
  }
}

static void power_iterations(void **state) {
  static powers drawn_power, done[QUEUES];
  rng r = {test_seed()};
  for (int64_t t = 0; t < test_repetitions(100); t++) {
    const bool sums = rng_below(&r, 3) > 0;
    ng_low_rank w = draw_power(&r, &drawn_power);
    int i = 0;
    EACH_QUEUE(q) {
      powers *p = &done[i++];
      memcpy(p, &drawn_power, sizeof *p);
      w.a = (ng_float_pair){p->a[0], p->a[1]}, w.e = (ng_float_pair){p->e[0], p->e[1]};
      if (!sums && w.shape.rank > 0 && !w.is_excluded) w.e.x = NULL;
      w.from = (ng_float_pair){p->from[0], p->from[1]}, w.to = (ng_float_pair){p->to[0], p->to[1]};
      w.work = p->work;
      const ng_low_rank list[2] = {w, {.shape = {0, 0, 0, 0}}};
      ng_kernels(&q)->iterate_low_rank(&q, list, 2);
      ng_queue_wait(&q);
    }
    while (i-- > 0) {
      assert_memory_equal(&done[i], &done[i / 2 * 2], sizeof done[0]);
      compare_pairs(done[0].a, done[i].a, w.shape.rows * w.shape.cols);
      for (int64_t k = 0; k < FACTORS; k++) {
        const double one = (double)done[0].to[0][k], two = (double)done[i].to[0][k];
        assert_true(fabs(one - two) <= 0x1p-23 * fabs(two) + 1e-9);
        assert_true(fabs(one + (double)done[0].to[1][k] - two - (double)done[i].to[1][k]) <=
                    (k < w.shape.rank * w.shape.rows ? 1e-6 : 1e-9));
      }
    }
    if (w.shape.rank > 0 && !w.is_excluded) check_power(&w, &done[0], &drawn_power);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(products_of_rows),
      cmocka_unit_test(combinations_of_rows),
      cmocka_unit_test(passes_over_vectors),
      cmocka_unit_test(power_iterations),
  };
  return cmocka_run_group_tests_name("kernels of windows", tests, fill_memory, NULL);
}
