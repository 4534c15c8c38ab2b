/* backend.c: the backends of the library: `cpu` and `ref` compute on the host, so entries are done when they return. The
 * kernels of the host expect a linear algebra of this kind. */
#include "kernel/entries.h"
#include "kernel/tiles.h"

#if defined(NG_HAVE_BLAS)
static const ng_kernel_ops cpu_kernels = {
    .tiles = ng_tiles_of,
    .scan = ng_scan,
    .measure = ng_measure_gradients,
    .finite = ng_measure_finite,
    .read = ng_measure_read,
    .emit = ng_emit_gradients,
    .store = ng_emit_store,
    .norm2 = ng_emit_norm2,
    .update = ng_emit_update,
    .ratios = ng_emit_ratios,
    .gram_rows = ng_gram_rows,
    .gram_conv = ng_gram_conv,
    .box_sums = ng_box_sums,
    .square_sums = ng_square_sums,
    .norm_squares = ng_norm_squares,
    .norm_gram = ng_norm_gram,
    .flat = ng_flat_run,
    .row_products = ng_rows_products,
    .row_combine = ng_rows_combine,
    .largest_select = ng_largest_select,
    .largest_count = ng_largest_count,
    .largest_collect = ng_largest_collect,
    .largest_store = ng_largest_store,
    .largest_pack = ng_largest_pack_entries,
    .copy = ng_copy_arrays,
    .wire = ng_copy_wire,
    .change = ng_change_sums,
    .low_rank = ng_low_rank_steps,
};

const ng_backend ng_backend_cpu = {"cpu",        &ng_linalg_cpu, &ng_linalg_cpu,
                                   &cpu_kernels, ng_plain_alloc, ng_plain_free,
                                   NULL,         NULL,           NULL};
#endif

static const ng_kernel_ops ref_kernels = {
    .tiles = ng_tiles_of,
    .scan = ng_ref_scan,
    .measure = ng_ref_measure,
    .finite = ng_ref_finite,
    .read = ng_ref_read,
    .emit = ng_ref_emit,
    .store = ng_ref_store,
    .norm2 = ng_ref_norm2,
    .update = ng_ref_update,
    .ratios = ng_ref_ratios,
    .gram_rows = ng_ref_gram_rows,
    .gram_conv = ng_ref_gram_conv,
    .box_sums = ng_ref_box_sums,
    .square_sums = ng_ref_square_sums,
    .norm_squares = ng_ref_norm_squares,
    .norm_gram = ng_ref_norm_gram,
    .flat = ng_ref_flat,
    .row_products = ng_ref_row_products,
    .row_combine = ng_ref_row_combine,
    .largest_select = ng_ref_largest_select,
    .largest_count = ng_ref_largest_count,
    .largest_collect = ng_ref_largest_collect,
    .largest_store = ng_ref_largest_store,
    .largest_pack = ng_largest_pack_entries,
    .copy = ng_ref_copy,
    .wire = ng_ref_wire,
    .change = ng_ref_change,
    .low_rank = ng_ref_low_rank,
};

const ng_backend ng_backend_ref = {"ref",        &ng_linalg_ref, &ng_linalg_ref,
                                   &ref_kernels, ng_plain_alloc, ng_plain_free,
                                   NULL,         NULL,           NULL};

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
