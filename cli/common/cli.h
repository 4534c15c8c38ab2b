/* cli.h: services for all sub-commands: description and help, arguments, messages, names, the library's context.
 *
 * Exit codes: 0 done; 1 done, and the answer is no (a tolerance was exceeded); 2 bad input, reported in one line on
 * stderr. */
#ifndef CLI_H
#define CLI_H

#include "json.h"
#include "natgrad.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum { CLI_OK = 0, CLI_NO = 1, CLI_BAD = 2 };

/* An option as given: of the library, of the trainer's settings, or of kind CLI_OWN; see cli_args. */
typedef struct cli_setting {
  const char *name, *value;
} cli_setting;

typedef struct cli_args {
  char **operand; /* arguments that are no options */
  int operands;
  cli_setting *settings, *own; /* CLI_SETTING and options of the library; CLI_OWN; in order */
  int n_settings, n_own;
} cli_args;

/* The place of an option's value: a list of cli_args, or a field of the command's wish. */
typedef enum cli_kind {
  CLI_OWN,
  CLI_SETTING, /* a flag has the value "true" */
  CLI_FLAG,    /* bool */
  CLI_TEXT,    /* const char *, not empty */
  CLI_WHOLE,   /* int64_t in [lower, upper] */
  CLI_REAL     /* double in [lower, upper] */
} cli_kind;

typedef struct cli_option {
  const char *name;  /* without the dashes                                                        */
  const char *value; /* placeholder in the help, "FILE"; NULL: a flag                             */
  const char *help;
  cli_kind kind;
  size_t field; /* offset in the wish */
  double lower, upper;
} cli_option;

typedef struct cli_command {
  const char *name;
  const char *usage; /* after "natgrad NAME "                                                     */
  const char *summary;
  const char *text; /* a paragraph for the help, each line ended by '\n'; may be ""              */
  const cli_option *options;
  int n_options;
  bool library; /* also accepts all options of the library                                       */
  int operands; /* the most arguments that are no options; -1: any number                        */
  size_t size;  /* of its wish, a struct with the values of its options                          */
  const void *standard; /* the values of options that are not given; NULL: zeros                  */
  int (*run)(void *wish, const cli_args *args);
} cli_command;

void cli_help(const cli_command *command); /* print the help of a command */
/* Parse argv into the command's wish and run the command; argv[0] is its name.  Returns the exit code. */
int cli_run(const cli_command *command, int argc, char **argv);

/* One line "natgrad: ..." on stderr; returns CLI_BAD. */
__attribute__((format(printf, 1, 2))) int cli_bad(const char *format, ...);
/* Threads that call this with the same flag, initially false, print one line of cli_bad together: the first.  NULL ends
 * it for the calling thread. */
void cli_report_once(atomic_bool *told);
/* The same for a note that is no error. */
__attribute__((format(printf, 1, 2))) void cli_note(const char *format, ...);

/* End the program with one line if a limit of address space leaves no room for the buffers of OpenBLAS's threads and
 * of `callers` simultaneous calls. */
void cli_need_address_space(int callers);
/* Raise a small stack limit to 1 MiB, or end the program with one line if that is forbidden. */
void cli_need_stack(void);

/* The nearest of n names, or NULL if more than a third of the word differs from all of these. */
const char *cli_nearest(const char *word, const char *const *names, int n);
/* Report "WHAT 'WORD'", and the nearest of n names; without one `otherwise`, or for NULL all names. */
int cli_unknown(const char *what, const char *word, const char *const *names, int n,
                const char *otherwise);
const char *cli_bytes(double bytes, char text[16]); /* "1.23 MB" */

/* ---- names.c ---------------------------------------------------------------------------------*/

enum { CLI_NAME = 64, CLI_METHODS = 64 }; /* bytes of a name; bound of the number of methods */

/* The caller frees the result of the next four. */
char *cli_copy(const char *text);
char *cli_join(const char *folder, const char *name); /* "folder/name" */
char *cli_beside(const char *name);                   /* relative to the folder of the program */
/* A shipped file: share/natgrad/INSTALLED beside the program, else SOURCE in the source tree. */
char *cli_shipped(const char *installed, const char *source);
/* Replace each '-' and '_' by `with`: the library's table and JSON have '_', command lines '-'. */
void cli_spell(char *to, size_t size, const char *name, char with);
bool cli_same_name(const char *a, const char *b); /* '-' equals '_' */
/* Find an option of the library in either spelling or by its short name (rank), and a method's index for ng_method_at (-1: none). */
bool cli_option_find(const char *name, ng_option_info *out);
int32_t cli_method_find(const char *name, ng_method_info *out);
int cli_method_names(const char **names, int room); /* returns how many */

/* ---- arguments -------------------------------------------------------------------------------*/

/* Parse the whole text as a number in the range, or report the option and the range. */
int cli_int(const char *option, const char *text, long long lower, long long upper, long long *out);
/* Parse "28-10" or "32x32x3": n whole numbers from 1 to 99,999, separated by `between`.  Reports nothing. */
bool cli_counts(const char *text, char between, int n, long long *out);
int cli_real(const char *option, const char *text, double lower, double upper, double *out);

/* ---- JSON ------------------------------------------------------------------------------------*/

/* Parse `text`, or report "PATH: no JSON: line L: ..." and return CLI_BAD. */
int cli_json_parse(const char *path, const char *text, size_t size, ngio_json **out);
/* Print the text as one line on stdout and free it. */
int cli_json_print(const char *who, ngio_out *o);

/* Set --method and the library's options of the command line in `options`. */
int cli_apply(const cli_args *args, ng_options *options);
/* The value of an option as text, compared with a choice, or as a number. */
typedef struct cli_value {
  char text[64];
} cli_value;
cli_value cli_option_text(const ng_options *o, const char *name);
bool cli_option_is(const ng_options *o, const char *name, const char *choice);
double cli_option_real(const ng_options *o, const char *name);

/* The value of a line "key = value" of ng_build_info, "" if there is none. */
void cli_build_value(const char *key, char *value, size_t size);
void cli_processor(char *name, size_t size); /* the operating system's name for it */
int cli_cores(void);                         /* processors available to this process */
/* Threads for the trainer's loops: NG_THREADS, as in the library, or cli_cores. */
int cli_threads(int *threads);

/* A context that logs to stderr as NG_LOG says. */
int cli_context(ng_context_config *config, ng_context **out);

/* Allocate zeroed memory, or end the program with one line. */
void *cli_take(size_t count, size_t size);
/* Make room for one more entry after `count` in an allocated list of *room; new entries are zero. */
void *cli_grow(void *list, int count, int *room, size_t size);
/* The list of `count` elements with room for one more, which is zeroed. */
void *cli_grown(void *list, size_t count, size_t size);

#endif
