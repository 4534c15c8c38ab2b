/* t_state_growth.c: saving and loading take time in proportion to the layers, and few system calls.  One model of
 * many layers takes about as long as 16 models with the same layers in total: 0.6 to 1.4 times is seen, and 13
 * times if any part is quadratic.  One thread. */
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "json_edit.h"
#include "fixture.h"
#include "folder.h"
#include "safetensors.h"
#include "state/work.h"
#include "stream.h"

enum { FEW = 500, MODELS = 16, MANY = MODELS * FEW, ROUNDS = 3, WIDTH = 2, SAMPLES = 4 };
enum { SAVE, LOAD, LOAD_OTHER, PARTS };

static const double ratio_limit = 4.0;
static const char *const part_name[PARTS] = {"saving", "loading",
                                             "loading a state in another order"};

typedef struct subject {
  fixture f;
  float *grad;
  /* a state, and the same state with the manifest's tensors in reverse order */
  stream saved, other;
  int64_t room; /* bytes reserved for a state */
} subject;

/* A stream that writes to memory reserved before; the streams of tests/stream.c allocate. */
typedef struct sink {
  unsigned char *bytes;
  int64_t n, room;
} sink;

static int32_t write_to_sink(void *user, const void *data, int64_t bytes) {
  sink *s = user;
  if (bytes > s->room - s->n) return 1;
  memcpy(s->bytes + s->n, data, (size_t)bytes);
  s->n += bytes;
  return 0;
}

/* A ready model after one step, with averages and inverses. */
static void open_model(subject *s, int32_t layers) {
  static float a[SAMPLES * WIDTH] = {1, 2, -1, 3, 0, 1, 2, -2},
                           g[SAMPLES * WIDTH] = {2, 1, 1, -1, 3, 0, -2, 1};
  const plane in = plane_of(a, SAMPLES, WIDTH, NG_F32), out = plane_of(g, SAMPLES, WIDTH, NG_F32);
  memset(s, 0, sizeof *s);
  s->room = (int64_t)layers << 14;
  s->grad = calloc((size_t)layers, WIDTH * WIDTH * sizeof *s->grad);
  assert_non_null(s->grad);
  fixture_ok(&s->f, fixture_open(&s->f, "skip_layers=none", &(fixture_how){.threads = 1}));
  for (int32_t i = 0; i < layers; i++) {
    char name[32];
    (void)snprintf(name, sizeof name, "encoder.block%d.fc", (int)i);
    const plane grad[2] = {plane_of(s->grad + (size_t)i * WIDTH * WIDTH, WIDTH, WIDTH, NG_F32)};
    fixture_ok(&s->f, fixture_add_linear(&s->f, name, grad, NULL));
  }
  fixture_ok(&s->f, ng_ready(s->f.p));
  fixture_ok(&s->f, fixture_begin(&s->f, SAMPLES));
  for (int32_t i = 0; i < layers; i++)
    fixture_ok(&s->f, fixture_observe(&s->f, i, &in, &out));
  fixture_ok(&s->f, ng_step(s->f.p, 0.1));
}

/* Reverse the members of the object or list at `path` of a JSON text. */
static void reverse_members(char **text, const char *path) {
  ngio_json *json = json_must_parse(*text, strlen(*text));
  ngio_out o = {0};
  const json_edit edit = {.at = json_find(ngio_json_root(json), path), .reverse = 1};
  json_write(&o, NULL, ngio_json_root(json), &edit);
  ngio_out_bytes(&o, "", 1);
  ngio_json_free(&json);
  free(*text);
  *text = o.text;
}

static void write_reordered_state(subject *s) {
  ngio_tensors *f;
  ngio_writer *w;
  char message[256];
  assert_int_equal(ngio_tensors_parse(s->saved.bytes, (size_t)s->saved.n, "saved", NULL, &f,
                                      message, sizeof message),
                   NGIO_OK);
  char *text = strdup(ngio_tensors_text(f, NG_MANIFEST));
  reverse_members(&text, "tensors");
  reverse_members(&text, "blocks");
  const ng_hex crc = ng_hex_of(ng_crc32(0, text, strlen(text)));
  const ngio_text texts[2] = {{NG_MANIFEST, text}, {NG_MANIFEST_CRC, crc.text}};
  const int32_t n = ngio_tensors_count(f);
  ngio_tensor *t = calloc((size_t)n, sizeof *t);
  assert_non_null(t);
  for (int32_t i = 0; i < n; i++) /* data follow the order of the manifest */
    t[i] = *ngio_tensors_at(f, n - 1 - i);
  sink to = {malloc((size_t)s->saved.n + 4096), 0, s->saved.n + 4096};
  assert_non_null(to.bytes);
  assert_int_equal(
      ngio_writer_stream("other", write_to_sink, &to, t, n, texts, 2, &w, message, sizeof message),
      NGIO_OK);
  for (int32_t i = 0; i < n; i++)
    assert_int_equal(ngio_writer_put(w, t[i].data, t[i].bytes, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_writer_finish(&w, message, sizeof message), NGIO_OK);
  s->other.bytes = to.bytes;
  s->other.n = to.n;
  free(t);
  free(text);
  ngio_tensors_close(&f);
}

static void save_or_load(subject *s, int part) {
  if (part == SAVE) {
    sink to = {s->saved.bytes == NULL ? malloc((size_t)s->room) : s->saved.bytes, 0, s->room};
    assert_non_null(to.bytes);
    fixture_ok(&s->f, ng_save_to(s->f.p, write_to_sink, &to));
    s->saved.bytes = to.bytes;
    s->saved.n = to.n;
    return;
  }
  stream *from = part == LOAD ? &s->saved : &s->other;
  stream_rewind(from);
  fixture_ok(&s->f, ng_load_from(s->f.p, stream_read, from));
}

/* ---- system calls ----------------------------------------------------------------------------*/

/* Read and write calls of this process so far; -1: the system does not count. */
static int64_t count_system_calls(void) {
  long long read = 0, written = 0;
  FILE *f = fopen("/proc/self/io", "r");
  if (f == NULL) return -1;
  const int found = fscanf(f, "rchar: %*d wchar: %*d syscr: %lld syscw: %lld", &read, &written);
  (void)fclose(f);
  return found == 2 ? read + written : -1;
}

/* Thousands of small arrays need few system calls: about one per 256 KB. */
static void states_take_few_system_calls(void **state) {
  const char *file = in_folder("state");
  struct stat is;
  subject s;
  open_model(&s, FEW);
  for (int loading = 0; loading < 2; loading++) {
    const int64_t before = count_system_calls();
    if (before < 0) break;
    fixture_ok(&s.f, loading ? ng_load(s.f.p, file) : ng_save(s.f.p, file));
    assert_int_equal(stat(file, &is), 0);
    const int64_t calls = count_system_calls() - before, most = 16 + is.st_size / (1 << 17);
    if (calls > most)
      fail_msg("%s %lld bytes: %lld calls of the system, expected at most %lld",
               loading ? "loading" : "saving", (long long)is.st_size, (long long)calls,
               (long long)most);
  }
  fixture_close(&s.f);
  free(s.grad);
}

/* ---- time ------------------------------------------------------------------------------------*/

static double measure_time(subject *s, int32_t models, int part) {
  const clock_t begun = clock();
  for (int32_t m = 0; m < models; m++)
    save_or_load(&s[m], part);
  return (double)(clock() - begun) / CLOCKS_PER_SEC;
}

static void time_grows_with_the_model_only(void **state) {
  static subject all[MODELS + 1];
  subject *few = all, *many = &all[MODELS];
  for (int32_t m = 0; m <= MODELS; m++) {
    open_model(&all[m], m < MODELS ? FEW : MANY);
    save_or_load(&all[m], SAVE);
    write_reordered_state(&all[m]);
  }
  for (int part = 0; part < PARTS; part++) {
    double a = INFINITY, b = INFINITY; /* the minimum of ROUNDS: other programs only add time */
    for (int r = 0; r < ROUNDS; r++) {
      a = fmin(a, measure_time(few, MODELS, part));
      b = fmin(b, measure_time(many, 1, part));
    }
    printf("%s: %d models of %d layers %.4f s, one of %d %.4f s, %.1f times\n", part_name[part],
           MODELS, FEW, a, MANY, b, b / a);
    if (b > ratio_limit * a)
      fail_msg("%s grows faster than the layers, expected at most %g times", part_name[part],
               ratio_limit);
  }
  for (int32_t m = 0; m <= MODELS; m++) {
    stream_free(&all[m].saved);
    stream_free(&all[m].other);
    fixture_close(&all[m].f);
    free(all[m].grad);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(states_take_few_system_calls),
                                     cmocka_unit_test(time_grows_with_the_model_only)};
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
