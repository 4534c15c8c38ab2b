/* t_window_mixed.c: a window on linear layers beside K-FAC on convolutions, on two ranks: what one rank makes of
 * the whole batch; saved there, and gone on with there or by one rank.
 *
 * Each rank sees half the samples; gradients are those of the whole batch, as averaging leaves them.  A window sees
 * gradients alone: the bits of one rank.  K-FAC adds the statistics of halves, in f32, and inverts: the rounding of
 * a sum, 1e-7, by the condition of A + sqrt(damping), below 100 here: 1e-5 of the largest entry. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "draw.h"
#include "fixture.h"
#include "ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { C = 2, K = 3, KERNEL = 3, SIDE = 5, IMAGE = SIDE * SIDE, IN = 7, OUT = 4, BATCH = 4 };
enum { CONV = K * C * KERNEL * KERNEL, FC = IN * OUT, ALL = CONV + FC + OUT, STEPS = 9, AT = 5 };

typedef struct life {
  const char *options, *block, *load, *save;
  int32_t ranks;
  float P[2][STEPS][ALL]; /* of each rank */
  char message[1024];
} life;

static void draw(uint64_t seed, float *x, int64_t n) {
  rng r = {seed + test_seed()};
  for (int64_t i = 0; i < n; i++)
    x[i] = (float)rng_value(&r);
}

static ng_status describe(fixture *f, float g[ALL]) {
  const plane conv = plane_of(g, K, (int64_t)C * KERNEL * KERNEL, NG_F32);
  const plane fc[2] = {plane_of(g + CONV, OUT, IN, NG_F32),
                       plane_of(g + CONV + FC, 1, OUT, NG_F32)};
  int32_t index;
  ng_status st = plane_conv2d(f->p, "conv", C, K, KERNEL, 1, 1, SIDE, SIDE, 0, &index);
  if (st == NG_OK) st = fixture_bind(f, index, NG_WEIGHT, &conv, NULL);
  return st == NG_OK ? fixture_linear(f, "fc", fc, NULL) : st;
}

/* This rank's samples of the convolution. */
static ng_status observe(const life *l, fixture *f, int32_t rank, int t) {
  float a[BATCH * C * IMAGE], d[BATCH * K * IMAGE];
  const int64_t mine = BATCH / l->ranks, from = rank * mine;
  draw(1000 + (uint64_t)t, a, BATCH * C * IMAGE);
  draw(2000 + (uint64_t)t, d, BATCH * K * IMAGE);
  for (int64_t i = 0; i < BATCH * K * IMAGE; i++)
    d[i] /= (float)mine; /* of the mean over a rank's own samples */
  const plane va = plane_images(a + from * C * IMAGE, PLANE_NCHW, mine, C, SIDE, SIDE, NG_F32);
  const plane vd = plane_images(d + from * K * IMAGE, PLANE_NCHW, mine, K, SIDE, SIDE, NG_F32);
  return fixture_show(f, mine, 0, &va, &vd);
}

static ng_status live_on(life *l, fixture *f, int32_t rank) {
  float g[ALL];
  ng_explain_row row[2] = {{.struct_size = sizeof *row}, {.struct_size = sizeof *row}};
  ng_status st = describe(f, g);
  if (st == NG_OK) st = ng_ready(f->p);
  for (int i = 0; i < 2 && st == NG_OK; i++)
    st = ng_explain(f->p, i, &row[i]);
  if (st == NG_OK &&
      (strcmp(row[0].family, "kronecker") != 0 || strcmp(row[0].method, "natgrad") != 0 ||
       strcmp(row[0].block, "conv") != 0 || strcmp(row[1].family, "window") != 0 ||
       strcmp(row[1].method, "mfac") != 0 || strcmp(row[1].block, l->block) != 0))
    st = NG_ERR_STATE;
  if (st == NG_OK && l->load != NULL) st = ng_load(f->p, l->load);
  for (int t = l->load != NULL ? AT : 0; t < STEPS && st == NG_OK; t++) {
    draw((uint64_t)t, g, ALL);
    st = observe(l, f, rank, t);
    if (st == NG_OK) st = ng_step(f->p, 1.0);
    memcpy(l->P[rank][t], g, sizeof g);
    if (t == AT - 1 && l->save != NULL && st == NG_OK) st = ng_save(f->p, l->save);
  }
  return st;
}

static ng_status live(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  fixture f = {0};
  ng_status st = fixture_open(&f, l->options, &(fixture_how){.threads = 1, .transport = t});
  if (st == NG_OK) st = live_on(l, &f, rank);
  if (st != NG_OK && rank == 0)
    (void)snprintf(l->message, sizeof l->message, "%s",
                   f.ctx == NULL ? f.message : ng_last_error(f.ctx));
  fixture_close(&f);
  return st;
}

static life *lived(int32_t ranks, const char *options, const char *block, const char *load,
                   const char *save) {
  life *l = calloc(1, sizeof *l);
  assert_non_null(l);
  l->options = options;
  l->block = block;
  l->load = load;
  l->save = save;
  l->ranks = ranks;
  const ng_status st = ranks == 1 ? live(0, NULL, l) : ranks_run(ranks, live, l, NULL);
  if (st != NG_OK) fail_msg("%s, %d ranks: %s: %s", options, ranks, ng_status_name(st), l->message);
  if (ranks == 2) assert_memory_equal(l->P[0], l->P[1], sizeof l->P[0]);
  return l;
}

/* Of rank 0 from step `from` on: the window to a bit, the convolution to 1e-5. */
static void same(const life *x, const life *y, int from) {
  for (int t = from; t < STEPS; t++) {
    double most = 0, gap = 0;
    for (int i = 0; i < CONV; i++) {
      most = fmax(most, fabs((double)y->P[0][t][i]));
      gap = fmax(gap, fabs((double)x->P[0][t][i] - (double)y->P[0][t][i]));
    }
    if (!(most > 0 && gap <= 1e-5 * most)) fail_msg("step %d: %g of %g apart", t, gap, most);
    assert_memory_equal(x->P[0][t] + CONV, y->P[0][t] + CONV, (ALL - CONV) * sizeof(float));
  }
}

/* K-FAC on convolutions and M-FAC on linear layers, said of these or of those; results of K-FAC held by one rank
 * alone. */
static void beside_convolutions(void **state) {
  static const char *const stores[] = {"", "window_store=topk window_density=0.3 window_dtype=bf16",
                                       "window_store=lowrank window_rank=2"};
  static const struct {
    const char *options, *block;
  } how[] = {
      {"clip=none damping=0.2 per_layer='linear: method=mfac damping=0.1 window=3 %s'",
       "window.fc"},
      {"method=mfac damping=0.1 clip=none window=3 %s per_layer='conv*: method=natgrad'", "window"},
      {"clip=none damping=0.3 grad_worker_fraction=0 statistics=owner "
       "per_layer='fc*: window=3 method=mfac damping=0.1 %s'",
       "window.fc"}};
  char file[FIXTURE_FILE];
  (void)state;
  fixture_file(file, "window-mixed");
  for (size_t k = 0; k < 9; k++) {
    char options[300];
    (void)snprintf(options, sizeof options, how[k / 3].options, stores[k % 3]);
    const char *block = how[k / 3].block;
    life *one = lived(1, options, block, NULL, NULL), *two = lived(2, options, block, NULL, file);
    life *again = lived(2, options, block, file, NULL),
         *alone = lived(1, options, block, file, NULL);
    same(two, one, 0);
    same(alone, one, AT);
    assert_memory_equal(again->P[0][AT], two->P[0][AT], (STEPS - AT) * sizeof two->P[0][AT]);
    assert_true(memcmp(one->P[0][0], one->P[0][1], sizeof one->P[0][0]) != 0);
    free(one);
    free(two);
    free(again);
    free(alone);
  }
  (void)unlink(file);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(beside_convolutions)};
  return cmocka_run_group_tests_name("windows beside convolutions", tests, NULL, NULL);
}
