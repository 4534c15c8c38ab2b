/* signals.c: SIGINT and SIGTERM let a run finish its step and save a checkpoint; SIGUSR1 requests a checkpoint.
 * Launchers may pass on a signal that a rank has received already, so signals within half a second count as one. */
#include "train.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Atomic, not only sig_atomic_t: a signal may interrupt any thread, and two signals may arrive at once. */
static atomic_int interrupted, on_terminal, checkpoint_requests;
static atomic_llong first_ms; /* time of the first signal; 0: no signal yet */

_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2,
               "handlers may use atomics without locks only");

/* Return the time in ms, never 0. Signal handlers may call this function. */
static long long read_clock_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000 + 1;
}

static void handle_stop_signal(int number) {
  const long long now = read_clock_ms();
  long long before = 0;
  if (atomic_compare_exchange_strong(&first_ms, &before, now)) {
    static const char line[] =
        "\nnatgrad: stopping after this step; repeat the signal to end at once\n";
    /* on a terminal, print the newline that ends the line of the progress bar */
    const size_t skip = on_terminal ? 0 : 1;
    (void)!write(STDERR_FILENO, line + skip, sizeof line - 1 - skip);
  } else if (now - before >= 500) {
    (void)signal(number, SIG_DFL);
    (void)raise(number); /* the signal is delivered when this handler returns */
  }
  interrupted = 1;
}

static void handle_checkpoint_signal(int number) {
  (void)number;
  atomic_fetch_add(&checkpoint_requests, 1);
}

static void set_handler(int number, void (*handler)(int number)) {
  struct sigaction how;
  memset(&how, 0, sizeof how);
  how.sa_handler = handler;
  how.sa_flags = SA_RESTART; /* let the system continue interrupted writes */
  (void)sigemptyset(&how.sa_mask);
  (void)sigaddset(&how.sa_mask, SIGINT);
  (void)sigaddset(&how.sa_mask, SIGTERM);
  (void)sigaction(number, &how, NULL);
}

void train_restore_signals(void) {
  (void)signal(SIGINT, SIG_DFL);
  (void)signal(SIGTERM, SIG_DFL);
}

void train_catch_signals(void) {
  on_terminal = isatty(STDERR_FILENO) == 1;
  set_handler(SIGINT, handle_stop_signal);
  set_handler(SIGTERM, handle_stop_signal);
  set_handler(SIGUSR1, handle_checkpoint_signal);
}

bool train_is_interrupted(void) { return interrupted != 0; }

int train_count_requests(void) { return checkpoint_requests; }
