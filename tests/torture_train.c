/* torture_train.c: a training run that resumes after a kill at any time.
 *
 *   torture_train FOLDER STEPS
 *
 * Load the newest pair FOLDER/weights.N, FOLDER/state.N, if there is one; train the model of sim.h; save a pair every
 * third step; write the weights to FOLDER/final.  scripts/torture.sh kills the program repeatedly and compares `final`
 * with the file of a run without kills.  Print "resumed = N steps = M". */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "safetensors.h"
#include "sim.h"

enum { EVERY = 3 };

static sim run;
static const char *folder;
static char message[512];

static void fail_with(const char *what, const char *why) {
  fprintf(stderr, "torture_train: %s: %s\n", what, why);
  exit(1);
}

#define TRY(call)                                                                                  \
  do {                                                                                             \
    if ((call) < NG_OK) fail_with(#call, run.ctx ? ng_last_error(run.ctx) : run.message);          \
  } while (0)

/* ---- pairs on disk ---------------------------------------------------------------------------*/

typedef struct path {
  char text[600];
} path;

static path path_of(const char *what, int64_t t) {
  path p;
  (void)snprintf(p.text, sizeof p.text, "%s/%s.%lld", folder, what, (long long)t);
  return p;
}

static void save_weights(path file) {
  const ngio_tensor t = {.name = "weights",
                         .dtype = NGIO_F32,
                         .ndim = 1,
                         .shape = {run.weight_count},
                         .data = run.weight};
  if (ngio_tensors_write(file.text, &t, 1, NULL, 0, message, sizeof message) != NGIO_OK)
    fail_with(file.text, message);
}

/* Write the state last: if it exists, the weights exist. */
static void save_state(int64_t t) {
  save_weights(path_of("weights", t));
  TRY(ng_save(run.p, path_of("state", t).text));
  (void)unlink(path_of("state", t - 2 * EVERY).text);
  (void)unlink(path_of("weights", t - 2 * EVERY).text);
}

static int64_t newest_step(void) {
  int64_t most = 0;
  DIR *d = opendir(folder);
  if (d == NULL) fail_with(folder, "cannot be opened");
  for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
    char *end = NULL;
    if (strncmp(e->d_name, "state.", 6) != 0) continue;
    const long long t = strtoll(e->d_name + 6, &end, 10);
    if (*end == 0 && t > most) most = t;
  }
  (void)closedir(d);
  return most;
}

/* A file under its own name is complete, so an unreadable file is a failure of the library. */
static void load_state(int64_t t) {
  ngio_tensors *f = NULL;
  const path file = path_of("weights", t);
  if (ngio_tensors_read(file.text, NULL, &f, message, sizeof message) != NGIO_OK)
    fail_with(file.text, message);
  memcpy(run.weight, ngio_tensors_find(f, "weights")->data,
         (size_t)run.weight_count * sizeof(float));
  ngio_tensors_close(&f);
  TRY(ng_load(run.p, path_of("state", t).text));
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: torture_train FOLDER STEPS\n");
    return 2;
  }
  folder = argv[1];
  const int64_t steps = strtoll(argv[2], NULL, 10);
  TRY(sim_open(&run, &(sim_setup){.method = "natgrad", .set = "update=adamw stat_period=2"}, NULL,
               NULL));
  const int64_t from = newest_step();
  if (from > 0) load_state(from);
  printf("resumed = %lld steps = %lld\n", (long long)from, (long long)steps);
  (void)fflush(stdout);
  for (int64_t t = from; t < steps; t++) {
    TRY(sim_step(&run, t));
    if ((t + 1) % EVERY == 0) save_state(t + 1);
  }
  path final;
  (void)snprintf(final.text, sizeof final.text, "%s/final", folder);
  save_weights(final);
  sim_close(&run);
  return 0;
}
