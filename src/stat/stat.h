/* stat.h: statistics: sums over observations and ranks, optionally averaged over steps.
 *
 * In: the number of samples of an observation; sums that a family added to `sum`. Out: the weight of an observation,
 * sums scaled for the reduction over ranks, the running average. May call: kernel, linalg, comm (the request of a posted
 * sum), option (the choices of a rule), core.
 *
 * A family declares the shape of each statistic and adds observations to it. This room weights observations, scales sums,
 * folds and discards them. X: the value of one observation, for example (1/B) sum a a' over its B samples; S: sum of
 * the step; F: running average; w, keep: weights of this rank's samples and of the old average. Functions in their order:
 *
 *     ng_stat_prepare               compute the weights old and fresh of an observation
 *     (the family)                  S <- old S + fresh X, of a vector by ng_stat_add
 *     ng_stat_count_samples         add the samples to w
 *     ng_stat_weights, _set_totals  sum w and w keep over ranks
 *     ng_stat_to_wire               S <- own S, then S is summed over ranks (step/sums.c)
 *     ng_stat_scan, ng_stat_fold    F <- keep F + c S
 *
 * A statistic has one or more parts (groups of a convolution, diagonal blocks of a factor). All parts have one weight,
 * one owner and one message.
 *
 * A statistic without an average (for example a row of a window's Gram matrix) is the sum over observations and ranks,
 * stored in `sum` until the step ends. */
#ifndef NG_STAT_H
#define NG_STAT_H

#include "comm/comm.h"
#include "core/core.h"
#include "kernel/kernel.h"
#include "linalg/linalg.h"
#include "option/option.h"
#include "stat/stale.h"

/* The kinds of observations; a statistic is made from one kind. */
enum {
  NG_OBSERVED_INPUT = 1 << 0,
  NG_OBSERVED_OUTGRAD = 1 << 1,
  NG_OBSERVED_FLATGRAD = 1 << 2, /* the bound gradients, at the beginning of a step */
  NG_OBSERVED_KINDS = 3
};
static inline uint32_t ng_observed_bit(int kind) { return 1u << kind; }
static inline int ng_observed_kind(uint32_t bit) { return __builtin_ctz(bit); }

/* Which ranks compute a statistic and which have the result. */
typedef enum ng_spread {
  /* every rank observes its samples, and stores the average of the sum over ranks */
  NG_SPREAD_ALL,
  /* every rank observes its samples; only the owner receives the sum and stores the average */
  NG_SPREAD_OWNER,
  /* only the owner observes, and only its own samples, so no rank sends anything */
  NG_SPREAD_LOCAL,
  NG_SPREAD_SAME /* every rank computes the whole statistic; ranks send nothing */
} ng_spread;

/* The weights of a weighted sum: new value = old * present value + fresh * added value. */
typedef struct ng_mix {
  double old, fresh;
} ng_mix;

/* Options of a statistic. Fields without a comment have the name of their option (docs/options.md). */
typedef struct ng_rule {
  bool averaged; /* false: no `average`, and the other fields are unused */
  ng_calls calls;
  /* every observation has the same weight; false: its weight is its number of samples */
  bool equal_weights;
  ng_start start;
  int64_t stat_batch;
  double decay; /* value for the next step */
  /* with decay = 1 the average becomes the plain sum over steps; `calls`: the mean */
  bool adds;
  bool whole_shift; /* every rank adds the whole shift, not shift / ranks */
} ng_rule;

typedef struct ng_stat_part {
  int32_t group;
  /* size of the array; of a symmetric matrix in ng_sym order, both are its order */
  int64_t rows, cols;
  /* Order of the published index along both axes: see ng_field in family/family.h. */
  int64_t offsets, channels;
  int64_t diagonal; /* the first `diagonal` elements of a vector are the diagonal of a matrix */
  /* number of matrices that a solve inverts: this average with different scales */
  int64_t matrices;
  void *average;  /* the running average, of average_dtype; NULL: this rank does not store it */
  void *older;    /* the average before the last refresh, if stale.enabled */
  void *sum;      /* the sum of this step, of sum_dtype; NULL: this rank does not observe */
  int finite;     /* result of ng_stat_scan: whether the sum is finite */
  double largest; /* largest |element| of the sum (after ng_stat_scan), then of the average */
} ng_stat_part;

typedef struct ng_stat {
  /* "A", "g_mean": the key of the statistic's arrays and numbers in messages and files */
  const char *name;
  uint32_t observed; /* NG_OBSERVED_ bit of the observation that adds to the statistic */
  /* NG_OBSERVED_ bit of a second kind of observation that must precede the first; 0: none */
  uint32_t also_observed;
  bool symmetric;
  bool nonnegative; /* the elements are means of squares: f32, never negative */
  bool every_step;  /* stat_period does not apply */
  bool own_message; /* the sums are sent in a message of their own */
  ng_dtype average_dtype,
      sum_dtype;       /* averages: f32, bf16, f16; sums: f32, f64; small matrices: both f64 */
  ng_dtype wire_dtype; /* dtype of messages: sum_dtype, bf16 or f16 */
  int32_t parts, groups;
  ng_stat_part *part; /* array of the family, in the order of the sums in memory */
  double *shift;      /* [groups] numbers to add to the diagonal of the average; NULL: none */
  ng_rule rule;
  ng_spread spread;
  /* a rank that stores the average; number of ranks whose sums are added */
  int32_t owner, observers;
  /* whether this rank observes the statistic, and whether it stores the average */
  bool observes, has_average;
  bool started; /* the average contains a sample */
  bool is_new;  /* the average changed in this step */
  ng_stale stale;
  /* Of the current observation: */
  bool is_due;     /* observations of this step are added to this statistic */
  bool is_late;    /* do not wait: ng_stat_scan finds a NaN or Inf of the observation in the sum */
  int64_t samples; /* number of samples that this rank uses */
  int64_t samples_all; /* number of samples that all ranks use, if they share the micro-batch */
  ng_mix mix;          /* weights of the old sum and of the observation */
  /* The next fields belong to this step. */
  double w, keep;               /* weight of this rank's samples; weight of the old average */
  double w_total, w_keep_total; /* w, and w times keep, both summed over ranks */
  bool shares_batch;            /* the ranks share their micro-batches */
  bool last_observed;           /* the last micro-batch before the step was observed */
  bool posted;                  /* the sum is posted, so no observation may add to it */
  double change
      [4]; /* ng_change.out of ng_stat_compare: since the last refresh, and since the refresh before */
} ng_stat;

/* Return whether the statistic uses observations of the kinds `what` (NG_OBSERVED_ bits). */
static inline bool ng_stat_uses(const ng_stat *s, uint32_t what) {
  return ((s->observed | s->also_observed) & what) != 0;
}
/* Return whether sums and averages are doubles. Even then, values that exceed f32 are refused. */
static inline bool ng_stat_is_double(const ng_stat *s) { return s->average_dtype == NG_F64; }
int64_t ng_stat_part_count(const ng_stat *s,
                           /* return the number of elements of one array of a part */
                           const ng_stat_part *p);
/* Return whether the sums of two adjacent statistics may travel in one message: they have the same dtypes. */
static inline bool ng_stat_can_join(const ng_stat *before, const ng_stat *s) {
  return before->sum_dtype == s->sum_dtype && before->wire_dtype == s->wire_dtype;
}
static inline bool ng_stat_is_sent(const ng_stat *s) {
  return s->spread == NG_SPREAD_ALL || s->spread == NG_SPREAD_OWNER;
}

/* Return whether only the owner receives the sum over ranks. */
static inline bool ng_stat_goes_to_owner(const ng_stat *s) {
  return s->spread == NG_SPREAD_OWNER && s->rule.averaged;
}

/* stale.c. ng_stat_stale_scratch: bytes of scratch for ng_stat_copy_average, which copies the average before a fold.
 * ng_stat_compare: after the fold, compare the average with the copy and set stale.verdict. */
int64_t ng_stat_stale_scratch(const ng_stat *s);
void ng_stat_copy_average(ng_queue *q, const ng_stat *s, void *scratch);
void ng_stat_compare(ng_queue *q, ng_stat *s, const void *scratch);
int64_t ng_stat_wire_bytes(const ng_stat *s);

/* Set the initial values of a statistic whose arrays are zero; the caller waits for the queue. */
void ng_stat_init(ng_queue *q, ng_stat *s);

/* Begin an observation of `samples` samples: set samples, samples_all and mix. If ranks share the micro-batch, `whole` is
 * its number of samples and `first` the index of this rank's first sample; otherwise whole = 0. If samples becomes 0, there
 * is nothing to add. Otherwise the family calls ng_stat_scale_old and adds mix.fresh X, or computes mix.old S + mix.fresh X
 * itself; then the caller calls ng_stat_count_samples. */
void ng_stat_prepare(ng_stat *s, int64_t samples, int64_t first, int64_t whole);
void ng_stat_scale_old(ng_queue *q, const ng_stat *s); /* S <- mix.old S */
/* Add to a sum that is one vector S: S[i] <- mix.old S[i] + c x[i] for i < n, mix.old S[i] + rest for i >= n. The queue
 * computes x. Wait; if x[0] is NaN, leave S unchanged and return NG_SKIPPED. is_late: do not wait; a NaN makes S[0] NaN. */
ng_status ng_stat_add(ng_queue *q, const ng_stat *s, const double *x, int64_t n, double c,
                      double rest);
void ng_stat_count_samples(ng_stat *s);
void ng_stat_skip_observation(ng_queue *q,
                              /* as above, for an observation of which this rank has no sample */
                              ng_stat *s);

/* ng_stat_weights: return w and w keep of this rank. ng_stat_set_totals: set their sums over ranks; `shares_batch`: the ranks
 * share their micro-batches. */
void ng_stat_weights(const ng_stat *s, double w[2]);
void ng_stat_set_totals(ng_stat *s, const double total[2], bool shares_batch);
/* Return whether ranks send their sums divided by w_total, which they must then know before. */
bool ng_stat_sends_mean(const ng_stat *s);
/* Scale this rank's sums, so that their sum over ranks has the correct weights. */
void ng_stat_to_wire(ng_queue *q, const ng_stat *s);

/* Let the queue scan the sums over ranks. The caller waits once for all statistics, before it folds. */
void ng_stat_scan(ng_queue *q, ng_stat *s);
/* Fold the scanned sums into the average and set the sums to 0; the caller waits for the queue. Return NG_SKIPPED, with
 * the average unchanged, if a sum is not finite or the average would exceed its dtype. Without samples do nothing. */
ng_mix ng_stat_fold_on_device(ng_stat *s);
ng_status ng_stat_fold(ng_queue *q, ng_stat *s);
/* Let the queue clear the sums of this step. */
void ng_stat_discard(ng_queue *q, ng_stat *s);

#endif
