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

/* Whether a word of a row names the value.  Python, shells and files have several spellings of none, true and false. */
static inline bool names_value(const char *word, const char *value) {
  int32_t on;
  return ng_same_word(word, value) || (ng_is(word, "none") && is_none(value)) ||
         (ng_read_bool(value, &on) && ng_is(word, on ? "true" : "false"));
}

/* Find the word of the value; `here` gets the value of our option.  False: the row has no such word. */
static inline bool find_word(const job *j, char *here, size_t size) {
  char words[160], *rest;
  (void)snprintf(words, sizeof words, "%s", j->row->words == NULL ? "" : j->row->words);
  words[strcspn(words, ";")] = 0;
  for (char *w = strtok_r(words, "|", &rest); w != NULL; w = strtok_r(NULL, "|", &rest)) {
    char *behind = strchr(w, '=');
    if (behind != NULL) *behind++ = 0;
    if (!names_value(w, j->value)) continue;
    (void)snprintf(here, size, "%s", behind == NULL ? w : behind);
    return true;
  }
  return false;
}

/* The same meaning and range, after replacing the words of the row. */
static inline ng_status take_same(job *j) {
  char here[32];
  return put(j, j->row->option, find_word(j, here, sizeof here) ? here : j->value);
}

/* Accept only the words of the row.  The message lists them, without our values, and the reason. */
static inline ng_status take_word(job *j) {
  char here[32], expected[NG_MESSAGE], *to = expected;
  const char *option = j->row->option, *words = j->row->words;
  if (find_word(j, here, sizeof here)) return option[0] == 0 ? NG_OK : put(j, option, here);
  for (const char *at = words; *at != 0; at++) {
    if (*at == '=')
      at += strcspn(at, "|") - 1;
    else
      *to++ = *at;
  }
  *to = 0;
  return refuse(j, strchr(words, ';') == NULL ? NG_ERR_ARG : NG_ERR_ABSENT, expected);
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
  { "lr", "", "the lr argument of ng_step", take_lr, NULL }

#define NAMES_BUT(list, out)                                                                       \
  { list, (int32_t)(sizeof(list) / sizeof(list)[0]), out }
#define NAMES(list) NAMES_BUT(list, NULL)

#endif
