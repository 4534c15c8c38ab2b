/* run_files.c: see run_files.h. */
#include "run_files.h"
#include "common/cli.h"
#include "disk.h"
#include "safetensors.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool same_file(const char *a, const char *b) {
  struct stat x, y;
  return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool run_files_have(const char *dir, const char *path) {
  static const char *const file[] = {"log.jsonl", "config.json", RUN_FILES_AVERAGE};
  bool found = false;
  for (size_t i = 0; i < sizeof file / sizeof file[0] && !found; i++) {
    char *part = cli_join(dir, file[i]);
    found = same_file(part, path);
    free(part);
  }
  char *checkpoint = cli_join(dir, "checkpoint"), *parent = cli_copy(path);
  char *slash = strrchr(parent, '/');
  if (slash != NULL) slash[slash == parent] = 0;
  found =
      found || same_file(path, checkpoint) || same_file(slash != NULL ? parent : ".", checkpoint);
  DIR *d = found ? NULL : opendir(checkpoint);
  for (const struct dirent *e; d != NULL && !found && (e = readdir(d)) != NULL;) {
    char *entry = cli_join(checkpoint, e->d_name);
    found = strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && same_file(entry, path);
    free(entry);
  }
  if (d != NULL) (void)closedir(d);
  free(parent);
  free(checkpoint);
  return found;
}

/* Its weights need not be read: whoever wrote such a file under this name wrote a mean of such weights. */
static bool is_average(const char *path, const nn *net) {
  char message[256];
  ngio_tensors *file = NULL;
  if (ngio_tensors_read(path, NULL, &file, message, sizeof message) != NGIO_OK) return false;
  bool same = ngio_tensors_text(file, RUN_FILES_AVERAGED) != NULL &&
              ngio_tensors_count(file) == nn_params(net) + nn_buffers(net);
  for (int i = 0; i < nn_params(net) && same; i++) {
    const nn_param *p = nn_param_at(net, i);
    const ngio_tensor *t = ngio_tensors_find(file, p->name);
    same = t != NULL && t->ndim == p->ndim &&
           memcmp(t->shape, p->shape, (size_t)p->ndim * sizeof p->shape[0]) == 0;
  }
  ngio_tensors_close(&file);
  return same;
}

int run_files_average(const char *dir, const nn *net, bool resumed) {
  char *path = cli_join(dir, RUN_FILES_AVERAGE);
  int rc = disk_regular(path);
  if (rc == CLI_OK && disk_exists(path) && !(resumed && is_average(path, net)))
    rc = cli_bad("%s: is there already and is none of this run's; move it away", path);
  free(path);
  return rc;
}
