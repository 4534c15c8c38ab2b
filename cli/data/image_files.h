/* image_files.h: find the image files of a folder or a list. */
#ifndef DATA_IMAGE_FILES_H
#define DATA_IMAGE_FILES_H

#include "images.h"

typedef struct image_names { /* entries of a folder, sorted */
  struct dirent **list;
  int n;
} image_names;
void names_free(image_names *names);

/* Failures are CLI_BAD and one line.  names->list == NULL: set names and classes from this folder; otherwise every class
 * must be one of the names. */
int found_folder(const char *folder, image_names *names, image_list *out);
int found_list(const char *path, const char *root, image_list *out);

#endif
