/* helper.c: commands for the shell scripts of this folder.
 *
 *   helper json KEY...          every line of standard input is a JSON object; at least one has the
 *                               first KEY, and each of these has all KEYs.  The value of a KEY that
 *                               ends with ":n" is a number or null
 *   helper unpack FILE DIR      write a recording as case.json and .npy files in DIR
 *   helper pack DIR FILE        write FILE from the files of DIR
 *   helper same FILE FILE [HEAD]  two safetensors files have the same tensors, bit for bit; HEAD: only names that begin
 *                               with HEAD; "!HEAD": only names that do not
 *   helper hurt FILE TENSOR      change the last byte of that tensor
 *   helper finite FILE          all f32 tensors of a safetensors file are finite
 *
 * Exit code 0 without output, or 1 with one line on stderr. */
#include "json.h"
#include "npy.h"
#include "safetensors.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int report_error(const char *what, const char *about) {
  (void)fprintf(stderr, "helper: %s: %s\n", what, about);
  return 1;
}

static int has_key(const ngio_value *line, const char *key) {
  char name[64];
  (void)snprintf(name, sizeof name, "%s", key);
  char *kind = strchr(name, ':');
  if (kind != NULL) *kind = 0;
  const ngio_value *v = ngio_get(line, name);
  return v != NULL && (kind == NULL || ngio_is_number(v) || ngio_is(v, NGIO_NULL));
}

static int check_json(char **key, int keys) {
  static char line[1 << 20];
  int full = 0;
  while (fgets(line, sizeof line, stdin) != NULL) {
    ngio_json *json = NULL;
    (void)ngio_json_parse(line, strlen(line), &json, NULL, 0);
    const ngio_value *o = ngio_json_root(json);
    if (!ngio_is(o, NGIO_OBJECT)) {
      ngio_json_free(&json);
      return report_error("no JSON object", line);
    }
    const int counts = has_key(o, key[0]);
    for (int i = 0; i < keys && counts; i++) {
      if (has_key(o, key[i])) continue;
      ngio_json_free(&json);
      return report_error(key[i], line);
    }
    full += counts;
    ngio_json_free(&json);
  }
  return full > 0 ? 0 : report_error("no line has", key[0]);
}

static int write_npy(const char *path, const ngio_tensor *t) {
  char shape[256] = "", head[512];
  size_t at = 0;
  for (int32_t i = 0; i < t->ndim; i++) {
    at += (size_t)snprintf(shape + at, sizeof shape - at, "%lld,", (long long)t->shape[i]);
  }
  int n = snprintf(head, sizeof head, "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }",
                   shape);
  while ((10 + n + 1) % 64 != 0)
    head[n++] = ' ';
  head[n++] = '\n';
  FILE *f = fopen(path, "wb");
  if (f == NULL) return report_error("cannot write", path);
  const unsigned char magic[10] = {
      0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(n & 255), (unsigned char)(n >> 8)};
  const int ok = fwrite(magic, 1, sizeof magic, f) == sizeof magic &&
                 fwrite(head, 1, (size_t)n, f) == (size_t)n &&
                 fwrite(t->data, 1, (size_t)t->bytes, f) == (size_t)t->bytes;
  return fclose(f) == 0 && ok ? 0 : report_error("cannot write", path);
}

static int unpack(const char *path, const char *dir) {
  char message[512] = "", to[4096];
  ngio_tensors *file = NULL;
  if (ngio_tensors_read(path, NULL, &file, message, sizeof message) != NGIO_OK) {
    return report_error("cannot read", message);
  }
  const char *text = ngio_tensors_text(file, "case.json");
  (void)snprintf(to, sizeof to, "%s/case.json", dir);
  FILE *f = text != NULL ? fopen(to, "wb") : NULL;
  int rc = f == NULL || fputs(text, f) < 0;
  if (f != NULL && fclose(f) != 0) rc = 1;
  if (rc != 0) (void)report_error("cannot write", to);
  for (int32_t i = 0; i < ngio_tensors_count(file) && rc == 0; i++) {
    const ngio_tensor *t = ngio_tensors_at(file, i);
    (void)snprintf(to, sizeof to, "%s/%s.npy", dir, t->name);
    rc = t->dtype == NGIO_F32 ? write_npy(to, t) : report_error("not float32", t->name);
  }
  ngio_tensors_close(&file);
  return rc;
}

static int pack(const char *dir, const char *file) {
  enum { MOST = 4096 };
  static char name[MOST][128], json[1 << 20];
  static ngio_npy array[MOST];
  static ngio_tensor tensor[MOST];
  char path[4096], message[512] = "";
  int32_t n = 0, rc = 0;
  DIR *d = opendir(dir);
  for (const struct dirent *e; d != NULL && rc == 0 && (e = readdir(d)) != NULL;) {
    const char *end = strstr(e->d_name, ".npy");
    if (end == NULL) continue;
    (void)snprintf(name[n], sizeof name[n], "%.*s", (int)(end - e->d_name), e->d_name);
    (void)snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
    if (ngio_npy_read(path, &array[n], message, sizeof message) != NGIO_OK)
      rc = report_error("cannot read", message);
    tensor[n] = (ngio_tensor){.name = name[n], .dtype = array[n].dtype, .ndim = array[n].ndim};
    memcpy(tensor[n].shape, array[n].shape, sizeof tensor[n].shape);
    tensor[n].data = array[n].data;
    n++;
  }
  if (d != NULL) (void)closedir(d);
  (void)snprintf(path, sizeof path, "%s/case.json", dir);
  FILE *f = fopen(path, "rb");
  if (f == NULL) return report_error("cannot read", path);
  json[fread(json, 1, sizeof json - 1, f)] = 0;
  (void)fclose(f);
  const ngio_text text[] = {{"case.json", json}};
  if (rc == 0 && ngio_tensors_write(file, tensor, n, text, 1, message, sizeof message) != NGIO_OK)
    rc = report_error("cannot write", message);
  for (int32_t i = 0; i < n; i++)
    ngio_npy_free(&array[i]);
  return rc;
}

static int is_selected(const ngio_tensor *t, const char *head) {
  const int not = head[0] == '!';
  return (strncmp(t->name, head + not, strlen(head) - (size_t) not ) == 0) != not ;
}

static int count_selected(const ngio_tensors *a, const char *head) {
  int n = 0;
  for (int32_t i = 0; i < ngio_tensors_count(a); i++)
    n += is_selected(ngio_tensors_at(a, i), head);
  return n;
}

static int compare_tensors(const ngio_tensors *a, const ngio_tensors *b, const char *head) {
  if (count_selected(a, head) == 0 || count_selected(a, head) != count_selected(b, head)) {
    return report_error("expected the same number of tensors in both files, at least 1", head);
  }
  for (int32_t i = 0; i < ngio_tensors_count(a); i++) {
    const ngio_tensor *x = ngio_tensors_at(a, i), *y = ngio_tensors_find(b, x->name);
    if (!is_selected(x, head)) continue;
    if (y == NULL || x->dtype != y->dtype || x->bytes != y->bytes || x->ndim != y->ndim ||
        memcmp(x->shape, y->shape, (size_t)x->ndim * sizeof x->shape[0]) != 0 ||
        memcmp(x->data, y->data, (size_t)x->bytes) != 0) {
      return report_error("differs", x->name);
    }
  }
  return 0;
}

static int compare_files(const char *path, const char *other, const char *head) {
  char message[512] = "";
  ngio_tensors *a = NULL, *b = NULL;
  int rc = 0;
  if (ngio_tensors_read(path, NULL, &a, message, sizeof message) != NGIO_OK ||
      ngio_tensors_read(other, NULL, &b, message, sizeof message) != NGIO_OK) {
    rc = report_error("cannot read", message);
  } else {
    rc = compare_tensors(a, b, head);
  }
  ngio_tensors_close(&a);
  ngio_tensors_close(&b);
  return rc;
}

static int damage_tensor(const char *path, const char *name) {
  char message[512] = "";
  ngio_source s;
  ngio_tensors *f = NULL;
  long at = -1;
  if (ngio_source_open(&s, path, message, sizeof message) != NGIO_OK ||
      ngio_tensors_begin(&s, NULL, &f, message, sizeof message) != NGIO_OK)
    return report_error("cannot read", message);
  const ngio_tensor *t = ngio_tensors_find(f, name);
  if (t != NULL) at = (long)(ngio_tensors_place(f, t) + t->bytes - 1);
  ngio_tensors_close(&f);
  ngio_source_close(&s);
  FILE *out = at >= 0 ? fopen(path, "r+b") : NULL;
  if (out == NULL) return report_error("no such tensor", name);
  const int byte = fseek(out, at, SEEK_SET) == 0 ? fgetc(out) : EOF;
  const int ok = byte != EOF && fseek(out, at, SEEK_SET) == 0 && fputc(byte ^ 1, out) != EOF;
  return fclose(out) == 0 && ok ? 0 : report_error("cannot write", path);
}

static int check_finite(const char *path) {
  char message[512] = "";
  ngio_tensors *f = NULL;
  if (ngio_tensors_read(path, NULL, &f, message, sizeof message) != NGIO_OK)
    return report_error("cannot read", message);
  int rc = 0;
  for (int32_t i = 0; i < ngio_tensors_count(f) && rc == 0; i++) {
    const ngio_tensor *t = ngio_tensors_at(f, i);
    const float *v = t->data;
    if (t->dtype != NGIO_F32) continue;
    for (int64_t k = 0; k < t->bytes / (int64_t)sizeof *v && rc == 0; k++) {
      if (!isfinite(v[k])) rc = report_error("not finite", t->name);
    }
  }
  ngio_tensors_close(&f);
  return rc;
}

int main(int argc, char **argv) {
  if (argc >= 3 && strcmp(argv[1], "json") == 0) return check_json(argv + 2, argc - 2);
  if (argc == 4 && strcmp(argv[1], "unpack") == 0) return unpack(argv[2], argv[3]);
  if (argc == 4 && strcmp(argv[1], "pack") == 0) return pack(argv[2], argv[3]);
  if ((argc == 4 || argc == 5) && strcmp(argv[1], "same") == 0)
    return compare_files(argv[2], argv[3], argc == 5 ? argv[4] : "");
  if (argc == 4 && strcmp(argv[1], "hurt") == 0) return damage_tensor(argv[2], argv[3]);
  if (argc == 3 && strcmp(argv[1], "finite") == 0) return check_finite(argv[2]);
  return report_error("unknown", argc > 1 ? argv[1] : "nothing");
}
