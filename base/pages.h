/* pages.h: memory in large pages, where the system has them.  The first touch of a small page costs about as much as
 * writing it four times over, and a state of many layers is all first touches. */
#ifndef NG_PAGES_H
#define NG_PAGES_H

#include <stddef.h>

/* At a multiple of `align` (a power of two, of pointers at least); free() takes it back.  NULL: none left. */
void *ng_pages_take(size_t bytes, size_t align);
/* Ask for large pages inside `at`, which must be untouched memory. A hint only. */
void ng_pages_wish(void *at, size_t bytes);

#endif
