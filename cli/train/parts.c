/* parts.c: see parts.h. */
#include "parts.h"
#include "cli.h"
#include "disk.h"
#include "safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MESSAGE = 512, END = 64, ID = 8 };

/* ---- names -----------------------------------------------------------------------------------*/

char *parts_path(const char *path, const manifest_file *f, int32_t r) {
  const size_t n = strlen(path) + END;
  char *name = cli_take(n, 1);
  (void)snprintf(name, n, "%s.%08lx-%dof%d", path, (unsigned long)f->id, (int)r, (int)f->parts);
  return name;
}

static const char *digits(const char *c) {
  const size_t n = strspn(c, "0123456789");
  return n > 0 ? c + n : NULL;
}

bool parts_end(const char *end, bool passing) {
  const char *c = end + ID;
  if (strspn(end, "0123456789abcdef") != ID || *c != '-' || (c = digits(c + 1)) == NULL ||
      strncmp(c, "of", 2) != 0 || (c = digits(c + 2)) == NULL) {
    return false;
  }
  return *c == 0 || (passing && strcmp(c, ".natgrad-part") == 0);
}

/* The next entry of the folder `d` that has the name of a part of a file called `base`; NULL: none. */
static const char *next_part(DIR *d, const char *base) {
  const size_t n = strlen(base);
  for (const struct dirent *e; (e = readdir(d)) != NULL;) {
    if (strncmp(e->d_name, base, n) == 0 && e->d_name[n] == '.' &&
        parts_end(e->d_name + n + 1, true)) {
      return e->d_name;
    }
  }
  return NULL;
}

/* `path` is in a folder: checkpoint/. */
static int each(const char *path, bool removes) {
  char *folder = cli_copy(path);
  int rc = CLI_OK;
  *strrchr(folder, '/') = 0;
  DIR *d = opendir(folder);
  for (const char *name;
       d != NULL && rc == CLI_OK && (name = next_part(d, strrchr(path, '/') + 1)) != NULL;) {
    char *part = cli_join(folder, name);
    if (removes) {
      disk_remove(part);
    } else {
      rc = disk_regular(part);
    }
    free(part);
  }
  if (d != NULL) (void)closedir(d);
  free(folder);
  return rc;
}

int parts_regular(const char *path) { return each(path, false); }

void parts_sweep(const char *path) { (void)each(path, true); }

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
  char id[END] = "", why[MESSAGE] = "is no state of the library";
  if (ranks < 2) return CLI_OK;
  if (!says(path, "natgrad.crc32", id, sizeof id, why)) return cli_bad("%s: %s", path, why);
  f->parts = ranks;
  f->id = (uint32_t)strtoul(id, NULL, 16);
  return CLI_OK;
}

bool parts_is(const char *path, const manifest_file *f, int32_t r) {
  char *part = parts_path(path, f, r);
  char whole[END] = "", is[END] = "", id[END], place[END], why[MESSAGE];
  struct stat at;
  (void)snprintf(id, sizeof id, "%08lx", (unsigned long)f->id);
  (void)snprintf(place, sizeof place, "%d of %d", (int)r, (int)f->parts);
  const bool good = lstat(part, &at) == 0 && S_ISREG(at.st_mode) &&
                    says(part, "natgrad.whole", whole, sizeof whole, why) &&
                    says(part, "natgrad.part", is, sizeof is, why) && strcmp(whole, id) == 0 &&
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
