/* precond.c: the only file of the trainer that creates and steps a preconditioner.
 *
 * Layers of the network become layers of the library (NHWC images); norms become layers unless norm_block = none, and
 * embeddings if the method also has Kronecker factors. Each loss (nn_count_losses) is a sample of the library, so the
 * linear layers of a text have one position, and damping does not depend on the length of the context. Gradients and weights are bound once. A step is one call of ng_step_sgd or
 * ng_step_adamw. For the methods sgd and adamw, all parameters are tensors without curvature, so the library only
 * updates them. The loops of the library run on the trainer's pool; BLAS has its own threads. */
#include "precond.h"
#include "clock.h"
#include "ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct precond {
  const settings *s;
  nn *net;
  ng_context *ctx;
  ng_precond *p;
  int32_t *
      index; /* number in the library of each nn_layer (-1: none), then of each norm; NULL: only tensors are
               * registered */
  int32_t *tokens;     /* input of an embedding */
  int norms;           /* number of norms that are registered as layers: all, or 0 */
  bool has_embeddings; /* embeddings are layers */
  nn_watch watch;
  double observe_ms;
  bool several_ranks;
  int64_t losses;       /* number of losses of one sample */
  int64_t whole, first; /* ng_batch.whole and ng_batch.first; 0: not set */
};

static int report_failure(const precond *p) { return cli_fail("%s", ng_last_error(p->ctx)); }

static void run_on_pool(void *user, int32_t n, void (*task)(void *arg, int32_t i), void *arg) {
  ng_pool_run(user, n, task, arg);
}

/* ---- observing -------------------------------------------------------------------------------*/

static int count_watched_layers(const precond *p) { return nn_count_layers(p->net) + p->norms; }

/* Return x, the input or output gradient of a layer or norm, as an array. The library only reads it. */
static ng_array describe_array(const precond *p, int layer, const float *x, int64_t samples,
                               int64_t columns, bool grad) {
  float *data = (float *)(uintptr_t)x;
  const nn *net = p->net;
  const int norm = layer - nn_count_layers(net);
  if (norm >= 0) {
    const nn_norm_layer *v = nn_get_norm(net, norm);
    if (v->is_layer_norm)
      return ng_array_matrix(data, samples * v->height * v->width, v->channels, NG_F32);
    return ng_array_nhwc(data, samples, v->channels, v->height, v->width, NG_F32);
  }
  const nn_layer *l = nn_get_layer(net, layer);
  const int64_t height = grad ? l->out_height : l->height, channels = grad ? l->out : l->in;
  if (l->is_embedding && !grad) {
    for (int64_t i = 0; i < samples * columns; i++)
      p->tokens[i] = (int32_t)x[i];
    return ng_array_vector(p->tokens, samples * columns, NG_I32);
  }
  if (!l->is_conv)
    return ng_array_matrix(data, samples * l->positions, columns / l->positions, NG_F32);
  return ng_array_nhwc(data, samples, channels, height, columns / channels / height, NG_F32);
}

/* Let the library observe an input or output gradient. NG_SKIPPED (not finite) is no error: the step will report it. */
static int observe_array(void *user, int layer, const float *x, int64_t samples, int64_t columns,
                         bool grad) {
  precond *p = user;
  if (layer >= count_watched_layers(p)) return CLI_OK;
  const int32_t i = p->index[layer];
  if (i < 0 || ng_wants(p->p, i) == 0) return CLI_OK;
  const double t0 = ng_now_ms();
  const ng_array v = describe_array(p, layer, x, samples, columns, grad);
  const ng_status st = grad ? ng_observe_output_grad(p->p, i, &v, NG_BORROW)
                            : ng_observe_input(p->p, i, &v, NG_BORROW);
  p->observe_ms += ng_now_ms() - t0;
  return st < 0 ? report_failure(p) : CLI_OK;
}

/* All ranks must agree on ng_batch.last, so a rank without layers to observe (dp-kfac on many ranks) also calls
 * ng_begin. */
int precond_begin_batch(precond *p, int64_t samples, bool last, bool *wants) {
  *wants = false;
  for (int i = 0; p->index != NULL && i < count_watched_layers(p) && !*wants; i++)
    *wants = p->index[i] >= 0 && ng_wants(p->p, p->index[i]) != 0;
  if (!*wants && (!p->several_ranks || p->index == NULL)) return CLI_OK;
  ng_batch b;
  ng_batch_init(&b, sizeof b);
  b.samples = samples * p->losses;
  b.last = last;
  b.whole = p->whole;
  b.first = p->first;
  return ng_begin(p->p, &b) < 0 ? report_failure(p) : CLI_OK;
}

const nn_watch *precond_get_watch(precond *p) { return &p->watch; }

int precond_drop_observations(precond *p) {
  return ng_reset_batch(p->p) < 0 ? report_failure(p) : CLI_OK;
}

/* ---- layers and tensors ------------------------------------------------------------------------------*/

static ng_status add_layer(precond *p, const nn_layer *l, int32_t *index) {
  ng_layer d;
  ng_layer_init(&d, l->is_conv ? NG_CONV2D : l->is_embedding ? NG_EMBEDDING : NG_LINEAR, sizeof d);
  d.name = l->name;
  d.in = l->in;
  d.out = l->out;
  d.bias = l->has_bias;
  if (l->is_conv) {
    d.kernel[0] = d.kernel[1] = l->kernel;
    d.stride[0] = d.stride[1] = l->stride;
    d.padding[0] = d.padding[1] = l->padding;
    d.image[0] = l->height;
    d.image[1] = l->width;
  } else {
    d.positions = l->positions / p->losses;
    d.token_dtype = NG_I32;
  }
  return ng_add_layer(p->p, &d, index);
}

/* Bind gradient and weight of a parameter, as [rows, count / rows]. */
static ng_status bind(precond *p, int32_t index, ng_param which, const nn_param *q, int64_t rows) {
  const ng_array grad = ng_array_matrix(q->grad, rows, q->count / rows, NG_F32);
  const ng_array weight = ng_array_matrix(q->value, rows, q->count / rows, NG_F32);
  const ng_status st = ng_bind_grad(p->p, index, which, &grad);
  return st < 0 ? st : ng_bind_weight(p->p, index, which, &weight);
}

static ng_status add_norm_layers(precond *p) {
  ng_status st = NG_OK;
  for (int i = 0; i < p->norms && st >= 0; i++) {
    const nn_norm_layer *l = nn_get_norm(p->net, i);
    int32_t *index = &p->index[nn_count_layers(p->net) + i];
    st = ng_add_norm(p->p, l->name, l->is_layer_norm ? NG_LAYER_NORM : NG_BATCH_NORM, l->channels,
                     1, l->eps, index);
    if (st >= 0) st = bind(p, *index, NG_WEIGHT, nn_get_param(p->net, l->gamma_param), 1);
    if (st >= 0) st = bind(p, *index, NG_BIAS, nn_get_param(p->net, l->beta_param), 1);
  }
  return st;
}

static ng_status add_layers_and_tensors(precond *p) {
  ng_status st = NG_OK;
  for (int i = 0; p->index != NULL && i < nn_count_layers(p->net) && st >= 0; i++) {
    const nn_layer *l = nn_get_layer(p->net, i);
    const nn_param *w = nn_get_param(p->net, l->weight_param);
    p->index[i] = -1;
    if (l->is_embedding && !p->has_embeddings) continue;
    st = add_layer(p, l, &p->index[i]);
    if (st >= 0) st = bind(p, p->index[i], NG_WEIGHT, w, w->shape[0]);
    if (st >= 0 && l->bias_param >= 0)
      st = bind(p, p->index[i], NG_BIAS, nn_get_param(p->net, l->bias_param), 1);
  }
  if (st >= 0) st = add_norm_layers(p);
  for (int i = 0; i < nn_count_params(p->net) && st >= 0; i++) {
    const nn_param *q = nn_get_param(p->net, i);
    int32_t index = 0;
    if (p->index != NULL && q->layer >= 0 && p->index[q->layer] >= 0) continue;
    if (p->norms > 0 && (q->role == NN_GAMMA || q->role == NN_BETA)) continue;
    st = ng_add_tensor(p->p, q->name, q->count, &index);
    if (st >= 0) st = bind(p, index, NG_WEIGHT, q, 1);
  }
  return st < 0 ? st : ng_ready(p->p);
}

/* Return true if the method has statistics of embeddings with these options. */
static bool can_have_embeddings(const char *method, const ng_options *o) {
  return cli_method_has_option(method, "solver") && strcmp(method, "ekfac") != 0 &&
         strcmp(cli_get_option_text(o, "solver").text, "product") != 0 &&
         strcmp(cli_get_option_text(o, "positions").text, "reduce") != 0;
}

int precond_create(const settings *s, const ng_transport *t, nn *net, ng_pool *pool,
                   precond **out) {
  *out = NULL;
  ng_options *o = NULL;
  ng_context_config config;
  if (settings_create_options(s, &o) != CLI_OK) return CLI_BAD;
  ng_context_config_init(&config, sizeof config);
  config.transport = t;
  config.threads = 1;
  if (pool != NULL) {
    config.threads = ng_pool_threads(pool);
    config.parallel_for = run_on_pool;
    config.executor_user = pool;
  }
  precond *p = cli_alloc(1, sizeof *p);
  p->s = s;
  p->net = net;
  p->losses = nn_count_losses(net);
  p->tokens = cli_alloc((size_t)(s->batch * p->losses), sizeof *p->tokens);
  const run_ranks k = ranks_from_transport(t);
  p->several_ranks = k.size > 1;
  if (p->several_ranks && !s->own_batches) {
    p->whole = s->batch * p->losses;
    p->first = ranks_find_first(&k, k.rank, s->batch) * p->losses;
  }
  p->watch = (nn_watch){p, observe_array};
  int rc = cli_create_context(&config, &p->ctx);
  if (rc == CLI_OK && ng_precond_create_from(p->ctx, o, &p->p) < 0) rc = report_failure(p);
  const bool norms = strcmp(cli_get_option_text(o, "norm_block").text, "none") != 0;
  p->has_embeddings = norms && can_have_embeddings(s->method, o);
  ng_options_destroy(&o);
  if (!settings_is_first_order(s)) {
    p->norms = norms ? nn_count_norms(net) : 0;
    p->index = cli_alloc((size_t)count_watched_layers(p), sizeof *p->index);
  }
  if (rc == CLI_OK && add_layers_and_tensors(p) < 0) rc = report_failure(p);
  if (rc != CLI_OK) precond_destroy(&p);
  *out = p;
  return rc;
}

void precond_destroy(precond **p) {
  if (*p == NULL) return;
  ng_precond_destroy(&(*p)->p);
  ng_context_destroy(&(*p)->ctx);
  free((*p)->index);
  free((*p)->tokens);
  free(*p);
  *p = NULL;
}

/* ---- stepping --------------------------------------------------------------------------------*/

int precond_set_option(precond *p, const char *option, double value) {
  return ng_set_real(p->p, option, value) < 0 ? report_failure(p) : CLI_OK;
}

static ng_status step_sgd(const precond *p, double lr, double momentum) {
  ng_sgd how;
  ng_sgd_init(&how, sizeof how);
  how.lr = lr;
  how.momentum = settings_has_moments(p->s) ? 0.0 : momentum;
  how.weight_decay = p->s->weight_decay;
  how.nesterov = p->s->nesterov;
  how.decoupled = p->s->decoupled || settings_has_moments(p->s);
  return ng_step_sgd(p->p, &how, 1);
}

static ng_status step_adamw(const precond *p, double lr) {
  ng_adamw how;
  ng_adamw_init(&how, sizeof how);
  how.lr = lr;
  how.beta1 = p->s->beta1;
  how.beta2 = p->s->beta2;
  how.eps = p->s->eps;
  how.weight_decay = p->s->weight_decay;
  return ng_step_adamw(p->p, &how, 1);
}

ng_report precond_read_report(const precond *p) {
  ng_report r = {.struct_size = sizeof r};
  return ng_report_read(p->p, &r) < 0 ? (ng_report){.struct_size = sizeof r} : r;
}

/* Return the number of rescued blocks so far. The status of a step does not tell: it may report another event. */
static int64_t count_rescues(const precond *p) {
  const ng_report r = precond_read_report(p);
  return r.more_damping + r.in_double + r.kept_last + r.plain;
}

int precond_step(precond *p, double lr, double momentum, precond_outcome *out) {
  const int64_t before = count_rescues(p);
  const ng_status st = settings_is_adamw(p->s) ? step_adamw(p, lr) : step_sgd(p, lr, momentum);
  out->skipped = st == NG_SKIPPED;
  out->unobserved = st == NG_UNOBSERVED;
  out->rescued = st == NG_RESCUED || (st == NG_UNOBSERVED && count_rescues(p) > before);
  return st < 0 ? report_failure(p) : CLI_OK;
}

/* ---- reports ---------------------------------------------------------------------------*/

double precond_get_observe_ms(const precond *p) { return p->observe_ms; }

int precond_read_numbers(const precond *p, train_number out[PRECOND_NUMBERS]) {
  const ng_report r = precond_read_report(p);
  double cosine = (double)NAN, stretch = (double)NAN;
  if (r.d2 > 0.0 && r.pd2 > 0.0) {
    cosine = fmax(-1.0, fmin(1.0, r.inner / sqrt(r.d2) / sqrt(r.pd2)));
    stretch = sqrt(r.pd2) / sqrt(r.d2);
  }
  const train_number all[PRECOND_NUMBERS] = {
      {"clip", r.clip},
      {"cosine", cosine},
      {"angle", acos(cosine) * 180.0 / acos(-1.0)},
      {"rotation", 90.0 * (1.0 - cosine)},
      {"stretch", stretch},
      {"scaling_min", r.scaling_min},
      {"scaling_25", r.scaling_25},
      {"scaling_50", r.scaling_50},
      {"scaling_75", r.scaling_75},
      {"scaling_max", r.scaling_max},
      {"scaling_mean", r.scaling_mean},
  };
  const int n = r.scaled > 0 ? PRECOND_NUMBERS : 5;
  memcpy(out, all, (size_t)n * sizeof *all);
  return n;
}

int precond_read_stations(const precond *p, train_station *out, int capacity) {
  const ng_report r = precond_read_report(p);
  int n = 0;
  for (int32_t i = 0; i < r.stations && n < capacity; i++) {
    ng_station_report one = {.struct_size = sizeof one};
    if (ng_report_station(p->p, i, &one) < 0) continue;
    train_station *s = &out[n++];
    *s = (train_station){.ms = one.total_ms,
                         .wait_ms = one.total_wait_ms,
                         .bytes = (double)one.total_bytes,
                         .messages = (double)one.total_messages};
    (void)snprintf(s->name, sizeof s->name, "%s", one.name);
  }
  return n;
}

int precond_read_refreshes(const precond *p, train_refreshed out[TRAIN_KINDS]) {
  const ng_report r = precond_read_report(p);
  int n = 0;
  for (int32_t i = 0; i < r.statistics; i++) {
    ng_statistic_report one = {.struct_size = sizeof one};
    int k = 0;
    if (ng_report_statistic(p->p, i, &one) < 0 || one.interval == 0) continue;
    while (k < n && strcmp(out[k].name, one.name) != 0)
      k++;
    if (k == TRAIN_KINDS) continue;
    if (k == n) {
      out[n] = (train_refreshed){.refreshed = 0};
      (void)snprintf(out[n].name, sizeof out[n].name, "%s", one.name);
      n++;
    }
    out[k].refreshed += one.refreshed;
    out[k].passed += one.passed;
    out[k].bytes_sent += one.bytes_sent;
    out[k].bytes_passed += one.bytes_passed;
  }
  return n;
}

int precond_read_factors(const precond *p, int layer, ng_factors *f) {
  return ng_factors_read(p->p, p->index[layer], f) < 0 ? report_failure(p) : CLI_OK;
}

int64_t precond_count_bytes(const precond *p) {
  int64_t bytes = 0;
  ng_context_allocated(p->ctx, &bytes, NULL, NULL);
  return bytes;
}

/* Report the last message of the library, but with `path` instead of "the stream". */
static int report_file_failure(const precond *p, const char *path) {
  static const char stream[] = "the stream: ";
  const char *text = ng_last_error(p->ctx);
  if (strncmp(text, stream, sizeof stream - 1) == 0) text += sizeof stream - 1;
  return cli_fail("%s: natgrad.state: %s", path, text);
}

/* Report a failure. All ranks have the same file error, so only ranks with `reports` report it. */
static int report_state_failure(const precond *p, ng_status st, bool reports) {
  if (st >= 0) return CLI_OK;
  return st == NG_ERR_FILE && !reports ? CLI_BAD : report_failure(p);
}

int precond_save_stream(precond *p, ng_writer write, void *user, bool reports) {
  return report_state_failure(p, ng_save_to(p->p, write, user), reports);
}

int precond_save_parts(precond *p, const char *path, bool reports) {
  return report_state_failure(p, ng_save_parts(p->p, path), reports);
}

int precond_load_stream(precond *p, ng_reader read, void *user, const char *path) {
  return ng_load_from(p->p, read, user) < 0 ? report_file_failure(p, path) : CLI_OK;
}

int precond_load_parts(precond *p, const char *path) {
  return ng_load(p->p, path) < 0 ? report_failure(p) : CLI_OK;
}
