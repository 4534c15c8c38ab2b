/* progress.c: a progress bar on a terminal, and one line per epoch on stdout. The bar is written to stderr, and erased
 * before other output, so that files never contain it. */
#include "progress.h"
#include "clock.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void progress_start(progress *p, const train_output *output, int64_t first, int64_t total,
                    int64_t per_epoch, int64_t batch) {
  memset(p, 0, sizeof *p);
  p->output = *output;
  p->bar = output->bar && isatty(STDERR_FILENO) == 1;
  p->first = first;
  p->total = total;
  p->per_epoch = per_epoch;
  p->batch = batch;
  p->epochs = ceil((double)total / (double)per_epoch);
  p->began_ms = ng_now_ms();
  (void)snprintf(p->head, sizeof p->head, "%s%s", output->label, output->label[0] != 0 ? ": " : "");
}

static int count_terminal_columns(void) {
  struct winsize w;
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 1 ? w.ws_col : 80;
}

static void format_percent(char *text, size_t size, const char *whose, double accuracy) {
  if (isfinite(accuracy))
    (void)snprintf(text, size, "  %saccuracy %.2f %%", whose, 100.0 * accuracy);
  else
    text[0] = 0;
}

static void erase_bar(progress *p) {
  if (p->drawn) (void)fputs("\r\033[K", stderr);
  p->drawn = false;
}

void progress_draw_bar(progress *p, int64_t step, double loss, double accuracy) {
  enum { CELLS = 24 };
  const double now = ng_now_ms();
  if (!p->bar || now - p->last_ms < 100.0) return;
  p->last_ms = now;
  char bar[CELLS + 1], rate[48], line[sizeof p->head + 192];
  format_percent(rate, sizeof rate, "", accuracy);
  const double seconds = (now - p->began_ms) * 1e-3;
  const double speed = seconds > 0.0 ? (double)(step - p->first) / seconds : 0.0;
  const long long left = speed > 0.0 ? (long long)((double)(p->total - step) / speed + 0.5) : 0;
  for (int i = 0; i < CELLS; i++)
    bar[i] = (double)i * (double)p->total < (double)step * (double)CELLS ? '#' : '.';
  bar[CELLS] = 0;
  (void)snprintf(line, sizeof line,
                 "%sepoch %lld/%.0f  loss %.4g%s  %.0f samples/s  ETA %lld:%02lld  [%s]", p->head,
                 (long long)((step - 1) / p->per_epoch + 1), p->epochs, loss, rate,
                 speed * (double)p->batch, left / 60, left % 60, bar);
  /* Cut the line to the width of the terminal: a wrapped line could not be erased. */
  (void)fprintf(stderr, "\r\033[K%.*s", count_terminal_columns() - 1, line);
  (void)fflush(stderr);
  p->drawn = true;
}

void progress_print_epoch(progress *p, const train_epoch *e, double samples_per_second) {
  erase_bar(p);
  if (!p->output.lines) return;
  char train[48], test[48];
  format_percent(train, sizeof train, "", e->train_accuracy);
  format_percent(test, sizeof test, "test ", e->test_accuracy);
  printf("%sepoch %lld/%.0f  step %lld  lr %.4g  loss %.5f%s", p->head, (long long)e->epoch,
         p->epochs, (long long)e->step, e->lr, e->train_loss, train);
  if (isfinite(e->test_loss)) printf("  test loss %.5f%s", e->test_loss, test);
  printf("  %.0f samples/s  %.1f s\n", samples_per_second, e->seconds);
  (void)fflush(stdout);
}

void progress_erase_bar(progress *p) {
  erase_bar(p);
  (void)fflush(stderr);
}
