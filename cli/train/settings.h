/* settings.h: the settings of a training run.
 *
 * One table (settings_table.h) has name, value, default, bounds and help of each setting. The command line, --config
 * FILE.json, the settings of a method in `compare` ("natgrad:lr=0.1"), its grid, DIR/config.json and the help use it.
 * Any other name is an option of the library ("damping", "solve-period"); a name of the trainer takes precedence. */
#ifndef SETTINGS_H
#define SETTINGS_H

#include "common/cli.h"
#include "settings_table.h"

typedef char *settings_TEXT;
typedef double settings_REAL;
typedef int64_t settings_WHOLE;
typedef bool settings_FLAG;

typedef struct settings {
#define FIELD(kind, field, name, takes, standard, lower, upper, shapes, help) settings_##kind field;
  SETTINGS_TABLE(FIELD)
#undef FIELD
  /* options of the library, in the order given; the method comes first */
  int n_library;
  struct {
    char *name, *value;
  } * library;
} settings;

void settings_init(settings *s); /* defaults; the method from NG_METHOD, if set */
void settings_copy(settings *to, const settings *from);
void settings_free(settings *s);

/* Set one setting by its name, with '-' or '_'.  CLI_BAD: nothing changed, and `message`, without the name, has the
 * nearest name or the bounds. */
int settings_put(settings *s, const char *name, const char *value, char *message, size_t size);
/* The same; print the message after "WHERE: NAME: " (NULL: "--NAME: "). */
int settings_set(settings *s, const char *where, const char *name, const char *value);
/* Apply settings of a command line in order; accept only one of epochs and steps, above 0. */
int settings_apply(settings *s, const cli_setting *given, int n);
/* Write the value of a setting as text that settings_set accepts; false: unknown name. */
bool settings_get(const settings *s, const char *name, char *value, size_t size);
/* Check settings against each other and the library (unknown method, damping 0, library options with sgd or
 * adamw). CLI_BAD after a message. */
int settings_check(const settings *s);
/* Build the options for ng_precond_create_from: method, then NG_<NAME> of the environment, then `library`. */
int settings_options(const settings *s, ng_options **out);
/* Return whether the word is in the list "a|b|c". */
bool settings_list_has(const char *word, const char *list);
/* Return whether two names denote the same setting: spellings and short names are equal. */
bool settings_same_name(const char *a, const char *b);
/* Return whether this setting or library option applies to the method. */
bool settings_knows(const settings *s, const char *name);
/* Return whether this library option has no effect in the run; write the condition ("clip = kl") to `needs`. */
enum { SETTINGS_NEEDS = 128 };
bool settings_is_idle(const settings *s, const char *name, char *needs, size_t size);
bool settings_first_order(const settings *s); /* method is sgd or adamw */
bool settings_adamw(const settings *s);       /* the update is AdamW */
double settings_choose_lr(const settings *s); /* lr or its default */
int64_t settings_samples(const settings *s);  /* samples of a step: batch x acc_iters */

/* Read an object of settings, {"model": "lenet", "damping": 0.01}, from a file. */
int settings_read(settings *s, const char *path);
/* Read the object from `text`; `path` is for messages. */
int settings_parse(settings *s, const char *text, const char *path);
/* Write all settings, with the version and all options of the library, as in DIR/config.json; `path` is for messages.
 * The caller frees *text. */
int settings_format(const settings *s, const char *path, char **text);
/* Check that a run with the settings `was` may continue with the settings `now`. CLI_BAD names the first setting that
 * differs and may not change, the file `path` of `now` (NULL: the command line), and the file `where` of `was`. */
int settings_check_same(const settings *was, const settings *now, const char *path,
                        const char *where);

/* ---- the table as an array -------------------------------------------------------------------*/

typedef struct settings_row {
  cli_kind kind;
  const char *name, *standard;
  double lower, upper;
  size_t offset; /* in `settings` */
  bool shapes;
} settings_row;

extern const settings_row settings_rows[];
extern const int settings_rows_count;

const settings_row *settings_find(const char *name); /* or NULL */
/* Return the first setting that was changed but does not apply to the method, or NULL. */
const settings_row *settings_find_idle(const settings *s);
/* Write `v` with 15 digits if these give the same number, else with 17. */
void settings_write_real(double v, char *text, size_t size);

#endif
