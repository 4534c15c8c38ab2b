/* standin_desk.c: the operations of cuda/desk.h by the stand-in.
 *
 * Copies and launches are noted, and run at dv_wait, so the host reads old numbers without a wait. Every allocation has pages of
 * its own, which the host cannot access:
 *   - memory of the device: an access of the host ends the process
 *   - managed memory: an access of the host is counted, and the memory is open to the host until the next launch
 *   - behind each allocation and in freed memory: an access of a kernel fails the launch by name
 * The begin of new memory is filled with NaN. Memory of the host (dv_alloc_host) and of tests is always open.
 *
 * Desks of one stream of the caller share its work. A wait runs the work of its stream; by turns before all work of other streams, after
 * it, and alternating with it, because nothing orders streams. */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "desk.h"
#include "standin.h"

enum { PAGE = 4096, POISON = 1 << 17 };

typedef enum memory_kind { ON_DEVICE, MANAGED, ON_HOST } memory_kind;
typedef struct range {
  struct range *next;
  const dv_desk *desk;
  char *map, *at;
  size_t bytes; /* size of the mapping, without the protected page behind it */
  memory_kind kind;
  bool is_open; /* the host can access the memory */
  bool is_lent; /* work has accessed the memory, which is open until the work ends */
} range;

typedef struct work {
  struct work *next;
  dv_desk *desk;
  int32_t kernel, threads; /* kernel < 0: a call, a copy, or without `from` zeros */
  int64_t blocks;
  _Alignas(8) char arg[STANDIN_ARG_BYTES];
  void (*call)(const void *args); /* function and arguments; the arguments are in `copy` */
  char *to, *copy;
  const char *from;
  size_t bytes;
} work;

typedef struct stream {
  struct stream *next;
  void *handle; /* of the caller; NULL: the stream of one desk */
  int32_t desks;
  work *first, **end;
  char error[200]; /* of work that the wait of another stream has run; "": none */
} stream;

struct dv_desk {
  stream *stream;
  bool is_capturing;
  /* NG_STANDIN_NOW is set: work runs at the call, because a test with arrays of the host frees an array after the call. */
  bool runs_now;
  standin_counts counts;
  standin_failure failure;
  int64_t until_failure;
};

/* Ranges and the fibers of standin.c are shared by all desks, whose threads may be different. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static range *ranges;
static stream *streams; /* of callers */
static int64_t waits;   /* of all desks; decides the order of streams */
static struct sigaction before;
static _Thread_local standin_place
    *kernel_fault; /* where a launch ends after a fault; NULL: no launch runs */

/* ---- faults ----------------------------------------------------------------------------------*/

static void protect(const range *r, bool open) {
  if (mprotect(r->map, r->bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) abort();
}

static range *find_range(const void *at) {
  for (range *r = ranges; r != NULL; r = r->next) {
    if ((uintptr_t)at - (uintptr_t)r->map < r->bytes) return r;
  }
  return NULL;
}

static void end_process(const char *text) {
  (void)!write(STDERR_FILENO, text, strlen(text));
  _exit(STANDIN_FAULT);
}

static void on_fault(int number, siginfo_t *info, void *context) {
  (void)number, (void)context;
  if (kernel_fault != NULL) { /* run_all has locked the mutex */
    range *of_work = find_range(info->si_addr);
    if (of_work == NULL || of_work->is_open || of_work->is_lent) STANDIN_JUMP(*kernel_fault);
    of_work->is_lent = true;
    protect(of_work, true);
    return;
  }
  (void)pthread_mutex_lock(&mutex);
  range *r = find_range(info->si_addr);
  if (r == NULL) {
    (void)sigaction(SIGSEGV, &before, NULL); /* the access faults again */
  } else if (r->kind == ON_DEVICE) {
    end_process("stand-in: the host accesses memory of the device\n");
  } else if (!r->is_open) {
    ((dv_desk *)(uintptr_t)r->desk)->counts.migrations++;
    r->is_open = true;
    protect(r, true);
  }
  (void)pthread_mutex_unlock(&mutex);
}

/* cmocka sets its own handler before each test, so every open and every wait set this one again. */
static void catch_faults(void) {
  struct sigaction old, act = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
  if (sigaction(SIGSEGV, &act, &old) != 0) abort();
  if (old.sa_sigaction != on_fault) before = old;
}

/* ---- memory ----------------------------------------------------------------------------------*/

static bool fails_now(dv_desk *d, standin_failure what) {
  return d->failure == what && d->until_failure-- == 0;
}

void standin_fail(dv_desk *d, standin_failure what, int64_t after) {
  d->failure = what;
  d->until_failure = after;
}
standin_counts standin_count(const dv_desk *d) { return d->counts; }

static const char *allocate(dv_desk *d, size_t bytes, memory_kind kind, void **out) {
  const size_t wide = (bytes + PAGE - 1) / PAGE * PAGE;
  *out = NULL;
  if (d->is_capturing) return "an allocation in a capture";
  range *r = fails_now(d, STANDIN_ALLOCATION) ? NULL : calloc(1, sizeof *r);
  char *map = r == NULL ? MAP_FAILED
                        : mmap(NULL, wide + PAGE, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) {
    free(r);
    return "out of memory";
  }
  if (mprotect(map + wide, PAGE, PROT_NONE) != 0) abort();
  *r = (range){.desk = d, .map = map, .bytes = wide, .kind = kind, .is_open = kind != ON_DEVICE};
  r->at = map + (wide - (bytes + 255) / 256 * 256); /* the end is near the closed page */
  memset(r->at, 0xff, bytes < POISON ? bytes : POISON);
  if (!r->is_open) protect(r, false);
  (void)pthread_mutex_lock(&mutex);
  r->next = ranges;
  ranges = r;
  (void)pthread_mutex_unlock(&mutex);
  *out = r->at;
  return NULL;
}
const char *dv_alloc(dv_desk *d, size_t bytes, void **out) {
  d->counts.device_blocks++;
  return allocate(d, bytes, ON_DEVICE, out);
}
const char *dv_alloc_host(dv_desk *d, size_t bytes, void **out) {
  return allocate(d, bytes, ON_HOST, out);
}
const char *dv_alloc_managed(dv_desk *d, size_t bytes, void **out) {
  return allocate(d, bytes, MANAGED, out);
}

void dv_free(dv_desk *d, void *at) {
  (void)d;
  (void)pthread_mutex_lock(&mutex);
  range **r = &ranges;
  while (*r != NULL && (*r)->at != at) {
    r = &(*r)->next;
  }
  range *found = *r;
  if (found != NULL) {
    *r = found->next;
    if (munmap(found->map, found->bytes + PAGE) != 0) abort();
  }
  (void)pthread_mutex_unlock(&mutex);
  free(found);
}
void dv_free_host(dv_desk *d, void *at) { dv_free(d, at); }
const char *dv_register_host(dv_desk *d, void *at, size_t bytes) {
  (void)d, (void)at, (void)bytes;
  return NULL;
}

static bool has_kind(const void *at, memory_kind kind) {
  (void)pthread_mutex_lock(&mutex);
  const range *r = at == NULL ? NULL : find_range(at);
  const bool has = r != NULL && r->kind == kind;
  (void)pthread_mutex_unlock(&mutex);
  return has;
}
bool dv_can_access(dv_desk *d, const void *at) {
  (void)d, (void)at;
  return true; /* also true for memory that a test has allocated itself */
}
bool dv_is_shared(dv_desk *d, const void *at) {
  (void)d;
  return !has_kind(at, ON_DEVICE);
}

/* ---- work ------------------------------------------------------------------------------------*/

static const char *run_all(dv_desk *d, const char *error);

/* Append work. The host can no longer access managed memory of this desk. */
static const char *note(dv_desk *d, const work *w) {
  work *copy = malloc(sizeof *copy);
  if (copy == NULL) return "out of memory";
  *copy = *w;
  copy->next = NULL;
  copy->desk = d;
  (void)pthread_mutex_lock(&mutex);
  for (range *r = ranges; r != NULL; r = r->next) {
    if (r->desk != d || r->kind != MANAGED || !r->is_open) continue;
    r->is_open = false;
    protect(r, false);
  }
  stream *s = d->stream;
  if (s->first == NULL) s->end = &s->first;
  *s->end = copy;
  s->end = &copy->next;
  (void)pthread_mutex_unlock(&mutex);
  return d->runs_now ? run_all(d, NULL) : NULL;
}

STANDIN_JUMPS static const char *run_work(work *w) {
  static char text[200];
  dv_desk *d = w->desk;
  standin_place here;
  const char *error = NULL;
  void *args[STANDIN_MOST_ARGS];
  if (w->kernel >= 0) standin_place_args(w->kernel, w->arg, args);
  kernel_fault = &here;
  if (STANDIN_SET(here) != 0) {
    (void)snprintf(text, sizeof text, "%s, block %lld: an access outside of all memory",
                   w->kernel >= 0    ? standin_kernel_name(w->kernel)
                   : w->call != NULL ? "a call of BLAS"
                                     : "copy",
                   (long long)standin_block);
    standin_forget_fibers();
    error = text;
  } else if (w->kernel >= 0) {
    const standin_order order = (standin_order)(d->counts.launches % STANDIN_ORDERS);
    error = standin_run_kernel(w->kernel, order, w->blocks, w->threads, args);
    d->counts.launches++;
  } else if (w->call != NULL) {
    w->call(w->copy);
    d->counts.calls++;
  } else if (w->from == NULL) {
    memset(w->to, 0, w->bytes);
  } else {
    memcpy(w->to, w->from, w->bytes);
  }
  kernel_fault = NULL;
  return error;
}

/* After an error the rest of a stream does not run. */
static void run_next(stream *s) {
  work *w = s->first;
  if (w == NULL) return;
  const char *error = s->error[0] == '\0' ? run_work(w) : NULL;
  if (error != NULL) (void)snprintf(s->error, sizeof s->error, "%s", error);
  s->first = w->next;
  free(w->copy);
  free(w);
}

/* Run all work of the stream of d, unless `error` is not NULL. */
static const char *run_all(dv_desk *d, const char *error) {
  static _Thread_local char text[sizeof(((stream *)0)->error)];
  enum { OTHERS_LATER, OTHERS_FIRST, IN_TURN, ORDERS };
  (void)pthread_mutex_lock(&mutex);
  catch_faults();
  stream *mine = d->stream;
  const int64_t order = waits++ % ORDERS;
  if (error != NULL) (void)snprintf(mine->error, sizeof mine->error, "%s", error);
  for (stream *s = streams; s != NULL && order == OTHERS_FIRST; s = s->next) {
    while (s != mine && s->first != NULL) {
      run_next(s);
    }
  }
  while (mine->first != NULL) {
    run_next(mine);
    for (stream *s = streams; s != NULL && order == IN_TURN; s = s->next) {
      if (s != mine) run_next(s);
    }
  }
  (void)snprintf(text, sizeof text, "%s", mine->error);
  mine->error[0] = '\0';
  for (range *r = ranges; r != NULL; r = r->next) {
    if (!r->is_lent) continue;
    r->is_lent = false;
    protect(r, false);
  }
  (void)pthread_mutex_unlock(&mutex);
  return text[0] != '\0' ? text : NULL;
}

/* Memory of the host that is not from dv_alloc_host is copied at the call, as by CUDA. */
const char *dv_copy(dv_desk *d, void *to, const void *from, size_t bytes) {
  work w = {.kernel = -1, .to = to, .from = from, .bytes = bytes};
  (void)pthread_mutex_lock(&mutex);
  const bool now = find_range(to) == NULL, from_host = find_range(from) == NULL;
  (void)pthread_mutex_unlock(&mutex);
  if (now && d->is_capturing) return "a copy to memory of the host in a capture";
  if (from_host && bytes > 0) {
    w.copy = malloc(bytes);
    if (w.copy == NULL) return "out of memory";
    w.from = memcpy(w.copy, from, bytes);
  }
  d->counts.copies++;
  d->counts.bytes += (int64_t)bytes;
  const char *error = note(d, &w);
  return error == NULL && now ? run_all(d, NULL) : error;
}
const char *dv_zero(dv_desk *d, void *at, size_t bytes) {
  d->counts.zeros++;
  return note(d, &(work){.kernel = -1, .to = at, .bytes = bytes});
}

const char *dv_launch(dv_desk *d, const char *kernel, int64_t blocks, int32_t threads,
                      void **args) {
  work w = {.kernel = standin_find_kernel(kernel), .threads = threads, .blocks = blocks};
  if (w.kernel < 0) return "no kernel of this name";
  if (fails_now(d, STANDIN_LAUNCH)) return "a launch fails on demand";
  standin_copy_args(w.kernel, args, w.arg);
  return note(d, &w);
}
const char *standin_note(dv_desk *d, void (*run)(const void *args), const void *args,
                         size_t bytes) {
  if (fails_now(d, STANDIN_CALL)) return "a call fails on demand";
  work w = {.kernel = -1, .call = run, .copy = malloc(bytes)};
  if (w.copy == NULL) return "out of memory";
  memcpy(w.copy, args, bytes);
  return note(d, &w);
}
const char *dv_wait(dv_desk *d) {
  if (d->is_capturing) return "a wait in a capture";
  d->counts.waits++;
  return run_all(d, fails_now(d, STANDIN_WAIT) ? "a wait fails on demand" : NULL);
}

/* ---- open, measure ---------------------------------------------------------------------------*/

/* Return the stream of the caller, or a new stream. */
static stream *join_stream(void *handle) {
  (void)pthread_mutex_lock(&mutex);
  stream *s = handle == NULL ? NULL : streams;
  while (s != NULL && s->handle != handle) {
    s = s->next;
  }
  if (s == NULL && (s = calloc(1, sizeof *s)) != NULL && handle != NULL) {
    s->handle = handle;
    s->next = streams;
    streams = s;
  }
  if (s != NULL) s->desks++;
  (void)pthread_mutex_unlock(&mutex);
  return s;
}
static void leave_stream(stream *s) {
  (void)pthread_mutex_lock(&mutex);
  stream **at = &streams;
  while (*at != NULL && *at != s) {
    at = &(*at)->next;
  }
  if (--s->desks > 0) s = NULL;
  if (s != NULL && *at != NULL) *at = s->next;
  (void)pthread_mutex_unlock(&mutex);
  free(s);
}

const char *dv_open(int32_t index, void *handle, dv_desk **out) {
  *out = index == 0 ? calloc(1, sizeof **out) : NULL;
  if (*out == NULL) return "the stand-in has one device";
  (*out)->stream = join_stream(handle);
  if ((*out)->stream == NULL) return "out of memory";
  (*out)->failure = STANDIN_NO_FAILURE;
  (*out)->runs_now = getenv("NG_STANDIN_NOW") != NULL;
  catch_faults();
  return NULL;
}
void dv_close(dv_desk *d) {
  if (d == NULL) return;
  (void)run_all(d, NULL);
  leave_stream(d->stream);
  free(d);
}
const char *dv_use(dv_desk *d) {
  (void)d;
  return NULL;
}
void *dv_stream(const dv_desk *d) { return d->stream->handle; }
const char *dv_name(const dv_desk *d) {
  (void)d;
  return "stand-in";
}

/* Nothing is timed; a capture runs its work, and a replay runs nothing. */
const char *dv_note_time(dv_desk *d, int32_t mark) {
  (void)d, (void)mark;
  return NULL;
}
const char *dv_seconds_between(dv_desk *d, double *seconds) {
  (void)d;
  *seconds = 1.0;
  return NULL;
}
const char *dv_graph_begin(dv_desk *d) {
  d->is_capturing = true;
  return NULL;
}
const char *dv_graph_end(dv_desk *d) {
  d->is_capturing = false;
  return run_all(d, NULL);
}
const char *dv_graph_replay(dv_desk *d) {
  (void)d;
  return NULL;
}
