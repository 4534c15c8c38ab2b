/* t_context.c: contexts: wrong arguments, the environment; names of statuses and types, components. */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"

/* ---- contexts --------------------------------------------------------------------------------*/

static void invalid_settings_create_no_context(void **state) {
  ng_context *ctx = (ng_context *)1;
  ng_context_config c;
  char why[256];
  ng_context_config_init(&c, sizeof c);
  c.struct_size = 0;
  assert_int_equal(ng_context_create(NG_VERSION, &c, why, sizeof why, &ctx), NG_ERR_ARG);
  assert_null(ctx);
  assert_non_null(strstr(why, "struct_size"));
  ng_context_config_init(&c, sizeof c);
  c.linalg = "fast";
  assert_int_equal(ng_context_create(NG_VERSION, &c, why, sizeof why, &ctx), NG_ERR_ABSENT);
  assert_non_null(strstr(why, "fast"));
  c.linalg = NULL;
  c.threads = -1;
  assert_int_equal(ng_context_create(NG_VERSION, &c, why, sizeof why, &ctx), NG_ERR_ARG);
  assert_non_null(strstr(why, "threads"));
  c.threads = 1;
  c.log_level = (ng_log_level)9;
  assert_int_equal(ng_context_create(NG_VERSION, &c, why, sizeof why, &ctx), NG_ERR_ARG);
  assert_non_null(strstr(why, "log_level"));
  c.log_level = NG_LOG_NONE;
  c.queue = &c;
  assert_int_equal(ng_context_create(NG_VERSION, &c, why, sizeof why, &ctx), NG_ERR_ABSENT);
  assert_null(ctx);
  assert_non_null(strstr(why, "queue is set, and linalg = "));
  c.queue = NULL;
  c.free = (void (*)(void *, void *, size_t))(uintptr_t)1;
  assert_int_equal(ng_context_create(NG_VERSION, &c, why, sizeof why, &ctx), NG_ERR_ARG);
  assert_non_null(strstr(why, "alloc"));
  c.free = NULL;
  c.device_free = (void (*)(void *, void *, size_t))(uintptr_t)1;
  assert_int_equal(ng_context_create(NG_VERSION, &c, why, sizeof why, &ctx), NG_ERR_ARG);
  assert_non_null(strstr(why, "device_alloc"));
  assert_int_equal(ng_context_create(NG_VERSION + 10000, NULL, why, sizeof why, &ctx),
                   NG_ERR_STATE);
  assert_int_equal(ng_context_create(NG_VERSION, NULL, NULL, 0, &ctx), NG_OK);
  assert_string_equal(ng_last_error(ctx), "");
  ng_context_destroy(&ctx);
  assert_string_equal(ng_last_error(NULL), "");
}

/* A backend that counts the calls of its functions. */
static int64_t allocated, opened, closed, waited;
static const char *failure;

static void *count_alloc(void *user, size_t bytes) {
  allocated++;
  return ng_plain_alloc(user, bytes);
}
static void count_free(void *user, void *at, size_t bytes) {
  allocated--;
  ng_plain_free(user, at, bytes);
}
static const char *count_open(ng_queue *q) {
  opened++;
  return failure;
}
static void count_close(ng_queue *q) { closed++; }
static void count_wait(ng_queue *q) { waited++; }

static void contexts_use_memory_and_queue_of_a_backend(void **state) {
  const ng_backend counts = {.name = "counts",
                             .linalg = &ng_linalg_ref,
                             .host = &ng_linalg_ref,
                             .kernels = ng_backend_ref.kernels,
                             .alloc = count_alloc,
                             .free = count_free,
                             .open = count_open,
                             .close = count_close,
                             .wait = count_wait};
  const ng_backend *const more[] = {&counts, NULL};
  ng_context *ctx = NULL;
  ng_context_config c;
  char why[256];
  ng_context_config_init(&c, sizeof c);
  c.linalg = "counts";
  assert_int_equal(ng_context_create(NG_VERSION, &c, why, sizeof why, &ctx), NG_ERR_ABSENT);
  failure = "no device";
  assert_int_equal(ng_context_create_with(more, NG_VERSION, &c, why, sizeof why, &ctx),
                   NG_ERR_ABSENT);
  assert_string_equal(why, "linalg = counts: no device");
  assert_true(ctx == NULL && opened == 1 && closed == 1 && allocated == 0);
  failure = NULL;
  assert_int_equal(ng_context_create_with(more, NG_VERSION, &c, why, sizeof why, &ctx), NG_OK);
  assert_true(opened == 2 && allocated > 0);
  ng_queue_wait(ctx->queue); /* without work */
  ng_linalg(ctx->queue)->check_finite(ctx->queue, 1, &(float){1.0f}, NG_F32, &(int){0});
  ng_queue_wait(ctx->queue);
  assert_int_equal(waited, 1);
  ng_context_destroy(&ctx);
  assert_true(closed == 2 && allocated == 0);
}

/* The library natgrad_cuda with the stand-in, in the place of the build. */
static void cuda_is_opened_at_run_time(void **state) {
  static const struct {
    const char *library, *linalg, *why;
  } bad[] = {{"/no/such/library.so", "cuda",
              "linalg = cuda: the library does not open: /no/such/library.so"},
             {NG_TEST_OTHER_LIBRARY, "cuda", "is not of version"},
             {NG_TEST_CUDA_LIBRARY, "cuda:1", "linalg = cuda: the stand-in has one device"},
             {NG_TEST_CUDA_LIBRARY, "cuda:x", "linalg is 'cuda:x', which is not built in"},
             {NG_TEST_CUDA_LIBRARY, "cuda2", "linalg is 'cuda2', which is not built in"}};
  ng_context *ctx = NULL;
  ng_context_config c;
  char why[512];
  ng_context_config_init(&c, sizeof c);
  char *keep = getenv("NG_CUDA_LIBRARY") == NULL ? NULL : strdup(getenv("NG_CUDA_LIBRARY"));
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    assert_int_equal(setenv("NG_CUDA_LIBRARY", bad[i].library, 1), 0);
    c.linalg = bad[i].linalg;
    assert_int_equal(ng_context_create(NG_VERSION, &c, why, sizeof why, &ctx), NG_ERR_ABSENT);
    if (strstr(why, bad[i].why) == NULL) fail_msg("%s, expected %s", why, bad[i].why);
  }
  c.linalg = "cuda:0";
  c.queue = &c; /* any address will do as stream, because the stand-in ignores it */
  assert_int_equal(setenv("NG_CUDA_LIBRARY", NG_TEST_CUDA_LIBRARY, 1), 0);
  assert_int_equal(ng_context_create(NG_VERSION, &c, why, sizeof why, &ctx), NG_OK);
  assert_string_equal(ctx->queue->backend->name, "cuda");
  assert_non_null(ctx->queue->device);
  ng_context_destroy(&ctx);
  assert_int_equal(keep == NULL ? unsetenv("NG_CUDA_LIBRARY") : setenv("NG_CUDA_LIBRARY", keep, 1),
                   0);
  free(keep);
}

static void invalid_variables_create_no_context(void **state) {
  ng_context *ctx = NULL;
  char why[256];
  const char *const bad[][2] = {{"NG_THREADS", "two"}, {"NG_THREADS", "0"}, {"NG_LOG", "loud"}};
  for (int i = 0; i < 3; i++) {
    assert_int_equal(setenv(bad[i][0], bad[i][1], 1), 0);
    assert_int_equal(ng_context_create(NG_VERSION, NULL, why, sizeof why, &ctx), NG_ERR_ARG);
    assert_non_null(strstr(why, bad[i][0]));
    assert_int_equal(unsetenv(bad[i][0]), 0);
  }
  char *keep = getenv("NG_LINALG") == NULL ? NULL : strdup(getenv("NG_LINALG"));
  assert_int_equal(setenv("NG_LINALG", "nothing", 1), 0);
  assert_int_equal(ng_context_create(NG_VERSION, NULL, why, sizeof why, &ctx), NG_ERR_ABSENT);
  assert_non_null(strstr(why, "NG_LINALG is 'nothing', which is not built in; expected "));
  assert_non_null(strstr(why, "ref"));
  assert_int_equal(keep == NULL ? unsetenv("NG_LINALG") : setenv("NG_LINALG", keep, 1), 0);
  free(keep);
}

/* Log lines about the environment. */
typedef struct log_lines {
  char text[2048];
  int lines;
} log_lines;

static void append_line(void *user, ng_log_level level, const char *line) {
  log_lines *h = user;
  if (strncmp(line, "environment: ", 13) != 0) return;
  const size_t n = strlen(h->text);
  (void)snprintf(h->text + n, sizeof h->text - n, "%d %s\n", (int)level, line);
  h->lines++;
}

static log_lines collect_log_lines(const char *const *variable, int n, ng_log_level level) {
  log_lines h = {.lines = 0};
  ng_context *ctx = NULL;
  ng_context_config c;
  ng_context_config_init(&c, sizeof c);
  c.log = append_line;
  c.log_user = &h;
  c.log_level = level;
  c.threads = 1;
  for (int i = 0; i < n; i++) {
    assert_int_equal(setenv(variable[i], "1", 1), 0);
  }
  assert_int_equal(ng_context_create(NG_VERSION, &c, NULL, 0, &ctx), NG_OK);
  ng_context_destroy(&ctx);
  for (int i = 0; i < n; i++) {
    assert_int_equal(unsetenv(variable[i]), 0);
  }
  return h;
}

#define LONG_NAME "NG_A_NAME_THAT_GOES_ON_AND_ON_AND_IS_LONGER_THAN_ANY_THAT_A_LIBRARY_WOULD_CHOOSE"

/* A line for each unknown variable, with the nearest known name. */
static void unknown_variables_are_logged_with_the_nearest_name(void **state) {
  static const char *const known[] = {"NG_THREADS", "NG_DAMPING", "NG_TEST_WHATEVER", "NGO",
                                      "NG",         "NG_KL_CLIP", "XNG_DAMPNG"};
  static const char *const unknown[] = {"NG_DAMPNG",   "NG_damping", "NG_THREDS", "NG_TEST",
                                        "NG_ZZZZZZZZ", "NG_",        LONG_NAME};
  static const char *const says[] = {
      "2 environment: NG_DAMPNG is set, and nothing reads it; did you mean 'NG_DAMPING'?\n",
      "2 environment: NG_damping is set, and nothing reads it; did you mean 'NG_DAMPING'?\n",
      "2 environment: NG_THREDS is set, and nothing reads it; did you mean 'NG_THREADS'?\n",
      "2 environment: NG_TEST is set, and nothing reads it\n",
      "2 environment: NG_ZZZZZZZZ is set, and nothing reads it\n",
      "2 environment: NG_ is set, and nothing reads it\n",
      "2 environment: NG_A_NAME_THAT_GOES_ON_"};
  const log_lines before = collect_log_lines(
      NULL, 0, NG_LOG_WARN); /* discard lines about variables that were set before the test */
  log_lines h = collect_log_lines(known, 7, NG_LOG_WARN);
  assert_int_equal(h.lines, before.lines);
  h = collect_log_lines(unknown, 7, NG_LOG_WARN);
  assert_int_equal(h.lines, before.lines + 7);
  for (int i = 0; i < 7; i++) {
    if (strstr(h.text, says[i]) == NULL) fail_msg("%s does not say %s", h.text, says[i]);
  }
  assert_int_equal(collect_log_lines(unknown, 7, NG_LOG_ERROR).lines, 0);
}

/* Every option is in the list of variables. */
static void every_option_is_a_variable(void **state) {
  ng_variable_info v = {.struct_size = sizeof v};
  int found = 0;
  int32_t variables = 0;
  for (; ng_variable_at(variables, &v) == NG_OK; variables++) {
    assert_true(v.struct_size == sizeof v && strncmp(v.name, "NG_", 3) == 0 && v.meaning[0] != 0);
    found += strcmp(v.name, "NG_STAT_DECAY") == 0 || strcmp(v.name, "NG_METHOD") == 0 ||
             strcmp(v.name, "NG_TEST_*") == 0;
  }
  assert_int_equal(found, 3);
  assert_int_equal(ng_variable_at(variables + 1, &v), NG_ERR_ARG);
  v.struct_size = 0;
  assert_int_equal(ng_variable_at(0, &v), NG_ERR_ARG);
}

static void statuses_types_and_components_have_names(void **state) {
  assert_string_equal(ng_status_name(NG_ERR_STATE), "NG_ERR_STATE");
  assert_non_null(ng_status_name((ng_status)77));
  static const struct {
    ng_dtype t;
    int32_t size;
    const char *name;
  } dtype[] = {{NG_F32, 4, "f32"}, {NG_F64, 8, "f64"}, {NG_F16, 2, "f16"}, {NG_BF16, 2, "bf16"},
               {NG_I32, 4, "i32"}, {NG_I64, 8, "i64"}, {NG_U8, 1, "u8"},   {(ng_dtype)99, 0, "?"}};
  for (size_t i = 0; i < sizeof dtype / sizeof dtype[0]; i++) {
    assert_int_equal(ng_dtype_size(dtype[i].t), dtype[i].size);
    assert_string_equal(ng_dtype_name(dtype[i].t), dtype[i].name);
  }
  char text[2048];
  assert_true(ng_build_info(text, sizeof text) > 0);
  assert_non_null(strstr(text, "version = "));
  assert_int_equal(ng_build_info(NULL, 0), (int32_t)strlen(text));
  assert_int_equal(ng_version(), NG_VERSION);
  ng_component c;
  c.struct_size = sizeof c;
  for (int32_t i = 0; ng_component_info(i, &c) == NG_OK; i++) {
    assert_true(c.built_in || strlen(c.absent) > 0);
  }
  assert_int_equal(ng_component_info(-1, &c), NG_ERR_ARG);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(invalid_settings_create_no_context),
      cmocka_unit_test(invalid_variables_create_no_context),
      cmocka_unit_test(unknown_variables_are_logged_with_the_nearest_name),
      cmocka_unit_test(every_option_is_a_variable),
      cmocka_unit_test(statuses_types_and_components_have_names),
      cmocka_unit_test(contexts_use_memory_and_queue_of_a_backend),
      cmocka_unit_test(cuda_is_opened_at_run_time),
  };
  return cmocka_run_group_tests_name("context", tests, NULL, NULL);
}
