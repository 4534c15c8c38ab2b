/* folder.c: see folder.h. */
#include "folder.h"
#include "safetensors.h"
#include "unit_test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char test_folder[64];

int make_folder(void **state) {
  /* in a file system in memory if possible, because tests write and flush many files */
  (void)snprintf(test_folder, sizeof test_folder, "%s/natgrad_test-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
  return mkdtemp(test_folder) != NULL ? 0 : -1;
}

int remove_empty_folder(void **state) { return rmdir(test_folder); }

int delete_folder(void **state) {
  char command[128];
  (void)snprintf(command, sizeof command, "rm -rf '%s'", test_folder);
  return system(command);
}

const char *in_folder(const char *name) {
  static char path[8][512];
  static int next;
  char *p = path[next++ % 8];
  (void)snprintf(p, sizeof path[0], "%s/%s", test_folder, name);
  return p;
}

void write_file(const char *path, const void *bytes, size_t n) {
  FILE *f = fopen(path, "wb");
  if (f == NULL) fail_msg("%s: %s", path, strerror(errno));
  assert_int_equal(fwrite(bytes, 1, n, f), n);
  assert_int_equal(fclose(f), 0);
}

unsigned char *read_file(const char *path, size_t *n) {
  FILE *f = fopen(path, "rb");
  if (f == NULL) fail_msg("%s: %s", path, strerror(errno));
  assert_int_equal(fseek(f, 0, SEEK_END), 0);
  *n = (size_t)ftell(f);
  rewind(f);
  unsigned char *bytes = malloc(*n + 1);
  assert_non_null(bytes);
  assert_int_equal(fread(bytes, 1, *n, f), *n);
  (void)fclose(f);
  return bytes;
}

ngio_tensors *must_read_tensors(const char *path) {
  char message[256];
  ngio_tensors *file = NULL;
  if (ngio_tensors_read(path, NULL, &file, message, sizeof message) != NGIO_OK)
    fail_msg("%s", message);
  return file;
}
