/* backend.c: the backends of the library: `cpu` and `ref` compute on the host, so entries are done when they return. The
 * kernels of the host expect a linear algebra of this kind. */
#include "kernel/entries.h"
#include "kernel/tiles.h"

/* clang-format off */
#define KERNELS(p)                                                                                 \
  .count_tiles = ng_count_tiles, .find_largest = ng_shared_find_largest, .measure_gradients = p##measure_gradients,                             \
  .check_finite = ng_shared_check_finite, .read_gradients = ng_shared_read_gradients, .write_directions = p##write_directions, .store_directions = p##store_directions,          \
  .sum_norms = p##sum_norms, .update_weights = p##update_weights, .count_ratios = p##count_ratios, .add_row_grams = p##add_row_grams,          \
  .add_conv_grams = p##add_conv_grams, .add_spatial_grams = p##add_spatial_grams, .add_sample_squares = p##add_sample_squares, .sum_patches = p##sum_patches, .sum_squares = p##sum_squares,               \
  .count_tokens = ng_shared_count_tokens, .accumulate = ng_shared_accumulate,                      \
  .sum_norm_squares = p##sum_norm_squares, .add_norm_grams = p##add_norm_grams, .run_flat_passes = p##run_flat_passes,                     \
  .multiply_rows = p##multiply_rows, .combine_rows = p##combine_rows,                                  \
  .select_largest = p##select_largest, .count_largest = p##count_largest,                          \
  .collect_largest = p##collect_largest, .store_largest = p##store_largest,                        \
  .pack_largest = ng_shared_pack_largest, .copy_arrays = ng_shared_copy_arrays, .convert_for_wire = ng_shared_convert_for_wire,          \
  .add_changes = ng_shared_add_changes, .iterate_low_rank = p##iterate_low_rank
/* clang-format on */

#if defined(NG_HAVE_BLAS)
static const ng_kernel_ops cpu_kernels = {KERNELS(ng_cpu_)};

const ng_backend ng_backend_cpu = {.name = "cpu",
                                   .linalg = &ng_linalg_cpu,
                                   .host = &ng_linalg_cpu,
                                   .kernels = &cpu_kernels,
                                   .alloc = ng_plain_alloc,
                                   .free = ng_plain_free,
                                   .open = ng_blas_open};
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
