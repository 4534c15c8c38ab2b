/* prune.c: `natgrad prune`: prune the weights of a trained network (pruning.h).
 *
 * In: the directory of a run, or a file that this command wrote. Out: a file of weights; loss and accuracy. */
#include "common/commands.h"
#include "checkpoint.h"
#include "disk.h"
#include "pruning.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct request {
  const char *data, *weights, *out, *score;
  int64_t batch;
  pruning how;
} request;

typedef struct subject {
  settings s;
  data_set d;
  bool opened, reconstructs;
  ng_pool *pool;
  ng_context *ctx;
  nn *net;
  feed feed;
  run_state state;
  char *weights; /* path of the checkpoint; NULL: none */
} subject;

static int read_trained_run(const char *dir, const request *w, subject *p) {
  int64_t step = -1;
  int lock = -1;
  char *config = cli_join(dir, "config.json");
  int rc = disk_exists(config) ? CLI_OK
                               : cli_fail("%s: expected the folder of a run, but there is no "
                                          "config.json in it",
                                          dir);
  if (rc == CLI_OK) rc = disk_lock_folder(dir, "prune", &lock);
  if (rc == CLI_OK) rc = checkpoint_find(dir, &step, NULL);
  if (rc == CLI_OK && step < 0 && w->weights == NULL)
    rc = cli_fail("%s: there is no checkpoint in it", dir);
  if (rc == CLI_OK) rc = settings_read_file(&p->s, config);
  if (rc == CLI_OK && w->data != NULL) rc = settings_set_or_report(&p->s, NULL, "data", w->data);
  if (rc == CLI_OK && step >= 0) p->weights = checkpoint_path(dir, step);
  if (lock >= 0) (void)close(lock);
  free(config);
  /* Gradients and tests use samples without augmentation and labels without smoothing. */
  p->s.batch = w->batch;
  p->s.acc_iters = 1;
  p->s.mixup_alpha = p->s.erase_rate = p->s.label_smoothing = p->s.dropout = 0.0;
  return rc == CLI_OK ? settings_set_or_report(&p->s, NULL, "augment", "none") : rc;
}

static int open_subject(const request *w, subject *p) {
  int threads = 1;
  settings *s = &p->s;
  int rc = cli_read_thread_count(&threads);
  if (rc == CLI_OK && threads > 1) p->pool = ng_pool_create(threads, NULL);
  if (rc == CLI_OK) rc = train_open_data(s, &p->d);
  p->opened = rc == CLI_OK;
  if (rc != CLI_OK) return rc;
  data_print_notes(&p->d);
  rc = train_build_network(s, &p->d, p->pool, &p->net, &p->reconstructs);
  if (rc == CLI_OK) rc = feed_create(s, &p->d, NULL, p->reconstructs, p->pool, &p->feed);
  if (rc == CLI_OK) rc = nn_prepare(p->net, w->batch);
  if (rc == CLI_OK)
    rc = checkpoint_read_model(w->weights != NULL ? w->weights : p->weights, p->net, &p->state);
  ng_context_config config;
  ng_context_config_init(&config, sizeof config);
  config.threads = threads;
  return rc == CLI_OK ? cli_create_context(&config, &p->ctx) : rc;
}

static void close_subject(subject *p) {
  ng_context_destroy(&p->ctx);
  feed_free(&p->feed);
  nn_destroy(&p->net);
  if (p->opened) data_close(&p->d);
  ng_pool_destroy(p->pool);
  settings_free(&p->s);
  free(p->weights);
}

static int print_test_result(subject *p, const char *when) {
  const pruning_count c = pruning_count_zeros(p->net);
  double sum[3] = {0.0}; /* sum of losses; correct samples; samples */
  if (feed_evaluate(&p->feed, p->net, p->reconstructs, 0, p->feed.test->n, sum) != CLI_OK)
    return CLI_BAD;
  printf("%s  %lld of %lld weights are 0 (%.2f %%)", when, (long long)c.zeros, (long long)c.weights,
         100.0 * (double)c.zeros / (double)c.weights);
  if (sum[2] > 0.0) printf("  test loss %.5f", sum[0] / sum[2]);
  if (sum[2] > 0.0 && !p->reconstructs) printf("  test accuracy %.2f %%", 100.0 * sum[1] / sum[2]);
  printf("\n");
  return CLI_OK;
}

/* Check --out before the work begins. */
static int check_output_path(const char *path) {
  if (disk_exists(path)) return cli_fail("--out: %s exists", path);
  if (checkpoint_is_run_file(path))
    return cli_fail("--out: %s is the name of a file of a run", path);
  char *folder = cli_get_folder(path);
  const int rc = access(folder, W_OK | X_OK) == 0
                     ? CLI_OK
                     : cli_fail("%s: cannot be written: %s", path, strerror(errno));
  free(folder);
  return rc;
}

static int prune_run(const char *dir, const request *w) {
  subject p;
  memset(&p, 0, sizeof p);
  checkpoint_init(&p.state);
  settings_init(&p.s);
  int rc = check_output_path(w->out);
  if (rc == CLI_OK) rc = read_trained_run(dir, w, &p);
  if (rc == CLI_OK) rc = open_subject(w, &p);
  if (rc == CLI_OK) {
    const pruning_count c = pruning_count_zeros(p.net);
    const double is = (double)c.zeros / (double)c.weights;
    if (w->how.sparsity < is)
      rc = cli_fail("--sparsity: %g, but %g of the weights are 0 already", w->how.sparsity, is);
  }
  if (rc == CLI_OK) rc = print_test_result(&p, "before");
  if (rc == CLI_OK) rc = pruning_run(p.ctx, &w->how, p.reconstructs, &p.feed, p.net);
  if (rc == CLI_OK && checkpoint_find_nonfinite(p.net) != NULL)
    rc = cli_fail("prune: %s is not finite; try a larger --damping",
                  checkpoint_find_nonfinite(p.net));
  if (rc == CLI_OK) rc = print_test_result(&p, "after ");
  if (rc == CLI_OK) rc = checkpoint_write_model(w->out, p.net, &p.state);
  close_subject(&p);
  return rc;
}

static int run_prune(void *user, const cli_args *args) {
  request *w = user;
  if (strcmp(w->score, "magnitude") == 0) w->how.score = PRUNING_MAGNITUDE;
  if (args->operands == 0)
    return cli_fail("prune: expected the folder of a run (natgrad train --out)");
  if (strcmp(w->score, "mfac") != 0 && w->how.score != PRUNING_MAGNITUDE)
    return cli_fail("--score: expected mfac or magnitude, got '%s'", w->score);
  if (w->how.sparsity < 0.0) return cli_fail("prune: --sparsity is missing");
  if (w->out == NULL) return cli_fail("prune: --out FILE is missing");
  return prune_run(args->operand[0], w);
}

static const request standard = {
    .batch = 32,
    .score = "mfac",
    .how = {.sparsity = -1.0, .steps = 16, .gradients = 64, .damping = 1e-5, .block = 128}};
static const cli_option own[] = {
    {"sparsity", "S", "final fraction of zero weights, 0 <= S < 1", CLI_REAL,
     offsetof(request, how.sparsity), 0, 0.999999},
    {"out", "FILE", "file for the pruned weights (.safetensors)", CLI_TEXT,
     .field = offsetof(request, out)},
    {"score", "WHICH", "mfac | magnitude (mfac)", CLI_TEXT, .field = offsetof(request, score)},
    {"steps", "K", "number of steps; each keeps the same fraction of the weights (16)", CLI_WHOLE,
     offsetof(request, how.steps), 1, 100000},
    {"gradients", "M", "mini-batch gradients of each step (64)", CLI_WHOLE,
     offsetof(request, how.gradients), 1, 16384},
    {"batch", "N", "samples of a mini-batch (32)", CLI_WHOLE, offsetof(request, batch), 1, 1 << 20},
    {"damping", "X", "lambda in F = lambda I + G'G / M (1e-5)", CLI_REAL,
     offsetof(request, how.damping), 1e-12, 1e6},
    {"block", "N", "weights of a diagonal block of F; 0: one block (128)", CLI_WHOLE,
     offsetof(request, how.block), 0, 1 << 30},
    {"data", "SPEC", "the data set, if its files have moved", CLI_TEXT,
     .field = offsetof(request, data)},
    {"weights", "FILE", "start from FILE, an earlier --out, instead of the checkpoint", CLI_TEXT,
     .field = offsetof(request, weights)},
};

const cli_command cli_prune = {
    .name = "prune",
    .usage = "RUN_DIR --sparsity S --out FILE [OPTIONS]",
    .summary = "prune the weights of a trained network",
    .text =
        "RUN_DIR is a folder of `natgrad train --out`. Weights of layers are pruned, biases and\n"
        "norms are not. mfac (Frantar, Kurtic & Alistarh 2021): prune the weights with the\n"
        "smallest w^2 / (2 [F^-1]_ii), and add F^-1 t to the others, with t = -w / [F^-1]_ii for\n"
        "pruned weights (else 0) and F = lambda I + G'G / M. magnitude: prune the smallest |w|.\n"
        "Gradients are computed in evaluation mode, and there is no training between steps.\n"
        "Prints test loss and accuracy before and after pruning.\n",
    .options = own,
    .n_options = (int)(sizeof own / sizeof own[0]),
    .operands = 1,
    .size = sizeof(request),
    .standard = &standard,
    .run = run_prune,
};
