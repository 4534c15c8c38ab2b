/* bench_state.c: `natgrad bench state`: saving and loading a model of many layers, beside writing and reading
 * the same bytes.
 *
 * The model: N linear layers of 16 x 16, and for each ten thousand of them thirteen depthwise convolutions (one
 * at least) of 512 channels, each of which has a thousand factors.  One step on random arrays, so that averages and inverses are those of a run.
 * The ratio is of the least times: what else the machine does makes none of them shorter.
 * Floors: a new file with these bytes, written, flushed to the disk and given its name, as ng_save does
 * it; all of a file read into memory that is new, as ng_load does.  What earlier parts gave
 * back goes to the system first: a state is loaded once in the life of a program. */
#include "bench.h"
#include "clock.h"

#include <fcntl.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WIDTH = 16, CHANNELS = 512, SIDE = 4, SAMPLES = 4, PARTS = 4 };

static const char *const part_name[PARTS] = {"save", "load", "write", "read"};

typedef struct work {
  const bench_wish *wish;
  ng_options *options;
  ng_context *ctx;
  ng_precond *p;
  float *grad; /* of all layers, one behind the other */
  float *shown;
  int64_t deep; /* convolutions */
  char folder[64], saved[96], written[96];
  int64_t bytes;       /* of the saved file */
  double *ms[PARTS];   /* [repeat]: wall time */
  double least[PARTS]; /* of it */
  double own[PARTS];   /* the least of the program's own time, which others do not stretch */
} work;

static int failed(const work *k, const char *what, ng_status st) {
  return cli_bad("bench state: %s: %s (%s)", what, k->ctx == NULL ? "" : ng_last_error(k->ctx),
                 ng_status_name(st));
}

/* ---- the model -------------------------------------------------------------------------------*/

static const int64_t one[2] = {1, 1}, kernel[2] = {3, 3}, image[2] = {SIDE, SIDE};

static ng_status add_layers(work *k) {
  ng_status st = NG_OK;
  float *grad = k->grad;
  int32_t index = -1;
  for (int64_t i = 0; i < k->wish->layers && st >= 0; i++, grad += WIDTH * WIDTH) {
    char name[32];
    (void)snprintf(name, sizeof name, "fc%lld", (long long)i);
    ng_array w = ng_array_matrix(grad, WIDTH, WIDTH, NG_F32);
    st = ng_add_linear(k->p, name, WIDTH, WIDTH, 0, &index);
    if (st >= 0) st = ng_bind_grad(k->p, index, NG_WEIGHT, &w);
  }
  for (int i = 0; i < k->deep && st >= 0; i++, grad += CHANNELS * 9) {
    char name[32];
    (void)snprintf(name, sizeof name, "depthwise%d", i);
    ng_array w = ng_array_nchw(grad, CHANNELS, 1, 3, 3, NG_F32);
    st = ng_add_conv2d(k->p, name, CHANNELS, CHANNELS, kernel, one, one, one, CHANNELS, image, 0,
                       &index);
    if (st >= 0) st = ng_bind_grad(k->p, index, NG_WEIGHT, &w);
  }
  return st;
}

static ng_status one_step(work *k) {
  const int64_t n = k->wish->layers;
  ng_array row = ng_array_matrix(k->shown, SAMPLES, WIDTH, NG_F32);
  ng_array map = ng_array_nchw(k->shown, SAMPLES, CHANNELS, SIDE, SIDE, NG_F32);
  ng_status st = ng_begin_samples(k->p, SAMPLES, 1.0);
  for (int64_t i = 0; i < n + k->deep && st >= 0; i++) {
    const ng_array *x = i < n ? &row : &map;
    st = ng_observe_input(k->p, (int32_t)i, x, NG_COPY);
    if (st >= 0) st = ng_observe_output_grad(k->p, (int32_t)i, x, NG_COPY);
  }
  return st < 0 ? st : ng_step(k->p, 0.1);
}

static int set_up(work *k) {
  const int64_t weights = k->wish->layers * WIDTH * WIDTH + k->deep * CHANNELS * 9;
  const int64_t shown = SAMPLES * CHANNELS * SIDE * SIDE;
  ng_context_config config;
  ng_context_config_init(&config, sizeof config);
  config.linalg = k->wish->linalg;
  const int rc = cli_context(&config, &k->ctx);
  if (rc != CLI_OK) return rc;
  k->grad = cli_take((size_t)weights, sizeof *k->grad);
  k->shown = cli_take((size_t)shown, sizeof *k->shown);
  bench_fill(k->grad, weights, 0.01F);
  bench_fill(k->shown, shown, 1.0F);
  ng_status st = ng_precond_create_from(k->ctx, k->options, &k->p);
  if (st >= 0) st = add_layers(k);
  if (st >= 0) st = ng_ready(k->p);
  if (st >= 0) st = one_step(k);
  return st < 0 ? failed(k, "the model", st) : CLI_OK;
}

/* ---- files -----------------------------------------------------------------------------------*/

static int make_folder(work *k) {
  const char *tmp = getenv("TMPDIR");
  if (tmp == NULL || strlen(tmp) > 30) tmp = "/tmp";
  (void)snprintf(k->folder, sizeof k->folder, "%s/natgrad-bench-XXXXXX", tmp);
  if (mkdtemp(k->folder) == NULL) {
    k->folder[0] = 0;
    return cli_bad("bench state: no folder can be made in %s; TMPDIR says where", tmp);
  }
  (void)snprintf(k->saved, sizeof k->saved, "%s/saved", k->folder);
  (void)snprintf(k->written, sizeof k->written, "%s/written", k->folder);
  return CLI_OK;
}

static bool whole(int fd, char *bytes, int64_t n, bool out) {
  for (int64_t at = 0; at < n;) {
    const ssize_t got =
        out ? write(fd, bytes + at, (size_t)(n - at)) : read(fd, bytes + at, (size_t)(n - at));
    if (got <= 0) return false;
    at += got;
  }
  return true;
}

static bool write_floor(const work *k, char *bytes) {
  char part[112];
  (void)snprintf(part, sizeof part, "%s.part", k->written);
  const int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  bool fine = whole(fd, bytes, k->bytes, true) && fsync(fd) == 0;
  fine = close(fd) == 0 && fine && rename(part, k->written) == 0;
  const int folder = open(k->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return false;
  fine = fsync(folder) == 0 && fine;
  return close(folder) == 0 && fine;
}

static bool read_floor(const work *k) {
  char *bytes = malloc((size_t)k->bytes);
  const int fd = open(k->saved, O_RDONLY | O_CLOEXEC);
  const bool fine = bytes != NULL && fd >= 0 && whole(fd, bytes, k->bytes, false);
  if (fd >= 0) (void)close(fd);
  free(bytes);
  return fine;
}

/* ---- the run ---------------------------------------------------------------------------------*/

static int one_part(work *k, int part, char *bytes) {
  ng_status st = NG_OK;
  bool fine = true;
  if (part == 0) st = ng_save(k->p, k->saved);
  if (part == 1) st = ng_load(k->p, k->saved);
  if (part == 2) fine = write_floor(k, bytes);
  if (part == 3) fine = read_floor(k);
  if (st < 0) return failed(k, part_name[part], st);
  return fine ? CLI_OK
              : cli_bad("bench state: %s: the file cannot be %s", k->folder,
                        part == 2 ? "written" : "read");
}

static void new_memory(void) {
#ifdef __GLIBC__
  (void)malloc_trim(0);
#endif
}

/* In turns, so that what the machine does meanwhile meets all of them. */
static int measure(work *k) {
  int rc = one_part(k, 0, NULL);
  struct stat info;
  if (rc == CLI_OK && stat(k->saved, &info) != 0)
    rc = cli_bad("bench state: %s is not there", k->saved);
  if (rc != CLI_OK) return rc;
  k->bytes = info.st_size;
  char *bytes = cli_take((size_t)k->bytes, 1);
  memset(bytes, 1, (size_t)k->bytes);
  const int parts = k->wish->no_floors ? 2 : PARTS;
  for (int r = -1; r < k->wish->repeat && rc == CLI_OK; r++) { /* the first one is not counted */
    for (int part = 0; part < parts && rc == CLI_OK; part++) {
      new_memory();
      const clock_t own = clock();
      const double t0 = ng_now_ms();
      rc = one_part(k, part, bytes);
      const double ms = ng_now_ms() - t0;
      const double mine = 1e3 * (double)(clock() - own) / CLOCKS_PER_SEC;
      if (r < 0) continue;
      k->ms[part][r] = ms;
      if (r == 0 || ms < k->least[part]) k->least[part] = ms;
      if (r == 0 || mine < k->own[part]) k->own[part] = mine;
    }
  }
  free(bytes);
  return rc;
}

static int print(work *k) {
  const bench_wish *w = k->wish;
  int rc = CLI_OK;
  if (!w->json) {
    printf(
        "bench state: method %s, %lld linear layers of %d x %d, %lld depthwise convolutions of %d "
        "channels, %.1f MB; "
        "%d times, ms\n%-6s %10s %10s",
        cli_option_text(k->options, "method").text, (long long)w->layers, WIDTH, WIDTH,
        (long long)k->deep, CHANNELS, 1e-6 * (double)k->bytes, w->repeat, "", "median", "least");
    printf(" %10s", "cpu, least");
    if (!w->no_floors)
      printf("   %10s %10s %10s %8s", "bytes only", "least", "cpu, least", "ratio");
    printf("\n");
  }
  for (int part = 0; part < 2 && rc == CLI_OK; part++) {
    const double ms = bench_median(k->ms[part], w->repeat);
    const double floor = w->no_floors ? 0.0 : bench_median(k->ms[part + 2], w->repeat);
    if (w->json) {
      ngio_out line = bench_line("state", part_name[part]);
      ngio_put_integer(&line, "layers", w->layers + k->deep);
      ngio_put_integer(&line, "bytes", k->bytes);
      ngio_put_real(&line, "median_ms", ms);
      ngio_put_real(&line, "floor_ms", floor);
      ngio_put_real(&line, "least_ms", k->least[part]);
      ngio_put_real(&line, "floor_least_ms", k->least[part + 2]);
      ngio_put_real(&line, "cpu_ms", k->own[part]);
      ngio_put_real(&line, "floor_cpu_ms", k->own[part + 2]);
      rc = bench_print(&line);
      continue;
    }
    printf("%-6s %10.2f %10.2f %10.2f", part_name[part], ms, k->least[part], k->own[part]);
    if (!w->no_floors)
      printf("   %10.2f %10.2f %10.2f %8.2f", floor, k->least[part + 2], k->own[part + 2],
             k->least[part] / k->least[part + 2]);
    printf("\n");
  }
  return rc;
}

int bench_state(const bench_wish *w, const cli_args *args) {
  work k = {.wish = w, .deep = w->layers < 800 ? 1 : w->layers * 13 / 10000};
  char message[512] = "";
  int rc = CLI_OK;
  if (ng_options_create(NULL, message, sizeof message, &k.options) < 0 ||
      ng_options_from_env(k.options, message, sizeof message) < 0) {
    rc = cli_bad("%s", message);
  }
  if (rc == CLI_OK) rc = cli_apply(args, k.options);
  for (int part = 0; part < PARTS; part++)
    k.ms[part] = cli_take((size_t)w->repeat, sizeof(double));
  if (rc == CLI_OK) rc = make_folder(&k);
  if (rc == CLI_OK) rc = set_up(&k);
  if (rc == CLI_OK) rc = measure(&k);
  if (rc == CLI_OK) rc = print(&k);
  if (k.folder[0] != 0) {
    (void)unlink(k.saved);
    (void)unlink(k.written);
    (void)rmdir(k.folder);
  }
  for (int part = 0; part < PARTS; part++)
    free(k.ms[part]);
  ng_precond_destroy(&k.p);
  ng_context_destroy(&k.ctx);
  ng_options_destroy(&k.options);
  free(k.grad);
  free(k.shown);
  return rc;
}
