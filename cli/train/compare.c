/* compare.c: `natgrad compare`: train one network on one data set by several methods and seeds. For a seed, all methods
 * start from the same weights and get the samples in the same order.
 *
 * The outer loop is over seeds, the inner loop over methods. So after an interruption the methods have about equally
 * many runs, and other load on the machine affects all methods alike. */
#include "common/commands.h"
#include "compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the plan --------------------------------------------------------------------------------*/

static int parse_plan(compare_plan *p, const cli_args *args) {
  const char *needs = p->validation > 0    ? "validation"
                      : p->grid_epochs > 0 ? "grid-epochs"
                      : p->grid_seeds > 0  ? "grid-seeds"
                                           : NULL;
  int rc = CLI_OK;
  for (int i = 0; i < args->n_settings && rc == CLI_OK; i++)
    if (strcmp(args->settings[i].name, "method") == 0)
      rc = cli_fail("compare: --method: expected --methods with a list");
  for (int i = 0; i < args->n_own && rc == CLI_OK; i++)
    rc = compare_add_grid(p, args->own[i].value);
  if (rc == CLI_OK) rc = settings_apply(&p->base, args->settings, args->n_settings);
  /* Each run has a folder. one_run sets the path; here "runs" only stands for any path. */
  if (rc == CLI_OK) rc = settings_set_or_report(&p->base, NULL, "out", "runs");
  if (rc == CLI_OK && p->grids == 0 && needs != NULL) rc = cli_fail("--%s: needs --grid", needs);
  if (rc == CLI_OK && p->list == NULL) rc = cli_fail("compare: --methods is missing");
  if (p->grid_seeds == 0) p->grid_seeds = 1;
  return rc == CLI_OK ? compare_parse_methods(p, p->list) : rc;
}

/* Return the folder of the comparison: by default ./compare-DATA-MODEL, with the name of the data set, not its path. */
static char *make_folder_path(const compare_plan *p, const data_set *d) {
  char name[512];
  (void)snprintf(name, sizeof name, "compare-%s-%s", d->name, p->base.model);
  for (char *c = name; *c != 0; c++)
    if (*c == '/') *c = '-';
  return cli_copy_text(p->out != NULL ? p->out : name);
}

/* Build the network once, to check that it fits the data, and to choose the metric. */
static int check_network_and_metric(compare_plan *p, const data_set *d) {
  bool reconstructs = false;
  nn *net = NULL;
  const int rc = train_build_network(&p->base, d, NULL, &net, &reconstructs);
  nn_destroy(&net);
  const bool tested = d->test.n > 0;
  p->metric =
      reconstructs ? (tested ? TEST_LOSS : TRAIN_LOSS) : (tested ? TEST_ACCURACY : TRAIN_ACCURACY);
  if (rc == CLI_OK && !reconstructs && p->target > 1.0)
    return cli_fail("--target: %g, expected an accuracy from 0 to 1", p->target);
  return rc;
}

/* Set the default size of the validation split. Check this size and the batch. */
static int check_validation_and_batch(compare_plan *p, const data_set *d) {
  if (p->grids > 0 && p->validation == 0) p->validation = d->train.n / 10;
  if (p->grids > 0 && (p->validation < 1 || p->validation >= d->train.n))
    return cli_fail("--validation: %lld samples, but %s has %d to train on",
                    (long long)p->validation, d->name, (int)d->train.n);
  const long long left = (long long)d->train.n - (long long)p->validation;
  for (int i = 0; i < p->methods; i++) {
    if (settings_count_samples(&p->method[i].s) <= left) continue;
    return cli_fail("--batch: %lld samples, but %s has %lld to train on",
                    (long long)settings_count_samples(&p->method[i].s), d->name, left);
  }
  return CLI_OK;
}

/* Check each method at each point of its grid. */
static int check_methods(const compare_plan *p, const data_set *d) {
  int rc = CLI_OK;
  for (int i = 0; i < p->methods && rc == CLI_OK; i++) {
    rc = train_check_settings(&p->method[i].s, d);
    if (rc == CLI_OK && p->grids > 0) rc = compare_check_points(p, &p->method[i], d);
  }
  return rc;
}

/* ---- runs ------------------------------------------------------------------------------------*/

static int train_one_run(compare_plan *p, compare_method *m, int k, const data_set *d, int done) {
  char label[128], place[48];
  settings s;
  const long long seed = (long long)p->base.seed + k;
  settings_copy(&s, &m->s);
  s.seed = seed;
  free(s.out);
  s.out = compare_make_path(p, "runs/%s-seed%lld", m->label, seed);
  (void)snprintf(label, sizeof label, "%s seed %lld", m->label, seed);
  (void)snprintf(place, sizeof place, "%d/%d", done, p->methods * (int)p->seeds);
  const int rc = compare_run(p, &s, d, place, label, &m->run[k]);
  settings_free(&s);
  return rc;
}

static int report_stop(const compare_plan *p, const char *what) {
  cli_note("stopped %s; continue with the same command and --out %s --resume", what, p->dir);
  return CLI_NO;
}

static int train_all_runs(compare_plan *p, const data_set *d) {
  const int all = p->methods * (int)p->seeds;
  int done = 0;
  for (int k = 0; k < p->seeds; k++) {
    for (int i = 0; i < p->methods; i++) {
      const int rc = train_one_run(p, &p->method[i], k, d, done + 1);
      if (rc != CLI_OK) return rc;
      done += !p->method[i].run[k].stopped;
      if (train_is_interrupted() && done < all) {
        char what[64];
        (void)snprintf(what, sizeof what, "after %d of %d runs", done, all);
        return report_stop(p, what);
      }
    }
  }
  return CLI_OK;
}

static int compare_methods(compare_plan *p) {
  data_set d;
  int rc = data_open(p->base.data, &d);
  if (rc != CLI_OK) return rc;
  data_print_notes(&d);
  p->dir = make_folder_path(p, &d);
  for (int i = 0; i < p->methods; i++)
    p->method[i].run = cli_alloc((size_t)p->seeds, sizeof(train_result));
  rc = check_network_and_metric(p, &d);
  if (rc == CLI_OK) rc = check_validation_and_batch(p, &d);
  if (rc == CLI_OK) rc = check_methods(p, &d);
  if (rc == CLI_OK) rc = compare_open_folder(p);
  train_catch_signals();
  if (rc == CLI_OK && p->grids > 0) rc = compare_tune(p);
  if (rc == CLI_OK && p->grids > 0 && train_is_interrupted()) rc = report_stop(p, "while tuning");
  if (rc == CLI_OK) rc = train_all_runs(p, &d);
  if (rc == CLI_OK) rc = compare_write_report(p, &d);
  data_close(&d);
  return rc;
}

static int run_compare(void *user, const cli_args *args) {
  compare_plan *p = user;
  settings_init(&p->base);
  p->notes = open_memstream(&p->note, &p->note_size);
  int rc = p->notes == NULL ? cli_fail("compare: no memory") : parse_plan(p, args);
  if (rc == CLI_OK) rc = compare_methods(p);
  compare_plan_free(p);
  return rc;
}

static const compare_plan standard = {.seeds = 3, .target = (double)NAN};
static const cli_option own[] = {
    {"methods", "LIST", "NAME or NAME:OPTION=VALUE,OPTION=VALUE of each method, separated by ','",
     CLI_TEXT, .field = offsetof(compare_plan, list)},
    {"seeds", "N", "runs of each method (3)", CLI_WHOLE, offsetof(compare_plan, seeds), 1,
     COMPARE_SEEDS},
    {"grid", "OPTION=A,B,C",
     "first tune every method on this grid; several grids: all combinations", .kind = CLI_OWN},
    {"grid-epochs", "E", "epochs of a tuning run (as the other runs)", CLI_REAL,
     offsetof(compare_plan, grid_epochs), 1e-6, 1e6},
    {"grid-seeds", "N", "tuning runs of each point, whose scores are averaged (1)", CLI_WHOLE,
     offsetof(compare_plan, grid_seeds), 1, COMPARE_GRID_SEEDS},
    {"validation", "N", "training samples held out for tuning (one tenth)", CLI_WHOLE,
     offsetof(compare_plan, validation), 1, INT32_MAX},
    {"target", "X",
     "accuracy 0..1, or loss, to reach (the best that the mean of every method reaches)", CLI_REAL,
     offsetof(compare_plan, target), 0, 1e30},
    {"out", "DIR", "a new folder for results (compare-DATA-MODEL)", CLI_TEXT,
     .field = offsetof(compare_plan, out)},
    {"resume", NULL, "continue in DIR without repeating finished runs", CLI_FLAG,
     .field = offsetof(compare_plan, resume)},
    {"seed", "N", "the first seed (1)", CLI_SETTING, 0, 0, 0},
    {"quiet", NULL, "print neither a progress bar nor a line per run", CLI_FLAG,
     .field = offsetof(compare_plan, quiet)},
#define ROW(kind, field, name, value, standard, lower, upper, fixed, help)                         \
  {name, value, help, CLI_SETTING, 0, 0, 0},
    SETTINGS_SHARED(ROW)
#undef ROW
};

const cli_command cli_compare = {
    .name = "compare",
    .usage = "--methods LIST [--grid OPTION=A,B,C]... [OPTIONS]",
    .summary = "train a network by several methods and seeds; print a table, draw curves",
    .text =
        "For each seed, all methods start from the same weights and get the samples in the same\n"
        "order. A method may have its own settings, as in natgrad:lr=0.1,damping=0.01,eva: here\n"
        "eva is the next method. A shared setting that has no effect on a method is dropped for\n"
        "this method, with a note.\n"
        "\n"
        "--grid first tunes: it trains every method at every point of the grid, with the seed\n"
        "before the first one, on the training samples outside a validation split. The point\n"
        "with the best validation accuracy (autoencoders: lowest loss) is chosen. --grid-seeds N\n"
        "averages N seeds (the others begin at SEED + 1001), each with its own split. Then every\n"
        "seed is trained on all training samples and tested on the test split.\n"
        "\n"
        "A second table has the differences between each method and the first one at the same\n"
        "seed: their mean and its 95 % confidence interval (Student's t).\n"
        "\n"
        "DIR gets table.txt, curves.csv, plot.gp and, from gnuplot, curves.svg and curves.png.\n"
        "DIR/runs/METHOD-seedN/ and DIR/tuning/METHOD-POINT/ have config.json and log.jsonl of\n"
        "each run. --resume continues after a stop or a kill; methods and seeds may be added or\n"
        "omitted, other settings must be the same. Runs of omitted methods stay on disk. Data\n"
        "sets and schedules are as in `natgrad help train`. Exit code 1: stopped by a signal,\n"
        "without a table.\n",
    .options = own,
    .n_options = (int)(sizeof own / sizeof own[0]),
    .library = true,
    .size = sizeof(compare_plan),
    .standard = &standard,
    .run = run_compare,
};
