/* bench.h: the harness of `natgrad bench`.
 *
 * A case makes its work, names the rows of its result and runs one round; the harness reads the arguments,
 * repeats rounds, and prints each row: median, spread, lower bound, ratio. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "common/cli.h"
#include "shapes.h"

#include <stdint.h>

typedef struct bench_row {
  char work[128];
  double *ms;   /* [repeat] */
  double bound; /* lower bound in ms; <= 0: none */
} bench_row;

typedef struct bench {
  /* arguments */
  const char *model, *linalg;
  int64_t batch, repeat;
  bool json, list, no_floors;
  const cli_args *args;
  ng_options *options;
  /* made by the harness before the case opens */
  ng_context *ctx;
  /* set by the case */
  char prefix[96]; /* of the rows' names in JSON */
  struct {
    const char *key;
    int64_t value;
  } common[8]; /* in every row's JSON: parameters, bytes */
  int commons;
  void *user; /* the case's work, zero before it opens */
  /* lower bounds measured so far; 0: not measured */
  double gflops, copy_gbs;
  bench_row *row;
  int rows, room;
  char notes[2048]; /* printed below the table */
} bench;

typedef struct bench_case {
  const char *name;
  size_t size;           /* of its work */
  const char *options;   /* the case's values of library options; NULL: the case takes none */
  const char *models[4]; /* without --model; NULL at the end */
  const char *family, *expected; /* of methods, and their names; NULL: any */
  int (*list)(const bench *b);   /* --list; NULL: no such option */
  int (*open)(bench *b);         /* make the work, add rows, bench_title */
  int (*round)(bench *b, int r); /* r = -1: the warm-up, which is not counted */
  int (*bounds)(bench *b);       /* set bounds of rows, add notes */
  int (*finish)(bench *b);       /* more rows or notes; NULL: none */
  void (*close)(bench *b);       /* also after a failure of open */
} bench_case;

extern const bench_case bench_kfac, bench_train, bench_eva, bench_state, bench_window;

/* Return the index of the new row. */
__attribute__((format(printf, 2, 3))) int bench_add(bench *b, const char *format, ...);
/* Record the time of round r; ignored for r = -1. */
void bench_time(bench *b, int row, int r, double ms);
/* The first line of a table, printed with the machine before the first round. */
__attribute__((format(printf, 2, 3))) void bench_title(const bench *b, const char *format, ...);
__attribute__((format(printf, 2, 3))) void bench_note(bench *b, const char *format, ...);
/* Add "key": value to every row's JSON. */
void bench_common(bench *b, const char *key, int64_t value);

int bench_failed(const bench *b, const char *what, ng_status st);
double bench_median(double *x, int n); /* sorts x */
/* Measure the rate once. */
double bench_gflops(bench *b); /* SGEMM of order 4096; <= 0: none */
double bench_copy_gbs(bench *b);

/* Numbers in [-1, 1), the same in every run. */
#define BENCH_SEED UINT64_C(88172645463325252)
static inline float bench_number(uint64_t *s) {
  *s = *s * 6364136223846793005U + 1442695040888963407U;
  return (float)(int32_t)(*s >> 32) * 0x1p-31F;
}
void bench_fill(float *x, int64_t n, float scale);
/* An array of n floats at a cache line, zeroed.  Without memory the program ends with one line. */
float *bench_floats(int64_t n);

/* Layers of a model, or of a number of parameters: matrices of `cols` columns and at most `rows` rows. */
int bench_layers(const char *model, int64_t rows, int64_t cols, shapes *out);
/* Add these layers as linear ones without bias, out x p each, bound to successive parts of grad and, unless it is
 * NULL, of weight; then ng_ready. */
ng_status bench_linear(ng_precond *p, const shapes *list, float *grad, float *weight);
/* Observe the first elements of x [samples * bench_longest] as input and as output gradient of each such layer. */
ng_status bench_observe(ng_precond *p, const shapes *list, float *x, int64_t samples);
int64_t bench_count(const shapes *list);   /* parameters */
int64_t bench_longest(const shapes *list); /* the largest order of a factor */

#endif
