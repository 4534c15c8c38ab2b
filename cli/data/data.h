/* data.h: data sets: read and checked once, then cut into batches.
 *
 * A text, SPEC, names a data set:
 *   digits                     UCI digits, 1,437 training and 360 test samples, shipped with the program
 *   mnist:DIR                  idx files, plain or .gz (Fashion-MNIST has the same names)
 *   cifar10:DIR, cifar100:DIR  the binary version; all data_batch_*.bin in the folder
 *   npy:FEATURES,LABELS        features [n, features] or [n, h, w, c], f4, f8 or u1; labels [n], i4, i8 or u1
 *   synthetic:KEY=VALUE,...    classes, features or image=HxWxC, train, test, noise, seed
 *   images:DIR or LIST,...     JPEG and PNG files, decoded for each batch (images.h)
 * Readers trust no length: they compare the sizes in a header with the size of the file before they allocate, and
 * check every label. */
#ifndef DATA_H
#define DATA_H

#include <stdbool.h>
#include <stdint.h>

typedef struct data_split {
  int32_t n;
  const int32_t *index; /* sample i is row index[i] of the source; NULL: row i */
  const uint8_t *bytes; /* values [rows, h, w, c] / byte_scale; NULL: see reals and images */
  const float *reals;   /* values [rows, h, w, c], if not NULL */
  const struct image_list *images; /* image files, if not NULL; not for data_fill_batch */
  const int32_t *labels;
} data_split;

typedef struct data_set {
  char name[64]; /* "mnist", "cifar10", ... */
  int64_t height, width, channels;
  int32_t classes;
  double byte_scale;          /* value = byte * byte_scale                           */
  float *mean, *deviation;    /* [channels] over the training samples, per channel or feature */
  float *scale[2], *shift[2]; /* [channels]: input = value * scale + shift; [1]: normalised */
  bool augments;              /* crop and flip are useful: CIFAR and images */
  data_split train, test;
  data_split validation;    /* empty until data_hold_out */
  struct image_set *images; /* settings and files of an image set; NULL: another set */
  void *blocks;             /* list of the blocks of data_alloc */
} data_set;

/* Read and check the data set SPEC.  CLI_BAD: reported in one line with the file and the expected content. */
int data_open(const char *spec, data_set *out);
void data_print_notes(const data_set *d); /* report skipped files; call on one rank */
void data_close(data_set *d);

/* Return the CRC of all values and labels, validation samples included, or of the names, sizes, labels and
 * settings of an image set; the CRC does not depend on the folder of the files. */
uint32_t data_compute_crc(const data_set *d);

/* Move `count` training samples, drawn by `seed`, to `validation`. */
int data_hold_out(data_set *d, int32_t count, uint64_t seed);

typedef struct data_how {
  bool normalise; /* (value - mean) / deviation; off for autoencoders, whose inputs are in [0, 1] */
  bool crop;      /* pad normalised images with 4 zeros on each side, and cut a random window */
  bool flip;      /* mirror left and right with probability 1/2 */
  uint64_t seed;
  uint32_t epoch;
} data_how;

/* Fill x [count, h, w, c] and labels [count] with the samples order[0..count) of a split (order NULL: the samples
 * first, first + 1, ...).  Augmentation depends only on seed, epoch and sample.  Threads may fill parts of a batch
 * in parallel. */
void data_fill_batch(const data_set *d, const data_split *split, const int32_t *order,
                     int32_t first, int32_t count, const data_how *how, float *x, int32_t *labels);

#endif
