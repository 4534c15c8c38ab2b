/* settings.h: everything a training run is told, in one table.
 *
 * One table (settings_table.h) holds name, what it takes, default, bounds and help of each; the
 * command line, --config FILE.json, a method's own settings in `compare` ("natgrad:lr=0.1"), its
 * grid, DIR/config.json and the help all come from it.  A name that is not in it is an option of
 * the library ("damping", or "solve-period"); a trainer's name wins. */
#ifndef SETTINGS_H
#define SETTINGS_H

#include "common/cli.h"

typedef struct settings {
  char *data, *model;
  char *method;    /* "sgd", "adamw" (no curvature), or a row of the library */
  char *optimizer; /* "sgd" | "adamw": the update behind a row of the library */
  double epochs;   /* 0: steps decides; setting one of the two puts the other to 0 */
  int64_t steps;   /* 0: epochs decides                                         */
  int64_t batch;   /* global; of a micro-batch                                  */
  double lr;       /* negative: the method's own default                        */
  double momentum, beta1, beta2, eps, weight_decay, label_smoothing, dropout;
  bool nesterov, decoupled;
  char *lr_schedule;  /* constant | step:E1,E2,...[@FACTOR] | cosine[:FINAL] | linear[:FINAL] |
                        polynomial:POWER[@START,END] | cyclic:PERIOD[@LOW]; epochs, fractions of
                        lr */
  double warm_up;     /* epochs over which lr rises linearly from 0 */
  char *augment;      /* auto | none | crop | flip | crop+flip */
  char *fisher;       /* empirical | sampled: targets of the backward that the statistics see */
  int64_t validation; /* training samples held out, on which accuracy is measured instead */
  int64_t seed;
  char *out;                /* DIR, "" none */
  int64_t checkpoint_every; /* steps; 0: at the end only */
  int64_t log_every;        /* steps between "step" lines of log.jsonl */
  bool resume;
  int64_t acc_iters;                     /* micro-batches of a step, `batch` samples each */
  char *adjust_momentum;                 /* none | ratio | proportional                   */
  char *rescale_weights;                 /* none | shrink | always                        */
  double damping_start, damping_warm_up; /* 0: none; epochs                 */
  double mixup_alpha;                    /* 0: no mixup                     */
  bool running_mixup;
  double erase_rate, erase_area_low, erase_area_high, erase_aspect_low;
  char *damping_rule;     /* none | keep-ratio */
  char *schedule;         /* see schedule.h; "": none */
  double average_weights; /* epochs; 0: not */
  int64_t average_every;  /* steps; 0: an epoch */
  double average_lr;      /* negative: the schedule's */
  double switch_to_sgd;   /* epochs; 0: never */
  double switch_lr, switch_momentum, switch_weight_decay;
  double bucket_mb;      /* of the messages in which gradients travel between ranks */
  bool checkpoint_parts; /* every rank writes its own part of the state */
  bool own_batches;      /* ng_batch.whole is not said */
  /* options of the library that were set, in order; the method's row comes first */
  int n_library;
  struct {
    char *name, *value;
  } * library;
} settings;

void settings_init(settings *s); /* defaults; the method is that of NG_METHOD, if there is one */
void settings_copy(settings *to, const settings *from);
void settings_free(settings *s);

/* One setting by name ('-' or '_').  CLI_BAD, told in one line with the nearest name or the bounds;
 * nothing changed. */
int settings_set(settings *s, const char *name, const char *value);
/* What a command line gives, in its order: one length only, and none of 0. */
int settings_given(settings *s, const cli_setting *given, int n);
/* The value of one of the table as text that settings_set would take; false: no such name. */
bool settings_get(const settings *s, const char *name, char *value, size_t size);
/* Settings against each other and against the library (an unknown method, a damping of 0; an option
 * of the library beside sgd or adamw, which have no use for it). */
int settings_check(const settings *s);
/* The options for ng_precond_create_from: row, NG_<NAME> of the environment, then `library`. */
int settings_options(const settings *s, ng_options **out);
/* A setting's name, or that of an option of the library, as its table has it; NULL: in none. */
const char *settings_name(const char *name);
/* Do two names mean one setting, or option of the library?  Spellings and short names are the same. */
bool settings_same_name(const char *a, const char *b);
/* Has the method any use for this setting, or option of the library? */
bool settings_knows(const settings *s, const char *name);
/* Has this option of the library no effect in this run?  What it needs to have one ("clip = kl") goes to
 * `needs`. */
enum { SETTINGS_NEEDS = 128 };
bool settings_idle(const settings *s, const char *name, char *needs, size_t size);
bool settings_first_order(const settings *s); /* method is sgd or adamw */
bool settings_adamw(const settings *s);       /* the update is AdamW's   */
double settings_lr(const settings *s);        /* lr, or the default in its place */
int64_t settings_samples(const settings *s);  /* of a step: batch acc_iters */
double settings_damping(const settings *s);   /* the library's option; 0 without curvature */

/* FILE.json: an object of settings, {"model": "lenet", "damping": 0.01}. */
int settings_read(settings *s, const char *path);
int settings_parse(settings *s, const char *text, const char *path); /* the same from its text */
/* All of them, and the library's version and options in full, as they go to DIR/config.json: `path`, for
 * messages.  For free(). */
int settings_text(const settings *s, const char *path, char **text, size_t *size);
/* May a run that began as `was` go on as `now`?  CLI_BAD names the first setting that differs and
 * shapes the run, after `who` ("--"); `where` is the file that `was` came from. */
int settings_same(const settings *was, const settings *now, const char *who, const char *where);

#endif
