/* replay_state.c: recordings with the state of the optimizer after each step: start each step from the recorded state of the
 * step before, and compare the new state.
 *
 * A parameter P has the arrays sT.P.m and .v (moments), .GGk and .Qk (Gram matrix and basis of axis k; columns of Q are
 * vectors). With Shampoo the second moment is .graft, the momentum of the update is .momentum, and piece b of P has .bB.Lk and
 * .bB.invk, the Gram matrix and the root of axis k, or .bB.Qk, its basis, and .b0.v, the second moment in the bases. In rank-deficient matrices, and for equal eigenvalues, a basis is not unique. So a basis that changes is
 * compared by its properties, with the limit of spec/matrix.md, 7, and first moments in the original axes. */
#include "replay.h"

#include "common/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* Largest accepted error of a basis: of |Q'Q - I|; of the entries of Q'LQ off the diagonal (first basis), or of
 * Q'(L Q_old) below it (refreshed), divided by the largest entry of L. */
#define BASIS_ERROR 5e-6

/* Least damping of a recording whose roots are compared. */
#define ROOT_DAMPING 1e-6

enum { MOST_AXES = 4 };

/* ---- changing a state --------------------------------------------------------------------------*/

/* The public interface cannot write single arrays. So replay_edit_state saves the state to memory, lets a function change
 * arrays, updates the checksums, and loads the state. */
static int32_t write_to_file(void *file, const void *data, int64_t n) {
  return fwrite(data, 1, (size_t)n, file) != (size_t)n;
}

static int64_t read_from_file(void *file, void *data, int64_t n) {
  return (int64_t)fread(data, 1, (size_t)n, file);
}

/* Replace the eight hexadecimal digits after `key`, which occurs once in the header, by the CRC-32 of `data`. */
static bool write_crc(char *header, size_t size, const char *key, const void *data, size_t n) {
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

static bool edit_arrays(char *header, size_t size, char *arrays, const ngio_value *root,
                        replay_edit edit, void *user) {
  bool done = true;
  for (const ngio_value *t = ngio_first(root); t != NULL && done; t = ngio_next(root, t)) {
    const ngio_value *lengths = ngio_get(t, "shape"), *at = ngio_get(t, "data_offsets");
    char key[256];
    const int64_t from = ngio_integer_of(ngio_at(at, 0)), to = ngio_integer_of(ngio_at(at, 1));
    const int64_t lengths_of[2] = {ngio_integer_of(ngio_at(lengths, 0)),
                                   ngio_integer_of(ngio_at(lengths, 1))};
    if (at == NULL || !edit(user, t->key, (float *)(void *)(arrays + from), lengths_of)) continue;
    (void)snprintf(key, sizeof key, "\\\"%s\\\":{\\\"crc32\\\":\\\"", t->key);
    done = write_crc(header, size, key, arrays + from, (size_t)(to - from));
  }
  return done;
}

static bool edit_saved(char *state, replay_edit edit, void *user) {
  uint64_t size;
  memcpy(&size, state, sizeof size);
  char *header = state + sizeof size, *arrays = header + size;
  ngio_json *json = NULL;
  if (ngio_json_parse(header, size, &json, NULL, 0) != NGIO_OK) return false;
  bool done = edit_arrays(header, size, arrays, ngio_json_root(json), edit, user);
  ngio_json_free(&json);
  if (!done || ngio_json_parse(header, size, &json, NULL, 0) != NGIO_OK) return false;
  const char *manifest =
      ngio_text_of(ngio_get(ngio_get(ngio_json_root(json), "__metadata__"), "natgrad"));
  done = manifest != NULL &&
         write_crc(header, size, "\"natgrad.crc32\":\"", manifest, strlen(manifest));
  ngio_json_free(&json);
  return done;
}

ng_status replay_edit_state(ng_precond *p, replay_edit edit, void *user) {
  char *state = NULL;
  size_t n = 0;
  FILE *file = open_memstream(&state, &n);
  if (file == NULL) return NG_ERR_NOMEM;
  ng_status st = ng_save_to(p, write_to_file, file);
  if (fclose(file) != 0 && st >= 0) st = NG_ERR_NOMEM;
  file = st >= 0 && edit_saved(state, edit, user) ? fmemopen(state, n, "r") : NULL;
  if (st >= 0) st = file != NULL ? ng_load_from(p, read_from_file, file) : NG_ERR_FILE;
  if (file != NULL) (void)fclose(file);
  free(state);
  return st;
}

/* ---- the names of arrays -----------------------------------------------------------------------*/

/* An array of the library's state and its recorded array. */
typedef struct pair {
  const ngio_tensor *recorded; /* NULL: not recorded */
  bool is_triangle;            /* ours: a lower triangle, row by row */
  bool is_basis;               /* ours: rows are vectors */
} pair;

/* Return the recorded array `what` (GG or Q) of the axis that is number i of the axes with matrices. */
static const ngio_tensor *find_axis_array(const recording *r, int step, const char *parameter,
                                          const char *what, int i) {
  for (int axis = 0; axis < MOST_AXES; axis++) {
    const ngio_tensor *t = recording_find_array(r, "s%d.%s.%s%d", step, parameter, what, axis);
    if (t != NULL && i-- == 0) return t;
  }
  return NULL;
}

/* Return the recorded array `what` (L or inv) of axis number i of all pieces of a parameter. */
static const ngio_tensor *find_piece_array(const recording *r, int step, const char *parameter,
                                           const char *what, int i) {
  for (int piece = 0, found = 1; found > 0; piece++) {
    found = 0;
    for (int axis = 0; axis < MOST_AXES; axis++) {
      const ngio_tensor *t =
          recording_find_array(r, "s%d.%s.b%d.%s%d", step, parameter, piece, what, axis);
      if (t != NULL && i-- == 0) return t;
      found += t != NULL;
    }
  }
  return NULL;
}

static pair find_pair(const recording *r, int step, const char *parameter, const char *field) {
  pair x = {.recorded = NULL};
  int axis = 0, read = 0;
  if (strcmp(field, "first_moment.weight") == 0 || strcmp(field, "momentum_matrix") == 0) {
    x.recorded = recording_find_array(r, "s%d.%s.m", step, parameter);
  } else if (strcmp(field, "second_moment.weight") == 0) {
    x.recorded = recording_find_array(r, "s%d.%s.v", step, parameter);
    if (x.recorded == NULL) x.recorded = recording_find_array(r, "s%d.%s.graft", step, parameter);
    if (x.recorded == NULL) x.recorded = recording_find_array(r, "s%d.%s.b0.v", step, parameter);
  } else if (strcmp(field, "momentum.weight") == 0) {
    x.recorded = recording_find_array(r, "s%d.%s.momentum", step, parameter);
  } else if (field[0] == 'L' && (field[1] == 0 || field[1] == '.' || field[1] == '_')) {
    const char *rest = field + 1;
    if (sscanf(rest, ".%d%n", &axis, &read) == 1) rest += read;
    const bool is_root = strcmp(rest, "_root") == 0;
    x.is_triangle = rest[0] == 0 || is_root;
    x.is_basis = strcmp(rest, "_basis") == 0;
    if (x.is_triangle || x.is_basis)
      x.recorded = find_axis_array(r, step, parameter, x.is_basis ? "Q" : "GG", axis);
    if (x.is_basis && x.recorded == NULL)
      x.recorded = find_piece_array(r, step, parameter, "Q", axis);
    if (x.is_triangle && x.recorded == NULL)
      x.recorded = find_piece_array(r, step, parameter, is_root ? "inv" : "L", axis);
  }
  return x;
}

/* Copy a recorded array to the order of the library's state. */
static void copy_recorded(const pair *x, float *to) {
  const float *from = x->recorded->data;
  const int64_t n = x->recorded->shape[0];
  if (!x->is_triangle && !x->is_basis) memcpy(to, from, (size_t)x->recorded->bytes);
  for (int64_t i = 0; i < n && (x->is_triangle || x->is_basis); i++) {
    for (int64_t j = 0; j < (x->is_basis ? n : i + 1); j++)
      *to++ = x->is_basis ? from[j * n + i] : from[i * n + j];
  }
}

/* ---- loading -----------------------------------------------------------------------------------*/

typedef struct recorded_state {
  const recording *r;
  int step;
} recorded_state;

static bool write_recorded_array(void *user, const char *name, float *data, const int64_t size[2]) {
  const recorded_state *s = user;
  const char *slash = strchr(name, '/');
  char parameter[64];
  (void)size; /* the recording determines the shape, and the library checks the file */
  if (slash == NULL) return false;
  (void)snprintf(parameter, sizeof parameter, "%.*s", (int)(slash - name), name);
  const pair x = find_pair(s->r, s->step, parameter, slash + 1);
  if (x.recorded != NULL) copy_recorded(&x, data);
  return x.recorded != NULL;
}

ng_status replay_load_state(const recording *r, ng_precond *p, int step) {
  recorded_state s = {r, step};
  return replay_edit_state(p, write_recorded_array, &s);
}

/* ---- comparing ---------------------------------------------------------------------------------*/

/* One parameter after a step. */
typedef struct parameter_state {
  const recording *r;
  ng_precond *p;
  const char *name;
  int step;
  int32_t axes;
  int64_t length[MOST_AXES], count;
  float *ours[MOST_AXES]; /* bases */
  const ngio_tensor *recorded[MOST_AXES], *before[MOST_AXES], *gram[MOST_AXES];
  double error;
} parameter_state;

static double largest(const float *x, int64_t n) {
  double most = 0;
  for (int64_t i = 0; i < n; i++)
    most = fmax(most, fabs((double)x[i]));
  return most;
}

static void note_error(parameter_state *s, double error) {
  if (!(error <= s->error)) s->error = error; /* written so that a NaN error is stored, too */
}

/* Note an error of a basis in units of the tolerance of the state. */
static void note_basis_error(parameter_state *s, double error) {
  note_error(s, error / BASIS_ERROR * s->r->state_tolerance);
}

/* Set the axes. If the matrices cover the parameter, which may be merged, their orders are the lengths. */
static void find_axes(parameter_state *s, const shape *l) {
  const int64_t natural[MOST_AXES] = {l->out, l->in, l->kernel[0], l->kernel[1]};
  int64_t product = 1;
  s->count = l->in * l->out * (l->is_conv ? l->kernel[0] * l->kernel[1] : 1);
  s->axes = l->out == 1 && !l->is_conv ? 1 : l->is_conv ? 4 : 2;
  for (int32_t k = 0; k < MOST_AXES; k++) {
    s->recorded[k] = recording_find_array(s->r, "s%d.%s.Q%d", s->step, s->name, k);
    s->before[k] = recording_find_array(s->r, "s%d.%s.Q%d", s->step - 1, s->name, k);
    s->gram[k] = recording_find_array(s->r, "s%d.%s.GG%d", s->step, s->name, k);
    product *= s->recorded[k] != NULL ? s->recorded[k]->shape[0] : 1;
    s->length[k] = s->axes == 1 ? s->count : natural[k];
  }
  for (int32_t k = 0, at = 0; k < MOST_AXES && product == s->count; k++) {
    if (s->recorded[k] == NULL) continue;
    s->length[k] = s->recorded[k]->shape[0];
    s->axes = ++at;
  }
}

/* Read a field of the parameter; NULL: the state has none. */
static float *read_field(const parameter_state *s, const char *field, int64_t n, ng_status *st) {
  char name[128];
  bool there;
  float *x = cli_alloc((size_t)n, sizeof *x);
  (void)snprintf(name, sizeof name, "%s/%s", s->name, field);
  *st = replay_read_field(s->p, name, x, n, &there);
  if (*st >= 0 && there) return x;
  free(x);
  return NULL;
}

/* Rotate x, the coordinates in the bases Q with vectors in rows (ours) or columns (recorded), back to the axes. */
static void rotate_back(const parameter_state *s, bool ours, double *x) {
  double *y = cli_alloc((size_t)s->count, sizeof *y);
  int64_t after = s->count;
  for (int32_t k = 0; k < s->axes; k++) {
    const int64_t n = s->length[k];
    after /= n;
    if (s->recorded[k] == NULL) continue;
    const float *Q = ours ? s->ours[k] : s->recorded[k]->data;
    for (int64_t i = 0; i < s->count; i++) {
      const int64_t at = i / after % n, first = i - at * after;
      y[i] = 0;
      for (int64_t j = 0; j < n; j++)
        y[i] += (double)(ours ? Q[j * n + at] : Q[at * n + j]) * x[first + j * after];
    }
    memcpy(x, y, (size_t)s->count * sizeof *x);
  }
  free(y);
}

static void compare_first_moments(parameter_state *s, const float *m, const ngio_tensor *recorded) {
  double *a = cli_alloc((size_t)s->count, sizeof *a), *b = cli_alloc((size_t)s->count, sizeof *b);
  double gap = 0, scale = 0;
  const float *from = recorded->data;
  for (int64_t i = 0; i < s->count; i++) {
    a[i] = (double)m[i];
    b[i] = (double)from[i];
  }
  rotate_back(s, true, a);
  rotate_back(s, false, b);
  for (int64_t i = 0; i < s->count; i++) {
    const double d = fabs(a[i] - b[i]);
    if (!(d <= gap)) gap = d;
    scale = fmax(scale, fabs(b[i]));
  }
  note_error(s, gap == 0 ? 0 : gap / scale);
  free(a);
  free(b);
}

/* out [n, n]: <x_i, L y_j>, vectors in rows of x, in columns of y. */
static void multiply_between(int64_t n, const float *x, bool x_columns, const float *L,
                             const float *y, double *out) {
  double *Ly = cli_alloc((size_t)(n * n), sizeof *Ly);
  for (int64_t i = 0; i < n * n; i++) {
    for (int64_t k = 0; k < n; k++)
      Ly[i] += (double)L[i / n * n + k] * (double)y[k * n + i % n];
  }
  for (int64_t i = 0; i < n * n; i++) {
    out[i] = 0;
    for (int64_t k = 0; k < n; k++)
      out[i] += (double)(x_columns ? x[k * n + i / n] : x[i / n * n + k]) * Ly[k * n + i % n];
  }
  free(Ly);
}

/* Check the properties of a new basis (see BASIS_ERROR). */
static void check_basis(parameter_state *s, int32_t axis) {
  const int64_t n = s->length[axis];
  const float *Q = s->ours[axis], *L = s->gram[axis]->data;
  const double scale = fmax(largest(L, n * n), 1e-300);
  const bool refreshed = s->before[axis] != NULL;
  double *B = cli_alloc((size_t)(n * n), sizeof *B), *e = cli_alloc((size_t)n, sizeof *e);
  int64_t *order = cli_alloc((size_t)n, sizeof *order);
  float *columns = cli_alloc((size_t)(n * n), sizeof *columns);
  for (int64_t i = 0; i < n * n; i++) {
    double dot = 0;
    for (int64_t k = 0; k < n; k++)
      dot += (double)Q[i / n * n + k] * (double)Q[i % n * n + k];
    note_basis_error(s, fabs(dot - (i / n == i % n ? 1.0 : 0.0)));
    columns[i] = Q[i % n * n + i / n];
  }
  if (refreshed) multiply_between(n, s->before[axis]->data, true, L, s->before[axis]->data, B);
  for (int64_t i = 0; i < n; i++) {
    int64_t at = i;
    e[i] = B[i * (n + 1)];
    for (; at > 0 && e[order[at - 1]] < e[i]; at--)
      order[at] = order[at - 1];
    order[at] = i;
  }
  for (int64_t i = 0; i < n * n && refreshed; i++)
    columns[i] = ((const float *)s->before[axis]->data)[i / n * n + order[i % n]];
  multiply_between(n, Q, false, L, columns, B);
  for (int64_t i = 0; i < n * n; i++) {
    const int64_t row = i / n, column = i % n;
    if (refreshed ? row > column : row != column) note_basis_error(s, fabs(B[i]) / scale);
  }
  free(B);
  free(e);
  free(order);
  free(columns);
}

static void compare_arrays(parameter_state *s, const pair *x, const float *ours) {
  float *want = cli_alloc((size_t)(x->recorded->bytes / 4), sizeof *want);
  double gap = 0, scale = 0;
  copy_recorded(x, want);
  int64_t n = x->recorded->bytes / 4;
  if (x->is_triangle) n = x->recorded->shape[0] * (x->recorded->shape[0] + 1) / 2;
  replay_add_error(ours, want, n, &gap, &scale);
  note_error(s, gap == 0 ? 0 : gap / scale);
  free(want);
}

/* Compare L_k and its basis. */
static ng_status compare_axis(parameter_state *s, int32_t axis, int i, bool single) {
  char field[32], number[16] = "";
  const int64_t n = s->length[axis];
  ng_status st;
  if (!single) (void)snprintf(number, sizeof number, ".%d", i);
  (void)snprintf(field, sizeof field, "L%s", number);
  float *L = read_field(s, field, n * (n + 1) / 2, &st);
  (void)snprintf(field, sizeof field, "L%s_basis", number);
  if (st >= 0) s->ours[axis] = read_field(s, field, n * n, &st);
  if (st >= 0 && (L == NULL || s->ours[axis] == NULL)) st = NG_ERR_STATE; /* renamed */
  if (st >= 0) {
    const bool moved =
        s->before[axis] == NULL ||
        memcmp(s->before[axis]->data, s->recorded[axis]->data, (size_t)(n * n) * sizeof *L) != 0;
    const pair gram = {.recorded = s->gram[axis], .is_triangle = true},
               basis = {.recorded = s->recorded[axis], .is_basis = true};
    compare_arrays(s, &gram, L);
    if (moved) check_basis(s, axis);
    if (!moved) compare_arrays(s, &basis, s->ours[axis]);
  }
  free(L);
  return st;
}

/* Compare a field of the parameter, a triangle, with its recorded array. */
static ng_status compare_triangle(parameter_state *s, const char *field) {
  const pair x = find_pair(s->r, s->step, s->name, field);
  const int64_t n = x.recorded->shape[0];
  ng_status st;
  float *ours = read_field(s, field, n * (n + 1) / 2, &st);
  if (st >= 0 && ours == NULL) st = NG_ERR_STATE; /* renamed */
  if (st >= 0) compare_arrays(s, &x, ours);
  free(ours);
  return st;
}

/* Check that a basis of a piece, a field of the parameter, is orthonormal. V and the direction depend on its vectors. */
static ng_status check_piece_basis(parameter_state *s, const char *field) {
  const pair x = find_pair(s->r, s->step, s->name, field);
  const int64_t n = x.recorded->shape[0];
  ng_status st;
  float *Q = read_field(s, field, n * n, &st);
  if (st >= 0 && Q == NULL) st = NG_ERR_STATE; /* renamed */
  for (int64_t i = 0; i < n * n && st >= 0; i++) {
    double dot = i / n == i % n ? -1.0 : 0.0;
    for (int64_t k = 0; k < n; k++)
      dot += (double)Q[i / n * n + k] * (double)Q[i % n * n + k];
    note_basis_error(s, fabs(dot));
  }
  free(Q);
  return st;
}

/* Compare the matrices and roots of all pieces. Roots of null directions are rounding errors if damping is below ROOT_DAMPING. */
static ng_status compare_pieces(parameter_state *s) {
  const bool roots = ngio_number_of(ngio_get(s->r->config, "epsilon")) >= ROOT_DAMPING;
  const bool single = find_piece_array(s->r, s->step, s->name, "L", 1) == NULL;
  ng_status st = NG_OK;
  for (int i = 0; st >= 0 && find_piece_array(s->r, s->step, s->name, "L", i) != NULL; i++) {
    char L[32] = "L", root[48], basis[48];
    if (!single) (void)snprintf(L, sizeof L, "L.%d", i);
    (void)snprintf(root, sizeof root, "%s_root", L);
    (void)snprintf(basis, sizeof basis, "%s_basis", L);
    st = compare_triangle(s, L);
    const bool has_basis = find_piece_array(s->r, s->step, s->name, "Q", i) != NULL;
    if (st >= 0 && has_basis) st = check_piece_basis(s, basis);
    if (st >= 0 && roots && !has_basis) st = compare_triangle(s, root);
  }
  return st;
}

static ng_status compare_parameter(parameter_state *s) {
  const ngio_tensor *m = recording_find_array(s->r, "s%d.%s.m", s->step, s->name);
  const ngio_tensor *v = find_pair(s->r, s->step, s->name, "second_moment.weight").recorded;
  int matrices = 0, i = 0;
  ng_status st = compare_pieces(s);
  for (int32_t k = 0; k < MOST_AXES; k++)
    matrices += s->recorded[k] != NULL;
  for (int32_t k = 0; k < MOST_AXES && st >= 0; k++)
    if (s->recorded[k] != NULL) st = compare_axis(s, k, i++, matrices == 1);
  float *ours = st >= 0 && m != NULL ? read_field(s, "first_moment.weight", s->count, &st) : NULL;
  if (st >= 0 && m != NULL && ours == NULL) ours = read_field(s, "momentum_matrix", s->count, &st);
  if (ours != NULL) compare_first_moments(s, ours, m);
  free(ours);
  ours = st >= 0 && v != NULL ? read_field(s, "second_moment.weight", s->count, &st) : NULL;
  const pair second = {.recorded = v};
  if (ours != NULL) compare_arrays(s, &second, ours);
  free(ours);
  return st;
}

ng_status replay_compare_state(const recording *r, ng_precond *p, int step, double *error) {
  ng_status st = NG_OK;
  for (int i = 0; i < r->layers && st >= 0; i++) {
    parameter_state s = {.r = r, .p = p, .name = r->layer[i].name, .step = step};
    error[i] = 0;
    if (recording_step_at(r, step, i, 0)->grad == NULL) continue; /* the parameter was skipped */
    find_axes(&s, &r->layer[i]);
    st = compare_parameter(&s);
    error[i] = s.error;
    for (int32_t k = 0; k < MOST_AXES; k++)
      free(s.ours[k]);
  }
  return st;
}

/* ---- directions --------------------------------------------------------------------------------*/

/* Recordings of SOAP have M / (sqrt(V) + eps) rotated back; the direction of the library is this quotient times
 * sqrt(1 - beta2^t) / (1 - beta1^t), with t the number of earlier gradients of the parameter. */
void replay_scale_direction(const recording *r, int step, int layer, float *direction) {
  const ngio_value *betas = ngio_get(r->config, "betas");
  const shape *l = &r->layer[layer];
  int t = 0;
  if (!ngio_is(ngio_get(r->config, "correct_bias"), NGIO_TRUE)) return;
  for (int k = 0; k < step; k++)
    t += recording_step_at(r, k, layer, 0)->grad != NULL;
  const double scale = sqrt(1 - pow(ngio_number_of(ngio_at(betas, 1)), t)) /
                       (1 - pow(ngio_number_of(ngio_at(betas, 0)), t));
  const int64_t n = l->in * l->out * (l->is_conv ? l->kernel[0] * l->kernel[1] : 1);
  for (int64_t i = 0; i < n && t > 0; i++)
    direction[i] = (float)((double)direction[i] / scale);
}
