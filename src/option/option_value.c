/* option_value.c: convert the value of one option from text or number, and to text.
 *
 * Every message names the option, the given value and the accepted values. */
#include "option/option.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>

/* ---- numbers --------------------------------------------------------------------------------*/

/* Return the position of the first byte that is no digit.  isdigit would depend on the locale. */
static const char *skip_digits(const char *s) { return s + strspn(s, "0123456789"); }

/* Return whether `s` is [+-] digits [. digits] [e [+-] digits], where one of the first two groups of digits may be
 * empty.  strtod would also accept blanks, hexadecimal digits, inf and nan. */
static bool is_decimal(const char *s) {
  if (*s == '+' || *s == '-') s++;
  const char *whole = s;
  s = skip_digits(s);
  int64_t digits = s - whole;
  if (*s == '.') {
    const char *part = s + 1;
    s = skip_digits(part);
    digits += s - part;
  }
  if (digits == 0) return false;
  if (*s == 'e' || *s == 'E') {
    s++;
    if (*s == '+' || *s == '-') s++;
    const char *power = s;
    s = skip_digits(s);
    if (s == power) return false;
  }
  return *s == 0;
}

/* Set the C locale for this thread and return the previous one, which leave_c_locale restores.  setlocale would change
 * the locale of all threads. */
static locale_t enter_c_locale(locale_t *made) {
  *made = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  return *made == (locale_t)0 ? (locale_t)0 : uselocale(*made);
}

static void leave_c_locale(locale_t made, locale_t before) {
  if (made == (locale_t)0) return;
  (void)uselocale(before);
  freelocale(made);
}

/* strtod reads "1e999" as Inf, which no option accepts. */
bool ng_read_real(const char *text, double *out) {
  if (!is_decimal(text)) return false;
  locale_t made;
  const locale_t before = enter_c_locale(&made);
  const double v = strtod(text, NULL);
  leave_c_locale(made, before);
  if (!isfinite(v)) return false;
  *out = v + 0.0; /* -0 becomes 0 */
  return true;
}

/* After a sign only digits are accepted, so 1e3 and 10.0 are refused.  A number above 2^53 is rounded. */
bool ng_read_whole(const char *text, double *out) {
  const char *digits = text + (*text == '+' || *text == '-');
  return *digits != 0 && *skip_digits(digits) == 0 && ng_read_real(text, out);
}

/* Accept the spellings of shells, configuration files and Python. */
bool ng_read_bool(const char *text, int32_t *out) {
  static const char *const word[] = {"0", "1", "false", "true", "off", "on", "no", "yes"};
  int32_t i = 0;
  while (i < 8 && !ng_same_word(text, word[i])) {
    i++;
  }
  *out = i % 2;
  return i < 8;
}

/* With 15 digits, 0.1 is written as "0.1"; with 17 digits, every double reads back unchanged. */
void ng_write_real(double value, char *text, size_t size) {
  locale_t made;
  const locale_t before = enter_c_locale(&made);
  for (int digits = 15; digits <= 17; digits++) {
    (void)snprintf(text, size, "%.*g", digits, value);
    const double back = strtod(text, NULL);
    if (!(back < value) && !(back > value)) break;
  }
  leave_c_locale(made, before);
}

/* ---- messages --------------------------------------------------------------------------------*/

/* Fail with the message "NAME: 'GIVEN' WHY, expected ACCEPTED VALUES", followed by `hint`.  The accepted values are, for
 * example, "0 < damping <= 1e+30" or "cholesky|eigen". */
static ng_status refuse_value(const ng_option_row *row, const char *given, const char *why,
                              const char *hint, char *message, size_t size) {
  char range[96], low[32], high[32];
  const char *accepted = row->type == NG_OPTION_BOOL     ? "0 or 1"
                         : row->type == NG_OPTION_CHOICE ? row->choices
                                                         : "a text";
  if (row->type == NG_OPTION_REAL || row->type == NG_OPTION_INT) {
    ng_write_real(row->lower, low, sizeof low);
    ng_write_real(row->upper, high, sizeof high);
    (void)snprintf(range, sizeof range, "%.15s %s %.20s <= %.15s", low,
                   row->lower_open ? "<" : "<=", row->name, high);
    accepted = range;
  }
  return ng_fail_to(message, size, NG_ERR_ARG, "%s: '%s' %s, expected %s%s", row->name,
                    ng_shorten(given).text, why, accepted, hint);
}

/* ---- the field of a row ----------------------------------------------------------------------*/

/* Return the address of an option's field, whose C type depends on the row. */
static void *field_address(const ng_option_row *row, ng_options *o) {
  return (char *)o + row->offset;
}

/* C lets an enum be read and written as its integer type, which is unsigned for every enum of choices. */
_Static_assert(sizeof(ng_dtype) == sizeof(unsigned),
               "every enum of choices has the size of unsigned");

/* The table bounds whole numbers below 2^53, so a double represents them exactly. */
double ng_option_number(const ng_option_row *row, const ng_options *o) {
  const void *at = (const char *)o + row->offset;
  return row->type == NG_OPTION_REAL   ? *(const double *)at
         : row->type == NG_OPTION_INT  ? (double)*(const int64_t *)at
         : row->type == NG_OPTION_BOOL ? (double)*(const bool *)at
                                       : (double)*(const unsigned *)at;
}

void ng_option_store(const ng_option_row *row, ng_options *o, double value) {
  void *at = field_address(row, o);
  if (row->type == NG_OPTION_REAL) *(double *)at = value;
  if (row->type == NG_OPTION_INT) *(int64_t *)at = (int64_t)value;
  if (row->type == NG_OPTION_BOOL) *(bool *)at = value != 0;
  if (row->type == NG_OPTION_CHOICE) *(unsigned *)at = (unsigned)value;
  o->given[row - ng_option_table] = true;
}

static void store_text(const ng_option_row *row, ng_options *o, const char *text) {
  memmove(field_address(row, o), text, strlen(text) + 1); /* `text` may be the field itself */
  o->given[row - ng_option_table] = true;
}

void ng_option_copy(const ng_option_row *row, const ng_options *from, ng_options *to) {
  if (row->type == NG_OPTION_TEXT) {
    store_text(row, to, (const char *)from + row->offset);
  } else {
    ng_option_store(row, to, ng_option_number(row, from));
  }
}

/* ---- read, write -----------------------------------------------------------------------------*/

/* Some row->choice[i] of a dtype are NULL. */
static ng_status read_choice(const ng_option_row *row, const char *text, ng_options *o,
                             char *message, size_t size) {
  for (int32_t i = 0; i < NG_CHOICES_MAX; i++) {
    if (row->choice[i] == NULL || !ng_is(row->choice[i], text)) continue;
    ng_option_store(row, o, i);
    return NG_OK;
  }
  if (row->unsupported != NULL && ng_in_list(row->unsupported, text)) {
    return ng_fail_to(message, size, NG_ERR_ABSENT, "%s: '%s' is not supported yet, expected %s",
                      row->name, text, row->choices);
  }
  return refuse_value(row, text, "is not a choice", ng_hint_list(text, row->choices).text, message,
                      size);
}

static ng_status read_text(const ng_option_row *row, const char *text, ng_options *o, char *message,
                           size_t size) {
  const size_t bytes = strlen(text);
  if (bytes >= NG_TEXT_SIZE) {
    return ng_fail_to(message, size, NG_ERR_ARG, "%s: %zu bytes, expected at most %d", row->name,
                      bytes, NG_TEXT_SIZE - 1);
  }
  const ng_status st = row->check_text(row->name, text, message, size);
  if (st == NG_OK) store_text(row, o, text);
  return st;
}

/* Store a number or flag, whose text is `given`, if its value is valid. */
static ng_status store_checked(const ng_option_row *row, double value, const char *given,
                               ng_options *o, char *message, size_t size) {
  const bool above = row->lower_open ? value > row->lower : value >= row->lower;
  const char *wrong = NULL;
  if (!isfinite(value)) {
    wrong = "is not a finite number";
  } else if (row->type == NG_OPTION_INT && trunc(value) != value) {
    wrong = "is not a whole number";
  } else if (row->type == NG_OPTION_BOOL && value != 0 && value != 1) {
    wrong = "is neither 0 nor 1";
  } else if (row->type != NG_OPTION_BOOL && !(above && value <= row->upper)) {
    wrong = "is out of range";
  }
  if (wrong != NULL) return refuse_value(row, given, wrong, "", message, size);
  ng_option_store(row, o, value);
  return NG_OK;
}

ng_status ng_option_read_real(const ng_option_row *row, double value, ng_options *o, char *message,
                              size_t size) {
  char text[32];
  value += 0.0; /* -0 becomes 0 */
  ng_write_real(value, text, sizeof text);
  if (row->type != NG_OPTION_CHOICE && row->type != NG_OPTION_TEXT) {
    return store_checked(row, value, text, o, message, size);
  }
  return refuse_value(row, text, "is a number", "", message, size);
}

ng_status ng_option_read(const ng_option_row *row, const char *text, ng_options *o, char *message,
                         size_t size) {
  double value = 0;
  int32_t flag = 0;
  const char *wrong = NULL;
  if (text == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "%s: value is NULL", row->name);
  switch (row->type) {
  case NG_OPTION_REAL:
    if (!ng_read_real(text, &value)) wrong = "is not a finite number";
    break;
  case NG_OPTION_INT:
    if (!ng_read_whole(text, &value)) wrong = "is not a whole number";
    break;
  case NG_OPTION_BOOL:
    if (!ng_read_bool(text, &flag)) wrong = "is neither yes nor no";
    value = flag;
    break;
  case NG_OPTION_CHOICE:
    return read_choice(row, text, o, message, size);
  case NG_OPTION_TEXT:
    return read_text(row, text, o, message, size);
  }
  if (wrong != NULL) return refuse_value(row, text, wrong, "", message, size);
  return store_checked(row, value, text, o, message, size);
}

bool ng_text_copy(const char *from, char *to, size_t size) {
  const size_t n = strlen(from);
  if (n < size) memcpy(to, from, n + 1);
  return n < size;
}

bool ng_option_write(const ng_option_row *row, const ng_options *o, char *text, size_t size) {
  char number[32];
  if (row->type == NG_OPTION_TEXT) return ng_text_copy((const char *)o + row->offset, text, size);
  const double value = ng_option_number(row, o);
  if (row->type == NG_OPTION_CHOICE) return ng_text_copy(row->choice[(int)value], text, size);
  if (row->type == NG_OPTION_REAL) {
    ng_write_real(value, number, sizeof number);
  } else {
    (void)snprintf(number, sizeof number, "%.0f", value);
  }
  return ng_text_copy(number, text, size);
}

/* ---- names ------------------------------------------------------------------------------------*/

const char *ng_option_name(ng_option_id id) { return ng_option_table[id].name; }

const char *ng_choice_text(ng_option_id id, int32_t value) {
  return ng_option_table[id].choice[value];
}
