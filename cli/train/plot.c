/* plot.c: a picture of three panels: training loss over epochs, training loss over seconds, score over epochs. A curve
 * is the mean over seeds; the band around it is the range over seeds.
 *
 * Colours are the palette of Okabe and Ito (2008), which colour-blind people can distinguish. From the eighth method
 * on, the colours repeat with dashed lines. */
#include "plot.h"
#include "common/cli.h"
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Print text in gnuplot's single quotes, in which a quote is doubled. */
static void print_quoted(FILE *f, const char *before, const char *text) {
  (void)fprintf(f, "%s'", before);
  for (; *text != 0; text++) {
    if (*text == '\'') (void)fputc('\'', f);
    if ((unsigned char)*text >= ' ') (void)fputc(*text, f);
  }
  (void)fputs("'\n", f);
}

/* Print a data block for each curve, separated by two empty lines. */
static void print_data(const plot *p, FILE *f) {
  (void)fputs("# epoch, seconds, training loss: mean min max, score: mean min max\n"
              "$data << EOD\n",
              f);
  for (int i = 0; i < p->n; i++) {
    for (int k = 0; k < p->curve[i].n; k++) {
      const plot_point *at = &p->curve[i].point[k];
      const double x[] = {at->epoch,    at->seconds,    at->loss.mean, at->loss.min,
                          at->loss.max, at->score.mean, at->score.min, at->score.max};
      for (size_t c = 0; c < sizeof x / sizeof *x; c++)
        (void)(isfinite(x[c]) ? fprintf(f, " %.9g", x[c]) : fputs(" NaN", f));
      (void)fputc('\n', f);
    }
    if (p->curve[i].n == 0) (void)fputs(" NaN NaN NaN NaN NaN NaN NaN NaN\n", f);
    (void)fputs("\n\n", f);
  }
  (void)fputs("EOD\n", f);
}

/* Bands are drawn first, so that no band covers a line. The legend is a panel of its own above the three panels. */
static const char panels[] =
    "set datafile missing 'NaN'\n"
    "colours = '#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #000000'\n"
    "colour(i) = word(colours, (i - 1) % 7 + 1)\n"
    "dashes(i) = (i - 1) / 7 + 1\n"
    "rows = (curves + 5) / 5\n"
    "height = 470 + 24 * rows\n"
    "top = 0.92 - (24.0 * rows + 8.0) / height\n"
    "png = strstrt(GPVAL_TERMINALS, 'pngcairo') > 0 ? 'pngcairo' : 'png'\n"
    "do for [kind in 'svg png'] {\n"
    "  if (kind eq 'svg') {\n"
    "    set terminal svg size 1500,height dynamic noenhanced font 'sans,15' background rgb "
    "'white'\n"
    "  } else {\n"
    "    if (png eq 'pngcairo') {\n"
    "      set terminal pngcairo size 1500,height noenhanced font 'sans,12'\n"
    "    } else {\n"
    "      set terminal png size 1500,height noenhanced\n"
    "    }\n"
    "  }\n"
    "  set output 'curves.'.kind\n"
    "  set multiplot title heading\n"
    "  set lmargin at screen 0.02\n"
    "  set rmargin at screen 0.98\n"
    "  set bmargin at screen top + 0.01\n"
    "  set tmargin at screen 0.93\n"
    "  set key center center horizontal maxcols 5 samplen 2 Left reverse\n"
    "  unset border\n"
    "  unset tics\n"
    "  unset grid\n"
    "  unset logscale\n"
    "  unset xlabel\n"
    "  unset ylabel\n"
    "  set xrange [0:1]\n"
    "  set yrange [0:1]\n"
    "  plot for [i = 1:curves] NaN with lines linewidth 3 dashtype dashes(i) \\\n"
    "    linecolor rgb colour(i) title label[i], \\\n"
    "    for [i = 1:has_target] NaN with lines linewidth 1 dashtype 3 linecolor rgb '#606060' \\\n"
    "    title 'target'\n"
    "  unset key\n"
    "  set border\n"
    "  set tics\n"
    "  set grid linecolor rgb '#c8c8c8' linewidth 1 dashtype 1\n"
    "  do for [k = 1:3] {\n"
    "    x = k == 2 ? 2 : 1\n"
    "    y = k == 3 ? 6 : 3\n"
    "    s = k == 3 ? scale : 1\n"
    "    left = 0.066 + (k - 1) * 0.333\n"
    "    set lmargin at screen left\n"
    "    set rmargin at screen left + 0.25\n"
    "    set bmargin at screen 0.13\n"
    "    set tmargin at screen top\n"
    "    set xlabel k == 2 ? 'seconds of training' : 'epoch'\n"
    "    set ylabel k == 3 ? score : 'training loss'\n"
    "    unset logscale\n"
    "    set xrange [0:*]\n"
    "    set yrange [*:*]\n"
    "    set format '%g'\n"
    "    if (k < 3 || score_log) { set logscale y }\n"
    "    plot for [i = 1:curves] $data index i - 1 \\\n"
    "      using x:(s * column(y + 1)):(s * column(y + 2)) with filledcurves \\\n"
    "      linecolor rgb colour(i) fillstyle transparent solid 0.18 noborder, \\\n"
    "      for [i = 1:curves] $data index i - 1 using x:(s * column(y)) \\\n"
    "      with lines linewidth 2 dashtype dashes(i) linecolor rgb colour(i), \\\n"
    "      for [i = 1:(k == 3 ? has_target : 0)] scale * target \\\n"
    "      with lines linewidth 1 dashtype 3 linecolor rgb '#606060'\n"
    "  }\n"
    "  unset multiplot\n"
    "  unset output\n"
    "}\n";

static void print_script(FILE *f, const void *what) {
  const plot *p = what;
  (void)fputs("# gnuplot plot.gp makes curves.svg and curves.png here.\n", f);
  print_data(p, f);
  print_quoted(f, "heading = ", p->title);
  print_quoted(f, "score = ", p->score);
  (void)fprintf(f, "curves = %d\narray label[%d]\n", p->n, p->n);
  for (int i = 0; i < p->n; i++) {
    char before[32];
    (void)snprintf(before, sizeof before, "label[%d] = ", i + 1);
    print_quoted(f, before, p->curve[i].label);
  }
  (void)fprintf(f, "scale = %g\nscore_log = %d\n", p->score_scale, p->score_log);
  (void)fprintf(f, "has_target = %d\ntarget = %.9g\n", isfinite(p->target),
                isfinite(p->target) ? p->target : 0.0);
  (void)fputs(panels, f);
}

int plot_write(const plot *p, const char *path) { return disk_print_file(path, print_script, p); }

enum { NO_PROGRAM = 127, FAILED = 126 };

/* Run gnuplot without a shell, because DIR may contain any character. */
static void exec_gnuplot(const char *dir) {
  const int null = open("/dev/null", O_RDWR);
  if (null < 0 || chdir(dir) != 0) _exit(FAILED);
  (void)signal(SIGPIPE, SIG_DFL); /* restore the default; main.c ignores both signals */
  (void)signal(SIGXFSZ, SIG_DFL);
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
    (void)dup2(null, fd);
  (void)execlp("gnuplot", "gnuplot", "plot.gp", (char *)NULL);
  _exit(NO_PROGRAM);
}

void plot_draw(const char *dir) {
  (void)fflush(NULL);
  const pid_t child = fork();
  if (child == 0) exec_gnuplot(dir);
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
    continue;
  const int code = child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : FAILED;
  if (code == NO_PROGRAM)
    cli_note("no pictures, as gnuplot is not installed; gnuplot makes them from %s/plot.gp", dir);
  else if (code != 0)
    cli_note("no pictures, as gnuplot failed; run gnuplot on plot.gp in %s", dir);
}
