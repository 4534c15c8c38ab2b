/* stat.h: statistics: sums over observations and ranks, optionally averaged over steps.
 *
 * In:   the number of samples of an observation; sums that a family added to `sum`. Out:  the
 * weight of an observation, sums on the scale of the wire, the running average. May call: linalg,
 * comm (the request of a posted sum), option (the choices of a rule), core.
 *
 * A family declares the shape of each statistic and which observation adds to it. Weighting,
 * scaling to the wire, folding, discarding and saving are here:
 *
 *     observe      S <- old S + fresh X          X: one observation             ng_stat_prepare, _count
 *     to the wire  S <- own S                                                   ng_stat_to_wire
 *     all ranks    S, sum of w, sum of w keep    (the exchange)                 ng_stat_weights, _agreed
 *     fold         F <- keep F + c S                                            ng_stat_fold
 *
 * A statistic has one or more *parts* (groups of a convolution, diagonal blocks of a factor). All
 * parts have one weight, one owner and one message.
 *
 * A statistic without an average (a row of a window's Gram matrix) is the sum over observations and
 * ranks, in `sum` until the step ends. */
#ifndef NG_STAT_H
#define NG_STAT_H

#include "comm/comm.h"
#include "core/core.h"
#include "linalg/linalg.h"
#include "option/option.h"
#include "stat/gram.h"
#include "stat/norm_sums.h"
#include "stat/stale.h"

/* The kinds of observations; a statistic is made from one kind. */
enum {
  NG_SEES_INPUT = 1 << 0,
  NG_SEES_OUTGRAD = 1 << 1,
  NG_SEES_FLATGRAD = 1 << 2, /* the bound gradients, at the beginning of a step */
  NG_SEEN_KINDS = 3
};
static inline uint32_t ng_sees(int kind) { return 1u << kind; }

/* Which ranks compute a statistic and which have the result. */
typedef enum ng_spread {
  NG_SPREAD_ALL,   /* every rank observes its samples; summed; every rank keeps the average */
  NG_SPREAD_OWNER, /* the same, but only the owner has the sum and keeps the average */
  NG_SPREAD_LOCAL, /* the owner's samples; nothing is sent */
  NG_SPREAD_SAME   /* every rank computes the whole; nothing is sent */
} ng_spread;

/* new = old * present + fresh * observed */
typedef struct ng_mix {
  double old, fresh;
} ng_mix;

/* Options of the same names. */
typedef struct ng_rule {
  bool averaged; /* false: no `average`, and the other fields are unused */
  ng_calls calls;
  bool equal; /* observations have equal weights, else their samples */
  ng_start start;
  int64_t stat_batch;
  double decay;   /* of the coming step */
  bool undivided; /* `shift` belongs to the averages of all ranks, not of the owner only */
} ng_rule;

typedef struct ng_stat_part {
  int32_t group;
  int64_t rows, cols; /* symmetric: of order rows = cols, in ng_sym order */
  /* Order of the published index along both axes: ng_field in family.h. */
  int64_t offsets, channels;
  int64_t diagonal; /* of a vector: number of leading elements that are a diagonal */
  void *average;    /* dtype `kept`; NULL: not on this rank */
  void *older;      /* dtype `kept`: the average before the previous one; for stale.on */
  void *sum;        /* dtype `wire`: of this step; NULL: not observed by this rank */
} ng_stat_part;

typedef struct ng_stat {
  const char *name; /* "A", "g_mean": key of its arrays and numbers in messages and files */
  uint32_t sees;    /* the observation that adds to it */
  uint32_t with;    /* and an earlier observation that it needs; 0: none */
  bool symmetric;
  bool every; /* due in every step, regardless of stat_period */
  bool alone; /* its sums are a message of their own */
  ng_dtype kept,
      wire; /* kept: f32, bf16, f16; wire (of sums in memory): f32, f64; small matrices: both f64 */
  ng_dtype travels; /* between ranks: wire, or bf16, f16 */
  int32_t parts, groups;
  ng_stat_part *part; /* the family's, in the order of their sums in memory */
  double *shift;      /* [groups] to be added to the diagonal of the average; NULL: none */
  ng_rule rule;
  ng_spread spread;
  int32_t owner, observers; /* a rank that keeps it; number of ranks that observe */
  bool observes, keeps;     /* on this rank */
  bool started;             /* the average contains a sample */
  bool fresh;               /* the average changed in this step */
  ng_stale stale;
  /* the present observation */
  bool due;     /* it adds to this statistic */
  int64_t take; /* samples used */
  int64_t all;  /* samples used by all ranks of the micro-batch */
  ng_mix mix;   /* its weights */
  /* this step */
  double w, keep;           /* this rank: weight of its samples; weight of the old average */
  double total, total_keep; /* over ranks: sum of w, sum of w keep */
  bool shared;              /* the ranks share their micro-batches */
  bool shown;               /* observed in the last micro-batch before the step */
  bool posted;              /* its sum is posted: nothing may be added */
  int finite;               /* result of the last scan of its sums */
  double largest;           /* largest element of that scan */
} ng_stat;

/* Whether the statistic uses such an observation. */
static inline bool ng_stat_reads(const ng_stat *s, uint32_t what) {
  return ((s->sees | s->with) & what) != 0;
}
/* Sums and averages are doubles; values beyond f32 are refused as well. */
static inline bool ng_stat_wide(const ng_stat *s) { return s->kept == NG_F64; }
int64_t ng_stat_part_count(const ng_stat *s,
                           const ng_stat_part *p); /* elements of one of its arrays */
/* Whether both may be sent in one message: contiguous, of the same type. */
static inline bool ng_stat_joins(const ng_stat *before, const ng_stat *s) {
  return before->wire == s->wire && before->travels == s->travels;
}
static inline bool ng_stat_sent(const ng_stat *s) {
  return s->spread == NG_SPREAD_ALL || s->spread == NG_SPREAD_OWNER;
}

/* Its sum over ranks goes to the owner only. */
static inline bool ng_stat_to_owner(const ng_stat *s) {
  return s->spread == NG_SPREAD_OWNER && s->rule.averaged;
}

/* stale.c, around a fold: bytes of scratch; copy the average before the fold to scratch; compare
 * afterwards, into stale.verdict. */
int64_t ng_stat_stale_scratch(const ng_stat *s);
void ng_stat_remember(const ng_stat *s, void *scratch);
void ng_stat_judge(ng_stat *s, const void *scratch);
int64_t ng_stat_wire_bytes(const ng_stat *s);

/* Set the initial values; memory is zero. */
void ng_stat_begin(ng_stat *s);

/* Begin an observation of `samples`, the first at index `first` of `whole` on all ranks (0: a batch
 * of its own): set take, all and mix only. With take 0 there is nothing to add or to count.
 * Otherwise the family adds mix.fresh X to the result of ng_stat_retain (or mixes itself), then
 * calls ng_stat_count. */
void ng_stat_prepare(ng_stat *s, int64_t samples, int64_t first, int64_t whole);
void ng_stat_retain(ng_queue *q, const ng_stat *s); /* S <- mix.old S */
void ng_stat_count(ng_stat *s);
void ng_stat_pass(ng_queue *q, ng_stat *s); /* no sample of this rank */

/* {w, w keep} of this rank; set the sums of both over ranks, and whether ranks share their
 * micro-batches. */
void ng_stat_weights(const ng_stat *s, double w[2]);
void ng_stat_agreed(ng_stat *s, const double total[2], bool shared);
/* Sent sums add up to a mean, not a sum: the totals must be known. */
bool ng_stat_as_mean(const ng_stat *s);
/* Scale own sums so that the sums of all ranks add up. f16 needs the totals. */
void ng_stat_to_wire(ng_queue *q, const ng_stat *s);

/* Sums over ranks are complete: fold them into the average, S <- 0. NG_SKIPPED: a sum is not
 * finite, or the average would exceed its dtype; the average stays. Without samples nothing
 * happens. */
ng_status ng_stat_fold(ng_queue *q, ng_stat *s);
void ng_stat_forget(ng_stat *s); /* discard the sums of this step */

#endif
