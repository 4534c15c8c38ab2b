/* option.h: the table of options, values from and to text, methods as rows of values, published names, globs.
 *
 * In:   options as texts and numbers: from a program, a command line, the environment, a layer.
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

/* Apply a layer's own options to *o, which has the model's: "damping=0.01 solver=eigen", "method=eva damping=0.01", or
 * NULL for none.  A method in the text sets only options that a layer may have. */
ng_status ng_options_override(ng_options *o, const char *text, char *message, size_t size);
/* Return the index of an option in the table; -1 if the name is unknown.  '-' and '_' are equal. */
int32_t ng_option_find(const char *name);

/* environment.c: ng_write_variable_name: write the variable of option `name` ("NG_DAMPING" for "damping").
 * ng_warn_unknown_variables: log a warning for each unknown NG_... variable. */
void ng_write_variable_name(const char *name, char *out, size_t size);
void ng_warn_unknown_variables(ng_context *ctx);

#define NG_CHOICES_MAX 8 /* capacity of ng_option_row.choice */

/* A condition on the value of another option. */
typedef struct ng_option_need {
  bool exists; /* false: no condition */
  ng_option_id option;
  uint32_t one_of; /* a choice or flag: sum of 1 << value over accepted values; 0: a number > 0 */
} ng_option_need;

/* Traits: a family declares its traits (ng_family.traits); a row of the table names the trait that its option needs. */
enum {
  NG_TRAIT_FACTORS = 1 << 0, /* statistics are factors A and G */
  NG_TRAIT_SOLVES = 1 << 1,  /* results are recomputed every solve_period steps */
  NG_TRAIT_VECTORS = 1 << 2, /* statistics are mean vectors */
  NG_TRAIT_WINDOW = 1 << 3,  /* a window of gradients is stored */
  NG_TRAIT_MOMENTS = 1 << 4, /* Adam's moments are stored */
  NG_TRAIT_MUON = 1 << 5,    /* PD is orthogonalised by a Newton-Schulz iteration */
  NG_TRAIT_AXES = 1 << 6,    /* statistics are Gram matrices of the axes of gradients */
  NG_TRAIT_ROOTS = 1 << 7    /* PD is a product with roots of matrices */
};
/* Return the text of one trait for messages and documents, such as "Kronecker factors"; "" for trait 0. */
const char *ng_trait_text(uint32_t trait);

typedef struct ng_option_row {
  const char *name, *group;
  ng_option_type type;
  size_t offset; /* offset of the option's field in ng_options */
  const char *default_text;
  /* value to use for a state that was saved before the option existed; NULL: the default */
  const char *older_states;
  double lower, upper; /* bounds of a number */
  bool lower_open;     /* the value must be above `lower`, not equal */
  const char *choices; /* "a|b": all texts of a choice, for messages */
  /* [enum value in settings.h] text of each choice; NULL: no choice has this value */
  const char *choice[NG_CHOICES_MAX];
  const char *unsupported; /* "c|d": texts refused as not supported yet; NULL: none */
  const char *unit, *help;
  uint32_t trait;          /* NG_TRAIT_...: only families with this trait have the option; 0: all */
  ng_option_need needs[2]; /* the option has an effect if one of these conditions holds */
  bool per_layer;          /* a layer may have its own value of the option */
  bool can_change;         /* ng_set may change the value after ng_ready */
  /* Check the value of the text option `name`. */
  ng_status (*check_text)(const char *name, const char *text, char *message, size_t size);
} ng_option_row;

extern const ng_option_row ng_option_table[NG_OPTION_COUNT]; /* [ng_option_id] */

/* Read a number; return false if the whole text is not one.  The decimal point is '.' in every locale.  Blanks,
 * hexadecimal digits, inf and nan are refused. */
bool ng_read_real(const char *text, double *out);
bool ng_read_whole(const char *text, double *out); /* a whole number */
bool ng_read_bool(const char *text, int32_t *out); /* 0 1 false true off on no yes, in any case */
/* Write a short text that reads back as the same number. */
void ng_write_real(double value, char *text, size_t size);

/* Copy a text with its final 0; if `size` is too small, change nothing and return false. */
bool ng_text_copy(const char *from, char *to, size_t size);
/* ng_option_read, ng_option_read_real: set an option of *o from a text or a number, and mark it as given.
 * ng_option_write: write the value of an option as text, as ng_text_copy. */
ng_status ng_option_read(const ng_option_row *row, const char *text, ng_options *o, char *message,
                         size_t size);
ng_status ng_option_read_real(const ng_option_row *row, double value, ng_options *o, char *message,
                              size_t size);
bool ng_option_write(const ng_option_row *row, const ng_options *o, char *text, size_t size);
/* Copy the value of an option to *to, and mark it there as given. */
void ng_option_copy(const ng_option_row *row, const ng_options *from, ng_options *to);
/* Get or set the value of an option that is no text: a number, a flag as 0 or 1, or the enum value of a choice.
 * ng_option_store marks the option as given. */
double ng_option_number(const ng_option_row *row, const ng_options *o);
void ng_option_store(const ng_option_row *row, ng_options *o, double value);

/* Set *row to the row of an option.  If the name is unknown, the message suggests the nearest name. */
ng_status ng_option_lookup(const char *name, const ng_option_row **row, char *message, size_t size);
/* An option of an earlier version: its name, its default, and what to write instead.  A saved state with this option
 * loads only if the value is the default. */
typedef struct ng_removed_option {
  const char *name, *default_text, *replacement;
} ng_removed_option;
const ng_removed_option *ng_find_removed_option(const char *name); /* NULL: not a removed option */
/* Return name i of a list of all options, "method" and all removed options; NULL after the last name. */
const char *ng_settable_name(int32_t i);

/* Set all options to their defaults; none is marked as given. */
void ng_options_set_defaults(ng_options *full);
/* Set the method.  Every option that is not marked as given gets the value of this method. */
ng_status ng_options_set_method(ng_options *o, const char *name, char *message, size_t size);
/* Check combinations of options that no family accepts. */
ng_status ng_options_check_rules(const ng_options *full, char *message, size_t size);

/* A value that a method sets: a number, an enum value, or a flag as 0 or 1.  A list of values ends with NG_VALUES_END. */
typedef struct ng_option_setting {
  ng_option_id option;
  double value;
} ng_option_setting;
#define NG_VALUES_END                                                                              \
  { NG_OPTION_COUNT, 0 }
/* Set several options, and mark them as given. */
void ng_options_set_values(ng_options *full, const ng_option_setting *values);
extern const ng_option_setting ng_kaisa_inverse[]; /* values of the KAISA variant "inverse" */

/* published.c: a published option, which is being set. */
typedef struct ng_published ng_published;
typedef struct ng_published_job {
  const ng_published *row;
  const char *value; /* the published value */
  ng_options *full;  /* the options to change */
  /* the published learning rate, if the option is the learning rate; otherwise -1 */
  double lr;
  char *message;
  size_t size;
} ng_published_job;

/* An option of a published program, and how to set it.
 * words: the accepted values, with what each sets.  Forms: "compute=kaisa|memory=kaisa-memory": the value `compute`
 * sets the option to kaisa; "true|false": both values are accepted and set nothing; "none|a number above 0": none and
 * positive numbers are accepted; "none; REASON": the message for another value ends with the REASON why this library
 * does not support it. */
struct ng_published {
  const char *name;
  const char *option;  /* the option of this library that it sets; "": none */
  const char *meaning; /* one line for `natgrad info --published` */
  ng_status (*set)(ng_published_job *j);
  const char *words; /* NULL: `set` checks the value */
};

/* Arguments of a published program, "a|b|c", that this library refuses, and the reason or the replacement. */
typedef struct ng_refused_names {
  const char *names, *reason;
} ng_refused_names;

/* The options of one published program. */
typedef struct ng_published_names {
  const ng_published *row;
  int32_t count;                   /* number of rows */
  const ng_refused_names *refused; /* ends with a NULL; NULL: none */
} ng_published_names;
extern const ng_published_names ng_names_kaisa, ng_names_lz, ng_names_eva, ng_names_eva_kfac,
    ng_names_adasgd, ng_names_sam, ng_names_mfac, ng_names_ggt, ng_names_spngd, ng_names_efcp,
    ng_names_sparse_ggt, ng_names_lowrank, ng_names_topk_sgd, ng_names_topk_adam,
    ng_names_topk_adagrad, ng_names_soap, ng_names_shampoo, ng_names_muon, ng_names_torch_muon;
/* Set the options of *j->full that the published option `name` stands for, or j->lr if `name` is the learning rate.  If
 * the name is unknown, the message suggests the nearest name. */
ng_status ng_published_set(const ng_published_names *names, const char *method, const char *name,
                           ng_published_job *j);

/* Fill *out except `traits`, which only the family knows; return false if there is no method i. */
bool ng_method_describe(int32_t i, ng_method_info *out);

#define NG_BLANKS " \t\n\r"
static inline bool ng_is_blank(char c) { return c != 0 && strchr(NG_BLANKS, c) != NULL; }

/* glob.c: one glob of a comma-separated list: the bytes [from, to) of the list. */
typedef struct ng_glob {
  const char *from, *to;
  bool is_broken; /* a set has no closing bracket, or the last byte is a backslash */
} ng_glob;
/* Set *g to the next glob of the list at *at, and *at to the list after it; return false at the end of the list. */
bool ng_globs_next(const char **at, ng_glob *g);
bool ng_glob_matches(const ng_glob *g, const char *text);
bool ng_glob_fits(const ng_glob *g,
                  const ng_layer *l); /* the glob matches the name or kind of *l */
bool ng_globs_fit(const char *list, const ng_layer *l); /* some glob of the list fits *l */
/* root_exponents: set *e to the exponent of an axis of a parameter with `axes` axes; -1: not given. Return false if the text is
 * wrong. */
bool ng_exponents_find(const char *text, int32_t axes, int32_t axis, double *e);
ng_status ng_exponents_check(const char *option, const char *text, char *message, size_t size);
/* Check the syntax of a list of globs; messages name the option. */
ng_status ng_globs_check(const char *option, const char *list, char *message, size_t size);
/* Translate a regular expression to globs that match the names in which a search (Python's re.search) finds it.  Return
 * false if no globs match the same names, or `size` is too small. */
bool ng_globs_from_regex(const char *expression, char *out, size_t size);

/* lines.c: one entry of per_layer: globs and a line of options. */
typedef struct ng_layer_line {
  char globs[NG_TEXT_SIZE]; /* the whole entry if it is malformed */
  /* position in globs[] after the 0 that ends the globs; NULL: the entry is malformed */
  const char *line;
} ng_layer_line;
/* Set *e to the next entry of the text at *rest, and *rest to the text after it; return false at the end. */
bool ng_lines_next(const char **rest, ng_layer_line *e);
/* Check the syntax of the value of per_layer, whose name is `option`. */
ng_status ng_lines_check(const char *option, const char *text, char *message, size_t size);
/* For each entry of o->per_layer: apply the line to a copy of *o and check the copy with `rule`. */
typedef ng_status (*ng_options_rule)(const ng_options *own, char *message, size_t size);
ng_status ng_lines_check_options(const ng_options *o, ng_options_rule rule, char *message,
                                 size_t size);

#endif
