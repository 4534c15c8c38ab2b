/* t_finite_norm.c: averages of norm blocks, embeddings and diagonal factors stay finite.  If the square of a gradient
 * of one sample overflows an average, all ranks skip the step, the average and the gradient do not change, and later
 * steps count. After every step every average and every gradient is finite. */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "fixture.h"
#include "ranks.h"
#include "step/step.h"

enum { B = 2, S = 2, C = 4, ALL = B * S * C, VOCABULARY = 5, STEPS = 6, HUGE_STEP = 2, RANKS = 4 };

typedef enum kind { BATCH, LAYER, GROUP, WORDS, LINEAR, KINDS } kind;
static const char *const kind_name[] = {"batch", "layer", "group", "embedding", "linear"};

typedef struct norm_case {
  kind kind;
  ng_norm_input input;
  int32_t ranks;
  float huge; /* an element of g in step HUGE_STEP, on the last rank */
  int calls;  /* micro-batches of a step */
  /* true: step HUGE_STEP must be skipped; false: it may count, and 2x2 blocks may become singular */
  bool refused;
  char options[160];
  ng_status status[RANKS];        /* status of step HUGE_STEP on each rank */
  char message[RANKS][200];       /* the fault; "" if there is none */
  float D[STEPS][VOCABULARY * C]; /* gradients, the same in all steps */
} norm_case;

/* ---- the layer -------------------------------------------------------------------------------*/

static ng_status add_norm_layer(const norm_case *n, ng_precond *p) {
  if (n->kind >= WORDS) {
    const bool words = n->kind == WORDS;
    const ng_layer l =
        layer_of(words ? NG_EMBEDDING : NG_LINEAR, "layer", words ? VOCABULARY : C, C);
    return ng_add_layer(p, &l, NULL);
  }
  ng_layer l = layer_of(NG_NORM, "layer", C, 0);
  l.bias = 1;
  l.norm_kind = n->kind == BATCH ? NG_BATCH_NORM : n->kind == LAYER ? NG_LAYER_NORM : NG_GROUP_NORM;
  l.norm_input = n->input;
  l.norm_eps = 1e-3;
  l.groups = n->kind == GROUP ? 2 : 1;
  return ng_add_layer(p, &l, NULL);
}

static int64_t gradient_count(const norm_case *n) {
  return n->kind == WORDS ? VOCABULARY * C : n->kind == LINEAR ? C * C : 2 * C;
}

static ng_status bind_gradient(const norm_case *n, fixture *f, float *grad) {
  const bool norm = n->kind < WORDS;
  const plane whole = plane_of(grad, n->kind == WORDS ? VOCABULARY : C, C, NG_F32);
  if (!norm) return plane_bind_grad(f->p, 0, NG_WEIGHT, &whole);
  const ng_array D[2] = {ng_array_vector(grad, C, NG_F32), ng_array_vector(grad + C, C, NG_F32)};
  const ng_status st = ng_bind_grad(f->p, 0, NG_WEIGHT, &D[0]);
  return st == NG_OK ? ng_bind_grad(f->p, 0, NG_BIAS, &D[1]) : st;
}

static ng_status observe_batch(const norm_case *n, ng_precond *p, int32_t rank, bool huge) {
  static const float x[ALL] = {1, -2, 3, 4, -1, 2, 0, 5, 2, 1, -3, 1, 4, -2, 2, 1};
  static const float y[ALL] = {1, 2, -1, 1, 3, 0, 2, -2, -1, 1, 2, 3, 1, -2, 1, 2};
  static const int64_t tokens[B * S] = {0, 3, 1, 3};
  static const int64_t rows[3] = {B, S, C};
  float a[ALL], g[ALL];
  int64_t token[B * S];
  memcpy(a, x, sizeof a);
  memcpy(g, y, sizeof g);
  memcpy(token, tokens, sizeof token);
  if (huge && rank == n->ranks - 1) g[5] = n->huge;
  const bool image = n->kind == BATCH || n->kind == GROUP;
  const ng_array in =
      n->kind == WORDS
          ? (ng_array){.data = token, .dtype = NG_I64, .mem = NG_HOST, .ndim = 2, .shape = rows}
      : image ? ng_array_nhwc(a, B, C, 1, S, NG_F32)
              : (ng_array){.data = a, .dtype = NG_F32, .mem = NG_HOST, .ndim = 3, .shape = rows};
  const ng_array out =
      image ? ng_array_nhwc(g, B, C, 1, S, NG_F32)
            : (ng_array){.data = g, .dtype = NG_F32, .mem = NG_HOST, .ndim = 3, .shape = rows};
  ng_status st = ng_begin_samples(p, B, 1);
  if (st == NG_OK) st = ng_observe_input(p, 0, &in, n->kind < WORDS ? NG_BORROW : NG_COPY);
  if (st == NG_OK) st = ng_observe_output_grad(p, 0, &out, NG_COPY);
  return st;
}

/* ---- a run -----------------------------------------------------------------------------------*/

/* Copy the average of the last statistic of the layer, F or G. */
static size_t copy_average(const fixture *f, unsigned char *to, size_t size, bool *finite) {
  const ng_block *b = f->p->block[0];
  size_t bytes = 0;
  *finite = true;
  for (int32_t i = 0; i < b->stats; i++) {
    const ng_stat *s = &b->stat[i];
    if (!s->has_average) continue;
    bytes = 0;
    memset(to, 0, size);
    for (int32_t k = 0; k < s->parts; k++) {
      const int64_t n = ng_stat_part_count(s, &s->part[k]);
      const size_t more = (size_t)(n * ng_dtype_size(s->average_dtype));
      *finite = *finite && ng_are_finite(s->part[k].average, s->average_dtype, n);
      if (bytes + more <= size) memcpy(to + bytes, s->part[k].average, more);
      bytes += more;
    }
  }
  return bytes;
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  norm_case *n = arg;
  fixture f;
  float grad[VOCABULARY * C];
  unsigned char before[512], after[512];
  bool finite;
  char *why = n->message[rank];
  const fixture_how how = {.threads = 1, .transport = t};
  ng_status st = fixture_open(&f, n->options, &how);
  if (st == NG_OK) st = add_norm_layer(n, f.p);
  if (st == NG_OK) st = bind_gradient(n, &f, grad);
  if (st == NG_OK) st = ng_ready(f.p);
  if (st != NG_OK) (void)snprintf(why, 200, "not ready: %.150s", fixture_message(&f));
  for (int s = 0; s < STEPS && st >= NG_OK; s++) {
    memset(before, 0, sizeof before);
    memset(after, 0, sizeof after);
    const size_t size = copy_average(&f, before, sizeof before, &finite);
    memcpy(grad, n->D[s], sizeof grad);
    for (int c = 0; c < n->calls && st >= NG_OK; c++)
      st = observe_batch(n, f.p, rank, s == HUGE_STEP && c == 0);
    if (st < NG_OK) break;
    st = ng_step(f.p, 0.1);
    (void)copy_average(&f, after, sizeof after, &finite);
    const bool kept = memcmp(grad, n->D[s], sizeof grad) == 0;
    if (size > sizeof before) (void)snprintf(why, 200, "no room for %zu bytes", size);
    if (s == HUGE_STEP) n->status[rank] = st;
    if (!finite) (void)snprintf(why, 200, "step %d: an average is not finite", s);
    if (!ng_are_finite(grad, NG_F32, gradient_count(n)))
      (void)snprintf(why, 200, "step %d: PD is not finite", s);
    if (st == NG_SKIPPED && !kept)
      (void)snprintf(why, 200, "step %d was skipped, and wrote a gradient", s);
    if (st == NG_SKIPPED && memcmp(before, after, sizeof before) != 0)
      (void)snprintf(why, 200, "step %d was skipped, and moved an average", s);
    if (s != HUGE_STEP && st != NG_OK && !(s > HUGE_STEP && st == NG_RESCUED && !n->refused))
      (void)snprintf(why, 200, "step %d: %s, %.150s", s, ng_status_name(st), ng_last_error(f.ctx));
    if (st != NG_SKIPPED && kept) (void)snprintf(why, 200, "step %d left the plain gradient", s);
    if (st == NG_SKIPPED) st = NG_OK;
  }
  if (st < NG_OK && why[0] == 0) (void)snprintf(why, 200, "%.190s", ng_last_error(f.ctx));
  fixture_close(&f);
  return st;
}

static void check_norm_case(norm_case n, bool refused) {
  n.refused = refused;
  for (int s = 0; s < STEPS; s++)
    for (int i = 0; i < VOCABULARY * C; i++)
      n.D[s][i] = (float)(1 + i % 7);
  ng_status st = n.ranks > 1 ? ranks_run(n.ranks, run_rank, &n, NULL) : run_rank(0, NULL, &n);
  for (int r = 0; r < n.ranks; r++) {
    if (st < NG_OK || n.message[r][0] != 0 || (n.status[r] == NG_SKIPPED) != refused)
      fail_msg("%s, %s, %d ranks, value %g, '%s': rank %d, step %d returned %s; %s",
               kind_name[n.kind], n.input == NG_NORM_RAW ? "raw" : "normalised", n.ranks,
               (double)n.huge, n.options, r, HUGE_STEP, ng_status_name(n.status[r]), n.message[r]);
  }
}

/* The square of 1e8 is in the range of f32, the squares of 1e25 and 1e30 are not.  f16 ends at 65504: 30^2 is in its
 * range, 3e4^2 times the weight 1/20 is not. */
static void check_all_kinds(const char *with, int32_t ranks, bool half) {
  static const char *const block[] = {"unit", "full", "diagonal"};
  for (int k = 0; k < KINDS; k++)
    for (int b = 0; b < (k < WORDS ? 3 : 2); b++)
      for (int i = 0; i < (k < WORDS ? 2 : 1); i++) {
        norm_case n = {.kind = (kind)k,
                       .input = i ? NG_NORM_NORMALISED : NG_NORM_RAW,
                       .ranks = ranks,
                       .calls = 1};
        (void)snprintf(n.options, sizeof n.options, "method=natgrad clip=none damping=0.1 %s=%s %s",
                       k < WORDS ? "norm_block" : "output_factor",
                       k < WORDS ? block[b]
                       : b       ? "full"
                                 : "diagonal",
                       with);
        const bool narrow = half && k >= WORDS; /* norm blocks are stored in f32 */
        n.huge = narrow ? 30 : 1e8f;
        check_norm_case(n, false);
        n.huge = narrow ? 3e4f : 1e25f;
        check_norm_case(n, true);
        n.huge = 1e30f;
        check_norm_case(n, true);
        n.calls = 2; /* an ordinary micro-batch follows the huge one */
        check_norm_case(n, true);
      }
}

static void averages_stay_finite(void **state) {
  static const char *const with[] = {"", "calls=ema", "stat_start=identity", "factor_dtype=f16",
                                     "factor_dtype=bf16"};
  for (int i = 0; i < 5; i++) {
    check_all_kinds(with[i], 1, i == 3);
    if (i != 2) check_all_kinds(with[i], RANKS, i == 3);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(averages_stay_finite)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
