/* report.c: the public functions ng_report_*, ng_plan_* and ng_explain: fill a struct of the caller. */
#include "setup/setup.h"

/* Check that 0 <= i < n, and that `out` is not NULL. */
static ng_status check_index(const ng_precond *p, const char *call, int64_t i, int64_t n,
                             const void *out) {
  const ng_status st = ng_precond_enter(p);
  if (st != NG_OK) return st;
  if (out == NULL) return ng_fail(p->ctx, NG_ERR_ARG, "%s: out is NULL", call);
  if (i >= 0 && i < n) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_ARG, "%s: index is %lld, expected 0 to %lld", call, (long long)i,
                 (long long)n - 1);
}

ng_status ng_report_read(const ng_precond *p, ng_report *r) {
  const ng_status st = check_index(p, "ng_report_read", 0, 1, r);
  if (st != NG_OK) return st;
  const ng_scaling *s = &p->step->quantify.result;
  const ng_report now = {
      .steps = p->steps,
      .skipped = p->skipped,
      .clip = p->step->nu,
      .inner = p->step->inner,
      .more_damping = p->rescued[NG_RESCUE_DAMPING],
      .in_double = p->rescued[NG_RESCUE_DOUBLE],
      .kept_last = p->rescued[NG_RESCUE_LAST],
      .plain = p->rescued[NG_RESCUE_PLAIN],
      .stations = NG_STATIONS,
      .kept = p->entries_without_gradient,
      .unobserved = p->unobserved,
      .statistics = p->stats,
      .d2 = p->step->d2,
      .pd2 = p->step->pd2,
      .scaled = s->count,
      .scaling_min = s->least,
      .scaling_25 = s->quartile[0],
      .scaling_50 = s->quartile[1],
      .scaling_75 = s->quartile[2],
      .scaling_max = s->most,
      .scaling_mean = s->mean,
      .sent_ms = p->ctx->comm->meter.sent_ms,
      .hidden_ms = ng_meter_hidden(&p->ctx->comm->meter),
      .overflowed = p->overflowed,
      .factors = p->arena_bytes[NG_USE_FACTORS],
      .sums = p->arena_bytes[NG_USE_SUMS],
      .results = p->arena_bytes[NG_USE_RESULTS],
      .direction = p->arena_bytes[NG_USE_DIRECTION],
      .moments = p->arena_bytes[NG_USE_MOMENTS],
      .scratch = p->arena_bytes[NG_USE_SCRATCH],
      .objects = p->arena_bytes[NG_USE_OBJECTS],
      .waits = p->step->waits,
  };
  return ng_struct_write(r, &now, sizeof now);
}

ng_status ng_report_station(const ng_precond *p, int32_t i, ng_station_report *r) {
  const ng_status st = check_index(p, "ng_report_station", i, NG_STATIONS, r);
  if (st != NG_OK) return st;
  const ng_station_time *t = &p->step->time[i];
  const ng_station_report now = {
      .name = ng_stations[i].name,
      .collective = ng_stations[i].is_collective,
      .runs = t->runs,
      .last_ms = t->last_ms,
      .total_ms = t->total_ms,
      .last_bytes = t->last_bytes,
      .total_bytes = t->total_bytes,
      .last_messages = t->last_messages,
      .total_messages = t->total_messages,
      .last_wait_ms = t->last_wait_ms,
      .total_wait_ms = t->total_wait_ms,
      .last_waits = t->last_waits,
  };
  return ng_struct_write(r, &now, sizeof now);
}

ng_status ng_report_statistic(const ng_precond *p, int32_t i, ng_statistic_report *r) {
  const ng_status st = check_index(p, "ng_report_statistic", i, p == NULL ? 0 : p->stats, r);
  if (st != NG_OK) return st;
  const ng_block *b = p->stat[i].block;
  const ng_stat *s = p->stat[i].stat;
  const ng_statistic_report now = {
      .layer = b->name,
      .name = s->name,
      .refreshed = s->stale.refreshes,
      .passed = s->stale.steps_without,
      .interval = s->stale.enabled ? s->stale.interval : 0,
      .next = s->stale.enabled ? s->stale.next_refresh : 0,
      .bytes_sent = s->stale.bytes_sent,
      .bytes_passed = s->stale.bytes_saved,
  };
  return ng_struct_write(r, &now, sizeof now);
}

ng_status ng_report_layer(const ng_precond *p, int32_t index, ng_layer_report *r) {
  const ng_status st = check_index(p, "ng_report_layer", index, p == NULL ? 0 : p->entries, r);
  if (st != NG_OK) return st;
  const ng_entry *e = p->entry[index];
  const ng_block *b = e->block;
  ng_layer_report now = {.name = e->d.name,
                         .kept = e->steps_without_gradient,
                         .frozen = e->is_frozen || e->d.frozen,
                         .block = "",
                         .method = ""};
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
    if (b->family->write_report != NULL) b->family->write_report(b, &now);
  }
  return ng_struct_write(r, &now, sizeof now);
}

static ng_status check_not_ready(const ng_precond *p, const char *call) {
  if (!p->is_ready && !p->is_broken) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_STATE, "%s: the model is ready, expected one before ng_ready",
                 call);
}

ng_status ng_plan_shard(ng_precond *p, int32_t index, int32_t axis, int32_t members) {
  ng_status st = check_index(p, "ng_plan_shard", index, p == NULL ? 0 : p->entries, p);
  if (st == NG_OK) st = check_not_ready(p, "ng_plan_shard");
  if (st != NG_OK) return st;
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

/* Return whether all structs have the struct_size of the first one, and a size that keeps their fields aligned. */
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
  ng_status st = check_index(p, "ng_plan_ranks", 0, 1, out);
  if (st == NG_OK) st = check_not_ready(p, "ng_plan_ranks");
  if (st != NG_OK) return st;
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

/* The rows are the parameters, then the unused globs of skip_layers. */
int32_t ng_explain_count(const ng_precond *p) { return p == NULL ? 0 : p->slots + p->unused_count; }

/* Describe unused glob i of skip_layers. */
static ng_status explain_unused_glob(const ng_precond *p, int32_t i, ng_explain_row *out) {
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

/* The row of a block's first parameter has the bytes of the block. */
ng_status ng_explain(const ng_precond *p, int32_t i, ng_explain_row *out) {
  const ng_status st = check_index(p, "ng_explain", i, ng_explain_count(p), out);
  if (st != NG_OK) return st;
  if (i >= p->slots) return explain_unused_glob(p, i - p->slots, out);
  const ng_slot *s = p->slot[i];
  const ng_entry *e = s->entry;
  const ng_block *b = s->block;
  const bool first = b != NULL && ng_slot_registered(b->segment[0].slot) == s;
  const ng_explain_row r = {
      .name = s->name,
      .index = e->index,
      .count = s->rows * s->cols,
      .covered = b != NULL && !e->is_frozen,
      .family = b != NULL ? b->family->name : "none",
      .why = e->is_frozen    ? "frozen by ng_freeze"
             : !p->is_ready  ? "ng_ready decides"
             : b == e->block ? e->why
             : b != NULL     ? "not preconditioned by the family of the weight"
                             : "the method takes only the weight",
      .bytes = first ? b->curvature_bytes : 0,
      .owner = b != NULL ? b->owner : -1,
      .block = b != NULL ? b->name : "",
      .method = b != NULL ? b->base.method : "",
  };
  return ng_struct_write(out, &r, sizeof r);
}
