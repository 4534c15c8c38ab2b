/* plot.h: curves as a gnuplot script that holds its data, and the pictures made from it. */
#ifndef PLOT_H
#define PLOT_H

#include <stdbool.h>

typedef struct plot_range {
  double mean, min, max;
} plot_range;

typedef struct plot_point { /* after an epoch, over seeds; NaN where there is nothing */
  double epoch, seconds;
  plot_range loss, score;
} plot_point;

typedef struct plot_curve {
  const char *label;
  int n;
  const plot_point *point;
} plot_curve;

typedef struct plot {
  const char *title;
  const char *score;  /* what the third panel shows */
  double score_scale; /* shown so many times as large: 100 for percent */
  bool score_log;
  double target; /* a line in the third panel; NaN: none */
  int n;
  const plot_curve *curve;
} plot;

/* `path` becomes the script.  CLI_BAD, told in one line. */
int plot_write(const plot *p, const char *path);

/* Runs gnuplot on DIR/plot.gp for DIR/curves.svg and DIR/curves.png.  A picture is no result: that
 * gnuplot is missing or fails is one line on stderr, and false. */
bool plot_draw(const char *dir);

#endif
