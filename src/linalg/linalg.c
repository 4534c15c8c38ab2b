/* linalg.c: the queue, and the description of the loaded BLAS.
 *
 * The administrator or the environment chooses the BLAS behind libblas.so.3, so the library finds out at run time which
 * one is loaded. */
#include "linalg/linalg.h"

#include "core/core.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the queue -------------------------------------------------------------------------------*/

/* On a CPU every entry is done when it returns, but the count of pending entries detects a missing wait even there. */
void ng_queue_wait_at(ng_queue *q, const char *place) {
  if (q->pending == 0) return;
  if (q->waits < NG_WAIT_PLACES) q->wait_place[q->waits] = place;
  q->waits++;
  if (q->backend->wait != NULL) q->backend->wait(q);
  q->pending = 0;
}

/* With NG_DEBUG this function makes a missing wait fail on every machine, not only with a device. */
int ng_read_info(const ng_queue *q, const int *info) {
  NG_ASSERT(ng_queue_is_settled(q));
  return *info;
}

const double *ng_read_numbers(const ng_queue *q, const double *numbers) {
  NG_ASSERT(ng_queue_is_settled(q));
  return numbers;
}

int32_t ng_queue_pieces(const ng_queue *q, int64_t floats) {
  /* Waking the threads takes about 10 us, as long as one thread needs to copy 32768 floats. */
  return floats < 32768 ? 1 : q->threads;
}

void ng_queue_run(const ng_queue *q, int32_t n, void (*task)(void *arg, int32_t i), void *arg) {
  if (q != NULL && q->run != NULL) {
    q->run(q->executor, n, task, arg);
    return;
  }
  for (int32_t i = 0; i < n; i++) {
    task(arg, i);
  }
}

bool ng_blas_accepts_order(int64_t n) {
  /* The largest number that LAPACK receives is LWORK of ssyevd. The first comparison prevents overflow in the
   * second. */
  return n >= 1 && n <= INT32_MAX / 8 && 1 + 6 * n + 2 * n * n <= INT32_MAX;
}

/* ---- the loaded BLAS ----------------------------------------------------------------------------------------------*/

/* Look up a function in the loaded libraries; `out` points to a function pointer. memcpy, because ISO C has no cast
 * from void * to a function pointer. */
static bool find_symbol(const char *name, void *out) {
  void *address = dlsym(RTLD_DEFAULT, name);
  memcpy(out, &address, sizeof address);
  return address != NULL;
}

/* openblas_get_parallel: 1 for threads of its own. With OpenMP, openblas_set_num_threads frees buffers that another thread may
 * use; without threads, OpenBLAS may not be safe to call from several. */
const char *ng_blas_open(ng_queue *q) {
  int (*parallel)(void);
  if (!find_symbol(NG_BLAS_TEXT(openblas_get_parallel), &parallel) || parallel() != 1 ||
      !find_symbol(NG_BLAS_TEXT(openblas_get_num_threads), &q->get_blas_threads))
    return NULL;
  (void)find_symbol(NG_BLAS_TEXT(openblas_set_num_threads), &q->set_blas_threads);
  return NULL;
}

/* Return whether the processor and the operating system support the instructions of OpenBLAS's SkylakeX kernels. */
static bool has_avx512(void) {
#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

/* Return advice for a faster OpenBLAS, or "". On a processor that OpenBLAS does not know, it selects kernels without
 * AVX-512 (`narrow`). Only a DYNAMIC_ARCH build has other kernels. */
static const char *openblas_hint(const ng_blas_info *b) {
  static const char *const narrow[] = {"Haswell", "Zen", "Excavator", "Sandybridge", "Prescott"};
  for (size_t i = 0; i < sizeof narrow / sizeof narrow[0]; i++) {
    if (strstr(b->name, "DYNAMIC_ARCH") != NULL && strcmp(b->kernel, narrow[i]) == 0 &&
        has_avx512())
      return "OPENBLAS_CORETYPE=SkylakeX would use AVX-512 kernels on this processor";
  }
  return "";
}

/* Write the name of the BLAS; return false if the BLAS has no function that returns its name. */
static bool describe_by_symbols(ng_blas_info *b) {
  char *(*text)(void);
  int (*number)(void);
  void (*mkl)(char *buffer, int length);
  if (find_symbol(NG_BLAS_TEXT(openblas_get_config), &text)) {
    /* the text of OpenBLAS begins with "OpenBLAS 0.3.21 " */
    (void)snprintf(b->name, sizeof b->name, "%s", text());
    if (find_symbol(NG_BLAS_TEXT(openblas_get_corename), &text))
      (void)snprintf(b->kernel, sizeof b->kernel, "%s", text());
    if (find_symbol(NG_BLAS_TEXT(openblas_get_num_threads), &number)) b->threads = number();
    b->hint = openblas_hint(b);
  } else if (find_symbol("MKL_Get_Version_String", &mkl)) {
    mkl(b->name, (int)sizeof b->name - 1);
    if (find_symbol("MKL_Get_Max_Threads", &number)) b->threads = number();
  } else if (find_symbol("bli_info_get_version_str", &text)) {
    int (*arch)(void);
    char *(*arch_text)(int);
    int64_t (*ways)(void); /* returns dim_t of BLIS, a 64-bit integer */
    (void)snprintf(b->name, sizeof b->name, "BLIS %s", text());
    if (find_symbol("bli_arch_query_id", &arch) && find_symbol("bli_arch_string", &arch_text))
      (void)snprintf(b->kernel, sizeof b->kernel, "%s", arch_text(arch()));
    if (find_symbol("bli_thread_get_num_threads", &ways)) b->threads = (int32_t)ways();
  } else {
    return false;
  }
  return true;
}

/* Netlib's BLAS has no version function, and Debian's libblas.so.3 of BLIS hides its own. The file name identifies the
 * BLAS. */
ng_blas_info ng_blas_describe(void) {
  ng_blas_info b = {.name = "unknown", .hint = ""};
  Dl_info file;
  char path[PATH_MAX];
  void *sgemm = dlsym(RTLD_DEFAULT, NG_BLAS_TEXT(sgemm_));
  if (!describe_by_symbols(&b) && sgemm != NULL && dladdr(sgemm, &file) != 0 &&
      realpath(file.dli_fname, path) != NULL) {
    (void)snprintf(b.name, sizeof b.name, "unknown: %.240s", path);
  }
  for (size_t n = strlen(b.name); n > 0 && strchr(" \n", b.name[n - 1]) != NULL; n--) {
    b.name[n - 1] = '\0';
  }
  return b;
}
