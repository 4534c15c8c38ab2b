/* images.h: data sets of image files, which are decoded for each batch.
 *
 *   images:DIR[,KEY=VALUE...]    DIR/CLASS/... .jpg, .jpeg, .png; classes in the order of their names.  With
 *                                a folder DIR/train that is the training split, and DIR/val or DIR/test
 *                                the test split
 *   images:LIST[,KEY=VALUE...]   a file of lines "PATH LABEL", labels from 0 (a byte order mark is skipped)
 *   test=PATH       the test split, of the same kind; a folder has the classes of the training split
 *   root=DIR        relative paths in lists start here (the folder of the list)
 *   size=N          inputs of the network are N x N (224)
 *   resize=N|none   the shorter side is scaled to N first (8/7 size, rounded up); none: only if it is
 *                   less than size, to size
 *   mean=, std=     R/G/B, of values 0 to 1 (default: ImageNet), or FILE.npy, of values 0 to 255: [3] or,
 *                   mean only, [3, height, width], of which the upper left size x size is taken
 *   threads=N, queue=N   threads that decode (all processors), decoded images that wait (128); results do not
 *                   depend on them
 * Training: a random window, mirrored with probability 1/2 (--augment); otherwise the central window.
 * An unreadable file is named, counted by each process and skipped; more than 1 % of all files are an error. Opening
 * fails for entries that are neither files nor folders, and for links in a circle. */
#ifndef DATA_IMAGES_H
#define DATA_IMAGES_H

#include "data.h"
#include "picture.h"

#include <stdatomic.h>

typedef struct image_list { /* the files of a split in order, with their classes */
  int32_t n, first;         /* first: number of its first file within the set */
  int rooms[2];             /* of path and label */
  char **path;
  int32_t *label;
  uint32_t crc;  /* of relative names, sizes, labels */
  int32_t other; /* files without an image's ending */
  char *first_other;
} image_list;

typedef struct image_set {
  int64_t side, resize; /* resize 0: none */
  int threads, queue;
  float *mean_image;     /* [side, side, 3] in place of the channels' means, or NULL */
  image_list list[2];    /* training, test */
  uint32_t crc;          /* of names, sizes and labels of all files, and of the settings */
  int32_t total;         /* files */
  atomic_uchar *told;    /* [total] the file is unreadable and was reported */
  atomic_int unreadable; /* their number */
} image_set;

/* Decode and cut one sample: [side, side, 3] bytes, not mirrored yet.  false: see `why`. */
bool image_load(const image_set *set, const image_list *list, int32_t row, const data_how *how,
                uint8_t *to, char why[PICTURE_WHY]);
/* Normalise it, and mirror it if drawn so: x [side, side, 3]. */
void image_values(const data_set *d, int32_t row, const data_how *how, const uint8_t *bytes,
                  float *x);

/* ---- loader.c: threads that decode in the order of the requests, with a bounded queue ----------*/

typedef struct image_loader image_loader;

int image_loader_create(const image_set *set, image_loader **out); /* CLI_BAD: reported */
void image_loader_destroy(image_loader **l);                       /* accepts NULL */
/* Request a sample; false: the queue is full. */
bool image_loader_ask(image_loader *l, const image_list *list, int32_t row, const data_how *how);
/* The bytes of the oldest request, valid until the next call, or NULL and the reason. */
const uint8_t *image_loader_take(image_loader *l, char why[PICTURE_WHY]);
void image_loader_drop(image_loader *l); /* cancel all requests */

#endif
