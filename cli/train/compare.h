/* compare.h: several methods and seeds, one table.
 *
 * Files: compare.c the command and the order of the runs; compare_plan.c methods and grid from text;
 * compare_grid.c tuning; compare_stats.c statistics of runs and of pairs of runs; compare_disk.c
 * files in DIR; compare_report.c tables, notes, curves; table.c, plot.c. */
#ifndef COMPARE_H
#define COMPARE_H

#include "plot.h"
#include "table.h"
#include "train.h"

#include <stdio.h>

enum { COMPARE_METHODS = 64, COMPARE_GRIDS = 8, COMPARE_VALUES = 64, COMPARE_POINTS = 4096 };
enum { COMPARE_SEEDS = 1000, COMPARE_GRID_SEEDS = 100 }; /* upper limits */

typedef enum compare_metric { TEST_ACCURACY, TRAIN_ACCURACY, TEST_LOSS, TRAIN_LOSS } compare_metric;

/* ---- plan ------------------------------------------------------------------------------------*/

typedef struct compare_method {
  char label[64];   /* the method's name; "name-2" for a second method of that name */
  settings s;       /* the shared settings, the method's own, and the tuned ones */
  cli_setting *own; /* settings given after the method's name */
  int n_own;
  train_result *run; /* [seeds] */
  /* the grids that apply: the option has an effect, and the method's own settings lack the option */
  bool use[COMPARE_GRIDS];
  int points, tuned;   /* points of the method's grid, 1 if no grid applies; the best point */
  train_result *point; /* [points][grid_seeds] runs of tuning; NULL: none */
} compare_method;

typedef struct compare_grid { /* option=a,b,c */
  char *text;                 /* the text that name and value point into */
  const char *name;
  int n;
  const char *value[COMPARE_VALUES];
} compare_grid;

typedef struct compare_plan {
  /* options of the command line; 0, NULL: not given */
  const char *list, *out;         /* --methods */
  int64_t seeds;                  /* base.seed, base.seed + 1, ... */
  int64_t validation, grid_seeds; /* of tuning; compare sets their defaults */
  double grid_epochs;             /* 0: as the runs */
  double target;                  /* NaN: computed from the runs */
  bool resume, quiet;
  settings base;
  char *text;  /* --methods, cut into pieces that `own` points into */
  int methods; /* the others are compared with the first */
  compare_method *method;
  int grids;
  compare_grid grid[COMPARE_GRIDS];
  /* result */
  char *dir;
  compare_metric metric;
  FILE *notes; /* lines below the table, written to `note` */
  char *note;
  size_t note_size;
} compare_plan;

/* Parse the list of methods, "natgrad:lr=0.1,damping=0.01,kaisa". An item with ':' before any '=', or without '=',
 * starts a method; an item that starts with a digit continues the previous value (step:5,8). A shared setting
 * without effect on a method is dropped for this method, with a note. CLI_BAD after a message. */
int compare_parse_methods(compare_plan *p, const char *list);
/* Return whether the setting has an effect in the method's runs, and whether it was given after the method's name. */
bool compare_has_effect(const compare_plan *p, const compare_method *m, const char *name);
bool compare_has_own(const compare_method *m, const char *name);
/* Add a grid "option=a,b,c"; before compare_parse_methods. */
int compare_add_grid(compare_plan *p, const char *text);
void compare_plan_free(compare_plan *p);

/* ---- tuning ----------------------------------------------------------------------------------*/

/* Set `use` and `points` of a method. CLI_BAD after a message: there are too many points. */
int compare_count_points(const compare_plan *p, compare_method *m);
/* Return the index into grid[g].value for point k; the last grid varies fastest. */
int compare_find_value(const compare_plan *p, const compare_method *m, int k, int g);
/* Return the point with the best runs r[point * seeds ...] on the validation split: fewest diverged runs, then best
 * mean score, then lowest mean training loss, then first in order. */
int compare_choose(const train_result *r, int points, int seeds, bool squared_error);
/* Return -1 if value i is the smallest number of the grid, 1 if the largest; 0: neither, or a value is no number. */
int compare_find_edge(const compare_grid *g, int i);
/* Check every point of the grid; CLI_BAD after a message. */
int compare_check_points(const compare_plan *p, const compare_method *m, const data_set *d);
/* Tune every method, with notes, up to a signal (train_is_interrupted). */
int compare_tune(compare_plan *p);

/* ---- statistics ------------------------------------------------------------------------------*/

bool compare_is_accuracy(compare_metric m);
bool compare_is_better(compare_metric m, double a, double b);
double compare_find_best(compare_metric m, const train_result *r); /* NaN without epochs */
/* Return the index of the first epoch that reaches the target; -1: none. */
int compare_find_reached(compare_metric m, const train_result *r, double target);

spread compare_summarise(const double *x, int n);

/* Return the curve of a method: means and extremes over the runs that did not diverge, or over all runs if all
 * diverged. The caller frees `point`. */
plot_curve compare_make_curve(compare_metric m, const train_result *run, int runs);
/* Return the best score of the worst curve, without curves of which all runs diverged. */
double compare_find_target(compare_metric m, const plot_curve *curve, int n);

/* ---- pairs -----------------------------------------------------------------------------------*/

typedef enum compare_end {
  END_TRAIN_LOSS,
  END_TEST_LOSS,
  END_BEST_ACCURACY,
  COMPARE_ENDS
} compare_end;

/* Return the quantile 0.975 of Student's distribution, for at least 1 degree of freedom. */
double compare_find_quantile(int freedom);

typedef struct difference { /* of a method to the baseline */
  int n;                    /* pairs without divergence */
  double mean;
  double low, high; /* the 95 % interval of the mean; NaN for n < 2 */
} difference;
/* Return statistics of run[k] - base[k]. */
difference compare_difference(compare_metric m, compare_end what, const train_result *run,
                              const train_result *base, int runs);
/* Print heading and rows of the table of differences, for two or more methods. */
void compare_print_pairs(const compare_plan *p, FILE *f);
void compare_fill_pairs(const compare_plan *p, table *t);

/* ---- disk ------------------------------------------------------------------------------------*/

/* Create DIR, or with --resume check that DIR has a comparison; lock DIR. */
int compare_open(const compare_plan *p);
/* Return in *r the result of the run in s->out. If the run is over, read its log; else train from the start or from the
 * checkpoint, and print one line at the end, "PLACE LABEL: ...". Remove the checkpoint of a finished run. */
int compare_run(const compare_plan *p, settings *s, const data_set *d, const char *place,
                const char *label, train_result *r);
/* Return "DIR/...", for free(). */
__attribute__((format(printf, 2, 3))) char *compare_make_path(const compare_plan *p,
                                                              const char *format, ...);

/* ---- report ----------------------------------------------------------------------------------*/

/* Write table.txt (also to stdout), curves.csv, plot.gp and the pictures. */
int compare_write_report(compare_plan *p, const data_set *d);

#endif
