/* linalg_check.h: what the tests of linear algebra share: limits, random matrices between canaries,
 * dense products in double.
 *
 * Entries go through a queue whose executor runs its pieces from the last to the first.  Every matrix
 * stands between canaries, NaN with a bit pattern of our own, in front, behind and in
 * the padding of its rows: they must survive, and whoever computes with one shows it. */
#ifndef TESTS_LINALG_CHECK_H
#define TESTS_LINALG_CHECK_H

#include <float.h>
#include <inttypes.h>
#include <stdio.h>

#include "linalg/linalg.h"

#define U32 ((double)FLT_EPSILON / 2) /* unit roundoff */
#define U64 (DBL_EPSILON / 2)

enum { PRODUCT, SUMMED, FACTOR, INVERSE, SOLVE, EIGEN, ORTHOGONAL, VALUES, PROBED, LIMITS };

/* Fails the test, with the seed and the case, if `ratio` is above the limit of `kind` or NaN. */
void hold(int kind, const ng_linalg_ops *la, double ratio);
void fail_case(const char *what, int line);
#define CHECK(x)                                                                                   \
  do {                                                                                             \
    if (!(x)) fail_case(#x, __LINE__);                                                             \
  } while (0)
extern char case_text[200];
#define CASE(...) (void)snprintf(case_text, sizeof case_text, __VA_ARGS__)

/* Fixtures: the seed of the program (NG_TEST_SEED); back to it, so that one test alone repeats
 * itself; print the largest ratios. */
int seed_begin(void **state);
int seed_restart(void **state);
int print_largest_ratios(void **state);
double uniform(void); /* [-1, 1) */

/* A queue of its own for a linear algebra, three pieces to a loop. */
ng_queue queue_of(const ng_linalg_ops *la);
/* An entry and the wait for it; the info it left, read where infos are read. */
#define DO(q, entry, ...) (ng_on(q)->entry((q), __VA_ARGS__), ng_queue_wait(q))
#define INFO(q, entry, ...)                                                                        \
  (ng_on(q)->entry((q), __VA_ARGS__, &left_info), ng_queue_wait(q), ng_info_read((q), &left_info))
extern int left_info;

typedef struct mat {
  float *a;
  int64_t rows, cols, ld;
} mat;
mat mat_new(int64_t rows, int64_t cols, int64_t pad); /* canaries everywhere */
mat mat_random(int64_t rows, int64_t cols, int64_t pad);
void mat_check(mat m); /* nothing around it was written, nothing in it is NaN */
void mat_free(mat m);

ng_sym sym_new(int64_t n);
ng_sym sym_random(int64_t n);
ng_sym sym_positive(int64_t n, double shift); /* X X' / n + shift I */
ng_sym sym_copy(ng_sym s);
void sym_check(ng_sym s);
void sym_free(ng_sym s);

double *doubles(int64_t count); /* zeros; free() */
double *dense(ng_sym s);        /* element by element through ng_sym_at */
double *dense_mat(mat m);
double frobenius(const double *a, int64_t count);
double *times(const double *A, const double *B, int64_t m, int64_t k, int64_t n); /* dense A B */

/* Work with a canary at its end, 64-aligned. */
void *work_new(int64_t bytes);
void work_free(void *work, int64_t bytes);

enum { SIZES = 18 };
extern const int64_t sizes[SIZES];
#define EACH_SIZE(n)                                                                               \
  for (int i_ = 0, go_ = 1; i_ < SIZES; i_++, go_ = 1)                                             \
    for (const int64_t n = sizes[i_]; go_; go_ = 0)

static inline void sym_set(ng_sym s, int64_t i, int64_t j, float v) {
  s.a[ng_sym_at(s.n, i, j)] = v;
}
/* d I */
static inline void sym_diagonal(ng_sym s, float d) {
  for (int64_t i = 0; i < ng_sym_count(s.n); i++)
    s.a[i] = 0.0f;
  for (int64_t i = 0; i < s.n; i++)
    sym_set(s, i, i, d);
}

#endif
