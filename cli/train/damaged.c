/* damaged.c: see damaged.h. */
#include "damaged.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct damaged_file {
  const image_list *list;
  int32_t row;
  char why[PICTURE_WHY];
} damaged_file;

enum { FOUND = 1, AGREED };

void damaged_create(const data_set *d, damaged *out) {
  *out = (damaged){.set = d->images};
  if (out->set == NULL) return;
  out->known = cli_take((size_t)out->set->total, 1);
  for (int32_t i = 0; i < out->set->total; i++) {
    if (atomic_load(&out->set->told[i]) == 0) continue;
    out->known[i] = AGREED;
    out->count++;
  }
}

void damaged_free(damaged *a) {
  free(a->known);
  free(a->found);
  memset(a, 0, sizeof *a);
}

void damaged_found(damaged *a, const image_list *list, int32_t row, const char *why) {
  if (a->known[list->first + row] != 0) return;
  a->known[list->first + row] = FOUND;
  if (a->n_found == a->room) {
    const int32_t room = a->room > 0 ? 2 * a->room : 8;
    damaged_file *wide = cli_take((size_t)room, sizeof *wide);
    if (a->n_found > 0) memcpy(wide, a->found, (size_t)a->n_found * sizeof *wide);
    free(a->found);
    a->found = wide;
    a->room = room;
  }
  damaged_file *f = &a->found[a->n_found++];
  *f = (damaged_file){.list = list, .row = row};
  (void)snprintf(f->why, sizeof f->why, "%s", why);
}

static bool too_many(const damaged *a, int64_t count) { return count * 100 > a->set->total; }

bool damaged_too_many(const damaged *a) { return too_many(a, (int64_t)a->count + a->n_found); }

/* Gather the n files that the ranks found, in the order of ranks; *first: the first of this rank. */
static int gather(const damaged *a, const run_ranks *r, double *files, int64_t n, int64_t *first) {
  double *each = cli_take((size_t)r->size, sizeof *each);
  each[r->rank] = a->n_found;
  int rc = ranks_sum(r, each, r->size);
  *first = 0;
  for (int32_t i = 0; i < r->rank; i++)
    *first += (int64_t)each[i];
  for (int32_t i = 0; i < a->n_found; i++)
    files[*first + i] = a->found[i].list->first + a->found[i].row;
  free(each);
  return rc == CLI_OK ? ranks_sum(r, files, n) : rc;
}

/* Add a file to the common list. `mine`: found by this rank, which reports it; else NULL. */
static bool agree_on(damaged *a, int32_t file, const damaged_file *mine) {
  if (a->known[file] == AGREED) return true; /* found twice */
  a->known[file] = AGREED;
  a->count++;
  const bool goes_on = !too_many(a, a->count);
  atomic_store(&a->set->told[file], 1);
  if (mine == NULL) return goes_on;
  const char *path = mine->list->path[mine->row];
  if (goes_on) {
    cli_note("%s: left out, %d of %d: %s", path, a->count, a->set->total, mine->why);
  } else {
    (void)cli_bad(
        "--data: images: %d of %d files are unreadable, more than 1 %%; the last is %s: %s",
        a->count, a->set->total, path, mine->why);
  }
  return goes_on;
}

int damaged_agree(damaged *a, const run_ranks *r, int64_t n) {
  int64_t first = 0;
  bool goes_on = true;
  if (n == 0) return CLI_OK;
  double *files = cli_take((size_t)n, sizeof *files);
  int rc = gather(a, r, files, n, &first);
  for (int64_t i = 0; i < n && rc == CLI_OK && goes_on; i++) {
    const bool mine = i >= first && i < first + a->n_found;
    goes_on = agree_on(a, (int32_t)files[i], mine ? &a->found[i - first] : NULL);
  }
  a->n_found = 0;
  free(files);
  if (rc == CLI_OK && !goes_on) {
    ranks_gather(r); /* wait until the message is out */
    rc = CLI_BAD;
  }
  return rc;
}

/* ---- kept --------------------------------------------------------------------------------------*/

char *damaged_text(const damaged *a) {
  enum { DIGITS = 12 };
  if (a->set == NULL || a->count == 0) return NULL;
  char *text = cli_take((size_t)a->count + 1, DIGITS), *at = text;
  for (int32_t i = 0; i < a->set->total; i++) {
    if (a->known[i] == AGREED) at += snprintf(at, DIGITS, "%s%d", at > text ? "," : "", i);
  }
  return text;
}

static void take_over(damaged *a, int32_t file) {
  if (a->known[file] == AGREED) return;
  a->known[file] = AGREED;
  a->count++;
  atomic_store(&a->set->told[file], 1);
}

bool damaged_read(damaged *a, const char *text) {
  for (int turn = 0; turn < 2; turn++) { /* check everything, then apply */
    for (const char *at = text; at != NULL;) {
      char *end = NULL;
      errno = 0;
      const long long v = strtoll(at, &end, 10);
      if (*at < '0' || *at > '9' || errno != 0 || v >= a->set->total || (*end != ',' && *end != 0))
        return false;
      if (turn == 1) take_over(a, (int32_t)v);
      at = *end == ',' ? end + 1 : NULL;
    }
  }
  return true;
}

int damaged_share(damaged *a, const run_ranks *r) {
  if (a->set == NULL) return CLI_OK;
  int32_t n = a->count, at = 0;
  int rc = ranks_tell(r, &n, sizeof n);
  if (rc != CLI_OK || n == 0) return rc;
  int32_t *files = cli_take((size_t)n, sizeof *files);
  for (int32_t i = 0; i < a->set->total && r->rank == 0; i++) {
    if (a->known[i] == AGREED) files[at++] = i;
  }
  rc = ranks_tell(r, files, (int64_t)n * (int64_t)sizeof *files);
  for (int32_t i = 0; i < n && rc == CLI_OK; i++)
    take_over(a, files[i]);
  free(files);
  return rc;
}
