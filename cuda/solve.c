/* solve.c: the entry `solve`: the results of matrices, with their checks, without a wait of the host.
 *
 * Each matrix takes the steps of src/linalg/results.c; kernels of solve.cu check its result and store it if the checks pass. Small
 * matrices that need an inverse or a factor in double take one launch for the list. Eigenbases of one order take one call. The queue
 * runs all others one after the other, so they share the scratch. */
#include "device_entries.h"
#include "linalg/vector.h"

typedef int64_t i64;

/* Return the next n floats of the scratch, at a multiple of 64 bytes. */
static void *take(float **scratch, i64 n) {
  void *at = *scratch;
  *scratch += (n + 15) / 16 * 16;
  return at;
}

static dv_solve describe(const ng_matrix *m) {
  return (dv_solve){.F = m->F,
                    .R = m->R,
                    .d = m->d,
                    .n = m->n,
                    .count = m->result == NG_RESULT_EIGEN ? m->n * m->n : ng_sym_count(m->n),
                    .F_dtype = (int32_t)m->average_dtype,
                    .R_dtype = (int32_t)m->result_dtype,
                    .d_dtype = m->result_dtype == NG_F64 ? NG_F64 : NG_F32,
                    .result = (int32_t)m->result,
                    .scale = m->scale,
                    .shift = m->shift,
                    .damping = m->damping,
                    .floor = m->floor,
                    .p = m->p,
                    .negative_most = ng_negative_limit(m->average_dtype, m->n),
                    .largest =
                        ng_dtype_largest(m->result_dtype == NG_F64 ? NG_F32 : m->result_dtype),
                    .part_count = blocks_of(m->n, DV_THREADS)};
}

/* The numbers of the checks follow all other scratch. */
static void take_check_numbers(ng_matrix *m, dv_solve *s, float **scratch) {
  s->infos = take(scratch, 4);
  s->worst = (int64_t *)(void *)(s->infos + 2);
  s->parts = take(scratch, 2 * s->part_count);
  s->info = &m->info;
  s->accepted = &m->accepted;
  s->largest_eigenvalue = &m->largest_eigenvalue;
}

/* Return the address on the device, or NULL after an error. */
static const dv_solve *send(ng_device *d, const dv_solve *s) {
  dv_solve *copy = ng_stage_allocate(d, 1, sizeof *copy);
  if (copy == NULL) return NULL;
  *copy = *s;
  return ng_stage_address(d, copy);
}

/* Name the blocks of matrices [from, to). */
static void name_blocks(ng_device *d, ng_matrix *const *list, i64 from, i64 to) {
  if (list[from]->name != NULL) d->named = (ng_block_names){list[from]->name, list[to - 1]->name};
}

static void store(ng_queue *q, const dv_solve *s, const dv_solve *at) {
  LAUNCH(q->device, dv_solve_check_range, blocks_of(s->count, DV_TILE), &at);
  LAUNCH(q->device, dv_solve_store, blocks_of(s->count, DV_TILE), &at);
}

static void solve_symmetric(ng_queue *q, ng_matrix *m, float *scratch) {
  ng_device *d = q->device;
  const i64 n = m->n, count = ng_sym_count(n);
  const ng_dtype t = ng_dtype_of_solve(m);
  dv_solve s = describe(m);
  s.W = take(&scratch, 2 * count);
  s.W_dtype = (int32_t)t;
  s.column = take(&scratch, 2 * n);
  s.residual_most = NG_RESIDUAL_MOST;
  take_check_numbers(m, &s, &scratch);
  const dv_solve *at = send(d, &s);
  if (at == NULL) return;
  ng_stage_zero(d, s.infos, 2 * sizeof *s.infos);
  ng_device_convert(q, count, m->F, m->average_dtype, s.W, t);
  if (m->scale != 1.0) ng_device_linalg.scale(q, count, s.W, t, m->scale);
  ng_device_linalg.shift_diagonal(q, n, s.W, t, false, m->shift + m->damping);
  ng_device_linalg.factor(q, n, s.W, t, &s.infos[0]);
  if (m->result == NG_RESULT_INVERSE) ng_device_linalg.invert(q, n, s.W, t, &s.infos[1]);
  LAUNCH(d, dv_solve_take_column, 1, &at);
  if (m->result == NG_RESULT_CHOLESKY) ng_device_linalg.solve_right(q, n, s.W, t, 1, s.column, n);
  LAUNCH(d, dv_solve_residual, s.part_count, &at);
  LAUNCH(d, dv_solve_accept, 1, &at);
  store(q, &s, at);
}

/* R = B'B with row i of B = (e_i + d)^(-1/2p) v_i, in f32. B [n, n] may be the memory of the eigenvectors. */
static void store_root(ng_queue *q, dv_solve s, const dv_solve *at, float *B, float *S) {
  ng_device *d = q->device;
  const i64 n = s.n;
  LAUNCH(d, dv_solve_roots, 1, &at);
  ng_device_convert(q, n * n, s.W, (ng_dtype)s.W_dtype, B, NG_F32);
  ng_device_linalg.divide(q, n, n, (ng_spectrum){.g = s.root}, B, NG_F32, n);
  ng_stage_zero(d, S, (size_t)ng_sym_count(n) * sizeof *S);
  ng_device_linalg.add_gram(q, (ng_sym){S, n}, 0, n, B, n, n, 1.0f);
  s.W = (char *)S;
  s.W_dtype = NG_F32;
  const dv_solve *root = send(d, &s);
  if (root != NULL) store(q, &s, root);
}

/* Check eigenvectors V with eigenvalues e, and store the result. */
static void store_pairs(ng_queue *q, ng_matrix *m, void *V, void *e, int32_t *info,
                        float *scratch) {
  ng_device *d = q->device;
  const i64 n = m->n;
  dv_solve s = describe(m);
  s.W = V;
  s.W_dtype = (int32_t)ng_dtype_of_solve(m);
  s.e = e;
  float *B = s.W_dtype == NG_F64 ? take(&scratch, n * n) : V;
  float *S = take(&scratch, ng_sym_count(n));
  s.root = take(&scratch, n);
  s.residual_most = NG_NEGATIVE_MOST;
  take_check_numbers(m, &s, &scratch);
  s.infos = info;
  const dv_solve *at = send(d, &s);
  if (at == NULL) return;
  LAUNCH(d, dv_solve_check_pairs, s.part_count, &at);
  LAUNCH(d, dv_solve_accept_pairs, 1, &at);
  if (m->result == NG_RESULT_ROOT) {
    store_root(q, s, at, B, S);
  } else {
    store(q, &s, at);
    LAUNCH(d, dv_solve_store_eigenvalues, 1, &at);
  }
}

static void decompose(ng_queue *q, ng_matrix *m, float *scratch) {
  const i64 n = m->n;
  const ng_dtype t = ng_dtype_of_solve(m);
  void *V = take(&scratch, t == NG_F64 ? 2 * n * n : n * n), *e = take(&scratch, 2 * n);
  int32_t *info = take(&scratch, 1);
  ng_device_unpack(q, n, m->F, m->average_dtype, V, t, n);
  ng_device_linalg.eigen(q, n, V, t, e, scratch, info);
  store_pairs(q, m, V, e, info, scratch);
}

/* ---- eigenbases of equal orders --------------------------------------------------------------*/

static bool has_pairs(const ng_matrix *m) {
  return m->form == NG_FORM_SYMMETRIC &&
         (m->result == NG_RESULT_EIGEN || m->result == NG_RESULT_ROOT);
}
static bool are_alike(const ng_matrix *a, const ng_matrix *b) {
  return has_pairs(a) && has_pairs(b) && a->n == b->n &&
         ng_dtype_of_solve(a) == ng_dtype_of_solve(b);
}

/* Halve `most` until the matrices like m and the workspace of one batched call fit in the scratch. Return the result, and set *work to
 * the bytes of the workspace. Return 1 without a batched call or after an error. */
static i64 count_at_once(ng_queue *q, const ng_matrix *m, i64 most, i64 *work) {
  ng_device *d = q->device;
  const bool wide = ng_dtype_of_solve(m) == NG_F64;
  const i64 each = (m->n * m->n + m->n) * (wide ? 8 : 4) + (i64)sizeof(int32_t);
  for (; most > 1; most /= 2) {
    ng_stage_keep_error(d, dv_batch_bytes(d->blas, wide, m->n, most, work));
    if (*work < 0 || d->error[0] != '\0') return 1;
    if (most * each + *work + 4096 <= ng_stage_scratch_left(d)) return most;
  }
  return most;
}

/* Decompose `count` matrices of list[i..n) like list[i], *i among them, in one call. Return the index after the last of them. */
static i64 decompose_batch(ng_queue *q, ng_matrix *const *list, i64 i, i64 n, i64 count, i64 bytes,
                           float *scratch) {
  ng_device *d = q->device;
  const ng_matrix *like = list[i];
  const i64 order = like->n, first = i;
  const ng_dtype t = ng_dtype_of_solve(like);
  const size_t size = t == NG_F64 ? 8 : 4;
  char *V = ng_stage_scratch(d, count * order * order, size);
  char *e = ng_stage_scratch(d, count * order, size);
  int32_t *infos = ng_stage_scratch(d, count, sizeof *infos);
  void *work = ng_stage_scratch(d, bytes, 1);
  if (V == NULL || e == NULL || infos == NULL || work == NULL) return n;
  for (i64 k = 0; k < count; i++) {
    if (!are_alike(list[i], like)) continue;
    char *to = V + (size_t)(k++ * order * order) * size;
    ng_device_unpack(q, order, list[i]->F, list[i]->average_dtype, to, t, order);
  }
  if (d->error[0] == '\0')
    ng_stage_keep_error(
        d, dv_syevd_batch(d->blas, t == NG_F64, order, count, V, e, work, bytes, infos));
  for (i64 k = 0, j = first; k < count; j++) {
    if (!are_alike(list[j], like)) continue;
    name_blocks(d, list, j, j + 1);
    store_pairs(q, list[j], V + (size_t)(k * order * order) * size, e + (size_t)(k * order) * size,
                &infos[k], scratch);
    k++;
  }
  return i;
}

/* Decompose all matrices like list[first], which is the first of its kind. */
static void decompose_alike(ng_queue *q, ng_matrix *const *list, i64 first, i64 n, float *scratch) {
  i64 left = 0, bytes = 0;
  for (i64 i = first; i < n; i++) {
    left += are_alike(list[i], list[first]) ? 1 : 0;
  }
  for (i64 i = first; i < n && left > 0;) {
    if (!are_alike(list[i], list[first])) {
      i++;
      continue;
    }
    name_blocks(q->device, list, i, i + 1);
    if (!ng_stage_begin(q->device)) return;
    const i64 count = count_at_once(q, list[i], left, &bytes);
    if (count > 1) {
      name_blocks(q->device, list, first, n);
      i = decompose_batch(q, list, i, n, count, bytes, scratch);
    } else {
      decompose(q, list[i++], scratch);
    }
    left -= count;
  }
}

static void copy(ng_queue *q, ng_matrix *m, float *scratch) {
  ng_device *d = q->device;
  dv_solve s = describe(m);
  int32_t yes = 1, *accepted = &m->accepted;
  i64 one = 1;
  s.W = (char *)(uintptr_t)m->F;
  s.W_dtype = s.F_dtype;
  take_check_numbers(m, &s, &scratch);
  LAUNCH(d, dv_fill, 1, &accepted, &one, &yes);
  const dv_solve *at = m->form == NG_FORM_ABSENT ? NULL : send(d, &s);
  if (at == NULL) return;
  if (m->form == NG_FORM_DIAGONAL) {
    LAUNCH(d, dv_solve_diagonal, 1, &at);
  } else {
    store(q, &s, at);
  }
}

/* ---- small matrices --------------------------------------------------------------------------*/

/* Matrices of a launch: their scratch, at most 136 KiB each, fits in half of the scratch of the stage (ng_stage_begin). */
enum { AT_ONCE = 512 };

static bool is_small(const ng_matrix *m) {
  return m->form == NG_FORM_SYMMETRIC && m->n <= NG_SMALL_SOLVE &&
         (m->result == NG_RESULT_INVERSE || m->result == NG_RESULT_CHOLESKY) &&
         ng_dtype_of_solve(m) == NG_F64;
}

static bool describe_small(ng_device *d, ng_matrix *m, dv_solve *s) {
  const i64 n = m->n, count = ng_sym_count(n);
  float *scratch = ng_stage_scratch(d, 4 * count + 2 * n + 80, sizeof *scratch);
  if (scratch == NULL) return false;
  *s = describe(m);
  s->W = take(&scratch, 2 * count);
  s->W_dtype = NG_F64;
  s->e = take(&scratch, 2 * count);
  s->column = take(&scratch, 2 * n);
  s->residual_most = NG_RESIDUAL_MOST;
  take_check_numbers(m, s, &scratch);
  return true;
}

/* Solve the small matrices of the list. */
static void solve_small(ng_queue *q, ng_matrix *const *list, i64 n) {
  ng_device *d = q->device;
  for (i64 i = 0; i < n;) {
    if (!ng_stage_begin(d)) return;
    dv_solve *to = ng_stage_allocate(d, AT_ONCE, sizeof *to);
    if (to == NULL) return;
    i64 made = 0;
    for (; i < n && made < AT_ONCE; i++) {
      if (!is_small(list[i])) continue;
      if (!describe_small(d, list[i], &to[made++])) return;
    }
    void *at = ng_stage_address(d, to);
    LAUNCH(d, dv_solve_small, made, &at);
  }
}

void ng_device_solve(ng_queue *q, ng_matrix *const *list, i64 n, float *scratch) {
  i64 small = 0;
  for (i64 i = 0; i < n; i++) {
    small += is_small(list[i]) ? 1 : 0;
  }
  if (small > 1) name_blocks(q->device, list, 0, n);
  if (small > 1) solve_small(q, list, n);
  for (i64 i = 0; i < n; i++) {
    ng_matrix *m = list[i];
    name_blocks(q->device, list, i, i + 1);
    if (!ng_stage_begin(q->device)) return;
    if (small > 1 && is_small(m)) continue;
    bool is_done = false; /* an earlier call decomposed m together with another matrix */
    for (i64 j = 0; j < i && has_pairs(m); j++) {
      is_done = is_done || are_alike(list[j], m);
    }
    if (is_done) continue;
    if (m->form != NG_FORM_SYMMETRIC || m->result == NG_RESULT_COPY) {
      copy(q, m, scratch);
    } else if (has_pairs(m)) {
      decompose_alike(q, list, i, n, scratch);
    } else {
      solve_symmetric(q, m, scratch);
    }
  }
}
