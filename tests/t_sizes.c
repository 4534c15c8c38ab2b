/* t_sizes.c: layers of any size are refused by name or planned; the plan of a ResNet-50.
 *
 * Random sizes: the oracle computes in 128 bits.  An accepted layer has a weight of at most 2^40 elements and rows
 * below 2^31; the allocator refuses more than 16 MiB.  `make asan` detects integer overflows.
 *
 * Limits: each row runs ng_plan_ranks and ng_ready with ROOM bytes of memory.  A list that grows with the size
 * would exceed ROOM and return NG_ERR_NOMEM instead of NG_OK or a named refusal.  At a limit whose own lists
 * exceed ROOM, NG_ERR_NOMEM shows that the size was accepted.
 *
 * ResNet-50: bytes of the statistics sent by two ranks, relative to 615 MB of whole f32 matrices, KAISA's default
 * (SC'21, arXiv 2107.01739).  t_plan and t_last compare plans with messages. */
#include "unit_test.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/core.h"
#include "draw.h"
#include "fixture.h"
#include "model/model.h"
#include "resnet50.h"

/* ---- random sizes ----------------------------------------------------------------------------*/

__extension__ typedef __int128 wide;

/* Ordinary sizes, limits, or any number. */
static int64_t draw_size(rng *r) {
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

static void draw_pair(rng *r, int64_t to[2]) {
  to[0] = draw_size(r);
  to[1] = draw_size(r);
}

static void draw_layer(rng *r, ng_layer *l, const char *name) {
  ng_layer_init(l, rng_below(r, 3) == 0 ? NG_LINEAR : NG_CONV2D, sizeof *l);
  l->name = name;
  l->in = draw_size(r);
  l->out = draw_size(r);
  l->bias = rng_below(r, 2) != 0;
  if (l->kind == NG_LINEAR) {
    l->positions = draw_size(r);
    return;
  }
  draw_pair(r, l->kernel);
  draw_pair(r, l->stride);
  draw_pair(r, l->padding);
  draw_pair(r, l->dilation);
  draw_pair(r, l->image);
  if (rng_below(r, 2)) l->image[0] = l->image[1] = 0;
  l->groups = rng_below(r, 2) ? 1 : draw_size(r);
}

static void expect_valid_entry(const fixture *f, int32_t i) {
  const ng_entry *e = f->p->entry[i];
  const bool conv = e->d.kind == NG_CONV2D && !e->is_tensor;
  const wide cols = e->is_tensor ? e->slot[0].cols
                    : conv       ? (wide)(e->d.in / e->d.groups) * e->d.kernel[0] * e->d.kernel[1]
                                 : (wide)e->d.in;
  const wide rows = e->is_tensor ? 1 : e->d.out;
  assert_true(cols == e->slot[0].cols && rows == e->slot[0].rows);
  assert_true(cols > 0 && rows > 0 && cols * rows <= (wide)1 << 40);
  for (int k = 0; k < 2 && conv && e->d.image[k] > 0; k++) {
    const wide reach = (wide)e->d.dilation[k] * (e->d.kernel[k] - 1) + 1;
    const wide out = (e->d.image[k] + 2 * (wide)e->d.padding[k] - reach) / e->d.stride[k] + 1;
    assert_true(out == e->out_size[k]);
  }
}

static void random_sizes_fit_or_are_refused(void **state) {
  static const char *const options[] = {"method=natgrad", "method=eva update=sgd",
                                        "method=natgrad max_factor=64 update=adamw",
                                        "solver=eigen damping_split=joint factor_dtype=f16"};
  rng r = {test_seed()};
  int64_t added = 0, ready = 0, refused = 0;
  for (int64_t t = 0; t < test_repetitions(3000); t++) {
    fixture f;
    allocator little = {.largest = 16 << 20};
    const ng_context_config c = allocator_config(&little);
    const fixture_how how = {.linalg = "ref", .threads = 1, .config = &c};
    fixture_ok(&f, fixture_open(&f, options[rng_below(&r, 4)], &how));
    for (int k = 0; k < 3; k++) {
      char name[16];
      ng_layer l;
      (void)snprintf(name, sizeof name, "l%d", k);
      draw_layer(&r, &l, name);
      const ng_status st = rng_below(&r, 4) == 0 ? ng_add_tensor(f.p, name, draw_size(&r), NULL)
                                                 : ng_add_layer(f.p, &l, NULL);
      assert_true(st == NG_OK || st == NG_ERR_ARG || st == NG_ERR_NOMEM);
      if (st != NG_OK) assert_non_null(strstr(ng_last_error(f.ctx), name));
      added += st == NG_OK;
      refused += st != NG_OK;
    }
    for (int32_t i = 0; i < f.p->entries; i++)
      expect_valid_entry(&f, i);
    if (f.p->entries > 0) {
      const ng_status st = ng_ready(f.p);
      assert_true(st == NG_OK || st == NG_ERR_ARG || st == NG_ERR_NOMEM);
      ready += st == NG_OK;
    }
    fixture_close(&f);
  }
  if (added < 100 || ready < 20 || refused < 100) {
    fail_msg("only %d layers were added, %d ready, %d refused", (int)added, (int)ready,
             (int)refused);
  }
}

/* ---- limits ----------------------------------------------------------------------------------*/

enum { ROOM = 40 << 20 };
#define TWO(n) (INT64_C(1) << (n))

typedef struct limit {
  const char *options;
  ng_kind kind;
  int64_t in, out, groups, kernel;
  int32_t bias, ranks;
  ng_status want;      /* expected status of ng_plan_ranks or ng_add_layer */
  const char *message; /* a part of the message */
} limit;

static const limit limits[] = {
    /* Diagonal blocks of factors: at most 2^22 per side. */
    {"method=natgrad max_factor=7", NG_LINEAR, TWO(29), 8, 1, 1, 0, 4, NG_ERR_ARG,
     "76695845 diagonal blocks of A, at most 4194304"},
    {"method=natgrad max_factor=7", NG_LINEAR, 8, TWO(29), 1, 1, 1, 4, NG_ERR_ARG, "blocks of G"},
    {"method=natgrad max_factor=7", NG_EMBEDDING, 8, TWO(29), 1, 1, 0, 4, NG_ERR_ARG,
     "blocks of G"},
    {"method=spngd max_factor=7", NG_LINEAR, TWO(29), 8, 1, 1, 1, 4, NG_ERR_ARG, "blocks of A"},
    {"method=natgrad max_factor=0 factor_blocks=1000000000", NG_LINEAR, TWO(29), 8, 1, 1, 0, 4,
     NG_ERR_ARG, "536870912 diagonal blocks of A"},
    {"method=natgrad max_factor=1024 output_factor=diagonal", NG_LINEAR, 8, TWO(30), 1, 1, 0, 4,
     NG_ERR_ARG, "leave output_factor at full"},
    {"method=natgrad max_factor=1", NG_LINEAR, TWO(22), 8, 1, 1, 0, 4, NG_ERR_NOMEM, "no memory"},
    {"method=natgrad max_factor=1", NG_LINEAR, TWO(22) + 1, 8, 1, 1, 0, 4, NG_ERR_ARG,
     "4194305 diagonal blocks of A"},
    {"method=natgrad max_factor=30000", NG_LINEAR, TWO(31) - 1, 8, 1, 1, 0, 4, NG_OK, NULL},
    {"method=natgrad max_factor=16384", NG_EMBEDDING, TWO(31) - 1, 512, 1, 1, 0, 4, NG_OK, NULL},
    /* Columns of a permuted convolution. */
    {"method=natgrad spatial=full max_factor=4096", NG_CONV2D, TWO(20), 8, 1, 2, 0, 4, NG_OK, NULL},
    {"method=natgrad spatial=full max_factor=4096", NG_CONV2D, TWO(20), 8, 1, 2, 1, 4, NG_ERR_ARG,
     "4194305 columns, at most 4194304"},
    {"method=natgrad max_factor=4096", NG_CONV2D, TWO(26), 8, 1, 1, 1, 4, NG_OK, NULL},
    /* Groups. */
    {"method=eva", NG_CONV2D, TWO(22), TWO(22), TWO(22), 3, 0, 4, NG_ERR_NOMEM, "no memory"},
    {"method=eva", NG_CONV2D, TWO(22) + 1, TWO(22) + 1, TWO(22) + 1, 3, 0, 4, NG_ERR_ARG,
     "groups is 4194305, expected 1 to 4194304"},
    {"method=mfac", NG_CONV2D, TWO(30), TWO(30), TWO(30), 3, 0, 4, NG_ERR_ARG, "groups is"},
    /* Eva: vectors are counted memory, except two vectors of Eva-f. */
    {"method=eva", NG_LINEAR, TWO(30), 8, 1, 1, 1, 4, NG_OK, NULL},
    {"method=eva", NG_LINEAR, TWO(20), TWO(18), 1, 1, 0, 4, NG_OK, NULL},
    {"method=eva sides=input", NG_LINEAR, TWO(18), TWO(22), 1, 1, 1, 4, NG_OK, NULL},
    {"method=eva sides=input", NG_LINEAR, 8, TWO(22) + 1, 1, 1, 1, 4, NG_ERR_ARG,
     "out is 4194305, at most 4194304 with sides = input"},
    /* Windows of 10^12 parameters, on one rank and in slices. */
    {"method=mfac", NG_LINEAR, TWO(20), TWO(20), 1, 1, 1, 4, NG_OK, NULL},
    {"method=mfac window_scope=parameter", NG_LINEAR, TWO(20), TWO(20), 1, 1, 1, 4, NG_OK, NULL},
    {"method=mfac statistics=sharded", NG_LINEAR, TWO(20), TWO(20), 1, 1, 1, 4096, NG_OK, NULL},
    {"method=mfac window_store=lowrank", NG_LINEAR, TWO(20), TWO(20), 1, 1, 1, 4, NG_OK, NULL},
    {"method=ggt", NG_LINEAR, TWO(20), TWO(20), 1, 1, 1, 4, NG_OK, NULL},
    {"method=efcp", NG_LINEAR, TWO(20), TWO(20), 1, 1, 0, 4, NG_ERR_ARG,
     "window_store = topk: 1099511627776 parameters, at most 2147483647"},
    {"method=efcp statistics=sharded", NG_LINEAR, TWO(20), TWO(20), 1, 1, 0, 4096, NG_ERR_ARG,
     "window_store = topk: 1099511627776 parameters, at most 2147483647"},
    {"method=efcp statistics=sharded", NG_LINEAR, TWO(31) - 1, 1, 1, 1, 0, 65536, NG_OK, NULL},
    {"method=efcp statistics=sharded ", NG_LINEAR, TWO(31) - 1, 1, 1, 1, 0, 65536, NG_OK, NULL},
    {"method=efcp", NG_LINEAR, TWO(30), 2, 1, 1, 0, 4, NG_ERR_ARG, "2147483648 parameters"},
    {"method=spngd", NG_NORM, TWO(31) - 1, 0, 1, 1, 1, 4, NG_OK, NULL},
    {"method=spngd norm_block=full", NG_NORM, TWO(30), 0, 1, 1, 1, 4, NG_ERR_ARG, "norm_block"},
};

static void fill_layer(const limit *r, ng_layer *l) {
  ng_layer_init(l, r->kind, sizeof *l);
  l->name = "wide";
  l->in = r->in;
  l->out = r->out;
  l->bias = r->bias;
  if (r->kind != NG_CONV2D) return;
  l->groups = r->groups;
  l->kernel[0] = l->kernel[1] = r->kernel;
  l->image[0] = l->image[1] = 8;
}

/* 65,536 slices of 2^31 entries took 15 s of CPU when each slice visited all blocks, and take 0.01 s now. */
static const double MOST_SECONDS = 5.0;

/* Return 1 if the row fails.  If ng_plan_ranks returns NG_OK, ng_ready must fail to allocate. */
static int check_limit(const limit *r, bool ready) {
  allocator memory = {.room = ROOM};
  fixture f;
  ng_layer l;
  ng_rank_plan plan;
  const ng_context_config c = allocator_config(&memory);
  const fixture_how how = {.linalg = "ref", .threads = 1, .config = &c};
  fixture_ok(&f, fixture_open(&f, r->options, &how));
  fill_layer(r, &l);
  plan = (ng_rank_plan){.struct_size = sizeof plan};
  const clock_t before = clock();
  ng_status st = ng_add_layer(f.p, &l, NULL);
  if (st == NG_OK) st = ready ? ng_ready(f.p) : ng_plan_ranks(f.p, r->ranks, 1, 1, &plan);
  const double took = (double)(clock() - before) / CLOCKS_PER_SEC;
  const ng_status want = ready && r->want == NG_OK ? NG_ERR_NOMEM : r->want;
  const char *message = r->message == NULL ? "no memory" : r->message;
  const bool named = st == NG_OK || strstr(ng_last_error(f.ctx), message) != NULL;
  const bool is_right = st == want && named && took < MOST_SECONDS;
  if (!is_right) {
    print_error("%s, %lld by %lld, %s: status %d in %.1f s: %s\n", r->options, (long long)r->in,
                (long long)r->out, ready ? "ready" : "planned", (int)st, took,
                st == NG_OK ? "" : ng_last_error(f.ctx));
  }
  fixture_close(&f);
  assert_int_equal(memory.held, 0);
  return !is_right;
}

static void planning_and_ready_agree_on_limits(void **state) {
  int wrong = 0;
  for (size_t i = 0; i < 2 * sizeof limits / sizeof *limits; i++)
    wrong += check_limit(&limits[i / 2], i % 2 == 1);
  assert_int_equal(wrong, 0);
}

/* ---- a ResNet-50 -----------------------------------------------------------------------------*/

enum { LAYERS = 54 };

/* The matrix orders determine the kernel: 7 x 7 of three channels, 3 x 3, 1 x 1; the last layer is linear with a
 * bias. */
static ng_status add_resnet50_layer(ng_precond *p, int i) {
  const int32_t a = resnet50[i][0], kernel = a == 147 ? 7 : a % 9 == 0 ? 3 : 1;
  char name[24];
  (void)snprintf(name, sizeof name, "layer%d", i);
  if (i == LAYERS - 1) return ng_add_linear(p, name, a - 1, resnet50[i][1], 1, NULL);
  const int64_t k[2] = {kernel, kernel}, half[2] = {kernel / 2, kernel / 2}, image[2] = {2, 2};
  return ng_add_conv2d(p, name, a / (kernel * kernel), resnet50[i][1], k, NULL, half, NULL, 1,
                       image, 0, NULL);
}

/* Return the bytes of statistics that the plan sends, as a share of whole f32 matrices. */
static double planned_sent_share(const char *more) {
  fixture f;
  ng_rank_plan r = {.struct_size = sizeof r};
  char options[160];
  double whole = 0.0;
  (void)snprintf(options, sizeof options,
                 "method=kaisa solver=cholesky damping_split=full grad_worker_fraction=0 %s", more);
  fixture_ok(&f, fixture_open(&f, options, &(fixture_how){.threads = 1}));
  for (int i = 0; i < LAYERS; i++) {
    const double a = resnet50[i][0], g = resnet50[i][1];
    whole += 4.0 * (a * a + g * g);
    fixture_ok(&f, add_resnet50_layer(f.p, i));
  }
  assert_true(whole == 4.0 * 153851562);
  fixture_ok(&f, ng_plan_ranks(f.p, 2, 0, 1, &r));
  fixture_close(&f);
  if (getenv("NG_TEST_SHOW") != NULL)
    printf("%s: %lld bytes in %lld messages, %.4f of %.0f\n", options, (long long)r.sums_bytes,
           (long long)r.sums_messages, (double)r.sums_bytes / whole, whole);
  return (double)r.sums_bytes / whole;
}

static void resnet50_sends_the_expected_share(void **state) {
  static const struct {
    const char *more;
    double most;
  } row[] = {{"wire_dtype=bf16", 0.26}, {"", 0.51}};
  for (int i = 0; i < 2; i++) {
    const double part = planned_sent_share(row[i].more);
    assert_true(part <= row[i].most && part >= row[i].most - 0.02);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_sizes_fit_or_are_refused),
      cmocka_unit_test(planning_and_ready_agree_on_limits),
      cmocka_unit_test(resnet50_sends_the_expected_share),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
