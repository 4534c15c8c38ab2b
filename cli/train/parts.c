/* parts.c: see parts.h. */
#include "parts.h"
#include "common/cli.h"
#include "disk.h"
#include "part_files.h"
#include "safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MESSAGE = 512, TEXT = 64 };

/* ---- names -----------------------------------------------------------------------------------*/

char *parts_path(const char *path, const manifest_file *f, int32_t r) {
  const size_t n = strlen(path) + NGIO_PART_ROOM;
  char *name = cli_take(n, 1), id[NGIO_PART_ROOM];
  (void)snprintf(id, sizeof id, "%08lx", (unsigned long)f->id);
  ngio_part_path(name, n, path, id, r, f->parts);
  return name;
}

static int regular(void *user, const char *name) {
  (void)user;
  return disk_regular(name);
}

int parts_regular(const char *path) {
  char *room = cli_take(ngio_parts_room(path), 1);
  const int rc = ngio_parts_each(path, room, regular, NULL);
  free(room);
  return rc;
}

void parts_sweep(const char *path) {
  char *room = cli_take(ngio_parts_room(path), 1);
  ngio_parts_sweep(path, NULL, room);
  free(room);
}

/* ---- what they say ---------------------------------------------------------------------------*/

/* The text that the head of a safetensors file has under `key` into `text`; false: none. */
static bool says(const char *path, const char *key, char *text, size_t size, char *why) {
  ngio_source s = {.fd = -1};
  ngio_tensors *file = NULL;
  const bool read = ngio_source_open(&s, path, why, MESSAGE) == NGIO_OK &&
                    ngio_tensors_begin(&s, NULL, NULL, &file, why, MESSAGE) == NGIO_OK;
  const char *is = read ? ngio_tensors_text(file, key) : NULL;
  if (is != NULL) (void)snprintf(text, size, "%s", is);
  ngio_tensors_close(&file);
  ngio_source_close(&s);
  return is != NULL;
}

int parts_look(const char *path, int32_t ranks, manifest_file *f) {
  char id[TEXT] = "", why[MESSAGE] = "is no state of the library";
  if (ranks < 2) return CLI_OK;
  if (!says(path, "natgrad.crc32", id, sizeof id, why)) return cli_bad("%s: %s", path, why);
  f->parts = ranks;
  f->id = (uint32_t)strtoul(id, NULL, 16);
  return CLI_OK;
}

bool parts_is(const char *path, const manifest_file *f, int32_t r) {
  char *part = parts_path(path, f, r);
  char whole[TEXT] = "", is[TEXT] = "", id[TEXT], place[NGIO_PART_ROOM], why[MESSAGE];
  struct stat at;
  (void)snprintf(id, sizeof id, "%08lx", (unsigned long)f->id);
  ngio_part_says(place, r, f->parts);
  const bool good = lstat(part, &at) == 0 && S_ISREG(at.st_mode) &&
                    says(part, NGIO_PART_WHOLE, whole, sizeof whole, why) &&
                    says(part, NGIO_PART, is, sizeof is, why) && strcmp(whole, id) == 0 &&
                    strcmp(is, place) == 0;
  free(part);
  return good;
}

/* ---- all of them -----------------------------------------------------------------------------*/

int parts_find(const char *path, const char *next, const manifest_file *f, int64_t step) {
  int rc = CLI_OK;
  for (int32_t r = 1; r < f->parts && rc == CLI_OK; r++) {
    char *part = parts_path(path, f, r), *was = parts_path(next, f, r);
    if (!disk_exists(part) && parts_is(next, f, r)) rc = disk_give_name(was, part);
    if (rc == CLI_OK && !disk_exists(part)) {
      rc = cli_bad("%s: is missing, and belongs to the checkpoint of step %lld", part,
                   (long long)step);
    }
    if (rc == CLI_OK) rc = disk_regular(part);
    if (rc == CLI_OK && !parts_is(path, f, r))
      rc = cli_bad("%s: does not belong to latest.json, or was edited", part);
    free(part);
    free(was);
  }
  return rc;
}

int parts_free(const char *path, const manifest_file *f) {
  int rc = CLI_OK;
  for (int32_t r = 1; r < f->parts && rc == CLI_OK; r++) {
    char *part = parts_path(path, f, r);
    if (disk_exists(part) && !parts_is(path, f, r))
      rc = cli_bad("%s: is there already and is none of this run's; move it away", part);
    free(part);
  }
  return rc;
}

int parts_rename(const char *next, const char *path, const manifest_file *f) {
  int rc = CLI_OK;
  for (int32_t r = 1; r < f->parts && rc == CLI_OK; r++) {
    char *part = parts_path(path, f, r), *was = parts_path(next, f, r);
    rc = disk_give_name(was, part);
    free(part);
    free(was);
  }
  return rc;
}

void parts_remove(const char *path, const manifest_file *f) {
  for (int32_t r = 1; r < f->parts; r++) {
    char *part = parts_path(path, f, r);
    if (parts_is(path, f, r)) disk_remove(part);
    free(part);
  }
}
