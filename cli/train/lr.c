/* lr.c: the learning rate of a step: a pure function of the settings and of how far the run is, so
 * that a resumed run needs nothing but its step.  The formulas are on the card in lr.h. */
#include "lr.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

static int refuse(const char *text, const char *expected, char *message, size_t size) {
  (void)snprintf(message, size, "'%s', expected %s", text, expected);
  return CLI_BAD;
}

/* A number in [lower, upper] that reaches to one of the characters of `ends`. */
static bool number(const char **at, const char *ends, double lower, double upper, double *out) {
  char *end = NULL;
  *out = strtod(*at, &end);
  const bool good = end != *at && strchr(ends, *end) != NULL && *out >= lower && *out <= upper;
  *at = end;
  return good;
}

static int parse_step(const char *text, const char *at, lr_schedule *out, char *message,
                      size_t size) {
  const char *expected =
      "step:E1,E2,...[@FACTOR] with epochs that ascend from above 0 (at most 32) "
      "and a factor from 0 to 1";
  double last = 0.0;
  out->number = 0.1;
  for (;;) {
    double v;
    if (out->points == LR_POINTS || !number(&at, ",@", 0.0, 1e6, &v) || v <= last)
      return refuse(text, expected, message, size);
    out->point[out->points++] = last = v;
    if (*at != ',') break;
    at++;
  }
  if (*at == 0) return CLI_OK;
  at++;
  return number(&at, "", 0.0, 1.0, &out->number) ? CLI_OK : refuse(text, expected, message, size);
}

static int parse_cyclic(const char *text, const char *at, lr_schedule *out, char *message,
                        size_t size) {
  out->number = 0.1;
  bool good = number(&at, "@", 1e-6, 1e6, &out->period);
  if (good && *at == '@') {
    at++;
    good = number(&at, "", 0.0, 1.0, &out->number);
  }
  if (good) return CLI_OK;
  return refuse(text, "cyclic:PERIOD[@LOW] with a period above 0, in epochs, and LOW from 0 to 1",
                message, size);
}

static int parse_polynomial(const char *text, const char *at, lr_schedule *out, char *message,
                            size_t size) {
  bool good = number(&at, "@", 0.0, 100.0, &out->number);
  if (good && *at == '@') {
    at++;
    good = number(&at, ",", 0.0, 1e6, &out->start) && *at == ',';
    if (good) at++;
    good = good && number(&at, "", 0.0, 1e6, &out->end) && out->end > out->start;
  }
  if (good) return CLI_OK;
  return refuse(text,
                "polynomial:POWER[@START,END] with POWER from 0 to 100 and epochs, END above START",
                message, size);
}

int lr_parse(const char *text, lr_schedule *out, char *message, size_t size) {
  static const struct {
    const char *name, *expected;
    lr_kind kind;
    double standard, lower, upper;
    bool needs;
  } form[] = {
      {"constant", "constant alone", LR_CONSTANT, 0, 0, -1, false},
      {"step", "step:E1,E2,...[@FACTOR]", LR_STEP, 0, 0, 0, true},
      {"cosine", "cosine[:FINAL] with FINAL from 0 to 1", LR_COSINE, 0, 0, 1, false},
      {"linear", "linear[:FINAL] with FINAL from 0 to 1", LR_LINEAR, 0, 0, 1, false},
      {"polynomial", "polynomial:POWER[@START,END]", LR_POLYNOMIAL, 0, 0, 0, true},
      {"cyclic", "cyclic:PERIOD[@LOW]", LR_CYCLIC, 0, 0, 0, true},
  };
  memset(out, 0, sizeof *out);
  const size_t n = strcspn(text, ":");
  for (size_t i = 0; i < sizeof form / sizeof form[0]; i++) {
    if (strlen(form[i].name) != n || strncmp(form[i].name, text, n) != 0) continue;
    out->kind = form[i].kind;
    out->number = form[i].standard;
    if (text[n] == 0) {
      return form[i].needs ? refuse(text, form[i].expected, message, size) : CLI_OK;
    }
    const char *at = text + n + 1;
    if (out->kind == LR_STEP) return parse_step(text, at, out, message, size);
    if (out->kind == LR_POLYNOMIAL) return parse_polynomial(text, at, out, message, size);
    if (out->kind == LR_CYCLIC) return parse_cyclic(text, at, out, message, size);
    if (number(&at, "", form[i].lower, form[i].upper, &out->number)) return CLI_OK;
    return refuse(text, form[i].expected, message, size);
  }
  return refuse(text,
                "constant, step:E1,E2,...[@FACTOR], cosine[:FINAL], linear[:FINAL], "
                "polynomial:POWER[@START,END] or cyclic:PERIOD[@LOW]",
                message, size);
}

/* How much of a polynomial's own stretch is over; without one, of the run. */
static double over(const lr_schedule *l, double epoch, double total, double p) {
  if (l->end <= 0.0) return p;
  const double end = fmax(l->end, total);
  return epoch < l->start ? 0.0 : epoch >= end ? 1.0 : (epoch - l->start) / (end - l->start);
}

static double shape(const lr_schedule *l, double epoch, double total, double p) {
  switch (l->kind) {
  case LR_CONSTANT:
    break;
  case LR_STEP: {
    double f = 1.0;
    for (int i = 0; i < l->points && l->point[i] <= epoch; i++)
      f *= l->number;
    return f;
  }
  case LR_COSINE:
    return l->number + (1.0 - l->number) * 0.5 * (1.0 + cos(PI * p));
  case LR_LINEAR:
    return 1.0 + (l->number - 1.0) * p;
  case LR_POLYNOMIAL:
    return pow(1.0 - over(l, epoch, total, p), l->number);
  case LR_CYCLIC: {
    const double at = fmod(epoch, l->period) / l->period;
    return l->number + (1.0 - l->number) * (1.0 - fabs(2.0 * at - 1.0));
  }
  }
  return 1.0;
}

double lr_at(const settings *s, double epoch, double total) {
  char message[256];
  lr_schedule l;
  if (lr_parse(s->lr_schedule, &l, message, sizeof message) != CLI_OK) return 0.0; /* was checked */
  const double w = s->warm_up, rest = total - w;
  const double p = epoch <= w ? 0.0 : rest > 0.0 ? fmin(1.0, (epoch - w) / rest) : 1.0;
  const double rise = epoch < w ? epoch / w : 1.0;
  return settings_lr(s) * rise * shape(&l, epoch, total, p);
}
