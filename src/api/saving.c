/* saving.c: the public functions that save and load; state/ has what they do.
 *
 * Both are collective; only rank 0 touches the file. */
#include "state/state.h"

/* NG_OK: collective work may begin. */
static ng_status may_begin(ng_precond *p, const char *call) {
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
  if (p->broken) return ng_fail(p->ctx, NG_ERR_COMM, "%s: the transport failed before", call);
  if (!p->ready) return ng_fail(p->ctx, NG_ERR_STATE, "%s: call ng_ready first", call);
  return NG_OK;
}

ng_status ng_save(ng_precond *p, const char *path) {
  const ng_status st = may_begin(p, "ng_save");
  return st == NG_OK ? ng_state_save(p, path) : st;
}

ng_status ng_load(ng_precond *p, const char *path) {
  const ng_status st = may_begin(p, "ng_load");
  return st == NG_OK ? ng_state_load(p, path) : st;
}
