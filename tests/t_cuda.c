/* t_cuda.c: contexts with linalg = cuda on the stand-in (standin_desk.c). Arrays of the caller are memory of the device, which the
 * host cannot access. Steps equal the backend `ref`; observations are refused late; failures of the device are reported. */
#include "unit_test.h"

#include <math.h>
#include <string.h>

#include "cuda_model.h"

/* ---- steps -----------------------------------------------------------------------------------*/

/* stays: the host accesses no managed memory. With each solve the host writes ng_side.solve_info, which lies beside the results. */
static const struct {
  const char *method, *update;
  bool on_device; /* no entry runs on the host */
  bool stays;
  bool fused; /* step/fused.c runs all steps */
} runs[] = {{"method=eva", "sgd", true, true, true},
            {"method=eva", "adamw", true, true, true},
            {"method=eva; kl_clip=1e-9; per_layer='b: damping=0.5'", "sgd", true, true, true},
            {"method=eva-natgrad; stat_period=2", "sgd", true, true, true},
            {"method=eva; skip_layers=b; stat_start=zero", "adamw", true, true, true},
            {"method=eva; clip=norm; clip_bound=1", "sgd", true, true, false},
            {"method=eva", "gradient", true, true, false},
            {"method=eva-f", "sgd", true, true, false},
            {"method=natgrad", "sgd", true, false, false},
            {"method=natgrad; spatial=full; inverse_dtype=bf16", "sgd", true, false, false},
            {"method=natgrad; factor_dtype=f16", "sgd", true, false, false},
            {"method=natgrad; solver=eigen", "adamw", true, false, false},
            {"method=kaisa; solve_period=1", "gradient", true, false, false},
            {"method=mpd-kfac; damping=0.1", "gradient", true, false, false},
            {"method=adam", "gradient", true, false, false},
            {"method=soap", "gradient", true, false, false},
            {"method=mfac; window=4; damping=0.1", "sgd", false, false, false},
            {"method=muon", "sgd", false, false, false}};

static void steps_equal_ref(void **state) {
  for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
    char options[100];
    (void)snprintf(options, sizeof options, "%s; update=%s", runs[i].method, runs[i].update);
    model on[2];
    for (int k = 0; k < 2; k++) {
      rng r = {7};
      open_model(&on[k], k == 0, options, &r);
      for (int t = 0; t < STEPS; t++) {
        draw_observed(&on[k], &r);
        const int64_t waits = k == 0 ? standin_count(on[0].desk).waits : 0;
        observe_drawn(&on[k]);
        if (k == 0) assert_int_equal(standin_count(on[0].desk).waits, waits);
        fixture_ok(&on[k].f, step(&on[k], runs[i].update));
      }
    }
    expect_equal(&on[0], &on[1], options);
    assert_int_equal(on[0].f.p->step->fused.launched, runs[i].fused ? STEPS : 0);
    fixture_ok(&on[0].f, ng_sync(on[0].f.p));
    const ng_device *d = on[0].f.ctx->queue->device;
    const standin_counts c = standin_count(on[0].desk);
    assert_int_equal(d->host_entries > 0, !runs[i].on_device);
    if (runs[i].stays) assert_int_equal(c.migrations, 0);
    close_model(&on[0]);
    close_model(&on[1]);
  }
}

/* The caller's stream writes the observed arrays, and NaN over them after the observation, without a wait: the library works on the same
 * stream. Nothing orders an array of the device and a context without a stream, which is refused. */
static void the_stream_of_the_caller_orders_arrays(void **state) {
  static const char *const options[] = {"method=eva; update=sgd", "method=natgrad; update=sgd",
                                        "method=eva; clip=norm; clip_bound=1; update=sgd"};
  float nans[MOST];
  memset(nans, 0xff, sizeof nans);
  for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
    model on[2];
    dv_desk *caller;
    for (int k = 0; k < 2; k++) {
      rng r = {43};
      open_model(&on[k], k == 0, options[i], &r);
      assert_null(dv_open(0, &on[0], &caller));
      for (int t = 0; t < STEPS; t++) {
        draw_observed(&on[k], &r);
        for (int j = 0; j < 2 * LAYERS && k == 0;
             j++) { /* once more, by the stream of the caller */
          float x[MOST];
          float *at = on[0].observed[j / 2][j % 2];
          const size_t bytes = (size_t)observed_count(j / 2, j % 2) * sizeof *x;
          read_array(&on[0], at, observed_count(j / 2, j % 2), x);
          assert_null(dv_wait(on[0].desk));
          assert_null(dv_zero(on[0].desk, at, bytes));
          assert_null(dv_copy(caller, at, x, bytes));
        }
        observe_drawn(&on[k]);
        for (int j = 0; j < 2 * LAYERS && k == 0; j++) {
          assert_null(dv_copy(caller, on[0].observed[j / 2][j % 2], nans,
                              (size_t)observed_count(j / 2, j % 2) * sizeof *nans));
        }
        fixture_ok(&on[k].f, step(&on[k], "sgd"));
      }
      dv_close(caller);
    }
    expect_equal(&on[0], &on[1], options[i]);
    close_model(&on[0]);
    close_model(&on[1]);
  }
}

static void arrays_of_the_device_need_a_stream(void **state) {
  model m;
  rng r = {47};
  open_model(&m, true, "method=eva; update=sgd", &r);
  draw_observed(&m, &r);
  m.f.ctx->queue->stream = NULL;
  ng_array a = ng_array_matrix(m.observed[0][0], SAMPLES, shape[0].in, NG_F32);
  a.mem = NG_DEVICE;
  fixture_ok(&m.f, fixture_begin(&m.f, SAMPLES));
  fixture_fails(&m.f, ng_observe_input(m.f.p, 0, &a, NG_COPY), NG_ERR_STATE,
                "'a' is in device memory, and ng_context_config.queue is NULL");
  a.mem = NG_HOST;
  fixture_ok(&m.f, ng_observe_input(m.f.p, 0, &a, NG_COPY));
  close_model(&m);
}

/* ---- refused observations ----------------------------------------------------------------------*/

/* Step 1 observes a NaN or Inf: the step or ng_sync names the layer. The weights and the average stay. */
static void a_refused_observation_names_its_layer(void **state) {
  static const struct {
    const char *method, *update;
    int layer, kind; /* kind 0: the input, 1: the output gradient */
    float value;
    const char *text;
  } refused[] = {{"method=eva", "sgd", 0, 0, NAN, "layer 'a': its inputs"},
                 {"method=eva", "adamw", 1, 1, INFINITY, "layer 'b': its output gradients"},
                 {"method=eva; clip=norm; clip_bound=1", "sgd", 1, 0, INFINITY, "'b'"},
                 {"method=eva", "gradient", 2, 1, NAN, "'c'"},
                 {"method=natgrad", "sgd", 0, 1, NAN, "layer 'a': its output gradients"},
                 {"method=natgrad", "sgd", 2, 0, INFINITY, "layer 'c': its inputs"},
                 {"method=natgrad; output_factor=diagonal", "sgd", 1, 1, NAN, "'b'"},
                 {"method=natgrad; output_factor=diagonal", "gradient", 2, 1, NAN, "'c'"},
                 {"method=natgrad; spatial=full", "sgd", 1, 0, NAN, "'b'"},
                 {"method=kaisa; solve_period=1", "gradient", 1, 0, -INFINITY, "'b'"}};
  for (size_t n = 0; n < sizeof refused / sizeof refused[0]; n++) {
    const int at = refused[n].layer, kind = refused[n].kind;
    char options[100];
    (void)snprintf(options, sizeof options, "%s; update=%s", refused[n].method, refused[n].update);
    model m;
    rng r = {29};
    float was[LAYERS][MOST], is[MOST], average[2];
    open_model(&m, true, options, &r);
    observe(&m, &r);
    fixture_ok(&m.f, step(&m, refused[n].update));
    fixture_ok(&m.f, ng_sync(m.f.p));
    const ng_stat_part *part = m.f.p->block[at]->stat[kind].part;
    for (int i = 0; i < LAYERS; i++) {
      read_array(&m, m.weight[i][0], count(i, 0), was[i]);
    }
    read_array(&m, part->average, 1, &average[0]);
    draw_observed(&m, &r);
    /* the first number in every other row, the last one in the others */
    float *spoilt = m.observed[at][kind] + (n % 2 == 0 ? observed_count(at, kind) - 1 : 0);
    assert_null(dv_copy(m.desk, spoilt, &refused[n].value, sizeof *spoilt));
    observe_drawn(&m);
    ng_status st = step(&m, refused[n].update);
    if (st == NG_OK) st = ng_sync(m.f.p);
    fixture_fails(&m.f, st, NG_SKIPPED, refused[n].text);
    for (int i = 0; i < LAYERS; i++) {
      read_array(&m, m.weight[i][0], count(i, 0), is);
      assert_memory_equal(was[i], is, (size_t)count(i, 0) * sizeof *is);
    }
    read_array(&m, part->average, 1, &average[1]);
    assert_true(average[0] == average[1]);
    assert_int_equal(m.f.p->skipped, 1);
    observe(&m, &r);
    fixture_ok(&m.f, step(&m, refused[n].update));
    fixture_ok(&m.f, ng_sync(m.f.p));
    close_model(&m);
  }
}

/* ---- failures --------------------------------------------------------------------------------*/

/* Return whether the last error names a block of the model, or a list of blocks. *one: the block, or 0. */
static bool names_blocks(const model *m, char *one) {
  const char *text = ng_last_error(m->f.ctx), *at = strstr(text, "block '");
  *one = at != NULL ? at[strlen("block '")] : '\0';
  return at != NULL || strstr(text, "blocks 'a' to 'b'") != NULL ||
         strstr(text, "blocks 'a' to 'c'") != NULL || strstr(text, "blocks 'b' to 'c'") != NULL;
}

/* Call number `after` of a kind fails in the observations or in the second step: the step, or ng_sync, fails with the text and names
 * blocks, and all weights are as before. Later calls fail, too. Return the block that the error names, 0 for a list of blocks, or -1
 * if there are fewer calls: then the step succeeds. */
static int fail_in_second_step(const char *options, const char *update, standin_failure what,
                               const char *text, int64_t after) {
  model m;
  rng r = {13};
  float was[LAYERS][MOST], is[MOST];
  char one;
  char all[120];
  (void)snprintf(all, sizeof all, "%s; update=%s", options, update);
  open_model(&m, true, all, &r);
  observe(&m, &r);
  fixture_ok(&m.f, step(&m, update));
  draw_observed(&m, &r);
  for (int i = 0; i < LAYERS; i++) {
    read_array(&m, m.weight[i][0], count(i, 0), was[i]);
  }
  assert_null(dv_wait(m.desk));
  standin_fail(m.desk, what, after);
  observe_drawn(&m);
  ng_status st = step(&m, update);
  if (st == NG_OK) st = ng_sync(m.f.p);
  standin_fail(m.desk, STANDIN_NO_FAILURE, 0);
  if (st != NG_OK) {
    fixture_fails(&m.f, st, NG_ERR_DEVICE, text);
    if (!names_blocks(&m, &one)) fail_msg("%s: %s", all, ng_last_error(m.f.ctx));
    for (int i = 0; i < LAYERS; i++) {
      read_array(&m, m.weight[i][0], count(i, 0), is);
      assert_memory_equal(was[i], is, (size_t)count(i, 0) * sizeof *is);
    }
    fixture_fails(&m.f, step(&m, update), NG_ERR_COMM, "failed before");
  }
  close_model(&m);
  return st == NG_OK ? -1 : one;
}

static const struct {
  const char *options, *update;
  bool calls; /* the step has calls of BLAS or solvers */
} failing[] = {{"method=eva", "sgd", false},
               {"method=eva", "gradient", false},
               {"method=natgrad; solve_period=1", "sgd", true},
               {"method=kaisa; solve_period=1", "gradient", true},
               {"method=soap", "sgd", true},
               {"method=adam", "sgd", false}};

static void failures_of_the_device_name_the_block(void **state) {
  static const struct {
    standin_failure what;
    const char *text;
  } kinds[] = {{STANDIN_LAUNCH, "a launch fails on demand"},
               {STANDIN_CALL, "a call fails on demand"},
               {STANDIN_WAIT, "a wait fails on demand"},
               {STANDIN_ALLOCATION, ""}}; /* a step does not allocate */
  for (size_t i = 0; i < sizeof failing / sizeof *failing; i++) {
    for (int k = 0; k < 4; k++) {
      int64_t points = 0, single[LAYERS] = {0};
      for (int one; (one = fail_in_second_step(failing[i].options, failing[i].update, kinds[k].what,
                                               kinds[k].text, points)) >= 0;
           points++) {
        if (one != 0) single[one - 'a']++;
      }
      const bool has =
          kinds[k].what == STANDIN_CALL ? failing[i].calls : kinds[k].what != STANDIN_ALLOCATION;
      assert_int_equal(points > 0, has);
      for (int j = 0; j < LAYERS && kinds[k].what == STANDIN_LAUNCH; j++) {
        assert_true(single[j] > 0); /* at least one error names this block alone */
      }
    }
  }
}

/* Each observation of Eva has two launches; observations follow each other. */
static void a_failed_observation_names_its_block(void **state) {
  for (int64_t after = 0; after < 2 * 2 * LAYERS; after++) {
    assert_int_equal(fail_in_second_step("method=eva", "sgd", STANDIN_LAUNCH,
                                         "station observe: linalg = cuda: block", after),
                     'a' + after / 4);
  }
}

/* Calls of BLAS of a step with eigenbases: the Gram matrix of the input of c, whose order is 64, in three pieces; two eigenbases of each
 * block; four products of each block. */
static void a_failed_call_names_its_block(void **state) {
  static const char blocks[] = "cccaabbccaaaabbbbcccc";
  for (int64_t after = 0; after <= (int64_t)strlen(blocks); after++) {
    const int at = fail_in_second_step("method=kaisa; solve_period=1", "gradient", STANDIN_CALL,
                                       "block '", after);
    assert_int_equal(at, after < (int64_t)strlen(blocks) ? blocks[after] : -1);
  }
}

/* The first image of a layer without a declared size needs scratch. Without memory the observation fails, and names the layer; the same
 * observation later works. */
static void an_observation_without_memory_names_its_layer(void **state) {
  enum { WIDE = 16, KERNEL = 5 };
  const int64_t kernel[2] = {KERNEL, KERNEL}, ones[2] = {1, 1};
  model m;
  rng r = {59};
  open_context(&m, true, "method=natgrad");
  fixture_ok(&m.f, ng_add_conv2d(m.f.p, "b", 3, 4, kernel, ones, ones, ones, 1, NULL, 0, NULL));
  fixture_ok(&m.f, ng_ready(m.f.p));
  float *x = random_array(&m, &r, SAMPLES * 3 * WIDE * WIDE);
  ng_array a = ng_array_nchw(x, SAMPLES, 3, WIDE, WIDE, NG_F32);
  a.mem = NG_DEVICE;
  fixture_ok(&m.f, fixture_begin(&m.f, SAMPLES));
  standin_fail(m.desk, STANDIN_ALLOCATION, 0);
  fixture_fails(&m.f, ng_observe_input(m.f.p, 0, &a, NG_COPY), NG_ERR_NOMEM,
                "layer 'b': no memory for ");
  standin_fail(m.desk, STANDIN_NO_FAILURE, 0);
  fixture_ok(&m.f, ng_observe_input(m.f.p, 0, &a, NG_COPY));
  close_model(&m);
}

/* ---- the caller's allocator --------------------------------------------------------------------*/

typedef struct blocks {
  dv_desk *desk;
  int64_t calls, fails_at, held;
  size_t bytes[4];
} blocks;
static void *take_block(void *user, size_t bytes) {
  blocks *b = user;
  void *at = NULL;
  if (b->calls == b->fails_at) return NULL;
  assert_true(b->calls < 4);
  b->bytes[b->calls++] = bytes;
  assert_null(dv_alloc(b->desk, bytes, &at));
  b->held += (int64_t)bytes;
  return at;
}
static void give_block(void *user, void *at, size_t bytes) {
  blocks *b = user;
  b->held -= (int64_t)bytes;
  dv_free(b->desk, at);
}

/* All memory that only the device accesses is of the caller's allocator. It is given back when the context ends, and after a failure;
 * the other blocks are memory that the host accesses. */
static void memory_of_the_device_is_the_callers(void **state) {
  dv_desk *desk;
  assert_null(dv_open(0, NULL, &desk));
  for (int64_t fails_at = -1; fails_at < 2; fails_at++) {
    blocks b = {.desk = desk, .fails_at = fails_at};
    ng_context_config config;
    ng_context_config_init(&config, sizeof config);
    config.device_alloc = take_block;
    config.device_free = give_block;
    config.device_user = &b;
    model m, ref;
    rng r = {53}, same = {53};
    if (fails_at >= 0) {
      fixture f;
      ng_backend backend = ng_backend_device;
      const fixture_how how = {.backend = &backend, .config = &config};
      assert_int_equal(fixture_open(&f, "method=eva", &how), NG_ERR_NOMEM);
      const char *what = fails_at == 0 ? "64 MiB of descriptors" : "256 MiB of scratch";
      assert_non_null(strstr(f.message, "linalg = cuda: no memory for "));
      assert_non_null(strstr(f.message, what));
      assert_non_null(strstr(f.message, "device_alloc returned NULL"));
    } else {
      open_context_with(&m, &config, "method=natgrad; update=sgd");
      open_context(&ref, false, "method=natgrad; update=sgd");
      for (int i = 0; i < LAYERS; i++) {
        add_layer(&m, i, &r);
        add_layer(&ref, i, &same);
      }
      assert_int_equal(b.calls, 2);
      assert_int_equal(b.held, (int64_t)(b.bytes[0] + b.bytes[1]));
      assert_true(b.bytes[0] == 64 << 20 && b.bytes[1] == 256 << 20);
      const int64_t arrays = m.arrays;
      fixture_ok(&m.f, ng_ready(m.f.p));
      fixture_ok(&ref.f, ng_ready(ref.f.p));
      observe(&m, &r);
      observe(&ref, &same);
      fixture_ok(&m.f, step(&m, "sgd"));
      fixture_ok(&ref.f, step(&ref, "sgd"));
      expect_equal(&m, &ref, "the caller's allocator");
      assert_int_equal(standin_count(m.desk).device_blocks, m.arrays);
      assert_true(m.arrays > arrays);
      close_model(&m);
      close_model(&ref);
    }
    assert_int_equal(b.held, 0);
    assert_int_equal(b.calls, fails_at < 0 ? 2 : fails_at);
  }
  dv_close(desk);
}

/* The host adds squares as soon as a basis exists. */
static void ekfac_refuses_memory_of_the_device(void **state) {
  model m;
  rng r = {31};
  open_model(&m, true, "method=ekfac; update=sgd", &r);
  observe(&m, &r);
  fixture_ok(&m.f, step(&m, "sgd"));
  observe(&m, &r);
  fixture_fails(&m.f, step(&m, "sgd"), NG_ERR_DEVICE, "cannot access an observed array");
  close_model(&m);
}

/* Allocation number `after` fails in ng_ready, for every allocation: the object can be destroyed. */
static void failed_allocations_are_reported(void **state) {
  for (int64_t after = 0;; after++) {
    model m;
    rng r = {17};
    open_context(&m, true, "method=eva; update=sgd");
    for (int i = 0; i < LAYERS; i++) {
      add_layer(&m, i, &r);
    }
    /* its averages exceed the blocks that are cut from a page */
    fixture_ok(&m.f, ng_add_linear(m.f.p, "large", 1 << 16, 2, 0, NULL));
    standin_fail(m.desk, STANDIN_ALLOCATION, after);
    const ng_status st = ng_ready(m.f.p);
    if (st != NG_OK) fixture_fails(&m.f, st, NG_ERR_NOMEM, "no memory");
    standin_fail(m.desk, STANDIN_NO_FAILURE, 0);
    close_model(&m);
    if (st != NG_OK) continue;
    assert_true(after > 0);
    break;
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(steps_equal_ref),
      cmocka_unit_test(the_stream_of_the_caller_orders_arrays),
      cmocka_unit_test(arrays_of_the_device_need_a_stream),
      cmocka_unit_test(a_refused_observation_names_its_layer),
      cmocka_unit_test(failures_of_the_device_name_the_block),
      cmocka_unit_test(a_failed_observation_names_its_block),
      cmocka_unit_test(a_failed_call_names_its_block),
      cmocka_unit_test(an_observation_without_memory_names_its_layer),
      cmocka_unit_test(memory_of_the_device_is_the_callers),
      cmocka_unit_test(ekfac_refuses_memory_of_the_device),
      cmocka_unit_test(failed_allocations_are_reported),
  };
  return cmocka_run_group_tests_name("cuda", tests, NULL, NULL);
}
