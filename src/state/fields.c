/* fields.c: visit every array and every number of the state: blocks, then moments and numbers of layers.
 *
 * In: a visitor. Out: one call per array with its key: the name of the block, or of the layer for moments. All ranks
 * visit in the order of registration, because broadcasts match by order. Numbers are neither in arrays nor counters of
 * the model; the owner of a block or statistic has its numbers, so the sum over ranks is the complete list. */
#include "state/state.h"

typedef struct field_walk {
  const char *key;
  ng_field_keyed visit;
  void *arg;
} field_walk;

static ng_status one_field(void *arg, ng_field *f) {
  const field_walk *w = arg;
  return w->visit(w->arg, w->key, f);
}

/* If the layer is sharded, set the shape of the whole layer and this rank's slice. The bias of a layer sharded by
 * inputs is whole on all ranks. */
static void set_slice(ng_precond *p, const ng_slot *slot, ng_field *f) {
  const ng_layer_shard *s = slot->entry->shard;
  const bool inputs = slot->entry->d.shard_axis == 1, bias = slot->param == NG_BIAS;
  if (s == NULL || s->members == 1 || (inputs && bias)) return;
  f->rows = s->whole.slot[ng_entry_slot(&s->whole, slot->param)].rows;
  f->cols = s->whole.slot[ng_entry_slot(&s->whole, slot->param)].cols;
  f->is_everywhere = false;
  f->slice = s->saved_first_element;
  f->slices = s->members;
  f->holder = p->step->shards.holder;
  f->by_rows = !inputs && !bias;
  f->from = s->first_element[s->member];
  f->to = s->first_element[s->member + 1];
}

/* Visit a moment. If each rank updates its own copy of the weights (everywhere), every rank has the moment and rank 0
 * writes it; otherwise only the updating rank `owner` has the moment. */
static ng_status moment(field_walk *w, ng_precond *p, const ng_slot *slot, const char *name,
                        float *data, int32_t owner, bool everywhere) {
  ng_field f = ng_field_plain(name, NG_F32, slot->rows, slot->cols, data, owner);
  f.is_everywhere = everywhere;
  set_slice(p, slot, &f);
  f.is_nonnegative = ng_is(name, "second");
  ng_name_append(f.name, sizeof f.name, slot->param == NG_BIAS ? ".bias" : ".weight");
  return one_field(w, &f);
}

static bool below_zero(const float *x, int64_t n) {
  int found = 0;
  for (int64_t i = 0; i < n; i++) {
    found |= x[i] < 0.0F;
  }
  return found != 0;
}

/* A run never stores such a number, because every later average or moment would be non-finite. */
const char *ng_field_error(const ng_field *f, const void *data, int64_t n) {
  return !ng_all_finite(data, f->dtype, n) ? "holds a number that is not finite"
         : f->is_nonnegative && below_zero(data, n)
             ? "holds a number below 0, expected means of squares"
             : NULL;
}

int32_t ng_state_keys(const ng_precond *p) { return p->blocks + p->entries; }

ng_status ng_state_key_fields(ng_precond *p, int32_t k, ng_field_keyed visit, void *arg) {
  if (k < p->blocks) {
    field_walk w = {p->block[k]->name, visit, arg};
    return ng_block_fields(p->block[k], one_field, &w);
  }
  ng_entry *e = p->entry[k - p->blocks];
  field_walk w = {e->d.name, visit, arg};
  const bool adamw = p->opt.base.update == NG_UPDATE_ADAMW;
  ng_status st = NG_OK;
  const bool owned = ng_update_is_owned(p);
  const int32_t owner = owned ? ng_update_owner(p, e, k - p->blocks) : 0;
  if (p->opt.base.update == NG_UPDATE_GRADIENT || e->d.frozen)
    return NG_OK; /* without fused updates there are no moments */
  for (int32_t i = 0; i < e->slots && st == NG_OK; i++) {
    const ng_slot *slot = &e->slot[i];
    st = moment(&w, p, slot, adamw ? "first" : "momentum", slot->m, owner, !owned);
    if (st == NG_OK && adamw) st = moment(&w, p, slot, "second", slot->v, owner, !owned);
  }
  return st;
}

/* ---- numbers ---------------------------------------------------------------------------------*/

typedef struct cursor {
  const ng_block *block;
  ngio_out *to;       /* get: receives the numbers; else NULL */
  const double *from; /* put: the next number of the list; else NULL */
} cursor;

static ng_status one_number(void *arg, ng_number *n) {
  cursor *c = arg;
  if (c->to != NULL) {
    const int32_t owner = n->stat != NULL ? n->stat->owner : c->block->owner;
    const double x = owner == c->block->ctx->rank ? *n->value : 0.0;
    ngio_out_bytes(c->to, &x, sizeof x);
  } else {
    *n->value = *c->from++;
  }
  return NG_OK;
}

/* The order of the visits is the order of the list. Files store numbers by name, so the order may change between
 * versions. */
void ng_state_append_numbers(ng_precond *p, int32_t k, ngio_out *to) {
  if (k >= p->blocks) {
    const double missed = p->ctx->rank == 0 ? (double)p->entry[k - p->blocks]->missed_updates : 0.0;
    ngio_out_bytes(to, &missed, sizeof missed);
    return;
  }
  cursor c = {.block = p->block[k], .to = to};
  (void)ng_block_numbers(p->block[k], one_number, &c);
}

const double *ng_state_set_numbers(ng_block *b, const double *x) {
  cursor c = {.from = x};
  (void)ng_block_numbers(b, one_number, &c);
  return c.from;
}
