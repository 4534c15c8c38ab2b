/* t_buckets: sums of statistics are sent in messages of at most stat_bucket_mb.  A counting transport compares the
 * elements of each message, and the number of observations before it, with a table.  All bucket sizes must give equal
 * bits, and the report must have the same counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "draw.h"
#include "fixture.h"
#include "ranks.h"

enum { RANKS = 3, LAYERS = 4, B = 3, STEPS = 2, MOST = 48, SHOWN = 2 * LAYERS, SENT = 2 * LAYERS };

/* Orders of A and G.  Triangles begin on cache lines of 16 numbers: A and G of layer after layer have
 * 28 at 0, 15 at 32, 15 at 48, 21 at 64, 21 at 96, 10 at 128, 10 at 144, 21 at 160, to 181. */
static const struct {
  const char *name;
  int64_t in, out;
} layer[LAYERS] = {{"one", 7, 5}, {"two", 5, 6}, {"three", 6, 4}, {"four", 4, 6}};

/* Inputs are shown from the first layer on, then output gradients from the last: a layer is complete with
 * the fifth, sixth, ... observation; 0: in the step. */
static const struct {
  const char *mb;
  int32_t last;
  int messages;
  struct {
    int64_t count;
    int shown;
  } sent[SENT];
} row[] = {
    {"25", 0, 1, {{181, 0}}},
    {"25", 1, 1, {{181, 8}}},
    {"0", 0, 8, {{28, 0}, {15, 0}, {15, 0}, {21, 0}, {21, 0}, {10, 0}, {10, 0}, {21, 0}}},
    {"0", 1, 8, {{10, 5}, {21, 5}, {21, 6}, {10, 6}, {15, 7}, {21, 7}, {28, 8}, {15, 8}}},
    /* 64 numbers: 28 + 15 and 15 more end at 63; alone, two layers of 48 are too many */
    {"256e-6", 0, 3, {{63, 0}, {53, 0}, {53, 0}}},
    {"256e-6", 1, 4, {{37, 5}, {42, 6}, {37, 7}, {47, 8}}},
    {"248e-6", 0, 4, {{47, 0}, {37, 0}, {58, 0}, {21, 0}}}, /* 62 */
    {"384e-6", 0, 2, {{85, 0}, {85, 0}}},
    {"340e-6", 0, 2, {{85, 0}, {85, 0}}}, /* just */
    {"384e-6", 1, 2, {{85, 6}, {85, 8}}},
};

typedef struct tap {
  ng_transport inner;
  int shown, sent;
  int64_t count[SENT];
  int when[SENT];
} tap;

typedef struct life {
  char set[96];
  int32_t last;
  float out[RANKS][STEPS][LAYERS][MOST];
  tap tap[RANKS]; /* of the last step */
  ng_station_report sums[RANKS];
} life;

static ng_status tap_start(void *user, const ng_collective *c, void **request) {
  tap *t = user;
  if (t->sent < SENT) {
    t->count[t->sent] = c->count;
    t->when[t->sent] = t->shown;
  }
  t->sent++;
  return t->inner.start(t->inner.user, c, request);
}
static ng_status tap_run(void *user, const ng_collective *c) {
  return ((tap *)user)->inner.run(((tap *)user)->inner.user, c);
}
static ng_status tap_wait(void *user, void *request) {
  return ((tap *)user)->inner.wait(((tap *)user)->inner.user, request);
}
static void tap_abort(void *user) { ((tap *)user)->inner.abort(((tap *)user)->inner.user); }

static void draw(float *x, int64_t n, int32_t rank, int32_t step, int32_t at) {
  rng r = {test_seed() ^ (uint64_t)(rank * 10000 + step * 100 + at)};
  for (int64_t i = 0; i < n; i++) {
    x[i] = (float)rng_value(&r);
  }
}

static ng_status one_step(life *l, fixture *f, int32_t rank, int32_t step) {
  ng_batch b;
  ng_batch_init(&b, sizeof b);
  b.samples = B;
  b.last = l->last;
  ng_status st = ng_begin(f->p, &b);
  l->tap[rank].sent = 0;
  for (int32_t k = 0; k < SHOWN && st == NG_OK; k++) {
    float x[B * 8];
    const bool grad = k >= LAYERS;
    const int32_t i = grad ? SHOWN - 1 - k : k;
    const int64_t n = grad ? layer[i].out : layer[i].in;
    draw(x, B * n, rank, step, 10 + k);
    const plane v = plane_of(x, B, n, NG_F32);
    l->tap[rank].shown = k + 1;
    st = grad ? plane_output_grad(f->p, i, &v, NG_COPY) : plane_input(f->p, i, &v, NG_COPY);
  }
  l->tap[rank].shown = 0;
  for (int32_t i = 0; i < LAYERS && st == NG_OK; i++) {
    draw(l->out[rank][step][i], layer[i].out * layer[i].in, 0, step, i);
    const plane v = plane_of(l->out[rank][step][i], layer[i].out, layer[i].in, NG_F32);
    st = fixture_bind(f, i, NG_WEIGHT, &v, NULL);
  }
  return st == NG_OK ? ng_step(f->p, 0.1) : st;
}

static ng_status live(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  ng_transport mine = *t;
  l->tap[rank] = (tap){.inner = *t};
  mine.user = &l->tap[rank];
  mine.run = tap_run;
  mine.start = tap_start;
  mine.wait = tap_wait;
  mine.test = NULL;
  mine.group_create = NULL;
  mine.group_destroy = NULL;
  mine.abort = tap_abort;
  fixture f;
  ng_status st =
      fixture_open(&f, l->set, &(fixture_how){.linalg = "ref", .threads = 1, .transport = &mine});
  for (int32_t i = 0; i < LAYERS && st == NG_OK; i++) {
    st = ng_add_linear(f.p, layer[i].name, layer[i].in, layer[i].out, 0, NULL);
  }
  if (st == NG_OK) st = ng_ready(f.p);
  for (int32_t step = 0; step < STEPS && st == NG_OK; step++) {
    st = one_step(l, &f, rank, step);
  }
  for (int32_t i = 0; st == NG_OK; i++) {
    l->sums[rank] = (ng_station_report){.struct_size = sizeof l->sums[rank]};
    st = ng_report_station(f.p, i, &l->sums[rank]);
    if (st == NG_OK && strcmp(l->sums[rank].name, "statistics") == 0) break;
  }
  if (st != NG_OK) print_error("%s\n", f.ctx == NULL ? f.message : ng_last_error(f.ctx));
  fixture_close(&f);
  return st;
}

static void must_be(const char *what, size_t at, int rank, int64_t is, int64_t want) {
  if (is == want) return;
  fail_msg("row %d, rank %d: %s is %lld, expected %lld", (int)at, rank, what, (long long)is,
           (long long)want);
}

static void test_messages(void **state) {
  (void)state;
  static life first, l;
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    memset(&l, 0, sizeof l);
    (void)snprintf(l.set, sizeof l.set, "method=natgrad stat_bucket_mb=%s", row[i].mb);
    l.last = row[i].last;
    assert_int_equal(ranks_run(RANKS, live, &l, NULL), NG_OK);
    if (i == 0) first = l;
    assert_memory_equal(l.out, first.out, sizeof l.out);
    int64_t all = 0;
    for (int k = 0; k < row[i].messages; k++) {
      all += row[i].sent[k].count;
    }
    for (int r = 0; r < RANKS; r++) {
      must_be("messages", i, r, l.tap[r].sent, row[i].messages);
      for (int k = 0; k < row[i].messages; k++) {
        must_be("a message", i, r, l.tap[r].count[k], row[i].sent[k].count);
        must_be("what was shown", i, r, l.tap[r].when[k], row[i].sent[k].shown);
      }
      must_be("last_messages", i, r, l.sums[r].last_messages, row[i].messages);
      must_be("total_messages", i, r, l.sums[r].total_messages, STEPS * row[i].messages);
      must_be("last_bytes", i, r, l.sums[r].last_bytes, all * (int64_t)sizeof(float));
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_messages)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
