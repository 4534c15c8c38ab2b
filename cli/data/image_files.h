/* image_files.h: which image files there are: a walk through folders, a list. */
#ifndef DATA_IMAGE_FILES_H
#define DATA_IMAGE_FILES_H

#include "images.h"

typedef struct found { /* files in their order, with their classes */
  int32_t n, room;
  char **path;
  int32_t *label;
  uint32_t crc;  /* of names below the start, sizes, labels */
  int32_t other; /* files that are not named as images */
  char *first_other;
} found;

void found_free(found *f);

/* All CLI_BAD, told in one line.  `classes`, `names`: of the training split, when it has been read: a
 * class must be one of them; NULL *names: they become those of this folder. */
int found_folder(const char *folder, char ***names, int32_t *classes, found *out);
int found_list(const char *path, const char *root, found *out);
void names_free(char **names, int32_t n);

#endif
