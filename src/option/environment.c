/* environment.c: list the known variables NG_..., and log a warning for each unknown one, such as a misspelt NG_DAMPNG,
 * which would otherwise silently have no effect. */
#include "option/option.h"

#include <stdlib.h>
#include <unistd.h>

#define PREFIX "NG_"
#define OF_TESTS "NG_TEST_"

/* Variables that are not options.  Names are in lower case and without the prefix, like names of options. */
static const struct {
  const char *name, *meaning;
} settings[] = {
    {"method", "the method; options that are also set override its values"},
    {"threads", "threads of a context's loops if the program does not set them, 1 to 1024"},
    {"linalg", "linear algebra if the program does not set it: cpu, ref, cuda or cuda:INDEX"},
    {"cuda_folder", "folder of cuBLAS and cuSOLVER, if the system does not find them"},
    {"cuda_library", "path of the library natgrad_cuda, if the system does not find it"},
    {"log", "none, error, warn, info or trace; overrides the program"},
};
enum { SETTINGS = (int)(sizeof settings / sizeof settings[0]), NAMED = SETTINGS + NG_OPTION_COUNT };

static const char *option_name_at(int32_t i) {
  return i < SETTINGS ? settings[i].name : ng_option_table[i - SETTINGS].name;
}

void ng_write_variable_name(const char *name, char *out, size_t size) {
  size_t n = (size_t)snprintf(out, size, PREFIX "%s", name);
  for (size_t i = 0; i < n && i < size; i++) {
    if (out[i] >= 'a' && out[i] <= 'z') out[i] = (char)(out[i] - 'a' + 'A');
  }
}

/* ---- the list --------------------------------------------------------------------------------*/

/* The last index, NAMED, stands for all variables of the tests. */
ng_status ng_variable_at(int32_t i, ng_variable_info *out) {
  if (out == NULL || i < 0 || i > NAMED) return NG_ERR_ARG;
  ng_variable_info v = {.struct_size = sizeof v};
  if (i == NAMED) {
    (void)snprintf(v.name, sizeof v.name, "%s", OF_TESTS "*");
    v.meaning = "settings of the library's own tests";
  } else {
    ng_write_variable_name(option_name_at(i), v.name, sizeof v.name);
    v.meaning =
        i < SETTINGS ? settings[i].meaning : "the option of this name, see natgrad info --options";
  }
  return ng_struct_write(out, &v, sizeof v);
}

/* ---- the environment -------------------------------------------------------------------------*/

static bool is_known_variable(const char *variable) {
  char name[64];
  if (strncmp(variable, OF_TESTS, strlen(OF_TESTS)) == 0) return true;
  for (int32_t i = 0; i < NAMED; i++) {
    ng_write_variable_name(option_name_at(i), name, sizeof name);
    if (ng_is(variable, name)) return true;
  }
  return false;
}

/* The message does not have the value of the variable, which may be a secret of another program. */
void ng_warn_unknown_variables(ng_context *ctx) {
  for (char *const *at = environ; at != NULL && *at != NULL; at++) {
    char variable[64], near[64] = "";
    if (strncmp(*at, PREFIX, strlen(PREFIX)) != 0) continue;
    const size_t n = strcspn(*at, "=");
    (void)snprintf(variable, sizeof variable, "%.*s", n < sizeof variable ? (int)n : 63, *at);
    if (is_known_variable(variable)) continue;
    const char *nearest = ng_nearest(variable + strlen(PREFIX), option_name_at, NAMED);
    if (nearest != NULL) ng_write_variable_name(nearest, near, sizeof near);
    ng_log(ctx, NG_LOG_WARN, "environment: %s is set, and nothing reads it%s",
           ng_shorten(variable).text, ng_hint_of(nearest == NULL ? NULL : near).text);
  }
}
