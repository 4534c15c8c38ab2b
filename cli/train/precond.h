/* precond.h: the trainer's interface to natgrad.h: the layers of a network, and steps on them. */
#ifndef PRECOND_H
#define PRECOND_H

#include "train.h"

/* Functions with the type int return CLI_OK, or CLI_BAD after a message. */
typedef struct precond precond;

/* Create the preconditioner of `net` (after nn_prepare). The pool also runs the library's loops. t = NULL: one rank. */
int precond_create(const settings *s, const ng_transport *t, nn *net, ng_pool *pool, precond **out);
void precond_destroy(precond **p); /* accepts NULL */

/* Call this before the forward pass of a micro-batch. `last`: it is the last one of the step, so statistics may be sent
 * layer by layer. *wants is true if the library observes a layer in this micro-batch. */
int precond_begin_batch(precond *p, int64_t samples, bool last, bool *wants);
const nn_watch *precond_get_watch(precond *p);

typedef struct precond_outcome { /* the outcome of one step */
  bool rescued, skipped, unobserved;
} precond_outcome;
/* Take a step. `momentum` is for the sgd update. */
int precond_step(precond *p, double lr, double momentum, precond_outcome *out);
/* Set a live option of the library. */
int precond_set_option(precond *p, const char *option, double value);
int precond_drop_observations(precond *p); /* discard the observations since the last step */

double precond_get_observe_ms(const precond *p); /* total time of the observe calls */
/* Read numbers of the last step for log.jsonl (log.h); times of stations; adaptive statistics. Return how many. */
enum { PRECOND_NUMBERS = 11 };
int precond_read_numbers(const precond *p, train_number out[PRECOND_NUMBERS]);
int precond_read_stations(const precond *p, train_station *out, int capacity);
int precond_read_refreshes(const precond *p, train_refreshed out[TRAIN_KINDS]);
ng_report precond_read_report(const precond *p);
/* read the factors of nn_layer `layer` */
int precond_read_factors(const precond *p, int layer, ng_factors *f);
/* return the number of bytes that the library has allocated */
int64_t precond_count_bytes(const precond *p);

/* Save or load the state of the library: as a stream that rank 0 writes or reads (`path` is for messages), or in parts,
 * one file for each rank. All ranks have the same file error; ranks with `reports` report it. Collective. */
int precond_save_stream(precond *p, ng_writer write, void *user, bool reports);
int precond_load_stream(precond *p, ng_reader read, void *user, const char *path);
int precond_save_parts(precond *p, const char *path, bool reports);
int precond_load_parts(precond *p, const char *path);

#endif
