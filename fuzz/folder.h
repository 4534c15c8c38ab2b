/* folder.h: helpers for entries that fuzz a reader of folders: a folder in memory if possible, and checks of the
 * reader's result and of its messages. */
#ifndef FUZZ_FOLDER_H
#define FUZZ_FOLDER_H

#include "fuzz.h"

#include <dirent.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "../cli/data/data.h"

static char folder[64];

/* Runs at exit; after a failed NEED the folder stays, with the files that caused the failure. */
static void remove_folder(void) {
  DIR *d = opendir(folder);
  if (d == NULL) return;
  for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
    if (e->d_name[0] != '.') (void)unlinkat(dirfd(d), e->d_name, 0);
  }
  (void)closedir(d);
  (void)rmdir(folder);
}

static void create_folder(void) {
  if (folder[0] != 0) return;
  (void)snprintf(folder, sizeof folder, "%s/natgrad-fuzz-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
  NEED(mkdtemp(folder) != NULL && atexit(remove_folder) == 0);
}

static void write_file(const char *name, const void *bytes, size_t size) {
  char path[128];
  (void)snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *f = fopen(path, "wb");
  NEED(f != NULL && fwrite(bytes, 1, size, f) == size && fclose(f) == 0);
}

static void remove_file(const char *name) {
  char path[128];
  (void)snprintf(path, sizeof path, "%s/%s", folder, name);
  (void)unlink(path);
}

static void check_split(const data_set *d, const data_split *s) {
  const int64_t values = d->height * d->width * d->channels;
  uint64_t sum = 0;
  NEED(s->n > 0 && s->bytes != NULL && s->index == NULL);
  for (int32_t i = 0; i < s->n; i++) {
    NEED(s->labels[i] >= 0 && s->labels[i] < d->classes);
  }
  for (int64_t i = 0; i < s->n * values; i++) {
    sum += s->bytes[i]; /* read every byte, so that a sanitizer checks it */
  }
  NEED(sum <= 255 * (uint64_t)(s->n * values));
}

/* Open SET:folder.  The reader must refuse it with one line, or return a whole data set; `check` compares the data
 * set with the input. */
static void open_set(const char *set, void (*check)(const data_set *, const uint8_t *, size_t),
                     const uint8_t *data, size_t size_in) {
  char spec[96], *text = NULL;
  size_t size = 0;
  data_set d;
  FILE *was = stderr, *lines = open_memstream(&text, &size);
  NEED(lines != NULL);
  memset(&d, 0, sizeof d);
  (void)snprintf(spec, sizeof spec, "%s:%s", set, folder);
  stderr = lines;
  const int rc = data_open(spec, &d);
  stderr = was;
  NEED(fclose(lines) == 0);
  if (rc == 0) {
    NEED(size == 0 && d.height > 0 && d.width > 0 && d.channels > 0 && d.classes > 1);
    check_split(&d, &d.train);
    check_split(&d, &d.test);
    for (int64_t i = 0; i < d.channels; i++) {
      NEED(isfinite(d.mean[i]) && isfinite(d.deviation[i]) && d.deviation[i] > 0);
    }
    check(&d, data, size_in);
    data_close(&d);
  } else {
    NEED(strncmp(text, "natgrad: ", 9) == 0 && strchr(text, '\n') == text + size - 1);
  }
  free(text);
}

#endif
