/* image_files.h: find the image files of a folder or a list. */
#ifndef DATA_IMAGE_FILES_H
#define DATA_IMAGE_FILES_H

#include "images.h"

typedef struct found { /* files in order, with their classes */
  int32_t n, room;
  char **path;
  int32_t *label;
  uint32_t crc;  /* of relative names, sizes, labels */
  int32_t other; /* files without an image's ending */
  char *first_other;
} found;

void found_free(found *f);

typedef struct image_names { /* entries of a folder, sorted */
  struct dirent **list;
  int n;
} image_names;
void names_free(image_names *names);

/* Failures are CLI_BAD and one line.  names->list == NULL: set names and classes from this folder; otherwise every class
 * must be one of the names. */
int found_folder(const char *folder, image_names *names, found *out);
int found_list(const char *path, const char *root, found *out);

#endif
