/* bits_run.c: see bits.h.  Run a case and hash the results: gradients and weights after every step (with the elements
 * between their rows), statuses, reports, live options, owners.  Times, bytes and messages are not hashed.  Only
 * natgrad.h is used, so the program runs with the library of another build, too. */
#include "bits.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* FNV-1a of 64 bits. */
static const uint64_t hash_start = UINT64_C(14695981039346656037);

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
  const unsigned char *c = data;
  for (size_t i = 0; i < bytes; i++) {
    hash = (hash ^ c[i]) * UINT64_C(1099511628211);
  }
  return hash;
}

/* ---- a rank ----------------------------------------------------------------------------------*/

enum { MOST_OBSERVED = 512 };

typedef struct rank_run {
  bits_array_inputs source;
  const bits_case *c;
  /* state file; NULL: no file. The run loads the file if from > 0; otherwise it saves after the last step */
  const char *path;
  int64_t from, to; /* steps                                                                     */
  int32_t layers;
  bool trace;
  ng_context *ctx;
  ng_precond *p;
  int32_t index[BITS_LAYERS];
  /* gradients and weights of each layer's weight and bias */
  plane grad[BITS_LAYERS][2], weight[BITS_LAYERS][2];
  /* the arrays that are observed in this step */
  plane observed[MOST_OBSERVED];
  int32_t observations;
  uint64_t hash;
} rank_run;

static void hash_data(rank_run *run, const void *data, size_t bytes) {
  run->hash = hash_bytes(run->hash, data, bytes);
}
static void hash_int(rank_run *run, int64_t x) { hash_data(run, &x, sizeof x); }
static void hash_real(rank_run *run, double x) { hash_data(run, &x, sizeof x); }

static ng_status hash_status(rank_run *run, ng_status st) {
  hash_int(run, st);
  return st;
}

/* ---- open ------------------------------------------------------------------------------------*/

static ng_status add_layer(rank_run *run, int32_t l) {
  const bits_layer *from = &run->source.layer[l];
  ng_layer d;
  if (from->kind == 0) return ng_add_tensor(run->p, from->name, from->in, &run->index[l]);
  ng_layer_init(&d, from->kind, sizeof d);
  d.name = from->name;
  d.in = from->in;
  d.out = from->out;
  d.bias = from->bias;
  d.frozen = from->frozen;
  d.positions = run->c->declare > 0 ? from->positions : 0;
  if (same_text(run->c->order, "positions")) d.order = NG_POSITIONS_FIRST;
  for (int i = 0; i < 2; i++) {
    d.kernel[i] = from->kernel[i];
    d.stride[i] = from->stride[i];
    d.dilation[i] = from->dilation;
    d.padding[i] = from->padding[i];
    d.image[i] = from->image[i];
  }
  d.groups = from->groups;
  d.options = l % 2 == 0 ? run->c->own : NULL;
  return ng_add_layer(run->p, &d, &run->index[l]);
}

static ng_status bind_parameters(rank_run *run, int32_t l) {
  ng_status st = NG_OK;
  for (int k = 0; k < 2 && st == NG_OK; k++) {
    const ng_param which = (ng_param)k;
    run->grad[l][k] = bits_new_parameter(&run->source, l, which, run->c->grad);
    run->weight[l][k] = bits_new_parameter(&run->source, l, which, run->c->weight);
    if (run->grad[l][k].rows == 0) continue;
    bits_fill_weight(&run->source, l, which, &run->weight[l][k]);
    st = hash_status(run, plane_bind_grad(run->p, run->index[l], which, &run->grad[l][k]));
    if (st == NG_OK)
      st = hash_status(run, plane_bind_weight(run->p, run->index[l], which, &run->weight[l][k]));
  }
  return st;
}

static ng_status open_rank(rank_run *run, const ng_transport *t) {
  ng_context_config config;
  ng_context_config_init(&config, sizeof config);
  config.transport = t;
  config.linalg = run->c->linalg;
  config.threads = (int32_t)run->c->threads;
  ng_status st = hash_status(run, ng_context_create(NG_VERSION, &config, NULL, 0, &run->ctx));
  if (st == NG_OK) st = hash_status(run, ng_precond_create_from(run->ctx, run->c->opt, &run->p));
  for (int32_t l = 0; l < run->layers && st == NG_OK; l++) {
    st = hash_status(run, add_layer(run, l));
    if (st == NG_OK) st = bind_parameters(run, l);
  }
  if (st == NG_OK) st = hash_status(run, ng_ready(run->p));
  for (int32_t i = 0; st == NG_OK && i < ng_explain_count(run->p); i++) {
    ng_explain_row row = {.struct_size = sizeof row};
    if (ng_explain(run->p, i, &row) != NG_OK) continue;
    hash_data(run, row.name, strlen(row.name));
    const int64_t own[] = {row.index, row.count, row.covered, row.owner};
    hash_data(run, own, sizeof own);
  }
  if (st == NG_OK && run->from > 0) st = hash_status(run, ng_load(run->p, run->path));
  return st;
}

static void close_rank(rank_run *run) {
  ng_precond_destroy(&run->p);
  ng_context_destroy(&run->ctx);
  for (int32_t l = 0; l < run->layers; l++) {
    for (int which = 0; which < 2; which++) {
      free(run->grad[l][which].data);
      free(run->weight[l][which].data);
    }
  }
}

/* ---- a step ----------------------------------------------------------------------------------*/

static void observe_array(rank_run *run, int64_t step, int64_t call, int64_t samples, int32_t l,
                          bool grad) {
  const ng_loan loan = run->c->borrow > 0 ? NG_BORROW : NG_COPY;
  bits_require(run->observations < MOST_OBSERVED, "too many observations in a step");
  run->observed[run->observations] = bits_new_observed(&run->source, step, call, samples, l, grad);
  const plane *v = &run->observed[run->observations++];
  (void)hash_status(run, grad ? plane_observe_output_grad(run->p, run->index[l], v, loan)
                              : plane_observe_input(run->p, run->index[l], v, loan));
}

/* Observe every array, also arrays that the library does not want. */
static void observe_batches(rank_run *run, int64_t step, int64_t round) {
  const bits_case *c = run->c;
  if (run->source.is_last && (int64_t)c->miss == step) return;
  const bool part = run->source.is_last && (int64_t)c->part == step;
  for (int64_t m = 0; m < (int64_t)c->micro; m++) {
    ng_batch b;
    ng_batch_init(&b, sizeof b);
    (void)hash_status(
        run,
        /* earlier commits hashed a status here; hash NG_OK, so that hashes stay comparable */
        NG_OK);
    b.samples = (int64_t)c->samples + (c->even > 0 ? 0 : run->source.rank + m + step % 2);
    b.reduction = c->sum > 0 ? NG_SUM : NG_MEAN;
    b.loss_scale = c->loss_scale;
    (void)hash_status(run, ng_begin(run->p, &b));
    for (int32_t k = 0; k < 2 * run->layers; k++) {
      const bool grad = k >= run->layers;
      const int32_t l = grad ? 2 * run->layers - 1 - k : k;
      if (run->source.layer[l].kind == 0 || (part && (grad || l > 0))) continue;
      hash_int(run, ng_wants(run->p, run->index[l]));
      for (int64_t u = 0; u < (int64_t)c->uses; u++) {
        observe_array(run, step, round * 16 + m * 4 + u, b.samples, l, grad);
      }
    }
  }
}

/* "damping=0.5 clip=none" */
static void set_live(rank_run *run) {
  char text[BITS_TEXT], *rest = NULL;
  if (run->c->live == NULL) return;
  (void)snprintf(text, sizeof text, "%s", run->c->live);
  for (char *w = strtok_r(text, " ", &rest); w != NULL; w = strtok_r(NULL, " ", &rest)) {
    char *value = strchr(w, '=');
    bits_require(value != NULL, w);
    *value++ = 0;
    (void)hash_status(run, ng_set(run->p, w, value));
  }
}

static ng_status take_step(rank_run *run) {
  const bits_case *c = run->c;
  char update[16];
  if (ng_options_get(c->opt, "update", update, sizeof update) != NG_OK) return NG_ERR_STATE;
  if (same_text(update, "sgd")) {
    ng_sgd how;
    ng_sgd_init(&how, sizeof how);
    how.lr = c->lr;
    how.momentum = c->momentum;
    how.dampening = c->dampening;
    how.weight_decay = c->decay;
    how.nesterov = c->nesterov > 0;
    how.decoupled = c->decoupled > 0;
    return ng_step_sgd(run->p, &how, 1);
  }
  if (same_text(update, "adamw")) {
    ng_adamw how;
    ng_adamw_init(&how, sizeof how);
    how.lr = c->lr;
    how.weight_decay = c->decay;
    return ng_step_adamw(run->p, &how, 1);
  }
  return ng_step(run->p, c->lr);
}

static void hash_reports(rank_run *run, int64_t step, ng_status st) {
  static const char *const live[] = {"damping",      "stat_decay",  "kl_clip", "stat_period",
                                     "solve_period", "eigen_floor", "clip",    "clip_bound"};
  ng_report r = {.struct_size = sizeof r};
  if (ng_report_read(run->p, &r) != NG_OK) return;
  const int64_t counts[] = {r.steps, r.skipped, r.more_damping, r.in_double, r.kept_last, r.plain};
  hash_data(run, counts, sizeof counts);
  hash_real(run, r.clip);
  hash_real(run, r.inner);
  if (run->trace) {
    printf("  step %d %s clip %g inner %g rungs", (int)step, ng_status_name(st), r.clip, r.inner);
  }
  for (int32_t l = 0; l < run->layers; l++) {
    ng_layer_report of = {.struct_size = sizeof of};
    hash_int(run, ng_report_layer(run->p, run->index[l], &of));
    hash_int(run, of.rung);
    hash_int(run, of.observations);
    hash_real(run, of.pi);
    hash_real(run, of.damping_a);
    hash_real(run, of.damping_g);
    if (run->trace) printf(" %d", (int)of.rung);
  }
  for (int32_t i = 0; i < COUNT(live); i++) {
    char value[64] = "";
    hash_int(run, ng_get(run->p, live[i], value, sizeof value));
    hash_data(run, value, strlen(value));
  }
  if (run->trace) printf(" hash %016llx\n", (unsigned long long)run->hash);
}

static ng_status run_step(rank_run *run, int64_t step) {
  if (step == 2) set_live(run);
  observe_batches(run, step, 0);
  if ((int64_t)run->c->reset == step) {
    (void)hash_status(run, ng_reset_batch(run->p));
    observe_batches(run, step, 1);
  }
  for (int32_t l = 0; l < run->layers; l++) {
    for (int k = 0; k < 2; k++) {
      bits_fill_gradient(&run->source, step, l, (ng_param)k, &run->grad[l][k]);
    }
  }
  const ng_status st = hash_status(run, take_step(run));
  while (run->observations > 0) {
    free(run->observed[--run->observations].data);
  }
  for (int32_t l = 0; l < run->layers; l++) {
    for (int which = 0; which < 2; which++) {
      hash_data(run, run->grad[l][which].data, bits_plane_bytes(&run->grad[l][which]));
      hash_data(run, run->weight[l][which].data, bits_plane_bytes(&run->weight[l][which]));
    }
  }
  hash_reports(run, step, st);
  return st;
}

/* ---- all ranks -------------------------------------------------------------------------------*/

typedef struct job {
  rank_run run;
  ng_transport t;
  bool alone;
  pthread_t thread;
} job;

static void *run_rank(void *arg) {
  job *j = arg;
  rank_run *run = &j->run;
  ng_status st = open_rank(run, j->alone ? NULL : &j->t);
  for (int64_t t = run->from; t < run->to && st >= NG_OK; t++) {
    if (run_step(run, t) == NG_ERR_COMM) st = NG_ERR_COMM;
  }
  if (st >= NG_OK && run->from == 0 && run->path != NULL)
    (void)hash_status(run, ng_save(run->p, run->path));
  close_rank(run);
  return NULL;
}

/* Run steps [from, to) on `ranks` ranks; add their hashes in rank order. */
static uint64_t run_ranks(const rank_run *like, int32_t ranks, uint64_t hash) {
  ng_threads *group = NULL;
  job *j = calloc((size_t)ranks, sizeof *j);
  bits_require(j != NULL && ng_threads_create(ranks, &group) == NG_OK, "no ranks");
  for (int32_t r = 0; r < ranks; r++) {
    j[r].run = *like;
    j[r].run.source.rank = r;
    j[r].run.source.is_last = r == ranks - 1;
    j[r].run.trace = like->trace && r == 0;
    j[r].run.hash = hash_start;
    j[r].alone = ranks == 1;
    bits_require(ng_threads_transport(group, r, &j[r].t, sizeof j[r].t) == NG_OK, "no transport");
  }
  for (int32_t r = 1; r < ranks; r++) {
    bits_require(pthread_create(&j[r].thread, NULL, run_rank, &j[r]) == 0, "no thread");
  }
  (void)run_rank(&j[0]);
  for (int32_t r = 0; r < ranks; r++) {
    if (r > 0) bits_require(pthread_join(j[r].thread, NULL) == 0, "no join");
    hash = hash_bytes(hash, &j[r].run.hash, sizeof j[r].run.hash);
  }
  ng_threads_destroy(&group);
  free(j);
  return hash;
}

static uint64_t run_case(const bits_case *c, bool trace) {
  rank_run run = {.c = c, .trace = trace, .source = {.c = c}};
  run.source.layer = bits_layers_of(c->model, &run.layers);
  run.to = (int64_t)c->steps;
  if (c->save <= 0 || c->save >= c->steps) return run_ranks(&run, (int32_t)c->ranks, hash_start);

  char path[256];
  const char *folder = getenv("TMPDIR");
  const int n = snprintf(path, sizeof path, "%s/bits-%ld.safetensors",
                         folder == NULL ? "/tmp" : folder, (long)getpid());
  bits_require(n > 0 && (size_t)n < sizeof path, "the name of the temporary folder is too long");
  run.path = path;
  run.to = (int64_t)c->save;
  uint64_t hash = run_ranks(&run, (int32_t)c->ranks, hash_start);
  run.from = (int64_t)c->save;
  run.to = (int64_t)c->steps;
  hash = run_ranks(&run, (int32_t)(c->reload > 0 ? c->reload : c->ranks), hash);
  (void)unlink(path);
  return hash;
}

uint64_t bits_hash_case(const char *text, bool trace) {
  bits_case c;
  const ng_status st = bits_parse(&c, text);
  const uint64_t hash = st == NG_OK ? run_case(&c, trace) : hash_bytes(hash_start, &st, sizeof st);
  bits_free(&c);
  return hash;
}
