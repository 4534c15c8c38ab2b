/* plan_count.c: see plan_count.h. */
#include "plan_count.h"

#include <stdio.h>
#include <string.h>

ng_status count_rank_plan(const ng_precond *p, ng_rank_plan *out) {
  ng_report r = {.struct_size = sizeof r};
  ng_status st = ng_report_read(p, &r);
  memcpy(&out->factors, &r.factors, 6 * sizeof r.factors);
  for (int32_t i = 0; i < r.stations && st == NG_OK; i++) {
    ng_station_report s = {.struct_size = sizeof s};
    st = ng_report_station(p, i, &s);
    const struct {
      const char *name;
      int64_t *bytes;
    } at[] = {{"check", &out->check_bytes}, {"statistics", &out->sums_bytes},
              {"share", &out->share_bytes}, {"deliver", &out->deliver_bytes},
              {"agree", &out->agree_bytes}, {"weights", &out->weights_bytes},
              {"solve", &out->trace_bytes}};
    if (strcmp(s.name, "statistics") == 0) out->sums_messages = s.last_messages;
    bool known = false;
    for (size_t k = 0; k < sizeof at / sizeof at[0]; k++) {
      if (strcmp(s.name, at[k].name) != 0) continue;
      *at[k].bytes = s.last_bytes;
      known = true;
    }
    if (!known && s.last_bytes != 0) return NG_ERR_STATE; /* another station sends */
  }
  return st;
}

bool rank_plans_match(const char *options, int32_t rank, const ng_rank_plan *a,
                      const ng_rank_plan *b) {
  const struct {
    const char *name;
    int64_t planned, counted;
  } row[] = {
#define ROW(field) {#field, a->field, b->field},
      {"statistics", a->sums_bytes + a->topk_bytes, b->sums_bytes},
      {"messages of statistics", a->sums_messages + a->topk_messages, b->sums_messages},
      {"share", a->share_bytes + a->shards_bytes, b->share_bytes},
      ROW(factors) ROW(sums) ROW(results) ROW(direction) ROW(moments) ROW(scratch) ROW(check_bytes)
          ROW(deliver_bytes) ROW(agree_bytes) ROW(weights_bytes) ROW(trace_bytes)
#undef ROW
  };
  bool all = true;
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    if (row[i].planned == row[i].counted) continue;
    fprintf(stderr, "%s: rank %d: %s: planned %lld, counted %lld\n", options, rank, row[i].name,
            (long long)row[i].planned, (long long)row[i].counted);
    all = false;
  }
  return all;
}
