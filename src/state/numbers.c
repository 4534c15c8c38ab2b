/* numbers.c: every number of the state that is not in an array or a counter of the model.
 *
 * In: a model.  Out: its numbers in one list of doubles, the same order on all ranks: those of its blocks, of
 * which each owner, of a block or of a statistic, gives its own and the sum over ranks is everybody's, then one
 * of each entry. */
#include "state/state.h"

typedef struct cursor {
  const ng_block *block;
  double *to;         /* get: what this rank owns */
  const double *from; /* put */
  int64_t at;         /* the next number's place */
} cursor;

static ng_status visit(void *arg, ng_number *n) {
  cursor *c = arg;
  const int32_t owner = n->stat != NULL ? n->stat->owner : c->block->owner;
  if (c->to != NULL && owner == c->block->ctx->rank) c->to[c->at] = *n->value;
  if (c->from != NULL) *n->value = c->from[c->at];
  c->at++;
  return NG_OK;
}

/* One walk for counting, getting and putting: the places in the array are the order of the walk,
 * the same on every rank and in every run of this version.  In a file numbers have names, so
 * another order there is no matter. */
static void walk(ng_precond *p, cursor *c) {
  for (int32_t i = 0; i < p->blocks; i++) {
    c->block = p->block[i];
    (void)ng_block_numbers(p->block[i], visit, c);
  }
}

int64_t ng_state_values(ng_precond *p) {
  cursor c = {0};
  walk(p, &c);
  return c.at + p->entries; /* the updates that each entry missed */
}

/* Each number from one owner alone: the sum over ranks (save.c) is then everybody's array. */
void ng_state_get(ng_precond *p, double *x) {
  cursor c = {.to = x};
  walk(p, &c);
  for (int32_t i = 0; i < p->entries && p->ctx->rank == 0; i++) /* the same on all ranks */
    x[c.at + i] = (double)p->entry[i]->missed;
}

void ng_state_put(ng_precond *p, const double *x) {
  cursor c = {.from = x};
  walk(p, &c);
  for (int32_t i = 0; i < p->entries; i++)
    p->entry[i]->missed = (int64_t)x[c.at + i];
}
