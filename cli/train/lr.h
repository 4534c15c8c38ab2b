/* lr.h: learning rate schedules: parse a schedule, and compute its factor at any time of a run. */
#ifndef LR_H
#define LR_H

#include <stddef.h>

typedef enum lr_kind {
  LR_CONSTANT,
  LR_STEP,
  LR_COSINE,
  LR_LINEAR,
  LR_POLYNOMIAL,
  LR_CYCLIC
} lr_kind;

/* The parsed form of NAME[:value,value,...][@extra,extra]. lr_parse sets missing values to their defaults. */
enum { LR_VALUES = 32, LR_EXTRAS = 2 };
typedef struct lr_schedule {
  lr_kind kind;
  int values, extras;
  double value[LR_VALUES]; /* epochs of step, FINAL, POWER, PERIOD */
  double extra[LR_EXTRAS]; /* FACTOR of step, START and END of polynomial, LOW of cyclic */
} lr_schedule;

/* Parse `text`. Return CLI_OK, or CLI_BAD with the expected form in `message`. */
int lr_parse(const char *text, lr_schedule *out, char *message, size_t size);

/* Return the factor that multiplies lr after `epoch` of `total` epochs. With e = epoch, w = warm_up and p = (e - w) /
 * (total - w), clipped to [0, 1]:
 *   constant    1
 *   step        FACTOR^n, n the number of given epochs <= e, FACTOR 0.1
 *   cosine      FINAL + (1 - FINAL) (1 + cos(pi p)) / 2, FINAL 0   (Loshchilov & Hutter 2017)
 *   linear      1 + (FINAL - 1) p, FINAL 0
 *   polynomial  (1 - p)^POWER; with @START,END: 1 before START, then p = (e - START) / (max(END, total) - START)
 *   cyclic      a triangle of PERIOD epochs: LOW at its ends, 1 in the middle, LOW 0.1   (Smith 2017)
 * While e < w, the factor is also multiplied by e / w. */
double lr_compute_factor(const lr_schedule *l, double warm_up, double epoch, double total);

#endif
