/* traffic.c: gather and print the traffic of all ranks; traffic.h defines the numbers. */
#include "traffic.h"
#include "table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int traffic_gather(const run_ranks *ranks, const traffic_rank *mine, int stations, double steps,
                   traffic *out) {
  int rc = CLI_OK;
  memset(out, 0, sizeof *out);
  if (ranks->size == 1) return CLI_OK;
  *out = (traffic){ranks->size, stations, steps, cli_alloc((size_t)ranks->size, sizeof *out->rank)};
  out->rank[ranks->rank] = *mine;
  for (int32_t r = 0; r < ranks->size && rc == CLI_OK; r++)
    rc = ranks_broadcast_from(ranks, r, &out->rank[r], sizeof out->rank[r]);
  return rc;
}

void traffic_free(traffic *t) {
  free(t->rank);
  memset(t, 0, sizeof *t);
}

double traffic_find_idle_ms(const traffic *t, int rank, int station) {
  double least = INFINITY;
  for (int r = 0; r < t->ranks; r++)
    least = fmin(least, t->rank[r].station[station].wait_ms);
  return t->rank[rank].station[station].wait_ms - least;
}

double traffic_compute_hidden(const traffic *t) {
  double sent = 0.0, hidden = 0.0;
  for (int r = 0; r < t->ranks; r++) {
    sent += t->rank[r].sent_ms;
    hidden += t->rank[r].hidden_ms;
  }
  return sent > 0.0 ? hidden / sent : 0.0;
}

static void add_station_row(const traffic *t, int i, table *out) {
  train_station sum = {.ms = 0.0};
  double most = 0.0, idle = 0.0;
  for (int r = 0; r < t->ranks; r++) {
    const train_station *s = &t->rank[r].station[i];
    sum.ms += s->ms;
    sum.wait_ms += s->wait_ms;
    sum.bytes += s->bytes;
    sum.messages += s->messages;
    most = fmax(most, s->ms);
    idle = fmax(idle, traffic_find_idle_ms(t, r, i));
  }
  const double all = t->steps * t->ranks;
  if (sum.bytes == 0.0 && most < 0.0005 * t->steps) return;
  table_add_row(out);
  table_put(out, 0, "%s", t->rank[0].station[i].name);
  table_put(out, 1, "%.3f", sum.ms / all);
  table_put(out, 2, "%.3f", most / t->steps);
  table_put(out, 3, "%.3f", sum.wait_ms / all);
  table_put(out, 4, "%.3f", idle / t->steps);
  table_put(out, 5, "%.1f", 1e-3 * sum.bytes / all);
  table_put(out, 6, "%.1f", sum.messages / all);
}

void traffic_print(const traffic *t, FILE *f) {
  static const char *const headings[] = {"a step",     "ms", "most",     "waits",
                                         "idle, most", "kB", "messages", NULL};
  table out;
  double sent = 0.0;
  if (t->ranks < 2 || !(t->steps > 0.0)) return;
  table_begin(&out, headings);
  for (int i = 0; i < t->stations; i++)
    add_station_row(t, i, &out);
  table_print(&out, f);
  table_free(&out);
  for (int r = 0; r < t->ranks; r++)
    sent += t->rank[r].sent_ms;
  (void)fprintf(f, "%d ranks: messages take %.3f ms a step, %.1f %% during other work\n", t->ranks,
                sent / t->steps / t->ranks, 100.0 * traffic_compute_hidden(t));
}

void traffic_print_json(const traffic *t, FILE *f) {
  (void)fputc('[', f);
  for (int r = 0; r < t->ranks; r++) {
    const traffic_rank *k = &t->rank[r];
    (void)fprintf(f, "%s{\"sent_ms\": %.4f, \"hidden_ms\": %.4f, \"stations\": {",
                  r > 0 ? ", " : "", k->sent_ms, k->hidden_ms);
    for (int i = 0; i < t->stations; i++) {
      const train_station *s = &k->station[i];
      (void)fprintf(f,
                    "%s\"%s\": {\"ms\": %.4f, \"wait_ms\": %.4f, \"idle_ms\": %.4f, \"bytes\": "
                    "%.0f, \"messages\": %.0f}",
                    i > 0 ? ", " : "", s->name, s->ms, s->wait_ms, traffic_find_idle_ms(t, r, i),
                    s->bytes, s->messages);
    }
    (void)fputs("}}", f);
  }
  (void)fputc(']', f);
}
