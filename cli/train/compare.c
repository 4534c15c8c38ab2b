/* compare.c: `natgrad compare`: train the same network on the same data by several methods and seeds. For a seed,
 * all methods start from the same weights and see the samples in the same order.
 *
 * Seeds are the outer loop and methods the inner one: so an interrupted comparison has comparable runs, and other
 * load on the machine affects all methods alike. */
#include "common/commands.h"
#include "compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the plan --------------------------------------------------------------------------------*/

static int read_plan(compare_plan *p, const cli_args *args) {
  const char *needs = p->validation > 0    ? "validation"
                      : p->grid_epochs > 0 ? "grid-epochs"
                      : p->grid_seeds > 0  ? "grid-seeds"
                                           : NULL;
  int rc = CLI_OK;
  for (int i = 0; i < args->n_settings && rc == CLI_OK; i++)
    if (strcmp(args->settings[i].name, "method") == 0)
      rc = cli_bad("compare: --method: expected --methods with a list");
  for (int i = 0; i < args->n_own && rc == CLI_OK; i++)
    rc = compare_add_grid(p, args->own[i].value);
  if (rc == CLI_OK) rc = settings_apply(&p->base, args->settings, args->n_settings);
  /* Every run has a folder, set by one_run. */
  if (rc == CLI_OK) rc = settings_set(&p->base, NULL, "out", "runs");
  if (rc == CLI_OK && p->grids == 0 && needs != NULL) rc = cli_bad("--%s: needs --grid", needs);
  if (rc == CLI_OK && p->list == NULL) rc = cli_bad("compare: --methods is missing");
  if (p->grid_seeds == 0) p->grid_seeds = 1;
  return rc == CLI_OK ? compare_parse_methods(p, p->list) : rc;
}

/* Return DIR; the default is ./compare-DATA-MODEL, with the name of the data, not its path. */
static char *make_folder_path(const compare_plan *p, const data_set *d) {
  char name[512];
  (void)snprintf(name, sizeof name, "compare-%s-%s", d->name, p->base.model);
  for (char *c = name; *c != 0; c++)
    if (*c == '/') *c = '-';
  return cli_copy(p->out != NULL ? p->out : name);
}

/* Build the network once, to find its metric and whether it fits the data. */
static int find_metric(compare_plan *p, const data_set *d) {
  bool reconstructs = false;
  nn *net = NULL;
  const int rc = train_network(&p->base, d, NULL, &net, &reconstructs);
  nn_destroy(&net);
  const bool tested = d->test.n > 0;
  p->metric =
      reconstructs ? (tested ? TEST_LOSS : TRAIN_LOSS) : (tested ? TEST_ACCURACY : TRAIN_ACCURACY);
  if (rc == CLI_OK && !reconstructs && p->target > 1.0)
    return cli_bad("--target: %g is no accuracy from 0 to 1", p->target);
  return rc;
}

/* Set the default size of the validation split; check the split and the batch. */
static int check_split(compare_plan *p, const data_set *d) {
  if (p->grids > 0 && p->validation == 0) p->validation = d->train.n / 10;
  if (p->grids > 0 && (p->validation < 1 || p->validation >= d->train.n)) {
    return cli_bad("--validation: %lld samples, but %s has %d to train on",
                   (long long)p->validation, d->name, (int)d->train.n);
  }
  const long long left = (long long)d->train.n - (long long)p->validation;
  for (int i = 0; i < p->methods; i++) {
    if (settings_samples(&p->method[i].s) <= left) continue;
    return cli_bad("--batch: %lld samples, but %s has %lld to train on",
                   (long long)settings_samples(&p->method[i].s), d->name, left);
  }
  return CLI_OK;
}

/* Check every method and every point of its grid. */
static int check_methods(const compare_plan *p, const data_set *d) {
  int rc = CLI_OK;
  for (int i = 0; i < p->methods && rc == CLI_OK; i++) {
    rc = train_check(&p->method[i].s, d);
    if (rc == CLI_OK && p->grids > 0) rc = compare_check_points(p, &p->method[i], d);
  }
  return rc;
}

/* ---- runs ------------------------------------------------------------------------------------*/

static int train_one(compare_plan *p, compare_method *m, int k, const data_set *d, int done) {
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

static int train_all(compare_plan *p, const data_set *d) {
  const int all = p->methods * (int)p->seeds;
  int done = 0;
  for (int k = 0; k < p->seeds; k++) {
    for (int i = 0; i < p->methods; i++) {
      const int rc = train_one(p, &p->method[i], k, d, done + 1);
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

static int compare(compare_plan *p) {
  data_set d;
  int rc = data_open(p->base.data, &d);
  if (rc != CLI_OK) return rc;
  data_print_notes(&d);
  p->dir = make_folder_path(p, &d);
  for (int i = 0; i < p->methods; i++)
    p->method[i].run = cli_alloc((size_t)p->seeds, sizeof(train_result));
  rc = find_metric(p, &d);
  if (rc == CLI_OK) rc = check_split(p, &d);
  if (rc == CLI_OK) rc = check_methods(p, &d);
  if (rc == CLI_OK) rc = compare_open(p);
  train_catch_signals();
  if (rc == CLI_OK && p->grids > 0) rc = compare_tune(p);
  if (rc == CLI_OK && p->grids > 0 && train_is_interrupted()) rc = report_stop(p, "while tuning");
  if (rc == CLI_OK) rc = train_all(p, &d);
  if (rc == CLI_OK) rc = compare_write_report(p, &d);
  data_close(&d);
  return rc;
}

static int run(void *user, const cli_args *args) {
  compare_plan *p = user;
  settings_init(&p->base);
  p->notes = open_memstream(&p->note, &p->note_size);
  int rc = p->notes == NULL ? cli_bad("compare: no memory") : read_plan(p, args);
  if (rc == CLI_OK) rc = compare(p);
  compare_plan_free(p);
  return rc;
}

static const compare_plan standard = {.seeds = 3, .target = (double)NAN};
static const cli_option own[] = {
    {"methods", "LIST", "name or name:option=value,option=value; separated by ','", CLI_TEXT,
     .field = offsetof(compare_plan, list)},
    {"seeds", "N", "runs of each method (3)", CLI_WHOLE, offsetof(compare_plan, seeds), 1,
     COMPARE_SEEDS},
    {"grid", "OPTION=A,B,C", "tune every method on this grid first; several grids: their product",
     .kind = CLI_OWN},
    {"grid-epochs", "E", "epochs of a tuning run (as the other runs)", CLI_REAL,
     offsetof(compare_plan, grid_epochs), 1e-6, 1e6},
    {"grid-seeds", "N", "tuning runs of each point, averaged (1)", CLI_WHOLE,
     offsetof(compare_plan, grid_seeds), 1, COMPARE_GRID_SEEDS},
    {"validation", "N", "training samples held out for tuning (one tenth)", CLI_WHOLE,
     offsetof(compare_plan, validation), 1, INT32_MAX},
    {"target", "X", "accuracy 0..1, or loss (reached by the mean of every method)", CLI_REAL,
     offsetof(compare_plan, target), 0, 1e30},
    {"out", "DIR", "a new folder (compare-DATA-MODEL)", CLI_TEXT,
     .field = offsetof(compare_plan, out)},
    {"resume", NULL, "continue in DIR without repeating finished runs", CLI_FLAG,
     .field = offsetof(compare_plan, resume)},
    {"seed", "N", "the first seed (1)", CLI_SETTING, 0, 0, 0},
    {"quiet", NULL, "no bar, no line per run", CLI_FLAG, .field = offsetof(compare_plan, quiet)},
#define ROW(kind, field, name, takes, standard, lower, upper, shapes, help)                        \
  {name, takes, help, CLI_SETTING, 0, 0, 0},
    SETTINGS_SHARED(ROW)
#undef ROW
};

const cli_command cli_compare = {
    .name = "compare",
    .usage = "--methods LIST [--grid OPTION=A,B,C]... [OPTIONS]",
    .summary = "train a network by several methods and seeds; table and curves",
    .text =
        "For each seed all methods start from the same weights and see the samples in the same\n"
        "order. A method may have its own settings, natgrad:lr=0.1,damping=0.01; an item\n"
        "without '=' starts the next method. A shared setting without effect on a method is\n"
        "dropped for this method, with a note.\n"
        "\n"
        "--grid first trains every method at every point of the grid, on the training data\n"
        "without a validation split and with the seed before the first one. It takes the point\n"
        "with the best validation accuracy (autoencoders: lowest loss). --grid-seeds N\n"
        "averages N seeds, from SEED + 1001 on, each with its own split; this reduces the\n"
        "noise of the choice. Then every seed is trained on all training data and tested on\n"
        "the test split.\n"
        "\n"
        "The second table has differences between each method and the first one at the same\n"
        "seed: mean and 95 % interval of the mean (Student's t).\n"
        "\n"
        "DIR gets table.txt, curves.csv, plot.gp, and by gnuplot curves.svg and curves.png.\n"
        "DIR/runs/METHOD-seedN/ and DIR/tuning/METHOD-POINT/ have the config.json\n"
        "and log.jsonl of each run. --resume continues after a stop or a kill; methods and\n"
        "seeds may be added or left out, other settings must be the same. Runs of methods left\n"
        "out stay on disk. Data sets and schedules are as in `natgrad help train`. Exit code\n"
        "1: stopped by a signal, without a table.\n",
    .options = own,
    .n_options = (int)(sizeof own / sizeof own[0]),
    .library = true,
    .size = sizeof(compare_plan),
    .standard = &standard,
    .run = run,
};
