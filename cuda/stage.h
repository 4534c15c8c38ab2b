/* stage.h: memory for the entries of backend.c: descriptors on their way to the device, and scratch. */
#ifndef NG_STAGE_H
#define NG_STAGE_H

#include "backend.h"
#include "blas.h"
#include "device.h"

/* Blocks of the model, from `first` to `last`; NULL: none. */
typedef struct ng_block_names {
  const char *first, *last;
} ng_block_names;

/* Descriptors are written to `host` and copied to the same offset of `device`. After each wait, both buffers are filled
 * from the beginning again. */
struct ng_device {
  dv_desk *desk;
  dv_blas *blas;
  char *host, *device, *scratch;
  size_t used, sent, scratch_used; /* bytes; the first `sent` of `used` bytes are copied */
  /* number of entries that the host has computed instead of the device */
  int64_t host_entries;
  struct ng_pool_of_pages *pages; /* pool of memory.c */
  ng_device_memory memory;        /* the caller's allocator */
  /* blocks of the present work, and of all work since the last wait */
  ng_block_names named, pending;
  bool pending_is_list; /* some of that work is a list of several blocks */
  char error[400];      /* "": none */
};

/* Return memory of the stage for n objects of `size` bytes, or NULL after an error. */
void *ng_stage_allocate(ng_device *d, int64_t n, size_t size);
void *ng_stage_scratch(ng_device *d, int64_t n, size_t size);
int64_t ng_stage_scratch_left(const ng_device *d); /* bytes */
/* Return the address on the device of descriptors at `host`. */
void *ng_stage_address(const ng_device *d, const void *host);
/* Mark the work of the named blocks as pending. If `error` is not NULL and no error is stored, store the text with the names. */
void ng_stage_keep_error(ng_device *d, const char *error);
/* Copy the new descriptors, then run a kernel with DV_THREADS threads a block. */
void ng_stage_launch(ng_device *d, const char *kernel, int64_t blocks, void **args);
/* Set bytes to 0; copy bytes; after the launches before. */
void ng_stage_zero(ng_device *d, void *at, size_t bytes);
void ng_stage_copy(ng_device *d, void *to, const void *from, size_t bytes);
void ng_stage_wait(ng_device *d);
/* Ensure that the stage has memory for the descriptors of an entry; return false after an error. */
bool ng_stage_begin(ng_device *d);

#endif
