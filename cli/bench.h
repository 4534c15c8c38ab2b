/* bench.h: what the benches share: what was asked for, and the line about the machine. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "cli.h"

#include <stdint.h>

typedef struct bench_wish {
  const char *model, *linalg;
  int64_t batch;
  int repeat;
  bool json, list, no_floors, table;
} bench_wish;

/* The median of n numbers, which are sorted on the way. */
double bench_median(double *x, int n);

/* bench_train.c: a line for each batch 1, 2, ..., 256: forward, backward, three ways to optimize (ms, as
 * given), and how much a whole iteration gains from the first to the last. */
int bench_iterations(const char *model, int repeat, const double optimize[3]);

int bench_kfac(const bench_wish *w, const cli_args *args);
int bench_train(const bench_wish *w, const cli_args *args);
int bench_eva(const bench_wish *w, const cli_args *args);

#endif
