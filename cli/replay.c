/* replay.c: `natgrad replay`: show a recorded run of a published program to natgrad and compare.
 *
 * In: recordings.  The row is picked by the system and method that the recording names, every other
 * entry of its configuration goes through the published names of that row.  Then, as a trainer
 * would: layers, gradients bound, per micro-batch every captured input and output gradient, a step.
 * Out: per step and layer the largest |ours - recorded| over weight and bias, divided by the
 * largest entry recorded there.  A recording of N ranks runs on N threads, and every rank is
 * compared: the published result is the same on all.
 */
#include "cli.h"
#include "recording.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct wish {
  double tolerance;
  bool json;
  const char *linalg;
} wish;

typedef struct job {
  const recording *r;
  const ng_options *options;
  const char *linalg;
  double lr;
} job;

/* One rank's run. */
typedef struct rank_run {
  const job *job;
  int rank;
  ng_transport transport;
  double *error; /* [step][layer] */
  float **grad, **bias;
  float **weight;  /* of parameters: as they were before the step */
  int64_t rescued; /* steps that said NG_RESCUED */
  ng_status status;
  char message[512];
} rank_run;

/* ---- what a trainer does ---------------------------------------------------------------------*/

static int64_t inputs(const shape *l) {
  return l->norm ? 1 : l->conv ? l->in * l->kernel[0] * l->kernel[1] : l->in;
}

/* Options of the layer's own: chainerkfac's flag on a layer. */
static const char *own_options(const recording *r, const shape *l) {
  const json_t *list = json_object_get(r->config, "diagonalize");
  for (size_t i = 0; i < json_array_size(list); i++) {
    const char *name = json_string_value(json_array_get(list, i));
    if (name == NULL || strcmp(name, l->name) != 0) continue;
    return l->norm ? "norm_block=diagonal" : "output_factor=diagonal";
  }
  return NULL;
}

/* A gradient as the optimizer there has it: unscaled, and with its part of the weights. */
static void write_gradient(const recording *r, float *to, const float *grad, const float *before,
                           int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    to[i] = (float)((double)grad[i] / r->loss_scale +
                    (before == NULL ? 0.0 : r->weight_decay * (double)before[i]));
  }
}

/* One axis: a tensor; more: a linear layer of as many rows as the first. */
static ng_status set_up_parameters(rank_run *me, ng_precond *p) {
  const recording *r = me->job->r;
  ng_status st = NG_OK;
  for (int i = 0; i < r->layers && st >= 0; i++) {
    const shape *l = &r->layer[i];
    const size_t n = (size_t)(l->in * l->out);
    int32_t index = -1;
    ng_layer layer;
    me->grad[i] = cli_take(n, sizeof(float));
    me->weight[i] = cli_take(n, sizeof(float));
    memcpy(me->weight[i], recording_step_at(r, 0, i)->before, n * sizeof(float));
    if (l->out == 1) {
      st = ng_add_tensor(p, l->name, l->in, &index);
    } else {
      st = shapes_describe(l, &layer);
      if (st >= 0) st = ng_add_layer(p, &layer, &index);
    }
    const ng_array g = ng_array_matrix(me->grad[i], l->out, l->in, NG_F32);
    const ng_array w = ng_array_matrix(me->weight[i], l->out, l->in, NG_F32);
    if (st >= 0) st = ng_bind_grad(p, index, NG_WEIGHT, &g);
    if (st >= 0) st = ng_bind_weight(p, index, NG_WEIGHT, &w);
  }
  return st < 0 ? st : ng_ready(p);
}

static ng_status set_up(rank_run *me, ng_precond *p) {
  const recording *r = me->job->r;
  if (r->parameters) return set_up_parameters(me, p);
  ng_status st = NG_OK;
  for (int i = 0; i < r->layers && st >= 0; i++) {
    const shape *l = &r->layer[i];
    int32_t index = -1;
    ng_layer layer;
    st = shapes_describe(l, &layer);
    layer.options = own_options(r, l);
    if (st >= 0) st = ng_add_layer(p, &layer, &index);
    if (st < 0) break;
    me->grad[i] = cli_take((size_t)(l->out * inputs(l)), sizeof(float));
    me->bias[i] = cli_take((size_t)l->out, sizeof(float));
    ng_array w = ng_array_matrix(me->grad[i], l->out, inputs(l), NG_F32);
    ng_array b = ng_array_matrix(me->bias[i], 1, l->out, NG_F32);
    st = ng_bind_grad(p, index, NG_WEIGHT, &w);
    if (st >= 0 && l->bias) st = ng_bind_grad(p, index, NG_BIAS, &b);
  }
  return st < 0 ? st : ng_ready(p);
}

/* positions of a linear layer are those of the recording, whatever its shape says */
static ng_status show(ng_precond *p, int32_t layer, const shape *l, const recording_shown *s) {
  if (!ng_wants(p, layer)) return NG_OK;
  shape here = *l;
  if (!l->conv && !l->norm) here.positions = s->rows / s->samples;
  const ng_array a = shapes_input(&here, s->a, s->samples);
  const ng_array g = shapes_output(&here, s->g, s->samples);
  const ng_status st = ng_observe_input(p, layer, &a, NG_BORROW);
  return st == NG_OK ? ng_observe_output_grad(p, layer, &g, NG_COPY) : st;
}

/* max |ours - recorded| and max |recorded|, joined to what *gap and *scale hold. */
static void measure(const float *ours, const float *recorded, int64_t n, double *gap,
                    double *scale) {
  for (int64_t i = 0; i < n; i++) {
    const double d = fabs((double)ours[i] - (double)recorded[i]), s = fabs((double)recorded[i]);
    if (!isfinite(d)) *gap = INFINITY; /* a comparison with NaN would be silent */
    if (d > *gap) *gap = d;
    if (s > *scale) *scale = s;
  }
}

/* Of the largest entry of the step, whatever its parameter. */
static ng_status step_parameters(rank_run *me, ng_precond *p, int step) {
  const recording *r = me->job->r;
  double scale = 0;
  for (int i = 0; i < r->layers; i++) {
    const recording_step *s = recording_step_at(r, step, i);
    const size_t bytes = (size_t)(r->layer[i].in * r->layer[i].out) * sizeof(float);
    memcpy(me->grad[i], s->grad, bytes);
    memcpy(me->weight[i], s->before, bytes);
  }
  const ng_status st = ng_step(p, me->job->lr);
  if (st < 0 || st == NG_SKIPPED) return st;
  if (st == NG_RESCUED) me->rescued++;
  for (int i = 0; i < r->layers; i++) {
    double *gap = &me->error[step * r->layers + i];
    *gap = 0;
    measure(me->grad[i], recording_step_at(r, step, i)->out, r->layer[i].in * r->layer[i].out, gap,
            &scale);
  }
  for (int i = 0; i < r->layers && scale > 0; i++) {
    me->error[step * r->layers + i] /= scale;
  }
  return NG_OK;
}

static ng_status one_step(rank_run *me, ng_precond *p, int step) {
  const recording *r = me->job->r;
  if (r->parameters) return step_parameters(me, p, step);
  ng_status st = NG_OK;
  for (int m = 0; m < r->micro_batches && st >= 0; m++) {
    ng_batch batch;
    ng_batch_init(&batch, sizeof batch);
    batch.samples = recording_shown_at(r, me->rank, step, m, 0)->samples;
    batch.loss_scale = r->loss_scale;
    st = ng_begin(p, &batch);
    for (int i = 0; i < r->layers && st >= 0; i++) {
      st = show(p, i, &r->layer[i], recording_shown_at(r, me->rank, step, m, i));
      if (st == NG_SKIPPED) return st;
    }
  }
  for (int i = 0; i < r->layers && st >= 0; i++) {
    const shape *l = &r->layer[i];
    const recording_step *s = recording_step_at(r, step, i);
    write_gradient(r, me->grad[i], s->grad, s->before, l->out * inputs(l));
    if (l->bias) write_gradient(r, me->bias[i], s->bias_grad, s->bias_before, l->out);
  }
  if (st < 0) return st;
  st = ng_step(p, me->job->lr);
  if (st < 0 || st == NG_SKIPPED) return st;
  if (st == NG_RESCUED) me->rescued++;
  for (int i = 0; i < r->layers; i++) {
    const shape *l = &r->layer[i];
    const recording_step *s = recording_step_at(r, step, i);
    double gap = 0, scale = 0;
    measure(me->grad[i], s->out, l->out * inputs(l), &gap, &scale);
    if (l->bias) measure(me->bias[i], s->bias_out, l->out, &gap, &scale);
    me->error[step * r->layers + i] = gap == 0 ? 0 : gap / scale;
  }
  return NG_OK;
}

static void *run_rank(void *arg) {
  rank_run *me = arg;
  const recording *r = me->job->r;
  ng_context_config config;
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  int step = -1;
  ng_context_config_init(&config, sizeof config);
  config.linalg = me->job->linalg;
  if (r->ranks > 1) {
    config.transport = &me->transport;
    config.threads = 1; /* the ranks are the threads */
  }
  ng_status st = ng_context_create(NG_VERSION, &config, me->message, sizeof me->message, &ctx);
  if (st >= 0) st = ng_precond_create_from(ctx, me->job->options, &p);
  if (st >= 0) st = set_up(me, p);
  for (step = 0; step < r->steps && st == NG_OK; step++)
    st = one_step(me, p, step);
  if (st != NG_OK) {
    if (ctx != NULL) {
      char where[32] = "";
      if (step > 0) (void)snprintf(where, sizeof where, "step %d: ", step - 1);
      (void)snprintf(me->message, sizeof me->message, "%s%s (%s)", where, ng_last_error(ctx),
                     ng_status_name(st));
    }
    if (r->ranks > 1 && me->transport.abort != NULL) me->transport.abort(me->transport.user);
  }
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
  me->status = st;
  return NULL;
}

/* ---- ranks -----------------------------------------------------------------------------------*/

/* Ranks as threads call BLAS at the same time; each call then has one thread. */
static void one_blas_thread(void) {
  void (*set)(int) = NULL;
  void *symbol = dlsym(RTLD_DEFAULT, "openblas_set_num_threads");
  memcpy(&set, &symbol, sizeof set);
  if (set != NULL) set(1);
}

static int run_all(const job *j, rank_run *runs) {
  const recording *r = j->r;
  ng_threads *group = NULL;
  pthread_t *thread = cli_take((size_t)r->ranks, sizeof *thread);
  int started = 0, rc = CLI_OK;
  if (r->ranks == 1) {
    run_rank(&runs[0]);
  } else if (ng_threads_create(r->ranks, &group) != NG_OK) {
    rc = cli_bad("%s: no group of %d ranks", r->name, r->ranks);
  } else {
    one_blas_thread();
    for (int i = 0; i < r->ranks && rc == CLI_OK; i++) {
      if (ng_threads_transport(group, i, &runs[i].transport, sizeof runs[i].transport) != NG_OK) {
        rc = cli_bad("%s: no transport for rank %d", r->name, i);
      }
    }
    for (; started < r->ranks && rc == CLI_OK; started++) {
      if (pthread_create(&thread[started], NULL, run_rank, &runs[started]) != 0) {
        rc = cli_bad("%s: rank %d could not be started", r->name, started);
        runs[started].transport.abort(runs[started].transport.user); /* wake the others */
        break;
      }
    }
    for (int i = 0; i < started; i++)
      (void)pthread_join(thread[i], NULL);
  }
  ng_threads_destroy(&group);
  free(thread);
  /* The rank that failed by itself has the reason; the others only heard of it. */
  const rank_run *worst = NULL;
  for (int i = 0; i < r->ranks && rc == CLI_OK; i++) {
    if (runs[i].status == NG_OK) continue;
    if (worst == NULL || (worst->status == NG_ERR_COMM && runs[i].status != NG_ERR_COMM)) {
      worst = &runs[i];
    }
  }
  if (worst != NULL && r->ranks > 1) {
    rc = cli_bad("%s: rank %d: %s", r->name, worst->rank, worst->message);
  } else if (worst != NULL) {
    rc = cli_bad("%s: %s", r->name, worst->message);
  }
  return rc;
}

/* ---- configuration ---------------------------------------------------------------------------*/

/* A value of the configuration as text; the elements of a list of texts are joined by '|', as
 * regular expressions are.  `joined` (may receive NULL) is to be freed. */
static const char *value_text(const json_t *v, char *text, size_t size, char **joined) {
  *joined = NULL;
  if (json_is_string(v)) return json_string_value(v);
  if (json_is_boolean(v)) return json_is_true(v) ? "true" : "false";
  if (json_is_null(v)) return "none";
  if (json_is_integer(v)) {
    (void)snprintf(text, size, "%lld", (long long)json_integer_value(v));
    return text;
  }
  if (json_is_real(v)) {
    (void)snprintf(text, size, "%.17g", json_real_value(v));
    return text;
  }
  if (!json_is_array(v)) return NULL;
  size_t room = 1;
  for (size_t i = 0; i < json_array_size(v); i++) {
    const char *s = json_string_value(json_array_get(v, i));
    if (s == NULL) return NULL;
    room += strlen(s) + 1;
  }
  char *all = cli_take(room, 1);
  for (size_t i = 0, at = 0; i < json_array_size(v); i++) {
    at += (size_t)snprintf(all + at, room - at, "%s%s", i > 0 ? "|" : "",
                           json_string_value(json_array_get(v, i)));
  }
  *joined = all;
  return all;
}

/* As the recording says. */
static int published(const recording *r, const char *path, ng_options *o, double *lr) {
  char message[512] = "";
  if (ng_options_set_system(o, r->system, r->method, message, sizeof message) < 0) {
    return cli_bad("%s: case.json: %s", path, message);
  }
  *lr = 0.1; /* what both programs take when nothing is said */
  const char *key;
  json_t *value;
  json_object_foreach(r->config, key, value) {
    if (strcmp(key, "system") == 0 || strcmp(key, "method") == 0) continue;
    if (strcmp(key, "diagonalize") == 0) continue;            /* own_options */
    if (r->parameters && strcmp(key, "class") == 0) continue; /* the name of one, for people */
    char number[64], *joined = NULL;
    const char *text = value_text(value, number, sizeof number, &joined);
    if (text == NULL) return cli_bad("%s: case.json: config: %s has no plain value", path, key);
    const ng_status st = ng_options_set_published(o, key, text, lr, message, sizeof message);
    free(joined);
    if (st < 0) return cli_bad("%s: case.json: config: %s", path, message);
  }
  /* Recorded with averages that were put back after each inverse. */
  if (json_is_false(json_object_get(r->root, "ema_leak")) &&
      ng_options_set(o, "damping_leak", "0", message, sizeof message) < 0) {
    return cli_bad("%s: case.json: %s", path, message);
  }
  return CLI_OK;
}

/* --method asks for a row as it is, whatever the recording has set. */
static int configure(const recording *r, const char *path, const cli_args *args, ng_options **o,
                     double *lr) {
  char message[512] = "";
  bool row = false;
  for (int i = 0; i < args->n_settings; i++)
    row = row || strcmp(args->settings[i].name, "method") == 0;
  if (ng_options_create(NULL, message, sizeof message, o) < 0) return cli_bad("%s", message);
  int rc = published(r, path, *o, lr);
  if (rc == CLI_OK && row) {
    ng_options_destroy(o);
    if (ng_options_create(NULL, message, sizeof message, o) < 0) return cli_bad("%s", message);
  }
  if (rc == CLI_OK) rc = cli_apply(args, *o);
  if (rc == CLI_OK && strcmp(cli_option_text(*o, "window_store").text, "lowrank") == 0) {
    rc = cli_bad("%s: low rank begins with matrices that the program drew, and replay cannot hand "
                 "them over; the test t_window_golden does",
                 path);
  }
  if (rc == CLI_OK && ng_options_check(*o, message, sizeof message) < 0)
    rc = cli_bad("%s: %s", path, message);
  return rc;
}

/* ---- the answer ------------------------------------------------------------------------------*/

typedef struct answer {
  double largest;
  int step, layer;
  int64_t rescued;
} answer;

static void print_table(const recording *r, const double *error) {
  printf("  step");
  for (int i = 0; i < r->layers; i++)
    printf("  %9s", r->layer[i].name);
  for (int s = 0; s < r->steps; s++) {
    printf("\n  %4d", s);
    for (int i = 0; i < r->layers; i++) {
      const int pad = (int)strlen(r->layer[i].name);
      printf("  %*.2e", pad > 9 ? pad : 9, error[s * r->layers + i]);
    }
  }
  printf("\n");
}

static int print_json(const recording *r, const ng_options *o, const double *error, const answer *a,
                      double tolerance) {
  json_t *rows = json_array(), *names = json_array();
  for (int i = 0; i < r->layers; i++)
    (void)json_array_append_new(names, json_string(r->layer[i].name));
  for (int s = 0; s < r->steps; s++) {
    json_t *row = json_array();
    for (int i = 0; i < r->layers; i++) {
      const double e = error[s * r->layers + i];
      (void)json_array_append_new(row, isfinite(e) ? json_real(e) : json_null());
    }
    (void)json_array_append_new(rows, row);
  }
  json_t *line = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:o, s:f, s:I, s:b, s:o, s:o}", "case",
                           r->name, "system", r->system, "variant", r->method, "method",
                           cli_option_text(o, "method").text, "ranks", r->ranks, "steps", r->steps,
                           "largest", isfinite(a->largest) ? json_real(a->largest) : json_null(),
                           "tolerance", tolerance, "rescued", (json_int_t)a->rescued, "ok",
                           a->largest <= tolerance, "layers", names, "errors", rows);
  const int failed =
      line == NULL || json_dumpf(line, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
  json_decref(line);
  if (failed) return cli_bad("%s: the result does not fit JSON", r->name);
  printf("\n");
  return CLI_OK;
}

static int replay(const char *path, const wish *w, const cli_args *args) {
  recording r;
  int rc = recording_open(path, &r);
  if (rc != CLI_OK) return rc;
  ng_options *options = NULL;
  job j = {&r, NULL, w->linalg, 0};
  const size_t cells = (size_t)r.steps * (size_t)r.layers;
  rank_run *runs = cli_take((size_t)r.ranks, sizeof *runs);
  for (int i = 0; i < r.ranks; i++) {
    runs[i].job = &j;
    runs[i].rank = i;
    runs[i].error = cli_take(cells, sizeof(double));
    runs[i].grad = cli_take((size_t)r.layers, sizeof(float *));
    runs[i].bias = cli_take((size_t)r.layers, sizeof(float *));
    runs[i].weight = cli_take((size_t)r.layers, sizeof(float *));
  }
  rc = configure(&r, path, args, &options, &j.lr);
  j.options = options;
  if (rc == CLI_OK) rc = run_all(&j, runs);
  if (rc == CLI_OK) {
    double *error = runs[0].error;
    answer a = {0};
    for (int i = 0; i < r.ranks; i++) {
      for (size_t k = 0; k < cells; k++) {
        if (runs[i].error[k] > error[k]) error[k] = runs[i].error[k];
      }
    }
    a.rescued = runs[0].rescued; /* a step's status is the same on all */
    for (int s = 0; s < r.steps; s++) {
      for (int i = 0; i < r.layers; i++) {
        if (error[s * r.layers + i] <= a.largest) continue;
        a = (answer){error[s * r.layers + i], s, i, a.rescued};
      }
    }
    if (!(a.largest <= w->tolerance)) rc = CLI_NO;
    if (w->json) {
      if (print_json(&r, options, error, &a, w->tolerance) != CLI_OK) rc = CLI_BAD;
    } else {
      printf("%s: %s %s, row %s, %d layers, %d steps, %d rank%s\n", r.name, r.system, r.method,
             cli_option_text(options, "method").text, r.layers, r.steps, r.ranks,
             r.ranks > 1 ? "s" : "");
      print_table(&r, error);
      if (a.rescued > 0) printf("  %lld steps rescued\n", (long long)a.rescued);
      printf("  largest %.2e (step %d, %s), tolerance %.0e: %s\n", a.largest, a.step,
             r.layer[a.layer].name, w->tolerance, rc == CLI_OK ? "ok" : "exceeded");
    }
  }
  for (int i = 0; i < r.ranks; i++) {
    for (int k = 0; k < r.layers; k++) {
      free(runs[i].grad[k]);
      free(runs[i].bias[k]);
      free(runs[i].weight[k]);
    }
    free(runs[i].error);
    free(runs[i].grad);
    free(runs[i].bias);
    free(runs[i].weight);
  }
  free(runs);
  ng_options_destroy(&options);
  recording_close(&r);
  return rc;
}

/* ---- arguments -------------------------------------------------------------------------------*/

static int take(void *user, const char *name, const char *value) {
  wish *w = user;
  if (strcmp(name, "json") == 0) w->json = true;
  if (strcmp(name, "linalg") == 0) w->linalg = value;
  if (strcmp(name, "tolerance") == 0) return cli_real(name, value, 0, 1e300, &w->tolerance);
  return CLI_OK;
}

static int run(const cli_command *self, int argc, char **argv) {
  wish w = {1e-5, false, NULL};
  cli_args args;
  int rc = cli_parse(self, argc, argv, take, &w, &args);
  if (rc != CLI_OK) return rc < 0 ? CLI_OK : rc;
  if (args.operands == 0) rc = cli_bad("replay: which recording? a folder or a .safetensors file");
  for (int i = 0; i < args.operands; i++) { /* the worst answer counts, all are given */
    const int one = replay(args.operand[i], &w, &args);
    if (one > rc) rc = one;
  }
  cli_args_free(&args);
  return rc;
}

static const cli_option own[] = {
    {"tolerance", "X", "largest error relative to the largest entry recorded (1e-5)"},
    {"linalg", "NAME", "linear algebra: cpu, ref"},
    {"json", NULL, "one JSON object a line and case instead of a table"},
};

const cli_command cli_replay = {
    .name = "replay",
    .usage = "DIR_OR_FILE... [OPTIONS]",
    .summary = "show recordings of published programs to natgrad and compare the results",
    .text = "A recording is a folder with case.json and .npy files, or the same packed into one\n"
            ".safetensors file.  Exits with 1 if an error is above the tolerance.\n",
    .options = own,
    .n_options = 3,
    .library = true,
    .run = run,
};
