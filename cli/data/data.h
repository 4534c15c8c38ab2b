/* data.h: data sets. A data set is read and checked once; then batches are filled from it.
 *
 * A text, SPEC, names a data set:
 *   digits                     UCI digits, 1,437 training and 360 test samples, shipped with the program
 *   mnist:DIR                  idx files, plain or .gz (Fashion-MNIST has the same file names)
 *   cifar10:DIR, cifar100:DIR  the binary version; all data_batch_*.bin in the folder are the training split
 *   npy:FEATURES,LABELS        features [n, features] or [n, h, w, c], f4, f8 or u1; labels [n], i4, i8 or u1
 *   synthetic:KEY=VALUE,...    classes, features or image=HxWxC, train, test, noise, seed
 *   images:DIR or LIST,...     JPEG and PNG files, decoded for each batch (images.h)
 *   text:FILE,context=N        windows of N characters; each has the next character as label (text.c)
 * Readers do not trust files: before they allocate, they compare the sizes in a header with the size of the file, and
 * they check every label. */
#ifndef DATA_H
#define DATA_H

#include <stdbool.h>
#include <stdint.h>

typedef struct data_split {
  int32_t n;                       /* number of samples */
  const int32_t *index;            /* sample i is row index[i] of the source; NULL: row i */
  const uint8_t *bytes;            /* samples as bytes [rows, h, w, c]; or NULL */
  const float *reals;              /* samples as f32 [rows, h, w, c]; or NULL */
  const struct image_list *images; /* samples as image files (not for data_fill_batch); or NULL */
  const int32_t *labels;           /* [rows, data_count_labels] */
} data_split;

typedef struct data_set {
  char name[64]; /* "mnist", "cifar10", ... */
  int64_t height, width, channels;
  /* number of characters of a text sample, each with its own label; 0: the data is not text */
  int64_t context;
  int32_t classes;   /* text: number of tokens */
  double byte_scale; /* value of a sample = byte * byte_scale */
  /* [channels] mean and deviation of each channel or feature over the training samples */
  float *mean, *deviation;
  float *scale[2], *shift[2]; /* [channels]: input = value * scale + shift; index 1: normalised */
  bool augments;              /* --augment auto crops and flips (CIFAR and images) */
  data_split train, test;
  data_split validation;    /* empty until data_hold_out */
  struct image_set *images; /* settings and files of an image set; NULL: other data */
  void *blocks;             /* list of all memory from data_alloc */
} data_set;

/* Return the number of labels of a sample. */
static inline int64_t data_count_labels(const data_set *d) {
  return d->context > 0 ? d->context : 1;
}

/* Read and check the data set SPEC.  CLI_BAD: reported in one line with the file and the expected content. */
int data_open(const char *spec, data_set *out);
/* report the image files that were left out; call on one rank only */
void data_print_notes(const data_set *d);
void data_close(data_set *d);

/* Return a CRC-32 of all values and labels, including validation samples. For an image set, return the CRC of the
 * names, sizes and labels of its files and of its settings. The CRC does not depend on the folder. */
uint32_t data_compute_crc(const data_set *d);

/* Move `count` random training samples, selected by `seed`, to `validation`. */
int data_hold_out(data_set *d, int32_t count, uint64_t seed);

typedef struct data_transform {
  /* scale inputs to (value - mean) / deviation; false: inputs stay in [0, 1], for autoencoders */
  bool normalise;
  bool crop; /* random window of the image: padded with 4 zeros on each side, or scaled (files) */
  bool flip; /* mirror the image with probability 1/2 */
  uint64_t seed;
  uint32_t epoch;
} data_transform;

/* Fill x [count, h, w, c] and labels [count, data_count_labels] with the samples order[0..count) of a split (order NULL: the samples
 * first, first + 1, ...). Augmentation depends on seed, epoch and sample only. Threads may fill disjoint ranges in
 * parallel. */
void data_fill_batch(const data_set *d, const data_split *split, const int32_t *order,
                     int32_t first, int32_t count, const data_transform *how, float *x,
                     int32_t *labels);

#endif
