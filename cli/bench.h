/* bench.h: what the benches and their floors share: what was asked for, numbers to work on, a median, a
 * line of JSON. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "common/cli.h"

#include <stdint.h>

typedef struct bench_wish {
  const char *model, *linalg;
  int64_t batch, layers;
  int repeat;
  bool json, list, no_floors, table, steps;
} bench_wish;

/* Numbers in [-1, 1), the same every run: a linear congruence, its upper bits. */
#define BENCH_SEED UINT64_C(88172645463325252)
static inline float bench_number(uint64_t *s) {
  *s = *s * 6364136223846793005U + 1442695040888963407U;
  return (float)(int32_t)(*s >> 32) * 0x1p-31F;
}
void bench_fill(float *x, int64_t n, float scale);

/* Start a line {"bench": NAME, "case": CASE, or without the case if it is NULL. */
ngio_out bench_line(const char *bench, const char *of);
/* Close the object, print the line and free it. */
int bench_print(ngio_out *line);
/* The "machine" of the first line: what every bench reports. */
void bench_machine(ngio_out *line, const char *processor, const char *commit, const char *method,
                   int repeat);
/* null where there is no floor, which is <= 0 then */
void bench_floor(ngio_out *line, double floor);

/* The median of n numbers, which are sorted on the way. */
double bench_median(double *x, int n);

/* bench_train.c: a line for each batch 1, 2, ..., 256: forward, backward, three ways to optimize (ms, as
 * given), and how much a whole iteration gains from the first to the last. */
int bench_iterations(const char *model, int repeat, const double optimize[3]);

/* A figure of bench train; no floor: 0. */
int bench_train_line(const bench_wish *w, const char *what, double ms, double floor);
/* bench_norms.c: norm blocks of a network for w->batch samples beside a read of their arrays, and as a share of
 * forward and backward (`passes`, ms), and where asked for of whole steps of spngd. */
struct nn;
int bench_norms(struct nn *n, const bench_wish *w, double passes);

int bench_kfac(const bench_wish *w, const cli_args *args);
int bench_train(const bench_wish *w, const cli_args *args);
int bench_eva(const bench_wish *w, const cli_args *args);
int bench_state(const bench_wish *w, const cli_args *args);
int bench_window(const bench_wish *w, const cli_args *args);

#endif
