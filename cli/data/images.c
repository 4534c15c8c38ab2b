/* images.c: open an image set from the text after "images:", decode a sample, and convert it to an input. */
#include "images.h"

#include "common/cli.h"
#include "npy.h"
#include "common/random.h"
#include "readers.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

/* ---- a sample ----------------------------------------------------------------------------------*/

/* The random words w of a sample select the window and mirroring, as in batch.c: w[0] vertical offset, w[1] horizontal
 * offset, w[2] mirroring (in image_write_input). */
bool image_decode(const image_set *set, const image_list *list, int32_t row,
                  const data_transform *how, uint8_t *to, char why[PICTURE_WHY]) {
  picture p;
  uint32_t w[4];
  if (!picture_read(list->path[row], &p, why)) return false;
  const int64_t side = set->side, least = p.height < p.width ? p.height : p.width;
  int64_t height = p.height, width = p.width;
  if (set->resize > 0 || least < side)
    picture_scale_size(p.height, p.width, set->resize > 0 ? set->resize : side, &height, &width);
  int64_t top = (height - side) / 2, left = (width - side) / 2;
  if (how->crop) {
    random_words(how->seed, RANDOM_AUGMENT, how->epoch, (uint64_t)row, w);
    top = (int64_t)(((uint64_t)w[0] * (uint64_t)(height - side + 1)) >> 32);
    left = (int64_t)(((uint64_t)w[1] * (uint64_t)(width - side + 1)) >> 32);
  }
  picture_cut_window(&p, height, width, top, left, side, to);
  free(p.rgb);
  return true;
}

void image_write_input(const data_set *d, int32_t row, const data_transform *how,
                       const uint8_t *bytes, float *x) {
  const int64_t side = d->images->side;
  const float *mean_image = how->normalise ? d->images->mean_image : NULL;
  const float *scale = d->scale[how->normalise], *shift = d->shift[how->normalise];
  uint32_t w[4] = {0};
  if (how->flip) random_words(how->seed, RANDOM_AUGMENT, how->epoch, (uint64_t)row, w);
  const bool mirrored = how->flip && w[2] >> 31 != 0;
  for (int64_t at = 0; at < side * side; at++, x += 3) {
    const int64_t y = at / side, u = at % side;
    const uint8_t *from = bytes + 3 * (y * side + (mirrored ? side - 1 - u : u));
    for (int k = 0; k < 3; k++) {
      x[k] = (float)from[k] * scale[k];
      x[k] = mean_image == NULL ? x[k] + shift[k] : x[k] - mean_image[3 * at + k] / d->deviation[k];
    }
  }
}

/* ---- normalisation ----------------------------------------------------------------------------*/

typedef struct settings {
  const char *path, *test, *root, *mean, *std;
  int64_t side, resize, threads, queue; /* resize = 0: resize=none */
} settings;

static int parse_rgb(const char *key, const char *text, double lower, float to[3]) {
  const char *at = text;
  for (int k = 0; k < 3; k++) {
    char *end = NULL;
    const double v = strtod(at, &end);
    if (end == at || *end != (k < 2 ? '/' : 0) || !(v >= lower && v <= 1e3))
      return cli_fail("--data: images: %s is '%s', expected R/G/B from %g on, or FILE.npy", key,
                      text, lower);
    to[k] = (float)v;
    at = end + 1;
  }
  return CLI_OK;
}

static double read_npy_value(const ngio_npy *a, int64_t i) {
  return a->dtype == NGIO_F32 ? (double)((const float *)a->data)[i] : ((const double *)a->data)[i];
}

/* Read a mean or standard deviation [3], in units of 0 to 255, from a file. `image`: or a mean image [3, height,
 * width]. */
static int read_npy(data_set *d, const char *key, const char *path, bool image, float to[3]) {
  const int64_t side = d->images->side;
  char message[256] = "";
  ngio_npy a;
  if (ngio_npy_read(path, &a, message, sizeof message) != NGIO_OK)
    return cli_fail("--data: %s", message);
  int rc = CLI_OK;
  const bool planes = image && a.ndim == 3 && a.shape[1] >= side && a.shape[2] >= side;
  if ((a.dtype != NGIO_F32 && a.dtype != NGIO_F64) || a.ndim < 1 || a.shape[0] != 3 ||
      !(planes || a.count == 3))
    rc = cli_fail("--data: %s: expected %s as f4 or f8 of shape [3]%s", path, key,
                  image ? ", or [3, height, width], both >= size" : "");
  for (int64_t i = 0; i < a.count && rc == CLI_OK; i++) {
    const double v = read_npy_value(&a, i);
    if (!(v >= (image ? -1e6 : 1e-6) && v <= 1e6))
      rc = cli_fail("--data: %s: value %lld is %g, expected %s", path, (long long)i, v,
                    image ? "-1e6 to 1e6" : "1e-6 to 1e6");
  }
  if (rc == CLI_OK && planes && a.count > 3) {
    float *mean = data_alloc(d, side * side * 3, (int64_t)sizeof *mean);
    for (int64_t at = 0; at < side * side * 3; at++) {
      const int64_t k = at % 3, u = at / 3 % side, y = at / 3 / side;
      mean[at] = (float)(read_npy_value(&a, (k * a.shape[1] + y) * a.shape[2] + u) * d->byte_scale);
    }
    d->images->mean_image = mean;
  }
  for (int k = 0; k < 3 && rc == CLI_OK; k++)
    to[k] = (float)(read_npy_value(&a, k * (a.count / 3)) * d->byte_scale);
  ngio_npy_free(&a);
  return rc;
}

static int set_normalisation(data_set *d, const settings *w) {
  static const float mean[3] = {0.485F, 0.456F, 0.406F}, deviation[3] = {0.229F, 0.224F, 0.225F};
  d->mean = data_alloc(d, 3, (int64_t)sizeof *d->mean);
  d->deviation = data_alloc(d, 3, (int64_t)sizeof *d->deviation);
  memcpy(d->mean, mean, sizeof mean);
  memcpy(d->deviation, deviation, sizeof deviation);
  int rc = CLI_OK;
  if (w->mean != NULL)
    rc = cli_has_ending(w->mean, ".npy") ? read_npy(d, "mean", w->mean, true, d->mean)
                                         : parse_rgb("mean", w->mean, 0.0, d->mean);
  if (rc == CLI_OK && w->std != NULL)
    rc = cli_has_ending(w->std, ".npy") ? read_npy(d, "std", w->std, false, d->deviation)
                                        : parse_rgb("std", w->std, 1e-6, d->deviation);
  return rc;
}

/* ---- settings ----------------------------------------------------------------------------------*/

static int parse_settings(char *text, settings *w) {
  const char *resize = NULL;
  *w = (settings){.path = text, .side = 224, .threads = cli_count_cores(), .queue = 128};
  const data_setting known[] = {
      {"test", CLI_TEXT, &w->test, 0, 0},           {"root", CLI_TEXT, &w->root, 0, 0},
      {"size", CLI_WHOLE, &w->side, 2, 4096},       {"resize", CLI_TEXT, &resize, 0, 0},
      {"mean", CLI_TEXT, &w->mean, 0, 0},           {"std", CLI_TEXT, &w->std, 0, 0},
      {"threads", CLI_WHOLE, &w->threads, 1, 1024}, {"queue", CLI_WHOLE, &w->queue, 2, 65536}};
  char *comma = strchr(text, ',');
  if (comma != NULL) *comma++ = 0;
  if (data_parse_settings("images", comma, known, sizeof known / sizeof known[0]) != CLI_OK)
    return CLI_BAD;
  if (w->path[0] == 0) return cli_fail("--data: images needs a folder or a list after a colon");
  if (resize == NULL) w->resize = (w->side * 8 + 6) / 7;
  if (resize == NULL || strcmp(resize, "none") == 0) return CLI_OK;
  if (cli_parse_option("data: images: resize", CLI_WHOLE, resize, 2, 8192, &w->resize) != CLI_OK)
    return CLI_BAD;
  if (w->resize >= w->side) return CLI_OK;
  return cli_fail("--data: images: resize=%lld is less than size=%lld", (long long)w->resize,
                  (long long)w->side);
}

/* ---- opening -----------------------------------------------------------------------------------*/

static bool is_folder(const char *path) {
  struct stat about;
  return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

/* Return the path folder/name if this path is a folder, else NULL. */
static char *find_subfolder(const char *folder, const char *name) {
  char *path = cli_join(folder, name);
  if (is_folder(path)) return path;
  free(path);
  return NULL;
}

static void set_split(data_set *d, image_list *list, data_split *to) {
  list->first = d->images->total;
  *to = (data_split){.n = list->n, .images = list, .labels = list->label};
  d->images->total += list->n;
  for (int32_t i = 0; i < list->n; i++)
    if (list->label[i] >= d->classes) d->classes = list->label[i] + 1;
}

void data_print_notes(const data_set *d) {
  for (int i = 0; i < 2 && d->images != NULL; i++) {
    const image_list *f = &d->images->list[i];
    if (f->skipped > 0)
      cli_note("--data: images: %d file%s not named .jpg, .jpeg or .png, left out; the first is %s",
               f->skipped, f->skipped == 1 ? " is" : "s are", f->first_skipped);
  }
}

void data_close_images(data_set *d) {
  for (int i = 0; i < 2 && d->images != NULL; i++) {
    image_list *f = &d->images->list[i];
    for (int32_t k = 0; k < f->n; k++)
      free(f->path[k]);
    free(f->path);
    free(f->label);
    free(f->first_skipped);
  }
}

static int read_lists(const settings *w, image_list *splits) {
  const char *const lists[2] = {w->path, w->test};
  int rc = CLI_OK;
  for (int i = 0; i < 2 && lists[i] != NULL && rc == CLI_OK; i++) {
    char *folder = cli_get_folder(lists[i]);
    rc = image_files_add_list(lists[i], w->root != NULL ? w->root : folder, &splits[i]);
    free(folder);
  }
  return rc;
}

static int list_folders(const settings *w, image_list *splits) {
  if (w->root != NULL)
    return cli_fail("--data: images: root= is for lists, but %s is a folder", w->path);
  char *train = find_subfolder(w->path, "train"),
       *test = w->test != NULL ? cli_copy_text(w->test) : NULL;
  char *val = train != NULL && test == NULL ? find_subfolder(w->path, "val") : NULL;
  if (train != NULL && test == NULL) test = find_subfolder(w->path, "test");
  int rc = CLI_OK;
  if (val != NULL && test != NULL)
    rc = cli_fail("--data: images: %s has the folders val and test; choose one by test=FOLDER",
                  w->path);
  image_classes names = {NULL, 0};
  const char *tested = test != NULL ? test : val;
  if (rc == CLI_OK)
    rc = image_files_add_folder(train != NULL ? train : w->path, &names, &splits[0]);
  if (rc == CLI_OK && tested != NULL) rc = image_files_add_folder(tested, &names, &splits[1]);
  image_classes_free(&names);
  free(train);
  free(test);
  free(val);
  return rc;
}

/* Return a CRC-32 of files, sizes and normalisation, which must be the same when a run is resumed. */
static uint32_t compute_crc(const data_set *d) {
  const image_set *s = d->images;
  const int64_t numbers[4] = {s->side, s->resize, s->list[0].crc, s->list[1].crc};
  uLong crc = crc32_z(0, (const unsigned char *)numbers, sizeof numbers);
  crc = crc32_z(crc, (const unsigned char *)d->mean, 3 * sizeof *d->mean);
  crc = crc32_z(crc, (const unsigned char *)d->deviation, 3 * sizeof *d->deviation);
  if (s->mean_image != NULL)
    crc = crc32_z(crc, (const unsigned char *)s->mean_image,
                  (size_t)(s->side * s->side * 3) * sizeof *s->mean_image);
  return (uint32_t)crc;
}

static int open_image_set(data_set *d, const settings *w) {
  struct stat about;
  d->images = data_alloc(d, 1, (int64_t)sizeof *d->images);
  *d->images = (image_set){
      .side = w->side, .resize = w->resize, .threads = (int)w->threads, .queue = (int)w->queue};
  image_list *splits = d->images->list;
  d->height = d->width = w->side;
  d->channels = 3;
  d->byte_scale = 1.0 / 255.0;
  d->augments = true;
  int rc =
      stat(w->path, &about) == 0 ? CLI_OK : cli_fail("--data: %s: %s", w->path, strerror(errno));
  if (rc == CLI_OK && !S_ISDIR(about.st_mode) && !S_ISREG(about.st_mode))
    rc = cli_fail("--data: %s: is neither a folder nor a list", w->path);
  if (rc == CLI_OK && S_ISREG(about.st_mode) && w->test != NULL && is_folder(w->test))
    rc = cli_fail("--data: images: %s is a list, but test=%s is a folder", w->path, w->test);
  if (rc == CLI_OK) rc = S_ISDIR(about.st_mode) ? list_folders(w, splits) : read_lists(w, splits);
  if (rc == CLI_OK) rc = set_normalisation(d, w);
  if (rc == CLI_OK) {
    data_set_scales(d);
    set_split(d, &splits[0], &d->train);
    set_split(d, &splits[1], &d->test);
    d->images->crc = compute_crc(d);
    d->images->reported = data_alloc(d, d->images->total, (int64_t)sizeof *d->images->reported);
  }
  return rc;
}

int data_read_images(const char *text, data_set *d) {
  char *copy = cli_copy_text(text);
  settings w;
  int rc = CLI_OK;
  if (picture_jpeg.library == NULL && picture_png.library == NULL)
    rc = cli_fail("--data: images: this natgrad was built without libjpeg-turbo and libpng "
                  "(apt-get install libjpeg-dev libpng-dev, and configure again)");
  if (rc == CLI_OK) rc = parse_settings(copy, &w);
  if (rc == CLI_OK) rc = open_image_set(d, &w);
  free(copy);
  return rc;
}
