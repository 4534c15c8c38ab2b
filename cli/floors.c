/* floors.c: lower bounds of the parts of a step.  Each bound is the least time of up to ten runs on all threads. */
#include "floors.h"

#include "bench.h"
#include "common/blas.h"
#include "clock.h"
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPEATS = 10, LEAST = 3 };

/* Return the least result of f(arg), the milliseconds of one run; return -1 if f returns a negative number
 * (failure). */
static double best_of(double (*f)(void *), void *arg) {
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

/* A copy of `bytes` bytes by n threads. */
typedef struct team {
  ng_pool *pool;
  int32_t n;
  char *from, *to;
  int64_t bytes;
} team;

static void copy_share(void *arg, int32_t i) {
  const team *t = arg;
  const int64_t from = t->bytes * i / t->n, to = t->bytes * (i + 1) / t->n;
  memcpy(t->to + from, t->from + from, (size_t)(to - from));
}

static double copy_run(void *arg) {
  team *t = arg;
  const double start = ng_now_ms();
  ng_pool_run(t->pool, t->n, copy_share, t);
  return ng_now_ms() - start;
}

/* Ask the kernel before the C library: in a virtual machine, the C library can report the cache of the host. */
int64_t floor_cache_bytes(void) {
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

double floor_copy_gbs(void) {
  team t = {.n = cli_cores(), .bytes = 4 * floor_cache_bytes()};
  t.pool = ng_pool_create(t.n, NULL);
  t.from = malloc((size_t)t.bytes);
  t.to = malloc((size_t)t.bytes);
  double ms = -1;
  if (t.pool != NULL && t.from != NULL && t.to != NULL) {
    memset(t.from, 1, (size_t)t.bytes); /* map the pages */
    memset(t.to, 2, (size_t)t.bytes);
    ms = best_of(copy_run, &t);
  }
  ng_pool_destroy(t.pool);
  free(t.from);
  free(t.to);
  return ms > 0 ? 2e-6 * (double)t.bytes / ms : -1;
}

/* ---- arithmetic ------------------------------------------------------------------------------*/

#if defined(NG_HAVE_BLAS)

bool floors_possible(void) { return true; }

typedef struct sizes {
  int64_t n;
  float *a, *b, *c;
} sizes;

static bool make_arrays(sizes *s, int64_t a, int64_t b, int64_t c) {
  s->a = malloc((size_t)a * sizeof(float));
  s->b = malloc((size_t)b * sizeof(float));
  s->c = malloc((size_t)c * sizeof(float));
  if (s->a == NULL || s->b == NULL || s->c == NULL) return false;
  bench_fill(s->a, a, 1.0F);
  bench_fill(s->b, b, 1.0F);
  memset(s->c, 0, (size_t)c * sizeof(float));
  return true;
}

static void free_arrays(sizes *s) {
  free(s->a);
  free(s->b);
  free(s->c);
}

static double gemm_run(void *arg) {
  const sizes *s = arg;
  const int n = (int)s->n;
  const float one = 1, zero = 0;
  const double start = ng_now_ms();
  sgemm_("N", "N", &n, &n, &n, &one, s->a, &n, s->b, &n, &zero, s->c, &n, 1, 1);
  return ng_now_ms() - start;
}

double floor_sgemm_gflops(int order) {
  const int64_t nn = (int64_t)order * order;
  sizes s = {.n = order};
  const double ms = make_arrays(&s, nn, nn, nn) ? best_of(gemm_run, &s) : -1;
  free_arrays(&s);
  return ms > 0 ? 2e-6 * (double)nn * order / ms : -1;
}

/* Fill a [n, n] with 1 on the diagonal and symmetric numbers of magnitude below 1/n elsewhere: positive definite. */
static void fill_definite(float *a, int64_t n) {
  bench_fill(a, n * n, 1.0F);
  for (int64_t i = 0; i < n * n; i++)
    a[i] *= 0.9f / (float)n;
  for (int64_t j = 0; j < n; j++) {
    a[j + j * n] = 1;
    for (int64_t i = j + 1; i < n; i++)
      a[j + i * n] = a[i + j * n];
  }
}

static double cholesky_run(void *arg) {
  const sizes *s = arg;
  const int n = (int)s->n;
  int info = 0, second = 0;
  memcpy(s->b, s->a, (size_t)(s->n * s->n) * sizeof(float));
  const double start = ng_now_ms();
  spotrf_("L", &n, s->b, &n, &info, 1);
  spotri_("L", &n, s->b, &n, &second, 1);
  return info == 0 && second == 0 ? ng_now_ms() - start : -1;
}

double floor_cholesky(int64_t n) {
  sizes s = {.n = n};
  double ms = -1;
  if (make_arrays(&s, n * n, n * n, 1)) {
    fill_definite(s.a, n);
    ms = best_of(cholesky_run, &s);
  }
  free_arrays(&s);
  return ms;
}

#else

bool floors_possible(void) { return false; }
double floor_sgemm_gflops(int order) {
  (void)order;
  return -1;
}
double floor_cholesky(int64_t n) {
  (void)n;
  return -1;
}

#endif
