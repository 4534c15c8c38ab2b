/* window_gram.c: the Gram matrix K = G G' of a window's rows, and the Cholesky factor L of S = K / lambda + M I (M:
 * window_solve.c), which linalg/ring.c updates in each step.
 *
 * In: products of the row at head.  Out: K with the new row; after the step, L without the oldest row.  Before the step
 * counts, only the row at head is written.  Entries of places without a row in use are 0. */
#include "family/window.h"

void ng_window_list_ages(ng_window *w, int64_t oldest, int64_t newest) {
  w->rows = 0;
  for (int64_t age = oldest; age >= newest; age--) {
    w->row_place[w->rows++] = (ng_window_head(w) - age + w->places) % w->places;
  }
}

void ng_window_list_used(ng_window *w, bool fresh) {
  const int64_t there = fresh && w->drops_rows ? 0 : ng_window_count(w);
  ng_window_list_ages(w, ng_min64(there, fresh ? w->m - 1 : w->m), fresh ? 0 : 1);
}

void ng_window_clear_gram_row(ng_window *w, int64_t place) {
  for (int32_t i = 0; i < w->parts; i++) {
    for (int64_t j = 0; j < w->places; j++) {
      w->part[i].gram[place * w->places + j] = w->part[i].gram[j * w->places + place] = 0.0;
    }
  }
}

void ng_window_set_gram_row(ng_window *w, const double *row) {
  const int64_t head = ng_window_head(w);
  for (int32_t i = 0; i < w->parts; i++) {
    for (int64_t k = 0; k < w->rows; k++) {
      const int64_t j = w->row_place[k];
      w->part[i].gram[head * w->places + j] = w->part[i].gram[j * w->places + head] =
          row[i * w->places + j];
    }
  }
}

ng_ring ng_window_factor_ring(const ng_window *w, const ng_window_part *p) {
  return (ng_ring){p->factor, w->places, w->row_place, w->rows};
}

void ng_window_commit_factor(ng_window *w, bool step_counts) {
  for (int32_t i = 0; i < w->parts && w->part[i].factor != NULL; i++) {
    const ng_ring r = ng_window_factor_ring(w, &w->part[i]);
    const int64_t head = ng_window_head(w);
    if (!step_counts) {
      ng_ring_clear(&r, head);
    } else if (w->drops_rows) {
      const double diagonal = r.L[head * w->places + head];
      memset(r.L, 0, (size_t)(w->places * w->places) * sizeof *r.L);
      r.L[head * w->places + head] = diagonal;
    } else if (w->rows == w->m && w->next_factor_damping > 0.0) {
      ng_ring_drop(&r);
    }
  }
  w->factor_damping = step_counts         ? w->next_factor_damping
                      : w->has_new_factor ? 0.0
                                          : w->factor_damping;
}
