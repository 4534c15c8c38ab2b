/* replay_window.c: the parts of a replay that only window methods need.
 *
 * A parameter P has the arrays init.P.q (the start of the low-rank iteration) and sT.P.error (the error feedback after
 * step T). The error of a step and parameter is max |ours - recorded|, divided by the step's largest magnitude. */
#include "replay.h"

#include "common/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t count_floats(const recording *r, int i) { return r->layer[i].in * r->layer[i].out; }

static const ngio_tensor *find_error_array(const recording *r, int step, int i) {
  return recording_find_array(r, "s%d.%s.error", step, r->layer[i].name);
}

void replay_add_error(const float *ours, const float *recorded, int64_t n, double *gap,
                      double *scale) {
  for (int64_t i = 0; i < n; i++) {
    const double d = fabs((double)ours[i] - (double)recorded[i]);
    *gap = !isfinite(d) ? INFINITY : fmax(*gap, d);
    *scale = fmax(*scale, fabs((double)recorded[i]));
  }
}

/* ---- the start of the low-rank iteration -------------------------------------------------------*/

/* Return the number of columns of the low-rank factors P and Q of a parameter: `rank`, at most the length of its
 * smaller axis; 0 if the parameter has no P and Q. */
static int64_t count_factor_columns(const shape *l, int64_t rank) {
  const int64_t least = l->in < l->out ? l->in : l->out;
  return l->out == 1 ? 0 : rank < least ? rank : least;
}

int replay_check_start(const recording *r, const char *path, int64_t rank) {
  for (int i = 0; i < r->layers; i++) {
    const shape *l = &r->layer[i];
    const ngio_tensor *q = recording_find_array(r, "init.%s.q", l->name);
    if (l->out == 1) continue;
    if (!r->has_parameters || q == NULL)
      return cli_fail("%s: array init.%s.q, the start of the low-rank iteration, is missing", path,
                      l->name);
    if (q->dtype != NGIO_F32 || q->ndim != 2 || q->shape[0] != l->in ||
        q->shape[1] != count_factor_columns(l, rank))
      return cli_fail("%s: array init.%s.q: expected float32 [%lld,%lld], of window_rank %lld",
                      path, l->name, (long long)l->in, (long long)count_factor_columns(l, rank),
                      (long long)rank);
  }
  return CLI_OK;
}

/* Write the recorded Q into a row of the window. For each parameter, a row has the columns of P and then the columns of
 * Q, or the complete parameter if it has one output. */
static void write_recorded_start(const recording *r, float *row) {
  for (int i = 0; i < r->layers; i++) {
    const shape *l = &r->layer[i];
    const ngio_tensor *q = recording_find_array(r, "init.%s.q", l->name);
    const int64_t rank = l->out == 1 ? 0 : q->shape[1];
    const float *from = l->out == 1 ? NULL : q->data;
    for (int64_t a = 0; a < rank; a++) {
      for (int64_t c = 0; c < l->in; c++)
        row[rank * l->out + a * l->in + c] = from[c * rank + a];
    }
    row += l->out == 1 ? l->in : rank * (l->out + l->in);
  }
}

/* The library draws the start of the low-rank iteration, and stores it in the last row of the window, where the first
 * step reads it. */
static bool replace_start(void *user, const char *name, float *data, const int64_t size[2]) {
  if (strcmp(name, "window/factors") != 0 || size[0] < 2) return false;
  write_recorded_start(user, data + (size[0] - 1) * size[1]);
  return true;
}

ng_status replay_set_start(const recording *r, ng_precond *p) {
  return replay_edit_state(p, replace_start, (void *)(uintptr_t)r);
}

/* ---- error feedback --------------------------------------------------------------------------*/

/* A parameter whose gradient is stored without compression has no error feedback, so its array may be missing. */
int replay_check_feedback(const recording *r, const char *path, bool *some) {
  *some = false;
  for (int k = 0; k < r->steps * r->layers && r->has_parameters; k++) {
    const int step = k / r->layers, i = k % r->layers;
    const ngio_tensor *t = find_error_array(r, step, i);
    *some = *some || t != NULL;
    if (t == NULL || (t->dtype == NGIO_F32 && t->bytes == 4 * count_floats(r, i))) continue;
    return cli_fail("%s: array s%d.%s.error: expected float32, %lld elements", path, step,
                    r->layer[i].name, (long long)count_floats(r, i));
  }
  return CLI_OK;
}

ng_status replay_read_field(ng_precond *p, const char *name, float *to, int64_t n, bool *there) {
  *there = false;
  for (int32_t i = 0; i < ng_state_count(p); i++) {
    ng_field_info field = {.struct_size = sizeof field};
    const ng_status st = ng_state_at(p, i, &field);
    if (st < 0) return st;
    if (strcmp(field.name, name) != 0) continue;
    *there = true;
    return ng_state_read(p, i, to, n * (int64_t)sizeof *to);
  }
  return NG_OK;
}

ng_status replay_compare_feedback(const recording *r, ng_precond *p, int step, double *error) {
  int64_t all = 0, at = 0;
  double scale = 0;
  bool there;
  for (int i = 0; i < r->layers; i++)
    all += count_floats(r, i);
  float *ours = cli_alloc((size_t)all, sizeof *ours);
  const ng_status st = replay_read_field(p, "window/error", ours, all, &there);
  for (int i = 0; i < r->layers && st >= 0; i++) {
    const ngio_tensor *e = find_error_array(r, step, i);
    error[i] = 0;
    if (e != NULL) replay_add_error(ours + at, e->data, count_floats(r, i), &error[i], &scale);
    at += count_floats(r, i);
  }
  for (int i = 0; i < r->layers && scale > 0; i++)
    error[i] /= scale;
  free(ours);
  return st;
}
