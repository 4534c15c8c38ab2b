/* device_entries.h: shared by backend.c, backend_sums.c, backend_arrays.c, linalg.c and solve.c. */
#ifndef NG_DEVICE_ENTRIES_H
#define NG_DEVICE_ENTRIES_H

#include "stage.h"

#define LAUNCH(d, kernel, blocks, ...)                                                             \
  do {                                                                                             \
    void *args_[] = {__VA_ARGS__};                                                                 \
    ng_stage_launch(d, #kernel, blocks, args_);                                                    \
  } while (0)

/* Return the number of blocks for n threads, or for a tile of n elements each. */
static inline int64_t blocks_of(int64_t n, int64_t each) { return (n + each - 1) / each; }

/* Addresses, on the host and on the device, of `first` [n + 1]: the number of thread blocks before each descriptor. */
typedef struct cut {
  int64_t *first, n;
  void *on_device;
} cut;

static inline bool cut_begin(ng_device *d, int64_t n, cut *c) {
  *c = (cut){.first = ng_stage_allocate(d, n + 1, sizeof *c->first)};
  if (c->first == NULL) return false;
  c->first[0] = 0;
  c->on_device = ng_stage_address(d, c->first);
  return true;
}
static inline void cut_add(cut *c, int64_t blocks) {
  c->first[c->n + 1] = c->first[c->n] + blocks;
  c->n++;
}
static inline int64_t cut_blocks(const cut *c) { return c->first[c->n]; }

void ng_device_add_row_grams(ng_queue *q, const ng_gram *g, int64_t n, float *unused);
void ng_device_add_conv_grams(ng_queue *q, const ng_gram *g, int64_t n, float *unused);
void ng_device_add_spatial_grams(ng_queue *q, const ng_gram *g, int64_t n, float *unused);
void ng_device_sum_patches(ng_queue *q, const ng_box *b, int64_t n, double *unused);
void ng_device_sum_squares(ng_queue *q, const ng_squares *s, int64_t n);
void ng_device_sum_norm_squares(ng_queue *queue, const ng_norm_sum *k, int64_t n, void *unused);
void ng_device_add_norm_grams(ng_queue *queue, const ng_norm_sum *k, int64_t n, void *unused);
void ng_device_count_tokens(ng_queue *q, const ng_tokens *t, int64_t n);
void ng_device_accumulate(ng_queue *q, const ng_accumulation *a, int64_t n);
void ng_device_copy_arrays(ng_queue *q, const ng_copy *c, int64_t n);
void ng_device_convert_for_wire(ng_queue *q, const ng_wire_conversion *w, int64_t n);
void ng_device_add_changes(ng_queue *q, const ng_change *c, int64_t n);
/* linalg.c: n elements, or symmetric storage of order n to a full matrix, from one dtype to another. */
void ng_device_convert(ng_queue *q, int64_t n, const void *from, ng_dtype t, void *to,
                       ng_dtype to_t);
void ng_device_unpack(ng_queue *q, int64_t n, const void *S, ng_dtype t, void *full, ng_dtype to_t,
                      int64_t ld);
void ng_device_solve(ng_queue *q, ng_matrix *const *list, int64_t n, float *scratch); /* solve.c */
void ng_device_run_flat_passes(ng_queue *q, const ng_flat_pass *p, int64_t n); /* backend_flat.c */
dv_place ng_device_place(const ng_place *v);
dv_region ng_device_region(const ng_region *D);
dv_measure ng_device_measure(const ng_measure *m);
dv_direction ng_device_direction(const ng_direction *e, float *to);
dv_update ng_device_update(const ng_direction *e, const ng_weight_update *s);
size_t ng_device_eva_bytes(int64_t parameters, int64_t layers, int64_t tiles); /* backend_eva.c */
void ng_device_upload_eva(ng_queue *q, ng_eva_lists *l);
void ng_device_step_eva(ng_queue *q, const ng_eva_lists *l, ng_eva_numbers *now);
dv_view ng_device_view(const ng_view *v);
extern const ng_linalg_ops ng_device_linalg;

/* ON_HOST defines host_<entry>, for an entry without a kernel: wait for the device; then the backend of the host computes the entry
 * in memory that host and device share (memory.c). */
ng_queue ng_device_host_queue(ng_queue *q);
#define ON_HOST(table, entry, parameters, arguments)                                               \
  static void host_##entry parameters {                                                            \
    ng_queue host = ng_device_host_queue(q);                                                       \
    if (host.backend != NULL) host.backend->table->entry arguments;                                \
  }

#endif
