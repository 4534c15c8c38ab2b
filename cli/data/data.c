/* data.c: open a data set by its SPEC, compute its mean and deviation, and move samples to a validation split. */
#include "readers.h"

#include "images.h"

#include "common/cli.h"
#include "common/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* ---- memory -----------------------------------------------------------------------------------*/

typedef struct block {
  struct block *next;
} block;

/* number of bytes reserved for the list node, so that the data behind it is aligned */
enum { HEAD = 64 };

void *data_alloc(data_set *d, int64_t count, int64_t size) {
  const int64_t most = INT64_MAX / 2 / size;
  block *p = count < most ? calloc(1, (size_t)(HEAD + count * size)) : NULL;
  if (p == NULL)
    exit(cli_fail("--data: %s: no memory for %lld x %lld bytes", d->name, (long long)count,
                  (long long)size));
  p->next = d->blocks;
  d->blocks = p;
  return (char *)p + HEAD;
}

void data_close(data_set *d) {
  data_close_images(d);
  for (block *p = d->blocks; p != NULL;) {
    block *next = p->next;
    free(p);
    p = next;
  }
  memset(d, 0, sizeof *d);
}

/* ---- settings ----------------------------------------------------------------------------------*/

static int report_unknown_key(const char *source, const char *key, const data_setting *known,
                              int n) {
  const char *names[16];
  char what[96];
  for (int i = 0; i < n; i++)
    names[i] = known[i].key;
  (void)snprintf(what, sizeof what, "--data: %s: unknown setting", source);
  return cli_report_unknown(what, key, names, n, NULL);
}

int data_parse_settings(const char *source, char *text, const data_setting *known, int n) {
  unsigned given = 0;
  int rc = CLI_OK;
  while (rc == CLI_OK && text != NULL && text[0] != 0) {
    char *item = text, *comma = strchr(item, ','), where[64];
    if (comma != NULL) *comma++ = 0;
    text = comma;
    char *value = strchr(item, '=');
    if (value == NULL) return cli_fail("--data: %s: '%s' is no KEY=VALUE", source, item);
    *value++ = 0;
    int i = 0;
    while (i < n && strcmp(item, known[i].key) != 0)
      i++;
    if (i == n) return report_unknown_key(source, item, known, n);
    const data_setting *k = &known[i];
    if ((given >> i & 1U) != 0) return cli_fail("--data: %s: %s is given twice", source, item);
    given |= 1U << i;
    (void)snprintf(where, sizeof where, "data: %s: %s", source, item);
    if (k->kind != CLI_TEXT) {
      rc = cli_parse_option(where, k->kind, value, k->lower, k->upper, k->to);
    } else {
      *(const char **)k->to = value;
      if (value[0] == 0) rc = cli_fail("--data: %s: %s is empty", source, item);
    }
  }
  return rc;
}

/* ---- statistics --------------------------------------------------------------------------------*/

static int32_t get_source_row(const data_split *s, int32_t i) {
  return s->index != NULL ? s->index[i] : i;
}

static double read_scaled_value(const data_set *d, const data_split *s, int64_t i) {
  return s->bytes != NULL ? (double)s->bytes[i] * d->byte_scale : (double)s->reals[i];
}

void data_set_scales(data_set *d) {
  const double unit = d->train.reals == NULL ? d->byte_scale : 1.0;
  for (int how = 0; how < 2; how++) {
    d->scale[how] = data_alloc(d, d->channels, (int64_t)sizeof *d->scale[how]);
    d->shift[how] = data_alloc(d, d->channels, (int64_t)sizeof *d->shift[how]);
    for (int64_t k = 0; k < d->channels; k++) {
      d->scale[how][k] = (float)(unit / (how == 1 ? (double)d->deviation[k] : 1.0));
      if (how == 1) d->shift[how][k] = (float)(-(double)d->mean[k] / (double)d->deviation[k]);
    }
  }
}

/* Compute mean and standard deviation (1 for a constant) of each channel or feature over the training samples. */
static void set_statistics(data_set *d) {
  const int64_t width = d->channels, per = d->height * d->width * width;
  d->mean = data_alloc(d, width, (int64_t)sizeof *d->mean);
  d->deviation = data_alloc(d, width, (int64_t)sizeof *d->deviation);
  double *mean = cli_alloc((size_t)(3 * width), sizeof *mean), *var = mean + width;
  double *sum = var + width;
  const double rows = (double)(d->train.n * (per / width));
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t i = 0; i < d->train.n; i++) {
      const int64_t from = get_source_row(&d->train, i) * per;
      for (int64_t at = from; at < from + per; at += width) {
        for (int64_t k = 0; k < width; k++) {
          const double x = read_scaled_value(d, &d->train, at + k) - mean[k];
          sum[k] += pass == 0 ? x : x * x;
        }
      }
    }
    for (int64_t k = 0; k < width; k++) {
      (pass == 0 ? mean : var)[k] = sum[k] / rows;
      sum[k] = 0.0;
    }
  }
  for (int64_t k = 0; k < width; k++) {
    d->mean[k] = (float)mean[k];
    d->deviation[k] = var[k] > 1e-12 ? (float)sqrt(var[k]) : 1.0F;
  }
  free(mean);
  data_set_scales(d);
}

/* ---- SPEC --------------------------------------------------------------------------------------*/

int data_open(const char *spec, data_set *out) {
  static const struct {
    const char *name,
        *needs; /* what must follow the colon in SPEC; "": nothing; NULL: settings may follow */
    int (*read)(const char *text, data_set *d);
  } known[] = {{"digits", "", data_read_digits},          {"mnist", "a folder", data_read_idx},
               {"cifar10", "a folder", data_read_cifar},  {"cifar100", "a folder", data_read_cifar},
               {"npy", "FEATURES,LABELS", data_read_npy}, {"synthetic", NULL, data_make_synthetic},
               {"images", NULL, data_read_images},        {"text", "a file", data_read_text}};
  enum { KNOWN = sizeof known / sizeof known[0] };
  const char *names[KNOWN], *colon = strchr(spec, ':'), *rest = colon != NULL ? colon + 1 : "";
  const size_t n = colon != NULL ? (size_t)(colon - spec) : strlen(spec);
  int which = KNOWN;
  memset(out, 0, sizeof *out);
  (void)snprintf(out->name, sizeof out->name, "%.*s", n < 60 ? (int)n : 60, spec);
  for (int i = 0; i < KNOWN; i++) {
    names[i] = known[i].name;
    if (strcmp(out->name, names[i]) == 0) which = i;
  }
  if (which == KNOWN)
    return cli_report_unknown("--data: unknown data set", out->name, names, KNOWN, NULL);
  const char *needs = known[which].needs;
  if (needs != NULL && needs[0] == 0 && colon != NULL)
    return cli_fail("--data: %s: expected nothing after the name", out->name);
  if (needs != NULL && needs[0] != 0 && rest[0] == 0)
    return cli_fail("--data: %s needs %s after a colon", out->name, needs);
  const int rc = known[which].read(rest, out);
  if (rc == CLI_OK && out->mean == NULL) set_statistics(out);
  if (rc != CLI_OK) data_close(out);
  return rc;
}

/* ---- checksum ------------------------------------------------------------------------------------*/

static uLong add_split_crc(uLong sum, const data_set *d, const data_split *s, int64_t rows) {
  const int64_t per = d->height * d->width * d->channels;
  const bool bytes = s->bytes != NULL;
  const void *values = bytes ? (const void *)s->bytes : s->reals;
  if (rows == 0) return sum;
  sum = crc32_z(sum, values, (size_t)(rows * per) * (bytes ? 1 : sizeof *s->reals));
  return crc32_z(sum, (const void *)s->labels,
                 (size_t)(rows * data_count_labels(d)) * sizeof *s->labels);
}

uint32_t data_compute_crc(const data_set *d) {
  if (d->images != NULL) return d->images->crc;
  const uLong sum = add_split_crc(crc32_z(0, NULL, 0), d, &d->train, d->train.n + d->validation.n);
  return (uint32_t)add_split_crc(sum, d, &d->test, d->test.n);
}

/* ---- validation --------------------------------------------------------------------------------*/

static int compare_rows(const void *a, const void *b) {
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

int data_hold_out(data_set *d, int32_t count, uint64_t seed) {
  const int32_t n = d->train.n;
  if (count < 1 || count >= n)
    return cli_fail("--validation: %d of %d training samples, expected 1 to %d", count, n, n - 1);
  int32_t *index = data_alloc(d, n, (int64_t)sizeof *index);
  random_order(seed, RANDOM_SPLIT, 0, n, index);
  for (int32_t i = 0; i < n; i++)
    index[i] = get_source_row(&d->train, index[i]);
  /* sort the rows, so that batches read memory in order */
  qsort(index, (size_t)count, sizeof *index, compare_rows);
  qsort(index + count, (size_t)(n - count), sizeof *index, compare_rows);
  d->validation = d->train;
  d->validation.index = index;
  d->validation.n = count;
  d->train.index = index + count;
  d->train.n = n - count;
  if (d->images == NULL && d->context == 0)
    set_statistics(
        d); /* compute mean and deviation from the train split that remains; image files and texts have
                        * fixed values */
  return CLI_OK;
}
