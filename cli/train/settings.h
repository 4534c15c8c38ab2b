/* settings.h: the settings of a training run.
 *
 * One table (settings_table.h) has name, value, default, bounds and help of each setting. The command line,
 * --config FILE.json, the settings of a method in `compare` ("natgrad:lr=0.1"), its grid, DIR/config.json and the
 * help use it. Any other name is an option of the library ("damping", "solve-period"); a name of the trainer takes
 * precedence. */
#ifndef SETTINGS_H
#define SETTINGS_H

#include "common/cli.h"

typedef struct settings {
  char *data, *model;
  char *method;    /* "sgd", "adamw" (no curvature), or a method of the library */
  char *optimizer; /* "sgd" or "adamw": the update, if `method` is one of the library */
  double epochs;   /* 0: use steps; setting one of the two resets the other */
  int64_t steps;   /* 0: use epochs */
  int64_t batch;   /* samples of a micro-batch, over all ranks */
  double lr;       /* negative: the default of the method */
  double momentum, beta1, beta2, eps, weight_decay, label_smoothing, dropout;
  bool nesterov, decoupled;
  char *lr_schedule;  /* see lr.h */
  double warm_up;     /* epochs of linear increase from 0 */
  char *augment;      /* auto | none | crop | flip | crop+flip */
  char *fisher;       /* labels for the statistics */
  int64_t validation; /* training samples held out for testing */
  int64_t seed;
  char *out;                /* DIR, "" none */
  int64_t checkpoint_every; /* steps; 0: only at the end */
  int64_t log_every;        /* steps between "step" lines of log.jsonl */
  bool resume;
  int64_t acc_iters;     /* micro-batches of a step, `batch` samples each */
  char *adjust_momentum; /* none | ratio | proportional                   */
  char *rescale_weights; /* none | shrink | always                        */
  double mixup_alpha;    /* 0: no mixup                     */
  bool running_mixup;
  double erase_rate, erase_area_low, erase_area_high, erase_aspect_low;
  char *damping_rule;     /* none | keep-ratio */
  char *schedule;         /* see schedule.h; "": none */
  double average_weights; /* epochs; 0: not */
  int64_t average_every;  /* steps; 0: an epoch */
  double average_lr;      /* negative: the schedule's */
  double bucket_mb;       /* size of gradient messages between ranks, MB */
  bool checkpoint_parts;  /* every rank writes its part of the state */
  bool own_batches;       /* ng_batch.whole stays 0 */
  /* options of the library, in the order given; the method comes first */
  int n_library;
  struct {
    char *name, *value;
  } * library;
} settings;

void settings_init(settings *s); /* defaults; the method from NG_METHOD, if set */
void settings_copy(settings *to, const settings *from);
void settings_free(settings *s);

/* Set one setting by name, with '-' or '_'. CLI_BAD after a message with the nearest name or the bounds; then
 * nothing changed. */
int settings_set(settings *s, const char *name, const char *value);
/* Apply settings of a command line in order: only one of epochs and steps, above 0. */
int settings_given(settings *s, const cli_setting *given, int n);
/* The value of a setting as text that settings_set accepts; false: unknown name. */
bool settings_get(const settings *s, const char *name, char *value, size_t size);
/* Check settings against each other and the library (unknown method, damping 0, library options with sgd or
 * adamw). CLI_BAD after a message. */
int settings_check(const settings *s);
/* The options for ng_precond_create_from: method, then NG_<NAME> of the environment, then `library`. */
int settings_options(const settings *s, ng_options **out);
/* The canonical name of a setting or library option; NULL: unknown. */
const char *settings_name(const char *name);
/* Do two names denote the same setting? Spellings and short names are equal. */
bool settings_same_name(const char *a, const char *b);
/* Does this setting or library option apply to the method? */
bool settings_knows(const settings *s, const char *name);
/* Is this library option without effect in the run? `needs` gets its condition ("clip = kl"). */
enum { SETTINGS_NEEDS = 128 };
bool settings_idle(const settings *s, const char *name, char *needs, size_t size);
bool settings_first_order(const settings *s); /* method is sgd or adamw */
bool settings_adamw(const settings *s);       /* the update is AdamW */
double settings_lr(const settings *s);        /* lr or its default */
int64_t settings_samples(const settings *s);  /* samples of a step: batch x acc_iters */

/* Read an object of settings, {"model": "lenet", "damping": 0.01}, from a file. */
int settings_read(settings *s, const char *path);
int settings_parse(settings *s, const char *text,
                   const char *path); /* The same from text; `path` is for messages. */
/* All settings, with the version and all options of the library, as in DIR/config.json; `path` is for messages.
 * For free(). */
int settings_text(const settings *s, const char *path, char **text);
/* May a run that began as `was` continue as `now`? CLI_BAD names the first setting that differs and may not
 * change, and the file `path` of `now` (NULL: the command line); `where` names the file of `was`. */
int settings_same(const settings *was, const settings *now, const char *path, const char *where);

#endif
