/* recording_folder.c: read the text and the arrays of a folder with case.json and NAME.npy files. */
#include "recording.h"

#include "common/cli.h"
#include "npy.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int by_name(const void *x, const void *y) {
  return strcmp(((const ngio_tensor *)x)->name, ((const ngio_tensor *)y)->name);
}

static int read_text(const char *path, char **out) {
  enum { MOST = 1 << 24 };
  *out = NULL;
  ngio_source s;
  char message[1024] = "";
  if (ngio_source_open(&s, path, message, sizeof message) != NGIO_OK) return cli_bad("%s", message);
  const int64_t n = s.size;
  char *text = n <= MOST ? cli_take((size_t)n + 1, 1) : NULL;
  const bool good = text != NULL && ngio_source_read(&s, 0, text, n, NULL, 0) == NGIO_OK &&
                    memchr(text, 0, (size_t)n) == NULL;
  ngio_source_close(&s);
  if (!good) {
    free(text);
    return cli_bad("%s: no text of at most %d bytes", path, MOST);
  }
  text[n] = 0;
  *out = text;
  return CLI_OK;
}

/* The names of the .npy files, without the ending, as tensors without data. */
static int list_arrays(const char *path, recording_folder *out) {
  DIR *dir = opendir(path);
  if (dir == NULL) return cli_bad("%s: cannot be opened", path);
  int room = 0;
  for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
    const size_t n = strlen(e->d_name);
    if (n <= 4 || strcmp(e->d_name + n - 4, ".npy") != 0) continue;
    if (out->n == room) {
      room = room * 2 + 64;
      ngio_tensor *grown = cli_take((size_t)room, sizeof *grown);
      if (out->n > 0) memcpy(grown, out->tensor, (size_t)out->n * sizeof *grown);
      free(out->tensor);
      out->tensor = grown;
    }
    char *name = cli_take(n - 3, 1);
    memcpy(name, e->d_name, n - 4);
    out->tensor[out->n++].name = name;
  }
  (void)closedir(dir);
  if (out->n == 0) return cli_bad("%s: no .npy files", path);
  qsort(out->tensor, (size_t)out->n, sizeof *out->tensor, by_name);
  return CLI_OK;
}

int recording_folder_read(const char *path, recording_folder *out) {
  memset(out, 0, sizeof *out);
  char file[4096], message[1024] = "";
  (void)snprintf(file, sizeof file, "%s/case.json", path);
  if (access(file, F_OK) != 0) {
    return cli_bad("%s: no case.json in it, expected the folder of one recording", path);
  }
  int rc = read_text(file, &out->text);
  if (rc == CLI_OK) rc = list_arrays(path, out);
  ngio_npy *array = NULL;
  if (rc == CLI_OK) out->arrays = array = cli_take((size_t)out->n, sizeof *array);
  for (int i = 0; rc == CLI_OK && i < out->n; i++) {
    ngio_tensor *t = &out->tensor[i];
    (void)snprintf(file, sizeof file, "%s/%s.npy", path, t->name);
    if (ngio_npy_read(file, &array[i], message, sizeof message) != NGIO_OK) {
      rc = cli_bad("%s", message);
      break;
    }
    t->dtype = array[i].dtype;
    t->ndim = array[i].ndim;
    memcpy(t->shape, array[i].shape, sizeof t->shape);
    t->data = array[i].data;
    t->bytes = array[i].bytes;
  }
  if (rc != CLI_OK) recording_folder_free(out);
  return rc;
}

void recording_folder_free(recording_folder *f) {
  ngio_npy *array = f->arrays;
  for (int i = 0; i < f->n; i++) {
    char *name;
    memcpy(&name, &f->tensor[i].name, sizeof name); /* allocated in list_arrays */
    free(name);
    if (array != NULL) ngio_npy_free(&array[i]);
  }
  free(array);
  free(f->tensor);
  free(f->text);
  memset(f, 0, sizeof *f);
}

const ngio_tensor *recording_folder_find(const recording_folder *f, const char *name) {
  const ngio_tensor key = {.name = name};
  return bsearch(&key, f->tensor, (size_t)f->n, sizeof key, by_name);
}
