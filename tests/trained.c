/* trained.c: see trained.h. */
#include "trained.h"
#include "common/cli.h"
#include "nn/models.h"
#include "train/disk.h"
#include "trainer_help.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void read_log(trained *out) {
  char *path = cli_join(out->folder, "log.jsonl"), *text = NULL;
  assert_int_equal(disk_read_text(path, &text), CLI_OK);
  for (char *at = text, *stop; (stop = strchr(at, '\n')) != NULL; at = stop + 1) {
    assert_true(out->lines < TRAINED_LINES);
    ngio_json **json = &out->json[out->lines];
    assert_int_equal(cli_json_parse(path, at, (size_t)(stop - at), json), CLI_OK);
    out->line[out->lines++] = ngio_json_root(*json);
  }
  free(path);
  free(text);
}

void train(const data_set *d, const char *name, const char *set, trained *out) {
  char path[1024];
  memset(out, 0, sizeof *out);
  settings_init(&out->s);
  (void)snprintf(out->folder, sizeof out->folder, "%s", in_folder(name));
  must_set(&out->s, "out", out->folder);
  must_set_line(&out->s, set);
  const train_output show = {.label = ""};
  assert_int_equal(train_run(&out->s, d, &show, &out->r), CLI_OK);
  read_log(out);
  if (out->r.diverged) return; /* without a checkpoint */
  (void)snprintf(path, sizeof path, "%s/checkpoint-%lld.safetensors", out->folder,
                 (long long)out->r.steps);
  out->model = must_read_tensors(path);
}

void free_trained(trained *r) {
  for (int i = 0; i < r->lines; i++)
    ngio_json_free(&r->json[i]);
  ngio_tensors_close(&r->model);
  train_result_free(&r->r);
  settings_free(&r->s);
}

bool is_event(const ngio_value *line, const char *event) {
  return strcmp(ngio_text_of(ngio_get(line, "event")), event) == 0;
}

const ngio_value *last_event(const trained *r, const char *event) {
  const ngio_value *found = NULL;
  for (int i = 0; i < r->lines; i++)
    found = is_event(r->line[i], event) ? r->line[i] : found;
  assert_non_null(found);
  return found;
}

double number_in(const ngio_value *line, const char *key) {
  const ngio_value *v = ngio_get(line, key);
  if (!ngio_is_number(v)) fail_msg("no number '%s'", key);
  return ngio_number_of(v);
}

void must_be_near(const ngio_value *line, const char *key, double expected, double within) {
  const double got = number_in(line, key);
  if (!(fabs(got - expected) <= within * (1.0 + fabs(expected)))) {
    fail_msg("%s of step %g: %.9g instead of %.9g", key, number_in(line, "step"), got, expected);
  }
}

nn *new_network(const trained *r, const data_set *d, int64_t batch, uint64_t seed) {
  const model_task task = {.input = {d->height, d->width, d->channels},
                           .classes = d->classes,
                           .is_text = d->context > 0,
                           .label_smoothing = r->s.label_smoothing,
                           .dropout = r->s.dropout};
  bool reconstructs = false;
  nn *net = nn_create(NULL, seed);
  assert_int_equal(model_build(r->s.model, &task, net, &reconstructs), CLI_OK);
  assert_int_equal(nn_prepare(net, batch), CLI_OK);
  return net;
}

void load_weights(nn *net, const ngio_tensors *model) {
  for (int i = 0; i < nn_count_params(net) + nn_count_buffers(net); i++) {
    const bool param = i < nn_count_params(net);
    const nn_param *q = param ? nn_get_param(net, i) : NULL;
    const nn_buffer *b = param ? NULL : nn_get_buffer(net, i - nn_count_params(net));
    const ngio_tensor *t = ngio_tensors_find(model, param ? q->name : b->name);
    assert_non_null(t);
    memcpy(param ? q->value : b->value, t->data, (size_t)t->bytes);
  }
}

ngio_tensors *read_library_state(const trained *r) {
  const ngio_tensor *t = ngio_tensors_find(r->model, "natgrad.state");
  ngio_tensors *state = NULL;
  char message[256] = "";
  assert_non_null(t);
  if (ngio_tensors_parse(t->data, (size_t)t->bytes, "state", NULL, &state, message,
                         sizeof message) != NGIO_OK)
    fail_msg("%s", message);
  return state;
}

double cross_entropy(const double *y, int n, int32_t label, double smoothing) {
  double sum = 0.0, loss = 0.0;
  for (int k = 0; k < n; k++)
    sum += exp(y[k]);
  for (int k = 0; k < n; k++)
    loss -= (smoothing / n + (k == label ? 1.0 - smoothing : 0.0)) * (y[k] - log(sum));
  return loss;
}

bool is_correct(const double *y, int n, int32_t label) {
  for (int k = 0; k < n; k++) {
    if (k != label && y[k] >= y[label]) return false;
  }
  return true;
}
