/* args.c: parse argv.  One table for getopt_long has the command's own options and the library's options, in both
 * spellings ('-' and '_').  An unknown option is reported with the nearest name. */
#include "common/cli.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* getopt's table: values BASE + k, k < own, are the command's options, then follow the library's, then --help and
 * --keep-kernel (which main handles). */
typedef struct table {
  struct option *rows;
  char *text; /* second spellings: '_' of the command's names, '-' of the library's */
  const char **names;
  int count, own, library;
} table;

enum { BASE = 256, SHORT_NAMES = 8 };

static void table_add(table *t, const char *name, int has_arg, int value) {
  t->names[t->count] = name;
  t->rows[t->count].name = name;
  t->rows[t->count].has_arg = has_arg;
  t->rows[t->count].val = value;
  t->count++;
}

/* The command's own names come first. */
static void add_short_names(const cli_command *command, table *t) {
  const char *name, *option;
  for (int k = 0; k < SHORT_NAMES && (name = cli_short_name(k, &option)) != NULL; k++) {
    bool free_name = command->library;
    for (int i = 0; i < t->own; i++)
      free_name = free_name && strcmp(command->options[i].name, name) != 0;
    for (int i = 0; i < ng_option_count() && free_name; i++) {
      ng_option_info info = {.struct_size = sizeof info};
      if (ng_option_at(i, &info) == NG_OK && strcmp(info.name, option) == 0)
        table_add(t, name, required_argument, BASE + t->own + i);
    }
  }
}

static void table_make(const cli_command *command, table *t) {
  memset(t, 0, sizeof *t);
  t->own = command->n_options;
  t->library = command->library ? ng_option_count() + 1 : 0; /* and "method" */
  const size_t most = (size_t)(2 * t->own + 2 * t->library + SHORT_NAMES + 3);
  t->rows = cli_take(most, sizeof *t->rows);
  t->names = cli_take(most, sizeof *t->names);
  t->text = cli_take((size_t)(t->own + t->library), CLI_NAME);
  for (int i = 0; i < t->own; i++) {
    const char *name = command->options[i].name;
    const int takes = command->options[i].value != NULL ? required_argument : no_argument;
    char *spelt = t->text + i * CLI_NAME;
    cli_spell(spelt, CLI_NAME, name, '_');
    table_add(t, name, takes, BASE + i);
    if (strcmp(spelt, name) != 0) table_add(t, spelt, takes, BASE + i);
  }
  for (int i = 0; i < t->library; i++) {
    ng_option_info info = {.struct_size = sizeof info, .name = "method"};
    if (i + 1 < t->library && ng_option_at(i, &info) != NG_OK) continue;
    bool hidden = false; /* the command has an option of this name */
    for (int k = 0; k < t->own; k++)
      hidden = hidden || strcmp(command->options[k].name, info.name) == 0;
    if (hidden) continue;
    char *dashed = t->text + (t->own + i) * CLI_NAME;
    cli_spell(dashed, CLI_NAME, info.name, '-');
    table_add(t, dashed, required_argument, BASE + t->own + i);
    if (strcmp(dashed, info.name) != 0) {
      table_add(t, info.name, required_argument, BASE + t->own + i);
    }
  }
  add_short_names(command, t);
  table_add(t, "help", no_argument, 'h');
  table_add(t, "keep-kernel", no_argument, 'k');
}

static void table_free(table *t) {
  free(t->rows);
  free(t->names);
  free(t->text);
}

/* Count the names that begin with `word`, and list them: "--damping, --damping_leak, ...". */
static int begun_by(const table *t, const char *word, char *names, size_t size) {
  const char other =
      strchr(word, '_') != NULL ? '-' : '_'; /* list each name in the user's spelling only */
  int begins = 0;
  size_t n = 0;
  for (int i = 0; i < t->count; i++) {
    if (strncmp(t->names[i], word, strlen(word)) != 0 || strchr(t->names[i], other) != NULL)
      continue;
    const size_t room = strlen(t->names[i]) + sizeof ", --, ...";
    if (n + room < size) {
      n += (size_t)snprintf(names + n, size - n, "%s--%s", begins > 0 ? ", " : "", t->names[i]);
    } else if (n + sizeof ", ..." <= size && strcmp(names + n - 3, "...") != 0) {
      n += (size_t)snprintf(names + n, size - n, ", ...");
    }
    begins++;
  }
  return begins;
}

static int complain(const cli_command *command, const table *t, int c, char **argv) {
  if (c == ':') return cli_bad("%s: option %s needs a value", command->name, argv[optind - 1]);
  if (optopt != 0 && optopt < BASE && optopt != 'h' && optopt != 'k') {
    return cli_bad("%s: unknown option -%c; `natgrad help %s` lists them", command->name, optopt,
                   command->name);
  }
  const char *given = argv[optind - 1];
  char word[CLI_NAME];
  (void)snprintf(word, sizeof word, "%s", given + strspn(given, "-"));
  word[strcspn(word, "=")] = 0;
  if (optopt != 0) return cli_bad("%s: option --%s takes no value", command->name, word);
  char names[256] = ""; /* getopt accepts unambiguous prefixes */
  if (begun_by(t, word, names, sizeof names) > 1) {
    return cli_bad("%s: option --%s is ambiguous: %s", command->name, word, names);
  }
  const char *near = cli_nearest(word, t->names, t->count);
  if (near != NULL) {
    return cli_bad("%s: unknown option --%s; the nearest is --%s", command->name, word, near);
  }
  return cli_bad("%s: unknown option --%s; `natgrad help %s` lists them", command->name, word,
                 command->name);
}

void cli_help(const cli_command *command) {
  printf("natgrad %s %s\n\n  %s\n", command->name, command->usage, command->summary);
  if (command->text[0] != 0) printf("\n%s", command->text);
  if (command->n_options > 0) printf("\nOptions\n");
  for (int i = 0; i < command->n_options; i++) {
    const cli_option *o = &command->options[i];
    char left[64];
    (void)snprintf(left, sizeof left, "--%s%s%s", o->name, o->value != NULL ? " " : "",
                   o->value != NULL ? o->value : "");
    printf("  %-22s %s\n", left, o->help);
  }
  if (command->library) {
    puts("\nAll options of the library are accepted, as in --damping 0.003: `natgrad info "
         "--options`\n"
         "lists them.  Short names: --store, --density and --rank for --window-store,\n"
         "--window-density and --window-rank.");
  }
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
  optind = 0; /* glibc: reset getopt */
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

int cli_apply(const cli_args *args, ng_options *options) {
  char message[512] = "";
  for (int i = 0; i < args->n_settings; i++) {
    const cli_setting *s = &args->settings[i];
    if (ng_options_set(options, s->name, s->value, message, sizeof message) >= 0) continue;
    return cli_bad("%s%s", strcmp(s->name, "method") == 0 ? "--method: " : "", message);
  }
  return CLI_OK;
}
