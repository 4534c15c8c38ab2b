/* bench_state.c: `natgrad bench state`: save and load the state of a model with many layers.
 *
 * Before that, one step on random arrays fills averages and inverses.
 * The lower bound of saving is the time to write as many bytes to a new file, flush and rename it, as ng_save does. The
 * lower bound of loading is the time to read the file into new memory, as ng_load does. Before each measurement, freed
 * memory returns to the system, because a program that loads a state once has no freed memory to reuse. */
#include "bench.h"
#include "clock.h"
#include "train/disk.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WIDTH = 16, SAMPLES = 4 };
enum { SAVE, LOAD, WRITE, READ, PARTS };

typedef struct work {
  ng_precond *p;
  float *grad, *observed;
  shapes list;
  int64_t bytes; /* size of the saved file */
  char folder[64], saved[96], written[96];
  char *content;       /* [bytes] the bytes that the case WRITE writes to a file */
  double least[PARTS]; /* shortest time of each part, ms */
} work;

/* ---- files -----------------------------------------------------------------------------------*/

static int make_folder(work *k) {
  const char *tmp = getenv("TMPDIR");
  if (tmp == NULL || strlen(tmp) > 30) tmp = "/tmp";
  (void)snprintf(k->folder, sizeof k->folder, "%s/natgrad-bench-XXXXXX", tmp);
  if (mkdtemp(k->folder) == NULL) {
    k->folder[0] = 0;
    return cli_fail("bench state: cannot create a folder in %s; set TMPDIR to another folder", tmp);
  }
  (void)snprintf(k->saved, sizeof k->saved, "%s/saved", k->folder);
  (void)snprintf(k->written, sizeof k->written, "%s/written", k->folder);
  return CLI_OK;
}

/* Read the saved file into new memory. */
static int read_file(const work *k) {
  char message[256], *bytes = cli_alloc((size_t)k->bytes, 1);
  ngio_source file;
  const bool done = ngio_source_open(&file, k->saved, message, sizeof message) == NGIO_OK &&
                    ngio_source_read(&file, 0, bytes, k->bytes, message, sizeof message) == NGIO_OK;
  ngio_source_close(&file);
  free(bytes);
  return done ? CLI_OK : cli_fail("bench state: %s", message);
}

/* ---- the case --------------------------------------------------------------------------------*/

static int open_state(bench *b) {
  work *k = b->user;
  if (bench_list_layers(b->model, WIDTH, WIDTH, &k->list) != CLI_OK || make_folder(k) != CLI_OK)
    return CLI_BAD;
  const int64_t weights = bench_count_parameters(&k->list),
                observed = SAMPLES * bench_find_largest_order(&k->list);
  k->grad = bench_alloc(weights);
  k->observed = bench_alloc(observed);
  bench_fill_random(k->grad, weights, 0.01F);
  bench_fill_random(k->observed, observed, 1.0F);
  ng_status st = ng_precond_create_from(b->ctx, b->options, &k->p);
  if (st >= 0) st = bench_add_layers(k->p, &k->list, k->grad, NULL);
  if (st >= 0) st = bench_observe_layers(k->p, &k->list, k->observed, SAMPLES);
  if (st >= 0) st = ng_step(k->p, 0.1);
  if (st >= 0) st = ng_save(k->p, k->saved);
  if (st < 0) return bench_report_error(b, "state", st);
  struct stat info;
  if (stat(k->saved, &info) != 0) return cli_fail("bench state: %s: no such file", k->saved);
  k->bytes = info.st_size;
  k->content = cli_alloc((size_t)k->bytes, 1);
  memset(k->content, 1, (size_t)k->bytes);
  (void)bench_add_row(b, "save");
  (void)bench_add_row(b, "load");
  bench_add_json_member(b, "layers", k->list.n);
  bench_add_json_member(b, "bytes", k->bytes);
  bench_print_title(b, "bench state: method %s, %s, %d layers, %.1f MB",
                    cli_get_option_text(b->options, "method").text, k->list.name, k->list.n,
                    1e-6 * (double)k->bytes);
  return CLI_OK;
}

static int run_round(bench *b, int r) {
  work *k = b->user;
  for (int part = 0; part < (b->skips_bounds ? WRITE : PARTS); part++) {
    ng_status st = NG_OK;
    int rc = CLI_OK;
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
    const double start = ng_now_ms();
    if (part == SAVE) st = ng_save(k->p, k->saved);
    if (part == LOAD) st = ng_load(k->p, k->saved);
    if (part == WRITE) rc = disk_write_file(k->written, k->content, (size_t)k->bytes);
    if (part == READ) rc = read_file(k);
    const double ms = ng_now_ms() - start;
    if (st < 0) return bench_report_error(b, "state", st);
    if (rc != CLI_OK) return rc;
    if (part < WRITE) bench_record_time(b, part, r, ms);
    if (r >= 0 && (r == 0 || ms < k->least[part])) k->least[part] = ms;
  }
  return CLI_OK;
}

static int set_bounds(bench *b) {
  const work *k = b->user;
  b->row[SAVE].bound = k->least[WRITE];
  b->row[LOAD].bound = k->least[READ];
  return CLI_OK;
}

static void close_state(bench *b) {
  work *k = b->user;
  if (k->folder[0] != 0) {
    (void)unlink(k->saved);
    (void)unlink(k->written);
    (void)rmdir(k->folder);
  }
  ng_precond_destroy(&k->p);
  free(k->content);
  free(k->grad);
  free(k->observed);
  shapes_free(&k->list);
}

const bench_case bench_state = {.name = "state",
                                .size = sizeof(work),
                                .options = "",
                                .models = {"2560000"},
                                .open = open_state,
                                .round = run_round,
                                .bounds = set_bounds,
                                .close = close_state};
