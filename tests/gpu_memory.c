/* gpu_memory.c: lets the tests of kernels run on a GPU with arrays of the host. Linked by bench/gpu.sh only.
 *
 * malloc takes all memory from one region. The region, the static data and the stack of the main thread are registered
 * with the device before main, so that kernels can read and write every array of a test. */
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend.h"
#include "kernels.h"

/* A block has 2^class bytes: a header of HEADER bytes with class and size, then the memory. */
enum { CLASSES = 40, LEAST_CLASS = 7, HEADER = 64, KEPT = -1, PAGE = 4096 };
static const size_t REGION = (size_t)4 << 30, STACK = (size_t)6 << 20;
typedef struct header {
  size_t bytes;
  int class; /* KEPT: the block is not used again */
} header;

static char *region;
static size_t used;
static void *free_list[CLASSES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static header *header_of(void *p) { return (header *)(void *)((char *)p - HEADER); }

static void *take_block(size_t bytes, size_t align) {
  const bool is_wide = align > HEADER;
  int k = LEAST_CLASS;
  while (((size_t)1 << k) < bytes + HEADER + (is_wide ? align : 0)) {
    k++;
  }
  (void)pthread_mutex_lock(&lock);
  if (region == NULL) {
    region = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                  -1, 0);
  }
  char *p = is_wide ? NULL : free_list[k];
  if (p != NULL) {
    memcpy(&free_list[k], p, sizeof free_list[k]);
  } else {
    p = region + used + HEADER;
    used += (size_t)1 << k;
    if (is_wide) p = (char *)(((uintptr_t)p + align - 1) / align * align);
  }
  if (region == MAP_FAILED || used > REGION) abort();
  (void)pthread_mutex_unlock(&lock);
  *header_of(p) = (header){bytes, is_wide ? KEPT : k};
  return p;
}

/* The C library's allocator, replaced: all blocks lie in the region that the GPU can access. */
void *malloc(size_t n) { return take_block(n, HEADER); }
void free(void *p) {
  if (p == NULL || header_of(p)->class == KEPT) return;
  void **list = &free_list[header_of(p)->class];
  (void)pthread_mutex_lock(&lock);
  memcpy(p, list, sizeof *list);
  *list = p;
  (void)pthread_mutex_unlock(&lock);
}
void *calloc(size_t n, size_t size) { return memset(malloc(n * size), 0, n * size); }
void *realloc(void *p, size_t n) {
  void *to = malloc(n);
  if (p == NULL) return to;
  memcpy(to, p, header_of(p)->bytes < n ? header_of(p)->bytes : n);
  free(p);
  return to;
}
int posix_memalign(void **out, size_t align, size_t n) {
  *out = take_block(n, align);
  return 0;
}
void *aligned_alloc(size_t align, size_t n) { return take_block(n, align); }
void *memalign(size_t align, size_t n) { return take_block(n, align); }
size_t malloc_usable_size(void *p) { return p == NULL ? 0 : header_of(p)->bytes; }

/* Register the pages of [from, to). */
static void register_range(dv_desk *d, char *from, char *to) {
  char *a = from - (uintptr_t)from % PAGE, *b = to + (PAGE - (uintptr_t)to % PAGE) % PAGE;
  const char *error = dv_register_host(d, a, (size_t)(b - a));
  if (error != NULL) (void)fprintf(stderr, "gpu_memory: %s\n", error);
}

/* Register the writable segments of the program, which is the first object. */
static int register_segments(struct dl_phdr_info *info, size_t size, void *desk) {
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *h = &info->dlpi_phdr[i];
    char *at = (char *)info->dlpi_addr + h->p_vaddr;
    if (h->p_type == PT_LOAD && (h->p_flags & PF_W) != 0) register_range(desk, at, at + h->p_memsz);
  }
  return 1;
}

/* Register all memory; pages of the stack exist only after a write. */
__attribute__((constructor)) static void register_memory(void) {
  ng_queue q = kernels_device();
  dv_desk *d = ng_device_desk(q.device);
  char *const here = __builtin_frame_address(0);
  volatile char *volatile low = here - STACK;
  for (size_t i = STACK; i > 0; i -= PAGE) {
    low[i - PAGE] = 0;
  }
  (void)fprintf(stderr, "device: %s\n", dv_name(d));
  register_range(d, region, region + REGION);
  (void)dl_iterate_phdr(register_segments, d);
  register_range(d, here - STACK, here + PAGE);
}
