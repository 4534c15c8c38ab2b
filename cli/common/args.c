/* args.c: parse argv.  The command's own options and the library's options have two spellings each ('-' and '_').  An
 * unknown option is reported with the nearest name. */
#include "common/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Find an option of the command, else of the library (its name); false: unknown. */
static bool find(const cli_command *command, const char *name, const cli_option **own,
                 const char **library) {
  ng_option_info info;
  for (int i = 0; i < command->n_options; i++) {
    *own = &command->options[i];
    if (cli_same_name((*own)->name, name)) return true;
  }
  *own = NULL;
  *library = "method";
  if (!command->library || strcmp(name, "method") == 0) return command->library;
  if (!cli_option_find(name, &info)) return false;
  *library = info.name;
  return true;
}

static int unknown(const cli_command *command, const char *name) {
  const int own = command->n_options, options = command->library ? ng_option_count() : 0;
  const char **names = cli_take((size_t)(own + options + 2), sizeof *names);
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
  const char *nearest = cli_nearest(name, names, n);
  if (nearest != NULL) cli_spell(near, sizeof near, nearest, '-');
  free(names);
  if (near[0] != 0)
    return cli_bad("%s: unknown option --%s; the nearest is --%s", command->name, name, near);
  return cli_bad("%s: unknown option --%s; `natgrad help %s` lists them", command->name, name,
                 command->name);
}

static int store(const cli_place *p, const char *name, const char *value, cli_args *out) {
  long long whole = 0;
  int rc = CLI_OK;
  while (p->name != NULL && strcmp(p->name, name) != 0)
    p++;
  if (p->name == NULL) {
    out->settings[out->n_settings++] = (cli_setting){name, value != NULL ? value : "true"};
    return CLI_OK;
  }
  switch (p->kind) {
  case CLI_FLAG:
    *(bool *)p->to = true;
    break;
  case CLI_TEXT:
    if (value[0] == 0) return cli_bad("--%s: expected a value", name);
    *(const char **)p->to = value;
    break;
  case CLI_INT:
    rc = cli_int(name, value, (long long)p->lower, (long long)p->upper, &whole);
    if (rc == CLI_OK) *(int64_t *)p->to = whole;
    break;
  case CLI_REAL:
    rc = cli_real(name, value, p->lower, p->upper, p->to);
    break;
  }
  return rc;
}

/* Handle the option argv[*i], and its value, which may be the next argument. */
static int one_option(const cli_command *command, int argc, char **argv, int *i,
                      const cli_place *places, cli_args *out) {
  const char *arg = argv[*i], *value = strchr(arg, '='), *library = NULL;
  const cli_option *own;
  char name[CLI_NAME];
  if (arg[1] != '-') {
    return cli_bad("%s: unknown option -%c; `natgrad help %s` lists them", command->name, arg[1],
                   command->name);
  }
  (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(arg + 2, "="), arg + 2);
  if (value != NULL) value++;
  if (!find(command, name, &own, &library)) return unknown(command, name);
  if (own != NULL && own->value == NULL) {
    if (value != NULL) return cli_bad("%s: option --%s takes no value", command->name, name);
    return store(places, own->name, NULL, out);
  }
  if (value == NULL && *i + 1 == argc)
    return cli_bad("%s: option %s needs a value", command->name, arg);
  if (value == NULL) value = argv[++*i];
  if (own != NULL) return store(places, own->name, value, out);
  out->settings[out->n_settings++] = (cli_setting){library, value};
  return CLI_OK;
}

int cli_parse(const cli_command *command, int argc, char **argv, const cli_place *places,
              cli_args *out) {
  bool options = true;
  int rc = CLI_OK;
  *out = (cli_args){.operand = argv + 1, .settings = cli_take((size_t)argc, sizeof *out->settings)};
  for (int i = 1; i < argc && rc == CLI_OK; i++) {
    char *arg = argv[i];
    if (!options || arg[0] != '-' || arg[1] == 0) {
      out->operand[out->operands++] = arg; /* at or before argument i */
    } else if (strcmp(arg, "--") == 0) {
      options = false;
    } else if (strcmp(arg, "-h") == 0 || strcmp(arg, "--help") == 0) {
      cli_help(command);
      rc = -1;
    } else {
      rc = one_option(command, argc, argv, &i, places, out);
    }
  }
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
