/* info.c: version, build, BLAS and components of this library.  Only this file contains the name of the commit, so that
 * a new commit rebuilds only this file. */
#include "core/core.h"
#include "kernel/kernel.h"

#ifndef NG_COMMIT
#define NG_COMMIT "unknown"
#endif
#ifndef NG_COMPILER
#define NG_COMPILER "unknown"
#endif

int32_t ng_version(void) { return NG_VERSION; }

int32_t ng_build_info(char *text, size_t size) {
  const ng_blas_info blas = ng_blas_describe();
  char line[1024];
  const int n = snprintf(line, sizeof line,
                         "version = %d.%d.%d\ncommit = %s\ncompiler = %s\nlinalg = %s\nblas = %s\n"
                         "kernel = %s\nbf16 = %s\nblas threads = %d\nhint = %s\n",
                         NG_VERSION_MAJOR, NG_VERSION_MINOR, NG_VERSION_PATCH, NG_COMMIT,
                         NG_COMPILER, ng_backend_at(0)->name, blas.name, blas.kernel,
                         ng_bf16_describe(), blas.threads, blas.hint);
  if (text != NULL && size > 0) (void)snprintf(text, size, "%s", line);
  return n < (int)sizeof line ? n : (int)sizeof line - 1;
}

/* Components beside the backends, and components that this build lacks, with the way to get them. */
static const ng_component component[] = {
#if !defined(NG_HAVE_BLAS)
    {sizeof(ng_component), "linalg", "cpu", 0,
     "this build has no BLAS; configure with NATGRAD_BLAS=ON"},
#endif
    {sizeof(ng_component), "linalg", "cuda", 0,
     "in the separate library natgrad_cuda: see docs/cuda.md"},
    {sizeof(ng_component), "transport", "self", 1, ""},
    {sizeof(ng_component), "transport", "user", 1, ""},
    {sizeof(ng_component), "transport", "threads", 1, ""},
#if defined(NG_HAVE_MPI)
    {sizeof(ng_component), "transport", "mpi", 0,
     "in the separate library natgrad_mpi: see natgrad_mpi.h"},
#else
    {sizeof(ng_component), "transport", "mpi", 0,
     "this build has no MPI; install libopenmpi-dev and openmpi-bin, configure with "
     "NATGRAD_MPI=ON"},
#endif
    {sizeof(ng_component), "transport", "nccl", 0,
     "not supported yet; supply collectives as an ng_transport"},
};

ng_status ng_component_info(int32_t i, ng_component *out) {
  int32_t backends = 0;
  while (ng_backend_at(backends) != NULL) {
    backends++;
  }
  if (out == NULL || i < 0 || i >= backends + (int32_t)(sizeof component / sizeof component[0]))
    return NG_ERR_ARG;
  ng_component c = {sizeof c, "linalg", "", 1, ""};
  if (i < backends) c.name = ng_backend_at(i)->name;
  return ng_struct_write(out, i < backends ? &c : &component[i - backends], sizeof c);
}
