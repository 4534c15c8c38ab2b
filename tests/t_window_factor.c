/* t_window_factor.c: the factor that M-FAC moves from step to step is a part of the state: a run that goes on from a
 * file ends with its bits, in the state and in the gradients; a step that is refused leaves it as it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "draw.h"
#include "fixture.h"
#include "safetensors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { D = 40, STEPS = 30 };

typedef struct life {
  float P[STEPS][D];
} life;

/* Steps [from, to); gone on with from `load`, left in `save`.  `bad`: before each a gradient that is not finite. */
static void live(int from, int to, const char *load, const char *save, bool bad, life *l) {
  float g[D];
  fixture f;
  const plane v = plane_of(g, 1, D, NG_F32);
  fixture_ok(&f,
             fixture_open(&f, "method=mfac window=7 damping=1e-6 schedule=damping*0.1@17", NULL));
  fixture_ok(&f, fixture_tensor(&f, "w", &v, NULL));
  fixture_ok(&f, ng_ready(f.p));
  if (load != NULL) fixture_ok(&f, ng_load(f.p, load));
  for (int t = from; t < to; t++) {
    rng r = {(uint64_t)t + test_seed()};
    for (int i = 0; i < D; i++)
      g[i] = (float)(cos(i) + 0.3 * rng_value(&r));
    const float first = g[D - 1];
    g[D - 1] = NAN;
    if (bad) assert_int_equal(ng_step(f.p, 1.0), NG_SKIPPED);
    g[D - 1] = first;
    fixture_ok(&f, ng_step(f.p, 1.0));
    memcpy(l->P[t], g, sizeof g);
  }
  fixture_ok(&f, ng_save(f.p, save));
  fixture_close(&f);
}

static void same_factor(const char *a, const char *b) {
  char message[512];
  ngio_tensors *x, *y;
  int found = 0;
  assert_int_equal(ngio_tensors_read(a, NULL, &x, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_tensors_read(b, NULL, &y, message, sizeof message), NGIO_OK);
  for (int32_t i = 0; i < (int32_t)ngio_tensors_count(x); i++) {
    const ngio_tensor *p = ngio_tensors_at(x, i), *q = ngio_tensors_find(y, p->name);
    assert_non_null(q);
    assert_memory_equal(p->data, q->data, (size_t)p->bytes);
    found += strstr(p->name, "factor") != NULL;
  }
  assert_int_equal(found, 1);
  ngio_tensors_close(&x);
  ngio_tensors_close(&y);
}

static void goes_on(void **state) {
  static const int at[] = {1, 6, 7, 8, 16, 17, 18, 25};
  static life whole, parts, refused;
  char file[3][64];
  (void)state;
  for (int i = 0; i < 3; i++)
    (void)snprintf(file[i], sizeof file[i], "window-factor-%d-%d.safetensors", i, (int)getpid());
  live(0, STEPS, NULL, file[0], false, &whole);
  live(0, STEPS, NULL, file[1], true, &refused);
  assert_memory_equal(&whole, &refused, sizeof whole);
  same_factor(file[0], file[1]);
  for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
    live(0, at[i], NULL, file[1], false, &parts);
    live(at[i], STEPS, file[1], file[2], false, &parts);
    assert_memory_equal(&whole, &parts, sizeof whole);
    same_factor(file[0], file[2]);
  }
  for (int i = 0; i < 3; i++)
    (void)unlink(file[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(goes_on)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
