/* t_cuda_state.c: states and factors of a context with linalg = cuda, on the stand-in. If the device has failed, no call gives data to
 * the caller, and no rank waits for another one. A state moves between `ref` and the device bit for bit. */
#include "unit_test.h"

#include <stdlib.h>
#include <string.h>

#include "cuda_model.h"
#include "folder.h"
#include "ranks.h"
#include "state/state.h"

/* ---- calls after a failure -------------------------------------------------------------------*/

static int32_t count_bytes(void *user, const void *data, int64_t bytes) {
  (void)data;
  *(int64_t *)user += bytes;
  return 0;
}
static int64_t read_nothing(void *user, void *data, int64_t bytes) {
  (void)user, (void)data, (void)bytes;
  return 0;
}

enum {
  SAVE,
  SAVE_TO,
  SAVE_LOCAL,
  SAVE_PARTS,
  SAVE_FACTORS,
  MANIFEST,
  STATE_READ,
  FACTORS_READ,
  LOAD,
  LOAD_FROM,
  LOAD_FACTORS,
  SYNC,
  CALLS
};

/* Make the call; *given: bytes that the caller received. */
static ng_status call_number(int call, ng_precond *p, int64_t *given) {
  static char text[1 << 16];
  static float array[MOST];
  static double side[2][MOST];
  ng_factors f = {.struct_size = sizeof f, .left = side[0], .right = side[1]};
  ng_field_info info = {.struct_size = sizeof info};
  int64_t length;
  ng_status st;
  switch (call) {
  case SAVE:
    return ng_save(p, in_folder("state"));
  case SAVE_TO:
    return ng_save_to(p, count_bytes, given);
  case SAVE_LOCAL:
    return ng_save_local(p, count_bytes, given);
  case SAVE_PARTS:
    return ng_save_parts(p, in_folder("state"));
  case SAVE_FACTORS:
    return ng_save_factors(p, in_folder("factors"));
  case MANIFEST:
    length = ng_state_manifest(p, text, sizeof text);
    *given += length > 0;
    return length > 0 ? NG_OK : (ng_status)length;
  case STATE_READ:
    st = ng_state_at(p, 0, &info);
    array[0] = -77.0F;
    if (st == NG_OK) st = ng_state_read(p, 0, array, info.bytes);
    *given += array[0] != -77.0F;
    return st;
  case FACTORS_READ:
    side[0][0] = -77.0;
    st = ng_factors_read(p, 0, &f);
    *given += side[0][0] != -77.0;
    return st;
  case LOAD:
    return ng_load(p, in_folder("state"));
  case LOAD_FROM:
    return ng_load_from(p, read_nothing, NULL);
  case LOAD_FACTORS:
    return ng_load_factors(p, in_folder("factors"), NULL);
  default:
    return ng_sync(p);
  }
}

/* A wait fails in the call, for a step of Eva, or before it, for discarded observations. */
static void no_call_gives_data_of_a_failed_device(void **state) {
  static const struct {
    const char *options;
    bool factors; /* the method has factors of a layer */
  } runs[] = {{"method=eva; update=sgd", false}, {"method=natgrad; update=sgd", true}};
  for (int i = 0; i < 2 * CALLS; i++) {
    const int call = i / 2;
    const bool factors = runs[i % 2].factors;
    if (call == FACTORS_READ && !factors) continue;
    model m;
    rng r = {61};
    size_t n[2];
    int64_t given = 0;
    open_model(&m, true, runs[i % 2].options, &r);
    observe(&m, &r);
    fixture_ok(&m.f, step(&m, "sgd"));
    fixture_ok(&m.f, ng_save(m.f.p, in_folder("state")));
    fixture_ok(&m.f, ng_save_factors(m.f.p, in_folder("factors")));
    unsigned char *was = read_file(in_folder("state"), &n[0]);
    observe(&m, &r);
    if (!factors) fixture_ok(&m.f, step(&m, "sgd")); /* does not wait */
    standin_fail(m.desk, STANDIN_WAIT, 0);
    if (factors) fixture_ok(&m.f, ng_reset_batch(m.f.p)); /* waits */
    const ng_status st = call_number(call, m.f.p, &given);
    if (st != NG_ERR_DEVICE) fail_msg("call %d of '%s': status %d", call, runs[i % 2].options, st);
    fixture_fails(&m.f, st, NG_ERR_DEVICE, "linalg = cuda: ");
    fixture_fails(&m.f, st, NG_ERR_DEVICE, "a wait fails on demand");
    assert_int_equal(given, 0);
    unsigned char *is = read_file(in_folder("state"), &n[1]);
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(was, is, n[0]);
    fixture_fails(&m.f, call_number(call, m.f.p, &given), NG_ERR_COMM, "the device failed before");
    assert_int_equal(given, 0);
    free(was);
    free(is);
    close_model(&m);
  }
}

/* A call that reads the state waits for the steps that are still running. */
static void a_call_waits_for_running_steps(void **state) {
  for (int call = SAVE_FACTORS; call <= STATE_READ; call++) {
    model m;
    rng r = {67};
    int64_t given = 0;
    open_model(&m, true, "method=eva; update=sgd", &r);
    observe(&m, &r);
    fixture_ok(&m.f, step(&m, "sgd"));
    const int64_t launches = standin_count(m.desk).launches;
    fixture_ok(&m.f, call_number(call, m.f.p, &given));
    assert_true(standin_count(m.desk).launches > launches);
    close_model(&m);
  }
}

/* A launch fails in ng_ready, which names the block. */
static void a_failed_launch_fails_ng_ready(void **state) {
  static const char blocks[] = "aabbcc"; /* A and G of each layer */
  for (int64_t after = 0; after <= (int64_t)strlen(blocks); after++) {
    model m;
    rng r = {71};
    char says[] = "ng_ready: linalg = cuda: block '?': a launch fails on demand";
    open_context(&m, true, "method=natgrad; stat_start=identity");
    for (int i = 0; i < LAYERS; i++) {
      add_layer(&m, i, &r);
    }
    standin_fail(m.desk, STANDIN_LAUNCH, after);
    const ng_status st = ng_ready(m.f.p);
    if (after < (int64_t)strlen(blocks)) {
      *strchr(says, '?') = blocks[after];
      fixture_fails(&m.f, st, NG_ERR_DEVICE, says);
      fixture_fails(&m.f, ng_ready(m.f.p), NG_ERR_COMM, "the device failed before");
    } else {
      fixture_ok(&m.f, st);
    }
    close_model(&m);
  }
}

/* Two models on one context. After the first one is destroyed, an error of the other one does not name its blocks, whose names are
 * freed. */
static void errors_do_not_name_a_destroyed_model(void **state) {
  model m;
  rng r = {73};
  ng_precond *second = NULL;
  float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  open_model(&m, true, "method=natgrad", &r);
  fixture_ok(&m.f, ng_precond_create(m.f.ctx, "method=natgrad", &second));
  fixture_ok(&m.f, ng_add_linear(second, "second", 2, 4, 0, NULL));
  fixture_ok(&m.f, ng_ready(second));
  const ng_array a = ng_array_matrix(x, 4, 2, NG_F32);
  ng_batch batch = batch_of(4);
  fixture_ok(&m.f, ng_begin(second, &batch));
  fixture_ok(&m.f, ng_observe_input(second, 0, &a, NG_COPY));
  observe(&m, &r);
  fixture_ok(&m.f, step(&m, "gradient"));
  ng_precond_destroy(&m.f.p);
  m.f.p = second; /* fixture_close destroys it */
  standin_fail(m.desk, STANDIN_LAUNCH, 0);
  fixture_ok(&m.f, ng_reset_batch(second));
  const ng_status st = ng_save(second, in_folder("second"));
  fixture_fails(&m.f, st, NG_ERR_DEVICE, "linalg = cuda: a launch fails on demand");
  close_model(&m);
}

/* ---- ranks -----------------------------------------------------------------------------------*/

enum { RANKS = 2, ROWS = 3, COLS = 4 };

typedef struct failing_rank {
  bool saves;           /* the last call is ng_save, otherwise two steps */
  standin_failure what; /* of rank 1 */
  int64_t after;
  ng_status status[RANKS][2]; /* of the last two calls */
} failing_rank;

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  failing_rank *x = arg;
  static float g[RANKS][ROWS * COLS], w[RANKS][ROWS * COLS], a[RANKS][COLS], d[RANKS][ROWS];
  const fixture_entry layer = {"a", ROWS, COLS, false};
  const plane in = plane_of(a[rank], 1, COLS, NG_F32), out = plane_of(d[rank], 1, ROWS, NG_F32);
  const ng_sgd sgd = fixture_sgd(0.1, 0.9);
  ng_backend backend = ng_backend_device;
  backend.under = &ng_backend_ref;
  backend.host = &ng_linalg_ref;
  const fixture_how how = {.backend = &backend, .threads = 1, .transport = t};
  fixture f;
  for (int i = 0; i < ROWS * COLS; i++) {
    g[rank][i] = w[rank][i] = 0.5F + 0.125F * (float)i;
  }
  for (int i = 0; i < COLS; i++) {
    a[rank][i] = d[rank][i % ROWS] = 1.0F + (float)i;
  }
  ng_status st = fixture_open(&f, "method=natgrad; update=sgd", &how);
  if (st == NG_OK) st = fixture_add_entries(&f, &layer, 1, g[rank], w[rank]);
  if (st == NG_OK) st = ng_ready(f.p);
  if (st == NG_OK) st = fixture_begin_and_observe(&f, 1, 0, &in, &out);
  if (st == NG_OK) st = ng_step_sgd(f.p, &sgd, 1);
  if (st == NG_OK && x->saves) st = ng_save(f.p, in_folder("ranks"));
  if (st == NG_OK) st = fixture_begin_and_observe(&f, 1, 0, &in, &out);
  if (st == NG_OK && rank == 1)
    standin_fail(ng_device_desk(f.ctx->queue->device), x->what, x->after);
  if (st == NG_OK && x->saves) st = ng_reset_batch(f.p);
  x->status[rank][0] = x->status[rank][1] = st;
  for (int i = 0; i < 2 && st == NG_OK; i++) {
    if (x->saves) {
      x->status[rank][i] = ng_save(f.p, in_folder("ranks"));
    } else {
      x->status[rank][i] = i == 0 ? NG_OK : fixture_begin_and_observe(&f, 1, 0, &in, &out);
      if (x->status[rank][i] == NG_OK) x->status[rank][i] = ng_step_sgd(f.p, &sgd, 1);
    }
  }
  fixture_close(&f);
  return st;
}

static void a_failed_rank_fails_the_save_of_all_ranks(void **state) {
  failing_rank x = {.saves = true, .what = STANDIN_WAIT};
  assert_int_equal(ranks_run(RANKS, run_rank, &x, NULL), NG_OK);
  for (int r = 0; r < RANKS; r++) {
    assert_int_equal(x.status[r][0], NG_ERR_DEVICE);
    assert_int_equal(x.status[r][1], NG_ERR_COMM);
  }
}

/* A launch of rank 1 fails in a step. Before `agree` all ranks fail in this step; later, in the next step. */
static void a_failed_rank_ends_the_steps_of_all_ranks(void **state) {
  int at_once = 0, later = 0;
  for (int64_t after = 0;; after++) {
    failing_rank x = {.what = STANDIN_LAUNCH, .after = after};
    assert_int_equal(ranks_run(RANKS, run_rank, &x, NULL), NG_OK);
    if (x.status[1][0] == NG_OK) break;
    assert_int_equal(x.status[1][0], NG_ERR_DEVICE);
    assert_true(x.status[0][0] == NG_ERR_DEVICE || x.status[0][0] == NG_OK);
    for (int r = 0; r < RANKS; r++) {
      assert_int_equal(x.status[r][1], NG_ERR_COMM);
    }
    at_once += x.status[0][0] == NG_ERR_DEVICE;
    later += x.status[0][0] == NG_OK;
  }
  assert_true(at_once > 0 && later > 0);
}

/* ---- states of both backends -----------------------------------------------------------------*/

static void expect_same_file(const char *a, const char *b, const char *options) {
  size_t n[2];
  unsigned char *x = read_file(in_folder(a), &n[0]), *y = read_file(in_folder(b), &n[1]);
  if (n[0] != n[1] || memcmp(x, y, n[0]) != 0) fail_msg("%s: %s and %s differ", options, a, b);
  free(x);
  free(y);
}

/* Open a model on the device or on `ref`, load a state unless NULL, take `steps` steps, save the state. */
static void run_from_state(bool device, const char *options, const char *update, const char *load,
                           int steps, const char *save) {
  char all[160];
  model m;
  rng r = {79};
  (void)snprintf(all, sizeof all, "%s; update=%s", options, update);
  open_model(&m, device, all, &r);
  if (load != NULL) fixture_ok(&m.f, ng_load(m.f.p, in_folder(load)));
  for (int t = 0; t < steps; t++) {
    observe(&m, &r);
    const ng_status st = step(&m, update);
    if (st < NG_OK) fixture_ok(&m.f, st);
  }
  fixture_ok(&m.f, ng_save(m.f.p, in_folder(save)));
  close_model(&m);
}

/* A state of one backend, loaded and saved by the other one, is the same file; so is a state that returns to its backend. */
static void states_move_between_backends(void **state) {
  static const char *const runs[][2] = {{"method=eva", "sgd"},
                                        {"method=eva", "adamw"},
                                        {"method=eva-natgrad; stat_period=2", "sgd"},
                                        {"method=natgrad", "sgd"},
                                        {"method=natgrad; solver=eigen", "adamw"},
                                        {"method=natgrad; inverse_dtype=bf16", "gradient"},
                                        {"method=natgrad; factor_dtype=f16", "sgd"},
                                        {"method=kaisa; solve_period=2", "gradient"},
                                        {"method=shampoo", "gradient"},
                                        {"method=soap", "sgd"},
                                        {"method=adam", "gradient"},
                                        {"method=mfac; window=4; damping=0.1", "sgd"},
                                        {"method=muon", "sgd"}};
  for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
    const char *options = runs[i][0], *update = runs[i][1];
    for (int device = 0; device < 2; device++) {
      run_from_state(device != 0, options, update, NULL, STEPS, "first");
      run_from_state(device == 0, options, update, "first", 0, "other");
      run_from_state(device != 0, options, update, "other", 0, "back");
      expect_same_file("first", "other", options);
      expect_same_file("first", "back", options);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_call_gives_data_of_a_failed_device),
      cmocka_unit_test(a_call_waits_for_running_steps),
      cmocka_unit_test(a_failed_launch_fails_ng_ready),
      cmocka_unit_test(errors_do_not_name_a_destroyed_model),
      cmocka_unit_test(a_failed_rank_fails_the_save_of_all_ranks),
      cmocka_unit_test(a_failed_rank_ends_the_steps_of_all_ranks),
      cmocka_unit_test(states_move_between_backends),
  };
  return cmocka_run_group_tests_name("cuda_state", tests, make_folder, delete_folder);
}
