/* image_files.h: find the image files of a folder or a list. */
#ifndef DATA_IMAGE_FILES_H
#define DATA_IMAGE_FILES_H

#include "images.h"

typedef struct image_names { /* folders of classes, sorted by name */
  struct dirent **list;
  int n;
} image_names;
void names_free(image_names *names);

/* Append the image files of a folder with one folder for each class.  If names->list is NULL, set *names to the folders
 * of the classes; else report a class that is not in *names.  CLI_BAD: reported in one line. */
int found_folder(const char *folder, image_names *names, image_list *out);
/* Append the files of the list `path`; relative paths start at `root`.  CLI_BAD: reported in one line. */
int found_list(const char *path, const char *root, image_list *out);

#endif
