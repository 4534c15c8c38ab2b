/* seal.c: see seal.h. */
#include "seal.h"
#include "common/cli.h"
#include "disk.h"

#include <stdio.h>
#include <string.h>

enum { NUMBER = 64 };

static const char mark[] = ",\n \"crc32\": \"";

int seal_write(const char *path, ngio_out *o) {
  const uint32_t crc = o->lost ? 0 : disk_crc(o->text, o->used);
  seal_put(o, "crc32", crc);
  ngio_shut(o, '}');
  ngio_out_put(o, "\n");
  const int rc =
      o->lost ? cli_bad("%s: cannot be written: no memory, or a name that is not UTF-8", path)
              : disk_write(path, o->text, o->used);
  ngio_out_free(o);
  return rc;
}

void seal_put(ngio_out *o, const char *key, uint32_t crc) {
  char text[NUMBER];
  (void)snprintf(text, sizeof text, "%08lx", (unsigned long)crc);
  ngio_put_text(o, key, text);
}

bool seal_is(const ngio_value *v, uint32_t crc) {
  char text[NUMBER];
  (void)snprintf(text, sizeof text, "%08lx", (unsigned long)crc);
  return ngio_is(v, NGIO_STRING) && strcmp(v->is.text, text) == 0;
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
