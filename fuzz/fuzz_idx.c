/* fuzz_idx.c: any bytes as one of the four files of MNIST.  The first byte says which: two bits for the
 * file, one for the name with .gz; the other three files are good. */
#include "folder.h"

static const char *const name[4] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                    "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};
/* Three images of 2 x 2, and their labels. */
static const uint8_t images[28] = {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0,
                                   0, 2, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2};
static const uint8_t labels[11] = {0, 0, 8, 1, 0, 0, 0, 3, 4, 0, 9};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 1) return 0;
  const int which = data[0] & 3;
  const char *end = (data[0] & 4) != 0 ? ".gz" : "";
  char changed[48];
  folder_open();
  for (int i = 0; i < 4; i++) {
    if (i == which) continue;
    folder_put(name[i], i % 2 == 0 ? images : labels, i % 2 == 0 ? sizeof images : sizeof labels);
  }
  (void)snprintf(changed, sizeof changed, "%s%s", name[which], end);
  folder_remove(name[which]);
  folder_put(changed, data + 1, size - 1);
  folder_try("mnist");
  folder_remove(changed);
  return 0;
}
