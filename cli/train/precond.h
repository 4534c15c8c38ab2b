/* precond.h: the trainer's calls of natgrad.h: the layers of a network, and steps on them. */
#ifndef PRECOND_H
#define PRECOND_H

#include "train.h"

/* Functions that return int return CLI_OK, or CLI_BAD after one line. */
typedef struct precond precond;

/* Create the preconditioner of `net`, which is ready (nn_ready). The pool also runs the loops of the library; transport
 * NULL: one rank. The caller owns all arguments. */
int precond_create(const settings *s, const ng_transport *t, nn *net, ng_pool *pool, precond **out);
void precond_destroy(precond **p); /* accepts NULL */

/* Call before the forward pass of a batch. `last`: the last batch of a step, so that statistics may be sent layer by
 * layer. Set *wants if the library observes a layer in this batch. */
int precond_begin(precond *p, int64_t samples, bool last, bool *wants);
const nn_watch *precond_watch(precond *p);

typedef struct precond_outcome { /* of a step */
  bool rescued, skipped, unobserved;
} precond_outcome;
/* `momentum` is of the sgd update. */
int precond_step(precond *p, double lr, double momentum, precond_outcome *out);
/* Set an option of the library that may change between steps. */
int precond_set(precond *p, const char *option, double value);
int precond_drop_observations(precond *p); /* drop the observations since the last step */

double precond_observe_ms(const precond *p); /* time spent observing */
/* Return the numbers of the last step for log.jsonl (log.h), the stations, the refreshed statistics in `out`, and how
 * many there are. */
enum { PRECOND_NUMBERS = 11 };
int precond_read_numbers(const precond *p, train_number out[PRECOND_NUMBERS]);
int precond_read_stations(const precond *p, train_station *out, int capacity);
int precond_read_refreshes(const precond *p, train_refreshed out[TRAIN_KINDS]);
ng_report precond_read_report(const precond *p);
int64_t precond_count_bytes(const precond *p); /* bytes in use */

/* Save and load the state as a stream of rank 0 (`path` is for messages), or in parts, one file for each rank. An error
 * of a file is the same on all ranks; ranks with `reports` print the error. Collective. */
int precond_save(precond *p, ng_writer write, void *user, bool reports);
int precond_load(precond *p, ng_reader read, void *user, const char *path);
int precond_save_parts(precond *p, const char *path, bool reports);
int precond_load_parts(precond *p, const char *path);

#endif
