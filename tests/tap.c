/* tap.c: see tap.h. */
#include "tap.h"

#include <stdbool.h>

static bool fails(tap *p) { return ++p->calls == p->fail_at; }

static ng_status tap_run(void *user, const ng_collective *c) {
  tap *p = user;
  return fails(p) ? NG_ERR_DEVICE : p->inner.run(p->inner.user, c);
}

static ng_status tap_start(void *user, const ng_collective *c, void **request) {
  tap *p = user;
  if (p->starts < TAP_STARTS) {
    p->count[p->starts] = c->count;
    p->when[p->starts] = p->shown;
  }
  p->starts++;
  return fails(p) ? NG_ERR_DEVICE : p->inner.start(p->inner.user, c, request);
}

static ng_status tap_wait(void *user, void *request) {
  tap *p = user;
  return fails(p) ? NG_ERR_DEVICE : p->inner.wait(p->inner.user, request);
}

static ng_status tap_test(void *user, void *request, int32_t *done) {
  tap *p = user;
  p->tests++;
  return fails(p) ? NG_ERR_DEVICE : p->inner.test(p->inner.user, request, done);
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
