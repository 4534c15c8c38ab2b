/* shard_scene.h: four linear layers, three of them sharded, trained by a grid of ranks: `data` model groups of
 * `model` ranks.  Numbers are a function of (step, model group, call, layer, element), so all shards together must
 * equal whole layers on `data` ranks.  Ranks never assert. */
#ifndef TESTS_SHARD_SCENE_H
#define TESTS_SHARD_SCENE_H

#include "fixture.h"
#include "ranks.h"

#include <stdbool.h>

enum { LAYERS = 4, RANKS = 8, STEPS = 3, MICRO = 2, ROOM = 96, SEEN = 128 };

typedef struct scene_layer {
  const char *name;
  int32_t axis, bias;
  int64_t in, out, positions;
} scene_layer;
extern const scene_layer layer[LAYERS];

typedef struct scene {
  const char *options;
  int32_t data, model;
  bool across; /* ranks of a data group follow each other, not those of a model group */
  bool bias;   /* false: no layer has one */
  bool last, rows_first;
  bool uncut;                /* nothing is in shards; of a model group of one */
  uint32_t without;          /* bit r: rank r has no model group, and nothing in shards */
  const char *save, *load;   /* a state: after step `first` + 1, before it */
  const char *parts, *again; /* in parts, as `save`; in one file, when it was loaded */
  bool skewed;               /* groups but the first are cut one further */
  double (*start)[ROOM];     /* whole weights to begin with, the bias in the last column */
  bool even;                 /* parts as ng_plan_shard has them */
  ng_status (*look)(const ng_precond *p, int32_t rank, void *arg); /* behind the last step */
  void *look_arg;
  int first;
  int32_t wrong;   /* a rank does something wrong in step 1 */
  int32_t fail[2]; /* world, model group: its k-th collective fails on rank `wrong` */
  int32_t starve;  /* ... it gets no memory when it asks for the k-th time after ng_ready */
  bool starved;    /* it has asked so often */
  ranks_grid grid;
  double D[STEPS][LAYERS][ROOM];
  float out[RANKS][STEPS][LAYERS][ROOM]; /* parts of P, or weights; the bias behind */
  double nu[RANKS][STEPS];
  ng_status status[RANKS][STEPS], shown[RANKS][STEPS];
  char why[RANKS][512];
} scene;

typedef struct part {
  int64_t in, out, row, col; /* of this rank, and where it begins */
} part;

int32_t group_of(const scene *x, int32_t rank);
part part_of(const scene *x, int32_t rank, int i);
int64_t bias_of(const scene *x, int i);
int64_t samples_of(int32_t group, int64_t call);
int64_t positions_of(int i);
double seen(int32_t group, int64_t t, int64_t call, int i, bool grad, int64_t k);
double initial(int i, int64_t k); /* of a weight */
/* What a rank has in weights or gradients, put where it belongs in a whole. */
void put_part(const scene *x, int32_t rank, int i, const float *from, double *whole);
/* This rank's part of a whole [out, in (+ 1)], the bias behind it. */
void cut(const scene *x, int32_t rank, int i, const double *whole, float *to);

bool has_ranks(int32_t ranks); /* over MPI processes are few */
/* Two model groups of two, biases, rows first, no mistake. */
scene usual_scene(const char *options);
scene *begin(const scene *how); /* free() */
ng_status play(scene *x, ng_status each[RANKS]);
scene *played(const scene *how); /* begun; the test fails if the play does */

#endif
