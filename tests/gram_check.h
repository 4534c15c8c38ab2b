/* gram_check.h: what the tests of fresh factors share: guarded memory, arrays that lie in any way, and
 * the factors of rows and of patches by loops over everything, in double, written from the definitions.
 *
 * Everything that must not be read (padding between samples, samples beyond `take`, channels outside
 * the range, scratch) is NaN. */
#ifndef TESTS_GRAM_CHECK_H
#define TESTS_GRAM_CHECK_H

#include "core/core.h"
#include "stat/gram.h"

/* Random numbers of the program, from the seed on (NG_TEST_SEED). */
void seed_numbers(void);
uint64_t draw(void);
int64_t between(int64_t low, int64_t high); /* both included */
double uniform(void);                       /* [0, 1) */
double grid_value(void);                    /* k / 8, |k| <= 15 */
ng_dtype any_dtype(void);

/* The kinds of linear algebra that there are. */
#if defined(NG_HAVE_BLAS)
enum { NAMES = 2 };
#else
enum { NAMES = 1 };
#endif
extern const char *const names[NAMES];
ng_context *context(const char *linalg, int32_t threads);

/* ---- guarded memory --------------------------------------------------------------------------*/

void *need(int64_t bytes); /* 64-aligned; free() */
/* NaN, with a border that must stay as it is. */
float *guarded(int64_t floats);
/* Fails the test if the border was written. */
void release(float *p, int64_t floats, const char *what);

/* A factor that starts from something, and the same as dense doubles. */
ng_sym start(int64_t n, double *dense);
/* Compares S with `want`; at most `tolerance` times the largest entry apart. */
void compare(ng_sym S, const double *want, double tolerance, const char *what);
/* want += alpha sum r r', r [n]. */
void outer(double *want, int64_t n, const double *r, double alpha);

/* ---- ways to lie -----------------------------------------------------------------------------*/

/* An array of [samples, columns, height, width] in memory, innermost axis first, with gaps between. */
typedef enum lie { LIE_NCHW, LIE_NHWC, LIE_HNWC, LIE_ANY, LIES } lie;

typedef struct shown {
  lie how;
  void *data;
  ng_view v;
  int64_t by[4]; /* elements from one sample, column, row, pixel to the next */
} shown;

lie any_lie(void);
shown lay_out(lie how, int64_t samples, int64_t columns, int64_t height, int64_t width, ng_dtype t);
void show(const shown *s, int64_t n, int64_t c, int64_t y, int64_t x, double value);

/* ---- convolutions ----------------------------------------------------------------------------*/

typedef struct picture {
  ng_conv c;
  lie how;
  ng_dtype t;
  int64_t samples, take, c0, c1; /* c0, c1 of the input, or of the output for a gradient */
  bool one;
  int reduce;
} picture;

const char *title(const picture *g, const char *who);
/* The size of the output; false if there is none. */
bool finish(ng_conv *c);
picture any_picture(bool stride_one);
/* Images of `channels` x h x w, in the way they lie; value[] is [n][c][y][x]. */
shown images(const picture *g, int64_t channels, int64_t h, int64_t w, double *value,
             double (*next)(void));
/* The patch of an output position, ordered (kernel offset, channel), then the 1. */
void patch_of(const picture *g, const double *x, int64_t oy, int64_t ox, double *row);
int64_t order_of(const picture *g);
/* want += alpha * the sum over rows, by the definition. */
void naive_input(const picture *g, const double *value, double alpha, double *want);

#endif
