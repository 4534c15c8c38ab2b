/* gpu_eva.c: the time of one step of Eva with SGD on a device, beside the time to move 24 bytes a parameter at the copy
 * bandwidth: gradients twice, weights and momentum read and written.
 *
 * usage: gpu_eva resnet18 | resnet50 | tiny
 *
 * The step has four launches, and the host reads no result between them: dv_eva_fold, dv_measure_tiles, dv_eva_clip_and_scale,
 * dv_update_tiles. Its result is compared with double on the host; the exit code is 1 if they differ. Arrays are random. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "desk.h"
#include "device.h"

/* CHECKED: steps that are compared with the host. TINY: layers of the model `tiny`, more than a warp has threads (32). */
enum { CHECKED = 3, TINY = 40, MOST = 400, WARM_UP = 10, RUNS = 50 };
static const double DAMPING = 0.03, CLIP = 1e-3, LR = 0.1, DECAY = 5e-4, MU = 0.9;

/* A parameter [rows, cols]; a norm parameter or a bias has one row and no curvature. */
typedef struct parameter {
  int64_t rows, cols, count;
  bool has_curvature;
  float *D, *w, *m, *a, *g; /* on the host */
  float *device_w;
} parameter;
static parameter list[MOST];
static int64_t n;
static dv_desk *desk;

static void exit_on_error(const char *error) {
  if (error == NULL) return;
  (void)fprintf(stderr, "gpu_eva: %s\n", error);
  exit(1);
}

/* ---- models ----------------------------------------------------------------------------------*/

static void add_parameter(int64_t rows, int64_t cols, bool has_curvature) {
  list[n++] =
      (parameter){.rows = rows, .cols = cols, .count = rows * cols, .has_curvature = has_curvature};
}
static void add_conv(int64_t out, int64_t in, int64_t kernel) {
  add_parameter(out, in * kernel * kernel, true);
  add_parameter(1, out, false);
  add_parameter(1, out, false);
}

/* ResNet-18 or ResNet-50 for 1,000 classes. */
static void add_resnet(bool deep) {
  static const int64_t blocks[2][4] = {{2, 2, 2, 2}, {3, 4, 6, 3}};
  int64_t in = 64;
  add_conv(in, 3, 7);
  for (int64_t stage = 0; stage < 4; stage++) {
    const int64_t width = 64 << stage, out = deep ? 4 * width : width;
    for (int64_t b = 0; b < blocks[deep][stage]; b++) {
      if (deep) add_conv(width, in, 1);
      add_conv(width, deep ? width : in, 3);
      add_conv(out, width, deep ? 1 : 3);
      if (b == 0 && in != out) add_conv(out, in, 1);
      in = out;
    }
  }
  add_parameter(1000, in, true);
  add_parameter(1, 1000, false);
}
static void add_tiny(void) {
  for (int i = 0; i < TINY; i++) {
    add_conv(8, i == 0 ? 3 : 8, 1 + i % 3);
  }
}

/* ---- arrays ----------------------------------------------------------------------------------*/

static float *make_random_array(int64_t count, double scale) {
  static uint64_t state = 1;
  float *x = malloc((size_t)count * sizeof *x);
  if (x == NULL) exit_on_error("out of memory");
  for (int64_t i = 0; i < count; i++) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    x[i] = (float)(((double)(state >> 40) * 0x1p-24 - 0.5) * scale);
  }
  return x;
}

/* Return a copy of `count` objects on the device. */
static void *copy_to_device(const void *x, int64_t count, size_t size) {
  void *at;
  exit_on_error(dv_alloc(desk, (size_t)count * size, &at));
  exit_on_error(dv_copy(desk, at, x, (size_t)count * size));
  exit_on_error(dv_wait(desk));
  return at;
}
static void *copy_floats(const float *x, int64_t count) {
  return copy_to_device(x, count, sizeof *x);
}

/* ---- the step --------------------------------------------------------------------------------*/

/* Arrays on the device: the descriptors and results of the four launches. */
static const dv_mean *means;
static const dv_measure *measures;
static dv_direction *directions;
static const dv_update *updates;
static const int64_t *first;
static double *sums;
static dv_eva *lists;
static dv_eva_numbers *numbers[CHECKED]; /* each with another bound, so that clip factors differ */
static int32_t *skipped;
static int64_t curved, tiles;

static dv_region describe_region(float *data, const parameter *p) {
  const dv_place place = {
      .data = (char *)data, .dtype = DV_F32, .has_dense_rows = 1, .axes = 1, .row_stride = p->cols};
  return (dv_region){place, 0, p->rows, 0, p->cols, p->cols % 4 == 0};
}

static void make_descriptors(int64_t *overflowed) {
  static dv_mean mean[2 * MOST];
  static dv_layer layer[MOST];
  static dv_measure measure[MOST];
  static dv_direction direction[MOST];
  static dv_update launch_update[MOST];
  static int64_t starts[MOST + 1];
  static int32_t layer_of[MOST], group_of[MOST];
  int32_t *flags;
  double *norm2;
  exit_on_error(dv_alloc(desk, 2 * MOST * sizeof *norm2, (void **)&norm2));
  exit_on_error(dv_alloc_host(desk, (4 * MOST + 1) * sizeof *flags, (void **)&flags));
  for (int64_t i = 0; i < n; i++) {
    parameter *p = &list[i];
    const int64_t here = (p->count + DV_TILE - 1) / DV_TILE;
    p->D = make_random_array(p->count, 1e-2), p->w = make_random_array(p->count, 0.1);
    p->m = make_random_array(p->count, 1e-2);
    p->device_w = copy_floats(p->w, p->count);
    const dv_region D = describe_region(copy_floats(p->D, p->count), p);
    direction[i] = (dv_direction){
        .D = D, .scale = 1.0, .u_col = 1, .overflowed = overflowed, .is_rank_one = true};
    launch_update[i] = (dv_update){.weight = describe_region(p->device_w, p).place,
                                   .m = copy_floats(p->m, p->count),
                                   .cols = p->cols,
                                   .lr = (float)LR,
                                   .mu = (float)MU,
                                   .keep = 1.0f,
                                   .decay = (float)DECAY,
                                   .coefficients = {1.0f, (float)MU},
                                   .is_sgd = true,
                                   .is_flat = D.is_flat};
    starts[i + 1] = starts[i] + here;
    layer_of[i] = (int32_t)i;
    layer[i] = (dv_layer){.from = starts[i], .to = starts[i + 1]};
    measure[i] = (dv_measure){.D = D};
    if (!p->has_curvature) continue;
    p->a = make_random_array(p->cols, 1.0), p->g = make_random_array(p->rows, 1e-2);
    const int64_t k = curved++;
    float *a = copy_floats(p->a, p->cols), *g = copy_floats(p->g, p->rows);
    mean[2 * k] = (dv_mean){a,
                            copy_floats(p->a, p->cols),
                            p->cols,
                            false,
                            &flags[4 * k],
                            &flags[4 * k + 1],
                            &norm2[2 * k]};
    mean[2 * k + 1] = (dv_mean){g,
                                copy_floats(p->g, p->rows),
                                p->rows,
                                false,
                                &flags[4 * k + 2],
                                &flags[4 * k + 3],
                                &norm2[2 * k + 1]};
    layer[i].alpha = &norm2[2 * k], layer[i].beta = &norm2[2 * k + 1];
    measure[i].x = a, measure[i].y = g;
    direction[i].u = a, direction[i].y = g;
  }
  tiles = starts[n];
  means = copy_to_device(mean, 2 * curved, sizeof *mean);
  measures = copy_to_device(measure, n, sizeof *measure);
  directions = copy_to_device(direction, n, sizeof *direction);
  updates = copy_to_device(launch_update, n, sizeof *launch_update);
  first = copy_to_device(starts, n + 1, sizeof *starts);
  exit_on_error(dv_alloc(desk, (size_t)tiles * 2 * sizeof *sums, (void **)&sums));
  exit_on_error(dv_alloc(desk, sizeof *skipped, (void **)&skipped));
  const int64_t one = 1; /* an update was counted, so momentum exists */
  dv_eva all = {.layer = copy_to_device(layer, n, sizeof *layer),
                .layers = n,
                .parameters = n,
                .sums = sums,
                .direction = directions,
                .update = (dv_update *)(uintptr_t)updates,
                .layer_of = copy_to_device(layer_of, n, sizeof *layer_of),
                .group_of = copy_to_device(group_of, n, sizeof *group_of),
                .skipped = skipped,
                .updates = copy_to_device(&one, 1, sizeof one)};
  exit_on_error(dv_alloc(desk, MOST * sizeof *all.inner, (void **)&all.inner));
  exit_on_error(dv_alloc(desk, MOST * sizeof *all.c, (void **)&all.c));
  exit_on_error(dv_alloc(desk, MOST * sizeof *all.is_wide, (void **)&all.is_wide));
  lists = copy_to_device(&all, 1, sizeof all);
}

static double get_clip_bound(int k) { return (1 + k) * CLIP / (LR * LR); }

/* The means stay: their new sums have the weight 0. */
static void make_numbers(void) {
  double *x;
  dv_eva_group *group;
  exit_on_error(dv_alloc_host(desk, 6 * MOST * sizeof *x, (void **)&x));
  exit_on_error(dv_alloc_host(desk, sizeof *group, (void **)&group));
  for (int i = 0; i < MOST; i++) {
    x[i] = DAMPING, x[MOST + i] = 1.0;
    x[2 * MOST + 4 * i] = x[2 * MOST + 4 * i + 2] = 1.0;
    x[2 * MOST + 4 * i + 1] = x[2 * MOST + 4 * i + 3] = 0.0;
  }
  *group = (dv_eva_group){.lr = LR, .mu = MU, .keep = 1.0, .decay = DECAY};
  for (int k = 0; k < CHECKED; k++) {
    exit_on_error(dv_alloc_host(desk, sizeof *numbers[k], (void **)&numbers[k]));
    *numbers[k] = (dv_eva_numbers){get_clip_bound(k), x, x + MOST, x + 2 * MOST, group, 0.0, 0};
  }
}

static void launch_fold(void) {
  exit_on_error(
      dv_launch(desk, "dv_eva_fold", 2 * curved, DV_THREADS, (void *[]){&means, &numbers[0]}));
}
static void launch_sums(void) {
  exit_on_error(dv_launch(desk, "dv_measure_tiles", tiles, DV_THREADS,
                          (void *[]){&measures, &first, &n, &sums}));
}
static void launch_decide(void) {
  static int decided;
  exit_on_error(dv_launch(desk, "dv_eva_clip_and_scale", 1, DV_THREADS,
                          (void *[]){&lists, &numbers[decided++ % CHECKED]}));
}
static void launch_update(void) {
  exit_on_error(dv_launch(desk, "dv_update_tiles", tiles, DV_THREADS,
                          (void *[]){&directions, &updates, &first, &n, &skipped}));
}
static void launch_step(void) {
  launch_fold();
  launch_sums();
  launch_decide();
  launch_update();
}

/* ---- the check -------------------------------------------------------------------------------*/

/* Return s = g' D a / (alpha beta + damping), and add <D, PD> to *inner_sum. */
static double compute_coefficient(const parameter *p, double *inner_sum) {
  double s = 0.0, d2 = 0.0, alpha = 0.0, beta = 0.0;
  for (int64_t k = 0; k < p->count; k++) {
    const double x = (double)p->D[k];
    d2 += x * x;
    s += x * (double)p->g[k / p->cols] * (double)p->a[k % p->cols];
  }
  for (int64_t k = 0; k < p->cols; k++) {
    alpha += (double)p->a[k] * (double)p->a[k];
  }
  for (int64_t k = 0; k < p->rows; k++) {
    beta += (double)p->g[k] * (double)p->g[k];
  }
  const double by = s / (alpha * beta + DAMPING);
  *inner_sum += (d2 - s * by) / DAMPING;
  return by;
}

/* Return the largest difference between the weights on the device and the same steps in double. */
static double find_largest_error(void) {
  double by[MOST] = {0.0}, inner_sum = 0.0, worst = 0.0;
  for (int64_t i = 0; i < n; i++) {
    if (list[i].has_curvature) by[i] = compute_coefficient(&list[i], &inner_sum);
  }
  for (int64_t i = 0; i < n; i++) {
    const parameter *p = &list[i];
    float *got;
    exit_on_error(dv_alloc_host(desk, (size_t)p->count * sizeof *got, (void **)&got));
    exit_on_error(dv_copy(desk, got, p->device_w, (size_t)p->count * sizeof *got));
    exit_on_error(dv_wait(desk));
    for (int64_t k = 0; k < p->count; k++) {
      const double pd =
          p->has_curvature
              ? ((double)p->D[k] - by[i] * (double)p->g[k / p->cols] * (double)p->a[k % p->cols]) /
                    DAMPING
              : (double)p->D[k];
      double w = (double)p->w[k], m = (double)p->m[k];
      for (int step = 0; step < CHECKED; step++) {
        const double clip = fmin(1.0, sqrt(get_clip_bound(step) / inner_sum));
        m = MU * m + (p->has_curvature ? clip : 1.0) * pd + DECAY * w;
        w -= LR * m;
      }
      worst = fmax(worst, fabs((double)got[k] - w));
    }
    dv_free_host(desk, got);
  }
  return worst;
}

/* ---- times -----------------------------------------------------------------------------------*/

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Return the median time of a function in microseconds. */
static double time_us(void (*run)(void)) {
  double seconds[RUNS], unused;
  for (int i = 0; i < WARM_UP + RUNS; i++) {
    exit_on_error(dv_note_time(desk, 0));
    run();
    exit_on_error(dv_note_time(desk, 1));
    exit_on_error(dv_seconds_between(desk, i < WARM_UP ? &unused : &seconds[i - WARM_UP]));
  }
  qsort(seconds, RUNS, sizeof seconds[0], compare_doubles);
  return seconds[RUNS / 2] * 1e6;
}

static void *copied[2];
static const size_t COPIED = (size_t)512 << 20;
static void launch_copy(void) { exit_on_error(dv_copy(desk, copied[1], copied[0], COPIED)); }
static void replay_graph(void) { exit_on_error(dv_graph_replay(desk)); }

static void print_times(int64_t parameters) {
  exit_on_error(dv_alloc(desk, COPIED, &copied[0]));
  exit_on_error(dv_alloc(desk, COPIED, &copied[1]));
  const double bytes_per_us = 2.0 * (double)COPIED / time_us(launch_copy);
  const double bound = 24.0 * (double)parameters / bytes_per_us, whole = time_us(launch_step);
  printf(
      "  copy %.0f GB/s; bound (24 bytes a parameter) %.1f us; step %.1f us = %.2f of the bound\n",
      bytes_per_us * 1e-3, bound, whole, whole / bound);
  printf("  fold %.1f us, measure %.1f us, decide %.1f us, update %.1f us\n", time_us(launch_fold),
         time_us(launch_sums), time_us(launch_decide), time_us(launch_update));
  exit_on_error(dv_graph_begin(desk));
  launch_step();
  exit_on_error(dv_graph_end(desk));
  const double graph = time_us(replay_graph);
  printf("  step as a CUDA graph %.1f us = %.2f of the bound\n", graph, graph / bound);
}

int main(int argc, char **argv) {
  const char *model = argc > 1 ? argv[1] : "";
  const bool tiny = strcmp(model, "tiny") == 0, deep = strcmp(model, "resnet50") == 0;
  if (argc != 2 || (!tiny && !deep && strcmp(model, "resnet18") != 0)) {
    (void)fprintf(stderr, "usage: gpu_eva resnet18 | resnet50 | tiny\n");
    return 2;
  }
  int64_t parameters = 0, *overflowed;
  exit_on_error(dv_open(0, NULL, &desk));
  exit_on_error(dv_alloc(desk, sizeof *overflowed, (void **)&overflowed));
  if (tiny) {
    add_tiny();
  } else {
    add_resnet(deep);
  }
  for (int64_t i = 0; i < n; i++) {
    parameters += list[i].count;
  }
  make_descriptors(overflowed);
  make_numbers();
  for (int i = 0; i < CHECKED; i++) {
    launch_step();
  }
  exit_on_error(dv_wait(desk));
  /* Weights are below 0.05 and change by less than 0.05 a step: a few roundings of 2^-24 of 0.1 in each. */
  const double error = find_largest_error(), tolerance = CHECKED * 4.0 * 0x1p-24 * 0.1;
  printf("%s: %lld parameters of %lld tensors, %lld layers, on %s; largest error %.2g of %.2g\n",
         model, (long long)parameters, (long long)n, (long long)curved, dv_name(desk), error,
         tolerance);
  if (!(error <= tolerance)) return 1;
  if (!tiny) print_times(parameters);
  return 0;
}
