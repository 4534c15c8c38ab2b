/* saving.c: the public functions that save, load and list the state.  They check that the model is ready and call
 * state/. */
#include "state/state.h"

ng_status ng_save(ng_precond *p, const char *path) {
  const ng_state_file to = {.path = path};
  return ng_state_save(p, "ng_save", &to);
}

ng_status ng_load(ng_precond *p, const char *path) {
  const ng_state_file from = {.path = path};
  return ng_state_load(p, "ng_load", &from);
}

ng_status ng_save_to(ng_precond *p, ng_writer write, void *user) {
  const ng_state_file to = {.stream = true, .write = write, .user = user};
  return ng_state_save(p, "ng_save_to", &to);
}

ng_status ng_save_local(ng_precond *p, ng_writer write, void *user) {
  const ng_state_file to = {.stream = true, .local = true, .write = write, .user = user};
  return ng_state_save(p, "ng_save_local", &to);
}

ng_status ng_load_from(ng_precond *p, ng_reader read, void *user) {
  const ng_state_file from = {.stream = true, .read = read, .user = user};
  return ng_state_load(p, "ng_load_from", &from);
}

ng_status ng_save_parts(ng_precond *p, const char *path) {
  const ng_state_file to = {.path = path, .in_parts = true};
  return ng_state_save(p, "ng_save_parts", &to);
}

ng_status ng_save_factors(ng_precond *p, const char *folder) {
  const ng_status st = ng_check_callable(p, "ng_save_factors");
  return st == NG_OK ? ng_state_save_factors(p, folder) : st;
}

ng_status ng_load_factors(ng_precond *p, const char *folder, int32_t *layers) {
  const ng_status st = ng_check_callable(p, "ng_load_factors");
  return st == NG_OK ? ng_state_load_factors(p, folder, layers) : st;
}

int32_t ng_state_count(ng_precond *p) {
  return p != NULL && p->is_ready ? ng_state_field_count(p) : 0;
}

ng_status ng_state_at(ng_precond *p, int32_t i, ng_field_info *out) {
  const ng_status st = ng_check_callable(p, "ng_state_at");
  if (st != NG_OK) return st;
  if (out == NULL) return ng_fail(p->ctx, NG_ERR_ARG, "ng_state_at: out is NULL");
  return ng_state_field_at(p, i, out);
}

ng_status ng_state_read(ng_precond *p, int32_t i, void *to, int64_t bytes) {
  const ng_status st = ng_check_callable(p, "ng_state_read");
  return st == NG_OK ? ng_state_field_read(p, i, to, bytes) : st;
}

int64_t ng_state_manifest(ng_precond *p, char *text, size_t size) {
  int64_t length = 0;
  ng_status st = ng_check_callable(p, "ng_state_manifest");
  if (st == NG_OK) st = ng_state_manifest_text(p, text, size, &length);
  return st == NG_OK ? length : st;
}
