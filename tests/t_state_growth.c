/* t_state_growth.c: saving and loading cost in proportion to the layers.  Four times the layers take four
 * times the processor's time (7 was seen where the larger of the two leaves the cache), and sixteen or
 * more if something is quadratic: ten are allowed.  The least of several runs, of the program's own time, and of
 * more of them as long as the limit is passed, so that other programs count little; one thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fixture.h"
#include "safetensors.h"
#include "state/work.h"
#include "stream.h"

enum { FEW = 1000, MANY = 4 * FEW, RUNS = 7, MOST_RUNS = 40, WIDTH = 2, SAMPLES = 4 };
enum { SAVE, LOAD, LOAD_OTHER, PARTS };

static const double limit = 10.0;
static const char *const part_name[PARTS] = {"saving", "loading",
                                             "loading what another program put in another order"};

typedef struct subject {
  fixture f;
  float *grad;
  stream saved,
      other; /* a state, and the same with the tensors of the manifest from the last to the first */
  double least[PARTS]; /* seconds */
} subject;

/* tests/stream.c grows by each piece; this one has room. */
typedef struct sink {
  unsigned char *bytes;
  int64_t n, room;
} sink;

static int32_t take(void *user, const void *data, int64_t bytes) {
  sink *s = user;
  if (bytes > s->room - s->n) return 1;
  memcpy(s->bytes + s->n, data, (size_t)bytes);
  s->n += bytes;
  return 0;
}

/* One step has been made: averages and inverses are there. */
static void make(subject *s, int32_t layers) {
  static float a[SAMPLES * WIDTH] = {1, 2, -1, 3, 0, 1, 2, -2},
                           g[SAMPLES * WIDTH] = {2, 1, 1, -1, 3, 0, -2, 1};
  const plane in = plane_of(a, SAMPLES, WIDTH, NG_F32), out = plane_of(g, SAMPLES, WIDTH, NG_F32);
  memset(s, 0, sizeof *s);
  s->grad = calloc((size_t)layers, WIDTH * WIDTH * sizeof *s->grad);
  assert_non_null(s->grad);
  fixture_ok(&s->f, fixture_open(&s->f, "skip_layers=^none$", &(fixture_how){.threads = 1}));
  for (int32_t i = 0; i < layers; i++) {
    char name[32];
    (void)snprintf(name, sizeof name, "encoder.block%d.fc", (int)i);
    const plane grad[2] = {plane_of(s->grad + (size_t)i * WIDTH * WIDTH, WIDTH, WIDTH, NG_F32)};
    fixture_ok(&s->f, fixture_linear(&s->f, name, grad, NULL));
  }
  fixture_ok(&s->f, ng_ready(s->f.p));
  fixture_ok(&s->f, fixture_begin(&s->f, SAMPLES));
  for (int32_t i = 0; i < layers; i++)
    fixture_ok(&s->f, fixture_observe(&s->f, i, &in, &out));
  fixture_ok(&s->f, ng_step(s->f.p, 0.1));
}

/* Keys from the last to the first. */
static json_t *reversed(json_t *map) {
  const size_t n = json_object_size(map);
  const char **key = calloc(n + 1, sizeof *key);
  json_t *to = json_object(), *value;
  const char *name;
  size_t at = n;
  assert_non_null(key);
  json_object_foreach(map, name, value) key[--at] = name;
  for (size_t i = 0; i < n; i++)
    json_object_set(to, key[i], json_object_get(map, key[i]));
  free(key);
  return to;
}

static void reorder(subject *s) {
  ngio_tensors *f;
  ngio_writer *w;
  char message[256];
  assert_int_equal(ngio_tensors_parse(s->saved.bytes, (size_t)s->saved.n, "saved", NULL, &f,
                                      message, sizeof message),
                   NGIO_OK);
  json_t *root = json_loads(ngio_tensors_text(f, NG_MANIFEST), 0, NULL);
  for (int i = 0; i < 2; i++) {
    const char *of = i == 0 ? "tensors" : "blocks";
    json_object_set_new(root, of, reversed(json_object_get(root, of)));
  }
  char *text = json_dumps(root, JSON_COMPACT);
  const ng_hex crc = ng_hex_of(ng_crc_of(text, (int64_t)strlen(text)));
  const ngio_text texts[2] = {{NG_MANIFEST, text}, {NG_MANIFEST_CRC, crc.text}};
  const int32_t n = ngio_tensors_count(f);
  ngio_tensor *t = calloc((size_t)n, sizeof *t);
  assert_non_null(t);
  for (int32_t i = 0; i < n; i++) /* the data as well: all are floats */
    t[i] = *ngio_tensors_at(f, n - 1 - i);
  sink to = {malloc((size_t)s->saved.n + 4096), 0, s->saved.n + 4096};
  assert_non_null(to.bytes);
  assert_int_equal(
      ngio_writer_stream("other", take, &to, t, n, texts, 2, NULL, &w, message, sizeof message),
      NGIO_OK);
  for (int32_t i = 0; i < n; i++)
    assert_int_equal(ngio_writer_put(w, t[i].data, t[i].bytes, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_writer_finish(&w, message, sizeof message), NGIO_OK);
  s->other.bytes = to.bytes;
  s->other.n = to.n;
  free(t);
  free(text);
  json_decref(root);
  ngio_tensors_close(&f);
}

static void run(subject *s, int part) {
  if (part == SAVE) {
    const int64_t room = 64 << 20;
    sink to = {s->saved.bytes == NULL ? malloc((size_t)room) : s->saved.bytes, 0, room};
    assert_non_null(to.bytes);
    fixture_ok(&s->f, ng_save_to(s->f.p, take, &to));
    s->saved.bytes = to.bytes;
    s->saved.n = to.n;
    return;
  }
  stream *from = part == LOAD ? &s->saved : &s->other;
  stream_rewind(from);
  fixture_ok(&s->f, ng_load_from(s->f.p, stream_read, from));
}

static bool within_limit(const subject *few, const subject *many) {
  for (int part = 0; part < PARTS; part++)
    if (!(many->least[part] <= limit * few->least[part])) return false;
  return true;
}

static void in_proportion(void **state) {
  subject few, many, *both[2] = {&few, &many};
  (void)state;
  make(&few, FEW);
  make(&many, MANY);
  for (int i = 0; i < 2; i++) {
    run(both[i], SAVE);
    reorder(both[i]);
  }
  for (int r = 0; r < RUNS || (r < MOST_RUNS && !within_limit(&few, &many)); r++) {
    for (int part = 0; part < PARTS; part++) {
      for (int i = 0; i < 2; i++) {
        const clock_t begin = clock();
        run(both[i], part);
        const double took = (double)(clock() - begin) / CLOCKS_PER_SEC;
        double *least = &both[i]->least[part];
        if (r == 0 || took < *least) *least = took;
      }
    }
  }
  for (int part = 0; part < PARTS; part++) {
    const double a = few.least[part], b = many.least[part];
    printf("%s: %d layers %.4f s, %d layers %.4f s, %.1f times\n", part_name[part], FEW, a, MANY, b, b / a);
  }
  if (!within_limit(&few, &many)) fail_msg("saving or loading grows faster than the layers: more than %g times", limit);
  for (int i = 0; i < 2; i++) {
    stream_drop(&both[i]->saved);
    stream_drop(&both[i]->other);
    fixture_close(&both[i]->f);
    free(both[i]->grad);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(in_proportion)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
