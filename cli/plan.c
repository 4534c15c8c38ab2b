/* plan.c: `natgrad plan`: estimate memory, messages and time of strategies on any number of ranks, without a run. */
#include "common/commands.h"
#include "plan.h"

#include "bench.h"
#include "train/launch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* MOST_ROWS: no number of ranks up to MOST_RANKS has more than 120 divisors. */
enum { MOST_RANKS = 1 << 16, MOST_COUNTS = 32, MOST_ROWS = 160 };

typedef struct plan_command {
  plan_task task;
  const char *model;
  int32_t ranks[MOST_COUNTS];
  int counts;
  /* rates from the command line, which replace measured or default rates; < 0: not given */
  plan_machine given;
  /* --memory in bytes (0: no limit); --overhead, as a fraction of the caller's time */
  double memory, overhead;
  bool calibrate, json;
  int32_t started; /* number of ranks that the MPI launcher started; 0 after print_rates */
} plan_command;

/* ---- arguments -------------------------------------------------------------------------------*/

static int parse_rank_counts(plan_command *c, const char *text) {
  c->counts = 0;
  for (const char *at = text; at != NULL; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    char *end;
    const long n = strtol(at, &end, 10);
    if (end == at || (*end != ',' && *end != 0) || n < 1 || n > MOST_RANKS ||
        c->counts == MOST_COUNTS)
      return cli_fail(
          "plan: --ranks: '%s', expected up to %d whole numbers from 1 to %d, separated by "
          "commas",
          text, MOST_COUNTS, MOST_RANKS);
    c->ranks[c->counts++] = (int32_t)n;
  }
  return CLI_OK;
}

/* ---- strategies ------------------------------------------------------------------------------*/

static void add_strategy(plan_strategy *row, int *n, const char *name, const char *options,
                         double fraction) {
  plan_strategy *s = &row[(*n)++];
  (void)snprintf(s->name, sizeof s->name, "%s", name);
  (void)snprintf(s->options, sizeof s->options, "%s grad_worker_fraction=%.17g", options, fraction);
  s->fraction = fraction;
  s->is_natgrad = strncmp(name, "natgrad", 7) == 0;
}

/* List the strategies, one for each row of the table, and return their number. For each divisor m of `ranks`, m ranks
 * store the inverses of a block (KAISA's COMM-OPT, HYBRID-OPT, MEM-OPT). Two values of the option `statistics` and
 * published programs follow. With sharded layers, omit local statistics and weights updated by owners. */
static int list_strategies(const plan_command *c, int32_t ranks, plan_strategy *row) {
  const bool whole = c->task.group_ranks == 1;
  int n = 0;
  for (int32_t m = ranks; m >= 1; m--) {
    char name[40];
    if (ranks % m != 0) continue;
    (void)snprintf(name, sizeof name, "natgrad, %s", m == ranks ? "comm-opt" : "mem-opt");
    if (m != ranks && m != 1)
      (void)snprintf(name, sizeof name, "natgrad, hybrid-opt 1/%d", ranks / m);
    add_strategy(row, &n, name, "method=natgrad", (double)m / ranks);
  }
  add_strategy(row, &n, "natgrad, statistics=owner", "method=natgrad statistics=owner", 0);
  if (whole)
    add_strategy(row, &n, "natgrad, statistics=local", "method=natgrad statistics=local", 0);
  add_strategy(row, &n, "kaisa, comm-opt", "method=kaisa", 1);
  if (ranks % 2 == 0 && ranks > 2)
    add_strategy(row, &n, "kaisa, hybrid-opt 1/2", "method=kaisa", 0.5);
  if (ranks > 1) add_strategy(row, &n, "kaisa, mem-opt", "method=kaisa", 0);
  add_strategy(row, &n, "mpd-kfac", "method=mpd-kfac", 1);
  if (!whole) return n;
  add_strategy(row, &n, "dp-kfac", "method=dp-kfac", 0);
  add_strategy(row, &n, "spngd, weights by owners", "method=spngd update=sgd update_ranks=owner",
               0);
  return n;
}

/* ---- the answer ------------------------------------------------------------------------------*/

static ngio_out begin_json_line(const plan_task *w, int32_t ranks) {
  ngio_out line = {.digits = 8};
  ngio_open(&line, NULL, '{');
  ngio_put_text(&line, "model", w->model->name);
  ngio_put_integer(&line, "ranks", ranks);
  ngio_put_integer(&line, "model_parallel", w->group_ranks);
  return line;
}

static int print_json_line(ngio_out *line) {
  ngio_shut(line, '}');
  return cli_json_print("plan", line);
}

static int print_json_row(const plan_command *c, int32_t ranks, const plan_strategy *s,
                          const plan_cost *a) {
  ngio_out line = begin_json_line(&c->task, ranks);
  ngio_put_text(&line, "strategy", s->name);
  ngio_put_text(&line, "options", s->options);
  ngio_put_integer(&line, "held_most", a->held_most);
  ngio_put_integer(&line, "held_least", a->held_least);
  ngio_put_real(&line, "held_mean", a->held_mean);
  ngio_put_integer(&line, "sums_bytes", a->largest.sums_bytes);
  ngio_put_integer(&line, "scatter_bytes", a->largest.scatter_bytes);
  ngio_put_integer(&line, "share_bytes", a->largest.share_bytes);
  ngio_put_integer(&line, "deliver_bytes", a->largest.deliver_bytes);
  ngio_put_integer(&line, "weights_bytes", a->largest.weights_bytes);
  ngio_put_integer(&line, "shards_bytes", a->shards_bytes);
  ngio_put_real(&line, "sent_a_step", a->sent);
  ngio_put_real(&line, "compute_ms", a->compute);
  ngio_put_real(&line, "added_ms", a->added);
  ngio_put_real(&line, "step_ms", a->step);
  ngio_open(&line, "parts_ms", '{');
  for (int i = 0; i < PLAN_PARTS; i++)
    ngio_put_real(&line, plan_part_name[i], a->ms[i]);
  ngio_shut(&line, '}');
  if (c->memory > 0) ngio_put_flag(&line, "fits", (double)a->held_most <= c->memory);
  return print_json_line(&line);
}

static int count_printed_parts(const plan_command *c) {
  return c->task.group_ranks > 1 ? PLAN_PARTS : PLAN_SHARDS;
}

static void print_table_head(const plan_command *c, int32_t ranks, const plan_cost *a) {
  char groups[48] = "";
  if (c->task.group_ranks > 1)
    (void)snprintf(groups, sizeof groups, " in model groups of %d", (int)c->task.group_ranks);
  printf(
      "\n%s on %d rank%s%s, %lld samples each: forward and backward %.3g ms, gradients %.3g ms\n",
      c->task.model->name, ranks, ranks == 1 ? "" : "s", groups, (long long)c->task.batch,
      a->compute, a->ms[PLAN_GRADIENT]);
  printf("%-28s %8s %8s %9s", "strategy", "memory", "mean", "sent");
  for (int i = PLAN_OBSERVE; i < count_printed_parts(c); i++)
    printf(" %8s", plan_part_name[i]);
  printf(" %9s %8s\n", "added", "step");
}

static void print_table_row(const plan_command *c, const plan_strategy *s, const plan_cost *a) {
  char held[16], mean[16], sent[16];
  printf("%-28s %8s %8s %9s", s->name, cli_format_bytes((double)a->held_most, held),
         cli_format_bytes(a->held_mean, mean), cli_format_bytes(a->sent, sent));
  for (int i = PLAN_OBSERVE; i < count_printed_parts(c); i++)
    printf(" %8.3g", a->ms[i]);
  printf(" %9.3g %8.4g\n", a->added, a->step);
}

/* Print the fastest strategy, and the shortest solve_period of 1, 2, 5, 10, ... that adds at most --overhead. */
static int recommend_periods(const plan_command *c, int32_t ranks, const plan_strategy *best) {
  static const int64_t every[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000};
  enum { EVERY = sizeof every / sizeof every[0] };
  plan_task w = c->task;
  bool below = false;
  double added = 0.0;
  for (int i = 0; i < EVERY && !below; i++) {
    plan_cost a;
    w.period[1] = every[i];
    w.period[0] = every[i] >= 10 ? every[i] / 10 : 1;
    const int rc = plan_estimate_cost(&w, best, ranks, &a);
    if (rc != CLI_OK) return rc;
    added = a.added / (a.compute + a.ms[PLAN_GRADIENT]);
    below = added <= c->overhead;
  }
  if (c->json) {
    ngio_out line = begin_json_line(&w, ranks);
    ngio_put_text(&line, "fastest", best->name);
    ngio_put_real(&line, "grad_worker_fraction", best->fraction);
    ngio_put_integer(&line, "stat_period", w.period[0]);
    ngio_put_integer(&line, "solve_period", w.period[1]);
    ngio_put_real(&line, "added_percent", 100 * added);
    ngio_put_flag(&line, "within_overhead", below);
    return print_json_line(&line);
  }
  printf("fastest that fits: %s (grad_worker_fraction = %.6g); ", best->name, best->fraction);
  if (below) {
    printf("stat_period = %lld and solve_period = %lld add %.3g %%\n", (long long)w.period[0],
           (long long)w.period[1], 100 * added);
  } else {
    printf("even solve_period = %lld adds more than %g %%: %.3g %%\n", (long long)every[EVERY - 1],
           100 * c->overhead, 100 * added);
  }
  return CLI_OK;
}

static const char *name_rate_source(bool measured, double one, double other) {
  if (one >= 0 && other >= 0) return "given";
  if (one >= 0 || other >= 0) return measured ? "measured and given" : "assumed and given";
  return measured ? "measured" : "assumed";
}

static void print_rates(const plan_command *c, int32_t ranks) {
  const plan_machine *m = &c->task.machine, *g = &c->given;
  printf("%s: products %.4g GFLOP/s, factorisations %.4g GFLOP/s; network, %s: %.4g GB/s, %.4g us; "
         "stat_period %lld, solve_period %lld\n",
         name_rate_source(c->calibrate, g->gemm, g->solve), 1e-9 * m->gemm, 1e-9 * m->solve,
         name_rate_source(c->calibrate && ranks > 1, g->bandwidth, g->latency), 1e-9 * m->bandwidth,
         1e6 * m->latency, (long long)c->task.period[0], (long long)c->task.period[1]);
}

static int print_plan(plan_command *c, int32_t ranks) {
  plan_strategy row[MOST_ROWS];
  const int n = list_strategies(c, ranks, row);
  const plan_strategy *best = NULL;
  double least = 0.0;
  int64_t smallest = INT64_MAX;
  int rc = CLI_OK;
  for (int i = 0; i < n && rc == CLI_OK; i++) {
    plan_cost a;
    rc = plan_estimate_cost(&c->task, &row[i], ranks, &a);
    if (rc != CLI_OK) return rc;
    if (i == 0 && !c->json) {
      /* print the rates once, after the first estimate */
      if (c->started > 0) print_rates(c, c->started);
      c->started = 0;
      print_table_head(c, ranks, &a);
    }
    if (c->json) rc = print_json_row(c, ranks, &row[i], &a);
    if (!c->json) print_table_row(c, &row[i], &a);
    /* recommend only strategies of natgrad, without statistics = local, which estimates another curvature */
    const bool ours = row[i].is_natgrad && strstr(row[i].name, "local") == NULL;
    if (a.held_most < smallest && ours) smallest = a.held_most;
    if (!ours || (c->memory > 0 && (double)a.held_most > c->memory)) continue;
    if (best == NULL || a.step < least) {
      best = &row[i];
      least = a.step;
    }
  }
  if (rc != CLI_OK) return rc;
  if (best != NULL) return recommend_periods(c, ranks, best);
  if (c->json) {
    ngio_out line = begin_json_line(&c->task, ranks);
    ngio_put_null(&line, "fastest");
    ngio_put_integer(&line, "least_held", smallest);
    return print_json_line(&line);
  }
  char text[16];
  printf("no strategy fits into --memory: the smallest needs %s\n",
         cli_format_bytes((double)smallest, text));
  return CLI_OK;
}

/* Measure the rates of matrix products and of factorisations, both of order 1024, with the BLAS in use. */
static int measure_compute_rates(plan_machine *m) {
  enum { ORDER = 1024 };
  if (!floors_have_blas()) return cli_fail("plan: --calibrate needs a build with BLAS");
  const double gflops = floor_measure_sgemm(ORDER), ms = floor_measure_cholesky(ORDER);
  if (gflops <= 0 || ms <= 0)
    return cli_fail("plan: --calibrate: BLAS or LAPACK failed, so no rates were measured");
  m->gemm = 1e9 * gflops;
  m->solve = (double)ORDER * ORDER * ORDER / (1e-3 * ms);
  return CLI_OK;
}

static void set_given_rates(plan_command *c) {
  plan_machine *m = &c->task.machine;
  const plan_machine *g = &c->given;
  if (g->gemm >= 0) m->gemm = g->gemm;
  if (g->solve >= 0) m->solve = g->solve;
  if (g->bandwidth >= 0) m->bandwidth = g->bandwidth;
  if (g->latency >= 0) m->latency = g->latency;
}

/* Under a launcher, all ranks measure the link together, and rank 0 alone prints the plans. */
static int print_all_plans(plan_command *c) {
  launch l;
  int rc = launch_begin("auto", &l);
  const ng_transport *t = launch_get_transport(&l);
  if (rc == CLI_OK && c->calibrate) rc = measure_compute_rates(&c->task.machine);
  if (rc == CLI_OK && c->calibrate && t != NULL) rc = plan_measure_link(t, &c->task.machine);
  set_given_rates(c);
  if (rc == CLI_OK && l.table.rank == 0) {
    c->started = l.table.size;
    for (int i = 0; i < c->counts && rc == CLI_OK; i++)
      rc = print_plan(c, c->ranks[i]);
  }
  launch_end(&l, rc != CLI_OK);
  return rc;
}

/* Check --model-parallel M: if M > 1, some layer must have a split, and M must divide each number of ranks. */
static int check_model_parallel(const plan_command *c) {
  const int32_t M = (int32_t)c->task.group_ranks;
  int cut = 0;
  for (int i = 0; i < c->task.model->n; i++)
    cut += c->task.model->layer[i].split != SPLIT_NONE;
  if (M == 1) return CLI_OK;
  if (cut == 0)
    return cli_fail(
        "plan: --model-parallel: no layer of '%s' has a split; a FILE.json may have \"split\"",
        c->task.model->name);
  for (int i = 0; i < c->counts; i++) {
    if (c->ranks[i] % M == 0) continue;
    return cli_fail("plan: --ranks has %d, expected multiples of --model-parallel %d", c->ranks[i],
                    M);
  }
  return CLI_OK;
}

static int run_plan(void *user, const cli_args *args) {
  plan_command *c = user;
  shapes model = {.n = 0};
  int rc = CLI_OK;
  for (int i = 0; i < args->n_own && rc == CLI_OK; i++)
    rc = parse_rank_counts(c, args->own[i].value); /* --ranks is the only CLI_OWN option */
  for (int i = 0; i < args->n_settings && rc == CLI_OK; i++) {
    if (strcmp(args->settings[i].name, "method") == 0)
      rc = cli_fail("plan: --method: each strategy has its own method; give other options");
  }
  c->given.latency *= 1e-6;
  if (rc == CLI_OK) rc = shapes_list(c->model, &model);
  c->task.model = &model;
  c->task.args = args;
  if (rc == CLI_OK) rc = check_model_parallel(c);
  if (rc == CLI_OK) rc = print_all_plans(c);
  shapes_free(&model);
  return rc;
}

static const plan_command standard = {.task = {.group_ranks = 1,
                                               .batch = 32,
                                               .period = {10, 100},
                                               .machine = {10e12, 500e9, 12.5e9, 10e-6}},
                                      .model = "resnet50",
                                      .ranks = {1, 4, 16, 64},
                                      .counts = 4,
                                      .given = {-1, -1, -1, -1},
                                      .overhead = 0.3};
static const cli_option options[] = {
    {"model", "NAME",
     "a model of `natgrad train --models`, bert-base, bert-large, gpt-24, or a FILE.json "
     "(resnet50)",
     CLI_TEXT, .field = offsetof(plan_command, model)},
    {"ranks", "N,N,...", "numbers of ranks, a table for each (1,4,16,64)", .kind = CLI_OWN},
    {"batch", "N", "samples in a step of a rank, or of a model group (32)", CLI_WHOLE,
     offsetof(plan_command, task.batch), 1, 1 << 20},
    {"model-parallel", "N", "ranks of a model group, which share each layer that has a split (1)",
     CLI_WHOLE, offsetof(plan_command, task.group_ranks), 1, MOST_RANKS},
    {"stat-period", "N", "steps between refreshes of the statistics (10)", CLI_WHOLE,
     offsetof(plan_command, task.period[0]), 1, 1 << 20},
    {"solve-period", "N", "steps between refreshes of the inverses (100)", CLI_WHOLE,
     offsetof(plan_command, task.period[1]), 1, 1 << 20},
    {"memory", "SIZE", "largest memory of a rank, such as 16GB or 8GiB (no limit)", CLI_SIZE,
     .field = offsetof(plan_command, memory)},
    {"overhead", "SHARE", "share of the time of a step that the recommended periods may add (0.3)",
     CLI_REAL, offsetof(plan_command, overhead), 1e-5, 1e4},
    {"gemm", "FLOPS", "FLOP/s of matrix products on a rank (10T)", CLI_SIZE,
     .field = offsetof(plan_command, given.gemm)},
    {"solve", "FLOPS", "FLOP/s of factorisations on a rank (500G)", CLI_SIZE,
     .field = offsetof(plan_command, given.solve)},
    {"bandwidth", "SIZE/s", "bandwidth of a rank's link (12.5GB/s, which is 100 Gbit/s)", CLI_SIZE,
     .field = offsetof(plan_command, given.bandwidth)},
    {"latency", "US", "latency of a message in microseconds (10)", CLI_REAL,
     offsetof(plan_command, given.latency), 0.0, 1e6},
    {"calibrate", NULL,
     "measure --gemm and --solve, and under mpirun also --bandwidth and --latency", CLI_FLAG,
     .field = offsetof(plan_command, calibrate)},
    {"json", NULL,
     "print one JSON object a line: the rows of each number of ranks, then the recommendation",
     CLI_FLAG, .field = offsetof(plan_command, json)},
};

const cli_command cli_plan = {
    .name = "plan",
    .usage = "[--model NAME|FILE] [--ranks N,N,...] [OPTIONS]",
    .summary = "estimate memory, messages and time of each strategy on any number of ranks",
    .text =
        "Prints a table for each number of ranks.  A row is a strategy, with the columns\n"
        "  memory       bytes of averages, sums, inverses, directions, moments: the largest rank\n"
        "  mean         the mean of these bytes over the ranks\n"
        "  sent         bytes that a rank passes to collectives in a step\n"
        "  observe ...  ms of each part of a step on the slowest rank\n"
        "  added        ms that these parts add to a step\n"
        "  step         ms of a step: added, forward, backward and the sum of gradients\n"
        "Bytes sent and ms are means over steps.\n\n"
        "Bytes come from ng_plan_ranks.  Models of `natgrad train` include norms; bert-base,\n"
        "bert-large and gpt-24 include embeddings and norms, but no heads.  Strategies of\n"
        "natgrad and spngd precondition norms and embeddings; others do not.\n\n"
        "Times are estimates without overlap: products (without norms) at the rate --gemm,\n"
        "factorisations at the rate --solve, sums by recursive halving or doubling, broadcasts\n"
        "in pieces down a tree.\n\n"
        "FILE.json is a list of layers:\n"
        "  {\"name\": \"conv1\", \"kind\": \"conv2d\", \"in\": 3, \"out\": 64, \"kernel\": 7,\n"
        "   \"stride\": 2, \"padding\": 3, \"image\": 224}\n"
        "  {\"name\": \"fc\", \"kind\": \"linear\", \"in\": 2048, \"out\": 1000, \"bias\": true}\n"
        "  {\"name\": \"bn1\", \"kind\": \"norm\", \"in\": 64}\n"
        "  {\"name\": \"words\", \"kind\": \"embedding\", \"in\": 30522, \"out\": 768,\n"
        "   \"positions\": 512}\n"
        "  conv2d     kernel, stride, padding, image and dilation are a number or a pair; groups\n"
        "             divides in and out\n"
        "  linear     optional: positions; \"split\": \"output\" (column-parallel) or \"input\", "
        "the\n"
        "             axis that --model-parallel cuts\n"
        "  norm       a batch, layer or group norm with gamma and beta\n"
        "  embedding  `in` is the number of tokens\n\n"
        "--model-parallel cuts bert-base, bert-large and gpt-24 as Megatron-LM does, except\n"
        "embeddings.  It omits strategies with local statistics or weights updated by owners.\n"
        "Options of the library, such as --placement kaisa, apply to strategies of natgrad.\n"
        "Times assume K-FAC for all layers.\n",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .library = true,
    .size = sizeof(plan_command),
    .standard = &standard,
    .run = run_plan,
};
