/* fixture.c: see fixture.h. */
#include "fixture.h"
#include "late.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- open, close -----------------------------------------------------------------------------*/

static ng_status note_failure(fixture *f, ng_status st) {
  if (st != NG_OK && f->ctx != NULL) {
    (void)snprintf(f->message, sizeof f->message, "%s", ng_last_error(f->ctx));
  }
  return st;
}

static ng_status create_context(fixture *f, const fixture_how *how) {
  ng_context_config c;
  ng_context_config_init(&c, sizeof c);
  if (how != NULL) {
    if (how->config != NULL) c = *how->config;
    if (how->linalg != NULL) c.linalg = how->linalg;
    if (how->threads > 0) c.threads = how->threads;
    if (how->transport != NULL) c.transport = how->transport;
  }
  const ng_backend *const own[] = {how == NULL ? NULL : how->backend, NULL};
  if (own[0] != NULL) c.linalg = own[0]->name;
  return ng_context_create_with(own[0] == NULL ? more_backends : own, NG_VERSION, &c, f->message,
                                sizeof f->message, &f->ctx);
}

ng_status fixture_open_options(fixture *f, const ng_options *o, const fixture_how *how) {
  memset(f, 0, sizeof *f);
  ng_status st = create_context(f, how);
  return st == NG_OK ? note_failure(f, ng_precond_create_from(f->ctx, o, &f->p)) : st;
}

ng_status fixture_open(fixture *f, const char *options, const fixture_how *how) {
  ng_options o;
  char text[1024], *line = text;
  memset(f, 0, sizeof *f);
  ng_options_set_defaults(&o);
  if ((size_t)snprintf(text, sizeof text, "%s", options) >= sizeof text) return NG_ERR_ARG;
  for (bool more = true; more;) {
    char *end = line;
    for (bool quoted = false; *end != 0 && (quoted || *end != ';'); end++) {
      quoted ^= *end == '\'';
    }
    more = *end != 0;
    *end = 0;
    const ng_status st = ng_options_set_line(&o, line, f->message, sizeof f->message);
    if (st != NG_OK) return st;
    line = end + 1;
  }
  return fixture_open_options(f, &o, how);
}

const char *fixture_message(const fixture *f) {
  return f->ctx == NULL ? f->message : ng_last_error(f->ctx);
}

void fixture_close(fixture *f) {
  ng_precond_destroy(&f->p);
  ng_context_destroy(&f->ctx);
}

/* ---- model -----------------------------------------------------------------------------------*/

ng_status fixture_bind(fixture *f, int32_t index, ng_param which, const plane *grad,
                       const plane *weight) {
  ng_status st = NG_OK;
  if (grad != NULL && grad->data != NULL) st = plane_bind_grad(f->p, index, which, grad);
  if (st == NG_OK && weight != NULL && weight->data != NULL) {
    st = plane_bind_weight(f->p, index, which, weight);
  }
  return note_failure(f, st);
}

ng_status fixture_add_linear(fixture *f, const char *name, const plane grad[2],
                             const plane weight[2]) {
  int32_t index = -1;
  const int32_t bias = grad[NG_BIAS].rows > 0;
  ng_status st = note_failure(
      f, ng_add_linear(f->p, name, grad[NG_WEIGHT].cols, grad[NG_WEIGHT].rows, bias, &index));
  for (int k = 0; k < 1 + bias && st == NG_OK; k++) {
    st = fixture_bind(f, index, (ng_param)k, &grad[k], weight == NULL ? NULL : &weight[k]);
  }
  return st;
}

ng_status fixture_add_tensor(fixture *f, const char *name, const plane *grad, const plane *weight) {
  int32_t index = -1;
  ng_status st = note_failure(f, ng_add_tensor(f->p, name, grad->rows * grad->cols, &index));
  return st == NG_OK ? fixture_bind(f, index, NG_WEIGHT, grad, weight) : st;
}

/* ---- observe, step ---------------------------------------------------------------------------*/

ng_status fixture_add_entries(fixture *f, const fixture_entry *e, int32_t n, float *g, float *w) {
  ng_status st = NG_OK;
  for (int32_t i = 0; i < n && st == NG_OK; i++) {
    const int64_t size = e[i].rows * e[i].cols;
    plane grad[2] = {plane_of(g, e[i].rows, e[i].cols, NG_F32)};
    plane weight[2] = {plane_of(w, e[i].rows, e[i].cols, NG_F32)};
    if (e[i].bias) {
      grad[1] = plane_of(g + size, 1, e[i].rows, NG_F32);
      weight[1] = plane_of(w + size, 1, e[i].rows, NG_F32);
    }
    st = e[i].rows == 1 && !e[i].bias ? fixture_add_tensor(f, e[i].name, &grad[0], &weight[0])
                                      : fixture_add_linear(f, e[i].name, grad, weight);
    g += size + (e[i].bias ? e[i].rows : 0);
    w += size + (e[i].bias ? e[i].rows : 0);
  }
  return st;
}

ng_layer layer_of(ng_kind kind, const char *name, int64_t in, int64_t out) {
  ng_layer l;
  ng_layer_init(&l, kind, sizeof l);
  l.name = name;
  l.in = in;
  l.out = out;
  return l;
}

ng_batch batch_of(int64_t samples) {
  ng_batch b;
  ng_batch_init(&b, sizeof b);
  b.samples = samples;
  return b;
}

ng_status fixture_begin_last(fixture *f, int64_t samples, int32_t last) {
  ng_batch b = batch_of(samples);
  b.last = last;
  return note_failure(f, ng_begin(f->p, &b));
}

ng_status fixture_begin(fixture *f, int64_t samples) { return fixture_begin_last(f, samples, 0); }

ng_status fixture_observe(fixture *f, int32_t index, const plane *a, const plane *g) {
  ng_status st = a == NULL ? NG_OK : note_failure(f, plane_observe_input(f->p, index, a, NG_COPY));
  if (st >= NG_OK && g != NULL) {
    const ng_status second = note_failure(f, plane_observe_output_grad(f->p, index, g, NG_COPY));
    if (second != NG_OK) st = second;
  }
  return st;
}

ng_status fixture_begin_and_observe(fixture *f, int64_t samples, int32_t index, const plane *a,
                                    const plane *g) {
  const ng_status st = fixture_begin(f, samples);
  return st == NG_OK ? fixture_observe(f, index, a, g) : st;
}

ng_sgd fixture_sgd(double lr, double momentum) {
  ng_sgd s;
  ng_sgd_init(&s, sizeof s);
  s.lr = lr;
  s.momentum = momentum;
  return s;
}

ng_status fixture_step(fixture *f, const ng_sgd *how) {
  char update[32] = "";
  ng_status st = ng_get(f->p, "update", update, sizeof update);
  if (st == NG_OK && strcmp(update, "adamw") == 0) {
    ng_adamw a;
    ng_adamw_init(&a, sizeof a);
    a.lr = how->lr;
    return note_failure(f, ng_step_adamw(f->p, &a, 1));
  }
  if (st != NG_OK) return note_failure(f, st);
  return note_failure(f, strcmp(update, "sgd") == 0 ? ng_step_sgd(f->p, how, 1)
                                                    : ng_step(f->p, how->lr));
}

static void *allocator_alloc(void *user, size_t bytes) {
  allocator *p = user;
  if (++p->calls == p->fail_at || (p->largest > 0 && bytes > (size_t)p->largest)) return NULL;
  if (p->room > 0 && bytes > (size_t)(p->room - p->held)) return NULL;
  p->held += (int64_t)bytes;
  if (p->held > p->most) p->most = p->held;
  return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void allocator_free(void *user, void *ptr, size_t bytes) {
  ((allocator *)user)->held -= (int64_t)bytes;
  free(ptr);
}

ng_context_config allocator_config(allocator *p) {
  ng_context_config c;
  ng_context_config_init(&c, sizeof c);
  c.alloc = allocator_alloc;
  c.free = allocator_free;
  c.alloc_user = p;
  return c;
}

/* ---- main thread only ------------------------------------------------------------------------*/

void fixture_ok(const fixture *f, ng_status st) {
  if (st != NG_OK) {
    fail_msg("%s: %s", ng_status_name(st), fixture_message(f));
  }
}

void fixture_fails(const fixture *f, ng_status st, ng_status want, const char *text) {
  const char *message = ng_last_error(f->ctx);
  if (st != want || strstr(message, text) == NULL)
    fail_msg("%s: '%s', expected %s: '%s'", ng_status_name(st), message, ng_status_name(want),
             text);
}

ng_report fixture_report(const fixture *f) {
  ng_report r = {.struct_size = sizeof r};
  fixture_ok(f, ng_report_read(f->p, &r));
  return r;
}

ng_layer_report fixture_layer_report(const fixture *f, int32_t layer) {
  ng_layer_report r = {.struct_size = sizeof r};
  fixture_ok(f, ng_report_layer(f->p, layer, &r));
  return r;
}

void fixture_set(ng_options *o, const char *name, const char *value) {
  char message[256];
  if (ng_options_set(o, name, value, message, sizeof message) != NG_OK) {
    fail_msg("%s = %s: %s", name, value, message);
  }
}

void fixture_set_real(ng_options *o, const char *name, double value) {
  char message[256];
  if (ng_options_set_real(o, name, value, message, sizeof message) != NG_OK) {
    fail_msg("%s = %g: %s", name, value, message);
  }
}

ng_options fixture_parse_options(const char *line) {
  ng_options o;
  char message[256] = "";
  ng_options_set_defaults(&o);
  if (ng_options_set_line(&o, line, message, sizeof message) != NG_OK) {
    fail_msg("%s: %s", line, message);
  }
  return o;
}

void fixture_expect_near(const char *what, const double *x, const double *want, int64_t n,
                         double tolerance) {
  double most = 0.0, off = 0.0;
  for (int64_t i = 0; i < n; i++) {
    most = fmax(most, fabs(want[i]));
    off = fmax(off, isfinite(x[i]) ? fabs(x[i] - want[i]) : INFINITY);
  }
  if (off > tolerance * most) fail_msg("%s: off by %g of %g", what, off, most);
}
