/* t_factor_files.c: factor folders.  Averages come back with the same bits, also with other ranks or `statistics`;
 * missing files are skipped; a damaged file is refused by its name, and nothing changes. */
#include "unit_test.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "crc.h"
#include "draw.h"
#include "family/family.h"
#include "ranks.h"
#include "safetensors.h"
#include "state_help.h"

static const char *const files[] = {"fc1.safetensors", "conv.safetensors",
                                    "block%2Fdown.safetensors", "seq.safetensors"};
enum { FILES = sizeof files / sizeof files[0] };

static path path_in(const path *dir, const char *name) {
  path p;
  (void)snprintf(p.text, sizeof p.text, "%.80s/%.70s", dir->text, name);
  return p;
}

static int32_t delete_folder_of_factors(const path *dir) {
  DIR *d = opendir(dir->text);
  int32_t n = 0;
  if (d == NULL) return 0;
  for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
    if (e->d_name[0] == '.') continue;
    const path p = path_in(dir, e->d_name);
    n += unlink(p.text) == 0;
  }
  (void)closedir(d);
  assert_int_equal(rmdir(dir->text), 0);
  return n;
}

static void save_factors(sim *s, const path *dir) {
  if (ng_save_factors(s->p, dir->text) != NG_OK) fail_msg("%s", ng_last_error(s->ctx));
}

static int32_t load_factors(sim *s, const path *dir) {
  int32_t n = -1;
  if (ng_load_factors(s->p, dir->text, &n) != NG_OK) fail_msg("%s", ng_last_error(s->ctx));
  return n;
}

/* Hash all averages. */
static uint64_t hash_averages(const sim *s) {
  uint64_t h = UINT64_C(14695981039346656037);
  for (int32_t i = 0; i < s->p->blocks; i++) {
    const ng_block *b = s->p->block[i];
    for (int32_t k = 0; k < b->stats; k++) {
      for (int32_t j = 0; j < b->stat[k].parts && b->stat[k].rule.averaged; j++) {
        const ng_stat_part *part = &b->stat[k].part[j];
        const int64_t n =
            ng_stat_part_count(&b->stat[k], part) * ng_dtype_size(b->stat[k].average_dtype);
        if (part->average != NULL) h = sim_hash(h, part->average, (size_t)n);
      }
    }
  }
  return h;
}

/* ---- load ------------------------------------------------------------------------------------*/

static const sim_setup rows[] = {
    {.method = "natgrad", .set = "stat_period=1 solve_period=1"},
    {.method = "natgrad", .set = "stat_period=1 solve_period=1 factor_dtype=bf16 factor_blocks=2"},
    {.method = "natgrad", .set = "stat_period=1 solve_period=1 solver=eigen damping_split=joint"},
    {.method = "eva", .set = "stat_period=1"},
    {.method = "mpd-kfac", .set = "stat_period=1 solve_period=1"},
};

/* After a load, steps equal the steps of the run that saved the factors; only periods start again. */
static void a_loaded_run_equals_the_saved_run(void **state) {
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const path dir = path_of("factors");
    sim a, b, fresh;
    open_and_step(&a, &rows[i], 3);
    save_factors(&a, &dir);
    save_factors(&a, &dir); /* over existing files */
    open_and_step(&b, &rows[i], 0);
    open_and_step(&fresh, &rows[i], 0);
    assert_int_equal(load_factors(&b, &dir), FILES);
    assert_true(hash_averages(&a) == hash_averages(&b));
    assert_true(sim_step(&a, 3) >= NG_OK && sim_step(&b, 3) >= NG_OK && sim_step(&fresh, 3) >= 0);
    assert_memory_equal(a.grad, b.grad, (size_t)a.weight_count * sizeof *a.grad);
    assert_memory_not_equal(a.grad, fresh.grad, (size_t)a.weight_count * sizeof *a.grad);
    assert_int_equal(delete_folder_of_factors(&dir), FILES);
    sim_close(&fresh);
    sim_close(&b);
    sim_close(&a);
  }
}

/* The library solves a layer with loaded factors without a new observation. */
static void loaded_factors_count_as_observed(void **state) {
  static const sim_setup how = {.method = "natgrad", .set = "", .vary = SIM_SMALL};
  const path dir = path_of("deep/er");
  sim a, b;
  open_and_step(&a, &how, 2);
  save_factors(&a, &dir);
  open_and_step(&b, &how, 0);
  assert_int_equal(load_factors(&b, &dir), 1);
  assert_int_equal(sim_begin(&b, 0), NG_OK);
  for (int64_t i = 0; i < b.weight_count; i++)
    b.grad[i] = 1.0f;
  assert_int_equal(fixture_step(&b.f, &(ng_sgd){.struct_size = sizeof(ng_sgd), .lr = 0.1}),
                   NG_UNOBSERVED);
  assert_int_equal(delete_folder_of_factors(&dir), 1);
  const path deep = path_of("deep");
  assert_int_equal(delete_folder_of_factors(&deep), 0);
  sim_close(&b);
  sim_close(&a);
}

/* A load recomputes the results, also between periods. */
static void loading_recomputes_inverses(void **state) {
  static const sim_setup how = {.method = "natgrad", .set = "stat_period=10 solve_period=10"};
  const path dir = path_of("factors");
  sim a, b, twin;
  static const sim_setup every = {.method = "natgrad", .set = "stat_period=1 solve_period=1"};
  open_and_step(&a, &every, 3);
  save_factors(&a, &dir);
  open_and_step(&b, &how, 1);
  open_and_step(&twin, &how, 1);
  assert_int_equal(load_factors(&b, &dir), FILES);
  assert_true(sim_step(&b, 1) >= NG_OK && sim_step(&twin, 1) >= NG_OK);
  assert_memory_not_equal(b.grad, twin.grad, (size_t)b.weight_count * sizeof *b.grad);
  assert_int_equal(delete_folder_of_factors(&dir), FILES);
  sim_close(&twin);
  sim_close(&b);
  sim_close(&a);
}

/* ---- ranks -----------------------------------------------------------------------------------*/

/* What each rank does: load the factors in the folder `from`, or take three steps if NULL; save them in `to`. */
typedef struct passing {
  const sim_setup *how;
  const char *from, *to;
  int32_t layers[8];
  uint64_t hash[8];
} passing;

static ng_status pass_factors_on(int32_t rank, ng_transport *t, void *arg) {
  passing *x = arg;
  sim s;
  ng_status st = sim_open(&s, x->how, t, NULL);
  for (int64_t i = 0; i < 3 && x->from == NULL && st >= NG_OK; i++) {
    st = sim_step(&s, i);
  }
  if (st >= NG_OK && x->from != NULL) st = ng_load_factors(s.p, x->from, &x->layers[rank]);
  if (st >= NG_OK && x->to != NULL) st = ng_save_factors(s.p, x->to);
  if (st >= NG_OK) x->hash[rank] = hash_averages(&s);
  if (st < NG_OK)
    fprintf(stderr, "rank %d: %s %s\n", rank, s.message, s.ctx ? ng_last_error(s.ctx) : "");
  sim_close(&s);
  return st;
}

static const char *const spreads[] = {
    "statistics=all grad_worker_fraction=0 colocate=0", "statistics=owner grad_worker_fraction=0",
    "statistics=local grad_worker_fraction=0", "statistics=all placement=mpd-kfac",
    "statistics=owner colocate=0 placement=round-robin"};

enum { SPREADS = sizeof spreads / sizeof spreads[0] };

static void factors_load_on_other_ranks(void **state) {
  for (int i = 0; i < SPREADS; i++) {
    for (int32_t ranks = 1; ranks <= 4; ranks += 3) {
      const path first = path_of("first"), second = path_of("second");
      const sim_setup how = {.method = "natgrad", .set = spreads[i]};
      const sim_setup other = {.method = "natgrad", .set = spreads[(i + 1) % SPREADS]};
      passing made = {.how = &how, .to = first.text};
      passing moved = {.how = &other, .from = first.text, .to = second.text};
      assert_int_equal(ranks_run(3, pass_factors_on, &made, NULL), NG_OK);
      assert_int_equal(ranks_run(ranks, pass_factors_on, &moved, NULL), NG_OK);
      for (int32_t r = 0; r < ranks; r++)
        assert_int_equal(moved.layers[r], FILES);
      for (int32_t r = 1; r < ranks && strstr(other.set, "=all") != NULL; r++) {
        assert_true(moved.hash[r] == moved.hash[0]);
      }
      for (int k = 0; k < FILES; k++) {
        const path a = path_in(&first, files[k]), b = path_in(&second, files[k]);
        assert_same_file(a.text, b.text);
      }
      assert_int_equal(delete_folder_of_factors(&first), FILES);
      assert_int_equal(delete_folder_of_factors(&second), FILES);
    }
  }
}

/* ---- missing and damaged files ---------------------------------------------------------------*/

static void missing_files_change_nothing(void **state) {
  const path dir = path_of("factors");
  sim a, b;
  open_and_step(&b, &plain, 1);
  const uint64_t before = sim_fingerprint(&b);
  assert_int_equal(load_factors(&b, &dir), 0);
  assert_true(sim_fingerprint(&b) == before);
  open_and_step(&a, &plain, 0);
  save_factors(&a, &dir); /* without samples: no file */
  assert_int_equal(load_factors(&b, &dir), 0);
  assert_true(sim_fingerprint(&b) == before);
  assert_true(sim_step(&a, 0) >= NG_OK);
  save_factors(&a, &dir);
  const path conv = path_in(&dir, files[1]);
  assert_int_equal(unlink(conv.text), 0);
  assert_int_equal(load_factors(&b, &dir), FILES - 1);
  assert_int_equal(delete_folder_of_factors(&dir), FILES - 1);
  sim_close(&b);
  sim_close(&a);
}

static void must_refuse_factors(sim *s, const char *dir, ng_status st, const char *says,
                                uint64_t before) {
  int32_t layers = -7;
  assert_int_equal(ng_load_factors(s->p, dir, &layers), st);
  assert_refusal(s, says, before);
  assert_int_equal(layers, -7);
}

/* The damaged file is read last; then averages of the files before are not used, either. */
static void damaged_files_are_refused(void **state) {
  const path dir = path_of("factors"), file = path_in(&dir, files[3]);
  sim a, b;
  size_t n;
  open_and_step(&a, &plain, 3);
  save_factors(&a, &dir);
  open_and_step(&b, &plain, 1);
  const uint64_t before = sim_fingerprint(&b);
  unsigned char *bytes = read_file(file.text, &n);
  for (size_t i = 0; i < n; i += 3) {
    bytes[i] ^= (unsigned char)(1u << (i * 5 % 8));
    write_file(file.text, bytes, n);
    must_refuse_factors(&b, dir.text, NG_ERR_FILE, files[3], before);
    bytes[i] ^= (unsigned char)(1u << (i * 5 % 8));
  }
  for (size_t cut = 0; cut < n; cut += 7) {
    write_file(file.text, bytes, cut);
    must_refuse_factors(&b, dir.text, NG_ERR_FILE, files[3], before);
  }
  const path other = path_in(&dir, files[0]);
  assert_int_equal(unlink(file.text), 0);
  assert_int_equal(rename(other.text, file.text), 0);
  must_refuse_factors(&b, dir.text, NG_ERR_FILE, "another layer", before);
  assert_int_equal(unlink(file.text), 0);
  static const char none[] =
      "{\"__metadata__\":{\"natgrad.layer\":\"seq\",\"natgrad.crc32\":\"00000000\"}}";
  unsigned char empty[8 + sizeof none - 1] = {sizeof none - 1};
  memcpy(empty + 8, none, sizeof none - 1);
  write_file(file.text, empty, sizeof empty);
  must_refuse_factors(&b, dir.text, NG_ERR_FILE, "has tensors that this layer lacks", before);
  assert_int_equal(unlink(file.text), 0);
  write_file(file.text, bytes, n);
  must_refuse_factors(&b, file.text, NG_ERR_FILE, "is not a folder", before);
  must_refuse_factors(&b, "", NG_ERR_ARG, "no folder given", before);
  assert_int_equal(ng_save_factors(b.p, file.text), NG_ERR_FILE);
  assert_refusal(&b, "cannot make the folder", before);
  assert_untouched(&b, &plain, 1);
  assert_int_equal(load_factors(&b, &dir), FILES - 1);
  assert_int_equal(sim_begin(&b, 1), NG_OK);
  assert_int_equal(ng_load_factors(b.p, dir.text, NULL), NG_ERR_STATE);
  assert_int_equal(ng_save_factors(b.p, dir.text), NG_ERR_STATE);
  free(bytes);
  assert_int_equal(delete_folder_of_factors(&dir), FILES - 1);
  sim_close(&b);
  sim_close(&a);
}

static void factors_of_other_models_are_refused(void **state) {
  static const struct {
    sim_setup how;
    const char *says;
  } other[] = {
      {{.method = "natgrad", .set = "update=sgd", .vary = SIM_WIDER}, "'A' has another shape"},
      {{.method = "natgrad", .set = "factor_dtype=f16"}, "has another dtype"},
      {{.method = "natgrad", .set = "factor_blocks=2"}, "has tensors that this layer lacks"},
      {{.method = "eva", .set = ""}, "has tensors that this layer lacks"},
  };
  const path dir = path_of("factors");
  sim a;
  open_and_step(&a, &plain, 3);
  save_factors(&a, &dir);
  for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
    sim b;
    open_and_step(&b, &other[i].how, 1);
    must_refuse_factors(&b, dir.text, NG_ERR_FILE, other[i].says, sim_fingerprint(&b));
    assert_untouched(&b, &other[i].how, 1);
    sim_close(&b);
  }
  assert_int_equal(delete_folder_of_factors(&dir), FILES);
  sim_close(&a);
}

/* ---- random damage ---------------------------------------------------------------------------*/

enum { MOST_BYTES = 1 << 16 };

typedef struct forgery {
  unsigned char bytes[MOST_BYTES];
  size_t n;
} forgery;

static size_t header_end(const forgery *x) {
  uint64_t n = 0;
  if (x->n >= 8) memcpy(&n, x->bytes, 8);
  return n < x->n && 8 + n <= x->n ? 8 + (size_t)n : x->n;
}

/* Write the checksum of the arrays as they are now. */
static void repair_checksum(forgery *x) {
  static const char key[] = "natgrad.crc32\":\"";
  const size_t end = header_end(x);
  for (size_t i = 8; i + sizeof key + 8 < end; i++) {
    if (memcmp(x->bytes + i, key, sizeof key - 1) != 0) continue;
    char hex[9];
    (void)snprintf(hex, sizeof hex, "%08x", ng_crc32(0, x->bytes + end, x->n - end));
    memcpy(x->bytes + i + sizeof key - 1, hex, 8);
  }
}

static void damage_file(rng *r, forgery *x) {
  static const float number[] = {0, -0.0F, -1, 1e-38F, 3e38F, -3e38F, INFINITY, NAN};
  static const char letter[] = "0123456789{}[]\",:-eFA\\ ";
  const size_t end = header_end(x);
  if (x->n < 16) return;
  switch (rng_below(r, 6)) {
  case 0: /* a bit */
    x->bytes[rng_below(r, (int64_t)x->n)] ^= (unsigned char)(1U << rng_below(r, 8));
    break;
  case 1:
  case 2: /* an element */
    if (end + 4 > x->n) break;
    memcpy(x->bytes + end + 4 * (size_t)rng_below(r, (int64_t)(x->n - end) / 4),
           &number[rng_below(r, 8)], 4);
    break;
  case 3: /* a letter of the header */
    x->bytes[rng_between(r, 8, (int64_t)end - 1)] =
        (unsigned char)letter[rng_below(r, sizeof letter - 1)];
    break;
  case 4:
    x->n = (size_t)rng_below(r, (int64_t)x->n);
    break;
  default: /* a digit of the header, as in shapes and offsets */
    for (int64_t i = rng_between(r, 8, (int64_t)end - 1); i < (int64_t)end; i++) {
      if (x->bytes[i] < '0' || x->bytes[i] > '9') continue;
      x->bytes[i] = (unsigned char)('0' + rng_below(r, 10));
      break;
    }
  }
}

/* Put something else in place of a file: nothing, a link to itself, a pipe, the file of another layer, an empty file. */
static void replace_file(rng *r, const path *dir, const path *file) {
  const path other = path_in(dir, files[rng_below(r, FILES)]);
  (void)unlink(file->text);
  switch (rng_below(r, 5)) {
  case 0:
    break;
  case 1:
    assert_int_equal(symlink(file->text, file->text), 0);
    break;
  case 2:
    assert_int_equal(mkfifo(file->text, 0600), 0);
    break;
  case 3:
    (void)link(other.text, file->text);
    break;
  default:
    write_file(file->text, "", 0);
  }
}

/* Files with one to three random changes, often with a right checksum.  The folder is loaded, and the next step
 * succeeds, or it is refused in one line that names a file, and nothing changes. */
static void forged_folders_are_loaded_or_refused(void **state) {
  const path dir = path_of("factors");
  rng r = {test_seed()};
  const int64_t tries = test_repetitions(300);
  int64_t loaded = 0;
  forgery good[FILES];
  sim a, b;
  open_and_step(&a, &plain, 3);
  save_factors(&a, &dir);
  sim_close(&a);
  for (int k = 0; k < FILES; k++) {
    size_t n;
    unsigned char *bytes = read_file(path_in(&dir, files[k]).text, &n);
    assert_true(n <= MOST_BYTES);
    memcpy(good[k].bytes, bytes, good[k].n = n);
    free(bytes);
  }
  open_and_step(&b, &plain, 1);
  uint64_t before = sim_fingerprint(&b);
  for (int64_t i = 0; i < tries; i++) {
    for (int k = 0; k < FILES; k++) {
      const path file = path_in(&dir, files[k]);
      (void)unlink(file.text);
      write_file(file.text, good[k].bytes, good[k].n);
    }
    for (int64_t n = rng_between(&r, 1, 3); n > 0; n--) {
      const int k = (int)rng_below(&r, FILES);
      const path file = path_in(&dir, files[k]);
      forgery x = good[k];
      if (rng_below(&r, 8) == 0) {
        replace_file(&r, &dir, &file);
        continue;
      }
      for (int64_t m = rng_between(&r, 1, 3); m > 0; m--)
        damage_file(&r, &x);
      if (rng_below(&r, 4) > 0) repair_checksum(&x);
      (void)unlink(file.text);
      write_file(file.text, x.bytes, x.n);
    }
    const ng_status st = ng_load_factors(b.p, dir.text, NULL);
    if (st == NG_OK) {
      loaded++;
      if (sim_step(&b, 1) < NG_OK) fail_msg("try %d: %s", (int)i, ng_last_error(b.ctx));
      sim_close(&b);
      open_and_step(&b, &plain, 1);
      before = sim_fingerprint(&b);
      continue;
    }
    if (st != NG_ERR_FILE) fail_msg("try %d: %s", (int)i, ng_status_name(st));
    assert_refusal(&b, ".safetensors", before);
  }
  printf("factor folders: forged = %d loaded = %d\n", (int)tries, (int)loaded);
  assert_true(loaded * 20 > tries && loaded * 4 < 3 * tries);
  assert_untouched(&b, &plain, 1);
  (void)delete_folder_of_factors(&dir);
  sim_close(&b);
}

/* One rank cannot read its file: all ranks refuse with its message. */
typedef struct failing {
  const char *folder;
  char message[4][256];
} failing;

static ng_status load_refused_factors(int32_t rank, ng_transport *t, void *arg) {
  failing *x = arg;
  sim s;
  ng_status st = sim_open(&s, &plain, t, NULL);
  const uint64_t before = sim_fingerprint(&s);
  if (st >= NG_OK) st = ng_load_factors(s.p, x->folder, NULL);
  (void)snprintf(x->message[rank], sizeof x->message[0], "%s", ng_last_error(s.ctx));
  if (sim_fingerprint(&s) != before) st = NG_OK;
  sim_close(&s);
  return st;
}

static void a_fault_on_one_rank_is_refused_by_all(void **state) {
  const path dir = path_of("factors"), file = path_in(&dir, files[2]);
  ng_status each[4];
  sim a;
  open_and_step(&a, &plain, 3);
  save_factors(&a, &dir);
  sim_close(&a);
  write_file(file.text, (const unsigned char *)"12345678", 8);
  failing x = {.folder = dir.text};
  assert_int_equal(ranks_run(4, load_refused_factors, &x, each), NG_ERR_FILE);
  for (int r = 0; r < 4; r++) {
    assert_int_equal(each[r], NG_ERR_FILE);
    assert_non_null(strstr(x.message[r], files[2]));
    assert_string_equal(x.message[r], x.message[0]);
  }
  assert_int_equal(delete_folder_of_factors(&dir), FILES);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_loaded_run_equals_the_saved_run),
      cmocka_unit_test(loaded_factors_count_as_observed),
      cmocka_unit_test(loading_recomputes_inverses),
      cmocka_unit_test(factors_load_on_other_ranks),
      cmocka_unit_test(missing_files_change_nothing),
      cmocka_unit_test(damaged_files_are_refused),
      cmocka_unit_test(forged_folders_are_loaded_or_refused),
      cmocka_unit_test(factors_of_other_models_are_refused),
      cmocka_unit_test(a_fault_on_one_rank_is_refused_by_all),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_empty_folder);
}
