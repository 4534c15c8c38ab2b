/* replay.c: `natgrad replay`: show a recorded run of a published program to natgrad and compare.
 *
 * In: recordings.  The row is picked by the system and method that the recording names, every other
 * entry of its configuration goes through the published names of that row; replay_run.c plays it.
 * Out: a table of errors and the largest of them.  A recording of N ranks runs on N threads, and every
 * rank is compared: the published result is the same on all.
 */
#include "commands.h"
#include "replay.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct wish {
  double tolerance; /* negative: by the method, see tolerance_of */
  bool json;
  const char *linalg;
} wish;

/* ---- configuration ---------------------------------------------------------------------------*/

/* A value of the configuration as text; a list of texts (regular expressions of skip_layers) is joined by '|'.
 * The caller frees `joined`, which may be NULL. */
static const char *value_text(const ngio_value *v, char *text, size_t size, char **joined) {
  *joined = NULL;
  if (ngio_is(v, NGIO_STRING)) return ngio_text_of(v);
  if (ngio_is_flag(v)) return ngio_is(v, NGIO_TRUE) ? "true" : "false";
  if (ngio_is(v, NGIO_NULL)) return "none";
  if (ngio_is(v, NGIO_INTEGER)) {
    (void)snprintf(text, size, "%lld", (long long)ngio_integer_of(v));
    return text;
  }
  if (ngio_is(v, NGIO_REAL)) {
    (void)snprintf(text, size, "%.17g", ngio_number_of(v));
    return text;
  }
  if (!ngio_is(v, NGIO_ARRAY)) return NULL;
  size_t room = 1;
  for (size_t i = 0; i < ngio_count(v); i++) {
    const char *s = ngio_text_of(ngio_at(v, i));
    if (s == NULL) return NULL;
    room += strlen(s) + 1;
  }
  char *all = cli_take(room, 1);
  for (size_t i = 0, at = 0; i < ngio_count(v); i++) {
    at += (size_t)snprintf(all + at, room - at, "%s%s", i > 0 ? "|" : "",
                           ngio_text_of(ngio_at(v, i)));
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
  for (const ngio_value *value = ngio_first(r->config); value != NULL;
       value = ngio_next(r->config, value)) {
    const char *key = value->key;
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
  if (ngio_is(ngio_get(r->root, "ema_leak"), NGIO_FALSE) &&
      ng_options_set(o, "damping_leak", "0", message, sizeof message) < 0) {
    return cli_bad("%s: case.json: %s", path, message);
  }
  return CLI_OK;
}

static bool low_rank(const ng_options *o) {
  return strcmp(cli_option_text(o, "window_store").text, "lowrank") == 0;
}

static bool keeps(const ng_options *o) {
  return strcmp(cli_option_text(o, "window_store").text, "dense") != 0;
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
  if (rc == CLI_OK && ng_options_check(*o, message, sizeof message) < 0)
    rc = cli_bad("%s: %s", path, message);
  if (rc == CLI_OK && low_rank(*o))
    rc = replay_check_drawn(r, path, (int64_t)cli_option_real(*o, "window_rank"));
  return rc;
}

/* ---- the answer ------------------------------------------------------------------------------*/

typedef struct answer {
  double largest, tolerance;
  int step, layer;
  int64_t rescued;
  const char *what; /* of the second: what was compared after each step; NULL: nothing */
} answer;

static bool within(const answer *a) { return a->largest <= a->tolerance; } /* NaN is not */

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

static void put_largest(ngio_out *o, const char *key, const answer *a) {
  ngio_put_real(o, key, a->what != NULL ? a->largest : (double)NAN);
}

static int print_json(const recording *r, const ng_options *o, const double *error, const answer *a,
                      const answer u[2]) {
  ngio_out line = {.digits = 9};
  ngio_open(&line, NULL, '{');
  ngio_put_text(&line, "case", r->name);
  ngio_put_text(&line, "system", r->system);
  ngio_put_text(&line, "variant", r->method);
  ngio_put_text(&line, "method", cli_option_text(o, "method").text);
  ngio_put_integer(&line, "ranks", r->ranks);
  ngio_put_integer(&line, "steps", r->steps);
  ngio_put_real(&line, "largest", a->largest);
  put_largest(&line, "updated", &u[r->updates ? 1 : 0]);
  put_largest(&line, "error_feedback", &u[r->updates ? 0 : 1]);
  ngio_put_real(&line, "tolerance", a->tolerance);
  ngio_put_integer(&line, "rescued", a->rescued);
  ngio_put_flag(&line, "ok", within(a) && within(&u[0]) && within(&u[1]));
  ngio_open(&line, "layers", '[');
  for (int i = 0; i < r->layers; i++)
    ngio_put_text(&line, NULL, r->layer[i].name);
  ngio_shut(&line, ']');
  ngio_open(&line, "errors", '[');
  for (int s = 0; s < r->steps; s++) {
    ngio_open(&line, NULL, '[');
    for (int i = 0; i < r->layers; i++)
      ngio_put_real(&line, NULL, error[s * r->layers + i]);
    ngio_shut(&line, ']');
  }
  ngio_shut(&line, ']');
  ngio_shut(&line, '}');
  return cli_json_print(r->name, &line);
}

/* The worst rank of every cell, in the first rank's; and the worst of all. */
static answer worst_of(const recording *r, double *const *cells) {
  answer a = {0};
  for (int s = 0; s < r->steps; s++) {
    for (int i = 0; i < r->layers; i++) {
      double *e = &cells[0][s * r->layers + i];
      for (int k = 1; k < r->ranks; k++) {
        if (cells[k][s * r->layers + i] > *e) *e = cells[k][s * r->layers + i];
      }
      if (*e > a.largest) a = (answer){.largest = *e, .step = s, .layer = i};
    }
  }
  return a;
}

static int fused_options(const ng_options *o, const char *path, ng_options **out) {
  char message[512] = "";
  if (ng_options_copy(o, out) < 0) return cli_bad("%s: no memory", path);
  if (ng_options_set(*out, "update", "sgd", message, sizeof message) < 0)
    return cli_bad("%s: %s", path, message);
  return CLI_OK;
}

/* a: of directions; u: of two other things, where there are any. */
static int tell(const recording *r, const wish *w, const ng_options *o, const double *error,
                const answer *a, const answer u[2], int rc) {
  if (w->json) {
    return print_json(r, o, error, a, u) == CLI_OK ? rc : CLI_BAD;
  }
  printf("%s: %s %s, row %s, %d layers, %d steps, %d rank%s\n", r->name, r->system, r->method,
         cli_option_text(o, "method").text, r->layers, r->steps, r->ranks, r->ranks > 1 ? "s" : "");
  print_table(r, error);
  if (a->rescued > 0) printf("  %lld steps rescued\n", (long long)a->rescued);
  for (int i = 0; i < 2; i++, u++) {
    if (u->what == NULL) continue;
    printf("  %s after each step: largest %.2e (step %d, %s)", u->what, u->largest, u->step,
           r->layer[u->layer].name);
    if (u->tolerance != a->tolerance) printf(", tolerance %.0e", u->tolerance);
    printf("\n");
  }
  printf("  largest %.2e (step %d, %s), tolerance %.0e: %s\n", a->largest, a->step,
         r->layer[a->layer].name, w->tolerance, rc == CLI_OK ? "ok" : "exceeded");
  return rc;
}

/* The rounding of the published programs themselves, in float32: docs/algorithms.md, windows. */
static double tolerance_of(const ng_options *o) {
  const char *method = cli_option_text(o, "method").text;
  static const char *const windows[] = {"mfac", "efcp", "ggt", "sparse-ggt"};
  if (low_rank(o)) return 1e-3;
  for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
    if (strcmp(method, windows[i]) == 0) return 2e-4;
  }
  return 1e-5;
}

static int replay(const char *path, const wish *wished, const cli_args *args) {
  wish mine = *wished, *w = &mine;
  recording r;
  int rc = recording_open(path, &r);
  if (rc != CLI_OK) return rc;
  ng_options *options = NULL, *fused = NULL;
  replay_job j = {.r = &r, .linalg = w->linalg};
  replay_rank *ranks = replay_ranks(&j);
  rc = configure(&r, path, args, &options, &j.lr);
  if (rc == CLI_OK && r.updates) rc = fused_options(options, path, &fused);
  j.options = options;
  j.fused = fused;
  if (rc == CLI_OK && w->tolerance < 0) w->tolerance = tolerance_of(options);
  j.drawn = rc == CLI_OK && low_rank(options);
  if (rc == CLI_OK) rc = replay_check_weights(&r, path, &j.moved);
  if (rc == CLI_OK) rc = replay_check_kept(&r, path, &j.kept);
  j.kept = rc == CLI_OK && j.kept && keeps(options);
  if (rc == CLI_OK) rc = replay_run(&j, ranks, false);
  if (rc == CLI_OK && r.updates) rc = replay_run(&j, ranks, true);
  if (rc == CLI_OK) {
    double **error = cli_take((size_t)r.ranks, sizeof *error);
    double **updated = cli_take((size_t)r.ranks, sizeof *updated);
    double **moved = cli_take((size_t)r.ranks, sizeof *moved);
    for (int i = 0; i < r.ranks; i++) {
      error[i] = ranks[i].error;
      updated[i] = ranks[i].updated;
      moved[i] = ranks[i].moved;
    }
    answer a = worst_of(&r, error);
    answer u = worst_of(&r, updated), v = worst_of(&r, moved);
    a.tolerance = u.tolerance = v.tolerance = w->tolerance;
    if (j.moved) v.what = "weights";
    if (j.kept && j.drawn) u.tolerance *= 2; /* of low rank, the rounding there is twice as large */
    if (j.kept) u.what = "error feedback";
    if (r.updates) u.what = r.momentum != 0 ? "weights and momentum" : "weights";
    a.rescued = ranks[0].rescued; /* a step's status is the same on all */
    if (!within(&a) || !within(&u) || !within(&v)) rc = CLI_NO;
    rc = tell(&r, w, options, error[0], &a, (const answer[]){v, u}, rc);
    free(error);
    free(updated);
    free(moved);
  }
  replay_ranks_free(ranks, r.ranks, r.layers);
  ng_options_destroy(&fused);
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
  wish w = {-1, false, NULL};
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
    {"tolerance", "X",
     "largest error relative to the largest entry recorded (1e-5; windows 2e-4, of low "
     "rank 1e-3)"},
    {"linalg", "NAME", "linear algebra: cpu, ref"},
    {"json", NULL, "one JSON object a line and case instead of a table"},
};

const cli_command cli_replay = {
    .name = "replay",
    .usage = "DIR_OR_FILE... [OPTIONS]",
    .summary = "show recordings of published programs to natgrad and compare the results",
    .text =
        "A recording is a folder with case.json and .npy files, or the same packed into one\n"
        ".safetensors file.  Where it has the weights of layers after each step, a second run "
        "updates\n"
        "them and compares them and their momentum; of a window's it compares where its "
        "directions\n"
        "take the weights, and, where it has the error feedback,\n"
        "that is compared (of low rank to twice the tolerance).  Exits with 1 if an error is above "
        "it.\n",
    .options = own,
    .n_options = 3,
    .library = true,
    .run = run,
};
