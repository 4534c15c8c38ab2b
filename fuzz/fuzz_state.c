/* fuzz_state.c: any file for ng_load, and as a stream for ng_load_from.  A refused file changes nothing and has a
 * message.  After an accepted file, the preconditioner takes a step, saves, and loads its own file.
 *
 * The first byte selects the use of the rest.  'M', 'D', 'H' are lists of edits (position, position, value) of a
 * valid file:
 *   M  of the manifest, which gets a valid checksum
 *   D  of the tensors' data, which get valid checksums
 *   H  of the whole file, without new checksums
 *   J  the rest is a manifest
 * with any other byte all bytes are the file. */
#include "json_edit.h"
#include "fuzz.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "safetensors.h"
#include "sim.h"

static const sim_setup small = {
    .method = "natgrad", .set = "update=sgd stat_period=2", .linalg = "ref", .vary = SIM_SMALL};

enum { MOST = 1 << 16 };

static struct {
  bool ready;
  sim s;
  int fd;
  char name[40];
  uint8_t good[MOST];
  size_t size;
} base;

static size_t read_file(uint8_t *to) {
  const ssize_t n = pread(base.fd, to, MOST, 0);
  NEED(n > 0 && n < MOST);
  return (size_t)n;
}

static void write_file(const void *bytes, size_t n) {
  NEED(ftruncate(base.fd, 0) == 0);
  NEED(pwrite(base.fd, bytes, n, 0) == (ssize_t)n);
}

/* Make a file in a folder, since writers rename their files. */
static void create_disk_file(char real[32]) {
  (void)snprintf(real, 32, "/tmp/fuzz_state-XXXXXX");
  const int fd = mkstemp(real);
  NEED(fd >= 0);
  (void)close(fd);
}

/* Move the bytes of this file to the file in memory. */
static void move_to_memory(const char *real) {
  static uint8_t bytes[MOST];
  const int from = open(real, O_RDONLY);
  const ssize_t n = read(from, bytes, sizeof bytes);
  NEED(n >= 0 && n < MOST);
  (void)close(from);
  NEED(unlink(real) == 0);
  write_file(bytes, (size_t)n);
}

/* The file as a stream, with 1 to 7 bytes per read. */
typedef struct slow_stream {
  int64_t at;
} slow_stream;

static int64_t read_few_bytes(void *user, void *data, int64_t bytes) {
  slow_stream *d = user;
  const int64_t most = 1 + d->at % 7;
  const ssize_t n = pread(base.fd, data, (size_t)(bytes < most ? bytes : most), (off_t)d->at);
  NEED(n >= 0);
  d->at += n;
  return n;
}

static void create_model(void) {
  NEED(sim_open(&base.s, &small, NULL, NULL) == NG_OK);
  for (int64_t t = 0; t < 3; t++) {
    NEED(sim_step(&base.s, t) >= NG_OK);
  }
}

static void create_base_state(void) {
  base.fd = memfd_create("state", 0);
  NEED(base.fd >= 0);
  (void)snprintf(base.name, sizeof base.name, "/proc/self/fd/%d", base.fd);
  char real[32];
  create_model();
  create_disk_file(real);
  NEED(ng_save(base.s.p, real) == NG_OK);
  move_to_memory(real);
  base.size = read_file(base.good);
  base.ready = true;
}

/* Write a file with these tensors and this manifest, and valid checksums. */
static void write_state_file(const ngio_tensors *f, const char *manifest, bool fix_tensors) {
  char sum[16], *text = NULL;
  ngio_tensor t[32];
  const int32_t n = ngio_tensors_count(f);
  NEED(n < 32);
  for (int32_t i = 0; i < n; i++) {
    t[i] = *ngio_tensors_at(f, i);
  }
  ngio_json *m = NULL;
  if (fix_tensors) (void)ngio_json_parse(manifest, strlen(manifest), &m, NULL, 0);
  if (m != NULL) text = strdup(manifest);
  for (int32_t i = 0; i < n && m != NULL; i++) {
    char path[256];
    (void)snprintf(sum, sizeof sum, "\"%08lx\"", crc32(0, t[i].data, (uInt)t[i].bytes));
    (void)snprintf(path, sizeof path, "tensors|%s|crc32", t[i].name);
    const ngio_value *entry = ngio_get(ngio_get(ngio_json_root(m), "tensors"), t[i].name);
    if (ngio_is(entry, NGIO_OBJECT) && strchr(t[i].name, '|') == NULL)
      json_edit_text(&text, path, sum);
  }
  ngio_json_free(&m);
  const char *final = text == NULL ? manifest : text;
  (void)snprintf(sum, sizeof sum, "%08lx", crc32(0, (const Bytef *) final, (uInt)strlen(final)));
  const ngio_text meta[2] = {{"natgrad", final}, {"natgrad.crc32", sum}};
  char real[32]; /* name of the file; stays empty if JSON cannot hold the edited manifest */
  create_disk_file(real);
  (void)ngio_tensors_write(real, t, n, meta, 2, NULL, 0);
  move_to_memory(real);
  free(text);
}

static void apply_edits(uint8_t *bytes, size_t n, const uint8_t *list, size_t size) {
  for (size_t i = 0; i + 3 <= size && n > 0; i += 3) {
    bytes[(list[i] | (size_t)list[i + 1] << 8) % n] = list[i + 2];
  }
}

static void write_input_file(const uint8_t *data, size_t size) {
  static uint8_t bytes[MOST];
  const char mode = size > 0 ? (char)data[0] : 0;
  ngio_tensors *f = NULL;
  if (mode != 'M' && mode != 'D' && mode != 'J' && mode != 'H') {
    write_file(data, size);
    return;
  }
  memcpy(bytes, base.good, base.size);
  if (mode == 'H') {
    apply_edits(bytes, base.size, data + 1, size - 1);
    write_file(bytes, base.size);
    return;
  }
  NEED(ngio_tensors_parse(bytes, base.size, "good", NULL, &f, NULL, 0) == NGIO_OK);
  const char *manifest = ngio_tensors_text(f, "natgrad");
  size_t n = strlen(manifest);
  if (mode == 'J') {
    n = size - 1 < MOST / 4 ? size - 1 : MOST / 4;
    manifest = (const char *)data + 1;
  }
  char *text = malloc(n + 1);
  NEED(text != NULL);
  memcpy(text, manifest, n);
  text[n] = 0;
  if (mode == 'M') apply_edits((uint8_t *)text, n, data + 1, size - 1);
  if (mode == 'D') { /* the reader's copy may be changed */
    for (int32_t i = 0; i < ngio_tensors_count(f); i++) {
      const ngio_tensor *t = ngio_tensors_at(f, i);
      apply_edits((uint8_t *)(uintptr_t)t->data, (size_t)t->bytes, data + 1, size - 1);
    }
  }
  write_state_file(f, text, mode == 'D');
  free(text);
  ngio_tensors_close(&f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!base.ready) create_base_state();
  if (size > MOST / 4) return 0;
  write_input_file(data, size);
  const uint64_t before = sim_fingerprint(&base.s);
  const ng_status st = ng_load(base.s.p, base.name);
  if (st != NG_OK) {
    NEED(st == NG_ERR_FILE);
    NEED(ng_last_error(base.s.ctx)[0] != 0 && strchr(ng_last_error(base.s.ctx), '\n') == NULL);
    NEED(sim_fingerprint(&base.s) == before);
    slow_stream d = {0};
    NEED(ng_load_from(base.s.p, read_few_bytes, &d) == NG_ERR_FILE);
    NEED(sim_fingerprint(&base.s) == before);
    return 0;
  }
  slow_stream d = {0};
  const uint64_t loaded = sim_fingerprint(&base.s);
  NEED(ng_load_from(base.s.p, read_few_bytes, &d) == NG_OK);
  NEED(sim_fingerprint(&base.s) == loaded);
  (void)sim_step(&base.s, 3); /* numbers may have any size, so any status is allowed */
  if (ng_reset_batch(base.s.p) == NG_OK) {
    char real[32];
    create_disk_file(real);
    const ng_status saved = ng_save(base.s.p, real);
    NEED(saved == NG_OK || saved == NG_ERR_FILE); /* a number of a block may overflow */
    if (saved == NG_OK) NEED(ng_load(base.s.p, real) == NG_OK);
    NEED(unlink(real) == 0);
  }
  sim_close(&base.s);
  create_model();
  return 0;
}
