/* compare.h: several methods, several seeds, one table.
 *
 * Rooms: compare.c the command and the order of its runs; compare_plan.c the methods and the grid
 * from text; compare_grid.c tuning; compare_stats.c what is worked out from the runs,
 * compare_paired.c from pairs of them; compare_disk.c what is kept in DIR; compare_report.c tables, notes,
 * curves; table.c, plot.c. */
#ifndef COMPARE_H
#define COMPARE_H

#include "plot.h"
#include "table.h"
#include "train.h"

#include <stdio.h>

enum { COMPARE_METHODS = 64, COMPARE_GRIDS = 8, COMPARE_VALUES = 64, COMPARE_POINTS = 4096 };
enum { COMPARE_SEEDS = 1000, COMPARE_GRID_SEEDS = 100 }; /* at most */

/* ---- plan ------------------------------------------------------------------------------------*/

typedef struct compare_method {
  char label[64];   /* its name; its second time "name-2" */
  settings s;       /* the comparison's, its own, and those that tuning chose */
  cli_setting *own; /* as given behind its name */
  int n_own;
  int tuned;         /* which point of its grid; -1: it has none */
  train_result *run; /* [seeds] */
  int points;        /* runs of tuning: point after point, seed after seed */
  train_result *point;
} compare_method;

typedef struct compare_grid { /* option=a,b,c */
  char *text;                 /* what the others point into */
  const char *name;
  int n;
  const char *value[COMPARE_VALUES];
} compare_grid;

typedef struct compare_plan {
  settings base;
  char *text;            /* --methods, cut into pieces that the methods' own settings point into */
  int methods, baseline; /* which method the others are compared with, pair by pair */
  compare_method *method;
  int grids;
  compare_grid grid[COMPARE_GRIDS];
  int seeds; /* base.seed, base.seed + 1, ... */
  /* tuning */
  int64_t validation;
  int grid_seeds;
  const char *grid_epochs; /* NULL: as many as the runs */
  /* result */
  const char *dir;
  bool resume, quiet;
  double target; /* NaN: worked out */
  FILE *notes;   /* lines below the table, into `note` */
  char *note;
  size_t note_size;
} compare_plan;

/* "natgrad:lr=0.1,damping=0.01,kaisa": an item with ':' before any '=', or without '=', begins a
 * method; one that begins with a digit goes on with the value before it (step:5,8).  Settings that a
 * method has no use for are taken from base and left out, with a note.  CLI_BAD, told in one line. */
int compare_methods(compare_plan *p, const char *list);
/* The method with this label; after compare_methods. */
int compare_baseline(compare_plan *p, const char *label);
/* Can a setting do anything in the method's runs?  Was it given behind the method's name? */
bool compare_uses(const compare_plan *p, const compare_method *m, const char *name);
bool compare_owns(const compare_method *m, const char *name);
/* One more "option=a,b,c"; before compare_methods. */
int compare_grid_add(compare_plan *p, const char *text);
void compare_plan_free(compare_plan *p);

/* ---- tuning ----------------------------------------------------------------------------------*/

/* The grid of one method: what it knows and does not set itself.  `use` [COMPARE_GRIDS]; returns the
 * points, 1 if nothing is left. */
int compare_points(const compare_plan *p, const compare_method *m, bool *use);
/* Index into grid[g].value of point k; the last grid runs fastest. */
int compare_point(const compare_plan *p, const bool *use, int k, int g);
/* The best point on the validation split, by its runs r[point * seeds ...]: fewest diverged, best mean
 * score, lower mean training loss, first. */
int compare_best_point(const train_result *r, int points, int seeds, bool squared_error);
/* The seed of the k-th run of every point: none of base.seed ... base.seed + COMPARE_SEEDS - 1. */
int64_t compare_tuning_seed(const compare_plan *p, int k);
/* Is value i of a grid the least or the largest of several numbers?  -1, 1, or 0: neither. */
int compare_edge(const compare_grid *g, int i);
/* Whether every point of the grid is sound, told if not. */
int compare_check_points(const compare_plan *p, const compare_method *m, const data_set *d);
/* Tunes every method, with notes.  *complete is false if a signal came. */
int compare_tune(compare_plan *p, bool squared_error, bool *complete);

/* ---- statistics ------------------------------------------------------------------------------*/

typedef enum compare_metric { TEST_ACCURACY, TRAIN_ACCURACY, TEST_LOSS, TRAIN_LOSS } compare_metric;

double compare_score(compare_metric m, const train_epoch *e);
bool compare_better(compare_metric m, double a, double b);
double compare_best(compare_metric m, const train_result *r); /* NaN: no epoch */
/* The first epoch that is as good as the target; -1: none. */
int compare_reaches(compare_metric m, const train_result *r, double target);

typedef struct spread {
  int n;                  /* of the values, those that are finite */
  double mean, deviation; /* the sample's, over n - 1; NaN for n < 2 */
  double min, max;
} spread;
spread compare_spread(const double *x, int n);

/* The curve of a method: means and extremes over the runs that did not diverge (over all, if all
 * did), for free(). */
int compare_curve(compare_metric m, const train_result *run, int runs, plot_point **out);
/* What the worst of the curves reaches at its best. */
double compare_target(compare_metric m, const plot_curve *curve, int n);

/* ---- pairs -----------------------------------------------------------------------------------*/

typedef enum compare_end {
  END_TRAIN_LOSS,
  END_TEST_LOSS,
  END_BEST_ACCURACY,
  COMPARE_ENDS
} compare_end;

/* The quantile 0.975 of Student's distribution, degrees of freedom from 1. */
double compare_student(int freedom);

typedef struct difference { /* of a method and the baseline */
  int n;                    /* pairs of which neither diverged */
  double mean, deviation;   /* the sample's, over n - 1 */
  double low, high;         /* the 95 % interval of the mean; NaN for n < 2 */
} difference;
/* run[k] less base[k]. */
difference compare_difference(compare_metric m, compare_end what, const train_result *run,
                              const train_result *base, int runs);
/* For plans of two methods or more. */
void compare_paired_heading(const compare_plan *p, FILE *f);
void compare_paired_table(const compare_plan *p, compare_metric metric, table *t);
/* The member "paired" of result.json. */
void compare_paired_json(const compare_plan *p, compare_metric metric, ngio_out *o);

/* ---- disk ------------------------------------------------------------------------------------*/

/* DIR, new or (resume) holding the same comparison.  CLI_BAD names the first setting that differs. */
int compare_open(compare_plan *p, int64_t train, int64_t test);
/* The result of the run in s->out: read if it is over, else trained from its start or its checkpoint (*ran, unless it
 * was stopped).  The checkpoint of a run that is over is removed. */
int compare_run(settings *s, const data_set *d, const train_show *show, train_result *r, bool *ran);
char *compare_path(const compare_plan *p, const char *format, ...) /* "DIR/...", for free() */
    __attribute__((format(printf, 2, 3)));

/* ---- report ----------------------------------------------------------------------------------*/

/* Writes table.txt (to stdout, too), table.md, curves.csv, result.json, plot.gp and the pictures. */
int compare_report(compare_plan *p, const data_set *d, compare_metric metric);

#endif
