/* checkpoint_file.h: one checkpoint file: metadata and tensors. */
#ifndef CHECKPOINT_FILE_H
#define CHECKPOINT_FILE_H

#include "checkpoint.h"
#include "safetensors.h"

/* The header of a file to write: tensors, and metadata as pairs of texts.  Begins as {0}. */
typedef struct file_head {
  ngio_tensor *tensor;
  ngio_text *text;
  int32_t tensors, texts;
} file_head;

void file_head_free(file_head *h);
/* Append a pair of texts, a tensor (with the checksum of an f32 tensor), all counters of `s`, all tensors of `net`. */
void file_add_text(file_head *h, const char *key, const char *value);
void file_add_tensor(file_head *h, const ngio_tensor *t);
void file_add_state(file_head *h, const run_state *s);
void file_add_net(file_head *h, const nn *net);
/* Write the file, with the checksum of the metadata last. */
int file_write(file_head *h, const char *path);

typedef struct file_reader {
  const char *path;
  ngio_source source;
  ngio_tensors *file;
} file_reader;

/* Parameter i of the network, then buffers. */
ngio_tensor file_get_tensor(const nn *net, int i);

/* Open the file and read its header; `sealed`: the metadata must have the right checksum.  After a failure, print the
 * reason if `report`. */
bool file_open(const char *path, bool sealed, bool report, file_reader *out);
void file_close(file_reader *r);
/* Read the counters.  CLI_BAD after a message that names the missing counter. */
int file_read_state(const file_reader *r, run_state *s);
/* Read the tensor with name and shape of `want` into `to`.  CLI_BAD after a message: the tensor is missing, has another
 * shape, or its checksum differs. */
int file_read_tensor(file_reader *r, const ngio_tensor *want, float *to);
int file_read_net(file_reader *r, nn *net);

#endif
