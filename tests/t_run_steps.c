/* t_run_steps.c: training runs step by step.  The weights of each step come from a run that ends there: the clip,
 * learning rate, momentum and damping of the published recipe. */
#include "common/cli.h"
#include "json_edit.h"
#include "train/feed.h"
#include "trained.h"
#include "trainer_help.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The weights and the gradient before each step.  The values of step k come from a run of k steps. */
typedef struct trajectory {
  int64_t count;
  int steps;
  /* w[k], g[k]: weights and gradient before step k; w[steps]: final weights */
  double *w[16], *g[16];
} trajectory;

static trajectory make_trajectory(const data_set *d, const char *name, const char *set, int steps) {
  trajectory p = {.steps = steps};
  feed f;
  for (int k = 0; k <= steps; k++) {
    trained r;
    char run[32], line[600];
    (void)snprintf(run, sizeof run, "%s-%d", name, k);
    (void)snprintf(line, sizeof line, "%s steps=%d", set, k > 0 ? k : 1);
    train(d, run, line, &r);
    nn *net = new_network(&r, d, r.s.batch, (uint64_t)r.s.seed);
    if (k > 0) load_weights(net, r.model);
    p.count = nn_count_weights(net);
    assert_int_equal(feed_create(&r.s, d, NULL, false, NULL, &f), CLI_OK);
    assert_int_equal(feed_fill_train(&f, k, 0), CLI_OK);
    assert_int_equal(nn_forward(net, NN_TRAIN, f.x, f.batch, (uint64_t)k, NULL), CLI_OK);
    (void)nn_compute_loss(net, NN_TRAIN, f.labels, NULL, NULL);
    assert_int_equal(nn_backward(net, true, NULL), CLI_OK);
    p.w[k] = calloc((size_t)p.count, sizeof *p.w[k]);
    p.g[k] = calloc((size_t)p.count, sizeof *p.g[k]);
    assert_true(p.w[k] != NULL && p.g[k] != NULL);
    for (int i = 0, at = 0; i < nn_count_params(net); i++) {
      const nn_param *q = nn_get_param(net, i);
      for (int64_t j = 0; j < q->count; j++, at++) {
        p.w[k][at] = (double)q->value[j];
        p.g[k][at] = (double)q->grad[j];
      }
    }
    feed_free(&f);
    nn_destroy(&net);
    free_trained(&r);
  }
  return p;
}

static void free_trajectory(trajectory *p) {
  for (int k = 0; k <= p->steps; k++) {
    free(p->w[k]);
    free(p->g[k]);
  }
}

/* w moves by -lr nu PD, so S = sum D (w before - w after) = lr nu <PD, D>.  A clipped step has nu = kl_clip / (lr
 * S), any other step lr S <= kl_clip. */
static void reported_clip_matches_the_weights(void **state) {
#define CLIPPED                                                                                    \
  "model=mlp-5-1 method=natgrad clip=kl kl_clip=0.02 damping=0.1 batch=8 lr=0.4 momentum=0 "       \
  "log-every=1 lr-schedule=step:0.5@0.05"
  enum { MOVES = 10 };
  data_set d;
  trained r;
  int clipped = 0, whole = 0, step = 0;
  assert_int_equal(data_open("synthetic:classes=4,features=6,train=80,test=7,noise=3", &d), CLI_OK);
  train(&d, "clip", CLIPPED " steps=10", &r);
  trajectory p = make_trajectory(&d, "clip-path", CLIPPED, MOVES);
  for (int i = 0; i < r.lines; i++) {
    if (!is_event(r.line[i], "step")) continue;
    double s = 0.0, d2 = 0.0, w2 = 0.0;
    for (int64_t k = 0; k < p.count; k++) {
      const double g = p.g[step][k], w = p.w[step][k] - p.w[step + 1][k];
      s += g * w;
      d2 += g * g;
      w2 += w * w;
    }
    step++;
    const double lr = number_in(r.line[i], "lr");
    const double clip = fmin(1.0, 0.02 / (lr * s)), cosine = s / sqrt(d2 * w2);
    /* weights move by 0.01 or more, so rounding them to f32 changes the results by about 6e-8 */
    must_be_near(r.line[i], "clip", clip, 1e-5);
    must_be_near(r.line[i], "cosine", cosine, 1e-5);
    must_be_near(r.line[i], "rotation", 90 * (1 - cosine), 1e-3);
    must_be_near(r.line[i], "angle", acos(cosine) * 180 / acos(-1.0), 1e-2);
    must_be_near(r.line[i], "stretch", sqrt(w2 / d2) / (lr * clip), 1e-4);
    clipped += clip < 0.9;
    whole += clip == 1.0;
  }
  assert_int_equal(step, MOVES);
  if (clipped == 0 || whole == 0) fail_msg("%d steps are clipped, %d are not", clipped, whole);
  free_trajectory(&p);
  free_trained(&r);
  data_close(&d);
}

/* ---- the published recipe --------------------------------------------------------------------*/

enum { RECIPE = 15, EPOCH = 5 };
#define RECIPE_DATA "synthetic:classes=4,features=6,train=40,test=7,noise=3"

/* The learning rate of chainerkfac with p = 3, from epoch 0.5 to 4. */
static double compute_lr(int step) {
  const double e = (double)step / EPOCH;
  return 0.2 * (e < 0.5 ? 1 : pow(1 - (e - 0.5) / 3.5, 3));
}

/* Learning rate and momentum of each SGD step.  Published: v <- m v - lr g, w <- w + v with m = 0.9 / 0.2 lr.
 * t_recipe tests the other rules of momentum. */
static void momentum_matches_the_published_rule(void **state) {
#define RECIPE_RUN                                                                                 \
  "model=mlp-5-1 method=sgd batch=8 lr=0.2 momentum=0.9 weight-decay=0 log-every=1 "               \
  "lr-schedule=polynomial:3@0.5,4 adjust-momentum=proportional"
  data_set d;
  trained r;
  int step = 0;
  assert_int_equal(data_open(RECIPE_DATA, &d), CLI_OK);
  trajectory p = make_trajectory(&d, "recipe", RECIPE_RUN, RECIPE);
  double *v = calloc((size_t)p.count, sizeof *v);
  assert_non_null(v);
  for (; step < RECIPE; step++) {
    const double lr = compute_lr(step), m = 0.9 / 0.2 * lr;
    double most = 0.0, gap = 0.0;
    for (int64_t i = 0; i < p.count; i++) {
      v[i] = m * v[i] - lr * p.g[step][i];
      most = fmax(most, fabs(v[i]));
      gap = fmax(gap, fabs(p.w[step][i] + v[i] - p.w[step + 1][i]));
      v[i] = p.w[step + 1][i] - p.w[step][i];
    }
    if (gap > 1e-4 * most + 1e-6) fail_msg("step %d: off by %g, largest entry %g", step, gap, most);
  }
  train(&d, "recipe-log", RECIPE_RUN " steps=15", &r);
  step = 0;
  for (int i = 0; i < r.lines; i++) {
    if (is_event(r.line[i], "step")) must_be_near(r.line[i], "lr", compute_lr(step++), 1e-14);
  }
  assert_int_equal(step, RECIPE);
  free(v);
  free_trajectory(&p);
  free_trained(&r);
  data_close(&d);
}

/* The damping in the state of the last checkpoint. */
static double read_damping(const trained *r) {
  ngio_tensors *saved = read_library_state(r);
  const char *text = ngio_tensors_text(saved, "natgrad");
  ngio_json *json = json_must_parse(text, strlen(text));
  const double damping =
      strtod(ngio_text_of(ngio_get(ngio_get(ngio_json_root(json), "options"), "damping")), NULL);
  ngio_json_free(&json);
  ngio_tensors_close(&saved);
  return damping;
}

/* The damping is lr / 0.2 times its first value, with the linear schedule of lr, in a whole run and in a run that
 * resumes at any step. */
static void damping_keeps_its_ratio(void **state) {
#define DAMPED                                                                                     \
  "model=mlp-5-1 method=spngd damping=0.01 damping-rule=keep-ratio batch=4 acc-iters=2 lr=0.2 "    \
  "momentum=0.9"
  static const int first[] = {1, 4, 5, 6, 11};
  data_set d;
  assert_int_equal(data_open(RECIPE_DATA, &d), CLI_OK);
  for (size_t i = 0; i < sizeof first / sizeof first[0]; i++) {
    char name[32], set[300];
    trained r;
    (void)snprintf(name, sizeof name, "damping-%d", first[i]);
    for (int more = 0; more < 2; more++) {
      const int last = first[i] + more;
      (void)snprintf(set, sizeof set, DAMPED " steps=%d%s", last, more ? " resume=true" : "");
      train(&d, name, set, &r);
      if (fabs(read_damping(&r) - 0.01 / last) > 1e-14)
        fail_msg("step %d: damping %.15g, expected %.15g", last, read_damping(&r), 0.01 / last);
      free_trained(&r);
    }
  }
  data_close(&d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reported_clip_matches_the_weights),
      cmocka_unit_test(momentum_matches_the_published_rule),
      cmocka_unit_test(damping_keeps_its_ratio),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
