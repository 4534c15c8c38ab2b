/* images.h: a data set of image files, which are decoded when they are wanted.
 *
 *   images:DIR[,KEY=VALUE...]    DIR/CLASS/... .jpg, .jpeg, .png; classes in the order of their names.  With
 *                                a folder DIR/train that is the training split, and DIR/val or DIR/test
 *                                the test split
 *   images:LIST[,KEY=VALUE...]   a file of lines "PATH LABEL", labels from 0 (UTF-8's mark before them is skipped)
 *   test=PATH       the test split, of the same kind; a folder's classes are those of the training split
 *   root=DIR        where the paths of lists begin (the folder of the list)
 *   size=N          the network sees N x N (224)
 *   resize=N|none   the shorter side is scaled to N first (8/7 size, rounded up); none: only if it is
 *                   less than size, to size
 *   mean=, std=     R/G/B, of values 0 to 1 (those of ImageNet), or FILE.npy, of values 0 to 255: [3] or,
 *                   mean only, [3, height, width], of which the upper left size x size is taken
 *   threads=N, queue=N   threads that decode (as many as processors), images that wait (128): no bit of
 *                   a result depends on them
 * Training: a random window, mirrored every second time (--augment); else the one in the middle.
 * A file that is no image is named, counted and left out; more than 1 % of all is an error (train/damaged.h,
 * over all ranks of a run and what it was resumed from).  What is no
 * file, and links that lead in a circle, are refused when the set is opened. */
#ifndef DATA_IMAGES_H
#define DATA_IMAGES_H

#include "data.h"
#include "picture.h"

#include <stdatomic.h>

typedef struct image_list { /* of a split; row i of its labels */
  char **path;
  int32_t first; /* the number of its first file among those of the set */
} image_list;

typedef struct image_set {
  int64_t side, resize; /* resize 0: none */
  int threads, queue;
  float *mean_image; /* [side, side, 3] in place of the channels' means, or NULL */
  uint32_t crc;      /* names, sizes and labels of all files, and what is done to them */
  int32_t total;     /* files */
  atomic_uchar
      *told; /* [total] it is known, and was said, that a file is no good: train/damaged.h */
} image_set;

/* One sample: [side, side, 3] bytes, before it is mirrored.  false: why. */
bool image_load(const image_set *set, const image_list *list, int32_t row, const data_how *how,
                uint8_t *to, char why[PICTURE_WHY]);
/* Its values, mirrored as its draw says and normalised.  x [side, side, 3]. */
void image_values(const data_set *d, int32_t row, const data_how *how, const uint8_t *bytes,
                  float *x);

/* ---- loader.c: threads that decode, in the order they are asked, behind a bounded queue --------*/

typedef struct image_loader image_loader;

int image_loader_create(const image_set *set, image_loader **out); /* CLI_BAD, told */
void image_loader_destroy(image_loader **l);                       /* accepts NULL */
/* false: the queue is full, nothing was asked. */
bool image_loader_ask(image_loader *l, const image_list *list, int32_t row, const data_how *how);
/* The oldest that was asked and not taken: its bytes, which stay until the next call, or NULL and why. */
const uint8_t *image_loader_take(image_loader *l, char why[PICTURE_WHY]);
void image_loader_drop(image_loader *l); /* all that was asked */

#endif
