/* state.h: the state of a preconditioner, to a file or a stream and back.
 *
 * In:   a model between two steps; a path, or the caller's functions.
 * Out:  a file with every array and number that a later run needs; or a model that goes on from one; or
 *       the arrays one by one.
 * May call: step, family, model, stat, option, comm, core, and io/.
 *
 * save.c and load.c are the protocol: one file, a stream, or a file for each rank; and the checks before anything
 * changes.  work.c has their common code: memory, and the agreement of all ranks.  walk.c shows single arrays.
 * factors.c is apart: running averages alone, a folder with a file for each layer.
 * manifest_write.c turns options, counters and layers into a JSON text, manifest.c understands one.
 * fields.c walks every array; field_order.c turns one from memory's order into the published one and back.
 */
#ifndef NG_STATE_H
#define NG_STATE_H

#include "json.h"
#include "step/step.h"

#define NG_STATE_FORMAT 2 /* 1: before statistics were the engine's */
#define NG_STATE_PARTS 3  /* of several files */
#define NG_PARTS_MOST (1 << 24)

/* ---- fields.c, field_order.c --------------------------------------------------------------------------*/

/* Arrays of blocks under the block's name, moments under the layer's. */
typedef ng_status (*ng_field_keyed)(void *arg, const char *key, ng_field *f);
ng_status ng_state_fields(ng_precond *p, ng_field_keyed visit, void *arg);
/* The same for one of ng_state_keys keys: a block, or a layer's moments. */
int32_t ng_state_keys(const ng_precond *p);
ng_status ng_state_key_fields(ng_precond *p, int32_t k, ng_field_keyed visit, void *arg);

enum { NG_WIDEST = 8 }; /* bytes of an element; files have fields of 8, of 4, of 2, of 1 */

int64_t ng_field_count(const ng_field *f); /* elements in the file, and in memory */
int64_t ng_field_bytes(const ng_field *f);
/* Elements that are moved at once: what ranks hold in columns goes row by row, rows as a whole. */
int64_t ng_field_piece(const ng_field *f);

/* Rows [top, bottom) and columns [left, right) of an array. */
typedef struct ng_rect {
  int64_t top, bottom, left, right;
} ng_rect;
int64_t ng_rect_count(const ng_rect *b);
/* Of an array in slices: how many, and whose. */
int32_t ng_field_slices(const ng_field *f, int32_t ranks);
int32_t ng_slice_rank(const ng_field *f, int32_t i);
ng_rect ng_field_mine(const ng_field *f, int32_t rank); /* what this rank holds, of any array */
/* `memory` as f describes it, `published` row-major (sym: the lower triangle, row after row). */
void ng_field_export(const ng_field *f, const void *memory, void *published);
/* Describe the first mistake in `n` elements of a file, or return NULL. */
const char *ng_field_fault(const ng_field *f, const void *data, int64_t n);
void ng_field_import(const ng_field *f, const void *published, void *memory);
/* The data of f itself, where it has the published order; else `room`, after an export to it. */
void *ng_field_published(const ng_field *f, void *room);

/* ---- numbers.c ------------------------------------------------------------------------*/

/* Numbers of all blocks in one array, the same places on every rank.  get: this rank's; put: into
 * the blocks.  Blocks that this rank does not own are left as they are in x by get. */
int64_t ng_state_values(ng_precond *p); /* counts them; the last are one of each entry */
void ng_state_get(ng_precond *p, double *x);
void ng_state_put(ng_precond *p, const double *x);

/* ---- save.c, load.c, walk.c: what api/ calls -------------------------------------------------*/

/* Where a state goes or comes from: a file of that name, or the caller's stream. */
typedef struct ng_outside {
  bool stream;
  const char *path;
  ng_reader read; /* a stream has the one that is called */
  ng_writer write;
  void *user;
} ng_outside;

/* `call` is the public function, for messages. */
ng_status ng_state_save(ng_precond *p, const char *call, const ng_outside *to, bool in_parts);
ng_status ng_state_load(ng_precond *p, const char *call, const ng_outside *from);
/* *length without the 0; `text` may be NULL. */
ng_status ng_state_manifest_text(ng_precond *p, char *text, size_t size, int64_t *length);

/* A folder; *layers: how many were found. */
ng_status ng_state_save_factors(ng_precond *p, const char *folder);
ng_status ng_state_load_factors(ng_precond *p, const char *folder, int32_t *layers);

int32_t ng_state_field_count(ng_precond *p);
ng_status ng_state_field_at(ng_precond *p, int32_t i, ng_field_info *out);
ng_status ng_state_field_read(ng_precond *p, int32_t i, void *to, int64_t bytes);

#endif
