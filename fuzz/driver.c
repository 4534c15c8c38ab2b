/* driver.c: run a fuzz entry on files and folders, so that inputs found by a fuzzer are ordinary tests without a
 * fuzzer. Each input is also run cut in half, without its first byte, and with one byte changed. */
#include "fuzz.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

static int files;

static void run_input_and_variants(const uint8_t *data, size_t size) {
  uint8_t *copy = malloc(size + 1);
  NEED(copy != NULL);
  memcpy(copy, data, size);
  (void)LLVMFuzzerTestOneInput(copy, size);
  (void)LLVMFuzzerTestOneInput(copy, size / 2);
  if (size > 0) (void)LLVMFuzzerTestOneInput(copy + 1, size - 1);
  for (size_t i = 0; i < size; i += size / 16 + 1) {
    copy[i] ^= 0x21;
    (void)LLVMFuzzerTestOneInput(copy, size);
    copy[i] ^= 0x21;
  }
  free(copy);
}

static void run_file(const char *path) {
  FILE *f = fopen(path, "rb");
  if (f == NULL) {
    perror(path);
    exit(1);
  }
  static uint8_t data[1 << 20];
  const size_t n = fread(data, 1, sizeof data, f);
  (void)fclose(f);
  run_input_and_variants(data, n);
  files++;
}

static void run_path(const char *path) {
  struct stat info;
  if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
    DIR *d = opendir(path);
    NEED(d != NULL);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
      char inside[1024];
      if (e->d_name[0] == '.') continue;
      (void)snprintf(inside, sizeof inside, "%s/%s", path, e->d_name);
      run_path(inside);
    }
    (void)closedir(d);
  } else {
    run_file(path);
  }
}

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    run_path(argv[i]);
  }
  if (files == 0) {
    fprintf(stderr, "%s: no inputs; give files or folders\n", argv[0]);
    return 1;
  }
  printf("%d inputs\n", files);
  return 0;
}
