/* t_norm.c: norm blocks against a dense float64 solve (norm_oracle.h, the tolerance too).  Seen at most 4.1
 * units in 8,000 cases. */
#include "fixture.h"
#include "norm_oracle.h"
#include "oracle.h"
#include "ranks.h"
#include "scene.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { C_MOST = 8, STEPS = 3, CALLS = 3, B_MOST = 5, S_MOST = 6, RANKS = 3, W_MOST = 2 * C_MOST };
enum { ELEMENTS = B_MOST * S_MOST * C_MOST };

typedef struct call {
  int64_t samples;
  ng_reduction reduction;
  double loss_scale;
  float a[ELEMENTS], g[ELEMENTS]; /* [B, S, C] */
} call;

/* One norm layer and what it sees. */
typedef struct norm_case {
  ng_norm_kind kind;
  ng_norm_input input;
  int64_t C, S, groups;
  bool gamma, beta, channels_last;
  int32_t ranks, calls[STEPS][RANKS];
  call shown[STEPS][RANKS][CALLS];
  float D[STEPS][W_MOST];
  char options[256];
  const char *save, *load; /* after step 0, before step 1 */
  bool last;               /* ng_batch.last in the last micro-batch of a step */
  float P[RANKS][STEPS][W_MOST];
  double rescued;
} norm_case;

static int64_t width(const norm_case *n) { return n->C * (n->gamma + n->beta); }

/* ---- the oracle ------------------------------------------------------------------------------*/

static const double EPS = 1e-3;

static ng_layer layer_of(const norm_case *n) {
  ng_layer l;
  ng_layer_init(&l, NG_NORM, sizeof l);
  l.name = "bn";
  l.in = n->C;
  l.bias = n->beta;
  l.norm_no_weight = !n->gamma;
  l.norm_kind = n->kind;
  l.norm_input = n->input;
  l.norm_eps = EPS;
  l.groups = n->groups;
  return l;
}

static void add_call(const norm_case *n, const call *m, int64_t take, double *F) {
  const ng_layer l = layer_of(n);
  ng_batch b;
  double a[ELEMENTS], g[ELEMENTS];
  ng_batch_init(&b, sizeof b);
  b.samples = m->samples;
  b.reduction = m->reduction;
  b.loss_scale = m->loss_scale;
  for (int64_t i = 0; i < m->samples * n->S * n->C; i++) {
    a[i] = (double)m->a[i];
    g[i] = (double)m->g[i];
  }
  norm_add(&l, &b, n->S, a, g, take, 1, F);
}

/* The worst error of all steps, in units of rounding times condition. */
static double error_of(const norm_case *n) {
  const ng_options o = fixture_parse(n->options);
  const ng_layer l = layer_of(n);
  const int64_t w = norm_width(&l);
  double F[W_MOST * W_MOST] = {0}, worst = 0;
  for (int t = 0; t < STEPS; t++) {
    double fresh[W_MOST * W_MOST] = {0}, total = 0, most = 0, x[W_MOST];
    for (int r = 0; r < n->ranks; r++) {
      for (int k = 0; k < n->calls[t][r]; k++) {
        const call *m = &n->shown[t][r][k];
        const int64_t take =
            o.stat_batch > 0 && o.stat_batch < m->samples ? o.stat_batch : m->samples;
        add_call(n, m, take, fresh);
        total += (double)take;
      }
    }
    const double rho = t == 0 ? 0 : o.stat_decay;
    for (int64_t k = 0; k < w * w; k++)
      F[k] = rho * F[k] + (1 - rho) * fresh[k] / total;
    for (int64_t i = 0; i < w; i++)
      x[i] = (double)n->D[t][i];
    const double condition = norm_solve(&l, o.norm_block, F, o.damping * o.norm_damping, x);
    for (int64_t i = 0; i < w; i++)
      most = fmax(most, fabs(x[i]));
    if (most == 0) most = 1;
    for (int r = 0; r < n->ranks; r++) {
      for (int64_t i = 0; i < w; i++) {
        const double e = fabs((double)n->P[r][t][i] - x[i]) / most;
        if (!isfinite(e)) return INFINITY;
        worst = fmax(worst, e / unit / condition);
      }
    }
  }
  return worst;
}

/* ---- the library -----------------------------------------------------------------------------*/

static ng_array array_of(const norm_case *n, int64_t B, const float *x, float *room) {
  float *data = (float *)(uintptr_t)x;
  const int64_t S = n->S, C = n->C;
  if (n->kind == NG_LAYER_NORM) {
    ng_array a = {.data = data, .dtype = NG_F32, .mem = NG_HOST, .ndim = 3};
    a.room[0] = B;
    a.room[1] = S;
    a.room[2] = C;
    a.room[4] = S * C;
    a.room[5] = C;
    a.room[6] = 1;
    return a;
  }
  if (n->channels_last) return ng_array_nhwc(data, B, C, 1, S, NG_F32);
  for (int64_t i = 0; i < B * S * C; i++)
    room[i / (S * C) * S * C + i % C * S + i / C % S] = x[i];
  return ng_array_nchw(room, B, C, 1, S, NG_F32);
}

static ng_status add_layer(fixture *f, const norm_case *n, float *grad) {
  const ng_layer l = layer_of(n);
  int32_t index = -1;
  ng_status st = ng_add_layer(f->p, &l, &index);
  const ng_array D[2] = {ng_array_vector(grad, n->C, NG_F32),
                         ng_array_vector(grad + (n->gamma ? n->C : 0), n->C, NG_F32)};
  if (st == NG_OK && n->gamma) st = ng_bind_grad(f->p, index, NG_WEIGHT, &D[0]);
  if (st == NG_OK && n->beta) st = ng_bind_grad(f->p, index, NG_BIAS, &D[1]);
  return st == NG_OK ? ng_ready(f->p) : st;
}

static ng_status play_step(fixture *f, norm_case *n, int32_t rank, int t) {
  float room[2][ELEMENTS];
  for (int k = 0; k < n->calls[t][rank]; k++) {
    const call *m = &n->shown[t][rank][k];
    ng_batch b;
    ng_batch_init(&b, sizeof b);
    b.samples = m->samples;
    b.reduction = m->reduction;
    b.loss_scale = m->loss_scale;
    b.last = n->last && k + 1 == n->calls[t][rank];
    const ng_array a = array_of(n, m->samples, m->a, room[0]),
                   g = array_of(n, m->samples, m->g, room[1]);
    ng_status st = ng_begin(f->p, &b);
    if (st == NG_OK) st = ng_observe_input(f->p, 0, &a, NG_BORROW);
    if (st == NG_OK) st = ng_observe_output_grad(f->p, 0, &g, NG_COPY);
    if (st != NG_OK) return st;
  }
  return ng_step(f->p, 0.1);
}

static ng_status play(int32_t rank, ng_transport *t, void *arg) {
  norm_case *n = arg;
  fixture f;
  float grad[W_MOST];
  const fixture_how how = {.threads = 1, .transport = n->ranks > 1 ? t : NULL};
  ng_status st = fixture_open(&f, n->options, &how);
  if (st == NG_OK) st = add_layer(&f, n, grad);
  if (st == NG_OK && n->load != NULL) st = ng_load(f.p, n->load);
  for (int s = n->load != NULL; s < STEPS && st >= NG_OK; s++) {
    memcpy(grad, n->D[s], sizeof grad);
    st = play_step(&f, n, rank, s);
    memcpy(n->P[rank][s], grad, sizeof grad);
    if (s == 0 && st == NG_OK && n->save != NULL) st = ng_save(f.p, n->save);
  }
  if (rank == 0 && st != NG_OK) {
    print_message("%s: %s\n", ng_status_name(st), f.ctx ? ng_last_error(f.ctx) : f.message);
  }
  ng_report r = {.struct_size = sizeof r};
  if (st >= NG_OK && ng_report_read(f.p, &r) == NG_OK && rank == 0) {
    n->rescued = (double)(r.more_damping + r.in_double + r.plain);
  }
  fixture_close(&f);
  return st;
}

static ng_status play_all(norm_case *n) {
  return n->ranks > 1 ? ranks_run(n->ranks, play, n, NULL) : play(0, NULL, n);
}

/* ---- cases -----------------------------------------------------------------------------------*/

static void fill(rng *r, float *x, int64_t count, double by) {
  for (int64_t i = 0; i < count; i++)
    x[i] = (float)(by * rng_value(r));
}

static norm_case *case_of(rng *r, ng_norm_kind kind, int32_t ranks) {
  norm_case *n = scene_room(sizeof *n);
  n->kind = kind;
  n->input = rng_below(r, 3) ? NG_NORM_RAW : NG_NORM_NORMALISED;
  n->groups = rng_between(r, 1, 2);
  n->C = n->groups * rng_between(r, 1, C_MOST / 2);
  n->S = rng_between(r, 1, S_MOST);
  n->gamma = rng_below(r, 4) > 0;
  n->beta = !n->gamma || rng_below(r, 4) > 0;
  n->channels_last = rng_below(r, 2) > 0;
  n->ranks = ranks;
  for (int t = 0; t < STEPS; t++) {
    fill(r, n->D[t], W_MOST, 1);
    for (int k = 0; k < ranks; k++) {
      n->calls[t][k] = (int32_t)rng_between(r, 1, CALLS);
      for (int c = 0; c < n->calls[t][k]; c++) {
        call *m = &n->shown[t][k][c];
        m->samples = rng_between(r, 1, B_MOST);
        m->reduction = rng_below(r, 2) ? NG_MEAN : NG_SUM;
        m->loss_scale = rng_below(r, 3) ? 1 : 4;
        fill(r, m->a, ELEMENTS, 1);
        fill(r, m->g, ELEMENTS, 0.5);
        const float far = rng_below(r, 3) || n->input != NG_NORM_RAW ? 0.0f : 1e5f;
        for (int64_t i = 0; i < ELEMENTS; i++)
          m->a[i] += far; /* the f32 next to a mean of it is 0.4 % of a deviation off */
      }
    }
  }
  return n;
}

static double dense_case(uint64_t seed) {
  static const char *const block[] = {"unit", "full", "diagonal"}, *method[] = {"natgrad", "eva"};
  rng r = {seed};
  norm_case *n =
      case_of(&r, (ng_norm_kind)rng_between(&r, 1, 3), 1 + (int32_t)rng_below(&r, 2) * 2);
  const int64_t eva = rng_below(&r, 2);
  (void)snprintf(n->options, sizeof n->options,
                 "method=%s calls=mean call_weight=samples stat_batch=%d stat_decay=%g clip=none "
                 "damping=%g norm_damping=%g norm_block=%s%s",
                 method[eva], (int)rng_below(&r, 3), (double)rng_below(&r, 3) / 2.5,
                 0.1 + rng_real(&r), rng_below(&r, 2) ? 1.0 : 16.0, block[rng_below(&r, 3)],
                 eva ? "" : " solve_period=1");
  n->last = rng_below(&r, 2) > 0;
  const ng_status st = play_all(n);
  const double e = st == NG_OK ? error_of(n) : INFINITY;
  if (!(e <= 64)) print_message("NG_TEST_SEED=%" PRIu64 ": %g, %s\n", seed, e, n->options);
  free(n);
  return e <= 64 ? e : INFINITY;
}

static void equals_a_dense_solve(void **state) {
  (void)state;
  test_cases(dense_case, 400, 64);
}

/* ---- one call and many, one rank and many ----------------------------------------------------*/

/* The oracle says what ranks and calls make of raw inputs; here uneven parts of normalised ones, or of
 * norms that look at one sample, against the whole batch. */
static void parts_make_the_whole(void **state) {
  (void)state;
  for (int kind = NG_BATCH_NORM; kind <= NG_GROUP_NORM; kind++) {
    rng r = {test_seed() + (uint64_t)kind};
    norm_case *n = case_of(&r, (ng_norm_kind)kind, 1), *whole = scene_room(sizeof *whole);
    if (kind == NG_BATCH_NORM) n->input = NG_NORM_NORMALISED;
    const int64_t each = n->S * n->C;
    (void)snprintf(n->options, sizeof n->options,
                   "method=natgrad clip=none stat_decay=0.5 damping=0.5");
    for (int t = 0; t < STEPS; t++) {
      for (int k = 0; k < n->calls[t][0]; k++) {
        n->shown[t][0][k].samples = 1 + k % 2;
        n->shown[t][0][k].reduction = NG_SUM;
        n->shown[t][0][k].loss_scale = 1;
      }
    }
    *whole = *n;
    for (int t = 0; t < STEPS; t++) {
      call *m = &whole->shown[t][0][0];
      for (int k = 1; k < n->calls[t][0]; k++) {
        const call *part = &n->shown[t][0][k];
        memcpy(m->a + m->samples * each, part->a, sizeof(float) * (size_t)(part->samples * each));
        memcpy(m->g + m->samples * each, part->g, sizeof(float) * (size_t)(part->samples * each));
        m->samples += part->samples;
      }
      whole->calls[t][0] = 1;
    }
    assert_int_equal(play_all(n), NG_OK);
    assert_int_equal(play_all(whole), NG_OK);
    for (int t = 0; t < STEPS; t++) {
      for (int64_t i = 0; i < width(n); i++) {
        const double x = (double)n->P[0][t][i], y = (double)whole->P[0][t][i];
        if (!(fabs(x - y) <= 64 * unit * (1 + fabs(y)) * 100))
          fail_msg("%d: %g, not %g", kind, x, y);
      }
    }
    free(n);
    free(whole);
  }
}

/* ---- life ------------------------------------------------------------------------------------*/

static void resumes_with_the_same_bits(void **state) {
  static const char *const block[] = {"unit", "full", "diagonal", "full damping_leak=1",
                                      "unit damping_leak=1"};
  char file[FIXTURE_FILE];
  (void)state;
  fixture_file(file, "t_norm");
  for (int k = 0; k < 5; k++) {
    rng r = {test_seed() + 5};
    norm_case *n = case_of(&r, NG_BATCH_NORM, 3), *again = scene_room(sizeof *again);
    (void)snprintf(n->options, sizeof n->options,
                   "method=natgrad stat_decay=0.5 solve_period=2 norm_block=%s", block[k]);
    n->save = file;
    assert_int_equal(play_all(n), NG_OK);
    *again = *n;
    again->save = NULL;
    again->load = file;
    assert_int_equal(play_all(again), NG_OK);
    assert_memory_equal(again->P[0][1], n->P[0][1], 2 * sizeof n->P[0][1]);
    for (int32_t rank = 1; rank < 3; rank++)
      assert_memory_equal(again->P[rank][1], n->P[0][1], 2 * sizeof n->P[0][1]);
    free(again);
    free(n);
  }
  (void)unlink(file);
}

/* Gamma's gradient is beta's in every sample: F + d I is singular to f32 where d is lost beside F. */
static void a_singular_unit_is_rescued(void **state) {
  (void)state;
  norm_case *n = scene_room(sizeof *n);
  *n = (norm_case){.kind = NG_BATCH_NORM,
                   .input = NG_NORM_NORMALISED,
                   .C = 2,
                   .S = 1,
                   .groups = 1,
                   .gamma = true,
                   .beta = true,
                   .ranks = 1};
  (void)snprintf(n->options, sizeof n->options, "method=natgrad clip=none damping=1e-9");
  for (int t = 0; t < STEPS; t++) {
    n->calls[t][0] = 1;
    n->shown[t][0][0] = (call){.samples = 1, .reduction = NG_SUM, .loss_scale = 1};
    for (int i = 0; i < 2; i++) {
      n->shown[t][0][0].a[i] = 1;
      n->shown[t][0][0].g[i] = 3;
    }
    for (int i = 0; i < 4; i++)
      n->D[t][i] = (float)i;
  }
  assert_int_equal(play_all(n), NG_RESCUED);
  assert_true(n->rescued > 0);
  for (int i = 0; i < 4; i++)
    assert_true(n->P[0][0][i] == n->D[0][i]); /* d x 1000 is lost, too: the gradient as it is */
  free(n);
}

/* ---- one layer by hand -----------------------------------------------------------------------*/

typedef struct hand {
  fixture f;
  float grad[4], a[8], g[8];
  ng_array in, out;
} hand;

/* Two channels, two samples, two positions. */
static void hand_open(hand *h, const char *options) {
  static const float a[8] = {1, -2, 3, 4, -1, 2, 0, 5}, g[8] = {1, 2, -1, 1, 3, 0, 2, -2};
  memcpy(h->a, a, sizeof a);
  memcpy(h->g, g, sizeof g);
  h->in = ng_array_nchw(h->a, 2, 2, 1, 2, NG_F32);
  h->out = ng_array_nchw(h->g, 2, 2, 1, 2, NG_F32);
  for (int i = 0; i < 4; i++)
    h->grad[i] = (float)(i + 1);
  fixture_ok(&h->f, fixture_open(&h->f, options, NULL));
  fixture_ok(&h->f, ng_add_norm(h->f.p, "bn", NG_BATCH_NORM, 2, 1, 1e-5, NULL));
  const ng_array D[2] = {ng_array_vector(h->grad, 2, NG_F32),
                         ng_array_vector(h->grad + 2, 2, NG_F32)};
  fixture_ok(&h->f, ng_bind_grad(h->f.p, 0, NG_WEIGHT, &D[0]));
  fixture_ok(&h->f, ng_bind_grad(h->f.p, 0, NG_BIAS, &D[1]));
  fixture_ok(&h->f, ng_ready(h->f.p));
  fixture_ok(&h->f, ng_begin_samples(h->f.p, 2, 1));
}

static void says(const hand *h, const char *text) {
  if (strstr(ng_last_error(h->f.ctx), text) == NULL)
    fail_msg("'%s' has no '%s'", ng_last_error(h->f.ctx), text);
}

static void refuses_what_does_not_fit(void **state) {
  hand h;
  (void)state;
  hand_open(&h, "method=natgrad");
  assert_int_equal(ng_observe_input(h.f.p, 0, &h.in, NG_COPY), NG_ERR_ARG);
  says(&h, "NG_BORROW");
  assert_int_equal(ng_observe_output_grad(h.f.p, 0, &h.out, NG_COPY), NG_ERR_STATE);
  says(&h, "without its input");
  const ng_array wide = ng_array_nchw(h.a, 2, 4, 1, 1, NG_F32),
                 long_ = ng_array_nchw(h.a, 2, 2, 1, 1, NG_F32);
  assert_int_equal(ng_observe_input(h.f.p, 0, &wide, NG_BORROW), NG_ERR_SHAPE);
  says(&h, "expected [2, 2, ...] for 2 samples");
  fixture_ok(&h.f, ng_observe_input(h.f.p, 0, &long_, NG_BORROW));
  assert_int_equal(ng_observe_output_grad(h.f.p, 0, &h.out, NG_COPY), NG_ERR_SHAPE);
  says(&h, "has 2 positions a sample, its input 1");
  for (int k = 1; k < 8; k++)
    fixture_ok(&h.f, ng_observe_input(h.f.p, 0, &h.in, NG_BORROW));
  assert_int_equal(ng_observe_input(h.f.p, 0, &h.in, NG_BORROW), NG_ERR_STATE);
  says(&h, "9 inputs wait");
  /* an input of a micro-batch that is over has nothing to say in the next */
  fixture_ok(&h.f, ng_begin_samples(h.f.p, 2, 1));
  assert_int_equal(ng_observe_output_grad(h.f.p, 0, &h.out, NG_COPY), NG_ERR_STATE);
  fixture_ok(&h.f, ng_observe_input(h.f.p, 0, &h.in, NG_BORROW)); /* and takes no room */
  fixture_ok(&h.f, ng_observe_output_grad(h.f.p, 0, &h.out, NG_COPY));
  fixture_close(&h.f);
  fixture_ok(&h.f, fixture_open(&h.f, "method=natgrad", NULL));
  assert_int_equal(ng_add_norm(h.f.p, "x", NG_GROUP_NORM, 4, 3, 1e-5, NULL), NG_ERR_ARG);
  says(&h, "groups is 3, expected a divisor of in 4");
  assert_int_equal(ng_add_norm(h.f.p, "x", (ng_norm_kind)9, 4, 1, 1e-5, NULL), NG_ERR_ARG);
  says(&h, "norm_kind is 9");
  assert_int_equal(ng_add_norm(h.f.p, "x", NG_BATCH_NORM, 4, 1, (double)NAN, NULL), NG_ERR_ARG);
  says(&h, "norm_eps");
  ng_layer l;
  ng_layer_init(&l, NG_NORM, sizeof l);
  l.name = "x";
  l.in = 4;
  l.norm_no_weight = 1;
  assert_int_equal(ng_add_layer(h.f.p, &l, NULL), NG_ERR_ARG);
  says(&h, "one of gamma and beta at least");
  fixture_close(&h.f);
}

/* Twice in one micro-batch, gradients in the opposite order: as two micro-batches of the same loss. */
static void used_twice(void **state) {
  hand twice, apart;
  (void)state;
  hand_open(&twice, "method=natgrad clip=none");
  hand_open(&apart, "method=natgrad clip=none");
  float b[8] = {2, 1, 0, -3, 1, 1, 4, -1}, e[8] = {0, 1, 1, 3, -2, 1, 1, 1};
  const ng_array in = ng_array_nchw(b, 2, 2, 1, 2, NG_F32),
                 out = ng_array_nchw(e, 2, 2, 1, 2, NG_F32);
  fixture_ok(&twice.f, ng_observe_input(twice.f.p, 0, &twice.in, NG_BORROW));
  fixture_ok(&twice.f, ng_observe_input(twice.f.p, 0, &in, NG_BORROW));
  fixture_ok(&twice.f, ng_observe_output_grad(twice.f.p, 0, &out, NG_COPY));
  fixture_ok(&twice.f, ng_observe_output_grad(twice.f.p, 0, &twice.out, NG_COPY));
  fixture_ok(&apart.f, ng_observe_input(apart.f.p, 0, &in, NG_BORROW));
  fixture_ok(&apart.f, ng_observe_output_grad(apart.f.p, 0, &out, NG_COPY));
  fixture_ok(&apart.f, ng_begin_samples(apart.f.p, 2, 1));
  fixture_ok(&apart.f, ng_observe_input(apart.f.p, 0, &apart.in, NG_BORROW));
  fixture_ok(&apart.f, ng_observe_output_grad(apart.f.p, 0, &apart.out, NG_COPY));
  fixture_ok(&twice.f, ng_step(twice.f.p, 0.1));
  fixture_ok(&apart.f, ng_step(apart.f.p, 0.1));
  assert_memory_equal(twice.grad, apart.grad, sizeof twice.grad);
  fixture_close(&twice.f);
  fixture_close(&apart.f);
}

static void what_is_not_finite_is_refused(void **state) {
  (void)state;
  for (int k = 0; k < 6; k++) {
    hand h;
    hand_open(&h, k / 3 ? "method=natgrad norm_block=full" : "method=natgrad");
    if (k % 3 == 0) h.a[5] = INFINITY;
    if (k % 3 == 1) h.g[3] = NAN;
    if (k % 3 == 2) h.grad[1] = NAN;
    const float was = h.grad[0];
    ng_status a = ng_observe_input(h.f.p, 0, &h.in, NG_BORROW), g = NG_OK;
    if (a == NG_OK) g = ng_observe_output_grad(h.f.p, 0, &h.out, NG_COPY);
    if (k % 3 < 2) assert_true(a == NG_SKIPPED || g == NG_SKIPPED);
    assert_int_equal(ng_step(h.f.p, 0.1), NG_SKIPPED);
    assert_true(h.grad[0] == was);
    fixture_close(&h.f);
  }
}

/* fold = direct adds to F itself: what could leave f32 is refused before, and the next step counts. */
static void what_overflows_spoils_nothing(void **state) {
  static const char *const block[] = {"unit", "full", "diagonal"};
  (void)state;
  for (int k = 0; k < 3; k++) {
    hand h;
    char line[96];
    (void)snprintf(line, sizeof line, "method=natgrad fold=direct clip=none norm_block=%s",
                   block[k]);
    hand_open(&h, line);
    const float was = h.g[3], grad[2] = {h.grad[0], h.grad[3]};
    h.g[3] = 1e20f;
    assert_int_equal(ng_observe_input(h.f.p, 0, &h.in, NG_BORROW), NG_OK);
    assert_int_equal(ng_observe_output_grad(h.f.p, 0, &h.out, NG_COPY), NG_SKIPPED);
    assert_non_null(strstr(ng_last_error(h.f.ctx), "fold = direct adds to"));
    assert_int_equal(ng_step(h.f.p, 0.1), NG_SKIPPED);
    assert_true(h.grad[0] == grad[0] && h.grad[3] == grad[1]);
    h.g[3] = was;
    fixture_ok(&h.f, ng_begin_samples(h.f.p, h.in.room[0], 1));
    fixture_ok(&h.f, ng_observe_input(h.f.p, 0, &h.in, NG_BORROW));
    fixture_ok(&h.f, ng_observe_output_grad(h.f.p, 0, &h.out, NG_COPY));
    fixture_ok(&h.f, ng_step(h.f.p, 0.1));
    assert_true(h.grad[0] != grad[0] && h.grad[0] != 0.0f && isfinite(h.grad[0]));
    fixture_close(&h.f);
  }
}

/* none: registered, named, left alone; and never asked for. */
static void none_keeps_the_gradient(void **state) {
  hand h;
  (void)state;
  hand_open(&h, "method=natgrad norm_block=none");
  assert_int_equal(ng_wants(h.f.p, 0), 0);
  fixture_ok(&h.f, ng_step(h.f.p, 0.1));
  for (int i = 0; i < 4; i++)
    assert_true(h.grad[i] == (float)(i + 1));
  ng_explain_row row = {.struct_size = sizeof row};
  assert_int_equal(ng_explain(h.f.p, 0, &row), NG_OK);
  assert_string_equal(row.family, "none");
  assert_string_equal(row.name, "bn.weight");
  fixture_close(&h.f);
  hand_open(&h, "method=natgrad");
  row = (ng_explain_row){.struct_size = sizeof row};
  assert_int_equal(ng_explain(h.f.p, 1, &row), NG_OK);
  assert_string_equal(row.family, "norm");
  assert_string_equal(row.name, "bn.bias");
  assert_string_equal(row.why, "F 4x4, units of 2x2");
  assert_int_equal(ng_wants(h.f.p, 0), 1);
  fixture_close(&h.f);
}

/* Work that is worth waking threads for: they take samples as they come, and the bits are those of one. */
static void large_layers_share_out(void **state) {
  (void)state;
  enum { LARGE_B = 70, LARGE_S = 144, LARGE_C = 96 };
  static float a[LARGE_B * LARGE_S * LARGE_C], g[LARGE_B * LARGE_S * LARGE_C];
  static const ng_norm_kind kinds[] = {NG_BATCH_NORM, NG_LAYER_NORM, NG_GROUP_NORM};
  rng r = {test_seed()};
  for (size_t i = 0; i < sizeof a / sizeof *a; i++) {
    a[i] = (float)rng_value(&r);
    g[i] = (float)rng_value(&r);
  }
  for (int kind = 0; kind < 3; kind++) {
    float P[4][2][LARGE_C];
    for (int32_t threads = 1; threads <= 4; threads++) {
      fixture f;
      float(*D)[LARGE_C] = P[threads - 1];
      ng_layer d;
      ng_layer_init(&d, NG_NORM, sizeof d);
      d.name = "norm";
      d.in = LARGE_C;
      d.bias = 1;
      d.norm_kind = kinds[kind];
      d.norm_eps = 1e-5;
      d.groups = kinds[kind] == NG_GROUP_NORM ? 4 : 1;
      assert_int_equal(fixture_open(&f, "clip=none", &(fixture_how){.threads = threads}), NG_OK);
      fixture_ok(&f, ng_add_layer(f.p, &d, NULL));
      fixture_ok(&f, ng_ready(f.p));
      for (int k = 0; k < 2; k++) {
        for (int c = 0; c < LARGE_C; c++)
          D[k][c] = (float)(c + 1) / LARGE_C;
        const ng_array grad = ng_array_matrix(D[k], 1, LARGE_C, NG_F32);
        fixture_ok(&f, ng_bind_grad(f.p, 0, (ng_param)k, &grad));
      }
      ng_array in = ng_array_nchw(a, LARGE_B, LARGE_C, 12, 12, NG_F32),
               out = ng_array_nchw(g, LARGE_B, LARGE_C, 12, 12, NG_F32);
      if (kinds[kind] == NG_LAYER_NORM) {
        in = ng_array_matrix(a, (int64_t)LARGE_B * LARGE_S, LARGE_C, NG_F32);
        out = ng_array_matrix(g, (int64_t)LARGE_B * LARGE_S, LARGE_C, NG_F32);
      }
      fixture_ok(&f, ng_begin_samples(f.p, LARGE_B, 1));
      fixture_ok(&f, ng_observe_input(f.p, 0, &in, NG_BORROW));
      fixture_ok(&f, ng_observe_output_grad(f.p, 0, &out, NG_COPY));
      fixture_ok(&f, ng_step(f.p, 0.1));
      fixture_close(&f);
      assert_memory_equal(P[threads - 1], P[0], sizeof P[0]);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equals_a_dense_solve),
      cmocka_unit_test(parts_make_the_whole),
      cmocka_unit_test(resumes_with_the_same_bits),
      cmocka_unit_test(a_singular_unit_is_rescued),
      cmocka_unit_test(refuses_what_does_not_fit),
      cmocka_unit_test(used_twice),
      cmocka_unit_test(what_is_not_finite_is_refused),
      cmocka_unit_test(what_overflows_spoils_nothing),
      cmocka_unit_test(large_layers_share_out),
      cmocka_unit_test(none_keeps_the_gradient),
  };
  return cmocka_run_group_tests_name("norm", tests, NULL, NULL);
}
