/* t_same.c: a description that differs on one rank alone is the same refusal on all, whatever differs:
 * every field of ng_layer, groups, what is frozen, tensors, the order of layers, options.
 *
 * That no field is forgotten here is what the size of the struct is for: the last one ends it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "fixture.h"
#include "ranks.h"

enum { RANKS = 3, ODD = 1 };

/* What the odd rank has otherwise. */
typedef enum change {
  NOTHING,
  NAME, /* fields of ng_layer, in its order */
  IN,
  OUT,
  HAS_BIAS,
  FROZEN,
  POSITIONS,
  ORDER,
  KERNEL_0,
  KERNEL_1,
  STRIDE_0,
  STRIDE_1,
  PADDING_0,
  PADDING_1,
  DILATION_0,
  DILATION_1,
  GROUPS,
  IMAGE_0,
  IMAGE_1,
  NORM_EPS,
  NORM_INPUT,
  TOKEN_DTYPE,
  OPTIONS,
  NORM_KIND,
  NORM_NO_WEIGHT,
  KIND,
  WEIGHT_GROUP, /* and what else describes a model */
  BIAS_GROUP,
  ASLEEP,
  TENSOR_COUNT,
  TENSOR_NAME,
  TENSOR_FIRST,
  ONE_MORE,
  MODEL_OPTION,
  MISSING,
  METHOD,
  CHANGES
} change;

/* A convolution that is legal with any one of the changes. */
static void describe(ng_layer *l, change c) {
  ng_layer_init(l, c == KIND ? NG_LINEAR : NG_CONV2D, sizeof *l);
  l->name = c == NAME ? "other" : "conv";
  l->in = c == IN ? 8 : 4;
  l->out = c == OUT ? 12 : 8;
  l->bias = c != HAS_BIAS;
  l->frozen = c == FROZEN;
  l->options = c == OPTIONS ? "damping=0.5" : NULL;
  if (c == KIND) return;
  for (int i = 0; i < 2; i++) {
    l->kernel[i] = c == (change)(KERNEL_0 + i) ? 1 : 3;
    l->stride[i] = c == (change)(STRIDE_0 + i) ? 2 : 1;
    l->padding[i] = c == (change)(PADDING_0 + i) ? 2 : 1;
    l->dilation[i] = c == (change)(DILATION_0 + i) ? 2 : 1;
    l->image[i] = c == (change)(IMAGE_0 + i) ? 9 : 10;
  }
  l->groups = c == GROUPS ? 2 : 1;
  if (c == NORM_EPS) l->norm_eps += 1e-3;
  if (c == NORM_INPUT) l->norm_input = NG_NORM_NORMALISED;
  if (c == NORM_KIND) l->norm_kind = NG_GROUP_NORM;
  if (c == NORM_NO_WEIGHT) l->norm_no_weight = 1;
  if (c == TOKEN_DTYPE) l->token_dtype = l->token_dtype == NG_I64 ? NG_I32 : NG_I64;
}

static ng_status rows(fixture *f, change c) {
  ng_layer l;
  ng_layer_init(&l, NG_LINEAR, sizeof l);
  l.name = "rows";
  l.in = l.out = 3;
  l.positions = c == POSITIONS ? 5 : 0;
  if (c == ORDER) l.order = NG_POSITIONS_FIRST;
  return ng_add_layer(f->p, &l, NULL);
}

static ng_status make(fixture *f, change c) {
  ng_layer l;
  ng_status st = NG_OK;
  const char *const tensor = c == TENSOR_NAME ? "delta" : "gamma";
  const int64_t count = c == TENSOR_COUNT ? 6 : 7;
  describe(&l, c);
  if (c == TENSOR_FIRST) st = ng_add_tensor(f->p, tensor, count, NULL);
  int32_t index = 0;
  if (st == NG_OK) st = ng_add_layer(f->p, &l, &index);
  if (st == NG_OK) st = rows(f, c);
  if (st == NG_OK && c != TENSOR_FIRST) st = ng_add_tensor(f->p, tensor, count, NULL);
  if (st == NG_OK && c == ONE_MORE) st = ng_add_linear(f->p, "more", 2, 2, 0, NULL);
  if (st == NG_OK && c == WEIGHT_GROUP) st = ng_set_group(f->p, index, NG_WEIGHT, 1);
  if (st == NG_OK && c == BIAS_GROUP) st = ng_set_group(f->p, index, NG_BIAS, 1);
  if (st == NG_OK && c == ASLEEP) st = ng_freeze(f->p, index, 1);
  return st;
}

typedef struct life {
  change what;
  char message[RANKS][512];
} life;

static ng_status live(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  fixture f;
  const change c = rank == ODD ? l->what : NOTHING;
  const fixture_how how = {.linalg = "ref", .threads = 1, .transport = t};
  ng_status st = fixture_open(&f,
                              c == METHOD         ? "method=eva-natgrad"
                              : c == MODEL_OPTION ? "solve_period=3"
                              : c == MISSING      ? "missing=keep"
                                                  : "method=natgrad",
                              &how);
  if (st == NG_OK) st = make(&f, c);
  if (st == NG_OK) st = ng_ready(f.p);
  (void)snprintf(l->message[rank], sizeof l->message[0], "%s", ng_last_error(f.ctx));
  fixture_close(&f);
  return st;
}

static void each_alone(void **state) {
  (void)state;
  for (int c = 0; c < CHANGES; c++) {
    life l = {.what = (change)c};
    ng_status st[RANKS];
    (void)ranks_run(RANKS, live, &l, st);
    const char *const what = c >= MODEL_OPTION ? "other options" : "other layers";
    for (int r = 0; r < RANKS; r++) {
      const bool told = strstr(l.message[r], what) != NULL;
      if (st[r] == (c == NOTHING ? NG_OK : NG_ERR_COMM) && told == (c != NOTHING)) continue;
      fail_msg("change %d, rank %d: %s (%s)", c, r, ng_status_name(st[r]), l.message[r]);
    }
  }
}

/* One that is appended is a change above, and in the hash (step/ready.c). */
static void no_field_was_added(void **state) {
  (void)state;
  assert_int_equal(offsetof(ng_layer, norm_no_weight) + sizeof(int32_t), sizeof(ng_layer));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(each_alone),
                                     cmocka_unit_test(no_field_was_added)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
