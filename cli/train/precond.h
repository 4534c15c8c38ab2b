/* precond.h: the trainer's calls of natgrad.h: the layers of a network, and steps on them. */
#ifndef PRECOND_H
#define PRECOND_H

#include "train.h"

typedef struct precond precond; /* functions return CLI_BAD after one line */

/* Do the layers that `s` excludes (skip_layers, exclude_width) exist in the net? Not checked for the environment,
 * which may serve several networks, and for resumed runs. */
int precond_check(const settings *s, const nn *net);

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
double precond_clip(const precond *p);       /* clip factor of the last step */
/* Relation of gradient g and direction u in the last step, over all layers with curvature; with --quantify u is
 * the vector that lr multiplies. NaN if not defined. */
typedef struct precond_turn {
  double cosine, angle; /* of g and u; arc cosine in degrees */
  double rotation;      /* 90 (1 - cosine), as in EFCP */
  double stretch;       /* |u| / |g| */
} precond_turn;
precond_turn precond_turned(const precond *p);
/* --quantify: distribution of |u_i / (g_i + 1e-8)| (ng_report.scaling_*); count 0: off. */
typedef struct precond_scaling {
  int64_t count;
  double min, q25, q50, q75, max, mean;
} precond_scaling;
precond_scaling precond_scaled(const precond *p);
int precond_stations(const precond *p, train_station *out, int room); /* returns the number */
refreshed precond_refreshed(const precond *p);                        /* of adaptive statistics */
/* Add stations with their traffic from out->station[at] on; returns the end. */
int precond_traffic(const precond *p, traffic_rank *out, int at);
int64_t precond_bytes(const precond *p); /* bytes in use */

/* Collective. Save and load the state as a stream of rank 0 (`path` is for messages), or in parts, each rank its
 * own at the same path. An error of a file is the same on all ranks; ranks with `tells` report it. */
int precond_save(precond *p, ng_writer write, void *user, bool tells);
int precond_load(precond *p, ng_reader read, void *user, const char *path);
int precond_save_parts(precond *p, const char *path, bool tells);
int precond_load_parts(precond *p, const char *path);

#endif
