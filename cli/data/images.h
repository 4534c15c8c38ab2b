/* images.h: data sets of image files, which are decoded for each batch.
 *
 *   images:DIR[,KEY=VALUE...]    files DIR/CLASS/... .jpg, .jpeg, .png; classes in the order of their names.  If a
 *                                folder DIR/train exists, DIR/train is the training split, and DIR/val or DIR/test
 *                                is the test split
 *   images:LIST[,KEY=VALUE...]   a file of lines "PATH LABEL", labels from 0 (a byte order mark is skipped)
 *   test=PATH       the test split, of the same kind; a folder has the classes of the training split
 *   root=DIR        relative paths in lists start here (the folder of the list)
 *   size=N          inputs of the network are N x N (224)
 *   resize=N|none   first scale each image so that the shorter side is N (8/7 size, rounded up); none: scale only
 *                   images whose shorter side is less than size, to size
 *   mean=, std=     R/G/B, for values 0 to 1 (default: ImageNet), or FILE.npy, for values 0 to 255: an array [3], or
 *                   for mean also [3, height, width], whose upper left size x size values are used
 *   threads=N, queue=N   threads that decode (all processors); images of the queue (128); results do not depend on
 *                   these two
 * --augment: training uses a random window, mirrored with probability 1/2; otherwise the central window is used.
 * Each process reports, counts and skips unreadable files; more than 1 % of all files are an error.  Opening fails for
 * entries that are neither files nor folders, and for links in a circle. */
#ifndef DATA_IMAGES_H
#define DATA_IMAGES_H

#include "data.h"
#include "picture.h"

#include <stdatomic.h>

typedef struct image_list { /* the files of a split in order, with their classes */
  int32_t n, first;         /* first: index of the split's first file among all files of the set */
  char **path;
  int32_t *label;
  uint32_t crc;      /* of relative names, sizes and labels */
  int32_t other;     /* number of files not named .jpg, .jpeg or .png */
  char *first_other; /* path of the first such file */
} image_list;

typedef struct image_set {
  int64_t side, resize; /* resize 0: none */
  int threads, queue;
  float *mean_image;  /* [side, side, 3], used instead of the means of channels; NULL: not given */
  image_list list[2]; /* training, test */
  uint32_t crc;       /* of names, sizes and labels of all files, and of the settings */
  int32_t total;      /* number of files in both lists */
  atomic_uchar *reported; /* [total]: 1 if the file is unreadable and was reported */
  atomic_int unreadable;  /* number of unreadable files */
} image_set;

/* Decode sample `row` of a list and cut its window, [side, side, 3] bytes, not mirrored.  false: `why` has the
 * reason. */
bool image_decode(const image_set *set, const image_list *list, int32_t row, const data_how *how,
                  uint8_t *to, char why[PICTURE_WHY]);
/* Convert the bytes of image_decode to x [side, side, 3]: normalise, and mirror with the sample's random word. */
void image_write_input(const data_set *d, int32_t row, const data_how *how, const uint8_t *bytes,
                       float *x);

/* ---- image_files.c: find the image files of a folder or a list; CLI_BAD: reported in one line --------------------*/

typedef struct image_classes { /* folders of classes, sorted by name */
  struct dirent **list;
  int n;
} image_classes;
void image_classes_free(image_classes *classes);

/* Append the image files of a folder with one folder for each class.  If classes->list is NULL, set *classes to the
 * folders of the classes; else report a class that is not in *classes. */
int image_files_add_folder(const char *folder, image_classes *classes, image_list *out);
/* Append the files of the list `path`; relative paths start at `root`. */
int image_files_add_list(const char *path, const char *root, image_list *out);

/* ---- loader.c: threads that decode in the order of the requests, with a bounded queue ----------*/

typedef struct image_loader image_loader;

int image_loader_create(const image_set *set, image_loader **out); /* CLI_BAD: reported */
void image_loader_destroy(image_loader **l);                       /* accepts NULL */
/* Request sample `row` of a list; false: the queue is full. */
bool image_loader_request(image_loader *l, const image_list *list, int32_t row,
                          const data_how *how);
/* Wait for the oldest request and return its bytes, valid until the next call; NULL: unreadable, `why` has the
 * reason. */
const uint8_t *image_loader_take(image_loader *l, char why[PICTURE_WHY]);
void image_loader_cancel(image_loader *l); /* cancel all requests */

#endif
