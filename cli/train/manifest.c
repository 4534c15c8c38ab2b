/* manifest.c: latest.json, written and read; see manifest.h. */
#include "manifest.h"
#include "disk.h"
#include "seal.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
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

static json_t *hex(uint32_t crc) { return json_sprintf("%08lx", (unsigned long)crc); }

static json_t *file_json(const manifest_file *f) {
  json_t *o = json_pack("{s:I, s:o}", "bytes", (json_int_t)f->bytes, "head", hex(f->head));
  if (f->parts > 0) {
    (void)json_object_set_new(o, "parts", json_integer(f->parts));
    (void)json_object_set_new(o, "id", hex(f->id));
  }
  return o;
}

/* Into `o`. */
static void put_files(json_t *o, const manifest_set *p) {
  for (int i = 0; i < MANIFEST_PARTS; i++) {
    if (p->file[i].bytes > 0)
      (void)json_object_set_new(o, manifest_part[i], file_json(&p->file[i]));
  }
}

static json_t *set_json(const manifest_set *p) {
  if (p->step < 0) return json_null();
  json_t *o = json_pack("{s:I}", "step", (json_int_t)p->step);
  put_files(o, p);
  return o;
}

int manifest_write(const char *path, const manifest *m) {
  json_t *ms = json_object(), *made_by = json_object();
  for (int i = 0; i < m->stations; i++)
    (void)json_object_set_new(ms, m->station[i].name, json_sprintf("%a", m->station[i].total_ms));
  for (int i = 0; i < MANIFEST_MADE_BY; i++)
    (void)json_object_set_new(made_by, maker[i], json_string(m->made_by[i]));
  json_t *o = json_pack("{s:i, s:I}", "schema", SCHEMA, "step", (json_int_t)m->now.step);
  put_files(o, &m->now);
  json_t *rest = json_pack("{s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o}", "before",
                           set_json(&m->before), "config", hex(m->config), "config_next",
                           m->config_next == m->config ? json_null() : hex(m->config_next),
                           "log_bytes", (json_int_t)m->log_bytes, "log", hex(m->log), "seconds",
                           json_sprintf("%a", m->seconds), "ms", ms, "made_by", made_by);
  if (json_object_update(o, rest) != 0) {
    json_decref(o);
    o = NULL;
  }
  json_decref(rest);
  return seal_write(path, o);
}

/* ---- reading ---------------------------------------------------------------------------------*/

static bool read_whole(const json_t *o, const char *key, int64_t *out) {
  const json_t *v = json_object_get(o, key);
  *out = (int64_t)json_integer_value(v);
  return json_is_integer(v) && *out >= 0;
}

static bool read_hex(const json_t *o, const char *key, uint32_t *out) {
  const char *text = json_string_value(json_object_get(o, key));
  char *end = NULL;
  if (text == NULL || strlen(text) != 8) return false;
  *out = (uint32_t)strtoul(text, &end, 16);
  return *end == 0;
}

static bool read_real(const json_t *v, double *out) {
  const char *text = json_string_value(v);
  char *end = NULL;
  if (text == NULL) return false;
  *out = strtod(text, &end);
  return end != text && *end == 0;
}

static bool read_parts(const json_t *o, manifest_file *f) {
  int64_t parts;
  if (json_object_get(o, "parts") == NULL) return true;
  const bool good = read_whole(o, "parts", &parts) && parts >= 2 && parts <= INT32_MAX &&
                    read_hex(o, "id", &f->id);
  f->parts = good ? (int32_t)parts : 0;
  return good;
}

static bool read_set(const json_t *o, manifest_set *p) {
  bool good = read_whole(o, "step", &p->step);
  for (int i = 0; i < MANIFEST_PARTS && good; i++) {
    const json_t *f = json_object_get(o, manifest_part[i]);
    if (f == NULL && i >= MANIFEST_MIXUP) continue;
    good = read_whole(f, "bytes", &p->file[i].bytes) && p->file[i].bytes > 0 &&
           read_hex(f, "head", &p->file[i].head) && read_parts(f, &p->file[i]);
  }
  return good;
}

static bool take(json_t *o, manifest *m) {
  const json_t *before = json_object_get(o, "before"), *made_by = json_object_get(o, "made_by");
  bool good = read_set(o, &m->now) && read_hex(o, "config", &m->config) &&
              read_whole(o, "log_bytes", &m->log_bytes) && read_hex(o, "log", &m->log) &&
              read_real(json_object_get(o, "seconds"), &m->seconds);
  good = good && (json_is_null(before) || read_set(before, &m->before));
  m->config_next = m->config;
  good = good && (json_is_null(json_object_get(o, "config_next")) ||
                  read_hex(o, "config_next", &m->config_next));
  const char *name;
  json_t *v;
  json_object_foreach(json_object_get(o, "ms"), name, v) {
    if (!good || m->stations == TRAIN_STATIONS) break;
    train_station *s = &m->station[m->stations++];
    (void)snprintf(s->name, sizeof s->name, "%s", name);
    good = read_real(v, &s->total_ms);
  }
  for (int i = 0; i < MANIFEST_MADE_BY; i++) {
    const char *text = json_string_value(json_object_get(made_by, maker[i]));
    (void)snprintf(m->made_by[i], MANIFEST_TEXT, "%s", text != NULL ? text : "");
  }
  return good;
}

int manifest_read(const char *path, manifest *m) {
  char *text = NULL;
  manifest_init(m);
  if (disk_regular(path) != CLI_OK || disk_read(path, &text) != CLI_OK) return CLI_BAD;
  json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
  const json_int_t schema = json_integer_value(json_object_get(o, "schema"));
  int rc = CLI_OK;
  if (text[0] == 0) {
    rc = cli_bad("%s: is empty; put the one back that belongs to this checkpoint", path);
  } else if (schema != SCHEMA) {
    rc = cli_bad("%s: expected a checkpoint's list of files, {\"schema\": %d, ...}%s", path, SCHEMA,
                 schema == 1 ? "; schema 1, of an earlier natgrad, cannot be checked" : "");
  } else if (!seal_holds(text) || !take(o, m)) {
    rc = cli_bad("%s: is damaged or was edited: its last line has another checksum", path);
  }
  json_decref(o);
  free(text);
  return rc;
}
