/* t_describe.c: registration of layers: each wrong layer or size gives a message with its name and changes nothing;
 * structs of other headers; sizes that are too large; memory and tokens of embeddings. */
#include "unit_test.h"

#include <stdlib.h>
#include <string.h>

#include "misuse.h"

/* ---- describing a model ----------------------------------------------------------------------*/

static void invalid_layers_are_refused_by_name(void **state) {
  misused f;
  create_model(&f, "");
  int32_t i = -7;
  WRONG(ng_add_linear(f.p, "", 3, 2, 0, &i), NG_ERR_ARG, "empty");
  WRONG(ng_add_linear(f.p, "fc", 3, 2, 0, &i), NG_ERR_ARG, "'fc' is taken");
  WRONG(ng_add_linear(f.p, "x\n", 3, 2, 0, &i), NG_ERR_ARG, "control");
  WRONG(ng_add_linear(f.p, "x", 0, 2, 0, &i), NG_ERR_ARG, "in is 0");
  WRONG(ng_add_linear(f.p, "x", 3, -1, 0, &i), NG_ERR_ARG, "out is -1");
  WRONG(ng_add_linear(f.p, "x", 3, 2, 2, &i), NG_ERR_ARG, "bias is 2");
  WRONG(plane_add_conv2d(f.p, "x", 3, 2, 0, 1, 0, 8, 8, 0, &i), NG_ERR_ARG, "kernel[0]");
  WRONG(plane_add_conv2d(f.p, "x", 3, 2, 3, 0, 0, 8, 8, 0, &i), NG_ERR_ARG, "stride[0]");
  WRONG(plane_add_conv2d(f.p, "x", 3, 2, 3, 1, -1, 8, 8, 0, &i), NG_ERR_ARG, "padding[0]");
  WRONG(plane_add_conv2d(f.p, "x", 3, 2, 3, 1, 0, 0, 8, 0, &i), NG_ERR_ARG, "height");
  WRONG(plane_add_conv2d(f.p, "x", 3, 2, 3, 1, 0, 2, 8, 0, &i), NG_ERR_ARG, "3 pixels");
  WRONG(ng_add_tensor(f.p, "x", 0, &i), NG_ERR_ARG, "count is 0");
  WRONG(ng_add_tensor(f.p, "norm", 3, &i), NG_ERR_ARG, "'norm' is taken");
  ng_layer d;
  d = layer_of(NG_EMBEDDING, "x", 4, 4);
  d.bias = 1;
  WRONG(ng_add_layer(f.p, &d, &i), NG_ERR_ARG, "of an embedding");
  d = layer_of(NG_LINEAR, "x", 4, 4);
  d.shard_axis = 0;
  WRONG(ng_add_layer(f.p, &d, &i), NG_ERR_ARG, "model_group was not given");
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
  d = layer_of(NG_CONV2D, "x", 4, 6);
  d.image[0] = d.image[1] = 5;
  d.groups = 4;
  WRONG(ng_add_layer(f.p, &d, &i), NG_ERR_ARG, "groups");
  d.groups = 1;
  assert_int_equal(i, -7);
  assert_int_equal(ng_explain_count(f.p), 3); /* nothing was registered */
  bind_all(&f);
  assert_int_equal(ng_ready(f.p), NG_OK);
  WRONG(ng_add_linear(f.p, "late", 3, 2, 0, &i), NG_ERR_STATE, "ng_ready");
  WRONG(ng_add_tensor(f.p, "late", 3, &i), NG_ERR_STATE, "ng_ready");
  WRONG(ng_ready(f.p), NG_ERR_STATE, "second time");
  destroy_checked(&f);
}

/* An uninitialised struct with a huge struct_size: nothing is read or written. */
static void structs_of_unknown_size_are_refused(void **state) {
  misused f;
  create_model(&f, "");
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
  destroy_checked(&f);
}

/* Sizes whose products overflow 64 bits: an error with the layer's name, or no memory; no division by zero, no endless
 * loop. */
static void sizes_that_overflow_are_refused(void **state) {
  static const struct {
    int64_t in, out, kernel, stride, padding, dilation, image;
    /* part of the message; NULL: the registration may succeed, and ng_ready may fail */
    const char *word;
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
  allocator gigabyte = {.largest = 1 << 30};
  ng_context_config config = allocator_config(&gigabyte);
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
      fixture_fails(&f, st, NG_ERR_ARG, size[k / 2].word);
    } else {
      assert_int_equal(st, NG_OK);
      const ng_status ready = ng_ready(f.p);
      if (ready != NG_OK && ready != NG_ERR_NOMEM && ready != NG_ERR_ARG) {
        fail_msg("row %d of the sizes: %s", (int)k / 2, ng_last_error(f.ctx));
      }
    }
    fixture_close(&f);
  }
  fixture f;
  fixture_ok(&f, fixture_open(&f, "update=adamw", NULL));
  fixture_fails(&f, ng_add_tensor(f.p, "t", INT64_MAX / 16, NULL), NG_ERR_ARG,
                "1 to 1099511627776");
  fixture_close(&f);
}

/* ---- embeddings ------------------------------------------------------------------------------*/

/* A is a vector, so its memory grows linearly with the vocabulary. */
static void memory_grows_with_the_vocabulary(void **state) {
  fixture f;
  ng_layer l = layer_of(NG_EMBEDDING, "words", 50000, 16);
  fixture_ok(&f, fixture_open(&f, "method=natgrad", NULL));
  assert_int_equal(ng_add_layer(f.p, &l, NULL), NG_OK);
  float *grad = calloc(50000 * 16, sizeof *grad);
  assert_non_null(grad);
  const plane g = plane_of(grad, 50000, 16, NG_F32);
  fixture_ok(&f, plane_bind_grad(f.p, 0, NG_WEIGHT, &g));
  fixture_ok(&f, ng_ready(f.p));
  assert_in_range(fixture_report(&f).factors, 4 * 50000, 4 * 50000 + 4096);
  ng_explain_row row = {.struct_size = sizeof row};
  assert_int_equal(ng_explain(f.p, 0, &row), NG_OK);
  assert_string_equal(row.why, "A diagonal of 50000, G 16x16");
  assert_string_equal(row.family, "kronecker");
  assert_int_equal(row.count, 50000 * 16);
  fixture_close(&f);
  free(grad);
}

/* ---- refusals --------------------------------------------------------------------------------*/

static void must_refuse_layer(const char *options, ng_layer l, ng_status want, const char *text) {
  fixture f;
  fixture_ok(&f, fixture_open(&f, options, NULL));
  ng_status st = ng_add_layer(f.p, &l, NULL);
  if (st == NG_OK) st = ng_ready(f.p);
  fixture_fails(&f, st, want, text);
  fixture_close(&f);
}

static void unsupported_embeddings_are_refused_by_name(void **state) {
  ng_layer l = layer_of(NG_EMBEDDING, "words", 5, 2);
  must_refuse_layer("method=eva", l, NG_ERR_ABSENT,
                    "'words': method eva does not support embeddings");
  must_refuse_layer("method=natgrad positions=reduce", l, NG_ERR_ARG,
                    "positions = reduce is not for embeddings");
  must_refuse_layer("method=sam", l, NG_ERR_ARG, "solver = product is not for embeddings");
  l.bias = 1;
  must_refuse_layer("method=natgrad", l, NG_ERR_ARG, "bias");
  l.bias = 0;
  l.token_dtype = NG_F32;
  must_refuse_layer("method=natgrad", l, NG_ERR_ARG, "token_dtype is f32");
  l.token_dtype = NG_I64;
  l.in = 0;
  must_refuse_layer("method=natgrad", l, NG_ERR_ARG, "in is 0");
}

/* Tokens outside the vocabulary, wrong dtypes and shapes are refused and change nothing.  -1 is NG_NO_TOKEN. */
static void invalid_tokens_are_refused(void **state) {
  fixture f;
  float d[10] = {1}, y[8] = {0};
  int64_t token[2] = {1, 5};
  const int64_t shape[3] = {2, 1, 2};
  ng_layer l = layer_of(NG_EMBEDDING, "words", 5, 2);
  const plane grad = plane_of(d, 5, 2, NG_F32);
  /* tokens are also checked in samples that stat_batch excludes from A */
  fixture_ok(&f, fixture_open(&f, "method=natgrad stat_batch=1", NULL));
  fixture_ok(&f, ng_add_layer(f.p, &l, NULL));
  fixture_ok(&f, plane_bind_grad(f.p, 0, NG_WEIGHT, &grad));
  fixture_ok(&f, ng_ready(f.p));
  fixture_ok(&f, ng_begin_samples(f.p, 2, 1));
  ng_array a = {.data = token, .dtype = NG_I64, .mem = NG_HOST, .ndim = 1, .shape = shape};
  fixture_fails(&f, ng_observe_input(f.p, 0, &a, NG_COPY), NG_ERR_ARG,
                "token 0 of sample 1 is 5, expected 0 to 4");
  token[1] = (INT64_C(1) << 53) + 1; /* not a double */
  fixture_fails(&f, ng_observe_input(f.p, 0, &a, NG_COPY), NG_ERR_ARG,
                "token 0 of sample 1 is 9007199254740993, expected 0 to 4");
  token[1] = -2;
  assert_int_equal(ng_observe_input(f.p, 0, &a, NG_COPY), NG_ERR_ARG);
  a.dtype = NG_I32;
  fixture_fails(&f, ng_observe_input(f.p, 0, &a, NG_COPY), NG_ERR_ARG,
                "dtype is i32, expected i64");
  a = (ng_array){.data = y, .dtype = NG_F32, .mem = NG_HOST, .ndim = 2, .shape = shape};
  assert_int_equal(ng_observe_input(f.p, 0, &a, NG_COPY), NG_ERR_ARG);
  const int64_t odd[1] = {3};
  a = (ng_array){.data = token, .dtype = NG_I64, .mem = NG_HOST, .ndim = 1, .shape = odd};
  assert_int_equal(ng_observe_input(f.p, 0, &a, NG_COPY), NG_ERR_SHAPE);
  token[1] = 4;
  a.shape = shape;
  assert_int_equal(ng_observe_input(f.p, 0, &a, NG_COPY), NG_OK);
  const ng_array g = {.data = y, .dtype = NG_F32, .mem = NG_HOST, .ndim = 3, .shape = shape};
  assert_int_equal(ng_observe_output_grad(f.p, 0, &g, NG_COPY), NG_OK);
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(invalid_layers_are_refused_by_name),
      cmocka_unit_test(sizes_that_overflow_are_refused),
      cmocka_unit_test(structs_of_unknown_size_are_refused),
      cmocka_unit_test(memory_grows_with_the_vocabulary),
      cmocka_unit_test(unsupported_embeddings_are_refused_by_name),
      cmocka_unit_test(invalid_tokens_are_refused),
  };
  return cmocka_run_group_tests_name("describe", tests, NULL, NULL);
}
