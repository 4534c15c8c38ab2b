/* schedule.c: parse and evaluate --schedule; schedule.h has the grammar and the formulas. */
#include "schedule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const schedule_option[SCHEDULED] = {"damping", "stat_decay", "kl_clip", "stat_period",
                                                "solve_period"};
enum { DAMPING, STAT_DECAY, KL_CLIP, STAT_PERIOD, SOLVE_PERIOD, WORD = 40 };

/* One pass over the text computes the values at step t, and passes each value of steps 0 to t to `visit`, if not
 * NULL. */
typedef struct reader {
  const char *at;
  const double *base;
  int64_t t;
  double *value;
  int (*visit)(const struct reader *r, const char *entry, int option, double value, int64_t step);
  const ng_options *against;
  char *message;
  size_t size;
} reader;

static int write_error(const reader *r, const char *entry, const char *what, const char *more) {
  (void)snprintf(r->message, r->size, "'%.*s': %s%s", (int)strcspn(entry, " \t\r\n"), entry, what,
                 more);
  return CLI_BAD;
}

/* Copy the text up to one of the characters `stops` or a blank; false: the text is too long. */
static bool read_word(reader *r, const char *stops, char word[WORD]) {
  size_t n = 0;
  for (; *r->at != 0 && strchr(" \t\r\n", *r->at) == NULL && strchr(stops, *r->at) == NULL;
       r->at++) {
    if (n == WORD - 1) return false;
    word[n++] = *r->at;
  }
  word[n] = 0;
  return true;
}

static bool read_real(const char *word, double *out) {
  char *end = NULL;
  if (word[0] == 0 || strspn(word, "+-.0123456789eE") != strlen(word)) return false;
  *out = strtod(word, &end);
  return *end == 0 && isfinite(*out);
}

static bool read_steps(const char *word, int64_t least, int64_t *out) {
  if (word[0] == 0 || strspn(word, "0123456789") != strlen(word) || strlen(word) > 15) return false;
  *out = strtoll(word, NULL, 10);
  return *out >= least;
}

static int visit_value(const reader *r, const char *entry, int option, double value, int64_t step) {
  return r->visit == NULL ? CLI_OK : r->visit(r, entry, option, value, step);
}

/* Read NAME*F@T1,T2,... or NAME*=F@T1,T2,... from the star on. */
static int read_point_entry(reader *r, const char *entry, int k) {
  char word[WORD];
  double factor = 0, v = r->base[k], now = v;
  int64_t last = 0, n = 0;
  r->at++; /* skip the star */
  const bool current = *r->at == '=';
  r->at += current;
  if (!read_word(r, "@", word) || !read_real(word, &factor) || !(factor > 0) || factor > 1e6)
    return write_error(r, entry, "expected a factor, 0 < F <= 1e6, after '*'", "");
  if (*r->at != '@') return write_error(r, entry, "expected '@' and steps after the factor", "");
  do {
    int64_t t = 0;
    r->at++;
    if (!read_word(r, ",", word) || !read_steps(word, 1, &t))
      return write_error(r, entry, "expected steps >= 1 after '@', separated by commas", "");
    if (t <= last) return write_error(r, entry, "the steps must ascend", "");
    last = t;
    v = current ? v * factor : r->base[k] * pow(factor, (double)++n);
    if (k == STAT_PERIOD || k == SOLVE_PERIOD) v = fmax(1, trunc(v));
    if (t <= r->t) now = v;
    const int rc = visit_value(r, entry, k, v, t);
    if (rc != CLI_OK) return rc;
  } while (*r->at == ',');
  r->value[k] = now;
  return CLI_OK;
}

static double evaluate_curve(char rule, bool down, double K, int64_t steps, int64_t t) {
  const bool ends = down && rule != 'S'; /* the curve ends at 0 */
  const int64_t now = t + 1, most = ends ? steps - 1 : steps;
  const double x = (double)(now < most ? now : most) / (double)steps;
  double up = x; /* rule L */
  if (rule == 'Q') up = x * x;
  if (rule == 'C') return down ? sqrt(1 - x * x) : 1 - sqrt(1 - x * x);
  if (rule == 'E') up = exp(K * (x - 1));
  if (rule == 'S') up = 1 / (1 + exp(-K * (x - 0.5)));
  return down ? 1 - up : up;
}

/* Read damping~RULE-WAY@N. The curves are monotone, so it suffices to check their first and last value. */
static int read_curve_entry(reader *r, const char *entry) {
  char word[WORD] = "";
  double K = 0;
  int64_t steps = 0;
  const bool good = read_word(r, "-", word) && word[0] != 0 && strchr("LQCES", word[0]) != NULL;
  const char rule = word[0];
  const bool steep = rule == 'E' || rule == 'S';
  if (!good || *r->at != '-' ||
      (steep ? !read_real(word + 1, &K) || !(K > 0) || K > 50 : word[1] != 0))
    return write_error(
        r, entry, "expected a rule after '~': L-, Q-, C-, EK- or SK-, with a number 0 < K <= 50",
        "");
  r->at++;
  const bool way = read_word(r, "@", word), down = strcmp(word, "down") == 0;
  if (!way || *r->at != '@' || (!down && strcmp(word, "up") != 0))
    return write_error(r, entry, "expected up@ or down@ after the rule", "");
  r->at++;
  if (!read_word(r, "", word) || !read_steps(word, 2, &steps))
    return write_error(r, entry, "expected a number of steps, at least 2, after '@'", "");
  r->value[DAMPING] = r->base[DAMPING] * evaluate_curve(rule, down, K, steps, r->t);
  const int rc =
      visit_value(r, entry, DAMPING, r->base[DAMPING] * evaluate_curve(rule, down, K, steps, 0), 0);
  if (rc != CLI_OK) return rc;
  return visit_value(r, entry, DAMPING,
                     r->base[DAMPING] * evaluate_curve(rule, down, K, steps, steps - 1), steps - 1);
}

/* Read stat_decay~M. */
static int read_ramp_entry(reader *r, const char *entry) {
  char word[WORD];
  double most;
  if (!read_word(r, "", word) || !read_real(word, &most) || !(most > 0) || most > 1)
    return write_error(r, entry, "expected a number, 0 < M <= 1, after '~'", "");
  r->value[STAT_DECAY] = fmin(1 - 1 / (double)(r->t < 1 ? 1 : r->t), most);
  return CLI_OK;
}

static int read_entry(reader *r) {
  const char *entry = r->at;
  char word[WORD];
  int k = 0;
  if (!read_word(r, "*~=@,", word)) return write_error(r, entry, "the name is too long", "");
  for (char *c = strchr(word, '-'); c != NULL; c = strchr(c, '-'))
    *c = '_';
  while (k < SCHEDULED && strcmp(word, schedule_option[k]) != 0)
    k++;
  if (k == SCHEDULED) {
    const char *near = cli_find_nearest(word, (const char **)schedule_option, SCHEDULED);
    return write_error(r, entry,
                       near == NULL
                           ? "only damping, stat_decay, kl_clip and the periods have a schedule"
                           : "this option has no schedule; the nearest is ",
                       near == NULL ? "" : near);
  }
  if (!isnan(r->value[k])) return write_error(r, entry, "this option has an entry already", "");
  if (*r->at == '*') return read_point_entry(r, entry, k);
  if (*r->at != '~') return write_error(r, entry, "expected '*', '*=' or '~' after the name", "");
  if (k != DAMPING && k != STAT_DECAY)
    return write_error(r, entry, "'~' is for stat_decay and damping only", "");
  r->at++;
  return k == DAMPING ? read_curve_entry(r, entry) : read_ramp_entry(r, entry);
}

static int read_entries(reader *r) {
  int rc = CLI_OK;
  for (int k = 0; k < SCHEDULED; k++)
    r->value[k] = (double)NAN;
  for (r->at += strspn(r->at, " \t\r\n"); *r->at != 0 && rc == CLI_OK;
       r->at += strspn(r->at, " \t\r\n"))
    rc = read_entry(r);
  return rc;
}

int schedule_evaluate(const char *text, const double base[SCHEDULED], int64_t t,
                      double value[SCHEDULED], char *message, size_t size) {
  reader r = {.at = text, .base = base, .t = t, .value = value, .message = message, .size = size};
  return read_entries(&r);
}

/* Set the value in a copy of the options, and let the library check it. */
static int check_value(const reader *r, const char *entry, int k, double v, int64_t step) {
  char why[256] = "", more[320];
  ng_options *o = NULL;
  ng_status st = ng_options_copy(r->against, &o);
  if (st >= 0) st = ng_options_set_real(o, schedule_option[k], v, why, sizeof why);
  if (st >= 0) st = ng_options_check(o, why, sizeof why);
  ng_options_destroy(&o);
  (void)snprintf(more, sizeof more, "%lld: %s", (long long)step, why);
  return st >= 0 ? CLI_OK : write_error(r, entry, "at step ", more);
}

int schedule_check(const char *text, const ng_options *o, char *message, size_t size) {
  double base[SCHEDULED], value[SCHEDULED];
  for (int k = 0; k < SCHEDULED; k++)
    base[k] = cli_get_option_real(o, schedule_option[k]);
  reader r = {.at = text,
              .base = base,
              .value = value,
              .visit = check_value,
              .against = o,
              .message = message,
              .size = size};
  return read_entries(&r);
}
