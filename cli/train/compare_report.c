/* compare_report.c: the output of a comparison: tables and notes (table.txt), curves.csv, plot.gp and pictures.
 *
 * Means and deviations exclude diverged runs; tables and notes say how many runs diverged. Seconds are seconds of
 * training, without evaluation, logs and checkpoints. */
#include "compare.h"
#include "disk.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
  SHOWN = 2 * TRAIN_STATIONS
}; /* bound of the number of different stations in all methods together */

typedef struct summary { /* the results of one method */
  int diverged, reached; /* number of runs that diverged; number of runs that reached the target */
  spread epochs, seconds, best, loss, step_ms;
  double station[SHOWN]; /* ms per step at each station, mean over runs */
  int64_t network, precond;
} summary;

typedef struct report {
  compare_plan *p;
  const data_set *d;
  int seeds;
  bool accuracy;
  double target;
  plot_curve *curve;
  summary *sum;
  int stations;
  const char *station[SHOWN]; /* names of all stations, in order of first appearance */
  int64_t skipped, rescued, unobserved;
  table results, pairs, times;
} report;

/* ---- statistics ------------------------------------------------------------------------------*/

/* Return the index of this station in the list of all stations, adding it if necessary; -1: the list is full. */
static int find_station(report *r, const char *name) {
  for (int i = 0; i < r->stations; i++)
    if (strcmp(r->station[i], name) == 0) return i;
  if (r->stations == SHOWN) return -1;
  r->station[r->stations] = name;
  return r->stations++;
}

static double get_step_ms(const train_result *run) {
  const train_epoch *last = run->epochs > 0 ? &run->epoch[run->epochs - 1] : NULL;
  return last != NULL && last->step > 0 ? 1e3 * last->seconds / (double)last->step : (double)NAN;
}

static void summarise_method(report *r, int i) {
  const compare_method *m = &r->p->method[i];
  summary *s = &r->sum[i];
  const int runs = r->seeds;
  double *x = cli_alloc(5 * (size_t)runs, sizeof *x);
  int valid = 0;
  for (int k = 0; k < runs; k++) {
    const train_result *run = &m->run[k];
    s->diverged += run->diverged;
    if (run->network_bytes > s->network) s->network = run->network_bytes;
    if (run->precond_bytes > s->precond) s->precond = run->precond_bytes;
    r->skipped += run->skipped;
    r->rescued += run->rescued;
    r->unobserved += run->unobserved;
    if (run->diverged || run->epochs == 0) continue;
    const int at = compare_find_target_epoch(r->p->metric, run, r->target);
    s->reached += at >= 0;
    x[valid] = at >= 0 ? (double)run->epoch[at].epoch : (double)NAN;
    x[runs + valid] = at >= 0 ? run->epoch[at].seconds : (double)NAN;
    x[2 * runs + valid] = compare_find_best(r->p->metric, run);
    x[3 * runs + valid] = run->epoch[run->epochs - 1].train_loss;
    x[4 * runs + valid] = get_step_ms(run);
    for (int t = 0; t < run->stations; t++) {
      const int column = find_station(r, run->station[t].name);
      if (column >= 0 && run->steps > 0)
        s->station[column] += run->station[t].ms / (double)run->steps;
    }
    valid++;
  }
  for (int t = 0; t < SHOWN && valid > 0; t++)
    s->station[t] /= valid;
  s->epochs = compare_compute_spread(x, valid);
  s->seconds = compare_compute_spread(x + runs, valid);
  s->best = compare_compute_spread(x + 2 * runs, valid);
  s->loss = compare_compute_spread(x + 3 * runs, valid);
  s->step_ms = compare_compute_spread(x + 4 * runs, valid);
  free(x);
}

/* ---- cells -----------------------------------------------------------------------------------*/

/* Write "93.15 ± 0.42" with this number of decimals. decimals < 0: three digits of the mean, two of the deviation. */
static void write_spread_cell(table *t, int column, const spread *s, double scale, int decimals) {
  const double mean = scale * s->mean, deviation = scale * s->deviation;
  if (s->n == 0)
    table_put(t, column, "-");
  else if (decimals >= 0)
    table_put(t, column, s->n > 1 ? "%.*f ± %.*f" : "%.*f", decimals, mean, decimals, deviation);
  else
    table_put(t, column, s->n > 1 ? "%.3g ± %.2g" : "%.3g", mean, deviation);
}

/* Write the method's own settings, then its tuned settings. */
static void write_settings(table *t, int column, const compare_plan *p, const compare_method *m) {
  const char *comma = "";
  for (int i = 0; i < m->n_own_settings; i++, comma = ", ")
    table_put(t, column, "%s%s %s", comma, m->own[i].name, m->own[i].value);
  for (int g = 0; g < p->grids; g++) {
    if (!m->use[g]) continue;
    table_put(t, column, "%s%s %s", comma, p->grid[g].name,
              p->grid[g].value[compare_find_value(p, m, m->best_point, g)]);
    comma = ", ";
  }
}

static void format_target(const report *r, char *text, size_t size) {
  if (!isfinite(r->target))
    (void)snprintf(text, size, "target");
  else if (r->accuracy)
    (void)snprintf(text, size, "%.2f %%", 100.0 * r->target);
  else
    (void)snprintf(text, size, "%.4g", r->target);
}

static const char *name_score(compare_metric m) {
  return m == TEST_ACCURACY    ? "test accuracy"
         : m == TRAIN_ACCURACY ? "training accuracy"
         : m == TEST_LOSS      ? "test loss"
                               : "training loss";
}

/* ---- tables ----------------------------------------------------------------------------------*/

static void fill_result_table(const report *r, table *t) {
  char target[64], epochs[96], seconds[96], best[64];
  format_target(r, target, sizeof target);
  (void)snprintf(epochs, sizeof epochs, "epochs to %s", target);
  (void)snprintf(seconds, sizeof seconds, "seconds to %s", target);
  (void)snprintf(best, sizeof best, "best %s%s", name_score(r->p->metric), r->accuracy ? " %" : "");
  table_begin(t, (const char *const[]){"method", "runs", epochs, seconds, best, "min..max",
                                       "final training loss", "settings", NULL});
  const double scale = r->accuracy ? 100.0 : 1.0;
  for (int i = 0; i < r->p->methods; i++) {
    const summary *s = &r->sum[i];
    table_add_row(t);
    table_put(t, 0, "%s", r->p->method[i].label);
    table_put(t, 1, "%d", r->seeds);
    if (s->diverged > 0) table_put(t, 1, ", %d diverged", s->diverged);
    write_spread_cell(t, 2, &s->epochs, 1.0, 1);
    if (s->reached > 0 && s->reached < r->seeds)
      table_put(t, 2, " (%d of %d)", s->reached, r->seeds);
    write_spread_cell(t, 3, &s->seconds, 1.0, -1);
    write_spread_cell(t, 4, &s->best, scale, r->accuracy ? 2 : -1);
    if (s->best.n > 1) {
      table_put(t, 5, r->accuracy ? "%.2f..%.2f" : "%.3g..%.3g", scale * s->best.min,
                scale * s->best.max);
    }
    write_spread_cell(t, 6, &s->loss, 1.0, -1);
    write_settings(t, 7, r->p, &r->p->method[i]);
  }
}

/* Return true if this station takes more than 1 % of a step in some method. */
static bool is_costly_station(const report *r, int column) {
  for (int i = 0; i < r->p->methods; i++)
    if (r->sum[i].station[column] > 0.01 * r->sum[i].step_ms.mean) return true;
  return false;
}

static void fill_time_table(const report *r, table *t) {
  const char *head[SHOWN + 6] = {"method", "ms a step"};
  int shown[SHOWN] = {0}, n = 0;
  for (int c = 0; c < r->stations; c++) {
    if (!is_costly_station(r, c)) continue;
    head[2 + n] = r->station[c];
    shown[n++] = c;
  }
  head[2 + n] = "other";
  head[3 + n] = "network";
  head[4 + n] = "preconditioner";
  table_begin(t, head);
  for (int i = 0; i < r->p->methods; i++) {
    const summary *s = &r->sum[i];
    char text[16];
    table_add_row(t);
    table_put(t, 0, "%s", r->p->method[i].label);
    table_put(t, 3 + n, "%s", cli_format_bytes((double)s->network, text));
    table_put(t, 4 + n, "%s", cli_format_bytes((double)s->precond, text));
    if (s->step_ms.n == 0) continue;
    double other = s->step_ms.mean;
    table_put(t, 1, "%.3f", s->step_ms.mean);
    for (int c = 0; c < n; c++) {
      other -= s->station[shown[c]];
      table_put(t, 2 + c, "%.3f", s->station[shown[c]]);
    }
    table_put(t, 2 + n, "%.3f", fmax(other, 0.0));
  }
}

static void print_heading(const report *r, FILE *f) {
  const settings *s = &r->p->base;
  char processor[128] = "", target[64], length[64];
  int threads = 1;
  cli_read_processor_name(processor, sizeof processor);
  format_target(r, target, sizeof target);
  if (s->steps > 0) {
    (void)snprintf(length, sizeof length, "%lld step%s", (long long)s->steps,
                   s->steps > 1 ? "s" : "");
  } else {
    (void)snprintf(length, sizeof length, "%g epoch%s", s->epochs, s->epochs == 1.0 ? "" : "s");
  }
  const long long first = (long long)s->seed;
  char seeds[64];
  (void)snprintf(seeds, sizeof seeds, r->seeds > 1 ? "seeds %lld to %lld" : "seed %lld", first,
                 first + r->seeds - 1);
  (void)fprintf(f, "%s, %s, batch %lld, %s, %s; %s, ", r->d->name, s->model,
                (long long)settings_count_samples(s), length, seeds, processor);
  /* this call cannot fail, because run_set_up has checked NG_THREADS */
  (void)cli_read_thread_count(&threads);
  (void)fprintf(f, "%d thread%s\n", threads, threads > 1 ? "s" : "");
  if (!isfinite(r->target)) return;
  (void)fprintf(f, "target: %s %s%s\n", name_score(r->p->metric), target,
                isfinite(r->p->target) ? "" : ", reached by the mean of every method");
}

static void print_tables(FILE *f, const void *what) {
  const report *r = what;
  print_heading(r, f);
  table_print(&r->results, f);
  (void)fputc('\n', f);
  if (r->p->methods > 1) {
    compare_print_differences(r->p, f);
    table_print(&r->pairs, f);
    (void)fputc('\n', f);
  }
  table_print(&r->times, f);
  if (r->p->note_size > 0) (void)fprintf(f, "\n%s", r->p->note);
}

static void add_step_note(const report *r, int64_t n, const char *what) {
  if (n > 0) (void)fprintf(r->p->notes, "%lld steps %s\n", (long long)n, what);
}

static void add_run_notes(const report *r) {
  for (int i = 0; i < r->p->methods; i++) {
    const compare_method *m = &r->p->method[i];
    if (r->sum[i].diverged == 0) continue;
    (void)fprintf(r->p->notes, "%s: %d of %d runs diverged (seed", m->label, r->sum[i].diverged,
                  r->seeds);
    const char *comma = "";
    for (int k = 0; k < r->seeds; k++) {
      if (!m->run[k].diverged) continue;
      (void)fprintf(r->p->notes, "%s %lld after step %lld", comma, (long long)(r->p->base.seed + k),
                    (long long)m->run[k].steps);
      comma = ",";
    }
    (void)fprintf(r->p->notes, "); %s\n",
                  r->sum[i].diverged < r->seeds ? "means exclude these" : "all runs diverged");
  }
  add_step_note(r, r->skipped, "were skipped, a value was not finite");
  add_step_note(r, r->rescued,
                "were rescued: more damping, the last good result, or old values kept");
  add_step_note(r, r->unobserved, "used a stale statistic, as nothing was observed");
  (void)fflush(r->p->notes);
}

/* ---- files -----------------------------------------------------------------------------------*/

static void print_csv_real(FILE *f, double v) {
  (void)fputc(',', f);
  if (isfinite(v)) (void)fprintf(f, "%.17g", v);
}

static void print_curve_csv(FILE *f, const void *what) {
  const report *r = what;
  (void)fputs("method,seed,epoch,seconds,train_loss,test_loss,test_accuracy\n", f);
  for (int i = 0; i < r->p->methods; i++) {
    for (int k = 0; k < r->seeds; k++) {
      const train_result *run = &r->p->method[i].run[k];
      for (int e = 0; e < run->epochs; e++) {
        const train_epoch *at = &run->epoch[e];
        (void)fprintf(f, "%s,%lld,%lld", r->p->method[i].label, (long long)(r->p->base.seed + k),
                      (long long)at->epoch);
        print_csv_real(f, at->seconds);
        print_csv_real(f, at->train_loss);
        print_csv_real(f, at->test_loss);
        print_csv_real(f, at->test_accuracy);
        (void)fputc('\n', f);
      }
    }
  }
}

static int write_files(const report *r) {
  char *curves = compare_make_path(r->p, "curves.csv"),
       *text = compare_make_path(r->p, "table.txt");
  int rc = disk_print_file(curves, print_curve_csv, r);
  if (rc == CLI_OK) rc = disk_print_file(text, print_tables, r);
  free(curves);
  free(text);
  return rc;
}

static int draw_plot(const report *r) {
  char title[512];
  (void)snprintf(title, sizeof title,
                 r->seeds > 1 ? "%s, %s: mean and range over %d seeds" : "%s, %s: %d seed",
                 r->d->name, r->p->base.model, r->seeds);
  for (int i = 0; i < r->p->methods; i++)
    (void)snprintf(r->curve[i].label, sizeof r->curve[i].label,
                   r->sum[i].diverged > 0 ? "%s (%d of %d diverged)" : "%s", r->p->method[i].label,
                   r->sum[i].diverged, r->seeds);
  char score[64];
  (void)snprintf(score, sizeof score, "%s%s", name_score(r->p->metric), r->accuracy ? " %" : "");
  const plot picture = {.title = title,
                        .score = score,
                        .score_scale = r->accuracy ? 100.0 : 1.0,
                        .score_log = !r->accuracy,
                        .target = r->target,
                        .n = r->p->methods,
                        .curve = r->curve};
  char *script = compare_make_path(r->p, "plot.gp");
  const int rc = plot_write(&picture, script);
  bool any = false; /* gnuplot fails if there is no data at all */
  for (int i = 0; i < r->p->methods; i++)
    any = any || !r->curve[i].diverged;
  if (rc == CLI_OK && any) plot_draw(r->p->dir);
  free(script);
  return rc;
}

int compare_write_report(compare_plan *p, const data_set *d) {
  report r = {.p = p,
              .d = d,
              .seeds = (int)p->seeds,
              .accuracy = compare_is_accuracy(p->metric),
              .target = p->target};
  r.curve = cli_alloc((size_t)p->methods, sizeof *r.curve);
  r.sum = cli_alloc((size_t)p->methods, sizeof *r.sum);
  for (int i = 0; i < p->methods; i++)
    r.curve[i] = compare_make_curve(p->metric, p->method[i].run, r.seeds);
  if (!isfinite(r.target)) r.target = compare_find_target(p->metric, r.curve, p->methods);
  for (int i = 0; i < p->methods; i++)
    summarise_method(&r, i);
  add_run_notes(&r);
  fill_result_table(&r, &r.results);
  compare_fill_difference_table(p, &r.pairs);
  fill_time_table(&r, &r.times);
  int rc = write_files(&r);
  if (rc == CLI_OK) rc = draw_plot(&r);
  if (rc == CLI_OK) print_tables(stdout, &r);
  table_free(&r.results);
  table_free(&r.pairs);
  table_free(&r.times);
  for (int i = 0; i < p->methods; i++)
    free(r.curve[i].point);
  free(r.curve);
  free(r.sum);
  return rc;
}
