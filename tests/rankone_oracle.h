/* rankone_oracle.h: the rank-one family (Eva) once more, as a dense float64 inverse, to check the
 * library against.
 *
 * The oracle is plain: vectors are means over explicit patches, PD is the solution of
 * (lambda I + (g a')(g a')') x = D by elimination, one unknown an entry of D, in double.
 *
 * Tolerance.  PD = (D - c g a') / lambda in f32: each of a dozen roundings of size |D| / lambda,
 * while |PD| may be as small as |D| / (alpha beta + lambda).  So the error in units of 2^-24 |PD|
 * grows by (alpha beta + lambda) / lambda, the condition of the system.  The sums behind c are off
 * by at most sixteen roundings (rankone.c).  Seen at most 2.7 in 21,000 cases; allowed 8. */
#ifndef TESTS_RANKONE_ORACLE_H
#define TESTS_RANKONE_ORACLE_H

#include "oracle.h"
#include "scene.h"

enum { R1_GROWTH = 8 };

/* What the library should say of a scene, freed by scene_forget. */
void r1_predict(const scene *s, const ng_options *opt, scene_result *out);

#endif
