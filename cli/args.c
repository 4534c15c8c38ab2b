/* args.c: from argv to settings.  A command's own options and the library's option table go into
 * one table for getopt_long, so that --damping works wherever a preconditioner is made, in any
 * position, with '-' or '_', as "--name value" or "--name=value".  What does not fit is answered
 * with one line that has the nearest name. */
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cli_bad(const char *format, ...) {
  char line[2048];
  va_list args;
  va_start(args, format);
  /* The analyzer loses va_start when it inlines a variadic function.
   * NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
  (void)vsnprintf(line, sizeof line, format, args);
  va_end(args);
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

/* getopt's table: value k < own is the command's option k, then the library's, each under both
 * spellings, then --help and --keep-kernel (which main has already obeyed). */
typedef struct table {
  struct option *rows;
  char *text; /* the '-' spellings of the library's names */
  const char **names;
  int count, own, library;
} table;

enum { NAME_SIZE = 64, BASE = 256 };

static void table_add(table *t, const char *name, int has_arg, int value) {
  t->names[t->count] = name;
  t->rows[t->count].name = name;
  t->rows[t->count].has_arg = has_arg;
  t->rows[t->count].val = value;
  t->count++;
}

static void table_make(const cli_command *command, table *t) {
  memset(t, 0, sizeof *t);
  t->own = command->n_options;
  t->library = command->library ? ng_option_count() + 1 : 0; /* and "method" */
  const size_t most = (size_t)(t->own + 2 * t->library + 3);
  t->rows = cli_take(most, sizeof *t->rows);
  t->names = cli_take(most, sizeof *t->names);
  t->text = cli_take((size_t)t->library, NAME_SIZE);
  for (int i = 0; i < t->own; i++) {
    table_add(t, command->options[i].name,
              command->options[i].value != NULL ? required_argument : no_argument, BASE + i);
  }
  for (int i = 0; i < t->library; i++) {
    ng_option_info info = {.struct_size = sizeof info, .name = "method"};
    if (i + 1 < t->library && ng_option_at(i, &info) != NG_OK) continue;
    bool hidden = false; /* the command has one of that name */
    for (int k = 0; k < t->own; k++)
      hidden = hidden || strcmp(command->options[k].name, info.name) == 0;
    if (hidden) continue;
    char *dashed = t->text + i * NAME_SIZE;
    (void)snprintf(dashed, NAME_SIZE, "%s", info.name);
    for (char *c = dashed; *c != 0; c++) {
      if (*c == '_') *c = '-';
    }
    table_add(t, dashed, required_argument, BASE + t->own + i);
    if (strcmp(dashed, info.name) != 0) {
      table_add(t, info.name, required_argument, BASE + t->own + i);
    }
  }
  table_add(t, "help", no_argument, 'h');
  table_add(t, "keep-kernel", no_argument, 'k');
}

static void table_free(table *t) {
  free(t->rows);
  free(t->names);
  free(t->text);
}

static int complain(const cli_command *command, const table *t, int c, char **argv) {
  if (c == ':') return cli_bad("%s: option %s needs a value", command->name, argv[optind - 1]);
  if (optopt != 0 && optopt < BASE && optopt != 'h' && optopt != 'k') {
    return cli_bad("%s: unknown option -%c; `natgrad help %s` lists them", command->name, optopt,
                   command->name);
  }
  const char *given = argv[optind - 1];
  char word[NAME_SIZE];
  (void)snprintf(word, sizeof word, "%s", given + strspn(given, "-"));
  word[strcspn(word, "=")] = 0;
  if (optopt != 0) return cli_bad("%s: option --%s takes no value", command->name, word);
  int begins = 0; /* getopt takes any beginning of a name; a beginning of several is refused */
  for (int i = 0; i < t->count; i++)
    begins += strncmp(t->names[i], word, strlen(word)) == 0;
  if (begins > 1) {
    return cli_bad("%s: option --%s is the beginning of several; `natgrad help %s` lists them",
                   command->name, word, command->name);
  }
  const char *near = cli_nearest(word, t->names, t->count);
  if (near != NULL) {
    return cli_bad("%s: unknown option --%s; the nearest is --%s", command->name, word, near);
  }
  return cli_bad("%s: unknown option --%s; `natgrad help %s` lists them", command->name, word,
                 command->name);
}

int cli_parse(const cli_command *command, int argc, char **argv,
              int (*take)(void *user, const char *name, const char *value), void *user,
              cli_args *out) {
  memset(out, 0, sizeof *out);
  out->settings = cli_take((size_t)argc, sizeof *out->settings);
  table t;
  table_make(command, &t);
  int rc = CLI_OK;
  opterr = 0;
  optind = 0; /* glibc: start afresh */
  for (int c; rc == CLI_OK && (c = getopt_long(argc, argv, ":h", t.rows, NULL)) != -1;) {
    if (c == 'h') {
      cli_help(command);
      rc = -1;
    } else if (c == 'k') {
      continue;
    } else if (c >= BASE && c < BASE + t.own) {
      rc = take(user, command->options[c - BASE].name, optarg);
    } else if (c >= BASE) {
      ng_option_info info = {.struct_size = sizeof info};
      const bool named = ng_option_at(c - BASE - t.own, &info) == NG_OK;
      out->settings[out->n_settings].name = named ? info.name : "method";
      out->settings[out->n_settings++].value = optarg;
    } else {
      rc = complain(command, &t, c, argv);
    }
  }
  table_free(&t);
  out->operand = argv + optind;
  out->operands = argc - optind;
  if (rc != CLI_OK) cli_args_free(out);
  return rc;
}

void cli_args_free(cli_args *args) {
  free(args->settings);
  memset(args, 0, sizeof *args);
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

int cli_real(const char *option, const char *text, double lower, double upper, double *out) {
  char *end = NULL;
  const double v = strtod(text, &end);
  if (end == text || *end != 0 || !(v >= lower && v <= upper)) {
    return cli_bad("--%s: '%s' is no number from %g to %g", option, text, lower, upper);
  }
  *out = v;
  return CLI_OK;
}

int cli_apply_method(const cli_args *args, ng_options *options) {
  char message[512] = "";
  for (int i = 0; i < args->n_settings; i++) {
    if (strcmp(args->settings[i].name, "method") != 0) continue;
    if (ng_options_set_method(options, args->settings[i].value, message, sizeof message) < 0) {
      return cli_bad("--method: %s", message);
    }
  }
  return CLI_OK;
}

int cli_apply(const cli_args *args, ng_options *options) {
  char message[512] = "";
  for (int i = 0; i < args->n_settings; i++) {
    if (strcmp(args->settings[i].name, "method") == 0) continue;
    if (ng_options_set(options, args->settings[i].name, args->settings[i].value, message,
                       sizeof message) < 0) {
      return cli_bad("%s", message);
    }
  }
  return CLI_OK;
}

void cli_build(const char *key, char *value, size_t size) {
  char text[2048];
  (void)ng_build_info(text, sizeof text);
  value[0] = 0;
  for (char *line = text; *line != 0;) {
    char *end = strchr(line, '\n');
    if (end == NULL) return;
    *end = 0;
    const size_t n = strlen(key);
    if (strncmp(line, key, n) == 0 && strncmp(line + n, " = ", 3) == 0) {
      (void)snprintf(value, size, "%s", line + n + 3);
      return;
    }
    line = end + 1;
  }
}

void cli_processor(char *name, size_t size) {
  (void)snprintf(name, size, "unknown");
  FILE *f = fopen("/proc/cpuinfo", "r");
  if (f == NULL) return;
  char line[512];
  while (fgets(line, sizeof line, f) != NULL) {
    const char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
    line[strcspn(line, "\n")] = 0;
    (void)snprintf(name, size, "%s", colon + 1 + strspn(colon + 1, " "));
    break;
  }
  (void)fclose(f);
}

int cli_cores(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  const long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (int)n : 1;
}

static void log_line(void *user, ng_log_level level, const char *line) {
  (void)user;
  (void)level;
  (void)fprintf(stderr, "natgrad: %s\n", line);
}

int cli_context(ng_context_config *config, ng_context **out) {
  char message[512] = "";
  config->log = log_line;
  if (ng_context_create(config, message, sizeof message, out) < 0) return cli_bad("%s", message);
  return CLI_OK;
}
