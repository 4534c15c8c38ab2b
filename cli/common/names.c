/* names.c: paths, spelling of names, and look-ups of options and methods in the library's tables. */
#include "common/cli.h"

#include <stdio.h>
#include <string.h>

char *cli_copy_text(const char *text) {
  const size_t n = strlen(text) + 1;
  char *out = cli_alloc(n, 1);
  memcpy(out, text, n);
  return out;
}

char *cli_join(const char *folder, const char *name) {
  const size_t n = strlen(folder) + strlen(name) + 2;
  char *out = cli_alloc(n, 1);
  (void)snprintf(out, n, "%s/%s", folder, name);
  return out;
}

const char *cli_get_base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

char *cli_get_folder(const char *path) {
  char *out = cli_copy_text(strchr(path, '/') != NULL ? path : "./"), *slash = strrchr(out, '/');
  slash[slash == out] = 0;
  return out;
}

static bool is_separator(char c) { return c == '-' || c == '_'; }

void cli_replace_separators(char *to, size_t size, const char *name, char with) {
  (void)snprintf(to, size, "%s", name);
  for (; *to != 0; to++)
    if (is_separator(*to)) *to = with;
}

bool cli_is_same_name(const char *a, const char *b) {
  while (*a != 0 && (*a == *b || (is_separator(*a) && is_separator(*b))))
    a++, b++;
  return *a == *b;
}

bool cli_has_ending(const char *path, const char *ending) {
  const size_t n = strlen(path), m = strlen(ending);
  return n > m && strcmp(path + n - m, ending) == 0;
}

bool cli_find_option(const char *name, ng_option_info *out) {
  static const char *const list[][2] = {
      {"store", "window_store"}, {"density", "window_density"}, {"rank", "window_rank"}};
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
    if (strcmp(list[i][0], name) == 0) name = list[i][1];
  for (int32_t i = 0; i < ng_option_count(); i++) {
    memset(out, 0, sizeof *out);
    out->struct_size = sizeof *out;
    if (ng_option_at(i, out) == NG_OK && cli_is_same_name(out->name, name)) return true;
  }
  return false;
}

int32_t cli_find_method(const char *name, ng_method_info *out) {
  for (int32_t i = 0; i < ng_method_count(); i++) {
    memset(out, 0, sizeof *out);
    out->struct_size = sizeof *out;
    if (ng_method_at(i, out) == NG_OK && strcmp(out->name, name) == 0) return i;
  }
  return -1;
}

bool cli_method_has_option(const char *method, const char *option) {
  ng_option_info o;
  ng_method_info m;
  return cli_find_method(method, &m) >= 0 && cli_find_option(option, &o) &&
         strstr(m.traits, o.trait) != NULL;
}

int cli_list_methods(const char **names, int capacity) {
  int n = 0;
  for (int32_t i = 0; i < ng_method_count() && n < capacity; i++) {
    ng_method_info info = {.struct_size = sizeof info};
    if (ng_method_at(i, &info) == NG_OK) names[n++] = info.name;
  }
  return n;
}

cli_value cli_get_option_text(const ng_options *o, const char *name) {
  cli_value v = {.text = ""};
  if (ng_options_get(o, name, v.text, sizeof v.text) != NG_OK) v.text[0] = 0;
  return v;
}

bool cli_option_is(const ng_options *o, const char *name, const char *choice) {
  return strcmp(cli_get_option_text(o, name).text, choice) == 0;
}

double cli_get_option_real(const ng_options *o, const char *name) {
  double value = 0.0;
  return ng_options_get_real(o, name, &value) == NG_OK ? value : 0.0;
}
