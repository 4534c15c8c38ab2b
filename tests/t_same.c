/* t_same.c: if a description or a number differs on one rank, all ranks return the same error: fields of ng_layer,
 * groups, frozen layers, tensors, the order of layers, the method, the linear algebra; every option, with each
 * method that accepts it; in a step: ng_set, the learning rate, each number of an update in any group, and the
 * dtype of the output.  Over MPI, too.
 *
 * The last test fails if ng_layer gets another field. */
#include "unit_test.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "draw.h"
#include "fixture.h"
#include "ranks.h"

enum { RANKS = 3 };
#if defined(NG_TEST_MPI)
enum {
  ONE_METHOD = 1
}; /* test each option with one method: many communicators are slow on few cores */
#else
enum { ONE_METHOD = 0 };
#endif
static rng dice;
static int32_t
    odd_rank; /* drawn for each run; rank 0 is not odd, because messages count the ranks that differ from it */

/* The change on the odd rank: none; fields of ng_layer in its order (a digit is an axis); other changes of a
 * model. */
static const char changes[] =
    "|name|in|out|bias|frozen|positions|order|kernel0|kernel1|stride0|stride1|padding0|"
    "padding1|dilation0|dilation1|groups|image0|image1|norm_eps|norm_input|token_dtype|"
    "options|norm_kind|norm_no_weight|kind|weight's group|bias's group|frozen mark|tensor's count|"
    "tensor's name|tensor first|one more|method|linear algebra";

static bool is_set(const char *c, const char *name) { return strcmp(c, name) == 0; }

/* Return `other` if the change c names this field and axis i, else `usual`. */
static int64_t choose_axis_value(const char *c, const char *name, int i, int64_t usual,
                                 int64_t other) {
  const size_t n = strlen(name);
  return strncmp(c, name, n) == 0 && c[n] == '0' + i ? other : usual;
}

/* Describe a convolution with the change c.  The convolution is valid with any single change. */
static void fill_layer(ng_layer *l, const char *c) {
  ng_layer_init(l, is_set(c, "kind") ? NG_LINEAR : NG_CONV2D, sizeof *l);
  l->name = is_set(c, "name") ? "other" : "conv";
  l->in = is_set(c, "in") ? 8 : 4;
  l->out = is_set(c, "out") ? 12 : 8;
  l->bias = !is_set(c, "bias");
  l->frozen = is_set(c, "frozen");
  l->options = is_set(c, "options") ? "damping=0.5" : NULL;
  if (is_set(c, "kind")) return;
  for (int i = 0; i < 2; i++) {
    l->kernel[i] = choose_axis_value(c, "kernel", i, 3, 1);
    l->stride[i] = choose_axis_value(c, "stride", i, 1, 2);
    l->padding[i] = choose_axis_value(c, "padding", i, 1, 2);
    l->dilation[i] = choose_axis_value(c, "dilation", i, 1, 2);
    l->image[i] = choose_axis_value(c, "image", i, 10, 9);
  }
  l->groups = is_set(c, "groups") ? 2 : 1;
  if (is_set(c, "norm_eps")) l->norm_eps += 1e-3;
  if (is_set(c, "norm_input")) l->norm_input = NG_NORM_NORMALISED;
  if (is_set(c, "norm_kind")) l->norm_kind = NG_GROUP_NORM;
  if (is_set(c, "norm_no_weight")) l->norm_no_weight = 1;
  if (is_set(c, "token_dtype")) l->token_dtype = l->token_dtype == NG_I64 ? NG_I32 : NG_I64;
}

static ng_status add_linear_with_positions(fixture *f, const char *c) {
  ng_layer l = layer_of(NG_LINEAR, "rows", 3, 3);
  l.positions = is_set(c, "positions") ? 5 : 0;
  if (is_set(c, "order")) l.order = NG_POSITIONS_FIRST;
  return ng_add_layer(f->p, &l, NULL);
}

static ng_status add_changed_layers(fixture *f, const char *c) {
  ng_layer l;
  ng_status st = NG_OK;
  const char *const tensor = is_set(c, "tensor's name") ? "delta" : "gamma";
  const int64_t count = is_set(c, "tensor's count") ? 6 : 7;
  fill_layer(&l, c);
  if (is_set(c, "tensor first")) st = ng_add_tensor(f->p, tensor, count, NULL);
  int32_t index = 0;
  if (st == NG_OK) st = ng_add_layer(f->p, &l, &index);
  if (st == NG_OK) st = add_linear_with_positions(f, c);
  if (st == NG_OK && !is_set(c, "tensor first")) st = ng_add_tensor(f->p, tensor, count, NULL);
  if (st == NG_OK && is_set(c, "one more")) st = ng_add_linear(f->p, "more", 2, 2, 0, NULL);
  if (st == NG_OK && is_set(c, "weight's group")) st = ng_set_group(f->p, index, NG_WEIGHT, 1);
  if (st == NG_OK && is_set(c, "bias's group")) st = ng_set_group(f->p, index, NG_BIAS, 1);
  if (st == NG_OK && is_set(c, "frozen mark")) st = ng_freeze(f->p, index, 1);
  return st;
}

enum { TEXT = 160 };

typedef struct difference {
  /* name of the field that differs in the odd rank's layers; NULL: none */
  const char *change;
  char usual[TEXT], other[TEXT]; /* options of all ranks, of the odd rank */
  const char *layer;             /* options of the odd rank's norm layer */
  bool words;                    /* the model has an embedding */
  ng_status status[RANKS]; /* of ng_ready; a rank that returns an error would abort its transport */
  char message[RANKS][512];
} difference;

static ng_status add_layers(fixture *f, const char *of_norm, bool words) {
  ng_layer l = layer_of(NG_NORM, "norm", 3, 3);
  ng_status st = ng_add_linear(f->p, "fc", 4, 3, 1, NULL);
  l.bias = 1;
  l.options = of_norm;
  if (st == NG_OK) st = ng_add_layer(f->p, &l, NULL);
  l = layer_of(NG_EMBEDDING, "words", 5, 3);
  if (st == NG_OK && words) st = ng_add_layer(f->p, &l, NULL);
  return st == NG_OK ? ng_add_tensor(f->p, "gamma", 7, NULL) : st;
}

static ng_status make_ready(int32_t rank, ng_transport *t, void *arg) {
  difference *l = arg;
  fixture f;
  const bool odd = rank == odd_rank;
  const char *c = odd && l->change != NULL ? l->change : "";
  const fixture_how how = {
      .linalg = is_set(c, "linear algebra") ? "cpu" : "ref", .threads = 1, .transport = t};
  ng_status st = fixture_open(&f, odd ? l->other : l->usual, &how);
  if (st == NG_OK && l->change != NULL) st = add_changed_layers(&f, c);
  if (st == NG_OK && l->change == NULL) st = add_layers(&f, odd ? l->layer : NULL, l->words);
  if (st == NG_OK) st = ng_ready(f.p);
  (void)snprintf(l->message[rank], sizeof l->message[0], "%s", ng_last_error(f.ctx));
  /* A micro-batch then returns this error again, not an error about a missing ng_ready. */
  if (st == NG_ERR_COMM && ng_begin_samples(f.p, 1, 1) != NG_ERR_COMM) st = NG_ERR_STATE;
  fixture_close(&f);
  l->status[rank] = st;
  return NG_OK;
}

/* Run make_ready on all ranks, of which one random rank is odd. */
static void run_difference(difference *l) {
  odd_rank = (int32_t)rng_between(&dice, 1, RANKS - 1);
  assert_int_equal(ranks_run(RANKS, make_ready, l, NULL), NG_OK);
  for (int r = 0; r < RANKS; r++) {
    ranks_broadcast_bytes(r, &l->status[r], sizeof l->status[r]);
    ranks_broadcast_bytes(r, l->message[r], sizeof l->message[r]);
  }
}

static void expect_refusal(difference *l, bool differs, const char *message) {
  for (int64_t n = test_repetitions(1); n > 0; n--) {
    run_difference(l);
    for (int r = 0; r < RANKS; r++) {
      const bool named = strstr(l->message[r], message) != NULL;
      if (l->status[r] == (differs ? NG_ERR_COMM : NG_OK) && named == differs) continue;
      fail_msg("%s, '%s' and '%s', rank %d: %s (%s)", l->change != NULL ? l->change : "options",
               l->usual, l->other, r, ng_status_name(l->status[r]), l->message[r]);
    }
  }
}

static bool has_cpu(void) {
  ng_component c = {.struct_size = sizeof c};
  for (int32_t i = 0; ng_component_info(i, &c) == NG_OK; i++) {
    if (ng_component_info(i, &c) == NG_OK && strcmp(c.name, "cpu") == 0) return c.built_in != 0;
  }
  return false;
}

static void differences_between_ranks_are_refused(void **state) {
  for (const char *at = changes, *end = at; *end != 0; at = end + 1) {
    char c[32];
    end = at + strcspn(at, "|");
    (void)snprintf(c, sizeof c, "%.*s", (int)(end - at), at);
    const bool algebra = is_set(c, "linear algebra");
    difference l = {.change = c, .usual = "method=natgrad"};
    (void)snprintf(l.other, TEXT, "method=%s", is_set(c, "method") ? "eva-natgrad" : "natgrad");
    if (algebra && !has_cpu()) continue; /* a build without BLAS */
    expect_refusal(&l, c[0] != 0,
                   algebra               ? "ng_ready: linear algebra of 1 of 3"
                   : is_set(c, "method") ? "ng_ready: options of 1 of 3"
                                         : "ng_ready: layers of 1 of 3");
  }
}

/* A new field of ng_layer needs a row in `changes`, and setup/ready.c must hash the field. */
static void no_field_was_added(void **state) {
  assert_int_equal(offsetof(ng_layer, norm_no_weight) + sizeof(int32_t), sizeof(ng_layer));
}

/* ---- every option of the table ---------------------------------------------------------------*/

/* Return whether a model with these options becomes ready on all ranks. */
static bool becomes_ready(const char *options, bool words) {
  difference l = {.words = words};
  (void)snprintf(l.usual, TEXT, "%s", options);
  (void)snprintf(l.other, TEXT, "%s", options);
  run_difference(&l);
  return l.status[0] == NG_OK && l.status[1] == NG_OK && l.status[2] == NG_OK;
}

/* Write candidate i for another value: a choice, a number, a name.  Return false after the last candidate. */
static bool get_candidate(const ng_option_info *o, int i, char *value) {
  static const char *const number[] = {"3", "0.5", "1", "0", "7", "0.001", "-1", "100"};
  static const char *const text[] = {"fc", "*: damping=0.7", "2: 0.5"};
  if (o->type == NG_OPTION_CHOICE) {
    const char *at = o->choices;
    for (; i > 0 && at != NULL; i--) {
      at = strchr(at, '|');
      at = at == NULL ? NULL : at + 1;
    }
    if (at == NULL) return false;
    (void)snprintf(value, 64, "%.*s", (int)strcspn(at, "|"), at);
    return true;
  }
  const bool free_text = o->type == NG_OPTION_TEXT;
  const size_t n = free_text ? sizeof text / sizeof *text : sizeof number / sizeof *number;
  if ((size_t)i >= n) return false;
  (void)snprintf(value, 64, "%s", free_text ? text[i] : number[i]);
  return true;
}

/* Read the value of an option from a line of options; return false if the line is invalid. */
static bool get_option_text(const char *options, const char *name, char *value) {
  ng_options *o = NULL;
  char why[256];
  bool good = ng_options_create(NULL, why, sizeof why, &o) == NG_OK &&
              ng_options_set_line(o, options, why, sizeof why) == NG_OK &&
              ng_options_get(o, name, value, TEXT) == NG_OK;
  ng_options_destroy(&o);
  return good;
}

/* Find the first value that differs from the method's own value and is valid with the other options. */
static bool find_other_value(const ng_option_info *o, const char *method, difference *l) {
  char value[64], own[TEXT], got[TEXT];
  (void)snprintf(l->usual, TEXT, "method=%s", method);
  l->words = becomes_ready(l->usual, true); /* some methods do not support embeddings */
  if (!get_option_text(l->usual, o->name, own)) return false;
  for (int i = 0; get_candidate(o, i, value); i++) {
    (void)snprintf(l->other, TEXT, "method=%s %s='%s'", method, o->name, value);
    if (get_option_text(l->other, o->name, got) && strcmp(own, got) != 0 &&
        becomes_ready(l->other, l->words))
      return true;
  }
  return false;
}

static void differing_options_are_refused(void **state) {
  static const char *const method[] = {"natgrad", "kaisa",     "spngd",        "eva",       "mfac",
                                       "ggt",     "efcp",      "lowrank-mfac", "mpd-kfac",  "muon",
                                       "soap",    "kfac-adam", "shampoo",      "kl-shampoo"};
  int tried = 0;
  for (int32_t i = 0; i < ng_option_count(); i++) {
    ng_option_info o = {.struct_size = sizeof o};
    assert_int_equal(ng_option_at(i, &o), NG_OK);
    if (strcmp(o.name, "method") == 0) continue;
    int here = 0;
    for (size_t m = 0; m < sizeof method / sizeof *method; m++) {
      difference l = {.layer = NULL};
      if (!find_other_value(&o, method[m], &l)) continue;
      expect_refusal(&l, true, "ng_ready: options of");
      here++;
      if (ONE_METHOD) break;
    }
    const bool known = strcmp(o.name, "window_mask") == 0 || strcmp(o.name, "radius") == 0;
    if (here == 0 && !known) fail_msg("%s was not tested: no method accepts another value", o.name);
    tried += here;
  }
  printf("%d other options were refused\n", tried);
  for (size_t m = 0; m < sizeof method / sizeof *method; m++) { /* equal options are accepted */
    difference l = {.layer = NULL};
    (void)snprintf(l.usual, TEXT, "method=%s", method[m]);
    (void)snprintf(l.other, TEXT, "method=%s", method[m]);
    expect_refusal(&l, false, "ng_ready: options of");
  }
}

/* The radius needs solver = product, and the options of one layer are not options of the model. */
static void differing_radius_and_layer_options_are_refused(void **state) {
  difference radius = {.usual = "method=natgrad solver=product norm_block=none radius=0.3",
                       .other = "method=natgrad solver=product norm_block=none radius=0.7"},
             norm = {.usual = "method=natgrad", .other = "method=natgrad", .layer = "damping=0.5"};
  expect_refusal(&radius, true, "ng_ready: options of");
  expect_refusal(&norm, true, "ng_ready: layers of");
}

/* ---- after ng_ready --------------------------------------------------------------------------*/

enum { WIDE = 3, TALL = 2, SAMPLES = 4, GROUPS_HERE = 2 };

/* The difference of the odd rank in its only step. */
typedef struct odd_step {
  const char *options;     /* options of all ranks */
  const char *set, *value; /* option and value for ng_set */
  double lr;               /* added to the learning rate */
  ng_sgd sgd;              /* added to the update of group 1 */
  ng_adamw adamw;
  bool regroup; /* moves the weight to group 1 */
  bool half;    /* binds the output of the step as bf16 */
  const char *message;
} odd_step;

typedef struct step_run {
  const odd_step *odd;
  bool none; /* no rank differs */
  ng_status status[RANKS], again[RANKS];
  bool moved[RANKS];
  char message[RANKS][512];
} step_run;

static ng_status take_step(fixture *f, const odd_step *o, bool odd) {
  ng_sgd sgd[GROUPS_HERE];
  ng_adamw adamw[GROUPS_HERE];
  if (strstr(o->options, "update=") == NULL) return ng_step(f->p, 0.1 + (odd ? o->lr : 0.0));
  for (int i = 0; i < GROUPS_HERE; i++) {
    ng_sgd_init(&sgd[i], sizeof sgd[i]);
    ng_adamw_init(&adamw[i], sizeof adamw[i]);
    sgd[i].lr = adamw[i].lr = 0.1;
    sgd[i].momentum = 0.5;
  }
  if (odd) {
    sgd[1].lr += o->sgd.lr;
    sgd[1].momentum += o->sgd.momentum;
    sgd[1].dampening += o->sgd.dampening;
    sgd[1].weight_decay += o->sgd.weight_decay;
    sgd[1].nesterov += o->sgd.nesterov;
    sgd[1].decoupled += o->sgd.decoupled;
    adamw[1].lr += o->adamw.lr;
    adamw[1].beta1 += o->adamw.beta1;
    adamw[1].beta2 += o->adamw.beta2;
    adamw[1].eps += o->adamw.eps;
    adamw[1].weight_decay += o->adamw.weight_decay;
  }
  return strstr(o->options, "=sgd") != NULL ? ng_step_sgd(f->p, sgd, GROUPS_HERE)
                                            : ng_step_adamw(f->p, adamw, GROUPS_HERE);
}

static ng_status run_step(int32_t rank, ng_transport *t, void *arg) {
  step_run *l = arg;
  const odd_step *o = l->odd;
  const bool odd = rank == odd_rank && !l->none;
  float w[TALL * WIDE + TALL] = {1, 2, 3, 4, 5, 6, 7, 8}, d[TALL * WIDE + TALL], before[2][8];
  float a[SAMPLES * WIDE] = {1, 2, -1, 3, 0, 1, 2, -2, 1, 1, -1, 2},
                    g[SAMPLES * TALL] = {1, -1, 2, 1, 0, 1, -2, 3};
  const bool fused = strstr(o->options, "update=") != NULL, half = o->half && odd;
  const plane weight[2] = {plane_of(w, TALL, WIDE, half && fused ? NG_BF16 : NG_F32),
                           plane_of(w + TALL * WIDE, 1, TALL, NG_F32)};
  const plane grad[2] = {plane_of(d, TALL, WIDE, half && !fused ? NG_BF16 : NG_F32),
                         plane_of(d + TALL * WIDE, 1, TALL, NG_F32)};
  const plane in = plane_of(a, SAMPLES, WIDE, NG_F32), out = plane_of(g, SAMPLES, TALL, NG_F32);
  fixture f;
  for (int i = 0; i < TALL * WIDE + TALL; i++)
    d[i] = (float)(i - 3);
  const fixture_how how = {.linalg = "ref", .threads = 1, .transport = t};
  ng_status st = fixture_open(&f, o->options, &how);
  if (st == NG_OK) st = fixture_add_linear(&f, "fc", grad, weight);
  if (st == NG_OK) st = ng_set_group(f.p, 0, NG_BIAS, 1);
  if (st == NG_OK) st = ng_ready(f.p);
  if (st == NG_OK) st = fixture_begin_and_observe(&f, SAMPLES, 0, &in, &out);
  char was[64] = "";
  if (st == NG_OK && o->set != NULL) st = ng_get(f.p, o->set, was, sizeof was);
  if (st == NG_OK && o->set != NULL && odd) st = ng_set(f.p, o->set, o->value);
  if (st == NG_OK && o->regroup && odd) st = ng_set_group(f.p, 0, NG_WEIGHT, 1);
  memcpy(before[0], w, sizeof w);
  memcpy(before[1], d, sizeof d);
  if (st == NG_OK) st = take_step(&f, o, odd);
  l->moved[rank] = memcmp(before[0], w, sizeof w) != 0 || memcmp(before[1], d, sizeof d) != 0;
  (void)snprintf(l->message[rank], sizeof l->message[0], "%s", ng_last_error(f.ctx));
  /* Equal numbers succeed afterwards. */
  l->again[rank] = o->set != NULL && odd ? ng_set(f.p, o->set, was) : NG_OK;
  if (l->again[rank] == NG_OK && o->regroup) l->again[rank] = ng_set_group(f.p, 0, NG_WEIGHT, 0);
  const ng_array as_others = ng_array_matrix(fused ? w : d, TALL, WIDE, NG_F32);
  if (l->again[rank] == NG_OK && half)
    l->again[rank] = fused ? ng_bind_weight(f.p, 0, NG_WEIGHT, &as_others)
                           : ng_bind_grad(f.p, 0, NG_WEIGHT, &as_others);
  if (l->again[rank] == NG_OK)
    l->again[rank] = fixture_begin_and_observe(&f, SAMPLES, 0, &in, &out);
  if (l->again[rank] == NG_OK) l->again[rank] = take_step(&f, o, false);
  fixture_close(&f);
  l->status[rank] = st;
  return NG_OK;
}

static void differing_steps_are_refused(void **state) {
#define NUMBERS "the learning rate, the update, its numbers or its groups differ"
#define SGD(field)                                                                                 \
  { .options = "update=sgd", .sgd = {.field = 1}, .message = NUMBERS }
#define ADAMW(field)                                                                               \
  { .options = "update=adamw", .adamw = {.field = 0.01}, .message = NUMBERS }
  static const odd_step odd[] = {
      {.options = "method=natgrad", .set = "damping", .value = "0.7", .message = "options differ"},
      {.options = "method=eva", .set = "stat_decay", .value = "0.25", .message = "options differ"},
      {.options = "method=natgrad",
       .set = "solve_period",
       .value = "7",
       .message = "options differ"},
      {.options = "method=natgrad", .set = "kl_clip", .value = "0.5", .message = "options differ"},
      {.options = "method=natgrad", .set = "clip", .value = "none", .message = "options differ"},
      {.options = "method=natgrad", .lr = 1e-9, .message = NUMBERS},
      {.options = "method=mfac window=4", .lr = 0.1, .message = NUMBERS},
      SGD(lr),
      SGD(momentum),
      SGD(weight_decay),
      SGD(nesterov),
      SGD(decoupled),
      {.options = "update=sgd", .sgd = {.dampening = 0.5}, .message = NUMBERS},
      ADAMW(lr),
      ADAMW(beta1),
      ADAMW(eps),
      ADAMW(weight_decay),
      {.options = "update=adamw", .adamw = {.beta2 = -0.01}, .message = NUMBERS},
      {.options = "update=sgd", .regroup = true, .message = NUMBERS},
      {.options = "update=sgd", .half = true, .message = NUMBERS},
      {.options = "method=eva update=adamw", .half = true, .message = NUMBERS},
      {.options = "method=natgrad", .half = true, .message = NUMBERS}};
  for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
    for (int none = 0; none < 2; none++) {
      step_run l = {.odd = &odd[i], .none = none != 0};
      odd_rank = (int32_t)rng_between(&dice, 1, RANKS - 1);
      assert_int_equal(ranks_run(RANKS, run_step, &l, NULL), NG_OK);
      for (int r = 0; r < RANKS; r++) {
        ranks_broadcast_bytes(r, &l.status[r], sizeof l.status[r]);
        ranks_broadcast_bytes(r, &l.moved[r], sizeof l.moved[r]);
        ranks_broadcast_bytes(r, &l.again[r], sizeof l.again[r]);
        ranks_broadcast_bytes(r, l.message[r], sizeof l.message[r]);
        const bool named = strstr(l.message[r], odd[i].message) != NULL;
        const bool good = none != 0 ? l.status[r] >= NG_OK && l.moved[r]
                                    : l.status[r] == NG_ERR_STATE && named && !l.moved[r];
        if (good && l.again[r] >= NG_OK) continue;
        fail_msg("row %zu, no difference %d, rank %d: %s, %s, then %s (%s)", i, none, r,
                 ng_status_name(l.status[r]), l.moved[r] ? "moved" : "not moved",
                 ng_status_name(l.again[r]), l.message[r]);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(differences_between_ranks_are_refused), cmocka_unit_test(no_field_was_added),
      cmocka_unit_test(differing_options_are_refused),
      cmocka_unit_test(differing_radius_and_layer_options_are_refused),
      cmocka_unit_test(differing_steps_are_refused)};
  dice.state = test_seed();
  return RANKS_TESTS("same", tests);
}
