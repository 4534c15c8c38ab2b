/* numbers.c: the numbers of a state that are neither in arrays nor counters of the model.
 *
 * In: a model. Out: one list of doubles in the same order on all ranks: the numbers of all blocks, then one number of
 * each entry. The owner of a block or statistic writes its numbers; the list is 0 on other ranks, so the sum over ranks
 * is the complete list. */
#include "state/state.h"

typedef struct cursor {
  const ng_block *block;
  double *to;         /* get: receives the numbers that this rank owns; else NULL */
  const double *from; /* put: the numbers of the list; else NULL */
  int64_t at;         /* index of the next number */
} cursor;

static ng_status visit(void *arg, ng_number *n) {
  cursor *c = arg;
  const int32_t owner = n->stat != NULL ? n->stat->owner : c->block->owner;
  if (c->to != NULL && owner == c->block->ctx->rank) c->to[c->at] = *n->value;
  if (c->from != NULL) *n->value = c->from[c->at];
  c->at++;
  return NG_OK;
}

/* The order of this walk is the order of the list. Files store numbers by name, so the order may change between
 * versions. */
static void walk(ng_precond *p, cursor *c) {
  for (int32_t i = 0; i < p->blocks; i++) {
    c->block = p->block[i];
    (void)ng_block_numbers(p->block[i], visit, c);
  }
}

int64_t ng_state_values(ng_precond *p) {
  cursor c = {0};
  walk(p, &c);
  return c.at + p->entries; /* the last p->entries numbers are the missed updates of each entry */
}

/* Write the numbers that this rank owns; save.c sums over ranks. */
void ng_state_get(ng_precond *p, double *x) {
  cursor c = {.to = x};
  walk(p, &c);
  for (int32_t i = 0; i < p->entries && p->ctx->rank == 0; i++)
    x[c.at + i] = (double)p->entry[i]->missed;
}

void ng_state_put(ng_precond *p, const double *x) {
  cursor c = {.from = x};
  walk(p, &c);
  for (int32_t i = 0; i < p->entries; i++)
    p->entry[i]->missed = (int64_t)x[c.at + i];
}
