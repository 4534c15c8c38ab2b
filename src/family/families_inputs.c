/* families_inputs.c: inputs that wait for their output gradients, for statistics that need both. */
#include "family/family.h"

ng_status ng_inputs_store(ng_block *b, ng_inputs *k, const ng_obs *o) {
  if (k->batch != o->batch) k->count = 0;
  k->batch = o->batch;
  if (k->count == NG_INPUTS_MOST) {
    return ng_fail(b->ctx, NG_ERR_STATE,
                   "layer '%s': %d inputs without an output gradient, at most %d", b->name,
                   k->count + 1, NG_INPUTS_MOST);
  }
  k->input[k->count++] = *o;
  return NG_OK;
}

ng_status ng_inputs_find(const ng_block *b, const ng_inputs *k, const ng_obs *o, const ng_obs **x) {
  /* The latest input may belong to another output gradient. */
  if (o->follows_refusal) {
    return ng_fail(b->ctx, NG_SKIPPED,
                   "layer '%s': the output gradient is not added to the statistics, because an "
                   "earlier array of the layer is not finite; the step will be skipped",
                   b->name);
  }
  if (k->count == 0 || k->batch != o->batch) {
    return ng_fail(b->ctx, NG_ERR_STATE,
                   "layer '%s': an output gradient was observed without its input in this "
                   "micro-batch",
                   b->name);
  }
  *x = &k->input[k->count - 1];
  if ((*x)->view.samples == o->view.samples && (*x)->positions == o->positions) return NG_OK;
  return ng_fail(b->ctx, NG_ERR_SHAPE,
                 "layer '%s': its output gradient has %lld positions a sample, its input %lld",
                 b->name, (long long)o->positions, (long long)(*x)->positions);
}
