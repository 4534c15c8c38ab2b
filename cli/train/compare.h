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
  char label[64];   /* the name; "name-2" for a second method of that name */
  settings s;       /* the shared settings, its own, and the tuned ones */
  cli_setting *own; /* settings given after its name */
  int n_own;
  train_result *run; /* [seeds] */
  bool
      use[COMPARE_GRIDS]; /* the grids that apply: it knows the option and does not set it itself */
  int points, tuned;      /* points of its grid, 1 if no grid applies; the chosen point */
  train_result *point;    /* [points][grid_seeds] runs of tuning; NULL: none */
} compare_method;

typedef struct compare_grid { /* option=a,b,c */
  char *text;                 /* the text that name and value point into */
  const char *name;
  int n;
  const char *value[COMPARE_VALUES];
} compare_grid;

typedef struct compare_plan {
  settings base;
  char *text;  /* --methods, cut into pieces that `own` points into */
  int methods; /* the others are compared with the first */
  compare_method *method;
  int grids;
  compare_grid grid[COMPARE_GRIDS];
  int seeds; /* base.seed, base.seed + 1, ... */
  /* tuning */
  int64_t validation;
  int grid_seeds;
  double grid_epochs; /* 0: as the runs */
  /* result */
  const char *dir;
  bool resume, quiet;
  compare_metric metric;
  double target; /* NaN: computed from the runs */
  FILE *notes;   /* lines below the table, written to `note` */
  char *note;
  size_t note_size;
} compare_plan;

/* Parse the list of methods, "natgrad:lr=0.1,damping=0.01,kaisa". An item with ':' before any '=', or without '=',
 * starts a method; an item that starts with a digit continues the previous value (step:5,8). Shared settings
 * without meaning for a method are dropped there, with a note. CLI_BAD after a message. */
int compare_methods(compare_plan *p, const char *list);
/* Has a setting an effect in the method's runs? Was it given after the method's name? */
bool compare_uses(const compare_plan *p, const compare_method *m, const char *name);
bool compare_owns(const compare_method *m, const char *name);
/* Add a grid "option=a,b,c"; before compare_methods. */
int compare_grid_add(compare_plan *p, const char *text);
void compare_plan_free(compare_plan *p);

/* ---- tuning ----------------------------------------------------------------------------------*/

/* Set `use` and `points` of a method; CLI_BAD after a message: too many points. */
int compare_count_points(const compare_plan *p, compare_method *m);
/* Index into grid[g].value for point k; the last grid varies fastest. */
int compare_point(const compare_plan *p, const compare_method *m, int k, int g);
/* The best point by its runs r[point * seeds ...] on the validation split: fewest diverged runs, then best mean
 * score, then lowest mean training loss, then the first. */
int compare_best_point(const train_result *r, int points, int seeds, bool squared_error);
/* Is value i the smallest (-1) or largest (1) number of the grid? 0: neither, or not numbers. */
int compare_edge(const compare_grid *g, int i);
/* Check every point of the grid; CLI_BAD after a message. */
int compare_check_points(const compare_plan *p, const compare_method *m, const data_set *d);
/* Tune every method, with notes. *complete is false after a signal. */
int compare_tune(compare_plan *p, bool *complete);

/* ---- statistics ------------------------------------------------------------------------------*/

bool compare_is_accuracy(compare_metric m);
bool compare_better(compare_metric m, double a, double b);
double compare_best(compare_metric m, const train_result *r); /* NaN without epochs */
/* The first epoch that reaches the target; -1: none. */
int compare_reaches(compare_metric m, const train_result *r, double target);

spread compare_spread(const double *x, int n);

/* The curve of a method, its points for free(): means and extremes over the runs that did not diverge, or over all if
 * all diverged. */
plot_curve compare_curve(compare_metric m, const train_result *run, int runs);
/* The best score of the worst curve of those that are not lost. */
double compare_target(compare_metric m, const plot_curve *curve, int n);

/* ---- pairs -----------------------------------------------------------------------------------*/

typedef enum compare_end {
  END_TRAIN_LOSS,
  END_TEST_LOSS,
  END_BEST_ACCURACY,
  COMPARE_ENDS
} compare_end;

/* The quantile 0.975 of Student's distribution, for at least 1 degree of freedom. */
double compare_student(int freedom);

typedef struct difference { /* of a method to the baseline */
  int n;                    /* pairs without divergence */
  double mean;
  double low, high; /* the 95 % interval of the mean; NaN for n < 2 */
} difference;
/* Statistics of run[k] - base[k]. */
difference compare_difference(compare_metric m, compare_end what, const train_result *run,
                              const train_result *base, int runs);
/* For two or more methods. */
void compare_paired_heading(const compare_plan *p, FILE *f);
void compare_paired_table(const compare_plan *p, table *t);

/* ---- disk ------------------------------------------------------------------------------------*/

/* Open DIR, new or (resume) with a comparison. */
int compare_open(const compare_plan *p);
/* The result of the run in s->out: read if it is over, else trained from its start or its checkpoint, with one line on
 * stderr at its end, "PLACE LABEL: ...".  The checkpoint of a run that is over is removed. */
int compare_run(const compare_plan *p, settings *s, const data_set *d, const char *place,
                const char *label, train_result *r);
char *compare_path(const compare_plan *p, const char *format, ...) /* "DIR/...", for free() */
    __attribute__((format(printf, 2, 3)));

/* ---- report ----------------------------------------------------------------------------------*/

/* Write table.txt (to stdout, too), curves.csv, plot.gp and the pictures. */
int compare_report(compare_plan *p, const data_set *d);

#endif
