/* 20_three_layers: train a perceptron with fused SGD, two micro-batches a step; then repeat the run, destroy
 * everything half way and resume from memory: the weights are equal, bit for bit.
 *
 * The comments 1 to 12 number the lines that natgrad adds to a training loop; tests/twelve_lines.sh checks them.
 * Lines that handle errors or save are not numbered.  The network itself stores its matrices as ng_arrays. */
#include <natgrad.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, ROWS = 32, MICRO = 2, STEPS = 60 };
static const char *const name[LAYERS] = {"fc1", "fc2", "fc3"};
static const int width[LAYERS + 1] = {8, 24, 24, 4};

static ng_context *ctx;
static char why[256];

/* Exit with a message if a call failed.  A positive status is a note; the run continues. */
static void must(ng_status status) {
  if (status >= NG_OK) return;
  fprintf(stderr, "20_three_layers: %s\n", ctx == NULL ? why : ng_last_error(ctx));
  exit(1);
}

/* ---- the network: forward, loss, backward ----------------------------------------------------*/

typedef struct layer {
  ng_array value[2], grad[2]; /* [NG_WEIGHT] [out, in], [NG_BIAS] [1, out]                   */
  ng_array x, dy;             /* input [ROWS, in], d(loss) / d(output) [ROWS, out]           */
} layer;

typedef struct net {
  layer l[LAYERS];
  ng_array y, want; /* output and target [ROWS, out]                                         */
  float memory[8192];
  int used;
} net;

static float *get_row(const ng_array *a, int64_t i) { return (float *)a->data + i * a->room[1]; }

static ng_array make_matrix(net *n, int rows, int cols) {
  float *data = n->memory + n->used;
  n->used += rows * cols;
  return ng_array_matrix(data, rows, cols, NG_F32);
}

static unsigned long long seed;
static float draw_uniform(void) { /* in [-1, 1), the same on every machine */
  seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
  return (float)(seed >> 40) / 8388608.0f - 1.0f;
}

static void init_network(net *n) {
  memset(n, 0, sizeof *n);
  seed = 1;
  for (int i = 0; i < LAYERS; i++) {
    const int in = width[i], out = width[i + 1];
    layer *l = &n->l[i];
    for (int k = 0; k < 2; k++) {
      l->value[k] = k == NG_WEIGHT ? make_matrix(n, out, in) : make_matrix(n, 1, out);
      l->grad[k] = k == NG_WEIGHT ? make_matrix(n, out, in) : make_matrix(n, 1, out);
    }
    l->x = make_matrix(n, ROWS, in);
    l->dy = make_matrix(n, ROWS, out);
    for (int j = 0; j < out * in; j++) {
      get_row(&l->value[NG_WEIGHT], 0)[j] = draw_uniform() * sqrtf(3.0f / (float)in);
    }
  }
  n->y = make_matrix(n, ROWS, width[LAYERS]);
  n->want = make_matrix(n, ROWS, width[LAYERS]);
}

/* Read micro-batch m of a step: the targets are products and sines of the inputs. */
static void load_micro_batch(net *n, int step, int m) {
  seed = (unsigned long long)(step * MICRO + m + 100);
  for (int r = 0; r < ROWS; r++) {
    float *x = get_row(&n->l[0].x, r), *want = get_row(&n->want, r);
    for (int i = 0; i < width[0]; i++) {
      x[i] = draw_uniform();
    }
    for (int o = 0; o < width[LAYERS]; o++) {
      want[o] = sinf(2.0f * x[o]) + x[o] * x[o + 4];
    }
  }
}

static void forward(net *n) {
  for (int i = 0; i < LAYERS; i++) {
    const layer *l = &n->l[i];
    for (int r = 0; r < ROWS; r++) {
      float *y = i + 1 < LAYERS ? get_row(&n->l[i + 1].x, r) : get_row(&n->y, r);
      for (int o = 0; o < width[i + 1]; o++) {
        float s = get_row(&l->value[NG_BIAS], 0)[o];
        for (int j = 0; j < width[i]; j++) {
          s += get_row(&l->value[NG_WEIGHT], o)[j] * get_row(&l->x, r)[j];
        }
        y[o] = i + 1 < LAYERS ? tanhf(s) : s;
      }
    }
  }
}

/* Return half the squared error, mean over the rows, and write its derivative, times scale, to the last dy. */
static double compute_loss(net *n, float scale) {
  double sum = 0.0;
  for (int r = 0; r < ROWS; r++) {
    for (int o = 0; o < width[LAYERS]; o++) {
      const float e = get_row(&n->y, r)[o] - get_row(&n->want, r)[o];
      sum += 0.5 * (double)e * (double)e / ROWS;
      get_row(&n->l[LAYERS - 1].dy, r)[o] = scale * e / ROWS;
    }
  }
  return sum;
}

/* Add the gradients of this micro-batch. */
static void backward(net *n) {
  for (int i = LAYERS - 1; i >= 0; i--) {
    layer *l = &n->l[i];
    for (int r = 0; r < ROWS; r++) {
      const float *x = get_row(&l->x, r), *dy = get_row(&l->dy, r);
      for (int o = 0; o < width[i + 1]; o++) {
        get_row(&l->grad[NG_BIAS], 0)[o] += dy[o];
        for (int j = 0; j < width[i]; j++) {
          get_row(&l->grad[NG_WEIGHT], o)[j] += dy[o] * x[j];
        }
      }
      for (int j = 0; j < width[i] && i > 0; j++) {
        float s = 0.0f;
        for (int o = 0; o < width[i + 1]; o++) {
          s += dy[o] * get_row(&l->value[NG_WEIGHT], o)[j];
        }
        get_row(&n->l[i - 1].dy, r)[j] = s * (1.0f - x[j] * x[j]);
      }
    }
  }
}

static void clear_gradients(net *n) {
  for (int i = 0; i < LAYERS; i++) {
    memset(n->l[i].grad[NG_WEIGHT].data, 0, sizeof(float) * (size_t)(width[i + 1] * width[i]));
    memset(n->l[i].grad[NG_BIAS].data, 0, sizeof(float) * (size_t)width[i + 1]);
  }
}

/* ---- saving: a state in memory ---------------------------------------------------------------*/

typedef struct state {
  char *data;
  size_t size, room, read;
} state;

static int32_t append_bytes(void *user, const void *data, int64_t bytes) {
  state *s = user;
  if (s->size + (size_t)bytes > s->room) {
    const size_t room = 2 * (s->size + (size_t)bytes);
    char *larger = realloc(s->data, room);
    if (larger == NULL) return -1;
    s->data = larger;
    s->room = room;
  }
  memcpy(s->data + s->size, data, (size_t)bytes);
  s->size += (size_t)bytes;
  return 0;
}

static int64_t read_bytes(void *user, void *data, int64_t bytes) {
  state *s = user;
  const size_t left = s->size - s->read, now = (size_t)bytes < left ? (size_t)bytes : left;
  memcpy(data, s->data + s->read, now);
  s->read += now;
  return (int64_t)now;
}

static void load_state(ng_precond *p, state *s) {
  s->read = 0;
  must(ng_load_from(p, read_bytes, s));
}

static void save_state(ng_precond *p, state *s) {
  s->size = 0;
  must(ng_save_to(p, append_bytes, s));
}

/* ---- the training loop -----------------------------------------------------------------------*/

/* Run steps [from, to).  Resume from the state in `kept`, if any, and save the new state there.  Return the loss
 * of the last step. */
static double train_steps(net *n, int from, int to, state *kept) {
  ng_precond *p = NULL;
  double mean = 0.0;
  must(ng_context_create(NG_VERSION, NULL, why, sizeof why, &ctx));           /* 1 */
  must(ng_precond_create(ctx, "update=sgd damping=0.03 solve_period=4", &p)); /* 2 */
  for (int i = 0; i < LAYERS; i++) {
    const layer *l = &n->l[i];
    must(ng_add_linear(p, name[i], width[i], width[i + 1], 1, NULL)); /* 3 */
    for (ng_param k = NG_WEIGHT; k <= NG_BIAS; k++) {
      must(ng_bind(p, &(ng_binding){i, k, &l->grad[k], &l->value[k], NG_HOLD}, 1)); /* 4 */
    }
  }
  must(ng_ready(p)); /* 5 */
  if (kept->size > 0) load_state(p, kept);

  for (int step = from; step < to; step++) {
    clear_gradients(n);
    mean = 0.0;
    for (int m = 0; m < MICRO; m++) {
      load_micro_batch(n, step, m);
      forward(n);
      mean += compute_loss(n, 1.0f / MICRO) / MICRO;
      backward(n);
      must(ng_begin_samples(p, ROWS, 1.0 / MICRO)); /* 6 */
      for (int i = 0; i < LAYERS; i++) {
        must(ng_observe_input(p, i, &n->l[i].x, NG_COPY));        /* 7 */
        must(ng_observe_output_grad(p, i, &n->l[i].dy, NG_COPY)); /* 8 */
      }
    }
    const ng_sgd how = {.struct_size = sizeof how, .lr = 0.3, .momentum = 0.9}; /* 9 */
    must(ng_step_sgd(p, &how, 1));                                              /* 10 */
  }
  save_state(p, kept);
  ng_precond_destroy(&p);   /* 11 */
  ng_context_destroy(&ctx); /* 12 */
  return mean;
}

int main(void) {
  static net whole, parts;
  state none = {0}, kept = {0};
  init_network(&whole);
  init_network(&parts);
  const double first = train_steps(&whole, 0, 1, &none);
  init_network(&whole);
  none.size = 0;
  const double last = train_steps(&whole, 0, STEPS, &none);
  train_steps(&parts, 0, STEPS / 2 + 1, &kept);
  const double again = train_steps(&parts, STEPS / 2 + 1, STEPS, &kept);
  int equal = again == last && kept.size == none.size && !memcmp(kept.data, none.data, kept.size);
  for (int i = 0; i < LAYERS; i++) {
    for (int k = 0; k < 2; k++) {
      const ng_array *a = &whole.l[i].value[k];
      const size_t bytes = sizeof(float) * (size_t)(a->room[0] * a->room[1]);
      equal = equal && !memcmp(a->data, parts.l[i].value[k].data, bytes);
    }
  }
  free(none.data);
  free(kept.data);
  printf("loss %.5f, then %.5f; resumed from %zu bytes: %s\n", first, last, kept.size,
         equal ? "the same bits" : "NOT the same bits");
  return equal && last < 0.1 * first ? 0 : 1;
}
