/* launch.c: recognise an MPI launcher, load the MPI module, and run ranks as threads. */
#include "launch.h"
#include "launch_mpi.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Return the value of the first of these environment variables that is set; 0: none is. */
static int32_t read_launcher_variable(const char *const *names) {
  for (; *names != NULL; names++) {
    const char *text = getenv(*names);
    const long n = text != NULL ? strtol(text, NULL, 10) : 0;
    if (n > 0 && n < INT_MAX) return (int32_t)n;
  }
  return 0;
}

/* Return the number of processes that a launcher started (Open MPI, MPICH, Hydra, Slurm's PMI-2, MVAPICH); 0: none. */
static int32_t count_launched_processes(void) {
  static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
                                      NULL};
  return read_launcher_variable(sizes);
}

int32_t launch_count_local_ranks(int32_t size) {
  static const char *const locals[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                       "MV2_COMM_WORLD_LOCAL_SIZE", NULL};
  const int32_t n = read_launcher_variable(locals);
  return n > 0 && n < size ? n : size;
}

/* Load the MPI module from the build folder, or from the folder of installed libraries. */
static void *load_mpi_module(char *why, size_t size) {
  static const char *const places[] = {"launch_mpi.so", NG_MODULE_DIR "/launch_mpi.so"};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    char *path = cli_get_program_path(places[i]);
    /* RTLD_GLOBAL: the plug-ins of Open MPI look up its symbols in the global scope */
    const bool there = access(path, R_OK) == 0;
    void *module = there ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (there && module == NULL) (void)snprintf(why, size, "%s", dlerror());
    free(path);
    if (there) return module;
  }
  (void)snprintf(why, size,
                 "this build has no MPI (apt-get install libopenmpi-dev openmpi-bin, build "
                 "again)");
  return NULL;
}

/* Load the MPI module and initialise MPI. */
static int begin_mpi(launch *l) {
  char why[512] = "";
  launch_mpi_begin_fn *begin = NULL;
  l->module = load_mpi_module(why, sizeof why);
  if (l->module == NULL || !cli_find_function(l->module, "launch_mpi_begin", &begin) ||
      begin(&l->table, sizeof l->table, why, sizeof why) != 0)
    return cli_fail("ranks over MPI: %s", why);
  const int32_t want = count_launched_processes();
  if (want == 0 || want == l->table.size) return CLI_OK;
  return cli_fail(
      "ranks over MPI: the launcher started %d ranks, this program's MPI has %d: launcher and "
      "program use different MPIs",
      want, l->table.size);
}

int launch_begin(const char *wanted, launch *out) {
  int64_t threads = 1;
  *out = (launch){.threads = 1, .table = {.size = 1}};
  if (strcmp(wanted, "auto") == 0) return count_launched_processes() > 1 ? begin_mpi(out) : CLI_OK;
  if (strcmp(wanted, "mpi") == 0) return begin_mpi(out);
  if (*wanted < '0' || *wanted > '9')
    return cli_fail("--ranks: '%s', expected auto, mpi or a number of threads", wanted);
  if (cli_parse_option("ranks", CLI_WHOLE, wanted, 1, 1024, &threads) != CLI_OK) return CLI_BAD;
  if (count_launched_processes() > 1)
    return cli_fail("--ranks: %lld threads, but a launcher has started %d processes; omit --ranks",
                    (long long)threads, count_launched_processes());
  out->threads = (int32_t)threads;
  return CLI_OK;
}

typedef struct member {
  ng_transport t;
  int (*work)(void *user, const ng_transport *t);
  void *user;
  atomic_bool *reported;
  pthread_t thread;
  int rc;
} member;

static void *run_thread_rank(void *arg) {
  member *m = arg;
  cli_report_once(m->reported);
  m->rc = m->work(m->user, &m->t);
  cli_report_once(NULL);
  return NULL;
}

int launch_run_threads(int32_t n, int (*work)(void *user, const ng_transport *t), void *user) {
  void (*set_blas_threads)(int threads);
  ng_threads *group = NULL;
  atomic_bool reported = false;
  int32_t made = 1;
  cli_require_address_space(n);
  /* The threads of OpenBLAS serve one caller at a time, so ranks that are threads use one BLAS thread each. */
  if (cli_find_function(NULL, "openblas_set_num_threads", &set_blas_threads)) set_blas_threads(1);
  member *m = cli_alloc((size_t)n, sizeof *m);
  bool good = ng_threads_create(n, &group) == NG_OK;
  for (int32_t i = 0; i < n && good; i++) {
    m[i] = (member){.work = work, .user = user, .reported = &reported};
    good = ng_threads_transport(group, i, &m[i].t, sizeof m[i].t) == NG_OK;
  }
  int rc = good ? CLI_OK : cli_fail("no memory for %d ranks", n);
  cli_report_once(&reported);
  while (made < n && rc == CLI_OK) {
    if (pthread_create(&m[made].thread, NULL, run_thread_rank, &m[made]) == 0) {
      made++;
    } else {
      rc = cli_fail("no thread for rank %d", made);
      m[0].t.abort(m[0].t.user);
    }
  }
  cli_report_once(NULL);
  if (rc == CLI_OK) (void)run_thread_rank(&m[0]);
  for (int32_t i = 1; i < made; i++)
    (void)pthread_join(m[i].thread, NULL);
  for (int32_t i = 0; i < n; i++)
    rc = m[i].rc != CLI_OK ? m[i].rc : rc;
  ng_threads_destroy(&group);
  free(m);
  return rc;
}

const ng_transport *launch_get_transport(const launch *l) {
  return l->table.size > 1 ? &l->table : NULL;
}

void launch_end(launch *l, bool failed) {
  launch_mpi_end_fn *end = NULL;
  if (l->module == NULL || !cli_find_function(l->module, "launch_mpi_end", &end)) return;
  if (failed && l->table.abort != NULL) l->table.abort(l->table.user);
  end(&l->table);
}
