/* packed.c: see packed.h. */
#include "linalg/packed.h"

static void *at(void *x, ng_dtype t, int64_t i) {
  return t == NG_F64 ? (void *)((double *)x + i) : (void *)((float *)x + i);
}

ng_sym_blocks ng_sym_blocks_of(int64_t n, void *S, ng_dtype t) {
  ng_sym_blocks b;
  b.ld = n | 1;
  b.h = (n + 1) / 2;
  b.g = n - b.h;
  b.t1 = at(S, t, ng_sym_at(n, 0, 0));
  b.r = b.g > 0 ? at(S, t, ng_sym_at(n, b.h, 0)) : b.t1; /* R and T2 are empty if n = 1 */
  b.t2 = b.g > 0 ? at(S, t, ng_sym_at(n, b.h, b.h)) : b.t1;
  return b;
}

/* ---- products --------------------------------------------------------------------------------*/

/* SYRK adds the two triangles, with half the work of GEMM; GEMM adds the rectangle between them. */
void ng_packed_add_gram(const ng_blas *f, ng_queue *q, ng_sym S, int64_t r0, int64_t m,
                        const float *X, int64_t rows, int64_t ldx, float alpha) {
  ng_sym_piece p[3];
  const int32_t n = ng_sym_cut(S, r0, m, r0, m, p);
  for (int32_t i = 0; i < n; i++) {
    const float *x = X + (p[i].row - r0), *y = X + (p[i].col - r0);
    if (!p[i].diagonal) {
      /* if the block crosses column h, ng_sym_cut returns a rectangle that lies left of column h */
      f->gemm(q, NG_F32, 'N', 'T', p[i].rows, p[i].cols, rows, (double)alpha, x, ldx, y, ldx, 1.0,
              p[i].a, p[i].col_stride);
    } else {
      const bool is_lower = p[i].row_stride == 1;
      f->syrk(q, NG_F32, is_lower ? 'L' : 'U', 'N', p[i].rows, rows, (double)alpha, x, ldx, p[i].a,
              is_lower ? p[i].col_stride : p[i].row_stride);
    }
  }
}

/* C' = S B'. The first h rows of B' and C' belong to T1, the others to T2. */
void ng_packed_mul_right(const ng_blas *f, ng_queue *q, ng_sym S, int32_t half, int64_t m,
                         const float *B, int64_t ldb, float *C, int64_t ldc) {
  const ng_dtype t = NG_F32;
  const ng_sym_blocks s = ng_sym_blocks_of(S.n, S.a, t);
  const float *B2 = B + s.h;
  if (half == 0) {
    f->symm(q, t, 'L', 'L', s.h, m, s.t1, s.ld, B, ldb, C, ldc);
    if (s.g > 0) f->gemm(q, t, 'T', 'N', s.h, m, s.g, 1.0, s.r, s.ld, B2, ldb, 1.0, C, ldc);
  } else if (s.g > 0) {
    f->symm(q, t, 'L', 'U', s.g, m, s.t2, s.ld, B2, ldb, C + s.h, ldc);
    f->gemm(q, t, 'N', 'N', s.g, m, s.h, 1.0, s.r, s.ld, B, ldb, 1.0, C + s.h, ldc);
  }
}

/* C' = B' S. The first h columns of B' and C' belong to T1, the others to T2. */
void ng_packed_mul_left(const ng_blas *f, ng_queue *q, ng_sym S, int32_t half, int64_t m,
                        const float *B, int64_t ldb, float *C, int64_t ldc) {
  const ng_dtype t = NG_F32;
  const ng_sym_blocks s = ng_sym_blocks_of(S.n, S.a, t);
  const float *B2 = B + s.h * ldb;
  float *C2 = C + s.h * ldc;
  if (half == 0) {
    f->symm(q, t, 'R', 'L', m, s.h, s.t1, s.ld, B, ldb, C, ldc);
    if (s.g > 0) f->gemm(q, t, 'N', 'N', m, s.h, s.g, 1.0, B2, ldb, s.r, s.ld, 1.0, C, ldc);
  } else if (s.g > 0) {
    f->symm(q, t, 'R', 'U', m, s.g, s.t2, s.ld, B2, ldb, C2, ldc);
    f->gemm(q, t, 'N', 'T', m, s.g, s.h, 1.0, B, ldb, s.r, s.ld, 1.0, C2, ldc);
  }
}

/* ---- solves ----------------------------------------------------------------------------------*/

/* B' <- L'^-1 L^-1 B', where L = [T1 0; R T2] and T2' is stored as an upper triangle. */
void ng_packed_solve_right(const ng_blas *f, ng_queue *q, int64_t n, const void *L, ng_dtype t,
                           int64_t m, void *B, int64_t ldb) {
  const ng_sym_blocks s = ng_sym_blocks_of(n, (void *)(uintptr_t)L, t);
  void *B2 = at(B, t, s.h);
  f->trsm(q, t, 'L', 'L', 'N', s.h, m, 1.0, s.t1, s.ld, B, ldb);
  if (s.g > 0) {
    f->gemm(q, t, 'N', 'N', s.g, m, s.h, -1.0, s.r, s.ld, B, ldb, 1.0, B2, ldb);
    f->trsm(q, t, 'L', 'U', 'T', s.g, m, 1.0, s.t2, s.ld, B2, ldb);
    f->trsm(q, t, 'L', 'U', 'N', s.g, m, 1.0, s.t2, s.ld, B2, ldb);
    f->gemm(q, t, 'T', 'N', s.h, m, s.g, -1.0, s.r, s.ld, B2, ldb, 1.0, B, ldb);
  }
  f->trsm(q, t, 'L', 'L', 'T', s.h, m, 1.0, s.t1, s.ld, B, ldb);
}

/* B' <- B' L'^-1 L^-1, with L as in ng_packed_solve_right. */
void ng_packed_solve_left(const ng_blas *f, ng_queue *q, int64_t n, const void *L, ng_dtype t,
                          int64_t m, void *B, int64_t ldb) {
  const ng_sym_blocks s = ng_sym_blocks_of(n, (void *)(uintptr_t)L, t);
  void *B2 = at(B, t, s.h * ldb);
  f->trsm(q, t, 'R', 'L', 'T', m, s.h, 1.0, s.t1, s.ld, B, ldb);
  if (s.g > 0) {
    f->gemm(q, t, 'N', 'T', m, s.g, s.h, -1.0, B, ldb, s.r, s.ld, 1.0, B2, ldb);
    f->trsm(q, t, 'R', 'U', 'N', m, s.g, 1.0, s.t2, s.ld, B2, ldb);
    f->trsm(q, t, 'R', 'U', 'T', m, s.g, 1.0, s.t2, s.ld, B2, ldb);
    f->gemm(q, t, 'N', 'N', m, s.h, s.g, -1.0, B2, ldb, s.r, s.ld, 1.0, B, ldb);
  }
  f->trsm(q, t, 'R', 'L', 'N', m, s.h, 1.0, s.t1, s.ld, B, ldb);
}
