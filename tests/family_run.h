/* family_run.h: train a model whose blocks belong to families that a test registers, on 1 to 4 ranks.
 *
 * Gradients and observations are drawn from the step and the entry, so they are the same on all ranks.  Ranks return a
 * status; only the main thread asserts. */
#ifndef TESTS_FAMILY_RUN_H
#define TESTS_FAMILY_RUN_H

#include "family/family.h"

enum { FAMILY_ENTRIES = 8, FAMILY_STEPS = 8, FAMILY_RANKS = 4, FAMILY_NUMBERS = 130 };

/* A tensor of `in` elements if out = 0; a convolution with a kernel of 3 x 3 on images of 5 x 5 if is_conv; else a
 * linear layer.  Layers are observed unless `silent`. */
typedef struct family_entry {
  const char *name;
  int64_t in, out;
  bool bias, is_conv, silent;
} family_entry;

typedef struct family_model {
  const family_entry *entry;
  int32_t entries, steps, saved; /* saved: the step before which a run saves or loads */
  /* called after a gradient is drawn, and may change it; NULL: no call */
  void (*adjust)(int32_t entry, float *gradient);
} family_model;

/* The number of gradients of an entry, a bias after its weight; the gradients of one step. */
int64_t family_gradient_count(const family_model *m, int32_t entry);
void family_draw_gradients(const family_model *m, int32_t step, int32_t entry, float *x);

typedef struct family_run {
  const family_model *model;
  const ng_family *const *families; /* families to register; the list ends with NULL */
  /* an additional family, which selects its layers first; NULL: none */
  const ng_family *extra;
  const char *set, *linalg; /* options "name=value ..." */
  int32_t ranks;
  const char *save, *load; /* save before step model->saved; load, and begin with that step */
  /* step and entry of a gradient with a NaN; the step is then repeated without the NaN */
  int32_t bad_step, bad_entry;
  /* called before each ng_step */
  ng_status (*before_step)(int32_t rank, ng_precond *p, int32_t step);
  /* called after the last step */
  void (*after_last_step)(int32_t rank, const ng_precond *p);
  void (*place)(ng_block *b, ng_stat *s); /* ng_context.place */
  float out[FAMILY_RANKS][FAMILY_STEPS][FAMILY_ENTRIES]
           [FAMILY_NUMBERS]; /* gradients after a step */
  double clip[FAMILY_RANKS][FAMILY_STEPS];
  ng_status status[FAMILY_RANKS][FAMILY_STEPS];
  /* number of finite gradient elements that a skipped step changed */
  int32_t changed[FAMILY_RANKS];
  char message[FAMILY_RANKS][256], family[FAMILY_RANKS][FAMILY_ENTRIES][32];
  ng_layer_report report[FAMILY_RANKS][FAMILY_ENTRIES];
} family_run;

family_run *family_new_run(const family_model *m, const ng_family *const *families, const char *set,
                           int32_t ranks); /* run with `ref`; the caller frees the result */
/* Return the worst status of all ranks. */
ng_status family_train(family_run *run);

/* Train; fail the test unless all ranks succeed with the same bits. */
family_run *family_must_train(family_run *run);
/* Complete and free two runs, which have the same bits from this step on. */
void family_runs_must_match(family_run *x, family_run *y, int32_t step);
void family_must_match_from(const family_run *x, const family_run *y, int32_t step);
/* Fail unless all results differ by at most 1e-5 of the largest number of their entry and step. */
void family_must_be_close(const family_run *x, const family_run *y);

#endif
