/* image_files.c: list the files of an image set. Folders are read in the order of names. Their depth is at most DEPTH,
 * so that links in a circle end. An entry that is neither a file nor a folder (such as a pipe) is an error. */
#include "images.h"

#include "common/cli.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <zlib.h>

enum { DEPTH = 32, LABELS = 65536 };

/* Append a file to the list, which then owns `path`. The list's checksum uses `name`, the path in the data folder. */
static int add_file(image_list *f, char *path, const char *name, int64_t bytes, int32_t label) {
  if (f->n == INT32_MAX / 2) {
    free(path);
    return cli_fail("--data: images: more than %d files", f->n);
  }
  f->path = cli_append_zeroed(f->path, (size_t)f->n, sizeof *f->path);
  f->label = cli_append_zeroed(f->label, (size_t)f->n, sizeof *f->label);
  f->path[f->n] = path;
  f->label[f->n++] = label;
  char text[64];
  (void)snprintf(text, sizeof text, "%lld %d", (long long)bytes, (int)label);
  uLong crc = crc32_z(f->crc, (const unsigned char *)name, strlen(name) + 1);
  f->crc = (uint32_t)crc32_z(crc, (const unsigned char *)text, strlen(text) + 1);
  return CLI_OK;
}

void image_classes_free(image_classes *names) {
  for (int i = 0; i < names->n; i++)
    free(names->list[i]);
  free(names->list);
}

/* ---- folders -----------------------------------------------------------------------------------*/

static int is_visible(const struct dirent *e) { return e->d_name[0] != '.'; }

static int compare_names(const struct dirent **a, const struct dirent **b) {
  return strcmp((*a)->d_name, (*b)->d_name);
}

/* List the entries of a folder, sorted by name, without hidden entries. */
static int list_folder(const char *folder, image_classes *out) {
  out->n = scandir(folder, &out->list, is_visible, compare_names);
  if (out->n >= 0) return CLI_OK;
  *out = (image_classes){NULL, 0};
  return cli_fail("--data: %s: %s", folder, strerror(errno));
}

static bool is_image(const char *name) {
  static const char *const ends[] = {".jpg", ".jpeg", ".png"};
  const char *dot = strrchr(name, '.');
  for (int i = 0; i < 3; i++)
    if (dot != NULL && strcasecmp(dot, ends[i]) == 0) return true;
  return false;
}

typedef struct walk {
  image_list *out;
  size_t root; /* length of the path of the data folder, which is removed from names */
} walk;

static void count_skipped_file(image_list *f, const char *path) {
  if (f->skipped++ == 0) f->first_skipped = cli_copy_text(path);
}

/* Call stat on a path. CLI_BAD, reported: the path does not exist, or is neither a file nor a folder. */
static int stat_file_or_folder(const char *path, struct stat *about) {
  if (stat(path, about) != 0) return cli_fail("--data: %s: %s", path, strerror(errno));
  if (S_ISREG(about->st_mode) || S_ISDIR(about->st_mode)) return CLI_OK;
  return cli_fail("--data: %s: is neither a file nor a folder", path);
}

static int add_files_below(const walk *w, const char *folder, int32_t label, int depth) {
  image_classes names = {NULL, 0};
  if (depth == DEPTH) return cli_fail("--data: %s: more than %d folders deep", folder, DEPTH);
  int rc = list_folder(folder, &names);
  for (int i = 0; i < names.n && rc == CLI_OK; i++) {
    char *path = cli_join(folder, names.list[i]->d_name);
    struct stat about;
    rc = stat_file_or_folder(path, &about);
    if (rc == CLI_OK && S_ISDIR(about.st_mode)) {
      rc = add_files_below(w, path, label, depth + 1);
    } else if (rc == CLI_OK && is_image(names.list[i]->d_name)) {
      rc = add_file(w->out, path, path + w->root, about.st_size, label);
      path = NULL;
    } else if (rc == CLI_OK) {
      count_skipped_file(w->out, path);
    }
    free(path);
  }
  image_classes_free(&names);
  return rc;
}

static int32_t find_class(const image_classes *names, const struct dirent *entry) {
  for (int i = 0; i < names->n; i++)
    if (strcmp(names->list[i]->d_name, entry->d_name) == 0) return i;
  return -1;
}

static int add_class_folder(const walk *w, const char *path, int32_t label) {
  const int32_t before = w->out->n;
  const int rc = add_files_below(w, path, label, 1);
  if (rc != CLI_OK || w->out->n > before) return rc;
  return cli_fail("--data: %s: the folder of a class has no .jpg, .jpeg or .png files", path);
}

int image_files_add_folder(const char *folder, image_classes *names, image_list *out) {
  const walk w = {.out = out, .root = strlen(folder)};
  image_classes inside = {NULL, 0};
  int32_t kept = 0;
  int rc = list_folder(folder, &inside);
  for (int i = 0; i < inside.n && rc == CLI_OK; i++) {
    struct dirent *entry = inside.list[i];
    char *path = cli_join(folder, entry->d_name);
    struct stat about;
    rc = stat_file_or_folder(path, &about);
    if (rc == CLI_OK && !S_ISDIR(about.st_mode)) {
      count_skipped_file(out, path);
    } else if (rc == CLI_OK && names->list != NULL) {
      const int32_t label = find_class(names, entry);
      rc = label >= 0 ? add_class_folder(&w, path, label)
                      : cli_fail("--data: %s: the training split has no such class", path);
    } else if (rc == CLI_OK && kept == LABELS) {
      rc = cli_fail("--data: %s: more than %d classes", folder, LABELS);
    } else if (rc == CLI_OK) {
      rc = add_class_folder(&w, path, kept);
      /* move the folders of classes to the front of the list, in the same order */
      inside.list[i] = inside.list[kept];
      inside.list[kept++] = entry;
    }
    free(path);
  }
  if (rc == CLI_OK && out->n == 0)
    rc = cli_fail("--data: %s: has no folders, expected one folder of images for each class",
                  folder);
  if (rc != CLI_OK || names->list != NULL) {
    image_classes_free(&inside);
    return rc;
  }
  for (int i = kept; i < inside.n; i++)
    free(inside.list[i]);
  *names = (image_classes){inside.list, kept};
  return CLI_OK;
}

/* ---- lists -------------------------------------------------------------------------------------*/

/* Split "PATH LABEL" in place. Return the path without blanks around it, or NULL if the line has another form. */
static char *split_path_and_label(char *line, int32_t *label) {
  size_t n = strlen(line);
  while (n > 0 && strchr(" \t\r\n", line[n - 1]) != NULL)
    line[--n] = 0;
  char *last = line + n;
  while (last > line && last[-1] != ' ' && last[-1] != '\t')
    last--;
  char *end = NULL;
  const long v = strtol(last, &end, 10);
  if (*last < '0' || *last > '9' || *end != 0 || v >= LABELS || last == line) return NULL;
  *label = (int32_t)v;
  while (last > line && (last[-1] == ' ' || last[-1] == '\t'))
    *--last = 0;
  line += strspn(line, " \t");
  return *line != 0 ? line : NULL;
}

int image_files_add_list(const char *path, const char *root, image_list *out) {
  FILE *f = fopen(path, "re");
  if (f == NULL) return cli_fail("--data: %s: %s", path, strerror(errno));
  char *line = NULL;
  size_t room = 0;
  int rc = CLI_OK;
  long long number = 0;
  while (rc == CLI_OK && getline(&line, &room, f) >= 0) {
    int32_t label = 0;
    number++;
    char *text = line; /* the first line may start with a byte order mark */
    if (number == 1 && strncmp(line, "\xef\xbb\xbf", 3) == 0) text += 3;
    if (text[strspn(text, " \t\r\n")] == 0) continue;
    char *name = split_path_and_label(text, &label);
    if (name == NULL) {
      rc = cli_fail("--data: %s: line %lld: expected PATH LABEL, with a label from 0 to %d", path,
                    number, LABELS - 1);
      continue;
    }
    char *file = name[0] == '/' ? cli_copy_text(name) : cli_join(root, name);
    struct stat about;
    rc = stat_file_or_folder(file, &about);
    if (rc == CLI_OK && S_ISDIR(about.st_mode))
      rc = cli_fail("--data: %s: line %lld: %s is a folder", path, number, file);
    if (rc == CLI_OK) {
      rc = add_file(out, file, name, about.st_size, label);
    } else {
      free(file);
    }
  }
  if (rc == CLI_OK && ferror(f) != 0) rc = cli_fail("--data: %s: %s", path, strerror(errno));
  if (rc == CLI_OK && out->n == 0) rc = cli_fail("--data: %s: the list is empty", path);
  free(line);
  (void)fclose(f);
  return rc;
}
