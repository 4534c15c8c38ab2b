/* replay_kept.c: error feedback after each step against what the program had, where that is recorded.
 *
 * In: arrays sT.P.error of some parameters P.  Out: of each step and parameter the largest |ours - recorded|, over
 * the largest entry recorded in that step. */
#include "replay.h"

#include "common/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ngio_tensor *kept(const recording *r, int step, int i) {
  char name[160];
  (void)snprintf(name, sizeof name, "s%d.%s.error", step, r->layer[i].name);
  return r->file != NULL ? ngio_tensors_find(r->file, name)
                         : recording_folder_find(&r->folder, name);
}

static int64_t elements(const recording *r, int i) { return r->layer[i].in * r->layer[i].out; }

int replay_check_kept(const recording *r, const char *path, bool *some) {
  *some = false;
  for (int step = 0; step < r->steps && r->parameters; step++) {
    for (int i = 0; i < r->layers; i++) {
      const ngio_tensor *e = kept(r, step, i);
      if (e == NULL) continue; /* what is sent whole leaves nothing */
      *some = true;
      if (e->dtype == NGIO_F32 && e->bytes == 4 * elements(r, i)) continue;
      return cli_bad("%s: array s%d.%s.error: expected float32, %lld of them", path, step,
                     r->layer[i].name, (long long)elements(r, i));
    }
  }
  return CLI_OK;
}

ng_status replay_field(ng_precond *p, const char *name, float *to, int64_t n, bool *there) {
  *there = false;
  for (int32_t i = 0; i < ng_state_count(p); i++) {
    ng_field_info field;
    ng_field_info_init(&field, sizeof field);
    const ng_status st = ng_state_at(p, i, &field);
    if (st < 0) return st;
    if (strcmp(field.name, name) != 0) continue;
    *there = true;
    return ng_state_read(p, i, to, n * (int64_t)sizeof *to);
  }
  return NG_OK;
}

/* to [all] += a field of the state, if it is there. */
static ng_status add_field(ng_precond *p, const char *name, double *to, int64_t all) {
  bool there;
  float *x = cli_take((size_t)all, sizeof *x);
  const ng_status st = replay_field(p, name, x, all, &there);
  for (int64_t k = 0; k < all && there && st >= 0; k++)
    to[k] += (double)x[k];
  free(x);
  return st;
}

ng_status replay_compare_kept(const recording *r, ng_precond *p, int step, double *apart) {
  int64_t all = 0, at = 0;
  double scale = 0;
  for (int i = 0; i < r->layers; i++)
    all += elements(r, i);
  double *ours = cli_take((size_t)all, sizeof *ours);
  ng_status st = add_field(p, "window/error", ours, all);
  if (st >= 0) st = add_field(p, "window/error_rest", ours, all);
  for (int i = 0; i < r->layers && st >= 0; i++) {
    const ngio_tensor *e = kept(r, step, i);
    const float *theirs = e == NULL ? NULL : e->data;
    apart[i] = 0;
    for (int64_t k = 0; k < elements(r, i) && e != NULL; k++) {
      const double gap = fabs(ours[at + k] - (double)theirs[k]);
      apart[i] = gap > apart[i] ? gap : isfinite(gap) ? apart[i] : INFINITY;
      scale = fmax(scale, fabs((double)theirs[k]));
    }
    at += elements(r, i);
  }
  for (int i = 0; i < r->layers && scale > 0; i++)
    apart[i] /= scale;
  free(ours);
  return st;
}
