/* tap.c: see tap.h. */
#include "tap.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* A request whose completion calls `after`. */
typedef struct begun {
  void *handle;
  const ng_collective *c;
} begun;

static bool is_failing(tap *p) { return ++p->calls == p->fail_at; }
static ng_status failure(const tap *p) { return p->status != NG_OK ? p->status : NG_ERR_DEVICE; }

static void record_call(tap *p, const ng_collective *c) {
  int64_t n = c->count;
  for (int32_t m = 0; c->counts != NULL && c->group == NULL && m < p->inner.size; m++)
    n += c->counts[m];
  if (n > p->most_elements) p->most_elements = n;
  p->bytes += c->count * ng_dtype_size(c->dtype);
}

static ng_status tap_run(void *user, const ng_collective *c) {
  tap *p = user;
  record_call(p, c);
  const ng_status st = is_failing(p) ? failure(p) : p->inner.run(p->inner.user, c);
  if (st == NG_OK && p->after != NULL) p->after(p, c);
  return st;
}

static ng_status tap_start(void *user, const ng_collective *c, void **request) {
  tap *p = user;
  record_call(p, c);
  if (p->starts < TAP_STARTS) {
    p->count[p->starts] = c->count;
    p->mark_at[p->starts] = p->mark;
  }
  p->starts++;
  if (is_failing(p)) return failure(p);
  if (p->after == NULL) return p->inner.start(p->inner.user, c, request);
  begun *b = malloc(sizeof *b);
  if (b == NULL) return NG_ERR_NOMEM;
  b->c = c;
  *request = b;
  return p->inner.start(p->inner.user, c, &b->handle);
}

static void finish_request(tap *p, void *request) {
  if (p->after == NULL) return;
  p->after(p, ((begun *)request)->c);
  free(request);
}

static void *handle_of(const tap *p, void *request) {
  return p->after == NULL ? request : ((begun *)request)->handle;
}

static ng_status tap_wait(void *user, void *request) {
  tap *p = user;
  if (is_failing(p)) return failure(p);
  const ng_status st = p->inner.wait(p->inner.user, handle_of(p, request));
  if (st == NG_OK) finish_request(p, request);
  return st;
}

static ng_status tap_test(void *user, void *request, int32_t *done) {
  tap *p = user;
  p->tests++;
  if (is_failing(p)) return failure(p);
  const ng_status st = p->inner.test(p->inner.user, handle_of(p, request), done);
  if (st == NG_OK && *done != 0) finish_request(p, request);
  return st;
}

static ng_status late_start(void *user, const ng_collective *c, void **request) {
  memcpy(request, &c, sizeof c);
  return NG_OK;
}

static ng_status late_wait(void *user, void *request) { return tap_run(user, request); }

static ng_status tap_group(void *user, const int32_t *ranks, int32_t n, void **group) {
  tap *p = user;
  return is_failing(p) ? failure(p) : p->inner.group_create(p->inner.user, ranks, n, group);
}

static void tap_ungroup(void *user, void *group) {
  tap *p = user;
  p->inner.group_destroy(p->inner.user, group);
}

static void tap_abort(void *user) {
  tap *p = user;
  p->aborts++;
  p->inner.abort(p->inner.user);
}

ng_transport tap_transport(tap *p, tap_way how) {
  ng_transport t = p->inner;
  const bool starts = how != NO_START && t.start != NULL;
  t.user = p;
  t.run = tap_run;
  t.start = how == LATE ? late_start : starts ? tap_start : NULL;
  t.wait = how == LATE ? late_wait : starts ? tap_wait : NULL;
  t.test = starts && how == WHOLE && t.test != NULL ? tap_test : NULL;
  t.group_create = t.group_create != NULL ? tap_group : NULL;
  t.group_destroy = t.group_destroy != NULL ? tap_ungroup : NULL;
  t.abort = tap_abort;
  return t;
}
