/* t_parts.c: a state in one file per rank.
 *
 * The oracle is the state in one file, which t_state.c compares with an uninterrupted run.  Any number of ranks
 * with any placement loads the parts and saves one file; its bytes equal a state that was never in parts. */
#include "unit_test.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "draw.h"
#include "ranks.h"
#include "safetensors.h"
#include "state_help.h"
#include "tap.h"

enum { MOST = 4 };

/* ---- any ranks, any placement ----------------------------------------------------------------*/

#define OWNERS "update=sgd grad_worker_fraction=0 "
#define ALL "update=sgd grad_worker_fraction=1 "
#define WINDOW "update=sgd window=3 damping=0.1 "

/* Options of the run that saves, and of the run that loads. */
static const struct {
  sim_setup from, to;
} rows[] = {
    {{.method = "natgrad", .set = OWNERS}, {.method = "natgrad", .set = ALL}},
    {{.method = "natgrad", .set = ALL "placement=kaisa colocate=0"},
     {.method = "natgrad", .set = OWNERS "placement=round-robin"}},
    {{.method = "natgrad",
      .set = "update=adamw update_ranks=owner factor_dtype=bf16 inverse_dtype=f16"},
     {.method = "natgrad",
      .set = "update=adamw update_ranks=owner placement=round-robin factor_dtype=bf16 "
             "inverse_dtype=f16"}},
    {{.method = "natgrad", .set = OWNERS "statistics=owner solver=eigen damping_split=joint"},
     {.method = "natgrad",
      .set = OWNERS "statistics=owner solver=eigen damping_split=joint placement=mpd-kfac"}},
    {{.method = "natgrad", .set = ALL "statistics=owner colocate=0 placement=round-robin"},
     {.method = "natgrad", .set = OWNERS "statistics=owner"}},
    {{.method = "natgrad", .set = ALL "statistics=owner placement=kaisa"},
     {.method = "natgrad", .set = ALL "statistics=owner colocate=0 placement=round-robin"}},
    {{.method = "dp-kfac", .set = "update=sgd"},
     {.method = "dp-kfac", .set = "update=sgd placement=contiguous"}},
    {{.method = "spngd", .set = "update=sgd"}, {.method = "spngd", .set = "update=sgd"}},
    {{.method = "eva", .set = "update=sgd"}, {.method = "eva", .set = "update=sgd"}},
    {{.method = "mfac", .set = WINDOW "statistics=sharded"},
     {.method = "mfac", .set = WINDOW "statistics=sharded"}},
    {{.method = "mfac", .set = WINDOW "statistics=sharded"}, {.method = "mfac", .set = WINDOW}},
    {{.method = "mfac", .set = WINDOW}, {.method = "mfac", .set = WINDOW "statistics=sharded"}},
    {{.method = "efcp",
      .set = WINDOW "statistics=sharded window_density=0.3 window_store=topk-layer"},
     {.method = "efcp",
      .set = WINDOW "statistics=sharded window_density=0.3 window_store=topk-layer"}},
    {{.method = "lowrank-mfac", .set = WINDOW "statistics=sharded window_rank=2"},
     {.method = "lowrank-mfac", .set = WINDOW "statistics=sharded window_rank=2"}},
    {{.method = "ggt", .set = WINDOW "statistics=sharded"},
     {.method = "ggt", .set = WINDOW "statistics=sharded"}},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static void any_number_of_ranks_loads_the_parts(void **state) {
  const path one = path_of("one"), parts = path_of("parts"), x = path_of("x"), y = path_of("y");
  for (int i = 0; i < ROWS; i++) {
    for (int32_t n = 1; n <= MOST; n++) {
      transfer m = {.how = &rows[i].from, .steps = 3, .one = one.text, .parts = parts.text};
      if (ranks_run(n, run_transfer, &m, NULL) != NG_OK)
        fail_msg("row %d: %d ranks could not save", i, n);
      assert_int_equal(list_folder().n, 1 + n);
      for (int32_t k = 1; k <= MOST; k++) {
        m = (transfer){.how = &rows[i].to, .load = one.text, .one = x.text};
        if (ranks_run(k, run_transfer, &m, NULL) != NG_OK)
          fail_msg("row %d: one file of %d ranks: %d ranks could not load and save it", i, n, k);
        m = (transfer){.how = &rows[i].to, .load = parts.text, .one = y.text};
        if (ranks_run(k, run_transfer, &m, NULL) != NG_OK)
          fail_msg("row %d: parts of %d ranks: %d ranks could not load and save them", i, n, k);
        assert_same_file(x.text, y.text);
      }
      clear_folder();
    }
  }
}

/* ---- a kill during a save --------------------------------------------------------------------*/

static int64_t now_us(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Save step 3 in parts from n ranks, in a child process; kill it `us` microseconds after the save began, or let it end
 * if us < 0.  Return the microseconds from the beginning of the save to the end of the child. */
static int64_t save_in_child(int32_t n, const char *parts, int64_t us) {
  int began[2], status = 0;
  char byte;
  assert_int_equal(pipe(began), 0);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    transfer x = {.parts = parts, .steps = 3, .before_save = began[1]};
    _exit(ranks_run(n, run_transfer, &x, NULL) == NG_OK ? 0 : 1);
  }
  (void)close(began[1]);
  assert_int_equal(read(began[0], &byte, 1), 1);
  const int64_t since = now_us();
  if (us >= 0) {
    (void)usleep((useconds_t)us);
    (void)kill(child, SIGKILL);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) ? us >= 0 : WEXITSTATUS(status) == 0);
  (void)close(began[0]);
  return now_us() - since;
}

/* Save step 2, then save step 3 into the same folder, each by any number of ranks; kill this save at a random moment.  Any
 * number of ranks then loads one of the two states, bit for bit. */
static void any_number_of_ranks_resumes_after_a_kill(void **state) {
  const path parts = path_of("parts"), one = path_of("one");
  rng r = {test_seed()};
  unsigned char *want[MOST][2];
  size_t size[MOST][2];
  int64_t took[MOST], found[2] = {0, 0}, saving = 0;
  for (int32_t n = 1; n <= MOST; n++) {
    for (int32_t late = 0; late < 2; late++) {
      must_transfer(n, (transfer){.one = one.text, .steps = 2 + late});
      want[n - 1][late] = read_file(one.text, &size[n - 1][late]);
    }
    took[n - 1] = save_in_child(n, parts.text, -1);
    clear_folder();
  }
  const int64_t tries = test_repetitions(40);
  for (int64_t i = 0; i < tries; i++) {
    const int32_t first = (int32_t)rng_between(&r, 1, MOST),
                  then = (int32_t)rng_between(&r, 1, MOST),
                  last = (int32_t)rng_between(&r, 1, MOST);
    must_transfer(first, (transfer){.parts = parts.text, .steps = 2});
    (void)save_in_child(then, parts.text, rng_below(&r, took[then - 1] + 1));
    saving += list_folder().n > first;
    must_transfer(last, (transfer){.load = parts.text, .one = one.text});
    size_t n;
    unsigned char *got = read_file(one.text, &n);
    const bool is_old = n == size[first - 1][0] && memcmp(got, want[first - 1][0], n) == 0;
    const bool is_new = n == size[then - 1][1] && memcmp(got, want[then - 1][1], n) == 0;
    if (!is_old && !is_new)
      fail_msg("try %d: %d ranks loaded neither state of %d and %d ranks", (int)i, (int)last,
               (int)first, (int)then);
    found[is_new]++;
    free(got);
    clear_folder();
  }
  printf("kills of a save: tries = %d earlier_state = %d new_state = %d with_files_of_both = %d\n",
         (int)tries, (int)found[0], (int)found[1], (int)saving);
  for (int32_t n = 0; n < 2 * MOST; n++)
    free(want[n / 2][n % 2]);
}

/* ---- memory and messages ---------------------------------------------------------------------*/

enum { WIDE = 256, LAYERS = 6, ONE = WIDE * (WIDE + 1) / 2 * (int)sizeof(float) };

typedef struct memory_use {
  const char *parts;
  int64_t saving[MOST], loading[MOST]; /* largest additional memory */
  int64_t held[MOST];                  /* bytes of averages and inverses */
  int64_t sent[MOST];                  /* bytes of collectives of both calls */
} memory_use;

/* Linear layers with A and G of order WIDE, which only their owners store. */
static ng_status measure_memory_of_rank(int32_t rank, ng_transport *t, void *arg) {
  memory_use *x = arg;
  allocator memory = {0};
  tap counted = {.inner = *t};
  ng_transport mine = tap_transport(&counted, NO_START);
  mine.kinds = 0; /* without other collectives and groups, `tap` counts every byte */
  mine.group_create = NULL;
  mine.group_destroy = NULL;
  const ng_context_config config = allocator_config(&memory);
  fixture f;
  float *g = calloc((size_t)WIDE * WIDE, sizeof *g);
  float *a = calloc((size_t)4 * WIDE, sizeof *a);
  ng_status st = g == NULL || a == NULL ? NG_ERR_NOMEM : NG_OK;
  if (st == NG_OK) {
    const fixture_how how = {.transport = &mine, .threads = 1, .config = &config};
    st = fixture_open(&f, "method=natgrad statistics=owner grad_worker_fraction=0 damping=0.1",
                      &how);
  }
  for (int i = 0; i < 4 * WIDE && st == NG_OK; i++)
    a[i] = (float)(i % 7 - 3);
  for (int i = 0; i < LAYERS && st == NG_OK; i++) {
    char name[16];
    int32_t index;
    (void)snprintf(name, sizeof name, "fc%d", i);
    const plane w = plane_of(g, WIDE, WIDE, NG_F32);
    st = ng_add_linear(f.p, name, WIDE, WIDE, 0, &index);
    if (st == NG_OK) st = fixture_bind(&f, index, NG_WEIGHT, &w, NULL);
  }
  if (st == NG_OK) st = ng_ready(f.p);
  if (st == NG_OK) st = fixture_begin(&f, 4);
  for (int i = 0; i < LAYERS && st == NG_OK; i++) {
    const plane v = plane_of(a, 4, WIDE, NG_F32);
    st = fixture_observe(&f, i, &v, &v);
  }
  if (st == NG_OK) st = ng_step(f.p, 0.1);
  ng_report held = {.struct_size = sizeof held};
  if (st >= NG_OK) st = ng_report_read(f.p, &held);
  x->held[rank] += held.factors + held.results;
  counted.bytes = 0;
  memory.most = memory.held;
  int64_t before = memory.held;
  if (st >= NG_OK) st = ng_save_parts(f.p, x->parts);
  x->saving[rank] = memory.most - before;
  memory.most = memory.held;
  before = memory.held;
  if (st >= NG_OK) st = ng_load(f.p, x->parts);
  x->loading[rank] = memory.most - before;
  x->sent[rank] = counted.bytes;
  fixture_close(&f);
  free(a);
  free(g);
  return st;
}

/* Three ranks store twelve averages and inverses of 131,584 bytes.  Saving needs one such array and lists of 24
 * arrays.  Loading needs the arrays of the rank, a buffer of 256 kB, lists and the manifest.  64 kB are three
 * times the lists' size seen.  Messages are shorter than one array in total. */
static void memory_of_saving_and_loading_is_bounded(void **state) {
  const path parts = path_of("parts");
  memory_use x = {.parts = parts.text};
  assert_int_equal(ranks_run(3, measure_memory_of_rank, &x, NULL), NG_OK);
  for (int r = 0; r < 3; r++) {
    const int64_t lists = 65536, held = x.held[r];
    if (getenv("NG_TEST_SHOW") != NULL)
      printf("rank %d: holds %lld saving %lld loading %lld sent %lld\n", r, (long long)held,
             (long long)x.saving[r], (long long)x.loading[r], (long long)x.sent[r]);
    assert_true(held >= 2 * ONE && held < 24LL * ONE / 2);
    assert_true(x.saving[r] >= ONE && x.saving[r] < ONE + lists);
    assert_true(x.loading[r] < held + (1 << 18) + ONE + lists);
    assert_true(x.sent[r] < ONE);
  }
  clear_folder();
}

/* ---- moments that every rank has -------------------------------------------------------------*/

/* At least `parts_with` parts hold moments of weights that every rank updates, and the largest part is at most
 * `ratio` times the smallest. */
static void expect_moments_in_parts(const sim_setup *how, int32_t parts_with, double ratio) {
  const path parts = path_of("parts");
  must_transfer(3, (transfer){.how = how, .steps = 3, .parts = parts.text});
  int64_t least = INT64_MAX, most = 0;
  int32_t with = 0;
  DIR *d = opendir(test_folder);
  for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
    int32_t moments = 0;
    int64_t bytes = 0;
    if (e->d_name[0] == '.') continue;
    ngio_tensors *file = must_read_tensors(path_of(e->d_name).text);
    for (int32_t i = 0; i < ngio_tensors_count(file); i++) {
      const ngio_tensor *t = ngio_tensors_at(file, i);
      moments += strstr(t->name, "/first.") != NULL || strstr(t->name, "/second.") != NULL;
      bytes += t->bytes;
    }
    ngio_tensors_close(&file);
    with += moments > 0;
    least = bytes < least ? bytes : least;
    most = bytes > most ? bytes : most;
  }
  (void)closedir(d);
  if (getenv("NG_TEST_SHOW") != NULL)
    printf("%d parts with moments, %lld to %lld bytes\n", with, (long long)least, (long long)most);
  assert_true(with >= parts_with && (double)most < ratio * (double)least);
  clear_folder();
}

/* natgrad has factors on their owners; eva has almost no other data, so that rank 0 has moments, too. */
static void moments_are_spread_over_the_parts(void **state) {
  expect_moments_in_parts(&(sim_setup){.method = "natgrad", .set = "update=adamw update_ranks=all"},
                          2, 2.0);
  expect_moments_in_parts(&(sim_setup){.method = "eva", .set = "update=adamw update_ranks=all"}, 3,
                          2.0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(any_number_of_ranks_loads_the_parts),
      cmocka_unit_test(any_number_of_ranks_resumes_after_a_kill),
      cmocka_unit_test(memory_of_saving_and_loading_is_bounded),
      cmocka_unit_test(moments_are_spread_over_the_parts),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_empty_folder);
}
