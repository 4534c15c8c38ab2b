/* t_sizes_plan.c: what is planned for one layer, or one chunk of a window, does not grow with the size that is
 * described, or has a limit that is named.
 *
 * Each row is asked of ng_plan_ranks and of ng_ready with an allocator that has ROOM bytes.  A list whose length grew
 * with the size would not fit, and be NG_ERR_NOMEM where NG_OK or a refusal by name is expected; at a limit whose
 * lists are larger than ROOM, NG_ERR_NOMEM says that the size was taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "fixture.h"
#include "natgrad.h"

static const size_t ROOM = (size_t)40 << 20;
#define TWO(n) (INT64_C(1) << (n))

static void *from_room(void *user, size_t bytes) {
  size_t *left = user;
  void *p = NULL;
  if (bytes > *left || posix_memalign(&p, 64, bytes) != 0) return NULL;
  *left -= bytes;
  return p;
}

static void to_room(void *user, void *p, size_t bytes) {
  *(size_t *)user += bytes;
  free(p);
}

typedef struct row {
  const char *options;
  ng_kind kind;
  int64_t in, out, groups, kernel;
  int32_t bias, ranks;
  ng_status want;   /* of ng_plan_ranks, or of ng_add_layer */
  const char *says; /* what a refusal names */
} row;

static const row rows[] = {
    /* Diagonal blocks of factors: 2^22 of a side. */
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
    /* Columns of a convolution that is permuted. */
    {"method=natgrad max_factor=4096", NG_CONV2D, TWO(20), 8, 1, 2, 0, 4, NG_OK, NULL},
    {"method=natgrad max_factor=4096", NG_CONV2D, TWO(20), 8, 1, 2, 1, 4, NG_ERR_ARG,
     "4194305 columns, at most 4194304"},
    {"method=natgrad max_factor=4096", NG_CONV2D, TWO(26), 8, 1, 1, 1, 4, NG_OK, NULL},
    /* Groups. */
    {"method=eva", NG_CONV2D, TWO(22), TWO(22), TWO(22), 3, 0, 4, NG_ERR_NOMEM, "no memory"},
    {"method=eva", NG_CONV2D, TWO(22) + 1, TWO(22) + 1, TWO(22) + 1, 3, 0, 4, NG_ERR_ARG,
     "groups is 4194305, expected 1 to 4194304"},
    {"method=mfac", NG_CONV2D, TWO(30), TWO(30), TWO(30), 3, 0, 4, NG_ERR_ARG, "groups is"},
    /* Eva, whose vectors are memory that is counted, but for Eva-f's two. */
    {"method=eva", NG_LINEAR, TWO(30), 8, 1, 1, 1, 4, NG_OK, NULL},
    {"method=eva", NG_LINEAR, TWO(20), TWO(18), 1, 1, 0, 4, NG_OK, NULL},
    {"method=eva sides=input", NG_LINEAR, 8, TWO(22), 1, 1, 1, 4, NG_ERR_NOMEM, "no memory"},
    {"method=eva sides=input", NG_LINEAR, 8, TWO(22) + 1, 1, 1, 1, 4, NG_ERR_ARG,
     "out is 4194305, at most 4194304 with sides = input"},
    /* Windows of 10^12 parameters, by one rank and in slices. */
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
    {"method=efcp statistics=sharded window_topk=global", NG_LINEAR, TWO(31) - 1, 1, 1, 1, 0, 65536,
     NG_OK, NULL},
    {"method=efcp", NG_LINEAR, TWO(30), 2, 1, 1, 0, 4, NG_ERR_ARG, "2147483648 parameters"},
    /* Norms. */
    {"method=spngd", NG_NORM, TWO(31) - 1, 0, 1, 1, 1, 4, NG_OK, NULL},
    {"method=spngd norm_block=full", NG_NORM, TWO(30), 0, 1, 1, 1, 4, NG_ERR_ARG, "norm_block"},
};

static void describe(const row *r, ng_layer *l) {
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

/* 15 s of one processor were 65,536 slices of 2^31 entries when each looked at all blocks; now 0.01 s. */
static const double MOST_SECONDS = 5.0;

/* NG_OK of ng_plan_ranks; ng_ready of the same takes the memory, which is not there. */
static int judge(const row *r, bool ready) {
  size_t left = ROOM;
  fixture f;
  ng_layer l;
  ng_context_config c;
  ng_rank_plan plan;
  ng_context_config_init(&c, sizeof c);
  c.alloc = from_room;
  c.free = to_room;
  c.alloc_user = &left;
  const fixture_how how = {.linalg = "ref", .threads = 1, .config = &c};
  fixture_ok(&f, fixture_open(&f, r->options, &how));
  describe(r, &l);
  plan = (ng_rank_plan){.struct_size = sizeof plan};
  const clock_t before = clock();
  ng_status st = ng_add_layer(f.p, &l, NULL);
  if (st == NG_OK) st = ready ? ng_ready(f.p) : ng_plan_ranks(f.p, r->ranks, 1, 1, &plan);
  const double took = (double)(clock() - before) / CLOCKS_PER_SEC;
  const ng_status want = ready && r->want == NG_OK ? NG_ERR_NOMEM : r->want;
  const char *says = r->says == NULL ? "no memory" : r->says;
  const bool named = st == NG_OK || strstr(ng_last_error(f.ctx), says) != NULL;
  const bool sound = st == want && named && took < MOST_SECONDS;
  if (!sound) {
    print_error("%s, %lld by %lld, %s: status %d in %.1f s: %s\n", r->options, (long long)r->in,
                (long long)r->out, ready ? "ready" : "planned", (int)st, took,
                st == NG_OK ? "" : ng_last_error(f.ctx));
  }
  fixture_close(&f);
  assert_int_equal(left, ROOM);
  return !sound;
}

static void planned(void **state) {
  (void)state;
  int wrong = 0;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    wrong += judge(&rows[i], false);
  }
  assert_int_equal(wrong, 0);
}

static void ready(void **state) {
  (void)state;
  int wrong = 0;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    wrong += judge(&rows[i], true);
  }
  assert_int_equal(wrong, 0);
}

/* Tiles of gradients: 2^24 of a rank, counted before their list is made. */
static void tiles(void **state) {
  (void)state;
  const row at = {.options = "method=eva sides=none",
                  .kind = NG_LINEAR,
                  .in = 16384,
                  .out = TWO(24),
                  .groups = 1,
                  .want = NG_ERR_NOMEM,
                  .says = "no memory"};
  row above = at;
  above.out++;
  above.want = NG_ERR_ARG;
  above.says = "16777217 tiles, at most 16777216";
  assert_int_equal(judge(&at, true) + judge(&above, true), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(planned),
      cmocka_unit_test(ready),
      cmocka_unit_test(tiles),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
