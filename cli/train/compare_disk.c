/* compare_disk.c: the files of a comparison. The program may be killed at any moment; --resume then continues.
 *
 *   DIR/tuning/LABEL-K/     the run of point K of a method's grid, with the files of `natgrad train` but no checkpoint;
 *                           from the second tuning seed on LABEL-K-seedS
 *   DIR/runs/LABEL-seedK/   the other runs, with the same files
 *
 * A run is finished when its log has an "end" line. Results are read from the logs. The config.json of each run must
 * have the settings of the comparison. */
#include "compare.h"
#include "checkpoint.h"
#include "disk.h"
#include "log.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

char *compare_make_path(const compare_plan *p, const char *format, ...) {
  char name[512];
  va_list args;
  va_start(args, format);
  /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): as in messages.c */
  (void)vsnprintf(name, sizeof name, format, args);
  va_end(args);
  return cli_join(p->dir, name);
}

/* Remove the files of a run that has no checkpoint. Other files in its folder stay. */
static void remove_unfinished(const char *dir) {
  static const char *const left[] = {"config.json", "config.json.natgrad-part", "log.jsonl"};
  for (size_t i = 0; i < sizeof left / sizeof left[0]; i++) {
    char *path = cli_join(dir, left[i]);
    disk_remove_file(path);
    free(path);
  }
}

/* Check that the run has the settings `s`. */
static int check_config_file(const char *path, const char *text, const settings *s) {
  settings was;
  settings_init(&was);
  int rc = settings_parse_json(&was, text, path);
  if (rc == CLI_OK) rc = settings_check_same(s, &was, path, "this comparison");
  if (rc == CLI_OK && (was.epochs != s->epochs || was.steps != s->steps))
    rc = cli_fail("%s: is a run of another length than this comparison", path);
  settings_free(&was);
  return rc;
}

/* If the run in s->out is finished, read its result. */
static int read_finished_result(const settings *s, train_result *r, bool *over) {
  char *config = cli_join(s->out, "config.json"), *log = cli_join(s->out, "log.jsonl");
  char *text = NULL;
  int rc = CLI_OK;
  *over = false;
  if (disk_exists(config) && disk_exists(log)) {
    rc = disk_check_regular(config);
    if (rc == CLI_OK) rc = disk_read_text(config, &text);
    if (rc == CLI_OK) rc = log_read_result(log, text, r, over);
    if (rc == CLI_OK) rc = check_config_file(config, text, s);
    if (rc != CLI_OK) train_result_free(r);
  }
  free(text);
  free(log);
  free(config);
  return rc;
}

static void print_run_line(compare_metric metric, const char *place, const char *label,
                           const train_result *r) {
  const double best = compare_find_best(metric, r);
  if (r->diverged) {
    (void)fprintf(stderr, "%s %s: diverged after step %lld\n", place, label, (long long)r->steps);
    return;
  }
  (void)fprintf(stderr,
                compare_is_accuracy(metric) ? "%s %s: best accuracy %.2f %%, %.2f s\n"
                                            : "%s %s: lowest loss %.5g, %.2f s\n",
                place, label, compare_is_accuracy(metric) ? 100.0 * best : best,
                r->epochs > 0 ? r->epoch[r->epochs - 1].seconds : 0.0);
}

int compare_run(const compare_plan *p, settings *s, const data_set *d, const char *place,
                const char *label, train_result *r) {
  const train_output output = {.bar = !p->quiet, .label = label};
  int64_t step = -1;
  bool over = false;
  memset(r, 0, sizeof *r);
  int rc = disk_make_run_subfolder(s->out);
  if (rc == CLI_OK) rc = read_finished_result(s, r, &over);
  if (rc == CLI_OK && !over) {
    rc = checkpoint_find(s->out, &step, NULL);
    s->resume = step >= 0;
    if (rc == CLI_OK && !s->resume) remove_unfinished(s->out);
    if (rc == CLI_OK) rc = train_run(s, d, &output, r);
    if (rc == CLI_OK && !r->stopped) { /* read the result from the log, as a later --resume does */
      train_result_free(r);
      rc = read_finished_result(s, r, &over);
      if (rc == CLI_OK && !p->quiet) print_run_line(p->metric, place, label, r);
    }
  }
  /* an earlier program may have been killed before it removed the checkpoints of a finished run */
  if (over) checkpoint_remove_all(s->out);
  return rc;
}

/* Return true if DIR has the folder of the runs of a comparison. */
static bool folder_has_runs(const compare_plan *p) {
  char *runs = compare_make_path(p, "runs");
  const bool has = disk_exists(runs);
  free(runs);
  return has;
}

/* Check that DIR does not exist or is empty. */
static int check_new_folder(const compare_plan *p) {
  DIR *folder = opendir(p->dir);
  if (folder == NULL)
    return errno == ENOENT ? CLI_OK : cli_fail("--out: %s: %s", p->dir, strerror(errno));
  bool empty = true;
  for (const struct dirent *e; (e = readdir(folder)) != NULL;)
    empty = empty && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0);
  (void)closedir(folder);
  if (empty) return CLI_OK;
  return folder_has_runs(p) ? cli_fail("--out: %s has a comparison; --resume continues it", p->dir)
                            : cli_fail("--out: %s is not empty, expected a new folder", p->dir);
}

int compare_open_folder(const compare_plan *p) {
  static const char *const folders[] = {"runs", "tuning"};
  int lock; /* file descriptor of the lock, which stays open until the program ends */
  int rc = CLI_OK;
  if (!p->resume) {
    rc = check_new_folder(p);
    if (rc == CLI_OK) rc = disk_make_folder(p->dir);
  } else if (!folder_has_runs(p)) {
    rc = cli_fail("--resume: %s has no comparison to continue", p->dir);
  }
  if (rc == CLI_OK) rc = disk_lock_folder(p->dir, "compare", &lock);
  for (int i = 0; rc == CLI_OK && i < (p->grids > 0 ? 2 : 1); i++) {
    char *folder = compare_make_path(p, "%s", folders[i]);
    rc = disk_make_run_subfolder(folder);
    free(folder);
  }
  return rc;
}
