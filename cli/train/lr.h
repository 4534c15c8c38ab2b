/* lr.h: the learning rate at any time of a run. */
#ifndef LR_H
#define LR_H

#include "settings.h"

typedef enum lr_kind {
  LR_CONSTANT,
  LR_STEP,
  LR_COSINE,
  LR_LINEAR,
  LR_POLYNOMIAL,
  LR_CYCLIC
} lr_kind;

enum { LR_POINTS = 32 };
typedef struct lr_schedule {
  lr_kind kind;
  double number;     /* FACTOR, FINAL, POWER or LOW */
  double period;     /* cyclic */
  double start, end; /* polynomial, in epochs; end 0: the run's */
  int points;        /* step  */
  double point[LR_POINTS];
} lr_schedule;

/* CLI_BAD: `message` has what was expected. */
int lr_parse(const char *text, lr_schedule *out, char *message, size_t size);

/* `epoch` >= 0 passes are over, of `total`.  With e = epoch, w = warm_up, and
 * p = (e - w) / (total - w) in [0, 1], the part of the run after the warm-up that is over:
 *   constant    1
 *   step        FACTOR^(points <= e), FACTOR 0.1
 *   cosine      FINAL + (1 - FINAL) (1 + cos(pi p)) / 2, FINAL 0   (Loshchilov & Hutter 2017)
 *   linear      1 + (FINAL - 1) p, FINAL 0
 *   polynomial  (1 - p)^POWER; with @START,END, epochs of the run: 1 before START, then p is
 *               (e - START) / (max(END, total) - START): the run may be over before lr is 0
 *   cyclic      a triangle of PERIOD epochs: LOW at its ends, 1 in the middle, LOW 0.1 (Smith 2017)
 * times lr, and times e / w while e < w. */
double lr_at(const settings *s, double epoch, double total);

#endif
