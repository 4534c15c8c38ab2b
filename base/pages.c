/* pages.c: request transparent huge pages (Linux) for large blocks. */
#include "pages.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

static const size_t large_page = (size_t)2 << 20;

void ng_request_large_pages(void *at, size_t bytes) {
#ifdef MADV_HUGEPAGE
  const size_t before = (0 - (size_t)(uintptr_t)at) % large_page;
  if (bytes < before + large_page) return;
  (void)madvise((char *)at + before, (bytes - before) / large_page * large_page, MADV_HUGEPAGE);
#else
  (void)at, (void)bytes;
#endif
}

void *ng_pages_alloc(size_t bytes, size_t align) {
  void *p = NULL;
  const size_t at = bytes >= 4 * large_page && align < large_page ? large_page : align;
  if (posix_memalign(&p, at, bytes) != 0) return NULL;
  if (at >= large_page) ng_request_large_pages(p, bytes);
  return p;
}
