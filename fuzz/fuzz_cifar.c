/* fuzz_cifar.c: any bytes as a CIFAR file.  The first byte selects the file: one bit for CIFAR-10 or CIFAR-100,
 * one for training or test.  The other file is valid. */
#include "folder.h"

enum { PIXELS = 1024, IMAGE = 3 * PIXELS };

/* Labels and values are at their places in the format; the last label byte of a row is its label. */
static void check_cifar_content(const data_set *d, const uint8_t *data, size_t size) {
  const data_split *s = (data[0] & 2) != 0 ? &d->test : &d->train;
  const int labels = d->classes == 100 ? 2 : 1;
  const uint8_t *row = data + 1;
  if (size > 2 && row[0] == 0x1f && row[1] == 0x8b) return; /* compressed */
  NEED(size - 1 == (size_t)s->n * (size_t)(labels + IMAGE));
  for (int32_t i = 0; i < s->n; i++, row += labels + IMAGE) {
    NEED(s->labels[i] == row[labels - 1]);
    for (int p = 0; p < IMAGE; p++)
      NEED(s->bytes[(int64_t)i * IMAGE + p] == row[labels + p % 3 * PIXELS + p / 3]);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static uint8_t good[2 + IMAGE] = {1, 2, 3};
  if (size < 1) return 0;
  const bool hundred = (data[0] & 1) != 0, test = (data[0] & 2) != 0;
  const char *const name[2] = {hundred ? "train.bin" : "data_batch_1.bin",
                               hundred ? "test.bin" : "test_batch.bin"};
  create_folder();
  write_file(name[!test], good, sizeof good - (hundred ? 0 : 1));
  write_file(name[test], data + 1, size - 1);
  open_set(hundred ? "cifar100" : "cifar10", check_cifar_content, data, size);
  remove_file(name[0]);
  remove_file(name[1]);
  return 0;
}
