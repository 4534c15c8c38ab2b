/* fuzz_idx.c: any bytes as one of the four files of MNIST.  The first byte selects it: two bits for the file, one
 * for a name with .gz.  The other three files are valid. */
#include "folder.h"

static const char *const name[4] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                    "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};
/* Three images of 2 x 2, and their labels. */
static const uint8_t images[28] = {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0,
                                   0, 2, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2};
static const uint8_t labels[11] = {0, 0, 8, 1, 0, 0, 0, 3, 4, 0, 9};

/* An uncompressed file consists of its header and the values read. */
static void check_idx_content(const data_set *d, const uint8_t *data, size_t size) {
  const data_split *s = (data[0] & 2) != 0 ? &d->test : &d->train;
  const uint8_t axes = (data[0] & 1) != 0 ? 1 : 3, *file = data + 1;
  const size_t head = 4 + 4 * (size_t)axes;
  const size_t values = (size_t)s->n * (axes == 1 ? 1 : (size_t)(d->height * d->width));
  NEED(size > 2);
  if (file[0] == 0x1f && file[1] == 0x8b) return; /* compressed, under either name */
  NEED(size - 1 == head + values);
  NEED(file[0] == 0 && file[1] == 0 && file[2] == 8 && file[3] == axes);
  for (size_t i = 0; i < values; i++)
    NEED(file[head + i] == (axes == 1 ? s->labels[i] : s->bytes[i]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 1) return 0;
  const int which = data[0] & 3;
  const char *end = (data[0] & 4) != 0 ? ".gz" : "";
  char changed[48];
  create_folder();
  for (int i = 0; i < 4; i++) {
    if (i == which) continue;
    write_file(name[i], i % 2 == 0 ? images : labels, i % 2 == 0 ? sizeof images : sizeof labels);
  }
  (void)snprintf(changed, sizeof changed, "%s%s", name[which], end);
  remove_file(name[which]);
  write_file(changed, data + 1, size - 1);
  open_set("mnist", check_idx_content, data, size);
  remove_file(changed);
  return 0;
}
