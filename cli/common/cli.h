/* cli.h: what the sub-commands share: how they are listed, how they read their arguments, how they
 * fail, and how they make a context.
 *
 * Exit codes: 0 done; 1 done, and the answer is no (a tolerance was exceeded); 2 bad input, told in
 * one line on stderr.
 */
#ifndef CLI_H
#define CLI_H

#include "json.h"
#include "natgrad.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum { CLI_OK = 0, CLI_NO = 1, CLI_BAD = 2 };

typedef struct cli_option {
  const char *name;  /* without the dashes                                                        */
  const char *value; /* what it takes, for the help: "FILE"; NULL: a flag                         */
  const char *help;
} cli_option;

typedef struct cli_command {
  const char *name;
  const char *usage; /* what follows "natgrad NAME "                                              */
  const char *summary;
  const char *text; /* a paragraph for the help, each line ended by '\n'; may be ""              */
  const cli_option *options;
  int n_options;
  bool library; /* takes every option of the library's table too                                  */
  int (*run)(const struct cli_command *self, int argc, char **argv); /* argv[0] is the command    */
} cli_command;

void cli_help(const cli_command *command); /* print the help of a command */

/* One line "natgrad: ..." on stderr; returns CLI_BAD. */
__attribute__((format(printf, 1, 2))) int cli_bad(const char *format, ...);
/* Threads that work on one thing tell one line between them, the first, and share `told`, false to begin with; the
 * calling thread is one of them until it says NULL. */
void cli_together(atomic_bool *told);
/* The same about what is worth knowing and no error. */
__attribute__((format(printf, 1, 2))) void cli_note(const char *format, ...);

/* Ends the program with one line, if a limit of address space leaves no room for the buffers of OpenBLAS's threads and of so
 * many that call it at once. */
void cli_need_address_space(int callers);

/* The nearest of n names, or NULL if none is near enough to be a slip of the finger. */
const char *cli_nearest(const char *word, const char *const *names, int n);

/* ---- names.c ---------------------------------------------------------------------------------*/

enum { CLI_NAME = 64, CLI_METHODS = 64 }; /* a name with its 0; more rows than the library has */

char *cli_copy(const char *text); /* for free(), as the next */
/* A file that comes with the program: installed as share/natgrad/INSTALLED, or SOURCE in the source tree. */
char *cli_shipped(const char *installed, const char *source);
char *cli_join(const char *folder, const char *name); /* "folder/name"           */
/* `name` with `with` for each '-' and '_': the library's table and JSON have '_', command lines '-'. */
void cli_spell(char *to, size_t size, const char *name, char with);
bool cli_same_name(const char *a, const char *b); /* but for '-' and '_' */
/* From the library's tables.  An option by either spelling; a method's index for ng_method_at, -1: there
 * is none. */
bool cli_option_find(const char *name, ng_option_info *out);
/* Short names of options on command lines and in lists, found by cli_option_find as well: the i-th and its
 * option, NULL after the last. */
const char *cli_short_name(int i, const char **option);
int32_t cli_method_find(const char *name, ng_method_info *out);
int cli_method_names(const char **names, int room); /* returns how many */

/* ---- arguments -------------------------------------------------------------------------------*/

/* A setting of the library's option table found on the command line. */
typedef struct cli_setting {
  const char *name, *value;
} cli_setting;

typedef struct cli_args {
  char **operand; /* what is no option */
  int operands;
  cli_setting *settings;
  int n_settings;
} cli_args;

/* Read argv by the command's options and, if it takes them, the library's.  `take` is called for
 * each of the command's own: value is NULL for a flag; it returns CLI_OK or CLI_BAD.  Returns
 * CLI_OK, CLI_BAD (told), or -1 when --help was asked for and given. */
int cli_parse(const cli_command *command, int argc, char **argv,
              int (*take)(void *user, const char *name, const char *value), void *user,
              cli_args *out);
void cli_args_free(cli_args *args);

/* Whole numbers and reals of an option, the whole text or an error that names option and range. */
int cli_int(const char *option, const char *text, long long lower, long long upper, long long *out);
/* "28-10", "32x32x3": n whole numbers from 1 to 99,999 with `between` between them.  Says nothing. */
bool cli_counts(const char *text, char between, int n, long long *out);
int cli_real(const char *option, const char *text, double lower, double upper, double *out);

/* ---- JSON ------------------------------------------------------------------------------------*/

/* The values of `text`, or CLI_BAD with "PATH: no JSON: line L: what was expected". */
int cli_json_parse(const char *path, const char *text, size_t size, ngio_json **out);
/* Print the text as one line on stdout and free it. */
int cli_json_print(const char *who, ngio_out *o);

/* --method and the options of the library, onto what stands behind the command line. */
int cli_apply(const cli_args *args, ng_options *options);
/* Of options that have that name: a value as text, whether it is a choice, a number or flag. */
typedef struct cli_value {
  char text[64];
} cli_value;
cli_value cli_option_text(const ng_options *o, const char *name);
bool cli_option_is(const ng_options *o, const char *name, const char *choice);
double cli_option_real(const ng_options *o, const char *name);

/* The value of a line "key = value" of ng_build_info, "" if there is none. */
void cli_build(const char *key, char *value, size_t size);
void cli_processor(char *name, size_t size); /* as the operating system names it */
int cli_cores(void);                         /* processors this process may run on */
/* Threads for loops of our own: what NG_THREADS says, which means the library's, too; or cli_cores. */
int cli_threads(int *threads);

/* A context that logs to stderr as NG_LOG says. */
int cli_context(ng_context_config *config, ng_context **out);

void *cli_take(size_t count,
               size_t size); /* zeroed; ends the program with a line if there is none */

#endif
