/* train.c: `natgrad train`. Settings come from the command line, else from --config, else (--resume) from
 * config.json. */
#include "common/commands.h"
#include "checkpoint.h"
#include "disk.h"
#include "launch.h"
#include "nn/models.h"
#include "train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct request {
  const char *config, *ranks;
  bool quiet, list;
} request;

/* Return the path of --config: a file, or a configuration shipped with the program, with or without ".json". */
static char *get_config_path(const char *given) {
  if (access(given, F_OK) == 0 || strchr(given, '/') != NULL) return cli_copy_text(given);
  char name[256];
  const char *ending = cli_has_ending(given, ".json") ? "" : ".json";
  if (snprintf(name, sizeof name, "configs/%s%s", given, ending) >= (int)sizeof name)
    return cli_copy_text(given);
  char *path = cli_find_shipped(name, name);
  if (access(path, F_OK) == 0) return path;
  free(path);
  return cli_copy_text(given); /* if this file is missing, settings_read_file reports it */
}

/* Apply the file of --config, then the command line. */
static int apply_arguments(settings *s, const request *w, const cli_args *args) {
  char *path = w->config != NULL ? get_config_path(w->config) : NULL;
  int rc = path != NULL ? settings_read_file(s, path) : CLI_OK;
  free(path);
  return rc == CLI_OK ? settings_apply(s, args->settings, args->n_settings) : rc;
}

/* Check the checkpoint of a resumed run, before the data set is opened. */
static int check_checkpoint(const char *dir) {
  int64_t step;
  int lock;
  int rc = disk_lock_folder(dir, "train", &lock);
  if (rc == CLI_OK) rc = checkpoint_find(dir, &step, NULL);
  if (lock >= 0) (void)close(lock);
  return rc;
}

/* Read the settings. A resumed run starts with its config.json; train_run refuses other values on the command line. */
static int read_settings(settings *s, const request *w, const cli_args *args, bool first) {
  settings_init(s);
  int rc = apply_arguments(s, w, args);
  if (rc != CLI_OK || !s->resume || s->out[0] == 0) return rc;
  char path[4096];
  if (snprintf(path, sizeof path, "%s/config.json", s->out) >= (int)sizeof path)
    return cli_fail("--out: this name is too long");
  rc = first ? check_checkpoint(s->out) : CLI_OK;         /* only rank 0 reads the run directory */
  if (rc != CLI_OK || access(path, F_OK) != 0) return rc; /* train_run will report missing files */
  settings_free(s);
  settings_init(s);
  rc = settings_read_file(s, path);
  char was[64];
  (void)snprintf(was, sizeof was, "%s", s->method);
  if (rc == CLI_OK) rc = apply_arguments(s, w, args);
  if (rc == CLI_OK && strcmp(was, s->method) != 0)
    rc = cli_fail("--method: is '%s', but '%s' in %s; a resumed run keeps its settings", s->method,
                  was, path);
  return rc;
}

/* Return the exit code, which is the same on all ranks. */
static int get_exit_code(const train_result *r) {
  if (r->diverged) return CLI_NO;
  if (r->output_failed && r->stopped) return CLI_BAD;
  return r->stopped ? CLI_NO : CLI_OK;
}

/* If the run ended early, report why. */
static void report_end(const settings *s, const train_result *r) {
  /* step of the last checkpoint of this process, otherwise of the checkpoint that was resumed */
  const int64_t saved = r->saved_step < 0 && r->first > 0 ? r->first : r->saved_step;
  const long long steps = (long long)r->steps;
  char then[4096] = "without --out nothing was saved";
  if (s->out[0] != 0)
    (void)snprintf(then, sizeof then, "continue with natgrad train --resume --out %s", s->out);
  if (r->diverged) {
    then[0] = 0;
    if (saved >= 0)
      (void)snprintf(then, sizeof then, "; the checkpoint of step %lld stays", (long long)saved);
    cli_note("diverged after step %lld: %s%s", steps, r->reason, then);
  } else if (r->output_failed) {
    cli_note("standard output could not be written; stopped after step %lld; %s", steps, then);
  } else {
    cli_note("stopped after step %lld; %s", steps, then);
  }
}

static int report_result(const settings *s, const train_result *r, bool quiet) {
  const long long steps = (long long)r->steps;
  if (r->skipped > 0)
    cli_note("%lld of %lld steps were skipped: a value was not finite", (long long)r->skipped,
             steps);
  if (get_exit_code(r) != CLI_OK) {
    report_end(s, r);
    return get_exit_code(r);
  }
  if (quiet) return CLI_OK;
  if (r->averaged > 0)
    printf("mean of the weights after %lld steps: test loss %.5f, test %.2f %%\n",
           (long long)r->averaged, r->average_loss, 100.0 * r->average_accuracy);
  traffic_print(&r->traffic, stdout);
  if (s->out[0] == 0) return CLI_OK;
  if (r->steps == r->first) {
    printf("%s: has all its %lld steps; use a larger --epochs or --steps to continue\n", s->out,
           steps);
  } else {
    printf("%s: log.jsonl, weights in checkpoint-%lld.safetensors\n", s->out, steps);
  }
  return CLI_OK;
}

/* Refuse an option that is only for a kind of layer that the model does not have. */
static int check_layers(const char *model, const char *name) {
  const bool of_norms = strcmp(name, "norm_block") == 0 || strcmp(name, "norm_damping") == 0;
  model_task task;
  bool reconstructs, there = false;
  if (!of_norms && strcmp(name, "positions") != 0) return CLI_OK;
  if (model_default_task(model, &task) != CLI_OK) return CLI_BAD;
  nn *n = nn_create(NULL, 1);
  const int rc = model_build(model, &task, n, &reconstructs);
  for (int i = 0; i < nn_count_layers(n) && !of_norms; i++)
    there = there || nn_get_layer(n, i)->is_conv;
  there = there || (of_norms && nn_count_norms(n) > 0);
  nn_destroy(&n);
  if (rc != CLI_OK || there) return rc;
  return cli_fail("--%s: has no effect, model %s has no %s", name, model,
                  of_norms ? "norm layers" : "convolutions");
}

/* Refuse options of the command line that have no effect in this run. A file of --config and the environment may have
 * such options, because they may serve several methods. */
static int check_idle_options(const settings *s, const cli_args *args) {
  for (int i = 0; i < args->n_settings; i++) {
    const char *name = args->settings[i].name;
    char needs[SETTINGS_NEEDS];
    if (settings_is_idle(s, name, needs, sizeof needs))
      return cli_fail("--%s: has no effect with method %s unless %s", name, s->method, needs);
    if (check_layers(s->model, name) != CLI_OK) return CLI_BAD;
  }
  return CLI_OK;
}

/* ---- ranks as threads --------------------------------------------------------------------------*/

typedef struct rank_runs {
  const settings *s;
  const data_set *d;
  const train_output *output; /* output of rank 0 */
  train_result *result;       /* [ranks] */
} rank_runs;

static int run_rank(void *user, const ng_transport *t) {
  static const train_output nothing = {.label = ""};
  const rank_runs *r = user;
  return train_run_rank(t, r->s, r->d, t->rank == 0 ? r->output : &nothing, &r->result[t->rank]);
}

static int train_on_threads(int32_t n, const settings *s, const data_set *d,
                            const train_output *output, train_result *out) {
  rank_runs r = {s, d, output, cli_alloc((size_t)n, sizeof *r.result)};
  const int rc = launch_run_threads(n, run_rank, &r);
  for (int32_t i = rc == CLI_OK ? 1 : 0; i < n; i++)
    train_result_free(&r.result[i]);
  *out = r.result[0];
  free(r.result);
  return rc;
}

/* ---- the command -------------------------------------------------------------------------------*/

static int train_and_report(const settings *s, bool quiet, const launch *l) {
  data_set d;
  const ng_transport *t = launch_get_transport(l);
  const run_ranks k = ranks_from_transport(t);
  bool opened = false;
  int rc = CLI_OK;
  /* rank 0 first: if all ranks have the same error, rank 0 alone reports it */
  for (int turn = 0; turn < 2 && rc == CLI_OK; turn++) {
    if ((k.rank == 0) == (turn == 0)) {
      rc = settings_check(s); /* check before a large file is read */
      if (rc == CLI_OK) rc = train_open_data(s, &d);
      opened = rc == CLI_OK;
      if (opened && turn == 0) data_print_notes(&d);
    }
    rc = ranks_combine_status(&k, rc);
  }
  if (rc == CLI_OK) {
    train_result r;
    const bool prints = !quiet && k.rank == 0;
    const train_output output = {.bar = prints, .lines = prints, .label = ""};
    train_catch_signals();
    rc = l->threads > 1 ? train_on_threads(l->threads, s, &d, &output, &r)
                        : train_run_rank(t, s, &d, &output, &r);
    if (rc == CLI_OK) {
      rc = k.rank == 0 ? report_result(s, &r, quiet) : get_exit_code(&r);
      train_result_free(&r);
    } else {
      /* after an error, the default signal handlers let the launcher end this process */
      train_restore_signals();
    }
  }
  if (opened) data_close(&d);
  return rc;
}

/* Read the settings on each rank. Rank 0 checks the directory before the other ranks read it. */
static int read_settings_on_ranks(settings *s, const request *w, const cli_args *args,
                                  const run_ranks *k) {
  int rc = k->rank == 0 ? read_settings(s, w, args, true) : CLI_OK;
  rc = ranks_combine_status(k, rc);
  if (rc == CLI_OK && k->rank > 0) rc = read_settings(s, w, args, false);
  if (rc == CLI_OK && k->rank == 0) rc = check_idle_options(s, args);
  return ranks_combine_status(k, rc);
}

static int run_train(void *user, const cli_args *args) {
  const request *w = user;
  settings s;
  launch l;
  for (int i = 0; w->list && i < model_count(); i++)
    printf("%-14s %s\n", model_at(i).name, model_at(i).help);
  if (w->list) return CLI_OK;
  memset(&s, 0, sizeof s);
  int rc = launch_begin(w->ranks, &l);
  const run_ranks k = ranks_from_transport(rc == CLI_OK ? launch_get_transport(&l) : NULL);
  if (rc == CLI_OK) rc = read_settings_on_ranks(&s, w, args, &k);
  if (rc == CLI_OK) rc = train_and_report(&s, w->quiet, &l);
  settings_free(&s);
  launch_end(&l, rc == CLI_BAD);
  return rc;
}

static const request standard = {.ranks = "auto"};
static const cli_option own[] = {
#define ROW(kind, field, name, value, standard, lower, upper, fixed, help)                         \
  {name, value, help, CLI_SETTING, 0, 0, 0},
    SETTINGS_TABLE(ROW)
#undef ROW
        {"config", "FILE.json",
         "an object of settings, {\"model\": \"lenet\", \"damping\": 0.01}, or the name of a "
         "shipped one",
         CLI_TEXT, .field = offsetof(request, config)},
    {"ranks", "WHO",
     "auto | mpi | N: N threads; auto: mpi under an MPI launcher, else one rank (auto)", CLI_TEXT,
     .field = offsetof(request, ranks)},
    {"quiet", NULL, "print neither a progress bar nor lines", CLI_FLAG,
     .field = offsetof(request, quiet)},
    {"models", NULL, "list the networks and do nothing else", CLI_FLAG,
     .field = offsetof(request, list)},
};

const cli_command cli_train = {
    .name = "train",
    .usage = "--data SPEC --model NAME --method NAME [OPTIONS]",
    .summary = "train a network with a method",
    .text =
        "A step: load a batch, forward, backward; then the library preconditions and updates in\n"
        "one pass. The methods sgd and adamw update without curvature. Prints a line per epoch,\n"
        "and a progress bar on a terminal. The command line overrides --config; its options that\n"
        "have no effect in the run (kl_clip without clip = kl) are refused.\n"
        "\n"
        "Data sets\n"
        "  digits                    UCI digits, shipped with the program\n"
        "  mnist:DIR                 idx files, plain or .gz (Fashion-MNIST has the same names)\n"
        "  cifar10:DIR, cifar100:DIR the binary version\n"
        "  npy:FEATURES,LABELS       two .npy files; the last sixth of the rows is the test split\n"
        "  npy:X,Y,XTEST,YTEST       four .npy files. Features: [n, features], or [n, height,\n"
        "                            width, channels], f4, f8 or u1; labels: [n], i4, i8 or u1\n"
        "  synthetic:KEY=VALUE,...   classes, features or image=HxWxC, train, test, noise, seed\n"
        "  images:DIR,KEY=VALUE,...  JPEG and PNG files in DIR/CLASS/, or DIR/train/CLASS/ and\n"
        "                            DIR/val/CLASS/; images:LIST,...: lines PATH LABEL in a file\n"
        "    test=DIR or LIST        the test split\n"
        "    root=DIR                start of relative paths in lists (the folder of the list)\n"
        "    size=N resize=N|none    inputs are windows of N x N (224); images are scaled to the\n"
        "                            shorter side N (8/7 size), with none only enlarged to size\n"
        "    mean=R/G/B std=R/G/B    for pixels from 0 to 1 (ImageNet's); or FILE.npy for pixels\n"
        "                            from 0 to 255: [3], or for mean also [3, height, width]\n"
        "    threads=N queue=N       decoding threads (all), images decoded in advance (128)\n"
        "  text:FILE,context=N       windows of N characters (128), to predict the next character "
        "of\n"
        "                            each; the last tenth is the test split\n"
        "Schedules of lr after --warm-up; E, START, END, PERIOD count epochs; F, LOW multiply lr\n"
        "  constant\n"
        "  step:E1,E2,...[@F]        times F at each of these epochs (0.1)\n"
        "  cosine[:F] linear[:F]     falls to F at the end (0)\n"
        "  polynomial:POWER          (1 - progress)^POWER; POWER@START,END: 1 up to epoch START,\n"
        "                            0 at END, or at the end of the run if that is later\n"
        "  cyclic:PERIOD[@LOW]       rises from LOW (0.1) to 1 and falls again\n"
        "--adjust-momentum: momentum m of the update v <- m v - lr PD, w <- w + v of chainerkfac\n"
        "  ratio                     m = momentum min(1, lr / lr of the step before)\n"
        "  proportional              m = momentum lr / --lr\n"
        "  natgrad's sgd update keeps lr out of v, so its momentum is m lr_before / lr: while lr\n"
        "  falls, ratio equals none.\n"
        "\n"
        "mpirun -np N natgrad train ... splits every batch of --batch samples over N ranks,\n"
        "which average gradients and statistics. Results equal a run on one rank up to\n"
        "rounding; batch norms use the samples of their own rank. Rank 0 prints and writes\n"
        "DIR. Open MPI needs --allow-run-as-root for root, and --oversubscribe for more ranks\n"
        "than cores. At the end a table shows the mean step by station: time, time of the\n"
        "slowest rank, wait in collectives, idle (wait minus the least wait of a rank),\n"
        "bytes, messages. DIR/log.jsonl has these numbers of all ranks.\n"
        "\n"
        "DIR/log.jsonl has one JSON object a line; its \"event\" is step, epoch or end.\n"
        "DIR/checkpoint-STEP.safetensors has the weights under PyTorch's names, and the other\n"
        "state of the run in tensors natgrad.*. It belongs to config.json and log.jsonl: missing,\n"
        "mixed or edited files are refused by name. A resumed run has the settings of\n"
        "DIR/config.json and gives the same bits as an uninterrupted one; only --epochs or\n"
        "--steps may change.\n"
        "\n"
        "SIGINT and SIGTERM write a checkpoint and end the run; a second signal ends it at once;\n"
        "SIGUSR1 writes a checkpoint. Signal any rank or mpirun (Open MPI kills its ranks one\n"
        "second after SIGTERM; OMPI_MCA_odls_base_sigkill_timeout changes that). Exit code 1: a\n"
        "signal stopped the run, or it diverged: the loss or a weight is not finite, or at a\n"
        "checkpoint the mean loss since the last one is above 1000 and above 1000 times the\n"
        "loss of the first step. The last checkpoint stays. Test losses are without label\n"
        "smoothing.\n",
    .options = own,
    .n_options = (int)(sizeof own / sizeof own[0]),
    .library = true,
    .size = sizeof(request),
    .standard = &standard,
    .run = run_train,
};
