/* precond.h: the trainer's calls of natgrad.h: the layers of a network, and steps on them. */
#ifndef PRECOND_H
#define PRECOND_H

#include "train.h"

typedef struct precond precond; /* functions return CLI_BAD after one line */

/* `net` is ready (nn_ready). The pool also runs the loops of the library; transport NULL: one rank. All stay owned
 * by the caller. */
int precond_create(const settings *s, const ng_transport *t, nn *net, ng_pool *pool, precond **out);
void precond_destroy(precond **p); /* accepts NULL */

/* Before the forward pass of a batch; `last`: the last one before a step, so that statistics may be sent layer by
 * layer; *wants: some layer wants to be observed. */
int precond_begin(precond *p, int64_t samples, bool last, bool *wants);
const nn_watch *precond_watch(precond *p);

/* Outcome of a step: 0, or a sum of these. */
enum { PRECOND_RESCUED = 1, PRECOND_SKIPPED = 2, PRECOND_UNOBSERVED = 4 };
int precond_step(precond *p, double lr, unsigned *out);
/* Set momentum or damping for the next steps. */
void precond_momentum(precond *p, double momentum);
/* Set an option of the library that may change between steps. */
int precond_set(precond *p, const char *option, double value);
int precond_forget(precond *p); /* drop the observations since the last step */

double precond_observe_ms(const precond *p); /* time spent observing */
/* Numbers of the last step for log.jsonl (log.h); returns how many. */
enum { PRECOND_NUMBERS = 11 };
int precond_numbers(const precond *p, train_number out[PRECOND_NUMBERS]);
int precond_stations(const precond *p, train_station *out, int room);      /* returns the number */
int precond_refreshed(const precond *p, train_refreshed out[TRAIN_KINDS]); /* returns the number */
ng_report precond_report(const precond *p);
int64_t precond_bytes(const precond *p); /* bytes in use */

/* Collective. Save and load the state as a stream of rank 0 (`path` is for messages), or in parts, each rank its
 * own at the same path. An error of a file is the same on all ranks; ranks with `tells` report it. */
int precond_save(precond *p, ng_writer write, void *user, bool tells);
int precond_load(precond *p, ng_reader read, void *user, const char *path);
int precond_save_parts(precond *p, const char *path, bool tells);
int precond_load_parts(precond *p, const char *path);

#endif
