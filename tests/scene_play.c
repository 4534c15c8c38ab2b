/* scene_play.c: see scene.h.  Goes in: a scene, options, a look.  Goes out: preconditioned gradients
 * of every step, played by the library (public functions only, one thread a rank) or by the oracle.
 */
#include "scene.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"
#include "fixture.h"
#include "ranks.h"
#include "stream.h"

#if defined(NG_TEST_MPI)
#include <mpi.h>
#endif

/* ---- how the library sees it -----------------------------------------------------------------*/

static void put(void *data, ng_dtype t, int64_t i, double x) {
  const float f = (float)x;
  ng_from_f32((char *)data + i * ng_dtype_size(t), t, &f, 1);
}

static double get(const void *data, ng_dtype t, int64_t i) {
  float f;
  ng_to_f32(&f, (const char *)data + i * ng_dtype_size(t), t, 1);
  return (double)f;
}

/* Tokens, [B, S] or the other way round. */
static plane show_tokens(const scene *s, const scene_look *look, int32_t i, int64_t B,
                         const double *v) {
  const ng_dtype type = s->layer[i].token_dtype;
  const int64_t S = s->positions[i];
  const bool turned = look->order == NG_POSITIONS_FIRST;
  plane out = plane_of(NULL, turned ? S : B, turned ? B : S, type);
  out.row_stride = out.cols + look->pad;
  out.data = scene_alloc((size_t)(out.rows * out.row_stride * ng_dtype_size(type)));
  for (int64_t k = 0; k < B * S; k++) {
    const int64_t at = turned ? k % S * out.row_stride + k / S : k / S * out.row_stride + k % S;
    if (type == NG_I32) ((int32_t *)out.data)[at] = (int32_t)v[k];
    if (type == NG_I64) ((int64_t *)out.data)[at] = (int64_t)v[k];
  }
  return out;
}

/* A view of v, times `by`, as the look wants it; the memory is the view's data. */
static plane show(const scene *s, const scene_look *look, int32_t i, bool grad, int64_t B,
                  const double *v, double by) {
  const ng_layer *l = &s->layer[i];
  ng_dtype type = look->shown ? look->shown : NG_F32;
  int64_t S = s->positions[i], rows, cols, hw = 1, channels = grad ? l->out : l->in;
  if (l->kind == NG_EMBEDDING && !grad) return show_tokens(s, look, i, B, v);
  const bool images = scene_images(l);
  if (images) {
    hw = grad ? S : l->image[0] * l->image[1];
    rows = B;
    cols = channels * hw;
  } else {
    rows = B * S;
    cols = channels;
  }
  int64_t stride = cols + look->pad;
  plane out =
      plane_of(scene_alloc((size_t)(rows * stride * ng_dtype_size(type))), rows, cols, type);
  if (images) {
    const int64_t h = grad && l->kind == NG_CONV2D ? oracle_out(l, 0) : l->image[0];
    out = plane_images(out.data, look->layout ? look->layout : PLANE_NCHW, B, channels, h, hw / h,
                       type);
  }
  out.row_stride = stride;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = cols; c < stride; c++)
      put(out.data, type, r * stride + c, (double)NAN);
    for (int64_t c = 0; c < cols; c++) {
      int64_t to_r = r, to_c = c;
      if (images && look->layout == PLANE_NHWC) to_c = c % hw * channels + c / hw;
      if (!images && look->order == NG_POSITIONS_FIRST) to_r = r % S * B + r / S;
      put(out.data, type, to_r * stride + to_c, by * v[r * cols + c]);
    }
  }
  return out;
}

/* ---- the library plays -----------------------------------------------------------------------*/

typedef struct play {
  const scene *s;
  const ng_options *opt;
  const scene_look *look;
  scene_result *result; /* [rank] */
  walked *walk;         /* [rank] */
  stream *kept;
} play;

typedef struct actor {
  const play *p;
  int32_t rank;
  bool trying; /* this step is the one that is in trouble */
  fixture f;
  int32_t index[SCENE_LAYERS];
  plane grad[SCENE_LAYERS][2], weight[SCENE_LAYERS][2];
  void *lent[SCENE_LAYERS * SCENE_USES]; /* inputs of norms, of this micro-batch */
  int32_t lents;
} actor;

/* Where entry (i, j) of D is, of a layer whose bias is its last column. */
static plane *place(const ng_layer *l, plane slot[2], int64_t i, int64_t j, int64_t *at) {
  const bool bias = l->bias && j == oracle_cols(l) - 1;
  *at = bias || l->kind == NG_NORM ? i
        : l->kind == NG_EMBEDDING  ? j * slot[0].row_stride + i
                                   : i * slot[0].row_stride + j;
  return &slot[bias];
}

static void write(const scene *s, int32_t l, plane slot[2], const double *x) {
  const int64_t p = oracle_cols(&s->layer[l]), n = scene_weights(s, l);
  for (int64_t i = 0, at; i < n; i++) {
    plane *v = place(&s->layer[l], slot, i / p, i % p, &at);
    put(v->data, v->dtype, at, x[i]);
  }
}

static void read(const scene *s, int32_t l, plane slot[2], double *x) {
  const int64_t p = oracle_cols(&s->layer[l]), n = scene_weights(s, l);
  for (int64_t i = 0, at; i < n; i++) {
    const plane *v = place(&s->layer[l], slot, i / p, i % p, &at);
    x[i] = get(v->data, v->dtype, at);
  }
}

/* A slot full of NaN. */
static plane slot_of(int64_t rows, int64_t cols, int64_t pad, ng_dtype type) {
  plane v = plane_of(NULL, rows, cols, type);
  v.row_stride = cols + pad;
  v.data = scene_alloc((size_t)(rows * v.row_stride * ng_dtype_size(type)));
  for (int64_t i = 0; i < rows * v.row_stride; i++)
    put(v.data, type, i, (double)NAN);
  return v;
}

static ng_status add(actor *a, int32_t l) {
  const scene *s = a->p->s;
  const scene_look *look = a->p->look;
  ng_layer d = s->layer[l];
  if (!scene_images(&d) && look->order) d.order = look->order;
  if (!scene_images(&d) && look->declare_positions) d.positions = s->positions[l];
  ng_status st = ng_add_layer(a->f.p, &d, &a->index[l]);
  const ng_dtype type = look->gradient ? look->gradient : NG_F32;
  const int64_t q = oracle_rows(&d), w = oracle_cols(&d) - (d.bias ? 1 : 0);
  const bool vector = d.kind == NG_NORM, turned = d.kind == NG_EMBEDDING;
  for (int k = 0; k < (d.bias ? 2 : 1); k++) {
    const int64_t rows = k || vector ? 1 : turned ? w : q, cols = k || vector || turned ? q : w;
    if (k == 0 && w == 0) continue; /* beta only */
    a->grad[l][k] = slot_of(rows, cols, look->pad, type);
    if (s->W[l]) a->weight[l][k] = slot_of(rows, cols, 0, NG_F32);
  }
  if (s->W[l]) write(s, l, a->weight[l], s->W[l]);
  for (int k = 0; k < (d.bias ? 2 : 1) && st == NG_OK; k++) {
    st = fixture_bind(&a->f, a->index[l], (ng_param)k, &a->grad[l][k], &a->weight[l][k]);
  }
  return st;
}

static ng_status enter(actor *a, const ng_transport *transport) {
  const play *p = a->p;
  const fixture_how how = {.linalg = p->look->linalg,
                           .threads = p->look->threads > 0 ? p->look->threads : 1,
                           .transport = p->s->ranks > 1 ? transport : NULL};
  ng_status st = fixture_open_options(&a->f, p->opt, &how);
  for (int32_t k = 0; k < p->s->layers && st == NG_OK; k++) {
    st = add(a, p->look->reverse ? p->s->layers - 1 - k : k);
  }
  return st == NG_OK ? ng_ready(a->f.p) : st;
}

static void take_back(actor *a) {
  while (a->lents > 0)
    free(a->lent[--a->lents]);
}

static void leave(actor *a) {
  fixture_close(&a->f);
  take_back(a);
  for (int32_t l = 0; l < a->p->s->layers; l++) {
    for (int k = 0; k < 2; k++) {
      free(a->grad[l][k].data);
      free(a->weight[l][k].data);
      a->grad[l][k].data = a->weight[l][k].data = NULL;
    }
  }
}

/* Is this the array in trouble?  The last one to be read of its kind, so that all others are in. */
static bool spoilt(const actor *a, int32_t t, int32_t c, int32_t l, int32_t u, bool grad) {
  const scene *s = a->p->s;
  const scene_trouble what = a->p->look->trouble;
  const bool input = what == SCENE_BAD_INPUT || what == SCENE_NO_INPUT;
  const bool output = what == SCENE_BAD_OUTPUT_GRAD || what == SCENE_NO_OUTPUT_GRAD;
  if (!a->trying || a->rank != s->ranks - 1 || c != s->calls[t][a->rank] - 1) return false;
  if (!(grad ? output : input) || u != (grad ? 0 : s->uses[l] - 1)) return false;
  for (int32_t k = grad ? 0 : l + 1; k < (grad ? l : s->layers); k++) {
    if (ng_wants(a->f.p, a->index[k])) return false;
  }
  return true;
}

static ng_status observe(actor *a, int32_t t, int32_t c, int32_t l, int32_t u, bool grad) {
  const scene *s = a->p->s;
  const scene_micro *m = &s->micro[t][a->rank][c];
  const scene_trouble what = a->p->look->trouble;
  const double *v = grad ? m->g[l][u] : m->a[l][u];
  const bool bad = spoilt(a, t, c, l, u, grad);
  if (!v || (!a->p->look->show_unwanted && !ng_wants(a->f.p, a->index[l]))) return NG_OK;
  if (bad && (what == SCENE_NO_INPUT || what == SCENE_NO_OUTPUT_GRAD)) return NG_OK;
  /* other numbers than the step that will count, so that none of them goes unnoticed */
  plane x = show(s, a->p->look, l, grad, m->batch.samples, v, a->trying ? 2 : 1);
  if (bad) put(x.data, x.dtype, x.cols - 1, (double)NAN);
  const bool lent = s->layer[l].kind == NG_NORM && !grad;
  ng_status st = lent ? plane_input(a->f.p, a->index[l], &x, NG_BORROW)
                      : fixture_observe(&a->f, a->index[l], grad ? NULL : &x, grad ? &x : NULL);
  if (lent)
    a->lent[a->lents++] = x.data;
  else
    free(x.data);
  return st == NG_SKIPPED && a->trying ? NG_OK : st; /* the step will say so */
}

static ng_status observe_all(actor *a, int32_t t) {
  const scene *s = a->p->s;
  for (int32_t c = 0; c < s->calls[t][a->rank]; c++) {
    ng_status st = ng_begin(a->f.p, &s->micro[t][a->rank][c].batch);
    take_back(a);
    for (int32_t l = 0; l < s->layers && st == NG_OK; l++) {
      for (int32_t u = 0; u < s->uses[l] && st == NG_OK; u++)
        st = observe(a, t, c, l, u, false);
    }
    for (int32_t l = s->layers - 1; l >= 0 && st == NG_OK; l--) {
      for (int32_t u = s->uses[l] - 1; u >= 0 && st == NG_OK; u--)
        st = observe(a, t, c, l, u, true);
    }
    if (st != NG_OK) return st;
  }
  return NG_OK;
}

/* A step that must not happen: everything is shown, something is wrong.  Counted when it was
 * refused and no gradient changed. */
static ng_status attempt(actor *a, int32_t t) {
  const scene *s = a->p->s;
  const scene_trouble what = a->p->look->trouble;
  a->trying = true;
  ng_status st = observe_all(a, t);
  a->trying = false;
  if (st != NG_OK) return st;
  if (what == SCENE_ABANDONED) return ng_reset_batch(a->f.p);
  if (what >= SCENE_NO_INPUT && a->rank == s->ranks - 1) {
    ng_batch b = s->micro[t][a->rank][0].batch;
    b.loss_scale = (double)INFINITY;
    if (ng_begin(a->f.p, &b) != NG_SKIPPED) return NG_ERR_STATE;
  }
  double *was[SCENE_LAYERS];
  /* gradients are averages, the same everywhere; where not every rank reads them, all are spoilt */
  const bool looks = a->rank == s->ranks - 1 || a->p->opt->grad_worker_fraction < 1;
  bool same = true;
  for (int32_t l = 0; l < s->layers; l++) {
    const plane *g = &a->grad[l][0];
    write(s, l, a->grad[l], s->D[t][l]);
    if (what == SCENE_BAD_GRADIENT && looks && l == s->layers - 1)
      put(g->data, g->dtype, g->cols - 1, (double)NAN);
    was[l] = zeros(scene_weights(s, l));
    read(s, l, a->grad[l], was[l]);
  }
  st = ng_step(a->f.p, 0.1);
  for (int32_t l = 0; l < s->layers; l++) {
    double *is = zeros(scene_weights(s, l));
    read(s, l, a->grad[l], is);
    for (int64_t i = 0; i < scene_weights(s, l); i++)
      same = same && (is[i] == was[l][i] || (isnan(is[i]) && isnan(was[l][i])));
    free(is);
    free(was[l]);
  }
  a->p->result[a->rank].refused += st == NG_SKIPPED && same;
  return st < NG_OK ? st : NG_OK;
}

static ng_status take_step(actor *a, int32_t t) {
  const scene *s = a->p->s;
  const scene_look *look = a->p->look;
  scene_result *out = &a->p->result[a->rank];
  ng_status st = s->damping[t] > 0 ? ng_set_real(a->f.p, "damping", s->damping[t]) : NG_OK;
  if (st == NG_OK && s->decay_moves) st = ng_set_real(a->f.p, "stat_decay", s->decay[t]);
  if (st == NG_OK && look->trouble && look->trouble_at == t) st = attempt(a, t);
  if (st == NG_OK) st = observe_all(a, t);
  if (st != NG_OK) return st;
  for (int32_t l = 0; l < s->layers; l++)
    write(s, l, a->grad[l], s->D[t][l]);
  st = ng_step(a->f.p, 0.1);
  if (st < NG_OK) return st;
  for (int32_t l = 0; l < s->layers; l++) {
    out->P[t][l] = zeros(scene_weights(s, l));
    read(s, l, a->grad[l], out->P[t][l]);
  }
  ng_report report = {.struct_size = sizeof report};
  ng_status told = ng_report_read(a->f.p, &report);
  out->nu[t] = report.clip;
  out->inner[t] = report.inner;
  return told < NG_OK ? told : st;
}

/* What is held goes to the file and comes back into a preconditioner that was never used. */
static ng_status resume(actor *a, const ng_transport *transport) {
  const char *file = a->p->look->resume;
  const bool walk = a->p->look->by_walk;
  ng_status st = walk                   ? walk_take(a->f.p, a->rank, &a->p->walk[a->rank])
                 : a->p->look->in_parts ? ng_save_parts(a->f.p, file)
                                        : ng_save(a->f.p, file);
  if (st == NG_OK && walk && a->rank == 0) st = walk_compose(a->f.p, a->p->walk, a->p->kept);
  if (st != NG_OK) return st;
  leave(a);
  st = enter(a, transport);
  if (st != NG_OK) return st;
  return walk ? ng_load_from(a->f.p, stream_read, a->p->kept) : ng_load(a->f.p, file);
}

static ng_status act(int32_t rank, ng_transport *transport, void *arg) {
  const play *p = arg;
  const scene_look *look = p->look;
  actor a = {.p = p, .rank = rank};
  scene_result *out = &p->result[rank];
  ng_status worst = NG_OK, st = enter(&a, transport);
  for (int32_t t = 0; t < p->s->steps && st >= NG_OK; t++) {
    int64_t before = 0, after = 0;
    ng_context_allocated(a.f.ctx, NULL, NULL, &before);
    st = take_step(&a, t);
    ng_context_allocated(a.f.ctx, NULL, NULL, &after);
    out->allocations += after - before;
    if (st > worst) worst = st;
    if (st >= NG_OK && (look->resume || look->by_walk) && look->resume_after == t)
      st = resume(&a, transport);
  }
  if (st < NG_OK) {
    snprintf(out->message, sizeof out->message, "rank %d: %s: %.400s", rank, ng_status_name(st),
             a.f.ctx ? ng_last_error(a.f.ctx) : a.f.message);
    worst = st;
  }
  leave(&a);
  return out->status = worst;
}

#if defined(NG_TEST_MPI)
/* What each rank has, to all processes. */
static void share_results(const scene *s, scene_result *result) {
  int me = 0;
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &me);
  for (int32_t r = 0; r < s->ranks; r++) {
    scene_result *to = &result[r], kept = *to;
    (void)MPI_Bcast(to, (int)sizeof *to, MPI_BYTE, r, MPI_COMM_WORLD);
    for (int32_t t = 0; t < s->steps; t++) {
      for (int32_t l = 0; l < s->layers; l++) {
        const bool has = to->P[t][l] != NULL;
        const size_t n = (size_t)scene_weights(s, l);
        to->P[t][l] = has && me != r ? scene_alloc(n * sizeof(double)) : kept.P[t][l];
        if (has) (void)MPI_Bcast(to->P[t][l], (int)n, MPI_DOUBLE, r, MPI_COMM_WORLD);
      }
    }
  }
}
#endif

void scene_play(const scene *s, const ng_options *opt, const scene_look *look, scene_result *out) {
  scene_result *result = scene_alloc(sizeof *result * (size_t)s->ranks);
  walked walk[SCENE_RANKS] = {{0}};
  stream kept = {0};
  play p = {s, opt, look, result, walk, &kept};
  ng_status worst = s->ranks > 1 ? ranks_run(s->ranks, act, &p, NULL) : act(0, NULL, &p);
#if defined(NG_TEST_MPI)
  if (s->ranks > 1) share_results(s, result);
#endif
  double gap = 0;
  for (int32_t r = 1; r < s->ranks; r++) {
    for (int32_t t = 0; t < s->steps; t++) {
      for (int32_t l = 0; l < s->layers; l++) {
        const double *x = result[0].P[t][l], *y = result[r].P[t][l];
        for (int64_t i = 0; x && y && i < scene_weights(s, l); i++) {
          gap = fmax(gap, fabs(x[i] - y[i]));
        }
      }
    }
    if (result[0].message[0] == '\0') {
      memcpy(result[0].message, result[r].message, sizeof result[0].message);
    }
    result[0].allocations += result[r].allocations;
    if (result[r].refused < result[0].refused) result[0].refused = result[r].refused;
    scene_forget(&result[r]);
  }
  for (int32_t r = 0; r < s->ranks; r++)
    walk_drop(&walk[r]);
  stream_drop(&kept);
  *out = result[0];
  out->status = worst;
  out->rank_gap = gap;
  free(result);
}

/* ---- the oracle plays ------------------------------------------------------------------------*/

void scene_predict(const scene *s, const ng_options *opt, scene_result *out, oracle **keep) {
  oracle *o = oracle_create(opt, s->ranks);
  memset(out, 0, sizeof *out);
  for (int32_t l = 0; l < s->layers; l++)
    (void)oracle_add(o, &s->layer[l]);
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t l = 0; l < s->layers; l++) {
      if (s->damping[t] > 0) oracle_options(o, l)->damping = s->damping[t];
      if (s->decay_moves) oracle_options(o, l)->stat_decay = s->decay[t];
    }
    for (int32_t r = 0; r < s->ranks; r++) {
      for (int32_t c = 0; c < s->calls[t][r]; c++) {
        const scene_micro *m = &s->micro[t][r][c];
        oracle_begin(o, r, &m->batch);
        for (int32_t l = 0; l < s->layers; l++) {
          for (int32_t u = 0; u < s->uses[l]; u++) {
            if (m->a[l][u]) oracle_input(o, r, l, m->a[l][u], s->positions[l]);
          }
        }
        for (int32_t l = s->layers - 1; l >= 0; l--) {
          for (int32_t u = s->uses[l] - 1; u >= 0; u--) {
            if (m->g[l][u]) oracle_output_grad(o, r, l, m->g[l][u], s->positions[l]);
          }
        }
      }
    }
    for (int32_t l = 0; l < s->layers; l++) {
      out->P[t][l] = zeros(scene_weights(s, l));
    }
    out->nu[t] = oracle_step(o, 0.1, (const double *const *)s->D[t], out->P[t]);
    out->inner[t] = oracle_inner(o);
    for (int32_t l = 0; l < s->layers; l++)
      out->condition[t][l] = oracle_condition(o, l);
  }
  if (keep)
    *keep = o;
  else
    oracle_destroy(&o);
}
