/* t_same_options.c: an option that one rank of three has otherwise is the same refusal on all of them: every option of
 * the table, with every method that takes it, on a model with linear, norm and (where a method takes them) embedding layers and a tensor without curvature; and
 * an option of one layer alone.  Nothing is listed here: an option that is added is asked for, too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "fixture.h"
#include "ranks.h"

enum { RANKS = 3, ODD = 1, TEXT = 160 };

typedef struct life {
  char usual[TEXT], other[TEXT]; /* options, of all and of the odd rank */
  const char *layer;             /* of the odd rank's norm layer */
  bool words;                    /* with an embedding */
  char message[RANKS][512];
} life;

static ng_status make(fixture *f, const char *of_norm, bool words) {
  ng_layer l;
  int32_t index;
  ng_status st = ng_add_linear(f->p, "fc", 4, 3, 1, &index);
  ng_layer_init(&l, NG_NORM, sizeof l);
  l.name = "norm";
  l.in = l.out = 3;
  l.bias = 1;
  l.options = of_norm;
  if (st == NG_OK) st = ng_add_layer(f->p, &l, &index);
  ng_layer_init(&l, NG_EMBEDDING, sizeof l);
  l.name = "words";
  l.in = 5;
  l.out = 3;
  if (st == NG_OK && words) st = ng_add_layer(f->p, &l, &index);
  return st == NG_OK ? ng_add_tensor(f->p, "gamma", 7, &index) : st;
}

static ng_status live(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  fixture f;
  const bool odd = rank == ODD;
  const fixture_how how = {.linalg = "ref", .threads = 1, .transport = t};
  ng_status st = fixture_open(&f, odd ? l->other : l->usual, &how);
  if (st == NG_OK) st = make(&f, odd ? l->layer : NULL, l->words);
  if (st == NG_OK) st = ng_ready(f.p);
  (void)snprintf(l->message[rank], sizeof l->message[0], "%s", ng_last_error(f.ctx));
  fixture_close(&f);
  return st;
}

static void must_be_refused(life *l, bool differ, const char *what) {
  ng_status st[RANKS];
  (void)ranks_run(RANKS, live, l, st);
  for (int r = 0; r < RANKS; r++) {
    const bool told = strstr(l->message[r], what) != NULL;
    if (st[r] == (differ ? NG_ERR_COMM : NG_OK) && (told || !differ)) continue;
    fail_msg("'%s' and '%s', rank %d: %s (%s)", l->usual, l->other, r, ng_status_name(st[r]),
             l->message[r]);
  }
}

/* All ranks can be made with these options. */
static bool works(const char *options, bool words) {
  life l = {.words = words};
  ng_status st[RANKS];
  (void)snprintf(l.usual, TEXT, "%s", options);
  (void)snprintf(l.other, TEXT, "%s", options);
  return ranks_run(RANKS, live, &l, st) == NG_OK && st[0] == NG_OK;
}

/* The i-th value that is worth trying, or none: all choices, numbers of any size, names. */
static bool candidate(const ng_option_info *o, int i, char *value) {
  static const char *const number[] = {"3", "0.5", "1", "0", "7", "0.001", "-1", "100"};
  static const char *const text[] = {"fc", "*: damping=0.7"};
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

/* What the model has of it; false: the options cannot be made. */
static bool text_of(const char *options, const char *name, char *value) {
  ng_options *o = NULL;
  char why[256];
  bool good = ng_options_create(NULL, why, sizeof why, &o) == NG_OK &&
              ng_options_set_line(o, options, why, sizeof why) == NG_OK &&
              ng_options_get(o, name, value, TEXT) == NG_OK;
  ng_options_destroy(&o);
  return good;
}

/* The first value that differs from the method's own and goes with the rest. */
static bool other_value(const ng_option_info *o, const char *method, life *l) {
  char value[64], own[TEXT], got[TEXT];
  (void)snprintf(l->usual, TEXT, "method=%s", method);
  l->words = works(l->usual, true); /* some methods take no embeddings */
  if (!text_of(l->usual, o->name, own)) return false;
  for (int i = 0; candidate(o, i, value); i++) {
    (void)snprintf(l->other, TEXT, "method=%s %s='%s'", method, o->name, value);
    if (text_of(l->other, o->name, got) && strcmp(own, got) != 0 && works(l->other, l->words))
      return true;
  }
  return false;
}

static void every_option(void **state) {
  static const char *const method[] = {"natgrad", "kaisa", "spngd",        "eva",     "mfac",
                                       "ggt",     "efcp",  "lowrank-mfac", "mpd-kfac"};
  int tried = 0;
  (void)state;
  for (int32_t i = 0; i < ng_option_count(); i++) {
    ng_option_info o = {.struct_size = sizeof o};
    assert_int_equal(ng_option_at(i, &o), NG_OK);
    if (strcmp(o.name, "method") == 0) continue;
    int here = 0;
    for (size_t m = 0; m < sizeof method / sizeof *method; m++) {
      life l = {.layer = NULL};
      if (!other_value(&o, method[m], &l)) continue;
      must_be_refused(&l, true, "other options");
      here++;
    }
    const bool known = strcmp(o.name, "window_mask") == 0 || strcmp(o.name, "radius") == 0;
    if (here == 0 && !known) fail_msg("no method takes another %s", o.name);
    tried += here;
  }
  printf("%d options of a rank\n", tried);
  for (size_t m = 0; m < sizeof method / sizeof *method; m++) { /* the same: nothing to refuse */
    life l = {.layer = NULL};
    (void)snprintf(l.usual, TEXT, "method=%s", method[m]);
    (void)snprintf(l.other, TEXT, "method=%s", method[m]);
    must_be_refused(&l, false, "");
  }
}

/* A radius goes with one solver only; the mask, which is not tried here, wants weights that are bound. */
static void with_another(void **state) {
  life l = {.usual = "method=natgrad solver=product norm_block=none radius=0.3",
            .other = "method=natgrad solver=product norm_block=none radius=0.7"};
  (void)state;
  must_be_refused(&l, true, "other options");
}

static void of_a_norm_layer(void **state) {
  life l = {.usual = "method=natgrad", .other = "method=natgrad", .layer = "damping=0.5"};
  (void)state;
  must_be_refused(&l, true, "other layers");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_option), cmocka_unit_test(with_another),
                                     cmocka_unit_test(of_a_norm_layer)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
