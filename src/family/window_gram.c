/* window_gram.c: the Gram matrix K = G G' of a window's rows, in double, and what double rounds off it: of which rows, its new
 * row, and places that are empty again.
 *
 * In: products of the row at head, of all ranks.  Out: K with it.
 *
 * The rest is looked for where a direction asks for it, of rows that have a part in that: a pass over the rows each, for its
 * pairs with all that are there.  K itself stays as it was, and so does the rest if the step does not count.  Last in a row of
 * the rest is 0 before its pass, and then 1 + how many younger rows that met. */
#include "family/window.h"
#include "family/window_twofold.h"

#include <math.h>

/* The places in use, from the oldest to the newest; with a row at head, the oldest of m + 1 is not. */
void ng_window_use(ng_window *w, bool fresh) {
  const int64_t head = ng_window_head(w);
  const int64_t there = fresh && w->emptied ? 0 : ng_window_count(w);
  const int64_t old = ng_min64(there, fresh ? w->m - 1 : w->m);
  w->uses = 0;
  for (int64_t age = old; age > 0; age--) {
    w->used[w->uses++] = (head - age + w->places) % w->places;
  }
  if (fresh) w->used[w->uses++] = head;
}

/* Passes over the rows that are tried at once. */
enum { AT_ONCE = NG_WINDOW_PASSES / 2 };

/* What double rounds off the products of two rows. */
static void put_rest(const ng_window *w, ng_window_part *p, int64_t row, int64_t column, double x) {
  if (p->rest == NULL) return;
  p->rest[ng_window_rest_at(w, row, column)] = p->rest[ng_window_rest_at(w, column, row)] = x;
}

static double mark_of(const ng_window *w, const ng_window_part *p, int64_t row) {
  return p->rest[ng_window_rest_at(w, row, w->places)];
}

static void mark_rest(const ng_window *w, ng_window_part *p, int64_t row, double there) {
  if (p->rest != NULL) p->rest[ng_window_rest_at(w, row, w->places)] = there;
}

void ng_window_clear_row(ng_window *w, int64_t place) {
  for (int32_t i = 0; i < w->parts; i++) {
    for (int64_t j = 0; j < w->places; j++) {
      w->part[i].gram[place * w->places + j] = w->part[i].gram[j * w->places + place] = 0.0;
      put_rest(w, &w->part[i], place, j, 0.0);
    }
    mark_rest(w, &w->part[i], place, 0.0);
  }
}

void ng_window_put_row(ng_window *w, const double *row) {
  const int64_t head = ng_window_head(w);
  for (int32_t i = 0; i < w->parts; i++) {
    for (int64_t k = 0; k < w->uses; k++) {
      const int64_t j = w->used[k];
      w->part[i].gram[head * w->places + j] = w->part[i].gram[j * w->places + head] =
          row[i * w->places + j];
      put_rest(w, &w->part[i], head, j, 0.0);
    }
    mark_rest(w, &w->part[i], head, 0.0);
  }
}

/* What of the direction, or nearly so, row i of those in use has by itself. */
static double part_of(const ng_window *w, const ng_window_part *p, int64_t i) {
  const int64_t at = w->used[i];
  return fabs(p->c[at]) * sqrt(fmax(0.0, p->gram[at * w->places + at]));
}

/* For the case that the step does not count: the row of the rest as it is. */
static void remember(const ng_window *w, ng_window_part *p, int64_t place) {
  double *to = p->undo + p->undos++ * (w->places + 2);
  to[0] = (double)place;
  memcpy(to + 1, p->rest + ng_window_rest_at(w, place, 0), (size_t)(w->places + 1) * sizeof *to);
}

/* Of row i of those in use. */
static void look_at(ng_block *b, int32_t part, int64_t i) {
  ng_window *w = ng_window_of(b);
  const int64_t place = w->used[i];
  ng_window_part *p = &w->part[part];
  double *k = w->row_rest, *rest = k + w->places;
  remember(w, p, place);
  memset(k, 0, 2 * (size_t)w->places * sizeof *k);
  w->store->products_twofold(b, part, place, k, rest);
  for (int64_t j = 0; j < w->uses; j++) {
    const int64_t at = w->used[j];
    put_rest(w, p, place, at, (k[at] - p->gram[place * w->places + at]) + rest[at]);
  }
  mark_rest(w, p, place, (double)(w->uses - i));
}

/* Of some pair of row i of those in use there is no rest. */
static bool is_unknown(const ng_window *w, const ng_window_part *p, int64_t i) {
  const double mark = mark_of(w, p, w->used[i]);
  if (mark == 0.0) return true;
  for (int64_t j = i + 1; j < w->uses; j++) {
    if ((double)(j - i) > mark - 1.0 && mark_of(w, p, w->used[j]) == 0.0) return true;
  }
  return false;
}

bool ng_window_refine(ng_block *b, int32_t part, double least, bool *some) {
  const ng_window *w = ng_window_of(b);
  const ng_window_part *p = &w->part[part];
  double most = 0.0;
  *some = false;
  for (int64_t i = 0; i < w->uses; i++) {
    most = fmax(most, part_of(w, p, i));
  }
  for (int passes = 0; passes <= AT_ONCE; passes++) {
    int64_t next = -1;
    for (int64_t i = 0; i < w->uses; i++) {
      const double x = part_of(w, p, i);
      if (!(x >= least * most) || !is_unknown(w, p, i)) continue;
      if (next < 0 || x > part_of(w, p, next)) next = i;
    }
    if (next < 0) return true;
    if (passes == AT_ONCE || p->undos == NG_WINDOW_PASSES) return false;
    look_at(b, part, next);
    *some = true;
  }
  return false;
}

void ng_window_rest_commit(ng_window *w, bool taken) {
  for (int32_t i = 0; i < w->parts && w->part[i].rest != NULL; i++) {
    ng_window_part *p = &w->part[i];
    while (!taken && p->undos > 0) { /* the last first */
      const double *from = p->undo + --p->undos * (w->places + 2);
      const int64_t place = (int64_t)from[0];
      for (int64_t j = 0; j < w->places; j++) {
        put_rest(w, p, place, j, from[1 + j]);
      }
      mark_rest(w, p, place, from[1 + w->places]);
    }
    p->undos = 0;
  }
}
