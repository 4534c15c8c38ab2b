/* compare.h: train several methods with several seeds, and compare them in tables.
 *
 * Files: compare.c the command and the order of the runs; compare_plan.c parsing of methods and grid; compare_grid.c
 * tuning; compare_stats.c statistics of runs and of pairs of runs; compare_disk.c files in DIR; compare_report.c
 * tables, notes, curves; table.c, plot.c. */
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
  char label[64];   /* the name of the method; "name-2" for its second entry */
  settings s;       /* shared settings, settings of this method, and tuned settings */
  cli_setting *own; /* settings given after the method's name in --methods */
  int n_own_settings;
  train_result *run; /* [seeds] */
  /* use[g]: grid g applies: its option has an effect, and is not among the method's own settings */
  bool use[COMPARE_GRIDS];
  /* number of points of the method's grids (1 without a grid); index of the best point */
  int points, best_point;
  train_result *point; /* [points][grid_seeds]: runs of tuning; NULL: none */
} compare_method;

typedef struct compare_grid { /* --grid option=a,b,c */
  char *text;                 /* memory of name and value */
  const char *name;
  int n;
  const char *value[COMPARE_VALUES];
} compare_grid;

typedef struct compare_plan {
  /* options of the command line; 0 or NULL: not given */
  const char *list, *out; /* --methods */
  int64_t seeds;          /* number of seeds: base.seed, base.seed + 1, ... */
  /* for tuning: size of the validation split; number of seeds of each point */
  int64_t validation, grid_seeds;
  double grid_epochs; /* epochs of a tuning run; 0: as the other runs */
  double target;      /* value of the metric to reach; NaN: computed from the runs */
  bool resume, quiet; /* --resume, --quiet */
  settings base;      /* settings of all methods */
  char *text;         /* copy of --methods; memory of compare_method.own */
  int methods;        /* number of methods; the first one is the baseline */
  compare_method *method;
  int grids;
  compare_grid grid[COMPARE_GRIDS];
  /* result */
  char *dir;
  compare_metric metric;
  FILE *notes; /* stream that collects the notes below the table in `note` */
  char *note;
  size_t note_size;
} compare_plan;

/* Parse the list of methods, such as "natgrad:lr=0.1,damping=0.01,kaisa". An item with ':' before any '=', or without
 * '=', starts a method. An item that starts with a digit belongs to the previous value (step:5,8). A shared setting
 * without effect on a method is dropped for this method, with a note. CLI_BAD: reported. */
int compare_parse_methods(compare_plan *p, const char *list);
/* compare_has_effect: return true if the setting has an effect in the method's runs. compare_has_own: return true if
 * the setting was given after the method's name. */
bool compare_has_effect(const compare_plan *p, const compare_method *m, const char *name);
bool compare_has_own(const compare_method *m, const char *name);
/* Add a grid "option=a,b,c". Call this before compare_parse_methods. */
int compare_add_grid(compare_plan *p, const char *text);
void compare_plan_free(compare_plan *p);

/* ---- tuning ----------------------------------------------------------------------------------*/

/* Set `use` and `points` of a method. CLI_BAD, reported: there are too many points. */
int compare_count_points(const compare_plan *p, compare_method *m);
/* Return the index of the value in grid[g] that point k has. From a point to the next, the last grid changes first. */
int compare_find_value(const compare_plan *p, const compare_method *m, int k, int g);
/* Return the best point of runs r[point * seeds + seed] on the validation split: the fewest diverged runs; then the
 * best mean score; then the lowest mean training loss; then the first in order. */
int compare_choose_point(const train_result *r, int points, int seeds, bool squared_error);
/* Return -1 if value i is the smallest number of the grid, 1 if it is the largest, else 0 (also if it is a word). */
int compare_find_edge(const compare_grid *g, int i);
/* Check each point of the method's grid. CLI_BAD: reported. */
int compare_check_points(const compare_plan *p, const compare_method *m, const data_set *d);
/* Tune each method and note the choice. Stop after a signal (train_is_interrupted). */
int compare_tune(compare_plan *p);

/* ---- statistics ------------------------------------------------------------------------------*/

bool compare_is_accuracy(compare_metric m);
bool compare_is_better(compare_metric m, double a, double b);
/* return the best value of the metric; NaN if the run has no epoch */
double compare_find_best(compare_metric m, const train_result *r);
/* Return the index of the first epoch that reaches the target; -1: no epoch does. */
int compare_find_target_epoch(compare_metric m, const train_result *r, double target);

spread compare_compute_spread(const double *x, int n);

/* Return the curve of a method: for each epoch the mean, minimum and maximum over its runs. Diverged runs are excluded,
 * unless all runs diverged. The caller frees `point`. */
plot_curve compare_make_curve(compare_metric m, const train_result *run, int runs);
/* Return a target that all curves reach: the smallest of the best scores of the curves (of a loss, the largest). Curves
 * of which all runs diverged are excluded. */
double compare_find_target(compare_metric m, const plot_curve *curve, int n);

/* ---- pairs -----------------------------------------------------------------------------------*/

typedef enum compare_end {
  END_TRAIN_LOSS,
  END_TEST_LOSS,
  END_BEST_ACCURACY,
  COMPARE_ENDS
} compare_end;

/* Return the 0.975 quantile of Student's distribution with this many degrees of freedom, at least 1. */
double compare_compute_quantile(int freedom);

typedef struct difference { /* method minus baseline, in pairs of runs with one seed */
  int n;                    /* number of pairs in which no run diverged */
  double mean;
  double low, high; /* the 95 % confidence interval of the mean; NaN for n < 2 */
} difference;
/* Return the statistics of the differences run[k] - base[k]. */
difference compare_compute_difference(compare_metric m, compare_end what, const train_result *run,
                                      const train_result *base, int runs);
/* Print the table of differences, for two or more methods. */
void compare_print_differences(const compare_plan *p, FILE *f);
void compare_fill_difference_table(const compare_plan *p, table *t);

/* ---- disk ------------------------------------------------------------------------------------*/

/* Create DIR, or with --resume check that it has a comparison. Lock DIR. */
int compare_open_folder(const compare_plan *p);
/* Set *r to the result of the run in the folder s->out. If the run is finished, read its log; else train from the start
 * or from the checkpoint, and then print the line "PLACE LABEL: ...". Remove the checkpoint of a finished run. */
int compare_run(const compare_plan *p, settings *s, const data_set *d, const char *place,
                const char *label, train_result *r);
/* Return the path "DIR/..."; the caller calls free(). */
__attribute__((format(printf, 2, 3))) char *compare_make_path(const compare_plan *p,
                                                              const char *format, ...);

/* ---- report ----------------------------------------------------------------------------------*/

/* Write table.txt (also to stdout), curves.csv, plot.gp and the pictures. */
int compare_write_report(compare_plan *p, const data_set *d);

#endif
