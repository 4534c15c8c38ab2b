/* bits: hash the results of many small trainings.
 *
 * Run each case (bits.h) through the public header and print "hash  case".  scripts/same_bits.sh runs this program with
 * two builds of the library: equal lines mean that all results have the same bits.  Whether results are correct is not
 * checked here.
 *
 *     bits                 all cases            bits --every 20   every twentieth case
 *     bits CASE ...        these, with a line per step
 *     bits --of FILE       the cases that a run of another commit printed, except those that this library refuses
 */
#include "bits.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "draw.h"

static int64_t cases, every = 1;

static bool is_accepted(const char *text) {
  bits_case c;
  const bool fine = bits_parse(&c, text) == NG_OK && ng_options_check(c.opt, NULL, 0) == NG_OK;
  bits_free(&c);
  return fine;
}

/* Run the case and print its hash.  Return false, without output, if the library refuses its options. */
__attribute__((format(printf, 1, 2))) static bool run_case(const char *format, ...) {
  char text[BITS_TEXT];
  va_list args;
  va_start(args, format);
  const int n = vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (n < 0 || (size_t)n >= sizeof text) {
    fprintf(stderr, "bits: a case is too long: %s\n", text);
    exit(2);
  }
  if (!is_accepted(text)) return false;
  if (cases++ % every == 0) {
    printf("%016llx  %s\n", (unsigned long long)bits_hash_case(text, false), text);
    (void)fflush(stdout); /* flush, so that the lines before a crash are kept */
  }
  return true;
}

/* ---- values of an option ---------------------------------------------------------------------*/

/* Write the k-th value to try for an option; return false after the last value. */
static bool write_option_value(const ng_option_info *o, int32_t k, char *out, size_t size) {
  static const char *const real[] = {"0", "1e-10", "0.001", "0.03", "0.5", "0.9", "1", "7"};
  static const char *const whole[] = {"0", "1", "2", "3", "5", "16"};
  static const char *const skip[] = {"fc*,conv*", "Linear", "seq,*a*"};
  const char *from = NULL;
  if (o->type == NG_OPTION_REAL && k < COUNT(real)) from = real[k];
  if (o->type == NG_OPTION_INT && k < COUNT(whole)) from = whole[k];
  if (o->type == NG_OPTION_BOOL && k < 2) from = whole[k];
  if (o->type == NG_OPTION_TEXT && k < 3) from = skip[k];
  size_t n = from == NULL ? 0 : strlen(from);
  if (o->type == NG_OPTION_CHOICE) {
    from = o->choices;
    for (; k > 0 && from != NULL; k--) {
      from = strchr(from, '|');
      if (from != NULL) from++;
    }
    n = from == NULL ? 0 : strcspn(from, "|");
  }
  if (from == NULL || n >= size) return false;
  memcpy(out, from, n);
  out[n] = 0;
  return true;
}

/* ---- every value of every option -------------------------------------------------------------*/

/* Settings that give other options an effect. */
static const char *const companion[] = {
    "",
    " solver=eigen",
    " solver=eigen-prediv damping_split=joint",
    " solver=cholesky damping_split=full eigen_floor=0",
    " clip=norm clip_bound=0.5",
    " clip=ratio clip_bound=0.01",
    " solver=product radius=0.3",
};

/* Linear algebra, threads and ranks, which the cases use in turn. */
static const char *const turn[] = {
    "linalg=cpu",         "linalg=ref",         "linalg=cpu threads=2",
    "linalg=ref ranks=2", "linalg=cpu ranks=3", "linalg=ref threads=3",
};

static void sweep_option(const char *method, const ng_option_info *o) {
  char value[128];
  for (int32_t k = 0; write_option_value(o, k, value, sizeof value); k++) {
    bool found = false;
    for (int32_t i = 0; i < COUNT(companion); i++) {
      if (found && strcmp(method, "natgrad") != 0) break; /* other methods: once */
      if (strstr(companion[i], o->name) != NULL) continue;
      const bool ok = run_case("%s%s %s=%s %s micro=2 solve_period=2", method, companion[i],
                               o->name, value, turn[cases % COUNT(turn)]) ||
                      run_case("%s%s %s=%s %s", method, companion[i], o->name, value,
                               turn[cases % COUNT(turn)]);
      found = found || ok;
    }
  }
}

static void sweep_options(const char *method) {
  for (int32_t i = 0; i < ng_option_count(); i++) {
    ng_option_info o = {.struct_size = sizeof o};
    if (ng_option_at(i, &o) == NG_OK) sweep_option(method, &o);
  }
}

/* ---- ranks -----------------------------------------------------------------------------------*/

static void run_rank_cases(const char *method) {
  static const char *const how[] = {
      "",
      " grad_worker_fraction=0",
      " grad_worker_fraction=0.5",
      " statistics=local",
      " miss=1 part=2 stat_decay=0.7",
      " micro=2 calls=ema part=1",
      " stat_period=2 grad_worker_fraction=0",
      " nan_input=1 nan_grad=2 grad_worker_fraction=0",
      " factor_blocks=2 grad_worker_fraction=0.5",
      " update=sgd momentum=0.9 save=2",
      " save=3 reload=1",
      " save=1 reload=2 grad_worker_fraction=0",
  };
  for (int32_t i = 0; i < COUNT(how); i++) {
    for (int32_t n = 1; n <= 4; n++) {
      (void)run_case("%s%s ranks=%d threads=%d linalg=%s", method, how[i], n, 1 + (i + n) % 3,
                     (i + n) % 2 == 0 ? "cpu" : "ref");
    }
  }
}

/* ---- arrays, batches, steps, updates ---------------------------------------------------------*/

static const char *const variation[] = {
    "shown=bf16",
    "shown=f16 loss_scale=128",
    "grad=bf16 weight=bf16",
    "grad=f16 weight=f16",
    "layout=nhwc",
    "layout=nhwc pad=3",
    "layout=nhwc shown=bf16 positions=reduce",
    "layout=nhwc threads=3 stat_batch=3",
    "order=positions",
    "order=positions shown=f16 positions=reduce",
    "order=positions declare=0 stat_batch=2",
    "positions=reduce pad=2",
    "pad=5 shown=bf16 grad=f16",
    "sum=1 micro=3",
    "micro=3 uses=2 calls=mean",
    "micro=2 uses=2 calls=ema",
    "micro=3 stat_scale=kaisa samples=1",
    "borrow=1 loss_scale=-3 micro=2",
    "loss_scale=nan",
    "update=sgd momentum=0.9 decay=0.1",
    "update=sgd momentum=0.9 nesterov=1 decay=0.1",
    "update=sgd momentum=0.8 dampening=0.3 decay=0.1 decoupled=1 weight=f16",
    "update=sgd momentum=0.9 nesterov=1 grad=bf16 weight=bf16 pad=1",
    "update=sgd decay=0.2 nan_grad=2 nan_layer=3",
    "update=adamw decay=0.1",
    "update=adamw lr=0.01 decay=0.01 grad=f16 weight=f16 pad=1",
    "update=sgd zero=1 momentum=0.9 decay=0.3",
    "update=adamw zero=1 decay=0.1",
    "update=adamw save=2",
    "update=adamw nan_grad=1 steps=5",
    "update=sgd momentum=0.9 clip=ratio clip_bound=0.02",
    "clip=ratio clip_bound=0.02 zero=1",
    "clip=rms clip_bound=0.1",
    "clip=none grad=f16 dsize=30000",
    "clip=none dsize=1e37 damping=1e-6",
    "clip=kl dsize=1e-30",
    "clip=none dsize=0",
    "kl_clip=1e-8 lr=3",
    "nan_input=1",
    "nan_outgrad=1 nan_layer=2",
    "nan_grad=0",
    "shown=bf16 nan_input=1 nan_outgrad=2",
    "grad=bf16 nan_grad=1 update=sgd",
    "grad=f16 nan_grad=1 nan_layer=3 update=adamw",
    "nan_input=2 stat_batch=2",
    "reset=1 nan_input=1",
    "reset=0",
    "miss=0",
    "miss=2",
    "part=1",
    "save=2",
    "save=1 steps=6 stat_period=2 solve_period=3",
    "save=3 damping_leak=owner damping_split=pi",
    "save=2 factor_dtype=bf16 inverse_dtype=f16",
    "steps=7 stat_period=2 solve_period=3",
    "live=damping=0.7;stat_decay=0.5;clip=none",
    "live=clip=rms;clip_bound=0.1 steps=5",
    "live=solve_period=1;stat_period=2;kl_clip=1 steps=6",
    "live=solver=eigen;damping=-1;no=1",
    "live=damping=3 save=3 steps=7",
    "own=damping=3;stat_decay=0.1",
    "own=solver=eigen;damping=0.3;positions=reduce",
    "own=solve_period=1;stat_period=2;factor_blocks=2",
    "own=sides=input;stat_batch=1 clip=none",
    "own=sides=none",
    "own=calls=last;stat_start=zero micro=2",
    "max_factor=5 factor_blocks=3",
    "skip_layers=linear/5",
    "values=cancel samples=8 even=1 clip=none",
    "values=cancel samples=8 even=1 layout=nhwc clip=none damping=1e-6",
    "values=cancel samples=16 even=1 positions=reduce clip=none damping=1e-6",
    "values=cancel samples=8 even=1 shown=bf16 clip=none threads=2",
    "values=rows clip=none layout=nhwc",
    "values=rows clip=none positions=reduce",
    "values=rows clip=none positions=reduce layout=nhwc order=positions",
    "values=rows clip=none positions=reduce layout=nhwc shown=bf16",
    "values=same clip=none damping=1e-12 damping_split=full",
    "values=same size=1000 damping=1e-5 solve_period=1",
    "values=same size=3000 gsize=1000 damping=1e-3 damping_split=full solve_period=1 grow=3",
    "values=same size=300 grow=30 damping=0.1 damping_split=full solve_period=1 stat_decay=0.1",
    "values=same size=1e5 damping=1 damping_split=full solve_period=1",
    "values=same samples=1 even=1 along=1 damping=1e-9 clip=none stat_decay=0",
    "values=same samples=1 even=1 along=1 damping=1e-37 clip=none stat_decay=0 update=sgd",
    "values=zero",
    "values=zero stat_start=zero",
    "size=1e25",
    "size=1e-25 gsize=1e-20",
    "factor_dtype=bf16 inverse_dtype=bf16 solver=eigen",
    "factor_dtype=f16 inverse_dtype=f16 size=300",
    "damping_leak=owner damping_split=pi steps=6",
    "damping_leak=owner damping_split=full stat_period=3 solve_period=1 steps=6",
    "damping_leak=owner damping_split=pi stat_period=2 solve_period=1 steps=6 solver=eigen "
    "eigen_floor=0",
    "solver=eigen-prediv damping_split=pi live=damping=5",
    "solver=product radius=0.7 clip=rms clip_bound=0.2",
    "solver=product radius=0.7 clip=ratio clip_bound=0.2 update=sgd",
    "stat_scale=textbook positions=reduce sum=1",
    "sides=input clip=rms clip_bound=0.01",
    "sides=input grad=bf16 pad=1",
    "sides=none clip=ratio clip_bound=0.01",
};

static void run_variations(const char *method) {
  for (int32_t i = 0; i < COUNT(variation); i++) {
    for (int32_t k = 0; k < 2; k++) {
      (void)run_case("%s %s linalg=%s%s", method, variation[i], k == 0 ? "cpu" : "ref",
                     (i + k) % 4 == 0 ? " ranks=2" : "");
    }
  }
}

/* ---- wide layers -----------------------------------------------------------------------------*/

/* A factor of 20500 columns takes 840 MB, so methods that accept max_factor split the factor. */
static void run_long_rows(const char *method, const char *how) {
  if (!run_case("%s model=long linalg=cpu max_factor=150 %s", method, how)) {
    (void)run_case("%s model=long linalg=ref %s", method, how);
  }
}

static void run_wide_layers(const char *method) {
  static const char *const how[] = {
      "steps=2 threads=2",
      "steps=2 layout=nhwc shown=bf16 threads=3 positions=reduce",
      "steps=2 order=positions update=adamw grad=bf16 pad=1",
      "steps=2 ranks=2 threads=2 update=sgd momentum=0.9 micro=2",
      "steps=1 samples=8 even=1 values=cancel clip=none",
      "steps=1 samples=8 even=1 values=cancel clip=none layout=nhwc threads=2",
      "steps=1 clip=ratio clip_bound=0.02 threads=3",
      "steps=1 sides=input threads=2 clip=rms clip_bound=0.1",
  };
  for (int32_t i = 0; i < COUNT(how); i++) {
    (void)run_case("%s model=large linalg=cpu %s", method, how[i]);
    run_long_rows(method, how[i]);
  }
  (void)run_case("%s model=large steps=1 max_factor=200 linalg=ref threads=3", method);
  /* The model with 4,200 columns runs only with methods that have no factors, or that cut factors into diagonal
   * blocks. */
  if (strcmp(method, "sam") != 0 &&
      run_case("%s model=tall max_factor=64 stat_batch=0 steps=1 samples=600", method)) {
    (void)run_case("%s model=tall max_factor=64 stat_batch=0 steps=1 samples=600 shown=bf16 "
                   "layout=nhwc threads=3",
                   method);
  } else {
    (void)run_case("%s model=tall stat_batch=0 steps=1 samples=600 shown=bf16 threads=2", method);
  }
}

/* ---- thresholds ------------------------------------------------------------------------------*/

/* Factors from well conditioned to singular, for every rung of the ladder; then gradients close to g a', where rank
 * one recomputes in double. */
static void run_thresholds(const char *method) {
  static const char *const how[] = {"values=same samples=2",
                                    "samples=1",
                                    "samples=2 solver=eigen eigen_floor=0",
                                    "values=same factor_dtype=bf16",
                                    "values=same stat_decay=0.1 grow=20",
                                    "samples=3 solve_period=1 gsize=30"};
  for (int32_t i = 0; i < COUNT(how); i++) {
    for (int32_t k = 0; k <= 24; k++) {
      (void)run_case("%s model=one %s size=%de%d damping=1e-3 damping_split=full linalg=%s", method,
                     how[i], k % 2 == 0 ? 1 : 3, k / 2 - 4, k % 3 == 0 ? "ref" : "cpu");
    }
  }
  for (int32_t k = 0; k < 24; k++) {
    /* factors whose entries, squares of the inputs, are close to the smallest f32 */
    (void)run_case("%s size=%de-%d solver=eigen damping_split=full linalg=%s", method,
                   1 + k % 4 * 2, 18 + k / 4, k % 2 == 0 ? "ref" : "cpu");
  }
  for (int32_t k = 60; k < 100; k++) {
    (void)run_case("%s values=same samples=1 even=1 stat_decay=0 damping=1e-9 along=0.%d%s", method,
                   k, k % 2 == 0 ? "" : " sides=input");
  }
}

/* ---- at random -------------------------------------------------------------------------------*/

static void run_random_cases(int32_t wanted, uint64_t seed) {
  rng r = {seed};
  for (int32_t done = 0, tried = 0; done < wanted && tried < 100 * wanted; tried++) {
    ng_method_info m = {.struct_size = sizeof m};
    char text[BITS_TEXT];
    if (ng_method_at((int32_t)rng_below(&r, ng_method_count()), &m) != NG_OK) return;
    size_t n = (size_t)snprintf(text, sizeof text, "%s", m.name);
    for (int64_t k = rng_between(&r, 1, 5); k > 0; k--) {
      ng_option_info o = {.struct_size = sizeof o};
      char value[128];
      if (ng_option_at((int32_t)rng_below(&r, ng_option_count()), &o) != NG_OK) return;
      if (!write_option_value(&o, (int32_t)rng_below(&r, 8), value, sizeof value)) continue;
      n += (size_t)snprintf(text + n, sizeof text - n, " %s=%s", o.name, value);
    }
    for (int64_t k = rng_between(&r, 1, 2); k > 0; k--) {
      n += (size_t)snprintf(text + n, sizeof text - n, " %s",
                            variation[rng_below(&r, COUNT(variation))]);
    }
    done +=
        run_case("%s %s ranks=%d grad_worker_fraction=%s", text, turn[rng_below(&r, COUNT(turn))],
                 (int)rng_between(&r, 1, 3), rng_below(&r, 2) == 0 ? "0" : "1");
  }
}

/* ---- the program -----------------------------------------------------------------------------*/

/* Run the cases that another program printed. */
static int run_cases_of_file(const char *path) {
  char line[BITS_TEXT + 32];
  FILE *f = fopen(path, "r");
  if (f == NULL) {
    perror(path);
    return 2;
  }
  while (fgets(line, sizeof line, f) != NULL) {
    line[strcspn(line, "\n")] = 0;
    const char *text = strstr(line, "  ");
    if (text != NULL) (void)run_case("%s", text + 2);
  }
  (void)fclose(f);
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "--of") == 0) return run_cases_of_file(argv[2]);
  if (argc == 3 && strcmp(argv[1], "--every") == 0) {
    every = strtol(argv[2], NULL, 10);
    if (every < 1) return 2;
  } else if (argc > 1) {
    for (int i = 1; i < argc; i++) {
      printf("%s\n", argv[i]);
      printf("%016llx\n", (unsigned long long)bits_hash_case(argv[i], true));
    }
    return 0;
  }
  for (int32_t i = 0; i < ng_method_count(); i++) {
    ng_method_info m = {.struct_size = sizeof m};
    if (ng_method_at(i, &m) != NG_OK) return 2;
    sweep_options(m.name);
    run_rank_cases(m.name);
    run_variations(m.name);
    run_wide_layers(m.name);
    run_thresholds(m.name);
  }
  run_random_cases(1000, 20260711);
  return 0;
}
