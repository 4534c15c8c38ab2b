/* shipped.c: find shipped files. */
#include "common/cli.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *cli_path_beside(const char *name) {
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  self[n > 0 ? n : 0] = 0;
  char *slash = strrchr(self, '/');
  if (slash != NULL) *slash = 0;
  return cli_join(self, name);
}

char *cli_shipped_path(const char *installed, const char *source) {
  char *share = cli_path_beside("../share/natgrad");
  char *path = cli_join(share, installed);
  free(share);
  if (access(path, R_OK) == 0) return path;
  free(path);
  return cli_join(NG_SHIPPED_FROM, source);
}
