/* backend.c: the backends of the library: `cpu` and `ref` compute on the host, so entries are done when they return. The
 * kernels of the host expect a linear algebra of this kind. */
#include "kernel/entries.h"
#include "kernel/tiles.h"

/* clang-format off */
#define KERNELS(p)                                                                                 \
  .tiles = ng_tiles_of, .scan = ng_shared_scan, .measure = p##measure,                             \
  .finite = ng_shared_finite, .read = ng_shared_read, .emit = p##emit, .store = p##store,          \
  .norm2 = p##norm2, .update = p##update, .ratios = p##ratios, .gram_rows = p##gram_rows,          \
  .gram_conv = p##gram_conv, .box_sums = p##box_sums, .square_sums = p##square_sums,               \
  .norm_squares = p##norm_squares, .norm_gram = p##norm_gram, .flat = p##flat,                     \
  .row_products = p##row_products, .row_combine = p##row_combine,                                  \
  .largest_select = p##largest_select, .largest_count = p##largest_count,                          \
  .largest_collect = p##largest_collect, .largest_store = p##largest_store,                        \
  .largest_pack = ng_shared_largest_pack, .copy = ng_shared_copy, .wire = ng_shared_wire,          \
  .change = ng_shared_change, .low_rank = p##low_rank
/* clang-format on */

#if defined(NG_HAVE_BLAS)
static const ng_kernel_ops cpu_kernels = {KERNELS(ng_cpu_)};

const ng_backend ng_backend_cpu = {.name = "cpu",
                                   .linalg = &ng_linalg_cpu,
                                   .host = &ng_linalg_cpu,
                                   .kernels = &cpu_kernels,
                                   .alloc = ng_plain_alloc,
                                   .free = ng_plain_free};
#endif

static const ng_kernel_ops ref_kernels = {KERNELS(ng_ref_)};

const ng_backend ng_backend_ref = {.name = "ref",
                                   .linalg = &ng_linalg_ref,
                                   .host = &ng_linalg_ref,
                                   .kernels = &ref_kernels,
                                   .alloc = ng_plain_alloc,
                                   .free = ng_plain_free};

static const ng_backend *const all[] = {
#if defined(NG_HAVE_BLAS)
    &ng_backend_cpu,
#endif
    &ng_backend_ref,
};

const ng_backend *ng_backend_at(int32_t i) {
  return i >= 0 && i < (int32_t)(sizeof all / sizeof all[0]) ? all[i] : NULL;
}

const ng_backend *ng_backend_find(const ng_backend *const *more, const char *name) {
  for (; more != NULL && name != NULL && *more != NULL; more++) {
    if (ng_is((*more)->name, name)) return *more;
  }
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if (name == NULL || ng_is(all[i]->name, name)) return all[i];
  }
  return NULL;
}
