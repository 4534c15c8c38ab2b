/* t_window_ranks.c: windows on several ranks: whole on each rank, and in slices (statistics = sharded).
 *
 * All ranks have the same averaged gradients.  A whole window gives the bits of one rank.  Slices add products in
 * another order, in double, which changes the last bit of an f32 direction; with f32 momentum the limit is 1e-6 of
 * the largest entry.  A stored row depends on its gradient alone, so slices do not change its bits. */
#include "unit_test.h"
#include "draw.h"
#include "family/window.h"
#include "fixture.h"
#include "folder.h"
#include "model/model.h"
#include "ranks.h"
#include "safetensors.h"
#include "window_oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IN = 9, OUT = 7, LONG = 70000, LAST = 5, STEPS = 7, MOST = 4, AT = 3 };
enum { FC1 = IN * OUT, FC2 = OUT * LAST, D = FC1 + OUT + LONG + FC2 };

#define SHARDED "statistics=sharded"

/* A run on several ranks.  P: the directions of rank 0. */
typedef struct test_run {
  const char *options;
  const char *load, *save; /* before step AT: load the file `load`, then save to the file `save` */
  bool slices;             /* the window is sliced */
  float P[STEPS][D];
  int64_t factors[MOST];
  int32_t wrong[MOST]; /* number of errors that each rank found */
  float *directions[MOST];
  char message[512];
} test_run;

static ng_status add_entries(fixture *f, float *g, float *w) {
  static const fixture_entry entry[] = {
      {"fc1", OUT, IN, true}, {"long", 1, LONG, false}, {"fc2", LAST, OUT, false}};
  ng_status st = fixture_add_entries(f, entry, 3, g, w);
  /* adjacent to "long" in the group, not in the model */
  if (st == NG_OK) st = ng_set_group(f->p, 0, NG_BIAS, 3);
  if (st == NG_OK) st = ng_set_group(f->p, 1, NG_WEIGHT, 3);
  return st == NG_OK ? ng_set_group(f->p, 2, NG_WEIGHT, 1) : st;
}

static ng_status take_step(const test_run *l, fixture *f) {
  const ng_sgd one = fixture_sgd(0.5, 0.9), all[4] = {one, one, one, one};
  return strstr(l->options, "update=sgd") != NULL ? ng_step_sgd(f->p, all, 4) : ng_step(f->p, 0.5);
}

/* Count the arrays that ng_state_read refuses because this rank stores only a part. */
static int32_t count_refused_reads(ng_precond *p) {
  int32_t refused = 0;
  for (int32_t i = 0; i < ng_state_count(p); i++) {
    ng_field_info info = {.struct_size = sizeof info};
    void *to = NULL;
    if (ng_state_at(p, i, &info) == NG_OK) to = malloc((size_t)info.bytes);
    refused += to != NULL && ng_state_read(p, i, to, info.bytes) == NG_ERR_STATE;
    free(to);
  }
  return refused;
}

static ng_status train_rank(test_run *l, fixture *f, int32_t rank, float *g, float *w) {
  const bool fused = strstr(l->options, "update=sgd") != NULL;
  ng_status st = add_entries(f, g, w);
  for (int64_t i = 0; i < D; i++) {
    w[i] = i % 5 == 0 ? 0 : draw_at(-1, i);
  }
  if (st == NG_OK) st = ng_ready(f->p);
  if (st == NG_OK && l->load != NULL) st = ng_load(f->p, l->load);
  for (int64_t t = l->load != NULL ? AT : 0; t < STEPS && st >= NG_OK; t++) {
    for (int64_t i = 0; i < D; i++) {
      g[i] = draw_at(t, i);
      if (fused) w[i] = draw_at(100 + t, i);
    }
    if (l->slices) { /* a NaN in the slice of one rank skips the step on all ranks */
      const int64_t at = (D - 1) * (t % 4) / 3;
      g[at] = NAN;
      l->wrong[rank] += take_step(l, f) != NG_SKIPPED || !isnan(g[at]);
      g[at] = draw_at(t, at);
    }
    st = take_step(l, f);
    memcpy(l->directions[rank] + t * D, fused ? w : g, D * sizeof *g);
    if (t == AT - 1 && l->save != NULL && st >= NG_OK) st = ng_save(f->p, l->save);
  }
  if (l->slices) l->wrong[rank] += count_refused_reads(f->p) == 0;
  ng_report held = {.struct_size = sizeof held};
  if (ng_report_read(f->p, &held) == NG_OK) l->factors[rank] = held.factors;
  return st < NG_OK ? st : NG_OK;
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  test_run *l = arg;
  float *room = calloc(2 * D, sizeof *room);
  fixture f = {0};
  const fixture_how how = {.linalg = "ref", .threads = rank == 1 ? 2 : 1, .transport = t};
  ng_status st = room == NULL ? NG_ERR_NOMEM : fixture_open(&f, l->options, &how);
  if (st == NG_OK) st = train_rank(l, &f, rank, room, room + D);
  if (st < NG_OK && rank == 0)
    (void)snprintf(l->message, sizeof l->message, "%s", fixture_message(&f));
  fixture_close(&f);
  free(room);
  return st;
}

/* Run on several ranks.  Fail unless all ranks have the same bits. */
static test_run *run_ranks(int32_t ranks, const char *options, const char *more, const char *load,
                           const char *save) {
  char text[300];
  test_run *l = calloc(1, sizeof *l);
  assert_non_null(l);
  (void)snprintf(text, sizeof text, "%s %s", options, more);
  l->options = text;
  l->load = load;
  l->save = save;
  l->slices = ranks > 1 && strcmp(more, SHARDED) == 0;
  for (int32_t r = 0; r < ranks; r++)
    assert_non_null(l->directions[r] = calloc(STEPS * D, sizeof(float)));
  const ng_status st = ranks == 1 ? run_rank(0, NULL, l) : ranks_run(ranks, run_rank, l, NULL);
  if (st != NG_OK) fail_msg("%s, %d ranks: %s: %s", text, ranks, ng_status_name(st), l->message);
  memcpy(l->P, l->directions[0], sizeof l->P);
  for (int32_t r = 0; r < ranks; r++) {
    if (memcmp(l->directions[r], l->directions[0], sizeof l->P) != 0)
      fail_msg("%s: rank %d of %d has other bits", text, r, ranks);
    if (l->wrong[r] != 0)
      fail_msg("%s: %d calls succeeded that must be refused", text, l->wrong[r]);
  }
  for (int32_t r = 0; r < ranks; r++)
    free(l->directions[r]);
  l->options = NULL;
  return l;
}

static double compute_gap(const test_run *a, const test_run *b, int64_t from) {
  double worst = 0;
  for (int64_t t = from; t < STEPS; t++) {
    double most = 0, e = 0;
    for (int64_t i = 0; i < D; i++) {
      most = fmax(most, fabs((double)b->P[t][i]));
      const double x = fabs((double)a->P[t][i] - (double)b->P[t][i]);
      e = x <= e ? e : x;
    }
    if (!(most > 0) || !isfinite(e)) return INFINITY;
    worst = fmax(worst, e / most);
  }
  return worst;
}

static const char *const windows[] = {
    "method=mfac window=3 damping=0.1",
    "method=mfac window=3 damping=0.1 window_dtype=bf16 stat_period=2 window_momentum=0.5",
    "method=mfac window=4 damping=0.1 window_momentum=0.6 window_momentum_form=heavy-ball clip=rms "
    "clip_bound=0.5",
    "method=mfac window=3 damping=0.1 window_scope=parameter window_decay=0.1 "
    "window_decay_form=direction clip=kl",
    "method=mfac window=3 damping=0.1 window_scope=group window_mask=1",
    "method=mfac window=3 damping=0.1 update=sgd update_ranks=owner",
    "method=ggt window=3 damping=0.5 window_momentum=0.5 window_forget=0.9 stat_period=2",
    "method=ggt window=3 damping=0.5",
    "method=efcp window=3 damping=0.1 window_density=0.3 window_store=topk-layer stat_period=2",
    "method=efcp window=3 damping=0.1 window_density=0.3 window_store=topk-block window_fill=added "
    "window_dtype=bf16 window_momentum=0.5 update=sgd",
    "method=efcp window=3 damping=0.1 window_density=0.3 window_scope=parameter",
    "method=efcp window=3 damping=0.1 window_density=0.3 window_scope=group",
    "method=efcp window=3 damping=0.1 window_density=0.3 stat_period=2",
    "method=efcp window=3 damping=0.1 window_density=0.05 window_fill=added window_dtype=bf16 "
    "window_momentum=0.5 update=sgd window_feedback_lr=1",
    "method=sparse-ggt window=3 damping=0.5 window_density=0.1 window_forget=0.9 "
    "window_momentum=0.5 window_momentum_form=gradient stat_period=2",
    "method=topk-sgd window_density=0.1 window_momentum=0.5",
    "method=topk-sgd window_density=0.1 window_store=topk-layer window_momentum=0.5",
    "method=topk-adam window_density=0.1 window_store=topk-block damping=0.01",
    "method=topk-adagrad window_density=0.1 window_store=topk-layer damping=0.01",
    "method=efcp window=3 damping=0.1 window_density=0.3 window_mask=1",
    "method=efcp window=3 damping=0.1 window_density=0.3 window_store=topk-layer window_mask=1",
    "method=efcp window=3 damping=0.1 window_density=900 window_mask=1",
    "method=sparse-ggt window=3 damping=0.5 window_density=0.1 window_store=topk-block "
    "window_forget=0.9 "
    "window_momentum=0.5 window_momentum_form=gradient",
    "method=efcp window=3 damping=0.1 window_density=0.1 window_decay=0.1 "
    "window_decay_form=gradient",
    "method=lowrank-mfac window=3 damping=0.1 window_rank=2 window_momentum=0.3",
    "method=lowrank-mfac window=3 damping=0.1 window_rank=2 window_scope=group stat_period=2"};
enum { WINDOWS = sizeof windows / sizeof windows[0] };

/* Each window runs on 2, 3 or 4 ranks in turn: whole windows have the bits of one rank, slices agree. */
static void ranks_equal_one_rank(void **state) {
  for (int k = 0; k < WINDOWS; k++) {
    test_run *one = run_ranks(1, windows[k], "", NULL, NULL);
    const int32_t ranks = 2 + k % (MOST - 1);
    test_run *all = run_ranks(ranks, windows[k], "", NULL, NULL),
             *part = run_ranks(ranks, windows[k], SHARDED, NULL, NULL);
    if (memcmp(one->P, all->P, sizeof one->P) != 0)
      fail_msg("%s: the bits of %d ranks differ from the bits of one rank", windows[k], ranks);
    const double e = compute_gap(part, one, 0);
    if (!(e <= 1e-6)) fail_msg("%s, %d slices: off by %g", windows[k], e, ranks);
    free(all);
    free(part);
    free(one);
  }
}

/* Each rank stores 1/W of rows, errors and momentum, and the whole Gram matrix.  Slices begin inside `long`, at
 * borders of parameters or of blocks, so they are uneven.  2,000 bytes are for arrays that begin on cache lines. */
static void ranks_share_the_memory(void **state) {
  static const struct {
    const char *options;
    int64_t row, rest; /* bytes of one row of the window; bytes of everything else */
  } want[] = {{"method=mfac window=15 damping=0.1 window_momentum=0.5", 4 * D, 4 * D},
              {"method=mfac window=15 damping=0.1 window_dtype=bf16 window_mask=1", 2 * D, D}};
  for (int k = 0; k < 2; k++) {
    for (int32_t ranks = 1; ranks <= MOST; ranks++) {
      test_run *l = run_ranks(ranks, want[k].options, SHARDED, NULL, NULL);
      for (int32_t r = 0; r < ranks; r++) {
        /* Gram matrix and factor */
        const int64_t bytes = (16 * want[k].row + want[k].rest) / ranks + 2 * 16 * 16 * 8;
        if (llabs(l->factors[r] - bytes) > 2000)
          fail_msg("%s: rank %d of %d has %lld bytes, expected %lld", want[k].options, r, ranks,
                   (long long)l->factors[r], (long long)bytes);
      }
      free(l);
    }
  }
  for (
      int32_t ranks = 2; ranks <= MOST;
      ranks++) { /* the k entries may all be in one slice, so each slice has memory for whole rows */
    test_run *l = run_ranks(ranks, "method=efcp window=15 window_density=0.1", SHARDED, NULL, NULL);
    int64_t error = 0;
    for (int32_t r = 0; r < ranks; r++) {
      const int64_t rows = 16 * (6 * (D / 10) + 4 * 3) + 2 * 16 * 16 * 8;
      error += l->factors[r] - rows;
      if (l->factors[r] - rows > 4 * (D - 32768) + 2000)
        fail_msg("rank %d of %d has %lld bytes", r, ranks, (long long)l->factors[r]);
    }
    if (llabs(error - (int64_t)(4 * D)) > 2000 * ranks)
      fail_msg("%d ranks store %lld bytes of error feedback, expected about %d", ranks,
               (long long)error, 4 * D);
    free(l);
  }
}

/* A state of several ranks resumes on as many, on fewer, or on one rank.  The number of slices does not change the
 * stored rows. */
static void states_resume_on_other_ranks(void **state) {
  const char *file[2] = {in_folder("whole"), in_folder("slices")};
  for (int k = 0; k < WINDOWS; k++) {
    if (strstr(windows[k], "=owner") != NULL) continue; /* moments are on other ranks */
    test_run *one = run_ranks(1, windows[k], "", NULL, file[0]);
    ngio_tensors *whole = must_read_tensors(file[0]);
    const int32_t ranks = 2 + k % (MOST - 1);
    test_run *part = run_ranks(ranks, windows[k], SHARDED, NULL, file[1]);
    test_run *same = run_ranks(ranks, windows[k], SHARDED, file[1], NULL);
    test_run *less = run_ranks(ranks - 1, windows[k], ranks == 3 ? "" : SHARDED, file[1], NULL);
    test_run *more = run_ranks(ranks, windows[k], SHARDED, file[0], NULL);
    if (memcmp(part->P[AT], same->P[AT], (STEPS - AT) * sizeof part->P[0]) != 0)
      fail_msg("%s, %d slices: other bits after a resume", windows[k], ranks);
    const double e = fmax(compute_gap(less, one, AT), compute_gap(more, one, AT));
    if (!(e <= 1e-6))
      fail_msg("%s: off by %g after a resume with another number of slices (%d)", windows[k], e,
               ranks);
    ngio_tensors *slices = must_read_tensors(file[1]);
    assert_int_equal(ngio_tensors_count(slices), ngio_tensors_count(whole));
    for (int32_t i = 0; i < ngio_tensors_count(whole); i++) {
      const ngio_tensor *a = ngio_tensors_at(whole, i), *b = ngio_tensors_at(slices, i);
      assert_string_equal(a->name, b->name);
      assert_int_equal(a->bytes, b->bytes);
      if (strstr(a->name, "/gram") != NULL || strstr(a->name, "/momentum") != NULL) continue;
      if (memcmp(a->data, b->data, (size_t)a->bytes) != 0)
        fail_msg("%s: %s of %d slices has other bits", windows[k], a->name, ranks);
    }
    ngio_tensors_close(&slices);
    ngio_tensors_close(&whole);
    free(part);
    free(same);
    free(less);
    free(more);
    free(one);
  }
}

/* ng_ready sets the groups of the window; the state stores them. */
static void states_belong_to_their_groups(void **state) {
  const char *file = in_folder("groups");
  float g[6] = {1, 2, 3, 4, 5, 6};
  const plane v[2] = {plane_of(g, 1, 3, NG_F32), plane_of(g + 3, 1, 3, NG_F32)};
  for (int k = 0; k < 2; k++) {
    fixture f;
    fixture_ok(&f, fixture_open(&f, "method=mfac window=2 window_scope=group", NULL));
    fixture_ok(&f, fixture_add_tensor(&f, "a", &v[0], NULL));
    fixture_ok(&f, fixture_add_tensor(&f, "b", &v[1], NULL));
    fixture_ok(&f, ng_set_group(f.p, k, NG_WEIGHT, 1));
    fixture_ok(&f, ng_ready(f.p));
    if (k == 0) {
      fixture_ok(&f, ng_step(f.p, 1));
      fixture_ok(&f, ng_set_group(f.p, 1, NG_WEIGHT, 1)); /* changes the groups of updates only */
      fixture_ok(&f, ng_save(f.p, file));
    } else {
      fixture_fails(&f, ng_load(f.p, file), NG_ERR_FILE, "group=1");
    }
    fixture_close(&f);
  }
}

/* ---- where slices begin ----------------------------------------------------------------------*/

/* Slices begin as near to equal shares as the store allows: top-k by layer and low rank at parameters, other top-k at
 * blocks, dense rows anywhere.  Of two equally near positions they begin at the first. */
enum { TENSORS = 4, BLOCK = 32768, BORDERS = 64 };

typedef struct cutting {
  const char *options;
  int64_t size[TENSORS], cut[MOST][MOST + 1];
  int32_t tensors, ranks;
  float *g;
} cutting;

static ng_status read_slice_bounds(int32_t rank, ng_transport *t, void *arg) {
  cutting *m = arg;
  fixture f = {0};
  ng_status st = fixture_open(&f, m->options, &(fixture_how){.threads = 1, .transport = t});
  float *g = m->g;
  for (int32_t i = 0; i < m->tensors && st == NG_OK; g += m->size[i++]) {
    char name[8] = {(char)('a' + i), 0};
    const plane v = plane_of(g, 1, m->size[i], NG_F32);
    st = fixture_add_tensor(&f, name, &v, NULL);
  }
  if (st == NG_OK) st = ng_ready(f.p);
  if (st == NG_OK)
    memcpy(m->cut[rank], ng_window_of(f.p->block[0])->cut,
           (size_t)(m->ranks + 1) * sizeof **m->cut);
  fixture_close(&f);
  return st;
}

static int64_t nearest(const int64_t *border, int n, int64_t at) {
  int64_t best = 0;
  for (int i = 0; i < n; i++)
    if (llabs(border[i] - at) < llabs(best - at)) best = border[i];
  return best;
}

/* Append the positions from + step, from + 2 step, ... below `to`, and `to`; step = 0: only `to`. */
static int append_borders(int64_t *border, int n, int64_t from, int64_t to, int64_t step) {
  for (int64_t at = from + step; step > 0 && at < to; at += step)
    border[n++] = at;
  border[n++] = to;
  return n;
}

static void slices_are_near_equal_shares(void **state) {
  static const char *const stores[] = {"method=mfac", "method=efcp window_store=topk-layer",
                                       "method=efcp window_store=topk-block", "method=lowrank-mfac",
                                       "method=efcp"};
  rng r = {test_seed()};
  for (int64_t n = 0; n < test_repetitions(120); n++) {
    const int kind = (int)(n % 5);
    const bool blocks = kind == 2 || kind == 4;
    char options[120];
    int64_t border[BORDERS] = {0}, all = 0;
    int borders = 0;
    cutting m = {.options = options,
                 .tensors = 1 + (int32_t)rng_below(&r, TENSORS),
                 .ranks = 2 + (int32_t)rng_below(&r, MOST - 1)};
    (void)snprintf(options, sizeof options, "%s window=2 statistics=sharded", stores[kind]);
    for (int32_t i = 0; i < m.tensors; i++) {
      m.size[i] = 1 + rng_below(&r, blocks && n % 10 < 5 ? 3 * BLOCK : 40);
      if (kind % 2 == 1) borders = append_borders(border, borders, all, all + m.size[i], 0);
      all += m.size[i];
    }
    if (blocks) borders = append_borders(border, 0, 0, all, BLOCK);
    m.g = calloc((size_t)all, sizeof *m.g);
    assert_non_null(m.g);
    const ng_status st = ranks_run(m.ranks, read_slice_bounds, &m, NULL);
    if (st != NG_OK) fail_msg("%s: %s", options, ng_status_name(st));
    for (int32_t k = 0; k <= m.ranks; k++) {
      int64_t from, to;
      ng_piece_bounds(all, m.ranks, k < m.ranks ? k : 0, &from, &to);
      const int64_t want = k == m.ranks ? all : kind == 0 ? from : nearest(border, borders, from);
      for (int32_t rank = 0; rank < m.ranks; rank++)
        if (m.cut[rank][k] != want)
          fail_msg("%s: slice %d of %d of %lld begins at %lld, expected %lld", options, k, m.ranks,
                   (long long)all, (long long)m.cut[rank][k], (long long)want);
    }
    free(m.g);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(slices_are_near_equal_shares),
      cmocka_unit_test(ranks_equal_one_rank),
      cmocka_unit_test(ranks_share_the_memory),
      cmocka_unit_test(states_resume_on_other_ranks),
      cmocka_unit_test(states_belong_to_their_groups),
  };
  return cmocka_run_group_tests_name("windows on ranks", tests, make_folder, delete_folder);
}
