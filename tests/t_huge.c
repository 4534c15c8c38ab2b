/* t_huge.c: one huge, finite gradient, and then ordinary ones: whatever it leaves in moments, in momentum of windows, in what
 * was not sent, or in averages, later steps are taken.  A few may be refused: three, until what would have all of them
 * refused is let go, and as many as a window has rows.
 *
 * All methods, and lines that keep more; SGD and AdamW; weights of f32, bf16 and f16.  The oracle is the same run
 * without the huge one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "draw.h"
#include "fixture.h"
#include "step/step.h"

enum { IN = 5, OUT = 3, COUNT = 7, WEIGHTS = IN * OUT, ALL = WEIGHTS + OUT + COUNT };
enum { BEFORE = 3, AFTER = 40, REFUSED = 3, ROWS = 4, NOWHERE = -1 };

/* The numbers of an update: of SGD, or with beta2 above 0 of AdamW. */
typedef struct how {
  const char *name;
  double lr, momentum, dampening, decay, beta1, beta2;
  int32_t nesterov;
} how;
static const how plain = {"plain", .lr = 0.1}, heavy = {"momentum", .lr = 0.1, .momentum = 0.9};
static const how hows[] = {
    {"plain", .lr = 0.1},
    {"momentum", .lr = 1e-3, .momentum = 0.9, .decay = 1e-4},
    {"long momentum", .lr = 1e-3, .momentum = 0.99},
    {"damped", .lr = 0.1, .momentum = 0.9, .dampening = 0.9},
    {"nesterov", .lr = 0.1, .momentum = 0.9, .nesterov = 1},
    {"adamw", .lr = 1e-3, .decay = 0.01, .beta1 = 0.9, .beta2 = 0.999},
    {"short adamw", .lr = 0.1, .beta1 = 0.9, .beta2 = 0.5},
};
enum { HOWS = sizeof hows / sizeof *hows };

typedef struct model {
  fixture f;
  rng r;
  char line[200];
  ng_dtype type;
  float grad[ALL], weight[ALL], a[IN], g[OUT];
  uint16_t narrow[ALL];
} model;

static void *weight_of(model *m, int i) {
  return m->type == NG_F32 ? (void *)&m->weight[i] : (void *)&m->narrow[i];
}

static void begin(model *m, const char *line, const how *by, ng_dtype type) {
  memset(m, 0, sizeof *m);
  m->r.state = test_seed();
  m->type = type;
  (void)snprintf(m->line, sizeof m->line, "%s update=%s", line, by->beta2 > 0 ? "adamw" : "sgd");
  fixture_ok(&m->f, fixture_open(&m->f, m->line, &(fixture_how){.threads = 1}));
  for (int i = 0; i < ALL; i++)
    m->weight[i] = (float)rng_value(&m->r);
  ng_from_f32(m->narrow, type, m->weight, type == NG_F32 ? 0 : ALL);
  const plane grad[2] = {plane_of(m->grad, OUT, IN, NG_F32),
                         plane_of(m->grad + WEIGHTS, 1, OUT, NG_F32)};
  const plane weight[2] = {plane_of(weight_of(m, 0), OUT, IN, type),
                           plane_of(weight_of(m, WEIGHTS), 1, OUT, type)};
  const plane t[2] = {plane_of(m->grad + WEIGHTS + OUT, 1, COUNT, NG_F32),
                      plane_of(weight_of(m, WEIGHTS + OUT), 1, COUNT, type)};
  fixture_ok(&m->f, fixture_linear(&m->f, "fc", grad, weight));
  fixture_ok(&m->f, fixture_tensor(&m->f, "t", &t[0], &t[1]));
  fixture_ok(&m->f, ng_ready(m->f.p));
}

/* Ordinary numbers, and with a place one of that size. */
static ng_status play(model *m, const how *by, int place, double size) {
  for (int i = 0; i < ALL; i++)
    m->grad[i] = (float)rng_value(&m->r) / 16;
  for (int i = 0; i < IN; i++)
    m->a[i] = (float)rng_value(&m->r);
  for (int i = 0; i < OUT; i++)
    m->g[i] = (float)rng_value(&m->r);
  if (place != NOWHERE) m->grad[place] = (float)size;
  const plane a = plane_of(m->a, 1, IN, NG_F32), g = plane_of(m->g, 1, OUT, NG_F32);
  fixture_ok(&m->f, fixture_show(&m->f, 1, 0, &a, &g));
  if (by->beta2 > 0) {
    ng_adamw h;
    ng_adamw_init(&h, sizeof h);
    h.lr = by->lr;
    h.beta1 = by->beta1;
    h.beta2 = by->beta2;
    h.weight_decay = by->decay;
    return ng_step_adamw(m->f.p, &h, 1);
  }
  ng_sgd h = fixture_sgd(by->lr, by->momentum);
  h.dampening = by->dampening;
  h.weight_decay = by->decay;
  h.nesterov = by->nesterov;
  return ng_step_sgd(m->f.p, &h, 1);
}

static const char *said(const model *m) { return ng_last_error(m->f.ctx); }

static void expect(const model *m, ng_status st, const char *text) {
  if (st != NG_SKIPPED || strstr(said(m), text) == NULL)
    fail_msg("%s: %s (%s), expected '%s'", m->line, ng_status_name(st), said(m), text);
}

/* ---- all of them -----------------------------------------------------------------------------*/

typedef struct outcome {
  int refused; /* of AFTER steps */
  char why[300];
} outcome;

static outcome run(const char *line, const how *by, ng_dtype type, int place, double size) {
  model m;
  outcome o = {.why = ""};
  begin(&m, line, by, type);
  for (int i = 0; i <= BEFORE + AFTER; i++) {
    const ng_status st = play(&m, by, i == BEFORE ? place : NOWHERE, size);
    if (st < NG_OK) fail_msg("%s, %s: %s", m.line, by->name, said(&m));
    if (st != NG_SKIPPED || i <= BEFORE) continue;
    (void)snprintf(o.why, sizeof o.why, "%s", said(&m));
    o.refused++;
  }
  fixture_close(&m.f);
  return o;
}

static void of_line(const char *line) {
  static const double size[] = {1e5, 1e7, 1e10, 1e15, 1e19, 1e25, 1e38};
  static const ng_dtype type[] = {NG_F32, NG_BF16, NG_F16};
  for (int k = 0; k < HOWS * 3; k++) {
    const how *by = &hows[k / 3];
    const outcome calm = run(line, by, type[k % 3], NOWHERE, 0);
    for (size_t i = 0; i < 2 * sizeof size / sizeof *size; i++) {
      const outcome o = run(line, by, type[k % 3], i % 2 ? 3 : ALL - 2, size[i / 2]);
      const int most = calm.refused + REFUSED + (strstr(line, "window") != NULL ? ROWS : 0);
      if (o.refused <= most) continue;
      fail_msg("%s, %s, %s weights: after a gradient of %g %d of %d steps were refused (%d without "
               "it): %s",
               line, by->name, ng_dtype_name(type[k % 3]), size[i / 2], o.refused, AFTER,
               calm.refused, o.why);
    }
  }
}

static void after_all_methods(void **state) {
  (void)state;
  for (int32_t i = 0; i < ng_method_count(); i++) {
    ng_method_info info = {.struct_size = sizeof info};
    char line[128];
    assert_int_equal(ng_method_at(i, &info), NG_OK);
    const bool rows = strcmp(info.family, "window") == 0 && strncmp(info.name, "topk", 4) != 0;
    (void)snprintf(line, sizeof line, "method=%s%s", info.name, rows ? " window=4" : "");
    of_line(line);
  }
}

static void after_lines_that_keep(void **state) {
  (void)state;
  static const char *const line[] = {
      "method=topk-sgd window_momentum=0.9",
      "method=topk-sgd window_momentum=0.9 window_feedback_lr=0",
      "method=topk-sgd window_momentum=0.9 window_feedback_lr=0 clip=kl",
      "method=topk-sgd window_momentum=0.9 window_momentum_form=average",
      "method=topk-sgd window_store=dense window_momentum=0.9",
      "method=mfac window=4 window_momentum=0.9",
      "method=mfac window=4 window_momentum=0.9 window_momentum_form=heavy-ball",
      "method=mfac window=4 window_momentum=0.9 window_momentum_form=gradient",
      "method=ggt window=4 window_momentum=0.9",
      "method=ggt window=4 window_momentum=0.9 damping=1e-10",
      "method=efcp window=4 window_density=0.3 window_rest=added",
      "method=efcp window=4 window_density=0.1 window_rest=added window_dtype=bf16",
      "method=efcp window=4 window_density=0.3 window_fill=error",
      "method=efcp window=4 window_density=0.3 clip=kl",
      "method=lowrank-mfac window=4 window_rest=added",
      "method=natgrad clip=none",
  };
  for (size_t i = 0; i < sizeof line / sizeof *line; i++)
    of_line(line[i]);
}

/* ---- what is refused, what is let go ---------------------------------------------------------*/

/* 2e6 moves an f16 weight by 2e5 over all steps to come, 2e4 in this one. */
static void as_it_comes(void **state) {
  (void)state;
  model m;
  const how slow = {"", .lr = 1e-2, .momentum = 0.9};
  begin(&m, "method=adasgd", &slow, NG_F16);
  assert_int_equal(play(&m, &slow, NOWHERE, 0), NG_OK);
  expect(&m, play(&m, &slow, ALL - 2, 2e6),
         "'t': the momentum that the step leaves would take its");
  assert_int_equal(play(&m, &slow, NOWHERE, 0), NG_OK);
  assert_int_equal(play(&m, &slow, ALL - 2, 1e5), NG_OK);
  fixture_close(&m.f);
}

/* Momentum at the end of f32 stays for two refused steps, harmless while lr is small, and goes with the third in a row;
 * only what would have been in the way, and the count of them is in a state. */
static void after_the_third(void **state) {
  (void)state;
  char path[FIXTURE_FILE];
  const how gentle = {"", .lr = 1e-3, .momentum = 0.9};
  fixture_file(path, "t_huge");
  for (int saved = 0; saved < 2; saved++) {
    model m;
    begin(&m, "method=eva", &heavy, NG_F32);
    assert_int_equal(play(&m, &heavy, NOWHERE, 0), NG_OK);
    ng_slot *s = &m.f.p->entry[0]->slot[NG_BIAS];
    s->m[1] = 3e38f;
    ng_bounds_loaded(m.f.p);
    for (int i = 0; i < 2; i++)
      expect(&m, play(&m, &(how){"", .lr = 10, .momentum = 0.9}, NOWHERE, 0), "'fc.bias'");
    assert_int_equal(play(&m, &gentle, NOWHERE, 0), NG_OK);
    s->m[1] = 3e38f;
    ng_bounds_loaded(m.f.p);
    const float other = s->m[0];
    assert_true(other != 0.0f);
    for (int i = 0; i < 3; i++) {
      const bool third = i == 2;
      if (saved && third) { /* by a model that saw none of it */
        float was[ALL];
        memcpy(was, m.weight, sizeof was);
        fixture_ok(&m.f, ng_save(m.f.p, path));
        fixture_close(&m.f);
        begin(&m, "method=eva", &heavy, NG_F32);
        memcpy(m.weight, was, sizeof was);
        fixture_ok(&m.f, ng_load(m.f.p, path));
        s = &m.f.p->entry[0]->slot[NG_BIAS];
      }
      const ng_status st = play(&m, &(how){"", .lr = 10, .momentum = 0.9}, NOWHERE, 0);
      expect(&m, st, third ? "momentum of 'fc.bias' would have" : "nothing was written");
      if (s->m[1] != (third ? 0.0f : 3e38f) || s->m[0] != other)
        fail_msg("refused step %d: %g, %g", i, (double)s->m[0], (double)s->m[1]);
    }
    assert_int_equal(play(&m, &heavy, NOWHERE, 0), NG_OK);
    assert_int_equal(m.f.p->beyond, 0);
    fixture_close(&m.f);
  }
  assert_int_equal(unlink(path), 0);
}

/* What a window keeps beside its rows goes, by name, where it dwarfs what comes; where the step itself is to blame, it
 * stays. */
static void of_a_window(void **state) {
  (void)state;
  static const struct {
    const char *line, *says;
    double size, lr; /* of the step with the huge gradient */
  } kept[] = {
      {"method=ggt window=4 window_momentum=0.9", "the momentum of window would", 6e4, 0.1},
      {"method=topk-sgd window_momentum=0.9 window_feedback_lr=0 clip=kl",
       "the momentum of window would", 1e10, 0.1},
      {"method=efcp window=4 window_density=0.1 window_dtype=bf16 window_rest=added",
       "what window had not sent", 1e11, 1e-12},
  };
  for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
    model m;
    ng_status st = NG_OK;
    begin(&m, kept[i].line, &plain, NG_F16);
    for (int k = 0; k < BEFORE; k++)
      assert_int_equal(play(&m, &plain, NOWHERE, 0), NG_OK);
    (void)play(&m, &(how){"", .lr = kept[i].lr}, 3, kept[i].size);
    for (int k = 0; k < AFTER && m.f.p->beyond < 3; k++)
      st = play(&m, &plain, NOWHERE, 0);
    expect(&m, st, kept[i].says);
    assert_int_equal(play(&m, &plain, NOWHERE, 0), NG_OK);
    fixture_close(&m.f);
  }
  model m;
  begin(&m, "method=mfac window=1 window_momentum=0.9 window_momentum_form=gradient", &plain,
        NG_F16);
  for (int k = 0; k < BEFORE; k++)
    assert_int_equal(play(&m, &plain, NOWHERE, 0), NG_OK);
  for (int k = 0; k < 4; k++) {
    expect(&m, play(&m, &(how){"", .lr = 1e8}, 3, 100), "would leave the range");
    assert_null(strstr(said(&m), "is 0 now"));
  }
  fixture_close(&m.f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(after_all_methods), cmocka_unit_test(after_lines_that_keep),
      cmocka_unit_test(as_it_comes),       cmocka_unit_test(after_the_third),
      cmocka_unit_test(of_a_window),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
