/* host.c: facts about the build, the installation and the machine; the library's context; limits of memory. */
#include "common/cli.h"

#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

void cli_read_build_line(const char *key, char *value, size_t size) {
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

void cli_format_version(char *text, size_t size) {
  char commit[64];
  const int v = ng_version();
  cli_read_build_line("commit", commit, sizeof commit);
  (void)snprintf(text, size, "%d.%d.%d (%s)", v / 10000, v / 100 % 100, v % 100, commit);
}

bool cli_find_function(void *module, const char *name, void *out) {
  void *at = dlsym(module != NULL ? module : RTLD_DEFAULT, name);
  memcpy(out, &at, sizeof at);
  return at != NULL;
}

char *cli_get_program_path(const char *name) {
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  self[n > 0 ? n : 0] = 0;
  char *folder = cli_get_folder(self), *path = cli_join(folder, name);
  free(folder);
  return path;
}

char *cli_find_shipped(const char *installed, const char *source) {
  char *share = cli_get_program_path("../share/natgrad");
  char *path = cli_join(share, installed);
  free(share);
  if (access(path, R_OK) == 0) return path;
  free(path);
  return cli_join(NG_SHIPPED_FROM, source);
}

void cli_read_processor_name(char *name, size_t size) {
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

int cli_count_cores(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  const long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (int)n : 1;
}

/* Parse NG_THREADS by the rules of the library: the trainer needs the number before it creates a context. */
int cli_read_thread_count(int *threads) {
  const char *given = getenv("NG_THREADS");
  char *end = NULL;
  *threads = cli_count_cores();
  if (given == NULL || given[0] == 0) return CLI_OK;
  const long n = strtol(given, &end, 10);
  if (*end != 0 || n < 1 || n > 1024)
    return cli_fail("NG_THREADS is '%s', expected a whole number from 1 to 1024", given);
  *threads = (int)n;
  return CLI_OK;
}

/* Do not log errors of the library: cli_fail reports each error in one line. */
static void log_line(void *user, ng_log_level level, const char *line) {
  (void)user;
  if (level != NG_LOG_ERROR) (void)fprintf(stderr, "natgrad: %s\n", line);
}

int cli_create_context(ng_context_config *config, ng_context **out) {
  char message[512] = "";
  config->log = log_line;
  if (ng_context_create(NG_VERSION, config, message, sizeof message, out) < 0)
    return cli_fail("%s", message);
  return CLI_OK;
}

/* ---- address space -----------------------------------------------------------------------------*/

/* Make OpenBLAS allocate the buffers of n simultaneous calls. OpenBLAS reuses these buffers in later calls. */
static void allocate_buffers(int n, void **held) {
  void *(*take)(int);
  void (*give)(void *);
  if (!cli_find_function(NULL, "blas_memory_alloc", &take) ||
      !cli_find_function(NULL, "blas_memory_free", &give))
    return;
  for (int i = 0; i < n; i++)
    held[i] = take(0);
  for (int i = 0; i < n; i++)
    give(held[i]);
}

/* Compute a product that is large enough to use all threads of OpenBLAS, so that each thread allocates its buffer. */
static void use_all_blas_threads(void) {
  void (*sgemm)(const char *, const char *, const int *, const int *, const int *, const float *,
                const float *, const int *, const float *, const int *, const float *, float *,
                const int *, size_t, size_t);
  const int n = 256;
  const float zero = 0.0F, one = 1.0F;
  float *x = cli_alloc(2 * (size_t)n * (size_t)n, sizeof *x), *y = x + (size_t)n * (size_t)n;
  if (cli_find_function(NULL, "sgemm_", &sgemm))
    sgemm("N", "N", &n, &n, &n, &one, x, &n, x, &n, &zero, y, &n, 1, 1);
  free(x);
}

/* Each thread of OpenBLAS, and each thread that calls OpenBLAS, allocates a buffer of 128 MiB (BUFFER_SIZE on x86-64)
 * at its first call. If this fails, OpenBLAS retries for ever: under ulimit -v the program would hang. Therefore, if a
 * limit is set, first map the same amount of address space as a test; then make OpenBLAS allocate the buffers before
 * other mappings use the space. Each thread of OpenBLAS also needs a heap, counted as another buffer. */
void cli_require_address_space(int callers) {
  static int had = 0;
  const size_t buffer = (size_t)129 << 20;
  struct rlimit limit;
  char blas[256], threads[32];
  cli_read_build_line("blas", blas, sizeof blas);
  cli_read_build_line("blas threads", threads, sizeof threads);
  const long of_blas = strtol(threads, NULL, 10);
  const long n = callers - had + (had == 0 ? 2 * (of_blas - 1) : 0);
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || of_blas < 1 ||
      strstr(blas, "OpenBLAS") == NULL || n < 1)
    return;
  void **held = cli_alloc((size_t)callers, sizeof *held);
  void *room = mmap(NULL, (size_t)n * buffer, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) {
    (void)cli_fail("the limit of the address space (ulimit -v) is %lld kB; OpenBLAS needs %ld kB "
                   "more for %s%s",
                   (long long)(limit.rlim_cur / 1024), n * (long)(buffer / 1024),
                   had > 0 ? "calls of the ranks" : "its threads",
                   of_blas > 1 ? "; OPENBLAS_NUM_THREADS=1 needs less" : "");
    _exit(CLI_BAD); /* call _exit, because exit would wait for the threads of OpenBLAS */
  }
  (void)munmap(room, (size_t)n * buffer);
  allocate_buffers(callers, held);
  if (had == 0 && of_blas > 1) use_all_blas_threads();
  had = callers;
  free(held);
}

/* glibc reads the stack limit when the program starts, and gives every thread a stack of this size; ranks may be
 * threads. So main raises the limit before the program restarts itself. */
void cli_require_stack(void) {
  const rlim_t least = (rlim_t)1 << 20; /* kernels of OpenBLAS use 100 to 150 KiB */
  struct rlimit limit;
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= least) return;
  const long long had = (long long)(limit.rlim_cur / 1024);
  limit.rlim_cur = least;
  if (setrlimit(RLIMIT_STACK, &limit) == 0) return;
  (void)cli_fail("the stack limit (ulimit -s) is %lld kB, expected at least %lld", had,
                 (long long)(least / 1024));
  _exit(CLI_BAD);
}
