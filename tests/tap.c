/* tap.c: see tap.h. */
#include "tap.h"

#include <stdbool.h>
#include <stdlib.h>

/* A request that `after` wants to know of. */
typedef struct begun {
  void *handle;
  const ng_collective *c;
} begun;

static bool fails(tap *p) { return ++p->calls == p->fail_at; }

static ng_status tap_run(void *user, const ng_collective *c) {
  tap *p = user;
  const ng_status st = fails(p) ? NG_ERR_DEVICE : p->inner.run(p->inner.user, c);
  if (st == NG_OK && p->after != NULL) p->after(p, c);
  return st;
}

static ng_status tap_start(void *user, const ng_collective *c, void **request) {
  tap *p = user;
  if (p->starts < TAP_STARTS) {
    p->count[p->starts] = c->count;
    p->when[p->starts] = p->shown;
  }
  p->starts++;
  if (fails(p)) return NG_ERR_DEVICE;
  if (p->after == NULL) return p->inner.start(p->inner.user, c, request);
  begun *b = malloc(sizeof *b);
  if (b == NULL) return NG_ERR_NOMEM;
  b->c = c;
  *request = b;
  return p->inner.start(p->inner.user, c, &b->handle);
}

static void ended(tap *p, void *request) {
  if (p->after == NULL) return;
  p->after(p, ((begun *)request)->c);
  free(request);
}

static void *handle_of(const tap *p, void *request) {
  return p->after == NULL ? request : ((begun *)request)->handle;
}

static ng_status tap_wait(void *user, void *request) {
  tap *p = user;
  if (fails(p)) return NG_ERR_DEVICE;
  const ng_status st = p->inner.wait(p->inner.user, handle_of(p, request));
  if (st == NG_OK) ended(p, request);
  return st;
}

static ng_status tap_test(void *user, void *request, int32_t *done) {
  tap *p = user;
  p->tests++;
  if (fails(p)) return NG_ERR_DEVICE;
  const ng_status st = p->inner.test(p->inner.user, handle_of(p, request), done);
  if (st == NG_OK && *done != 0) ended(p, request);
  return st;
}

static ng_status tap_group(void *user, const int32_t *ranks, int32_t n, void **group) {
  tap *p = user;
  return p->inner.group_create(p->inner.user, ranks, n, group);
}

static void tap_ungroup(void *user, void *group) {
  tap *p = user;
  p->inner.group_destroy(p->inner.user, group);
}

static void tap_abort(void *user) { ((tap *)user)->inner.abort(((tap *)user)->inner.user); }

ng_transport tapped(tap *p, tap_way how) {
  ng_transport t = p->inner;
  t.user = p;
  t.run = tap_run;
  t.start = how == NO_START ? NULL : tap_start;
  t.wait = how == NO_START ? NULL : tap_wait;
  t.test = how == WHOLE ? tap_test : NULL;
  t.group_create = tap_group;
  t.group_destroy = tap_ungroup;
  t.abort = tap_abort;
  return t;
}
