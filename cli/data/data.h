/* data.h: data sets: read once, checked completely, handed out as batches.
 *
 * A data set is named by one text, SPEC:
 *   digits                     UCI digits, 1,437 + 360, shipped (found beside the program, see
 *                              data_digits_path)
 *   mnist:DIR                  idx files, plain or .gz (Fashion-MNIST has the same names)
 *   cifar10:DIR, cifar100:DIR  the binary version; as many data_batch_*.bin as are there
 *   npy:FEATURES,LABELS        [n, features] or [n, h, w, c]; f4, f8 or u1; labels [n], i4, i8 or u1
 *   synthetic:KEY=VALUE,...    classes, features or image=HxWxC, train, test, noise, seed
 *   images:DIR or LIST,...     JPEG and PNG files, decoded when they are wanted (images.h)
 * Readers never trust a length: what a file says about itself is compared with its size before
 * anything is taken, and every label is in range. */
#ifndef DATA_H
#define DATA_H

#include <stdbool.h>
#include <stdint.h>

typedef struct data_split {
  int32_t n;
  const int32_t *index;            /* sample i is row index[i] of the source; NULL: row i */
  const uint8_t *bytes;            /* [rows, h, w, c], value / 255 (digits: / 16), or NULL ... */
  const float *reals;              /* ... then these, as they are ...                          */
  const struct image_list *images; /* ... or files; data_batch knows none of these  */
  const int32_t *labels;
} data_split;

typedef struct data_set {
  char name[64]; /* "mnist", "cifar10", ... */
  int64_t height, width, channels;
  int32_t classes;
  double byte_scale; /* value = byte * byte_scale                           */
  float *mean,
      *deviation;     /* per channel over the training samples, of values; reals: per feature */
  int64_t statistics; /* entries of the two: channels, or features           */
  bool augments;      /* crop and flip make sense: CIFAR                     */
  data_split train, test;
  data_split validation;    /* empty until data_hold_out */
  struct image_set *images; /* of files, else NULL */
  char *note[2];            /* what is worth knowing of the splits, for cli_note; NULL: nothing */
  void *own;                /* memory of the reader */
} data_set;

/* On failure CLI_BAD, told in one line that names the file and what was expected. */
int data_open(const char *spec, data_set *out);
void data_tell(const data_set *d); /* its notes: one rank says them */
void data_close(data_set *d);

/* Of all values and labels, the samples held out included: the same for the same data, wherever it is. */
uint32_t data_checksum(const data_set *d);

/* Moves `count` training samples, drawn by `seed`, to `validation`. */
int data_hold_out(data_set *d, int32_t count, uint64_t seed);

typedef struct data_how {
  bool normalise; /* (value - mean) / deviation; off for an autoencoder, which sees [0, 1] */
  bool crop;      /* zero-pad by 4 on each side (after normalising), take a random window */
  bool flip;      /* left and right, every second time */
  uint64_t seed;
  uint32_t epoch;
} data_how;

/* Fill x [count, h, w, c] and labels [count] with samples order[0..count) of a split (order NULL:
 * the first ones from `first`).  Augmentation depends on (seed, epoch, sample) only.  Touches no
 * memory but its arguments', so different parts of a batch may be filled by different threads. */
void data_batch(const data_set *d, const data_split *split, const int32_t *order, int32_t first,
                int32_t count, const data_how *how, float *x, int32_t *labels);

#endif
