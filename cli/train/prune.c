/* prune.c: `natgrad prune`: prune the weights of a trained network (pruning.h).
 *
 * In: the directory of a run, or a file that this command wrote. Out: a file of weights; loss and accuracy. */
#include "common/commands.h"
#include "pruning.h"
#include "subject.h"

#include <stdio.h>
#include <string.h>

typedef struct request {
  const char *data, *weights, *out, *score;
  int64_t batch;
  pruning how;
} request;

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

static int prune_run(const char *dir, const request *w) {
  subject p;
  int rc = subject_check_output(w->out);
  if (rc != CLI_OK) return rc;
  rc = subject_open(&(subject_request){dir, "prune", w->data, w->weights, w->batch}, &p);
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
  subject_close(&p);
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
