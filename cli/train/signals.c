/* signals.c: a run that is asked to end finishes its step and keeps what it has. */
#include "train.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted, on_terminal;

static void on_signal(int number) {
  if (interrupted) {
    (void)signal(number, SIG_DFL);
    (void)raise(number); /* comes when this handler returns */
  } else {
    static const char line[] = "\nnatgrad: stopping after this step; again to end at once\n";
    const size_t skip = on_terminal ? 0 : 1; /* there a bar or ^C stands in this line */
    (void)!write(STDERR_FILENO, line + skip, sizeof line - 1 - skip);
  }
  interrupted = 1;
}

void train_catch_signals(void) {
  on_terminal = isatty(STDERR_FILENO) == 1;
  struct sigaction how;
  memset(&how, 0, sizeof how);
  how.sa_handler = on_signal;
  how.sa_flags = SA_RESTART; /* a write in progress is not broken off */
  (void)sigemptyset(&how.sa_mask);
  (void)sigaction(SIGINT, &how, NULL);
  (void)sigaction(SIGTERM, &how, NULL);
}

bool train_interrupted(void) { return interrupted != 0; }
