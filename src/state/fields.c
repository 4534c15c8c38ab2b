/* fields.c: visit every array and every number of the state, first of blocks, then of layers and tensors.
 *
 * All ranks visit in the same order, because they broadcast the arrays in this order.  A number of a block belongs to
 * the owner of the block or of a statistic, and is 0 on all other ranks; so a sum over ranks gives every rank all
 * numbers. */
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

/* If the layer is sharded, set the shape of the whole layer and the slice of this rank.  If inputs are sharded, every
 * rank has the whole bias. */
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

/* Visit a moment.  With update_ranks = all every rank has the moment (everywhere); otherwise only `owner` has it. */
static ng_status visit_moment(field_walk *w, ng_precond *p, const ng_slot *slot, const char *name,
                              void *data, int32_t owner, bool everywhere) {
  ng_field f = ng_field_plain(name, slot->moment_dtype, slot->rows, slot->cols, data, owner);
  f.is_everywhere = everywhere;
  set_slice(p, slot, &f);
  f.is_nonnegative = ng_is(name, "second");
  ng_name_append(f.name, sizeof f.name, slot->param == NG_BIAS ? ".bias" : ".weight");
  return one_field(w, &f);
}

static bool below_zero(const void *x, ng_dtype t, int64_t n) {
  int found = 0;
  for (int64_t i = 0; i < n; i++) {
    found |= t == NG_F64 ? ((const double *)x)[i] < 0.0 : ((const float *)x)[i] < 0.0F;
  }
  return found != 0;
}

/* A training run never stores such numbers, because every later average or moment would be non-finite. */
const char *ng_field_error(const ng_field *f, const void *data, int64_t n) {
  return !ng_are_finite(data, f->dtype, n) ? "holds a number that is not finite"
         : f->is_nonnegative && below_zero(data, f->dtype, n)
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
  const int32_t owner = owned ? ng_update_owner(p, e) : 0;
  if (p->opt.base.update == NG_UPDATE_GRADIENT || e->d.frozen) return NG_OK; /* no moments */
  for (int32_t i = 0; i < e->slots && st == NG_OK; i++) {
    const ng_slot *slot = &e->slot[i];
    st = visit_moment(&w, p, slot, adamw ? "first" : "momentum", slot->m, owner, !owned);
    if (st == NG_OK && adamw) st = visit_moment(&w, p, slot, "second", slot->v, owner, !owned);
  }
  return st;
}

/* ---- numbers ---------------------------------------------------------------------------------*/

typedef struct number_list {
  const ng_block *block;
  ngio_out *to; /* receives the numbers */
} number_list;

static ng_status append_number(void *arg, ng_number *n) {
  const number_list *l = arg;
  const int32_t owner = n->stat != NULL ? n->stat->owner : l->block->owner;
  const double x = owner == l->block->ctx->rank ? *n->value : 0.0;
  ngio_out_bytes(l->to, &x, sizeof x);
  return NG_OK;
}

static ng_status set_number(void *arg, ng_number *n) {
  const double **from = arg;
  *n->value = *(*from)++;
  return NG_OK;
}

/* Files store numbers by name, so their order may change between versions. */
void ng_state_append_numbers(ng_precond *p, int32_t k, ngio_out *to) {
  if (k >= p->blocks) {
    const double missed = p->ctx->rank == 0 ? (double)p->entry[k - p->blocks]->missed_updates : 0.0;
    ngio_out_bytes(to, &missed, sizeof missed);
    return;
  }
  number_list l = {p->block[k], to};
  (void)ng_block_numbers(p->block[k], append_number, &l);
}

const double *ng_state_set_numbers(ng_block *b, const double *x) {
  (void)ng_block_numbers(b, set_number, &x);
  return x;
}
