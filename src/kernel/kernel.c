/* kernel.c: the two implementations of kernel.h. */
#include "kernel/entries.h"

static const ng_kernel_ops cpu = {
    .name = "cpu",
    .scan = ng_scan,
};

static const ng_kernel_ops ref = {
    .name = "ref",
    .scan = ng_ref_scan,
};

const ng_kernel_ops *ng_kernels_find(const char *name) {
  return name != NULL && ng_is(name, ref.name)   ? &ref
         : name == NULL || ng_is(name, cpu.name) ? &cpu
                                                 : NULL;
}
