/* test_case.c: see test_case.h.  Define test cases, reorder their samples, compare results. */
#include "test_case.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- writing a test case -------------------------------------------------------------------------*/

test_case *case_create(int32_t steps, int32_t ranks) {
  test_case *s = must_calloc(sizeof *s);
  if (steps > CASE_STEPS || ranks > CASE_RANKS) abort();
  s->steps = steps;
  s->ranks = ranks;
  return s;
}

void case_destroy(test_case **sp) {
  test_case *s = *sp;
  if (!s) return;
  for (int t = 0; t < CASE_STEPS; t++) {
    for (int l = 0; l < CASE_LAYERS; l++) {
      free(s->D[t][l]);
      if (t == 0) free(s->W[l]);
      for (int r = 0; r < CASE_RANKS; r++) {
        for (int c = 0; c < CASE_CALLS; c++) {
          for (int u = 0; u < CASE_USES; u++) {
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

static ng_layer *append_layer(test_case *s, ng_kind kind, int64_t in, int64_t out, bool bias) {
  int32_t i = s->layers++;
  if (i >= CASE_LAYERS) abort();
  ng_layer *l = &s->layer[i];
  ng_layer_init(l, kind, sizeof *l);
  static const char *const short_name[] = {
      [NG_LINEAR] = "fc", [NG_CONV2D] = "conv", [NG_NORM] = "norm", [NG_EMBEDDING] = "words"};
  snprintf(s->name[i], sizeof s->name[i], "%s%d", short_name[kind], i);
  l->name = s->name[i];
  l->in = in;
  l->out = out;
  l->bias = bias;
  s->uses[i] = 1;
  s->positions[i] = 1;
  return l;
}

ng_layer *case_linear(test_case *s, int64_t in, int64_t out, bool bias, int64_t positions) {
  ng_layer *l = append_layer(s, NG_LINEAR, in, out, bias);
  s->positions[s->layers - 1] = positions;
  return l;
}

ng_layer *case_conv(test_case *s, int64_t in, int64_t out, int64_t kh, int64_t kw, int64_t h,
                    int64_t w, bool bias) {
  ng_layer *l = append_layer(s, NG_CONV2D, in, out, bias);
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

bool takes_images(const ng_layer *l) {
  return l->kind == NG_CONV2D || (l->kind == NG_NORM && l->norm_kind != NG_LAYER_NORM);
}

ng_layer *case_norm(test_case *s, ng_norm_kind kind, int64_t channels, int64_t h, int64_t w) {
  ng_layer *l = append_layer(s, NG_NORM, channels, channels, true);
  l->norm_kind = kind;
  l->image[0] = h;
  l->image[1] = w;
  s->positions[s->layers - 1] = h * w;
  return l;
}

ng_layer *case_embedding(test_case *s, int64_t in, int64_t out, int64_t positions) {
  ng_layer *l = append_layer(s, NG_EMBEDDING, in, out, false);
  s->positions[s->layers - 1] = positions;
  return l;
}

void case_set_positions(test_case *s) {
  for (int32_t i = 0; i < s->layers; i++) {
    if (s->layer[i].kind == NG_CONV2D) s->positions[i] = oracle_positions(&s->layer[i]);
  }
}

case_micro *case_add_micro(test_case *s, int32_t step, int32_t rank, int64_t samples) {
  int32_t c = s->calls[step][rank]++;
  if (c >= CASE_CALLS) abort();
  case_micro *m = &s->micro[step][rank][c];
  ng_batch_init(&m->batch, sizeof m->batch);
  m->batch.samples = samples;
  return m;
}

int64_t case_input_count(const test_case *s, int32_t i, int64_t samples) {
  const ng_layer *l = &s->layer[i];
  if (l->kind == NG_CONV2D) return samples * l->in * l->image[0] * l->image[1];
  if (l->kind == NG_EMBEDDING) return samples * s->positions[i];
  return samples * s->positions[i] * l->in;
}

int64_t case_output_count(const test_case *s, int32_t i, int64_t samples) {
  return samples * s->positions[i] * s->layer[i].out;
}

int64_t case_weight_count(const test_case *s, int32_t i) {
  return s->layer[i].out * oracle_columns(&s->layer[i]);
}

static double *new_values(rng *r, int64_t n) {
  double *v = zeros(n);
  for (int64_t i = 0; i < n; i++)
    v[i] = rng_value(r);
  return v;
}

static double *new_tokens(rng *r, int64_t n, int64_t in) {
  double *v = zeros(n);
  for (int64_t i = 0; i < n; i++)
    v[i] = (double)(rng_below(r, in + 1) + NG_NO_TOKEN);
  return v;
}

void case_fill(test_case *s, rng *r) {
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t l = 0; l < s->layers; l++) {
      if (!s->D[t][l]) s->D[t][l] = new_values(r, case_weight_count(s, l));
      for (int32_t k = 0; k < s->ranks; k++) {
        for (int32_t c = 0; c < s->calls[t][k]; c++) {
          case_micro *m = &s->micro[t][k][c];
          for (int32_t u = 0; u < s->uses[l]; u++) {
            int64_t B = m->batch.samples;
            const int64_t n = case_input_count(s, l, B);
            const bool words = s->layer[l].kind == NG_EMBEDDING;
            if (!m->a[l][u])
              m->a[l][u] = words ? new_tokens(r, n, s->layer[l].in) : new_values(r, n);
            if (!m->g[l][u]) m->g[l][u] = new_values(r, case_output_count(s, l, B));
          }
        }
      }
    }
  }
}

static double *copy_values(const double *v, int64_t n) {
  double *w = zeros(n);
  if (n > 0) memcpy(w, v, sizeof(double) * (size_t)n);
  return w;
}

/* A copy without micro-batches. */
static test_case *copy_layers(const test_case *s, int32_t ranks) {
  test_case *n = case_create(s->steps, ranks);
  n->layers = s->layers;
  memcpy(n->layer, s->layer, sizeof s->layer);
  memcpy(n->name, s->name, sizeof s->name);
  memcpy(n->positions, s->positions, sizeof s->positions);
  memcpy(n->uses, s->uses, sizeof s->uses);
  memcpy(n->damping, s->damping, sizeof s->damping);
  memcpy(n->decay, s->decay, sizeof s->decay);
  n->decay_moves = s->decay_moves;
  for (int32_t l = 0; l < s->layers; l++) {
    n->layer[l].name = n->name[l];
    if (s->W[l]) n->W[l] = copy_values(s->W[l], case_weight_count(s, l));
    for (int32_t t = 0; t < s->steps; t++)
      n->D[t][l] = copy_values(s->D[t][l], case_weight_count(s, l));
  }
  return n;
}

test_case *case_merge(const test_case *s) {
  test_case *n = copy_layers(s, 1);
  for (int32_t t = 0; t < s->steps; t++) {
    int64_t samples = 0;
    for (int32_t r = 0; r < s->ranks; r++) {
      for (int32_t c = 0; c < s->calls[t][r]; c++)
        samples += s->micro[t][r][c].batch.samples;
    }
    case_micro *m = case_add_micro(n, t, 0, samples);
    m->batch.reduction = NG_SUM;
    for (int32_t l = 0; l < s->layers; l++) {
      for (int32_t u = 0; u < s->uses[l]; u++) {
        double *a = m->a[l][u] = zeros(case_input_count(s, l, samples));
        double *g = m->g[l][u] = zeros(case_output_count(s, l, samples));
        for (int32_t r = 0; r < s->ranks; r++) {
          for (int32_t c = 0; c < s->calls[t][r]; c++) {
            const case_micro *from = &s->micro[t][r][c];
            int64_t na = case_input_count(s, l, from->batch.samples);
            int64_t ng = case_output_count(s, l, from->batch.samples);
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

test_case *case_shuffle(const test_case *s, rng *r) {
  test_case *n = copy_layers(s, s->ranks);
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t k = 0; k < s->ranks; k++) {
      for (int32_t c = 0; c < s->calls[t][k]; c++) {
        const case_micro *from = &s->micro[t][k][c];
        int64_t B = from->batch.samples, *order = must_calloc(sizeof(int64_t) * (size_t)B);
        case_micro *m = case_add_micro(n, t, k, B);
        m->batch = from->batch;
        for (int64_t i = 0; i < B; i++) {
          int64_t j = rng_below(r, i + 1);
          order[i] = order[j];
          order[j] = i;
        }
        for (int32_t l = 0; l < s->layers; l++) {
          int64_t na = case_input_count(s, l, 1), ng = case_output_count(s, l, 1);
          for (int32_t u = 0; u < s->uses[l]; u++) {
            m->a[l][u] = zeros(B * na);
            m->g[l][u] = zeros(B * ng);
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

/* ---- results ---------------------------------------------------------------------------------*/

void case_free_result(case_result *r) {
  for (int t = 0; t < CASE_STEPS; t++) {
    for (int l = 0; l < CASE_LAYERS; l++) {
      free(r->P[t][l]);
      r->P[t][l] = NULL;
    }
  }
}

double case_gap(const test_case *s, int32_t step, int32_t l, const case_result *x,
                const case_result *y) {
  double gap = 0, most = 0;
  for (int64_t i = 0; i < case_weight_count(s, l); i++) {
    double d = fabs(x->P[step][l][i] - y->P[step][l][i]);
    if (!isfinite(d)) return INFINITY;
    gap = fmax(gap, d);
    most = fmax(most, fabs(y->P[step][l][i]));
  }
  return most > 0 ? gap / most : gap;
}

void test_cases(double (*case_of)(uint64_t seed), int64_t n, double allowed) {
  const int64_t times = test_repetitions(n);
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
  if (failed > 0) fail_msg("%d of %d cases failed", (int)failed, (int)times);
}
