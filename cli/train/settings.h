/* settings.h: the settings of a training run.
 *
 * One table (settings_table.h) has name, type, default, bounds and help of each setting. It serves the command line,
 * --config FILE.json, the settings of a method in `compare` ("natgrad:lr=0.1"), its grid, DIR/config.json and the help.
 * Any other name is an option of the library ("damping", "solve-period"). If both have the name, it is the setting of
 * the trainer. */
#ifndef SETTINGS_H
#define SETTINGS_H

#include "common/cli.h"
#include "settings_table.h"

typedef char *settings_TEXT;
typedef double settings_REAL;
typedef int64_t settings_WHOLE;
typedef bool settings_FLAG;

typedef struct settings {
#define FIELD(kind, field, name, value, standard, lower, upper, fixed, help) settings_##kind field;
  SETTINGS_TABLE(FIELD)
#undef FIELD
  /* options of the library, in the order in which they were given; the method is set before them */
  int n_library;
  struct {
    char *name, *value;
  } * library;
} settings;

/* set all settings to their defaults, and the method to the environment variable NG_METHOD if it is set */
void settings_init(settings *s);
void settings_copy(settings *to, const settings *from);
void settings_free(settings *s);

/* Set a setting or an option by its name, with '-' or '_'. CLI_BAD: nothing changed; `message`, which does not contain
 * the name, has the nearest name or the bounds. */
int settings_try_set(settings *s, const char *name, const char *value, char *message, size_t size);
/* Call settings_try_set. If it fails, print the message after "WHERE: NAME: " (where = NULL: "--NAME: "). */
int settings_set_or_report(settings *s, const char *where, const char *name, const char *value);
/* Apply the settings of a command line in order. Only one of epochs and steps may be given, above 0. */
int settings_apply(settings *s, const cli_setting *given, int n);
/* Write the value of a setting as text that settings_set_or_report accepts; false: the name is unknown. */
bool settings_get(const settings *s, const char *name, char *value, size_t size);
/* Check that the settings fit each other, the method and the library. CLI_BAD: reported. */
int settings_check(const settings *s);
/* Build the options for ng_precond_create_from: from the method, then NG_<NAME> of the environment, then `library`. */
int settings_create_options(const settings *s, ng_options **out);
/* Return true if the word is in the list "a|b|c". */
bool settings_is_in_list(const char *word, const char *list);
/* Return true if two names denote the same setting, whatever their spelling ('-', '_', short names). */
bool settings_is_same_name(const char *a, const char *b);
/* Return true if this setting or library option applies to the method of `s`. */
bool settings_applies(const settings *s, const char *name);
/* Return true if this library option has no effect in the run; `needs`: the condition of an effect ("clip = kl"). */
enum { SETTINGS_NEEDS = 128 };
bool settings_is_idle(const settings *s, const char *name, char *needs, size_t size);
bool settings_is_first_order(const settings *s); /* the method is sgd or adamw: no curvature */
bool settings_is_adamw(const settings *s);       /* the update is AdamW */
/* The directions of the method contain moments: the sgd update has no momentum and decouples weight decay. */
bool settings_has_moments(const settings *s);
/* return the setting lr, or its default for the method */
double settings_choose_lr(const settings *s);
/* return the number of samples of a step: batch * acc_iters */
int64_t settings_count_samples(const settings *s);

/* Read settings from a file with a JSON object, {"model": "lenet", "damping": 0.01}. */
int settings_read_file(settings *s, const char *path);
/* Read settings from the text of a JSON object; `path` is for messages. */
int settings_parse_json(settings *s, const char *text, const char *path);
/* Write all settings and options of the library, as in DIR/config.json, into allocated *text; path: for messages. */
int settings_write_json(const settings *s, const char *path, char **text);
/* Check that a run with the settings `was` may continue with the settings `now`. If not, the message names the first
 * setting that must not differ, the file `path` of `now` (NULL: the command line), and the file `where` of `was`. */
int settings_check_same(const settings *was, const settings *now, const char *path,
                        const char *where);

/* ---- the table as an array -------------------------------------------------------------------*/

typedef struct settings_row {
  cli_kind kind;
  const char *name, *standard;
  double lower, upper;
  size_t offset; /* offset in the struct settings */
  bool fixed;
} settings_row;

extern const settings_row settings_rows[];
extern const int settings_rows_count;

const settings_row *settings_find(const char *name); /* NULL: unknown name */
/* Return the first setting that differs from its default but does not apply to the method, or NULL. */
const settings_row *settings_find_idle(const settings *s);
/* Write `v` with 15 digits if this text reads back as the same number, else with 17 digits. */
void settings_format_real(double v, char *text, size_t size);

#endif
