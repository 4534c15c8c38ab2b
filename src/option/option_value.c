/* option_value.c: one option value from text and back.
 *
 * In comes a text of the command line, the environment or a file; out goes a number or one of the
 * table's own strings, or a message that names the option, what was given and what is allowed.
 * Reading is strict: the whole text must be the value.  Numbers have a decimal point in every
 * locale, because the program around this library may have set one. */
#include "option/option.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>

/* ---- numbers --------------------------------------------------------------------------------*/

static const char *skip_digits(const char *s) {
  while (*s >= '0' && *s <= '9') {
    s++;
  }
  return s;
}

/* [+-] digits [. digits] [e [+-] digits], at least one digit before the exponent. */
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

/* The C locale for this thread only; the caller's is put back by leave_c_locale. */
static locale_t enter_c_locale(locale_t *made) {
  *made = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  return *made == (locale_t)0 ? (locale_t)0 : uselocale(*made);
}

static void leave_c_locale(locale_t made, locale_t before) {
  if (made == (locale_t)0) return;
  (void)uselocale(before);
  freelocale(made);
}

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

/* 15 digits read well, 17 always read back. */
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

/* "0 < damping <= 1e+30", "cholesky|eigen", ... */
static ng_quoted expected(const ng_option_row *row) {
  ng_quoted q = {""};
  char low[32], high[32];
  switch (row->type) {
  case NG_OPTION_REAL:
  case NG_OPTION_INT:
    ng_write_real(row->lower, low, sizeof low);
    ng_write_real(row->upper, high, sizeof high);
    (void)snprintf(q.text, sizeof q.text, "%.15s %s %.20s <= %.15s", low,
                   row->lower_open ? "<" : "<=", row->name, high);
    break;
  case NG_OPTION_BOOL:
    (void)snprintf(q.text, sizeof q.text, "0 or 1");
    break;
  case NG_OPTION_CHOICE:
    (void)snprintf(q.text, sizeof q.text, "%s", row->choices);
    break;
  case NG_OPTION_TEXT:
    (void)snprintf(q.text, sizeof q.text, "a text");
    break;
  }
  return q;
}

static ng_status refuse(const ng_option_row *row, const char *given, const char *why,
                        const char *hint, char *message, size_t size) {
  return ng_fail_to(message, size, NG_ERR_ARG, "%s: '%s' %s, expected %s%s", row->name,
                    ng_quote(given).text, why, expected(row).text, hint);
}

/* ---- the field of a row ----------------------------------------------------------------------*/

static const char *field(const ng_option_row *row, const ng_options *o) {
  return (const char *)o + row->offset;
}

static size_t field_size(const ng_option_row *row) {
  switch (row->type) {
  case NG_OPTION_REAL:
    return sizeof(double);
  case NG_OPTION_INT:
    return sizeof(int64_t);
  case NG_OPTION_BOOL:
    return sizeof(int32_t);
  case NG_OPTION_CHOICE:
  case NG_OPTION_TEXT:
    break;
  }
  return sizeof(const char *);
}

size_t ng_option_end(const ng_option_row *row) { return row->offset + field_size(row); }

void ng_option_copy(const ng_option_row *row, const ng_options *from, ng_options *to) {
  memcpy((char *)to + row->offset, field(row, from), field_size(row));
}

static void store(const ng_option_row *row, ng_options *o, const void *value) {
  memcpy((char *)o + row->offset, value, field_size(row));
}

double ng_option_number(const ng_option_row *row, const ng_options *o) {
  double real;
  int64_t whole;
  int32_t flag;
  switch (row->type) {
  case NG_OPTION_REAL:
    memcpy(&real, field(row, o), sizeof real);
    return real;
  case NG_OPTION_INT:
    memcpy(&whole, field(row, o), sizeof whole);
    return (double)whole;
  case NG_OPTION_BOOL:
    memcpy(&flag, field(row, o), sizeof flag);
    return flag;
  case NG_OPTION_CHOICE:
  case NG_OPTION_TEXT:
    break;
  }
  return 0;
}

const char *ng_option_text(const ng_option_row *row, const ng_options *o) {
  const char *text;
  memcpy(&text, field(row, o), sizeof text);
  return text;
}

void ng_option_store_text(const ng_option_row *row, ng_options *o, const char *text) {
  store(row, o, &text);
}

const char *ng_option_choice(const ng_option_row *row, const char *text) {
  for (int32_t i = 0; i < NG_CHOICES_MAX && row->choice[i] != NULL; i++) {
    if (ng_is(row->choice[i], text)) return row->choice[i];
  }
  return NULL;
}

/* Written so that NaN is out of range. */
bool ng_option_in_range(const ng_option_row *row, double v) {
  return (row->lower_open ? v > row->lower : v >= row->lower) && v <= row->upper;
}

/* An open bound has no nearest value; the smallest normal f32 is still a number for the solvers. */
double ng_option_clamp(const ng_option_row *row, double v) {
  if (v > row->upper) return row->upper;
  if (v > row->lower) return v;
  return row->lower_open ? row->lower + (double)FLT_MIN : row->lower;
}

/* ---- read, write, verify ---------------------------------------------------------------------*/

static ng_status read_choice(const ng_option_row *row, const char *text, ng_options *o,
                             char *message, size_t size) {
  const char *choice = ng_option_choice(row, text);
  if (choice != NULL) {
    if (o != NULL) store(row, o, &choice);
    return NG_OK;
  }
  if (row->later != NULL && ng_in_list(row->later, text)) {
    return ng_fail_to(message, size, NG_ERR_ABSENT, "%s: '%s' is not supported yet, there is %s",
                      row->name, text, row->choices);
  }
  return refuse(row, text, "is not a choice", ng_hint_list(text, row->choices).text, message, size);
}

ng_status ng_option_read(const ng_option_row *row, const char *text, ng_options *o, char *message,
                         size_t size) {
  double real = 0;
  int64_t whole = 0;
  int32_t flag = 0;
  if (text == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "%s: value is NULL", row->name);
  switch (row->type) {
  case NG_OPTION_REAL:
    if (!ng_read_real(text, &real)) {
      return refuse(row, text, "is not a finite number", "", message, size);
    }
    if (!ng_option_in_range(row, real)) {
      return refuse(row, text, "is out of range", "", message, size);
    }
    store(row, o, &real);
    return NG_OK;
  case NG_OPTION_INT:
    if (!ng_read_int(text, &whole)) {
      return refuse(row, text, "is not a whole number", "", message, size);
    }
    if (!ng_option_in_range(row, (double)whole)) {
      return refuse(row, text, "is out of range", "", message, size);
    }
    store(row, o, &whole);
    return NG_OK;
  case NG_OPTION_BOOL:
    if (!ng_read_bool(text, &flag)) {
      return refuse(row, text, "is neither yes nor no", "", message, size);
    }
    store(row, o, &flag);
    return NG_OK;
  case NG_OPTION_CHOICE:
    return read_choice(row, text, o, message, size);
  case NG_OPTION_TEXT:
    break;
  }
  if (row->form != NULL) {
    const ng_status st = row->form(text, message, size);
    if (st != NG_OK) return st;
  }
  store(row, o, &text);
  return NG_OK;
}

bool ng_option_write(const ng_option_row *row, const ng_options *o, char *text, size_t size) {
  char number[32];
  const char *from = number;
  switch (row->type) {
  case NG_OPTION_REAL:
    ng_write_real(ng_option_number(row, o), number, sizeof number);
    break;
  case NG_OPTION_INT:
  case NG_OPTION_BOOL:
    (void)snprintf(number, sizeof number, "%.0f", ng_option_number(row, o));
    break;
  case NG_OPTION_CHOICE:
  case NG_OPTION_TEXT:
    from = ng_option_text(row, o);
    if (from == NULL) return false;
    break;
  }
  const size_t n = strlen(from);
  if (n >= size) return false;
  memcpy(text, from, n + 1);
  return true;
}

/* The same rules for a struct that was filled by assignment. */
ng_status ng_option_verify(const ng_option_row *row, const ng_options *o, char *message,
                           size_t size) {
  char given[32];
  const char *text;
  switch (row->type) {
  case NG_OPTION_REAL:
  case NG_OPTION_INT:
    if (ng_option_in_range(row, ng_option_number(row, o))) return NG_OK;
    ng_write_real(ng_option_number(row, o), given, sizeof given);
    return refuse(row, given, "is out of range", "", message, size);
  case NG_OPTION_BOOL:
    if (ng_option_number(row, o) == 0 || ng_option_number(row, o) == 1) return NG_OK;
    (void)ng_option_write(row, o, given, sizeof given);
    return refuse(row, given, "is neither 0 nor 1", "", message, size);
  case NG_OPTION_CHOICE:
  case NG_OPTION_TEXT:
    break;
  }
  text = ng_option_text(row, o);
  if (text == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "%s: value is NULL", row->name);
  if (row->type == NG_OPTION_CHOICE) return read_choice(row, text, NULL, message, size);
  return row->form == NULL ? NG_OK : row->form(text, message, size);
}
