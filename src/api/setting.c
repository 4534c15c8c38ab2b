/* setting.c: the public functions about options that need the families (ng_options_check, ng_method_at) or a model
 * (ng_set, ng_get). */
#include "step/step.h"

ng_status ng_options_check(const ng_options *o, char *message, size_t size) {
  if (o == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "ng_options: it is NULL");
  return ng_family_check(o, message, size);
}

ng_status ng_method_at(int32_t i, ng_method_info *out) {
  ng_method_info info;
  if (out == NULL || !ng_method_describe(i, &info)) return NG_ERR_ARG;
  const ng_family *f = ng_family_find(info.family);
  const uint32_t traits = f != NULL ? f->traits : 0;
  for (uint32_t t = 1, n = 0; t <= traits; t *= 2) {
    if ((traits & t) == 0) continue;
    n += (uint32_t)snprintf(info.traits + n, sizeof info.traits - n, "%s%s", n > 0 ? ", " : "",
                            ng_trait_text(t));
  }
  return ng_struct_write(out, &info, sizeof info);
}

/* ---- options of a model ----------------------------------------------------------------------*/

ng_status ng_set(ng_precond *p, const char *name, const char *value) {
  const ng_status st = ng_precond_enter(p);
  if (st != NG_OK) return st;
  if (name == NULL || value == NULL) {
    return ng_fail(p->ctx, NG_ERR_ARG, "ng_set: %s is NULL", name == NULL ? "option" : "value");
  }
  return ng_step_set(p, name, value);
}

ng_status ng_set_real(ng_precond *p, const char *name, double value) {
  char text[64];
  (void)snprintf(text, sizeof text, "%.17g", value); /* reads back as the same double */
  return ng_set(p, name, text);
}

ng_status ng_get(const ng_precond *p, const char *name, char *value, size_t size) {
  const ng_status st = ng_precond_enter(p);
  if (st != NG_OK) return st;
  if (name == NULL || value == NULL || size == 0) {
    return ng_fail(p->ctx, NG_ERR_ARG, "ng_get: %s",
                   name == NULL ? "option is NULL" : "the buffer is NULL or empty");
  }
  char message[NG_MESSAGE] = "";
  const ng_option_row *row = NULL;
  if (!ng_is(name, "method") && ng_option_lookup(name, &row, message, sizeof message) != NG_OK) {
    return ng_fail(p->ctx, NG_ERR_ARG, "ng_get: %s", message);
  }
  if (ng_options_get(&p->opt, name, value, size) == NG_OK) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_ARG, "ng_get: the value of '%s' does not fit %zu bytes", name,
                 size);
}
