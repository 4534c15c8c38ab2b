/* variants.h: what the property tests share: linear algebras and solvers to go through, scenes with
 * every kind of layer, and comparisons.
 *
 * Tolerance.  Two runs that are equal in exact arithmetic differ in f32 by rounding of the factors,
 * which reaches the result times the condition of the damped curvature (oracle_condition).  A few
 * units 2^-24 for the sums, times the square root of the dimension: GROWTH units for each of the
 * two runs, as measured in t_oracle.c.
 */
#ifndef TESTS_VARIANTS_H
#define TESTS_VARIANTS_H

#include "scene.h"

extern const double GROWTH, unit;

typedef struct variant {
  const char *linalg, *solver, *split;
} variant;
enum { VARIANTS = 8 };
extern const variant variants[VARIANTS];

/* Those whose linear algebra is built in. */
#define EVERY_VARIANT(v)                                                                           \
  for (const variant *v = variants; v < variants + VARIANTS; v++)                                  \
    if (v_built_in(v->linalg))
bool v_built_in(const char *linalg);

/* Set an option, or fail the test. */
void v_set(ng_options *o, const char *name, const char *value);
/* Row natgrad with the variant's solver; a damping that keeps everything well conditioned. */
ng_options v_options(const variant *v);

/* Play, or fail the test if the status is not NG_OK or ranks differ in a bit. */
scene_result v_play_as(const scene *s, const ng_options *o, const scene_look *look);
scene_result v_play(const scene *s, const ng_options *o, const variant *v);

/* The oracle's condition of the worst layer and step. */
double v_condition_of(const scene *s, const ng_options *o);
/* Results and nu are equal up to `tolerance` of the largest entry, or the test fails. */
void v_same(const char *what, const variant *v, const scene *s, const scene_result *x,
            const scene_result *y, double tolerance);

/* Two linear layers (one with positions) and two convolutions (one grouped, strided, dilated). */
scene *v_layers_of(int32_t steps, int32_t ranks);
/* The same, filled; every rank has its own number of micro-batches of its own sizes, summed losses.
 */
scene *v_uneven(int32_t steps, int32_t ranks, uint64_t salt);

double v_dot(const double *x, const double *y, int64_t n);

#endif
