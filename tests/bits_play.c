/* bits_play.c: see bits.h.  In: the text of a case.  Out: one hash of all that the library gave
 * back in a short training: gradients and weights after every step (what lies between their rows
 * included), statuses, reports, live options, owners.  Not: times, bytes, texts meant for people.
 * Only natgrad.h is used: the same program runs on another build's library.
 */
#include "bits.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* FNV-1a of 64 bits: its start, and one more array. */
static const uint64_t empty = UINT64_C(14695981039346656037);

static uint64_t hashed(uint64_t hash, const void *data, size_t bytes) {
  const unsigned char *c = data;
  for (size_t i = 0; i < bytes; i++) {
    hash = (hash ^ c[i]) * UINT64_C(1099511628211);
  }
  return hash;
}

/* ---- a rank ----------------------------------------------------------------------------------*/

enum { SHOWN = 512 };

typedef struct actor {
  bits_eye eye;
  const bits_case *c;
  const char *path; /* of the file, if there is one: read before step `from`, if that is not 0, */
  int64_t from, to; /* and written after the last step, if it is                                 */
  int32_t layers;
  bool trace;
  ng_context *ctx;
  ng_precond *p;
  int32_t index[BITS_LAYERS];
  plane grad[BITS_LAYERS][2], weight[BITS_LAYERS][2]; /* of weight and bias                    */
  plane shown[SHOWN]; /* lent to the library until the end of the step                         */
  int32_t lent;
  uint64_t hash;
} actor;

static void add(actor *a, const void *data, size_t bytes) {
  a->hash = hashed(a->hash, data, bytes);
}
static void add_int(actor *a, int64_t x) { add(a, &x, sizeof x); }
static void add_real(actor *a, double x) { add(a, &x, sizeof x); }

static ng_status told(actor *a, ng_status st) {
  add_int(a, st);
  return st;
}

/* ---- open ------------------------------------------------------------------------------------*/

/* The model's layer as the library wants it described. */
static ng_status describe(actor *a, int32_t l) {
  const bits_layer *from = &a->eye.layer[l];
  ng_layer d;
  if (from->kind == 0) return ng_add_tensor(a->p, from->name, from->in, &a->index[l]);
  ng_layer_init(&d, from->kind, sizeof d);
  d.name = from->name;
  d.in = from->in;
  d.out = from->out;
  d.bias = from->bias;
  d.frozen = from->frozen;
  d.positions = a->c->declare > 0 ? from->positions : 0;
  if (is(a->c->order, "positions")) d.order = NG_POSITIONS_FIRST;
  for (int i = 0; i < 2; i++) {
    d.kernel[i] = from->kernel[i];
    d.stride[i] = from->stride[i];
    d.dilation[i] = from->dilation;
    d.padding[i] = from->padding[i];
    d.image[i] = from->image[i];
  }
  d.groups = from->groups;
  d.options = l % 2 == 0 ? a->c->own : NULL;
  return ng_add_layer(a->p, &d, &a->index[l]);
}

static ng_status bind(actor *a, int32_t l) {
  ng_status st = NG_OK;
  for (int k = 0; k < 2 && st == NG_OK; k++) {
    const ng_param which = (ng_param)k;
    a->grad[l][k] = bits_parameter(&a->eye, l, which, a->c->grad);
    a->weight[l][k] = bits_parameter(&a->eye, l, which, a->c->weight);
    if (a->grad[l][k].rows == 0) continue;
    bits_weight(&a->eye, l, which, &a->weight[l][k]);
    st = told(a, plane_bind_grad(a->p, a->index[l], which, &a->grad[l][k]));
    if (st == NG_OK) st = told(a, plane_bind_weight(a->p, a->index[l], which, &a->weight[l][k]));
  }
  return st;
}

static ng_status open_rank(actor *a, const ng_transport *t) {
  ng_context_config config;
  ng_context_config_init(&config, sizeof config);
  config.transport = t;
  config.linalg = a->c->linalg;
  config.threads = (int32_t)a->c->threads;
  ng_status st = told(a, ng_context_create(NG_VERSION, &config, NULL, 0, &a->ctx));
  if (st == NG_OK) st = told(a, ng_precond_create_from(a->ctx, a->c->opt, &a->p));
  for (int32_t l = 0; l < a->layers && st == NG_OK; l++) {
    st = told(a, describe(a, l));
    if (st == NG_OK) st = bind(a, l);
  }
  if (st == NG_OK) st = told(a, ng_ready(a->p));
  for (int32_t i = 0; st == NG_OK && i < ng_explain_count(a->p); i++) {
    ng_explain_row row = {.struct_size = sizeof row};
    if (ng_explain(a->p, i, &row) != NG_OK) continue;
    add(a, row.name, strlen(row.name));
    const int64_t own[] = {row.index, row.count, row.covered, row.owner};
    add(a, own, sizeof own);
  }
  if (st == NG_OK && a->from > 0) st = told(a, ng_load(a->p, a->path));
  return st;
}

static void close_rank(actor *a) {
  ng_precond_destroy(&a->p);
  ng_context_destroy(&a->ctx);
  for (int32_t l = 0; l < a->layers; l++) {
    for (int which = 0; which < 2; which++) {
      free(a->grad[l][which].data);
      free(a->weight[l][which].data);
    }
  }
}

/* ---- a step ----------------------------------------------------------------------------------*/

static void show(actor *a, int64_t step, int64_t call, int64_t samples, int32_t l, bool grad) {
  const ng_loan loan = a->c->borrow > 0 ? NG_BORROW : NG_COPY;
  bits_need(a->lent < SHOWN, "too many observations in a step");
  a->shown[a->lent] = bits_seen(&a->eye, step, call, samples, l, grad);
  const plane *v = &a->shown[a->lent++];
  (void)told(a, grad ? plane_output_grad(a->p, a->index[l], v, loan)
                     : plane_input(a->p, a->index[l], v, loan));
}

/* Arrays are shown whether wanted or not: the library has to know by itself. */
static void observe(actor *a, int64_t step, int64_t round) {
  const bits_case *c = a->c;
  if (a->eye.last && (int64_t)c->miss == step) return;
  const bool part = a->eye.last && (int64_t)c->part == step;
  for (int64_t m = 0; m < (int64_t)c->micro; m++) {
    ng_batch b;
    ng_batch_init(&b, sizeof b);
    (void)told(a, NG_OK); /* once it had a status; hashes go on as they were */
    b.samples = (int64_t)c->samples + (c->even > 0 ? 0 : a->eye.rank + m + step % 2);
    b.reduction = c->sum > 0 ? NG_SUM : NG_MEAN;
    b.loss_scale = c->loss_scale;
    (void)told(a, ng_begin(a->p, &b));
    for (int32_t k = 0; k < 2 * a->layers; k++) {
      const bool grad = k >= a->layers;
      const int32_t l = grad ? 2 * a->layers - 1 - k : k;
      if (a->eye.layer[l].kind == 0 || (part && (grad || l > 0))) continue;
      add_int(a, ng_wants(a->p, a->index[l]));
      for (int64_t u = 0; u < (int64_t)c->uses; u++) {
        show(a, step, round * 16 + m * 4 + u, b.samples, l, grad);
      }
    }
  }
}

/* "damping=0.5 clip=none" */
static void set_live(actor *a) {
  char text[BITS_TEXT], *rest = NULL;
  if (a->c->live == NULL) return;
  (void)snprintf(text, sizeof text, "%s", a->c->live);
  for (char *w = strtok_r(text, " ", &rest); w != NULL; w = strtok_r(NULL, " ", &rest)) {
    char *value = strchr(w, '=');
    bits_need(value != NULL, w);
    *value++ = 0;
    (void)told(a, ng_set(a->p, w, value));
  }
}

static ng_status take_step(actor *a) {
  const bits_case *c = a->c;
  char update[16];
  if (ng_options_get(c->opt, "update", update, sizeof update) != NG_OK) return NG_ERR_STATE;
  if (is(update, "sgd")) {
    ng_sgd how;
    ng_sgd_init(&how, sizeof how);
    how.lr = c->lr;
    how.momentum = c->momentum;
    how.dampening = c->dampening;
    how.weight_decay = c->decay;
    how.nesterov = c->nesterov > 0;
    how.decoupled = c->decoupled > 0;
    return ng_step_sgd(a->p, &how, 1);
  }
  if (is(update, "adamw")) {
    ng_adamw how;
    ng_adamw_init(&how, sizeof how);
    how.lr = c->lr;
    how.weight_decay = c->decay;
    return ng_step_adamw(a->p, &how, 1);
  }
  return ng_step(a->p, c->lr);
}

static void reports(actor *a, int64_t step, ng_status st) {
  static const char *const live[] = {"damping",      "stat_decay",  "kl_clip", "stat_period",
                                     "solve_period", "eigen_floor", "clip",    "clip_bound"};
  ng_report r = {.struct_size = sizeof r};
  if (ng_report_read(a->p, &r) != NG_OK) return;
  const int64_t counts[] = {r.steps, r.skipped, r.more_damping, r.in_double, r.kept_last, r.plain};
  add(a, counts, sizeof counts);
  add_real(a, r.clip);
  add_real(a, r.inner);
  if (a->trace) {
    printf("  step %d %s clip %g inner %g rungs", (int)step, ng_status_name(st), r.clip, r.inner);
  }
  for (int32_t l = 0; l < a->layers; l++) {
    ng_layer_report of = {.struct_size = sizeof of};
    add_int(a, ng_report_layer(a->p, a->index[l], &of));
    add_int(a, of.rung);
    add_int(a, of.observations);
    add_real(a, of.pi);
    add_real(a, of.damping_a);
    add_real(a, of.damping_g);
    if (a->trace) printf(" %d", (int)of.rung);
  }
  for (int32_t i = 0; i < COUNT(live); i++) {
    char value[64] = "";
    add_int(a, ng_get(a->p, live[i], value, sizeof value));
    add(a, value, strlen(value));
  }
  if (a->trace) printf(" hash %016llx\n", (unsigned long long)a->hash);
}

static ng_status step_once(actor *a, int64_t step) {
  if (step == 2) set_live(a);
  observe(a, step, 0);
  if ((int64_t)a->c->reset == step) {
    (void)told(a, ng_reset_batch(a->p));
    observe(a, step, 1);
  }
  for (int32_t l = 0; l < a->layers; l++) {
    for (int k = 0; k < 2; k++) {
      bits_grad(&a->eye, step, l, (ng_param)k, &a->grad[l][k]);
    }
  }
  const ng_status st = told(a, take_step(a));
  while (a->lent > 0) {
    free(a->shown[--a->lent].data);
  }
  for (int32_t l = 0; l < a->layers; l++) {
    for (int which = 0; which < 2; which++) {
      add(a, a->grad[l][which].data, bits_bytes(&a->grad[l][which]));
      add(a, a->weight[l][which].data, bits_bytes(&a->weight[l][which]));
    }
  }
  reports(a, step, st);
  return st;
}

/* ---- a play ----------------------------------------------------------------------------------*/

typedef struct job {
  actor a;
  ng_transport t;
  bool alone;
  pthread_t thread;
} job;

static void *act(void *arg) {
  job *j = arg;
  actor *a = &j->a;
  ng_status st = open_rank(a, j->alone ? NULL : &j->t);
  for (int64_t t = a->from; t < a->to && st >= NG_OK; t++) {
    if (step_once(a, t) == NG_ERR_COMM) st = NG_ERR_COMM;
  }
  if (st >= NG_OK && a->from == 0 && a->path != NULL) (void)told(a, ng_save(a->p, a->path));
  close_rank(a);
  return NULL;
}

/* Steps [from, to) on `ranks` ranks; what they hashed, in rank order. */
static uint64_t act_out(const actor *like, int32_t ranks, uint64_t hash) {
  ng_threads *group = NULL;
  job *j = calloc((size_t)ranks, sizeof *j);
  bits_need(j != NULL && ng_threads_create(ranks, &group) == NG_OK, "no ranks");
  for (int32_t r = 0; r < ranks; r++) {
    j[r].a = *like;
    j[r].a.eye.rank = r;
    j[r].a.eye.last = r == ranks - 1;
    j[r].a.trace = like->trace && r == 0;
    j[r].a.hash = empty;
    j[r].alone = ranks == 1;
    bits_need(ng_threads_transport(group, r, &j[r].t, sizeof j[r].t) == NG_OK, "no transport");
  }
  for (int32_t r = 1; r < ranks; r++) {
    bits_need(pthread_create(&j[r].thread, NULL, act, &j[r]) == 0, "no thread");
  }
  (void)act(&j[0]);
  for (int32_t r = 0; r < ranks; r++) {
    if (r > 0) bits_need(pthread_join(j[r].thread, NULL) == 0, "a thread is lost");
    hash = hashed(hash, &j[r].a.hash, sizeof j[r].a.hash);
  }
  ng_threads_destroy(&group);
  free(j);
  return hash;
}

static uint64_t play_case(const bits_case *c, bool trace) {
  actor a = {.c = c, .trace = trace, .eye = {.c = c}};
  a.eye.layer = bits_model(c->model, &a.layers);
  a.to = (int64_t)c->steps;
  if (c->save <= 0 || c->save >= c->steps) return act_out(&a, (int32_t)c->ranks, empty);

  char path[256];
  const char *folder = getenv("TMPDIR");
  const int n = snprintf(path, sizeof path, "%s/bits-%ld.safetensors",
                         folder == NULL ? "/tmp" : folder, (long)getpid());
  bits_need(n > 0 && (size_t)n < sizeof path, "the name of the temporary folder is too long");
  a.path = path;
  a.to = (int64_t)c->save;
  uint64_t hash = act_out(&a, (int32_t)c->ranks, empty);
  a.from = (int64_t)c->save;
  a.to = (int64_t)c->steps;
  hash = act_out(&a, (int32_t)(c->reload > 0 ? c->reload : c->ranks), hash);
  (void)unlink(path);
  return hash;
}

uint64_t bits_play(const char *text, bool trace) {
  bits_case c;
  const ng_status st = bits_read(&c, text);
  const uint64_t hash = st == NG_OK ? play_case(&c, trace) : hashed(empty, &st, sizeof st);
  bits_drop(&c);
  return hash;
}
