/* state.h: what the three files of the state room share.
 *
 * state.c is the protocol: who writes, who reads, how all ranks learn the verdict.
 * state_manifest.c turns options, counters and layers into a JSON text and back.
 * state_fields.c turns one array from memory's order into the published one and back.
 */
#ifndef NG_STATE_H
#define NG_STATE_H

#include "model/model.h"

#include <jansson.h>

#define NG_STATE_FORMAT 1

/* ---- state_fields.c --------------------------------------------------------------------------*/

int64_t ng_field_count(const ng_field *f); /* elements in the file, and in memory */
int64_t ng_field_bytes(const ng_field *f);
/* `memory` as f describes it, `published` row-major (sym: the lower triangle, row after row). */
void ng_field_export(const ng_field *f, const void *memory, void *published);
void ng_field_import(const ng_field *f, const void *published, void *memory);

/* ---- state_manifest.c ------------------------------------------------------------------------*/

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

#endif
