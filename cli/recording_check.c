/* recording_check.c: what a recording says that a replay would otherwise read in another sense, or not at all.
 *
 * In: case.json, its layers read.  Out: a line told that names the entry, or settings with the published meaning.
 * tyohei/chainerkfac makes A of patches with the first stride and padding for both directions, undilated; where that is
 * something else than the layer's own patches, its A is of no layer. */
#include "common/cli.h"
#include "recording.h"

#include <stdlib.h>
#include <string.h>

static const char *const known[] = {"kind",   "in_channels", "out_channels", "kernel",
                                    "stride", "padding",     "bias",         "num_features",
                                    "eps",    "in_features", "out_features", NULL};

static bool is_known(const char *key) {
  int i = 0;
  while (known[i] != NULL && strcmp(known[i], key) != 0)
    i++;
  return known[i] != NULL;
}

static bool is_one(const ngio_value *v) {
  return ngio_is(v, NGIO_INTEGER) && ngio_integer_of(v) == 1;
}

/* 1, or a list of ones: of what is not there. */
static bool says_nothing(const ngio_value *v) {
  for (size_t i = 0; i < ngio_count(v); i++) {
    if (!is_one(ngio_at(v, i))) return false;
  }
  return ngio_count(v) > 0 || is_one(v);
}

static int check_layer(const recording *r, const char *path, const shape *l) {
  const ngio_value *layer = ngio_get(ngio_get(r->root, "layers"), l->name);
  for (const ngio_value *v = ngio_first(layer); v != NULL; v = ngio_next(layer, v)) {
    if (is_known(v->key) || says_nothing(v)) continue;
    return cli_bad("%s: case.json: layer %.60s: '%.40s' is not supported, expected 1 or nothing",
                   path, l->name, v->key);
  }
  return CLI_OK;
}

static int check_patches(const char *path, const shape *l) {
  const bool same = l->stride[0] == l->stride[1] && l->padding[0] == l->padding[1];
  if (!l->conv || same) return CLI_OK;
  return cli_bad("%s: case.json: layer %.60s: %s differs in both directions; chainerkfac's A of it "
                 "is of other patches than the layer's",
                 path, l->name, l->stride[0] != l->stride[1] ? "stride" : "padding");
}

/* Names of layers whose output factor, or of norms whose matrix, is its diagonal. */
static int check_diagonalize(const recording *r, const char *path) {
  const ngio_value *list = ngio_get(r->config, "diagonalize");
  if (list == NULL || ngio_is(list, NGIO_NULL)) return CLI_OK;
  if (!ngio_is(list, NGIO_ARRAY)) {
    return cli_bad("%s: case.json: config: diagonalize is no list of layers", path);
  }
  for (size_t i = 0; i < ngio_count(list); i++) {
    const char *name = ngio_text_of(ngio_at(list, i));
    bool found = false;
    for (int k = 0; k < r->layers && name != NULL; k++)
      found = found || strcmp(r->layer[k].name, name) == 0;
    if (found) continue;
    return cli_bad("%s: case.json: config: diagonalize: there is no layer '%.60s'", path,
                   name == NULL ? "" : name);
  }
  return CLI_OK;
}

/* A micro-batch has one number of samples.  chainerkfac flattens what a linear layer sees, so that positions are its
 * samples, and each layer has its own number. */
int recording_check_samples(const recording *r, const char *path) {
  const bool flattens = strcmp(r->system, "chainerkfac") == 0;
  const int shown = r->ranks * r->steps * r->micro_batches;
  for (int k = 0; k < shown; k++) {
    recording_shown *s = r->shown + (size_t)k * (size_t)r->layers;
    for (int i = 0; i < r->layers; i++) {
      if (flattens) s[i].samples = s[i].rows;
      if (flattens || s[i].samples == s[0].samples) continue;
      return cli_bad("%s: step %d: layer %.60s has %lld samples, %.60s has %lld", path,
                     k / r->micro_batches % r->steps, r->layer[i].name, (long long)s[i].samples,
                     r->layer[0].name, (long long)s[0].samples);
    }
  }
  return CLI_OK;
}

/* Of Chainer before 7 the hook adds rate w to the gradient that is still scaled; later rate w times the scale. */
static void scale_decay(recording *r) {
  const char *version = ngio_text_of(ngio_get(r->root, "chainer"));
  if (version != NULL && strtol(version, NULL, 10) < 7) r->weight_decay /= r->loss_scale;
}

int recording_check(recording *r, const char *path) {
  const bool chainer = strcmp(r->system, "chainerkfac") == 0;
  int rc = CLI_OK;
  if (r->parameters) return CLI_OK;
  for (int i = 0; i < r->layers && rc == CLI_OK; i++) {
    rc = check_layer(r, path, &r->layer[i]);
    if (rc == CLI_OK && chainer) rc = check_patches(path, &r->layer[i]);
  }
  if (rc == CLI_OK) rc = check_diagonalize(r, path);
  const ngio_value *accumulated = ngio_get(r->config, "acc_iters");
  if (rc == CLI_OK && ngio_is(accumulated, NGIO_INTEGER) &&
      ngio_integer_of(accumulated) != r->micro_batches) {
    rc = cli_bad("%s: case.json: config: acc_iters is %lld, and there are %d micro_batches", path,
                 (long long)ngio_integer_of(accumulated), r->micro_batches);
  }
  if (rc == CLI_OK && chainer) scale_decay(r);
  return rc;
}
