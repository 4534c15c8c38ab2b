/* state.h: save and load the state of a preconditioner.
 *
 * In:   a model between two steps; a path, or the caller's stream.
 * Out:  a file with every array and number that a later run needs; a model that continues from such a file; or single
 *       arrays.
 * May call: step, family, model, stat, option, comm, core, and io/.
 *
 *   save.c, load.c     one file, a stream, or one file per rank
 *   work.c             shared by save.c, load.c and factors.c: memory, one status on all ranks
 *   walk.c             read single arrays
 *   factors.c          running averages only: a folder with a file for each layer
 *   manifest_write.c   write options, counters and layers as JSON
 *   manifest.c         read and check this JSON
 *   fields.c           visit every array
 *   field_order.c      convert an array between the order in memory and the published order */
#ifndef NG_STATE_H
#define NG_STATE_H

#include "json.h"
#include "step/step.h"

#define NG_STATE_FORMAT 2 /* format of a state in one file; format 1 is not supported */
#define NG_STATE_PARTS 3  /* format of a state with one file per rank */
#define NG_PARTS_MOST (1 << 24)

/* ---- fields.c, field_order.c --------------------------------------------------------------------------*/

/* Key k of ng_state_keys is the name of a block, or of a layer, whose arrays are its moments: first come all blocks,
 * then all layers.  ng_state_key_fields: visit the arrays of key k. */
int32_t ng_state_keys(const ng_precond *p);
const char *ng_state_key(const ng_precond *p, int32_t k);
void ng_state_key_fields(ng_precond *p, int32_t k, ng_field_visit visit, void *arg);

/* Bytes of the widest element.  In files, arrays with elements of 8 bytes come first, then of 4, 2 and 1. */
enum { NG_WIDEST = 8 };

int64_t ng_field_count(const ng_field *f); /* number of elements in the file and in memory */
int64_t ng_field_bytes(const ng_field *f);
/* Return the number of elements that ranks send at once: one row if ranks hold columns of the array, otherwise all. */
int64_t ng_field_send_count(const ng_field *f);

/* Rows [top, bottom) and columns [left, right) of an array. */
typedef struct ng_rect {
  int64_t top, bottom, left, right;
} ng_rect;
int32_t ng_slice_rank(const ng_field *f, int32_t i); /* return the rank that saves slice i */
/* Return rows [from, to) of an array if by_rows, otherwise columns [from, to). */
ng_rect ng_rect_of(const ng_field *f, bool by_rows, int64_t from, int64_t to);
/* Convert an array between the order in memory and the published order, which is row-major; of a symmetric matrix it
 * has the lower triangle, row after row.  `to`: receives the converted array. */
void ng_field_export(const ng_field *f, const void *memory, void *to);
void ng_field_import(const ng_field *f, const void *published, void *to);
/* Return the data of f in published order: f->data itself if the orders are equal, otherwise `to` after an export. */
void *ng_field_published(const ng_field *f, void *to);
/* Return the text of an error in n elements of array f, or NULL. */
const char *ng_field_error(const ng_field *f, const void *data, int64_t n);

/* ---- implementations of public functions: save.c, load.c, factors.c, walk.c ------------------*/

/* A file, or the caller's stream. */
typedef struct ng_state_file {
  bool stream;
  /* save without the other ranks; with `write` NULL, only check whether this is possible */
  bool local;
  bool in_parts;    /* save one file per rank */
  const char *path; /* path of a state in a file */
  ng_reader read;   /* callback that reads a state from a stream */
  ng_writer write;  /* callback that writes a state to a stream */
  void *user;
} ng_state_file;

/* `call`: name of the public function, for messages. */
ng_status ng_state_save(ng_precond *p, const char *call, const ng_state_file *to);
ng_status ng_state_load(ng_precond *p, const char *call, const ng_state_file *from);
/* Write the manifest to `text` (NULL: only its length).  *length does not count the terminating 0. */
ng_status ng_state_manifest_text(ng_precond *p, char *text, size_t size, int64_t *length);

/* *layers: the number of layers that have a file in the folder. */
ng_status ng_state_save_factors(ng_precond *p, const char *folder);
ng_status ng_state_load_factors(ng_precond *p, const char *folder, int32_t *layers);

int32_t ng_state_field_count(ng_precond *p);
ng_status ng_state_field_at(ng_precond *p, int32_t i, ng_field_info *out);
ng_status ng_state_field_read(ng_precond *p, int32_t i, void *to, int64_t bytes);

#endif
