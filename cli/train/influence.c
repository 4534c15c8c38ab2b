/* influence.c: `natgrad influence`: rank training samples by their influence on test samples (scores.h).
 *
 * In: the directory of a run. Out: a table; a CSV or JSON file with all scores. */
#include "common/commands.h"
#include "disk.h"
#include "scores.h"
#include "subject.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct request {
  const char *data, *out;
  int64_t top;
  scores_how how;
} request;

typedef struct ranking {
  const scored_sample *list;
  int32_t count;
} ranking;

static void print_csv(FILE *f, const void *what) {
  const ranking *r = what;
  (void)fputs("sample,label,score\n", f);
  for (int32_t i = 0; i < r->count; i++)
    (void)fprintf(f, "%d,%d,%.17g\n", r->list[i].row, r->list[i].label, r->list[i].score);
}

static void print_json(FILE *f, const void *what) {
  const ranking *r = what;
  (void)fputs("[", f);
  for (int32_t i = 0; i < r->count; i++) {
    char score[32] = "null"; /* JSON has no Inf and no NaN */
    const double x = r->list[i].score;
    if (isfinite(x)) (void)snprintf(score, sizeof score, "%.17g", x);
    (void)fprintf(f, "%s\n {\"sample\": %d, \"label\": %d, \"score\": %s}", i > 0 ? "," : "",
                  r->list[i].row, r->list[i].label, score);
  }
  (void)fputs("\n]\n", f);
}

static bool is_json(const char *name) {
  const size_t n = strlen(name);
  return n > 5 && strcmp(name + n - 5, ".json") == 0;
}

/* Print n samples, from the first or, if `step` is -1, from the last. */
static void print_rows(const ranking *r, const char *title, int32_t n, int32_t step) {
  printf("\n%s\n  rank  sample  label  score\n", title);
  for (int32_t i = 0; i < n && i < r->count; i++) {
    const int32_t at = step > 0 ? i : r->count - 1 - i;
    printf("%6d  %6d  %5d  %.6g\n", at + 1, r->list[at].row, r->list[at].label, r->list[at].score);
  }
}

static void print_tables(const request *w, const subject *p, const ranking *r) {
  const int32_t top = (int32_t)w->top;
  if (w->how.self)
    printf("self-influence");
  else if (w->how.test >= 0)
    printf("influence on test sample %lld", (long long)w->how.test);
  else
    printf("influence on the mean loss of %d test samples", p->feed.test->n);
  printf(": %d training samples of %s, step %lld\n", r->count, p->d.name, (long long)p->state.step);
  if (w->how.self) {
    print_rows(r, "largest scores: unusual or mislabelled samples", top, 1);
    return;
  }
  print_rows(r, "largest scores; above 0: the sample lowers the test loss", top, 1);
  print_rows(r, "smallest scores; below 0: the sample raises the test loss", top, -1);
}

static int run_influence(void *user, const cli_args *args) {
  const request *w = user;
  subject p;
  if (args->operands == 0)
    return cli_fail("influence: expected the folder of a run (natgrad train --out)");
  if (w->how.self && w->how.test >= 0)
    return cli_fail("influence: --self and --test exclude each other");
  if (w->out != NULL && subject_check_output(w->out) != CLI_OK) return CLI_BAD;
  int rc = subject_open(
      &(subject_request){.dir = args->operand[0], .command = "influence", .data = w->data}, &p);
  ranking r = {NULL, 0};
  if (rc == CLI_OK) {
    /* use the test split, even if the run used part of the training samples as validation split */
    p.feed.test = &p.d.test;
    scored_sample *list = cli_alloc((size_t)p.d.train.n, sizeof *list);
    r.list = list;
    rc = scores_compute(p.ctx, &w->how, &p.s, p.reconstructs, &p.feed, p.net, p.pool, list,
                        &r.count);
    scores_sort(list, r.count);
    if (rc == CLI_OK && w->out != NULL)
      rc = disk_print_file(w->out, is_json(w->out) ? print_json : print_csv, &r);
    if (rc == CLI_OK) print_tables(w, &p, &r);
    free(list);
  }
  subject_close(&p);
  return rc;
}

static const request standard = {.top = 10, .how = {.test = -1, .damping = -1.0}};
static const cli_option own[] = {
    {"test", "N", "influence on test sample N, from 0 on (on the mean loss of all test samples)",
     CLI_WHOLE, offsetof(request, how.test), 0, INT32_MAX},
    {"self", NULL, "influence of each training sample on its own loss", CLI_FLAG,
     .field = offsetof(request, how.self)},
    {"top", "N", "number of samples in each table (10)", CLI_WHOLE, offsetof(request, top), 1,
     INT32_MAX},
    {"damping", "X", "lambda of all layers (0.1 times the mean eigenvalue of K of each layer)",
     CLI_REAL, offsetof(request, how.damping), 0, 1e30},
    {"ekfac", NULL, "EKFAC: eigenvalues of K from the gradients of samples, by one more pass",
     CLI_FLAG, .field = offsetof(request, how.ekfac)},
    {"empirical", NULL, "K from the labels of the data (from labels that the network draws)",
     CLI_FLAG, .field = offsetof(request, how.empirical)},
    {"out", "FILE", "write all scores to FILE, the largest first; FILE.json: as JSON, else as CSV",
     CLI_TEXT, .field = offsetof(request, out)},
    {"data", "SPEC", "the data set, if its files have moved", CLI_TEXT,
     .field = offsetof(request, data)},
};

const cli_command cli_influence = {
    .name = "influence",
    .usage = "RUN_DIR [OPTIONS]",
    .summary = "rank training samples by their influence on test samples",
    .text =
        "RUN_DIR is a folder of `natgrad train --out`. The score of training sample j is the sum\n"
        "over layers of <D, (K + lambda I)^-1 D_j> (Koh & Liang 2017): D and D_j are gradients of\n"
        "the test loss and of the loss of sample j, K = G (x) A is the K-FAC curvature, from one\n"
        "pass over the training samples. A positive score: the sample lowers the test loss.\n"
        "--self ranks samples by <D_j, (K + lambda I)^-1 D_j>; mislabelled samples have large "
        "scores.\n"
        "All passes are in evaluation mode, without augmentation. docs/curvature.md has more.\n",
    .options = own,
    .n_options = (int)(sizeof own / sizeof own[0]),
    .size = sizeof(request),
    .operands = 1,
    .standard = &standard,
    .run = run_influence,
};
