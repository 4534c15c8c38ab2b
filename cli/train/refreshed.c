/* refreshed.c: see refreshed.h. */
#include "refreshed.h"

#include <inttypes.h>
#include <string.h>

void refreshed_add(refreshed *r, const char *name, int64_t refreshes, int64_t passed, int64_t sent,
                   int64_t not_sent) {
  int i = 0;
  while (i < r->kinds && strcmp(r->kind[i].name, name) != 0)
    i++;
  if (i == REFRESHED_KINDS) return;
  struct refreshed_kind *k = &r->kind[i];
  if (i == r->kinds) {
    (void)snprintf(k->name, sizeof k->name, "%s", name);
    r->kinds++;
  }
  k->refreshed += refreshes;
  k->passed += passed;
  k->bytes_sent += sent;
  k->bytes_passed += not_sent;
}

void refreshed_print(const refreshed *r, FILE *f) {
  int64_t sent = 0, passed = 0;
  if (r->kinds == 0) return;
  (void)fputs("statistics refreshed:", f);
  for (int i = 0; i < r->kinds; i++) {
    const struct refreshed_kind *k = &r->kind[i];
    const int64_t all = k->refreshed + k->passed;
    (void)fprintf(f, "%s %s %.1f %% of %" PRId64, i > 0 ? "," : "", k->name,
                  all > 0 ? 100.0 * (double)k->refreshed / (double)all : 0.0, all);
    sent += k->bytes_sent;
    passed += k->bytes_passed;
  }
  if (sent + passed > 0) {
    (void)fprintf(f, "; %.3g of %.3g MB were not sent", (double)passed * 1e-6,
                  (double)(sent + passed) * 1e-6);
  }
  (void)fputc('\n', f);
}

void refreshed_json(const refreshed *r, FILE *f) {
  (void)fputc('{', f);
  for (int i = 0; i < r->kinds; i++) {
    const struct refreshed_kind *k = &r->kind[i];
    (void)fprintf(f,
                  "%s\"%s\": {\"refreshed\": %" PRId64 ", \"passed\": %" PRId64
                  ", \"bytes_sent\": %" PRId64 ", \"bytes_passed\": %" PRId64 "}",
                  i > 0 ? ", " : "", k->name, k->refreshed, k->passed, k->bytes_sent,
                  k->bytes_passed);
  }
  (void)fputc('}', f);
}
