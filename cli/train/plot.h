/* plot.h: write a gnuplot script with its data, and make the pictures from it. */
#ifndef PLOT_H
#define PLOT_H

#include <stdbool.h>

typedef struct spread {
  int n;                  /* number of finite values, which the other fields describe */
  double mean, deviation; /* standard deviation (divisor n - 1); NaN for n < 2 */
  double min, max;
} spread;

typedef struct plot_point { /* statistics over seeds at the end of an epoch; NaN: no value */
  double epoch, seconds;
  spread loss, score;
} plot_point;

typedef struct plot_curve {
  char label[128];
  bool diverged; /* all runs diverged */
  int n;         /* number of points */
  plot_point *point;
} plot_curve;

typedef struct plot {
  const char *title;
  const char *score;  /* name of the metric in the third panel */
  double score_scale; /* the picture shows the score times this number: 100 for percent */
  bool score_log;     /* logarithmic axis for the score */
  double target;      /* a horizontal line in the third panel; NaN: no line */
  int n;
  const plot_curve *curve;
} plot;

/* Write the gnuplot script to `path`. CLI_BAD: reported. */
int plot_write(const plot *p, const char *path);

/* Run gnuplot on DIR/plot.gp, which writes DIR/curves.svg and DIR/curves.png. Print a note if gnuplot fails. */
void plot_draw(const char *dir);

#endif
