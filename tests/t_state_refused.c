/* t_state_refused.c: a file that is damaged, of another model, or whole and yet a lie is refused by
 * name and changes nothing; what only looks like a lie is taken.  What a save or a load meets
 * outside the file is in t_state_faults.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "model/model.h"
#include "ranks.h"
#include "safetensors.h"
#include "state_scene.h"

/* ---- refused, and nothing changed ------------------------------------------------------------*/

/* A load that must fail with NG_ERR_FILE, say `says`, and leave everything as it is. */
static void refused(sim *s, const char *file, const char *says) {
  const uint64_t before = sim_fingerprint(s);
  const ng_status st = ng_load(s->p, file);
  if (st != NG_ERR_FILE) fail_msg("%s: load says %s", says, ng_status_name(st));
  assert_told(s, says, before);
}

/* A file without a disk, so that thousands of damaged ones are quick to make. */
typedef struct quick {
  int fd;
  path name;
} quick;

static quick quick_file(void) {
  quick q;
  q.fd = memfd_create("state", 0);
  assert_true(q.fd >= 0);
  (void)snprintf(q.name.text, sizeof q.name.text, "/proc/self/fd/%d", q.fd);
  return q;
}

static void quick_set(const quick *q, const void *bytes, size_t n) {
  assert_int_equal(ftruncate(q->fd, 0), 0);
  assert_int_equal(pwrite(q->fd, bytes, n, 0), (ssize_t)n);
}

static void damaged(void **state) {
  (void)state;
  sim a, b;
  size_t n;
  const path good = in_folder("good");
  const sim_setup small = {.method = "natgrad", .set = "update=sgd", .vary = SIM_SMALL};
  open_at(&a, &small, 3);
  assert_int_equal(ng_save(a.p, good.text), NG_OK);
  sim_close(&a);
  unsigned char *bytes = slurp(good.text, &n);
  ngio_tensors *f;
  char message[256];
  assert_int_equal(ngio_tensors_read(good.text, NULL, &f, message, sizeof message), NGIO_OK);
  size_t data = n;
  for (int32_t i = 0; i < ngio_tensors_count(f); i++)
    data -= (size_t)ngio_tensors_at(f, i)->bytes;
  open_at(&b, &small, 1);
  const quick q = quick_file();
  /* cut at every length */
  for (size_t cut = 0; cut < n; cut++) {
    quick_set(&q, bytes, cut);
    refused(&b, q.name.text, "");
  }
  /* a bit of every byte; in the data, the tensor is named */
  for (size_t i = 0; i < n; i++) {
    const unsigned char was = bytes[i];
    char says[340] = "";
    bytes[i] = (unsigned char)(was ^ (1u << (i * 5 % 8)));
    size_t at = data;
    for (int32_t k = 0; i >= data && k < ngio_tensors_count(f); k++) {
      const ngio_tensor *t = ngio_tensors_at(f, k);
      if (i >= at && i < at + (size_t)t->bytes) {
        (void)snprintf(says, sizeof says, "tensor '%s' is damaged", t->name);
      }
      at += (size_t)t->bytes;
    }
    assert_true(i < data || says[0] != 0);
    quick_set(&q, bytes, n);
    refused(&b, q.name.text, says);
    bytes[i] = was;
  }
  /* the undamaged one is taken by the same object */
  assert_untouched(&b, &small, 1);
  quick_set(&q, bytes, n);
  assert_int_equal(ng_load(b.p, q.name.text), NG_OK);
  const path again = in_folder("again");
  assert_int_equal(ng_save(b.p, again.text), NG_OK);
  assert_same_file(good.text, again.text);
  ngio_tensors_close(&f);
  free(bytes);
  (void)close(q.fd);
  sim_close(&b);
  assert_int_equal(unlink(good.text), 0);
  assert_int_equal(unlink(again.text), 0);
}

static void other_models(void **state) {
  (void)state;
  const path good = in_folder("good");
  sim a;
  open_at(&a, &plain, 3);
  assert_int_equal(ng_save(a.p, good.text), NG_OK);
  sim_close(&a);
  static const struct {
    sim_setup how;
    const char *says;
  } others[] = {
      {{.method = "natgrad", .set = "update=sgd stat_period=2", .vary = SIM_RENAMED},
       "layer 0 is 'fc1' in the state and 'fc0' here"},
      {{.method = "natgrad", .set = "update=sgd", .vary = SIM_WIDER},
       "layer 'fc1' is 'linear in=7 out=5 bias=1 frozen=0 positions=0' in the state and 'linear "
       "in=8"},
      {{.method = "natgrad", .set = "update=sgd", .vary = SIM_STRIDE}, "layer 'block/down'"},
      {{.method = "natgrad", .set = "update=sgd", .vary = SIM_FEWER},
       "layer 'seq' of the state is not in this model"},
      {{.method = "natgrad", .set = "update=sgd", .vary = SIM_MORE},
       "layer 5 is 'seq' in the state and 'extra' here"},
      {{.method = "natgrad", .set = "update=sgd", .vary = SIM_OWN, .layer_options = "damping=1"},
       "options of layer 'fc1' is '' in the state and 'damping=1' here"},
      {{.method = "natgrad", .set = "update=gradient"}, "option 'update'"},
      {{.method = "natgrad", .set = "update=adamw"}, "option 'update' is 'sgd'"},
      {{.method = "natgrad", .set = "update=sgd solver=eigen"}, "option 'solver' is 'cholesky'"},
      {{.method = "natgrad", .set = "update=sgd stat_scale=kaisa"}, "option 'stat_scale'"},
      {{.method = "natgrad", .set = "update=sgd factor_dtype=bf16"}, "option 'factor_dtype'"},
      {{.method = "natgrad", .set = "update=sgd inverse_dtype=f16"}, "option 'inverse_dtype'"},
      {{.method = "natgrad", .set = "update=sgd skip_layers=conv"}, "option 'skip_layers'"},
      {{.method = "kaisa", .set = "update=sgd"}, "(method 'natgrad') and"},
      {{.method = "kaisa", .set = "update=sgd"}, "(method 'kaisa')"},
  };
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    sim b;
    open_at(&b, &others[i].how, 2);
    refused(&b, good.text, others[i].says);
    assert_untouched(&b, &others[i].how, 2);
    sim_close(&b);
  }
  assert_int_equal(unlink(good.text), 0);
}

/* ---- a whole file that lies ------------------------------------------------------------------*/

typedef struct forgery {
  ngio_tensor t[64];
  int32_t n;
  json_t *manifest;
} forgery;

static void forge(forgery *f, const ngio_tensors *from) {
  f->n = ngio_tensors_count(from);
  assert_true(f->n < 63);
  for (int32_t i = 0; i < f->n; i++)
    f->t[i] = *ngio_tensors_at(from, i);
  f->manifest = json_loads(ngio_tensors_text(from, "natgrad"), 0, NULL);
  assert_non_null(f->manifest);
}

/* With checksums that fit, unless `crc` is given. */
static void publish(const forgery *f, const char *name, const char *crc) {
  char message[256], sum[16];
  json_t *tensors = json_object_get(f->manifest, "tensors");
  for (int32_t i = 0; i < f->n; i++) {
    json_t *entry = json_object_get(tensors, f->t[i].name);
    const int64_t bytes = ngio_bytes_of(f->t[i].dtype, f->t[i].shape, f->t[i].ndim);
    (void)snprintf(sum, sizeof sum, "%08lx", crc32(0, f->t[i].data, (uInt)bytes));
    if (entry != NULL) json_object_set_new(entry, "crc32", json_string(sum));
  }
  char *text = json_dumps(f->manifest, JSON_COMPACT);
  assert_non_null(text);
  (void)snprintf(sum, sizeof sum, "%08lx", crc32(0, (const Bytef *)text, (uInt)strlen(text)));
  const ngio_text meta[2] = {{"natgrad", text}, {"natgrad.crc32", crc == NULL ? sum : crc}};
  assert_int_equal(ngio_tensors_write(name, f->t, f->n, meta, 2, message, sizeof message), NGIO_OK);
  free(text);
}

static json_t *part(const forgery *f, const char *a, const char *b) {
  json_t *x = json_object_get(f->manifest, a);
  return b == NULL ? x : json_object_get(x, b);
}

static int32_t tensor_index(const forgery *f, const char *name) {
  for (int32_t i = 0; i < f->n; i++) {
    if (strcmp(f->t[i].name, name) == 0) return i;
  }
  fail_msg("no tensor %s", name);
  return -1;
}

static void spoil(forgery *f, int which, float *room) {
  const int32_t i = tensor_index(f, "fc1/A");
  json_t *m = f->manifest;
  switch (which) {
  case 0:
    f->t[i] = f->t[--f->n];
    break; /* missing */
  case 1:
    f->t[f->n] = f->t[i];
    f->t[f->n++].name = "fc1/B";
    break;
  case 2:
    f->t[i].dtype = NGIO_I32;
    break;
  case 3:
    f->t[i].ndim = 2;
    f->t[i].shape[1] = 1;
    break;
  case 4:
    f->t[i].shape[0]--;
    break;
  case 5:
  case 6:
    memcpy(room, f->t[i].data, (size_t)f->t[i].bytes);
    room[3] = which == 5 ? NAN : -INFINITY;
    f->t[i].data = room;
    break;
  case 7:
    json_object_del(part(f, "tensors", NULL), "fc1/A");
    break;
  case 8:
    json_object_set_new(m, "format", json_integer(1));
    break;
  case 9:
    json_object_del(m, "format");
    break;
  case 10:
    json_object_del(m, "layers");
    break;
  case 11:
    json_array_remove(part(f, "layers", NULL), 2);
    break;
  case 12:
    json_object_del(m, "options");
    break;
  case 13:
    json_object_set_new(part(f, "options", NULL), "no_such", json_string("1"));
    break;
  case 14:
    json_object_set_new(part(f, "options", NULL), "damping", json_string("-1"));
    break;
  case 15:
    json_object_set_new(part(f, "options", NULL), "damping", json_integer(1));
    break;
  case 16:
    json_object_del(m, "counters");
    break;
  case 17:
    json_object_set_new(part(f, "counters", NULL), "steps", json_integer(-1));
    break;
  case 18:
    json_object_set_new(part(f, "counters", NULL), "updates", json_integer(99));
    break;
  case 19:
    json_object_set_new(part(f, "counters", NULL), "steps", json_real(3.0));
    break;
  case 20:
    json_object_set_new(part(f, "options", NULL), "schedule", json_string("damping*0.5@3"));
    break;
  case 21:
    json_object_set_new(part(f, "options", NULL), "schedule", json_integer(1));
    break;
  case 22:
    json_object_del(m, "last");
    break;
  case 23:
    json_object_del(m, "blocks");
    break;
  case 24:
    json_object_del(part(f, "blocks", NULL), "conv");
    break;
  case 25:
    json_object_del(part(f, "blocks", "conv"), "A_started");
    break;
  case 26:
    json_object_set_new(part(f, "blocks", "conv"), "more", json_real(1));
    break;
  case 27:
    json_object_set_new(part(f, "blocks", "conv"), "input_observations", json_real(1e300));
    break;
  case 28:
    json_object_set_new(part(f, "blocks", NULL), "more", json_object());
    break;
  case 29:
    json_object_del(m, "method");
    break;
  case 30:
    json_object_set_new(part(f, "options", NULL), "damping_split", json_string("joint"));
    break;
  case 31:
    json_object_set_new(m, "format", json_integer(99));
    break;
  default:
    break;
  }
}

static const char *const lies[] = {
    "tensor 'fc1/A' is missing",
    "tensor 'fc1/B' does not belong",
    "tensor 'fc1/A' has another dtype",
    "tensor 'fc1/A' has another shape",
    "tensor 'fc1/A' has another shape",
    "tensor 'fc1/A' holds a number that is not finite",
    "tensor 'fc1/A' holds a number",
    "tensor 'fc1/A' is not in the manifest",
    "format 1",
    "format 0",
    "no list of layers",
    "layer 2 is 'gamma' in the state and 'block/down' here",
    "no options",
    "'no_such'",
    "damping",
    "option 'damping' of the manifest is not a text",
    "counter 'steps'",
    "counter 'steps'",
    "counter 'updates'",
    "counter 'steps'",
    "option 'schedule' is 'damping*0.5@3' in the state; it was removed: call ng_set_real",
    "option 'schedule' is '' in the state; it was removed",
    "'last'",
    "block 'fc1'",
    "block 'conv'",
    "number 'A_started'",
    "block 'conv' of the manifest has numbers",
    "'input_observations' of block 'conv'",
    "7 blocks",
    "no method",
    "option 'damping_split'",
    "format 99 of the state is not known",
};

/* JSON has UTF-8 only: a state that could not be read back is not written. */
static void texts_that_json_cannot_hold(void **state) {
  (void)state;
  static const char *const option[] = {"skip_layers", "layer"};
  for (int i = 0; i < 2; i++) {
    fixture f;
    int32_t index;
    fixture_ok(&f, fixture_open(&f, i == 0 ? "skip_layers='no\xff'" : "", NULL));
    fixture_ok(&f, ng_add_linear(f.p, "fc", 3, 2, 0, &index));
    fixture_ok(&f, ng_add_linear(f.p, i == 0 ? "second" : "second\xff", 3, 2, 0, &index));
    fixture_ok(&f, ng_ready(f.p));
    const path file = in_folder("no_utf8");
    assert_int_equal(ng_save(f.p, file.text), NG_ERR_FILE);
    assert_non_null(strstr(ng_last_error(f.ctx), option[i]));
    assert_non_null(strstr(ng_last_error(f.ctx), "is not UTF-8"));
    assert_int_not_equal(access(file.text, F_OK), 0);
    fixture_close(&f);
  }
}

static void lying(void **state) {
  (void)state;
  const path good = in_folder("good"), bad = in_folder("bad");
  sim a, b;
  char message[256];
  float room[512];
  open_at(&a, &plain, 3);
  assert_int_equal(ng_save(a.p, good.text), NG_OK);
  sim_close(&a);
  open_at(&b, &plain, 1);
  ngio_tensors *from;
  assert_int_equal(ngio_tensors_read(good.text, NULL, &from, message, sizeof message), NGIO_OK);
  forgery f;
  for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
    forge(&f, from);
    char says[128];
    (void)snprintf(says, sizeof says, "%s", lies[i]);
    if (i == 28) { /* one more than the model has */
      (void)snprintf(says, sizeof says, "the state has %zu blocks and this model %d",
                     json_object_size(part(&f, "blocks", NULL)) + 1, b.p->blocks);
    }
    spoil(&f, (int)i, room);
    publish(&f, bad.text, NULL);
    refused(&b, bad.text, says);
    json_decref(f.manifest);
  }
  forge(&f, from);
  publish(&f, bad.text, "00000000");
  refused(&b, bad.text, "the manifest is damaged");
  json_decref(f.manifest);
  assert_int_equal(ngio_tensors_write(bad.text, f.t, f.n, NULL, 0, message, sizeof message),
                   NGIO_OK);
  refused(&b, bad.text, "no state of natgrad");
  const ngio_text meta[3] = {{"natgrad", "{"}, {"natgrad.crc32", "15d54739"}, {"more", ""}};
  char sum[16];
  (void)snprintf(sum, sizeof sum, "%08lx", crc32(0, (const Bytef *)"{", 1));
  assert_string_equal(sum, meta[1].value);
  assert_int_equal(ngio_tensors_write(bad.text, f.t, f.n, meta, 2, message, sizeof message),
                   NGIO_OK);
  refused(&b, bad.text, "no JSON");
  assert_int_equal(ngio_tensors_write(bad.text, f.t, f.n, meta, 3, message, sizeof message),
                   NGIO_OK);
  refused(&b, bad.text, "no state of natgrad");
  refused(&b, "/dev/null", "not a regular file");
  refused(&b, in_folder("absent").text, strerror(ENOENT));
  FILE *text = fopen(bad.text, "wb");
  assert_non_null(text);
  (void)fputs("this is a text and not a state at all", text);
  (void)fclose(text);
  refused(&b, bad.text, "no safetensors file");
  ngio_tensors_close(&from);
  assert_untouched(&b, &plain, 1);

  /* An old state without an option: what the option's default does. */
  assert_int_equal(ngio_tensors_read(good.text, NULL, &from, message, sizeof message), NGIO_OK);
  forge(&f, from);
  json_object_del(part(&f, "options", NULL), "kl_clip");
  json_object_del(part(&f, "options", NULL), "positions");
  publish(&f, bad.text, NULL);
  assert_int_equal(ng_load(b.p, bad.text), NG_OK);
  json_decref(f.manifest);
  /* A number that is not finite, also where the manifest says so. */
  forge(&f, from);
  spoil(&f, 5, room);
  json_object_set_new(json_object_get(part(&f, "tensors", NULL), "fc1/A"), "finite", json_false());
  publish(&f, bad.text, NULL);
  refused(&b, bad.text, "tensor 'fc1/A' holds a number that is not finite");
  json_decref(f.manifest);
  ngio_tensors_close(&from);
  sim_close(&b);
  assert_int_equal(unlink(good.text), 0);
  assert_int_equal(unlink(bad.text), 0);
}

/* Rungs are counted by the rank that climbed them; a file keeps the sum, whoever reads it. */
static void counters_come_back(void **state) {
  (void)state;
  static const char *const name[] = {"more_damping", "in_double", "kept_last", "plain", "skipped"};
  const path good = in_folder("good"), forged = in_folder("forged"), again = in_folder("again");
  static const sim_setup how = {.method = "natgrad", .set = "update=sgd", .linalg = "ref"};
  char message[256];
  relay r = {&how, NULL, good.text};
  assert_int_equal(ranks_run(1, pass_on, &r, NULL), NG_OK);
  ngio_tensors *from;
  forgery f;
  assert_int_equal(ngio_tensors_read(good.text, NULL, &from, message, sizeof message), NGIO_OK);
  forge(&f, from);
  for (int i = 0; i < 5; i++) {
    json_object_set_new(part(&f, "counters", NULL), name[i], json_integer(11 + i));
  }
  publish(&f, forged.text, NULL);
  json_decref(f.manifest);
  ngio_tensors_close(&from);
  r = (relay){&how, forged.text, good.text};
  assert_int_equal(ranks_run(1, pass_on, &r, NULL), NG_OK);
  r = (relay){&how, good.text, again.text};
  assert_int_equal(ranks_run(3, pass_on, &r, NULL), NG_OK);
  assert_same_file(good.text, again.text);
  sim s;
  ng_report report = {.struct_size = sizeof report};
  open_at(&s, &how, 0);
  assert_int_equal(ng_load(s.p, again.text), NG_OK);
  assert_int_equal(ng_report_read(s.p, &report), NG_OK);
  assert_int_equal(report.steps, 3);
  assert_int_equal(report.more_damping, 11);
  assert_int_equal(report.in_double, 12);
  assert_int_equal(report.kept_last, 13);
  assert_int_equal(report.plain, 14);
  assert_int_equal(report.skipped, 15);
  sim_close(&s);
  assert_int_equal(unlink(good.text), 0);
  assert_int_equal(unlink(forged.text), 0);
  assert_int_equal(unlink(again.text), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(damaged),
      cmocka_unit_test(other_models),
      cmocka_unit_test(lying),
      cmocka_unit_test(texts_that_json_cannot_hold),
      cmocka_unit_test(counters_come_back),
  };
  return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
