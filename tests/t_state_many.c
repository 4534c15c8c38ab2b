/* t_state_many.c: what several threads make and read of a state of many layers is what one does: the same bytes, the
 * same verdict in the same words on every damaged or forged file, nothing changed by one that is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "draw.h"
#include "fixture.h"
#include "state/work.h"
#include "stream.h"

enum { LAYERS = 1100, WIDTH = 2, SAMPLES = 4, TRIALS = 150, FORGED = 150, ROOM = 8 << 20 };

typedef struct pair {
  fixture f[2]; /* by one thread, by three */
  float *grad;
  stream kept[2]; /* their states */
  char path[FIXTURE_FILE];
} pair;

static void make(fixture *f, float *grad, int32_t threads) {
  static float a[SAMPLES * WIDTH] = {1, 2, -1, 3, 0, 1, 2, -2},
                           g[SAMPLES * WIDTH] = {2, 1, 1, -1, 3, 0, -2, 1};
  const plane in = plane_of(a, SAMPLES, WIDTH, NG_F32), out = plane_of(g, SAMPLES, WIDTH, NG_F32);
  fixture_ok(f, fixture_open(f, "method=natgrad", &(fixture_how){.threads = threads}));
  for (int32_t i = 0; i < LAYERS; i++) {
    char name[32];
    (void)snprintf(name, sizeof name,
                   i == 500   ? "tensors"
                   : i == 501 ? "blocks"
                              : "layer%d",
                   (int)i);
    const plane w[2] = {plane_of(grad + (size_t)i * WIDTH * WIDTH, WIDTH, WIDTH, NG_F32)};
    fixture_ok(f, fixture_linear(f, name, w, NULL));
  }
  fixture_ok(f, ng_ready(f->p));
  fixture_ok(f, fixture_begin(f, SAMPLES));
  for (int32_t i = 0; i < LAYERS; i++)
    fixture_ok(f, fixture_observe(f, i, &in, &out));
  fixture_ok(f, ng_step(f->p, 0.1));
}

/* With room for all: stream_write would move it 6,600 times. */
static int32_t take(void *user, const void *data, int64_t bytes) {
  stream *s = user;
  if (bytes > ROOM - s->n) return 1;
  memcpy(s->bytes + s->n, data, (size_t)bytes);
  s->n += bytes;
  return 0;
}

static void keep(fixture *f, stream *s) {
  stream_drop(s);
  *s = (stream){.bytes = malloc(ROOM)};
  assert_non_null(s->bytes);
  fixture_ok(f, ng_save_to(f->p, take, s));
}

static void open_pair(pair *x) {
  memset(x, 0, sizeof *x);
  x->grad = calloc((size_t)2 * LAYERS, WIDTH * WIDTH * sizeof *x->grad);
  assert_non_null(x->grad);
  for (int i = 0; i < 2; i++) {
    make(&x->f[i], x->grad + (size_t)i * LAYERS * WIDTH * WIDTH, i == 0 ? 1 : 3);
    keep(&x->f[i], &x->kept[i]);
  }
  fixture_file(x->path, "t_state_many");
}

static void close_pair(pair *x) {
  for (int i = 0; i < 2; i++) {
    fixture_close(&x->f[i]);
    stream_drop(&x->kept[i]);
  }
  (void)unlink(x->path);
  free(x->grad);
}

static void spill(const pair *x, const void *bytes, size_t n) {
  FILE *to = fopen(x->path, "wb");
  assert_non_null(to);
  assert_int_equal(fwrite(bytes, 1, n, to), n);
  assert_int_equal(fclose(to), 0);
}

/* Both read the file: the same status and words.  true: it was taken. */
static bool both(pair *x, bool *lost) {
  ng_status st[2];
  char says[512] = "";
  for (int i = 0; i < 2; i++) {
    st[i] = ng_load(x->f[i].p, x->path);
    const char *why = ng_last_error(x->f[i].ctx);
    if (i == 0 && st[0] < 0) (void)snprintf(says, sizeof says, "%s", why);
    if (i == 1 && st[1] < 0) assert_string_equal(why, says);
  }
  assert_int_equal(st[0], st[1]);
  *lost = st[0] < 0 && st[0] != NG_ERR_FILE;
  return st[0] >= 0;
}

static void unchanged(pair *x) {
  for (int i = 0; i < 2; i++) {
    stream now = {0};
    keep(&x->f[i], &now);
    assert_int_equal(now.n, x->kept[i].n);
    assert_memory_equal(now.bytes, x->kept[i].bytes, (size_t)now.n);
    stream_drop(&now);
  }
}

static void same_bytes(void **state) {
  pair x;
  bool lost;
  (void)state;
  open_pair(&x);
  assert_int_equal(x.kept[0].n, x.kept[1].n);
  assert_memory_equal(x.kept[0].bytes, x.kept[1].bytes, (size_t)x.kept[0].n);
  fixture_ok(&x.f[1], ng_save(x.f[1].p, x.path));
  assert_true(both(&x, &lost));
  unchanged(&x);
  close_pair(&x);
}

/* The length of the header. */
static int64_t head_of(const stream *s) {
  int64_t n = 0;
  for (int i = 7; i >= 0; i--)
    n = n << 8 | s->bytes[i];
  return n;
}

/* One byte another: anywhere in front of the data, and where entries begin and end. */
static void damaged(void **state) {
  pair x;
  bool lost;
  (void)state;
  open_pair(&x);
  const stream *s = &x.kept[0];
  const int64_t head = head_of(s), n = s->n;
  const char *first = memmem(s->bytes, (size_t)n, ",\"layer0/A\":{\"dtype\"", 20);
  assert_non_null(first);
  const int64_t entries = (const unsigned char *)(const void *)first - s->bytes;
  unsigned char *bytes = malloc((size_t)n);
  assert_non_null(bytes);
  memcpy(bytes, s->bytes, (size_t)n);
  rng r = {test_seed()};
  int refused = 0;
  for (int trial = 0; trial < TRIALS; trial++) {
    const int64_t near = rng_below(&r, 40);
    const int64_t at = trial % 4 == 0   ? 8 + rng_below(&r, head)
                       : trial % 4 == 1 ? entries + near
                       : trial % 4 == 2 ? 8 + head - 1 - near
                                        : entries + rng_below(&r, head - entries);
    static const char other[] = "01,\"{} x";
    const unsigned char was = bytes[at];
    bytes[at] = (unsigned char)other[rng_below(&r, 8)];
    spill(&x, bytes, (size_t)n);
    const bool taken = both(&x, &lost);
    assert_false(lost);
    assert_true(!taken || bytes[at] == was || bytes[at] == ' ' || was == ' ');
    refused += !taken;
    bytes[at] = was;
    if (trial % 30 == 0) unchanged(&x);
  }
  assert_true(refused > TRIALS / 2);
  unchanged(&x);
  free(bytes);
  close_pair(&x);
}

/* One letter of the manifest another, and its checksum that of the text as it is now. */
static void forged(void **state) {
  static const char key[] = "{\"__metadata__\":{\"natgrad\":\"",
                    behind[] = "\",\"natgrad.crc32\":\"";
  pair x;
  bool lost;
  (void)state;
  open_pair(&x);
  const stream *s = &x.kept[0];
  const int64_t n = s->n;
  char *bytes = malloc((size_t)n), *text = malloc((size_t)n);
  assert_true(bytes != NULL && text != NULL);
  memcpy(bytes, s->bytes, (size_t)n);
  assert_memory_equal(bytes + 8, key, sizeof key - 1);
  char *from = bytes + 8 + sizeof key - 1;
  char *to = memmem(from, (size_t)(n - (from - bytes)), behind, sizeof behind - 1);
  const char *tensors = memmem(from, (size_t)(to - from), ",\\\"tensors\\\":{\\\"layer0", 22);
  assert_true(to != NULL && tensors != NULL);
  rng r = {test_seed() + 1};
  int taken = 0;
  for (int trial = 0; trial < FORGED; trial++) {
    static const char other[] = "01ae.z7,";
    char *at = from + rng_below(&r, to - from);
    if (trial % 3 == 0) at = from + (tensors - from) + rng_below(&r, 60);
    if (trial % 3 == 1) at = to - 1 - rng_below(&r, 60);
    const char was = *at;
    if (was == '\\' || was == '"' || (unsigned char)was >= 0x80) continue;
    *at = other[rng_below(&r, 8)];
    int64_t m = 0;
    for (const char *c = from; c < to; c++) {
      if (*c != '\\') text[m++] = *c;
    }
    char was_crc[NG_HEX];
    memcpy(was_crc, to + sizeof behind - 1, NG_HEX);
    memcpy(to + sizeof behind - 1, ng_hex_of(ng_crc_of(text, m)).text, NG_HEX);
    spill(&x, bytes, (size_t)n);
    taken += both(&x, &lost);
    assert_false(lost);
    *at = was;
    memcpy(to + sizeof behind - 1, was_crc, NG_HEX);
  }
  assert_true(taken < FORGED / 2);
  spill(&x, bytes, (size_t)n);
  assert_true(both(&x, &lost));
  unchanged(&x);
  free(text);
  free(bytes);
  close_pair(&x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(same_bytes),
      cmocka_unit_test(damaged),
      cmocka_unit_test(forged),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
