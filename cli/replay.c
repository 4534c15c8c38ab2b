/* replay.c: `natgrad replay`: run natgrad on the inputs of a recorded run of a published program, and compare results.
 *
 * The recording names a system and a method, which together select a method of the library. The published names of this
 * method translate all other entries of the configuration. replay_run.c runs the steps. For a recording of N ranks, N
 * threads run as ranks, and the result of each rank is compared with the one recorded result. */
#include "common/commands.h"
#include "replay.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct request {
  double tolerance; /* tolerance of the command line; negative: use the recording's tolerances */
  const char *linalg;
} request;

/* ---- configuration ---------------------------------------------------------------------------*/

/* Append a value of the configuration as text; the entries of a list (regular expressions of skip_layers; if `numbers`,
 * also numbers, such as betas) are joined by '|', numbers by ','. Return false for another kind of list, or an object. */
static bool append_text(ngio_out *to, const ngio_value *v, bool numbers) {
  char number[32];
  const char *one = ngio_is(v, NGIO_NULL) ? "none" : cli_json_text(v, number, sizeof number);
  if (ngio_is(v, NGIO_OBJECT)) return false;
  if (one != NULL) ngio_out_put(to, one);
  for (size_t i = 0; i < ngio_count(v); i++) {
    const ngio_value *entry = ngio_at(v, i);
    const char *text = ngio_text_of(entry);
    if (numbers && ngio_is_number(entry)) text = cli_json_text(entry, number, sizeof number);
    if (text == NULL) return false;
    if (i > 0) ngio_out_put(to, ngio_is_number(entry) ? "," : "|");
    ngio_out_put(to, text);
  }
  return true;
}

/* Set the options and the learning rate from the recording's configuration. */
static int set_recorded_options(const recording *r, const char *path, ng_options *o, double *lr) {
  char message[512] = "";
  if (ng_options_set_system(o, r->system, r->method, message, sizeof message) < 0)
    return cli_fail("%s: case.json: %s", path, message);
  *lr = 0.1; /* default if the configuration has no entry lr */
  for (const ngio_value *value = ngio_first(r->config); value != NULL;
       value = ngio_next(r->config, value)) {
    const char *key = value->key;
    if (strcmp(key, "system") == 0 || strcmp(key, "method") == 0) continue;
    /* replay_run.c reads the key "diagonalize" */
    if (strcmp(key, "diagonalize") == 0) continue;
    /* "class" of such a recording is the name of the optimizer, not an option */
    if (r->has_parameters && strcmp(key, "class") == 0) continue;
    ngio_out text = {0};
    const bool known = append_text(&text, value, r->has_states);
    ngio_out_bytes(&text, "", 1); /* the terminating zero */
    const ng_status st =
        known ? ng_options_set_published(o, key, text.text, lr, message, sizeof message) : NG_OK;
    ngio_out_free(&text);
    if (!known)
      return cli_fail(
          "%s: case.json: config: %s: expected a text, a number, a flag, null or a list of texts",
          path, key);
    if (st < 0) return cli_fail("%s: case.json: config: %s", path, message);
  }
  /* ema_leak = false: the program subtracted its damping from the averages again, so no damping leaked into them. */
  if (ngio_is(ngio_get(r->root, "ema_leak"), NGIO_FALSE) &&
      ng_options_set(o, "damping_leak", "0", message, sizeof message) < 0)
    return cli_fail("%s: case.json: %s", path, message);
  return CLI_OK;
}

static bool is_low_rank(const ng_options *o) { return cli_option_is(o, "window_store", "lowrank"); }

/* Set the options of the recording, then the options of the command line. If --method is given, use the defaults of
 * that method instead of the options of the recording. */
static int set_run_options(const recording *r, const char *path, const cli_args *args,
                           ng_options **o, double *lr) {
  char message[512] = "";
  bool row = false;
  for (int i = 0; i < args->n_settings; i++)
    row = row || strcmp(args->settings[i].name, "method") == 0;
  if (ng_options_create(NULL, message, sizeof message, o) < 0) return cli_fail("%s", message);
  int rc = set_recorded_options(r, path, *o, lr);
  if (rc == CLI_OK && row) {
    ng_options_destroy(o);
    if (ng_options_create(NULL, message, sizeof message, o) < 0) return cli_fail("%s", message);
  }
  if (rc == CLI_OK && r->has_states &&
      ng_options_set(*o, "missing", "keep", message, sizeof message) < 0)
    rc = cli_fail("%s: missing = keep: %s", path, message);
  if (rc == CLI_OK) rc = cli_set_options(args, *o);
  if (rc == CLI_OK && ng_options_check(*o, message, sizeof message) < 0)
    rc = cli_fail("%s: %s", path, message);
  if (rc == CLI_OK && is_low_rank(*o))
    rc = replay_check_start(r, path, (int64_t)cli_get_option_real(*o, "window_rank"));
  return rc;
}

/* ---- the result ------------------------------------------------------------------------------*/

/* The largest error of one kind (DIRECTION_ERRORS, STATE_ERRORS), its step and its layer. */
typedef struct error_summary {
  const char *what; /* name of the compared arrays; NULL: not compared */
  double largest, tolerance;
  int step, layer;
} error_summary;

static void print_error_table(const recording *r, const double *error) {
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

static void print_report(const replay_job *j, const double *error,
                         const error_summary a[ERROR_KINDS], int64_t rescued, int rc) {
  const recording *r = j->r;
  printf("%s: %s %s, row %s, %d layers, %d steps, %d rank%s\n", r->name, r->system, r->method,
         cli_get_option_text(j->options, "method").text, r->layers, r->steps, r->ranks,
         r->ranks > 1 ? "s" : "");
  print_error_table(r, error);
  if (rescued > 0) printf("  %lld steps rescued\n", (long long)rescued);
  for (int k = ERROR_KINDS - 1; k >= 0; k--) {
    const char *layer = r->layer[a[k].layer].name;
    if (k == DIRECTION_ERRORS) {
      printf("  largest %.2e (step %d, %s), tolerance %.0e: %s\n", a[k].largest, a[k].step, layer,
             a[k].tolerance, rc == CLI_OK ? "ok" : "exceeded");
    } else if (a[k].what != NULL) {
      printf("  %s after each step: largest %.2e (step %d, %s)", a[k].what, a[k].largest, a[k].step,
             layer);
      if (a[k].tolerance != a[DIRECTION_ERRORS].tolerance)
        printf(", tolerance %.0e", a[k].tolerance);
      printf("\n");
    }
  }
}

/* Set each error of rank 0 to the largest over all ranks; return the largest error of all steps and layers. */
static error_summary merge_rank_errors(const recording *r, const replay_rank *ranks, int which) {
  error_summary a = {.what = NULL};
  for (int k = 0; k < r->steps * r->layers; k++) {
    double *e = &ranks[0].errors[which][k];
    for (int i = 1; i < r->ranks; i++)
      if (ranks[i].errors[which][k] > *e) *e = ranks[i].errors[which][k];
    if (*e > a.largest)
      a = (error_summary){.largest = *e, .step = k / r->layers, .layer = k % r->layers};
  }
  return a;
}

static int check_errors(const replay_job *j, const replay_rank *ranks, double given) {
  const recording *r = j->r;
  error_summary a[ERROR_KINDS];
  int rc = CLI_OK;
  for (int k = 0; k < ERROR_KINDS; k++) {
    a[k] = merge_rank_errors(r, ranks, k);
    a[k].tolerance = given >= 0 ? given : k == STATE_ERRORS ? r->state_tolerance : r->tolerance;
  }
  if (j->feedback) a[STATE_ERRORS].what = "error feedback";
  if (r->has_states) a[STATE_ERRORS].what = "weights and state";
  if (r->has_updates) a[STATE_ERRORS].what = r->momentum != 0 ? "weights and momentum" : "weights";
  for (int k = 0; k < ERROR_KINDS; k++) {
    if (!(a[k].largest <= a[k].tolerance)) rc = CLI_NO; /* written so that NaN also fails */
  }
  /* all ranks have the same status, so rank 0 stands for all */
  print_report(j, ranks[0].errors[DIRECTION_ERRORS], a, ranks[0].rescued, rc);
  if (given < 0 && r->tolerance_reason[0] != 0) printf("  tolerance: %s\n", r->tolerance_reason);
  return rc;
}

static int replay_file(const char *path, const request *w, const cli_args *args) {
  recording r;
  int rc = recording_open(path, &r);
  if (rc != CLI_OK) return rc;
  char message[512] = "no memory";
  ng_options *options = NULL, *fused = NULL;
  replay_job j = {.r = &r, .path = path, .linalg = w->linalg};
  replay_rank *ranks = replay_ranks_create(&j);
  rc = set_run_options(&r, path, args, &options, &j.lr);
  if (rc == CLI_OK && (r.has_updates || r.has_states) &&
      (ng_options_copy(options, &fused) < 0 ||
       ng_options_set(fused, "update", "sgd", message, sizeof message) < 0))
    rc = cli_fail("%s: update = sgd: %s", path, message);
  j.options = options;
  j.fused = fused;
  j.low_rank = rc == CLI_OK && is_low_rank(options);
  if (rc == CLI_OK) rc = replay_check_feedback(&r, path, &j.feedback);
  j.feedback = rc == CLI_OK && j.feedback && !cli_option_is(options, "window_store", "dense");
  if (rc == CLI_OK) rc = replay_run(&j, ranks, false);
  if (rc == CLI_OK && fused != NULL) rc = replay_run(&j, ranks, true);
  if (rc == CLI_OK) rc = check_errors(&j, ranks, w->tolerance);
  replay_ranks_free(ranks, r.ranks);
  ng_options_destroy(&fused);
  ng_options_destroy(&options);
  recording_close(&r);
  return rc;
}

/* ---- arguments -------------------------------------------------------------------------------*/

/* Replay all recordings; return the largest exit code. */
static int replay_all_files(void *user, const cli_args *args) {
  int rc = CLI_OK, skipped = 0;
  if (args->operands == 0)
    return cli_fail("replay: no file given, expected recordings (.safetensors)");
  for (int i = 0; i < args->operands; i++) {
    const int one = replay_file(args->operand[i], user, args);
    if (one > rc) rc = one;
    if (one < 0) skipped++;
  }
  if (rc == CLI_OK && skipped == args->operands) rc = CLI_BAD;
  return rc;
}

static const request standard = {-1, NULL};
static const cli_option own[] = {
    {"tolerance", "X",
     "largest accepted error, divided by the largest recorded magnitude (the recording's, or 1e-5)",
     CLI_REAL, offsetof(request, tolerance), 0, 1e300},
    {"linalg", "NAME", "linear algebra of the library: cpu or ref (cpu)", CLI_TEXT,
     .field = offsetof(request, linalg)},
};

const cli_command cli_replay = {
    .name = "replay",
    .usage = "FILE... [OPTIONS]",
    .summary = "replay recordings of published programs and compare the results",
    .text =
        "A recording is a .safetensors file with the inputs and results of each step.  A first\n"
        "run compares preconditioned gradients and, for window methods, the error feedback.  If\n"
        "the recording has the weights after each step, a second run updates the weights, and\n"
        "compares weights and momentum.\n\n"
        "Exit code 0: all errors are within the tolerance; 1: an error exceeds the tolerance; 2:\n"
        "bad input.  Files that are not recordings are reported and skipped; if no recording\n"
        "remains, the exit code is 2.\n",
    .options = own,
    .n_options = 2,
    .library = true,
    .operands = -1,
    .size = sizeof(request),
    .standard = &standard,
    .run = replay_all_files,
};
