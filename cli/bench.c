/* bench.c: `natgrad bench NAME`: which bench, with which arguments. */
#include "commands.h"
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct bench {
  const char *name;
  int (*run)(const bench_wish *w, const cli_args *args);
  bool own_models; /* has its own when --model is not given */
} benches[] = {{"kfac", bench_kfac, false},
               {"train", bench_train, false},
               {"fused-eva", bench_eva, true},
               {"state", bench_state, true},
               {"window", bench_window, true}};
enum { BENCHES = sizeof benches / sizeof benches[0] };

static int by_size(const void *x, const void *y) {
  const double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}

double bench_median(double *x, int n) {
  qsort(x, (size_t)n, sizeof *x, by_size);
  return n % 2 == 1 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

void bench_fill(float *x, int64_t n, float scale) {
  uint64_t s = BENCH_SEED;
  for (int64_t i = 0; i < n; i++)
    x[i] = scale * bench_number(&s);
}

ngio_out bench_line(const char *bench, const char *of) {
  ngio_out line = {.digits = 6};
  ngio_open(&line, NULL, '{');
  ngio_put_text(&line, "bench", bench);
  if (of != NULL) ngio_put_text(&line, "case", of);
  return line;
}

int bench_print(ngio_out *line) {
  ngio_shut(line, '}');
  return cli_json_print("bench", line);
}

void bench_machine(ngio_out *line, const char *processor, const char *commit, const char *method,
                   int repeat) {
  ngio_put_text(line, "processor", processor);
  ngio_put_integer(line, "threads", cli_cores());
  ngio_put_text(line, "commit", commit);
  ngio_put_text(line, "method", method);
  ngio_put_integer(line, "repeat", repeat);
}

void bench_floor(ngio_out *line, double floor) {
  if (floor > 0) {
    ngio_put_real(line, "floor_ms", floor);
  } else {
    ngio_put_null(line, "floor_ms");
  }
}

static int take(void *user, const char *name, const char *value) {
  bench_wish *w = user;
  long long number = 0;
  int rc = CLI_OK;
  if (strcmp(name, "json") == 0) w->json = true;
  if (strcmp(name, "list") == 0) w->list = true;
  if (strcmp(name, "table") == 0) w->table = true;
  if (strcmp(name, "steps") == 0) w->steps = true;
  if (strcmp(name, "no-floors") == 0) w->no_floors = true;
  if (strcmp(name, "model") == 0) w->model = value;
  if (strcmp(name, "linalg") == 0) w->linalg = value;
  if (strcmp(name, "batch") == 0) {
    rc = cli_int(name, value, 1, 65536, &number);
    w->batch = number;
  }
  if (strcmp(name, "layers") == 0) {
    rc = cli_int(name, value, 1, 1000000, &number);
    w->layers = number;
  }
  if (strcmp(name, "repeat") == 0) {
    rc = cli_int(name, value, 1, 1000, &number);
    w->repeat = (int)number;
  }
  return rc;
}

static int run(const cli_command *self, int argc, char **argv) {
  bench_wish w = {.batch = 32, .layers = 10000, .repeat = 5};
  cli_args args;
  int rc = cli_parse(self, argc, argv, take, &w, &args);
  if (rc != CLI_OK) return rc < 0 ? CLI_OK : rc;
  const char *names[BENCHES];
  int chosen = -1;
  for (int i = 0; i < BENCHES; i++) {
    names[i] = benches[i].name;
    if (args.operands > 0 && strcmp(args.operand[0], names[i]) == 0) chosen = i;
  }
  if (args.operands != 1) {
    rc = cli_bad("bench: one of: kfac, train, fused-eva, state, window");
  } else if (chosen < 0) {
    const char *near = cli_nearest(args.operand[0], names, BENCHES);
    rc = cli_bad("bench: unknown bench '%s'; %s%s", args.operand[0],
                 near != NULL ? "the nearest is " : "there is ",
                 near != NULL ? near : "kfac, train, fused-eva, state and window");
  } else if (w.model == NULL && !benches[chosen].own_models) {
    rc = cli_bad(
        "bench %s: --model is missing: resnet18 or another network, or (not train) a .json file",
        names[chosen]);
  } else {
    rc = benches[chosen].run(&w, &args);
  }
  cli_args_free(&args);
  return rc;
}

static const cli_option own[] = {
    {"model", "MODEL",
     "a network (`natgrad train --models`), or a .json list of layers (not train)"},
    {"batch", "N", "samples (32)"},
    {"repeat", "R", "steps measured after a first one; their median counts (5)"},
    {"linalg", "NAME", "linear algebra: cpu, ref"},
    {"no-floors", NULL, "do not measure the floors"},
    {"table", NULL, "fused-eva: forward, backward and optimize for batches 1 to 256"},
    {"steps", NULL, "train: whole steps of spngd, too, and the share of norm blocks in them"},
    {"layers", "N", "state: linear layers of the model (10000)"},
    {"list", NULL, "only list the layers and the orders of their factors"},
    {"json", NULL, "one JSON object a line instead of a table"},
};

const cli_command cli_bench = {
    .name = "bench",
    .usage = "kfac --model MODEL [OPTIONS] | train --model MODEL [OPTIONS] | fused-eva [OPTIONS] | "
             "state [OPTIONS] | window [OPTIONS]",
    .summary =
        "time K-FAC by layer, a network, Eva steps, saving and loading, or a window, beside floors",
    .text =
        "kfac: random activations and gradients; every step observes and solves (stat_period 1,\n"
        "solve_period 1, cholesky_form inverse, unless set otherwise).  Floors are measured in "
        "the\n"
        "same process, best of ten, all threads:\n"
        "  statistics  a plain im2col of the inputs, timed, plus SYRK's arithmetic, rows p (p+1)\n"
        "              and rows q (q+1), at the rate of SGEMM at 4096\n"
        "  solve       spotrf and spotri of orders p and q (eigen: ssyevd)\n"
        "  apply       the GEMMs, 2 q p (p+q) operations (eigen: twice that)\n"
        "train: forward and backward of a network on random data, beside its arithmetic at the "
        "rate\n"
        "of SGEMM at 4096.  Batch norms, as blocks of spngd: floor: their inputs and output "
        "gradients\n"
        "read once.  --steps: whole steps that make every statistic and inverse anew, and none.\n"
        "fused-eva: an Eva step on random gradients, three ways: the published sequence of tensor\n"
        "operations, ng_step and a loop of SGD, ng_step_sgd.  Without --model: resnet18, 1e7 and\n"
        "1e8 parameters.  Floors: 12 and 24 bytes a parameter at the rate of a copy.\n"
        "state: ng_save and ng_load of many small layers and thirteen depthwise convolutions of "
        "512\n"
        "channels.  Floors: the same bytes written, flushed and named, and read.\n"
        "window: a step of mfac (or another window method) on random gradients, once the window "
        "is\n"
        "full.  Without --model: 272474 parameters.  Floor: what is kept, read twice at the rate "
        "of a\n"
        "copy.\n",
    .options = own,
    .n_options = (int)(sizeof own / sizeof own[0]),
    .library = true,
    .run = run,
};
