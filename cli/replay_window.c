/* replay_window.c: comparisons that only recordings of window methods have.
 *
 * Arrays of a parameter P: init.P.q0 and init.P.q (the start of the low-rank iteration), sT.P.after (the weight after
 * step T), sT.P.error (the error feedback after step T).  Errors of a step and parameter are max |ours - recorded|
 * over the largest entry recorded in that step. */
#include "replay.h"

#include "common/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static int64_t elements(const recording *r, int i) { return r->layer[i].in * r->layer[i].out; }

static const ngio_tensor *of_step(const recording *r, int step, int i, const char *what) {
  return recording_array(r, "s%d.%s.%s", step, r->layer[i].name, what);
}

/* `there`: whether any step has such arrays; those must be float32 and as long as their parameter. */
static int check_arrays(const recording *r, const char *path, const char *what, bool *there) {
  *there = false;
  for (int k = 0; k < r->steps * r->layers && r->parameters; k++) {
    const int step = k / r->layers, i = k % r->layers;
    const ngio_tensor *t = of_step(r, step, i, what);
    *there = *there || t != NULL;
    if (t == NULL || (t->dtype == NGIO_F32 && t->bytes == 4 * elements(r, i))) continue;
    return cli_bad("%s: array s%d.%s.%s: expected float32, %lld elements", path, step,
                   r->layer[i].name, what, (long long)elements(r, i));
  }
  return CLI_OK;
}

/* The largest gap and entry of n numbers, joined to *gap and *scale; a NaN is an infinite gap. */
void replay_measure(double (*ours)(const void *arg, int64_t i), const void *arg,
                    const float *recorded, int64_t n, double *gap, double *scale) {
  for (int64_t i = 0; i < n; i++) {
    const double d = fabs(ours(arg, i) - (double)recorded[i]);
    *gap = !isfinite(d) ? INFINITY : fmax(*gap, d);
    *scale = fmax(*scale, fabs((double)recorded[i]));
  }
}

/* ---- the start of the low-rank iteration -------------------------------------------------------*/

/* The rank of a parameter: window_rank, limited by its sizes; 0: stored whole. */
static int64_t rank_of(const shape *l, int64_t rank) {
  const int64_t least = l->in < l->out ? l->in : l->out;
  return l->out == 1 ? 0 : rank < least ? rank : least;
}

int replay_check_start(const recording *r, const char *path, int64_t rank) {
  for (int i = 0; i < r->layers; i++) {
    const shape *l = &r->layer[i];
    const ngio_tensor *q = recording_array(r, "init.%s.q", l->name);
    if (l->out == 1) continue;
    if (!r->parameters || q == NULL) {
      return cli_bad("%s: array init.%s.q is missing: low rank begins with what the program drew",
                     path, l->name);
    }
    if (q->dtype != NGIO_F32 || q->ndim != 2 || q->shape[0] != l->in ||
        q->shape[1] != rank_of(l, rank)) {
      return cli_bad("%s: array init.%s.q: expected float32 [%lld,%lld], of window_rank %lld", path,
                     l->name, (long long)l->in, (long long)rank_of(l, rank), (long long)rank);
    }
  }
  return CLI_OK;
}

/* Rounding of the program in f32 is 5e-7 in the recordings. */
static const double START_TOLERANCE = 1e-4;

/* The relative error of Q = W' P, where P has the orthonormalised columns of W Q0; w [rows, cols], q0 and q
 * [cols, rank]. */
static double start_error(const shape *l, const float *w, const float *q0, const float *q,
                          int64_t rank) {
  const int64_t rows = l->out, cols = l->in;
  double *P = cli_take((size_t)(rows * rank), sizeof *P), gap = 0, most = 0;
  for (int64_t a = 0; a < rank; a++) {
    double norm = 0;
    for (int64_t k = 0; k < rows; k++)
      for (int64_t c = 0; c < cols; c++)
        P[a * rows + k] += (double)w[k * cols + c] * (double)q0[c * rank + a];
    for (int64_t b = 0; b < a; b++) {
      double overlap = 0;
      for (int64_t k = 0; k < rows; k++)
        overlap += P[a * rows + k] * P[b * rows + k];
      for (int64_t k = 0; k < rows; k++)
        P[a * rows + k] -= overlap * P[b * rows + k];
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

static int check_start(const recording *r, const char *path, int i) {
  const shape *l = &r->layer[i];
  const ngio_tensor *q0 = recording_array(r, "init.%s.q0", l->name);
  const ngio_tensor *q = recording_array(r, "init.%s.q", l->name);
  if (q0 == NULL || q == NULL || l->out == 1) return CLI_OK;
  if (q0->dtype != NGIO_F32 || q->dtype != NGIO_F32 || q0->bytes != q->bytes || q->bytes == 0 ||
      q->bytes % (4 * l->in) != 0) {
    return cli_bad("%s: arrays init.%s.q0 and .q: expected float32, so many columns of %lld each",
                   path, l->name, (long long)l->in);
  }
  const double e =
      start_error(l, recording_step_at(r, 0, i)->before, q0->data, q->data, q->bytes / (4 * l->in));
  if (e <= START_TOLERANCE) return CLI_OK;
  return cli_bad("%s: array init.%s.q is not what s0.%s.before makes of init.%s.q0", path, l->name,
                 l->name, l->name);
}

/* The library draws its own start, which is part of its state.  So: save the state into memory, write the recorded
 * matrices over the drawn ones, update the checksums, load the state. */
typedef struct bytes {
  char *data;
  size_t n, room, read;
} bytes;

static int32_t take(void *user, const void *data, int64_t n) {
  bytes *b = user;
  if (b->n + (size_t)n > b->room) {
    const size_t room = 2 * (b->n + (size_t)n);
    b->data = realloc(b->data, room);
    if (b->data == NULL) return 1;
    b->room = room;
  }
  memcpy(b->data + b->n, data, (size_t)n);
  b->n += (size_t)n;
  return 0;
}

static int64_t give(void *user, void *data, int64_t n) {
  bytes *b = user;
  const size_t left = b->n - b->read, some = left < (size_t)n ? left : (size_t)n;
  memcpy(data, b->data + b->read, some);
  b->read += some;
  return (int64_t)some;
}

/* Write the eight digits behind `key`, which the header has once. */
static bool put_crc(char *header, size_t size, const char *key, const void *data, size_t n) {
  char digits[16];
  const size_t length = strlen(key);
  (void)snprintf(digits, sizeof digits, "%08lx", (unsigned long)crc32_z(0, data, n));
  for (size_t i = 0; i + length + 8 <= size; i++) {
    if (memcmp(header + i, key, length) != 0) continue;
    memcpy(header + i + length, digits, 8);
    return true;
  }
  return false;
}

/* One row of the window: for each parameter the columns of P, then of Q; whole if it has one row. */
static void put_start(const recording *r, float *row) {
  for (int i = 0; i < r->layers; i++) {
    const shape *l = &r->layer[i];
    const ngio_tensor *q = recording_array(r, "init.%s.q", l->name);
    const int64_t rank = l->out == 1 ? 0 : q->shape[1];
    const float *from = l->out == 1 ? NULL : q->data;
    for (int64_t a = 0; a < rank; a++) {
      for (int64_t c = 0; c < l->in; c++)
        row[rank * l->out + a * l->in + c] = from[c * rank + a];
    }
    row += l->out == 1 ? l->in : rank * (l->out + l->in);
  }
}

/* The last row of the window precedes the first step. */
static bool change(const recording *r, bytes *b) {
  uint64_t size = 0;
  if (b->n < sizeof size) return false;
  memcpy(&size, b->data, sizeof size);
  char *header = b->data + sizeof size, *arrays = header + size;
  if (size > b->n - sizeof size) return false;
  ngio_json *json = NULL;
  if (ngio_json_parse(header, size, &json, NULL, 0) != NGIO_OK) return false;
  const ngio_value *t = ngio_get(ngio_json_root(json), "window/factors");
  const ngio_value *lengths = ngio_get(t, "shape"), *at = ngio_get(t, "data_offsets");
  const int64_t rows = ngio_integer_of(ngio_at(lengths, 0));
  const int64_t floats = ngio_integer_of(ngio_at(lengths, 1));
  const int64_t from = ngio_integer_of(ngio_at(at, 0));
  const int64_t to = ngio_integer_of(ngio_at(at, 1));
  ngio_json_free(&json);
  if (rows < 2 || to - from != 4 * rows * floats) return false;
  put_start(r, (float *)(void *)(arrays + from + 4 * (rows - 1) * floats));
  if (!put_crc(header, size, "\\\"window/factors\\\":{\\\"crc32\\\":\\\"", arrays + from,
               (size_t)(to - from)))
    return false;
  if (ngio_json_parse(header, size, &json, NULL, 0) != NGIO_OK) return false;
  const char *manifest =
      ngio_text_of(ngio_get(ngio_get(ngio_json_root(json), "__metadata__"), "natgrad"));
  const bool ok =
      manifest != NULL && put_crc(header, size, "\"natgrad.crc32\":\"", manifest, strlen(manifest));
  ngio_json_free(&json);
  return ok;
}

ng_status replay_set_start(const recording *r, ng_precond *p) {
  bytes b = {0};
  ng_status st = ng_save_to(p, take, &b);
  if (st >= 0) st = change(r, &b) ? ng_load_from(p, give, &b) : NG_ERR_FILE;
  free(b.data);
  return st;
}

/* ---- error feedback --------------------------------------------------------------------------*/

int replay_check_feedback(const recording *r, const char *path, bool *some) {
  return check_arrays(r, path, "error", some); /* a parameter that is sent whole has none */
}

ng_status replay_field(ng_precond *p, const char *name, float *to, int64_t n, bool *there) {
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

static double number_at(const void *x, int64_t i) { return ((const double *)x)[i]; }

ng_status replay_compare_feedback(const recording *r, ng_precond *p, int step, double *error) {
  int64_t all = 0, at = 0;
  double scale = 0;
  for (int i = 0; i < r->layers; i++)
    all += elements(r, i);
  double *ours = cli_take((size_t)all, sizeof *ours);
  ng_status st = add_field(p, "window/error", ours, all);
  if (st >= 0) st = add_field(p, "window/error_rest", ours, all);
  for (int i = 0; i < r->layers && st >= 0; i++) {
    const ngio_tensor *e = of_step(r, step, i, "error");
    error[i] = 0;
    if (e != NULL) replay_measure(number_at, ours + at, e->data, elements(r, i), &error[i], &scale);
    at += elements(r, i);
  }
  for (int i = 0; i < r->layers && scale > 0; i++)
    error[i] /= scale;
  free(ours);
  return st;
}

/* ---- weights after a step: w <- (1 - wd) w - lr u, with wd where wd_type is wd or both ------------*/

int replay_check_weights(const recording *r, const char *path, bool *there) {
  int rc = check_arrays(r, path, "after", there);
  for (int i = 0; i < r->layers && r->parameters && rc == CLI_OK; i++)
    rc = check_start(r, path, i);
  for (int k = 0; k < r->steps * r->layers && *there && rc == CLI_OK; k++) {
    const int step = k / r->layers, i = k % r->layers;
    const ngio_tensor *a = of_step(r, step, i, "after");
    const char *name = r->layer[i].name;
    if (a == NULL) {
      rc = cli_bad("%s: array s%d.%s.after is missing", path, step, name);
    } else if (step + 1 < r->steps &&
               memcmp(a->data, recording_step_at(r, step + 1, i)->before, (size_t)a->bytes) != 0) {
      rc = cli_bad("%s: array s%d.%s.before is not s%d.%s.after", path, step + 1, name, step, name);
    }
  }
  return rc;
}

static bool shrinks(const recording *r) {
  const char *type = ngio_text_of(ngio_get(r->config, "wd_type"));
  return type != NULL && (strcmp(type, "wd") == 0 || strcmp(type, "both") == 0);
}

/* Learning rate and weight decay of the parameter's group. */
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

typedef struct weight_update {
  const float *before, *direction;
  double rate, decay;
} weight_update;

static double weight_at(const void *arg, int64_t i) {
  const weight_update *m = arg;
  return (1 - m->decay) * (double)m->before[i] - m->rate * (double)m->direction[i];
}

void replay_compare_weights(const recording *r, int step, double lr, float *const *direction,
                            double *error) {
  double scale = 0;
  for (int i = 0; i < r->layers; i++) {
    weight_update m = {recording_step_at(r, step, i)->before, direction[i], lr, 0};
    rates(r, i, &m.rate, &m.decay);
    error[i] = 0;
    replay_measure(weight_at, &m, of_step(r, step, i, "after")->data, elements(r, i), &error[i],
                   &scale);
  }
  for (int i = 0; i < r->layers && scale > 0; i++)
    error[i] /= scale;
}
