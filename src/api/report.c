/* report.c: the public functions that report steps, memory, the plan and the treatment of each parameter.
 *
 * In: a model, an index.  Out: a struct, truncated to the size that the caller knows.  The calls are local.
 * Times, bytes and rungs (steps of the damping ladder) are of this rank only; results of a collective step are equal on all ranks. */
#include "setup/setup.h"

/* Check that 0 <= i < n and that `out` is not NULL. */
static ng_status check_index(const ng_precond *p, const char *call, int64_t i, int64_t n,
                             const void *out) {
  if (p == NULL) return NG_ERR_ARG;
  if (ng_enter(p->ctx) != NG_OK) return NG_ERR_STATE;
  if (out == NULL) return ng_fail(p->ctx, NG_ERR_ARG, "%s: out is NULL", call);
  if (i >= 0 && i < n) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_ARG, "%s: index is %lld, expected 0 to %lld", call, (long long)i,
                 (long long)n - 1);
}

/* Return the run (a block or an entry) that contains item i; before(p, r) is the number of items before run r. */
static int32_t run_of(const ng_precond *p, int32_t runs, int32_t i,
                      int32_t (*before)(const ng_precond *p, int32_t run)) {
  int32_t low = 0, high = runs;
  while (high - low > 1) {
    const int32_t mid = low + (high - low) / 2;
    if (before(p, mid) <= i)
      low = mid;
    else
      high = mid;
  }
  return low;
}

static int32_t statistics_before(const ng_precond *p, int32_t run) {
  return p->block[run]->first_stat;
}
static int32_t slots_before(const ng_precond *p, int32_t run) { return p->entry[run]->first_slot; }

ng_status ng_report_read(const ng_precond *p, ng_report *r) {
  const ng_status st = check_index(p, "ng_report_read", 0, 1, r);
  if (st != NG_OK) return st;
  ng_report now;
  memset(&now, 0, sizeof now);
  now.steps = p->steps;
  now.skipped = p->skipped;
  now.clip = p->step->nu;
  now.inner = p->step->inner;
  now.more_damping = p->rescued[NG_RESCUE_DAMPING];
  now.in_double = p->rescued[NG_RESCUE_DOUBLE];
  now.kept_last = p->rescued[NG_RESCUE_LAST];
  now.plain = p->rescued[NG_RESCUE_PLAIN];
  now.stations = NG_STATIONS;
  now.kept = p->entries_without_gradient;
  now.unobserved = p->unobserved;
  now.statistics = ng_stats_count(p);
  now.d2 = p->step->d2;
  now.pd2 = p->step->pd2;
  const ng_scaling *s = &p->step->quantify.result;
  now.scaled = s->count;
  now.scaling_min = s->least;
  now.scaling_25 = s->quartile[0];
  now.scaling_50 = s->quartile[1];
  now.scaling_75 = s->quartile[2];
  now.scaling_max = s->most;
  now.scaling_mean = s->mean;
  now.sent_ms = p->ctx->comm->meter.sent_ms;
  now.overflowed = p->overflowed;
  now.factors = p->arena_bytes[NG_USE_FACTORS];
  now.sums = p->arena_bytes[NG_USE_SUMS];
  now.results = p->arena_bytes[NG_USE_RESULTS];
  now.direction = p->arena_bytes[NG_USE_DIRECTION];
  now.moments = p->arena_bytes[NG_USE_MOMENTS];
  now.scratch = p->arena_bytes[NG_USE_SCRATCH];
  now.objects = p->arena_bytes[NG_USE_OBJECTS];
  now.waits = p->step->waits;
  now.hidden_ms = ng_meter_hidden(&p->ctx->comm->meter);
  return ng_struct_write(r, &now, sizeof now);
}

ng_status ng_report_station(const ng_precond *p, int32_t i, ng_station_report *r) {
  const ng_status st = check_index(p, "ng_report_station", i, NG_STATIONS, r);
  if (st != NG_OK) return st;
  const ng_station_time *t = &p->step->time[i];
  ng_station_report now;
  memset(&now, 0, sizeof now);
  now.name = ng_stations[i].name;
  now.collective = ng_stations[i].collective;
  now.runs = t->runs;
  now.last_ms = t->last_ms;
  now.total_ms = t->total_ms;
  now.last_bytes = t->last_bytes;
  now.total_bytes = t->total_bytes;
  now.last_messages = t->last_messages;
  now.total_messages = t->total_messages;
  now.last_wait_ms = t->last_wait_ms;
  now.total_wait_ms = t->total_wait_ms;
  now.last_waits = t->last_waits;
  return ng_struct_write(r, &now, sizeof now);
}

/* Statistics are numbered block after block. */
ng_status ng_report_statistic(const ng_precond *p, int32_t i, ng_statistic_report *r) {
  const ng_status st =
      check_index(p, "ng_report_statistic", i, p == NULL ? 0 : ng_stats_count(p), r);
  if (st != NG_OK) return st;
  const int32_t block = run_of(p, p->blocks, i, statistics_before);
  const ng_stat *s = &p->block[block]->stat[i - p->block[block]->first_stat];
  ng_statistic_report now;
  memset(&now, 0, sizeof now);
  now.layer = p->block[block]->name;
  now.name = s->name;
  now.refreshed = s->stale.refreshes;
  now.passed = s->stale.steps_without;
  now.interval = s->stale.enabled ? s->stale.interval : 0;
  now.next = s->stale.enabled ? s->stale.next_refresh : 0;
  now.bytes_sent = s->stale.bytes_sent;
  now.bytes_passed = s->stale.bytes_saved;
  return ng_struct_write(r, &now, sizeof now);
}

ng_status ng_report_layer(const ng_precond *p, int32_t index, ng_layer_report *r) {
  const ng_status st = check_index(p, "ng_report_layer", index, p == NULL ? 0 : p->entries, r);
  if (st != NG_OK) return st;
  const ng_block *b = p->entry[index]->block;
  ng_layer_report now;
  memset(&now, 0, sizeof now);
  now.name = p->entry[index]->d.name;
  now.kept = p->entry[index]->steps_without_gradient;
  now.frozen = p->entry[index]->is_frozen || p->entry[index]->d.frozen;
  now.block = now.method = "";
  if (b != NULL) {
    now.block = b->name;
    now.method = b->base.method;
    now.observe_ms = b->observe_ms;
    now.solve_ms = b->solve_ms;
    now.measure_ms = b->measure_ms;
    for (int kind = 0; kind < NG_OBSERVED_KINDS; kind++) {
      now.observations += b->observation_count[kind];
    }
    now.unobserved = b->unobserved_steps;
    if (b->family->report != NULL) b->family->report(b, &now);
  }
  return ng_struct_write(r, &now, sizeof now);
}

ng_status ng_plan_shard(ng_precond *p, int32_t index, int32_t axis, int32_t members) {
  if (p == NULL) return NG_ERR_ARG;
  if (ng_enter(p->ctx) != NG_OK) return NG_ERR_STATE;
  if (index < 0 || index >= p->entries) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "ng_plan_shard: index is %d, there are %d layers and tensors", index,
                   p->entries);
  }
  if (p->is_ready || p->is_broken) {
    return ng_fail(p->ctx, NG_ERR_STATE,
                   "ng_plan_shard: the model is ready, expected one before ng_ready");
  }
  ng_entry *e = p->entry[index];
  if (e->is_tensor || e->d.kind != NG_LINEAR || e->d.shard_axis != -1) {
    return ng_fail(p->ctx, NG_ERR_ARG, "ng_plan_shard: '%s' is not an unsharded linear layer",
                   e->d.name);
  }
  if (axis != 0 && axis != 1) {
    return ng_fail(p->ctx, NG_ERR_ARG, "ng_plan_shard: layer '%s': axis is %d, expected 0 or 1",
                   e->d.name, axis);
  }
  const int64_t width = axis == 0 ? e->d.out : e->d.in;
  if (members < 1 || members > width) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "ng_plan_shard: layer '%s': members is %d, expected 1 to its %lld %s", e->d.name,
                   members, (long long)width, axis == 0 ? "outputs" : "inputs");
  }
  for (int32_t i = 0; i < p->entries; i++) {
    const ng_entry *other = p->entry[i];
    if (other == e || other->plan_members == 0 || other->plan_members == members) continue;
    return ng_fail(
        p->ctx, NG_ERR_ARG,
        "ng_plan_shard: layer '%s': members is %d, but %d for layer '%s'; all layers share one "
        "model group",
        e->d.name, members, other->plan_members, other->d.name);
  }
  e->plan_axis = axis;
  e->plan_members = members;
  return NG_OK;
}

/* Check that all structs have the struct_size of the first one. */
static bool same_struct_sizes(const ng_rank_plan *out, int32_t count, size_t size) {
  bool same = size >= sizeof size && size % sizeof(void *) == 0;
  for (int32_t r = 0; r < count && same; r++) {
    size_t given;
    memcpy(&given, (const char *)out + (size_t)r * size, sizeof given);
    same = given == size;
  }
  return same;
}

ng_status ng_plan_ranks(ng_precond *p, int32_t ranks, int32_t first, int32_t count,
                        ng_rank_plan *out) {
  const ng_status st = check_index(p, "ng_plan_ranks", 0, 1, out);
  if (st != NG_OK) return st;
  if (p->is_ready || p->is_broken) {
    return ng_fail(p->ctx, NG_ERR_STATE,
                   "ng_plan_ranks: the model is ready, expected one before ng_ready");
  }
  if (ranks < 1 || first < 0 || count < 1 || count > ranks - first) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "ng_plan_ranks: first = %d, count = %d of %d ranks: expected count >= 1 and "
                   "first + count <= ranks",
                   first, count, ranks);
  }
  if (!same_struct_sizes(out, count, out->struct_size)) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "ng_plan_ranks: struct_size of out is not set or differs between elements");
  }
  return ng_setup_plan(p, ranks, first, count, out, out->struct_size);
}

/* Count the parameters and the unused globs of skip_layers. */
int32_t ng_explain_count(const ng_precond *p) {
  const ng_entry *last = p != NULL && p->entries > 0 ? p->entry[p->entries - 1] : NULL;
  return (last != NULL ? last->first_slot + last->slots : 0) + (p != NULL ? p->unused_count : 0);
}

/* Fill the row of unused glob i: a glob of skip_layers that matches no layer.  These rows follow the parameters. */
static ng_status explain_unused(const ng_precond *p, int32_t i, ng_explain_row *out) {
  const char *glob = p->unused_globs;
  for (; i > 0; i--) {
    glob += strlen(glob) + 1;
  }
  const ng_explain_row r = {.name = glob,
                            .index = -1,
                            .family = "none",
                            .why = "skip_layers: this glob matches no layer",
                            .owner = -1,
                            .block = "",
                            .method = ""};
  return ng_struct_write(out, &r, sizeof r);
}

/* Rows are in the order of registration, the bias after its weight.  The row of a block's first parameter has the bytes
 * of the block. */
ng_status ng_explain(const ng_precond *p, int32_t i, ng_explain_row *out) {
  const ng_status st = check_index(p, "ng_explain", i, ng_explain_count(p), out);
  if (st != NG_OK) return st;
  const int32_t rows = ng_explain_count(p) - p->unused_count;
  if (i >= rows) return explain_unused(p, i - rows, out);
  const int32_t index = run_of(p, p->entries, i, slots_before);
  const ng_entry *e = p->entry[index];
  i -= e->first_slot;
  const ng_block *b = e->block;
  ng_explain_row r;
  memset(&r, 0, sizeof r);
  r.name = e->slot[i].name;
  r.index = index;
  r.count = e->slot[i].rows * e->slot[i].cols;
  r.covered = b != NULL && !e->is_frozen;
  r.family = b != NULL ? b->family->name : "none";
  r.why = e->is_frozen ? "frozen by ng_freeze" : p->is_ready ? e->why : "ng_ready decides";
  r.bytes =
      b != NULL && ng_slot_registered(b->segment[0].slot) == &e->slot[i] ? b->curvature_bytes : 0;
  r.owner = b != NULL ? b->owner : -1;
  r.block = b != NULL ? b->name : "";
  r.method = b != NULL ? b->base.method : "";
  return ng_struct_write(out, &r, sizeof r);
}
