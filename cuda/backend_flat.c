/* backend_flat.c: passes over vectors of all elements of a block (kernel/flat.h). A pass has a launch for its elements and one
 * for its sums. */
#include "device_entries.h"

static dv_flat pass_of(const ng_flat_pass *p) {
  return (dv_flat){.op = (int32_t)p->op,
                   .to = p->to,
                   .x = p->x,
                   .next_s = p->next_s,
                   .v = p->v,
                   .s = p->s,
                   .mask = p->mask,
                   .old = p->old,
                   .take = p->take,
                   .forget = p->forget,
                   .add = p->add,
                   .m = p->m,
                   .m2 = p->m2,
                   .eps = p->eps,
                   .limit = p->limit};
}

static void run(ng_device *d, const ng_flat_pass *p) {
  cut c;
  if (!ng_stage_begin(d)) return;
  dv_flat *pass = ng_stage_allocate(d, 1, sizeof *pass);
  dv_flat_range *list = ng_stage_allocate(d, p->ranges, sizeof *list);
  int64_t *all = ng_stage_allocate(d, 2, sizeof *all), n = p->ranges;
  if (pass == NULL || list == NULL || all == NULL || !cut_begin(d, n, &c)) return;
  *pass = pass_of(p);
  for (int64_t i = 0; i < n; i++) {
    const ng_flat_range *r = &p->range[i];
    list[i] = (dv_flat_range){.at = r->at, .n = r->n, .from = r->from, .cols = r->cols};
    list[i].is_excluded = r->is_excluded;
    if (r->grad != NULL) list[i].grad = ng_device_place(r->grad);
    if (r->weight != NULL) list[i].weight = ng_device_place(r->weight);
    cut_add(&c, blocks_of(r->n, DV_TILE));
  }
  all[0] = 0, all[1] = cut_blocks(&c);
  double *sums = ng_stage_scratch(d, 3 * all[1], sizeof *sums), *out = p->out;
  if (sums == NULL) return;
  void *at = ng_stage_address(d, pass), *ranges = ng_stage_address(d, list), *none = NULL;
  void *every = ng_stage_address(d, all);
  int32_t width = 3;
  LAUNCH(d, dv_flat_pass, all[1], &at, &ranges, &c.on_device, &n, &sums);
  LAUNCH(d, dv_add_tiles, 1, &none, &every, &width, &sums, &out);
}

void ng_device_run_flat_passes(ng_queue *q, const ng_flat_pass *p, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    run(q->device, &p[i]);
  }
}
