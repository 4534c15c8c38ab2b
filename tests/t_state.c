/* t_state.c: k steps, save, load and N - k steps equal N steps, bit for bit.  The file is the same for other
 * ranks, layouts and linear algebras, and in the published order.  Tests compare bytes, with one documented
 * exception.  Other tests: refused files t_state_refused.c, faults t_state_faults.c. */
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ranks.h"
#include "safetensors.h"
#include "state/state.h"
#include "state_help.h"

/* ---- resumed runs ----------------------------------------------------------------------------*/

enum { STEPS = 7, RANKS = 3 };

typedef struct resume {
  sim_setup how;
  int64_t k;      /* steps before the save */
  int64_t set_at; /* step before which live options change; -1: never */
  /* live options that the resumed run is created with; the state replaces them */
  const char *wrong;
  /* hashes of gradients and weights after each step */
  uint64_t first[RANKS][STEPS], again[RANKS][STEPS];
  path at_k, loaded, end, end_again;
} resume;

static uint64_t hash_gradients_and_weights(const sim *s) {
  const size_t bytes = (size_t)s->weight_count * sizeof *s->grad;
  return sim_hash(sim_hash(1, s->grad, bytes), s->weight, bytes);
}

/* Take the steps [from, to), and store the hash after each step. */
static ng_status take_steps(sim *s, const resume *r, int64_t from, int64_t to, uint64_t *hashes) {
  ng_status st = NG_OK;
  for (int64_t t = from; t < to && st >= NG_OK; t++) {
    if (t == r->set_at) {
      const bool damped = strcmp(r->how.method, "sam") != 0;
      st = damped ? ng_set(s->p, "damping", "0.02") : NG_OK;
      if (st == NG_OK) st = ng_set(s->p, "stat_decay", "0.7");
    }
    if (st >= NG_OK) st = sim_step(s, t);
    if (hashes != NULL) hashes[t] = hash_gradients_and_weights(s);
  }
  return st < NG_OK ? st : NG_OK;
}

static ng_status run_whole_and_resumed(int32_t rank, ng_transport *t, void *arg) {
  resume *r = arg;
  sim a, b;
  sim_setup other = r->how;
  char set[512];
  ng_status st = sim_open(&a, &r->how, t, NULL);
  if (st == NG_OK) st = take_steps(&a, r, 0, r->k, r->first[rank]);
  if (st == NG_OK) st = ng_save(a.p, r->at_k.text);
  float *weights = malloc((size_t)a.weight_count * sizeof *weights);
  if (weights == NULL) st = NG_ERR_NOMEM;
  if (st == NG_OK) memcpy(weights, a.weight, (size_t)a.weight_count * sizeof *weights);
  if (st == NG_OK) st = take_steps(&a, r, r->k, STEPS, r->first[rank]);
  if (st == NG_OK) st = ng_save(a.p, r->end.text);
  if (st != NG_OK)
    fprintf(stderr, "rank %d: %s %s\n", rank, a.message, a.ctx ? ng_last_error(a.ctx) : "");
  sim_close(&a);

  (void)snprintf(set, sizeof set, "%s; %s", r->wrong, r->how.set);
  other.set = set;
  if (st == NG_OK) {
    st = sim_open(&b, &other, t, NULL);
    if (st == NG_OK) st = ng_load(b.p, r->at_k.text);
    if (st == NG_OK) st = ng_save(b.p, r->loaded.text);
    if (st == NG_OK) memcpy(b.weight, weights, (size_t)b.weight_count * sizeof *weights);
    if (st == NG_OK) st = take_steps(&b, r, r->k, STEPS, r->again[rank]);
    if (st == NG_OK) st = ng_save(b.p, r->end_again.text);
    if (st != NG_OK)
      fprintf(stderr, "rank %d: %s %s\n", rank, b.message, b.ctx ? ng_last_error(b.ctx) : "");
    sim_close(&b);
  }
  free(weights);
  return st;
}

static void resume_and_compare(const sim_setup *how, int32_t ranks, int64_t k, int64_t set_at) {
  resume r = {
      .how = *how, .k = k, .set_at = set_at, .wrong = "damping=0.9 stat_decay=0.1 clip=none"};
  if (strstr(how->set, "solver=eigen") != NULL) {
    r.wrong = "damping=0.9 stat_decay=0.1 clip=none eigen_floor=0.5";
  }
  if (strcmp(how->method, "sam") == 0) r.wrong = "stat_decay=0.1";
  r.at_k = path_of("k");
  r.loaded = path_of("loaded");
  r.end = path_of("end");
  r.end_again = path_of("end2");
  const ng_status st = ranks_run(ranks, run_whole_and_resumed, &r, NULL);
  if (st != NG_OK) fail_msg("%s %s: %s", how->method, how->set, ng_status_name(st));
  for (int32_t rank = 0; rank < ranks; rank++) {
    for (int64_t t = k; t < STEPS; t++) {
      if (r.first[rank][t] != r.again[rank][t]) {
        fail_msg("%s %s, %d ranks, saved after %d: step %d differs on rank %d", how->method,
                 how->set, ranks, (int)k, (int)t, rank);
      }
    }
    /* the steps differ from each other */
    assert_true(r.first[rank][STEPS - 1] != r.first[rank][STEPS - 2]);
  }
  assert_same_file(r.at_k.text, r.loaded.text);
  assert_same_file(r.end.text, r.end_again.text);
  const char *made[] = {r.at_k.text, r.loaded.text, r.end.text, r.end_again.text};
  for (int i = 0; i < 4; i++) {
    assert_int_equal(unlink(made[i]), 0);
  }
}

#define PERIODS "stat_period=2 solve_period=3"

static const sim_setup rows[] = {
    {.method = "natgrad", .set = ""},
    {.method = "natgrad", .set = "stat_period=2 solve_period=1"},
    {.method = "natgrad", .set = PERIODS " update=sgd"},
    {.method = "natgrad",
     .set = "update=adamw clip=rescale",
     .vary = SIM_OWN,
     .layer_options = "damping=0.05 solver=eigen"},
    {.method = "natgrad", .set = PERIODS " factor_dtype=bf16 inverse_dtype=f16 update=sgd"},
    {.method = "natgrad", .set = "solver=eigen damping_split=joint inverse_dtype=bf16 " PERIODS},
    {.method = "natgrad", .set = "solver=eigen-prediv damping_split=joint update=adamw " PERIODS},
    {.method = "natgrad", .set = "max_factor=8 factor_blocks=2", .vary = SIM_NHWC},
    {.method = "natgrad", .set = "calls=ema stat_start=identity", .micro = 2},
    {.method = "natgrad", .set = "skip_layers=conv update=sgd"},
    {.method = "natgrad", .set = "solve_period=2"},
    {.method = "kaisa", .set = ""},
    {.method = "kaisa", .set = "solver=cholesky damping_split=full " PERIODS " factor_dtype=bf16"},
    {.method = "mpd-kfac",
     .set = "solver=cholesky eigen_floor=0 damping_split=pi damping_leak=owner " PERIODS},
    {.method = "dp-kfac", .set = ""},
    {.method = "dp-kfac", .set = "update=sgd " PERIODS},
    {.method = "eva", .set = "stat_period=2 update=sgd"},
    {.method = "eva", .set = "clip=rescale", .micro = 2, .vary = SIM_NHWC},
    {.method = "eva-natgrad",
     .set = "update=adamw calls=last",
     .vary = SIM_OWN,
     .layer_options = "damping=0.05 stat_batch=2"},
    {.method = "eva-f", .set = "stat_period=2"},
    {.method = "adasgd", .set = "update=sgd clip=rms clip_bound=0.1"},
    {.method = "sam", .set = "update=sgd stat_scale=textbook " PERIODS},
    {.method = "eva-kfac", .set = "update=sgd " PERIODS},
};

static void a_resumed_run_has_the_same_bits(void **state) {
  static const int64_t ks[] = {1, 4};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    sim_setup how = rows[i];
    how.threads = 1 + (int32_t)(i % 4);
    resume_and_compare(&how, 1, ks[i % 2], i % 3 == 0 ? 0 : -1);
  }
  /* one method is saved before each step k, including the first */
  for (int64_t k = 0; k < STEPS; k++) {
    resume_and_compare(&rows[2], 1, k, 2);
  }
}

/* Ranks are threads, so the linear algebra is ref: a BLAS may start threads of its own. */
static void resumed_ranks_have_the_same_bits(void **state) {
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    sim_setup how = rows[i];
    how.linalg = "ref";
    resume_and_compare(&how, 2 + (int32_t)(i % 2), 1 + (int64_t)(i % 5), i % 3 == 1 ? 0 : -1);
  }
  static const sim_setup placed[] = {
      {.method = "natgrad", .set = "grad_worker_fraction=0 update=sgd", .linalg = "ref"},
      {.method = "kaisa", .set = "grad_worker_fraction=0 " PERIODS, .linalg = "ref"},
      {.method = "natgrad", .set = "statistics=local grad_worker_fraction=0", .linalg = "ref"},
      {.method = "natgrad", .set = "statistics=local grad_worker_fraction=1", .linalg = "ref"},
      {.method = "mpd-kfac", /* only the owner of G stores these numbers */
       .set = "solver=cholesky eigen_floor=0 damping_split=pi damping_leak=owner statistics=owner "
              "colocate=0 placement=round-robin " PERIODS,
       .linalg = "ref"},
  };
  for (size_t i = 0; i < sizeof placed / sizeof placed[0]; i++) {
    resume_and_compare(&placed[i], 3, 4, -1);
  }
  /* a state with the damping of the last solve, which the owners of A and G store, and a damping set later */
  const sim_setup kept = {
      .method = "natgrad",
      .set = "solver=eigen-prediv damping_split=joint colocate=0 placement=round-robin " PERIODS,
      .linalg = "ref"};
  resume_and_compare(&kept, 3, 2, 1);
}

/* ---- other readers of the same file ----------------------------------------------------------*/

/* The file does not depend on the number of ranks that wrote it, the layout of images, the owners of results or
 * the linear algebra. */
static void the_file_depends_on_the_model_only(void **state) {
  static const sim_setup how[] = {
      {.method = "natgrad", .set = "update=sgd grad_worker_fraction=0", .linalg = "ref"},
      {.method = "natgrad",
       .set = "update=sgd placement=kaisa-memory colocate=0 grad_worker_fraction=1",
       .vary = SIM_NHWC},
      {.method = "natgrad", .set = "update=sgd grad_worker_fraction=0", .linalg = "ref"},
  };
  const path a = path_of("three"), b = path_of("one"), c = path_of("two");
  must_transfer(3, (transfer){.how = &how[0], .steps = 3, .one = a.text});
  must_transfer(1, (transfer){.how = &how[1], .load = a.text, .one = b.text});
  must_transfer(2, (transfer){.how = &how[2], .load = b.text, .one = c.text});
  /* files a and b differ in the option only */
  assert_same_file(a.text, c.text);
  assert_int_equal(unlink(a.text), 0);
  assert_int_equal(unlink(b.text), 0);
  assert_int_equal(unlink(c.text), 0);
}

/* A of a convolution in the file is by definition (1/B) sum over samples and positions of p p', p: the patch in
 * (channel, kernel row, kernel column) order, with a 1 at the end. */
static void states_have_the_published_order(void **state) {
  enum { B = 2, C = 2, K = 3, H = 4, W = 3, O = 2, P = C * K * K + 1 };
  fixture f;
  int32_t conv;
  float x[B * C * H * W], g[B * O * H * W], dw[O * (P - 1)], db[O];
  double A[P * P] = {0};
  for (int i = 0; i < B * C * H * W; i++)
    x[i] = (float)((i * 37) % 23 - 11) / 8;
  for (int i = 0; i < B * O * H * W; i++)
    g[i] = (float)((i * 29) % 17 - 8) / 8;
  for (int i = 0; i < O * (P - 1); i++)
    dw[i] = 1;
  db[0] = db[1] = 1;
  const plane w = plane_of(dw, O, P - 1, NG_F32), bias = plane_of(db, 1, O, NG_F32);
  const plane vx = plane_images(x, PLANE_NCHW, B, C, H, W, NG_F32);
  const plane vg = plane_images(g, PLANE_NCHW, B, O, H, W, NG_F32);
  const path file = path_of("conv");
  fixture_ok(&f, fixture_open(&f, "method=natgrad", NULL));
  fixture_ok(&f, plane_add_conv2d(f.p, "c", C, O, K, 1, 1, H, W, 1, &conv));
  fixture_ok(&f, fixture_bind(&f, conv, NG_WEIGHT, &w, NULL));
  fixture_ok(&f, fixture_bind(&f, conv, NG_BIAS, &bias, NULL));
  fixture_ok(&f, ng_ready(f.p));
  fixture_ok(&f, fixture_begin_and_observe(&f, B, conv, &vx, &vg));
  fixture_ok(&f, ng_step(f.p, 0.1));
  fixture_ok(&f, ng_save(f.p, file.text));
  for (int n = 0; n < B; n++) {
    for (int pos = 0; pos < H * W; pos++) {
      double patch[P];
      for (int c = 0; c < C; c++) {
        for (int k = 0; k < K * K; k++) {
          const int row = pos / W + k / K - 1, col = pos % W + k % K - 1;
          const bool inside = row >= 0 && row < H && col >= 0 && col < W;
          patch[c * K * K + k] = inside ? (double)x[((n * C + c) * H + row) * W + col] : 0;
        }
      }
      patch[P - 1] = 1;
      for (int i = 0; i < P * P; i++)
        A[i] += patch[i / P] * patch[i % P] / B;
    }
  }
  ngio_tensors *saved = must_read_tensors(file.text);
  const ngio_tensor *t = ngio_tensors_find(saved, "c/A");
  assert_non_null(t);
  assert_int_equal(t->ndim, 1);
  assert_int_equal(t->shape[0], P * (P + 1) / 2);
  int at = 0;
  for (int i = 0; i < P; i++) {
    for (int j = 0; j <= i; j++, at++) {
      /* f32 sums of at most 24 products below 4: 24 * 4 * 2^-24 < 1e-5 */
      if (!(fabs((double)((const float *)t->data)[at] - A[i * P + j]) <= 1e-5)) {
        fail_msg("A[%d,%d] is %g, expected %g", i, j, (double)((const float *)t->data)[at],
                 A[i * P + j]);
      }
    }
  }
  ngio_tensors_close(&saved);
  assert_int_equal(unlink(file.text), 0);
  fixture_close(&f);
}

/* The memory index of published index i: published (channel, offset) is stored as (offset, channel); a bias is
 * last. */
static int64_t get_memory_index(int64_t i, int64_t offsets, int64_t channels) {
  if (offsets <= 1 || i >= offsets * channels) return i;
  return i % offsets * channels + i / offsets;
}

/* Compare exported elements with the definition, for every size, kernel and width, and import them again. */
static void exported_order_matches_the_definition(void **state) {
  static const ng_dtype type[] = {NG_U8, NG_BF16, NG_F32, NG_F64};
  for (int64_t n = 1; n <= 24; n++) {
    for (int64_t offsets = 1; offsets <= 6; offsets++) {
      for (int bias = 0; bias <= 1; bias++) {
        for (int sym = 0; sym <= 1; sym++) {
          if (n <= bias || (n - bias) % offsets != 0) continue;
          const ng_dtype t = type[(n + offsets + sym) % 4];
          const size_t size = (size_t)ng_dtype_size(t);
          const int64_t channels = (n - bias) / offsets;
          ng_field f = {.dtype = t,
                        .is_symmetric = sym,
                        .rows = n,
                        .cols = n,
                        .row_offsets = offsets,
                        .row_channels = channels,
                        .col_offsets = offsets,
                        .col_channels = channels};
          if (!sym && n % 2 != 0) f.row_offsets = 1;
          const int64_t count = ng_field_count(&f);
          unsigned char memory[24 * 24 * 8], file[24 * 24 * 8], back[24 * 24 * 8];
          for (size_t i = 0; i < (size_t)count * size; i++)
            memory[i] = (unsigned char)(i * 7 + i / 251);
          ng_field_export(&f, memory, file);
          int64_t at = 0;
          for (int64_t r = 0; r < n; r++) {
            for (int64_t c = 0; c < (sym ? r + 1 : n); c++, at++) {
              const int64_t i = get_memory_index(r, f.row_offsets, f.row_channels);
              const int64_t j = get_memory_index(c, offsets, channels);
              const int64_t from = sym ? ng_sym_at(n, i, j) : i * n + j;
              assert_memory_equal(file + (size_t)at * size, memory + (size_t)from * size, size);
            }
          }
          assert_int_equal(at, count);
          ng_field_import(&f, file, back);
          assert_memory_equal(back, memory, (size_t)count * size);
        }
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_resumed_run_has_the_same_bits),
      cmocka_unit_test(resumed_ranks_have_the_same_bits),
      cmocka_unit_test(the_file_depends_on_the_model_only),
      cmocka_unit_test(states_have_the_published_order),
      cmocka_unit_test(exported_order_matches_the_definition),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_empty_folder);
}
