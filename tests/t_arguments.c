/* t_arguments.c: call every public function without a required argument.  It returns NG_ERR_ARG, with a message if
 * there is a context; functions without a status do no harm.  The test reads natgrad.h as text and fails if a function
 * is not called here. */
#include "unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

static ng_context *ctx;
static ng_precond *p;

/* ---- functions that were called --------------------------------------------------------------*/

enum { MOST = 320 };
static char called[MOST][48];
static int calls;

static void record_call(const char *expression) {
  const size_t n = strcspn(expression, "(");
  assert_true(calls < MOST && n < sizeof called[0]);
  memcpy(called[calls], expression, n);
  called[calls++][n] = 0;
}

static void must_return_arg(const char *expression, ng_status st) {
  record_call(expression);
  if (st != NG_ERR_ARG) fail_msg("%s: %s", expression, ng_status_name(st));
}

/* Set another message first, to recognise a new one. */
static const char other[] = "no such option";
static int set_old_message(void) {
  assert_int_equal(ng_set(p, other, "1"), NG_ERR_ARG);
  assert_non_null(strstr(ng_last_error(ctx), other));
  return 1;
}

static void must_set_message(const char *expression, ng_status st) {
  must_return_arg(expression, st);
  const char *message = ng_last_error(ctx);
  if (message[0] == 0 || strstr(message, other) != NULL) fail_msg("%s: no message", expression);
}

/* ARG: a call without a context.  TOLD: the context of the call has the message. */
#define ARG(call) must_return_arg(#call, call)
#define TOLD(call) must_set_message(#call, set_old_message() ? call : NG_OK)

#define SILENT(call, expected)                                                                     \
  do {                                                                                             \
    record_call(#call);                                                                            \
    assert_true((call) == (expected));                                                             \
  } while (0)
#define HARMLESS(call)                                                                             \
  do {                                                                                             \
    record_call(#call);                                                                            \
    call;                                                                                          \
  } while (0)

static void null_arguments_are_refused(void **state) {
  fixture f;
  char text[64];
  int32_t index_;
  ng_options options, *object = NULL;
  double real = 0;
  ng_option_info option_row = {.struct_size = sizeof option_row};
  ng_method_info method_row = {.struct_size = sizeof method_row};
  ng_published_info published_row = {.struct_size = sizeof published_row};
  float number = 1;
  const int64_t one[2] = {1, 1};
  const ng_array view = ng_array_matrix(&number, 1, 1, NG_F32);
  ng_layer layer;
  ng_layer_init(&layer, NG_LINEAR, sizeof layer);
  layer.name = "fc";
  ng_options_set_defaults(&options);
  fixture_ok(&f, fixture_open(&f, "", NULL));
  ctx = f.ctx;
  p = f.p;
  assert_int_equal(ng_add_linear(p, "fc", 1, 1, 0, &index_), NG_OK);
  ARG(ng_threads_create(2, NULL));
  ARG(ng_threads_create(0, &(ng_threads *){NULL}));
  ARG(ng_threads_transport(NULL, 0, &(ng_transport){0}, sizeof(ng_transport)));
  ARG(ng_context_create(NG_VERSION, NULL, NULL, 0, NULL));
  ARG(ng_component_info(0, NULL));
  ARG(ng_component_info(-1, &(ng_component){.struct_size = sizeof(ng_component)}));
  ARG(ng_variable_at(0, NULL));
  ARG(ng_variable_at(-1, &(ng_variable_info){.struct_size = sizeof(ng_variable_info)}));
  ARG(ng_options_create("", NULL, 0, NULL));
  ARG(ng_options_copy(NULL, &object));
  ARG(ng_options_copy(&options, NULL));
  HARMLESS(ng_options_destroy(NULL));
  HARMLESS(ng_options_destroy(&(ng_options *){NULL}));
  ARG(ng_options_set_line(NULL, "damping=1", NULL, 0));
  ARG(ng_options_set_line(&options, NULL, NULL, 0));
  ARG(ng_options_set_real(NULL, "damping", 1, NULL, 0));
  ARG(ng_options_set_real(&options, NULL, 1, NULL, 0));
  ARG(ng_options_get_real(NULL, "damping", &real));
  ARG(ng_options_get_real(&options, NULL, &real));
  ARG(ng_options_get_real(&options, "damping", NULL));
  ARG(ng_options_set(NULL, "method", "eva", NULL, 0));
  ARG(ng_options_set(&options, "method", NULL, NULL, 0));
  ARG(ng_options_set(NULL, "damping", "1", NULL, 0));
  ARG(ng_options_set(&options, NULL, "1", NULL, 0));
  ARG(ng_options_set(&options, "damping", NULL, NULL, 0));
  ARG(ng_options_get(NULL, "damping", text, sizeof text));
  ARG(ng_options_get(&options, NULL, text, sizeof text));
  ARG(ng_options_get(&options, "damping", NULL, 0));
  ARG(ng_options_get(&options, "method", text, 2));
  ARG(ng_options_from_env(NULL, NULL, 0));
  ARG(ng_options_check(NULL, NULL, 0));
  ARG(ng_options_idle(NULL, "kl_clip", text, sizeof text));
  ARG(ng_options_idle(&options, NULL, text, sizeof text));
  ARG(ng_options_idle(&options, "kl_clip", NULL, 0));
  ARG(ng_options_set_system(NULL, "KAISA", "eigen", NULL, 0));
  ARG(ng_options_set_system(&options, NULL, "eigen", NULL, 0));
  ARG(ng_options_set_system(&options, "KAISA", NULL, NULL, 0));
  ARG(ng_options_set_published(NULL, "damping", "1", NULL, NULL, 0));
  ARG(ng_options_set_published(&options, NULL, "1", NULL, NULL, 0));
  ARG(ng_options_set_published(&options, "damping", NULL, NULL, NULL, 0));
  ARG(ng_option_at(0, NULL));
  ARG(ng_option_at(-1, &option_row));
  ARG(ng_option_at(ng_option_count(), &option_row));
  ARG(ng_method_at(0, NULL));
  ARG(ng_method_at(ng_method_count(), &method_row));
  ARG(ng_method_published_at(1, 0, NULL));
  ARG(ng_method_published_at(1, 1000, &published_row));
  ARG(ng_method_published_at(-1, 0, &published_row));
  ARG(ng_precond_create(NULL, "", &(ng_precond *){NULL}));
  TOLD(ng_precond_create(ctx, "", NULL));
  ARG(ng_precond_create_from(NULL, &options, &(ng_precond *){NULL}));
  TOLD(ng_precond_create_from(ctx, NULL, &(ng_precond *){NULL}));
  TOLD(ng_precond_create_from(ctx, &options, NULL));
  ARG(ng_add_layer(NULL, &(ng_layer){0}, &index_));
  TOLD(ng_add_layer(p, NULL, &index_));
  ARG(ng_add_linear(NULL, "x", 1, 1, 0, &index_));
  TOLD(ng_add_linear(p, NULL, 1, 1, 0, &index_));
  ARG(ng_add_conv2d(NULL, "x", 1, 1, one, one, one, one, 1, one, 0, &index_));
  TOLD(ng_add_conv2d(p, NULL, 1, 1, one, one, one, one, 1, one, 0, &index_));
  TOLD(ng_add_conv2d(p, "x", 1, 1, NULL, one, one, one, 1, one, 0, &index_));
  ARG(ng_report_statistic(NULL, 0, &(ng_statistic_report){0}));
  TOLD(ng_report_statistic(p, 0, NULL));
  TOLD(ng_report_statistic(p, 100,
                           &(ng_statistic_report){.struct_size = sizeof(ng_statistic_report)}));
  ARG(ng_add_norm(NULL, "x", NG_BATCH_NORM, 1, 1, 0, &index_));
  TOLD(ng_add_norm(p, NULL, NG_BATCH_NORM, 1, 1, 0, &index_));
  TOLD(ng_add_norm(p, "x", NG_BATCH_NORM, 0, 1, 0, &index_));
  ARG(ng_add_tensor(NULL, "x", 1, &index_));
  TOLD(ng_add_tensor(p, NULL, 1, &index_));
  TOLD(ng_add_tensor(p, "x", 0, &index_));
  ARG(ng_bind(NULL, NULL, 0));
  TOLD(ng_bind(p, NULL, 1));
  TOLD(ng_bind(p, &(ng_binding){.index = 7, .hold = NG_HOLD}, 1));
  TOLD(ng_bind(p, &(ng_binding){.index = 0}, -1));
  ARG(ng_freeze(NULL, 0, 1));
  TOLD(ng_freeze(p, 7, 1));
  TOLD(ng_freeze(p, 0, 2));
  ARG(ng_bind_grad(NULL, 0, NG_WEIGHT, &view));
  TOLD(ng_bind_grad(p, 0, NG_WEIGHT, NULL));
  TOLD(ng_bind_grad(p, 7, NG_WEIGHT, &view));
  ARG(ng_bind_weight(NULL, 0, NG_WEIGHT, &view));
  TOLD(ng_bind_weight(p, 0, NG_WEIGHT, NULL));
  TOLD(ng_bind_weight(p, 0, (ng_param)9, &view));
  TOLD(ng_bind_weight(p, 0, NG_BOTH, &view));
  ARG(ng_set_group(NULL, 0, NG_BOTH, 0));
  TOLD(ng_set_group(p, 7, NG_BOTH, 0));
  TOLD(ng_set_group(p, 0, (ng_param)9, 0));
  ARG(ng_ready(NULL));
  assert_int_equal(ng_ready(p), NG_OK);
  assert_int_equal(ng_get(p, "method", text, sizeof text), NG_OK);
  assert_string_equal(text, "natgrad");
  ng_batch batch;
  ng_batch_init(&batch, sizeof batch);
  TOLD(ng_begin(p, &batch)); /* samples has no default */
  batch.samples = 1;
  assert_int_equal(ng_begin(p, &batch), NG_OK);
  ARG(ng_begin(NULL, &(ng_batch){0}));
  TOLD(ng_begin(p, NULL));
  ARG(ng_begin_samples(NULL, 1, 1.0));
  TOLD(ng_begin_samples(p, 0, 1.0));
  TOLD(ng_begin_samples(p, 1, 0.0));
  ARG(ng_observe_input(NULL, 0, &view, NG_COPY));
  TOLD(ng_observe_input(p, 0, NULL, NG_COPY));
  TOLD(ng_observe_input(p, -1, &view, NG_COPY));
  ARG(ng_observe_output_grad(NULL, 0, &view, NG_COPY));
  TOLD(ng_observe_output_grad(p, 0, NULL, NG_COPY));
  ARG(ng_reset_batch(NULL));
  assert_int_equal(ng_reset_batch(p), NG_OK);
  ARG(ng_step(NULL, 0.1));
  ARG(ng_step_sgd(NULL, &(ng_sgd){0}, 1));
  TOLD(ng_step_sgd(p, NULL, 1));
  ARG(ng_step_adamw(NULL, &(ng_adamw){0}, 1));
  TOLD(ng_step_adamw(p, NULL, 1));
  ARG(ng_sync(NULL));
  assert_int_equal(ng_sync(p), NG_OK);
  ARG(ng_set(NULL, "damping", "1"));
  TOLD(ng_set(p, NULL, "1"));
  TOLD(ng_set(p, "damping", NULL));
  ARG(ng_set_real(NULL, "damping", 1));
  TOLD(ng_set_real(p, NULL, 1));
  ARG(ng_get(NULL, "damping", text, sizeof text));
  TOLD(ng_get(p, NULL, text, sizeof text));
  TOLD(ng_get(p, "dampin", text, sizeof text));
  TOLD(ng_get(p, "damping", NULL, 0));
  ARG(ng_report_read(NULL, &(ng_report){.struct_size = sizeof(ng_report)}));
  TOLD(ng_report_read(p, NULL));
  ARG(ng_report_station(NULL, 0, &(ng_station_report){0}));
  TOLD(ng_report_station(p, 0, NULL));
  ARG(ng_report_layer(NULL, 0, &(ng_layer_report){0}));
  TOLD(ng_report_layer(p, 0, NULL));
  const ng_array rows_ = ng_array_matrix((float[2]){1.0F, 2.0F}, 1, 2, NG_F32);
  ng_fisher *fisher_ = NULL;
  double two_[2] = {1.0, 2.0};
  ARG(ng_fisher_create(NULL, &rows_, 1.0, NULL, 1, &fisher_));
  TOLD(ng_fisher_create(ctx, NULL, 1.0, NULL, 1, &fisher_));
  TOLD(ng_fisher_create(ctx, &rows_, 1.0, NULL, 1, NULL));
  TOLD(ng_fisher_create(ctx, &rows_, 0.0, NULL, 1, &fisher_));
  ARG(ng_fisher_solve(NULL, two_, two_));
  ARG(ng_fisher_diagonal(NULL, two_));
  HARMLESS(ng_fisher_destroy(NULL));
  HARMLESS(ng_fisher_destroy(&fisher_));
  ng_curvature *curvature_ = NULL;
  ARG(ng_factors_read(NULL, 0, &(ng_factors){0}));
  TOLD(ng_factors_read(p, 0, NULL));
  ARG(ng_curvature_create(NULL, &(ng_factors){0}, &curvature_));
  TOLD(ng_curvature_create(ctx, NULL, &curvature_));
  TOLD(ng_curvature_create(ctx, &(ng_factors){0}, NULL));
  TOLD(ng_curvature_create(ctx, &(ng_factors){0}, &curvature_));
  ARG(ng_curvature_apply(NULL, &(ng_damped_power){0}, two_, 1, two_));
  ARG(ng_curvature_diagonal(NULL, &(ng_damped_power){0}, two_));
  ARG(ng_curvature_measure(NULL, &(ng_damped_power){0}, two_, two_));
  ARG(ng_curvature_scores(NULL, &(ng_damped_power){0}, &(ng_samples){0}, NULL, two_));
  ARG(ng_curvature_correct(NULL, &(ng_samples){0}));
  HARMLESS(ng_curvature_destroy(NULL));
  HARMLESS(ng_curvature_destroy(&curvature_));
  ARG(ng_plan_ranks(NULL, 1, 0, 1, &(ng_rank_plan){0}));
  TOLD(ng_plan_ranks(p, 1, 0, 1, NULL));
  ARG(ng_plan_shard(NULL, 0, 0, 1));
  TOLD(ng_plan_shard(p, 1 << 20, 0, 1));
  ARG(ng_explain(NULL, 0, &(ng_explain_row){0}));
  TOLD(ng_explain(p, 0, NULL));
  ARG(ng_save(NULL, "x"));
  TOLD(ng_save(p, NULL));
  ARG(ng_load(NULL, "x"));
  TOLD(ng_load(p, NULL));
  ARG(ng_save_parts(NULL, "x"));
  TOLD(ng_save_parts(p, NULL));
  TOLD(ng_save_parts(p, ""));
  ARG(ng_save_factors(NULL, "x"));
  TOLD(ng_save_factors(p, NULL));
  TOLD(ng_save_factors(p, ""));
  ARG(ng_load_factors(NULL, "x", NULL));
  TOLD(ng_load_factors(p, NULL, NULL));
  TOLD(ng_load_factors(p, "", NULL));
  ARG(ng_save_to(NULL, NULL, NULL));
  TOLD(ng_save_to(p, NULL, NULL));
  ARG(ng_save_local(NULL, NULL, NULL));
  ARG(ng_load_from(NULL, NULL, NULL));
  TOLD(ng_load_from(p, NULL, NULL));
  ARG(ng_state_at(NULL, 0, &(ng_field_info){.struct_size = sizeof(ng_field_info)}));
  TOLD(ng_state_at(p, 0, NULL));
  TOLD(ng_state_at(p, 0, &(ng_field_info){0}));
  ARG(ng_state_read(NULL, 0, text, 4));
  TOLD(ng_state_read(p, 0, NULL, 4));
  TOLD(ng_state_read(p, -1, text, 4));
  SILENT(ng_last_error(NULL)[0], 0);
  SILENT(ng_context_threads(NULL), 1);
  SILENT(ng_wants(NULL, 0), 0);
  SILENT(ng_explain_count(NULL), 0);
  SILENT(ng_state_count(NULL), 0);
  SILENT(ng_state_manifest(NULL, NULL, 0), NG_ERR_ARG);
  SILENT(ng_dtype_size((ng_dtype)99), 0);
  SILENT(ng_dtype_name((ng_dtype)99) == NULL, 0);
  SILENT(ng_status_name((ng_status)99) == NULL, 0);
  SILENT(ng_status_meaning((ng_status)99) == NULL, 0);
  SILENT(ng_version(), NG_VERSION);
  SILENT(ng_build_info(NULL, 0) > 0, 1);
  SILENT(ng_option_count() > 0, 1);
  SILENT(ng_method_count() > 0, 1);
  HARMLESS(ng_context_allocated(NULL, NULL, NULL, NULL));
  HARMLESS(ng_array_vector(NULL, -1, NG_F32));
  HARMLESS(ng_array_matrix(NULL, INT64_MAX, INT64_MAX, (ng_dtype)99));
  HARMLESS(ng_array_rows(NULL, 0, 0, 0, NG_F32));
  HARMLESS(ng_array_nchw(NULL, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, NG_F32));
  HARMLESS(ng_array_nhwc(NULL, INT64_MIN, 3, INT64_MAX, 1, NG_F32));
  HARMLESS(ng_precond_destroy(NULL));
  HARMLESS(ng_context_destroy(NULL));
  HARMLESS(ng_threads_destroy(NULL));
  fixture_close(&f);
}

/* An initialiser writes `size` bytes: the library's struct, truncated for an older header, padded with zeros for a
 * newer one.  It does nothing with NULL or a size that is too small. */
static void check_init_sizes(const unsigned char *whole, size_t ours,
                             void (*init)(void *, size_t)) {
  unsigned char byte[sizeof(ng_layer) + 64];
  assert_true(ours + 16 < sizeof byte);
  init(NULL, ours);
  const size_t sizes[] = {0,       sizeof(size_t) - 1, sizeof(size_t), ours / 2, ours - 1, ours,
                          ours + 9};
  for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
    const size_t size = sizes[k], written = size < sizeof(size_t) ? 0 : size;
    memset(byte, 0xa5, sizeof byte);
    init(byte, size);
    for (size_t i = written; i < sizeof byte; i++) {
      assert_int_equal(byte[i], 0xa5);
    }
    if (written == 0) continue;
    assert_memory_equal(byte, &size, sizeof size);
    for (size_t i = sizeof size; i < written; i++) {
      assert_int_equal(byte[i], i < ours ? whole[i] : 0);
    }
  }
}

#define FOR_EACH_STRUCT(X)                                                                         \
  X(ng_context_config)                                                                             \
  X(ng_batch)                                                                                      \
  X(ng_sgd)                                                                                        \
  X(ng_adamw)
#define OF_BYTES(type)                                                                             \
  static void init_##type(void *out, size_t size) { type##_init(out, size); }
FOR_EACH_STRUCT(OF_BYTES)
static void init_conv_layer(void *out, size_t size) { ng_layer_init(out, NG_CONV2D, size); }

static void initialisers_fill_the_given_size(void **state) {
#define WHOLE(type)                                                                                \
  do {                                                                                             \
    type whole;                                                                                    \
    memset(&whole, 0x5a, sizeof whole);                                                            \
    HARMLESS(type##_init(&whole, sizeof whole));                                                   \
    check_init_sizes((const unsigned char *)&whole, sizeof whole, init_##type);                    \
  } while (0);
  FOR_EACH_STRUCT(WHOLE)
  ng_layer layer;
  memset(&layer, 0x5a, sizeof layer);
  HARMLESS(ng_layer_init(&layer, NG_CONV2D, sizeof layer));
  check_init_sizes((const unsigned char *)&layer, sizeof layer, init_conv_layer);
  assert_int_equal(layer.kind, NG_CONV2D);
  assert_int_equal(layer.shard_axis, -1);
  assert_true(layer.kernel[1] == 1 && layer.stride[0] == 1 && layer.dilation[1] == 1);
  ng_context_config config;
  ng_context_config_init(&config, sizeof config);
  assert_int_equal(config.log_level, NG_LOG_WARN);
  ng_adamw how;
  ng_adamw_init(&how, sizeof how);
  assert_true(how.lr != how.lr); /* lr is NaN, because the caller must set it */
  assert_true(how.beta1 == 0.9 && how.beta2 == 0.999 && how.eps == 1e-8);
  ng_batch batch;
  ng_batch_init(&batch, sizeof batch);
  assert_true(batch.samples == -1 && batch.reduction == NG_MEAN && batch.loss_scale == 1.0);
}

/* Runs last. */
static void every_function_was_called(void **state) {
  char line[256];
  int functions = 0;
  FILE *f = fopen(NG_SOURCE_DIR "/include/natgrad.h", "r");
  assert_non_null(f);
  while (fgets(line, sizeof line, f) != NULL) {
    char *end = strchr(line, '(');
    if (strncmp(line, "NG_API", 6) != 0 || end == NULL) continue;
    *end = 0;
    const char *name = end;
    while (name > line && name[-1] != ' ' && name[-1] != '*') {
      name--;
    }
    int found = 0;
    for (int i = 0; i < calls && !found; i++) {
      found = strcmp(called[i], name) == 0;
    }
    if (!found) fail_msg("%s is not called here", name);
    functions++;
  }
  assert_int_equal(fclose(f), 0);
  assert_true(functions > 50);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(null_arguments_are_refused),
      cmocka_unit_test(initialisers_fill_the_given_size),
      cmocka_unit_test(every_function_was_called),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
