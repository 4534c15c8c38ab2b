/* t_state_refused.c: files that are damaged, of another model, or inconsistent are refused with a message that
 * names the fault, and change nothing.  A file of an older version with fewer options is accepted.
 * t_state_faults.c tests faults outside the file. */
#include "unit_test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "json_edit.h"
#include "model/model.h"
#include "ranks.h"
#include "safetensors.h"
#include "state_help.h"

/* ---- damaged states, states of other models --------------------------------------------------*/

/* Load a file that must fail with NG_ERR_FILE and a message with `says`, and change nothing. */
static void expect_refused(sim *s, const char *file, const char *says) {
  const uint64_t before = sim_fingerprint(s);
  const ng_status st = ng_load(s->p, file);
  if (st != NG_ERR_FILE) fail_msg("%s: load says %s", says, ng_status_name(st));
  assert_refusal(s, says, before);
}

/* A file in memory, so that thousands of damaged files are tested quickly. */
typedef struct memory_file {
  int fd;
  path name;
} memory_file;

static memory_file open_memory_file(void) {
  memory_file q;
  q.fd = memfd_create("state", 0);
  assert_true(q.fd >= 0);
  (void)snprintf(q.name.text, sizeof q.name.text, "/proc/self/fd/%d", q.fd);
  return q;
}

static void fill_memory_file(const memory_file *q, const void *bytes, size_t n) {
  assert_int_equal(ftruncate(q->fd, 0), 0);
  assert_int_equal(pwrite(q->fd, bytes, n, 0), (ssize_t)n);
}

static void damaged_states_are_refused(void **state) {
  sim a, b;
  size_t n;
  const path good = path_of("good");
  const sim_setup small = {.method = "natgrad", .set = "update=sgd", .vary = SIM_SMALL};
  open_and_step(&a, &small, 3);
  assert_int_equal(ng_save(a.p, good.text), NG_OK);
  sim_close(&a);
  unsigned char *bytes = read_file(good.text, &n);
  ngio_tensors *f = must_read_tensors(good.text);
  size_t data = n;
  for (int32_t i = 0; i < ngio_tensors_count(f); i++)
    data -= (size_t)ngio_tensors_at(f, i)->bytes;
  open_and_step(&b, &small, 1);
  const memory_file q = open_memory_file();
  /* truncated at every length */
  for (size_t cut = 0; cut < n; cut++) {
    fill_memory_file(&q, bytes, cut);
    expect_refused(&b, q.name.text, "");
  }
  /* one bit of every byte flipped; in the data, the message names the tensor */
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
    fill_memory_file(&q, bytes, n);
    expect_refused(&b, q.name.text, says);
    bytes[i] = was;
  }
  /* the same object loads the undamaged file */
  assert_untouched(&b, &small, 1);
  fill_memory_file(&q, bytes, n);
  assert_int_equal(ng_load(b.p, q.name.text), NG_OK);
  const path again = path_of("again");
  assert_int_equal(ng_save(b.p, again.text), NG_OK);
  assert_same_file(good.text, again.text);
  ngio_tensors_close(&f);
  free(bytes);
  (void)close(q.fd);
  sim_close(&b);
  assert_int_equal(unlink(good.text), 0);
  assert_int_equal(unlink(again.text), 0);
}

static void states_of_other_models_are_refused(void **state) {
  const path good = path_of("good");
  sim a;
  open_and_step(&a, &plain, 3);
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
    open_and_step(&b, &others[i].how, 2);
    expect_refused(&b, good.text, others[i].says);
    assert_untouched(&b, &others[i].how, 2);
    sim_close(&b);
  }
  assert_int_equal(unlink(good.text), 0);
}

/* ---- inconsistent files with correct checksums -----------------------------------------------*/

typedef struct forgery {
  ngio_tensor t[64];
  int32_t n;
  char *manifest;
} forgery;

static void copy_to_forgery(forgery *f, const ngio_tensors *from) {
  f->n = ngio_tensors_count(from);
  assert_true(f->n < 63);
  for (int32_t i = 0; i < f->n; i++)
    f->t[i] = *ngio_tensors_at(from, i);
  f->manifest = strdup(ngio_tensors_text(from, "natgrad"));
  assert_non_null(f->manifest);
}

/* Write the file with correct checksums, or with `crc` as checksum of the manifest, and free the forgery. */
static void write_forgery(forgery *f, const char *name, const char *crc) {
  char message[256], sum[16], place[128];
  for (int32_t i = 0; i < f->n; i++) {
    ngio_json *json = json_must_parse(f->manifest, strlen(f->manifest));
    const int64_t bytes = ngio_bytes_of(f->t[i].dtype, f->t[i].shape, f->t[i].ndim);
    (void)snprintf(sum, sizeof sum, "\"%08lx\"", crc32(0, f->t[i].data, (uInt)bytes));
    (void)snprintf(place, sizeof place, "tensors|%s", f->t[i].name);
    const bool listed = json_find(ngio_json_root(json), place) != NULL;
    ngio_json_free(&json);
    (void)snprintf(place, sizeof place, "tensors|%s|crc32", f->t[i].name);
    if (listed) json_edit_text(&f->manifest, place, sum);
  }
  (void)snprintf(sum, sizeof sum, "%08lx",
                 crc32(0, (const Bytef *)f->manifest, (uInt)strlen(f->manifest)));
  const ngio_text meta[2] = {{"natgrad", f->manifest}, {"natgrad.crc32", crc == NULL ? sum : crc}};
  assert_int_equal(ngio_tensors_write(name, f->t, f->n, meta, 2, message, sizeof message), NGIO_OK);
  free(f->manifest);
}

/* Changes of the tensor fc1/A. */
enum { KEPT, MISSING, ADDED, OLD_NAME, OTHER_TYPE, OTHER_RANK, SHORTER, NOT_A_NUMBER, INFINITE };

static void change_tensor(forgery *f, int how, float *room) {
  int32_t i = 0;
  while (strcmp(f->t[i].name, "fc1/A") != 0)
    i++;
  switch (how) {
  case MISSING:
    f->t[i] = f->t[--f->n];
    break;
  case ADDED:
  case OLD_NAME:
    f->t[f->n] = f->t[i];
    f->t[f->n++].name = how == OLD_NAME ? "window/gram_rest" : "fc1/B";
    break;
  case OTHER_TYPE:
    f->t[i].dtype = NGIO_I32;
    break;
  case OTHER_RANK:
    f->t[i].ndim = 2;
    f->t[i].shape[1] = 1;
    break;
  case SHORTER:
    f->t[i].shape[0]--;
    break;
  case NOT_A_NUMBER:
  case INFINITE:
    memcpy(room, f->t[i].data, (size_t)f->t[i].bytes);
    room[3] = how == NOT_A_NUMBER ? NAN : -INFINITY;
    f->t[i].data = room;
    break;
  default:
    break;
  }
}

static const struct {
  int tensor;              /* the change of fc1/A */
  const char *path, *with; /* the change of the manifest; with = NULL: remove `path` */
  const char *says;
} changes[] = {
    {MISSING, NULL, NULL, "tensor 'fc1/A' is missing"},
    {ADDED, NULL, NULL, "tensor 'fc1/B' does not belong"},
    {OLD_NAME, NULL, NULL,
     "tensor 'window/gram_rest' was written by an older version (0.2.0); this version cannot load"},
    {OTHER_TYPE, NULL, NULL, "tensor 'fc1/A' has another dtype"},
    {OTHER_RANK, NULL, NULL, "tensor 'fc1/A' has another shape"},
    {SHORTER, NULL, NULL, "tensor 'fc1/A' has another shape"},
    {NOT_A_NUMBER, NULL, NULL, "tensor 'fc1/A' holds a number that is not finite"},
    {NOT_A_NUMBER, "tensors|fc1/A|finite", "false",
     "tensor 'fc1/A' holds a number that is not finite"},
    {INFINITE, NULL, NULL, "tensor 'fc1/A' holds a number"},
    {KEPT, "tensors|fc1/A", NULL, "tensor 'fc1/A' is not in the manifest"},
    {KEPT, "format", "1", "format 1"},
    {KEPT, "format", NULL, "format 0"},
    {KEPT, "format", "99", "format 99 of the state is unknown"},
    {KEPT, "layers", NULL, "no list of layers"},
    {KEPT, "layers|2", NULL, "layer 2 is 'gamma' in the state and 'block/down' here"},
    {KEPT, "options", NULL, "no options"},
    {KEPT, "options|no_such", "\"1\"", "'no_such'"},
    {KEPT, "options|damping", "\"-1\"", "damping"},
    {KEPT, "options|damping", "1", "option 'damping' of the manifest is not a text"},
    {KEPT, "options|damping_split", "\"joint\"", "option 'damping_split'"},
    {KEPT, "options|spatial", NULL, "option 'spatial' is 'full' in the state (method 'natgrad')"},
    {KEPT, "counters", NULL, "counter 'steps'"},
    {KEPT, "counters|steps", "-1", "counter 'steps'"},
    {KEPT, "counters|steps", "3.0", "counter 'steps'"},
    {KEPT, "counters|updates", "99", "counter 'updates'"},
    {KEPT, "options|schedule", "\"damping*0.5@3\"",
     "option 'schedule' is 'damping*0.5@3' in the state; it was removed: call ng_set_real"},
    {KEPT, "options|schedule", "1", "option 'schedule' is '' in the state; it was removed"},
    {KEPT, "last", NULL, "'last'"},
    {KEPT, "blocks", NULL, "block 'fc1'"},
    {KEPT, "blocks|conv", NULL, "block 'conv'"},
    {KEPT, "blocks|conv|A_started", NULL, "number 'A_started'"},
    {KEPT, "blocks|conv|more", "1.0", "block 'conv' of the manifest has numbers"},
    {KEPT, "blocks|conv|input_observations", "1e300", "'input_observations' of block 'conv'"},
    {KEPT, "blocks|more", "{}", "5 blocks, this model has 4"},
    {KEPT, "method", NULL, "no method"},
    /* a control character of the manifest is not written raw */
    {KEPT, "layers|0|name", "\"ma\\nrk\"", "ma?rk"},
    {KEPT, "options|ma\x1brk", "\"1\"", "ma?rk"},
    {KEPT, "options|damping", "\"ma\\u007frk\"", "ma?rk"},
};

/* JSON cannot hold text that is not UTF-8, so a model with such a name cannot be saved. */
static void texts_that_are_not_utf8_are_not_saved(void **state) {
  static const char *const option[] = {"skip_layers", "layer"};
  for (int i = 0; i < 2; i++) {
    fixture f;
    fixture_ok(&f, fixture_open(&f, i == 0 ? "skip_layers='no\xff'" : "", NULL));
    fixture_ok(&f, ng_add_linear(f.p, "fc", 3, 2, 0, NULL));
    fixture_ok(&f, ng_add_linear(f.p, i == 0 ? "second" : "second\xff", 3, 2, 0, NULL));
    fixture_ok(&f, ng_ready(f.p));
    const path file = path_of("no_utf8");
    fixture_fails(&f, ng_save(f.p, file.text), NG_ERR_FILE, option[i]);
    assert_non_null(strstr(ng_last_error(f.ctx), "is not UTF-8"));
    assert_int_not_equal(access(file.text, F_OK), 0);
    fixture_close(&f);
  }
}

static void inconsistent_files_are_refused(void **state) {
  const path good = path_of("good"), bad = path_of("bad");
  sim a, b;
  char message[256];
  float room[512];
  open_and_step(&a, &plain, 3);
  assert_int_equal(ng_save(a.p, good.text), NG_OK);
  sim_close(&a);
  open_and_step(&b, &plain, 1);
  ngio_tensors *from = must_read_tensors(good.text);
  forgery f;
  for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
    copy_to_forgery(&f, from);
    change_tensor(&f, changes[i].tensor, room);
    if (changes[i].path != NULL) json_edit_text(&f.manifest, changes[i].path, changes[i].with);
    write_forgery(&f, bad.text, NULL);
    expect_refused(&b, bad.text, changes[i].says);
  }
  copy_to_forgery(&f, from);
  write_forgery(&f, bad.text, "00000000");
  expect_refused(&b, bad.text, "the manifest is damaged");
  assert_int_equal(ngio_tensors_write(bad.text, f.t, f.n, NULL, 0, message, sizeof message),
                   NGIO_OK);
  expect_refused(&b, bad.text, "without a state of natgrad");
  const ngio_text meta[3] = {{"natgrad", "{"}, {"natgrad.crc32", "15d54739"}, {"more", ""}};
  char sum[16];
  (void)snprintf(sum, sizeof sum, "%08lx", crc32(0, (const Bytef *)"{", 1));
  assert_string_equal(sum, meta[1].value);
  assert_int_equal(ngio_tensors_write(bad.text, f.t, f.n, meta, 2, message, sizeof message),
                   NGIO_OK);
  expect_refused(&b, bad.text, "not JSON");
  assert_int_equal(ngio_tensors_write(bad.text, f.t, f.n, meta, 3, message, sizeof message),
                   NGIO_OK);
  expect_refused(&b, bad.text, "without a state of natgrad");
  expect_refused(&b, "/dev/null", "not a regular file");
  expect_refused(&b, path_of("absent").text, strerror(ENOENT));
  FILE *text = fopen(bad.text, "wb");
  assert_non_null(text);
  (void)fputs("this is a text and not a state at all", text);
  (void)fclose(text);
  expect_refused(&b, bad.text, "no safetensors file");
  ngio_tensors_close(&from);
  assert_untouched(&b, &plain, 1);

  /* A state of an older version without an option has the option's default. */
  from = must_read_tensors(good.text);
  copy_to_forgery(&f, from);
  json_edit_text(&f.manifest, "options|kl_clip", NULL);
  json_edit_text(&f.manifest, "options|positions", NULL);
  write_forgery(&f, bad.text, NULL);
  assert_int_equal(ng_load(b.p, bad.text), NG_OK);
  ngio_tensors_close(&from);
  sim_close(&b);
  assert_int_equal(unlink(good.text), 0);
  assert_int_equal(unlink(bad.text), 0);
}

/* Each rank counts its own fallbacks.  The file stores the sum, and all ranks read it. */
static void counters_are_restored(void **state) {
  static const char *const name[] = {"more_damping", "in_double", "kept_last", "plain", "skipped"};
  const path good = path_of("good"), forged = path_of("forged"), again = path_of("again");
  static const sim_setup how = {.method = "natgrad", .set = "update=sgd", .linalg = "ref"};
  must_transfer(1, (transfer){.how = &how, .steps = 3, .one = good.text});
  ngio_tensors *from = must_read_tensors(good.text);
  forgery f;
  copy_to_forgery(&f, from);
  for (int i = 0; i < 5; i++) {
    char counter[64], value[16];
    (void)snprintf(counter, sizeof counter, "counters|%s", name[i]);
    (void)snprintf(value, sizeof value, "%d", 11 + i);
    json_edit_text(&f.manifest, counter, value);
  }
  write_forgery(&f, forged.text, NULL);
  ngio_tensors_close(&from);
  must_transfer(1, (transfer){.how = &how, .load = forged.text, .one = good.text});
  must_transfer(3, (transfer){.how = &how, .load = good.text, .one = again.text});
  assert_same_file(good.text, again.text);
  sim s;
  open_and_step(&s, &how, 0);
  assert_int_equal(ng_load(s.p, again.text), NG_OK);
  const ng_report report = fixture_report(&s.f);
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
      cmocka_unit_test(damaged_states_are_refused),
      cmocka_unit_test(states_of_other_models_are_refused),
      cmocka_unit_test(inconsistent_files_are_refused),
      cmocka_unit_test(texts_that_are_not_utf8_are_not_saved),
      cmocka_unit_test(counters_are_restored),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_empty_folder);
}
