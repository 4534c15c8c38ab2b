/* plot.c: three panels: training loss over epochs, training loss over seconds, score over epochs. A curve is the
 * mean over seeds, its band the range.
 *
 * Colours are the palette of Okabe and Ito (2008), distinguishable with colour blindness; from the eighth method
 * on they repeat with dashes. */
#include "plot.h"
#include "common/cli.h"
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const colours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                      "#E69F00", "#56B4E9", "#000000"};
enum { COLOURS = (int)(sizeof colours / sizeof colours[0]) };

/* In gnuplot's single quotes a quote is written twice. */
static void quoted(FILE *f, const char *text) {
  (void)fputc('\'', f);
  for (; *text != 0; text++) {
    if (*text == '\'') (void)fputc('\'', f);
    if ((unsigned char)*text >= ' ') (void)fputc(*text, f);
  }
  (void)fputc('\'', f);
}

static void number(FILE *f, double v) {
  if (isfinite(v)) {
    (void)fprintf(f, " %.9g", v);
  } else {
    (void)fputs(" NaN", f);
  }
}

static void range(FILE *f, const plot_range *r) {
  number(f, r->mean);
  number(f, r->min);
  number(f, r->max);
}

static void data(const plot *p, FILE *f) {
  (void)fputs("# epoch, seconds, training loss: mean min max, score: mean min max\n", f);
  for (int i = 0; i < p->n; i++) {
    (void)fprintf(f, "$m%d << EOD\n", i + 1);
    for (int k = 0; k < p->curve[i].n; k++) {
      const plot_point *at = &p->curve[i].point[k];
      number(f, at->epoch);
      number(f, at->seconds);
      range(f, &at->loss);
      range(f, &at->score);
      (void)fputc('\n', f);
    }
    (void)fputs("EOD\n", f);
  }
}

/* Column k of the data as a number that gnuplot plots. */
static void column(const plot *p, FILE *f, int k) {
  if (k > 5) {
    (void)fprintf(f, ":(%g*$%d)", p->score_scale, k);
  } else {
    (void)fprintf(f, ":%d", k);
  }
}

/* Bands first, so that no band covers a line. */
static void panel(const plot *p, FILE *f, int x, int y) {
  (void)fputs("  plot", f);
  for (int i = 0; i < p->n; i++) {
    (void)fprintf(f, "%s $m%d using %d", i > 0 ? ", \\\n   " : "", i + 1, x);
    column(p, f, y + 1);
    column(p, f, y + 2);
    (void)fprintf(f,
                  " with filledcurves linecolor rgb '%s' \\\n"
                  "      fillstyle transparent solid 0.18 noborder",
                  colours[i % COLOURS]);
  }
  for (int i = 0; i < p->n; i++) {
    (void)fprintf(f, ", \\\n    $m%d using %d", i + 1, x);
    column(p, f, y);
    (void)fprintf(f, " with lines linewidth 2 dashtype %d linecolor rgb '%s'", i / COLOURS + 1,
                  colours[i % COLOURS]);
  }
  if (y > 3 && isfinite(p->target)) {
    (void)fprintf(f, ", \\\n    %.9g with lines linewidth 1 dashtype 3 linecolor rgb '#606060'",
                  p->score_scale * p->target);
  }
  (void)fputs("\n", f);
}

/* Panel k of three. */
static void place(FILE *f, int k, double top) {
  const double left = 0.066 + k * 0.333;
  (void)fprintf(f,
                "  set lmargin at screen %.3f\n"
                "  set rmargin at screen %.3f\n"
                "  set bmargin at screen 0.13\n"
                "  set tmargin at screen %.3f\n",
                left, left + 0.25, top);
}

/* The legend is a panel of its own above the others, so that no curve lies under the names. */
static void legend(const plot *p, FILE *f, double top, int columns) {
  (void)fprintf(f,
                "  set lmargin at screen 0.02\n"
                "  set rmargin at screen 0.98\n"
                "  set bmargin at screen %.3f\n"
                "  set tmargin at screen 0.93\n"
                "  set key center center horizontal maxcols %d samplen 2 Left reverse\n"
                "  unset border\n"
                "  unset tics\n"
                "  set xrange [0:1]\n"
                "  set yrange [0:1]\n"
                "  plot",
                top + 0.01, columns);
  for (int i = 0; i < p->n; i++) {
    (void)fprintf(f, "%s NaN with lines linewidth 3 dashtype %d linecolor rgb '%s' title ",
                  i > 0 ? ", \\\n   " : "", i / COLOURS + 1, colours[i % COLOURS]);
    quoted(f, p->curve[i].label);
  }
  if (isfinite(p->target)) {
    (void)fputs(
        ", \\\n    NaN with lines linewidth 1 dashtype 3 linecolor rgb '#606060' title 'target'",
        f);
  }
  (void)fputs("\n"
              "  unset key\n"
              "  set border\n"
              "  set tics\n"
              "  set grid linecolor rgb '#c8c8c8' linewidth 1 dashtype 1\n"
              "  set xrange [0:*]\n"
              "  set yrange [*:*]\n",
              f);
}

static void terminals(FILE *f, int height) {
  (void)fprintf(f,
                "set datafile missing 'NaN'\n"
                "png = strstrt(GPVAL_TERMINALS, 'pngcairo') > 0 ? 'pngcairo' : 'png'\n"
                "do for [kind in 'svg png'] {\n"
                "  if (kind eq 'svg') {\n"
                "    set terminal svg size 1500,%d dynamic noenhanced font 'sans,15' \\\n"
                "      background rgb 'white'\n"
                "  } else {\n"
                "    if (png eq 'pngcairo') {\n"
                "      set terminal pngcairo size 1500,%d noenhanced font 'sans,12'\n"
                "    } else {\n"
                "      set terminal png size 1500,%d noenhanced\n"
                "    }\n"
                "  }\n"
                "  set output 'curves.'.kind\n"
                "  unset logscale\n",
                height, height, height);
}

/* Use a logarithmic axis if one method takes more than 6 times as long as another. */
static bool seconds_differ(const plot *p) {
  double least = HUGE_VAL, largest = 0.0;
  for (int i = 0; i < p->n; i++) {
    if (p->curve[i].n == 0) continue;
    const double end = p->curve[i].point[p->curve[i].n - 1].seconds;
    least = fmin(least, end);
    largest = fmax(largest, end);
  }
  return least > 0.0 && largest > 6.0 * least;
}

/* The accuracy axis starts at the lowest value of the last three quarters of the curves: the first epochs would
 * compress the rest. */
static double floor_of(const plot *p) {
  double least = HUGE_VAL;
  for (int i = 0; i < p->n; i++) {
    for (int k = 0; k < p->curve[i].n; k++) {
      const plot_point *at = &p->curve[i].point[k];
      if (4 * k >= p->curve[i].n - 1 && at->score.min < least) least = at->score.min;
    }
  }
  return floor(p->score_scale * least);
}

int plot_write(const plot *p, const char *path) {
  enum { IN_A_ROW = 5 };
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  if (f == NULL) return cli_bad("%s: no memory", path);
  const int rows = (p->n + 1 + IN_A_ROW - 1) / IN_A_ROW, height = 470 + 24 * rows;
  const double top = 0.92 - (24.0 * rows + 8.0) / height;
  (void)fputs("# gnuplot plot.gp makes curves.svg and curves.png here.\n", f);
  data(p, f);
  terminals(f, height);
  (void)fputs("  set multiplot title ", f);
  quoted(f, p->title);
  (void)fputc('\n', f);
  legend(p, f, top, IN_A_ROW);
  place(f, 0, top);
  (void)fputs("  set xlabel 'epoch'\n"
              "  set ylabel 'training loss'\n"
              "  set logscale y\n"
              "  set format y '%g'\n",
              f);
  panel(p, f, 1, 3);
  place(f, 1, top);
  const bool wide = seconds_differ(p);
  (void)fprintf(f, "  set xlabel 'seconds of training'\n%s",
                wide ? "  set logscale x\n  set xrange [*:*]\n  set format x '%g'\n" : "");
  panel(p, f, 2, 3);
  if (wide) (void)fputs("  unset logscale x\n  set xrange [0:*]\n", f);
  place(f, 2, top);
  (void)fputs("  set xlabel 'epoch'\n"
              "  set ylabel ",
              f);
  quoted(f, p->score);
  (void)fputc('\n', f);
  if (!p->score_log) {
    (void)fputs("  unset logscale y\n", f);
    if (isfinite(floor_of(p))) (void)fprintf(f, "  set yrange [%g:*]\n", floor_of(p));
  }
  panel(p, f, 1, 6);
  (void)fputs("  unset multiplot\n"
              "  unset xlabel\n"
              "  unset ylabel\n"
              "  unset grid\n"
              "  unset output\n"
              "}\n",
              f);
  int rc = fclose(f) == 0 ? CLI_OK : cli_bad("%s: no memory", path);
  if (rc == CLI_OK) rc = disk_write(path, text, size);
  free(text);
  return rc;
}

/* ---- gnuplot ---------------------------------------------------------------------------------*/

enum { NO_PROGRAM = 127, NO_FOLDER = 126 };

/* Run gnuplot without a shell, as DIR may have any name. Its messages go to DIR/plot.log. */
static void become_gnuplot(const char *dir) {
  if (chdir(dir) != 0) _exit(NO_FOLDER);
  (void)signal(SIGPIPE, SIG_DFL); /* the defaults; main.c ignores both */
  (void)signal(SIGXFSZ, SIG_DFL);
  const int log = open("plot.log", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK, 0666),
            null = open("/dev/null", O_RDWR);
  if (log < 0 || null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0 ||
      dup2(log, STDERR_FILENO) < 0) {
    _exit(NO_FOLDER);
  }
  (void)execlp("gnuplot", "gnuplot", "plot.gp", (char *)NULL);
  _exit(NO_PROGRAM);
}

bool plot_draw(const char *dir) {
  (void)fflush(NULL);
  const pid_t child = fork();
  if (child == 0) become_gnuplot(dir);
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  const int code = child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : NO_FOLDER;
  char *log = cli_join(dir, "plot.log");
  if (code == 0 || code == NO_PROGRAM) (void)unlink(log);
  if (code == NO_PROGRAM) {
    (void)fprintf(stderr, "natgrad: no pictures, gnuplot is not installed; %s/plot.gp makes them\n",
                  dir);
  } else if (code != 0) {
    (void)fprintf(stderr, "natgrad: no pictures, gnuplot failed; %s says why\n", log);
  }
  free(log);
  return code == 0;
}
