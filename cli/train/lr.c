/* lr.c: parse and evaluate learning rate schedules; lr.h has the formulas. A factor depends only on the epoch, so a
 * resumed run needs no more state than its step. */
#include "lr.h"
#include "common/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

typedef struct form {
  const char *name, *expected;
  int least, most;     /* smallest and largest number of values of a schedule */
  double lower, upper; /* bounds of each value */
  double standard;     /* default of an optional value; default of the first extra value */
  int extras;          /* number of extras; a text has all or none */
  double most_extra;
} form;

static const form forms[] = {
    [LR_CONSTANT] = {"constant", "constant without values", 0, 0, 0, 0, 0, 0, 0},
    [LR_STEP] = {"step",
                 "step:E1,E2,...[@FACTOR] with epochs that ascend from above 0 (at most 32) and a "
                 "factor from 0 to 1",
                 1, LR_VALUES, 0, 1e6, 0.1, 1, 1},
    [LR_COSINE] = {"cosine", "cosine[:FINAL] with FINAL from 0 to 1", 0, 1, 0, 1, 0, 0, 0},
    [LR_LINEAR] = {"linear", "linear[:FINAL] with FINAL from 0 to 1", 0, 1, 0, 1, 0, 0, 0},
    [LR_POLYNOMIAL] = {"polynomial",
                       "polynomial:POWER[@START,END] with POWER from 0 to 100 and epochs, END "
                       "above START",
                       1, 1, 0, 100, 0, 2, 1e6},
    [LR_CYCLIC] = {"cyclic",
                   "cyclic:PERIOD[@LOW] with a period above 0, in epochs, and LOW from 0 to 1", 1,
                   1, 1e-6, 1e6, 0.1, 1, 1},
};

/* Read numbers separated by commas up to '@' or the end; return how many, or -1: none, too many, or out of range. */
static int read_numbers(const char **at, int most, double lower, double upper, double *out) {
  for (int n = 0; n < most; n++) {
    char *end = NULL;
    out[n] = strtod(*at, &end);
    if (end == *at || !(out[n] >= lower && out[n] <= upper)) return -1;
    *at = end;
    if (*end != ',') return n + 1;
    (*at)++;
  }
  return -1;
}

static bool parse_form(const form *f, const char *at, lr_schedule *out) {
  out->value[0] = out->extra[0] = f->standard;
  if (*at == 0) return f->least == 0;
  at++; /* skip ':' */
  out->values = read_numbers(&at, f->most, f->lower, f->upper, out->value);
  if (out->values < f->least || (*at == '@' && f->extras == 0)) return false;
  if (*at == '@') {
    at++;
    out->extras = read_numbers(&at, f->extras, 0.0, f->most_extra, out->extra);
    if (out->extras != f->extras) return false;
  }
  for (int i = 0; i < out->values && out->kind == LR_STEP; i++)
    if (out->value[i] <= (i > 0 ? out->value[i - 1] : 0.0)) return false;
  if (out->kind == LR_POLYNOMIAL && out->extras > 0 && out->extra[1] <= out->extra[0]) return false;
  return *at == 0;
}

int lr_parse(const char *text, lr_schedule *out, char *message, size_t size) {
  const char *expected = "constant, step:E1,E2,...[@FACTOR], cosine[:FINAL], linear[:FINAL], "
                         "polynomial:POWER[@START,END] or cyclic:PERIOD[@LOW]";
  const size_t n = strcspn(text, ":");
  memset(out, 0, sizeof *out);
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
    if (strlen(forms[i].name) != n || strncmp(forms[i].name, text, n) != 0) continue;
    out->kind = (lr_kind)i;
    if (parse_form(&forms[i], text + n, out)) return CLI_OK;
    expected = forms[i].expected;
  }
  (void)snprintf(message, size, "'%s', expected %s", text, expected);
  return CLI_BAD;
}

/* Return the progress from START (0) to END (1) of a polynomial schedule. */
static double find_progress(const lr_schedule *l, double epoch, double total) {
  const double start = l->extra[0], end = fmax(l->extra[1], total);
  return epoch < start ? 0.0 : epoch >= end ? 1.0 : (epoch - start) / (end - start);
}

static double evaluate_factor(const lr_schedule *l, double epoch, double total, double p) {
  const double v = l->value[0], low = l->extra[0];
  double f = 1.0;
  switch (l->kind) {
  case LR_CONSTANT:
    break;
  case LR_STEP:
    for (int i = 0; i < l->values && l->value[i] <= epoch; i++)
      f *= low;
    break;
  case LR_COSINE:
    return v + (1.0 - v) * 0.5 * (1.0 + cos(PI * p));
  case LR_LINEAR:
    return 1.0 + (v - 1.0) * p;
  case LR_POLYNOMIAL:
    return pow(1.0 - (l->extras > 0 ? find_progress(l, epoch, total) : p), v);
  case LR_CYCLIC:
    return low + (1.0 - low) * (1.0 - fabs(2.0 * fmod(epoch, v) / v - 1.0));
  }
  return f;
}

double lr_compute_factor(const lr_schedule *l, double warm_up, double epoch, double total) {
  const double rest = total - warm_up;
  const double p = epoch <= warm_up ? 0.0 : rest > 0.0 ? fmin(1.0, (epoch - warm_up) / rest) : 1.0;
  return (epoch < warm_up ? epoch / warm_up : 1.0) * evaluate_factor(l, epoch, total, p);
}
