/* schedule.c: options that move with the step count.
 *
 * In comes options.schedule, out go values as pure functions of (base, since, t): base is what the
 * option was set to, since the step at which it was set, t the coming step.  Nothing is remembered
 * between steps, so a resumed run has the values of one that was not interrupted.
 *
 *   schedule = { blank } entry { blank { blank } entry } { blank }     at most one entry an option
 *   entry    = NAME "*"  F "@" T { "," T }     base F^n, n points in (since, t]: KFACParamScheduler
 *                                              of the MPD/DP-KFAC program
 *            | NAME "*=" F "@" T { "," T }     the current value times F at every point, periods
 *                                              cut to whole steps each time: LambdaParamScheduler
 *                                              of KAISA, which its examples call once an epoch
 *            | "stat_decay~" M                 min(1 - 1/max(t,1), M), whatever base and since are:
 *                                              exp_decay_factor_averaging of KAISA
 *            | "damping~" RULE "-" WAY "@" N   base f(x), x = (t - since + 1) / N, at most 1: the continuous
 *                                              schedules of EFCP.  WAY up, RULE L: x; Q: x^2;
 *                                              C: 1 - sqrt(1 - x^2); EK: exp(K (x - 1));
 *                                              SK: 1 / (1 + exp(-K (x - 1/2))).  down: 1 - f, and for C
 *                                              sqrt(1 - x^2).  Where f(1) is 0, x is at most 1 - 1/N
 *   NAME = damping, stat_decay, kl_clip, stat_period or solve_period;  F > 0;  0 < M <= 1;
 *   T = whole steps, ascending, the first at least 1 (a change at step 0 is a change of the base)
 *   N = whole steps, at least 2;  0 < K <= 50
 *
 * A period never falls below 1: the published ones can be cut to 0, which then divides by zero. */
#include "option/option.h"

#include <math.h>

#define FACTOR_MAX 1e6
#define STEEP_MAX 50
#define NUMBER_MAX 40

/* The options that may move.  The order is that of the `live` part of a state on disk, and of the
 * nearest name where two are as near. */
const ng_option_id ng_scheduled[NG_SCHEDULED] = {NG_OPTION_damping, NG_OPTION_stat_decay,
                                                 NG_OPTION_kl_clip, NG_OPTION_stat_period,
                                                 NG_OPTION_solve_period};

typedef enum rule { RULE_NONE, RULE_ABSOLUTE, RULE_CUMULATIVE, RULE_RAMP, RULE_CURVE } rule;

typedef struct entry {
  rule rule;
  double factor; /* F, M or K */
  char curve;    /* L, Q, C, E or S */
  bool down;
  int64_t steps; /* N */
  int64_t points;
  const int64_t *point;
} entry;

struct ng_schedule {
  size_t bytes;
  entry entry[NG_SCHEDULED]; /* [place in ng_scheduled] */
  int64_t point[];           /* of all entries */
};

/* ---- reading --------------------------------------------------------------------------------*/

/* Where the reader is.  `into` NULL: check and count only.  `against` not NULL: every value on the
 * way must stay in the option's range, except options in `skip`. */
typedef struct reader {
  const char *at;
  ng_schedule *into;
  const ng_options *against;
  const ng_option_mask *skip; /* NULL: none */
  int32_t watched;            /* of `against`: an option ...  */
  double least;               /* ... and the least of its values */
  int64_t points;
  rule seen[NG_SCHEDULED];
  char *message;
  size_t size;
} reader;

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static ng_status complain(const reader *r, const char *entry_text, const char *what,
                          const char *hint) {
  char word[NUMBER_MAX];
  size_t n = 0;
  while (n < sizeof word - 1 && entry_text[n] != 0 && !is_blank(entry_text[n])) {
    word[n] = entry_text[n];
    n++;
  }
  word[n] = 0;
  return ng_fail_to(r->message, r->size, NG_ERR_ARG, "schedule: '%s': %s%s", ng_quote(word).text,
                    what, hint);
}

/* Copy what stands before one of `stops` or a blank; false if it does not fit. */
static bool take_word(reader *r, const char *stops, char *word) {
  size_t n = 0;
  while (r->at[n] != 0 && !is_blank(r->at[n]) && strchr(stops, r->at[n]) == NULL) {
    if (n == NUMBER_MAX - 1) return false;
    word[n] = r->at[n];
    n++;
  }
  word[n] = 0;
  r->at += n;
  return true;
}

static const ng_option_row *row_of(int32_t k) { return &ng_option_table[ng_scheduled[k]]; }

static const char *name_at(int32_t k) { return row_of(k)->name; }

/* Place in ng_scheduled, -1: the option has no schedule.  Five comparisons; a table by id would be
 * one more list to keep. */
static int32_t place_of(int32_t id) {
  for (int32_t k = 0; k < NG_SCHEDULED; k++) {
    if ((int32_t)ng_scheduled[k] == id) return k;
  }
  return -1;
}

/* A period never falls below one step, and steps are whole; cut at every point, not at the end, as
 * the published scheduler does. */
static double cut(int32_t k, double v) {
  return row_of(k)->type == NG_OPTION_INT ? fmax(1, trunc(v)) : v;
}

/* The value after point n (1-based) of an entry; `last` is the one before. */
static double next_value(const entry *e, int32_t k, double base, double last, int64_t n) {
  return cut(k, e->rule == RULE_CUMULATIVE ? last * e->factor : base * pow(e->factor, (double)n));
}

static ng_status read_points(reader *r, const char *whole, int32_t k, entry *e) {
  const ng_option_row *row = row_of(k);
  const bool verify = r->against != NULL &&
                      (r->skip == NULL || !ng_bits_has(r->skip->word, (int32_t)ng_scheduled[k]));
  const double base = r->against == NULL ? 0 : ng_option_number(row, r->against);
  char word[NUMBER_MAX], hint[NUMBER_MAX * 2];
  double v = base;
  int64_t last = 0;
  e->point = r->into == NULL ? NULL : r->into->point + r->points;
  do {
    int64_t t = 0;
    r->at++; /* '@' or ',' */
    if (!take_word(r, ",", word) || !ng_read_int(word, &t) || t < 1) {
      return complain(r, whole, "expected steps >= 1 after '@', separated by commas", "");
    }
    if (t <= last) return complain(r, whole, "the steps must ascend", "");
    last = t;
    if (r->into != NULL) r->into->point[r->points] = t;
    r->points++;
    e->points++;
    v = next_value(e, k, base, v, e->points);
    if ((int32_t)ng_scheduled[k] == r->watched) r->least = fmin(r->least, v);
    if (verify && !ng_option_in_range(row, v)) {
      (void)snprintf(hint, sizeof hint, " %g at step %s", v, word);
      return complain(r, whole, "leaves the range of the option:", hint);
    }
  } while (*r->at == ',');
  return NG_OK;
}

/* RULE "-" WAY "@" N, of damping. */
static ng_status read_curve(reader *r, const char *whole, entry *e) {
  char word[NUMBER_MAX];
  bool good = take_word(r, "-", word) && word[0] != 0 && strchr("LQCES", word[0]) != NULL;
  e->rule = RULE_CURVE;
  e->curve = word[0];
  if (good && (e->curve == 'E' || e->curve == 'S')) {
    good = ng_read_real(word + 1, &e->factor) && e->factor > 0 && e->factor <= STEEP_MAX;
  } else if (good) {
    good = word[1] == 0;
  }
  if (!good || *r->at != '-')
    return complain(r, whole, "expected L-, Q-, C-, EK- or SK-, 0 < K <= 50, after '~'", "");
  r->at++;
  good = take_word(r, "@", word);
  e->down = ng_is(word, "down");
  if (!good || *r->at != '@' || (!e->down && !ng_is(word, "up")))
    return complain(r, whole, "expected up@ or down@ after the rule", "");
  r->at++;
  if (!take_word(r, "", word) || !ng_read_int(word, &e->steps) || e->steps < 2)
    return complain(r, whole, "expected a number of steps, at least 2, after '@'", "");
  return NG_OK;
}

static ng_status read_entry(reader *r) {
  const char *whole = r->at;
  char word[NUMBER_MAX];
  entry e = {.rule = RULE_NONE};
  if (!take_word(r, "*~=@,", word)) return complain(r, whole, "the name is too long", "");
  for (char *c = word; *c != 0; c++) {
    if (*c == '-') *c = '_';
  }
  const int32_t k = place_of(ng_option_find(word));
  if (k < 0) {
    return complain(r, whole, "only damping, stat_decay, kl_clip and the periods have a schedule",
                    ng_hint_of(ng_nearest(word, name_at, NG_SCHEDULED)).text);
  }
  const char *family = row_of(k)->family;
  if (family != NULL && r->against != NULL &&
      !ng_is(ng_method_family(r->against->method), family)) {
    return complain(r, whole, "this option is not one of the method ", r->against->method);
  }
  if (r->seen[k] != RULE_NONE) return complain(r, whole, "this option has an entry already", "");
  if (*r->at == '~' && ng_scheduled[k] == NG_OPTION_damping) {
    r->at++;
    const ng_status st = read_curve(r, whole, &e);
    if (st != NG_OK) return st;
  } else if (*r->at == '~') {
    r->at++;
    e.rule = RULE_RAMP;
    if (ng_scheduled[k] != NG_OPTION_stat_decay)
      return complain(r, whole, "'~' is for stat_decay and damping only", "");
    if (!take_word(r, "", word) || !ng_read_real(word, &e.factor) || !(e.factor > 0) ||
        e.factor > 1) {
      return complain(r, whole, "expected a number, 0 < M <= 1, after '~'", "");
    }
  } else if (*r->at == '*') {
    r->at++;
    e.rule = *r->at == '=' ? RULE_CUMULATIVE : RULE_ABSOLUTE;
    if (e.rule == RULE_CUMULATIVE) r->at++;
    if (!take_word(r, "@", word) || !ng_read_real(word, &e.factor) || !(e.factor > 0) ||
        e.factor > FACTOR_MAX) {
      return complain(r, whole, "expected a factor, 0 < F <= 1e6, after '*'", "");
    }
    if (*r->at != '@') return complain(r, whole, "expected '@' and steps after the factor", "");
    const ng_status st = read_points(r, whole, k, &e);
    if (st != NG_OK) return st;
  } else {
    return complain(r, whole, "expected '*', '*=' or '~' after the name", "");
  }
  r->seen[k] = e.rule;
  if (r->into != NULL) r->into->entry[k] = e;
  return NG_OK;
}

static ng_status read_all(reader *r) {
  for (;;) {
    while (is_blank(*r->at)) {
      r->at++;
    }
    if (*r->at == 0) return NG_OK;
    const ng_status st = read_entry(r);
    if (st != NG_OK) return st;
  }
}

ng_status ng_schedule_form(const char *text, char *message, size_t size) {
  reader r = {.at = text, .watched = -1, .message = message, .size = size};
  return read_all(&r);
}

ng_status ng_schedule_verify(const ng_options *full, const ng_option_mask *skip, char *message,
                             size_t size) {
  reader r = {.at = full->schedule,
              .against = full,
              .skip = skip,
              .watched = -1,
              .message = message,
              .size = size};
  return read_all(&r);
}

/* A text that is wrong is refused elsewhere. */
double ng_schedule_least(const ng_options *o, ng_option_id option) {
  reader r = {.at = o->schedule,
              .against = o,
              .watched = (int32_t)option,
              .least = ng_option_number(&ng_option_table[option], o)};
  (void)read_all(&r);
  return r.least;
}

/* Twice over the text: once to count, once to fill. */
ng_status ng_schedule_parse(ng_context *ctx, const char *text, ng_schedule **out) {
  char message[NG_MESSAGE];
  *out = NULL;
  reader count = {.at = text, .watched = -1, .message = message, .size = sizeof message};
  const ng_status st = read_all(&count);
  if (st != NG_OK) return ng_fail(ctx, st, "%s", message);
  const size_t bytes = sizeof(ng_schedule) + (size_t)count.points * sizeof(int64_t);
  ng_schedule *s = ng_alloc(ctx, bytes);
  if (s == NULL) return ng_fail(ctx, NG_ERR_NOMEM, "schedule: no memory for %zu bytes", bytes);
  memset(s, 0, bytes);
  s->bytes = bytes;
  reader fill = {.at = text, .into = s, .watched = -1};
  (void)read_all(&fill); /* the same text passed a moment ago */
  *out = s;
  return NG_OK;
}

void ng_schedule_free(ng_context *ctx, ng_schedule *s) {
  if (s != NULL) ng_free(ctx, s, s->bytes);
}

/* ---- values ----------------------------------------------------------------------------------*/

/* NULL is a schedule without entries: most runs have none. */
bool ng_schedule_has(const ng_schedule *s, ng_option_id option) {
  const int32_t k = place_of((int32_t)option);
  return s != NULL && k >= 0 && s->entry[k].rule != RULE_NONE;
}

/* A share of the base. */
static double curve_at(const entry *e, int64_t now) {
  const bool ends = e->down && e->curve != 'S'; /* at 0 */
  const double x = (double)ng_min64(now, ends ? e->steps - 1 : e->steps) / (double)e->steps;
  double up = x; /* L */
  if (e->curve == 'Q') up = x * x;
  if (e->curve == 'C') return e->down ? sqrt(1 - x * x) : 1 - sqrt(1 - x * x);
  if (e->curve == 'E') up = exp(e->factor * (x - 1));
  if (e->curve == 'S') up = 1 / (1 + exp(-e->factor * (x - 0.5)));
  return e->down ? 1 - up : up;
}

double ng_schedule_value(const ng_schedule *s, ng_option_id option, double base, int64_t since,
                         int64_t t) {
  const int32_t k = place_of((int32_t)option);
  if (s == NULL || k < 0 || s->entry[k].rule == RULE_NONE) return base;
  const entry *e = &s->entry[k];
  if (e->rule == RULE_RAMP) return fmin(1 - 1 / (double)ng_max64(t, 1), e->factor);
  if (e->rule == RULE_CURVE) {
    const int64_t now = ng_max64(t - since, 0) + 1;
    return ng_option_clamp(row_of(k), base * curve_at(e, now));
  }
  double v = base;
  int64_t n = 0;
  for (int64_t i = 0; i < e->points && e->point[i] <= t; i++) {
    if (e->point[i] > since) v = next_value(e, k, base, v, ++n);
  }
  /* ng_set may have moved the base to where the factors lead out of the range. */
  return ng_option_clamp(row_of(k), v);
}
