/* blas_cuda.c: the calls of blas.h by cuBLAS and cuSOLVER.
 *
 * dlopen opens both libraries, so a build needs neither. They come with the CUDA toolkit and with PyTorch. A library that the process
 * has already loaded, for example by PyTorch, is found by its name alone. Source of all functions and constants: the manuals of cuBLAS
 * (API v2) and cuSOLVER (dense). Functions for f32 and f64 have the same arguments, so each field has both. */
#include "blas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* X(name, library, symbol for f32, symbol for f64, arguments) */
#define FUNCTIONS(X)                                                                               \
  X(gemm, CUBLAS, "cublasSgemm_v2", "cublasDgemm_v2",                                              \
    (void *, int, int, int, int, int, const void *, const void *, int, const void *, int,          \
     const void *, void *, int))                                                                   \
  X(syrk, CUBLAS, "cublasSsyrk_v2", "cublasDsyrk_v2",                                              \
    (void *, int, int, int, int, const void *, const void *, int, const void *, void *, int))      \
  X(symm, CUBLAS, "cublasSsymm_v2", "cublasDsymm_v2",                                              \
    (void *, int, int, int, int, const void *, const void *, int, const void *, int, const void *, \
     void *, int))                                                                                 \
  X(trsm, CUBLAS, "cublasStrsm_v2", "cublasDtrsm_v2",                                              \
    (void *, int, int, int, int, int, int, const void *, const void *, int, void *, int))          \
  X(potrf, CUSOLVER, "cusolverDnSpotrf", "cusolverDnDpotrf",                                       \
    (void *, int, int, void *, int, void *, int, int *))                                           \
  X(potrf_size, CUSOLVER, "cusolverDnSpotrf_bufferSize", "cusolverDnDpotrf_bufferSize",            \
    (void *, int, int, void *, int, int *))                                                        \
  X(potri, CUSOLVER, "cusolverDnSpotri", "cusolverDnDpotri",                                       \
    (void *, int, int, void *, int, void *, int, int *))                                           \
  X(potri_size, CUSOLVER, "cusolverDnSpotri_bufferSize", "cusolverDnDpotri_bufferSize",            \
    (void *, int, int, void *, int, int *))                                                        \
  X(syevd, CUSOLVER, "cusolverDnSsyevd", "cusolverDnDsyevd",                                       \
    (void *, int, int, int, void *, int, void *, void *, int, int *))                              \
  X(syevd_size, CUSOLVER, "cusolverDnSsyevd_bufferSize", "cusolverDnDsyevd_bufferSize",            \
    (void *, int, int, int, const void *, int, const void *, int *))                               \
  X(geqrf, CUSOLVER, "cusolverDnSgeqrf", "cusolverDnDgeqrf",                                       \
    (void *, int, int, void *, int, void *, void *, int, int *))                                   \
  X(geqrf_size, CUSOLVER, "cusolverDnSgeqrf_bufferSize", "cusolverDnDgeqrf_bufferSize",            \
    (void *, int, int, void *, int, int *))                                                        \
  X(orgqr, CUSOLVER, "cusolverDnSorgqr", "cusolverDnDorgqr",                                       \
    (void *, int, int, int, void *, int, const void *, void *, int, int *))                        \
  X(orgqr_size, CUSOLVER, "cusolverDnSorgqr_bufferSize", "cusolverDnDorgqr_bufferSize",            \
    (void *, int, int, int, const void *, int, const void *, int *))

/* Optional functions: cuSOLVER has cusolverDnXsyevBatched since version 11.7.1, of CUDA 12.6.2 */
#define BATCH(X)                                                                                   \
  X(new_params, "cusolverDnCreateParams", (void **))                                               \
  X(end_params, "cusolverDnDestroyParams", (void *))                                               \
  X(batch_size, "cusolverDnXsyevBatched_bufferSize",                                               \
    (void *, void *, int, int, int64_t, int, const void *, int64_t, int, const void *, int,        \
     size_t *, size_t *, int64_t))                                                                 \
  X(batch, "cusolverDnXsyevBatched",                                                               \
    (void *, void *, int, int, int64_t, int, void *, int64_t, int, void *, int, void *, size_t,    \
     void *, size_t, int *, int64_t))

enum { CUBLAS, CUSOLVER, LIBRARIES };
/* values of cuBLAS and cuSOLVER enums; F32_IS_F32 is CUBLAS_DEFAULT_MATH (no TF32) */
enum { NON_UNIT = 0, WITH_VECTORS = 1, F32_IS_F32 = 0 };

/* Functions of a handle; file names, the newest version first. */
static const struct {
  const char *title, *create, *destroy, *set_stream;
  const char *name[4];
} libraries[LIBRARIES] = {
    {"cuBLAS",
     "cublasCreate_v2",
     "cublasDestroy_v2",
     "cublasSetStream_v2",
     {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", NULL}},
    {"cuSOLVER",
     "cusolverDnCreate",
     "cusolverDnDestroy",
     "cusolverDnSetStream",
     {"libcusolver.so.12", "libcusolver.so.11", NULL, NULL}},
};

struct dv_blas {
#define FIELD(name, library, f32, f64, arguments) int(*name[2]) arguments;
  FUNCTIONS(FIELD)
#define FIELD_OF_BATCH(name, symbol, arguments) int(*name) arguments;
  BATCH(FIELD_OF_BATCH)
  void *params;    /* NULL: no batches */
  void *host_work; /* of batches */
  size_t host_bytes;
  void *library[LIBRARIES], *handle[LIBRARIES];
  int (*destroy[LIBRARIES])(void *handle);
  dv_desk *desk;
  char message[200];
};

/* ---- open, close -----------------------------------------------------------------------------*/

static const char *fail(dv_blas *b, const char *what, const char *why) {
  (void)snprintf(b->message, sizeof b->message, "%s: %s", what, why);
  return b->message;
}
static const char *failed(dv_blas *b, const char *what, int code) {
  (void)snprintf(b->message, sizeof b->message, "%s failed: status %d", what, code);
  return b->message;
}
/* Call a function on the device of the desk; return its error text from the calling function. */
#define TRY(b, what, call)                                                                         \
  do {                                                                                             \
    const char *error_ = dv_use((b)->desk);                                                        \
    const int code_ = error_ == NULL ? (call) : 0;                                                 \
    if (error_ != NULL) return error_;                                                             \
    if (code_ != 0) return failed(b, what, code_);                                                 \
  } while (0)

/* Look in the folder NG_CUDA_FOLDER, in the folders of the loader, and in the usual folder of the toolkit. */
static void *open_library(int which) {
  static const char *const folders[] = {NULL, "", "/usr/local/cuda/lib64/"};
  for (int k = 0; k < 3; k++) {
    const char *folder = k == 0 ? getenv("NG_CUDA_FOLDER") : folders[k];
    if (folder == NULL) continue;
    for (const char *const *name = libraries[which].name; *name != NULL; name++) {
      char path[4096];
      (void)snprintf(path, sizeof path, "%s%s%s", folder, k == 0 ? "/" : "", *name);
      void *library = dlopen(path, RTLD_NOW);
      if (library != NULL) return library;
    }
  }
  return NULL;
}

static const char *find(dv_blas *b, int library, const char *symbol, void *function) {
  void *at = dlsym(b->library[library], symbol);
  if (at == NULL) return fail(b, symbol, "this version of the library does not have it");
  memcpy(function, &at, sizeof at);
  return NULL;
}

static const char *open_handle(dv_blas *b, int which) {
  int (*create)(void **) = NULL, (*set_stream)(void *, void *) = NULL, (*mode)(void *, int) = NULL;
  b->library[which] = open_library(which);
  if (b->library[which] == NULL) {
    return fail(b, libraries[which].title,
                "not found; install the CUDA toolkit, or set NG_CUDA_FOLDER to the folder of "
                "libcublas and libcusolver");
  }
  const char *error = find(b, which, libraries[which].create, &create);
  if (error == NULL) error = find(b, which, libraries[which].set_stream, &set_stream);
  if (error == NULL) error = find(b, which, libraries[which].destroy, &b->destroy[which]);
  if (error == NULL && which == CUBLAS) error = find(b, which, "cublasSetMathMode", &mode);
  if (error != NULL) return error;
  TRY(b, libraries[which].create, create(&b->handle[which]));
  TRY(b, libraries[which].set_stream, set_stream(b->handle[which], dv_stream(b->desk)));
  if (mode != NULL) TRY(b, "cublasSetMathMode", mode(b->handle[which], F32_IS_F32));
  return NULL;
}

static const char *open_all(dv_blas *b) {
  const char *error = NULL;
  for (int i = 0; i < LIBRARIES && error == NULL; i++) {
    error = open_handle(b, i);
  }
#define FIND(name, library, f32, f64, arguments)                                                   \
  if (error == NULL) error = find(b, library, f32, &b->name[0]);                                   \
  if (error == NULL) error = find(b, library, f64, &b->name[1]);
  FUNCTIONS(FIND)
  return error;
}

static const char *open_batches(dv_blas *b) {
  bool has_all = true;
#define FIND_OF_BATCH(name, symbol, arguments)                                                     \
  has_all = has_all && find(b, CUSOLVER, symbol, &b->name) == NULL;
  BATCH(FIND_OF_BATCH)
  if (has_all) TRY(b, "cusolverDnCreateParams", b->new_params(&b->params));
  return NULL;
}

const char *dv_blas_open(dv_desk *d, dv_blas **out) {
  static _Thread_local char message[sizeof(((dv_blas *)0)->message)];
  dv_blas *b = calloc(1, sizeof *b);
  *out = NULL;
  if (b == NULL) return "out of memory";
  b->desk = d;
  const char *error = open_all(b);
  if (error == NULL) error = open_batches(b);
  if (error == NULL) {
    *out = b;
    return NULL;
  }
  (void)snprintf(message, sizeof message, "%s", error);
  dv_blas_close(b);
  return message;
}

/* The libraries stay loaded. */
void dv_blas_close(dv_blas *b) {
  if (b != NULL && b->params != NULL) (void)b->end_params(b->params);
  if (b != NULL) free(b->host_work);
  for (int i = 0; b != NULL && i < LIBRARIES; i++) {
    if (b->handle[i] != NULL) (void)b->destroy[i](b->handle[i]);
  }
  free(b);
}

/* ---- calls -----------------------------------------------------------------------------------*/

static int op_of(char trans) { return trans == 'T' ? 1 : 0; }
static int fill_of(char uplo) { return uplo == 'U' ? 1 : 0; }
static int side_of(char side) { return side == 'R' ? 1 : 0; }

/* A scalar in the dtype of the arrays. */
typedef union scalar {
  float f32;
  double f64;
} scalar;
static scalar scalar_of(bool wide, double x) {
  scalar s;
  if (wide) {
    s.f64 = x;
  } else {
    s.f32 = (float)x;
  }
  return s;
}

const char *dv_gemm(dv_blas *b, bool wide, char transa, char transb, int64_t m, int64_t n,
                    int64_t k, double alpha, const void *A, int64_t lda, const void *B, int64_t ldb,
                    double beta, void *C, int64_t ldc) {
  const scalar x = scalar_of(wide, alpha), y = scalar_of(wide, beta);
  TRY(b, "cublasGemm",
      b->gemm[wide](b->handle[CUBLAS], op_of(transa), op_of(transb), (int)m, (int)n, (int)k, &x, A,
                    (int)lda, B, (int)ldb, &y, C, (int)ldc));
  return NULL;
}
const char *dv_syrk(dv_blas *b, bool wide, char uplo, char trans, int64_t n, int64_t k,
                    double alpha, const void *A, int64_t lda, void *C, int64_t ldc) {
  const scalar x = scalar_of(wide, alpha), one = scalar_of(wide, 1.0);
  TRY(b, "cublasSyrk",
      b->syrk[wide](b->handle[CUBLAS], fill_of(uplo), op_of(trans), (int)n, (int)k, &x, A, (int)lda,
                    &one, C, (int)ldc));
  return NULL;
}
const char *dv_symm(dv_blas *b, bool wide, char side, char uplo, int64_t m, int64_t n,
                    const void *A, int64_t lda, const void *B, int64_t ldb, void *C, int64_t ldc) {
  const scalar one = scalar_of(wide, 1.0), zero = scalar_of(wide, 0.0);
  TRY(b, "cublasSymm",
      b->symm[wide](b->handle[CUBLAS], side_of(side), fill_of(uplo), (int)m, (int)n, &one, A,
                    (int)lda, B, (int)ldb, &zero, C, (int)ldc));
  return NULL;
}
const char *dv_trsm(dv_blas *b, bool wide, char side, char uplo, char trans, int64_t m, int64_t n,
                    double alpha, const void *A, int64_t lda, void *B, int64_t ldb) {
  const scalar x = scalar_of(wide, alpha);
  TRY(b, "cublasTrsm",
      b->trsm[wide](b->handle[CUBLAS], side_of(side), fill_of(uplo), op_of(trans), NON_UNIT, (int)m,
                    (int)n, &x, A, (int)lda, B, (int)ldb));
  return NULL;
}

/* cuSOLVER counts work in numbers. */
static int numbers_of(bool wide, int64_t bytes) { return (int)(bytes / (wide ? 8 : 4)); }

const char *dv_work_bytes(dv_blas *b, dv_solver what, bool wide, int64_t m, int64_t n,
                          int64_t *bytes) {
  void *h = b->handle[CUSOLVER];
  const int rows = (int)m, order = (int)n;
  int size = 0, more = 0;
  switch (what) {
  case DV_POTRF:
    TRY(b, "the size of potrf", b->potrf_size[wide](h, 0, order, NULL, order, &size));
    break;
  case DV_POTRI:
    TRY(b, "the size of potri", b->potri_size[wide](h, 0, order, NULL, order, &size));
    break;
  case DV_SYEVD:
    TRY(b, "the size of syevd",
        b->syevd_size[wide](h, WITH_VECTORS, 0, order, NULL, order, NULL, &size));
    break;
  case DV_QR:
    TRY(b, "the size of geqrf", b->geqrf_size[wide](h, rows, order, NULL, rows, &size));
    TRY(b, "the size of orgqr",
        b->orgqr_size[wide](h, rows, order, order, NULL, rows, NULL, &more));
    break;
  }
  *bytes = (int64_t)(size > more ? size : more) * (wide ? 8 : 4);
  return NULL;
}
const char *dv_potrf(dv_blas *b, bool wide, char uplo, int64_t n, void *A, int64_t lda, void *work,
                     int64_t bytes, int *info) {
  TRY(b, "cusolverDnPotrf",
      b->potrf[wide](b->handle[CUSOLVER], fill_of(uplo), (int)n, A, (int)lda, work,
                     numbers_of(wide, bytes), info));
  return NULL;
}
const char *dv_potri(dv_blas *b, bool wide, char uplo, int64_t n, void *A, int64_t lda, void *work,
                     int64_t bytes, int *info) {
  TRY(b, "cusolverDnPotri",
      b->potri[wide](b->handle[CUSOLVER], fill_of(uplo), (int)n, A, (int)lda, work,
                     numbers_of(wide, bytes), info));
  return NULL;
}
const char *dv_syevd(dv_blas *b, bool wide, int64_t n, void *V, void *w, void *work, int64_t bytes,
                     int *info) {
  TRY(b, "cusolverDnSyevd",
      b->syevd[wide](b->handle[CUSOLVER], WITH_VECTORS, 0, (int)n, V, (int)n, w, work,
                     numbers_of(wide, bytes), info));
  return NULL;
}
/* Values of cudaDataType: CUDA_R_32F is 0, CUDA_R_64F is 1. */
const char *dv_batch_bytes(dv_blas *b, bool wide, int64_t n, int64_t count, int64_t *bytes) {
  size_t device = 0, host = 0;
  *bytes = -1;
  if (b->params == NULL) return NULL;
  const char *failure = dv_use(b->desk);
  if (failure != NULL) return failure;
  /* cuSOLVER may refuse an order or a count; then each matrix takes a call of its own */
  if (b->batch_size(b->handle[CUSOLVER], b->params, WITH_VECTORS, 0, n, wide, NULL, n, wide, NULL,
                    wide, &device, &host, count) != 0)
    return NULL;
  if (host > b->host_bytes) { /* pending calls may use the old work */
    const char *error = dv_wait(b->desk);
    if (error != NULL) return error;
    free(b->host_work);
    b->host_work = malloc(host);
    b->host_bytes = b->host_work != NULL ? host : 0;
    if (b->host_work == NULL) return "out of memory";
  }
  *bytes = (int64_t)device;
  return NULL;
}
const char *dv_syevd_batch(dv_blas *b, bool wide, int64_t n, int64_t count, void *V, void *w,
                           void *work, int64_t bytes, int *infos) {
  TRY(b, "cusolverDnXsyevBatched",
      b->batch(b->handle[CUSOLVER], b->params, WITH_VECTORS, 0, n, wide, V, n, wide, w, wide, work,
               (size_t)bytes, b->host_work, b->host_bytes, infos, count));
  return NULL;
}
const char *dv_qr(dv_blas *b, int64_t m, int64_t n, float *A, int64_t lda, float *tau, void *work,
                  int64_t bytes, int *info) {
  void *h = b->handle[CUSOLVER];
  const int size = numbers_of(false, bytes);
  TRY(b, "cusolverDnSgeqrf", b->geqrf[0](h, (int)m, (int)n, A, (int)lda, tau, work, size, info));
  TRY(b, "cusolverDnSorgqr",
      b->orgqr[0](h, (int)m, (int)n, (int)n, A, (int)lda, tau, work, size, info));
  return NULL;
}
