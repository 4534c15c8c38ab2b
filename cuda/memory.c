/* memory.c: memory of a context with a device.
 *
 * Blocks up to SMALL bytes, such as objects and numbers that the host reads after a wait, lie in memory of the host that the
 * device can access. Larger blocks, such as averages and sums, lie in memory whose pages move: a step accesses these blocks on
 * the device only, so their pages stay there; the host accesses such a block in a saved state and in entries without a kernel. */
#include <stdlib.h>
#include <string.h>

#include "stage.h"

/* Small blocks have 2^class bytes. Pages of PAGE bytes are cut into blocks; a free block contains the address of the next one. */
enum { LEAST_CLASS = 6, CLASSES = 16, SMALL = 1 << (CLASSES - 1), PAGE = 1 << 20 };

struct ng_pool_of_pages {
  void *free_list[CLASSES];
  char **page;
  int64_t pages;
  size_t used; /* bytes of the last page */
};

static int class_of(size_t bytes) {
  int k = LEAST_CLASS;
  while ((size_t)1 << k < bytes) {
    k++;
  }
  return k;
}

static bool add_page(ng_device *d) {
  struct ng_pool_of_pages *p = d->pages;
  void *at = NULL;
  char **list = realloc(p->page, (size_t)(p->pages + 1) * sizeof *list);
  if (list == NULL) return false;
  p->page = list;
  if (dv_alloc_host(d->desk, PAGE, &at) != NULL) return false;
  p->page[p->pages++] = at;
  p->used = 0;
  return true;
}

static void *take_small(ng_device *d, int k) {
  if (d->pages == NULL) d->pages = calloc(1, sizeof *d->pages);
  struct ng_pool_of_pages *p = d->pages;
  if (p == NULL) return NULL;
  void *block = p->free_list[k];
  if (block != NULL) {
    memcpy(&p->free_list[k], block, sizeof p->free_list[k]);
    return block;
  }
  const size_t bytes = (size_t)1 << k;
  if ((p->pages == 0 || p->used + bytes > PAGE) && !add_page(d)) return NULL;
  p->used += bytes;
  return p->page[p->pages - 1] + p->used - bytes;
}

void *ng_device_alloc(void *device, size_t bytes) {
  ng_device *d = device;
  void *at = NULL;
  if (bytes <= SMALL) return take_small(d, class_of(bytes));
  return dv_alloc_managed(d->desk, bytes, &at) == NULL ? at : NULL;
}

/* Pending work may still use the block. */
void ng_device_free(void *device, void *at, size_t bytes) {
  ng_device *d = device;
  if (at == NULL) return;
  ng_stage_wait(d);
  if (bytes > SMALL) {
    dv_free(d->desk, at);
    return;
  }
  void **list = &d->pages->free_list[class_of(bytes)];
  memcpy(at, list, sizeof *list);
  *list = at;
}

void ng_device_free_pages(ng_device *d) {
  struct ng_pool_of_pages *p = d->pages;
  for (int64_t i = 0; p != NULL && i < p->pages; i++) {
    dv_free_host(d->desk, p->page[i]);
  }
  if (p != NULL) free(p->page);
  free(p);
}
