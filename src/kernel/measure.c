/* measure.c: read bound gradients D: compute |D|^2 and <D, u>; check whether D is finite; copy D.
 *
 * Sums are in double, in which products of two f32 neither overflow nor underflow. The order of additions is fixed by
 * LANES and by tiles, so the bits depend neither on the vector width nor on the threads. */
#include "kernel/entries.h"
#include "kernel/direction.h"
#include "simd.h"

/* LANES: partial sums of a row, enough to keep the adders busy and few because most rows are short; PARTS: sums of a
 * tile. */
enum { LANES = 8, PARTS = 2 };

/* out <- sum x_i^2 and sum x_i u_i. */
NG_CLONES static void row_sums(const float *restrict x, const float *restrict u, int64_t n,
                               double out[PARTS]) {
  double xx[LANES] = {0.0}, xu[LANES] = {0.0};
  const int64_t whole = n / LANES * LANES;
  for (int64_t c = 0; c < whole; c += LANES) {
    NG_FETCH(x + c);
    for (int i = 0; i < LANES; i++) {
      const double v = (double)x[c + i];
      xx[i] += v * v;
      xu[i] += v * (double)u[c + i];
    }
  }
  for (int64_t c = whole; c < n; c++) {
    xx[c - whole] += (double)x[c] * (double)x[c];
    xu[c - whole] += (double)x[c] * (double)u[c];
  }
  for (int half = LANES / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; i++) {
      xx[i] += xx[i + half];
      xu[i] += xu[i + half];
    }
  }
  out[0] = xx[0];
  out[1] = xu[0];
}

/* The same for a row of an f64 gradient. */
static void row_sums_double(const double *x, const float *u, int64_t n, double out[PARTS]) {
  out[0] = out[1] = 0.0;
  for (int64_t c = 0; c < n; c++) {
    out[0] += x[c] * x[c];
    out[1] += u == NULL ? 0.0 : x[c] * (double)u[c];
  }
}

/* out <- the two sums of columns [c, c + n) of row r. */
static void measure_row(const ng_measure *m, int64_t r, int64_t c, int64_t n, double out[PARTS]) {
  const ng_region *D = &m->D;
  const int64_t most = ng_place_columns(D->place), end = c + n;
  float buffer[NG_LINE];
  double line[NG_LINE];
  if (D->place->dtype == NG_F32 && D->place->has_dense_rows) {
    const float *x = ng_place_at(D->place, D->row + r, D->col + c);
    row_sums(x, m->x == NULL ? x : m->x + c, n, out);
    return;
  }
  out[0] = out[1] = 0.0;
  for (int64_t k; c < end; c += k) {
    double sums[PARTS];
    k = ng_min64(most, end - c);
    if (D->place->dtype == NG_F64) {
      ng_place_read_double(D->place, D->row + r, D->col + c, k, line);
      row_sums_double(line, m->x == NULL ? NULL : m->x + c, k, sums);
    } else {
      ng_place_read(D->place, D->row + r, D->col + c, k, buffer);
      row_sums(buffer, m->x == NULL ? buffer : m->x + c, k, sums);
    }
    out[0] += sums[0];
    out[1] += sums[1];
  }
}

/* A tile of whole rows writes t; a tile that is a part of one row writes its share of t to part[1]. */
static void measure_tile(void *parts, const void *descriptor, const ng_tile *t) {
  const ng_measure *m = descriptor;
  double *part = (double *)parts + t->index * PARTS, sums[PARTS];
  part[0] = part[1] = 0.0;
  for (int64_t r = t->row; r < t->row + t->rows; r++) {
    measure_row(m, r, t->col, t->cols, sums);
    part[0] += sums[0];
    if (m->x == NULL) continue;
    if (m->t == NULL) {
      part[1] += (m->y == NULL ? 1.0 : (double)m->y[r]) * sums[1];
    } else if (t->cols == m->D.cols) {
      m->t[r] = sums[1];
    } else {
      part[1] = sums[1];
    }
  }
}

/* Add the bias to t; sum the squares and products of t. */
static void sum_products_of_t(const ng_measure *m) {
  m->out[1] = m->out[2] = 0.0;
  for (int64_t r = 0; r < m->D.rows; r++) {
    double b = 0.0;
    if (m->bias.place != NULL) {
      ng_place_read_double(m->bias.place, 0, m->bias.col + r, 1, &b);
      b *= (double)m->y[0];
    }
    m->t[r] += b;
    m->out[1] += m->t[r] * m->t[r];
    m->out[2] += m->t[r] * b;
  }
}

/* Add the parts of a descriptor's tiles, in order. */
static void add_parts(const ng_measure *m, const double *part) {
  const int64_t tiles = ng_count_tiles(m->D.rows, m->D.cols);
  m->out[0] = m->out[1] = 0.0;
  for (int64_t k = 0; k < tiles; k++) {
    m->out[0] += part[k * PARTS];
    m->out[1] += part[k * PARTS + 1];
  }
  if (m->t == NULL) return;
  const int64_t across = tiles / m->D.rows;
  for (int64_t k = 0; k < tiles && m->D.cols > NG_TILE_ELEMENTS; k++) {
    m->t[k / across] = (k % across == 0 ? 0.0 : m->t[k / across]) + part[k * PARTS + 1];
  }
  sum_products_of_t(m);
}

void ng_cpu_measure_gradients(ng_queue *q, const ng_measure *m, int64_t n, double *parts) {
  ng_run_tiles(q, m, sizeof *m, n, false, measure_tile, parts);
  for (int64_t i = 0; i < n; i++) {
    add_parts(&m[i], parts);
    parts += PARTS * ng_count_tiles(m[i].D.rows, m[i].D.cols);
  }
}

/* ---- finite ----------------------------------------------------------------------------------*/

/* Several threads may work on tiles of one region. */
static void finite_tile(void *out, const void *descriptor, const ng_tile *t) {
  const ng_region *a = descriptor;
  for (int64_t r = t->row; r < t->row + t->rows; r++) {
    if (ng_place_finite(a->place, a->row + r, a->col + t->col, t->cols)) continue;
    __atomic_store_n((int32_t *)out + t->region, 0, __ATOMIC_RELAXED);
    return;
  }
}

void ng_shared_check_finite(ng_queue *q, const ng_region *a, int64_t n, int32_t *out) {
  for (int64_t i = 0; i < n; i++) {
    out[i] = 1;
  }
  ng_run_tiles(q, a, sizeof *a, n, false, finite_tile, out);
}

/* ---- read ------------------------------------------------------------------------------------*/

/* Copy n <= NG_LINE columns of row r; return whether they are finite. */
static bool read_line(const ng_read *j, int64_t r, int64_t c, int64_t n) {
  float room[NG_LINE], *to = j->to + r * j->to_row;
  const bool dense = j->map == NULL && j->to_col == 1;
  float *x = dense ? to + c : room;
  ng_place_read(j->D.place, j->D.row + r, j->D.col + c, n, x);
  for (int64_t i = 0; i < n && !dense; i++) {
    to[j->map != NULL ? j->map[c + i] : (c + i) * j->to_col] = x[i];
  }
  return ng_are_finite(x, NG_F32, n);
}

static bool read_double(const ng_read *j, int64_t r, int64_t c, int64_t n) {
  double x[NG_LINE], *to = j->to_double + r * j->to_row;
  ng_place_read_double(j->D.place, j->D.row + r, j->D.col + c, n, x);
  for (int64_t i = 0; i < n; i++) {
    to[j->map != NULL ? j->map[c + i] : (c + i) * j->to_col] = x[i];
  }
  return ng_are_finite(x, NG_F64, n);
}

static void read_tile(void *unused, const void *descriptor, const ng_tile *t) {
  const ng_read *j = descriptor;
  const int64_t most = ng_place_columns(j->D.place);
  (void)unused;
  for (int64_t r = t->row; r < t->row + t->rows; r++) {
    for (int64_t c = t->col, n; c < t->col + t->cols; c += n) {
      n = ng_min64(most, t->col + t->cols - c);
      const bool finite = j->to_double == NULL ? read_line(j, r, c, n) : read_double(j, r, c, n);
      if (!finite) __atomic_store_n(j->finite, 0, __ATOMIC_RELAXED);
    }
  }
}

void ng_shared_read_gradients(ng_queue *q, const ng_read *r, int64_t n) {
  ng_run_tiles(q, r, sizeof *r, n, false, read_tile, NULL);
}
