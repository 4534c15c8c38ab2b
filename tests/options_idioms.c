/* options_idioms.c: the ways to create options; header.sh compiles this file as C and as C++. */
#include <natgrad.h>

#ifdef __cplusplus
#define NOTHING nullptr
#else
#define NOTHING NULL
#endif

ng_status create_from_a_line(ng_context *ctx, ng_precond **p);
ng_status create_from_an_object(ng_context *ctx, ng_precond **p, char *why, size_t size);

ng_status create_from_a_line(ng_context *ctx, ng_precond **p) {
  ng_status st = ng_precond_create(ctx, NOTHING, p);
  ng_precond_destroy(p);
  if (st == NG_OK)
    st = ng_precond_create(ctx, "method=eva damping=0.01 skip_layers='fc1, head 2'", p);
  return st;
}

ng_status create_from_an_object(ng_context *ctx, ng_precond **p, char *why, size_t size) {
  ng_options *o = NOTHING, *other = NOTHING;
  char value[64];
  double damping = 0;
  ng_status st = ng_options_create("method=eva", why, size, &o);
  if (st == NG_OK) st = ng_options_from_env(o, why, size);
  if (st == NG_OK) st = ng_options_set(o, "kl-clip", "0.01", why, size);
  if (st == NG_OK) st = ng_options_set_real(o, "damping", 0.01, why, size);
  if (st == NG_OK) st = ng_options_set_line(o, "update=sgd stat_decay=0.9", why, size);
  if (st == NG_OK) st = ng_options_copy(o, &other);
  if (st == NG_OK) st = ng_options_set(other, "method", "kaisa", NOTHING, 0);
  if (st == NG_OK) st = ng_options_get(other, "method", value, sizeof value);
  if (st == NG_OK) st = ng_options_get_real(o, "damping", &damping);
  if (st == NG_OK) st = ng_options_check(o, why, size);
  if (st == NG_OK) st = ng_precond_create_from(ctx, o, p);
  ng_options_destroy(&o);
  ng_options_destroy(&other);
  return damping > 0 ? st : NG_ERR_ARG;
}
