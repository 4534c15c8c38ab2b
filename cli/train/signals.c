/* signals.c: a run that is asked to end finishes its step and keeps what it has; one that is asked to keep what
 * it has goes on.
 *
 * Launchers pass a signal on to their ranks, and some who sent it did so already: what follows within half a second
 * is the same request. */
#include "train.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted, on_terminal, wanted;
static struct timespec first; /* when; written before `interrupted` is, and by handlers alone */

/* Milliseconds since the first request; may be called by handlers. */
static long since_first(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (long)(now.tv_sec - first.tv_sec) * 1000 + (now.tv_nsec - first.tv_nsec) / 1000000;
}

static void on_end(int number) {
  if (!interrupted) {
    static const char line[] = "\nnatgrad: stopping after this step; again to end at once\n";
    const size_t skip = on_terminal ? 0 : 1; /* there a bar or ^C stands in this line */
    (void)clock_gettime(CLOCK_MONOTONIC, &first);
    (void)!write(STDERR_FILENO, line + skip, sizeof line - 1 - skip);
  } else if (since_first() >= 500) {
    (void)signal(number, SIG_DFL);
    (void)raise(number); /* comes when this handler returns */
  }
  interrupted = 1;
}

static void on_keep(int number) {
  (void)number;
  wanted = wanted + 1;
}

static void set_handler(int number, void (*handler)(int number)) {
  struct sigaction how;
  memset(&how, 0, sizeof how);
  how.sa_handler = handler;
  how.sa_flags = SA_RESTART; /* a write in progress is not broken off */
  (void)sigemptyset(&how.sa_mask);
  (void)sigaddset(&how.sa_mask, SIGINT);
  (void)sigaddset(&how.sa_mask, SIGTERM);
  (void)sigaction(number, &how, NULL);
}

void train_catch_signals(void) {
  on_terminal = isatty(STDERR_FILENO) == 1;
  set_handler(SIGINT, on_end);
  set_handler(SIGTERM, on_end);
  set_handler(SIGUSR1, on_keep);
}

bool train_interrupted(void) { return interrupted != 0; }

int train_keep_wanted(void) { return (int)wanted; }
