/* published.h: shared by published.c and published_window.c: functions that set a published option (ng_published.set),
 * and rows.  The functions are inline, because each file uses only some. */
#ifndef NG_PUBLISHED_H
#define NG_PUBLISHED_H

#include "option/option.h"

typedef struct ng_published_job job;

static const char whole_number_word[] = "a whole number from 1"; /* a word, see is_word */

/* Fail: "NAME: 'VALUE', expected ...", where NAME is the published name. */
static inline ng_status refuse_value(const job *j, ng_status st, const char *expected) {
  return ng_fail_to(j->message, j->size, st, "%s: '%s', expected %s", j->row->name,
                    ng_shorten(j->value).text, expected);
}

/* Set an option of this library.  If its value is refused, the message names both the published and this option. */
static inline ng_status set_option(job *j, const char *option, const char *value) {
  char why[NG_MESSAGE];
  const ng_option_row *row = NULL;
  ng_status st = ng_option_lookup(option, &row, why, sizeof why);
  if (st == NG_OK) st = ng_option_read(row, value, j->full, why, sizeof why);
  if (st != NG_OK) return ng_fail_to(j->message, j->size, st, "%s: %s", j->row->name, why);
  return NG_OK;
}

/* Return whether the text means "no value": None of Python, null of JSON, or an empty text. */
static inline bool is_none(const char *text) {
  return text[0] == 0 || ng_same_word(text, "none") || ng_same_word(text, "null");
}

/* Return whether the value is `word`, in any case, or the number that the word describes.  The words none, true and false
 * also have other spellings. */
static inline bool is_word(const char *word, const char *value) {
  int32_t on;
  double v;
  if (ng_is(word, whole_number_word)) return ng_read_whole(value, &v) && v >= 1;
  if (strncmp(word, "a number", 8) == 0 && ng_read_real(value, &v)) {
    return word[8] == 0 || v > 0 || (v == 0 && ng_is(word, "a number from 0"));
  }
  return ng_same_word(word, value) || (ng_is(word, "none") && is_none(value)) ||
         (ng_read_bool(value, &on) && ng_is(word, on ? "true" : "false"));
}

/* Find the value among the words of the row.  Set `here` to the value of this library's option for this word; return
 * false if the value is not among the words.  In "true=1|false=0; REASON", the words are true and false. */
static inline bool find_word(const job *j, char *here, size_t size) {
  char words[160], *rest;
  (void)snprintf(words, sizeof words, "%s", j->row->words == NULL ? "" : j->row->words);
  words[strcspn(words, ";")] = 0;
  for (char *w = strtok_r(words, "|", &rest); w != NULL; w = strtok_r(NULL, "|", &rest)) {
    char *behind = strchr(w, '=');
    if (behind != NULL) *behind++ = 0;
    if (!is_word(w, j->value)) continue;
    (void)snprintf(here, size, "%s", behind == NULL ? w : behind);
    return true;
  }
  return false;
}

/* Set the option to the published value, or if the value is a word of the row, to the value for this word. */
static inline ng_status set_value(job *j) {
  char here[32];
  return set_option(j, j->row->option, find_word(j, here, sizeof here) ? here : j->value);
}

/* Accept only words of the row.  The message for another value lists the words, without "=...", and the REASON. */
static inline ng_status set_word(job *j) {
  char here[32], expected[NG_MESSAGE], *to = expected;
  const char *option = j->row->option, *words = j->row->words;
  if (find_word(j, here, sizeof here)) return option[0] == 0 ? NG_OK : set_option(j, option, here);
  for (const char *at = words; *at != 0; at++) {
    if (*at == '=')
      at += strcspn(at, "|") - 1;
    else
      *to++ = *at;
  }
  *to = 0;
  return refuse_value(j, strchr(words, ';') == NULL ? NG_ERR_ARG : NG_ERR_ABSENT, expected);
}

/* Set two options from one text, "(0.9, 0.999)" or "0.9, 0.999"; none: nothing. */
static inline ng_status set_pair(job *j, const char *first, const char *second) {
  char text[64];
  if (is_none(j->value)) return NG_OK;
  (void)snprintf(text, sizeof text, "%.63s", j->value + (j->value[0] == '('));
  char *comma = strchr(text, ',');
  if (comma == NULL)
    return refuse_value(j, NG_ERR_ARG, "two numbers with a comma between, or none");
  *comma++ = 0;
  comma += strspn(comma, " ");
  comma[strcspn(comma, ") ")] = 0;
  const ng_status st = set_option(j, first, text);
  return st == NG_OK ? set_option(j, second, comma) : st;
}

/* In this library lr is an argument of the step.  So return the published lr to the caller. */
static inline ng_status give_lr(job *j) {
  if (ng_read_real(j->value, &j->lr) && j->lr >= 0) return NG_OK;
  return refuse_value(j, NG_ERR_ARG, "a number >= 0");
}

/* Rows of several lists.  SAME: a published name whose value becomes the value of `option`. */
#define ROW(...)                                                                                   \
  { __VA_ARGS__ }
#define LR ROW("lr", "", "the lr argument of ng_step", give_lr, NULL)
#define SAME(name, option) ROW(name, option, "sets " option, set_value, NULL)

/* A list of rows for one program; NAMES_BUT: and the names that are refused. */
#define NAMES_BUT(list, refused)                                                                   \
  { list, (int32_t)(sizeof(list) / sizeof(list)[0]), refused }
#define NAMES(list) NAMES_BUT(list, NULL)

#endif
