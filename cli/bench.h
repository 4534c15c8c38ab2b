/* bench.h: the harness of `natgrad bench`.
 *
 * A case (bench_case) prepares its data, adds rows to the result table and runs one round; the harness reads the
 * arguments, repeats rounds, and prints each row: median, spread, lower bound, ratio. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "common/cli.h"
#include "shapes.h"

#include <stdint.h>

typedef struct bench_row {
  char name[128];
  double *ms;   /* [repeat] milliseconds of each round */
  double bound; /* lower bound in ms; <= 0: none */
} bench_row;

typedef struct bench {
  /* arguments */
  const char *model, *linalg;
  int64_t batch, repeat;
  bool json, list, no_floors;
  const cli_args *args;
  ng_options *options;
  ng_context *ctx; /* set by the harness before the case opens */
  /* set by the case */
  char prefix[96]; /* before the name of every row in JSON */
  struct {
    const char *key;
    int64_t value;
  } member[8]; /* members of every row's JSON, such as parameters and bytes */
  int members;
  void *user; /* `size` bytes for the case's data, zero before it opens */
  /* lower bounds measured so far; 0: not measured */
  double gflops, copy_gbs;
  bench_row *row;
  int rows;
  char notes[2048]; /* printed below the table */
} bench;

typedef struct bench_case {
  const char *name;
  size_t size;           /* bytes of the case's data, bench.user */
  const char *options;   /* default options of the library; NULL: the case takes no such options */
  const char *models[4]; /* models to run if --model is not given; NULL at the end */
  const char *needs, *expected; /* an option that the method must have (NULL: none); such methods */
  int (*list)(const bench *b);  /* print the layers for --list; NULL: the case ignores --list */
  int (*open)(bench *b);        /* prepare the data, add rows, call bench_print_title */
  int (*round)(bench *b, int r); /* r = -1: the warm-up, which is not counted */
  int (*bounds)(bench *b);       /* set the lower bounds of the rows, add notes */
  int (*finish)(bench *b);       /* add notes after the last round; NULL: none */
  void (*close)(bench *b);       /* free the data, also after a failure of open */
} bench_case;

extern const bench_case bench_kfac, bench_train, bench_eva, bench_state, bench_window;

/* Add a row with this name; return its index. */
__attribute__((format(printf, 2, 3))) int bench_add_row(bench *b, const char *format, ...);
/* Record the time of `row` in round r; do nothing in the warm-up (r = -1). */
void bench_set_time(bench *b, int row, int r, double ms);
/* Print the title of the table and the machine; open calls it before the first round. */
__attribute__((format(printf, 2, 3))) void bench_print_title(const bench *b, const char *format,
                                                             ...);
__attribute__((format(printf, 2, 3))) void bench_add_note(bench *b, const char *format, ...);
/* Add "key": value to every row's JSON. */
void bench_add_member(bench *b, const char *key, int64_t value);

int bench_fail(const bench *b, const char *what, ng_status st);
double bench_find_median(double *x, int n); /* sorts x */
/* Return a rate, measured at the first call; <= 0: not measurable. */
double bench_measure_sgemm(bench *b); /* GFLOP/s of SGEMM of order 4096 */
double bench_measure_copy(bench *b);  /* GB/s that a copy reads and writes */

/* Return the next of a sequence of numbers in [-1, 1) that is the same in every run. */
#define BENCH_SEED UINT64_C(88172645463325252)
static inline float bench_next_random(uint64_t *s) {
  *s = *s * 6364136223846793005U + 1442695040888963407U;
  return (float)(int32_t)(*s >> 32) * 0x1p-31F;
}
void bench_fill_random(float *x, int64_t n, float scale);
/* Allocate n zeroed floats, aligned to 64 bytes, or end the program with one line if there is no memory. */
float *bench_alloc(int64_t n);

/* List the layers with weights of `model`.  If `model` is a number of parameters, list that many parameters as matrices
 * of `cols` columns and at most `rows` rows. */
int bench_list_layers(const char *model, int64_t rows, int64_t cols, shapes *out);
/* Add each layer of `list` to p as a linear layer [out, p] without bias; bind its gradient to the next part of `grad`
 * and its weight to the next part of `weight` (NULL: no weights).  Then call ng_ready. */
ng_status bench_add_layers(ng_precond *p, const shapes *list, float *grad, float *weight);
/* For each layer, observe the first elements of x [samples * bench_largest_order] as input and as output gradient. */
ng_status bench_observe(ng_precond *p, const shapes *list, float *x, int64_t samples);
int64_t bench_count_parameters(const shapes *list); /* number of parameters */
int64_t bench_largest_order(const shapes *list);    /* the largest order of a factor */

/* ---- floors.c: lower bounds, measured in this process with the BLAS that natgrad uses, on all threads ----------
 *
 * Times are the least of ten runs (of fewer, but at least three, if the runs take more than three seconds).  A negative
 * result: no BLAS, or LAPACK failed. */

bool floors_have_blas(void); /* false in a build without BLAS */

double floor_measure_sgemm(int order);    /* 2 order^3 operations / time         */
double floor_measure_copy(void);          /* bytes read and written / time       */
int64_t floor_read_cache_bytes(void);     /* size of the last-level cache        */
double floor_measure_cholesky(int64_t n); /* ms of spotrf and spotri of order n  */

#endif
