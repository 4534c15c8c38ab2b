/* pages.h: allocate memory in large pages where the system has them. The first touch of a small
 * page costs about four times as much as writing the page, and most pages of a large state are
 * touched once. */
#ifndef NG_PAGES_H
#define NG_PAGES_H

#include <stddef.h>

/* Allocate memory at a multiple of `align`, a power of two of at least the size of a pointer;
 * free() releases the memory. Return NULL if the system has no memory. */
void *ng_pages_alloc(size_t bytes, size_t align);
/* Advise the system to use large pages for memory that was not touched yet. */
void ng_request_large_pages(void *at, size_t bytes);

#endif
