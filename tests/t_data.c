/* t_data.c: data sets from good and damaged files, batches, augmentation, validation samples. */
#include "data/data.h"
#include "common/random.h"
#include "trainer_help.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static void put_maybe_zipped(const char *name, const void *bytes, size_t n, bool zipped) {
  if (zipped) {
    gzFile f = gzopen(in_folder(name), "wb");
    assert_non_null(f);
    assert_int_equal(gzwrite(f, bytes, (unsigned)n), (int)n);
    assert_int_equal(gzclose(f), Z_OK);
    return;
  }
  put_file(name, bytes, n);
}

static void must_refuse_folder(const char *set, const char *says) {
  char spec[600];
  (void)snprintf(spec, sizeof spec, "%s:%s", set, in_folder(""));
  must_refuse_set(spec, says);
}

/* ---- idx ---------------------------------------------------------------------------------------*/

enum { N = 5, H = 3, W = 2 };
static unsigned char images[16 + N * H * W], labels[8 + N];

static void write_idx_files(bool zipped) {
  static const unsigned char ihead[16] = {0, 0, 8, 3, 0, 0, 0, N, 0, 0, 0, H, 0, 0, 0, W};
  static const unsigned char lhead[8] = {0, 0, 8, 1, 0, 0, 0, N};
  memcpy(images, ihead, 16);
  memcpy(labels, lhead, 8);
  for (int i = 0; i < N * H * W; i++)
    images[16 + i] = (unsigned char)(7 * i);
  for (int i = 0; i < N; i++)
    labels[8 + i] = (unsigned char)(9 - i);
  const char *dot = zipped ? ".gz" : "";
  static const char *const stem[] = {"train", "t10k"};
  for (int k = 0; k < 2; k++) {
    char name[64];
    (void)snprintf(name, sizeof name, "%s-images-idx3-ubyte%s", stem[k], dot);
    put_maybe_zipped(name, images, sizeof images, zipped);
    (void)snprintf(name, sizeof name, "%s-labels-idx1-ubyte%s", stem[k], dot);
    put_maybe_zipped(name, labels, sizeof labels, zipped);
  }
}

static void empty_folder(void) {
  char command[600];
  (void)snprintf(command, sizeof command, "rm -rf '%s'/*", in_folder(""));
  assert_int_equal(system(command), 0);
}

static void idx_files_are_read_plain_and_zipped(void **state) {
  for (int zipped = 0; zipped < 2; zipped++) {
    char spec[600];
    data_set d;
    empty_folder();
    write_idx_files(zipped != 0);
    (void)snprintf(spec, sizeof spec, "mnist:%s", in_folder(""));
    assert_int_equal(data_open(spec, &d), 0);
    assert_int_equal(d.train.n, N);
    assert_int_equal(d.test.n, N);
    assert_true(d.height == H && d.width == W && d.channels == 1 && d.classes == 10);
    float x[N * H * W];
    int32_t y[N];
    const data_transform how = {0};
    data_fill_batch(&d, &d.train, NULL, 0, N, &how, x, y);
    double mean = 0.0, square = 0.0;
    for (int i = 0; i < N * H * W; i++) {
      assert_true(fabsf(x[i] - (float)(unsigned char)(7 * i) / 255.0F) < 1e-6F);
      mean += (double)x[i] / (N * H * W);
    }
    for (int i = 0; i < N * H * W; i++)
      square += pow((double)x[i] - mean, 2.0) / (N * H * W);
    for (int i = 0; i < N; i++)
      assert_int_equal(y[i], 9 - i);
    assert_true(fabs((double)d.mean[0] - mean) < 1e-6);
    assert_true(fabs((double)d.deviation[0] - sqrt(square)) < 1e-6);
    const data_transform normal = {.normalise = true};
    const int32_t order[2] = {4, 1};
    data_fill_batch(&d, &d.train, order, 0, 2, &normal, x, y);
    assert_int_equal(y[0], 5);
    assert_true(fabs((double)x[H * W] - ((double)(7 * H * W) / 255.0 - mean) / sqrt(square)) <
                1e-5);
    data_close(&d);
  }
}

static void damaged_idx_files_are_refused(void **state) {
  static const char image_file[] = "train-images-idx3-ubyte",
                    label_file[] = "train-labels-idx1-ubyte";
  empty_folder();
  must_refuse_folder("mnist", "no file train-images-idx3-ubyte");
  write_idx_files(false);
  put_maybe_zipped(image_file, images, 10, false);
  must_refuse_folder("mnist", "too few for an idx header");
  put_maybe_zipped(image_file, images, sizeof images - 1, false);
  must_refuse_folder("mnist", "train-images-idx3-ubyte: ");
  unsigned char bad[sizeof images + 1];
  memcpy(bad, images, sizeof images);
  put_maybe_zipped(image_file, bad, sizeof bad, false);
  must_refuse_folder("mnist", "has 31 values, its header says 30");
  for (int i = 0; i < 4; i++) { /* magic */
    memcpy(bad, images, sizeof images);
    bad[i] ^= 1;
    put_maybe_zipped(image_file, bad, sizeof images, false);
    must_refuse_folder("mnist", "expected 0 0 8 3");
  }
  for (int axis = 0; axis < 3; axis++) { /* wrong lengths: huge, negative, zero */
    for (int kind = 0; kind < 3; kind++) {
      memcpy(bad, images, sizeof images);
      memset(bad + 4 + 4 * axis, kind == 0 ? 0x7f : kind == 1 ? 0xff : 0, 4);
      put_maybe_zipped(image_file, bad, sizeof images, false);
      must_refuse_folder("mnist", "which does not fit its 46 bytes");
    }
  }
  put_maybe_zipped(image_file, images, sizeof images, false);
  unsigned char few[8 + N - 1];
  memcpy(few, labels, sizeof few);
  few[7] = N - 1;
  put_maybe_zipped(label_file, few, sizeof few, false);
  must_refuse_folder("mnist", "4 labels for 5 images");
  memcpy(bad, labels, sizeof labels);
  bad[8 + 3] = 10;
  put_maybe_zipped(label_file, bad, sizeof labels, false);
  must_refuse_folder("mnist", "training sample 3 has the label 10");
  put_maybe_zipped(label_file, labels, sizeof labels, false);
  memcpy(bad, images, sizeof images);
  bad[11] = W; /* 2 x 3 instead of 3 x 2 */
  bad[15] = H;
  put_maybe_zipped("t10k-images-idx3-ubyte", bad, sizeof images, false);
  must_refuse_folder("mnist", "images of 2x3, the training images have 3x2");
  /* A zipped file truncated anywhere. */
  empty_folder();
  write_idx_files(true);
  struct stat about;
  assert_int_equal(stat(in_folder("train-images-idx3-ubyte.gz"), &about), 0);
  for (off_t at = about.st_size - 1; at > 0; at -= 5) {
    assert_int_equal(truncate(in_folder("train-images-idx3-ubyte.gz"), at), 0);
    must_refuse_folder("mnist", "train-images-idx3-ubyte.gz: ");
  }
  assert_int_equal(unlink(in_folder("train-images-idx3-ubyte.gz")), 0);
  assert_int_equal(mkdir(in_folder("train-images-idx3-ubyte.gz"), 0700), 0);
  must_refuse_folder("mnist", "not a regular file");
  assert_int_equal(rmdir(in_folder("train-images-idx3-ubyte.gz")), 0);
  assert_int_equal(mkfifo(in_folder("train-images-idx3-ubyte.gz"), 0600), 0);
  must_refuse_folder(
      "mnist", "train-images-idx3-ubyte.gz: not a regular file"); /* without waiting for a writer */
  assert_int_equal(unlink(in_folder("train-images-idx3-ubyte.gz")), 0);
  must_refuse_set("mnist:/nowhere", "/nowhere: no file");
}

/* ---- CIFAR -------------------------------------------------------------------------------------*/

static unsigned char cifar[3 * 3074];

static void fill_cifar_rows(int labels_a_row) {
  for (int r = 0; r < 3; r++) {
    unsigned char *row = cifar + r * (labels_a_row + 3072);
    row[0] = row[labels_a_row - 1] = (unsigned char)(labels_a_row == 2 ? 90 + r : 7 + r);
    for (int i = 0; i < 3072; i++)
      row[labels_a_row + i] = (unsigned char)(i / 1024 * 80 + i % 32 + r);
  }
}

static void both_kinds_of_cifar_are_read(void **state) {
  for (int wide = 0; wide < 2; wide++) {
    const size_t row = wide ? 3074 : 3073;
    char spec[600];
    data_set d;
    empty_folder();
    fill_cifar_rows(wide + 1);
    put_maybe_zipped(wide ? "train.bin" : "data_batch_2.bin", cifar, 3 * row, false);
    put_maybe_zipped(wide ? "test.bin" : "test_batch.bin", cifar, row, false);
    (void)snprintf(spec, sizeof spec, "%s:%s", wide ? "cifar100" : "cifar10", in_folder(""));
    assert_int_equal(data_open(spec, &d), 0);
    assert_true(d.train.n == 3 && d.test.n == 1 && d.augments);
    assert_int_equal(d.classes, wide ? 100 : 10);
    float *x = malloc(2 * 3072 * sizeof *x);
    int32_t y[2];
    const data_transform how = {0};
    data_fill_batch(&d, &d.train, NULL, 1, 2, &how, x, y);
    assert_int_equal(y[1], wide ? 92 : 9);
    /* NHWC: row 2, column 5, blue of the second sample */
    assert_true(fabsf(x[3072 + (2 * 32 + 5) * 3 + 2] * 255.0F - (float)(2 * 80 + 5 + 2)) < 1e-3F);
    free(x);
    data_close(&d);
  }
}

static void damaged_cifar_files_are_refused(void **state) {
  empty_folder();
  fill_cifar_rows(1);
  must_refuse_folder("cifar10", "no file data_batch_1.bin to data_batch_5.bin");
  put_maybe_zipped("data_batch_1.bin", cifar, 3 * 3073, false);
  must_refuse_folder("cifar10", "test_batch.bin: No such file");
  put_maybe_zipped("test_batch.bin", cifar, 3072, false);
  must_refuse_folder("cifar10", "test_batch.bin: 3072 bytes are no whole number of rows");
  put_maybe_zipped("test_batch.bin", cifar, 0, false);
  must_refuse_folder("cifar10", "test_batch.bin: 0 bytes");
  cifar[3073] = 10;
  put_maybe_zipped("test_batch.bin", cifar, 3 * 3073, false);
  must_refuse_folder("cifar10", "test_batch.bin: row 1 has the label 10, expected 0 to 9");
  must_refuse_folder("cifar100", "train.bin: No such file");
}

/* ---- npy, generated, digits --------------------------------------------------------------------*/

static void npy_sets_are_read(void **state) {
  float x[12 * 2];
  int64_t y[12];
  for (int i = 0; i < 24; i++)
    x[i] = (float)i;
  for (int i = 0; i < 12; i++)
    y[i] = i % 3;
  empty_folder();
  put_npy("x.npy", "<f4", "12, 2", x, sizeof x);
  put_npy("y.npy", "<i8", "12,", y, sizeof y);
  char spec[2100];
  data_set d;
  (void)snprintf(spec, sizeof spec, "npy:%s/x.npy,%s/y.npy", in_folder(""), in_folder(""));
  assert_int_equal(data_open(spec, &d), 0);
  assert_true(d.train.n == 10 && d.test.n == 2 && d.classes == 3 && d.channels == 2);
  assert_int_equal(d.channels, 2);
  float got[2];
  int32_t label = -1;
  const data_transform how = {0};
  data_fill_batch(&d, &d.test, NULL, 1, 1, &how, got, &label);
  assert_true(got[0] == 22.0F && got[1] == 23.0F && label == 2);
  assert_true(fabsf(d.mean[0] - 9.0F) < 1e-6F && fabsf(d.mean[1] - 10.0F) < 1e-6F);
  data_close(&d);
  (void)snprintf(spec, sizeof spec, "npy:%s/x.npy,%s/y.npy,%s/x.npy,%s/y.npy", in_folder(""),
                 in_folder(""), in_folder(""), in_folder(""));
  assert_int_equal(data_open(spec, &d), 0);
  assert_true(d.train.n == 12 && d.test.n == 12);
  data_close(&d);
  (void)snprintf(spec, sizeof spec, "npy:%s/x.npy", in_folder(""));
  must_refuse_set(spec, "FEATURES,LABELS");
  (void)snprintf(spec, sizeof spec, "npy:%s/y.npy,%s/x.npy", in_folder(""), in_folder(""));
  must_refuse_set(spec, "y.npy");
  (void)snprintf(spec, sizeof spec, "npy:%s/x.npy,%s/y.npy", in_folder(""), in_folder(""));
  x[5] = (float)NAN;
  put_npy("x.npy", "<f4", "12, 2", x, sizeof x);
  must_refuse_set(spec, "value 5 is not finite");
  x[5] = 5.0F;
  put_npy("x.npy", "<f4", "11, 2", x, 88);
  must_refuse_set(spec, "12 labels for 11 samples");
  put_npy("x.npy", "<f4", "12, 2", x, sizeof x);
  y[4] = -1;
  put_npy("y.npy", "<i8", "12,", y, sizeof y);
  must_refuse_set(spec, "label 4 is -1");
}

static void generated_sets_can_be_learned(void **state) {
  data_set a, b;
  assert_int_equal(
      data_open("synthetic:classes=3,image=6x5x2,train=50,test=20,noise=0.5,seed=4", &a), 0);
  assert_int_equal(
      data_open("synthetic:classes=3,image=6x5x2,train=50,test=20,noise=0.5,seed=4", &b), 0);
  assert_true(a.train.n == 50 && a.test.n == 20 && a.height == 6 && a.width == 5 &&
              a.channels == 2);
  assert_memory_equal(a.train.reals, b.train.reals, 50 * 60 * sizeof(float));
  data_close(&b);
  assert_int_equal(data_open("synthetic:seed=5", &b), 0);
  assert_true(b.train.n == 1000 && b.test.n == 200 && b.channels == 20 && b.classes == 10);
  data_close(&b);
  /* The nearest class mean of the training split classifies most test samples: the data can be learned. */
  double mean[3][60] = {{0}};
  int count[3] = {0}, right = 0;
  for (int i = 0; i < 50; i++) {
    count[a.train.labels[i]]++;
    for (int k = 0; k < 60; k++)
      mean[a.train.labels[i]][k] += (double)a.train.reals[i * 60 + k];
  }
  for (int i = 0; i < 20; i++) {
    int best = 0;
    double least = 1e30;
    for (int c = 0; c < 3; c++) {
      double distance = 0.0;
      for (int k = 0; k < 60; k++)
        distance += pow((double)a.test.reals[i * 60 + k] - mean[c][k] / count[c], 2.0);
      if (distance < least) best = c;
      if (distance < least) least = distance;
    }
    right += best == a.test.labels[i];
  }
  assert_true(right >= 18);
  data_close(&a);
  must_refuse_set("synthetic:classes=1", "is no whole number from 2");
  must_refuse_set("synthetic:clases=3", "the nearest is classes");
  must_refuse_set("synthetic:image=8x8", "HEIGHTxWIDTHxCHANNELS");
  must_refuse_set("synthetic:train", "no KEY=VALUE");
  must_refuse_set("synthetic:train=9,noise=1,train=10", "train is given twice");
  must_refuse_set("synthetic:image=2x2x1,features=4", "features and image are both given");
  must_refuse_set("synthetic:train=10000000,features=1000000", "too many");
}

static void digits_are_shipped(void **state) {
  char data[512];
  (void)snprintf(data, sizeof data, "%s/data", NG_SOURCE_DIR);
  assert_int_equal(setenv("NATGRAD_DATA", data, 1), 0);
  data_set d;
  assert_int_equal(data_open("digits", &d), 0);
  assert_true(d.train.n == 1437 && d.test.n == 360 && d.height == 8 && d.channels == 1);
  float x[64];
  int32_t y = -1;
  const data_transform how = {0};
  data_fill_batch(&d, &d.train, NULL, 0, 1, &how, x, &y);
  assert_int_equal(y, 0);
  assert_true(x[2] == 5.0F / 16.0F && x[3] == 13.0F / 16.0F);
  data_close(&d);
  assert_int_equal(setenv("NATGRAD_DATA", in_folder(""), 1), 0);
  empty_folder();
  must_refuse_set("digits", "digits.csv: No such file");
  put_maybe_zipped("digits.csv", "1,2,3\n", 6, false);
  must_refuse_set("digits", "line 1: column 3");
  assert_int_equal(unsetenv("NATGRAD_DATA"), 0);
}

/* A sample is a window; labels are the next characters; the last tenth of the samples is the test split. */
static void texts_are_read(void **state) {
  static const char letters[] = "abca\ncb\xff";
  enum { CONTEXT = 3, SAMPLES = 21, COUNT = SAMPLES * CONTEXT + 3 };
  static const int token[256] = {['\n'] = 0, ['a'] = 1, ['b'] = 2, ['c'] = 3, [0xff] = 4};
  char text[COUNT], spec[600];
  int want[COUNT];
  for (int i = 0; i < COUNT; i++) {
    text[i] = letters[(i * i / 5) % 8];
    want[i] = token[(unsigned char)text[i]];
  }
  empty_folder();
  put_file("text", text, COUNT);
  (void)snprintf(spec, sizeof spec, "text:%s/text,context=3", in_folder(""));
  data_set d;
  assert_int_equal(data_open(spec, &d), 0);
  assert_true(d.train.n == SAMPLES - 2 && d.test.n == 2 && d.classes == 5 && d.context == CONTEXT);
  assert_true(d.height == 1 && d.width == CONTEXT && d.channels == 1);
  const uint32_t crc = data_compute_crc(&d);
  for (int round = 0; round < 3;
       round++) { /* training samples, test samples, a part of the training samples */
    const data_transform how = {.normalise = true};
    if (round == 2) assert_int_equal(data_hold_out(&d, 4, 1), 0);
    const data_split *s = round == 1 ? &d.test : &d.train;
    float x[SAMPLES * CONTEXT];
    int32_t y[SAMPLES * CONTEXT];
    data_fill_batch(&d, s, NULL, 0, s->n, &how, x, y);
    for (int i = 0; i < s->n * CONTEXT; i++) {
      const int row = round == 2 ? s->index[i / CONTEXT] : i / CONTEXT;
      const int at = (round == 1 ? d.train.n * CONTEXT : 0) + row * CONTEXT + i % CONTEXT;
      assert_true(x[i] == (float)want[at] && y[i] == want[at + 1]);
    }
  }
  /* the checksum stays when validation samples are held out */
  assert_int_equal(data_compute_crc(&d), crc);
  data_close(&d);
  text[SAMPLES * CONTEXT] = text[SAMPLES * CONTEXT] == 'a' ? 'b' : 'a'; /* the last label */
  put_file("text", text, COUNT);
  assert_int_equal(data_open(spec, &d), 0);
  assert_int_not_equal(data_compute_crc(&d), crc);
  data_close(&d);
}

static void unsuitable_texts_are_refused(void **state) {
  char spec[600];
  empty_folder();
  put_file("text", "aaaaaa", 6);
  put_file("empty", "", 0);
  put_maybe_zipped("zipped", "abcdef", 6, true);
  (void)mkdir(in_folder("folder"), 0700);
  static const struct {
    const char *name, *says;
  } wrong[] = {
      {"empty", "empty: is empty"},
      {"empty,context=1", "empty: is empty"},
      {"text,context=3", "text: has one distinct character, expected at least 2"},
      {"text,context=6", "text: has 6 characters, context=6 needs at least 7"},
      {"text", "text: has 6 characters, context=128 needs at least 129"},
      {"text,context=0", "is no whole number from 1 to 65536"},
      {"text,contxt=3", "text: unknown setting 'contxt'; the nearest is context"},
      {"zipped", "zipped: is compressed"},
      {"folder", "not a regular file"},
      {"nothing", "nothing: "},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    (void)snprintf(spec, sizeof spec, "text:%s/%s", in_folder(""), wrong[i].name);
    must_refuse_set(spec, wrong[i].says);
  }
  must_refuse_set("text", "text needs a file after a colon");
  must_refuse_set("text:,context=3", "text needs a file after a colon");
}

static void unknown_sets_are_refused(void **state) {
  must_refuse_set("mnits:x", "unknown data set 'mnits'; the nearest is mnist");
  must_refuse_set("elephants", "unknown data set 'elephants'; expected digits");
  must_refuse_set("mnist", "mnist needs a folder after a colon");
  must_refuse_set("digits:x", "digits: expected nothing after the name");
}

/* ---- batches -----------------------------------------------------------------------------------*/

/* Windows of an image padded by four zeros; shift and reflection are a function of sample and epoch. */
static void augmentation_depends_on_sample_and_epoch(void **state) {
  enum { HH = 9, WW = 8, C = 3, PER = HH * WW * C, MANY = 40 };
  data_set d;
  assert_int_equal(data_open("synthetic:classes=2,image=9x8x3,train=40,test=0,seed=3", &d), 0);
  static float x[MANY * PER], again[PER];
  int32_t y[MANY], z = 0;
  int mirrored = 0, last = 0;
  for (uint32_t epoch = 0; epoch < 6; epoch++) {
    const data_transform how = {true, .crop = true, .flip = true, .seed = 6, .epoch = epoch};
    data_fill_batch(&d, &d.train, NULL, 0, MANY, &how, x, y);
    for (int i = 0; i < MANY; i++) {
      uint32_t w[4];
      random_words(6, RANDOM_AUGMENT, epoch, (uint64_t)i, w);
      const int dy = (int)floor(w[0] / 4294967296.0 * 9) - 4;
      const int dx = (int)floor(w[1] / 4294967296.0 * 9) - 4;
      const bool flip = w[2] >= 1U << 31;
      mirrored += flip;
      last += dy == 4 || dx == -4;
      for (int k = 0; k < PER; k++) {
        const int c = k % C, u = k / C % WW, from = k / C / WW + dy;
        const int at = (flip ? WW - 1 - u : u) + dx;
        const bool outside = from < 0 || at < 0 || from >= HH || at >= WW;
        const double raw =
            outside ? 0.0 : (double)d.train.reals[i * PER + (from * WW + at) * C + c];
        const double want = outside ? 0.0 : (raw - (double)d.mean[c]) / (double)d.deviation[c];
        assert_true(fabs(want - (double)x[i * PER + k]) < 1e-5);
      }
    }
    /* A sample has the same bits in another batch. */
    const int32_t one = 17;
    data_fill_batch(&d, &d.train, &one, 0, 1, &how, again, &z);
    assert_memory_equal(again, x + 17 * PER, sizeof again);
  }
  /* of 240 samples, 120 mirrored and 50 at the last offset are expected */
  assert_true(mirrored > 90 && mirrored < 150 && last > 20);
  data_close(&d);
}

static void held_out_samples_partition_the_training_set(void **state) {
  data_set d;
  assert_int_equal(data_open("synthetic:train=100,test=5", &d), 0);
  assert_int_equal(data_hold_out(&d, 30, 9), 0);
  assert_true(d.train.n == 70 && d.validation.n == 30);
  int seen[100] = {0};
  for (int i = 0; i < 70; i++)
    seen[d.train.index[i]]++;
  for (int i = 0; i < 30; i++)
    seen[d.validation.index[i]]++;
  for (int i = 0; i < 100; i++)
    assert_int_equal(seen[i], 1);
  for (int64_t k = 0; k < d.channels; k++) { /* the mean is of training samples only */
    double sum = 0.0;
    for (int i = 0; i < 70; i++)
      sum += (double)d.train.reals[d.train.index[i] * d.channels + k] / 70;
    assert_true(fabs((double)d.mean[k] - sum) < 1e-6);
  }
  data_set e;
  assert_int_equal(data_open("synthetic:train=100,test=5", &e), 0);
  assert_int_equal(data_hold_out(&e, 30, 9), 0);
  assert_memory_equal(d.validation.index, e.validation.index, 30 * sizeof(int32_t));
  assert_int_equal(data_hold_out(&e, 70, 9), 2);
  assert_int_equal(data_hold_out(&e, 0, 9), 2);
  data_close(&e);
  data_close(&d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(idx_files_are_read_plain_and_zipped),
      cmocka_unit_test(damaged_idx_files_are_refused),
      cmocka_unit_test(both_kinds_of_cifar_are_read),
      cmocka_unit_test(damaged_cifar_files_are_refused),
      cmocka_unit_test(npy_sets_are_read),
      cmocka_unit_test(generated_sets_can_be_learned),
      cmocka_unit_test(digits_are_shipped),
      cmocka_unit_test(texts_are_read),
      cmocka_unit_test(unsuitable_texts_are_refused),
      cmocka_unit_test(unknown_sets_are_refused),
      cmocka_unit_test(augmentation_depends_on_sample_and_epoch),
      cmocka_unit_test(held_out_samples_partition_the_training_set),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
