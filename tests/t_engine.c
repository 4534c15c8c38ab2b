/* t_engine: the front desk.  Every public function with every wrong argument, order or NULL: its
 * status, a message that names the culprit, nothing changed; what skipping, memory and reports
 * promise. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture.h"

/* ---- a model to misuse -----------------------------------------------------------------------*/

enum { B = 4, IN = 3, OUT = 2 };

static const char *method = "natgrad"; /* of the models made below */

typedef struct fix {
  fixture f;
  ng_context *ctx; /* those of f */
  ng_precond *p;
  int32_t fc, norm;
  float a[B * IN], g[B * OUT], dw[OUT * IN], db[OUT], w[OUT * IN], b[OUT], t[5], dt[5];
} fix;

static void fill(float *x, int n, int salt) {
  for (int i = 0; i < n; i++) {
    x[i] = (float)((i * 7 + salt * 3) % 11 - 5) / 4.0f;
  }
}

static void data(fix *f) {
  fill(f->a, B * IN, 1);
  fill(f->g, B * OUT, 2);
  fill(f->dw, OUT * IN, 3);
  fill(f->db, OUT, 4);
  fill(f->w, OUT * IN, 5);
  fill(f->b, OUT, 6);
  fill(f->t, 5, 7);
  fill(f->dt, 5, 8);
}

/* `set` is "option=value", or "". */
static void create(fix *f, const char *set) {
  char options[128];
  memset(f, 0, sizeof *f);
  data(f);
  (void)snprintf(options, sizeof options, "method=%s %s", method, set);
  fixture_ok(&f->f, fixture_open(&f->f, options, NULL));
  f->ctx = f->f.ctx;
  f->p = f->f.p;
  assert_int_equal(ng_add_linear(f->p, "fc", IN, OUT, 1, &f->fc), NG_OK);
  assert_int_equal(ng_add_tensor(f->p, "norm", 5, &f->norm), NG_OK);
}

static void bind_all(fix *f) {
  const plane dw = plane_of(f->dw, OUT, IN, NG_F32), db = plane_of(f->db, 1, OUT, NG_F32);
  const plane w = plane_of(f->w, OUT, IN, NG_F32), b = plane_of(f->b, 1, OUT, NG_F32);
  const plane t = plane_of(f->t, 1, 5, NG_F32), dt = plane_of(f->dt, 1, 5, NG_F32);
  fixture_ok(&f->f, fixture_bind(&f->f, f->fc, NG_WEIGHT, &dw, &w));
  fixture_ok(&f->f, fixture_bind(&f->f, f->fc, NG_BIAS, &db, &b));
  fixture_ok(&f->f, fixture_bind(&f->f, f->norm, NG_WEIGHT, &dt, &t));
}

static void ready(fix *f, const char *set) {
  create(f, set);
  bind_all(f);
  assert_int_equal(ng_ready(f->p), NG_OK);
}

static ng_batch batch_of(int64_t samples) {
  ng_batch b;
  ng_batch_init(&b, sizeof b);
  b.samples = samples;
  return b;
}

static ng_status show(fix *f) {
  const plane a = plane_of(f->a, B, IN, NG_F32), g = plane_of(f->g, B, OUT, NG_F32);
  return fixture_show(&f->f, B, f->fc, &a, &g);
}

static void destroy(fix *f) {
  ng_precond_destroy(&f->p);
  assert_null(f->p);
  ng_precond_destroy(&f->p);
  ng_precond_destroy(NULL);
  int64_t bytes = -1, now = 0;
  ng_context_allocated(f->ctx, &now, NULL, NULL);
  ng_context *empty = NULL;
  assert_int_equal(ng_context_create(NG_VERSION, NULL, NULL, 0, &empty), NG_OK);
  ng_context_allocated(empty, &bytes, NULL, NULL);
  assert_int_equal(now, bytes); /* what a preconditioner took, it gave back */
  ng_context_destroy(&empty);
  ng_context_destroy(&f->ctx);
  ng_context_destroy(&f->ctx);
  ng_context_destroy(NULL);
}

#define WRONG(call, status, word)                                                                  \
  do {                                                                                             \
    assert_int_equal(call, status);                                                                \
    if (strstr(ng_last_error(f.ctx), word) == NULL) {                                              \
      fail_msg("'%s' does not name '%s'", ng_last_error(f.ctx), word);                             \
    }                                                                                              \
  } while (0)

/* ---- contexts --------------------------------------------------------------------------------*/

static void test_context(void **state) {
  (void)state;
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
  assert_non_null(strstr(why, "queue is set, and this build has no device"));
  c.queue = NULL;
  c.free = (void (*)(void *, void *, size_t))(uintptr_t)1;
  assert_int_equal(ng_context_create(NG_VERSION, &c, why, sizeof why, &ctx), NG_ERR_ARG);
  assert_non_null(strstr(why, "alloc"));
  assert_int_equal(ng_context_create(NG_VERSION, NULL, why, sizeof why, NULL), NG_ERR_ARG);
  assert_int_equal(ng_context_create(NG_VERSION + 10000, NULL, why, sizeof why, &ctx),
                   NG_ERR_STATE);
  assert_int_equal(ng_context_create(NG_VERSION, NULL, NULL, 0, &ctx), NG_OK);
  assert_string_equal(ng_last_error(ctx), "");
  ng_context_destroy(&ctx);
  assert_string_equal(ng_last_error(NULL), "");
}

static void test_environment(void **state) {
  (void)state;
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
  assert_non_null(strstr(why, "NG_LINALG is 'nothing', which is not built in; there is "));
  assert_non_null(strstr(why, "ref"));
  assert_int_equal(keep == NULL ? unsetenv("NG_LINALG") : setenv("NG_LINALG", keep, 1), 0);
  free(keep);
}

/* Lines about the environment, one after the other; nothing else is of interest here. */
typedef struct heard {
  char text[2048];
  int lines;
} heard;

static void hear(void *user, ng_log_level level, const char *line) {
  heard *h = user;
  if (strncmp(line, "environment: ", 13) != 0) return;
  const size_t n = strlen(h->text);
  (void)snprintf(h->text + n, sizeof h->text - n, "%d %s\n", (int)level, line);
  h->lines++;
}

static heard heard_of(const char *const *variable, int n, ng_log_level level) {
  heard h = {.lines = 0};
  ng_context *ctx = NULL;
  ng_context_config c;
  ng_context_config_init(&c, sizeof c);
  c.log = hear;
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

/* A line for each that nobody reads, with the nearest that somebody does; capitals and all. */
static void test_unknown_variables(void **state) {
  (void)state;
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
  const heard before = heard_of(NULL, 0, NG_LOG_WARN); /* what this test was started with */
  heard h = heard_of(known, 7, NG_LOG_WARN);
  assert_int_equal(h.lines, before.lines);
  h = heard_of(unknown, 7, NG_LOG_WARN);
  assert_int_equal(h.lines, before.lines + 7);
  for (int i = 0; i < 7; i++) {
    if (strstr(h.text, says[i]) == NULL) fail_msg("%s does not say %s", h.text, says[i]);
  }
  assert_int_equal(heard_of(unknown, 7, NG_LOG_ERROR).lines, 0);
}

/* Every option is in the list, under the name by which it is read. */
static void test_known_variables(void **state) {
  (void)state;
  ng_variable_info v = {.struct_size = sizeof v};
  int found = 0;
  for (int32_t i = 0; i < ng_variable_count(); i++) {
    assert_int_equal(ng_variable_at(i, &v), NG_OK);
    assert_true(v.struct_size == sizeof v && strncmp(v.name, "NG_", 3) == 0 && v.meaning[0] != 0);
    found += strcmp(v.name, "NG_STAT_DECAY") == 0 || strcmp(v.name, "NG_METHOD") == 0 ||
             strcmp(v.name, "NG_TEST_*") == 0;
  }
  assert_int_equal(found, 3);
  assert_int_equal(ng_variable_at(ng_variable_count(), &v), NG_ERR_ARG);
  v.struct_size = 0;
  assert_int_equal(ng_variable_at(0, &v), NG_ERR_ARG);
  memset(&v, 0x5a, sizeof v); /* a caller whose struct is the size alone */
  ng_variable_info_init(&v, sizeof v.struct_size);
  assert_true(v.struct_size == sizeof v.struct_size && v.name[0] == 0x5a);
}

/* ---- describing a model ----------------------------------------------------------------------*/

static void test_layers(void **state) {
  (void)state;
  fix f;
  create(&f, "");
  int32_t i = -7;
  WRONG(ng_add_linear(f.p, NULL, 3, 2, 0, &i), NG_ERR_ARG, "NULL");
  WRONG(ng_add_linear(f.p, "", 3, 2, 0, &i), NG_ERR_ARG, "empty");
  WRONG(ng_add_linear(f.p, "fc", 3, 2, 0, &i), NG_ERR_ARG, "'fc' is taken");
  WRONG(ng_add_linear(f.p, "x\n", 3, 2, 0, &i), NG_ERR_ARG, "control");
  WRONG(ng_add_linear(f.p, "x", 0, 2, 0, &i), NG_ERR_ARG, "in is 0");
  WRONG(ng_add_linear(f.p, "x", 3, -1, 0, &i), NG_ERR_ARG, "out is -1");
  WRONG(ng_add_linear(f.p, "x", 3, 2, 2, &i), NG_ERR_ARG, "bias is 2");
  WRONG(plane_conv2d(f.p, "x", 3, 2, 0, 1, 0, 8, 8, 0, &i), NG_ERR_ARG, "kernel[0]");
  WRONG(plane_conv2d(f.p, "x", 3, 2, 3, 0, 0, 8, 8, 0, &i), NG_ERR_ARG, "stride[0]");
  WRONG(plane_conv2d(f.p, "x", 3, 2, 3, 1, -1, 8, 8, 0, &i), NG_ERR_ARG, "padding[0]");
  WRONG(plane_conv2d(f.p, "x", 3, 2, 3, 1, 0, 0, 8, 0, &i), NG_ERR_ARG, "height");
  WRONG(plane_conv2d(f.p, "x", 3, 2, 3, 1, 0, 2, 8, 0, &i), NG_ERR_ARG, "3 pixels");
  WRONG(ng_add_tensor(f.p, "x", 0, &i), NG_ERR_ARG, "count is 0");
  WRONG(ng_add_tensor(f.p, "norm", 3, &i), NG_ERR_ARG, "'norm' is taken");
  WRONG(ng_add_layer(f.p, NULL, &i), NG_ERR_ARG, "layer is NULL");
  assert_int_equal(ng_add_linear(NULL, "x", 3, 2, 0, &i), NG_ERR_ARG);
  ng_layer d;
  ng_layer_init(&d, NG_EMBEDDING, sizeof d);
  d.name = "x";
  d.in = d.out = 4;
  d.bias = 1;
  WRONG(ng_add_layer(f.p, &d, &i), NG_ERR_ARG, "of an embedding");
  ng_layer_init(&d, NG_LINEAR, sizeof d);
  d.name = "x";
  d.in = d.out = 4;
  d.shard_axis = 0;
  WRONG(ng_add_layer(f.p, &d, &i), NG_ERR_ABSENT, "shard");
  d.shard_axis = -1;
  d.alias_of = "fc";
  WRONG(ng_add_layer(f.p, &d, &i), NG_ERR_ABSENT, "tied");
  d.alias_of = NULL;
  d.options = "dampin=1";
  WRONG(ng_add_layer(f.p, &d, &i), NG_ERR_ARG, "damping");
  d.options = "damping=-1";
  WRONG(ng_add_layer(f.p, &d, &i), NG_ERR_ARG, "damping");
  d.options = NULL;
  d.kind = (ng_kind)9;
  WRONG(ng_add_layer(f.p, &d, &i), NG_ERR_ARG, "kind");
  d.kind = NG_LINEAR;
  d.struct_size = 8;
  WRONG(ng_add_layer(f.p, &d, &i), NG_ERR_ARG, "struct_size");
  ng_layer_init(&d, NG_CONV2D, sizeof d);
  d.name = "x";
  d.in = 4;
  d.out = 6;
  d.image[0] = d.image[1] = 5;
  d.groups = 4;
  WRONG(ng_add_layer(f.p, &d, &i), NG_ERR_ARG, "groups");
  d.groups = 1;
  assert_int_equal(i, -7);
  assert_int_equal(ng_explain_count(f.p), 3); /* nothing of all that was registered */
  bind_all(&f);
  assert_int_equal(ng_ready(f.p), NG_OK);
  WRONG(ng_add_linear(f.p, "late", 3, 2, 0, &i), NG_ERR_STATE, "ng_ready");
  WRONG(ng_add_tensor(f.p, "late", 3, &i), NG_ERR_STATE, "ng_ready");
  WRONG(ng_ready(f.p), NG_ERR_STATE, "second time");
  destroy(&f);
}

/* A struct that nobody initialised says that it is endless: nothing is read or written there. */
static void test_struct_size(void **state) {
  (void)state;
  fix f;
  create(&f, "");
  struct {
    ng_report r;
    unsigned char guard[64];
  } x;
  memset(&x, 0xbe, sizeof x);
  assert_int_equal(ng_report_read(f.p, &x.r), NG_ERR_ARG);
  for (size_t i = 0; i < sizeof x; i++) {
    assert_int_equal(((unsigned char *)&x)[i], 0xbe);
  }
  ng_batch b;
  memset(&b, 0xbe, sizeof b);
  bind_all(&f);
  assert_int_equal(ng_ready(f.p), NG_OK);
  WRONG(ng_begin(f.p, &b), NG_ERR_ARG, "call ng_batch_init first");
  destroy(&f);
}

/* A machine of a gigabyte. */
static void *modest(void *user, size_t bytes) {
  void *x = NULL;
  (void)user;
  return bytes <= (size_t)1 << 30 && posix_memalign(&x, 64, bytes) == 0 ? x : NULL;
}
static void give_back(void *user, void *x, size_t bytes) {
  (void)user;
  (void)bytes;
  free(x);
}

/* Described sizes whose products do not fit 64 bits: refused by name, or without memory; nothing
 * divides by zero, none of it takes for ever. */
static void test_sizes(void **state) {
  (void)state;
  static const struct {
    int64_t in, out, kernel, stride, padding, dilation, image;
    const char *word; /* NULL: it may be registered, and ng_ready finds no memory, or takes it */
  } size[] = {
      {INT64_C(1) << 30, 4, INT64_C(1) << 17, 1, 0, 1, INT64_C(1) << 20, "in/groups * kernel"},
      {INT64_C(1) << 30, 4, INT64_C(1) << 34, 1, 0, 1, 8, "kernel[0]"},
      {INT64_C(1) << 30, INT64_C(1) << 30, 1, 1, 0, 1, 8, "elements"},
      {1, 1, 3, 1, (INT64_C(1) << 31) - 1, 1, 4, "padding[0]"},
      {1, 1, 2, 1, 65536, 1, 4, "0 to 65535"},
      {1, 1, 2, 1, 65535, 1 << 17, 4, NULL},
      {1, 1, 30000, 1, 65535, 4, 4, NULL},
      {1, 1, 3, 1, 1, 1, (INT64_C(1) << 31) - 1, NULL},
      {1 << 20, 1, 3, 1, 65535, 1, (INT64_C(1) << 31) - 1, NULL},
  };
  static const char *const settings[] = {"max_factor=64", "method=eva"};
  ng_context_config config;
  ng_context_config_init(&config, sizeof config);
  config.alloc = modest;
  config.free = give_back;
  config.threads = 2;
  for (size_t k = 0; k < 2 * sizeof size / sizeof size[0]; k++) {
    fixture f;
    const int64_t z[5] = {size[k / 2].kernel, size[k / 2].stride, size[k / 2].padding,
                          size[k / 2].dilation, size[k / 2].image};
    int64_t pair[5][2];
    for (int i = 0; i < 5; i++) {
      pair[i][0] = pair[i][1] = z[i];
    }
    fixture_ok(&f, fixture_open(&f, settings[k % 2], &(fixture_how){.config = &config}));
    const ng_status st = ng_add_conv2d(f.p, "c", size[k / 2].in, size[k / 2].out, pair[0], pair[1],
                                       pair[2], pair[3], 1, pair[4], 0, NULL);
    if (size[k / 2].word != NULL) {
      WRONG(st, NG_ERR_ARG, size[k / 2].word);
    } else {
      assert_int_equal(st, NG_OK);
      const ng_status ready = ng_ready(f.p);
      if (ready != NG_OK && ready != NG_ERR_NOMEM && ready != NG_ERR_ARG) {
        fail_msg("size %d: %s", (int)k / 2, ng_last_error(f.ctx));
      }
    }
    fixture_close(&f);
  }
  fixture f;
  fixture_ok(&f, fixture_open(&f, "update=adamw", NULL));
  WRONG(ng_add_tensor(f.p, "t", INT64_MAX / 16, NULL), NG_ERR_ARG, "1 to 1099511627776");
  fixture_close(&f);
}

static void test_bind(void **state) {
  (void)state;
  fix f;
  create(&f, "");
  plane v = plane_of(f.dw, OUT, IN, NG_F32);
  WRONG(plane_bind_grad(f.p, 5, NG_WEIGHT, &v), NG_ERR_ARG, "index is 5");
  WRONG(plane_bind_grad(f.p, -1, NG_WEIGHT, &v), NG_ERR_ARG, "index is -1");
  WRONG(plane_bind_grad(f.p, f.norm, NG_BIAS, &v), NG_ERR_ARG, "norm");
  WRONG(plane_bind_grad(f.p, f.fc, (ng_param)3, &v), NG_ERR_ARG, "fc");
  WRONG(plane_bind_grad(f.p, f.fc, NG_WEIGHT, NULL), NG_ERR_ARG, "NULL");
  v.cols = 2;
  WRONG(plane_bind_grad(f.p, f.fc, NG_WEIGHT, &v), NG_ERR_SHAPE, "[2, 3]");
  v.cols = IN;
  v.row_stride = 2;
  WRONG(plane_bind_weight(f.p, f.fc, NG_WEIGHT, &v), NG_ERR_SHAPE, "share memory");
  v.row_stride = IN;
  v.dtype = NG_F64;
  WRONG(plane_bind_weight(f.p, f.fc, NG_WEIGHT, &v), NG_ERR_ARG, "f64");
  v.dtype = NG_F32;
  v.mem = NG_DEVICE;
  WRONG(plane_bind_weight(f.p, f.fc, NG_WEIGHT, &v), NG_ERR_ABSENT, "device");
  assert_int_equal(plane_bind_grad(NULL, 0, NG_WEIGHT, &v), NG_ERR_ARG);
  destroy(&f);
}

/* ---- order of calls --------------------------------------------------------------------------*/

static void test_order(void **state) {
  (void)state;
  fix f;
  create(&f, "");
  plane a = plane_of(f.a, B, IN, NG_F32);
  const ng_batch b = batch_of(B);
  WRONG(ng_begin(f.p, &b), NG_ERR_STATE, "ng_ready");
  WRONG(plane_input(f.p, f.fc, &a, NG_COPY), NG_ERR_STATE, "ng_ready");
  WRONG(ng_step(f.p, 0.1), NG_ERR_STATE, "ng_ready");
  WRONG(ng_reset_batch(f.p), NG_ERR_STATE, "ng_ready");
  WRONG(ng_save(f.p, "/tmp/never"), NG_ERR_STATE, "ng_ready");
  assert_int_equal(ng_wants(f.p, f.fc), 0);
  assert_int_equal(ng_ready(f.p), NG_OK);
  WRONG(plane_input(f.p, f.fc, &a, NG_COPY), NG_ERR_STATE, "ng_begin");
  assert_int_equal(show(&f), NG_OK);
  WRONG(ng_step(f.p, 0.1), NG_ERR_STATE, "gradient of its weight is not bound");
  bind_all(&f);
  WRONG(ng_step(f.p, -1.0), NG_ERR_ARG, "lr is -1");
  WRONG(ng_step(f.p, (double)NAN), NG_ERR_ARG, "lr");
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  destroy(&f);

  ng_precond *none = NULL;
  ng_options o;
  assert_int_equal(ng_context_create(NG_VERSION, NULL, NULL, 0, &f.ctx), NG_OK);
  ng_options_standard(&o);
  WRONG(ng_precond_create_from(f.ctx, NULL, &none), NG_ERR_ARG, "options");
  WRONG(ng_precond_create_from(f.ctx, &o, NULL), NG_ERR_ARG, "out");
  WRONG(ng_precond_create(f.ctx, NULL, NULL), NG_ERR_ARG, "out");
  fixture_set(&o, "skip_layers", "(");
  WRONG(ng_precond_create_from(f.ctx, &o, &none), NG_ERR_ARG, "skip_layers");
  fixture_set(&o, "skip_layers", "");
  fixture_set(&o, "damping_split", "joint");
  WRONG(ng_precond_create_from(f.ctx, &o, &none), NG_ERR_ARG, "damping_split");
  WRONG(ng_precond_create(f.ctx, "damping_split=joint", &none), NG_ERR_ARG, "damping_split");
  WRONG(ng_precond_create(f.ctx, "dampin=1", &none), NG_ERR_ARG, "'damping'");
  WRONG(ng_precond_create(f.ctx, "factor_dtype=f64", &none), NG_ERR_ABSENT, "f64");
  WRONG(ng_precond_create(f.ctx, "skip_layers=(", &none), NG_ERR_ARG, "skip_layers");
  assert_null(none);
  fixture_set(&o, "damping_split", "pi");
  assert_int_equal(ng_precond_create_from(f.ctx, &o, &none), NG_OK);
  WRONG(ng_ready(none), NG_ERR_STATE, "no layer");
  ng_precond_destroy(&none);
  ng_context_destroy(&f.ctx);
}

static void test_never_observed(void **state) {
  (void)state;
  fix f;
  ready(&f, "");
  float before[OUT * IN];
  memcpy(before, f.dw, sizeof before);
  WRONG(ng_step(f.p, 0.1), NG_ERR_STATE, "layer 'fc' was never observed");
  const ng_batch b = batch_of(B);
  const plane a = plane_of(f.a, B, IN, NG_F32);
  assert_int_equal(ng_begin(f.p, &b), NG_OK);
  assert_int_equal(plane_input(f.p, f.fc, &a, NG_COPY), NG_OK);
  WRONG(ng_step(f.p, 0.1), NG_ERR_STATE, "output gradient");
  assert_memory_equal(before, f.dw, sizeof before);
  assert_int_equal(show(&f), NG_OK); /* and it goes on */
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  assert_int_equal(ng_step(f.p, 0.1), NG_UNOBSERVED); /* the average stays: t_unobserved */
  destroy(&f);
}

/* The short form is the long one with a mean loss, bit for bit; samples and scale are told apart. */
static void test_begin_samples(void **state) {
  (void)state;
  float got[3][OUT * IN];
  for (int k = 0; k < 3; k++) {
    fix f;
    ready(&f, "clip=none");
    const plane a = plane_of(f.a, B, IN, NG_F32), g = plane_of(f.g, B, OUT, NG_F32);
    ng_batch b = batch_of(B);
    b.loss_scale = 0.3;
    WRONG(ng_begin_samples(f.p, 0, 0.3), NG_ERR_ARG, "ng_begin_samples: samples is 0");
    WRONG(ng_begin_samples(f.p, B, 0.0), NG_ERR_ARG, "ng_begin_samples: loss_scale is 0");
    WRONG(plane_input(f.p, f.fc, &a, NG_COPY), NG_ERR_STATE, "ng_begin"); /* it has not begun */
    assert_int_equal(k == 0 ? ng_begin(f.p, &b) : ng_begin_samples(f.p, B, k == 1 ? 0.3 : 1.0),
                     NG_OK);
    assert_int_equal(plane_input(f.p, f.fc, &a, NG_COPY), NG_OK);
    assert_int_equal(plane_output_grad(f.p, f.fc, &g, NG_COPY), NG_OK);
    assert_int_equal(ng_step(f.p, 0.1), NG_OK);
    memcpy(got[k], f.dw, sizeof got[k]);
    destroy(&f);
  }
  assert_memory_equal(got[0], got[1], sizeof got[0]);
  assert_memory_not_equal(got[0], got[2], sizeof got[0]);
}

static void test_observe(void **state) {
  (void)state;
  fix f;
  ready(&f, "");
  ng_batch b = batch_of(0);
  WRONG(ng_begin(f.p, &b), NG_ERR_ARG, "samples is 0");
  WRONG(ng_begin(f.p, NULL), NG_ERR_ARG, "batch");
  b = batch_of(B);
  b.loss_scale = 0.0;
  WRONG(ng_begin(f.p, &b), NG_ERR_ARG, "loss_scale");
  b = batch_of(B);
  b.reduction = (ng_reduction)0;
  WRONG(ng_begin(f.p, &b), NG_ERR_ARG, "reduction");
  b.struct_size = 0;
  WRONG(ng_begin(f.p, &b), NG_ERR_ARG, "struct_size");
  b = batch_of(B);
  assert_int_equal(ng_begin(f.p, &b), NG_OK);
  plane a = plane_of(f.a, B, IN, NG_F32);
  WRONG(plane_input(f.p, 9, &a, NG_COPY), NG_ERR_ARG, "index 9");
  WRONG(plane_input(f.p, f.norm, &a, NG_COPY), NG_ERR_ARG, "not a layer");
  WRONG(plane_input(f.p, f.fc, NULL, NG_COPY), NG_ERR_ARG, "NULL");
  WRONG(plane_input(f.p, f.fc, &a, (ng_loan)0), NG_ERR_ARG, "loan");
  WRONG(plane_output_grad(f.p, f.fc, &a, NG_COPY), NG_ERR_SHAPE, "output gradient is [4, 3]");
  a.rows = 3;
  WRONG(plane_input(f.p, f.fc, &a, NG_COPY), NG_ERR_SHAPE, "[3, 3]");
  a.rows = B;
  a.dtype = NG_F64;
  WRONG(plane_input(f.p, f.fc, &a, NG_COPY), NG_ERR_ARG, "f64");
  a.dtype = NG_F32;
  a.mem = NG_DEVICE;
  WRONG(plane_input(f.p, f.fc, &a, NG_COPY), NG_ERR_ABSENT, "device");
  destroy(&f);
}

/* ---- not finite ------------------------------------------------------------------------------*/

/* A refused value: the step says so and why, the gradient stays, and it goes on.  With which bits is in
 * t_properties_life.c. */
static void check_skipped(int where, float value) {
  fix f;
  ready(&f, "");
  assert_int_equal(show(&f), NG_OK); /* one good step */
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  data(&f);
  if (where == 0) f.a[5] = value;
  if (where == 1) f.g[1] = value;
  if (where == 2) f.dw[4] = value;
  if (where == 3) f.db[1] = value;
  float before[OUT * IN];
  memcpy(before, f.dw, sizeof before);
  assert_int_equal(show(&f), where < 2 ? NG_SKIPPED : NG_OK);
  assert_int_equal(ng_step(f.p, 0.1), NG_SKIPPED);
  assert_non_null(
      strstr(ng_last_error(f.ctx), where < 2 ? "not finite" : "gradient is not finite"));
  assert_memory_equal(before, f.dw, sizeof before);
  ng_report r;
  r.struct_size = sizeof r;
  assert_int_equal(ng_report_read(f.p, &r), NG_OK);
  assert_int_equal(r.skipped, 1);
  assert_int_equal(r.steps, 1);
  data(&f);
  assert_int_equal(show(&f), NG_OK);
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  for (int i = 0; i < OUT * IN; i++) {
    assert_true(isfinite((double)f.dw[i]));
  }
  destroy(&f);
}

static void test_not_finite(void **state) {
  (void)state;
  for (int where = 0; where < 4; where++) {
    check_skipped(where, NAN);
    check_skipped(where, INFINITY);
    check_skipped(where, -INFINITY);
  }
}

/* What a family does not read cannot be refused. */
static void test_not_read(void **state) {
  (void)state;
  fix f;
  ready(&f, "stat_batch=2");
  f.a[2 * IN] = NAN;
  f.g[3 * OUT] = INFINITY;
  assert_int_equal(show(&f), NG_OK);
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  assert_true(isfinite((double)f.dw[0]) && isfinite((double)f.db[1]));
  destroy(&f);
  ready(&f, "sides=input");
  f.g[0] = NAN;
  assert_int_equal(show(&f), NG_OK);
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  assert_true(isfinite((double)f.dw[0]));
  destroy(&f);
}

/* Every value is finite, their squares are not: the average must not be touched. */
static void test_overflow(void **state) {
  (void)state;
  fix f;
  ready(&f, "");
  assert_int_equal(show(&f), NG_OK);
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  data(&f);
  const bool kronecker =
      strcmp(method, "natgrad") == 0; /* the other makes no squares, but weighs */
  f.a[0] = kronecker ? 3e30f : 3e38f;
  if (!kronecker) f.a[IN] = f.a[2 * IN] = f.a[3 * IN] = 3e38f;
  assert_int_equal(show(&f), NG_OK);
  assert_int_equal(ng_step(f.p, 0.1), NG_SKIPPED);
  assert_non_null(strstr(ng_last_error(f.ctx), "overflowed"));
  data(&f);
  assert_int_equal(show(&f), NG_OK);
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  assert_true(isfinite((double)f.dw[0]));
  destroy(&f);
}

static void test_loss_scale_overflow(void **state) {
  (void)state;
  fix f;
  ready(&f, "");
  ng_batch b = batch_of(B);
  b.loss_scale = INFINITY;
  float before[OUT * IN];
  memcpy(before, f.dw, sizeof before);
  WRONG(ng_begin(f.p, &b), NG_SKIPPED, "loss_scale");
  assert_int_equal(ng_step(f.p, 0.1), NG_SKIPPED);
  assert_memory_equal(before, f.dw, sizeof before);
  destroy(&f);
}

/* ---- fused updates, options ------------------------------------------------------------------*/

static void test_wrong_update(void **state) {
  (void)state;
  fix f;
  ng_sgd s;
  ng_adamw w;
  ng_sgd_init(&s, sizeof s);
  ng_adamw_init(&w, sizeof w);
  ready(&f, "");
  assert_int_equal(show(&f), NG_OK);
  s.lr = 0.1;
  WRONG(ng_step_sgd(f.p, &s, 1), NG_ERR_STATE, "update");
  w.lr = 0.1;
  WRONG(ng_step_adamw(f.p, &w, 1), NG_ERR_STATE, "update");
  WRONG(ng_step_sgd(f.p, NULL, 1), NG_ERR_ARG, "how");
  WRONG(ng_step_adamw(f.p, NULL, 1), NG_ERR_ARG, "how");
  destroy(&f);
  ready(&f, "update=sgd");
  assert_int_equal(show(&f), NG_OK);
  WRONG(ng_step(f.p, 0.1), NG_ERR_STATE, "update");
  s.momentum = -1;
  WRONG(ng_step_sgd(f.p, &s, 1), NG_ERR_ARG, "momentum");
  s.momentum = 0;
  s.nesterov = 1;
  WRONG(ng_step_sgd(f.p, &s, 1), NG_ERR_ARG, "nesterov");
  s.nesterov = 0;
  s.weight_decay = -1;
  WRONG(ng_step_sgd(f.p, &s, 1), NG_ERR_ARG, "weight_decay");
  s.weight_decay = 0;
  plane none = plane_of(NULL, OUT, IN, NG_F32);
  assert_int_equal(plane_bind_weight(f.p, f.fc, NG_WEIGHT, &none), NG_OK);
  WRONG(ng_step_sgd(f.p, &s, 1), NG_ERR_STATE, "weight of its weight is not bound");
  bind_all(&f);
  assert_int_equal(ng_step_sgd(f.p, &s, 1), NG_OK);
  destroy(&f);
  /* clip = ratio looks at the weights whatever the step writes */
  ready(&f, "");
  assert_int_equal(show(&f), NG_OK);
  assert_int_equal(plane_bind_weight(f.p, f.fc, NG_WEIGHT, &none), NG_OK);
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  assert_int_equal(ng_set(f.p, "clip_bound", "0.1"), NG_OK);
  assert_int_equal(ng_set(f.p, "clip", "ratio"), NG_OK);
  assert_int_equal(show(&f), NG_OK);
  WRONG(ng_step(f.p, 0.1), NG_ERR_STATE, "weight of its weight is not bound");
  bind_all(&f);
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  f.w[1] = INFINITY;
  assert_int_equal(show(&f), NG_OK);
  assert_int_equal(ng_step(f.p, 0.1), NG_SKIPPED);
  destroy(&f);
  ready(&f, "update=adamw");
  assert_int_equal(show(&f), NG_OK);
  w.beta1 = 1.0;
  WRONG(ng_step_adamw(f.p, &w, 1), NG_ERR_ARG, "beta1");
  w.beta1 = 0.9;
  w.beta2 = -0.1;
  WRONG(ng_step_adamw(f.p, &w, 1), NG_ERR_ARG, "beta2");
  w.beta2 = 0.999;
  w.eps = -1;
  WRONG(ng_step_adamw(f.p, &w, 1), NG_ERR_ARG, "eps");
  w.eps = 1e-8;
  assert_int_equal(ng_step_adamw(f.p, &w, 1), NG_OK);
  destroy(&f);
}

static void test_set(void **state) {
  (void)state;
  fix f;
  char value[64];
  ready(&f, "");
  assert_int_equal(ng_set(f.p, "damping", "0.5"), NG_OK);
  assert_int_equal(ng_get(f.p, "damping", value, sizeof value), NG_OK);
  assert_true(strtod(value, NULL) == 0.5);
  WRONG(ng_set(f.p, "damping", "-1"), NG_ERR_ARG, "damping");
  WRONG(ng_set(f.p, "dampin", "1"), NG_ERR_ARG, "damping");
  WRONG(ng_set(f.p, "solver", "eigen"), NG_ERR_STATE, "solver");
  WRONG(ng_set(f.p, "schedule", ""), NG_ERR_STATE, "schedule");
  WRONG(ng_set(f.p, NULL, "1"), NG_ERR_ARG, "NULL");
  WRONG(ng_set_real(f.p, "stat_period", 1.5), NG_ERR_ARG, "stat_period");
  assert_int_equal(ng_get(f.p, "damping", value, sizeof value), NG_OK);
  assert_true(strtod(value, NULL) == 0.5); /* nothing changed */
  assert_int_equal(ng_get(f.p, "nothing", value, sizeof value), NG_ERR_ARG);
  assert_int_equal(ng_get(f.p, "damping", value, 2), NG_ERR_ARG); /* no room */
  destroy(&f);
}

/* ---- memory, reports -------------------------------------------------------------------------*/

static void test_memory_is_what_was_allocated(void **state) {
  (void)state;
  fix f;
  int64_t empty = 0, full = 0, sum = 0;
  ng_context *ctx = NULL;
  assert_int_equal(ng_context_create(NG_VERSION, NULL, NULL, 0, &ctx), NG_OK);
  ng_context_allocated(ctx, &empty, NULL, NULL);
  ng_context_destroy(&ctx);
  ready(&f, "update=adamw");
  ng_context_allocated(f.ctx, &full, NULL, NULL);
  ng_memory_info m;
  m.struct_size = sizeof m;
  for (int32_t i = 0; i < ng_memory_count(f.p); i++) {
    assert_int_equal(ng_memory(f.p, i, &m), NG_OK);
    sum += m.bytes;
    if (strcmp(m.use, "factors") == 0) {
      /* 4 bytes per element of the triangles, each rounded up to a cache line:
       * A: 4*5/2 * 4 = 40, G: 2*3/2 * 4 = 12; rank one: a 4 * 4 = 16, g 2 * 4 = 8 */
      assert_int_equal(m.bytes, 64 + 64);
    }
  }
  assert_int_equal(sum, full - empty);
  assert_int_equal(ng_memory(f.p, 99, &m), NG_ERR_ARG);
  destroy(&f);
}

static void test_reports(void **state) {
  (void)state;
  fix f;
  ready(&f, "skip_layers=^nothing$");
  assert_int_equal(show(&f), NG_OK);
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  ng_report r;
  ng_station_report s;
  ng_layer_report l;
  ng_explain_row e;
  r.struct_size = sizeof r;
  s.struct_size = sizeof s;
  l.struct_size = sizeof l;
  e.struct_size = sizeof e;
  assert_int_equal(ng_report_read(f.p, &r), NG_OK);
  assert_int_equal(r.steps, 1);
  assert_true(r.clip > 0.0 && r.clip <= 1.0);
  assert_true(r.stations > 8);
  for (int32_t i = 0; i < r.stations; i++) {
    assert_int_equal(ng_report_station(f.p, i, &s), NG_OK);
    /* no family here looks at gradients ahead of a step, no gradient is f16, no owner updates, and
     * nothing is measured */
    assert_int_equal(s.runs, strcmp(s.name, "look") != 0 && strcmp(s.name, "probe") != 0 &&
                                 strcmp(s.name, "weights") != 0 && strcmp(s.name, "quantify") != 0);
    assert_int_equal(s.total_bytes, 0); /* one rank sends nothing */
  }
  assert_int_equal(ng_report_station(f.p, r.stations, &s), NG_ERR_ARG);
  assert_int_equal(ng_report_layer(f.p, f.fc, &l), NG_OK);
  assert_string_equal(l.name, "fc");
  assert_int_equal(l.observations, 2);
  assert_int_equal(l.rung, 0);
  assert_true(l.pi > 0.0 && l.damping_a > 0.0 && l.damping_g > 0.0);
  assert_int_equal(ng_explain_count(f.p), 3);
  const char *const name[] = {"fc.weight", "fc.bias", "norm"};
  for (int32_t i = 0; i < 3; i++) {
    assert_int_equal(ng_explain(f.p, i, &e), NG_OK);
    assert_string_equal(e.name, name[i]);
    assert_int_equal(e.covered, i < 2);
    assert_true(strlen(e.why) > 0);
  }
  assert_non_null(strstr(e.why, "tensor"));
  assert_int_equal(ng_explain(f.p, 3, &e), NG_ERR_ARG);
  destroy(&f);
}

static void test_status_names(void **state) {
  (void)state;
#define NG_X(name, value, meaning)                                                                 \
  assert_string_equal(ng_status_name(name), #name);                                                \
  assert_string_equal(ng_status_meaning(name), meaning);
  NG_STATUS_LIST(NG_X)
#undef NG_X
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
  for (int32_t i = 0; i < ng_component_count(); i++) {
    assert_int_equal(ng_component_info(i, &c), NG_OK);
    assert_true(c.built_in || strlen(c.absent) > 0);
  }
  assert_int_equal(ng_component_info(-1, &c), NG_ERR_ARG);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_context),
      cmocka_unit_test(test_environment),
      cmocka_unit_test(test_unknown_variables),
      cmocka_unit_test(test_known_variables),
      cmocka_unit_test(test_layers),
      cmocka_unit_test(test_bind),
      cmocka_unit_test(test_sizes),
      cmocka_unit_test(test_struct_size),
      cmocka_unit_test(test_order),
      cmocka_unit_test(test_never_observed),
      cmocka_unit_test(test_begin_samples),
      cmocka_unit_test(test_observe),
      cmocka_unit_test(test_not_finite),
      cmocka_unit_test(test_overflow),
      cmocka_unit_test(test_loss_scale_overflow),
      cmocka_unit_test(test_wrong_update),
      cmocka_unit_test(test_set),
      cmocka_unit_test(test_memory_is_what_was_allocated),
      cmocka_unit_test(test_reports),
      cmocka_unit_test(test_status_names),
  };
  const struct CMUnitTest of_a_family[] = {
      cmocka_unit_test(test_order),        cmocka_unit_test(test_never_observed),
      cmocka_unit_test(test_observe),      cmocka_unit_test(test_not_finite),
      cmocka_unit_test(test_overflow),     cmocka_unit_test(test_loss_scale_overflow),
      cmocka_unit_test(test_wrong_update), cmocka_unit_test(test_memory_is_what_was_allocated),
      cmocka_unit_test(test_not_read),
  };
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  method = "eva-natgrad";
  return failed + cmocka_run_group_tests_name("rank one", of_a_family, NULL, NULL);
}
