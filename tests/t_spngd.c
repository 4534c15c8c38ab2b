/* t_spngd.c: the row spngd against golden numbers of the published program (chainerkfac on a CPU, f32): a
 * convolution, a batch norm, ReLU and a linear layer, two steps.  The network is played here in double, so what
 * the library is shown is what the program saw, to rounding.
 *
 * Golden numbers have seven digits behind the point and come from f32; 1e-5 of the largest entry of an array. */
#include "fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 3, T = 4, C = 2, F = 8, ARRAYS = 6, MOST = 16 };
enum { CONV_W, CONV_B, GAMMA, BETA, FC_W, FC_B };
static const int count[ARRAYS] = {8, 2, 2, 2, 16, 2};
static const double EPS = 2e-5;

/* What one pass leaves. */
typedef struct pass {
  float x[N][9], conv_g[N][C][T], bn_x[N][C][T], bn_g[N][C][T], fc_x[N][F], fc_g[N][2];
  double grad[ARRAYS][MOST], loss;
} pass;

static void start(float w[ARRAYS][MOST]) {
  static const float b[3][2] = {{0.1f, -0.1f}, {1.0f, 0.5f}, {0.2f, -0.1f}};
  for (int j = 0; j < 8; j++)
    w[CONV_W][j] = (float)((j % 5 - 2) * 0.25);
  for (int j = 0; j < 16; j++)
    w[FC_W][j] = (float)((3 * j % 7 - 3) * 0.1);
  for (int k = 0; k < 3; k++)
    memcpy(w[CONV_B + k], b[k], sizeof b[k]);
  w[FC_B][0] = 0.05f;
  w[FC_B][1] = -0.05f;
}

/* Forward and backward on batch k. */
static void play(float w[ARRAYS][MOST], int k, pass *p) {
  double y[N][C][T], h[N][C][T], r[C], out[N][2], d[N][C][T];
  memset(p, 0, sizeof *p);
  for (int i = 0; i < N * 9; i++)
    p->x[i / 9][i % 9] = (float)(((i * (7 + 2 * k) + 3 * k) % 11 - 5) * 0.2);
  for (int c = 0; c < C; c++) {
    double mean = 0, var = 0;
    for (int i = 0; i < N * T; i++) {
      const int n = i / T, t = i % T, at = t / 2 * 3 + t % 2;
      y[n][c][t] = (double)w[CONV_B][c];
      for (int o = 0; o < 4; o++)
        y[n][c][t] += (double)w[CONV_W][c * 4 + o] * (double)p->x[n][at + o / 2 * 3 + o % 2];
      mean += y[n][c][t] / (N * T);
    }
    for (int i = 0; i < N * T; i++)
      var += (y[i / T][c][i % T] - mean) * (y[i / T][c][i % T] - mean) / (N * T);
    r[c] = 1 / sqrt(var + EPS);
    for (int i = 0; i < N * T; i++) {
      const int n = i / T, t = i % T;
      p->bn_x[n][c][t] = (float)y[n][c][t];
      h[n][c][t] = (y[n][c][t] - mean) * r[c];
      const double z = (double)w[GAMMA][c] * h[n][c][t] + (double)w[BETA][c];
      p->fc_x[n][c * T + t] = z > 0 ? (float)z : 0;
    }
  }
  for (int n = 0; n < N; n++) {
    const int label = (k + n * (n + 1) / 2) % 2;
    double sum = 0;
    for (int o = 0; o < 2; o++) {
      out[n][o] = (double)w[FC_B][o];
      for (int f = 0; f < F; f++)
        out[n][o] += (double)w[FC_W][o * F + f] * (double)p->fc_x[n][f];
      sum += exp(out[n][o]);
    }
    p->loss += (log(sum) - out[n][label]) / N;
    for (int o = 0; o < 2; o++) {
      const double g = (exp(out[n][o]) / sum - (o == label)) / N;
      p->fc_g[n][o] = (float)g;
      p->grad[FC_B][o] += g;
      for (int f = 0; f < F; f++)
        p->grad[FC_W][o * F + f] += g * (double)p->fc_x[n][f];
    }
  }
  for (int c = 0; c < C; c++) {
    for (int i = 0; i < N * T; i++) {
      const int n = i / T, t = i % T;
      double g = 0;
      for (int o = 0; o < 2; o++)
        g += (double)p->fc_g[n][o] * (double)w[FC_W][o * F + c * T + t];
      d[n][c][t] = p->fc_x[n][c * T + t] > 0 ? g : 0;
      p->bn_g[n][c][t] = (float)d[n][c][t];
      p->grad[BETA][c] += d[n][c][t];
      p->grad[GAMMA][c] += d[n][c][t] * h[n][c][t];
    }
    for (int i = 0; i < N * T; i++) {
      const int n = i / T, t = i % T, at = t / 2 * 3 + t % 2;
      const double g =
          (double)w[GAMMA][c] * r[c] *
          (d[n][c][t] - p->grad[BETA][c] / (N * T) - h[n][c][t] * p->grad[GAMMA][c] / (N * T));
      p->conv_g[n][c][t] = (float)g;
      p->grad[CONV_B][c] += g;
      for (int o = 0; o < 4; o++)
        p->grad[CONV_W][c * 4 + o] += g * (double)p->x[n][at + o / 2 * 3 + o % 2];
    }
  }
}

/* ---- the library -----------------------------------------------------------------------------*/

typedef struct model {
  fixture f;
  float w[ARRAYS][MOST], grad[ARRAYS][MOST];
} model;

static void open_model(model *m, const char *options) {
  static const int64_t kernel[2] = {2, 2}, image[2] = {3, 3};
  memset(m, 0, sizeof *m);
  start(m->w);
  fixture_ok(&m->f, fixture_open(&m->f, options, NULL));
  fixture_ok(&m->f,
             ng_add_conv2d(m->f.p, "conv", 1, C, kernel, NULL, NULL, NULL, 1, image, 1, NULL));
  fixture_ok(&m->f, ng_add_norm(m->f.p, "bn", NG_BATCH_NORM, C, 1, EPS, NULL));
  fixture_ok(&m->f, ng_add_linear(m->f.p, "fc", F, 2, 1, NULL));
  for (int k = 0; k < ARRAYS; k++) {
    const int64_t rows = k == CONV_W || k == FC_W ? 2 : 1;
    const ng_array g = ng_array_matrix(m->grad[k], rows, count[k] / rows, NG_F32),
                   w = ng_array_matrix(m->w[k], rows, count[k] / rows, NG_F32);
    fixture_ok(&m->f, ng_bind_grad(m->f.p, k / 2, (ng_param)(k % 2), &g));
    fixture_ok(&m->f, ng_bind_weight(m->f.p, k / 2, (ng_param)(k % 2), &w));
  }
  fixture_ok(&m->f, ng_ready(m->f.p));
}

static void show(model *m, pass *p) {
  const ng_array a[3] = {ng_array_nchw(p->x, N, 1, 3, 3, NG_F32),
                         ng_array_nchw(p->bn_x, N, C, 2, 2, NG_F32),
                         ng_array_matrix(p->fc_x, N, F, NG_F32)};
  const ng_array g[3] = {ng_array_nchw(p->conv_g, N, C, 2, 2, NG_F32),
                         ng_array_nchw(p->bn_g, N, C, 2, 2, NG_F32),
                         ng_array_matrix(p->fc_g, N, 2, NG_F32)};
  fixture_ok(&m->f, ng_begin_samples(m->f.p, N, 1));
  for (int k = 0; k < 3; k++)
    fixture_ok(&m->f, ng_observe_input(m->f.p, k, &a[k], NG_BORROW));
  for (int k = 2; k >= 0; k--)
    fixture_ok(&m->f, ng_observe_output_grad(m->f.p, k, &g[k], NG_COPY));
  for (int k = 0; k < ARRAYS; k++) {
    for (int i = 0; i < count[k]; i++)
      m->grad[k][i] = (float)p->grad[k][i];
  }
}

static void close_to(const char *what, const float *x, const double *golden, int n) {
  double most = 0;
  for (int i = 0; i < n; i++)
    most = fmax(most, fabs(golden[i]));
  for (int i = 0; i < n; i++) {
    if (!(fabs((double)x[i] - golden[i]) <= 1e-5 * fmax(most, 1)))
      fail_msg("%s, entry %d: %.8f, not %.8f", what, i, (double)x[i], golden[i]);
  }
}

/* ---- golden numbers --------------------------------------------------------------------------*/

typedef struct gold {
  double conv_w[8], conv_b[2], gamma[2], beta[2], fc_w[8], fc_b[2]; /* row 1 of fc_w is -row 0 */
} gold;

static const gold first = {
    {0.3255341, -0.9443763, 0.7352239, 0.3066619, -1.1962649, -0.2225704, -0.6450524, -1.4190050},
    {-0.1431543, -0.0440520},
    {0.0097353, 0.3286369},
    {-0.0859149, 0.4118712},
    {-0.4130811, 0.3164120, 0.1982433, 0.1968407, 0.0601417, -0.0297515, 0.0461471, -0.0915590},
    {-0.0987552, 0.0987552}};
static const gold no_memory = {
    {0.0733293, -0.6049958, -0.0608478, -0.1822800, 0.8168040, 0.0866469, 0.5465794, -1.7356340},
    {0.0629059, 0.0148830},
    {0.0069857, -0.0195159},
    {-0.0632241, 0.1095131},
    {0.0618570, 0.3593684, -0.6135297, -0.1308786, -0.1469413, -0.0806706, 0.0933452, 0.1942695},
    {-0.2318089, 0.2318089}};
static const gold clean = {
    {0.0573903, -0.5594559, -0.0112392, 0.0372480, 0.5309957, 0.4589061, 0.1500012, -1.3748327},
    {-0.0046391, 0.0408827},
    {0.0080951, -0.0258513},
    {-0.0611800, 0.1013316},
    {-0.0578107, 0.3691541, -0.3735959, -0.0315353, -0.1600613, -0.1359534, 0.2361513, 0.2339379},
    {-0.3139205, 0.3139207}};
static const gold leaky = {
    {0.0597120, -0.4179179, -0.0021728, 0.0231805, 0.3392154, 0.2802061, 0.0897384, -0.8539851},
    {-0.0026729, 0.0234789},
    {0.0049248, -0.0157713},
    {-0.0421500, 0.0696119},
    {-0.0649679, 0.2578844, -0.2898703, -0.0437470, -0.1069721, -0.0794685, 0.1443124, 0.1421534},
    {-0.2238511, 0.2238511}};

static void is_gold(const model *m, const gold *g) {
  double row[16];
  for (int i = 0; i < 16; i++)
    row[i] = i < 8 ? g->fc_w[i] : -g->fc_w[i - 8];
  close_to("conv W", m->grad[CONV_W], g->conv_w, 8);
  close_to("conv b", m->grad[CONV_B], g->conv_b, 2);
  close_to("gamma", m->grad[GAMMA], g->gamma, 2);
  close_to("beta", m->grad[BETA], g->beta, 2);
  close_to("fc W", m->grad[FC_W], row, 16);
  close_to("fc b", m->grad[FC_B], g->fc_b, 2);
}

static void damping_is(const model *m, int32_t layer, double a, double g, double f) {
  ng_layer_report r = {.struct_size = sizeof r};
  fixture_ok(&m->f, ng_report_layer(m->f.p, layer, &r));
  /* seven digits behind the point; reported from f32 */
  if (!(fabs(r.damping_a - a) < 1e-6 * (1 + a))) fail_msg("%.9g, not %.9g", r.damping_a, a);
  assert_true(fabs(r.damping_g - g) < 1e-6 && fabs(r.damping_f - f) < 1e-7);
}

/* cov_ema_decay r is stat_decay 1 - r. */
static void golden_steps(void **state) {
  static const struct {
    const char *options;
    const gold *second;
  } how[] = {{"stat_decay=0 damping_leak=0", &no_memory},
             {"stat_decay=0 damping_leak=owner", &no_memory},
             {"stat_decay=0.5 damping_leak=0", &clean},
             {"stat_decay=0.5 damping_leak=owner", &leaky}};
  (void)state;
  for (size_t k = 0; k < sizeof how / sizeof how[0]; k++) {
    model m;
    pass p;
    char line[128];
    (void)snprintf(line, sizeof line, "method=spngd norm_block=full %s", how[k].options);
    open_model(&m, line);
    play(m.w, 0, &p);
    assert_true(fabs(p.loss - 0.7600888) < 1e-6);
    show(&m, &p);
    fixture_ok(&m.f, ng_step(m.f.p, 0.1));
    is_gold(&m, &first);
    damping_is(&m, 0, 1.0549193, 0.0284382, 0);
    damping_is(&m, 1, 0, 0, 0.48);
    damping_is(&m, 2, 0.2163954, 0.1386351, 0);
    for (int a = 0; a < ARRAYS; a++) {
      for (int i = 0; i < count[a]; i++)
        m.w[a][i] -= 0.1f * m.grad[a][i];
    }
    play(m.w, 1, &p);
    assert_true(fabs(p.loss - 0.6253214) < 2e-6);
    show(&m, &p);
    fixture_ok(&m.f, ng_step(m.f.p, 0.1));
    is_gold(&m, how[k].second);
    fixture_close(&m.f);
  }
}

/* Momentum: v <- 0.9 v - lr N, w <- w + v there is torch's SGD while lr stays. */
static void golden_parameters(void **state) {
  static const double conv_w[8] = {-0.5691844, -0.0100689, -0.1336078, 0.2099622,
                                   0.6456099,  -0.4663763, -0.1820980, 0.4431744};
  static const double conv_b[2] = {0.1209087, -0.0931184}, gamma[2] = {0.9974517, 0.4395106},
                      beta[2] = {0.2226463, -0.1892068}, fc_b[2] = {0.0919444, -0.0919444};
  static const double fc_w[16] = {-0.2277003, -0.0960551, 0.3236867,  -0.1243119,
                                  0.2032672,  -0.1862802, 0.0818975,  -0.3020307,
                                  -0.0722997, 0.3960551,  -0.1236867, 0.2243118,
                                  -0.2032672, 0.0862802,  -0.2818975, 0.0020308};
  model m;
  pass p;
  (void)state;
  open_model(&m, "method=spngd norm_block=full stat_decay=0 update=sgd");
  const ng_sgd how = fixture_sgd(0.1, 0.9);
  for (int k = 0; k < 2; k++) {
    play(m.w, k, &p);
    show(&m, &p);
    fixture_ok(&m.f, ng_step_sgd(m.f.p, &how, 1));
  }
  close_to("conv W", m.w[CONV_W], conv_w, 8);
  close_to("conv b", m.w[CONV_B], conv_b, 2);
  close_to("gamma", m.w[GAMMA], gamma, 2);
  close_to("beta", m.w[BETA], beta, 2);
  close_to("fc W", m.w[FC_W], fc_w, 16);
  close_to("fc b", m.w[FC_B], fc_b, 2);
  fixture_close(&m.f);
}

/* A linear layer without a bias: X [4,3], labels, W. */
static void golden_without_bias(void **state) {
  static float x[4][3] = {{1, 0, 2}, {0, 1, -1}, {1, 1, 0}, {2, -1, 1}}, g[4][2], grad[2][3];
  static const double w[2][3] = {{0.1, -0.2, 0.3}, {0.4, 0.5, -0.6}},
                      want[6] = {-0.0912143, 0.6446846,  -0.4404280,
                                 0.0912143,  -0.6446846, 0.4404280};
  static const int label[4] = {0, 1, 1, 0};
  fixture f;
  (void)state;
  memset(grad, 0, sizeof grad);
  for (int n = 0; n < 4; n++) {
    double y[2] = {0, 0};
    for (int i = 0; i < 6; i++)
      y[i / 3] += w[i / 3][i % 3] * (double)x[n][i % 3];
    for (int o = 0; o < 2; o++) {
      g[n][o] = (float)((exp(y[o]) / (exp(y[0]) + exp(y[1])) - (o == label[n])) / 4);
      for (int i = 0; i < 3; i++)
        grad[o][i] += g[n][o] * x[n][i];
    }
  }
  const plane a = plane_of(x, 4, 3, NG_F32), e = plane_of(g, 4, 2, NG_F32);
  const plane D[2] = {plane_of(grad, 2, 3, NG_F32), {0}};
  fixture_ok(&f, fixture_open(&f, "method=spngd", NULL));
  fixture_ok(&f, fixture_linear(&f, "fc", D, NULL));
  fixture_ok(&f, ng_ready(f.p));
  fixture_ok(&f, fixture_show(&f, 4, 0, &a, &e));
  fixture_ok(&f, ng_step(f.p, 0.1));
  close_to("fc W", grad[0], want, 6);
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(golden_steps),
      cmocka_unit_test(golden_parameters),
      cmocka_unit_test(golden_without_bias),
  };
  return cmocka_run_group_tests_name("spngd", tests, NULL, NULL);
}
