/* floors.c: measure rates and times, from which lower bounds are computed, as the shortest of several runs. */
#include "bench.h"
#include "common/blas.h"
#include "clock.h"
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPEATS = 10, LEAST = 3 };

/* f(arg) returns the milliseconds of one run, or a negative number if it fails. Return the shortest time, or -1. */
static double measure_shortest_ms(double (*f)(void *), void *arg) {
  double best = -1, total = 0;
  for (int i = 0; i < REPEATS && (i < LEAST || total < 1e3 * LEAST); i++) {
    const double ms = f(arg);
    if (ms < 0) return -1;
    total += ms;
    if (best < 0 || ms < best) best = ms;
  }
  return best;
}

/* ---- memory ----------------------------------------------------------------------------------*/

/* A copy of `bytes` bytes, cut into ranges for the threads of a pool. */
typedef struct copy_job {
  ng_pool *pool;
  int32_t threads;
  float *from, *to;
  int64_t bytes;
} copy_job;

static void copy_range(void *arg, int32_t i) {
  const copy_job *t = arg;
  const int64_t from = t->bytes * i / t->threads, to = t->bytes * (i + 1) / t->threads;
  memcpy((char *)t->to + from, (char *)t->from + from, (size_t)(to - from));
}

static double time_copy(void *arg) {
  copy_job *t = arg;
  const double start = ng_now_ms();
  ng_pool_run(t->pool, t->threads, copy_range, t);
  return ng_now_ms() - start;
}

/* Ask the kernel (sysfs) before the C library: in a virtual machine, the C library may report the cache of the host. */
int64_t floor_read_cache_bytes(void) {
  int64_t largest = 0;
  for (int i = 0; i < 8; i++) {
    char path[80];
    (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
    FILE *f = fopen(path, "r");
    if (f == NULL) break;
    char text[32] = "", *end = text;
    if (fgets(text, sizeof text, f) != NULL) {
      const int64_t n = strtoll(text, &end, 10) * (*end == 'M' ? 1 << 20 : 1 << 10);
      if (n > largest) largest = n;
    }
    (void)fclose(f);
  }
  if (largest == 0) largest = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return largest > 0 ? largest : 32 << 20;
}

double floor_measure_copy(void) {
  const int64_t floats = floor_read_cache_bytes();
  copy_job t = {.threads = cli_count_cores(), .bytes = floats * (int64_t)sizeof(float)};
  t.pool = ng_pool_create(t.threads, NULL);
  t.from = bench_alloc(floats);
  t.to = bench_alloc(floats);
  const double ms = t.pool != NULL ? measure_shortest_ms(time_copy, &t) : -1;
  ng_pool_destroy(t.pool);
  free(t.from);
  free(t.to);
  return ms > 0 ? 2e-6 * (double)t.bytes / ms : -1;
}

/* ---- arithmetic ------------------------------------------------------------------------------*/

#if defined(NG_HAVE_BLAS)

bool floors_have_blas(void) { return true; }

typedef struct matrices {
  int64_t n;
  float *a, *b, *c; /* [n, n] */
} matrices;

static matrices make_matrices(int64_t n) {
  matrices m = {n, bench_alloc(n * n), bench_alloc(n * n), bench_alloc(n * n)};
  bench_fill_random(m.a, n * n, 1.0F);
  bench_fill_random(m.b, n * n, 1.0F);
  return m;
}

/* Return the shortest time of `run` on these matrices, and free them. */
static double measure_on_matrices(double (*run)(void *), matrices m) {
  const double ms = measure_shortest_ms(run, &m);
  free(m.a);
  free(m.b);
  free(m.c);
  return ms;
}

static double time_sgemm(void *arg) {
  const matrices *m = arg;
  const int n = (int)m->n;
  const float one = 1, zero = 0;
  const double start = ng_now_ms();
  sgemm_("N", "N", &n, &n, &n, &one, m->a, &n, m->b, &n, &zero, m->c, &n, 1, 1);
  return ng_now_ms() - start;
}

double floor_measure_sgemm(int order) {
  const double ms = measure_on_matrices(time_sgemm, make_matrices(order));
  return ms > 0 ? 2e-6 * (double)order * order * order / ms : -1;
}

/* Invert a copy of matrix `a` by Cholesky factorisation; return the milliseconds. */
static double time_cholesky(void *arg) {
  const matrices *m = arg;
  const int n = (int)m->n;
  int info[2] = {0, 0};
  memcpy(m->b, m->a, (size_t)(m->n * m->n) * sizeof(float));
  const double start = ng_now_ms();
  spotrf_("L", &n, m->b, &n, &info[0], 1);
  spotri_("L", &n, m->b, &n, &info[1], 1);
  return info[0] == 0 && info[1] == 0 ? ng_now_ms() - start : -1;
}

/* LAPACK reads one triangle. Off the diagonal, magnitudes are below 1/n, so the matrix is positive definite. */
double floor_measure_cholesky(int64_t n) {
  const matrices m = make_matrices(n);
  for (int64_t i = 0; i < n * n; i++)
    m.a[i] = i % (n + 1) == 0 ? 1.0F : m.a[i] * 0.9F / (float)n;
  return measure_on_matrices(time_cholesky, m);
}

#else

bool floors_have_blas(void) { return false; }
double floor_measure_sgemm(int order) {
  (void)order;
  return -1;
}
double floor_measure_cholesky(int64_t n) {
  (void)n;
  return -1;
}

#endif
