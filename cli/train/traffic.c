/* traffic.c: see traffic.h. */
#include "traffic.h"
#include "table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one meter for all -------------------------------------------------------------------------*/

static ng_status wire_run(void *user, const ng_collective *c) {
  traffic_wire *w = user;
  const double t0 = ng_now_ms();
  ng_meter_begin(&w->meter);
  const ng_status st = w->inner.run(w->inner.user, c);
  ng_meter_end(&w->meter);
  w->meter.wait_ms += ng_now_ms() - t0;
  return st;
}

static ng_status wire_start(void *user, const ng_collective *c, void **request) {
  traffic_wire *w = user;
  ng_meter_begin(&w->meter);
  return w->inner.start(w->inner.user, c, request);
}

static ng_status wire_wait(void *user, void *request) {
  traffic_wire *w = user;
  const double t0 = ng_now_ms();
  const ng_status st = w->inner.wait(w->inner.user, request);
  ng_meter_end(&w->meter);
  w->meter.wait_ms += ng_now_ms() - t0;
  return st;
}

static ng_status wire_test(void *user, void *request, int32_t *done) {
  traffic_wire *w = user;
  const ng_status st = w->inner.test(w->inner.user, request, done);
  if (*done != 0) ng_meter_end(&w->meter);
  return st;
}

static ng_status wire_group(void *user, const int32_t *ranks, int32_t n, void **group) {
  const traffic_wire *w = user;
  return w->inner.group_create(w->inner.user, ranks, n, group);
}

static void wire_ungroup(void *user, void *group) {
  const traffic_wire *w = user;
  w->inner.group_destroy(w->inner.user, group);
}

static void wire_abort(void *user) {
  const traffic_wire *w = user;
  w->inner.abort(w->inner.user);
}

const ng_transport *traffic_through(traffic_wire *w, const ng_transport *t) {
  memset(w, 0, sizeof *w);
  if (t == NULL) return NULL;
  w->inner = w->table = *t;
  w->table.user = w;
  w->table.run = wire_run;
  if (t->start != NULL) w->table.start = wire_start;
  if (t->wait != NULL) w->table.wait = wire_wait;
  if (t->test != NULL) w->table.test = wire_test;
  if (t->group_create != NULL) w->table.group_create = wire_group;
  if (t->group_destroy != NULL) w->table.group_destroy = wire_ungroup;
  if (t->abort != NULL) w->table.abort = wire_abort;
  return &w->table;
}

/* ---- over ranks --------------------------------------------------------------------------------*/

enum { OF_RANK = 2, OF_STATION = 4 };

static void put(const traffic_rank *r, int stations, double *x) {
  *x++ = r->sent_ms;
  *x++ = r->hidden_ms;
  for (int i = 0; i < stations; i++) {
    const traffic_station *s = &r->station[i];
    *x++ = s->ms;
    *x++ = s->wait_ms;
    *x++ = s->bytes;
    *x++ = s->messages;
  }
}

static void take(const double *x, int stations, traffic_rank *r) {
  r->sent_ms = *x++;
  r->hidden_ms = *x++;
  for (int i = 0; i < stations; i++) {
    traffic_station *s = &r->station[i];
    s->ms = *x++;
    s->wait_ms = *x++;
    s->bytes = *x++;
    s->messages = *x++;
  }
}

int traffic_gather(const run_ranks *ranks, const traffic_rank *mine, int stations, double steps,
                   traffic *out) {
  const int each = OF_RANK + OF_STATION * stations;
  memset(out, 0, sizeof *out);
  if (ranks->size == 1) return CLI_OK;
  double *x = cli_take((size_t)ranks->size * (size_t)each, sizeof *x);
  put(mine, stations, x + (int64_t)ranks->rank * each);
  const int rc = ranks_sum(ranks, x, (int64_t)ranks->size * each);
  if (rc == CLI_OK) {
    *out =
        (traffic){ranks->size, stations, steps, cli_take((size_t)ranks->size, sizeof *out->rank)};
    for (int r = 0; r < ranks->size; r++) {
      out->rank[r] = *mine; /* the names */
      take(x + (int64_t)r * each, stations, &out->rank[r]);
    }
  }
  free(x);
  return rc;
}

void traffic_free(traffic *t) {
  free(t->rank);
  memset(t, 0, sizeof *t);
}

/* ---- what follows from it ----------------------------------------------------------------------*/

double traffic_idle(const traffic *t, int rank, int station) {
  double least = INFINITY;
  for (int r = 0; r < t->ranks; r++)
    least = fmin(least, t->rank[r].station[station].wait_ms);
  return t->rank[rank].station[station].wait_ms - least;
}

double traffic_balance(const traffic *t, const char *station) {
  double sum = 0.0, most = 0.0;
  for (int r = 0; r < t->ranks; r++) {
    for (int i = 0; i < t->stations; i++) {
      const traffic_station *s = &t->rank[r].station[i];
      if (strcmp(s->name, station) != 0) continue;
      sum += s->ms;
      most = fmax(most, s->ms);
    }
  }
  return sum > 0.0 ? most * t->ranks / sum : 1.0;
}

double traffic_hidden(const traffic *t) {
  double sent = 0.0, hidden = 0.0;
  for (int r = 0; r < t->ranks; r++) {
    sent += t->rank[r].sent_ms;
    hidden += t->rank[r].hidden_ms;
  }
  return sent > 0.0 ? hidden / sent : 0.0;
}

/* ---- telling -----------------------------------------------------------------------------------*/

static void print_station(const traffic *t, int i, table *out) {
  traffic_station sum = {.ms = 0.0};
  double most = 0.0, idle = 0.0;
  for (int r = 0; r < t->ranks; r++) {
    const traffic_station *s = &t->rank[r].station[i];
    sum.ms += s->ms;
    sum.wait_ms += s->wait_ms;
    sum.bytes += s->bytes;
    sum.messages += s->messages;
    most = fmax(most, s->ms);
    idle = fmax(idle, traffic_idle(t, r, i));
  }
  const double all = t->steps * t->ranks;
  if (sum.bytes == 0.0 && most < 0.0005 * t->steps) return;
  table_row(out);
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
    print_station(t, i, &out);
  table_text(&out, f);
  table_free(&out);
  for (int r = 0; r < t->ranks; r++)
    sent += t->rank[r].sent_ms;
  (void)fprintf(f, "%d ranks: messages under way %.3f ms a step, %.1f %% hidden\n", t->ranks,
                sent / t->steps / t->ranks, 100.0 * traffic_hidden(t));
  (void)fprintf(f, "solve: the slowest rank takes %.2f times the mean\n",
                traffic_balance(t, "solve"));
}

void traffic_json(const traffic *t, FILE *f) {
  (void)fputc('[', f);
  for (int r = 0; r < t->ranks; r++) {
    const traffic_rank *k = &t->rank[r];
    (void)fprintf(f, "%s{\"sent_ms\": %.4f, \"hidden_ms\": %.4f, \"stations\": {",
                  r > 0 ? ", " : "", k->sent_ms, k->hidden_ms);
    for (int i = 0; i < t->stations; i++) {
      const traffic_station *s = &k->station[i];
      (void)fprintf(f,
                    "%s\"%s\": {\"ms\": %.4f, \"wait_ms\": %.4f, \"idle_ms\": %.4f, \"bytes\": "
                    "%.0f, \"messages\": %.0f}",
                    i > 0 ? ", " : "", s->name, s->ms, s->wait_ms, traffic_idle(t, r, i), s->bytes,
                    s->messages);
    }
    (void)fputs("}}", f);
  }
  (void)fputc(']', f);
}
