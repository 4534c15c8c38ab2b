/* say.c: how the program speaks to its user: one line about what is wrong, the name that was probably
 * meant, numbers that are read whole or refused. */
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_bad(const char *format, ...) {
  char line[2048];
  va_list args;
  va_start(args, format);
  /* The analyzer loses va_start when it inlines a variadic function.
   * NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
  (void)vsnprintf(line, sizeof line, format, args);
  va_end(args);
  for (char *c = line; *c != 0; c++) { /* one line, whatever was quoted */
    if ((unsigned char)*c < 32 || *c == 127) *c = '?';
  }
  (void)fflush(stdout); /* keep the order of a terminal that shows both */
  (void)fprintf(stderr, "natgrad: %s\n", line);
  return CLI_BAD;
}

void *cli_take(size_t count, size_t size) {
  void *p = calloc(count > 0 ? count : 1, size > 0 ? size : 1);
  if (p == NULL) {
    (void)cli_bad("no memory for %zu x %zu bytes", count, size);
    exit(CLI_BAD);
  }
  return p;
}

/* Damerau's distance (one insertion, deletion, exchange, or swap of neighbours costs 1), with '-'
 * and '_' the same letter.  Names are short: three rows on the stack do. */
static int distance(const char *a, const char *b) {
  enum { MAX = 63 };
  const int n = (int)strlen(a), m = (int)strlen(b);
  if (n > MAX || m > MAX) return MAX;
  int rows[3][MAX + 1];
  for (int j = 0; j <= m; j++)
    rows[0][j] = j;
  for (int i = 1; i <= n; i++) {
    int *now = rows[i % 3];
    const int *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
    now[0] = i;
    for (int j = 1; j <= m; j++) {
      const char x = a[i - 1] == '_' ? '-' : a[i - 1], y = b[j - 1] == '_' ? '-' : b[j - 1];
      int best = last[j - 1] + (x != y);
      if (last[j] + 1 < best) best = last[j] + 1;
      if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
          before[j - 2] + 1 < best)
        best = before[j - 2] + 1;
      now[j] = best;
    }
  }
  return rows[n % 3][m];
}

const char *cli_nearest(const char *word, const char *const *names, int n) {
  const char *best = NULL;
  int least = (int)strlen(word) / 3 + 1; /* more than a third of the word wrong: another word */
  for (int i = 0; i < n; i++) {
    const int d = distance(word, names[i]);
    if (d <= least && (best == NULL || d < least)) {
      best = names[i];
      least = d;
    }
  }
  return best;
}

int cli_int(const char *option, const char *text, long long lower, long long upper,
            long long *out) {
  char *end = NULL;
  errno = 0;
  const long long v = strtoll(text, &end, 10);
  if (end == text || *end != 0 || errno != 0 || v < lower || v > upper) {
    return cli_bad("--%s: '%s' is no whole number from %lld to %lld", option, text, lower, upper);
  }
  *out = v;
  return CLI_OK;
}

bool cli_counts(const char *text, char between, int n, long long *out) {
  for (int i = 0; i < n; i++) {
    char *end = NULL;
    if (*text < '0' || *text > '9') return false; /* no sign, no blank */
    out[i] = strtoll(text, &end, 10);
    if (out[i] < 1 || out[i] > 99999 || *end != (i < n - 1 ? between : 0)) return false;
    text = end + 1;
  }
  return true;
}

int cli_real(const char *option, const char *text, double lower, double upper, double *out) {
  char *end = NULL;
  const double v = strtod(text, &end);
  if (end == text || *end != 0 || !(v >= lower && v <= upper)) {
    return cli_bad("--%s: '%s' is no number from %g to %g", option, text, lower, upper);
  }
  *out = v;
  return CLI_OK;
}
