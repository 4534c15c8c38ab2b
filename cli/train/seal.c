/* seal.c: see seal.h. */
#include "seal.h"
#include "common/cli.h"
#include "disk.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER = 64 };

static const char mark[] = ",\n \"crc32\": \"";

int seal_write(const char *path, json_t *o) {
  char *text = o != NULL ? json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL;
  json_decref(o);
  if (text == NULL)
    return cli_bad("%s: cannot be written: no memory, or a name that is no UTF-8", path);
  const size_t n = strlen(text) - 2; /* without "\n}" */
  char *whole = cli_take(n + NUMBER, 1);
  memcpy(whole, text, n);
  const int end =
      snprintf(whole + n, NUMBER, "%s%08lx\"\n}\n", mark, (unsigned long)disk_crc(text, n));
  const int rc = disk_write(path, whole, n + (size_t)end);
  free(whole);
  free(text);
  return rc;
}

/* Everything up to the last member, whose text is known. */
bool seal_holds(const char *text) {
  const char *last = NULL;
  for (const char *c = text; (c = strstr(c, mark)) != NULL; c++)
    last = c;
  if (last == NULL) return false;
  char want[NUMBER];
  (void)snprintf(want, sizeof want, "%s%08lx\"\n}\n", mark,
                 (unsigned long)disk_crc(text, (size_t)(last - text)));
  return strcmp(last, want) == 0;
}
