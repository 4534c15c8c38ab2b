/* fields.c: visit every array of the state, first of blocks, then of layers and tensors.
 *
 * All ranks visit in the same order, because they broadcast the arrays in this order. */
#include "state/state.h"

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

/* Visit a moment.  With update_ranks = all every rank has the moment; otherwise only the rank that updates the weight
 * has it. */
static void visit_moment(ng_precond *p, const ng_slot *slot, const char *name, void *data,
                         ng_field_visit visit, void *arg) {
  const bool owned = ng_update_is_owned(p);
  const int32_t owner = owned ? ng_update_owner(p, slot->entry) : 0;
  ng_field f = ng_field_plain(name, slot->moment_dtype, slot->rows, slot->cols, data, owner);
  f.is_everywhere = !owned;
  set_slice(p, slot, &f);
  f.is_nonnegative = ng_is(name, "second");
  ng_name_append(f.name, sizeof f.name, slot->param == NG_BIAS ? ".bias" : ".weight");
  visit(arg, &f);
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

const char *ng_state_key(const ng_precond *p, int32_t k) {
  return k < p->blocks ? p->block[k]->name : p->entry[k - p->blocks]->d.name;
}

void ng_state_key_fields(ng_precond *p, int32_t k, ng_field_visit visit, void *arg) {
  if (k < p->blocks) {
    ng_block_fields(p->block[k], visit, arg);
    return;
  }
  const bool adamw = p->opt.base.update == NG_UPDATE_ADAMW;
  if (p->opt.base.update == NG_UPDATE_GRADIENT) return; /* no moments */
  const ng_entry *e = p->entry[k - p->blocks];
  for (int32_t i = 0; i < e->slots && !e->d.frozen; i++) {
    const ng_slot *slot = &e->slot[i];
    visit_moment(p, slot, adamw ? "first" : "momentum", slot->m, visit, arg);
    if (adamw) visit_moment(p, slot, "second", slot->v, visit, arg);
  }
}
