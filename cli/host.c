/* host.c: what the program knows of its build and of the machine it runs on, and the library's
 * context on it. */
#include "cli.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static void in_turn(void *user, int32_t n, void (*task)(void *arg, int32_t i), void *arg) {
  (void)user;
  for (int32_t i = 0; i < n; i++)
    task(arg, i);
}

/* The library reads the variable.  An executor, so that its context starts no threads to be counted. */
int cli_threads(int *threads) {
  const char *given = getenv("NG_THREADS");
  *threads = cli_cores();
  if (given == NULL || given[0] == 0) return CLI_OK;
  char message[512] = "";
  ng_context_config config;
  ng_context *ctx = NULL;
  ng_context_config_init(&config, sizeof config);
  config.parallel_for = in_turn;
  if (ng_context_create(NG_VERSION, &config, message, sizeof message, &ctx) < 0) {
    return cli_bad("%s", message);
  }
  *threads = ng_context_threads(ctx);
  ng_context_destroy(&ctx);
  return CLI_OK;
}

/* Errors are not logged: whoever got one says so, in one line. */
static void log_line(void *user, ng_log_level level, const char *line) {
  (void)user;
  if (level != NG_LOG_ERROR) (void)fprintf(stderr, "natgrad: %s\n", line);
}

int cli_context(ng_context_config *config, ng_context **out) {
  char message[512] = "";
  config->log = log_line;
  if (ng_context_create(NG_VERSION, config, message, sizeof message, out) < 0) {
    return cli_bad("%s", message);
  }
  return CLI_OK;
}
