/* ref_largest.c: the entries of largest.c, element by element. Packed entries are exact, so `ref` packs as `cpu`. */
#include <math.h>
#include <string.h>

#include "kernel/entries.h"

static uint32_t key_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffU;
}

static void add_error(const ng_largest *v) {
  for (int64_t i = 0; i < v->n && v->error != NULL; i++) {
    const float sum = (float)((double)v->error[i] + (double)v->by * (double)v->x[i]);
    v->x[i] = isfinite(sum) ? sum : v->error[i];
  }
}

static int64_t count_keys_from(const ng_largest *v, uint32_t least) {
  int64_t some = 0;
  for (int64_t i = 0; i < v->n; i++) {
    some += key_of(v->x[i]) >= least;
  }
  return some;
}

/* List the keys above `prefix` and the first `equal` keys that are equal; return their number. */
static int64_t list_largest(const ng_largest *v, uint32_t prefix, int64_t equal) {
  int64_t m = 0;
  for (int64_t i = 0; i < v->n; i++) {
    const uint32_t key = key_of(v->x[i]);
    if (key > prefix || (key == prefix && equal-- > 0)) v->chosen[m++] = (int32_t)i;
  }
  return m;
}

/* Find the k-th largest key bit by bit, the highest bit first. */
void ng_ref_select_largest(ng_queue *q, const ng_largest *v, int64_t n, int32_t *count) {
  (void)q, (void)count;
  for (const ng_largest *end = v + n; v < end; v++) {
    uint32_t key = 0;
    add_error(v);
    for (uint32_t bit = UINT32_C(1) << 30; bit > 0; bit >>= 1) {
      if (count_keys_from(v, key | bit) >= v->k) key |= bit;
    }
    list_largest(v, key, v->k - count_keys_from(v, key + 1));
  }
}

void ng_ref_count_largest(ng_queue *q, const ng_largest *v, int64_t n) {
  (void)q;
  for (const ng_largest *end = v + n; v < end; v++) {
    add_error(v);
    v->count[0] = (double)count_keys_from(v, v->prefix + 1);
    v->count[1] = (double)count_keys_from(v, v->prefix) - v->count[0];
    if (v->digits == 0) continue;
    memset(v->count, 0, sizeof *v->count << v->digits);
    for (int64_t i = 0; i < v->n; i++) {
      const uint32_t digits = key_of(v->x[i]) >> v->shift;
      if (digits >> v->digits != v->prefix) continue;
      v->count[digits - (v->prefix << v->digits)] += 1.0;
    }
  }
}

void ng_ref_collect_largest(ng_queue *q, const ng_largest *v, int64_t n) {
  (void)q;
  for (const ng_largest *end = v + n; v < end; v++) {
    *v->selected = list_largest(v, v->prefix, v->equal);
  }
}

void ng_ref_store_largest(ng_queue *q, const ng_largest *v, int64_t n) {
  (void)q;
  for (const ng_largest *end = v + n; v < end; v++) {
    for (int64_t b = 0; b < v->blocks; b++) {
      int64_t before = 0;
      while (before < v->k && v->chosen[before] < b * NG_FLAT_BLOCK) {
        before++;
      }
      v->begin[b] = (int32_t)(v->first + (b > 0 && before == v->k ? v->size : before));
    }
    for (int64_t j = 0; j < v->size; j++) {
      void *value = (char *)v->value + j * ng_dtype_size(v->dtype);
      v->index[j] = 0;
      memset(value, 0, (size_t)ng_dtype_size(v->dtype));
      if (j >= v->k) continue;
      float *x = &v->x[v->chosen[j]], rounded;
      ng_from_f32(value, v->dtype, x, 1);
      ng_to_f32(&rounded, value, v->dtype, 1);
      *x -= rounded;
      v->index[j] = (uint16_t)(v->chosen[j] % NG_FLAT_BLOCK);
    }
  }
}
