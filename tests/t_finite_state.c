/* t_finite_state.c: what a run keeps stays finite.  One number of any size in a gradient or an observation,
 * between ordinary steps, in all methods: no array of the state is ever Inf or NaN, and the ordinary steps after it
 * are taken.
 *
 * The oracle is the promise itself, asked of every array that ng_state_read gives. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "draw.h"
#include "fixture.h"
#include "family/family.h"

enum { IN = 5, OUT = 3, COUNT = 7, WEIGHTS = IN * OUT, ALL = WEIGHTS + OUT + COUNT, AFTER = 8 };
static const double wild[] = {1e10, 1e20, 1e25, 1e37, 3e38};

typedef struct model {
  fixture f;
  const char *line;
  double size; /* of the wild number */
  float grad[ALL], a[IN], g[OUT];
} model;

static void begin(model *m, const char *line, double size) {
  memset(m, 0, sizeof *m);
  m->line = line;
  m->size = size;
  fixture_ok(&m->f, fixture_open(&m->f, line, &(fixture_how){.threads = 1}));
  const plane grad[2] = {plane_of(m->grad, OUT, IN, NG_F32),
                         plane_of(m->grad + WEIGHTS, 1, OUT, NG_F32)};
  const plane t = plane_of(m->grad + WEIGHTS + OUT, 1, COUNT, NG_F32);
  fixture_ok(&m->f, fixture_linear(&m->f, "fc", grad, NULL));
  fixture_ok(&m->f, fixture_tensor(&m->f, "t", &t, NULL));
  fixture_ok(&m->f, ng_ready(m->f.p));
}

/* Every array finite; where it was, in text. */
static void look(model *m, const char *when) {
  for (int32_t i = 0; i < ng_state_count(m->f.p); i++) {
    ng_field_info info = {.struct_size = sizeof info};
    fixture_ok(&m->f, ng_state_at(m->f.p, i, &info));
    if (info.dtype == NG_U8 || info.dtype == NG_I32) continue;
    void *bytes = malloc((size_t)info.bytes + 1);
    fixture_ok(&m->f, ng_state_read(m->f.p, i, bytes, info.bytes));
    const bool fine = ng_all_finite(bytes, info.dtype, info.bytes / ng_dtype_size(info.dtype));
    free(bytes);
    if (!fine) fail_msg("%s, %g, %s: '%s' is not finite", m->line, m->size, when, info.name);
  }
}

/* Numbers about 1, and among them one of m->size, where `place` says: no gradient, or an observation. */
static ng_status play(model *m, rng *r, int64_t place, double lr) {
  for (int i = 0; i < ALL; i++)
    m->grad[i] = (float)rng_value(r);
  for (int i = 0; i < IN; i++)
    m->a[i] = (float)rng_value(r);
  for (int i = 0; i < OUT; i++)
    m->g[i] = (float)rng_value(r);
  if (place >= 0 && place < ALL) m->grad[place] = (float)m->size;
  if (place >= ALL && place < ALL + IN) m->a[place - ALL] = (float)m->size;
  if (place >= ALL + IN) m->g[place - ALL - IN] = (float)m->size;
  const plane a = plane_of(m->a, 1, IN, NG_F32), g = plane_of(m->g, 1, OUT, NG_F32);
  const ng_status st = fixture_show(&m->f, 1, 0, &a, &g);
  return st < NG_OK ? st : ng_step(m->f.p, lr);
}

static void taken(const model *m, ng_status st, int step) {
  if (st == NG_OK || st == NG_RESCUED) return;
  fail_msg("%s, %g, ordinary step %d: %s (%s)", m->line, m->size, step, ng_status_name(st),
           ng_last_error(m->f.ctx));
}

static void one_wild_number(const char *line) {
  static const int64_t place[] = {3, WEIGHTS + 1, ALL - 2, ALL + 1, ALL + IN + 1};
  rng r = {test_seed()};
  for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
    for (size_t k = 0; k < sizeof place / sizeof *place; k++) {
      model m;
      begin(&m, line, wild[i]);
      for (int t = 0; t < 2; t++)
        taken(&m, play(&m, &r, -1, 0.1), t - 2);
      const ng_status st = play(&m, &r, place[k], 0.1);
      if (st < NG_OK) fail_msg("%s, %g: %s", line, wild[i], ng_last_error(m.f.ctx));
      look(&m, ng_status_name(st));
      for (int t = 0; t < AFTER; t++) {
        taken(&m, play(&m, &r, -1, 0.1), t);
        look(&m, "later");
      }
      fixture_close(&m.f);
    }
  }
}

static void of_all_methods(void **state) {
  (void)state;
  for (int32_t i = 0; i < ng_method_count(); i++) {
    ng_method_info info = {.struct_size = sizeof info};
    char line[128];
    assert_int_equal(ng_method_at(i, &info), NG_OK);
    (void)snprintf(line, sizeof line, "method=%s", info.name);
    one_wild_number(line);
  }
}

/* Stores, momenta and dtypes that no method has by itself. */
static void of_other_lines(void **state) {
  (void)state;
  static const char *const line[] = {
      "method=topk-adam window_density=1",
      "method=topk-adagrad window_density=1",
      "method=topk-adagrad window_density=0.3 window_dtype=bf16",
      "method=natgrad factor_dtype=f16 inverse_dtype=f16",
      "method=natgrad factor_dtype=bf16 damping_leak=1 damping_split=full",
      "method=mfac window=3 window_dtype=bf16",
      "method=mfac window=3 window_momentum=0.9 window_momentum_form=heavy-ball",
      "method=efcp window=3 window_density=0.2 window_dtype=bf16 window_momentum=0.5",
      "method=lowrank-mfac window=3 window_rank=2",
  };
  for (size_t i = 0; i < sizeof line / sizeof *line; i++)
    one_wild_number(line[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(of_all_methods),
      cmocka_unit_test(of_other_lines),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
