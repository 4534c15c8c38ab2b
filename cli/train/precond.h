/* precond.h: the trainer's side of natgrad.h: a network's layers, and the steps on them. */
#ifndef PRECOND_H
#define PRECOND_H

#include "train.h"

typedef struct precond precond; /* all functions answer CLI_BAD, told in one line, on failure */

/* Does what `s` leaves out (skip_layers, exclude_width) exist in the net?  The environment, which may
 * serve several networks, and a run that goes on are not asked. */
int precond_check(const settings *s, const nn *net);

/* `net` is ready (nn_ready) and stays the caller's, as does the pool, on which the library's loops
 * run, too, and the transport (NULL: one rank). */
int precond_create(const settings *s, const ng_transport *t, nn *net, ng_pool *pool, precond **out);
void precond_destroy(precond **p); /* accepts NULL */

/* Before the forward pass of a batch: its samples; `last`: the last one before a step, whose statistics may
 * leave for other ranks layer by layer; *wants: some layer wants to be observed. */
int precond_begin(precond *p, int64_t samples, bool last, bool *wants);
const nn_watch *precond_watch(precond *p);

/* What there is to say of a step: 0, or several of them. */
enum { PRECOND_RESCUED = 1, PRECOND_SKIPPED = 2, PRECOND_UNOBSERVED = 4 };
int precond_step(precond *p, double lr, unsigned *out);
/* For the coming steps, in place of the settings' (settings_check has seen that there is a damping). */
void precond_momentum(precond *p, double momentum);
/* Set a live option of the library for the coming steps. */
int precond_set(precond *p, const char *option, double value);
int precond_forget(precond *p); /* there is no step: what was observed since the last is dropped */

double precond_observe_ms(const precond *p); /* spent in the watch so far */
double precond_clip(const precond *p);       /* nu of the last step */
/* Of gradient g and direction u of the last step, over all that has curvature; without any NaN, or with --quantify u is
 * what lr multiplies in the update. */
typedef struct precond_turn {
  double cosine, angle; /* of g and u; its arc cosine in degrees */
  double rotation;      /* 90 (1 - cosine), EFCP's measure */
  double stretch;       /* |u| / |g| */
} precond_turn;
precond_turn precond_turned(const precond *p);
/* --quantify: |u_i / (g_i + 1e-8)| over their elements, ng_report's scaling_*; count 0: not asked for. */
typedef struct precond_scaling {
  int64_t count;
  double min, q25, q50, q75, max, mean;
} precond_scaling;
precond_scaling precond_scaled(const precond *p);
int precond_stations(const precond *p, train_station *out, int room); /* how many */
refreshed precond_refreshed(const precond *p);                        /* of what is adaptive */
/* The same with what was sent, from out->station[at] on; where they end. */
int precond_traffic(const precond *p, traffic_rank *out, int at);
int64_t precond_bytes(const precond *p); /* held now */

/* Collective.  The state as bytes, to and from functions that only rank 0 needs; `path` is for messages.  Or in parts, each
 * rank its own, at the same path on all.  An error of a file is the same on all ranks: one of them `tells` it. */
int precond_save(precond *p, ng_writer write, void *user, bool tells);
int precond_load(precond *p, ng_reader read, void *user, const char *path);
int precond_save_parts(precond *p, const char *path, bool tells);
int precond_load_parts(precond *p, const char *path);

#endif
