/* late_memory.c: see late.h.
 *
 * All memory of a context comes from one reserved range of addresses, each allocation on pages of its own. Pages that
 * an entry writes are closed until the wait: an access faults. A fault inside the written bytes ends the test. After a
 * fault beside them, in another array of the same page, the page is open for one instruction (STEP). After MOST_STEPS
 * such faults, or without STEP, it stays open until the next entry that writes to it. mprotect is slow, so a page is
 * closed once, and adjacent pages are opened at once. */
#include "late.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <ucontext.h>
#define STEP
#endif

enum {
  PAGE = 4096,
  MOST_STEPS = 8,
  MOST = 1 << 14,
  RESERVE = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
};
#define RESERVED ((size_t)1 << 36)

typedef struct range {
  uintptr_t from, to;
  const char *entry;
  const void *thread; /* address of a variable of the thread */
} range;

static range written[MOST];
static int ranges;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t reserved;
/* The thread that closed each reserved page; NULL: open; `freed`: freed memory. Written under `mutex`. */
static const void *closed_by[RESERVED / PAGE];
static const char freed;
static atomic_size_t used;
static struct sigaction before;
static _Thread_local char thread;
static _Thread_local int steps; /* since the last wait */
#if defined(STEP)
/* pages that are accessible for one instruction, and protected again after it */
static _Thread_local uintptr_t opened[4];
#endif

static void lock(void) { pthread_mutex_lock(&mutex); }
static void unlock(void) { pthread_mutex_unlock(&mutex); }

static bool is_ours(uintptr_t at) { return reserved != 0 && at - reserved < RESERVED; }

/* Let the pages of [from, to) fault, or not. */
static void protect(uintptr_t from, uintptr_t to, int how) {
  const uintptr_t first = from / PAGE * PAGE;
  if (mprotect((void *)first, (to - first + PAGE - 1) / PAGE * PAGE, how) != 0) abort();
}

/* Close the open pages of [from, to), or open pages that this thread closed, and the pages after these. */
static void change(uintptr_t from, uintptr_t to, bool close) {
  const void *was = close ? NULL : &thread;
  uintptr_t page = (from - reserved) / PAGE;
  for (const uintptr_t end = (to - reserved + PAGE - 1) / PAGE; page < end; page++) {
    const uintptr_t first = page;
    while (closed_by[page] == was && (page < end || !close)) {
      closed_by[page++] = close ? &thread : NULL;
    }
    if (page > first)
      protect(reserved + first * PAGE, reserved + page * PAGE,
              close ? PROT_NONE : PROT_READ | PROT_WRITE);
  }
}

/* Return the entry that writes `at`; *beside: some entry writes another byte of the page. */
static const char *find(uintptr_t at, bool *beside) {
  const uintptr_t page = at / PAGE * PAGE;
  const char *entry = NULL;
  *beside = false;
  for (int i = 0; i < ranges; i++) {
    if (written[i].from <= at && at < written[i].to) entry = written[i].entry;
    *beside = *beside || (written[i].from < page + PAGE && page < written[i].to);
  }
  return entry;
}

/* After the instruction: close its pages, except those that their thread has opened meanwhile. */
#if defined(STEP)
enum { TRAP_FLAG = 0x100 };
static void on_trap(int number, siginfo_t *info, void *context) {
  (void)number, (void)info;
  lock();
  for (size_t i = 0; i < sizeof opened / sizeof opened[0]; i++) {
    if (opened[i] != 0 && closed_by[(opened[i] - reserved) / PAGE] != NULL)
      protect(opened[i], opened[i] + PAGE, PROT_NONE);
    opened[i] = 0;
  }
  unlock();
  ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}
#endif

static void open_page(uintptr_t page, bool beside, void *context) {
  (void)beside, (void)context;
  protect(page, page + PAGE, PROT_READ | PROT_WRITE);
#if defined(STEP)
  if (beside && steps++ < MOST_STEPS) {
    size_t i = 0;
    while (i < 3 && opened[i] != 0) {
      i++;
    }
    opened[i] = page;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
    return;
  }
#endif
  closed_by[(page - reserved) / PAGE] = NULL;
}

/* Another thread may open the page between the fault and this call; then the access is repeated. */
static void on_fault(int number, siginfo_t *info, void *context) {
  (void)number;
  const uintptr_t at = (uintptr_t)info->si_addr;
  bool beside;
  lock();
  const bool is_known = is_ours(at) && closed_by[(at - reserved) / PAGE] != &freed;
  const char *entry = is_known ? find(at, &beside) : NULL;
  if (entry != NULL) {
    static const char text[] = "no wait before the host accesses the results of entry ";
    ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
    n += write(STDERR_FILENO, entry, strlen(entry));
    n += write(STDERR_FILENO, "\n", 1);
    _exit(n > 0 ? LATE_FAULT : 1);
  }
  if (is_known) {
    open_page(at / PAGE * PAGE, beside, context);
  } else {
    (void)sigaction(SIGSEGV, &before, NULL); /* the access faults again */
  }
  unlock();
}

void late_forbid(const char *entry, const void *at, int64_t bytes) {
  const uintptr_t from = (uintptr_t)at;
  if (bytes <= 0 || !is_ours(from)) return;
  lock();
  if (ranges == MOST) abort();
  written[ranges++] = (range){from, from + (uintptr_t)bytes, entry, &thread};
  change(from, from + (uintptr_t)bytes, true);
  unlock();
}

void late_allow(void) {
  lock();
  int left = 0;
  for (int i = 0; i < ranges; i++) {
    if (written[i].thread == &thread) {
      change(written[i].from, written[i].to, false);
    } else {
      written[left++] = written[i];
    }
  }
  ranges = left;
  unlock();
  steps = 0;
}

/* ---- the allocator ---------------------------------------------------------------------------*/

void *late_alloc(void *user, size_t bytes) {
  (void)user;
  lock();
  if (reserved == 0) {
    void *all = mmap(NULL, RESERVED, PROT_READ | PROT_WRITE, RESERVE, -1, 0);
    if (all == MAP_FAILED) abort();
    reserved = (uintptr_t)all;
  }
  unlock();
  const size_t size = (bytes + PAGE - 1) / PAGE * PAGE, at = atomic_fetch_add(&used, size);
  return at + size > RESERVED ? NULL : (void *)(reserved + at);
}

/* Freed memory faults, too; mmap also frees its pages. */
void late_free(void *user, void *at, size_t bytes) {
  (void)user;
  const size_t size = (bytes + PAGE - 1) / PAGE * PAGE;
  if (at == NULL) return;
  lock();
  for (size_t i = 0; i < size / PAGE; i++)
    closed_by[((uintptr_t)at - reserved) / PAGE + i] = &freed;
  if (mmap(at, size, PROT_NONE, RESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) abort();
  unlock();
}

/* cmocka sets its own handler before each test, so set this one again. */
const char *late_open(ng_queue *q) {
  (void)q;
  struct sigaction old, act = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
  lock();
  if (sigaction(SIGSEGV, &act, &old) != 0) abort();
  if (old.sa_sigaction != on_fault) before = old;
#if defined(STEP)
  act.sa_sigaction = on_trap;
  if (sigaction(SIGTRAP, &act, NULL) != 0) abort();
#endif
  unlock();
  return NULL;
}
