/* sim.c: see sim.h. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"
#include "oracle.h"
#include "step/step.h"

/* ---- numbers ---------------------------------------------------------------------------------*/

static uint64_t mix_bits(uint64_t x) { return rng_next(&(rng){x}); }

static float draw_number(int64_t step, int64_t who, int64_t what, int64_t i) {
  const uint64_t h = mix_bits(
      mix_bits(mix_bits(mix_bits((uint64_t)step) + (uint64_t)who) + (uint64_t)what) + (uint64_t)i);
  return (float)((int64_t)(h % 255) - 127) / 64.0f;
}

/* ---- the model -------------------------------------------------------------------------------*/

static ng_layer *append_layer(sim *s, ng_kind kind, const char *name, int64_t in, int64_t out,
                              int32_t bias) {
  ng_layer *l = &s->layer[s->layers++];
  ng_layer_init(l, kind, sizeof *l);
  l->name = name;
  l->in = in;
  l->out = out;
  l->bias = bias;
  return l;
}

static void append_tensor(sim *s, const char *name, int64_t count) {
  ng_layer *l = append_layer(s, NG_LINEAR, name, count, 1, 0);
  l->kind = (ng_kind)0;
}

static void describe_model(sim *s) {
  const unsigned v = s->how.vary;
  const char *first = v & SIM_RENAMED ? "fc0" : "fc1";
  if (v & SIM_SMALL) {
    append_layer(s, NG_LINEAR, first, 3 + (v & SIM_WIDER ? 1 : 0), 2, 1);
    append_tensor(s, "gamma", 2);
    return;
  }
  ng_layer *l = append_layer(s, NG_LINEAR, first, 7 + (v & SIM_WIDER ? 1 : 0), 5, 1);
  if (v & SIM_OWN) l->options = s->how.layer_options;
  l = append_layer(s, NG_CONV2D, "conv", 4, 6, 1);
  l->kernel[0] = 3;
  l->kernel[1] = 2;
  l->padding[0] = 1;
  l->groups = 2;
  l->image[0] = 5;
  l->image[1] = 4;
  l = append_layer(s, NG_CONV2D, "block/down", 3, 4, 0);
  l->kernel[0] = l->kernel[1] = 3;
  l->stride[0] = l->stride[1] = v & SIM_STRIDE ? 1 : 2;
  l->padding[0] = l->padding[1] = 1;
  l->image[0] = l->image[1] = 6;
  append_tensor(s, "gamma", 6);
  l = append_layer(s, NG_LINEAR, "ice", 4, 2, 1);
  l->frozen = 1;
  if (v & SIM_MORE) append_layer(s, NG_LINEAR, "extra", 2, 2, 0);
  if (!(v & SIM_FEWER)) {
    l = append_layer(s, NG_LINEAR, "seq", 5, 3, 0);
    l->positions = 3;
  }
}

static void count_elements(sim *s) {
  for (int32_t i = 0; i < s->layers; i++) {
    const ng_layer *l = &s->layer[i];
    const int64_t patch =
        l->kind == NG_CONV2D ? l->in / l->groups * l->kernel[0] * l->kernel[1] : l->in;
    s->weights[i] = l->out * patch;
    s->biases[i] = l->bias ? l->out : 0;
    s->weight_count += s->weights[i] + s->biases[i];
  }
}

static ng_status bind_arrays(sim *s) {
  float *g = s->grad, *w = s->weight;
  for (int32_t i = 0; i < s->layers; i++) {
    const ng_layer *l = &s->layer[i];
    const int64_t rows = l->kind == 0 ? 1 : l->out;
    const int64_t n[2] = {s->weights[i], s->biases[i]};
    for (int k = 0; k < 2; k++) {
      if (n[k] == 0) continue;
      const int64_t r = k == 0 ? rows : 1;
      plane grad = plane_of(g, r, n[k] / r, NG_F32), weight = plane_of(w, r, n[k] / r, NG_F32);
      const ng_status st = fixture_bind(&s->f, s->index[i], (ng_param)k, &grad, &weight);
      if (st != NG_OK) return st;
      g += n[k];
      w += n[k];
    }
  }
  return NG_OK;
}

ng_status sim_open(sim *s, const sim_setup *how, const ng_transport *t,
                   const ng_context_config *config) {
  memset(s, 0, sizeof *s);
  s->how = *how;
  s->rank = t == NULL ? 0 : t->rank;
  describe_model(s);
  count_elements(s);
  s->grad = calloc((size_t)s->weight_count, sizeof *s->grad);
  s->weight = calloc((size_t)s->weight_count, sizeof *s->weight);
  s->observation = calloc(8192, sizeof *s->observation);
  if (s->grad == NULL || s->weight == NULL || s->observation == NULL) return NG_ERR_NOMEM;
  for (int64_t i = 0; i < s->weight_count; i++) {
    s->weight[i] = draw_number(-1, 0, 0, i);
  }
  char set[512];
  (void)snprintf(set, sizeof set, "method=%s %s", how->method, how->set);
  const fixture_how where = {.linalg = how->linalg,
                             .backend = how->backend,
                             .threads = how->threads > 0 ? how->threads : 1,
                             .transport = t,
                             .config = config};
  ng_status st = fixture_open(&s->f, set, &where);
  s->ctx = s->f.ctx;
  s->p = s->f.p;
  for (int32_t i = 0; i < s->layers && st == NG_OK; i++) {
    st = s->layer[i].kind == 0 ? ng_add_tensor(s->p, s->layer[i].name, s->layer[i].in, &s->index[i])
                               : ng_add_layer(s->p, &s->layer[i], &s->index[i]);
  }
  if (st == NG_OK) st = bind_arrays(s);
  if (st == NG_OK) st = ng_ready(s->p);
  (void)snprintf(s->message, sizeof s->message, "%.255s", s->f.message);
  if (st != NG_OK && s->ctx != NULL && s->message[0] == 0) {
    (void)snprintf(s->message, sizeof s->message, "%s", ng_last_error(s->ctx));
  }
  return st;
}

void sim_close(sim *s) {
  fixture_close(&s->f);
  free(s->observation);
  free(s->weight);
  free(s->grad);
  s->observation = s->weight = s->grad = NULL;
}

/* ---- training --------------------------------------------------------------------------------*/

static ng_status observe_layer(sim *s, int64_t step, int32_t i, int64_t samples, int64_t call) {
  const ng_layer *l = &s->layer[i];
  const int64_t who = s->rank * 8 + call;
  for (int grad = 0; grad < 2; grad++) {
    const int64_t width = grad ? l->out : l->in;
    int64_t rows = samples, cols = width;
    if (l->kind == NG_CONV2D) {
      cols *=
          grad ? oracle_output_size(l, 0) * oracle_output_size(l, 1) : l->image[0] * l->image[1];
    } else if (l->positions > 0) {
      rows *= l->positions;
    }
    for (int64_t k = 0; k < rows * cols; k++) {
      s->observation[k] = draw_number(step, who, 2 * i + grad, k);
    }
    plane v = plane_of(s->observation, rows, cols, NG_F32);
    if (l->kind == NG_CONV2D) {
      v = plane_images(s->observation, s->how.vary & SIM_NHWC ? PLANE_NHWC : PLANE_NCHW, samples,
                       width, grad ? oracle_output_size(l, 0) : l->image[0],
                       grad ? oracle_output_size(l, 1) : l->image[1], NG_F32);
    }
    const ng_status st = fixture_observe(&s->f, s->index[i], grad ? NULL : &v, grad ? &v : NULL);
    if (st != NG_OK) return st;
  }
  return NG_OK;
}

ng_status sim_begin(sim *s, int64_t step) { return fixture_begin(&s->f, 4 + s->rank + step % 2); }

static ng_status observe_layers(sim *s, int64_t step) {
  const int64_t samples = 4 + s->rank + step % 2;
  ng_status st = NG_OK;
  for (int64_t call = 0; call < (s->how.micro > 0 ? s->how.micro : 1) && st == NG_OK; call++) {
    st = sim_begin(s, step);
    for (int32_t i = 0; i < s->layers && st == NG_OK; i++) {
      if (s->layer[i].kind != 0 && ng_wants(s->p, s->index[i])) {
        st = observe_layer(s, step, i, samples, call);
      }
    }
  }
  return st;
}

ng_status sim_step(sim *s, int64_t step) {
  char update[32] = "";
  ng_status st = observe_layers(s, step);
  if (st != NG_OK) return st;
  for (int64_t i = 0; i < s->weight_count; i++) { /* gradients depend on weights */
    s->grad[i] = draw_number(step, -1, 0, i) + 0.05f * s->weight[i];
  }
  st = ng_get(s->p, "update", update, sizeof update);
  if (st != NG_OK) return st;
  ng_sgd how = fixture_sgd(ng_is(update, "sgd") ? 0.05 : ng_is(update, "adamw") ? 0.01 : 0.1, 0.9);
  how.weight_decay = 0.01;
  return fixture_step(&s->f, &how);
}

/* ---- fingerprint -----------------------------------------------------------------------------*/

uint64_t sim_hash(uint64_t h, const void *data, size_t bytes) {
  const unsigned char *c = data;
  for (size_t i = 0; i < bytes; i++) {
    h = (h ^ c[i]) * UINT64_C(1099511628211);
  }
  return h;
}

static void hash_number(void *arg, ng_number *n) {
  uint64_t *h = arg;
  *h = sim_hash(*h, n->value, sizeof *n->value);
}

/* Hash the options that ng_set and ng_load may change. */
static uint64_t hash_live_options(uint64_t h, const ng_settings *s) {
  const double live[] = {s->damping,      (double)s->clip,         s->clip_bound,
                         s->kl_clip,      (double)s->stat_period,  s->stat_decay,
                         s->norm_damping, (double)s->solve_period, s->eigen_floor};
  return sim_hash(h, live, sizeof live);
}

uint64_t sim_fingerprint(const sim *s) {
  uint64_t h = UINT64_C(14695981039346656037);
  const ng_precond *p = s->p;
  char text[512];
  for (int u = 0; u < NG_USE_OBJECTS; u++) {
    if (u != NG_USE_SCRATCH) h = sim_hash(h, p->arena[u], (size_t)p->arena_bytes[u]);
  }
  h = sim_hash(h, p->arena_bytes, sizeof p->arena_bytes);
  h = hash_live_options(h, &p->opt.base);
  const int64_t counters[] = {p->steps, p->updates, p->skipped, p->ctx->allocated_bytes};
  h = sim_hash(h, counters, sizeof counters);
  h = sim_hash(h, p->rescued, sizeof p->rescued);
  h = sim_hash(h, &p->step->nu, sizeof p->step->nu);
  h = sim_hash(h, &p->step->inner, sizeof p->step->inner);
  for (int32_t i = 0; i < ng_option_count(); i++) {
    ng_option_info info = {.struct_size = sizeof info};
    if (ng_option_at(i, &info) == NG_OK &&
        ng_options_get(&p->opt, info.name, text, sizeof text) == NG_OK) {
      h = sim_hash(h, text, strlen(text));
    }
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    ng_layer_report r = {.struct_size = sizeof r};
    if (b->family->write_report != NULL) b->family->write_report(b, &r);
    const double own[] = {b->was_solved,      r.rung,      r.pi,
                          r.damping_a,        r.damping_g, b->base.damping,
                          b->base.eigen_floor};
    h = sim_hash(h, own, sizeof own);
    h = hash_live_options(h, &b->base);
    ng_block_numbers(b, hash_number, &h);
  }
  return sim_hash(h, s->weight, (size_t)s->weight_count * sizeof *s->weight);
}
