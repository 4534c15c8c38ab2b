/* walk.c: read single arrays of the state, for programs with their own file format.
 *
 * Arrays are numbered in the order of files (wide dtypes first), equally on every rank.  An array can only be found by
 * a visit of all arrays before it.  So ng_precond.last_search stores where the last search ended, and a program that
 * reads all arrays in order needs linear time. */
#include "state/work.h"

static void count_field(void *arg, ng_field *f) {
  (void)f;
  ++*(int32_t *)arg;
}

int32_t ng_state_field_count(ng_precond *p) {
  int32_t n = 0;
  for (int32_t k = 0; k < ng_state_keys(p); k++)
    ng_state_key_fields(p, k, count_field, &n);
  return n;
}

/* A search for one array. */
typedef struct field_seek {
  int64_t width; /* element size of the array; a pass visits only arrays of one element size */
  int32_t left;  /* number of arrays of this element size to skip */
  bool found;
  char name[NG_FIELD_KEY]; /* "key/field" */
  ng_field field;
} field_seek;

/* Visit a field: if it has the wanted element size, skip it while s->left > 0, and otherwise store it. */
static void seek_field(void *arg, ng_field *f) {
  field_seek *s = arg;
  if (s->found || ng_dtype_size(f->dtype) != s->width) return;
  if (s->left-- > 0) return;
  s->found = true;
  s->field = *f;
}

/* Find array i.  If the last search ended before array i, continue from there. */
static bool find_field(ng_precond *p, int32_t i, field_seek *s) {
  ng_field_search *at = &p->last_search;
  memset(s, 0, sizeof *s);
  if (at->width == 0 || i < at->fields_before) *at = (ng_field_search){.width = NG_WIDEST};
  for (; at->width > 0; at->width /= 2, at->key = 0) {
    s->width = at->width;
    for (; at->key < ng_state_keys(p); at->key++) {
      s->left = i - at->fields_before;
      ng_state_key_fields(p, at->key, seek_field, s);
      if (s->found) {
        (void)snprintf(s->name, sizeof s->name, "%s/%s", ng_state_key(p, at->key), s->field.name);
        return true;
      }
      at->fields_before = i - s->left;
    }
  }
  return false;
}

static ng_status invalid_index(ng_precond *p, const char *call, int32_t i) {
  return ng_fail(p->ctx, NG_ERR_ARG, "%s: index is %ld, expected 0 to %ld", call, (long)i,
                 (long)ng_state_field_count(p) - 1);
}

ng_status ng_state_field_at(ng_precond *p, int32_t i, ng_field_info *out) {
  field_seek s;
  if (i < 0 || !find_field(p, i, &s)) return invalid_index(p, "ng_state_at", i);
  const ngio_tensor t = ng_tensor_describe(NULL, &s.field, NULL);
  ng_field_info info;
  memset(&info, 0, sizeof info);
  memcpy(p->found_name, s.name, sizeof s.name);
  info.name = p->found_name;
  info.dtype = s.field.dtype;
  info.ndim = t.ndim;
  memcpy(info.shape, t.shape, sizeof info.shape);
  info.bytes = ng_field_bytes(&s.field);
  info.owner = s.field.owner;
  if (ng_struct_write(out, &info, sizeof info) == NG_OK) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_ARG, "ng_state_at: struct_size of out is not set");
}

ng_status ng_state_field_read(ng_precond *p, int32_t i, void *to, int64_t bytes) {
  field_seek s;
  if (i < 0 || !find_field(p, i, &s)) return invalid_index(p, "ng_state_read", i);
  if (bytes != ng_field_bytes(&s.field)) {
    return ng_fail(p->ctx, NG_ERR_ARG, "ng_state_read: '%s' has %lld bytes, the buffer has %lld",
                   s.name, (long long)ng_field_bytes(&s.field), (long long)bytes);
  }
  if (to == NULL || (uintptr_t)to % (uintptr_t)ng_dtype_size(s.field.dtype) != 0) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "ng_state_read: '%s': the buffer is NULL or not aligned for %s", s.name,
                   ng_dtype_name(s.field.dtype));
  }
  if (p->step->has_begun) {
    return ng_fail(p->ctx, NG_ERR_STATE,
                   "ng_state_read: called between ng_begin and a step, expected between steps");
  }
  if (s.field.slice != NULL) {
    return ng_fail(
        p->ctx, NG_ERR_STATE,
        "ng_state_read: each rank holds a part of '%s'; use ng_save, which gathers the parts",
        s.name);
  }
  if (s.field.data == NULL) {
    return ng_fail(p->ctx, NG_ERR_STATE, "ng_state_read: rank %d does not hold '%s', rank %d does",
                   p->ctx->rank, s.name, s.field.owner);
  }
  const ng_status st = ng_step_check_device(p, "ng_state_read");
  if (st != NG_OK) return st;
  ng_field_export(&s.field, s.field.data, to);
  return NG_OK;
}
