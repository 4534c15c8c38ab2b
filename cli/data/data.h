/* data.h: data sets: read and checked once, then cut into batches.
 *
 * A data set is named by one text, SPEC:
 *   digits                     UCI digits, 1,437 + 360, shipped with the program
 *   mnist:DIR                  idx files, plain or .gz (Fashion-MNIST has the same names)
 *   cifar10:DIR, cifar100:DIR  the binary version; all data_batch_*.bin in the folder
 *   npy:FEATURES,LABELS        [n, features] or [n, h, w, c]; f4, f8 or u1; labels [n], i4, i8 or u1
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
  const int32_t *index;            /* sample i is row index[i] of the source; NULL: row i */
  const uint8_t *bytes;            /* [rows, h, w, c], value / 255 (digits: / 16), or NULL ... */
  const float *reals;              /* values ...                                        */
  const struct image_list *images; /* ... or files, which data_batch does not serve     */
  const int32_t *labels;
} data_split;

typedef struct data_set {
  char name[64]; /* "mnist", "cifar10", ... */
  int64_t height, width, channels;
  int32_t classes;
  double byte_scale;       /* value = byte * byte_scale                           */
  float *mean, *deviation; /* [channels] over the training samples, per channel or feature */
  float *scale[2],
      *shift[2]; /* [channels]: input = stored value * scale + shift; [1]: normalised */
  bool augments; /* crop and flip make sense: CIFAR and images */
  data_split train, test;
  data_split validation;    /* empty until data_hold_out */
  struct image_set *images; /* of files, else NULL */
  void *own;                /* memory of data_alloc */
} data_set;

/* On failure CLI_BAD and one line with the file and the expected content. */
int data_open(const char *spec, data_set *out);
void data_print_notes(const data_set *d); /* report skipped files; call on one rank */
void data_close(data_set *d);

/* CRC of all values and labels, validation samples included; independent of the place of the files. */
uint32_t data_checksum(const data_set *d);

/* Moves `count` training samples, drawn by `seed`, to `validation`. */
int data_hold_out(data_set *d, int32_t count, uint64_t seed);

typedef struct data_how {
  bool normalise; /* (value - mean) / deviation; off for autoencoders, whose inputs are in [0, 1] */
  bool crop;      /* pad normalised images with 4 zeros on each side, take a random window */
  bool flip;      /* mirror left and right with probability 1/2 */
  uint64_t seed;
  uint32_t epoch;
} data_how;

/* Fill x [count, h, w, c] and labels [count] with samples order[0..count) of a split (order NULL:
 * samples first, first + 1, ...).  Augmentation depends on (seed, epoch, sample) only.  Threads may fill parts of a
 * batch at the same time. */
void data_batch(const data_set *d, const data_split *split, const int32_t *order, int32_t first,
                int32_t count, const data_how *how, float *x, int32_t *labels);

#endif
