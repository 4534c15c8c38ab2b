/* state.h: the state of a preconditioner, to a file and back.
 *
 * In:   a model between two steps; a path.
 * Out:  a file with every array and number that a later run needs; or a model that goes on from one.
 * May call: step, family, model, stat, option, comm, core, and io/.
 *
 * state.c is the protocol: who writes, who reads, how all ranks learn the verdict.
 * manifest.c turns options, counters and layers into a JSON text and back.
 * fields.c walks every array; field_order.c turns one from memory's order into the published one and back.
 */
#ifndef NG_STATE_H
#define NG_STATE_H

#include "step/step.h"

#include <jansson.h>

#define NG_STATE_FORMAT 2 /* 1: before statistics were the engine's */

/* ---- fields.c, field_order.c --------------------------------------------------------------------------*/

/* Arrays of blocks under the block's name, moments under the layer's. */
typedef ng_status (*ng_field_keyed)(void *arg, const char *key, ng_field *f);
ng_status ng_state_fields(ng_precond *p, ng_field_keyed visit, void *arg);

int64_t ng_field_count(const ng_field *f); /* elements in the file, and in memory */
int64_t ng_field_bytes(const ng_field *f);
/* `memory` as f describes it, `published` row-major (sym: the lower triangle, row after row). */
void ng_field_export(const ng_field *f, const void *memory, void *published);
void ng_field_import(const ng_field *f, const void *published, void *memory);

/* ---- manifest.c ------------------------------------------------------------------------*/

/* Numbers of all blocks in one array, the same places on every rank.  get: this rank's; put: into
 * the blocks.  Blocks that this rank does not own are left as they are in x by get. */
int64_t ng_state_values(ng_precond *p);
void ng_state_get(ng_precond *p, double *x);
void ng_state_put(ng_precond *p, const double *x);

/* The manifest without tensors.  `rungs`: four counters over all ranks. */
ng_status ng_manifest_make(ng_precond *p, const double *values, const int64_t rungs[4],
                           json_t **out, char *message, size_t size);

/* What a manifest says about this model, verified and ready to be put in place. */
typedef struct ng_snapshot {
  ng_options opt; /* texts borrowed from p */
  int64_t since[NG_SCHEDULED];
  int64_t steps, updates, skipped, rung[4];
  double nu, inner;
} ng_snapshot;

/* Compare `manifest` with this model and fill *s and `values`.  Nothing of p changes. */
ng_status ng_manifest_read(ng_precond *p, const json_t *manifest, ng_snapshot *s, double *values,
                           char *message, size_t size);
/* Cannot fail. */
void ng_snapshot_apply(ng_precond *p, const ng_snapshot *s, const double *values);

/* ---- state.c: what api/ calls ----------------------------------------------------------------*/

ng_status ng_state_save(ng_precond *p, const char *path);
ng_status ng_state_load(ng_precond *p, const char *path);

#endif
