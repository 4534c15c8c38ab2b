/* feed.c: which samples a step sees.  The order of an epoch is a permutation drawn by (seed,
 * epoch), and what happens to a sample depends on (seed, epoch, sample): nothing but the batch before
 * of mixup is carried from step to step, so a run may begin anywhere. */
#include "feed.h"
#include "random.h"

#include <stdlib.h>
#include <string.h>

int feed_create(const settings *s, const data_set *d, bool reconstructs, ng_pool *pool, feed *out) {
  memset(out, 0, sizeof *out);
  if (s->batch > d->train.n && s->validation > 0) {
    return cli_bad(
        "--validation: %lld samples leave %d of %s to train on, less than a batch of %lld",
        (long long)s->validation, (int)d->train.n, d->name, (long long)s->batch);
  }
  if (s->batch > d->train.n) {
    return cli_bad("--batch: %lld samples, but %s has %d to train on", (long long)s->batch, d->name,
                   (int)d->train.n);
  }
  if (settings_samples(s) > d->train.n) {
    return cli_bad("--acc-iters: %lld batches of %lld samples, but %s has %d to train on",
                   (long long)s->acc_iters, (long long)s->batch, d->name, (int)d->train.n);
  }
  const bool automatic = strcmp(s->augment, "auto") == 0;
  data_how how = {.normalise = !reconstructs, .seed = (uint64_t)s->seed};
  how.crop = automatic ? d->augments : strstr(s->augment, "crop") != NULL;
  how.flip = automatic ? d->augments : strstr(s->augment, "flip") != NULL;
  if ((how.crop || how.flip) && (d->height < 2 || d->width < 2)) {
    return cli_bad("--augment: %s needs images, %s has rows of features", s->augment, d->name);
  }
  const size_t values = (size_t)s->batch * (size_t)(d->height * d->width * d->channels);
  *out = (feed){.d = d,
                .test = s->validation > 0 ? &d->validation : &d->test,
                .how = how,
                .pool = pool,
                .batch = (int32_t)s->batch,
                .acc_iters = s->acc_iters,
                .per_epoch = d->train.n / settings_samples(s),
                .order = cli_take((size_t)d->train.n, sizeof(int32_t)),
                .ordered = -1,
                .x = cli_take(values, sizeof(float)),
                .labels = cli_take((size_t)s->batch, sizeof(int32_t)),
                .rows = cli_take((size_t)s->batch, sizeof(int32_t))};
  const int rc = mix_create(s, d, reconstructs, &out->mix);
  if (rc != CLI_OK) feed_free(out);
  return rc;
}

void feed_free(feed *f) {
  free(f->order);
  free(f->x);
  free(f->labels);
  free(f->rows);
  mix_free(&f->mix);
  memset(f, 0, sizeof *f);
}

typedef struct piece {
  const feed *f;
  const data_split *split;
  const int32_t *order; /* NULL: from `first` on */
  data_how how;
  int32_t first, count, pieces;
} piece;

static void fill_piece(void *arg, int32_t i) {
  const piece *p = arg;
  const data_set *d = p->f->d;
  const int32_t from = (int32_t)((int64_t)p->count * i / p->pieces);
  const int32_t to = (int32_t)((int64_t)p->count * (i + 1) / p->pieces);
  data_batch(d, p->split, p->order != NULL ? p->order + from : NULL, p->first + from, to - from,
             &p->how, p->f->x + (int64_t)from * d->height * d->width * d->channels,
             p->f->labels + from);
}

static void fill(const feed *f, piece *p) {
  const int32_t threads = f->pool != NULL ? ng_pool_threads(f->pool) : 1;
  p->pieces = threads < p->count ? threads : p->count;
  if (p->pieces > 1) {
    ng_pool_run(f->pool, p->pieces, fill_piece, p);
  } else {
    p->pieces = 1;
    fill_piece(p, 0);
  }
}

void feed_train(feed *f, int64_t step, int64_t micro) {
  const int64_t epoch = step / f->per_epoch;
  if (f->ordered != epoch) {
    random_order(f->how.seed, RANDOM_ORDER, (uint32_t)epoch, f->d->train.n, f->order);
    f->ordered = epoch;
  }
  piece p = {.f = f,
             .split = &f->d->train,
             .order = f->order + (step % f->per_epoch * f->acc_iters + micro) * f->batch,
             .how = f->how,
             .count = f->batch};
  p.how.epoch = (uint32_t)epoch;
  fill(f, &p);
  for (int32_t i = 0; i < f->batch; i++)
    f->rows[i] = p.split->index != NULL ? p.split->index[p.order[i]] : p.order[i];
  mix_batch(&f->mix, p.how.epoch, f->rows, f->labels, f->x);
}

void feed_test(feed *f, int32_t first, int32_t count) {
  piece p = {.f = f, .split = f->test, .how = f->how, .first = first, .count = count};
  p.how.crop = p.how.flip = false;
  fill(f, &p);
}
