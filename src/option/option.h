/* option.h: the table of options, values from and to text, methods as rows of values, published names, globs.
 *
 * In:   texts and numbers from a program, the command line, the environment, a layer.
 * Out:  checked, typed values: ng_options and ng_settings (settings.h).
 * May call: core.
 *
 *   option_table.c   the rows            option_find.c   look-up by name, public descriptions
 *   option_value.c   one value           options.c       ng_options: make, copy, set, get, check
 *   line.c           a line of options   lines.c         per_layer
 *   glob.c           globs               environment.c   NG_<NAME>
 *   methods.c        methods, variants   published*.c    names of the published programs */
#ifndef NG_OPTION_H
#define NG_OPTION_H

#include "core/core.h"
#include "option/settings.h"

/* Apply a layer's own options, "damping=0.01 solver=eigen" or "method=eva damping=0.01", to *o; NULL: none.  A method
 * sets its per-layer options only. */
ng_status ng_options_override(ng_options *o, const char *text, char *message, size_t size);
int32_t ng_option_find(const char *name); /* index in the table; -1: unknown; '-' counts as '_' */

/* environment.c: ng_variable_name: write the variable of option `name` ("NG_DAMPING" for "damping").
 * ng_environment_check: log a warning for each unknown NG_... variable. */
void ng_variable_name(const char *name, char *out, size_t size);
void ng_environment_check(ng_context *ctx);

#define NG_CHOICES_MAX 8

/* A condition on another option: a choice or flag has one of the values in `one_of`, or a number is above 0. */
typedef struct ng_option_need {
  bool exists; /* false: no condition */
  ng_option_id option;
  uint32_t one_of; /* sum of 1 << value; 0: the option must be above 0 */
} ng_option_need;

/* Traits that options need and families declare (ng_family.traits). */
enum {
  NG_TRAIT_FACTORS = 1 << 0, /* statistics are factors A and G */
  NG_TRAIT_SOLVES = 1 << 1,  /* results are recomputed every solve_period steps */
  NG_TRAIT_VECTORS = 1 << 2, /* statistics are mean vectors */
  NG_TRAIT_WINDOW = 1 << 3   /* a window of gradients is stored */
};
/* Return a text for messages and documents: "Kronecker factors"; "" for trait 0. */
const char *ng_trait_text(uint32_t trait);

typedef struct ng_option_row {
  const char *name, *group;
  ng_option_type type;
  size_t offset;
  const char *default_text;
  double lower, upper;
  bool lower_open;
  const char *choices;                /* "a|b": all texts of a choice, for messages */
  const char *choice[NG_CHOICES_MAX]; /* [enum value in settings.h] text; NULL: no such value */
  const char *unsupported;            /* "c|d": texts refused as not supported yet; NULL: none */
  const char *unit, *help;
  uint32_t trait;          /* NG_TRAIT_...: only families with this trait have the option; 0: all */
  ng_option_need needs[2]; /* the option has an effect if one of the conditions holds */
  bool per_layer, can_change;
  /* check the value of a text option; NULL: any text is accepted */
  ng_status (*check_text)(const char *text, char *message, size_t size);
} ng_option_row;

extern const ng_option_row ng_option_table[NG_OPTION_COUNT]; /* [ng_option_id] */

/* Read a number from the whole text; false: not such a number.  The decimal point is '.' in every locale; blanks,
 * hexadecimal digits, inf and nan are refused. */
bool ng_read_real(const char *text, double *out);
bool ng_read_int(const char *text, int64_t *out);
bool ng_read_bool(const char *text, int32_t *out); /* 0 1 false true off on no yes, any case */
/* Write the shortest text that reads back as the same number. */
void ng_write_real(double value, char *text, size_t size);

/* ng_option_read, ng_option_read_real: set an option of *o from a text or number; it then counts as given.
 * ng_option_write: write the value of an option as text; false: `size` is too small. */
ng_status ng_option_read(const ng_option_row *row, const char *text, ng_options *o, char *message,
                         size_t size);
ng_status ng_option_read_real(const ng_option_row *row, double value, ng_options *o, char *message,
                              size_t size);
bool ng_option_write(const ng_option_row *row, const ng_options *o, char *text, size_t size);
void ng_option_copy(const ng_option_row *row, const ng_options *from, ng_options *to);
/* Return a number, a flag as 0 or 1, or the enum value of a choice; not for texts. */
double ng_option_number(const ng_option_row *row, const ng_options *o);
/* Store a number, a flag or the enum value of a choice; not for texts. */
void ng_option_store(const ng_option_row *row, ng_options *o, double value);
bool ng_option_in_range(const ng_option_row *row, double value);

ng_status ng_option_lookup(const char *name, const ng_option_row **row, char *message, size_t size);
/* Options of earlier versions, and what to write instead.  A saved state with such an option loads only if its value is
 * `standard`, the default of the option. */
typedef struct ng_removed_option {
  const char *name, *standard, *instead;
} ng_removed_option;
extern const ng_removed_option ng_removed_options[];          /* ends with a NULL */
const ng_removed_option *ng_option_removed(const char *name); /* NULL: not a removed option */

/* Set the defaults; no option counts as given. */
void ng_options_set_defaults(ng_options *full);
/* Set the method; every option that was not given gets the value of this method. */
ng_status ng_options_set_method(ng_options *o, const char *name, char *message, size_t size);
/* Check the rules between options that hold for all families. */
ng_status ng_options_verify(const ng_options *full, char *message, size_t size);

/* A value that a method sets: a number, a flag as 0 or 1, or the enum value of a choice, so that a misspelt name in
 * methods.c does not compile.  Lists end with NG_VALUES_END. */
typedef struct ng_option_setting {
  ng_option_id option;
  double value;
} ng_option_setting;
#define NG_VALUES_END                                                                              \
  { NG_OPTION_COUNT, 0 }
void ng_options_set_values(ng_options *full, const ng_option_setting *values);
extern const ng_option_setting ng_kaisa_inverse[]; /* values of the KAISA variant "inverse" */

/* published.c: a published option that is being set: its row and the new value. */
typedef struct ng_published ng_published;
typedef struct ng_published_job {
  const ng_published *row;
  const char *value;
  ng_options *full;
  double lr;
  bool gives_lr;
  char *message;
  size_t size;
} ng_published_job;

/* A published option: published name, option of this library ("": none), meaning of the values, function that sets the
 * option, accepted words.  "compute=kaisa|memory=kaisa-memory": the word `compute` sets the option to kaisa;
 * "true|false": words that set no value; "none; REASON": REASON says why the library does not support other values. */
struct ng_published {
  const char *name, *option, *meaning;
  ng_status (*set)(ng_published_job *j);
  const char *words; /* NULL: `set` checks the value */
};

/* Arguments of a published program that are refused, "a|b|c", and the reason. */
typedef struct ng_refused_names {
  const char *names, *why;
} ng_refused_names;

typedef struct ng_published_names {
  const ng_published *row;
  int32_t count;
  const ng_refused_names *refused; /* NULL: none; ends with a NULL */
} ng_published_names;
extern const ng_published_names ng_names_kaisa, ng_names_lz, ng_names_eva, ng_names_eva_kfac,
    ng_names_adasgd, ng_names_sam, ng_names_mfac, ng_names_ggt, ng_names_spngd, ng_names_efcp,
    ng_names_sparse_ggt, ng_names_lowrank, ng_names_topk_sgd, ng_names_topk_adam,
    ng_names_topk_adagrad;
/* Set the published option `name` of *full.  If `name` is a learning rate, store it in *lr and set *gives_lr instead.
 * NG_ERR_ARG: the name is unknown, and the message has the nearest name; or the value is refused. */
ng_status ng_published_set(const ng_published_names *names, const char *method, const char *name,
                           const char *value, ng_options *full, double *lr, bool *gives_lr,
                           char *message, size_t size);

/* Describe method i without its traits, which its family declares; false: no such method. */
bool ng_method_describe(int32_t i, ng_method_info *out);

static inline bool ng_is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* glob.c: a glob, the bytes [from, to) of a comma-separated list. */
typedef struct ng_glob {
  const char *from, *to;
  bool is_broken; /* a set has no closing bracket, or the last byte is a backslash */
} ng_glob;
/* Set *g to the next glob of a list; before the first call, *at is the list.  false: there is no further glob. */
bool ng_globs_next(const char **at, ng_glob *g);
bool ng_glob_matches(const ng_glob *g, const char *text);
bool ng_glob_fits(const ng_glob *g, const ng_layer *l); /* whether the name or kind of *l matches */
bool ng_globs_fit(const char *list, const ng_layer *l); /* whether some glob of the list fits *l */
/* Check the globs of a list; messages begin with the name `option`.  ng_globs_check_text: check a value of skip_layers. */
ng_status ng_globs_check(const char *option, const char *list, char *message, size_t size);
ng_status ng_globs_check_text(const char *list, char *message, size_t size);
/* Write globs that match the names in which a search for the regular expression succeeds; false: no globs do. */
bool ng_globs_of_search(const char *expression, char *out, size_t size);

/* lines.c: the parsed value of per_layer.  An empty text gives NULL, which all these functions accept.  The caller of
 * ng_lines_open calls ng_lines_close. */
typedef struct ng_lines ng_lines;
ng_status ng_lines_open(const char *text, ng_lines **out, char *message, size_t size);
void ng_lines_close(ng_lines **l);
/* Return the line of the first entry whose globs match *d, valid until ng_lines_close; NULL: no entry matches. */
const char *ng_lines_find(ng_lines *l, const ng_layer *d);
/* Return the globs of the first entry whose line ng_lines_find never returned; NULL: there is no such entry. */
const char *ng_lines_find_unused(const ng_lines *l);
/* Check each line of o->per_layer: apply the line to a copy of *o and call `judge` (may be NULL) with the copy. */
typedef ng_status (*ng_lines_check)(const ng_options *own, char *message, size_t size);
ng_status ng_lines_each(const ng_options *o, ng_lines_check judge, char *message, size_t size);
ng_status ng_lines_check_text(const char *text, char *message, size_t size);

#endif
