/* scene.c: see scene.h.  Goes in: a scene, options, a look.  Goes out: preconditioned gradients of
 * every step, played by the library (public functions only, one thread a rank) or by the oracle.
 */
#include "scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *need(size_t bytes) {
  void *p = calloc(1, bytes > 0 ? bytes : 1);
  if (!p) abort();
  return p;
}

/* ---- writing a scene -------------------------------------------------------------------------*/

scene *scene_create(int32_t steps, int32_t ranks) {
  scene *s = need(sizeof *s);
  if (steps > SCENE_STEPS || ranks > SCENE_RANKS) abort();
  s->steps = steps;
  s->ranks = ranks;
  return s;
}

void scene_destroy(scene **sp) {
  scene *s = *sp;
  if (!s) return;
  for (int t = 0; t < SCENE_STEPS; t++) {
    for (int l = 0; l < SCENE_LAYERS; l++) {
      free(s->D[t][l]);
      for (int r = 0; r < SCENE_RANKS; r++) {
        for (int c = 0; c < SCENE_CALLS; c++) {
          for (int u = 0; u < SCENE_USES; u++) {
            free(s->micro[t][r][c].a[l][u]);
            free(s->micro[t][r][c].g[l][u]);
          }
        }
      }
    }
  }
  free(s);
  *sp = NULL;
}

static ng_layer *add(scene *s, ng_kind kind, int64_t in, int64_t out, bool bias) {
  int32_t i = s->layers++;
  if (i >= SCENE_LAYERS) abort();
  ng_layer *l = &s->layer[i];
  if (ng_layer_init(l, kind) != NG_OK) abort();
  snprintf(s->name[i], sizeof s->name[i], "%s%d", kind == NG_LINEAR ? "fc" : "conv", i);
  l->name = s->name[i];
  l->in = in;
  l->out = out;
  l->bias = bias;
  s->uses[i] = 1;
  s->positions[i] = 1;
  return l;
}

ng_layer *scene_linear(scene *s, int64_t in, int64_t out, bool bias, int64_t positions) {
  ng_layer *l = add(s, NG_LINEAR, in, out, bias);
  s->positions[s->layers - 1] = positions;
  return l;
}

ng_layer *scene_conv(scene *s, int64_t in, int64_t out, int64_t kh, int64_t kw, int64_t h,
                     int64_t w, bool bias) {
  ng_layer *l = add(s, NG_CONV2D, in, out, bias);
  l->kernel[0] = kh;
  l->kernel[1] = kw;
  l->image[0] = h;
  l->image[1] = w;
  for (int i = 0; i < 2; i++) {
    l->stride[i] = l->dilation[i] = 1;
    l->padding[i] = 0;
  }
  l->groups = 1;
  return l;
}

void scene_close(scene *s) {
  for (int32_t i = 0; i < s->layers; i++) {
    if (s->layer[i].kind == NG_CONV2D) s->positions[i] = oracle_positions(&s->layer[i]);
  }
}

scene_micro *scene_call(scene *s, int32_t step, int32_t rank, int64_t samples) {
  int32_t c = s->calls[step][rank]++;
  if (c >= SCENE_CALLS) abort();
  scene_micro *m = &s->micro[step][rank][c];
  if (ng_batch_init(&m->batch) != NG_OK) abort();
  m->batch.samples = samples;
  return m;
}

int64_t scene_in_count(const scene *s, int32_t i, int64_t samples) {
  const ng_layer *l = &s->layer[i];
  if (l->kind == NG_CONV2D) return samples * l->in * l->image[0] * l->image[1];
  return samples * s->positions[i] * l->in;
}

int64_t scene_out_count(const scene *s, int32_t i, int64_t samples) {
  return samples * s->positions[i] * s->layer[i].out;
}

int64_t scene_weights(const scene *s, int32_t i) {
  return oracle_rows(&s->layer[i]) * oracle_cols(&s->layer[i]);
}

static double *values(rng *r, int64_t n) {
  double *v = need(sizeof(double) * (size_t)n);
  for (int64_t i = 0; i < n; i++)
    v[i] = rng_value(r);
  return v;
}

void scene_fill(scene *s, rng *r) {
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t l = 0; l < s->layers; l++) {
      if (!s->D[t][l]) s->D[t][l] = values(r, scene_weights(s, l));
      for (int32_t k = 0; k < s->ranks; k++) {
        for (int32_t c = 0; c < s->calls[t][k]; c++) {
          scene_micro *m = &s->micro[t][k][c];
          for (int32_t u = 0; u < s->uses[l]; u++) {
            int64_t B = m->batch.samples;
            if (!m->a[l][u]) m->a[l][u] = values(r, scene_in_count(s, l, B));
            if (!m->g[l][u]) m->g[l][u] = values(r, scene_out_count(s, l, B));
          }
        }
      }
    }
  }
}

static double *copy(const double *v, int64_t n) {
  double *w = need(sizeof(double) * (size_t)n);
  if (n > 0) memcpy(w, v, sizeof(double) * (size_t)n);
  return w;
}

/* The head of a scene: everything but the micro-batches. */
static scene *like(const scene *s, int32_t ranks) {
  scene *n = scene_create(s->steps, ranks);
  n->layers = s->layers;
  n->decay_scheduled = s->decay_scheduled;
  memcpy(n->layer, s->layer, sizeof s->layer);
  memcpy(n->name, s->name, sizeof s->name);
  memcpy(n->positions, s->positions, sizeof s->positions);
  memcpy(n->uses, s->uses, sizeof s->uses);
  memcpy(n->damping, s->damping, sizeof s->damping);
  memcpy(n->decay, s->decay, sizeof s->decay);
  for (int32_t l = 0; l < s->layers; l++) {
    n->layer[l].name = n->name[l];
    for (int32_t t = 0; t < s->steps; t++)
      n->D[t][l] = copy(s->D[t][l], scene_weights(s, l));
  }
  return n;
}

scene *scene_merge(const scene *s) {
  scene *n = like(s, 1);
  for (int32_t t = 0; t < s->steps; t++) {
    int64_t samples = 0;
    for (int32_t r = 0; r < s->ranks; r++) {
      for (int32_t c = 0; c < s->calls[t][r]; c++)
        samples += s->micro[t][r][c].batch.samples;
    }
    scene_micro *m = scene_call(n, t, 0, samples);
    m->batch.reduction = NG_SUM;
    for (int32_t l = 0; l < s->layers; l++) {
      for (int32_t u = 0; u < s->uses[l]; u++) {
        double *a = m->a[l][u] = need(sizeof(double) * (size_t)scene_in_count(s, l, samples));
        double *g = m->g[l][u] = need(sizeof(double) * (size_t)scene_out_count(s, l, samples));
        for (int32_t r = 0; r < s->ranks; r++) {
          for (int32_t c = 0; c < s->calls[t][r]; c++) {
            const scene_micro *from = &s->micro[t][r][c];
            int64_t na = scene_in_count(s, l, from->batch.samples);
            int64_t ng = scene_out_count(s, l, from->batch.samples);
            memcpy(a, from->a[l][u], sizeof(double) * (size_t)na);
            memcpy(g, from->g[l][u], sizeof(double) * (size_t)ng);
            a += na;
            g += ng;
          }
        }
      }
    }
  }
  return n;
}

scene *scene_shuffle(const scene *s, rng *r) {
  scene *n = like(s, s->ranks);
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t k = 0; k < s->ranks; k++) {
      for (int32_t c = 0; c < s->calls[t][k]; c++) {
        const scene_micro *from = &s->micro[t][k][c];
        int64_t B = from->batch.samples, *order = need(sizeof(int64_t) * (size_t)B);
        scene_micro *m = scene_call(n, t, k, B);
        m->batch = from->batch;
        for (int64_t i = 0; i < B; i++) {
          int64_t j = rng_below(r, i + 1);
          order[i] = order[j];
          order[j] = i;
        }
        for (int32_t l = 0; l < s->layers; l++) {
          int64_t na = scene_in_count(s, l, 1), ng = scene_out_count(s, l, 1);
          for (int32_t u = 0; u < s->uses[l]; u++) {
            m->a[l][u] = need(sizeof(double) * (size_t)(B * na));
            m->g[l][u] = need(sizeof(double) * (size_t)(B * ng));
            for (int64_t i = 0; i < B; i++) {
              memcpy(m->a[l][u] + i * na, from->a[l][u] + order[i] * na,
                     sizeof(double) * (size_t)na);
              memcpy(m->g[l][u] + i * ng, from->g[l][u] + order[i] * ng,
                     sizeof(double) * (size_t)ng);
            }
          }
        }
        free(order);
      }
    }
  }
  return n;
}

/* ---- how the library sees it -----------------------------------------------------------------*/

/* Round to nearest even, by definition: scale so that the unit in the last place is 1. */
static double round_bits(double x, int bits, int least) {
  if (x == 0 || !isfinite(x)) return x;
  int e;
  (void)frexp(x, &e);
  int ulp = e - bits < least ? least : e - bits;
  return ldexp(nearbyint(ldexp(x, -ulp)), ulp);
}

static void put(void *data, ng_dtype t, int64_t i, double x) {
  float f = (float)x;
  uint32_t w;
  if (t == NG_F32) {
    ((float *)data)[i] = f;
  } else if (t == NG_BF16) {
    f = (float)round_bits(x, 8, -133);
    memcpy(&w, &f, sizeof w);
    ((uint16_t *)data)[i] = (uint16_t)(w >> 16);
  } else { /* f16; values of the tests stay below its overflow */
    f = (float)round_bits(x, 11, -24);
    memcpy(&w, &f, sizeof w);
    uint32_t sign = w >> 16 & 0x8000u, h;
    int e = (int)(w >> 23 & 0xffu) - 127;
    if (f == 0)
      h = 0;
    else if (isnan(f))
      h = 0x7e00u;
    else if (e < -14)
      h = (uint32_t)lrint(ldexp(fabs(f), 24));
    else
      h = (uint32_t)(e + 15) << 10 | (w & 0x7fffffu) >> 13;
    ((uint16_t *)data)[i] = (uint16_t)(sign | h);
  }
}

static double get(const void *data, ng_dtype t, int64_t i) {
  if (t == NG_F32) return (double)((const float *)data)[i];
  uint16_t h = ((const uint16_t *)data)[i];
  if (t == NG_BF16) {
    uint32_t w = (uint32_t)h << 16;
    float f;
    memcpy(&f, &w, sizeof f);
    return (double)f;
  }
  int e = h >> 10 & 0x1f, m = h & 0x3ff;
  double x = e == 0 ? ldexp(m, -24) : e == 31 ? (m ? NAN : INFINITY) : ldexp(1024 + m, e - 25);
  return h & 0x8000 ? -x : x;
}

/* A view of v as the look wants it; the memory is v.data. */
static ng_view show(const scene *s, const scene_look *look, int32_t i, bool grad, int64_t B,
                    const double *v) {
  const ng_layer *l = &s->layer[i];
  ng_dtype type = look->shown ? look->shown : NG_F32;
  int64_t S = s->positions[i], rows, cols, hw = 1, channels = grad ? l->out : l->in;
  if (l->kind == NG_CONV2D) {
    hw = grad ? S : l->image[0] * l->image[1];
    rows = B;
    cols = channels * hw;
  } else {
    rows = B * S;
    cols = channels;
  }
  int64_t stride = cols + look->pad;
  ng_view out = ng_view_of(need((size_t)(rows * stride * ng_dtype_size(type))), rows, cols, type);
  out.row_stride = stride;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = cols; c < stride; c++)
      put(out.data, type, r * stride + c, (double)NAN);
    for (int64_t c = 0; c < cols; c++) {
      int64_t to_r = r, to_c = c;
      if (l->kind == NG_CONV2D && look->layout == NG_NHWC) to_c = c % hw * channels + c / hw;
      if (l->kind == NG_LINEAR && look->order == NG_POSITIONS_FIRST) to_r = r % S * B + r / S;
      put(out.data, type, to_r * stride + to_c, v[r * cols + c]);
    }
  }
  return out;
}

typedef struct play {
  const scene *s;
  const ng_options *opt;
  const scene_look *look;
  scene_result *result; /* [rank] */
} play;

typedef struct actor {
  const play *p;
  int32_t rank;
  ng_precond *pre;
  int32_t index[SCENE_LAYERS];
  ng_view grad[SCENE_LAYERS][2];
} actor;

static ng_status observe(actor *a, int32_t t, int32_t c, int32_t l, int32_t u, bool grad) {
  const scene *s = a->p->s;
  const scene_micro *m = &s->micro[t][a->rank][c];
  const double *v = grad ? m->g[l][u] : m->a[l][u];
  if (!v || (!a->p->look->show_unwanted && !ng_wants(a->pre, a->index[l]))) return NG_OK;
  ng_view x = show(s, a->p->look, l, grad, m->batch.samples, v);
  ng_status st = grad ? ng_observe_output_grad(a->pre, a->index[l], &x, NG_COPY)
                      : ng_observe_input(a->pre, a->index[l], &x, NG_COPY);
  free(x.data);
  return st;
}

static ng_status take_step(actor *a, int32_t t, double lr) {
  const scene *s = a->p->s;
  scene_result *out = &a->p->result[a->rank];
  ng_status st;
  if (s->damping[t] > 0) {
    st = ng_set_real(a->pre, "damping", s->damping[t]);
    if (st != NG_OK) return st;
  }
  for (int32_t c = 0; c < s->calls[t][a->rank]; c++) {
    st = ng_begin(a->pre, &s->micro[t][a->rank][c].batch);
    for (int32_t l = 0; l < s->layers && st == NG_OK; l++) {
      for (int32_t u = 0; u < s->uses[l] && st == NG_OK; u++)
        st = observe(a, t, c, l, u, false);
    }
    for (int32_t l = s->layers - 1; l >= 0 && st == NG_OK; l--) {
      for (int32_t u = s->uses[l] - 1; u >= 0 && st == NG_OK; u--) {
        st = observe(a, t, c, l, u, true);
      }
    }
    if (st != NG_OK) return st;
  }
  for (int32_t l = 0; l < s->layers; l++) {
    int64_t q = oracle_rows(&s->layer[l]), p = oracle_cols(&s->layer[l]), w = a->grad[l][0].cols;
    for (int64_t i = 0; i < q; i++) {
      for (int64_t j = 0; j < p; j++) {
        ng_view *g = &a->grad[l][j < w ? 0 : 1];
        put(g->data, g->dtype, j < w ? i * g->row_stride + j : i, s->D[t][l][i * p + j]);
      }
    }
  }
  st = ng_step(a->pre, lr);
  if (st < NG_OK) return st;
  for (int32_t l = 0; l < s->layers; l++) {
    int64_t q = oracle_rows(&s->layer[l]), p = oracle_cols(&s->layer[l]), w = a->grad[l][0].cols;
    double *P = out->P[t][l] = need(sizeof(double) * (size_t)(q * p));
    for (int64_t i = 0; i < q; i++) {
      for (int64_t j = 0; j < p; j++) {
        const ng_view *g = &a->grad[l][j < w ? 0 : 1];
        P[i * p + j] = get(g->data, g->dtype, j < w ? i * g->row_stride + j : i);
      }
    }
  }
  ng_report report = {.struct_size = sizeof report};
  ng_status told = ng_report_read(a->pre, &report);
  out->nu[t] = report.clip;
  out->inner[t] = report.inner;
  return told < NG_OK ? told : st;
}

static ng_status build(actor *a, ng_context *ctx) {
  const scene *s = a->p->s;
  const scene_look *look = a->p->look;
  ng_status st = ng_precond_create(ctx, a->p->opt, &a->pre);
  for (int32_t k = 0; k < s->layers && st == NG_OK; k++) {
    int32_t l = look->reverse ? s->layers - 1 - k : k;
    ng_layer d = s->layer[l];
    if (d.kind == NG_CONV2D && look->layout) d.layout = look->layout;
    if (d.kind == NG_LINEAR && look->order) d.order = look->order;
    if (d.kind == NG_LINEAR && look->declare_positions) d.positions = s->positions[l];
    st = ng_add_layer(a->pre, &d, &a->index[l]);
    if (st != NG_OK) break;
    ng_dtype type = look->gradient ? look->gradient : NG_F32;
    int64_t q = oracle_rows(&d), w = oracle_cols(&d) - (d.bias ? 1 : 0);
    for (int which = 0; which < (d.bias ? 2 : 1) && st == NG_OK; which++) {
      int64_t rows = which ? 1 : q, cols = which ? q : w, stride = cols + look->pad;
      ng_view *g = &a->grad[l][which];
      *g = ng_view_of(need((size_t)(rows * stride * ng_dtype_size(type))), rows, cols, type);
      g->row_stride = stride;
      for (int64_t i = 0; i < rows * stride; i++)
        put(g->data, type, i, (double)NAN);
      st = ng_bind_grad(a->pre, a->index[l], which ? NG_BIAS : NG_WEIGHT, g);
    }
  }
  return st == NG_OK ? ng_ready(a->pre) : st;
}

static ng_status act(int32_t rank, ng_transport *transport, void *arg) {
  const play *p = arg;
  actor a = {.p = p, .rank = rank};
  scene_result *out = &p->result[rank];
  ng_context *ctx = NULL;
  ng_context_config config;
  ng_status st = ng_context_config_init(&config), worst = NG_OK;
  config.linalg = p->look->linalg;
  config.threads = p->look->threads > 0 ? p->look->threads : 1;
  config.transport = p->s->ranks > 1 ? transport : NULL;
  if (st == NG_OK) {
    st = ng_context_create(&config, out->message, sizeof out->message, &ctx);
  }
  if (st != NG_OK) return out->status = st;
  st = build(&a, ctx);
  for (int32_t t = 0; t < p->s->steps && st >= NG_OK; t++) {
    st = take_step(&a, t, 0.1);
    if (st > worst) worst = st;
  }
  if (st >= NG_OK && p->look->save) st = ng_save(a.pre, p->look->save);
  if (st < NG_OK) {
    snprintf(out->message, sizeof out->message, "rank %d: %s: %s", rank, ng_status_name(st),
             ng_last_error(ctx));
    worst = st;
  }
  ng_precond_destroy(&a.pre);
  for (int32_t l = 0; l < p->s->layers; l++) {
    free(a.grad[l][0].data);
    free(a.grad[l][1].data);
  }
  ng_context_destroy(&ctx);
  return out->status = worst;
}

void scene_play(const scene *s, const ng_options *opt, const scene_look *look, scene_result *out) {
  scene_result *result = need(sizeof *result * (size_t)s->ranks);
  play p = {s, opt, look, result};
  ng_status worst = s->ranks > 1 ? ranks_run(s->ranks, act, &p, NULL) : act(0, NULL, &p);
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
    scene_forget(&result[r]);
  }
  *out = result[0];
  out->status = worst;
  out->rank_gap = gap;
  free(result);
}

void scene_predict(const scene *s, const ng_options *opt, scene_result *out, oracle **keep) {
  oracle *o = oracle_create(opt, s->ranks);
  memset(out, 0, sizeof *out);
  for (int32_t l = 0; l < s->layers; l++)
    (void)oracle_add(o, &s->layer[l]);
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t l = 0; l < s->layers; l++) {
      if (s->damping[t] > 0) oracle_options(o, l)->damping = s->damping[t];
      if (s->decay_scheduled) oracle_options(o, l)->stat_decay = s->decay[t];
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
      out->P[t][l] = need(sizeof(double) * (size_t)scene_weights(s, l));
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

void scene_forget(scene_result *r) {
  for (int t = 0; t < SCENE_STEPS; t++) {
    for (int l = 0; l < SCENE_LAYERS; l++) {
      free(r->P[t][l]);
      r->P[t][l] = NULL;
    }
  }
}

double scene_gap(const scene *s, int32_t step, int32_t l, const scene_result *x,
                 const scene_result *y) {
  double gap = 0, most = 0;
  for (int64_t i = 0; i < scene_weights(s, l); i++) {
    double d = fabs(x->P[step][l][i] - y->P[step][l][i]);
    if (!isfinite(d)) return INFINITY;
    gap = fmax(gap, d);
    most = fmax(most, fabs(y->P[step][l][i]));
  }
  return most > 0 ? gap / most : gap;
}

void test_cases(double (*case_of)(uint64_t seed), int64_t n, double allowed) {
  const int64_t times = test_times(n);
  int64_t failed = 0;
  double worst = 0;
  for (int64_t i = 0; i < times; i++) {
    const double e = case_of(test_seed() + (uint64_t)i);
    if (isfinite(e)) {
      worst = fmax(worst, e);
    } else {
      failed++;
    }
    if (getenv("NG_TEST_SEED") != NULL && getenv("NG_TEST_MULT") == NULL) break;
  }
  print_message("worst = %.3g units of %g allowed, over %d cases\n", worst, allowed, (int)times);
  if (failed > 0) fail_msg("%d of %d cases", (int)failed, (int)times);
}
