/* trained.h: a run of the trainer, its log and its checkpoint. */
#ifndef TESTS_TRAINED_H
#define TESTS_TRAINED_H

#include "safetensors.h"
#include "json.h"
#include "train/train.h"

enum { TRAINED_LINES = 64 };
typedef struct trained {
  char folder[512];
  settings s;
  ngio_json *json[TRAINED_LINES];
  const ngio_value *line[TRAINED_LINES];
  int lines;
  train_result r;
  ngio_tensors *model;
} trained;

/* Train in the folder `name` of the test folder; `set`: "name=value ...". */
void train(const data_set *d, const char *name, const char *set, trained *out);
void free_trained(trained *r);
/* A new network of the run's model, with initial weights from `seed`. */
nn *new_network(const trained *r, const data_set *d, int64_t batch, uint64_t seed);

/* Copy parameters and buffers of a checkpoint into a network. */
void load_weights(nn *net, const ngio_tensors *model);
/* Read the library's state from the checkpoint. */
ngio_tensors *read_library_state(const trained *r);

/* Find lines of the log, and numbers of a line. */
bool is_event(const ngio_value *line, const char *event);
const ngio_value *last_event(const trained *r, const char *event);
double number_in(const ngio_value *line, const char *key);
/* |got - expected| <= within (1 + |expected|) */
void must_be_near(const ngio_value *line, const char *key, double expected, double within);

/* -log softmax(y)_label of one sample with outputs y, with label smoothing. */
double cross_entropy(const double *y, int n, int32_t label, double smoothing);
bool is_correct(const double *y, int n, int32_t label);

#endif
