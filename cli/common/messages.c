/* messages.c: messages of one line, the nearest name to a misspelt one, memory, and numbers from text. */
#include "common/cli.h"
#include "words.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_message(const char *format, va_list args) {
  char line[2048];
  (void)vsnprintf(line, sizeof line, format, args);
  for (char *c = line; *c != 0; c++) { /* text that a message quotes may contain newlines */
    if ((unsigned char)*c < 32 || *c == 127) *c = '?';
  }
  /* flush stdout first, so that a terminal shows both streams in the right order */
  (void)fflush(stdout);
  (void)fprintf(stderr, "natgrad: %s\n", line);
}

static _Thread_local atomic_bool *printed_once;

void cli_report_once(atomic_bool *printed) { printed_once = printed; }

int cli_fail(const char *format, ...) {
  va_list args;
  if (printed_once != NULL && atomic_exchange(printed_once, true)) return CLI_BAD;
  va_start(args, format);
  /* The analyzer loses va_start when it inlines a variadic function.
   * NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
  print_message(format, args);
  va_end(args);
  return CLI_BAD;
}

void cli_note(const char *format, ...) {
  va_list args;
  va_start(args, format);
  print_message(format, args); /* NOLINT(clang-analyzer-valist.Uninitialized) as above */
  va_end(args);
}

void *cli_alloc(size_t count, size_t size) {
  void *p = calloc(count > 0 ? count : 1, size > 0 ? size : 1);
  if (p == NULL) exit(cli_fail("no memory for %zu x %zu bytes", count, size));
  return p;
}

void *cli_append_zeroed(void *list, size_t count, size_t size) {
  size_t capacity = 1;
  while (capacity <= count)
    capacity *= 2;
  char *more = realloc(list, capacity * size); /* the capacity doubles, so it rarely changes */
  if (more == NULL) exit(cli_fail("no memory for %zu x %zu bytes", capacity, size));
  memset(more + count * size, 0, size);
  return more;
}

static char unify_separator(char c) { return c == '_' ? '-' : c; }

const char *cli_find_nearest(const char *word, const char *const *names, int n) {
  const char *best = NULL;
  int least = (int)strlen(word) / 3 + 1; /* a name with a larger distance is not similar */
  for (int i = 0; i < n; i++) {
    const int d = ng_word_distance(word, strlen(word), names[i], strlen(names[i]), unify_separator);
    if (d <= least && (best == NULL || d < least)) {
      best = names[i];
      least = d;
    }
  }
  return best;
}

int cli_report_unknown(const char *what, const char *word, const char *const *names, int n,
                       const char *otherwise) {
  char list[512] = "";
  const char *near = cli_find_nearest(word, names, n);
  if (near != NULL) return cli_fail("%s '%.60s'; the nearest is %s", what, word, near);
  for (int i = 0; i < n && otherwise == NULL; i++) {
    const size_t at = strlen(list);
    (void)snprintf(list + at, sizeof list - at, "%s%s",
                   i == 0      ? "expected "
                   : i + 1 < n ? ", "
                               : " or ",
                   names[i]);
  }
  return cli_fail("%s '%.60s'; %s", what, word, otherwise != NULL ? otherwise : list);
}

const char *cli_format_bytes(double bytes, char text[16]) {
  static const char *const unit[] = {"B", "kB", "MB", "GB", "TB"};
  int i = 0;
  for (; i < 4 && bytes >= 999.5; i++)
    bytes /= 1000;
  (void)snprintf(text, 16, bytes < 10 && i > 0 ? "%.2f %s" : "%.0f %s", bytes, unit[i]);
  return text;
}

int cli_parse(cli_kind kind, const char *text, double lower, double upper, void *to, char *message,
              size_t size) {
  static const char *const word[] = {"false", "0", "off", "no", "true", "1", "on", "yes"};
  const bool whole = kind == CLI_WHOLE;
  /* with %g the number 0.9999999 would be printed as 1 */
  const bool below_1 = upper > 0.999 && upper < 1.0;
  char *end = NULL;
  if (kind == CLI_FLAG) {
    for (int i = 0; i < 8; i++) {
      if (strcmp(text, word[i]) != 0) continue;
      *(bool *)to = i >= 4;
      return CLI_OK;
    }
    (void)snprintf(message, size, "'%s' is neither true nor false", text);
    return CLI_BAD;
  }
  errno = 0;
  const long long n = whole ? strtoll(text, &end, 10) : 0;
  const double v = whole ? (double)n : strtod(text, &end);
  if (end == text || *end != 0 || (whole && errno != 0) || !(v >= lower && v <= upper)) {
    (void)snprintf(message, size,
                   whole ? "'%s' is no whole number from %.0f to %s%.0f"
                         : "'%s' is no number from %g to %s%g",
                   text, lower, below_1 ? "below " : "", below_1 ? 1.0 : upper);
    return CLI_BAD;
  }
  if (whole) {
    *(int64_t *)to = n;
  } else {
    *(double *)to = v;
  }
  return CLI_OK;
}

int cli_parse_option(const char *option, cli_kind kind, const char *text, double lower,
                     double upper, void *to) {
  char message[CLI_MESSAGE];
  if (cli_parse(kind, text, lower, upper, to, message, sizeof message) == CLI_OK) return CLI_OK;
  return cli_fail("--%s: %s", option, message);
}

bool cli_parse_counts(const char *text, char between, int n, int64_t *out) {
  for (int i = 0; i < n; i++) {
    char *end = NULL;
    if (*text < '0' || *text > '9') return false; /* no sign, no blank */
    out[i] = strtoll(text, &end, 10);
    if (out[i] < 1 || out[i] > 99999 || *end != (i < n - 1 ? between : 0)) return false;
    text = end + 1;
  }
  return true;
}
