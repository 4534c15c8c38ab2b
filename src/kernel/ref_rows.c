/* ref_rows.c: the entries of rows.c, element by element in double. */
#include <string.h>

#include "kernel/entries.h"

static double value_of_row(const ng_rows *G, int64_t place, int64_t at) {
  return ng_element_at(G->value, G->dtype, place * G->stride + at);
}

/* Return element e of range i of a row that is not sparse. */
static double element_of_row(const ng_rows *G, int64_t i, int64_t place, int64_t e) {
  if (G->kind == NG_ROWS_WHOLE) return value_of_row(G, place, G->range[i].at + e);
  const ng_low_rank_shape *v = &G->factors[i];
  const int64_t r = e / v->cols, c = e % v->cols, Q = v->at + v->rank * v->rows;
  double sum = v->rank == 0 ? value_of_row(G, place, v->at + e) : 0.0;
  for (int64_t a = 0; a < v->rank; a++) {
    sum += value_of_row(G, place, v->at + a * v->rows + r) *
           value_of_row(G, place, Q + a * v->cols + c);
  }
  return sum;
}

/* Return the position of the first entry of block i of a sparse row. */
static int64_t first_entry_of_block(const ng_rows *G, int64_t i, int64_t place) {
  const int64_t block = G->first_block + i;
  if (block == G->blocks) return G->stride;
  return ng_max64(0, ng_min64(G->begin[place * G->blocks + block] - G->before, G->stride));
}

/* acc += c row for elements [from, from + n) of range i; for sparse rows, of the whole range. */
static void add_row(const ng_rows *G, int64_t i, int64_t place, int64_t from, int64_t n, double c,
                    double *acc) {
  const bool sparse = G->kind == NG_ROWS_SPARSE;
  for (int64_t e = 0; e < n && !sparse; e++) {
    acc[e] += c * element_of_row(G, i, place, from + e);
  }
  for (int64_t e = sparse ? first_entry_of_block(G, i, place) : 0;
       sparse && e < first_entry_of_block(G, i + 1, place); e++) {
    acc[G->index[place * G->stride + e] % NG_FLAT_BLOCK] += c * value_of_row(G, place, e);
  }
}

/* Return <row, x> for the same elements. */
static double dot_row(const ng_rows *G, int64_t i, int64_t place, int64_t from, int64_t n,
                      const double *x) {
  const bool sparse = G->kind == NG_ROWS_SPARSE;
  double sum = 0.0;
  for (int64_t e = 0; e < n && !sparse; e++) {
    sum += element_of_row(G, i, place, from + e) * x[e];
  }
  for (int64_t e = sparse ? first_entry_of_block(G, i, place) : 0;
       sparse && e < first_entry_of_block(G, i + 1, place); e++) {
    sum += value_of_row(G, place, e) * x[G->index[place * G->stride + e] % NG_FLAT_BLOCK];
  }
  return sum;
}

/* Return the number of elements that are computed at once: a line, or a block of a sparse row. */
static int64_t count_line_elements(const ng_rows *G, int64_t i, int64_t from) {
  return G->kind == NG_ROWS_SPARSE ? G->range[i].n : ng_min64(NG_LINE, G->range[i].n - from);
}

void ng_ref_multiply_rows(ng_queue *q, const ng_rows *G, int64_t n) {
  (void)q;
  double line[NG_LINE];
  for (const ng_rows *end = G + n; G < end; G++) {
    double *x = G->kind == NG_ROWS_SPARSE ? G->tile : line;
    for (int64_t i = 0; i < G->ranges; i++) {
      if (G->range[i].n == 0) continue; /* `partial_sums` may be empty */
      memset(G->partial_sums, 0, (size_t)G->used * sizeof *G->partial_sums);
      for (int64_t from = 0, m; from < G->range[i].n; from += m) {
        m = count_line_elements(G, i, from);
        for (int64_t e = 0; e < m; e++) {
          x[e] = G->x == NULL ? 0.0 : (double)G->x[G->range[i].at + from + e];
        }
        if (G->x == NULL) add_row(G, i, G->head, from, m, 1.0, x);
        for (int64_t j = 0; j < G->used; j++) {
          G->partial_sums[j] += dot_row(G, i, G->place[j], from, m, x);
        }
      }
      for (int64_t j = 0; j < G->used; j++) {
        G->k[G->range[i].part * G->places + G->place[j]] += G->partial_sums[j];
      }
    }
  }
}

void ng_ref_combine_rows(ng_queue *q, const ng_rows *G, int64_t n) {
  (void)q;
  double line[NG_LINE];
  for (const ng_rows *end = G + n; G < end; G++) {
    double *sum = G->kind == NG_ROWS_SPARSE ? G->tile : line;
    for (int64_t i = 0; i < G->ranges; i++) {
      const ng_flat_range *r = &G->range[i];
      for (int64_t from = 0, m; from < r->n; from += m) {
        float *u = G->u + r->at + from;
        m = count_line_elements(G, i, from);
        for (int64_t e = 0; e < m; e++) {
          sum[e] = G->by[r->part] == 0.0 ? 0.0 : G->by[r->part] * (double)u[e];
        }
        for (int64_t j = 0; j < G->used; j++) {
          add_row(G, i, G->place[j], from, m, G->c[r->part * G->places + G->place[j]], sum);
        }
        for (int64_t e = 0; e < m; e++) {
          u[e] = (float)sum[e];
        }
      }
    }
  }
}
