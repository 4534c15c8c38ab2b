/* cli.h: services for all sub-commands: description and help, arguments, messages, names, the library's context.
 *
 * Exit codes: 0 done; 1 done, and the answer is no (a tolerance was exceeded); 2 an error, reported in one line on
 * stderr.  Functions that can fail return CLI_OK, or CLI_BAD after they reported an error. */
#ifndef CLI_H
#define CLI_H

#include "json.h"
#include "natgrad.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum { CLI_OK = 0, CLI_NO = 1, CLI_BAD = 2 };

/* An option given on the command line: its name and the text of its value. */
typedef struct cli_setting {
  const char *name, *value;
} cli_setting;

typedef struct cli_args {
  char **operand; /* arguments that are not options */
  int operands;
  cli_setting *settings; /* options of kind CLI_SETTING, and options of the library */
  cli_setting *own;      /* options of kind CLI_OWN */
  int n_settings, n_own;
} cli_args;

/* Where cli_run_command stores an option's value: as text in a list of cli_args, or parsed in a field of the values. */
typedef enum cli_kind {
  CLI_OWN,     /* cli_args.own: the command reads the text */
  CLI_SETTING, /* cli_args.settings; the text of a flag is "true" */
  CLI_FLAG,    /* bool */
  CLI_TEXT,    /* const char *, not empty */
  CLI_WHOLE,   /* int64_t in [lower, upper] */
  CLI_REAL,    /* double in [lower, upper] */
  CLI_SIZE     /* double, at least 1; text such as "16GB", "8GiB" or "12.5GB/s" */
} cli_kind;

typedef struct cli_option {
  const char *name;  /* without the dashes */
  const char *value; /* name of the value in the help, such as "FILE"; NULL: the option is a flag */
  const char *help;
  cli_kind kind;
  size_t field; /* offset of the field in the struct of the command's values */
  double lower, upper;
} cli_option;

typedef struct cli_command {
  const char *name;
  const char *usage; /* text after "natgrad NAME " in the help */
  const char *summary;
  const char *text; /* rest of the help; each line ends with '\n'; may be "" */
  const cli_option *options;
  int n_options;
  bool library; /* the command also accepts all options of the library */
  /* largest number of operands (arguments that are not options); -1: no limit */
  int operands;
  size_t size;          /* size of the struct of the command's values */
  const void *standard; /* the default values; NULL: all zero */
  int (*run)(void *values, const cli_args *args);
} cli_command;

void cli_print_help(const cli_command *command);
/* Parse argv (argv[0]: the name of the command) into the command's values, and run it. Return the exit code. */
int cli_run_command(const cli_command *command, int argc, char **argv);

/* Print an error, "natgrad: ...", as one line on stderr; return CLI_BAD. */
__attribute__((format(printf, 1, 2))) int cli_fail(const char *format, ...);
/* Of all threads that pass one flag (initially false), only the first cli_fail prints. NULL: every cli_fail prints. */
void cli_report_once(atomic_bool *printed);
/* Print a note, "natgrad: ...", as one line on stderr. */
__attribute__((format(printf, 1, 2))) void cli_note(const char *format, ...);

/* End the program with an error if the limit of the address space (ulimit -v) is too low for the buffers of OpenBLAS:
 * one for each of its threads, and one for each of `callers` threads that call it at the same time. */
void cli_require_address_space(int callers);
/* Raise a stack limit below 1 MiB to 1 MiB. If the system refuses, end the program with an error. */
void cli_require_stack(void);

/* Return the name with the smallest edit distance to `word`, or NULL if every distance exceeds length / 3 + 1. */
const char *cli_find_nearest(const char *word, const char *const *names, int n);
/* Report "WHAT 'WORD'" and the nearest of n names. If no name is near, add `otherwise` (NULL: all names) instead. */
int cli_report_unknown(const char *what, const char *word, const char *const *names, int n,
                       const char *otherwise);
const char *cli_format_bytes(double bytes, char text[16]); /* write a text such as "1.23 MB" */

/* ---- names.c ---------------------------------------------------------------------------------*/

/* largest length of a name in bytes; largest number of methods */
enum { CLI_NAME = 64, CLI_METHODS = 64 };

const char *cli_get_base_name(const char *path); /* return the text after the last '/' */
/* The next five functions return allocated text, which the caller frees. */
char *cli_copy_text(const char *text);
char *cli_join(const char *folder, const char *name); /* "folder/name" */
/* return the text before the last '/'; "/" for "/x", "." for "x" */
char *cli_get_folder(const char *path);
/* return the path of `name` in the program's folder */
char *cli_get_program_path(const char *name);
/* Return the path of a file shipped with the program: ../share/natgrad/INSTALLED beside the program if this file
 * exists, else SOURCE in the source tree. */
char *cli_find_shipped(const char *installed, const char *source);
/* Copy `name`, and replace each '-' and '_' by `with`. Names of the library and of JSON have '_', help texts '-'. */
void cli_replace_separators(char *to, size_t size, const char *name, char with);
/* return whether two names are equal; '-' and '_' count as equal */
bool cli_is_same_name(const char *a, const char *b);
bool cli_has_ending(const char *path, const char *ending);
/* Find an option of the library by its name (with '-' or '_') or its short name (such as "rank"); false: not found. */
bool cli_find_option(const char *name, ng_option_info *out);
int32_t cli_find_method(const char *name, ng_method_info *out); /* returns the index, or -1 */
/* Return true if the option of the library applies to the method (ng_option_info.trait). */
bool cli_method_has_option(const char *method, const char *option);
int cli_list_methods(const char **names, int capacity); /* returns the number of names */

/* ---- arguments -------------------------------------------------------------------------------*/

/* Parse the complete text as a value of type `kind` into *to: a flag (true, false), or a whole number or a number
 * from `lower` to `upper`. CLI_BAD: `message` has the accepted values. */
enum { CLI_MESSAGE = 512 };
int cli_parse(cli_kind kind, const char *text, double lower, double upper, void *to, char *message,
              size_t size);
/* Call cli_parse; if it fails, report the option and the message. */
int cli_parse_option(const char *option, cli_kind kind, const char *text, double lower,
                     double upper, void *to);
/* Parse n whole numbers from 1 to 99,999 separated by `between`, as in "32x32x3"; false: another text, not reported. */
bool cli_parse_counts(const char *text, char between, int n, int64_t *out);

/* ---- fields.c: JSON --------------------------------------------------------------------------*/

/* Parse `text`. If it is not JSON, report "PATH: no JSON: line L: ..." and return CLI_BAD. */
int cli_json_parse(const char *path, const char *text, size_t size, ngio_json **out);
/* Return a JSON string, flag or number as text of a command line (a number in the buffer `number`); NULL: another
 * type. */
const char *cli_json_text(const ngio_value *v, char *number, size_t size);
/* Print the JSON text as one line on stdout, and free the text. An error message begins with `who`. */
int cli_json_print(const char *who, ngio_out *o);

/* Reads fields of JSON objects. Only the first mistake is reported, as "PATH: WHERE...". */
typedef struct cli_fields {
  const char *path, *where; /* path: the file; where: the object in the file, such as "layer 3: " */
  int rc;                   /* CLI_BAD after a mistake */
} cli_fields;

__attribute__((format(printf, 2, 3))) void cli_field_error(cli_fields *f, const char *format, ...);
/* Return the integer at `key`, from `lower` to `upper`. Without the key, return `absent`, or report an error if
 * `absent` < 0. */
int64_t cli_read_whole(cli_fields *f, const ngio_value *object, const char *key, int64_t lower,
                       int64_t upper, int64_t absent);
/* Read the pair of whole numbers of `key`, each from `lower` to 2^20. A single number sets both. */
void cli_read_pair(cli_fields *f, const ngio_value *object, const char *key, int64_t lower,
                   int64_t absent, int64_t out[2]);

/* Set `options` from the command line: --method, and the options of the library. */
int cli_set_options(const cli_args *args, ng_options *options);
/* Value of an option: as text; compared with a choice; as a number (0 if it is not a number). */
typedef struct cli_value {
  char text[64];
} cli_value;
cli_value cli_get_option_text(const ng_options *o, const char *name);
bool cli_option_is(const ng_options *o, const char *name, const char *choice);
double cli_get_option_real(const ng_options *o, const char *name);

/* Copy the value of the line "key = value" of ng_build_info; "" if no line has this key. */
void cli_read_build_line(const char *key, char *value, size_t size);
void cli_format_version(char *text, size_t size); /* write "MAJOR.MINOR.PATCH (COMMIT)" */
/* Set the function pointer *out to the function `name` of a loaded module (NULL: the program); false: not found. */
bool cli_find_function(void *module, const char *name, void *out);
void cli_read_processor_name(char *name, size_t size); /* write the model name of the processor */
/* return the number of processors available to this process */
int cli_count_cores(void);
/* Set *threads to the number of threads of the trainer: NG_THREADS, else cli_count_cores(). CLI_BAD: reported. */
int cli_read_thread_count(int *threads);

/* Create a context of the library that logs to stderr; NG_LOG selects the lines. */
int cli_create_context(ng_context_config *config, ng_context **out);

/* Allocate zeroed memory. If there is none, end the program with an error. */
void *cli_alloc(size_t count, size_t size);
/* Enlarge an allocated list of `count` elements by one zero element; return the list, which may have moved. */
void *cli_append_zeroed(void *list, size_t count, size_t size);

#endif
