/* skip.c: layers that keep their gradient because an option says so.
 *
 * In: skip_layers, exclude_width, the description of a layer.  Out: which of the two leaves it out.  The
 * engine asks here for every layer at ng_ready, a program through ng_options_skip beforehand, when no
 * memory has been taken yet. */
#include "option/pattern.h"

/* A limit that an expression breaks is named: whoever wrote it must know what to make smaller. */
ng_status ng_skip_open(const char *pattern, int64_t width, ng_skip *out, char *message,
                       size_t size) {
  const char *why = "";
  out->width = width;
  out->pattern = NULL;
  if (pattern[0] == 0) return NG_OK;
  const ng_status st = ng_pattern_make(pattern, &out->pattern, &why);
  if (st == NG_OK) return NG_OK;
  if (st == NG_ERR_NOMEM) return ng_fail_to(message, size, st, "skip_layers: no memory");
  if (why[0] != 0) {
    return ng_fail_to(message, size, st, "skip_layers: '%s' %s", ng_quote(pattern).text, why);
  }
  return ng_fail_to(message, size, st,
                    "skip_layers: '%s' is not a POSIX extended regular expression",
                    ng_quote(pattern).text);
}

void ng_skip_close(ng_skip *s) { ng_pattern_free(&s->pattern); }

/* Kinds are spelt as here and as in PyTorch: KAISA's skip list has class names, and an expression
 * copied from it should skip the same layers.  A kind that is not supported yet has no name. */
bool ng_pattern_finds(ng_pattern *pattern, const ng_layer *l) {
  static const char *const kind[][2] = {[NG_LINEAR] = {"linear", "Linear"},
                                        [NG_CONV2D] = {"conv2d", "Conv2d"},
                                        [NG_NORM] = {"norm", "Norm"},
                                        [NG_EMBEDDING] = {"embedding", "Embedding"}};
  bool found = ng_pattern_found(pattern, l->name);
  for (int i = 0; i < 2 && l->kind >= NG_LINEAR && l->kind <= NG_EMBEDDING; i++) {
    found = found || ng_pattern_found(pattern, kind[l->kind][i]);
  }
  return found;
}

/* A layer that both leave out is the expression's. */
ng_option_id ng_skip_by(const ng_skip *s, const ng_layer *l) {
  if (s->pattern != NULL && ng_pattern_finds(s->pattern, l)) return NG_OPTION_skip_layers;
  const bool wide = s->width > 0 && l->kind == NG_LINEAR && l->out == s->width;
  return wide ? NG_OPTION_exclude_width : NG_OPTION_COUNT;
}

/* No family has a say in it; of the layer what stands before `bias` must be
 * there: name, kind and widths. */
ng_status ng_options_skip(const ng_options *o, const ng_layer *layer, const char **option,
                          char *message, size_t message_size) {
  ng_layer l;
  ng_skip skip;
  if (o == NULL || option == NULL || layer == NULL) {
    return ng_fail_to(message, message_size, NG_ERR_ARG, "ng_options_skip: %s is NULL",
                      o == NULL       ? "the object"
                      : layer == NULL ? "layer"
                                      : "option");
  }
  *option = "";
  memset(&l, 0, sizeof l);
  ng_status st = ng_take_struct(&l, sizeof l, layer, offsetof(ng_layer, bias), "ng_layer", message,
                                message_size);
  if (st == NG_OK && l.name == NULL) {
    st = ng_fail_to(message, message_size, NG_ERR_ARG, "ng_options_skip: the layer has no name");
  }
  if (st == NG_OK) {
    st = ng_skip_open(o->skip_layers, o->exclude_width, &skip, message, message_size);
  }
  if (st != NG_OK) return st;
  const ng_option_id by = ng_skip_by(&skip, &l);
  if (by != NG_OPTION_COUNT) *option = ng_option_name(by);
  ng_skip_close(&skip);
  return NG_OK;
}
