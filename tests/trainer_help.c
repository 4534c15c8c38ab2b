/* trainer_help.c: see trainer_help.h. */
#include "trainer_help.h"
#include "data/data.h"
#include "train/settings.h"
#include "unit_test.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void put_file(const char *name, const void *bytes, size_t n) {
  write_file(in_folder(name), bytes, n);
}

void put_npy(const char *name, const char *type, const char *shape, const void *values, size_t n) {
  FILE *f = fopen(in_folder(name), "wb");
  char head[118];
  assert_non_null(f);
  (void)snprintf(head, sizeof head, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                 type, shape);
  assert_int_equal(fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, f), 10);
  assert_int_equal(fprintf(f, "%-117s\n", head), 118);
  assert_int_equal(fwrite(values, 1, n, f), n);
  assert_int_equal(fclose(f), 0);
}

static int stderr_was = -1;
void capture_stderr(void) {
  const int to = open(in_folder("stderr"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  assert_true(to >= 0);
  stderr_was = dup(STDERR_FILENO);
  (void)dup2(to, STDERR_FILENO);
  (void)close(to);
}
const char *captured_stderr(void) {
  static char text[4096];
  (void)fflush(stderr);
  (void)dup2(stderr_was, STDERR_FILENO);
  (void)close(stderr_was);
  FILE *f = fopen(in_folder("stderr"), "r");
  assert_non_null(f);
  text[fread(text, 1, sizeof text - 1, f)] = 0;
  (void)fclose(f);
  return text;
}

void must_refuse_set(const char *set, const char *says) {
  data_set d;
  capture_stderr();
  const int rc = data_open(set, &d);
  const char *line = captured_stderr();
  if (rc != CLI_BAD || strstr(line, says) == NULL || strchr(line, '\n') != line + strlen(line) - 1)
    fail_msg("%s: exit %d, '%s' instead of '%s' in one line", set, rc, line, says);
  assert_true(d.blocks == NULL && d.train.n == 0);
}

void must_set(settings *s, const char *name, const char *value) {
  char message[512] = "";
  if (settings_try_set(s, name, value, message, sizeof message) != CLI_OK)
    fail_msg("%s = %s: %s", name, value, message);
}

void must_set_line(settings *s, const char *line) {
  char words[512], *rest = NULL;
  (void)snprintf(words, sizeof words, "%s", line);
  for (char *w = strtok_r(words, " ", &rest); w != NULL; w = strtok_r(NULL, " ", &rest)) {
    char *equals = strchr(w, '=');
    *equals = 0;
    must_set(s, w, equals + 1);
  }
}
