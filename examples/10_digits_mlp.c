/* 10_digits_mlp: train a perceptron 64-64-10 on the UCI digits in plain C, with SGD and with natgrad, and print the
 * losses and accuracies of both runs.
 *
 *     10_digits_mlp [data/digits.csv [epochs [learning-rate]]]
 *
 * Both runs have the same batches, initial weights and learning-rate decay.  The learning rate is 0.5: of 0.01, 0.03, 0.1,
 * 0.2, 0.3, 0.5 and 1 it gives the lowest final training loss, with SGD and with natgrad. */
#include <natgrad.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 1797, TRAIN = 1437, IN = 64, HID = 64, OUT = 10, BATCH = 64 };

static float x[ROWS][IN];
static int label[ROWS];

/* ---- data ------------------------------------------------------------------------------------*/

static int read_digits(const char *path) {
  FILE *f = fopen(path, "r");
  if (f == NULL) {
    fprintf(stderr, "10_digits_mlp: cannot open %s\n", path);
    return 1;
  }
  for (int r = 0; r < ROWS; r++) {
    for (int c = 0; c <= IN; c++) {
      int v = -1;
      if (fscanf(f, c == 0 ? "%d" : ",%d", &v) != 1 || v < 0 || v > (c < IN ? 16 : 9)) {
        fprintf(stderr, "10_digits_mlp: %s: row %d, column %d is not a value of the digits\n", path,
                r + 1, c + 1);
        fclose(f);
        return 1;
      }
      if (c < IN) {
        x[r][c] = (float)v / 8.0f - 1.0f;
      } else {
        label[r] = v;
      }
    }
  }
  fclose(f);
  return 0;
}

static unsigned long long seed;
static unsigned draw_random_word(void) { /* a generator with equal numbers on every machine */
  seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
  return (unsigned)(seed >> 33);
}

/* ---- the network -----------------------------------------------------------------------------*/

typedef struct params {
  float w1[HID][IN], b1[HID], w2[OUT][HID], b2[OUT];
} params;
enum { COUNT = sizeof(params) / sizeof(float) };

typedef struct net {
  params w, d;                                      /* weights and their gradients */
  float a[BATCH][IN], h[BATCH][HID], y[BATCH][OUT]; /* inputs of both layers, outputs */
  float gh[BATCH][HID], gy[BATCH][OUT];             /* d(mean loss)/d(output of the layer) */
} net;

static void init_weights(net *n) {
  memset(n, 0, sizeof *n);
  seed = 1;
  for (int i = 0; i < HID * IN; i++) {
    (&n->w.w1[0][0])[i] = ((float)draw_random_word() / 2147483648.0f - 0.5f) * 2.0f / sqrtf(IN);
  }
  for (int i = 0; i < OUT * HID; i++) {
    (&n->w.w2[0][0])[i] = ((float)draw_random_word() / 2147483648.0f - 0.5f) * 2.0f / sqrtf(HID);
  }
}

static void forward(net *n, int rows) {
  for (int r = 0; r < rows; r++) {
    for (int j = 0; j < HID; j++) {
      float s = n->w.b1[j];
      for (int i = 0; i < IN; i++) {
        s += n->w.w1[j][i] * n->a[r][i];
      }
      n->h[r][j] = tanhf(s);
    }
    for (int k = 0; k < OUT; k++) {
      float s = n->w.b2[k];
      for (int j = 0; j < HID; j++) {
        s += n->w.w2[k][j] * n->h[r][j];
      }
      n->y[r][k] = s;
    }
  }
}

/* Softmax cross-entropy, mean over rows.  Write gy, and return the summed loss. */
static double compute_loss(net *n, int rows, const int *want) {
  double sum = 0.0;
  for (int r = 0; r < rows; r++) {
    float top = n->y[r][0], z = 0.0f;
    for (int k = 1; k < OUT; k++) {
      top = fmaxf(top, n->y[r][k]);
    }
    for (int k = 0; k < OUT; k++) {
      z += expf(n->y[r][k] - top);
    }
    for (int k = 0; k < OUT; k++) {
      const float p = expf(n->y[r][k] - top) / z;
      n->gy[r][k] = (p - (k == want[r] ? 1.0f : 0.0f)) / (float)rows;
      if (k == want[r]) sum -= log((double)p + 1e-30);
    }
  }
  return sum;
}

static void backward(net *n, int rows) {
  memset(&n->d, 0, sizeof n->d);
  for (int r = 0; r < rows; r++) {
    for (int j = 0; j < HID; j++) {
      float s = 0.0f;
      for (int k = 0; k < OUT; k++) {
        s += n->gy[r][k] * n->w.w2[k][j];
      }
      n->gh[r][j] = s * (1.0f - n->h[r][j] * n->h[r][j]);
    }
    for (int k = 0; k < OUT; k++) {
      n->d.b2[k] += n->gy[r][k];
      for (int j = 0; j < HID; j++) {
        n->d.w2[k][j] += n->gy[r][k] * n->h[r][j];
      }
    }
    for (int j = 0; j < HID; j++) {
      n->d.b1[j] += n->gh[r][j];
      for (int i = 0; i < IN; i++) {
        n->d.w1[j][i] += n->gh[r][j] * n->a[r][i];
      }
    }
  }
}

static double test_accuracy(net *n) {
  int right = 0;
  for (int r = TRAIN; r < ROWS; r++) {
    memcpy(n->a[0], x[r], sizeof x[r]);
    forward(n, 1);
    int best = 0;
    for (int k = 1; k < OUT; k++) {
      if (n->y[0][k] > n->y[0][best]) best = k;
    }
    right += best == label[r];
  }
  return 100.0 * right / (ROWS - TRAIN);
}

/* ---- natgrad ---------------------------------------------------------------------------------*/

static ng_context *ctx;

static int fail(const char *what) {
  fprintf(stderr, "10_digits_mlp: %s: %s\n", what, ng_last_error(ctx));
  return 1;
}

static int register_layers(net *n, ng_precond **p, int32_t layer[2]) {
  ng_array view[4] = {
      ng_array_matrix(n->d.w1, HID, IN, NG_F32), ng_array_matrix(n->d.b1, 1, HID, NG_F32),
      ng_array_matrix(n->d.w2, OUT, HID, NG_F32), ng_array_matrix(n->d.b2, 1, OUT, NG_F32)};
  if (ng_precond_create(ctx, NULL, p) != NG_OK ||
      ng_add_linear(*p, "fc1", IN, HID, 1, &layer[0]) != NG_OK ||
      ng_add_linear(*p, "fc2", HID, OUT, 1, &layer[1]) != NG_OK) {
    return fail("describe");
  }
  for (int i = 0; i < 4; i++) {
    const ng_param which = i % 2 == 0 ? NG_WEIGHT : NG_BIAS;
    if (ng_bind_grad(*p, layer[i / 2], which, &view[i]) != NG_OK) return fail("bind");
  }
  return ng_ready(*p) != NG_OK ? fail("ready") : 0;
}

static int precondition_gradients(net *n, ng_precond *p, const int32_t layer[2], double lr) {
  ng_batch b;
  ng_array a[2] = {ng_array_matrix(n->a, BATCH, IN, NG_F32),
                   ng_array_matrix(n->h, BATCH, HID, NG_F32)};
  ng_array g[2] = {ng_array_matrix(n->gh, BATCH, HID, NG_F32),
                   ng_array_matrix(n->gy, BATCH, OUT, NG_F32)};
  ng_batch_init(&b, sizeof b);
  b.samples = BATCH;
  if (ng_begin(p, &b) != NG_OK) return fail("begin");
  for (int i = 0; i < 2; i++) {
    if (ng_observe_input(p, layer[i], &a[i], NG_COPY) < NG_OK ||
        ng_observe_output_grad(p, layer[i], &g[i], NG_COPY) < NG_OK) {
      return fail("observe");
    }
  }
  return ng_step(p, lr) < NG_OK ? fail("step") : 0;
}

/* ---- the run ---------------------------------------------------------------------------------*/

typedef struct record {
  double loss[100], accuracy[100];
} record;

static int train_network(int epochs, int with_natgrad, double lr0, record *out) {
  static net n;
  ng_precond *p = NULL;
  int32_t layer[2];
  int order[TRAIN], want[BATCH], status = 0;
  float v[COUNT] = {0}; /* momentum */
  init_weights(&n);
  if (with_natgrad && register_layers(&n, &p, layer)) return 1;
  for (int i = 0; i < TRAIN; i++) {
    order[i] = i;
  }
  seed = 2;
  for (int e = 0; e < epochs && status == 0; e++) {
    const double lr = lr0 * 0.5 * (1.0 + cos(3.14159265358979 * e / epochs));
    double sum = 0.0;
    for (int i = TRAIN - 1; i > 0; i--) {
      const int j = (int)(draw_random_word() % (unsigned)(i + 1)), t = order[i];
      order[i] = order[j];
      order[j] = t;
    }
    for (int b = 0; b + BATCH <= TRAIN && status == 0; b += BATCH) {
      for (int r = 0; r < BATCH; r++) {
        memcpy(n.a[r], x[order[b + r]], sizeof n.a[r]);
        want[r] = label[order[b + r]];
      }
      forward(&n, BATCH);
      sum += compute_loss(&n, BATCH, want);
      backward(&n, BATCH);
      if (with_natgrad) status = precondition_gradients(&n, p, layer, lr);
      float *w = (float *)&n.w;
      const float *d = (const float *)&n.d;
      for (int i = 0; i < COUNT; i++) {
        v[i] = 0.9f * v[i] + d[i];
        w[i] -= (float)lr * v[i];
      }
    }
    out->loss[e] = sum / (TRAIN / BATCH * BATCH);
    out->accuracy[e] = test_accuracy(&n);
  }
  ng_precond_destroy(&p);
  return status;
}

int main(int argc, char **argv) {
  const char *path = argc > 1 ? argv[1] : "data/digits.csv";
  const long epochs_given = argc > 2 ? strtol(argv[2], NULL, 10) : 12;
  const int epochs = epochs_given < 1 || epochs_given > 100 ? 0 : (int)epochs_given;
  static record sgd, nat;
  char why[256] = "";
  const double lr = argc > 3 ? strtod(argv[3], NULL) : 0.5;
  if (epochs < 1 || epochs > 100) {
    fprintf(stderr, "10_digits_mlp: epochs is '%s', expected 1 to 100\n", argv[2]);
    return 2;
  }
  if (!(lr > 0.0 && lr < 100.0)) {
    fprintf(stderr, "10_digits_mlp: learning-rate is '%s', expected above 0\n", argv[3]);
    return 2;
  }
  if (read_digits(path) != 0) return 2;
  if (ng_context_create(NG_VERSION, NULL, why, sizeof why, &ctx) != NG_OK) {
    fprintf(stderr, "10_digits_mlp: %s\n", why);
    return 1;
  }
  const int status = train_network(epochs, 0, lr, &sgd) || train_network(epochs, 1, lr, &nat);
  if (status == 0) {
    printf("UCI digits, perceptron %d-%d-%d, batch %d, learning rate %g\n\n", IN, HID, OUT, BATCH,
           lr);
    printf("         SGD + momentum          natgrad + momentum\n");
    printf("epoch    loss      test %%       loss      test %%\n");
    for (int e = 0; e < epochs; e++) {
      printf("%5d    %.5f   %6.2f       %.5f   %6.2f\n", e + 1, sgd.loss[e], sgd.accuracy[e],
             nat.loss[e], nat.accuracy[e]);
    }
  }
  ng_context_destroy(&ctx);
  return status;
}
