/* bf16.h: products with operands in bf16 and sums in f32, by the instructions of the processor, and Newton-Schulz by these products.
 *
 * In: blocks of 32 x 32 elements.  Out: blocks; the result of an ng_newton_schulz with rounding.  Two bodies of the product exist:
 * AVX512_BF16 and AMX. Without them, newton_schulz.c computes the products in f32. Both bodies, as the instructions do, take
 * subnormal numbers for 0: each term of a sum changes by at most 2^-126 times its other factor (of Newton-Schulz: about 1).
 *
 * A block of a matrix has 2048 bytes. Its columns are the k of a product on the left side, its rows those on the right side:
 *     rows    M[i][j], row-major. The left operand of a product.
 *     pairs   two halves of 16 columns; in a half, [row i / 2][column][i % 2]. The right operand of a product.
 * A panel is a row of blocks (left operand) or a column of blocks (right operand), one after the other, so a product reads
 * two panels from beginning to end. */
#ifndef NG_BF16_H
#define NG_BF16_H

#include "linalg/linalg.h"

/* Whether the compiler has the bodies. */
#if defined(__x86_64__) && defined(__linux__) &&                                                   \
    ((defined(__clang__) && __clang_major__ >= 14) ||                                              \
     (!defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 12))
#define NG_BF16_BODIES
#endif

enum { NG_BF16_SIDE = 32, NG_BF16_BYTES = 2048, NG_BF16_SUMS = NG_BF16_SIDE * NG_BF16_SIDE };

typedef enum ng_bf16_body { NG_BF16_NONE, NG_BF16_AVX512, NG_BF16_AMX } ng_bf16_body;
/* Return whether the processor and the operating system support a body. For AMX, request permission for the tile registers
 * (arch_prctl). */
bool ng_bf16_can_run(ng_bf16_body body);
/* Return the fastest body. On Intel's processors AVX512_BF16 multiplies as many numbers as AVX-512 does in f32, so there only AMX is
 * faster than the products of BLAS. */
ng_bf16_body ng_bf16_find_body(void);

/* Before and after products of a thread. */
void ng_bf16_begin(ng_bf16_body body);
void ng_bf16_end(ng_bf16_body body);
/* c [32, 32] = the product of two panels of `blocks` blocks, plus c if `adds`. */
void ng_bf16_multiply(ng_bf16_body body, const char *left, const char *right, int64_t blocks,
                      bool adds, float *c);

/* rows <- by c + by_old old, rounded; with `each`, rounded(by_old old) + rounded(by c), rounded. old: in rows (NULL: 0); may be
 * `rows`. */
void ng_bf16_round(const float *c, float by, const char *old, float by_old, bool each, char *rows);
void ng_bf16_scale(const char *old, float by, char *rows); /* rows <- by old, rounded */
void ng_bf16_interleave(const char *rows, char *pairs);    /* rows of M to pairs of M */
/* rows of M to pairs of M'; pairs of M to rows of M' */
void ng_bf16_turn(const char *from, char *to);

/* rows <- x / norm, x rounded before and after the division; x [height, width], at most 32 x 32, is padded with 0. */
void ng_bf16_load(const float *x, int64_t ld, int64_t height, int64_t width, float norm,
                  char *rows);
/* x <- by M, rounded to bf16 if `rounds` */
void ng_bf16_store(const char *rows, float by, bool rounds, float *x, int64_t ld, int64_t height,
                   int64_t width);
/* Return the sum of squares of x, whose elements are rounded to bf16 first. */
double ng_bf16_sum_squares(const float *x, int64_t n);

/* ---- bf16_schulz.c ---------------------------------------------------------------------------*/

/* Compute X of a descriptor, or return false without a body, without rounding, or if padding a side to blocks would more than
 * double it. The bits of X do not depend on the number of threads. */
bool ng_bf16_newton_schulz(ng_queue *q, ng_bf16_body body, const ng_newton_schulz *x,
                           float *scratch);

#endif
