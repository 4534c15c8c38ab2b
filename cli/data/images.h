/* images.h: data sets of image files, which are decoded for each batch.
 *
 *   images:DIR[,KEY=VALUE...]    files DIR/CLASS/... named .jpg, .jpeg or .png; classes in the order of their names. If
 *                                a folder DIR/train exists, it is the training split, and DIR/val or DIR/test is the
 *                                test split
 *   images:LIST[,KEY=VALUE...]   a text file with lines "PATH LABEL", labels from 0 (a byte order mark is skipped)
 *   test=PATH       the test split, also a folder or a list; a folder has the classes of the training split
 *   root=DIR        relative paths in lists start here (default: the folder of the list)
 *   size=N          inputs of the network are N x N (224)
 *   resize=N|none   first scale each image so that its shorter side is N (8/7 size, rounded up); none: scale only
 *                   images whose shorter side is less than size, to size
 *   mean=, std=     R/G/B, in units where a pixel is 0 to 1 (default: ImageNet's), or FILE.npy, in units of 0 to 255:
 *                   an array [3], or for mean also [3, height, width], of which the upper left size x size values are
 *                   used
 *   threads=N       number of threads that decode (default: all processors)
 *   queue=N         number of images decoded in advance (128); threads and queue do not change results
 * With --augment, training uses a random window, mirrored with probability 1/2; otherwise the central window is used.
 * Each process skips, counts and reports unreadable files; if more than 1 % of all files are unreadable, the run
 * fails. */
#ifndef DATA_IMAGES_H
#define DATA_IMAGES_H

#include "data.h"
#include "picture.h"

#include <stdatomic.h>

typedef struct image_list { /* the files of a split, in order, with their labels */
  int32_t n, first;         /* first: index of the split's first file among all files of the set */
  char **path;
  int32_t *label;
  uint32_t crc;        /* CRC-32 of relative names, sizes and labels */
  int32_t skipped;     /* number of files left out: not named .jpg, .jpeg or .png */
  char *first_skipped; /* path of the first such file */
} image_list;

typedef struct image_set {
  int64_t side, resize; /* size= and resize=; resize = 0: none */
  int threads, queue;
  float *mean_image;      /* [side, side, 3], used instead of d->mean; or NULL */
  image_list list[2];     /* training and test split */
  uint32_t crc;           /* CRC-32 of both lists and of the settings */
  int32_t total;          /* number of files in both lists */
  atomic_uchar *reported; /* [total]: 1 if the file was reported as unreadable */
  atomic_int unreadable;  /* number of unreadable files */
} image_set;

/* Decode sample `row` of a list and cut out its window: `to` [side, side, 3], not yet mirrored. false: unreadable, and
 * `why` has the reason. */
bool image_decode(const image_set *set, const image_list *list, int32_t row,
                  const data_transform *how, uint8_t *to, char why[PICTURE_WHY]);
/* Convert the bytes from image_decode to the input x [side, side, 3]: normalise and, by the sample's draw, mirror. */
void image_write_input(const data_set *d, int32_t row, const data_transform *how,
                       const uint8_t *bytes, float *x);

/* ---- image_files.c: find the image files of a folder or a list; CLI_BAD: reported in one line --------------------*/

typedef struct image_classes { /* the folders of the classes, sorted by name */
  struct dirent **list;
  int n;
} image_classes;
void image_classes_free(image_classes *classes);

/* Append the image files of a folder that has one folder for each class. If classes->list is NULL (training split), set
 * *classes to these folders; otherwise (test split) report a folder that is not in *classes. */
int image_files_add_folder(const char *folder, image_classes *classes, image_list *out);
/* Append the files that the list `path` names; relative paths start at `root`. */
int image_files_add_list(const char *path, const char *root, image_list *out);

/* ---- loader.c: threads that decode in the order of the requests, with a bounded queue ----------*/

typedef struct image_loader image_loader;

int image_loader_create(const image_set *set, image_loader **out); /* CLI_BAD: reported */
void image_loader_destroy(image_loader **l);                       /* accepts NULL */
/* Add a request for sample `row` of a list. false: the queue is full, and nothing is requested. */
bool image_loader_request(image_loader *l, const image_list *list, int32_t row,
                          const data_transform *how);
/* Wait until the oldest request is decoded, and return its bytes, which are valid until the next call. NULL: the file
 * is unreadable, and `why` has the reason. */
const uint8_t *image_loader_take(image_loader *l, char why[PICTURE_WHY]);
void image_loader_cancel(image_loader *l); /* cancel all requests */

#endif
