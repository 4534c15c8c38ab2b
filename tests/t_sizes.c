/* t_sizes.c: descriptions of any size, at random: refused by name, or planned; never a number that wrapped.
 *
 * What is planned is not taken: the allocator of these contexts gives nothing above 16 MiB.  The oracle is in
 * 128 bits: whoever is accepted has a weight of at most 2^40 elements, as counted there, and rows below 2^31.
 * Run under the undefined sanitizer (make asan), where any overflow on the way ends the test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/core.h"
#include "draw.h"
#include "fixture.h"
#include "model/model.h"

__extension__ typedef __int128 wide;

static void *little(void *user, size_t bytes) {
  return bytes > (size_t)16 << 20 ? NULL : ng_plain_alloc(user, bytes);
}

/* Ordinary, at an edge, or anywhere. */
static int64_t any(rng *r) {
  static const int64_t edge[] = {0,
                                 1,
                                 65535,
                                 65536,
                                 INT32_MAX,
                                 (int64_t)INT32_MAX + 1,
                                 INT64_C(1) << 34,
                                 INT64_C(1) << 60,
                                 INT64_MAX,
                                 -1,
                                 INT64_MIN,
                                 INT32_MIN};
  const int64_t way = rng_below(r, 8);
  if (way == 0) return edge[rng_below(r, (int64_t)(sizeof edge / sizeof *edge))];
  if (way == 1) return (int64_t)(rng_next(r) >> rng_below(r, 64));
  if (way == 2) return INT64_C(1) << rng_below(r, 32);
  return rng_between(r, 1, 8);
}

static void pair_of(rng *r, int64_t to[2]) {
  to[0] = any(r);
  to[1] = any(r);
}

static void describe(rng *r, ng_layer *l, const char *name) {
  ng_layer_init(l, rng_below(r, 3) == 0 ? NG_LINEAR : NG_CONV2D, sizeof *l);
  l->name = name;
  l->in = any(r);
  l->out = any(r);
  l->bias = rng_below(r, 2) != 0;
  if (l->kind == NG_LINEAR) {
    l->positions = any(r);
    return;
  }
  pair_of(r, l->kernel);
  pair_of(r, l->stride);
  pair_of(r, l->padding);
  pair_of(r, l->dilation);
  pair_of(r, l->image);
  if (rng_below(r, 2)) l->image[0] = l->image[1] = 0;
  l->groups = rng_below(r, 2) ? 1 : any(r);
}

static void sound(const fixture *f, int32_t i) {
  const ng_entry *e = f->p->entry[i];
  const bool conv = e->d.kind == NG_CONV2D && !e->tensor;
  const wide cols = e->tensor ? e->slot[0].cols
                    : conv    ? (wide)(e->d.in / e->d.groups) * e->d.kernel[0] * e->d.kernel[1]
                              : (wide)e->d.in;
  const wide rows = e->tensor ? 1 : e->d.out;
  assert_true(cols == e->slot[0].cols && rows == e->slot[0].rows);
  assert_true(cols > 0 && rows > 0 && cols * rows <= (wide)1 << 40);
  for (int k = 0; k < 2 && conv && e->d.image[k] > 0; k++) {
    const wide reach = (wide)e->d.dilation[k] * (e->d.kernel[k] - 1) + 1;
    const wide out = (e->d.image[k] + 2 * (wide)e->d.padding[k] - reach) / e->d.stride[k] + 1;
    assert_true(out == (k == 0 ? e->oh : e->ow));
  }
}

static void attacked(void **state) {
  (void)state;
  static const char *const options[] = {"method=natgrad", "method=eva update=sgd",
                                        "method=natgrad max_factor=64 update=adamw",
                                        "solver=eigen damping_split=joint factor_dtype=f16"};
  rng r = {test_seed()};
  int64_t added = 0, ready = 0, refused = 0;
  for (int64_t t = 0; t < test_times(3000); t++) {
    fixture f;
    ng_context_config c;
    ng_context_config_init(&c, sizeof c);
    c.alloc = little;
    c.free = ng_plain_free;
    const fixture_how how = {.linalg = "ref", .threads = 1, .config = &c};
    fixture_ok(&f, fixture_open(&f, options[rng_below(&r, 4)], &how));
    for (int k = 0; k < 3; k++) {
      char name[16];
      ng_layer l;
      (void)snprintf(name, sizeof name, "l%d", k);
      describe(&r, &l, name);
      const ng_status st = rng_below(&r, 4) == 0 ? ng_add_tensor(f.p, name, any(&r), NULL)
                                                 : ng_add_layer(f.p, &l, NULL);
      assert_true(st == NG_OK || st == NG_ERR_ARG || st == NG_ERR_NOMEM);
      if (st != NG_OK) assert_non_null(strstr(ng_last_error(f.ctx), name));
      added += st == NG_OK;
      refused += st != NG_OK;
    }
    for (int32_t i = 0; i < f.p->entries; i++)
      sound(&f, i);
    if (f.p->entries > 0) {
      const ng_status st = ng_ready(f.p);
      assert_true(st == NG_OK || st == NG_ERR_ARG || st == NG_ERR_NOMEM);
      ready += st == NG_OK;
    }
    fixture_close(&f);
  }
  if (added < 100 || ready < 20 || refused < 100) {
    fail_msg("%d added, %d ready, %d refused", (int)added, (int)ready, (int)refused);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(attacked)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
