/* shipped.c: find shipped files. */
#include "common/cli.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *cli_shipped(const char *installed, const char *source) {
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n > 0) {
    self[n] = 0;
    char *slash = strrchr(self, '/');
    if (slash != NULL) *slash = 0;
    char *share = cli_join(self, "../share/natgrad");
    char *path = cli_join(share, installed);
    free(share);
    if (access(path, R_OK) == 0) return path;
    free(path);
  }
  return cli_join(NG_SHIPPED_FROM, source);
}
