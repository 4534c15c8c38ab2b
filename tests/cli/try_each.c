/* try_each.c: run the program once for each forged file, in a forked process.  The start of a process under sanitizers
 * costs more than most commands.
 *
 *   try_each FILE FOLDER SECONDS COMMAND...    COMMAND: arguments of the program, which reads FILE
 *
 * Each file of FOLDER replaces FILE in turn.  The program must accept it (exit code 0), or reject it: exit code 2, one
 * line "natgrad: ..." on stderr, no file out.csv or out.safetensors.  A run longer than SECONDS fails.  Prints the
 * number of accepted files; stops at the first failure with exit code 1, and FILE is the file that caused it.  stdout
 * and stderr of the last run are in the files out and err. */
int natgrad_main(int argc, char **argv);
#define main natgrad_main
#include "main.c"
#undef main

#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>

static _Noreturn void run_program(int argc, char **argv, const char *seconds) {
  if (freopen("out", "w", stdout) == NULL || freopen("err", "w", stderr) == NULL) _exit(99);
  (void)alarm((unsigned)strtoul(seconds, NULL, 10));
  exit(natgrad_main(argc, argv));
}

/* Return whether stderr of the run is one line that begins with "natgrad: ". */
static bool is_one_line(void) {
  char text[65536] = "";
  FILE *f = fopen("err", "r");
  if (f == NULL) return false;
  text[fread(text, 1, sizeof text - 1, f)] = 0;
  (void)fclose(f);
  const char *end = strchr(text, '\n');
  return strncmp(text, "natgrad: ", 9) == 0 && end != NULL && end[1] == 0;
}

/* Return whether the status of the run is an accepted one; count accepted files. */
static bool is_fine(int status, int *accepted) {
  struct stat s;
  if (!WIFEXITED(status)) return false;
  *accepted += WEXITSTATUS(status) == CLI_OK;
  return WEXITSTATUS(status) == CLI_OK ||
         (WEXITSTATUS(status) == CLI_BAD && is_one_line() && stat("out.csv", &s) != 0 &&
          stat("out.safetensors", &s) != 0);
}

int main(int argc, char **argv) {
  DIR *folder = argc > 4 ? opendir(argv[2]) : NULL;
  if (folder == NULL) {
    (void)fprintf(stderr, "try_each FILE FOLDER SECONDS COMMAND...\n");
    return 1;
  }
  (void)setenv("NATGRAD_KEEP_KERNEL", "1", 1); /* a restart would start a process */
  int accepted = 0;
  for (const struct dirent *e; (e = readdir(folder)) != NULL;) {
    char from[4096];
    int status = 0;
    (void)snprintf(from, sizeof from, "%s/%s", argv[2], e->d_name);
    if (e->d_name[0] == '.') continue;
    (void)remove("out.csv");
    (void)remove("out.safetensors");
    if (rename(from, argv[1]) != 0) return 1;
    const pid_t child = fork();
    if (child == 0) run_program(argc - 3, argv + 3, argv[3]);
    if (child < 0 || waitpid(child, &status, 0) != child || !is_fine(status, &accepted)) {
      printf("%s: %s %d\n", e->d_name, WIFEXITED(status) ? "exit" : "signal",
             WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
      return 1;
    }
  }
  (void)closedir(folder);
  printf("%d\n", accepted);
  return 0;
}
