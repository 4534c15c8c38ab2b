/* published.h: helpers of published.c and published_window.c.  They are inline, because a file may use only some. */
#ifndef NG_PUBLISHED_H
#define NG_PUBLISHED_H

#include "option/option.h"

typedef struct ng_published_job job;

/* Refuse the value with a message that names the published option. */
static inline ng_status refuse(const job *j, ng_status st, const char *expected) {
  return ng_fail_to(j->message, j->size, st, "%s: '%s', expected %s", j->row->name,
                    ng_quote(j->value).text, expected);
}

/* Set an option of this library.  If the table refuses the value, the message names the published option, too. */
static inline ng_status set_option(job *j, const char *option, const char *value) {
  char why[NG_MESSAGE];
  const ng_option_row *row = NULL;
  ng_status st = ng_option_lookup(option, &row, why, sizeof why);
  if (st == NG_OK) st = ng_option_read(row, value, j->full, why, sizeof why);
  if (st != NG_OK) return ng_fail_to(j->message, j->size, st, "%s: %s", j->row->name, why);
  return NG_OK;
}

/* Return whether the value is absent: None of Python, null of JSON, or an empty text. */
static inline bool is_none(const char *text) {
  return text[0] == 0 || ng_same_word(text, "none") || ng_same_word(text, "null");
}

/* Return whether a word of a row means the value: none, true and false have several spellings in Python and files. */
static inline bool names_value(const char *word, const char *value) {
  int32_t on;
  return ng_same_word(word, value) || (ng_is(word, "none") && is_none(value)) ||
         (ng_read_bool(value, &on) && ng_is(word, on ? "true" : "false"));
}

/* Find the word of the row that means the value, and copy the option's value to `here`; false: there is no word. */
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

/* Set the option to the published value; a word of the row is replaced by its value first. */
static inline ng_status take_same(job *j) {
  char here[32];
  return set_option(j, j->row->option, find_word(j, here, sizeof here) ? here : j->value);
}

/* Accept only the words of the row.  If the value is refused, the message lists these words and the reason. */
static inline ng_status take_word(job *j) {
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
  return refuse(j, strchr(words, ';') == NULL ? NG_ERR_ARG : NG_ERR_ABSENT, expected);
}

/* The published preconditioner has an argument lr for the clip.  In this library the clip uses the lr of the step, so
 * the caller gets the published lr. */
static inline ng_status take_lr(job *j) {
  if (!ng_read_real(j->value, &j->lr) || j->lr < 0) return refuse(j, NG_ERR_ARG, "a number >= 0");
  j->gives_lr = true;
  return NG_OK;
}

/* Check a number that has no effect here. */
static inline ng_status check_size(job *j) {
  double v;
  return ng_read_real(j->value, &v) && v >= 0 ? NG_OK : refuse(j, NG_ERR_ARG, "a number >= 0");
}

/* The row of the published learning rate. */
#define LZ_LR                                                                                      \
  { "lr", "", "the lr argument of ng_step", take_lr, NULL }

#define NAMES_BUT(list, out)                                                                       \
  { list, (int32_t)(sizeof(list) / sizeof(list)[0]), out }
#define NAMES(list) NAMES_BUT(list, NULL)

#endif
