/* whole.c: make the entry of a whole linear layer from an entry that was registered as a shard.
 *
 * Families get the whole layer.  step/shard.c gathers its gradients and observations. */
#include "model/model.h"

enum { OUTPUTS, INPUTS }; /* shard_axis */

static void set_whole_slot(ng_layer_shard *s, int32_t k, int64_t rows, int64_t cols) {
  ng_slot *slot = &s->whole.slot[k];
  slot->entry = &s->whole;
  slot->rows = rows;
  slot->cols = cols;
  slot->weight = (ng_place){.data = NULL};
  slot->grad =
      (ng_place){.data = NULL, .dtype = NG_F32, .has_dense_rows = true, .row_stride = cols};
  slot->m = slot->v = NULL;
}

ng_status ng_shard_make(ng_precond *p, ng_entry *e, const double *width, int32_t members,
                        int32_t member) {
  const double WIDEST = 2147483648.0;
  const int64_t across = e->d.shard_axis == OUTPUTS ? e->d.in : e->d.out;
  double total = 0.0;
  for (int32_t i = 0; i < members; i++) {
    total += width[i];
  }
  if (total >= WIDEST || ng_times((int64_t)total, across) > NG_PARAMETER_MOST) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "layer '%s': its shards have %.0f %s in total, expected less than 2147483648, "
                   "and a weight of at most %lld elements",
                   e->d.name, total, e->d.shard_axis == OUTPUTS ? "outputs" : "inputs",
                   (long long)NG_PARAMETER_MOST);
  }
  ng_layer_shard *s = ng_object(p, sizeof *s);
  e->shard = s;
  if (s == NULL) return NG_ERR_NOMEM;
  s->members = members;
  s->member = member;
  s->whole.registered = e;
  s->whole.d = e->d;
  if (e->d.shard_axis == OUTPUTS) s->whole.d.out = (int64_t)total;
  if (e->d.shard_axis == INPUTS) s->whole.d.in = (int64_t)total;
  const int64_t in = s->whole.d.in, out = s->whole.d.out;
  s->first_element = ng_object(p, ((size_t)members + 1) * sizeof *s->first_element);
  s->saved_first_element = ng_object(p, ((size_t)members + 1) * sizeof *s->saved_first_element);
  s->counts = ng_object(p, (size_t)members * sizeof *s->counts);
  if (ng_objects_status(p) != NG_OK) return NG_ERR_NOMEM;
  for (int32_t i = 0; i < members; i++) {
    s->first_element[i + 1] = s->first_element[i] + (int64_t)width[i];
  }
  s->whole.slots = e->slots;
  for (int32_t k = 0; k < e->slots; k++) {
    s->whole.slot[k] = e->slot[k];
  }
  set_whole_slot(s, NG_WEIGHT, out, in);
  if (e->d.bias != 0) set_whole_slot(s, NG_BIAS, 1, out);
  ng_shard_copy_flags(e);
  return NG_OK;
}

void ng_shard_copy_flags(ng_entry *e) {
  if (e->shard == NULL) return;
  ng_entry *w = &e->shard->whole;
  w->is_frozen = e->is_frozen;
  for (int32_t k = 0; k < e->slots; k++) {
    w->slot[k].update_group = e->slot[k].update_group;
    w->slot[k].is_excluded = e->slot[k].is_excluded;
    w->slot[k].updates_here = e->slot[k].updates_here;
  }
}
