/* stat.h: the statistic: what is summed over observations and ranks, and perhaps averaged over steps.
 *
 * In:   how many samples an observation shows; sums that a family added, in `sum`.
 * Out:  the weight of an observation, sums on the scale of the wire, the running average.
 * May call: linalg, comm (the request of a posted sum), option (the choices of a rule), core.
 *
 * Every family that keeps something about what was observed keeps it in statistics, and says of each
 * only its shape and which observation adds to it.  Weighing, scaling to the wire, folding, forgetting
 * and what is saved of it are here, once:
 *
 *     observe      S <- old S + fresh X          X: what one call shows         ng_stat_prepare, _count
 *     to the wire  S <- own S                                                   ng_stat_to_wire
 *     all ranks    S, sum of w, sum of w keep    (the exchange)                 ng_stat_weights, _agreed
 *     fold         F <- keep F + c S                                            ng_stat_fold
 *
 * A statistic is one or more *parts* (the groups of a convolution, diagonal blocks of a factor): what
 * is observed together has one weight, one owner and one message, however many arrays it fills.
 *
 * One without an average (a row of a window's Gram matrix) is the plain sum over observations and
 * ranks; it stays in `sum` until the step is over.
 */
#ifndef NG_STAT_H
#define NG_STAT_H

#include "comm/comm.h"
#include "core/core.h"
#include "linalg/linalg.h"
#include "option/option.h"
#include "stat/gram.h"
#include "stat/norm_sums.h"
#include "stat/stale.h"

/* What an observation shows; a statistic is made from one of them. */
enum {
  NG_SEES_INPUT = 1 << 0,
  NG_SEES_OUTGRAD = 1 << 1,
  NG_SEES_FLATGRAD = 1 << 2, /* the gradients themselves, as they are bound when a step begins */
  NG_SEEN_KINDS = 3
};
static inline uint32_t ng_sees(int kind) { return 1u << kind; }

/* Which ranks make a statistic and which have the result. */
typedef enum ng_spread {
  NG_SPREAD_ALL,   /* every rank its own samples; summed; every rank keeps the average            */
  NG_SPREAD_OWNER, /* the same, and the owner alone has the sum and keeps the average             */
  NG_SPREAD_LOCAL, /* the owner's own samples; nothing is sent                                    */
  NG_SPREAD_SAME   /* every rank makes the whole by itself; nothing is sent                       */
} ng_spread;

/* new = old * what is there + fresh * what comes */
typedef struct ng_mix {
  double old, fresh;
} ng_mix;

/* How observations enter: options of the same names. */
typedef struct ng_rule {
  bool averaged; /* false: the others do not matter, and there is no `average`                    */
  bool direct;   /* fold = direct: `sum` is `average`, one observation a step                     */
  ng_calls calls;
  ng_call_weight weight;
  ng_start start;
  int64_t stat_batch;
  double decay; /* of the coming step */
  bool
      undivided; /* `shift` is in the averages of all ranks, not of the owner alone               */
} ng_rule;

typedef struct ng_stat_part {
  int32_t group;
  int64_t rows, cols; /* symmetric: of order rows = cols, in ng_sym order                         */
  /* Order of the published index along both axes: ng_field in family.h. */
  int64_t offsets, channels;
  int64_t
      diagonal; /* of a vector: its first so many elements are the diagonal of what it stands for */
  void *average; /* `kept`; NULL: this rank keeps none                                            */
  void *older;   /* `kept`: the average before the one before; stale.on, where it is kept         */
  void *sum;     /* `wire`: this step's; NULL: this rank does not observe it                      */
  float *whole;  /* both triangles of it, on their way; ng_stat.whole                             */
} ng_stat_part;

typedef struct ng_stat {
  const char *name; /* "A", "g_mean": key of its arrays and numbers in messages and files         */
  uint32_t sees;    /* which observation adds to it ...                                           */
  uint32_t with;    /* ... together with one that was shown before it; 0: alone                   */
  bool symmetric;
  bool every; /* due in every step, whatever stat_period says                                     */
  bool whole; /* symmetry_aware = 0: both triangles of its sums travel                            */
  bool alone; /* its sums travel as a message of their own: other sums do not lie beside them     */
  ng_dtype kept,
      wire;         /* f32, bf16, f16; of sums in memory f32, f64; or both f64, of small matrices */
  ng_dtype travels; /* between ranks: wire, or bf16, f16                                       */
  int32_t parts, groups;
  ng_stat_part *part; /* the family's, in the order of their sums in memory                       */
  double *shift;      /* [groups] waits to be added to the diagonal of the average; NULL: nothing */
  ng_rule rule;
  ng_spread spread;
  int32_t owner, observers; /* a rank that keeps it; how many ranks show samples                  */
  bool observes, keeps;     /* this rank                                                          */
  bool started;             /* the average holds a sample                                         */
  bool fresh;               /* ... was moved in this step                                         */
  ng_stale stale;
  /* the observation under way */
  bool due;     /* it is for this one       */
  int64_t take; /* samples of it that count */
  int64_t all;  /* ... on all ranks that share the micro-batch */
  ng_mix mix;   /* how it joins the sum     */
  /* this step */
  double w, keep;           /* this rank: weight of its samples; what the old average keeps       */
  double total, total_keep; /* over ranks: sum of w, sum of w keep                                */
  bool shared;              /* ... which are as one: they share their micro-batches               */
  bool shown;               /* ... in the last micro-batch before the step                        */
  bool posted;              /* its sum is on the way to other ranks: nothing may be added         */
  int finite;               /* what the last scan of its sums found */
  double largest;           /* ... and of their sizes               */
} ng_stat;

/* Whether such an observation has to do with it. */
static inline bool ng_stat_reads(const ng_stat *s, uint32_t what) {
  return ((s->sees | s->with) & what) != 0;
}
/* Sums and averages are doubles; what is beyond f32 is refused all the same. */
static inline bool ng_stat_wide(const ng_stat *s) { return s->kept == NG_F64; }
int64_t ng_stat_part_count(const ng_stat *s,
                           const ng_stat_part *p); /* elements of an array of it */
/* May be sent in one message, one behind the other: they lie in one arena, as what travels. */
static inline bool ng_stat_joins(const ng_stat *before, const ng_stat *s) {
  return before->wire == s->wire && before->travels == s->travels &&
         before->rule.direct == s->rule.direct && (!s->rule.direct || before->whole == s->whole);
}
/* What travels of an array: its elements, and where they lie. */
int64_t ng_stat_sent_count(const ng_stat *s, const ng_stat_part *p);
void *ng_stat_sent_from(const ng_stat *s, const ng_stat_part *p);
static inline bool ng_stat_sent(const ng_stat *s) {
  return s->spread == NG_SPREAD_ALL || s->spread == NG_SPREAD_OWNER;
}

/* Its sum over ranks goes to the owner alone. */
static inline bool ng_stat_to_owner(const ng_stat *s) {
  return s->spread == NG_SPREAD_OWNER && s->rule.averaged;
}

/* stale.c: around a fold: the average before it, in scratch of so many bytes; what has become of it, into
 * stale.verdict. */
int64_t ng_stat_stale_scratch(const ng_stat *s);
void ng_stat_remember(const ng_stat *s, void *scratch);
void ng_stat_judge(ng_stat *s, const void *scratch);
int64_t ng_stat_wire_bytes(const ng_stat *s);

/* Values before the first sample; memory is zero. */
void ng_stat_begin(ng_stat *s);

/* An observation of so many samples, the first of them at place `first` of `whole` on all ranks (0: a batch of its
 * own): sets take, all and mix, and changes nothing else.  With take 0 there is nothing to add or to count.  The family then
 * adds mix.fresh X to what ng_stat_retain left (or mixes by itself), and when it has, count says so. */
void ng_stat_prepare(ng_stat *s, int64_t samples, int64_t first, int64_t whole);
void ng_stat_retain(ng_queue *q, const ng_stat *s); /* S <- mix.old S */
void ng_stat_count(ng_stat *s);
void ng_stat_pass(ng_queue *q, ng_stat *s); /* it had no sample of this rank */

/* {w, w keep} of this rank; the sums of both over ranks, and whether these share their micro-batches. */
void ng_stat_weights(const ng_stat *s, double w[2]);
void ng_stat_agreed(ng_stat *s, const double total[2], bool shared);
/* What travels adds up to a mean, not a sum: for that the totals must be known. */
bool ng_stat_as_mean(const ng_stat *s);
/* Own sums onto the scale on which those of all ranks add up.  fold = direct and f16 need the totals. */
void ng_stat_to_wire(ng_queue *q, const ng_stat *s);

/* Of one whose both triangles travel: from the sums of this rank; into the sums, those of all ranks. */
void ng_stat_unfold(ng_queue *q, const ng_stat *s);
void ng_stat_refold(const ng_stat *s);

/* Sums over ranks are complete: into the average, and S <- 0.  NG_SKIPPED: a sum is not finite, though
 * every value was, or the average would leave the range of its dtype; it stays.  Nothing seen, nothing done. */
ng_status ng_stat_fold(ng_queue *q, ng_stat *s);
void ng_stat_forget(ng_queue *q, ng_stat *s); /* this step's sums and numbers */

#endif
