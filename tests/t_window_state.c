/* t_window_state.c: a state of a window that is none of today's: of M-FAC before its factor was kept, and with one
 * array less of each store; refused by the name of what is missing, and nothing has changed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "json_edit.h"
#include "draw.h"
#include "fixture.h"
#include "safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { ROWS = 6, COLS = 5, D = ROWS * COLS, SAVED = 4, MORE = 3, TENSORS = 16 };

static void open_window(fixture *f, const char *options, float g[D]) {
  const plane v[2] = {plane_of(g, ROWS, COLS, NG_F32), {0}};
  fixture_ok(f, fixture_open(f, options, NULL));
  fixture_ok(f, fixture_linear(f, "fc", v, NULL));
  fixture_ok(f, ng_ready(f->p));
}

static void step(fixture *f, int t, float g[D]) {
  rng r = {(uint64_t)t + test_seed()};
  for (int i = 0; i < D; i++)
    g[i] = (float)rng_value(&r);
  fixture_ok(f, ng_step(f->p, 1.0));
}

/* The file `from` without a tensor and, of the block's numbers, without `number` (NULL: with all). */
static void leave_out(const char *from, const char *to, const char *tensor, const char *number) {
  char message[512], sum[16];
  ngio_tensors *x;
  ngio_tensor t[TENSORS];
  int32_t n = 0;
  assert_int_equal(ngio_tensors_read(from, NULL, &x, message, sizeof message), NGIO_OK);
  assert_true(ngio_tensors_count(x) <= TENSORS);
  for (int32_t i = 0; i < ngio_tensors_count(x); i++)
    if (strcmp(ngio_tensors_at(x, i)->name, tensor) != 0) t[n++] = *ngio_tensors_at(x, i);
  assert_int_equal(n, ngio_tensors_count(x) - 1);
  char path[128], *text = strdup(ngio_tensors_text(x, "natgrad"));
  (void)snprintf(path, sizeof path, "tensors|%s", tensor);
  json_change(&text, path, NULL);
  (void)snprintf(path, sizeof path, "blocks|window|%s", number != NULL ? number : "");
  if (number != NULL) json_change(&text, path, NULL);
  (void)snprintf(sum, sizeof sum, "%08lx", crc32(0, (const Bytef *)text, (uInt)strlen(text)));
  const ngio_text meta[2] = {{"natgrad", text}, {"natgrad.crc32", sum}};
  assert_int_equal(ngio_tensors_write(to, t, n, meta, 2, message, sizeof message), NGIO_OK);
  free(text);
  ngio_tensors_close(&x);
}

static const struct {
  const char *options, *tensor, *number;
} old[] = {
    /* as M-FAC saved itself before it kept a factor: neither the array nor what it was made with */
    {"method=mfac window=3 damping=0.1", "window/factor", "factored"},
    {"method=efcp window=3 damping=0.1 window_density=0.2", "window/factor", "factored"},
    {"method=lowrank-mfac window=3 damping=0.1 window_rank=2", "window/factor", "factored"},
    {"method=mfac window=3 damping=0.1", "window/gram", NULL},
    {"method=mfac window=3 damping=0.1", "window/rows", NULL},
    {"method=efcp window=3 damping=0.1 window_density=0.2", "window/error", NULL},
    {"method=efcp window=3 damping=0.1 window_density=0.2", "window/begins", NULL},
    {"method=lowrank-mfac window=3 damping=0.1 window_rank=2", "window/error", NULL},
    {"method=ggt window=3 damping=0.1 window_momentum=0.5", "window/momentum", NULL},
    {"method=ggt window=3 damping=0.1 window_momentum=0.5", "window/along", NULL}};

/* The run that met such a file goes on as the one that did not. */
static void refused(void **state) {
  char file[2][FIXTURE_FILE];
  (void)state;
  fixture_file(file[0], "window-state");
  fixture_file(file[1], "window-state-old");
  for (size_t k = 0; k < sizeof old / sizeof old[0]; k++) {
    fixture f[2];
    float g[2][D];
    for (int i = 0; i < 2; i++) {
      open_window(&f[i], old[k].options, g[i]);
      for (int t = 0; t < SAVED; t++)
        step(&f[i], t, g[i]);
    }
    fixture_ok(&f[0], ng_save(f[0].p, file[0]));
    leave_out(file[0], file[1], old[k].tensor, old[k].number);
    step(&f[0], SAVED, g[0]);
    step(&f[1], SAVED, g[1]);
    assert_int_equal(ng_load(f[0].p, file[1]), NG_ERR_FILE);
    /* numbers of blocks are looked at first */
    const char *says = old[k].number != NULL ? old[k].number : old[k].tensor;
    if (strstr(ng_last_error(f[0].ctx), says) == NULL)
      fail_msg("%s without %s: '%s'", old[k].options, old[k].tensor, ng_last_error(f[0].ctx));
    for (int t = SAVED + 1; t < SAVED + MORE; t++) {
      step(&f[0], t, g[0]);
      step(&f[1], t, g[1]);
      assert_memory_equal(g[0], g[1], sizeof g[0]);
    }
    fixture_ok(&f[0], ng_load(f[0].p, file[0])); /* the whole one is taken */
    fixture_close(&f[0]);
    fixture_close(&f[1]);
  }
  (void)unlink(file[0]);
  (void)unlink(file[1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(refused)};
  return cmocka_run_group_tests_name("states of windows", tests, NULL, NULL);
}
