/* t_alloc.c: failed allocations.  Run a small training once for every allocation, with that allocation failing, and
 * once for every seventh k, with all allocations from the k-th on failing.  The call with the failure must return
 * NG_ERR_NOMEM with a message.  Called again it succeeds, and the run ends with the bits of a run without
 * failures.  No memory is left.  Failing allocators: the allocator of the context, and malloc, calloc, realloc and
 * posix_memalign, which the linker wraps. */
#include "unit_test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plane.h"
#include "fixture.h"
#include "folder.h"

#include <stdbool.h>

/* ---- the allocators --------------------------------------------------------------------------*/

static struct {
  bool on;
  _Atomic int64_t calls; /* counted by two threads */
  int64_t fail_at;       /* 0: none */
  bool for_ever;
  /* number of blocks in use; bytes in use from the context's allocator */
  _Atomic int64_t blocks, bytes;
} mem;

static bool is_failing_call(void) {
  const int64_t call = ++mem.calls;
  return mem.fail_at > 0 && (mem.for_ever ? call >= mem.fail_at : call == mem.fail_at);
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *ptr, size_t bytes);
int __real_posix_memalign(void **out, size_t align, size_t bytes);
void __real_free(void *ptr);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *ptr, size_t bytes);
int __wrap_posix_memalign(void **out, size_t align, size_t bytes);
void __wrap_free(void *ptr);

static void *count_block(void *ptr) {
  mem.blocks += ptr != NULL;
  return ptr;
}

void *__wrap_malloc(size_t bytes) {
  if (!mem.on) return __real_malloc(bytes);
  return is_failing_call() ? NULL : count_block(__real_malloc(bytes));
}

void *__wrap_calloc(size_t n, size_t bytes) {
  if (!mem.on) return __real_calloc(n, bytes);
  return is_failing_call() ? NULL : count_block(__real_calloc(n, bytes));
}

void *__wrap_realloc(void *ptr, size_t bytes) {
  if (!mem.on) return __real_realloc(ptr, bytes);
  if (is_failing_call()) return NULL;
  void *more = __real_realloc(ptr, bytes);
  return ptr == NULL ? count_block(more) : more;
}

int __wrap_posix_memalign(void **out, size_t align, size_t bytes) {
  if (mem.on && is_failing_call()) return ENOMEM;
  const int rc = __real_posix_memalign(out, align, bytes);
  if (mem.on && rc == 0) (void)count_block(*out);
  return rc;
}

void __wrap_free(void *ptr) {
  if (mem.on && ptr != NULL) mem.blocks--;
  __real_free(ptr);
}

static void *alloc_counted(void *user, size_t bytes) {
  void *ptr = NULL;
  if (is_failing_call() || __real_posix_memalign(&ptr, 64, bytes) != 0) return NULL;
  /* fill new memory, so that code that expects zeros fails */
  memset(ptr, 0xa5, bytes < 4096 ? bytes : 4096);
  mem.bytes += (int64_t)bytes;
  return count_block(ptr);
}

static void free_counted(void *user, void *ptr, size_t bytes) {
  mem.bytes -= (int64_t)bytes;
  mem.blocks--;
  __real_free(ptr);
}

/* ---- the run, call by call -------------------------------------------------------------------*/

enum { B = 3, IN = 3, OUT = 2, C = 2, H = 3 };

typedef struct run {
  fixture f;
  int32_t fc, conv, norm, threads;
  const char *options;
  float w[OUT * IN + OUT + OUT * C * 4 + 2], dw[OUT * IN + OUT + OUT * C * 4 + 2];
  const char *file;
  char message[256];
  int64_t t;
} run;

static float number_at(int64_t i) { return (float)((i * 31 + 7) % 23 - 11) / 8.0f; }

/* All layers have windows. */
static bool has_only_windows(const run *r) {
  return strstr(r->options, "window=") != NULL && strstr(r->options, "per_layer=") == NULL;
}

static ng_status make_options(run *r) {
  ng_options *o = NULL, *copy = NULL;
  ng_status st = ng_options_create(r->options, r->message, sizeof r->message, &o);
  if (st == NG_OK) {
    st = ng_options_copy(o, &copy);
    if (st != NG_OK)
      (void)snprintf(r->message, sizeof r->message, "no copy"); /* ng_options_copy has no message */
  }
  if ((st == NG_OK) != (copy != NULL)) st = NG_ERR_STATE;
  ng_options_destroy(&o);
  ng_options_destroy(&copy);
  return st;
}

static ng_status make_context(run *r) {
  ng_context_config c;
  ng_context_config_init(&c, sizeof c);
  c.alloc = alloc_counted;
  c.free = free_counted;
  c.threads = r->threads;
  return ng_context_create(NG_VERSION, &c, r->message, sizeof r->message, &r->f.ctx);
}

static ng_status make_precond(run *r) {
  char set[256];
  (void)snprintf(set, sizeof set, "%s update=sgd skip_layers=none", r->options);
  return ng_precond_create(r->f.ctx, set, &r->f.p);
}

static ng_status add_fc(run *r) { return ng_add_linear(r->f.p, "fc", IN, OUT, 1, &r->fc); }

static ng_status add_conv(run *r) {
  ng_layer l = layer_of(NG_CONV2D, "conv", C, OUT);
  l.kernel[0] = l.kernel[1] = 2;
  l.image[0] = l.image[1] = H;
  if (!has_only_windows(r)) l.options = "damping=0.02";
  return ng_add_layer(r->f.p, &l, &r->conv);
}

static ng_status add_tensor(run *r) { return ng_add_tensor(r->f.p, "gamma", 2, &r->norm); }

static ng_status bind_all_entries(run *r) {
  const struct {
    int32_t index;
    ng_param which;
    int64_t rows, cols;
  } slot[4] = {{r->fc, NG_WEIGHT, OUT, IN},
               {r->fc, NG_BIAS, 1, OUT},
               {r->conv, NG_WEIGHT, OUT, C * 4},
               {r->norm, NG_WEIGHT, 1, 2}};
  int64_t at = 0;
  ng_status st = NG_OK;
  for (int i = 0; i < 4 && st == NG_OK; i++) {
    const plane g = plane_of(r->dw + at, slot[i].rows, slot[i].cols, NG_F32);
    const plane w = plane_of(r->w + at, slot[i].rows, slot[i].cols, NG_F32);
    st = fixture_bind(&r->f, slot[i].index, slot[i].which, &g, &w);
    at += slot[i].rows * slot[i].cols;
  }
  return st;
}

static ng_status call_ready(run *r) { return ng_ready(r->f.p); }

static ng_status take_step(run *r) {
  float x[B * C * H * H], g[B * OUT * 4];
  const ng_sgd how = fixture_sgd(0.1, 0.9);
  for (size_t i = 0; i < sizeof x / sizeof x[0]; i++)
    x[i] = number_at((int64_t)i + r->t);
  for (size_t i = 0; i < sizeof g / sizeof g[0]; i++)
    g[i] = number_at((int64_t)i * 5 + r->t);
  for (size_t i = 0; i < sizeof r->dw / sizeof r->dw[0]; i++)
    r->dw[i] = number_at((int64_t)i) + r->w[i];
  const plane a1 = plane_of(x, B, IN, NG_F32), g1 = plane_of(g, B, OUT, NG_F32);
  const plane a2 = plane_images(x, PLANE_NCHW, B, C, H, H, NG_F32);
  const plane g2 = plane_images(g, PLANE_NCHW, B, OUT, 2, 2, NG_F32);
  ng_status st = fixture_begin_and_observe(&r->f, B, r->fc, &a1, &g1);
  if (st == NG_OK) st = fixture_observe(&r->f, r->conv, &a2, &g2);
  if (st == NG_OK) st = fixture_step(&r->f, &how);
  if (st >= NG_OK) r->t++;
  return st;
}

/* An image that is larger than declared: the observing call allocates scratch.  After a failure the image is not in the
 * sum, so calling again is not a second observation. */
static ng_status observe_larger_image(run *r) {
  enum { SIDE = 41 };
  static float x[C * SIDE * SIDE];
  for (size_t i = 0; i < sizeof x / sizeof x[0]; i++)
    x[i] = number_at((int64_t)i * 3);
  const plane a = plane_images(x, PLANE_NCHW, 1, C, SIDE, SIDE, NG_F32);
  const ng_status st = fixture_begin(&r->f, 1);
  return st == NG_OK ? plane_observe_input(r->f.p, r->conv, &a, NG_COPY) : st;
}

/* A window has no averages and one block, so layers cannot have their own options. */
static ng_status set_live_option(run *r) {
  return has_only_windows(r) ? ng_set(r->f.p, "damping", "0.8")
                             : ng_set(r->f.p, "stat_decay", "0.8");
}
static ng_status save_to_file(run *r) { return ng_save(r->f.p, r->file); }
static ng_status load_from_file(run *r) { return ng_load(r->f.p, r->file); }

/* Not an allocation. */
static char kept[1 << 16];
static int64_t kept_bytes, kept_read;

static int32_t write_to_memory(void *user, const void *data, int64_t bytes) {
  if (bytes > (int64_t)sizeof kept - kept_bytes) return 1;
  memcpy(kept + kept_bytes, data, (size_t)bytes);
  kept_bytes += bytes;
  return 0;
}

static int64_t read_from_memory(void *user, void *data, int64_t bytes) {
  if (bytes > kept_bytes - kept_read) bytes = kept_bytes - kept_read;
  memcpy(data, kept + kept_read, (size_t)bytes);
  kept_read += bytes;
  return bytes;
}

static ng_status save_to_memory(run *r) {
  kept_bytes = 0;
  return ng_save_to(r->f.p, write_to_memory, NULL);
}

static ng_status load_from_memory(run *r) {
  kept_read = 0;
  return ng_load_from(r->f.p, read_from_memory, NULL);
}

static ng_status read_manifest(run *r) {
  const int64_t n = ng_state_manifest(r->f.p, NULL, 0);
  return n > 0 ? NG_OK : (ng_status)n;
}

static const struct {
  const char *name;
  ng_status (*call)(run *r);
} calls[] = {
    {"ng_options_create", make_options},
    {"ng_context_create", make_context},
    {"ng_precond_create", make_precond},
    {"ng_add_linear", add_fc},
    {"ng_add_layer", add_conv},
    {"ng_add_tensor", add_tensor},
    {"ng_bind", bind_all_entries},
    {"ng_ready", call_ready},
    {"a step", take_step},
    {"a larger image", observe_larger_image},
    {"a step", take_step},
    {"ng_set", set_live_option},
    {"ng_save", save_to_file},
    {"a step", take_step},
    {"ng_save", save_to_file},
    {"ng_load", load_from_file},
    {"a step", take_step},
    {"ng_state_manifest", read_manifest},
    {"ng_save_to", save_to_memory},
    {"a step", take_step},
    {"ng_load_from", load_from_memory},
    {"a step", take_step},
};
enum { CALLS = sizeof calls / sizeof calls[0] };

static void start_run(run *r, const char *options, int32_t threads, const char *file) {
  memset(r, 0, sizeof *r);
  r->options = options;
  r->threads = threads;
  r->file = file;
  for (size_t i = 0; i < sizeof r->w / sizeof r->w[0]; i++)
    r->w[i] = number_at((int64_t)i + 3);
  mem.calls = mem.blocks = mem.bytes = 0;
  mem.on = true;
}

static void stop_run(run *r) {
  fixture_close(&r->f);
  mem.on = false;
}

/* Make all calls, a failing call up to `tries` times.  Return the number of failures; `stuck`: a call failed every
 * time. */
static int make_calls(run *r, int tries, bool *stuck, const char **where) {
  int met = 0;
  *stuck = false;
  *where = "";
  for (int i = 0; i < CALLS && !*stuck; i++) {
    ng_status st = NG_OK;
    for (int k = 0; k < tries; k++) {
      r->message[0] = 0;
      st = calls[i].call(r);
      if (st >= NG_OK) break;
      const char *why = r->f.ctx == NULL ? r->message : ng_last_error(r->f.ctx);
      if (st != NG_ERR_NOMEM || why[0] == 0) {
        mem.on = false;
        fail_msg("%s: %s \"%s\" at allocation %d", calls[i].name, ng_status_name(st), why,
                 (int)mem.fail_at);
      }
      met++;
      *where = calls[i].name;
    }
    *stuck = st < NG_OK;
  }
  return met;
}

static void fail_each_allocation(const char *options, int32_t threads) {
  const char *file = in_folder("state"), *part = in_folder("state.natgrad-part");
  run r;
  bool stuck;
  const char *where;
  float expected[sizeof r.w / sizeof r.w[0]];
  mem.fail_at = 0;
  start_run(&r, options, threads, file);
  assert_int_equal(make_calls(&r, 1, &stuck, &where), 0);
  stop_run(&r);
  assert_int_equal(mem.blocks, 0);
  assert_int_equal(mem.bytes, 0);
  memcpy(expected, r.w, sizeof expected);
  const int64_t total = mem.calls;
  assert_true(total > 40);
  int64_t in_save_load = 0;
  for (int64_t k = 1; k <= total; k++) {
    mem.fail_at = k;
    mem.for_ever = false;
    start_run(&r, options, threads, file);
    const int met = make_calls(&r, 2, &stuck, &where);
    stop_run(&r);
    if (met != 1 || stuck)
      fail_msg("allocation %d of %d: %d calls failed", (int)k, (int)total, met);
    if (memcmp(expected, r.w, sizeof expected) != 0) {
      fail_msg("allocation %d failed in %s: the weights differ", (int)k, where);
    }
    if (mem.blocks != 0 || mem.bytes != 0) {
      fail_msg("allocation %d failed in %s: %d blocks left", (int)k, where, (int)mem.blocks);
    }
    if (access(part, F_OK) == 0)
      fail_msg("allocation %d failed in %s: %s left", (int)k, where, part);
    in_save_load += strcmp(where, "ng_save") == 0 || strcmp(where, "ng_load") == 0;

    if (k % 7 != 0) continue;
    mem.for_ever = true;
    start_run(&r, options, threads, file);
    (void)make_calls(&r, 2, &stuck, &where);
    stop_run(&r);
    if (!stuck) fail_msg("allocation %d and all after it failed: no call failed", (int)k);
    if (mem.blocks != 0 || mem.bytes != 0) {
      fail_msg("from allocation %d on, in %s: %d blocks left", (int)k, where, (int)mem.blocks);
    }
  }
  mem.fail_at = 0;
  assert_true(in_save_load > 20);
  printf("allocations: %s threads = %d failed one by one = %d\n", options, threads, (int)total);
  assert_int_equal(unlink(file), 0);
}

/* Windows: every store, with momentum, a mask and groups. */
static void failed_allocations_leave_no_trace(void **state) {
  static const char *const options[] = {
      "solver=cholesky",
      "solver=eigen damping_split=joint",
      "method=eva",
      "method=mfac window=3 window_momentum=0.5 window_mask=1 window_scope=group",
      "method=ggt window=3 window_momentum=0.5 window_dtype=bf16",
      "method=efcp window=3 window_density=0.3 window_store=topk-layer window_fill=error "
      "window_empty=0.5",
      "damping=0.1 per_layer='fc*,*gamma*: method=mfac window=3 window_momentum=0.5'",
      "method=lowrank-mfac window=3 window_rank=2",
      "method=topk-adam window=1 window_density=0.3"};
  for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
    fail_each_allocation(options[i], 1);
  fail_each_allocation("solver=cholesky", 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(failed_allocations_leave_no_trace)};
  return cmocka_run_group_tests(tests, make_folder, remove_empty_folder);
}
