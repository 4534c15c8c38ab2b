/* state_help.c: see state_help.h. */
#include "state_help.h"
#include "ranks.h"
#include "unit_test.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a folder and its files ------------------------------------------------------------------*/

path path_of(const char *name) {
  path p;
  (void)snprintf(p.text, sizeof p.text, "%s/%s", test_folder, name);
  return p;
}

static int compare_names(const void *a, const void *b) { return strcmp(a, b); }

names list_folder(void) {
  names x = {.n = 0};
  DIR *d = opendir(test_folder);
  for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
    if (e->d_name[0] == '.') continue;
    assert_true(x.n < (int32_t)(sizeof x.text / sizeof x.text[0]));
    (void)snprintf(x.text[x.n++], sizeof x.text[0], "%s", e->d_name);
  }
  (void)closedir(d);
  qsort(x.text, (size_t)x.n, sizeof x.text[0], compare_names);
  return x;
}

void clear_folder(void) {
  const names x = list_folder();
  for (int32_t i = 0; i < x.n; i++)
    assert_int_equal(remove(path_of(x.text[i]).text), 0);
}

path file_of_part(const char *base, int32_t r, int32_t ranks) {
  char end[32];
  const names x = list_folder();
  (void)snprintf(end, sizeof end, "-%dof%d", r, ranks);
  for (int32_t i = 0; i < x.n && r > 0; i++) {
    const size_t n = strlen(x.text[i]), m = strlen(end);
    if (strncmp(x.text[i], base, strlen(base)) == 0 && x.text[i][strlen(base)] == '.' && n > m &&
        strcmp(x.text[i] + n - m, end) == 0) {
      return path_of(x.text[i]);
    }
  }
  return path_of(base);
}

void assert_same_file(const char *a, const char *b) {
  size_t n, m;
  unsigned char *x = read_file(a, &n), *y = read_file(b, &m);
  if (n != m || memcmp(x, y, n) != 0) fail_msg("%s and %s differ", a, b);
  free(x);
  free(y);
}

/* ---- small runs ------------------------------------------------------------------------------*/

const sim_setup plain = {.method = "natgrad", .set = "update=sgd stat_period=2"},
                spread = {.method = "natgrad",
                          .set = "update=sgd grad_worker_fraction=0",
                          .linalg = "ref"};

void open_and_step(sim *s, const sim_setup *how, int64_t to) {
  if (sim_open(s, how, NULL, NULL) != NG_OK) fail_msg("%s", s->message);
  for (int64_t t = 0; t < to; t++) {
    assert_true(sim_step(s, t) >= NG_OK);
  }
}

ng_status run_transfer(int32_t rank, ng_transport *t, void *arg) {
  transfer *x = arg;
  sim s;
  ng_status st = sim_open(&s, x->how != NULL ? x->how : &spread, t, NULL);
  for (int32_t i = 0; i < x->steps && st >= NG_OK; i++)
    st = sim_step(&s, i);
  const bool began = st >= NG_OK, own_part = x->last_part != NULL && rank == t->size - 1;
  const uint64_t before = began ? sim_fingerprint(&s) : 0;
  if (began && x->load != NULL) st = ng_load(s.p, x->load);
  if (st >= NG_OK && x->before_save != 0 && rank == 0 && write(x->before_save, "", 1) != 1)
    st = NG_ERR_FILE;
  if (st >= NG_OK && x->one != NULL) st = ng_save(s.p, x->one);
  if (st >= NG_OK && x->parts != NULL) st = ng_save_parts(s.p, own_part ? x->last_part : x->parts);
  const char *told = s.ctx != NULL ? ng_last_error(s.ctx) : s.message;
  x->changed[rank] = began && st < NG_OK && sim_fingerprint(&s) != before;
  x->wrong_refusal[rank] =
      x->says != NULL && (st >= NG_OK || strstr(told, x->says) == NULL || x->changed[rank]);
  if (rank == 0) (void)snprintf(x->message, sizeof x->message, "%s", told);
  if (x->wrong_refusal[rank] || (st < NG_OK && !began))
    fprintf(stderr, "rank %d: %s \"%s\", expected \"%s\"\n", rank, ng_status_name(st), told,
            x->says != NULL ? x->says : "success");
  sim_close(&s);
  return st;
}

void must_transfer(int32_t ranks, transfer x) {
  assert_int_equal(ranks_run(ranks, run_transfer, &x, NULL), NG_OK);
}

void assert_refusal(const sim *s, const char *says, uint64_t before) {
  const char *message = ng_last_error(s->ctx);
  if (strstr(message, says) == NULL) fail_msg("message \"%s\" lacks \"%s\"", message, says);
  for (const char *c = message; *c != 0; c++)
    if ((unsigned char)*c < 32 || *c == 127) fail_msg("raw control character: \"%s\"", message);
  if (sim_fingerprint(s) != before) fail_msg("\"%s\": the call changed the object", message);
}

void assert_untouched(sim *s, const sim_setup *how, int64_t at) {
  sim twin;
  open_and_step(&twin, how, at);
  assert_true(sim_step(s, at) >= NG_OK);
  assert_true(sim_step(&twin, at) >= NG_OK);
  assert_int_equal(s->weight_count, twin.weight_count);
  assert_memory_equal(s->grad, twin.grad, (size_t)s->weight_count * sizeof *s->grad);
  assert_memory_equal(s->weight, twin.weight, (size_t)s->weight_count * sizeof *s->weight);
  sim_close(&twin);
}
