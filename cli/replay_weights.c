/* replay_weights.c: of recordings of parameters, the weights around each step: that they go on from step to step, what low
 * rank begins with, and where our direction takes them.
 *
 * In: arrays sT.P.before and .after, init.P.q0 and .q, lr and weight_decay of `groups` in case.json.  The program's step is
 * w <- (1 - wd) w - lr u, with wd where wd_type is wd or both.  Out: of each step and parameter the largest |ours - recorded|,
 * over the largest weight recorded after that step. */
#include "replay.h"

#include "common/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rounding of the program in f32, which is 5e-7 in the recordings there are. */
static const double BEGINNING = 1e-4;

static const ngio_tensor *array_of(const recording *r, const char *begin, int i, const char *end) {
  char name[160];
  (void)snprintf(name, sizeof name, "%s.%s.%s", begin, r->layer[i].name, end);
  return r->file != NULL ? ngio_tensors_find(r->file, name)
                         : recording_folder_find(&r->folder, name);
}

static const ngio_tensor *after(const recording *r, int step, int i) {
  char begin[32];
  (void)snprintf(begin, sizeof begin, "s%d", step);
  return array_of(r, begin, i, "after");
}

static int64_t elements(const recording *r, int i) { return r->layer[i].in * r->layer[i].out; }

/* ---- the recording by itself -----------------------------------------------------------------*/

static int check_step(const recording *r, const char *path, int step, int i) {
  const ngio_tensor *a = after(r, step, i);
  const char *name = r->layer[i].name;
  if (a == NULL) return cli_bad("%s: array s%d.%s.after is missing", path, step, name);
  if (a->dtype != NGIO_F32 || a->bytes != 4 * elements(r, i)) {
    return cli_bad("%s: array s%d.%s.after: expected float32, %lld of them", path, step, name,
                   (long long)elements(r, i));
  }
  if (step + 1 < r->steps &&
      memcmp(a->data, recording_step_at(r, step + 1, i)->before, (size_t)a->bytes) != 0) {
    return cli_bad("%s: array s%d.%s.before is not s%d.%s.after", path, step + 1, name, step, name);
  }
  return CLI_OK;
}

/* Q = W' P of the orthonormal columns P of W Q0, w [rows, cols], q0 and q [cols, rank]. */
static double beginning_off(const shape *l, const float *w, const float *q0, const float *q,
                            int64_t rank) {
  const int64_t rows = l->out, cols = l->in;
  double *P = cli_take((size_t)(rows * rank), sizeof *P), gap = 0, most = 0;
  for (int64_t a = 0; a < rank; a++) {
    double norm = 0;
    for (int64_t k = 0; k < rows; k++)
      for (int64_t c = 0; c < cols; c++)
        P[a * rows + k] += (double)w[k * cols + c] * (double)q0[c * rank + a];
    for (int64_t b = 0; b < a; b++) {
      double along = 0;
      for (int64_t k = 0; k < rows; k++)
        along += P[a * rows + k] * P[b * rows + k];
      for (int64_t k = 0; k < rows; k++)
        P[a * rows + k] -= along * P[b * rows + k];
    }
    for (int64_t k = 0; k < rows; k++)
      norm += P[a * rows + k] * P[a * rows + k];
    for (int64_t k = 0; k < rows; k++)
      P[a * rows + k] /= sqrt(norm) + 1e-8;
    for (int64_t c = 0; c < cols; c++) {
      double x = 0;
      for (int64_t k = 0; k < rows; k++)
        x += (double)w[k * cols + c] * P[a * rows + k];
      const double d = fabs(x - (double)q[c * rank + a]);
      gap = d > gap || !isfinite(d) ? d : gap;
      most = fmax(most, fabs(x));
    }
  }
  free(P);
  return most > 0 ? gap / most : gap;
}

static int check_beginning(const recording *r, const char *path, int i) {
  const ngio_tensor *q0 = array_of(r, "init", i, "q0"), *q = array_of(r, "init", i, "q");
  const shape *l = &r->layer[i];
  if (q0 == NULL || q == NULL || l->out == 1) return CLI_OK;
  if (q0->dtype != NGIO_F32 || q->dtype != NGIO_F32 || q0->bytes != q->bytes || q->bytes == 0 ||
      q->bytes % (4 * l->in) != 0) {
    return cli_bad("%s: arrays init.%s.q0 and .q: expected float32, so many columns of %lld each",
                   path, l->name, (long long)l->in);
  }
  const double e = beginning_off(l, recording_step_at(r, 0, i)->before, q0->data, q->data,
                                 q->bytes / (4 * l->in));
  if (e <= BEGINNING) return CLI_OK;
  return cli_bad("%s: array init.%s.q is not what s0.%s.before makes of init.%s.q0", path, l->name,
                 l->name, l->name);
}

int replay_check_weights(const recording *r, const char *path, bool *there) {
  int rc = CLI_OK;
  *there = false;
  for (int s = 0; s < r->steps && r->parameters; s++) {
    for (int i = 0; i < r->layers; i++)
      *there = *there || after(r, s, i) != NULL;
  }
  for (int i = 0; i < r->layers && r->parameters && rc == CLI_OK; i++) {
    rc = check_beginning(r, path, i);
    for (int s = 0; s < r->steps && *there && rc == CLI_OK; s++)
      rc = check_step(r, path, s, i);
  }
  return rc;
}

/* ---- against ours ----------------------------------------------------------------------------*/

static bool shrinks(const recording *r) {
  const char *type = ngio_text_of(ngio_get(r->config, "wd_type"));
  return type != NULL && (strcmp(type, "wd") == 0 || strcmp(type, "both") == 0);
}

/* Of the group that the parameter is in. */
static void rates(const recording *r, int i, double *lr, double *decay) {
  const ngio_value *groups = ngio_get(r->root, "groups");
  const ngio_value *of = ngio_get(r->config, "weight_decay");
  for (size_t g = 0; g < ngio_count(groups); g++) {
    const ngio_value *group = ngio_at(groups, g), *list = ngio_get(group, "parameters");
    for (size_t k = 0; k < ngio_count(list); k++) {
      const char *name = ngio_text_of(ngio_at(list, k));
      if (name == NULL || strcmp(name, r->layer[i].name) != 0) continue;
      if (ngio_is_number(ngio_get(group, "lr"))) *lr = ngio_number_of(ngio_get(group, "lr"));
      if (ngio_is_number(ngio_get(group, "weight_decay"))) of = ngio_get(group, "weight_decay");
    }
  }
  *decay = shrinks(r) ? ngio_number_of(of) : 0;
}

void replay_compare_weights(const recording *r, int step, double lr, float *const *direction,
                            double *gap_of) {
  double scale = 0;
  for (int i = 0; i < r->layers; i++) {
    const float *before = recording_step_at(r, step, i)->before, *theirs = after(r, step, i)->data;
    double rate = lr, decay = 0;
    rates(r, i, &rate, &decay);
    gap_of[i] = 0;
    for (int64_t k = 0; k < elements(r, i); k++) {
      const double ours = (1 - decay) * (double)before[k] - rate * (double)direction[i][k];
      const double gap = fabs(ours - (double)theirs[k]);
      gap_of[i] = gap > gap_of[i] ? gap : isfinite(gap) ? gap_of[i] : INFINITY;
      scale = fmax(scale, fabs((double)theirs[k]));
    }
  }
  for (int i = 0; i < r->layers && scale > 0; i++)
    gap_of[i] /= scale;
}
