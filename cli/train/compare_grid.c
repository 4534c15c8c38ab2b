/* compare_grid.c: tuning. Train each method at each point of the grid, on the training samples that are not in the
 * validation split, and choose the point with the best validation score. The test split is not used, the seeds of
 * tuning are not seeds of the comparison, and each seed of tuning has its own validation split.
 *
 * The score of a point is the mean over seeds of the best validation accuracy of any epoch (squared error: of the
 * lowest validation loss). compare_choose_point decides between equal scores. */
#include "compare.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 512 };

int compare_count_points(const compare_plan *p, compare_method *m) {
  m->points = 1;
  for (int g = 0; g < p->grids; g++) {
    const char *name = p->grid[g].name;
    m->use[g] = compare_has_effect(p, m, name) && !compare_has_own(m, name);
    if (m->use[g]) m->points *= p->grid[g].n;
    if (m->points > COMPARE_POINTS) return cli_fail("--grid: more than %d points", COMPARE_POINTS);
  }
  return CLI_OK;
}

int compare_find_value(const compare_plan *p, const compare_method *m, int k, int g) {
  for (int i = p->grids - 1; i > g; i--)
    if (m->use[i]) k /= p->grid[i].n;
  return k % p->grid[g].n;
}

/* The means over the seeds of a point. Diverged runs are excluded, unless all runs diverged. */
typedef struct point_score {
  int diverged;
  double score, loss;
} point_score;

static point_score score_point(const train_result *r, int seeds, compare_metric metric) {
  point_score out = {0, (double)NAN, (double)NAN};
  double score[COMPARE_GRID_SEEDS], loss[COMPARE_GRID_SEEDS];
  for (int k = 0; k < seeds; k++)
    out.diverged += r[k].diverged;
  for (int k = 0; k < seeds; k++) {
    const bool counts = !r[k].diverged || out.diverged == seeds;
    score[k] = counts ? compare_find_best(metric, &r[k]) : (double)NAN;
    loss[k] = counts && r[k].epochs > 0 ? r[k].epoch[r[k].epochs - 1].train_loss : (double)NAN;
  }
  out.score = compare_compute_spread(score, seeds).mean;
  out.loss = compare_compute_spread(loss, seeds).mean;
  return out;
}

int compare_choose_point(const train_result *r, int points, int seeds, bool squared_error) {
  const compare_metric metric = squared_error ? TEST_LOSS : TEST_ACCURACY;
  int best = 0;
  point_score b = score_point(r, seeds, metric);
  for (int i = 1; i < points; i++) {
    const point_score a = score_point(r + (ptrdiff_t)i * seeds, seeds, metric);
    const bool better = compare_is_better(metric, a.score, b.score) ||
                        (!compare_is_better(metric, b.score, a.score) &&
                         compare_is_better(TRAIN_LOSS, a.loss, b.loss));
    if (a.diverged != b.diverged ? a.diverged > b.diverged : !better) continue;
    best = i;
    b = a;
  }
  return best;
}

int compare_find_edge(const compare_grid *g, int i) {
  bool least = true, largest = true;
  for (int k = 0; k < g->n; k++) {
    char *end = NULL;
    const double v = strtod(g->value[k], &end), chosen = strtod(g->value[i], NULL);
    /* values that are words have no order, so there is no smallest one */
    if (end == g->value[k] || *end != 0) return 0;
    least = least && v >= chosen;
    largest = largest && v <= chosen;
  }
  return g->n < 2 ? 0 : least ? -1 : largest ? 1 : 0;
}

/* Return the k-th seed of tuning. It differs from all seeds of the comparison. */
static int64_t get_tuning_seed(const compare_plan *p, int k) {
  const int64_t first = p->base.seed;
  return k == 0 && first > 0 ? first - 1 : first + COMPARE_SEEDS + k;
}

/* Set the values of point k in `s`, and write them to `text`. */
static int apply_point(const compare_plan *p, const compare_method *m, int k, settings *s,
                       char *text, size_t size) {
  int rc = CLI_OK;
  size_t n = 0;
  text[0] = 0;
  for (int g = 0; g < p->grids && rc == CLI_OK; g++) {
    if (!m->use[g]) continue;
    const char *value = p->grid[g].value[compare_find_value(p, m, k, g)];
    rc = settings_set_or_report(s, NULL, p->grid[g].name, value);
    if (n < size) {
      n += (size_t)snprintf(text + n, size - n, "%s%s=%s", n > 0 ? ", " : "", p->grid[g].name,
                            value);
    }
  }
  return rc == CLI_OK ? settings_check(s) : rc;
}

int compare_check_points(const compare_plan *p, const compare_method *m, const data_set *d) {
  int rc = CLI_OK;
  for (int k = 0; k < m->points && rc == CLI_OK; k++) {
    char text[TEXT];
    settings s;
    settings_copy(&s, &m->s);
    rc = apply_point(p, m, k, &s, text, sizeof text);
    if (rc == CLI_OK) rc = train_check_settings(&s, d);
    settings_free(&s);
  }
  return rc;
}

/* Return the folder of a tuning run; the caller calls free(). */
static char *make_point_path(const compare_plan *p, const compare_method *m, int k, int seed) {
  if (seed == 0) return compare_make_path(p, "tuning/%s-%d", m->label, k);
  return compare_make_path(p, "tuning/%s-%d-seed%lld", m->label, k,
                           (long long)get_tuning_seed(p, seed));
}

static int train_point(compare_plan *p, const compare_method *m, int k, int seed,
                       const data_set *d) {
  char point[TEXT] = "", of_seed[64] = "", label[TEXT + 160];
  train_result *out = &m->point[k * p->grid_seeds + seed];
  settings s;
  settings_copy(&s, &m->s);
  s.validation = p->validation;
  s.seed = get_tuning_seed(p, seed);
  /* runs of a grid write no checkpoint: after a kill, the run of the point begins again */
  s.checkpoint_every = 0;
  free(s.out);
  s.out = make_point_path(p, m, k, seed);
  if (p->grid_epochs > 0.0) {
    s.epochs = p->grid_epochs;
    s.steps = 0;
  }
  int rc = apply_point(p, m, k, &s, point, sizeof point);
  if (p->grid_seeds > 1) (void)snprintf(of_seed, sizeof of_seed, ", seed %lld", (long long)s.seed);
  (void)snprintf(label, sizeof label, "%s %s%s", m->label, point, of_seed);
  if (rc == CLI_OK) rc = compare_run(p, &s, d, "tuning", label, out);
  settings_free(&s);
  return rc;
}

static void add_choice_note(compare_plan *p, const compare_method *m) {
  const int seeds = (int)p->grid_seeds, runs = m->points * seeds;
  const train_result *all = m->point;
  int diverged = 0, chosen = 0; /* number of diverged runs: of all points; of the chosen point */
  for (int i = 0; i < runs; i++) {
    diverged += all[i].diverged;
    chosen += all[i].diverged && i / seeds == m->best_point;
  }
  if (diverged > 0)
    (void)fprintf(p->notes, "%s: %d of %d tuning runs diverged, %d of %d of the chosen point\n",
                  m->label, diverged, runs, chosen, seeds);
  for (int g = 0; g < p->grids; g++) {
    const int i = m->use[g] ? compare_find_value(p, m, m->best_point, g) : 0;
    const int edge = m->use[g] ? compare_find_edge(&p->grid[g], i) : 0;
    if (edge == 0 || diverged == runs) continue;
    (void)fprintf(p->notes, "%s: %s %s is the %s of the grid; a wider grid may do better\n",
                  m->label, p->grid[g].name, p->grid[g].value[i],
                  edge < 0 ? "smallest" : "largest");
  }
}

static void add_unused_grid_note(compare_plan *p, const compare_method *m) {
  for (int g = 0; g < p->grids; g++) {
    const char *name = p->grid[g].name;
    if (m->use[g]) continue;
    (void)fprintf(p->notes, "%s: %s of the grid is left out: %s\n", m->label, name,
                  compare_has_effect(p, m, name) ? "its own is given" : "it has no effect");
  }
}

/* Train all points of all methods that have more than one point, with one seed. */
static int train_points(compare_plan *p, int seed) {
  data_set d;
  int rc = data_open(p->base.data, &d);
  if (rc != CLI_OK) return rc;
  rc = data_hold_out(&d, (int32_t)p->validation, (uint64_t)get_tuning_seed(p, seed));
  for (int i = 0; i < p->methods; i++) {
    compare_method *m = &p->method[i];
    if (m->points > 1 && m->point == NULL)
      m->point = cli_alloc((size_t)m->points * (size_t)p->grid_seeds, sizeof *m->point);
    for (int k = 0; k < m->points && m->points > 1 && rc == CLI_OK && !train_is_interrupted(); k++)
      rc = train_point(p, m, k, seed, &d);
  }
  data_close(&d);
  return rc;
}

static int choose_best_point(compare_plan *p, compare_method *m) {
  char text[TEXT];
  const bool squared_error = !compare_is_accuracy(p->metric);
  add_unused_grid_note(p, m);
  if (m->points > 1) {
    m->best_point = compare_choose_point(m->point, m->points, (int)p->grid_seeds, squared_error);
    add_choice_note(p, m);
  }
  return apply_point(p, m, m->best_point, &m->s, text, sizeof text);
}

int compare_tune(compare_plan *p) {
  int rc = CLI_OK;
  for (int k = 0; k < p->grid_seeds && rc == CLI_OK && !train_is_interrupted(); k++)
    rc = train_points(p, k);
  for (int i = 0; i < p->methods && rc == CLI_OK && !train_is_interrupted(); i++)
    rc = choose_best_point(p, &p->method[i]);
  return rc;
}
