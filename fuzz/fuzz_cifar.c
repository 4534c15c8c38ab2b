/* fuzz_cifar.c: any bytes as a file of CIFAR.  The first byte says which: one bit for CIFAR-10 or
 * CIFAR-100, one for training or test; the other file is good. */
#include "folder.h"

enum { IMAGE = 3072 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static uint8_t good[2 + IMAGE] = {1, 2, 3};
  if (size < 1) return 0;
  const bool hundred = (data[0] & 1) != 0, test = (data[0] & 2) != 0;
  const char *const name[2] = {hundred ? "train.bin" : "data_batch_1.bin",
                               hundred ? "test.bin" : "test_batch.bin"};
  folder_open();
  folder_put(name[!test], good, sizeof good - (hundred ? 0 : 1));
  folder_put(name[test], data + 1, size - 1);
  folder_try(hundred ? "cifar100" : "cifar10");
  folder_remove(name[0]);
  folder_remove(name[1]);
  return 0;
}
