/* state.h: save and load the state of a preconditioner.
 *
 * In: a model between two steps; a path, or the caller's stream. Out: a file with every array and number that a later
 * run needs; a model that continues from such a file; or single arrays. May call: step, family, model, stat, option,
 * comm, core, and io/.
 *
 *   save.c, load.c     one file, a stream, or one file per rank; all checks come before any change
 *   work.c             shared by both: memory, agreement of all ranks
 *   walk.c             read single arrays
 *   factors.c          running averages only: a folder with a file for each layer
 *   manifest_write.c   write options, counters and layers as JSON; manifest.c reads them
 *   fields.c           visit every array and number
 *   field_order.c      convert an array between the order in memory and the published order */
#ifndef NG_STATE_H
#define NG_STATE_H

#include "json.h"
#include "step/step.h"

#define NG_STATE_FORMAT 2 /* format of a state in one file; format 1 is not supported */
#define NG_STATE_PARTS 3  /* format of a state with one file per rank */
#define NG_PARTS_MOST (1 << 24)

/* ---- fields.c, field_order.c --------------------------------------------------------------------------*/

/* Visit the arrays of key k: a block, or the moments of a layer. There are ng_state_keys keys. The key of an array is the
 * name of its block; for moments, the name of the layer. */
typedef ng_status (*ng_field_keyed)(void *arg, const char *key, ng_field *f);
int32_t ng_state_keys(const ng_precond *p);
ng_status ng_state_key_fields(ng_precond *p, int32_t k, ng_field_keyed visit, void *arg);

/* Bytes of the widest element. Files have arrays of 8-byte elements first, then of 4, 2 and 1. */
enum { NG_WIDEST = 8 };

int64_t ng_field_count(const ng_field *f); /* number of elements in the file and in memory */
int64_t ng_field_bytes(const ng_field *f);
/* Return the number of elements sent at once: one row of an array of which ranks hold columns, otherwise all. */
int64_t ng_field_piece(const ng_field *f);

/* Rows [top, bottom) and columns [left, right) of an array. */
typedef struct ng_rect {
  int64_t top, bottom, left, right;
} ng_rect;
int64_t ng_rect_count(const ng_rect *b);
/* ng_field_slices: the number of slices of an array. ng_slice_rank: the rank that saves slice i. */
int32_t ng_field_slices(const ng_field *f, int32_t ranks);
int32_t ng_slice_rank(const ng_field *f, int32_t i);
ng_rect ng_field_rank_rect(const ng_field *f,
                           int32_t rank); /* the part of the array that `rank` holds */
/* Convert an array from the order in memory to the published order: row-major, a symmetric
 * matrix as its lower triangle, row after row. ng_field_import converts back. */
void ng_field_export(const ng_field *f, const void *memory, void *published);
/* Return the error of `n` elements of a file, or NULL. */
const char *ng_field_error(const ng_field *f, const void *data, int64_t n);
void ng_field_import(const ng_field *f, const void *published, void *memory);
/* Return f's data if they are in published order; otherwise export f to `room` and return `room`. */
void *ng_field_published(const ng_field *f, void *room);

/* The numbers of all blocks and entries as one list, in the same order on every rank; the last p->entries numbers belong
 * to entries. get: append the numbers of key k, 0 for numbers of other ranks. put: copy the next numbers, from x on,
 * into a block; return the address after them. */
void ng_state_append_numbers(ng_precond *p, int32_t k, ngio_out *to);
const double *ng_state_set_numbers(ng_block *b, const double *x);

/* ---- save.c, load.c, walk.c: what api/ calls -------------------------------------------------*/

/* A file, or the caller's stream. */
typedef struct ng_state_file {
  bool stream;
  const char *path;
  ng_reader read; /* for a stream: `read` or `write` is the callback that the call uses */
  ng_writer write;
  void *user;
} ng_state_file;

/* call: name of the public function, for messages. */
ng_status ng_state_save(ng_precond *p, const char *call, const ng_state_file *to, bool in_parts);
ng_status ng_state_load(ng_precond *p, const char *call, const ng_state_file *from);
/* Write the manifest to `text`, or only its length if `text` is NULL. *length does not count the terminating 0. */
ng_status ng_state_manifest_text(ng_precond *p, char *text, size_t size, int64_t *length);

/* Save or load the factor folder. *layers: the number of layers with a file in the folder. */
ng_status ng_state_save_factors(ng_precond *p, const char *folder);
ng_status ng_state_load_factors(ng_precond *p, const char *folder, int32_t *layers);

int32_t ng_state_field_count(ng_precond *p);
ng_status ng_state_field_at(ng_precond *p, int32_t i, ng_field_info *out);
ng_status ng_state_field_read(ng_precond *p, int32_t i, void *to, int64_t bytes);

#endif
