/* t_state.c: k steps + save + load + (N-k) steps equal N steps, bit for bit; a file that is not
 * whole, or of another model, is refused by name and changes nothing; a save that fails leaves the
 * earlier file.  Everything here compares bytes: no tolerance but one, which is explained there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zlib.h>

#include "internal.h"
#include "ranks.h"
#include "safetensors.h"
#include "sim.h"

static char folder[64];

static int make_folder(void **state) {
  (void)state;
  (void)snprintf(folder, sizeof folder, "/tmp/t_state-XXXXXX");
  return mkdtemp(folder) ? 0 : -1;
}

/* Succeeds only if the tests left nothing behind. */
static int drop_folder(void **state) {
  (void)state;
  return rmdir(folder);
}

typedef struct path {
  char text[160];
} path;

static path in_folder(const char *name) {
  path p;
  (void)snprintf(p.text, sizeof p.text, "%s/%s", folder, name);
  return p;
}

static unsigned char *slurp(const char *name, size_t *n) {
  FILE *f = fopen(name, "rb");
  if (f == NULL) fail_msg("%s: %s", name, strerror(errno));
  unsigned char *b = NULL;
  size_t room = 0, got = 0;
  do {
    room = room * 2 + 65536;
    b = realloc(b, room);
    assert_non_null(b);
    got += fread(b + got, 1, room - got, f);
  } while (got == room);
  (void)fclose(f);
  *n = got;
  return b;
}

static void assert_same_file(const char *a, const char *b) {
  size_t n, m;
  unsigned char *x = slurp(a, &n), *y = slurp(b, &m);
  if (n != m || memcmp(x, y, n) != 0) fail_msg("%s and %s differ", a, b);
  free(x);
  free(y);
}

/* ---- bit for bit -----------------------------------------------------------------------------*/

enum { STEPS = 7, RANKS = 3 };

typedef struct resume {
  sim_setup how;
  int64_t k;         /* saved after so many steps */
  int64_t set_at;    /* live options are changed before this step; -1: never */
  const char *wrong; /* live options that the resumed run starts with: the state's must win */
  uint64_t first[RANKS][STEPS], again[RANKS][STEPS]; /* gradients and weights after each step */
  path at_k, loaded, end, end_again;
} resume;

static uint64_t hash_floats(const float *x, int64_t n) {
  uint64_t h = UINT64_C(14695981039346656037);
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, x + i, sizeof bits);
    h = (h ^ bits) * UINT64_C(1099511628211);
  }
  return h;
}

static uint64_t hash_run(const sim *s) {
  return hash_floats(s->grad, s->count) * 3 + hash_floats(s->weight, s->count);
}

/* Reports what only this process measures are not part of the state; everything else is. */
static ng_status steps(sim *s, const resume *r, int64_t from, int64_t to, uint64_t *seen) {
  ng_status st = NG_OK;
  for (int64_t t = from; t < to && st >= NG_OK; t++) {
    if (t == r->set_at) {
      const bool damped = strcmp(r->how.method, "sam") != 0;
      st = damped ? ng_set(s->p, "damping", "0.02") : NG_OK;
      if (st == NG_OK) st = ng_set(s->p, "stat_decay", "0.7");
    }
    if (st >= NG_OK) st = sim_step(s, t);
    if (seen != NULL) seen[t] = hash_run(s);
  }
  return st < NG_OK ? st : NG_OK;
}

static ng_status whole_and_resumed(int32_t rank, ng_transport *t, void *arg) {
  resume *r = arg;
  sim a, b;
  sim_setup other = r->how;
  char set[512];
  ng_status st = sim_open(&a, &r->how, t, NULL);
  if (st == NG_OK) st = steps(&a, r, 0, r->k, r->first[rank]);
  if (st == NG_OK) st = ng_save(a.p, r->at_k.text);
  float *weights = malloc((size_t)a.count * sizeof *weights);
  if (weights == NULL) st = NG_ERR_NOMEM;
  if (st == NG_OK) memcpy(weights, a.weight, (size_t)a.count * sizeof *weights);
  if (st == NG_OK) st = steps(&a, r, r->k, STEPS, r->first[rank]);
  if (st == NG_OK) st = ng_save(a.p, r->end.text);
  if (st != NG_OK)
    fprintf(stderr, "rank %d: %s %s\n", rank, a.message, a.ctx ? ng_last_error(a.ctx) : "");
  sim_close(&a);

  (void)snprintf(set, sizeof set, "%s %s", r->wrong, r->how.set);
  other.set = set;
  if (st == NG_OK) {
    st = sim_open(&b, &other, t, NULL);
    if (st == NG_OK) st = ng_load(b.p, r->at_k.text);
    if (st == NG_OK) st = ng_save(b.p, r->loaded.text);
    if (st == NG_OK) memcpy(b.weight, weights, (size_t)b.count * sizeof *weights);
    if (st == NG_OK) st = steps(&b, r, r->k, STEPS, r->again[rank]);
    if (st == NG_OK) st = ng_save(b.p, r->end_again.text);
    if (st != NG_OK)
      fprintf(stderr, "rank %d: %s %s\n", rank, b.message, b.ctx ? ng_last_error(b.ctx) : "");
    sim_close(&b);
  }
  free(weights);
  return st;
}

static void resume_once(const sim_setup *how, int32_t ranks, int64_t k, int64_t set_at) {
  resume r = {
      .how = *how, .k = k, .set_at = set_at, .wrong = "damping=0.9 stat_decay=0.1 clip=none"};
  if (strstr(how->set, "solver=eigen") != NULL) {
    r.wrong = "damping=0.9 stat_decay=0.1 clip=none eigen_floor=0.5";
  }
  if (strcmp(how->method, "sam") == 0) r.wrong = "stat_decay=0.1";
  r.at_k = in_folder("k");
  r.loaded = in_folder("loaded");
  r.end = in_folder("end");
  r.end_again = in_folder("end2");
  const ng_status st = ranks_run(ranks, whole_and_resumed, &r, NULL);
  if (st != NG_OK) fail_msg("%s %s: %s", how->method, how->set, ng_status_name(st));
  for (int32_t rank = 0; rank < ranks; rank++) {
    for (int64_t t = k; t < STEPS; t++) {
      if (r.first[rank][t] != r.again[rank][t]) {
        fail_msg("%s %s, %d ranks, saved after %d: step %d differs on rank %d", how->method,
                 how->set, ranks, (int)k, (int)t, rank);
      }
    }
    /* Were the steps different from each other at all? */
    assert_true(r.first[rank][STEPS - 1] != r.first[rank][STEPS - 2]);
  }
  assert_same_file(r.at_k.text, r.loaded.text);
  assert_same_file(r.end.text, r.end_again.text);
  const char *made[] = {r.at_k.text, r.loaded.text, r.end.text, r.end_again.text};
  for (int i = 0; i < 4; i++) {
    assert_int_equal(unlink(made[i]), 0);
  }
}

#define PERIODS "stat_period=2 solve_period=3"

static const sim_setup rows[] = {
    {.method = "natgrad", .set = ""},
    {.method = "natgrad", .set = PERIODS " cholesky_form=factor"},
    {.method = "natgrad", .set = PERIODS " cholesky_form=inverse update=sgd"},
    {.method = "natgrad",
     .set = "update=adamw clip=rescale",
     .vary = SIM_OWN,
     .layer_options = "damping=0.05 solver=eigen"},
    {.method = "natgrad", .set = PERIODS " factor_dtype=bf16 inverse_dtype=f16 update=sgd"},
    {.method = "natgrad", .set = "solver=eigen damping_split=joint inverse_dtype=bf16 " PERIODS},
    {.method = "natgrad", .set = "solver=eigen damping_split=joint prediv=1 update=adamw " PERIODS},
    {.method = "natgrad", .set = "max_factor=8 factor_blocks=2", .vary = SIM_NHWC},
    {.method = "natgrad", .set = "calls=ema stat_start=identity", .micro = 2},
    {.method = "natgrad", .set = "fold=direct stat_period=2"},
    {.method = "natgrad", .set = "skip_layers=conv update=sgd"},
    {.method = "natgrad",
     .set = "solve_period=2 schedule=damping*0.5@2,5 solve_period*=1.5@3 stat_decay~0.9"},
    {.method = "kaisa", .set = ""},
    {.method = "kaisa",
     .set = "solver=cholesky prediv=0 damping_split=full " PERIODS " factor_dtype=bf16"},
    {.method = "mpd-kfac",
     .set = "solver=cholesky eigen_floor=0 damping_split=pi damping_leak=1 " PERIODS},
    {.method = "dp-kfac", .set = ""},
    {.method = "dp-kfac", .set = "update=sgd " PERIODS},
    {.method = "eva", .set = "stat_period=2 update=sgd"},
    {.method = "eva",
     .set = "clip=rescale schedule=damping*0.5@2,5 stat_decay~0.9",
     .micro = 2,
     .vary = SIM_NHWC},
    {.method = "eva-natgrad",
     .set = "update=adamw calls=last",
     .vary = SIM_OWN,
     .layer_options = "damping=0.05 stat_batch=2"},
    {.method = "eva-f", .set = "stat_period=2"},
    {.method = "adasgd", .set = "update=sgd clip=rms clip_bound=0.1"},
    {.method = "sam", .set = "update=sgd stat_scale=textbook " PERIODS},
    {.method = "eva-kfac", .set = "update=sgd " PERIODS},
};

static void resume_one_rank(void **state) {
  (void)state;
  static const int64_t ks[] = {1, 4};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    resume_once(&rows[i], 1, ks[i % 2], i % 3 == 0 ? 0 : -1);
  }
  /* every k of one, and a save before the first step */
  for (int64_t k = 0; k < STEPS; k++) {
    resume_once(&rows[2], 1, k, 2);
  }
}

/* Ranks are threads: the reference linear algebra, because BLAS may have threads of its own. */
static void resume_ranks(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    sim_setup how = rows[i];
    how.linalg = "ref";
    resume_once(&how, 2 + (int32_t)(i % 2), 1 + (int64_t)(i % 5), i % 3 == 1 ? 0 : -1);
  }
  static const sim_setup spread[] = {
      {.method = "natgrad", .set = "grad_worker_fraction=0 update=sgd", .linalg = "ref"},
      {.method = "kaisa", .set = "grad_worker_fraction=0 " PERIODS, .linalg = "ref"},
      {.method = "natgrad", .set = "statistics=local grad_worker_fraction=0", .linalg = "ref"},
      {.method = "natgrad", .set = "statistics=local grad_worker_fraction=1", .linalg = "ref"},
  };
  for (size_t i = 0; i < sizeof spread / sizeof spread[0]; i++) {
    resume_once(&spread[i], 3, 4, -1);
  }
}

static void resume_threads(void **state) {
  (void)state;
  for (int32_t threads = 2; threads <= 3; threads++) {
    sim_setup how = rows[1];
    how.threads = threads;
    resume_once(&how, 1, 4, -1);
  }
}

/* ---- other readers of the same file ----------------------------------------------------------*/

typedef struct relay {
  const sim_setup *how;
  const char *load, *save; /* NULL: three steps instead of load */
} relay;

static ng_status pass_on(int32_t rank, ng_transport *t, void *arg) {
  const relay *r = arg;
  sim s;
  ng_status st = sim_open(&s, r->how, t, NULL);
  for (int64_t i = 0; i < 3 && r->load == NULL && st >= NG_OK; i++) {
    st = sim_step(&s, i);
  }
  if (st >= NG_OK && r->load != NULL) st = ng_load(s.p, r->load);
  if (st >= NG_OK) st = ng_save(s.p, r->save);
  if (st < NG_OK)
    fprintf(stderr, "rank %d: %s %s\n", rank, s.message, s.ctx ? ng_last_error(s.ctx) : "");
  sim_close(&s);
  return st;
}

/* The file does not know how many ranks wrote it, in which layout images came, where results were
 * kept or which linear algebra was used. */
static void other_ranks_layouts_linalg(void **state) {
  (void)state;
  static const sim_setup how[] = {
      {.method = "natgrad", .set = "update=sgd grad_worker_fraction=0", .linalg = "ref"},
      {.method = "natgrad", .set = "update=sgd grad_worker_fraction=1", .vary = SIM_NHWC},
      {.method = "natgrad", .set = "update=sgd grad_worker_fraction=0", .linalg = "ref"},
  };
  const path a = in_folder("three"), b = in_folder("one"), c = in_folder("two");
  relay r = {&how[0], NULL, a.text};
  assert_int_equal(ranks_run(3, pass_on, &r, NULL), NG_OK);
  r = (relay){&how[1], a.text, b.text};
  assert_int_equal(ranks_run(1, pass_on, &r, NULL), NG_OK);
  r = (relay){&how[2], b.text, c.text};
  assert_int_equal(ranks_run(2, pass_on, &r, NULL), NG_OK);
  /* only the option itself differs between a and b */
  assert_same_file(a.text, c.text);
  assert_int_equal(unlink(a.text), 0);
  assert_int_equal(unlink(b.text), 0);
  assert_int_equal(unlink(c.text), 0);
}

/* A of a convolution in the file, against the definition: A = (1/B) sum over samples and positions
 * of the patch in (channel, kernel row, kernel column) order with a 1 behind it. */
static void published_order(void **state) {
  (void)state;
  enum { B = 2, C = 2, K = 3, H = 4, W = 3, O = 2, P = C * K * K + 1 };
  ng_context *ctx;
  ng_precond *p;
  ng_options o;
  int32_t conv;
  ng_batch batch;
  float x[B * C * H * W], g[B * O * H * W], dw[O * (P - 1)], db[O];
  double A[P * P] = {0};
  for (int i = 0; i < B * C * H * W; i++)
    x[i] = (float)((i * 37) % 23 - 11) / 8;
  for (int i = 0; i < B * O * H * W; i++)
    g[i] = (float)((i * 29) % 17 - 8) / 8;
  for (int i = 0; i < O * (P - 1); i++)
    dw[i] = 1;
  db[0] = db[1] = 1;
  assert_int_equal(ng_context_create(NULL, NULL, 0, &ctx), NG_OK);
  assert_int_equal(ng_options_init(&o), NG_OK);
  assert_int_equal(ng_precond_create(ctx, &o, &p), NG_OK);
  assert_int_equal(ng_add_conv2d(p, "c", C, O, K, 1, 1, H, W, 1, &conv), NG_OK);
  const ng_view w = ng_view_of(dw, O, P - 1, NG_F32), bias = ng_view_of(db, 1, O, NG_F32);
  assert_int_equal(ng_bind_grad(p, conv, NG_WEIGHT, &w), NG_OK);
  assert_int_equal(ng_bind_grad(p, conv, NG_BIAS, &bias), NG_OK);
  assert_int_equal(ng_ready(p), NG_OK);
  assert_int_equal(ng_batch_init(&batch), NG_OK);
  batch.samples = B;
  assert_int_equal(ng_begin(p, &batch), NG_OK);
  const ng_view vx = ng_view_of(x, B, C * H * W, NG_F32), vg = ng_view_of(g, B, O * H * W, NG_F32);
  assert_int_equal(ng_observe_input(p, conv, &vx, NG_COPY), NG_OK);
  assert_int_equal(ng_observe_output_grad(p, conv, &vg, NG_COPY), NG_OK);
  assert_int_equal(ng_step(p, 0.1), NG_OK);
  const path file = in_folder("conv");
  assert_int_equal(ng_save(p, file.text), NG_OK);
  for (int n = 0; n < B; n++) {
    for (int pos = 0; pos < H * W; pos++) {
      double patch[P];
      for (int c = 0; c < C; c++) {
        for (int k = 0; k < K * K; k++) {
          const int row = pos / W + k / K - 1, col = pos % W + k % K - 1;
          const bool inside = row >= 0 && row < H && col >= 0 && col < W;
          patch[c * K * K + k] = inside ? (double)x[((n * C + c) * H + row) * W + col] : 0;
        }
      }
      patch[P - 1] = 1;
      for (int i = 0; i < P * P; i++)
        A[i] += patch[i / P] * patch[i % P] / B;
    }
  }
  ngio_tensors *f;
  char message[256];
  assert_int_equal(ngio_tensors_read(file.text, NULL, &f, message, sizeof message), NGIO_OK);
  const ngio_tensor *t = ngio_tensors_find(f, "c/A");
  assert_non_null(t);
  assert_int_equal(t->ndim, 1);
  assert_int_equal(t->shape[0], P * (P + 1) / 2);
  int at = 0;
  for (int i = 0; i < P; i++) {
    for (int j = 0; j <= i; j++, at++) {
      /* sums of at most 24 products below 4, in f32: 24 * 4 * 2^-24 < 1e-5 */
      if (!(fabs((double)((const float *)t->data)[at] - A[i * P + j]) <= 1e-5)) {
        fail_msg("A[%d,%d] is %g, expected %g", i, j, (double)((const float *)t->data)[at],
                 A[i * P + j]);
      }
    }
  }
  ngio_tensors_close(&f);
  assert_int_equal(unlink(file.text), 0);
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
}

/* ---- refused, and nothing changed ------------------------------------------------------------*/

static const sim_setup plain = {.method = "natgrad", .set = "update=sgd stat_period=2"};

static void open_at(sim *s, const sim_setup *how, int64_t to) {
  if (sim_open(s, how, NULL, NULL) != NG_OK) fail_msg("%s", s->message);
  for (int64_t t = 0; t < to; t++) {
    assert_true(sim_step(s, t) >= NG_OK);
  }
}

/* A load that must fail with NG_ERR_FILE, say `says`, and leave everything as it is. */
static void refused(sim *s, const char *file, const char *says) {
  const uint64_t before = sim_fingerprint(s);
  const ng_status st = ng_load(s->p, file);
  if (st != NG_ERR_FILE) fail_msg("%s: load says %s", says, ng_status_name(st));
  const char *message = ng_last_error(s->ctx);
  if (strstr(message, says) == NULL) fail_msg("message \"%s\" lacks \"%s\"", message, says);
  if (strchr(message, '\n') != NULL) fail_msg("message has lines: \"%s\"", message);
  if (sim_fingerprint(s) != before) fail_msg("\"%s\", and yet something changed", message);
}

/* After all those refusals, the next step is that of one who never tried. */
static void assert_untouched(sim *s, const sim_setup *how, int64_t at) {
  sim twin;
  open_at(&twin, how, at);
  assert_true(sim_step(s, at) >= NG_OK);
  assert_true(sim_step(&twin, at) >= NG_OK);
  assert_int_equal(s->count, twin.count);
  assert_memory_equal(s->grad, twin.grad, (size_t)s->count * sizeof *s->grad);
  assert_memory_equal(s->weight, twin.weight, (size_t)s->count * sizeof *s->weight);
  sim_close(&twin);
}

/* A file without a disk, so that thousands of damaged ones are quick to make. */
typedef struct quick {
  int fd;
  path name;
} quick;

static quick quick_file(void) {
  quick q;
  q.fd = memfd_create("state", 0);
  assert_true(q.fd >= 0);
  (void)snprintf(q.name.text, sizeof q.name.text, "/proc/self/fd/%d", q.fd);
  return q;
}

static void quick_set(const quick *q, const void *bytes, size_t n) {
  assert_int_equal(ftruncate(q->fd, 0), 0);
  assert_int_equal(pwrite(q->fd, bytes, n, 0), (ssize_t)n);
}

static void damaged(void **state) {
  (void)state;
  sim a, b;
  size_t n;
  const path good = in_folder("good");
  const sim_setup small = {.method = "natgrad", .set = "update=sgd", .vary = SIM_SMALL};
  open_at(&a, &small, 3);
  assert_int_equal(ng_save(a.p, good.text), NG_OK);
  sim_close(&a);
  unsigned char *bytes = slurp(good.text, &n);
  ngio_tensors *f;
  char message[256];
  assert_int_equal(ngio_tensors_read(good.text, NULL, &f, message, sizeof message), NGIO_OK);
  size_t data = n;
  for (int32_t i = 0; i < ngio_tensors_count(f); i++)
    data -= (size_t)ngio_tensors_at(f, i)->bytes;
  open_at(&b, &small, 1);
  const quick q = quick_file();
  /* cut at every length */
  for (size_t cut = 0; cut < n; cut++) {
    quick_set(&q, bytes, cut);
    refused(&b, q.name.text, "");
  }
  /* a bit of every byte; in the data, the tensor is named */
  for (size_t i = 0; i < n; i++) {
    const unsigned char was = bytes[i];
    char says[340] = "";
    bytes[i] = (unsigned char)(was ^ (1u << (i * 5 % 8)));
    size_t at = data;
    for (int32_t k = 0; i >= data && k < ngio_tensors_count(f); k++) {
      const ngio_tensor *t = ngio_tensors_at(f, k);
      if (i >= at && i < at + (size_t)t->bytes) {
        (void)snprintf(says, sizeof says, "tensor '%s' is damaged", t->name);
      }
      at += (size_t)t->bytes;
    }
    assert_true(i < data || says[0] != 0);
    quick_set(&q, bytes, n);
    refused(&b, q.name.text, says);
    bytes[i] = was;
  }
  /* the undamaged one is taken by the same object */
  assert_untouched(&b, &small, 1);
  quick_set(&q, bytes, n);
  assert_int_equal(ng_load(b.p, q.name.text), NG_OK);
  const path again = in_folder("again");
  assert_int_equal(ng_save(b.p, again.text), NG_OK);
  assert_same_file(good.text, again.text);
  ngio_tensors_close(&f);
  free(bytes);
  (void)close(q.fd);
  sim_close(&b);
  assert_int_equal(unlink(good.text), 0);
  assert_int_equal(unlink(again.text), 0);
}

static void other_models(void **state) {
  (void)state;
  const path good = in_folder("good");
  sim a;
  open_at(&a, &plain, 3);
  assert_int_equal(ng_save(a.p, good.text), NG_OK);
  sim_close(&a);
  static const struct {
    sim_setup how;
    const char *says;
  } others[] = {
      {{.method = "natgrad", .set = "update=sgd stat_period=2", .vary = SIM_RENAMED},
       "layer 0 is 'fc1' in the state and 'fc0' here"},
      {{.method = "natgrad", .set = "update=sgd", .vary = SIM_WIDER},
       "layer 'fc1' is 'linear in=7 out=5 bias=1 frozen=0 positions=0' in the state and 'linear "
       "in=8"},
      {{.method = "natgrad", .set = "update=sgd", .vary = SIM_STRIDE}, "layer 'block/down'"},
      {{.method = "natgrad", .set = "update=sgd", .vary = SIM_FEWER},
       "layer 'seq' of the state is not in this model"},
      {{.method = "natgrad", .set = "update=sgd", .vary = SIM_MORE},
       "layer 5 is 'seq' in the state and 'extra' here"},
      {{.method = "natgrad", .set = "update=sgd", .vary = SIM_OWN, .layer_options = "damping=1"},
       "options of layer 'fc1' is '' in the state and 'damping=1' here"},
      {{.method = "natgrad", .set = "update=gradient"}, "option 'update'"},
      {{.method = "natgrad", .set = "update=adamw"}, "option 'update' is 'sgd'"},
      {{.method = "natgrad", .set = "update=sgd solver=eigen"}, "option 'solver' is 'cholesky'"},
      {{.method = "natgrad", .set = "update=sgd stat_scale=kaisa"}, "option 'stat_scale'"},
      {{.method = "natgrad", .set = "update=sgd factor_dtype=bf16"}, "option 'factor_dtype'"},
      {{.method = "natgrad", .set = "update=sgd inverse_dtype=f16"}, "option 'inverse_dtype'"},
      {{.method = "natgrad", .set = "update=sgd skip_layers=conv"}, "option 'skip_layers'"},
      {{.method = "natgrad", .set = "update=sgd schedule=damping*0.5@3"}, "option 'schedule'"},
      {{.method = "kaisa", .set = "update=sgd"}, "(method 'natgrad') and"},
      {{.method = "kaisa", .set = "update=sgd"}, "(method 'kaisa')"},
  };
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    sim b;
    open_at(&b, &others[i].how, 2);
    refused(&b, good.text, others[i].says);
    assert_untouched(&b, &others[i].how, 2);
    sim_close(&b);
  }
  assert_int_equal(unlink(good.text), 0);
}

/* ---- a whole file that lies ------------------------------------------------------------------*/

typedef struct forgery {
  ngio_tensor t[64];
  int32_t n;
  json_t *manifest;
} forgery;

static void forge(forgery *f, const ngio_tensors *from) {
  f->n = ngio_tensors_count(from);
  assert_true(f->n < 63);
  for (int32_t i = 0; i < f->n; i++)
    f->t[i] = *ngio_tensors_at(from, i);
  f->manifest = json_loads(ngio_tensors_text(from, "natgrad"), 0, NULL);
  assert_non_null(f->manifest);
}

/* With checksums that fit, unless `crc` is given. */
static void publish(const forgery *f, const char *name, const char *crc) {
  char message[256], sum[16];
  json_t *tensors = json_object_get(f->manifest, "tensors");
  for (int32_t i = 0; i < f->n; i++) {
    json_t *entry = json_object_get(tensors, f->t[i].name);
    const int64_t bytes = ngio_bytes_of(f->t[i].dtype, f->t[i].shape, f->t[i].ndim);
    (void)snprintf(sum, sizeof sum, "%08lx", crc32(0, f->t[i].data, (uInt)bytes));
    if (entry != NULL) json_object_set_new(entry, "crc32", json_string(sum));
  }
  char *text = json_dumps(f->manifest, JSON_COMPACT);
  assert_non_null(text);
  (void)snprintf(sum, sizeof sum, "%08lx", crc32(0, (const Bytef *)text, (uInt)strlen(text)));
  const ngio_text meta[2] = {{"natgrad", text}, {"natgrad.crc32", crc == NULL ? sum : crc}};
  assert_int_equal(ngio_tensors_write(name, f->t, f->n, meta, 2, message, sizeof message), NGIO_OK);
  free(text);
}

static json_t *part(const forgery *f, const char *a, const char *b) {
  json_t *x = json_object_get(f->manifest, a);
  return b == NULL ? x : json_object_get(x, b);
}

static int32_t tensor_index(const forgery *f, const char *name) {
  for (int32_t i = 0; i < f->n; i++) {
    if (strcmp(f->t[i].name, name) == 0) return i;
  }
  fail_msg("no tensor %s", name);
  return -1;
}

static void spoil(forgery *f, int which, float *room) {
  const int32_t i = tensor_index(f, "fc1/A");
  json_t *m = f->manifest;
  switch (which) {
  case 0:
    f->t[i] = f->t[--f->n];
    break; /* missing */
  case 1:
    f->t[f->n] = f->t[i];
    f->t[f->n++].name = "fc1/B";
    break;
  case 2:
    f->t[i].dtype = NGIO_I32;
    break;
  case 3:
    f->t[i].ndim = 2;
    f->t[i].shape[1] = 1;
    break;
  case 4:
    f->t[i].shape[0]--;
    break;
  case 5:
  case 6:
    memcpy(room, f->t[i].data, (size_t)f->t[i].bytes);
    room[3] = which == 5 ? NAN : -INFINITY;
    f->t[i].data = room;
    break;
  case 7:
    json_object_del(part(f, "tensors", NULL), "fc1/A");
    break;
  case 8:
    json_object_set_new(m, "format", json_integer(2));
    break;
  case 9:
    json_object_del(m, "format");
    break;
  case 10:
    json_object_del(m, "layers");
    break;
  case 11:
    json_array_remove(part(f, "layers", NULL), 2);
    break;
  case 12:
    json_object_del(m, "options");
    break;
  case 13:
    json_object_set_new(part(f, "options", NULL), "no_such", json_string("1"));
    break;
  case 14:
    json_object_set_new(part(f, "options", NULL), "damping", json_string("-1"));
    break;
  case 15:
    json_object_set_new(part(f, "options", NULL), "damping", json_integer(1));
    break;
  case 16:
    json_object_del(m, "counters");
    break;
  case 17:
    json_object_set_new(part(f, "counters", NULL), "steps", json_integer(-1));
    break;
  case 18:
    json_object_set_new(part(f, "counters", NULL), "updates", json_integer(99));
    break;
  case 19:
    json_object_set_new(part(f, "counters", NULL), "steps", json_real(3.0));
    break;
  case 20:
    json_object_set_new(part(f, "live", "damping"), "since", json_integer(99));
    break;
  case 21:
    json_object_del(m, "live");
    break;
  case 22:
    json_object_del(m, "last");
    break;
  case 23:
    json_object_del(m, "blocks");
    break;
  case 24:
    json_object_del(part(f, "blocks", NULL), "conv");
    break;
  case 25:
    json_object_del(part(f, "blocks", "conv"), "A_leak.1");
    break;
  case 26:
    json_object_set_new(part(f, "blocks", "conv"), "more", json_real(1));
    break;
  case 27:
    json_object_set_new(part(f, "blocks", "conv"), "A_observations", json_real(1e300));
    break;
  case 28:
    json_object_set_new(part(f, "blocks", NULL), "more", json_object());
    break;
  case 29:
    json_object_del(m, "method");
    break;
  case 30:
    json_object_set_new(part(f, "options", NULL), "damping_split", json_string("joint"));
    break;
  default:
    break;
  }
}

static const char *const lies[] = {
    "tensor 'fc1/A' is missing",
    "tensor 'fc1/B' does not belong",
    "tensor 'fc1/A' has another dtype",
    "tensor 'fc1/A' has another shape",
    "tensor 'fc1/A' has another shape",
    "tensor 'fc1/A' holds a number that is not finite",
    "tensor 'fc1/A' holds a number",
    "tensor 'fc1/A' is not in the manifest",
    "format 2",
    "format 0",
    "no list of layers",
    "layer 2 is 'gamma' in the state and 'block/down' here",
    "no options",
    "'no_such'",
    "damping",
    "option 'damping' of the manifest is not a text",
    "counter 'steps'",
    "counter 'steps'",
    "counter 'updates'",
    "counter 'steps'",
    "live 'damping' 'since'",
    "live 'damping' 'since'",
    "'last'",
    "block 'fc1'",
    "block 'conv'",
    "number 'A_leak.1'",
    "block 'conv' of the manifest has numbers",
    "'A_observations' of block 'conv'",
    "7 blocks",
    "no method",
    "option 'damping_split'",
};

static void lying(void **state) {
  (void)state;
  const path good = in_folder("good"), bad = in_folder("bad");
  sim a, b;
  char message[256];
  float room[512];
  open_at(&a, &plain, 3);
  assert_int_equal(ng_save(a.p, good.text), NG_OK);
  sim_close(&a);
  open_at(&b, &plain, 1);
  ngio_tensors *from;
  assert_int_equal(ngio_tensors_read(good.text, NULL, &from, message, sizeof message), NGIO_OK);
  forgery f;
  for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
    forge(&f, from);
    char says[128];
    (void)snprintf(says, sizeof says, "%s", lies[i]);
    if (i == 28) { /* one more than the model has */
      (void)snprintf(says, sizeof says, "the state has %zu blocks and this model %d",
                     json_object_size(part(&f, "blocks", NULL)) + 1, b.p->blocks);
    }
    spoil(&f, (int)i, room);
    publish(&f, bad.text, NULL);
    refused(&b, bad.text, says);
    json_decref(f.manifest);
  }
  forge(&f, from);
  publish(&f, bad.text, "00000000");
  refused(&b, bad.text, "the manifest is damaged");
  json_decref(f.manifest);
  assert_int_equal(ngio_tensors_write(bad.text, f.t, f.n, NULL, 0, message, sizeof message),
                   NGIO_OK);
  refused(&b, bad.text, "no state of natgrad");
  const ngio_text meta[3] = {{"natgrad", "{"}, {"natgrad.crc32", "15d54739"}, {"more", ""}};
  char sum[16];
  (void)snprintf(sum, sizeof sum, "%08lx", crc32(0, (const Bytef *)"{", 1));
  assert_string_equal(sum, meta[1].value);
  assert_int_equal(ngio_tensors_write(bad.text, f.t, f.n, meta, 2, message, sizeof message),
                   NGIO_OK);
  refused(&b, bad.text, "no JSON");
  assert_int_equal(ngio_tensors_write(bad.text, f.t, f.n, meta, 3, message, sizeof message),
                   NGIO_OK);
  refused(&b, bad.text, "no state of natgrad");
  refused(&b, "/dev/null", "not a regular file");
  refused(&b, in_folder("absent").text, strerror(ENOENT));
  FILE *text = fopen(bad.text, "wb");
  assert_non_null(text);
  (void)fputs("this is a text and not a state at all", text);
  (void)fclose(text);
  refused(&b, bad.text, "no safetensors file");
  ngio_tensors_close(&from);
  assert_untouched(&b, &plain, 1);

  /* An old state without an option: what the option's default does. */
  assert_int_equal(ngio_tensors_read(good.text, NULL, &from, message, sizeof message), NGIO_OK);
  forge(&f, from);
  json_object_del(part(&f, "options", NULL), "kl_clip");
  json_object_del(part(&f, "options", NULL), "positions");
  publish(&f, bad.text, NULL);
  assert_int_equal(ng_load(b.p, bad.text), NG_OK);
  json_decref(f.manifest);
  /* A number that was not finite when it was saved comes back as it was. */
  forge(&f, from);
  spoil(&f, 5, room);
  json_object_set_new(json_object_get(part(&f, "tensors", NULL), "fc1/A"), "finite", json_false());
  publish(&f, bad.text, NULL);
  assert_int_equal(ng_load(b.p, bad.text), NG_OK);
  const path again = in_folder("again");
  assert_int_equal(ng_save(b.p, again.text), NG_OK);
  ngio_tensors *back;
  assert_int_equal(ngio_tensors_read(again.text, NULL, &back, message, sizeof message), NGIO_OK);
  assert_memory_equal(ngio_tensors_find(back, "fc1/A")->data, room,
                      (size_t)ngio_tensors_find(back, "fc1/A")->bytes);
  ngio_tensors_close(&back);
  json_decref(f.manifest);
  ngio_tensors_close(&from);
  sim_close(&b);
  assert_int_equal(unlink(again.text), 0);
  assert_int_equal(unlink(good.text), 0);
  assert_int_equal(unlink(bad.text), 0);
}

/* Rungs are counted by the rank that climbed them; a file keeps the sum, whoever reads it. */
static void counters_come_back(void **state) {
  (void)state;
  static const char *const name[] = {"more_damping", "in_double", "kept_last", "plain", "skipped"};
  const path good = in_folder("good"), forged = in_folder("forged"), again = in_folder("again");
  static const sim_setup how = {.method = "natgrad", .set = "update=sgd", .linalg = "ref"};
  char message[256];
  relay r = {&how, NULL, good.text};
  assert_int_equal(ranks_run(1, pass_on, &r, NULL), NG_OK);
  ngio_tensors *from;
  forgery f;
  assert_int_equal(ngio_tensors_read(good.text, NULL, &from, message, sizeof message), NGIO_OK);
  forge(&f, from);
  for (int i = 0; i < 5; i++) {
    json_object_set_new(part(&f, "counters", NULL), name[i], json_integer(11 + i));
  }
  publish(&f, forged.text, NULL);
  json_decref(f.manifest);
  ngio_tensors_close(&from);
  r = (relay){&how, forged.text, good.text};
  assert_int_equal(ranks_run(1, pass_on, &r, NULL), NG_OK);
  r = (relay){&how, good.text, again.text};
  assert_int_equal(ranks_run(3, pass_on, &r, NULL), NG_OK);
  assert_same_file(good.text, again.text);
  sim s;
  ng_report report = {.struct_size = sizeof report};
  open_at(&s, &how, 0);
  assert_int_equal(ng_load(s.p, again.text), NG_OK);
  assert_int_equal(ng_report_read(s.p, &report), NG_OK);
  assert_int_equal(report.steps, 3);
  assert_int_equal(report.more_damping, 11);
  assert_int_equal(report.in_double, 12);
  assert_int_equal(report.kept_last, 13);
  assert_int_equal(report.plain, 14);
  assert_int_equal(report.skipped, 15);
  sim_close(&s);
  assert_int_equal(unlink(good.text), 0);
  assert_int_equal(unlink(forged.text), 0);
  assert_int_equal(unlink(again.text), 0);
}

/* ---- order, places, disks --------------------------------------------------------------------*/

static void out_of_order(void **state) {
  (void)state;
  sim s;
  const path file = in_folder("file");
  assert_int_equal(ng_save(NULL, file.text), NG_ERR_ARG);
  assert_int_equal(ng_load(NULL, file.text), NG_ERR_ARG);
  ng_context *ctx;
  ng_options o;
  ng_precond *p;
  assert_int_equal(ng_context_create(NULL, NULL, 0, &ctx), NG_OK);
  assert_int_equal(ng_options_init(&o), NG_OK);
  assert_int_equal(ng_precond_create(ctx, &o, &p), NG_OK);
  assert_int_equal(ng_save(p, file.text), NG_ERR_STATE);
  assert_non_null(strstr(ng_last_error(ctx), "ng_ready"));
  assert_int_equal(ng_load(p, file.text), NG_ERR_STATE);
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
  open_at(&s, &plain, 2);
  assert_int_equal(ng_save(s.p, NULL), NG_ERR_ARG);
  assert_int_equal(ng_load(s.p, ""), NG_ERR_ARG);
  assert_non_null(strstr(ng_last_error(s.ctx), "path"));
  assert_int_equal(ng_save(s.p, file.text), NG_OK);
  assert_int_equal(sim_begin(&s, 2), NG_OK);
  assert_int_equal(ng_save(s.p, file.text), NG_ERR_STATE);
  assert_non_null(strstr(ng_last_error(s.ctx), "ng_begin"));
  assert_int_equal(ng_load(s.p, file.text), NG_ERR_STATE);
  assert_int_equal(ng_reset_batch(s.p), NG_OK);
  assert_int_equal(ng_load(s.p, file.text), NG_OK);
  sim_close(&s);
  assert_int_equal(unlink(file.text), 0);
}

static void refused_save(sim *s, const char *file, const char *says) {
  const uint64_t before = sim_fingerprint(s); /* memory held is part of it */
  assert_int_equal(ng_save(s->p, file), NG_ERR_FILE);
  const char *message = ng_last_error(s->ctx);
  if (strstr(message, says) == NULL) fail_msg("message \"%s\" lacks \"%s\"", message, says);
  if (sim_fingerprint(s) != before) fail_msg("\"%s\", and yet something changed", message);
}

static void full_disk_and_bad_places(void **state) {
  (void)state;
  sim s;
  const path file = in_folder("file"), copy = in_folder("copy"), sub = in_folder("none/file");
  open_at(&s, &plain, 2);
  assert_int_equal(ng_save(s.p, file.text), NG_OK);
  assert_int_equal(ng_save(s.p, copy.text), NG_OK);
  assert_true(sim_step(&s, 2) >= NG_OK);
  refused_save(&s, sub.text, strerror(ENOENT));
  refused_save(&s, "/dev/full", "not a regular file");
  refused_save(&s, folder, "not a regular file");
  refused_save(&s, "/proc/self/natgrad-test", "cannot write");
  size_t
      n; /* of the file that would be written: its numbers are longer or shorter than the first's */
  const path probe = in_folder("probe");
  assert_int_equal(ng_save(s.p, probe.text), NG_OK);
  unsigned char *bytes = slurp(probe.text, &n);
  free(bytes);
  assert_int_equal(unlink(probe.text), 0);
  struct rlimit old, tight;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  for (size_t i = 0; i <= 9; i++) { /* to one byte short of it */
    tight = old;
    tight.rlim_cur = (rlim_t)((n - 1) * i / 9);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    const ng_status st = ng_save(s.p, file.text);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(st, NG_ERR_FILE);
    assert_non_null(strstr(ng_last_error(s.ctx), strerror(EFBIG)));
    assert_int_equal(access(in_folder("file.part").text, F_OK), -1);
    assert_same_file(file.text, copy.text);
  }
  (void)signal(SIGXFSZ, handler);
  assert_int_equal(ng_load(s.p, file.text), NG_OK);
  sim_close(&s);
  assert_int_equal(unlink(file.text), 0);
  assert_int_equal(unlink(copy.text), 0);
}

/* ---- ranks fail together ---------------------------------------------------------------------*/

typedef struct together {
  const char *good, *bad, *nowhere;
  rlim_t limit;
  char message[RANKS][4][512];
  bool changed[RANKS];
} together;

static ng_status fail_together(int32_t rank, ng_transport *t, void *arg) {
  together *x = arg;
  sim s;
  static const sim_setup how = {
      .method = "natgrad", .set = "update=sgd grad_worker_fraction=0", .linalg = "ref"};
  ng_status st = sim_open(&s, &how, t, NULL);
  for (int64_t i = 0; i < 2 && st >= NG_OK; i++)
    st = sim_step(&s, i);
  if (st >= NG_OK) st = ng_save(s.p, x->good);
  if (st >= NG_OK) st = sim_step(&s, 2);
  if (st >= NG_OK && rank == 0) { /* the last byte, which rank 0 reads only when all others wait */
    FILE *from = fopen(x->good, "rb"), *to = fopen(x->bad, "wb");
    if (from == NULL || to == NULL) st = NG_ERR_STATE;
    int c = EOF, next = EOF;
    for (c = from ? getc(from) : EOF; c != EOF; c = next) {
      next = getc(from);
      if (to != NULL) (void)putc(next == EOF ? c ^ 1 : c, to);
    }
    if (from != NULL) (void)fclose(from);
    if (to != NULL) (void)fclose(to);
  }
  if (st >= NG_OK) {
    const uint64_t before = sim_fingerprint(&s);
    const ng_status a = ng_load(s.p, x->bad);
    (void)snprintf(x->message[rank][0], 512, "%s", ng_last_error(s.ctx));
    const ng_status b = ng_save(s.p, x->nowhere);
    (void)snprintf(x->message[rank][1], 512, "%s", ng_last_error(s.ctx));
    /* the disk is full in the middle of the data: rank 0 knows, the others are still sending */
    struct rlimit unlimited = {0, 0};
    if (rank == 0 && getrlimit(RLIMIT_FSIZE, &unlimited) == 0) {
      const struct rlimit tight = {.rlim_cur = x->limit, .rlim_max = unlimited.rlim_max};
      if (setrlimit(RLIMIT_FSIZE, &tight) != 0) st = NG_ERR_STATE;
    }
    const ng_status d = ng_save(s.p, x->good);
    (void)snprintf(x->message[rank][3], 512, "%s", ng_last_error(s.ctx));
    if (rank == 0 && setrlimit(RLIMIT_FSIZE, &unlimited) != 0) st = NG_ERR_STATE;
    if (d != NG_ERR_FILE) st = NG_ERR_STATE;
    /* one rank is between ng_begin and a step: all are refused */
    if (rank == 1) st = sim_begin(&s, 3);
    const ng_status c = ng_save(s.p, x->good);
    (void)snprintf(x->message[rank][2], 512, "%s", ng_last_error(s.ctx));
    if (rank == 1 && st == NG_OK) st = ng_reset_batch(s.p);
    x->changed[rank] = sim_fingerprint(&s) != before;
    if (a != NG_ERR_FILE || b != NG_ERR_FILE || c != NG_ERR_STATE) st = NG_ERR_STATE;
    if (st >= NG_OK) st = ng_load(s.p, x->good);
    if (st >= NG_OK) st = sim_step(&s, 2);
  }
  sim_close(&s);
  return st;
}

static void ranks_fail_together(void **state) {
  (void)state;
  const path good = in_folder("good"), bad = in_folder("bad"), nowhere = in_folder("no/where");
  together x = {.good = good.text, .bad = bad.text, .nowhere = nowhere.text};
  /* How long the file is, less a little: the limit falls into the data. */
  static const sim_setup how = {
      .method = "natgrad", .set = "update=sgd grad_worker_fraction=0", .linalg = "ref"};
  relay first = {&how, NULL, good.text};
  assert_int_equal(ranks_run(1, pass_on, &first, NULL), NG_OK);
  size_t n;
  free(slurp(good.text, &n));
  x.limit = (rlim_t)(n - 2000);
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(ranks_run(RANKS, fail_together, &x, NULL), NG_OK);
  (void)signal(SIGXFSZ, handler);
  assert_non_null(strstr(x.message[0][0], "is damaged"));
  assert_non_null(strstr(x.message[0][1], strerror(ENOENT)));
  assert_non_null(strstr(x.message[0][2], "1 of 3 ranks"));
  assert_non_null(strstr(x.message[1][2], "between ng_begin and a step"));
  for (int r = 0; r < RANKS; r++) {
    assert_string_equal(x.message[r][0], x.message[0][0]);
    assert_string_equal(x.message[r][1], x.message[0][1]);
    assert_string_equal(x.message[r][3], x.message[0][3]);
    assert_non_null(strstr(x.message[r][3], strerror(EFBIG)));
    assert_false(x.changed[r]);
  }
  assert_int_equal(unlink(good.text), 0);
  assert_int_equal(unlink(bad.text), 0);
}

/* ---- the transport fails ---------------------------------------------------------------------*/

/* Between the library and a rank's transport: fails one call. */
typedef struct tap {
  ng_transport inner;
  int64_t calls, fail_at;
} tap;

static ng_status tap_run(void *user, const ng_collective *c) {
  tap *t = user;
  return ++t->calls == t->fail_at ? NG_ERR_COMM : t->inner.run(t->inner.user, c);
}
static ng_status tap_group(void *user, const int32_t *ranks, int32_t n, void **group) {
  tap *t = user;
  return t->inner.group_create(t->inner.user, ranks, n, group);
}
static void tap_ungroup(void *user, void *group) {
  tap *t = user;
  t->inner.group_destroy(t->inner.user, group);
}
static void tap_abort(void *user) {
  tap *t = user;
  t->inner.abort(t->inner.user);
}

typedef struct broken {
  const char *file;
  bool loading;
  int32_t who; /* the rank whose transport fails ... */
  int64_t k;   /* ... at this call of the save or load */
  bool never[RANKS];
} broken;

static ng_status break_it(int32_t rank, ng_transport *t, void *arg) {
  broken *x = arg;
  tap between = {.inner = *t};
  ng_transport mine = *t;
  mine.user = &between;
  mine.run = tap_run;
  mine.start = NULL;
  mine.wait = NULL;
  mine.group_create = tap_group;
  mine.group_destroy = tap_ungroup;
  mine.abort = tap_abort;
  sim s;
  static const sim_setup how = {
      .method = "natgrad", .set = "grad_worker_fraction=0 update=sgd", .linalg = "ref"};
  ng_status st = sim_open(&s, &how, &mine, NULL);
  for (int64_t i = 0; i < 2 && st >= NG_OK; i++) {
    st = sim_step(&s, i);
  }
  if (st >= NG_OK) st = ng_save(s.p, x->file);
  if (st >= NG_OK) {
    int64_t before = 0, after = 0;
    ng_context_allocated(s.ctx, &before, NULL, NULL);
    const int64_t calls = between.calls;
    if (rank == x->who) between.fail_at = calls + x->k;
    const ng_status got = x->loading ? ng_load(s.p, x->file) : ng_save(s.p, x->file);
    ng_context_allocated(s.ctx, &after, NULL, NULL);
    x->never[rank] = got == NG_OK;
    if (before != after) st = NG_ERR_NOMEM;
    if (got != NG_OK && got != NG_ERR_COMM) st = NG_ERR_STATE;
    /* ... and it stays broken */
    if (got == NG_ERR_COMM && ng_save(s.p, x->file) != NG_ERR_COMM) st = NG_ERR_STATE;
  }
  sim_close(&s);
  return st < NG_OK ? st : NG_OK;
}

static void transport_fails(void **state) {
  (void)state;
  const path file = in_folder("file"), part = in_folder("file.part");
  char message[256];
  for (int loading = 0; loading < 2; loading++) {
    for (int32_t who = 0; who < 2; who++) {
      int64_t k = 1;
      for (;; k++) {
        broken x = {.file = file.text, .loading = loading != 0, .who = who, .k = k};
        const ng_status st = ranks_run(RANKS, break_it, &x, NULL);
        if (st != NG_OK) fail_msg("call %d of rank %d: %s", (int)k, who, ng_status_name(st));
        for (int r = 1; r < RANKS; r++) {
          assert_int_equal(x.never[r], x.never[0]);
        }
        assert_int_equal(access(part.text, F_OK), -1);
        ngio_tensors *f;
        assert_int_equal(ngio_tensors_read(file.text, NULL, &f, message, sizeof message), NGIO_OK);
        ngio_tensors_close(&f);
        if (x.never[0]) break;
      }
      assert_true(k > 5); /* a save and a load have more than so many collectives */
    }
  }
  assert_int_equal(unlink(file.text), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(resume_one_rank),
      cmocka_unit_test(resume_ranks),
      cmocka_unit_test(resume_threads),
      cmocka_unit_test(other_ranks_layouts_linalg),
      cmocka_unit_test(published_order),
      cmocka_unit_test(damaged),
      cmocka_unit_test(other_models),
      cmocka_unit_test(lying),
      cmocka_unit_test(counters_come_back),
      cmocka_unit_test(out_of_order),
      cmocka_unit_test(full_disk_and_bad_places),
      cmocka_unit_test(ranks_fail_together),
      cmocka_unit_test(transport_fails),
  };
  return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
