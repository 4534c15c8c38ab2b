/* info.c: `natgrad info`: print the build and the tables of the library: components, options, methods, variables. */
#include "common/commands.h"
#include "data/picture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct request {
  bool options, full, methods, environment;
  const char *published;
} request;

static void print_build(void) {
  char text[2048], processor[256];
  (void)ng_build_info(text, sizeof text);
  fputs(text, stdout);
  cli_read_processor_name(processor, sizeof processor);
  printf("processor = %s\nthreads = %d\n", processor, cli_count_cores());
  ng_component c = {.struct_size = sizeof c};
  for (int32_t i = 0; ng_component_info(i, &c) == NG_OK; i++)
    printf("%s %s = %s%s%s\n", c.kind, c.name, c.built_in ? "built in" : "absent",
           c.absent[0] != 0 ? ": " : "", c.absent);
  const picture_format *const formats[] = {&picture_jpeg, &picture_png};
  for (int i = 0; i < 2; i++) {
    const char *library = formats[i]->library;
    printf("images %s = %s%s\n", formats[i]->name, library != NULL ? "built in: " : "absent: ",
           library != NULL ? library : formats[i]->absent);
  }
}

static const char *const type_name[] = {[NG_OPTION_REAL] = "real",
                                        [NG_OPTION_INT] = "int",
                                        [NG_OPTION_BOOL] = "bool",
                                        [NG_OPTION_CHOICE] = "choice",
                                        [NG_OPTION_TEXT] = "text"};

/* Print `before`, then the bound v of an option, unless |v| >= 1e15, which is no limit in practice. */
static void print_bound(const char *before, double v) {
  printf("%s", before);
  if (fabs(v) < 1e15) printf("%.17g", v);
}

/* Print an option as "NAME TYPE, default VALUE, RANGE, ...; SUMMARY". If `full`, print a colon after the name, and
 * instead of the summary all lines of the help, indented. */
static void print_option(const ng_option_info *o, bool full) {
  printf("%s%s %s, default %s", o->name, full ? ":" : "", type_name[o->type],
         o->standard[0] != 0 ? o->standard : "\"\"");
  if (o->type == NG_OPTION_CHOICE) printf(", %s", o->choices);
  if (o->type == NG_OPTION_BOOL) printf(", 0|1");
  if (o->type == NG_OPTION_REAL || o->type == NG_OPTION_INT) {
    print_bound(o->lower_open ? ", above " : ", ", o->lower);
    print_bound("..", o->upper);
  }
  printf("%s%s%s%s%s%s", o->unit[0] != 0 ? ", unit " : "", o->unit,
         o->per_layer ? ", per layer" : "", o->live ? ", live" : "",
         o->trait[0] != 0 ? ", for methods with " : "", o->trait);
  if (!full) printf("; %.*s", (int)strcspn(o->help, "\n"), o->help);
  printf("\n");
  for (const char *line = o->help; full && *line != 0; line += line[0] == '\n') {
    const size_t n = strcspn(line, "\n");
    printf("  %.*s\n", (int)n, line);
    line += n;
  }
}

static void print_options(bool full) {
  const char *group = "";
  ng_option_info o = {.struct_size = sizeof o};
  for (int32_t i = 0; ng_option_at(i, &o) == NG_OK; i++) {
    if (full && strcmp(group, o.group) != 0) printf("[%s]\n", o.group);
    group = o.group;
    print_option(&o, full);
  }
}

static int print_method(const ng_method_info *m) {
  char line[CLI_NAME + 8], message[512] = "";
  ng_options *o = NULL;
  (void)snprintf(line, sizeof line, "method=%s", m->name);
  printf("%s (%s: %s)\n  %s\n  %s\n", m->name, m->family, m->traits, m->help, m->paper);
  ng_status st = ng_options_create(line, message, sizeof message, &o);
  for (int32_t k = 0; k < ng_option_count() && st >= 0; k++) {
    ng_option_info info = {.struct_size = sizeof info};
    st = ng_option_at(k, &info);
    if (st >= 0) printf("  %s = %s\n", info.name, cli_get_option_text(o, info.name).text);
  }
  ng_options_destroy(&o);
  return st < 0 ? cli_fail("info: method %s cannot be read: %s", m->name, message) : CLI_OK;
}

static int print_methods(void) {
  int rc = CLI_OK;
  ng_method_info m = {.struct_size = sizeof m};
  for (int32_t i = 0; rc == CLI_OK && ng_method_at(i, &m) == NG_OK; i++) {
    if (i > 0) printf("\n");
    rc = print_method(&m);
  }
  return rc;
}

/* Print the environment variables of the library, then the variables that only the program reads. */
static void print_environment(void) {
  static const char *const own[][2] = {
      {"NATGRAD_DATA", "the folder of digits.csv, instead of the installed one"},
      {"NATGRAD_KEEP_KERNEL",
       "1: do not restart with OPENBLAS_THREAD_TIMEOUT and a faster OPENBLAS_CORETYPE"},
  };
  ng_variable_info v = {.struct_size = sizeof v};
  for (int32_t i = 0; ng_variable_at(i, &v) == NG_OK; i++)
    printf("%-24s %s\n", v.name, v.meaning);
  for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
    printf("%-24s %s\n", own[i][0], own[i][1]);
}

static int print_published_names(const char *name) {
  ng_method_info m;
  const int32_t index = cli_find_method(name, &m);
  if (index < 0) {
    const char *names[CLI_METHODS];
    return cli_report_unknown("info: unknown method", name, names,
                              cli_list_methods(names, CLI_METHODS),
                              "`natgrad info --methods` lists them");
  }
  if (m.published == 0) printf("%s has no published names\n", m.name);
  ng_published_info p = {.struct_size = sizeof p};
  for (int32_t k = 0; ng_method_published_at(index, k, &p) == NG_OK; k++)
    printf("%-32s %-22s %s\n", p.name, p.option[0] != 0 ? p.option : "-", p.meaning);
  return CLI_OK;
}

static int run_info(void *user, const cli_args *args) {
  const request *w = user;
  (void)args;
  if (w->options + w->methods + w->environment + (w->published != NULL) > 1)
    return cli_fail(
        "info: expected at most one of --options, --methods, --environment, --published");
  if (w->full && !w->options) return cli_fail("info: --long needs --options");
  if (w->methods) return print_methods();
  if (w->published != NULL) return print_published_names(w->published);
  if (w->options) {
    print_options(w->full);
  } else if (w->environment) {
    print_environment();
  } else {
    print_build();
  }
  return CLI_OK;
}

static const cli_option own[] = {
    {"options", NULL, "options of the library: name, type, default, range or choices, help",
     CLI_FLAG, .field = offsetof(request, options)},
    {"long", NULL, "with --options: the full help, grouped by purpose", CLI_FLAG,
     .field = offsetof(request, full)},
    {"methods", NULL, "methods: family, paper, and the values of all options", CLI_FLAG,
     .field = offsetof(request, methods)},
    {"environment", NULL, "environment variables and their meaning", CLI_FLAG,
     .field = offsetof(request, environment)},
    {"published", "METHOD",
     "option names of the published program of a method, and the option that each name sets",
     CLI_TEXT, .field = offsetof(request, published)},
};

const cli_command cli_info = {
    .name = "info",
    .usage = "[--options [--long] | --methods | --environment | --published METHOD]",
    .summary = "print the build, the BLAS kernel, the components, the options, the methods or the "
               "environment",
    .text = "",
    .options = own,
    .n_options = 5,
    .size = sizeof(request),
    .run = run_info,
};
