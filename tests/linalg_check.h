/* linalg_check.h: helpers for tests of linear algebra: limits of errors, random matrices, dense products in double.
 *
 * The executor of the queue runs the pieces of a loop from the last to the first.  Every matrix has canaries before
 * it, after it, and in the padding of its rows: NaN with a fixed bit pattern, so a read spreads NaN and a write is
 * found. */
#ifndef TESTS_LINALG_CHECK_H
#define TESTS_LINALG_CHECK_H

#include <float.h>
#include <inttypes.h>
#include <stdio.h>

#include "dense.h"
#include "late.h"

#define U32 ((double)FLT_EPSILON / 2) /* unit roundoff */
#define U64 (DBL_EPSILON / 2)
static const ng_dtype matrix_dtype[] = {NG_F32, NG_F64};
static inline double unit_of(ng_dtype t) { return t == NG_F64 ? U64 : U32; }

enum { PRODUCT, SUMMED, FACTOR, INVERSE, SOLVE, EIGEN, ORTHOGONAL, VALUES, PROBED, QR, LIMITS };

/* Fail the test, with the seed and the case, if `ratio` is above the limit of `kind` or NaN. */
void check_ratio(int kind, const ng_backend *on, double ratio);
void fail_case(const char *what, int line);
#define CHECK(x)                                                                                   \
  do {                                                                                             \
    if (!(x)) fail_case(#x, __LINE__);                                                             \
  } while (0)
extern char case_text[200];
#define CASE(...) (void)snprintf(case_text, sizeof case_text, __VA_ARGS__)

/* Fixtures of cmocka: set the seed; restart the generator before each test, so a test gives the same numbers when it
 * runs alone; print the largest ratios. */
int seed_begin(void **state);
int seed_restart(void **state);
int print_largest_ratios(void **state);
double uniform(void); /* [-1, 1) */

/* A queue of a backend, with three pieces per loop. */
ng_queue queue_of(const ng_backend *on);
/* DO: run an entry and wait. INFO: the same, and return its info. */
#define DO(q, entry, ...) (ng_linalg(q)->entry((q), __VA_ARGS__), ng_queue_wait(q))
#define INFO(q, entry, ...)                                                                        \
  (ng_linalg(q)->entry((q), __VA_ARGS__, &left_info), ng_queue_wait(q),                            \
   ng_read_info((q), &left_info))
extern int left_info;

typedef struct mat {
  float *a; /* f64: doubles, read by ng_number_at */
  int64_t rows, cols, ld;
  ng_dtype t; /* f32 or f64 */
} mat;
mat mat_new(int64_t rows, int64_t cols, int64_t pad); /* f32, full of canaries */
mat mat_new_of(ng_dtype t, int64_t rows, int64_t cols, int64_t pad);
mat mat_random(int64_t rows, int64_t cols, int64_t pad);
mat mat_random_of(ng_dtype t, int64_t rows, int64_t cols, int64_t pad);
mat mat_of_sym(ng_dtype t, ng_sym s); /* [1, ng_sym_count] a copy in ng_sym order */
void mat_check(mat m);                /* the canaries are intact, and no element is NaN */
void mat_free(mat m);

ng_sym sym_new(int64_t n);
ng_sym sym_random(int64_t n);
ng_sym sym_positive(int64_t n, double shift); /* X X' / n + shift I */
ng_sym sym_copy(ng_sym s);
void sym_check(ng_sym s);
void sym_free(ng_sym s);

double *dense(ng_sym s); /* element by element through ng_sym_at */
/* return the full matrix of a matrix of order n in ng_sym order */
double *dense_packed(int64_t n, mat m);
double *dense_mat(mat m);
double frobenius(const double *a, int64_t count);
double *times(const double *A, const double *B, int64_t m, int64_t k, int64_t n); /* dense A B */

/* Scratch with a canary at its end, aligned to 64 bytes. */
void *work_new(int64_t bytes);
void work_free(void *work, int64_t bytes);

enum { SIZES = 18 };
extern const int64_t sizes[SIZES];
#define EACH_SIZE(n)                                                                               \
  for (int i_ = 0, go_ = 1; i_ < SIZES; i_++, go_ = 1)                                             \
    for (const int64_t n = sizes[i_]; go_; go_ = 0)

/* Odd lengths, lengths above the cut of a loop, and lengths near the tiles of a conversion. */
enum { LENGTHS = 14 };
extern const int64_t lengths[LENGTHS];
#define EACH_LENGTH(n)                                                                             \
  for (int n_ = 0, in_ = 1; n_ < LENGTHS; n_++, in_ = 1)                                           \
    for (const int64_t n = lengths[n_]; in_; in_ = 0)

bool same(float x, float y); /* equal bits, or both NaN */

static inline void sym_set(ng_sym s, int64_t i, int64_t j, float v) {
  s.a[ng_sym_at(s.n, i, j)] = v;
}
/* Set s to d times the identity. */
static inline void sym_diagonal(ng_sym s, float d) {
  for (int64_t i = 0; i < ng_sym_count(s.n); i++)
    s.a[i] = 0.0f;
  for (int64_t i = 0; i < s.n; i++)
    sym_set(s, i, i, d);
}

/* EACH: a row of a table; run_on_backends runs the row on every backend of late.h, which is the state of the test. */
#define EACH(f)                                                                                    \
  { #f, f, seed_restart, NULL, NULL }
int run_on_backends(const char *group, const struct CMUnitTest *tests, size_t n);

#endif
