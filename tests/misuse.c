/* misuse.c: see misuse.h. */
#include "misuse.h"
#include "draw.h"
#include "unit_test.h"

#include <stdio.h>
#include <string.h>

const char *misuse_method = "natgrad";

void fill_arrays(misused *f) {
  rng r = {1};
  rng_fill(&r, f->a, B * IN);
  rng_fill(&r, f->g, B * OUT);
  rng_fill(&r, f->dw, OUT * IN);
  rng_fill(&r, f->db, OUT);
  rng_fill(&r, f->w, OUT * IN);
  rng_fill(&r, f->b, OUT);
  rng_fill(&r, f->t, 5);
  rng_fill(&r, f->dt, 5);
}

void create_model(misused *f, const char *set) {
  char options[128];
  memset(f, 0, sizeof *f);
  fill_arrays(f);
  (void)snprintf(options, sizeof options, "method=%s %s", misuse_method, set);
  fixture_ok(&f->f, fixture_open(&f->f, options, NULL));
  f->ctx = f->f.ctx;
  f->p = f->f.p;
  assert_int_equal(ng_add_linear(f->p, "fc", IN, OUT, 1, &f->fc), NG_OK);
  assert_int_equal(ng_add_tensor(f->p, "norm", 5, &f->norm), NG_OK);
}

void bind_all(misused *f) {
  const plane dw = plane_of(f->dw, OUT, IN, NG_F32), db = plane_of(f->db, 1, OUT, NG_F32);
  const plane w = plane_of(f->w, OUT, IN, NG_F32), b = plane_of(f->b, 1, OUT, NG_F32);
  const plane t = plane_of(f->t, 1, 5, NG_F32), dt = plane_of(f->dt, 1, 5, NG_F32);
  fixture_ok(&f->f, fixture_bind(&f->f, f->fc, NG_WEIGHT, &dw, &w));
  fixture_ok(&f->f, fixture_bind(&f->f, f->fc, NG_BIAS, &db, &b));
  fixture_ok(&f->f, fixture_bind(&f->f, f->norm, NG_WEIGHT, &dt, &t));
}

void create_ready(misused *f, const char *set) {
  create_model(f, set);
  bind_all(f);
  assert_int_equal(ng_ready(f->p), NG_OK);
}

ng_status observe_fc(misused *f) {
  const plane a = plane_of(f->a, B, IN, NG_F32), g = plane_of(f->g, B, OUT, NG_F32);
  return fixture_begin_and_observe(&f->f, B, f->fc, &a, &g);
}

void destroy_checked(misused *f) {
  ng_precond_destroy(&f->p);
  assert_null(f->p);
  ng_precond_destroy(&f->p);
  ng_precond_destroy(NULL);
  int64_t bytes = -1, now = 0;
  ng_context_allocated(f->ctx, &now, NULL, NULL);
  ng_context *empty = NULL;
  assert_int_equal(ng_context_create(NG_VERSION, NULL, NULL, 0, &empty), NG_OK);
  ng_context_allocated(empty, &bytes, NULL, NULL);
  assert_int_equal(now, bytes); /* the preconditioner has freed all its memory */
  ng_context_destroy(&empty);
  ng_context_destroy(&f->ctx);
  ng_context_destroy(&f->ctx);
  ng_context_destroy(NULL);
}
