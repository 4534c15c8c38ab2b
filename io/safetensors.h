/* safetensors.h: read and write files of named arrays in the safetensors format.
 *
 * A file is 8 bytes of header length (little-endian), a JSON header
 *   {"__metadata__": {"key": "text", ...}, "name": {"dtype", "shape", "data_offsets"}, ...}
 * and the data of all tensors, one after the other.
 *
 * The reader trusts nothing: a duplicate key, an offset outside the file, tensors that overlap or
 * leave a gap, a shape that does not give the bytes, a byte too many or too few, all are errors
 * that name the tensor.  The result is consistent; the caller checks the values (checksums,
 * finite numbers).
 *
 * The writer leaves an earlier file of the same name whole until the new one is complete and on
 * the disk: it writes PATH.natgrad-part in the same folder, flushes it, renames it, flushes the folder.  On
 * failure nothing stays behind.  A process that is killed leaves PATH.natgrad-part, which the next write
 * of the same path takes over (a lock keeps two living writers apart).
 */
#ifndef NGIO_SAFETENSORS_H
#define NGIO_SAFETENSORS_H

#include "io.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ngio_tensor {
  const char *name; /* memory of the file; for a writer, of the caller */
  ngio_dtype dtype;
  int32_t ndim;
  int64_t shape[NGIO_MAX_DIMS];
  const void *data; /* aligned for its dtype; used by ngio_tensors_write, ignored by _create      */
  int64_t bytes;    /* read: checked; write: ignored */
} ngio_tensor;

typedef struct ngio_text { /* a pair of __metadata__ */
  const char *key, *value;
} ngio_text;

/* ---- read ------------------------------------------------------------------------------------*/

typedef struct ngio_tensors ngio_tensors;

/* The whole file, read and checked.  `alloc` (NULL: the C library) gives the memory of the data
 * and is copied.  *out is NULL unless the result is NGIO_OK. */
ngio_status ngio_tensors_read(const char *path, const ngio_alloc *alloc, ngio_tensors **out,
                              char *message, size_t size);
/* The same from memory, which is copied; `label` stands for the path in messages. */
ngio_status ngio_tensors_parse(const void *bytes, size_t n, const char *label,
                               const ngio_alloc *alloc, ngio_tensors **out, char *message,
                               size_t size);

/* The same in two halves: the caller checks the header before memory for the data is allocated, because a
 * stream may announce any amount.  After _begin the data pointers are NULL.  _finish reads the data up to the
 * end of `s`; a failure leaves f unchanged.  The caller closes `s`. */
ngio_status ngio_tensors_begin(ngio_source *s, const ngio_alloc *alloc, ngio_tensors **out,
                               char *message, size_t size);
ngio_status ngio_tensors_finish(ngio_tensors *f, ngio_source *s, char *message, size_t size);
void ngio_tensors_close(ngio_tensors **f);

int32_t ngio_tensors_count(const ngio_tensors *f);
const ngio_tensor *ngio_tensors_at(const ngio_tensors *f, int32_t i); /* in order of the data     */
const ngio_tensor *ngio_tensors_find(const ngio_tensors *f, const char *name); /* or NULL         */
/* Offset of the data of a tensor in the file, for ngio_source_read. */
int64_t ngio_tensors_place(const ngio_tensors *f, const ngio_tensor *t);
int64_t ngio_tensors_bytes(const ngio_tensors *f); /* of all data                                 */
int32_t ngio_tensors_text_count(const ngio_tensors *f);
const ngio_text *ngio_tensors_text_at(const ngio_tensors *f, int32_t i);
const char *ngio_tensors_text(const ngio_tensors *f, const char *key); /* value, or NULL          */

/* ---- write -----------------------------------------------------------------------------------*/

typedef struct ngio_writer ngio_writer;

/* All at once: n tensors with their data, and `texts` pairs of metadata; the caller's names and keys are unique.  In
 * the file, tensors of wider dtypes come first. */
ngio_status ngio_tensors_write(const char *path, const ngio_tensor *tensors, int32_t n,
                               const ngio_text *text, int32_t texts, char *message, size_t size);

/* Piece by piece, when the data do not exist all at once.  _create announces everything and writes
 * the header; _put appends data, tensor after tensor in the order announced (any cut); _finish makes
 * the file appear under its name and ends the writer, whatever the result.  _flush writes
 * everything to the disk under the temporary name, so a full disk fails here.  _abandon ends the writer without
 * a trace.  Nothing is needed of `tensors` and `text` after _create.  Wider dtypes must come first,
 * so that all data is aligned: anything else is NGIO_ERR_ARG.
 *
 * _stream passes the bytes of the file to the caller's `write` in order. After a failure the
 * caller drops the bytes that it received.  `label` stands for the
 * path in messages. */
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
/* As _finish, for a state or the first file of a state in parts with id `id`.  Then remove parts of PATH that belong to
 * another whole (part_files.h), under the lock of PATH.  If another writer has the lock, that writer removes them. */
ngio_status ngio_writer_finish_whole(ngio_writer **w, const char *id, char *message, size_t size);
void ngio_writer_abandon(ngio_writer **w);

#ifdef __cplusplus
}
#endif
#endif
