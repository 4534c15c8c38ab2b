/* checkpoint_file.h: the file of a checkpoint: metadata and tensors. */
#ifndef CHECKPOINT_FILE_H
#define CHECKPOINT_FILE_H

#include "checkpoint.h"
#include "safetensors.h"

/* The content of a file to write: tensors, and metadata as pairs of key and value. Initially {0}. */
typedef struct file_content {
  ngio_tensor *tensor;
  ngio_text *text;
  int32_t tensors, texts;
} file_content;

void file_head_free(file_content *h);
/* Append a pair of metadata, a tensor (with the checksum of an f32 tensor), all counters of `s`, the tensors of
 * `net`. */
void file_add_text(file_content *h, const char *key, const char *value);
void file_add_tensor(file_content *h, const ngio_tensor *t);
void file_add_state(file_content *h, const run_state *s);
void file_add_network(file_content *h, const nn *net);
/* Append the checksum of the metadata, and write the file. */
int file_write(file_content *h, const char *path);

typedef struct file_reader {
  const char *path;
  ngio_source source;
  ngio_tensors *file;
} file_reader;

/* Describe tensor i of the network: parameters first, then buffers. */
ngio_tensor file_get_tensor(const nn *net, int i);

/* Open the file and read its header. `sealed`: the checksum of the metadata must match. `report`: print failures. */
bool file_open(const char *path, bool sealed, bool report, file_reader *out);
void file_close(file_reader *r);
/* Read the counters. CLI_BAD: one is missing or wrong, reported by name. */
int file_read_state(const file_reader *r, run_state *s);
/* Read the tensor that has the name and shape of `want` into `to`. CLI_BAD, reported: the tensor is missing, has
 * another shape, or its checksum differs. */
int file_read_tensor(file_reader *r, const ngio_tensor *want, float *to);
int file_read_network(file_reader *r, nn *net);

#endif
