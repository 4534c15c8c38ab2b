/* t_parts_forged.c: manifests of parts that are changed and then get valid checksums and part names.  Any number
 * of ranks refuses them with the same status and changes nothing.  `make asan` checks memory accesses. */
#include "unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "draw.h"
#include "ranks.h"
#include "state/work.h"
#include "state_help.h"

enum { RANKS = 3, TRIALS = 150, ROOM = 1 << 20 };

static const sim_setup setups[] = {
    {.method = "natgrad", .set = "update=sgd grad_worker_fraction=0", .linalg = "ref"},
    {.method = "mfac",
     .set = "update=sgd window=3 damping=0.1 statistics=sharded",
     .linalg = "ref"},
};

/* All parts; the first is divided into text before the manifest, the manifest, and the rest. */
typedef struct saved_parts {
  unsigned char *bytes[RANKS];
  size_t n[RANKS];
  const char *text, *rest; /* text: the escaped manifest; rest: from its closing quote */
  char id[NG_HEX + 1];
} saved_parts;

static const char head[] = "{\"__metadata__\":{\"natgrad\":\"", tail[] = "\",\"natgrad.crc32\":\"";

/* Save on all ranks, read the parts and delete them. */
static saved_parts save_and_read_parts(const sim_setup *how) {
  const path a = path_of("a");
  saved_parts x;
  must_transfer(RANKS, (transfer){.how = how, .steps = 2, .parts = a.text});
  for (int32_t r = 0; r < RANKS; r++) {
    const path p = file_of_part("a", r, RANKS);
    x.bytes[r] = read_file(p.text, &x.n[r]);
  }
  const char *header = (const char *)x.bytes[0] + 8;
  assert_memory_equal(header, head, sizeof head - 1);
  x.text = header + sizeof head - 1;
  x.rest = memmem(x.text, x.n[0] - sizeof head - 8, tail, sizeof tail - 1);
  assert_non_null(x.rest);
  memcpy(x.id, x.rest + sizeof tail - 1, NG_HEX);
  clear_folder();
  return x;
}

static void free_parts(saved_parts *x) {
  for (int32_t q = 0; q < RANKS; q++)
    free(x->bytes[q]);
}

static char manifest_text[ROOM], scratch[ROOM];

/* Put wrong numbers and words into manifest_text, which usually remains valid JSON.  Return its new length. */
static size_t change_manifest(const saved_parts *x, rng *r) {
  static const char *const wrong_value[] = {"-1",        "0",         "1",  "2",
                                            "3",         "7",         "64", "2147483648",
                                            "16777217",  "1e3",       "[]", "9223372036854775807",
                                            "\\\"1\\\"", "null",      "{}", "-9223372036854775808",
                                            "false",     "4294967296"};
  const size_t n = (size_t)(x->rest - x->text);
  const char *from = memmem(x->text, n, "\\\"tensors\\\":{", 13);
  assert_non_null(from);
  size_t used = n;
  for (int64_t edits = rng_between(r, 1, 2); edits > 0; edits--) {
    size_t at = (size_t)(from - x->text) + (size_t)rng_below(r, (int64_t)used - (from - x->text));
    if (rng_below(r, 3) > 0) { /* a number that is no part of a name or a checksum */
      while (at < used && !(strchr(":[,", manifest_text[at - 1]) != NULL &&
                            manifest_text[at] >= '0' && manifest_text[at] <= '9'))
        at++;
      size_t end = at;
      while (end < used && manifest_text[end] >= '0' && manifest_text[end] <= '9')
        end++;
      if (at >= used) continue;
      const char *word =
          wrong_value[rng_below(r, (int64_t)(sizeof wrong_value / sizeof wrong_value[0]))];
      const size_t m = strlen(word);
      memmove(manifest_text + at + m, manifest_text + end, used - end);
      memcpy(manifest_text + at, word, m);
      used = used - (end - at) + m;
    } else if (manifest_text[at] != '\\' && manifest_text[at] != '"') {
      static const char other[] = "019a,{}[]:tpf";
      manifest_text[at] = other[rng_below(r, (int64_t)sizeof other - 1)];
    }
  }
  return used;
}

/* Write rank 0's part with manifest_text of n bytes, and the other parts under their new names. */
static void write_parts(const saved_parts *x, size_t n) {
  size_t m = 0;
  for (size_t i = 0; i < n; i++) {
    if (manifest_text[i] != '\\') scratch[m++] = manifest_text[i];
  }
  const ng_hex id = ng_hex_of(ng_crc32(0, scratch, (size_t)m));
  uint64_t was = 0;
  for (int i = 7; i >= 0; i--)
    was = was << 8 | x->bytes[0][i];
  const size_t old = (size_t)(x->rest - x->text),
               after = x->n[0] - (size_t)(x->rest - (char *)x->bytes[0]);
  const uint64_t length = was + n - old;
  for (int i = 0; i < 8; i++)
    scratch[i] = (char)(unsigned char)(length >> (8 * i));
  char *at = scratch + 8;
  memcpy(at, head, sizeof head - 1);
  at += sizeof head - 1;
  memcpy(at, manifest_text, n);
  at += n;
  memcpy(at, x->rest, after);
  memcpy(at + sizeof tail - 1, id.text, NG_HEX);
  write_file(file_of_part("a", 0, RANKS).text, scratch, (size_t)(at - scratch) + after);
  for (int32_t r = 1; r < RANKS; r++) {
    char name[64];
    (void)snprintf(name, sizeof name, "a.%s-%dof%d", id.text, (int)r, RANKS);
    unsigned char *whole = memmem(x->bytes[r], x->n[r], x->id, NG_HEX);
    assert_non_null(whole);
    memcpy(whole, id.text, NG_HEX);
    write_file(path_of(name).text, x->bytes[r], x->n[r]);
    memcpy(whole, x->id, NG_HEX);
  }
}

static void edited_manifests_are_refused(void **state) {
  rng r = {test_seed()};
  int64_t refused = 0;
  for (size_t k = 0; k < sizeof setups / sizeof setups[0]; k++) {
    const path a = path_of("a");
    saved_parts x = save_and_read_parts(&setups[k]);
    const size_t whole = (size_t)(x.rest - x.text);
    for (int64_t trial = 0; trial < test_repetitions(TRIALS); trial++) {
      size_t n = whole;
      memcpy(manifest_text, x.text, whole);
      if (trial > 0) n = change_manifest(&x, &r);
      assert_true(n < ROOM / 2);
      write_parts(&x, n);
      ng_status each[RANKS];
      transfer load = {.how = &setups[k], .steps = 2, .load = a.text};
      const int32_t ranks = 1 + (int32_t)(trial % RANKS);
      (void)ranks_run(ranks, run_transfer, &load, each);
      const bool same = n == whole && memcmp(manifest_text, x.text, n) == 0;
      bool wrong = (each[0] >= NG_OK) != same;
      for (int32_t q = 0; q < ranks; q++)
        wrong = wrong || each[q] != each[0] || load.changed[q] ||
                (each[q] < NG_OK && each[q] != NG_ERR_FILE);
      if (wrong)
        fail_msg(
            "NG_TEST_SEED=%llu, trial %lld: %s manifest: rank 0 returned %s; expected the same "
            "on %d ranks, and no change if refused",
            (unsigned long long)test_seed(), (long long)trial, same ? "the unedited" : "an edited",
            ng_status_name(each[0]), ranks);
      refused += !same;
      clear_folder();
    }
    free_parts(&x);
  }
  printf("forged manifests of parts: %lld, each refused\n", (long long)refused);
}

/* The manifest lists an array in the wrong part, so the right part has one array too many. */
static void arrays_in_the_wrong_part_are_refused(void **state) {
  static const char piece[] = "\\\"pieces\\\":[{\\\"part\\\":1,\\\"crc32";
  const path a = path_of("a");
  saved_parts x = save_and_read_parts(&setups[0]);
  transfer load = {.how = &setups[0], .steps = 2, .load = a.text};
  const size_t n = (size_t)(x.rest - x.text);
  memcpy(manifest_text, x.text, n);
  char *at = memmem(manifest_text, n, piece, sizeof piece - 1);
  assert_non_null(at);
  *strchr(at, '1') = '2';
  write_parts(&x, n);
  assert_int_equal(ranks_run(1, run_transfer, &load, NULL), NG_ERR_FILE);
  if (strstr(load.message, "-1of3: tensor '") == NULL ||
      strstr(load.message, "' is not listed in the manifest for this part") == NULL)
    fail_msg("%s", load.message);
  assert_false(load.changed[0]);
  clear_folder();
  free_parts(&x);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(edited_manifests_are_refused),
                                     cmocka_unit_test(arrays_in_the_wrong_part_are_refused)};
  return cmocka_run_group_tests(tests, make_folder, remove_empty_folder);
}
