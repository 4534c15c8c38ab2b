/* bench.h: the harness of `natgrad bench`.
 *
 * A case (bench_case) prepares its data, adds rows to the table of results, and runs one round. The harness reads the
 * arguments, runs the rounds, and prints median, spread, lower bound and ratio of each row. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "common/cli.h"
#include "shapes.h"

#include <stdint.h>

typedef struct bench_row {
  char name[128];
  double *ms;   /* [repeat]: milliseconds in each round */
  double bound; /* lower bound of the time in ms; <= 0: none */
} bench_row;

typedef struct bench {
  /* arguments of the command line */
  const char *model, *linalg;
  int64_t batch, repeat;
  bool prints_json, lists_layers, skips_bounds; /* --json, --list, --no-floors */
  const cli_args *args;
  ng_options *options;
  ng_context *ctx; /* context of the library, which exists before the case opens */
  /* set by the case */
  char prefix[96]; /* prefix of the name of every row in JSON */
  struct {
    const char *json_key;
    int64_t value;
    /* additional members of every row in the JSON output, such as the number of parameters */
  } member[8];
  int members; /* number of entries in `member` */
  void *user;  /* bench_case.size bytes for the case's data, initially zero */
  /* measured rates of SGEMM and of a copy; 0: not measured yet */
  double gflops, copy_gbs;
  bench_row *row;
  int rows;
  char notes[2048]; /* printed below the table */
} bench;

typedef struct bench_case {
  const char *name;
  size_t size;           /* bytes of bench.user */
  const char *options;   /* options of the library, before the user's; NULL: the case has none */
  const char *models[4]; /* models to run if --model is not given; ends with NULL */
  /* an option that the method must have, or NULL; text that lists the methods with this option */
  const char *needs, *expected;
  int (*list)(const bench *b);   /* print the layers (--list); NULL: --list is ignored */
  int (*open)(bench *b);         /* prepare the data, add rows, and call bench_print_title */
  int (*round)(bench *b, int r); /* run round r; r = -1 is the warm-up, whose times do not count */
  int (*bounds)(bench *b);       /* set the lower bounds of the rows, add notes */
  int (*finish)(bench *b);       /* add notes after the last round; may be NULL */
  void (*close)(bench *b);       /* free the data; also called if open fails */
} bench_case;

extern const bench_case bench_kfac, bench_train, bench_eva, bench_state, bench_window;

/* Add a row with this name; return its index. */
__attribute__((format(printf, 2, 3))) int bench_add_row(bench *b, const char *format, ...);
/* Record the time of a row in round r. In the warm-up (r = -1), do nothing. */
void bench_record_time(bench *b, int row, int r, double ms);
/* Print the title of the table, and a line about the machine and the build. bench_case.open calls this function. */
__attribute__((format(printf, 2, 3))) void bench_print_title(const bench *b, const char *format,
                                                             ...);
__attribute__((format(printf, 2, 3))) void bench_add_note(bench *b, const char *format, ...);
/* Add "json_key": value to every row's JSON. */
void bench_add_json_member(bench *b, const char *json_key, int64_t value);

int bench_report_error(const bench *b, const char *what, ng_status st);
double bench_find_median(double *x, int n); /* sorts x */
/* Return a rate, which the first call measures; <= 0: the measurement is not possible. */
double bench_measure_sgemm(bench *b); /* GFLOP/s of a matrix product (SGEMM) of order 4096 */
double bench_measure_copy(bench *b);  /* return the GB/s that a copy reads and writes */

/* Return the next number of a pseudo-random sequence in [-1, 1), which is the same in every run. */
#define BENCH_SEED UINT64_C(88172645463325252)
static inline float bench_next_random(uint64_t *s) {
  *s = *s * 6364136223846793005U + 1442695040888963407U;
  return (float)(int32_t)(*s >> 32) * 0x1p-31F;
}
void bench_fill_random(float *x, int64_t n, float scale);
/* Allocate n zeroed floats, aligned to 64 bytes. If there is no memory, end the program with an error. */
float *bench_alloc(int64_t n);

/* List the layers of `model` that have weight matrices. If `model` is a number, list that many parameters as matrices
 * of `cols` columns and at most `rows` rows. */
int bench_list_layers(const char *model, int64_t rows, int64_t cols, shapes *out);
/* Add each layer of `list` to p as a linear layer [out, p] without bias. The layers bind consecutive ranges of `grad`
 * as gradients, and of `weight` as weights (NULL: no weights). Then call ng_ready. */
ng_status bench_add_layers(ng_precond *p, const shapes *list, float *grad, float *weight);
/* Observe x [samples * bench_find_largest_order] as input and as output gradient of every layer: its first elements. */
ng_status bench_observe_layers(ng_precond *p, const shapes *list, float *x, int64_t samples);
int64_t bench_count_parameters(const shapes *list);
int64_t bench_find_largest_order(const shapes *list); /* the largest order of any factor A or G */

/* ---- floors.c: rates, measured in this process with the BLAS that natgrad uses, on all threads --------------------
 *
 * Times are the shortest of ten runs (of fewer, but at least three, if these take more than three seconds). A negative
 * result: the build has no BLAS, or LAPACK failed. */
/* return false in a build without BLAS, which cannot measure arithmetic rates */
bool floors_have_blas(void);
double floor_measure_sgemm(int order);    /* return the GFLOP/s of a matrix product of this order */
double floor_measure_copy(void);          /* GB/s read and written by a copy */
int64_t floor_read_cache_bytes(void);     /* size of the last-level cache        */
double floor_measure_cholesky(int64_t n); /* ms of spotrf and spotri (inverse by Cholesky) */

#endif
