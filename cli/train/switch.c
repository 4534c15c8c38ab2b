/* switch.c: see switch.h. */
#include "switch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static char none[] = "none", nothing[] = "", empirical[] = "empirical", sgd[] = "sgd";

/* The settings after the switch; a shallow copy. */
static settings after(const settings *s) {
  settings out = *s;
  out.method = out.optimizer = sgd;
  out.lr = s->switch_lr;
  out.momentum = s->switch_momentum;
  out.weight_decay = s->switch_weight_decay;
  out.nesterov = out.decoupled = false;
  out.fisher = empirical;
  out.adjust_momentum = out.damping_rule = none;
  out.schedule = nothing;
  out.damping_start = out.damping_warm_up = 0.0;
  return out;
}

void switch_plan(run *r) {
  r->switch_at = INT64_MAX;
  if (r->s->switch_to_sgd <= 0.0) return;
  r->switch_at = llround(r->s->switch_to_sgd * (double)r->feed.per_epoch);
  r->sgd = after(r->s);
  if (r->switch_at >= r->total && r->ranks.rank == 0)
    cli_note("--switch-to-sgd: this run ends before, with step %lld", (long long)r->total);
}

/* Keep the times of the method; the times of SGD are added. */
static void keep_times(run *r) {
  train_station now[TRAIN_STATIONS];
  const int n = precond_stations(r->p, now, TRAIN_STATIONS);
  for (int i = 0; i < n; i++) {
    int k = 0;
    while (k < r->before.stations && strcmp(r->before.station[k].name, now[i].name) != 0)
      k++;
    if (k == TRAIN_STATIONS) continue;
    train_station *to = &r->before.station[k];
    if (k < r->before.stations) {
      to->ms += now[i].ms;
    } else {
      *to = now[i];
      r->before.stations++;
    }
  }
}

int switch_now(run *r) {
  keep_times(r);
  r->out->refreshed = precond_refreshed(r->p);
  precond_destroy(&r->p);
  r->switched = true;
  return precond_create(&r->sgd, r->ranks.t, r->net, r->pool, &r->p);
}

int switch_due(run *r) {
  int rc = CLI_OK;
  if (!r->switched && r->state.step >= r->switch_at) rc = switch_now(r);
  if (r->switched) r->s = &r->sgd;
  return rc;
}
