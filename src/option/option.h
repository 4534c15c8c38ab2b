/* option.h: options: the table, text <-> value, methods as rows of values, published names, globs.
 *
 * In:   texts and numbers of a program, the command line, the environment, a layer.
 * Out:  checked values: ng_options for callers and files, ng_settings (settings.h) for the library.
 * May call: core.
 *
 *   option_table.c   the rows            option_find.c   look-up by name, public descriptions
 *   option_value.c   one value           options.c       the object: make, copy, set, get, check
 *   line.c           a line of options   lines.c         per_layer
 *   glob.c           globs               environment.c   NG_<NAME>
 *   methods.c        methods, variants   published*.c    names of the published programs */
#ifndef NG_OPTION_H
#define NG_OPTION_H

#include "core/core.h"
#include "option/settings.h"

/* Apply a layer's own options "damping=0.01 solver=eigen" to *o: per-layer options, or a method and its per-layer options. */
ng_status ng_options_override(ng_options *o, const char *text, char *message, size_t size);
int32_t ng_option_find(const char *name); /* index in the table, -1; '-' counts as '_' */

/* environment.c: the variable of an option (NG_DAMPING of damping); warn about unknown NG_... variables. */
void ng_variable_name(const char *name, char *out, size_t size);
void ng_environment_tell(ng_context *ctx);

#define NG_CHOICES_MAX 8

/* A condition: a choice or flag has one of these values (a bit 1 << value each), or a number is above 0. */
typedef struct ng_option_need {
  bool there;
  ng_option_id option;
  uint32_t one_of; /* 0: a number above 0 */
} ng_option_need;

typedef struct ng_option_row {
  const char *name, *group;
  ng_option_type type;
  size_t offset;
  const char *standard;
  double lower, upper;
  bool lower_open;
  const char *choices;                /* "a|b", for messages                                   */
  const char *choice[NG_CHOICES_MAX]; /* [value of its enum in settings.h]; NULL: no such value */
  const char *later;                  /* "c|d": refused as not supported; NULL: none             */
  const char *unit, *help;
  const char *family;      /* only methods of this family have the option; NULL: all   */
  ng_option_need needs[2]; /* the option has an effect if one condition holds */
  bool per_layer, live;
  /* text options: check the text; NULL: any text is accepted */
  ng_status (*form)(const char *text, char *message, size_t size);
} ng_option_row;

extern const ng_option_row ng_option_table[NG_OPTION_COUNT]; /* [ng_option_id] */

/* Read a number: the whole text, a decimal point in every locale, no blanks, hex, inf or nan. */
bool ng_read_real(const char *text, double *out);
bool ng_read_int(const char *text, int64_t *out);
bool ng_read_bool(const char *text, int32_t *out); /* 0 1 false true off on no yes, any case */
/* Write the shortest text that reads back as the same number. */
void ng_write_real(double value, char *text, size_t size);

/* Read one value from text or from a number, which then counts as given; write it as text (false: does not fit). */
ng_status ng_option_read(const ng_option_row *row, const char *text, ng_options *o, char *message,
                         size_t size);
ng_status ng_option_read_real(const ng_option_row *row, double value, ng_options *o, char *message,
                              size_t size);
bool ng_option_write(const ng_option_row *row, const ng_options *o, char *text, size_t size);
void ng_option_copy(const ng_option_row *row, const ng_options *from, ng_options *to);
/* Return the number of a real, int or bool option. */
double ng_option_number(const ng_option_row *row, const ng_options *o);
/* Return the text of a choice or text option. */
const char *ng_option_text(const ng_option_row *row, const ng_options *o);
/* Return the enum value of a choice, -1 for an unknown text. */
int32_t ng_option_choice(const ng_option_row *row, const char *text);
/* Return the enum value of a choice in *o. */
int32_t ng_option_chosen(const ng_options *o, ng_option_id id);
/* Store a number, a flag or the enum value of a choice; not for texts. */
void ng_option_store(const ng_option_row *row, ng_options *o, double value);
bool ng_option_in_range(const ng_option_row *row, double value);

ng_status ng_option_lookup(const char *name, const ng_option_row **row, char *message, size_t size);
/* Options of earlier versions.  A state loads if it has `standard`, the default that the option had. */
typedef struct ng_option_gone {
  const char *name, *standard, *instead;
} ng_option_gone;
extern const ng_option_gone ng_options_gone[];             /* ends with a NULL */
const ng_option_gone *ng_option_removed(const char *name); /* NULL: no such option */

/* Set the defaults; no option counts as given. */
void ng_options_standard(ng_options *full);
/* Set every option that was not given to the value of the method's row. */
ng_status ng_options_choose(ng_options *o, const char *name, char *message, size_t size);
/* Check the rules of all families. */
ng_status ng_options_verify(const ng_options *full, char *message, size_t size);

/* What a method sets: numbers, flags as 0 and 1, choices as enums, so that a row of methods.c with
 * a misspelt name does not compile.  Lists end with NG_VALUES_END. */
typedef struct ng_value {
  ng_option_id option;
  double value;
} ng_value;
#define NG_VALUES_END                                                                              \
  { NG_OPTION_COUNT, 0 }
void ng_options_set_values(ng_options *full, const ng_value *values);
extern const ng_value ng_kaisa_inverse[]; /* of the KAISA variant "inverse" */

/* published.c: one published option while it is read, its row, and lists of rows.  `words`: the accepted words and their values
 * here, "compute=kaisa|memory=kaisa-memory"; "true|false": words without a value; after ";" a reason, if the library does not
 * support other values. */
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

struct ng_published {
  const char *name, *option, *meaning;
  ng_status (*take)(ng_published_job *j);
  const char *words; /* NULL: any value */
};

/* Arguments of a published program that are refused, "a|b|c", and the reason. */
typedef struct ng_left_out {
  const char *names, *why;
} ng_left_out;

typedef struct ng_names {
  const ng_published *row;
  int32_t count;
  const ng_left_out *out; /* NULL: none; ends with a NULL */
} ng_names;
extern const ng_names ng_names_kaisa, ng_names_lz, ng_names_eva, ng_names_eva_kfac, ng_names_adasgd,
    ng_names_sam, ng_names_mfac, ng_names_ggt, ng_names_spngd, ng_names_efcp, ng_names_sparse_ggt,
    ng_names_lowrank, ng_names_topk_sgd, ng_names_topk_adam, ng_names_topk_adagrad;
/* Set one published option.  NG_ERR_ARG: unknown, the message has the nearest name.  An lr goes to *lr. */
ng_status ng_names_take(const ng_names *names, const char *method, const char *name,
                        const char *value, ng_options *full, double *lr, bool *gives_lr,
                        char *message, size_t size);

/* "kronecker", "rankone", "window"; NULL if there is no such method. */
const char *ng_method_family(const char *name);
const char *ng_method_name(const char *name); /* the name in the table; NULL: unknown */

static inline bool ng_is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* glob.c: one glob of a list; the list is a comma-separated text. */
typedef struct ng_glob {
  const char *from, *to;
  bool broken; /* a set or an escape without its end */
} ng_glob;
bool ng_globs_next(const char **at, ng_glob *g); /* *at: the list at first; false: no more */
bool ng_glob_matches(const ng_glob *g, const char *text);
bool ng_glob_fits(const ng_glob *g, const ng_layer *l); /* its name or its kind */
bool ng_globs_fit(const char *list, const ng_layer *l);
/* Messages begin with the option.  form: of skip_layers. */
ng_status ng_globs_check(const char *option, const char *list, char *message, size_t size);
ng_status ng_globs_form(const char *list, char *message, size_t size);
/* Globs that match where a search for the regular expression finds something; false: there are none. */
bool ng_globs_of_search(const char *expression, char *out, size_t size);

/* lines.c: the parsed option per_layer; NULL for an empty text, which all these functions accept.  The caller closes it. */
typedef struct ng_lines ng_lines;
ng_status ng_lines_open(const char *text, ng_lines **out, char *message, size_t size);
void ng_lines_close(ng_lines **l);
/* Return the line of the first entry that matches, valid until close; NULL: no entry matches. */
const char *ng_lines_for(ng_lines *l, const ng_layer *d);
/* Return the globs of an entry that matched no layer; NULL: all matched. */
const char *ng_lines_idle(const ng_lines *l);
/* Apply each line of o->per_layer to a copy of *o; `judge` (may be NULL) checks the result. */
typedef ng_status (*ng_lines_judge)(const ng_options *own, char *message, size_t size);
ng_status ng_lines_each(const ng_options *o, ng_lines_judge judge, char *message, size_t size);
ng_status ng_lines_form(const char *text, char *message, size_t size);

#endif
