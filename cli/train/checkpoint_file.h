/* checkpoint_file.h: one checkpoint file: metadata and tensors.  Used by checkpoint.c only. */
#ifndef CHECKPOINT_FILE_H
#define CHECKPOINT_FILE_H

#include "checkpoint.h"
#include "safetensors.h"

enum { CHECKPOINT_MESSAGE = 512 };

/* ---- writing ---------------------------------------------------------------------------------*/

/* The header of a file to be: tensors, and metadata as pairs.  Begins as {0}. */
typedef struct file_head {
  ngio_tensor *tensor;
  int32_t tensors;
  char **key, **value;
  int32_t texts;
} file_head;

void file_head_free(file_head *h);
void file_head_text(file_head *h, const char *key, const char *value);
/* One more tensor; f32 with its checksum. */
void file_head_tensor(file_head *h, const ngio_tensor *t);
void file_head_state(file_head *h, const run_state *s);
void file_head_net(file_head *h, const nn *net);
/* Write the file, with the checksum of the metadata last. */
int file_write(file_head *h, const char *path);

/* ---- reading ---------------------------------------------------------------------------------*/

typedef struct file_reader {
  const char *path;
  ngio_source source;
  ngio_tensors *file;
} file_reader;

/* Open the file and read its header; `sealed`: its metadata must have the right checksum.  After a failure print the
 * reason if `report`. */
bool file_open(const char *path, bool sealed, bool report, file_reader *out);
void file_close(file_reader *r);
/* Read the counters; CLI_BAD after a message names a missing one. */
int file_read_state(const file_reader *r, run_state *s);
/* A tensor of this name and shape, with the right checksum, to `to`. */
int file_read_tensor(file_reader *r, const ngio_tensor *want, float *to);
int file_read_net(file_reader *r, nn *net);

#endif
