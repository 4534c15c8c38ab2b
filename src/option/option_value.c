/* option_value.c: convert the value of one option from text or number, and to text.
 *
 * Every message names the option, the given value and the accepted values. */
#include "option/option.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>

/* ---- numbers --------------------------------------------------------------------------------*/

/* Return the position of the first byte that is no digit.  isdigit would depend on the locale. */
static const char *skip_digits(const char *s) {
  while (*s >= '0' && *s <= '9') {
    s++;
  }
  return s;
}

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

/* After a sign only digits are accepted, so 1e3 and 10.0 are refused. */
bool ng_read_int(const char *text, int64_t *out) {
  const bool negative = *text == '-';
  const char *s = text + (*text == '+' || *text == '-');
  if (*s == 0 || *skip_digits(s) != 0) return false;
  int64_t v = 0;
  for (; *s != 0; s++) {
    const int digit = *s - '0';
    if (v > (INT64_MAX - digit) / 10) return false;
    v = v * 10 + digit;
  }
  *out = negative ? -v : v;
  return true;
}

/* Accept the spellings of shells, configuration files and Python. */
bool ng_read_bool(const char *text, int32_t *out) {
  static const char *const word[2][4] = {{"0", "false", "off", "no"}, {"1", "true", "on", "yes"}};
  for (int32_t v = 0; v < 2; v++) {
    for (int32_t i = 0; i < 4; i++) {
      if (ng_same_word(text, word[v][i])) {
        *out = v;
        return true;
      }
    }
  }
  return false;
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

typedef struct accepted {
  char text[96];
} accepted;

/* Return the accepted values of an option: "0 < damping <= 1e+30", "cholesky|eigen", ... */
static accepted expected(const ng_option_row *row) {
  accepted q = {""};
  char low[32], high[32];
  if (row->type == NG_OPTION_REAL || row->type == NG_OPTION_INT) {
    ng_write_real(row->lower, low, sizeof low);
    ng_write_real(row->upper, high, sizeof high);
    (void)snprintf(q.text, sizeof q.text, "%.15s %s %.20s <= %.15s", low,
                   row->lower_open ? "<" : "<=", row->name, high);
  } else {
    const char *any = row->type == NG_OPTION_BOOL ? "0 or 1" : "a text";
    (void)snprintf(q.text, sizeof q.text, "%s", row->type == NG_OPTION_CHOICE ? row->choices : any);
  }
  return q;
}

/* Fail with the message "NAME: 'GIVEN' WHY, expected ACCEPTED VALUES", followed by `hint`. */
static ng_status refuse(const ng_option_row *row, const char *given, const char *why,
                        const char *hint, char *message, size_t size) {
  return ng_fail_to(message, size, NG_ERR_ARG, "%s: '%s' %s, expected %s%s", row->name,
                    ng_shorten(given).text, why, expected(row).text, hint);
}

/* ---- the field of a row ----------------------------------------------------------------------*/

/* Return the address of an option's field, whose type depends on the row: callers copy its bytes. */
static const char *value_address(const ng_option_row *row, const ng_options *o) {
  return (const char *)o + row->offset;
}

_Static_assert(sizeof(ng_dtype) == sizeof(ng_solver), "the enums of choices have one size");

static size_t field_size(const ng_option_row *row) {
  static const size_t size[] = {[NG_OPTION_REAL] = sizeof(double),
                                [NG_OPTION_INT] = sizeof(int64_t),
                                [NG_OPTION_BOOL] = sizeof(bool),
                                [NG_OPTION_CHOICE] = sizeof(ng_solver), /* as of all enums */
                                [NG_OPTION_TEXT] = NG_TEXT_SIZE};
  return size[row->type];
}

void ng_option_copy(const ng_option_row *row, const ng_options *from, ng_options *to) {
  memcpy((char *)to + row->offset, value_address(row, from), field_size(row));
}

/* The table bounds whole numbers below 2^53, so a double represents them exactly. */
double ng_option_number(const ng_option_row *row, const ng_options *o) {
  union {
    double real;
    int64_t whole;
    bool flag;
    ng_solver choice;
  } v;
  NG_ASSERT(field_size(row) <= sizeof v);
  memcpy(&v, value_address(row, o), field_size(row));
  return row->type == NG_OPTION_REAL  ? v.real
         : row->type == NG_OPTION_INT ? (double)v.whole
                                      : (double)(row->type == NG_OPTION_BOOL ? v.flag : v.choice);
}

/* Return the value of a choice or a text option as text. */
static const char *text_of(const ng_option_row *row, const ng_options *o) {
  return row->type == NG_OPTION_TEXT ? value_address(row, o)
                                     : row->choice[(int32_t)ng_option_number(row, o)];
}

/* Return the enum value of a choice; -1: none.  Some row->choice[i] of a dtype are NULL. */
static int32_t find_choice(const ng_option_row *row, const char *text) {
  for (int32_t i = 0; i < NG_CHOICES_MAX; i++) {
    if (row->choice[i] != NULL && ng_is(row->choice[i], text)) return i;
  }
  return -1;
}

void ng_option_store(const ng_option_row *row, ng_options *o, double value) {
  const int64_t whole = (int64_t)value;
  const bool flag = value != 0;
  const ng_solver choice = (ng_solver)value; /* stands for the enum of the option */
  const void *const from[] = {[NG_OPTION_REAL] = &value,
                              [NG_OPTION_INT] = &whole,
                              [NG_OPTION_BOOL] = &flag,
                              [NG_OPTION_CHOICE] = &choice};
  memcpy((char *)o + row->offset, from[row->type], field_size(row));
}

/* ---- read, write -----------------------------------------------------------------------------*/

/* Mark the option as given, so that a method that is set later does not change it. */
static ng_status mark_given(const ng_option_row *row, ng_options *o) {
  ng_bits_add(o->given.word, (int32_t)(row - ng_option_table));
  return NG_OK;
}

static ng_status read_choice(const ng_option_row *row, const char *text, ng_options *o,
                             char *message, size_t size) {
  const int32_t choice = find_choice(row, text);
  if (choice >= 0) {
    ng_option_store(row, o, choice);
    return mark_given(row, o);
  }
  if (row->unsupported != NULL && ng_in_list(row->unsupported, text)) {
    return ng_fail_to(message, size, NG_ERR_ABSENT, "%s: '%s' is not supported yet, expected %s",
                      row->name, text, row->choices);
  }
  return refuse(row, text, "is not a choice", ng_hint_list(text, row->choices).text, message, size);
}

static ng_status read_text(const ng_option_row *row, const char *text, ng_options *o, char *message,
                           size_t size) {
  const size_t bytes = strlen(text);
  if (bytes >= NG_TEXT_SIZE) {
    return ng_fail_to(message, size, NG_ERR_ARG, "%s: %zu bytes, expected at most %d", row->name,
                      bytes, NG_TEXT_SIZE - 1);
  }
  if (row->check_text != NULL) {
    const ng_status st = row->check_text(text, message, size);
    if (st != NG_OK) return st;
  }
  memmove((char *)o + row->offset, text, bytes + 1); /* `text` may be the field itself */
  return mark_given(row, o);
}

/* Store a number or flag, whose text is `given`, if it is within the bounds; NaN is not. */
static ng_status store_in_range(const ng_option_row *row, double value, const char *given,
                                ng_options *o, char *message, size_t size) {
  const bool above = row->lower_open ? value > row->lower : value >= row->lower;
  if (row->type != NG_OPTION_BOOL && !(above && value <= row->upper)) {
    return refuse(row, given, "is out of range", "", message, size);
  }
  ng_option_store(row, o, value);
  return mark_given(row, o);
}

ng_status ng_option_read_real(const ng_option_row *row, double value, ng_options *o, char *message,
                              size_t size) {
  char text[32];
  const char *wrong = NULL;
  value += 0.0; /* -0 becomes 0 */
  ng_write_real(value, text, sizeof text);
  if (row->type == NG_OPTION_CHOICE || row->type == NG_OPTION_TEXT) {
    wrong = "is a number";
  } else if (!isfinite(value)) {
    wrong = "is not a finite number";
  } else if (row->type == NG_OPTION_BOOL && value != 0 && value != 1) {
    wrong = "is neither 0 nor 1";
  } else if (row->type == NG_OPTION_INT && trunc(value) != value) {
    wrong = "is not a whole number";
  }
  if (wrong != NULL) return refuse(row, text, wrong, "", message, size);
  return store_in_range(row, value, text, o, message, size);
}

/* A whole number is converted to double: every number that a double cannot represent is out of range. */
ng_status ng_option_read(const ng_option_row *row, const char *text, ng_options *o, char *message,
                         size_t size) {
  double value = 0;
  int64_t whole = 0;
  int32_t flag = 0;
  const char *wrong = NULL;
  if (text == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "%s: value is NULL", row->name);
  switch (row->type) {
  case NG_OPTION_REAL:
    if (!ng_read_real(text, &value)) wrong = "is not a finite number";
    break;
  case NG_OPTION_INT:
    if (!ng_read_int(text, &whole)) wrong = "is not a whole number";
    value = (double)whole;
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
  if (wrong != NULL) return refuse(row, text, wrong, "", message, size);
  return store_in_range(row, value, text, o, message, size);
}

/* If the value does not fit, `text` stays unchanged. */
bool ng_option_write(const ng_option_row *row, const ng_options *o, char *text, size_t size) {
  char number[32];
  const char *from = number;
  if (row->type == NG_OPTION_REAL) {
    ng_write_real(ng_option_number(row, o), number, sizeof number);
  } else if (row->type == NG_OPTION_INT || row->type == NG_OPTION_BOOL) {
    (void)snprintf(number, sizeof number, "%.0f", ng_option_number(row, o));
  } else {
    from = text_of(row, o);
  }
  const size_t n = strlen(from);
  if (n >= size) return false;
  memcpy(text, from, n + 1);
  return true;
}

/* ---- names ------------------------------------------------------------------------------------*/

const char *ng_option_name(ng_option_id id) { return ng_option_table[id].name; }

const char *ng_choice_text(ng_option_id id, int32_t value) {
  return ng_option_table[id].choice[value];
}
