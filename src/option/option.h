/* option.h: the options: one row each, text <-> value, methods as rows of values.
 *
 * In:   texts and numbers of a program, the command line, the environment, a layer.
 * Out:  checked values: ng_options for people and files, ng_settings (settings.h) for the rooms.
 * May call: core.
 *
 * option_table.c holds the rows, option_value.c reads and writes one value, options.c the object, line.c
 * many values in one text, environment.c the variables that are read, methods.c the named rows of values
 * and the published names, glob.c the layers that are left out, lines.c the lines of options for some layers.  It knows the names of families, and nothing else of them.
 */
#ifndef NG_OPTION_H
#define NG_OPTION_H

#include "core/core.h"
#include "option/settings.h"

/* Apply per-layer overrides "damping=0.01 solver=eigen" to *o; only per_layer options, or a method and with it
 * all of them. */
ng_status ng_options_override(ng_options *o, const char *text, char *message, size_t size);
int32_t ng_option_find(const char *name); /* index in the table, -1; '-' counts as '_' */

/* environment.c: NG_DAMPING of damping; a line in the log for each NG_... that nobody reads. */
void ng_variable_name(const char *name, char *out, size_t size);
void ng_environment_tell(ng_context *ctx);

#define NG_CHOICES_MAX 8

/* A choice or a flag that has one of some values, a bit (1 << value) each; or a number, above 0. */
typedef struct ng_option_need {
  bool there;
  ng_option_id option;
  uint32_t one_of; /* 0: of a number */
} ng_option_need;

typedef struct ng_option_row {
  const char *name, *group;
  ng_option_type type;
  size_t offset;
  const char *standard;
  double lower, upper;
  bool lower_open;
  const char *choices;                /* "a|b" for people                                      */
  const char *choice[NG_CHOICES_MAX]; /* [value of its enum in settings.h]; NULL: no such value */
  const char *later;                  /* "c|d": known, not supported yet; NULL: none              */
  const char *unit, *help;
  const char *test;
  const char *family;      /* the only one that has this option; NULL: all of them      */
  ng_option_need needs[2]; /* what decides whether this one has any effect: one of them is enough */
  bool per_layer, live;
  /* text options: may refuse the form of the text; NULL: any text */
  ng_status (*form)(const char *text, char *message, size_t size);
} ng_option_row;

extern const ng_option_row ng_option_table[NG_OPTION_COUNT]; /* [ng_option_id] */

/* Strict numbers, always with a point whatever the locale: the whole text, no blanks, no hex, no
 * inf, no nan.  False: not such a number, or out of range of the type. */
bool ng_read_real(const char *text, double *out);
bool ng_read_int(const char *text, int64_t *out);
bool ng_read_bool(const char *text, int32_t *out); /* 0 1 false true off on no yes, any case */
/* Shortest text that reads back as the same number. */
void ng_write_real(double value, char *text, size_t size);

/* One value: from text, from a number, to text (false: does not fit).  What is read counts as
 * given. */
ng_status ng_option_read(const ng_option_row *row, const char *text, ng_options *o, char *message,
                         size_t size);
ng_status ng_option_read_real(const ng_option_row *row, double value, ng_options *o, char *message,
                              size_t size);
bool ng_option_write(const ng_option_row *row, const ng_options *o, char *text, size_t size);
void ng_option_copy(const ng_option_row *row, const ng_options *from, ng_options *to);
/* The number of a real, int or bool option. */
double ng_option_number(const ng_option_row *row, const ng_options *o);
/* Text of a choice or text option, as stored. */
const char *ng_option_text(const ng_option_row *row, const ng_options *o);
/* The enum value of a choice, -1 if it is none. */
int32_t ng_option_choice(const ng_option_row *row, const char *text);
/* The same of the text that a choice holds in *o. */
int32_t ng_option_chosen(const ng_options *o, ng_option_id id);
/* A number, a flag or the value of a choice that the table has; not for texts. */
void ng_option_store(const ng_option_row *row, ng_options *o, double value);
bool ng_option_in_range(const ng_option_row *row, double value);
double ng_option_clamp(const ng_option_row *row, double value);

ng_status ng_option_lookup(const char *name, const ng_option_row **row, char *message, size_t size);
/* Options of earlier versions.  A state loads if it has `standard`, the default that the option had. */
typedef struct ng_option_gone {
  const char *name, *standard, *instead;
} ng_option_gone;
extern const ng_option_gone ng_options_gone[];             /* ends with a NULL */
const ng_option_gone *ng_option_removed(const char *name); /* NULL: no such option */

/* The defaults; nothing counts as given. */
void ng_options_standard(ng_options *full);
/* Every option that was not given gets the value of the method's row. */
ng_status ng_options_choose(ng_options *o, const char *name, char *message, size_t message_size);
/* What holds for every family. */
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

/* published.c: one published option on its way in, the row that knows it, and lists of rows. */
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
};

/* An argument of a published program that has no place here, and why: it is refused with that. */
typedef struct ng_left_out {
  const char *name, *why;
} ng_left_out;

typedef struct ng_names {
  const ng_published *row;
  int32_t count;
  const ng_left_out *out; /* NULL: none; ends with a NULL */
} ng_names;
extern const ng_names ng_names_kaisa, ng_names_lz, ng_names_eva, ng_names_eva_kfac, ng_names_adasgd,
    ng_names_sam, ng_names_mfac, ng_names_ggt, ng_names_spngd, ng_names_efcp, ng_names_sparse_ggt,
    ng_names_lowrank, ng_names_topk_sgd, ng_names_topk_adam, ng_names_topk_adagrad;
/* NG_ERR_ARG with the nearest name if there is none; *lr if the option is that here. */
ng_status ng_names_take(const ng_names *names, const char *method, const char *name,
                        const char *value, ng_options *full, double *lr, bool *gives_lr,
                        char *message, size_t size);

/* "kronecker", "rankone", "window"; NULL if there is no such method. */
const char *ng_method_family(const char *name);
const char *ng_method_name(const char *name); /* the table's own copy, NULL if there is none */

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
/* The option that leaves a layer out; NG_OPTION_COUNT: none does. */
ng_option_id ng_skip_by(const ng_options *o, const ng_layer *l);

/* lines.c: options.per_layer, read; of an empty text NULL, which all of these take.  What was opened is closed. */
typedef struct ng_lines ng_lines;
ng_status ng_lines_open(const char *text, ng_lines **out, char *message, size_t size);
void ng_lines_close(ng_lines **l);
/* The line of the first entry that matches; NULL: none does.  Good until close. */
const char *ng_lines_for(ng_lines *l, const ng_layer *d);
/* The globs of an entry that matched no layer; NULL: there is none. */
const char *ng_lines_idle(const ng_lines *l);
/* All lines of o->per_layer over *o, one by one: `judge` (may be NULL) says whether the values go together. */
typedef ng_status (*ng_lines_judge)(const ng_options *own, char *message, size_t size);
ng_status ng_lines_each(const ng_options *o, ng_lines_judge judge, char *message, size_t size);
ng_status ng_lines_form(const char *text, char *message, size_t size);

#endif
