/* t_embedding.c: embeddings: memory and refusals.  t_oracle.c compares random embeddings with a dense solve. */
#include "fixture.h"
#include "unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ng_layer words(int64_t in, int64_t out) {
  ng_layer l;
  ng_layer_init(&l, NG_EMBEDDING, sizeof l);
  l.name = "words";
  l.in = in;
  l.out = out;
  return l;
}

/* A is a vector, so its memory grows linearly with the vocabulary. */
static void memory_grows_with_the_vocabulary(void **state) {
  fixture f;
  ng_layer l = words(50000, 16);
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

static void refused(const char *options, ng_layer l, ng_status want, const char *text) {
  fixture f;
  fixture_ok(&f, fixture_open(&f, options, NULL));
  ng_status st = ng_add_layer(f.p, &l, NULL);
  if (st == NG_OK) st = ng_ready(f.p);
  fixture_fails(&f, st, want, text);
  fixture_close(&f);
}

static void unsupported_embeddings_are_refused_by_name(void **state) {
  ng_layer l = words(5, 2);
  refused("method=eva", l, NG_ERR_ABSENT, "'words': method eva does not support embeddings");
  refused("method=natgrad positions=reduce", l, NG_ERR_ARG,
          "positions = reduce is not for embeddings");
  refused("method=sam", l, NG_ERR_ARG, "solver = product is not for embeddings");
  l.bias = 1;
  refused("method=natgrad", l, NG_ERR_ARG, "bias");
  l.bias = 0;
  l.token_dtype = NG_F32;
  refused("method=natgrad", l, NG_ERR_ARG, "token_dtype is f32");
  l.token_dtype = NG_I64;
  l.in = 0;
  refused("method=natgrad", l, NG_ERR_ARG, "in is 0");
}

/* Tokens outside the vocabulary, wrong dtypes and shapes are refused and change nothing.  -1 is NG_NO_TOKEN. */
static void invalid_tokens_are_refused(void **state) {
  fixture f;
  float d[10] = {1}, y[8] = {0};
  int64_t token[2] = {1, 5};
  const int64_t shape[3] = {2, 1, 2};
  ng_layer l = words(5, 2);
  const plane grad = plane_of(d, 5, 2, NG_F32);
  /* also tokens of samples that stat_batch excludes from A */
  fixture_ok(&f, fixture_open(&f, "method=natgrad stat_batch=1", NULL));
  fixture_ok(&f, ng_add_layer(f.p, &l, NULL));
  fixture_ok(&f, plane_bind_grad(f.p, 0, NG_WEIGHT, &grad));
  fixture_ok(&f, ng_ready(f.p));
  fixture_ok(&f, ng_begin_samples(f.p, 2, 1));
  ng_array a = {.data = token, .dtype = NG_I64, .mem = NG_HOST, .ndim = 1, .shape = shape};
  fixture_fails(&f, ng_observe_input(f.p, 0, &a, NG_COPY), NG_ERR_ARG,
                "token 0 of sample 1 is 5, expected 0 to 4");
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
      cmocka_unit_test(memory_grows_with_the_vocabulary),
      cmocka_unit_test(unsupported_embeddings_are_refused_by_name),
      cmocka_unit_test(invalid_tokens_are_refused),
  };
  return cmocka_run_group_tests_name("embedding", tests, NULL, NULL);
}
