/* t_gather.c: update_ranks = owner: one rank updates each weight, stores its moments and sends the weight to all
 * ranks.  The results have the bits of update_ranks = all. */
#include "draw.h"
#include "fixture.h"
#include "ranks.h"
#include "unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 5, MOST_RANKS = 3, ROOM = 64, B = 4 };
/* fc [3,4] with a bias, weights transposed in memory; norm of 5 channels, beta in f64; a tensor of 7 in bf16 */
enum { FC, BN, PLAIN, ENTRIES };
enum { SLOTS = 5, BETA = 3 };
static const int64_t rows[SLOTS] = {3, 1, 1, 1, 1}, cols[SLOTS] = {4, 3, 5, 5, 7};

typedef struct gather_run {
  const char *options;
  int32_t ranks;
  bool adamw;
  float w[MOST_RANKS][STEPS][SLOTS][ROOM];
  int64_t moments[MOST_RANKS];
  char message[512];
} gather_run;

typedef struct mine {
  float grad[SLOTS][ROOM], w[SLOTS][ROOM];
  uint16_t half[ROOM];
  double wide[ROOM / 2];
} mine;

static ng_status bind_entries(ng_precond *p, mine *m) {
  ng_status st = NG_OK;
  for (int k = 0; k < SLOTS && st == NG_OK; k++) {
    const ng_array g = ng_array_matrix(m->grad[k], rows[k], cols[k], NG_F32);
    ng_array w = ng_array_matrix(m->w[k], rows[k], cols[k], NG_F32);
    if (k == 0) { /* [3,4], transposed in memory */
      w.room[4] = 1;
      w.room[5] = 3;
    }
    if (k == BETA) w = ng_array_matrix(m->wide, 1, cols[k], NG_F64);
    if (k == SLOTS - 1) w = ng_array_matrix(m->half, 1, cols[k], NG_BF16);
    st = ng_bind_grad(p, k / 2, (ng_param)(k % 2), &g);
    if (st == NG_OK) st = ng_bind_weight(p, k / 2, (ng_param)(k % 2), &w);
  }
  return st;
}

static ng_status take_step(ng_precond *p, const gather_run *l, mine *m, int t) {
  float a[2][B * 5], g[2][B * 5];
  for (int i = 0; i < B * 5; i++) {
    for (int k = 0; k < 2; k++) {
      a[k][i] = draw_at(10 * t + k, i);
      g[k][i] = draw_at(10 * t + 2 + k, i);
    }
  }
  for (int k = 0; k < SLOTS; k++) {
    for (int64_t i = 0; i < rows[k] * cols[k]; i++)
      m->grad[k][i] = draw_at(10 * t + 4 + k, i);
  }
  const ng_array in[2] = {ng_array_matrix(a[0], B, 4, NG_F32), ng_array_matrix(a[1], B, 5, NG_F32)},
                 out[2] = {ng_array_matrix(g[0], B, 3, NG_F32),
                           ng_array_matrix(g[1], B, 5, NG_F32)};
  ng_status st = ng_begin_samples(p, B, 1);
  for (int k = 0; k < 2 && st == NG_OK; k++) {
    st = ng_observe_input(p, k, &in[k], NG_BORROW);
    if (st == NG_OK) st = ng_observe_output_grad(p, k, &out[k], NG_COPY);
  }
  if (st != NG_OK) return st;
  ng_sgd s = fixture_sgd(0.1, 0.9);
  s.weight_decay = 0.01;
  ng_adamw w;
  ng_adamw_init(&w, sizeof w);
  w.lr = 0.01;
  return l->adamw ? ng_step_adamw(p, &w, 1) : ng_step_sgd(p, &s, 1);
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  gather_run *l = arg;
  fixture f;
  mine m;
  memset(&m, 0, sizeof m);
  const fixture_how how = {.threads = 1, .transport = l->ranks > 1 ? t : NULL};
  ng_status st = fixture_open(&f, l->options, &how);
  if (st == NG_OK) st = ng_add_linear(f.p, "fc", 4, 3, 1, NULL);
  if (st == NG_OK) st = ng_add_norm(f.p, "bn", NG_BATCH_NORM, 5, 1, 1e-5, NULL);
  if (st == NG_OK) st = ng_add_tensor(f.p, "plain", 7, NULL);
  if (st == NG_OK) st = bind_entries(f.p, &m);
  if (st == NG_OK) st = ng_ready(f.p);
  for (int s = 0; s < STEPS && st == NG_OK; s++) {
    st = take_step(f.p, l, &m, s);
    for (int k = 0; k < SLOTS; k++)
      memcpy(l->w[rank][s][k],
             k == SLOTS - 1 ? (void *)m.half
             : k == BETA    ? (void *)m.wide
                            : (void *)m.w[k],
             k == SLOTS - 1 ? sizeof m.half : sizeof m.w[k]);
  }
  ng_report report = {.struct_size = sizeof report};
  if (st == NG_OK) st = ng_report_read(f.p, &report);
  l->moments[rank] = report.moments;
  if (rank == 0 && st != NG_OK)
    (void)snprintf(l->message, sizeof l->message, "%s", fixture_message(&f));
  fixture_close(&f);
  return st;
}

static ng_status run_ranks(gather_run *l) {
  return l->ranks > 1 ? ranks_run(l->ranks, run_rank, l, NULL) : run_rank(0, NULL, l);
}

static gather_run *new_run(const char *options, int32_t ranks, bool adamw) {
  gather_run *l = calloc(1, sizeof *l);
  assert_non_null(l);
  l->options = options;
  l->ranks = ranks;
  l->adamw = adamw;
  return l;
}

static void must_run_ranks(gather_run *l) {
  if (run_ranks(l) != NG_OK) fail_msg("%s", l->message);
  for (int32_t r = 1; r < l->ranks; r++)
    assert_memory_equal(l->w[r], l->w[0], sizeof l->w[0]);
}

#define LINE "method=natgrad grad_worker_fraction=0 kl_clip=0.01 solve_period=2 update="

static void owners_send_the_same_weights(void **state) {
  for (int adamw = 0; adamw < 2; adamw++) {
    for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
      gather_run *all = new_run(adamw ? LINE "adamw" : LINE "sgd", ranks, adamw);
      gather_run *own = new_run(adamw ? LINE "adamw update_ranks=owner statistics=owner"
                                      : LINE "sgd update_ranks=owner statistics=owner",
                                ranks, adamw);
      int64_t moments = 0;
      must_run_ranks(all);
      must_run_ranks(own);
      assert_memory_equal(own->w[0], all->w[0], sizeof all->w[0]);
      for (int32_t r = 0; r < ranks; r++)
        moments += own->moments[r];
      assert_int_equal(moments, all->moments[0]); /* one rank stores each moment */
      if (ranks > 1) assert_true(own->moments[0] < all->moments[0]);
      free(all);
      free(own);
    }
  }
}

/* clip = ratio needs each preconditioned gradient on all ranks. */
static void clips_of_one_tensor_are_refused(void **state) {
  gather_run *l = new_run(LINE "sgd update_ranks=owner clip=ratio clip_bound=0.1", 2, false);
  assert_int_equal(run_ranks(l), NG_ERR_ARG);
  assert_non_null(strstr(l->message, "update_ranks = owner: clip = ratio"));
  free(l);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(owners_send_the_same_weights),
      cmocka_unit_test(clips_of_one_tensor_are_refused),
  };
  return cmocka_run_group_tests_name("gather", tests, NULL, NULL);
}
