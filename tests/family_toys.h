/* family_toys.h: a model with blocks of the families of toys.h, of Kronecker and of rank one. */
#ifndef TESTS_FAMILY_TOYS_H
#define TESTS_FAMILY_TOYS_H

#include "family_run.h"
#include "toys.h"

enum { FC, CONV, R1, TOY, TOY2, ALL, ALL_FC, PLAIN, ENTRIES, STEPS = 5 };

static const family_entry toy_entry[ENTRIES] = {
    [FC] = {"fc", 6, 4, .bias = true},
    [CONV] = {"conv", 2, 3, .is_conv = true},
    [R1] = {"r1", 5, 3, .bias = true},
    [TOY] = {"toy", 130, 0},
    [TOY2] = {"toy2", 7, 0},
    [ALL] = {"all", 90, 0},
    [ALL_FC] = {"all.fc", 5, 6, true, .silent = true},
    [PLAIN] = {"plain", 11, 0},
};
static const family_model toy_model = {toy_entry, ENTRIES, STEPS, .saved = 2};

#define UNCLIPPED "damping=0.3 stat_decay=0.9 solve_period=1 clip=none "
#define COMMON "damping=0.3 stat_decay=0.9 kl_clip=0.01 solve_period=1 "

static inline family_run *new_run(const char *set, int32_t ranks) {
  static ng_family beside;
  static const ng_family *const toys[] = {&toy_diagonal, &toy_total, &beside, NULL};
  beside = toy_rank_one_family();
  return family_new_run(&toy_model, toys, set, ranks);
}

/* A run with one more family, which selects its layers first. */
static inline family_run *new_run_with(const ng_family *extra, const char *set, int32_t ranks) {
  family_run *run = new_run(set, ranks);
  run->extra = extra;
  return run;
}

#endif
