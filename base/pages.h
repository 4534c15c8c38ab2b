/* pages.h: allocate memory in large pages where the system has them. The first touch of a small
 * page costs about four times as much as writing the page, and most pages of a large state are
 * touched once. */
#ifndef NG_PAGES_H
#define NG_PAGES_H

#include <stddef.h>

/* Allocate memory at a multiple of `align`, a power of two of at least the size of a pointer;
 * free() releases it. NULL: no memory. */
void *ng_pages_take(size_t bytes, size_t align);
/* Request large pages for untouched memory. Only a hint. */
void ng_pages_wish(void *at, size_t bytes);

#endif
