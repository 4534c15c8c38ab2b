/* scene.h: a test case: one small training run, given to the library and to the oracle.
 *
 * A scene holds the layers, the observations of every step, rank and micro-batch, and the averaged
 * gradient of every step.  Numbers, tokens included, are doubles in the oracle's (published) order.
 * D of a norm is [C, gamma beta], D of an embedding [out, in].  A scene_look sets the types, strides,
 * layouts, threads and linear algebra of the arrays that the library receives. */
#ifndef TESTS_SCENE_H
#define TESTS_SCENE_H

#include "plane.h"
#include "draw.h"
#include "natgrad.h"
#include "oracle.h"

/* Of rounding in f32: half the distance from 1 to the next number. */
static const double unit = 0x1p-24;

enum { SCENE_LAYERS = 6, SCENE_STEPS = 6, SCENE_RANKS = 8, SCENE_CALLS = 8, SCENE_USES = 2 };

typedef struct scene_micro {
  ng_batch batch;
  double *a[SCENE_LAYERS][SCENE_USES], *g[SCENE_LAYERS][SCENE_USES]; /* NULL: not shown */
} scene_micro;

typedef struct scene {
  int32_t layers, steps, ranks;
  ng_layer layer[SCENE_LAYERS];
  char name[SCENE_LAYERS][32];
  int64_t positions
      [SCENE_LAYERS]; /* S; of a convolution its OH*OW, of a norm of images H*W, else free */
  int32_t uses[SCENE_LAYERS]; /* times a layer runs in one micro-batch */
  int32_t calls[SCENE_STEPS][SCENE_RANKS];
  scene_micro micro[SCENE_STEPS][SCENE_RANKS][SCENE_CALLS];
  double *D[SCENE_STEPS][SCENE_LAYERS];
  double *W[SCENE_LAYERS];     /* weights; NULL: not bound */
  double damping[SCENE_STEPS]; /* set before that step, if > 0 */
  double decay[SCENE_STEPS];   /* stat_decay of each step, if decay_moves */
  bool decay_moves;
} scene;

/* What goes wrong, on the last rank: a NaN in the last array of its kind to be shown; the same array not
 * shown, and a loss scale that overflowed; or nothing, but the batch is abandoned. */
typedef enum scene_trouble {
  SCENE_NO_TROUBLE,
  SCENE_BAD_INPUT,
  SCENE_BAD_OUTPUT_GRAD,
  SCENE_BAD_GRADIENT,
  SCENE_NO_INPUT,
  SCENE_NO_OUTPUT_GRAD,
  SCENE_BAD_SCALE, /* after everything was shown */
  SCENE_ABANDONED
} scene_trouble;

typedef struct scene_look {
  const char *linalg; /* NULL: the library's choice */
  int32_t threads;
  ng_dtype shown, gradient; /* 0: f32 */
  int64_t pad;              /* extra elements between rows, filled with NaN */
  plane_order layout;       /* 0: NCHW */
  ng_order order;           /* 0: samples first */
  bool declare_positions;   /* ng_layer.positions = S instead of 0 */
  bool show_unwanted;       /* do not ask ng_wants */
  bool reverse;             /* register layers last to first */
  const char *resume;    /* NULL, or a file: saved after step `resume_after`, and gone on from it */
  int32_t resume_after;  /* ... with another preconditioner */
  bool in_parts;         /* ... of as many files as there are ranks, which stay there */
  bool by_walk;          /* ... by way of single arrays and a manifest, without the file */
  scene_trouble trouble; /* before step `trouble_at` the same step is tried with other numbers */
  int32_t trouble_at;    /* ... and this in them */
} scene_look;

typedef struct scene_result {
  double *P[SCENE_STEPS][SCENE_LAYERS];
  double nu[SCENE_STEPS], inner[SCENE_STEPS];
  double condition[SCENE_STEPS][SCENE_LAYERS]; /* oracle only */
  ng_status status;                            /* worst over steps and ranks */
  char message[512];
  double rank_gap;     /* largest difference of a result between ranks; NaN is none */
  int64_t allocations; /* that steps made, of all ranks */
  int32_t refused;     /* attempts that ended as NG_SKIPPED and left the gradient, on every rank */
} scene_result;

void *scene_alloc(size_t bytes); /* zeros, to be freed; ends the program if there are none */
double *zeros(int64_t n);        /* the same, of n numbers */

/* An empty scene; layers are added with defaults from ng_layer_init, geometry set by the caller. */
scene *scene_create(int32_t steps, int32_t ranks);
void scene_destroy(scene **s);
ng_layer *scene_linear(scene *s, int64_t in, int64_t out, bool bias, int64_t positions);
ng_layer *scene_conv(scene *s, int64_t in, int64_t out, int64_t kh, int64_t kw, int64_t h,
                     int64_t w, bool bias); /* stride 1, padding 0: then change and scene_close */
ng_layer *
scene_norm(scene *s, ng_norm_kind kind, int64_t channels, int64_t h,
           int64_t w); /* gamma, beta; of images, but for a layer norm, of h * w positions */
ng_layer *scene_embedding(scene *s, int64_t in, int64_t out, int64_t positions);
void scene_close(scene *s);           /* geometry is complete: positions follow */
bool scene_images(const ng_layer *l); /* sees [B, C, H, W] */

/* Make room for micro-batch `call`, counting it. */
scene_micro *scene_call(scene *s, int32_t step, int32_t rank, int64_t samples);
int64_t scene_in_count(const scene *s, int32_t layer, int64_t samples); /* elements of an input */
int64_t scene_out_count(const scene *s, int32_t layer, int64_t samples);
int64_t scene_weights(const scene *s, int32_t layer); /* q * p */

/* Fills, with rng_value, where nothing is filled yet. */
void scene_fill(scene *s, rng *r);

/* A scene whose only rank saw, as one micro-batch a step, everything the given one's ranks saw.
 * All micro-batches must have reduction NG_SUM and loss_scale 1: then g does not change. */
scene *scene_merge(const scene *s);
/* A copy whose samples come in another order, within every micro-batch. */
scene *scene_shuffle(const scene *s, rng *r);

/* Play it.  Results are freed by scene_forget.  The library runs one thread a rank when there is
 * more than one; asserts nothing. */
void scene_play(const scene *s, const ng_options *opt, const scene_look *look, scene_result *out);
/* `keep` (may be NULL) receives the oracle after the last step. */
void scene_predict(const scene *s, const ng_options *opt, scene_result *out, oracle **keep);
void scene_forget(scene_result *r);

/* Largest |x - y| of one step and layer over the largest |y| (1 if y is 0). */
double scene_gap(const scene *s, int32_t step, int32_t layer, const scene_result *x,
                 const scene_result *y);

/* Play n cases, each of its own seed; case_of gives the error in units of rounding, INFINITY (having
 * told why) for a case that failed.  NG_TEST_SEED without NG_TEST_MULT plays that one case. */
void test_cases(double (*case_of)(uint64_t seed), int64_t n, double allowed);

#endif
