/* main.c: the table of commands, the general help, and the environment of OpenBLAS.
 *
 * OpenBLAS reads two variables when it is loaded, so the program sets them and executes itself again:
 *   OPENBLAS_CORETYPE        on a processor that OpenBLAS does not know, it selects AVX2 kernels, at half the speed;
 *                            ng_build_info names a better core type in its line "hint"
 *   OPENBLAS_THREAD_TIMEOUT  idle threads of OpenBLAS spin for 2^26 cycles and take processor time from the trainer's
 *                            loops; 2^18 cycles (0.1 ms) free the cores and slow no small factorisation */
#include "common/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int print_help(void *values, const cli_args *args);

static const cli_command cli_help_command = {
    .name = "help",
    .usage = "[COMMAND]",
    .summary = "print the list of commands, or the options of one command",
    .text = "",
    .operands = 1,
    .run = print_help,
};

static const cli_command *const cli_commands[] = {
    &cli_info,  &cli_train, &cli_compare, &cli_export,    &cli_replay,
    &cli_bench, &cli_plan,  &cli_prune,   &cli_influence, &cli_help_command};
static const int cli_commands_count = (int)(sizeof cli_commands / sizeof cli_commands[0]);

/* Return the command with this name. If there is none, report the name and return NULL. */
static const cli_command *find_command(const char *name) {
  const char *names[sizeof cli_commands / sizeof cli_commands[0]];
  for (int i = 0; i < cli_commands_count; i++) {
    names[i] = cli_commands[i]->name;
    if (strcmp(names[i], name) == 0) return cli_commands[i];
  }
  (void)cli_report_unknown("unknown command", name, names, cli_commands_count,
                           "`natgrad --help` lists them");
  return NULL;
}

static void print_usage(void) {
  puts("natgrad: precondition the gradients of a neural network with curvature\n\n"
       "  natgrad COMMAND [OPTIONS]\n");
  for (int i = 0; i < cli_commands_count; i++)
    printf("  %-9s  %s\n", cli_commands[i]->name, cli_commands[i]->summary);
  puts("\n  natgrad help COMMAND    print the options of a command\n"
       "  natgrad --version       print version and commit\n\n"
       "Exit code 0: done; 1: done, with a negative answer (replay: an error exceeds the\n"
       "tolerance; train: stopped or diverged); 2: bad input, or output could not be written.\n\n"
       "Environment: NG_<OPTION> sets an option of the library (replay uses the recording's\n"
       "value); NG_LOG=info prints the log; `natgrad info --environment` lists all variables.\n\n"
       "With OpenBLAS, the program restarts itself with OPENBLAS_THREAD_TIMEOUT=18, so that idle\n"
       "threads of OpenBLAS do not occupy cores, and with another OPENBLAS_CORETYPE if OpenBLAS\n"
       "selected AVX2 kernels on a processor with AVX-512.  NATGRAD_KEEP_KERNEL=1 prevents this.");
}

static int print_help(void *values, const cli_args *args) {
  (void)values;
  if (args->operands == 0) {
    print_usage();
    return CLI_OK;
  }
  const cli_command *command = find_command(args->operand[0]);
  if (command == NULL) return CLI_BAD;
  cli_print_help(command);
  return CLI_OK;
}

/* Restart the program with the two variables above. The library's hint begins with an assignment:
 * "OPENBLAS_CORETYPE=SkylakeX would ...". */
static void restart_with_blas_environment(char **argv) {
  const char *keep = getenv("NATGRAD_KEEP_KERNEL");
  if (keep != NULL && keep[0] != 0 && strcmp(keep, "0") != 0) return;
  /* NATGRAD_STARTED_AGAIN marks the second start, so that the program never restarts twice. */
  if (getenv("NATGRAD_STARTED_AGAIN") != NULL) return;
  char hint[256], blas[256];
  cli_read_build_line("hint", hint, sizeof hint);
  cli_read_build_line("blas", blas, sizeof blas);
  if (strstr(blas, "OpenBLAS") == NULL) return;
  char *value = strchr(hint, '=');
  if (value != NULL) {
    *value++ = 0;
    value[strcspn(value, " ")] = 0;
    (void)setenv(hint, value, 0); /* 0: do not overwrite a value that the user has set */
  }
  (void)setenv("OPENBLAS_THREAD_TIMEOUT", "18", 0);
  if (setenv("NATGRAD_STARTED_AGAIN", "1", 1) != 0) return;
  (void)fflush(stdout);
  /* if exec fails, the program continues without the setting: slower, but with correct results */
  (void)execv("/proc/self/exe", argv);
}

/* If a standard stream is closed, the next file that the program opens would get its number, and output would go into
 * this file. To prevent this, occupy the number with a folder, which can be neither read nor written. Ignoring SIGPIPE
 * and SIGXFSZ turns a closed pipe and a file size limit into write errors, which the program reports. */
static void prepare_streams(void) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/", O_RDONLY | O_DIRECTORY) != fd)
      _exit(CLI_BAD); /* exit without a message, because no stream can show one */
  }
  (void)signal(SIGPIPE, SIG_IGN);
  (void)signal(SIGXFSZ, SIG_IGN);
}

int main(int argc, char **argv) {
  prepare_streams();
  cli_require_stack();
  cli_require_address_space(1);
  int rc = CLI_OK;
  const char *word = argc > 1 ? argv[1] : "";
  if (argc < 2) {
    rc = cli_fail("no command given; `natgrad --help` lists the commands");
  } else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
    print_usage();
  } else if (strcmp(word, "--version") == 0) {
    char version[128];
    cli_format_version(version, sizeof version);
    printf("natgrad %s\n", version);
  } else if (word[0] == '-') {
    static const char *const known[] = {"--help", "--version"};
    rc = cli_report_unknown("unknown option", word, known, 2, "`natgrad --help` lists the options");
  } else {
    const cli_command *command = find_command(word);
    if (command != NULL && command != &cli_help_command) restart_with_blas_environment(argv);
    rc = command != NULL ? cli_run_command(command, argc - 1, argv + 1) : CLI_BAD;
  }
  /* Report a full disk instead of success. */
  if (rc != CLI_BAD && (fflush(stdout) != 0 || ferror(stdout)))
    rc = cli_fail("standard output could not be written");
  return rc;
}
