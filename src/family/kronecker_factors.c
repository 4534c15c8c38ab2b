/* kronecker_factors.c: write the running averages of A and G in double, in the published order (ng_factors_read). */
#include "family/kronecker.h"

/* to [n, n], or the diagonal [n] <- the parts of a group of a side. map: internal column -> published column; NULL: equal. */
static void write_group(const ng_side *s, int64_t group, const int32_t *map, bool diagonal,
                        int64_t n, double *to) {
  int64_t base = 0;
  memset(to, 0, (size_t)(diagonal ? n : n * n) * sizeof *to);
  for (int64_t k = group * s->group_parts; k < (group + 1) * s->group_parts; k++) {
    const int64_t m = s->matrix[k].n;
    const void *F = s->stat->part[k].average;
    const ng_dtype t = s->stat->average_dtype;
    const bool is_vector = s->matrix[k].form == NG_FORM_DIAGONAL;
    for (int64_t i = 0; i < m; i++) {
      const int64_t row = map == NULL ? base + i : map[base + i];
      if (diagonal) to[row] = ng_element_at(F, t, is_vector ? i : ng_sym_at(m, i, i));
      for (int64_t j = 0; j < m && !diagonal; j++) {
        const int64_t col = map == NULL ? base + j : map[base + j];
        to[row * n + col] = ng_element_at(F, t, ng_sym_at(m, i, j));
      }
    }
    base += m;
  }
}

/* to [p, p] <- S (x) C / mean diagonal element of S, published order (channel, kernel position); the bias is last. */
static void write_spatial(const ng_kron *k, int64_t group, double *to) {
  const ng_spatial *sp = k->spatial;
  const ng_stat *s = k->side[NG_SIDE_A].stat;
  const int64_t taps = k->offsets, n = k->p;
  const ng_stat_part *part = &s->part[group * (s->parts / k->groups)], *S = part + sp->blocks;
  double trace = 0.0;
  for (int64_t i = 0; i < taps; i++)
    trace += ng_element_at(S->average, s->average_dtype, ng_sym_at(taps, i, i));
  const double mean = trace / (double)taps;
  memset(to, 0, (size_t)(n * n) * sizeof *to);
  for (int64_t b = 0, base = 0; b < sp->blocks && mean > 0.0; base += part[b++].rows) {
    const int64_t m = part[b].rows;
    for (int64_t i = 0; i < m * taps; i++) {
      for (int64_t j = 0; j < m * taps; j++) {
        to[(base * taps + i) * n + base * taps + j] =
            ng_element_at(part[b].average, s->average_dtype, ng_sym_at(m, i / taps, j / taps)) *
            ng_element_at(S->average, s->average_dtype, ng_sym_at(taps, i % taps, j % taps)) / mean;
      }
    }
  }
  if (sp->has_bias) to[n * n - 1] = ng_element_at(S[1].average, s->average_dtype, 0);
}

/* All parts have order 1 or are stored as vectors. */
static bool is_diagonal(const ng_side *s, int64_t n) {
  return s->matrix->form == NG_FORM_DIAGONAL || s->group_parts == n;
}

void ng_kron_write_factors(ng_block *b, ng_factors *f) {
  const ng_kron *k = ng_kron_of(b);
  const bool spatial = k->spatial != NULL;
  f->groups = k->groups;
  f->rows = k->q;
  f->cols = k->p;
  f->left_diagonal = is_diagonal(k->left, k->q);
  f->right_diagonal = !spatial && is_diagonal(k->right, k->p);
  for (int64_t g = 0; g < k->groups && f->left != NULL; g++) {
    const int64_t n = f->left_diagonal ? k->q : k->q * k->q,
                  m = f->right_diagonal ? k->p : k->p * k->p;
    write_group(k->left, g, NULL, f->left_diagonal != 0, k->q, f->left + g * n);
    if (spatial) {
      write_spatial(k, g, f->right + g * m);
    } else {
      write_group(k->right, g, k->offsets > 1 ? k->map : NULL, f->right_diagonal != 0, k->p,
                  f->right + g * m);
    }
  }
}
