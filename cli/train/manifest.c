/* manifest.c: latest.json, written and read; see manifest.h. */
#include "manifest.h"
#include "disk.h"
#include "seal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { SCHEMA = 2 };

const char *const manifest_part[MANIFEST_PARTS] = {"model", "precond", "mixup", "average"};

void manifest_init(manifest *m) {
  memset(m, 0, sizeof *m);
  m->now.step = m->before.step = -1;
}

/* ---- who made it -----------------------------------------------------------------------------*/

/* Keys of ng_build_info, but for the last two. */
static const char *const maker[MANIFEST_MADE_BY] = {"version",      "commit",    "compiler",
                                                    "linalg",       "blas",      "kernel",
                                                    "blas threads", "processor", "threads"};

void manifest_made_by(manifest *m) {
  int threads = 1;
  for (int i = 0; i < MANIFEST_MADE_BY - 2; i++)
    cli_build(maker[i], m->made_by[i], MANIFEST_TEXT);
  cli_processor(m->made_by[MANIFEST_MADE_BY - 2], MANIFEST_TEXT);
  (void)cli_threads(&threads); /* was asked before, and was good */
  (void)snprintf(m->made_by[MANIFEST_MADE_BY - 1], MANIFEST_TEXT, "%d", threads);
}

void manifest_differs(const manifest *was, const manifest *now, char *text, size_t size) {
  size_t n = 0;
  text[0] = 0;
  for (int i = 0; i < MANIFEST_MADE_BY && n < size; i++) {
    if (strcmp(was->made_by[i], now->made_by[i]) == 0) continue;
    n += (size_t)snprintf(text + n, size - n, "%s%s %s, now %s", n > 0 ? "; " : "", maker[i],
                          was->made_by[i], now->made_by[i]);
  }
}

/* ---- the files -------------------------------------------------------------------------------*/

/* 8 bytes of length, then so many of JSON. */
static bool look(const char *path, manifest_file *out, int *why) {
  struct stat st;
  unsigned char piece[1 << 14];
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  *why = errno;
  if (fd < 0) return false;
  bool good = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && pread(fd, piece, 8, 0) == 8;
  uint64_t length = 0;
  for (int i = 7; good && i >= 0; i--)
    length = length << 8 | piece[i];
  good = good && length <= (uint64_t)st.st_size - 8;
  uLong crc = crc32_z(0, NULL, 0);
  for (uint64_t at = 0; good && at < length + 8;) {
    const uint64_t left = length + 8 - at;
    const ssize_t got =
        pread(fd, piece, left < sizeof piece ? (size_t)left : sizeof piece, (off_t)at);
    if (got < 0 && errno == EINTR) continue;
    good = got > 0;
    if (good) crc = crc32_z(crc, piece, (size_t)got);
    at += good ? (uint64_t)got : 0;
  }
  (void)close(fd);
  *why = 0;
  *out = (manifest_file){.bytes = good ? (int64_t)st.st_size : 0, .head = (uint32_t)crc};
  return good;
}

int manifest_look(const char *path, manifest_file *out) {
  int why;
  if (disk_regular(path) != CLI_OK) return CLI_BAD;
  if (look(path, out, &why)) return CLI_OK;
  return cli_bad("%s: cannot be read: %s", path,
                 why != 0 ? strerror(why) : "no safetensors file, or cut short");
}

bool manifest_is(const char *path, const manifest_file *f) {
  int why;
  manifest_file is;
  return look(path, &is, &why) && is.bytes == f->bytes && is.head == f->head;
}

/* ---- writing ---------------------------------------------------------------------------------*/

static void put_files(ngio_out *o, const manifest_set *p) {
  for (int i = 0; i < MANIFEST_PARTS; i++) {
    const manifest_file *f = &p->file[i];
    if (f->bytes <= 0) continue;
    ngio_open(o, manifest_part[i], '{');
    ngio_put_integer(o, "bytes", f->bytes);
    seal_put(o, "head", f->head);
    if (f->parts > 0) {
      ngio_put_integer(o, "parts", f->parts);
      seal_put(o, "id", f->id);
    }
    ngio_shut(o, '}');
  }
}

static void put_hexadecimal(ngio_out *o, const char *key, double x) {
  char text[64];
  (void)snprintf(text, sizeof text, "%a", x);
  ngio_put_text(o, key, text);
}

int manifest_write(const char *path, const manifest *m) {
  ngio_out o = {.indent = 1};
  ngio_open(&o, NULL, '{');
  ngio_put_integer(&o, "schema", SCHEMA);
  ngio_put_integer(&o, "step", m->now.step);
  put_files(&o, &m->now);
  if (m->before.step < 0) {
    ngio_put_null(&o, "before");
  } else {
    ngio_open(&o, "before", '{');
    ngio_put_integer(&o, "step", m->before.step);
    put_files(&o, &m->before);
    ngio_shut(&o, '}');
  }
  seal_put(&o, "config", m->config);
  if (m->config_next == m->config) {
    ngio_put_null(&o, "config_next");
  } else {
    seal_put(&o, "config_next", m->config_next);
  }
  ngio_put_integer(&o, "log_bytes", m->log_bytes);
  seal_put(&o, "log", m->log);
  put_hexadecimal(&o, "seconds", m->seconds);
  ngio_open(&o, "ms", '{');
  for (int i = 0; i < m->stations; i++)
    put_hexadecimal(&o, m->station[i].name, m->station[i].total_ms);
  ngio_shut(&o, '}');
  ngio_open(&o, "made_by", '{');
  for (int i = 0; i < MANIFEST_MADE_BY; i++)
    ngio_put_text(&o, maker[i], m->made_by[i]);
  ngio_shut(&o, '}');
  return seal_write(path, &o);
}

/* ---- reading ---------------------------------------------------------------------------------*/

static bool read_whole(const ngio_value *o, const char *key, int64_t *out) {
  const ngio_value *v = ngio_get(o, key);
  *out = (int64_t)ngio_integer_of(v);
  return ngio_is(v, NGIO_INTEGER) && *out >= 0;
}

static bool read_hex(const ngio_value *o, const char *key, uint32_t *out) {
  const char *text = ngio_text_of(ngio_get(o, key));
  char *end = NULL;
  if (text == NULL || strlen(text) != 8) return false;
  *out = (uint32_t)strtoul(text, &end, 16);
  return *end == 0;
}

static bool read_real(const ngio_value *v, double *out) {
  const char *text = ngio_text_of(v);
  char *end = NULL;
  if (text == NULL) return false;
  *out = strtod(text, &end);
  return end != text && *end == 0;
}

static bool read_parts(const ngio_value *o, manifest_file *f) {
  int64_t parts;
  if (ngio_get(o, "parts") == NULL) return true;
  const bool good = read_whole(o, "parts", &parts) && parts >= 2 && parts <= INT32_MAX &&
                    read_hex(o, "id", &f->id);
  f->parts = good ? (int32_t)parts : 0;
  return good;
}

static bool read_set(const ngio_value *o, manifest_set *p) {
  bool good = read_whole(o, "step", &p->step);
  for (int i = 0; i < MANIFEST_PARTS && good; i++) {
    const ngio_value *f = ngio_get(o, manifest_part[i]);
    if (f == NULL && i >= MANIFEST_MIXUP) continue;
    good = read_whole(f, "bytes", &p->file[i].bytes) && p->file[i].bytes > 0 &&
           read_hex(f, "head", &p->file[i].head) && read_parts(f, &p->file[i]);
  }
  return good;
}

static bool take(const ngio_value *o, manifest *m) {
  const ngio_value *before = ngio_get(o, "before"), *made_by = ngio_get(o, "made_by");
  bool good = read_set(o, &m->now) && read_hex(o, "config", &m->config) &&
              read_whole(o, "log_bytes", &m->log_bytes) && read_hex(o, "log", &m->log) &&
              read_real(ngio_get(o, "seconds"), &m->seconds);
  good = good && (ngio_is(before, NGIO_NULL) || read_set(before, &m->before));
  m->config_next = m->config;
  good = good && (ngio_is(ngio_get(o, "config_next"), NGIO_NULL) ||
                  read_hex(o, "config_next", &m->config_next));
  const ngio_value *ms = ngio_get(o, "ms");
  for (const ngio_value *v = ngio_first(ms); v != NULL; v = ngio_next(ms, v)) {
    if (!good || m->stations == TRAIN_STATIONS) break;
    train_station *s = &m->station[m->stations++];
    (void)snprintf(s->name, sizeof s->name, "%s", v->key);
    good = read_real(v, &s->total_ms);
  }
  for (int i = 0; i < MANIFEST_MADE_BY; i++) {
    const char *text = ngio_text_of(ngio_get(made_by, maker[i]));
    (void)snprintf(m->made_by[i], MANIFEST_TEXT, "%s", text != NULL ? text : "");
  }
  return good;
}

int manifest_read(const char *path, manifest *m) {
  char *text = NULL;
  manifest_init(m);
  if (disk_regular(path) != CLI_OK || disk_read(path, &text) != CLI_OK) return CLI_BAD;
  ngio_json *json = NULL;
  (void)ngio_json_parse(text, strlen(text), &json, NULL, 0);
  const ngio_value *o = ngio_json_root(json);
  const int64_t schema = ngio_integer_of(ngio_get(o, "schema"));
  int rc = CLI_OK;
  if (text[0] == 0) {
    rc = cli_bad("%s: is empty; put the one back that belongs to this checkpoint", path);
  } else if (schema != SCHEMA) {
    rc = cli_bad("%s: expected a checkpoint's list of files, {\"schema\": %d, ...}%s", path, SCHEMA,
                 schema == 1 ? "; schema 1, of an earlier natgrad, cannot be checked" : "");
  } else if (!seal_holds(text) || !take(o, m)) {
    rc = cli_bad("%s: is damaged or was edited: its last line has another checksum", path);
  }
  ngio_json_free(&json);
  free(text);
  return rc;
}
