/* args.c: parse argv, and print the help of a command. The name of an option may have '-' or '_'. */
#include "common/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cli_print_help(const cli_command *command) {
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
  if (command->library)
    puts("\nAll options of the library are accepted, as in --damping 0.003: `natgrad info "
         "--options`\n"
         "lists them.  Short names: --store, --density and --rank for --window-store,\n"
         "--window-density and --window-rank.");
}

/* Find an option: set *own to an option of the command, or *library to the name of the library's option; else false. */
static bool find_option(const cli_command *command, const char *name, const cli_option **own,
                        const char **library) {
  ng_option_info info;
  for (int i = 0; i < command->n_options; i++) {
    *own = &command->options[i];
    if (cli_is_same_name((*own)->name, name)) return true;
  }
  *own = NULL;
  *library = "method";
  if (!command->library || strcmp(name, "method") == 0) return command->library;
  if (!cli_find_option(name, &info)) return false;
  *library = info.name;
  return true;
}

static int report_unknown_option(const cli_command *command, const char *name) {
  const int own = command->n_options, options = command->library ? ng_option_count() : 0;
  const char **names = cli_alloc((size_t)(own + options + 2), sizeof *names);
  char near[CLI_NAME] = "";
  int n = 0;
  for (int i = 0; i < own; i++)
    names[n++] = command->options[i].name;
  for (int32_t i = 0; i < options; i++) {
    ng_option_info info = {.struct_size = sizeof info};
    if (ng_option_at(i, &info) == NG_OK) names[n++] = info.name;
  }
  names[n++] = "help";
  if (command->library) names[n++] = "method";
  const char *nearest = cli_find_nearest(name, names, n);
  if (nearest != NULL) cli_replace_separators(near, sizeof near, nearest, '-');
  free(names);
  if (near[0] != 0)
    return cli_fail("%s: unknown option --%s; the nearest is --%s", command->name, name, near);
  return cli_fail("%s: unknown option --%s; `natgrad help %s` lists them", command->name, name,
                  command->name);
}

/* Parse "16GB", "12.5GB/s", "300G", "1e9" (factors of 1000) or "16GiB" (factors of 1024). */
static int parse_size(const char *option, const char *text, double *out) {
  static const char letters[] = "kMGTP";
  char *end;
  double x = strtod(text, &end);
  const char *letter = *end != 0 ? strchr(letters, *end == 'K' ? 'k' : *end) : NULL;
  if (end != text && letter != NULL) {
    const bool binary = end[1] == 'i';
    x *= pow(binary ? 1024.0 : 1000.0, (double)(letter - letters + 1));
    end += binary ? 2 : 1;
  }
  if (end != text && *end == 'B') end++;
  if (end != text && strcmp(end, "/s") == 0) end += 2;
  if (end == text || *end != 0 || !(x >= 1) || !isfinite(x))
    return cli_fail("--%s: '%s' is not a size of at least 1, such as 16GB, 8GiB or 12.5GB/s",
                    option, text);
  *out = x;
  return CLI_OK;
}

/* Store the value of option o (NULL for a flag) in the command's values or in `out`. */
static int store_value(const cli_option *o, const char *value, char *values, cli_args *out) {
  void *field = values + o->field;
  const cli_setting given = {o->name, value != NULL ? value : "true"};
  if (o->kind == CLI_OWN) {
    out->own[out->n_own++] = given;
  } else if (o->kind == CLI_SETTING) {
    out->settings[out->n_settings++] = given;
  } else if (o->kind == CLI_TEXT) {
    *(const char **)field = value;
  } else if (o->kind == CLI_SIZE) {
    return parse_size(o->name, value, field);
  } else {
    return cli_parse_option(o->name, o->kind, given.value, o->lower, o->upper, field);
  }
  return CLI_OK;
}

/* Parse the option argv[*i] and store its value. If the value is the next argument, advance *i. */
static int parse_option(const cli_command *command, int argc, char **argv, int *i, char *values,
                        cli_args *out) {
  const char *arg = argv[*i], *value = strchr(arg, '='), *library = NULL;
  const cli_option *own;
  char name[CLI_NAME];
  if (arg[1] != '-')
    return cli_fail("%s: unknown option -%c; `natgrad help %s` lists them", command->name, arg[1],
                    command->name);
  (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(arg + 2, "="), arg + 2);
  if (value != NULL) value++;
  if (!find_option(command, name, &own, &library)) return report_unknown_option(command, name);
  if (own != NULL && own->value == NULL) {
    if (value != NULL) return cli_fail("%s: option --%s takes no value", command->name, name);
    return store_value(own, NULL, values, out);
  }
  if (value == NULL && *i + 1 == argc)
    return cli_fail("%s: option %s needs a value", command->name, arg);
  if (value == NULL) value = argv[++*i];
  if (own != NULL && value[0] == 0) return cli_fail("--%s: expected %s", own->name, own->value);
  if (own != NULL) return store_value(own, value, values, out);
  out->settings[out->n_settings++] = (cli_setting){library, value};
  return CLI_OK;
}

int cli_run_command(const cli_command *command, int argc, char **argv) {
  bool options = true, help = false;
  int rc = CLI_OK;
  char *values = cli_alloc(command->size, 1);
  cli_args args = {.operand = argv + 1,
                   .settings = cli_alloc((size_t)argc, sizeof *args.settings),
                   .own = cli_alloc((size_t)argc, sizeof *args.own)};
  if (command->standard != NULL) memcpy(values, command->standard, command->size);
  for (int i = 1; i < argc && rc == CLI_OK && !help; i++) {
    char *arg = argv[i];
    if (options && strcmp(arg, "--") == 0) {
      options = false;
    } else if (options && (strcmp(arg, "-h") == 0 || strcmp(arg, "--help") == 0)) {
      help = true;
    } else if (options && arg[0] == '-' && arg[1] != 0) {
      rc = parse_option(command, argc, argv, &i, values, &args);
    } else if (args.operands == command->operands) {
      rc = cli_fail("%s: unexpected argument '%s'", command->name, arg);
    } else {
      /* operands are stored in argv itself, in entries that are already parsed */
      args.operand[args.operands++] = arg;
    }
  }
  if (help) cli_print_help(command);
  if (rc == CLI_OK && !help) rc = command->run(values, &args);
  free(args.settings);
  free(args.own);
  free(values);
  return rc;
}

int cli_set_options(const cli_args *args, ng_options *options) {
  char message[512] = "";
  for (int i = 0; i < args->n_settings; i++) {
    const cli_setting *s = &args->settings[i];
    if (ng_options_set(options, s->name, s->value, message, sizeof message) >= 0) continue;
    return cli_fail("%s%s", strcmp(s->name, "method") == 0 ? "--method: " : "", message);
  }
  return CLI_OK;
}
