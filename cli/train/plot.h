/* plot.h: a gnuplot script with its data, and the pictures made from it. */
#ifndef PLOT_H
#define PLOT_H

#include <stdbool.h>

typedef struct spread {
  int n;                  /* number of finite values */
  double mean, deviation; /* sample deviation (n - 1); NaN for n < 2 */
  double min, max;
} spread;

typedef struct plot_point { /* statistics over seeds after an epoch; NaN: no value */
  double epoch, seconds;
  spread loss, score;
} plot_point;

typedef struct plot_curve {
  char label[128];
  bool diverged; /* every run diverged */
  int n;
  plot_point *point;
} plot_curve;

typedef struct plot {
  const char *title;
  const char *score;  /* name of the score in the third panel */
  double score_scale; /* factor of the shown score: 100 for percent */
  bool score_log;
  double target; /* score of a horizontal line in the third panel; NaN: no line */
  int n;
  const plot_curve *curve;
} plot;

/* Write the gnuplot script to `path`. Return CLI_BAD after a message. */
int plot_write(const plot *p, const char *path);

/* Run gnuplot on DIR/plot.gp, which writes DIR/curves.svg and DIR/curves.png; print one line if gnuplot
 * is missing or fails. */
void plot_draw(const char *dir);

#endif
