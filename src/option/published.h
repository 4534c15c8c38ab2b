/* published.h: helpers of the lists of published names: refuse a value, set an option, names with the same value here.
 * Inline, because a list may use only some. */
#ifndef NG_PUBLISHED_H
#define NG_PUBLISHED_H

#include "option/option.h"

typedef struct ng_published_job job;

/* The message names the published option. */
static inline ng_status refuse(const job *j, ng_status st, const char *expected) {
  return ng_fail_to(j->message, j->size, st, "%s: '%s', expected %s", j->row->name,
                    ng_quote(j->value).text, expected);
}

/* Set one of our options; the range is our table's, and a refusal names both options. */
static inline ng_status put(job *j, const char *option, const char *value) {
  char why[NG_MESSAGE];
  const ng_option_row *row = NULL;
  ng_status st = ng_option_lookup(option, &row, why, sizeof why);
  if (st == NG_OK) st = ng_option_read(row, value, j->full, why, sizeof why);
  if (st != NG_OK) return ng_fail_to(j->message, j->size, st, "%s: %s", j->row->name, why);
  return NG_OK;
}

/* Python writes None; files may have nothing or null. */
static inline bool is_none(const char *text) {
  return text[0] == 0 || ng_same_word(text, "none") || ng_same_word(text, "null");
}

/* The same meaning and range. */
static inline ng_status take_same(job *j) { return put(j, j->row->option, j->value); }

/* A flag that chooses one of two values here. */
static inline ng_status put_flag(job *j, const char *yes, const char *no) {
  int32_t on;
  if (!ng_read_bool(j->value, &on)) return refuse(j, NG_ERR_ARG, "true or false");
  return put(j, j->row->option, on ? yes : no);
}

/* The published preconditioner has its own lr for the clip; here the clip uses the lr of the step. */
static inline ng_status take_lr(job *j) {
  if (!ng_read_real(j->value, &j->lr) || j->lr < 0) return refuse(j, NG_ERR_ARG, "a number >= 0");
  j->gives_lr = true;
  return NG_OK;
}

/* The published program ignores the value. */
static inline ng_status check_size(job *j) {
  double v;
  return ng_read_real(j->value, &v) && v >= 0 ? NG_OK : refuse(j, NG_ERR_ARG, "a number >= 0");
}

/* The row of lr, in every list. */
#define LZ_LR                                                                                      \
  { "lr", "", "the lr argument of ng_step", take_lr }

#define NAMES_BUT(list, out)                                                                       \
  { list, (int32_t)(sizeof(list) / sizeof(list)[0]), out }
#define NAMES(list) NAMES_BUT(list, NULL)

#endif
