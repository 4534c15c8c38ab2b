/* feed.c: select and load the samples of each step. The order of an epoch is a permutation drawn from (seed, epoch);
 * the augmentation of a sample is drawn from (seed, epoch, sample). So a run can start at any step, except that mixup
 * also needs the previous batch. */
#include "feed.h"
#include "common/random.h"

#include <stdlib.h>
#include <string.h>

int feed_create(const settings *s, const data_set *d, const run_ranks *ranks, bool reconstructs,
                ng_pool *pool, feed *out) {
  memset(out, 0, sizeof *out);
  if (s->batch > d->train.n && s->validation > 0)
    return cli_fail(
        "--validation: %lld samples leave %d of %s to train on, less than a batch of %lld",
        (long long)s->validation, (int)d->train.n, d->name, (long long)s->batch);
  if (s->batch > d->train.n)
    return cli_fail("--batch: %lld samples, but %s has %d to train on", (long long)s->batch,
                    d->name, (int)d->train.n);
  if (settings_count_samples(s) > d->train.n)
    return cli_fail("--acc-iters: %lld batches of %lld samples, but %s has %d to train on",
                    (long long)s->acc_iters, (long long)s->batch, d->name, (int)d->train.n);
  const bool automatic = strcmp(s->augment, "auto") == 0;
  data_transform how = {.normalise = !reconstructs, .seed = (uint64_t)s->seed};
  how.crop = automatic ? d->augments : strstr(s->augment, "crop") != NULL;
  how.flip = automatic ? d->augments : strstr(s->augment, "flip") != NULL;
  if ((how.crop || how.flip) && (d->height < 2 || d->width < 2))
    return cli_fail("--augment: %s needs images, %s has none", s->augment, d->name);
  const int64_t first = ranks == NULL ? 0 : ranks_find_first(ranks, ranks->rank, s->batch);
  const int64_t end = ranks == NULL ? s->batch : ranks_find_first(ranks, ranks->rank + 1, s->batch);
  const int64_t batch = end - first, capacity = batch > 0 ? batch : 1;
  const size_t values = (size_t)capacity * (size_t)(d->height * d->width * d->channels);
  *out = (feed){.d = d,
                .test = s->validation > 0 ? &d->validation : &d->test,
                .how = how,
                .pool = pool,
                .batch = (int32_t)batch,
                .capacity = (int32_t)capacity,
                .whole_batch = s->batch,
                .first = first,
                .acc_iters = s->acc_iters,
                .per_epoch = d->train.n / settings_count_samples(s),
                .order = cli_alloc((size_t)d->train.n, sizeof(int32_t)),
                .ordered = -1,
                .x = cli_alloc(values, sizeof(float)),
                .labels = cli_alloc((size_t)(capacity * data_count_labels(d)), sizeof(int32_t)),
                .rows = cli_alloc((size_t)capacity, sizeof(int32_t)),
                .next_taken = -1};
  const int rc = mix_create(s, d, ranks, reconstructs, &out->mix);
  if (rc != CLI_OK) feed_free(out);
  return rc;
}

void feed_free(feed *f) {
  free(f->order);
  free(f->x);
  free(f->labels);
  free(f->rows);
  free(f->spare);
  image_loader_destroy(&f->loader);
  mix_free(&f->mix);
  memset(f, 0, sizeof *f);
}

typedef struct piece {
  const feed *f;
  const data_split *split;
  const int32_t *order; /* NULL: samples first, first + 1, ... */
  data_transform how;
  int32_t first, count, pieces;
} piece;

static void fill_piece(void *arg, int32_t i) {
  const piece *p = arg;
  const data_set *d = p->f->d;
  const int32_t from = (int32_t)((int64_t)p->count * i / p->pieces);
  const int32_t to = (int32_t)((int64_t)p->count * (i + 1) / p->pieces);
  data_fill_batch(d, p->split, p->order != NULL ? p->order + from : NULL, p->first + from,
                  to - from, &p->how, p->f->x + (int64_t)from * d->height * d->width * d->channels,
                  p->f->labels + from * data_count_labels(d));
}

static void fill_in_parallel(const feed *f, piece *p) {
  const int32_t threads = f->pool != NULL ? ng_pool_threads(f->pool) : 1;
  p->pieces = threads < p->count ? threads : p->count;
  if (p->pieces > 1) {
    ng_pool_run(f->pool, p->pieces, fill_piece, p);
  } else {
    p->pieces = 1;
    fill_piece(p, 0);
  }
}

static int32_t get_source_row(const data_split *s, int32_t sample) {
  return s->index != NULL ? s->index[sample] : sample;
}

static void write_image(feed *f, const piece *p, int32_t at, int32_t row, const uint8_t *bytes) {
  image_write_input(f->d, row, &p->how, bytes, f->x + at * f->d->height * f->d->width * 3);
  f->labels[at] = p->split->labels[row];
  f->rows[at] = row;
}

/* Count and report an unreadable file, once in this process. CLI_BAD: more than 1 % of all files are unreadable. */
static int report_unreadable(const feed *f, const image_list *list, int32_t row, const char *why) {
  image_set *set = f->d->images;
  if (atomic_exchange(&set->reported[list->first + row], 1) != 0) return CLI_OK;
  const int n = atomic_fetch_add(&set->unreadable, 1) + 1;
  if (n * 100LL > set->total)
    return cli_fail(
        "--data: images: %d of %d files are unreadable, more than 1 %%; the last is %s: %s", n,
        set->total, list->path[row], why);
  cli_note("%s: unreadable, left out (%d of %d files): %s", list->path[row], n, set->total, why);
  return CLI_OK;
}

/* Replace the unreadable image at index `place` of the epoch's order by the next readable image in this order. */
static int decode_replacement(feed *f, const piece *p, int64_t place, int32_t at, char *why) {
  const int32_t n = p->split->n;
  for (int64_t i = 0; i < n; i++) {
    const int32_t row = get_source_row(p->split, f->order[(place + i) % n]);
    if (i > 0 && image_decode(f->d->images, p->split->images, row, &p->how, f->spare, why)) {
      write_image(f, p, at, row, f->spare);
      return CLI_OK;
    }
    if (report_unreadable(f, p->split->images, row, why) != CLI_OK) return CLI_BAD;
  }
  return cli_fail("--data: images: none of %d files can be read", n);
}

/* Return the index, in the order of the epoch, of sample i of this rank. */
static int64_t find_epoch_index(const feed *f, int64_t i) {
  return i / f->batch * f->whole_batch + f->first + i % f->batch;
}

/* Return the row, in the data set, of sample i of this rank in the epoch, or of sample i of the test split. */
static int32_t get_epoch_row(const feed *f, const piece *p, int64_t i) {
  return get_source_row(p->split, p->order != NULL ? f->order[find_epoch_index(f, i)] : (int32_t)i);
}

/* Fill a batch that begins at sample `from`, and request the following samples, up to `end`. An unreadable image is
 * replaced in a training batch, and left out of a test batch. It is reported when the batch needs it, not when it is
 * decoded, so that messages do not depend on the number of threads. */
static int fill_images(feed *f, const piece *p, int64_t from, int64_t end, int32_t *good) {
  int rc = CLI_OK;
  *good = 0;
  if (f->loader == NULL) { /* the first batch starts the threads */
    f->spare = cli_alloc((size_t)(f->d->height * f->d->width), 3);
    rc = image_loader_create(f->d->images, &f->loader);
  }
  if (rc == CLI_OK && f->next_taken != from) {
    image_loader_cancel(f->loader);
    f->next_taken = f->next_request = from;
  }
  for (int32_t i = 0; i <= p->count && rc == CLI_OK; i++) {
    while (f->next_request < end &&
           image_loader_request(f->loader, p->split->images, get_epoch_row(f, p, f->next_request),
                                &p->how))
      f->next_request++;
    if (i == p->count) break; /* in the last round, only request samples of the next batch */
    char why[PICTURE_WHY];
    const int32_t row = get_epoch_row(f, p, from + i);
    const uint8_t *bytes = image_loader_take(f->loader, why);
    f->next_taken++;
    if (bytes != NULL)
      write_image(f, p, (*good)++, row, bytes);
    else if (p->order != NULL)
      rc = decode_replacement(f, p, find_epoch_index(f, from + i), (*good)++, why);
    else
      rc = report_unreadable(f, p->split->images, row, why);
  }
  return rc;
}

int feed_fill_train(feed *f, int64_t step, int64_t micro) {
  const int64_t epoch = step / f->per_epoch;
  if (f->batch == 0) return CLI_OK;
  if (f->ordered != epoch) {
    random_order(f->how.seed, RANDOM_ORDER, (uint32_t)epoch, f->d->train.n, f->order);
    f->ordered = epoch;
    f->next_taken = -1;
  }
  const int64_t from = (step % f->per_epoch * f->acc_iters + micro) * f->batch;
  const int64_t place = find_epoch_index(f, from);
  piece p = {
      .f = f, .split = &f->d->train, .order = f->order + place, .how = f->how, .count = f->batch};
  p.how.epoch = (uint32_t)epoch;
  if (f->d->images != NULL) {
    int32_t good;
    const int64_t end = f->per_epoch * f->acc_iters * f->batch;
    if (fill_images(f, &p, from, end, &good) != CLI_OK) return CLI_BAD;
  } else {
    fill_in_parallel(f, &p);
    for (int32_t i = 0; i < f->batch; i++)
      f->rows[i] = get_source_row(p.split, p.order[i]);
  }
  mix_batch(&f->mix, p.how.epoch, f->rows, f->labels, f->x);
  return CLI_OK;
}

int feed_fill_test(feed *f, int32_t first, int32_t count, int32_t *good) {
  piece p = {.f = f, .split = f->test, .how = f->how, .first = first, .count = count};
  p.how.crop = p.how.flip = false;
  *good = count;
  if (f->d->images == NULL) {
    fill_in_parallel(f, &p);
    for (int32_t i = 0; i < count; i++)
      f->rows[i] = get_source_row(f->test, first + i);
    return CLI_OK;
  }
  f->next_taken = -1; /* cancel the requests for training samples */
  const int rc = fill_images(f, &p, first, first + count, good);
  f->next_taken = -1;
  return rc;
}

int feed_evaluate(feed *f, nn *net, bool reconstructs, int32_t first, int32_t end, double sum[3]) {
  const int32_t *labels = reconstructs ? NULL : f->labels;
  for (int32_t at = first, count, good; at < end; at += count) {
    int64_t correct = 0;
    count = end - at < f->capacity ? end - at : f->capacity;
    if (feed_fill_test(f, at, count, &good) != CLI_OK) return CLI_BAD;
    if (good == 0) continue;
    if (nn_forward(net, NN_EVALUATE, f->x, good, 0, NULL) != CLI_OK) return CLI_BAD;
    sum[0] += nn_compute_loss(net, NN_EVALUATE, labels, reconstructs ? f->x : NULL, &correct) *
              (double)good;
    sum[1] += (double)correct;
    sum[2] += good;
  }
  return CLI_OK;
}
