/* mix.c: mixup and random erasing; mix.h has the formulas. */
#include "mix.h"
#include "common/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Return a number in (0, 1], whose logarithm is finite. */
static double draw_positive(uint32_t word) { return ((double)(word >> 8) + 1.0) * 0x1p-24; }

/* Draw from Beta(alpha, alpha) by Joehnk (1964): u^(1/alpha) / (u^(1/alpha) + v^(1/alpha)) for uniform u, v, if the sum
 * is at most 1; else try again. Powers are computed as logarithms, because small ones underflow. For alpha = 4, the
 * upper bound of the setting, one pair in 70 is accepted, else more: all tries fail with probability e^-117. */
double mix_draw_weight(double alpha, uint64_t seed, uint32_t epoch, int32_t row) {
  enum { TRIES = 4096 };
  for (uint64_t i = 0; i < TRIES; i++) {
    uint32_t w[4];
    random_words(seed, RANDOM_MIXUP, epoch, (uint64_t)(uint32_t)row * TRIES + i, w);
    for (int k = 0; k < 4; k += 2) {
      const double log_u = log(draw_positive(w[k])), log_v = log(draw_positive(w[k + 1]));
      const double u = log_u / alpha, v = log_v / alpha;
      if (exp(u) + exp(v) > 1.0) continue;
      const bool both_infinite = !(fabs(v - u) >= 0.0);
      const double l = 1.0 / (1.0 + exp(both_infinite ? (log_v - log_u) / alpha : v - u));
      return fmax(l, 1.0 - l);
    }
  }
  return 0.5;
}

/* Return a whole number from 0 to n - 1. */
static int64_t draw_below(int64_t n, uint32_t word) {
  return (int64_t)(((uint64_t)word * (uint64_t)n) >> 32);
}

mix_box mix_draw_erased_box(const settings *s, uint32_t epoch, int32_t row, int64_t height,
                            int64_t width) {
  uint32_t w[8];
  const uint64_t at = (uint64_t)(uint32_t)row * 2, seed = (uint64_t)s->seed;
  random_words(seed, RANDOM_ERASE, epoch, at, w);
  random_words(seed, RANDOM_ERASE, epoch, at + 1, w + 4);
  if (random_unit(w[0]) >= s->erase_rate) return (mix_box){0, 0, 0, 0};
  const double low = s->erase_area_low, high = s->erase_area_high, thin = s->erase_aspect_low;
  const double area = (double)(height * width) * (low + (high - low) * random_unit(w[1]));
  const double aspect = thin + (1.0 - thin) * random_unit(w[2]);
  const int64_t shorter = (int64_t)(sqrt(area * aspect) + 0.5);
  const int64_t longer = (int64_t)(sqrt(area / aspect) + 0.5);
  mix_box b = {.height = w[3] >> 31 != 0 ? longer : shorter};
  b.width = w[3] >> 31 != 0 ? shorter : longer;
  if (b.height > height) b.height = height;
  if (b.width > width) b.width = width;
  b.top = draw_below(height - b.height + 1, w[4]);
  b.left = draw_below(width - b.width + 1, w[5]);
  return b;
}

int mix_create(const settings *s, const data_set *d, const run_ranks *ranks, bool reconstructs,
               mix *out) {
  const run_ranks k = ranks != NULL ? *ranks : ranks_from_transport(NULL);
  const int64_t first = ranks_find_first(&k, k.rank, s->batch);
  *out = (mix){.s = s,
               .ranks = k,
               .height = d->height,
               .width = d->width,
               .channels = d->channels,
               .classes = d->classes,
               .batch = (int32_t)(ranks_find_first(&k, k.rank + 1, s->batch) - first)};
  if (reconstructs && (s->mixup_alpha > 0.0 || s->erase_rate > 0.0))
    return cli_fail("--%s: model %s has no labels",
                    s->mixup_alpha > 0.0 ? "mixup-alpha" : "erase-rate", s->model);
  if (s->erase_rate > 0.0 && (d->height < 2 || d->width < 2))
    return cli_fail("--erase-rate: needs images, %s has none", d->name);
  if (s->mixup_alpha <= 0.0) return CLI_OK;
  if (d->context > 0)
    return cli_fail("--mixup-alpha: needs images or features, %s has tokens", d->name);
  const size_t values = (size_t)out->batch * (size_t)(d->height * d->width * d->channels);
  const size_t targets = (size_t)out->batch * (size_t)d->classes;
  out->last = cli_alloc(values, sizeof *out->last);
  out->last_targets = cli_alloc(targets, sizeof *out->last_targets);
  out->targets = cli_alloc(targets, sizeof *out->targets);
  return CLI_OK;
}

void mix_free(mix *m) {
  free(m->last);
  free(m->last_targets);
  free(m->targets);
  memset(m, 0, sizeof *m);
}

/* now <- l now + (1 - l) last. Then last <- `now` before this, or with running mixup `now` after this. */
static void blend_with_previous(float *now, float *last, int64_t count, double l, bool running) {
  const float a = (float)l, b = (float)(1.0 - l);
  for (int64_t k = 0; k < count; k++) {
    const float was = now[k];
    now[k] = a * was + b * last[k];
    last[k] = running ? now[k] : was;
  }
}

static void erase_box(const mix *m, const mix_box *b, float *x) {
  for (int64_t y = b->top; y < b->top + b->height; y++)
    memset(x + (y * m->width + b->left) * m->channels, 0,
           (size_t)(b->width * m->channels) * sizeof *x);
}

/* Write the target of a label: a vector over the classes, with label smoothing. */
static void write_target(const mix *m, int32_t label, float *t) {
  const double smooth = m->s->label_smoothing;
  for (int64_t k = 0; k < m->classes; k++)
    t[k] = (float)(smooth / (double)m->classes + (k == label ? 1.0 - smooth : 0.0));
}

void mix_batch(mix *m, uint32_t epoch, const int32_t *rows, const int32_t *labels, float *x) {
  const int64_t per = m->height * m->width * m->channels;
  const settings *s = m->s;
  for (int32_t i = 0; i < m->batch; i++) {
    float *image = x + i * per;
    if (m->last != NULL) {
      /* the first batch has no previous batch to mix with, so its weight is 1 */
      const double l =
          m->is_started ? mix_draw_weight(s->mixup_alpha, (uint64_t)s->seed, epoch, rows[i]) : 1.0;
      float *t = m->targets + i * m->classes, *last_t = m->last_targets + i * m->classes;
      write_target(m, labels[i], t);
      blend_with_previous(t, last_t, m->classes, l, s->running_mixup);
      blend_with_previous(image, m->last + i * per, per, l, s->running_mixup);
    }
    if (s->erase_rate <= 0.0) continue;
    const mix_box b = mix_draw_erased_box(s, epoch, rows[i], m->height, m->width);
    erase_box(m, &b, image);
    if (m->last != NULL && s->running_mixup) erase_box(m, &b, m->last + i * per);
  }
  m->is_started = true;
}

bool mix_has_previous(const mix *m) { return m->last != NULL; }

static float *get_previous(const mix *m, int i) { return i == 0 ? m->last : m->last_targets; }

static float *get_tensor_data(const ngio_tensor *t) { return (float *)(uintptr_t)t->data; }

void mix_create_tensors(const mix *m, ngio_tensor t[2]) {
  memset(t, 0, 2 * sizeof *t);
  if (!mix_has_previous(m)) return;
  t[0] = (ngio_tensor){.name = "natgrad.mixup.images",
                       .dtype = NGIO_F32,
                       .ndim = 4,
                       .shape = {m->s->batch, m->height, m->width, m->channels}};
  t[1] = (ngio_tensor){.name = "natgrad.mixup.targets",
                       .dtype = NGIO_F32,
                       .ndim = 2,
                       .shape = {m->s->batch, m->classes}};
  for (int i = 0; i < 2; i++) {
    t[i].bytes = ngio_bytes_of(t[i].dtype, t[i].shape, t[i].ndim);
    t[i].data = cli_alloc((size_t)t[i].bytes, 1);
  }
}

void mix_free_tensors(const ngio_tensor t[2]) {
  free(get_tensor_data(&t[0]));
  free(get_tensor_data(&t[1]));
}

/* Return the index of the first element of rank `rank` in tensor i of all ranks; *n: the number of its elements. */
static int64_t get_rank_offset(const mix *m, int i, int32_t rank, int64_t *n) {
  const int64_t each = i == 0 ? m->height * m->width * m->channels : m->classes;
  const int64_t first = ranks_find_first(&m->ranks, rank, m->s->batch);
  *n = each * (ranks_find_first(&m->ranks, rank + 1, m->s->batch) - first);
  return each * first;
}

int mix_gather(const mix *m, ngio_tensor t[2]) {
  const run_ranks *k = &m->ranks;
  int rc = CLI_OK;
  mix_create_tensors(m, t);
  for (int i = 0; i < 2; i++) {
    for (int32_t q = 0; q < k->size && rc == CLI_OK; q++) {
      int64_t n;
      float *x = get_tensor_data(&t[i]) + get_rank_offset(m, i, q, &n);
      const int64_t bytes = n * (int64_t)sizeof *x;
      if (k->rank == q) memcpy(x, get_previous(m, i), (size_t)bytes);
      if (n > 0) rc = ranks_broadcast_from(k, q, x, bytes);
    }
  }
  return rc;
}

int mix_scatter(mix *m, const ngio_tensor t[2]) {
  int rc = CLI_OK;
  for (int i = 0; i < 2 && rc == CLI_OK; i++) {
    int64_t n;
    rc = ranks_broadcast(&m->ranks, get_tensor_data(&t[i]), t[i].bytes);
    const float *x = get_tensor_data(&t[i]) + get_rank_offset(m, i, m->ranks.rank, &n);
    memcpy(get_previous(m, i), x, (size_t)n * sizeof *x);
  }
  m->is_started = rc == CLI_OK;
  return rc;
}
