/* average.c: average the weights; average.h has the formulas. */
#include "average.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int average_create(const settings *s, const nn *net, int64_t per_epoch, average *out) {
  *out = (average){.weights = nn_count_weights(net)};
  if (s->average_weights <= 0.0) return CLI_OK;
  out->start = llround(s->average_weights * (double)per_epoch);
  out->every = s->average_every > 0 ? s->average_every : per_epoch;
  out->mean = calloc((size_t)out->weights, sizeof *out->mean);
  if (out->mean != NULL) return CLI_OK;
  return cli_fail("--average-weights: no memory for %lld weights", (long long)out->weights);
}

void average_free(average *a) {
  free(a->mean);
  memset(a, 0, sizeof *a);
}

void average_add_weights(average *a, const nn *net, int64_t step) {
  if (a->mean == NULL || step <= a->start || step % a->every != 0) return;
  float *to = a->mean;
  const double n = (double)++a->count;
  for (int i = 0; i < nn_count_params(net); i++) {
    const nn_param *p = nn_get_param(net, i);
    for (int64_t k = 0; k < p->count; k++)
      to[k] = (float)((double)to[k] + ((double)p->value[k] - (double)to[k]) / n);
    to += p->count;
  }
}

double average_select_lr(const settings *s, const average *a, int64_t step, double lr) {
  return a->mean != NULL && step >= a->start && s->average_lr >= 0.0 ? s->average_lr : lr;
}

void average_copy_to_network(const average *a, nn *net) {
  const float *from = a->mean;
  for (int i = 0; i < nn_count_params(net); i++) {
    const nn_param *p = nn_get_param(net, i);
    memcpy(p->value, from, (size_t)p->count * sizeof *from);
    from += p->count;
  }
}

int average_broadcast(average *a, const run_ranks *k) {
  int rc = ranks_broadcast(k, &a->count, sizeof a->count);
  if (rc == CLI_OK && a->count > 0)
    rc = ranks_broadcast(k, a->mean, a->weights * (int64_t)sizeof *a->mean);
  return rc;
}
