/* safetensors.h: read and write files of named arrays in the safetensors format.
 *
 * A file is 8 bytes of header length (little-endian), a JSON header
 *   {"__metadata__": {"key": "text", ...}, "name": {"dtype", "shape", "data_offsets"}, ...}
 * and the data of all tensors, one after the other.
 *
 * The reader trusts nothing.  These are errors: a duplicate key, an offset outside the file, tensors that overlap or
 * leave a gap, a shape that does not agree with the offsets, missing or additional bytes.  The caller checks the values
 * (checksums, finite numbers).
 *
 * The writer keeps an earlier file of the same name until the new file is complete and on the disk: it writes
 * PATH.natgrad-part in the same folder, flushes this file, renames it to PATH, and flushes the folder.  After a failure
 * the writer removes PATH.natgrad-part.  The next writer of PATH overwrites this file if a killed process left it.  A
 * lock excludes a second writer while the first one is running. */
#ifndef NGIO_SAFETENSORS_H
#define NGIO_SAFETENSORS_H

#include "io.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ngio_tensor {
  const char *name; /* owned by the ngio_tensors after a read, by the caller for a write */
  ngio_dtype dtype;
  int32_t ndim;
  int64_t shape[NGIO_MAX_DIMS];
  /* after a read: aligned for the dtype; ngio_writer_create and ngio_writer_stream ignore it */
  const void *data;
  int64_t bytes; /* number of bytes of data: set by a read, ignored by a write */
} ngio_tensor;

typedef struct ngio_text { /* one key and value of __metadata__ */
  const char *key, *value;
} ngio_text;

/* ---- read ------------------------------------------------------------------------------------*/

typedef struct ngio_tensors ngio_tensors;

/* Read and check the whole file.  `alloc` (NULL: the C library) allocates the memory of the data and is copied.  After
 * a failure *out is NULL. */
ngio_status ngio_tensors_read(const char *path, const ngio_alloc *alloc, ngio_tensors **out,
                              char *message, size_t size);
/* Parse the n bytes of a file in memory and copy the data; messages have `label` instead of a path. */
ngio_status ngio_tensors_parse(const void *bytes, size_t n, const char *label,
                               const ngio_alloc *alloc, ngio_tensors **out, char *message,
                               size_t size);

/* Read in two calls, so that the caller can check the header before _finish allocates memory: the header of a stream
 * may announce any amount of data.  After _begin the data pointers are NULL.  _finish reads the data up to the end of
 * `s`; a failure of _finish leaves f unchanged.  The caller closes `s`. */
ngio_status ngio_tensors_begin(ngio_source *s, const ngio_alloc *alloc, ngio_tensors **out,
                               char *message, size_t size);
ngio_status ngio_tensors_finish(ngio_tensors *f, ngio_source *s, char *message, size_t size);
void ngio_tensors_close(ngio_tensors **f);

int32_t ngio_tensors_count(const ngio_tensors *f);
const ngio_tensor *
ngio_tensors_at(const ngio_tensors *f,
                /* return tensor i in the order of the data; NULL: there is no tensor i */
                int32_t i);
const ngio_tensor *ngio_tensors_find(const ngio_tensors *f, const char *name); /* NULL: not found */
/* Return the offset of the tensor's data in the file, for ngio_source_read. */
int64_t ngio_tensors_place(const ngio_tensors *f, const ngio_tensor *t);
int64_t ngio_tensors_bytes(const ngio_tensors *f); /* bytes of the data of all tensors */
int32_t ngio_tensors_text_count(const ngio_tensors *f);
const ngio_text *ngio_tensors_text_at(const ngio_tensors *f, int32_t i);
const char *ngio_tensors_text(const ngio_tensors *f,
                              const char *key); /* the value of a key; NULL: not found */

/* ---- write -----------------------------------------------------------------------------------*/

typedef struct ngio_writer ngio_writer;

/* Write n tensors with their data, and `texts` entries of metadata.  The names and the keys must be unique.  In the
 * file, tensors of wider dtypes come first. */
ngio_status ngio_tensors_write(const char *path, const ngio_tensor *tensors, int32_t n,
                               const ngio_text *text, int32_t texts, char *message, size_t size);

/* Write a file in pieces, if not all data is in memory at once:
 *   _create    writes the header; tensors of wider dtypes must come first (alignment), else NGIO_ERR_ARG.  The writer
 *              does not use `tensors` and `text` later
 *   _put       appends data, tensor after tensor in the order of the header, in pieces of any length
 *   _flush     writes all bytes to the disk under the temporary name; reports a full disk
 *   _finish    flushes, renames the file to its name, and frees the writer, even after an error
 *   _abandon   removes the temporary file and frees the writer
 *
 * _stream passes the bytes of the file to the caller's `write` in order.  After a failure the caller must discard the
 * bytes it received.  Messages have `label` instead of a path. */
ngio_status ngio_writer_create(const char *path, const ngio_tensor *tensors, int32_t n,
                               const ngio_text *text, int32_t texts, ngio_writer **out,
                               char *message, size_t size);
ngio_status ngio_writer_stream(const char *label, ngio_write write, void *user,
                               const ngio_tensor *tensors, int32_t n, const ngio_text *text,
                               int32_t texts, ngio_writer **out, char *message, size_t size);
ngio_status ngio_writer_put(ngio_writer *w, const void *data, int64_t bytes, char *message,
                            size_t size);
ngio_status ngio_writer_flush(ngio_writer *w, char *message, size_t size);
ngio_status ngio_writer_finish(ngio_writer **w, char *message, size_t size);
/* As _finish, for a state, or for the first part of a state with id `id`.  Then remove the parts of PATH that have
 * another id (part_files.h), under the lock of PATH.  If another writer has the lock, that writer removes these
 * parts. */
ngio_status ngio_writer_finish_and_sweep(ngio_writer **w, const char *id, char *message,
                                         size_t size);
void ngio_writer_abandon(ngio_writer **w);

#ifdef __cplusplus
}
#endif
#endif
