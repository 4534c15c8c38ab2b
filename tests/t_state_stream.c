/* t_state_stream.c: a state without a file.  A stream has the bytes of the file.  If a callback fails, all ranks
 * return an error and nothing changes.  Single arrays (ng_state_read) and the manifest make a state, too.  Tests
 * compare bytes. */
#include "unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json_edit.h"
#include "ranks.h"
#include "safetensors.h"
#include "state_help.h"
#include "stream.h"

static const sim_setup small = {.method = "natgrad", .set = "update=sgd", .vary = SIM_SMALL};

static const sim_setup rows[] = {
    {.method = "natgrad", .set = "update=sgd stat_period=2"},
    {.method = "natgrad", .set = "solver=eigen damping_split=joint inverse_dtype=bf16"},
    {.method = "natgrad", .set = "factor_dtype=bf16 inverse_dtype=f16 update=adamw"},
    {.method = "eva", .set = "update=sgd"},
    {.method = "adasgd", .set = "update=adamw"},
    {.method = "sam", .set = ""},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static void must_save(sim *s, stream *to) {
  const ng_status st = ng_save_to(s->p, stream_write, to);
  if (st != NG_OK) fail_msg("%s", ng_last_error(s->ctx));
}

/* Save the state of a model after three steps. */
static void save_after_three_steps(const sim_setup *how, stream *to) {
  sim a;
  open_and_step(&a, how, 3);
  must_save(&a, to);
  sim_close(&a);
}

/* ---- the bytes -------------------------------------------------------------------------------*/

static void streams_equal_files(void **state) {
  const path file = path_of("file");
  for (int i = 0; i < ROWS; i++) {
    sim a;
    stream s = {0};
    size_t n;
    open_and_step(&a, &rows[i], 3);
    must_save(&a, &s);
    assert_int_equal(ng_save(a.p, file.text), NG_OK);
    unsigned char *bytes = read_file(file.text, &n);
    assert_int_equal(s.n, n);
    assert_memory_equal(s.bytes, bytes, n);
    free(bytes);
    for (int64_t piece = 0; piece <= 9; piece += 3) {
      /* a read returns at most `piece` bytes; 0: no limit */
      sim b;
      stream again = {0};
      open_and_step(&b, &rows[i], 1);
      stream_rewind(&s);
      s.piece = piece;
      if (ng_load_from(b.p, stream_read, &s) != NG_OK) fail_msg("%s", ng_last_error(b.ctx));
      assert_int_equal(s.at, s.n);
      must_save(&b, &again);
      assert_int_equal(again.n, s.n);
      assert_memory_equal(again.bytes, s.bytes, (size_t)s.n);
      if (piece == 0) { /* the next step has the same bits */
        sim c;
        open_and_step(&c, &rows[i], 3);
        memcpy(b.weight, c.weight, (size_t)c.weight_count * sizeof *c.weight);
        assert_true(sim_step(&b, 3) >= NG_OK && sim_step(&c, 3) >= NG_OK);
        assert_memory_equal(b.grad, c.grad, (size_t)c.weight_count * sizeof *c.grad);
        assert_memory_equal(b.weight, c.weight, (size_t)c.weight_count * sizeof *c.weight);
        sim_close(&c);
      }
      stream_free(&again);
      sim_close(&b);
    }
    stream_free(&s);
    sim_close(&a);
  }
  assert_int_equal(unlink(file.text), 0);
}

/* ---- failing and wrong streams ---------------------------------------------------------------*/

static void every_failing_read_is_refused(void **state) {
  sim b;
  stream s = {0};
  save_after_three_steps(&plain, &s);
  static const struct {
    int64_t value;
    const char *says;
  } wrong[] = {{-7, "the reader failed (-7)"},
               {INT64_MIN, "the reader failed ("},
               {0, "ends too early"},
               {1, "requested bytes"},
               {INT64_MAX / 2, "requested bytes"}};
  open_and_step(&b, &plain, 1);
  const uint64_t before = sim_fingerprint(&b);
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    int64_t k = 1;
    for (;; k++) {
      stream_rewind(&s);
      s.piece = 400;
      s.fail_at = k;
      s.says = wrong[i].value;
      const ng_status st = ng_load_from(b.p, stream_read, &s);
      const bool last = s.at == s.n; /* the read after the last byte must return 0 */
      if (st == NG_OK) break;
      assert_int_equal(st, NG_ERR_FILE);
      assert_refusal(&b, last && wrong[i].value > 0 ? "has data after" : wrong[i].says, before);
      if (last) break;
    }
    assert_true(k > 20);
    if (wrong[i].value == 0) { /* the state was loaded */
      sim_close(&b);
      open_and_step(&b, &plain, 1);
    }
  }
  assert_untouched(&b, &plain, 1);
  stream_free(&s);
  sim_close(&b);
}

/* Streams that end early or never end.  t_state_refused.c tests damaged bytes. */
static void streams_must_end_with_the_state(void **state) {
  sim b;
  stream good = {0}, zeros = {.endless = 1};
  save_after_three_steps(&small, &good);
  open_and_step(&b, &small, 1);
  const uint64_t before = sim_fingerprint(&b);
  const int64_t n = good.n;
  for (int64_t cut = 0; cut < n; cut++) {
    stream_rewind(&good);
    good.n = cut;
    assert_int_equal(ng_load_from(b.p, stream_read, &good), NG_ERR_FILE);
    assert_refusal(&b, "the stream: ends too early", before);
  }
  good.n = n;
  stream_rewind(&good); /* a whole state that is followed by endless data */
  good.endless = 1;
  assert_int_equal(ng_load_from(b.p, stream_read, &good), NG_ERR_FILE);
  assert_refusal(&b, "has data after its last byte", before);
  assert_int_equal(ng_load_from(b.p, stream_read, &zeros), NG_ERR_FILE);
  assert_refusal(&b, "header of 0 bytes", before);
  assert_untouched(&b, &small, 1);
  stream_rewind(&good);
  assert_int_equal(ng_load_from(b.p, stream_read, &good), NG_OK);
  stream_free(&good);
  sim_close(&b);
}

/* A stream may announce any length.  The reader accepts a length only for the arrays of this model.  Before it has
 * accepted the header, it reads no data and allocates no memory for data. */
static void announced_lengths_are_not_trusted(void **state) {
  static const sim_setup wider = {
      .method = "natgrad", .set = "update=sgd", .vary = SIM_SMALL | SIM_WIDER};
  sim b;
  stream other = {0}, good = {0};
  save_after_three_steps(&wider, &other);
  open_and_step(&b, &small, 1);
  must_save(&b, &good);
  const uint64_t before = sim_fingerprint(&b);
  int64_t header = 8;
  for (int i = 0; i < 8; i++)
    header += (int64_t)other.bytes[i] << (8 * i);
  assert_int_equal(ng_load_from(b.p, stream_read, &other), NG_ERR_FILE);
  assert_refusal(&b, "layer 'fc1' is 'linear in=4", before);
  assert_int_equal(other.at, header);

  /* Change the valid header: the first array has 2^56 bytes, and the other arrays follow it. */
  int64_t length = 0;
  for (int i = 0; i < 8; i++)
    length += (int64_t)good.bytes[i] << (8 * i);
  ngio_json *json = json_must_parse((const char *)good.bytes + 8, (size_t)length);
  const ngio_value *root = ngio_json_root(json);
  char *text = strndup((const char *)good.bytes + 8, (size_t)length);
  bool first = true;
  const int64_t more = INT64_C(1) << 56;
  int64_t moved = 0;
  for (const ngio_value *v = ngio_first(root); v != NULL; v = ngio_next(root, v)) {
    char place[300], to[64];
    if (strcmp(v->key, "__metadata__") == 0) continue;
    const ngio_value *offsets = ngio_get(v, "data_offsets");
    const int64_t from = ngio_integer_of(ngio_at(offsets, 0)),
                  end = ngio_integer_of(ngio_at(offsets, 1));
    if (first) {
      assert_int_equal(from, 0);
      moved = more - end;
      (void)snprintf(place, sizeof place, "%s|shape", v->key);
      (void)snprintf(to, sizeof to, "[%lld]", (long long)(more / 4));
      json_edit_text(&text, place, to);
    }
    (void)snprintf(place, sizeof place, "%s|data_offsets", v->key);
    (void)snprintf(to, sizeof to, "[%lld,%lld]", (long long)(first ? 0 : from + moved),
                   (long long)(end + moved));
    json_edit_text(&text, place, to);
    first = false;
  }
  ngio_json_free(&json);
  stream huge = {.endless = 1};
  unsigned char eight[8];
  for (int i = 0; i < 8; i++)
    eight[i] = (unsigned char)(strlen(text) >> (8 * i));
  assert_int_equal(stream_write(&huge, eight, 8), 0);
  assert_int_equal(stream_write(&huge, text, (int64_t)strlen(text)), 0);
  huge.calls = 0;
  assert_int_equal(ng_load_from(b.p, stream_read, &huge), NG_ERR_FILE);
  assert_refusal(&b, "has another shape than in this model", before);
  assert_int_equal(huge.calls, 2); /* one read of the length, and one of the header */
  free(text);
  stream_free(&huge);
  stream_free(&other);
  stream_free(&good);
  sim_close(&b);
}

static void streams_need_a_ready_model(void **state) {
  fixture f;
  stream s = {0};
  ng_field_info info = {.struct_size = sizeof info};
  fixture_ok(&f, fixture_open(&f, "", NULL));
  assert_int_equal(ng_save_to(f.p, stream_write, &s), NG_ERR_STATE);
  assert_int_equal(ng_load_from(f.p, stream_read, &s), NG_ERR_STATE);
  assert_int_equal(ng_state_at(f.p, 0, &info), NG_ERR_STATE);
  assert_int_equal(ng_state_read(f.p, 0, &s, 8), NG_ERR_STATE);
  fixture_fails(&f, ng_state_manifest(f.p, NULL, 0), NG_ERR_STATE, "ng_ready");
  assert_int_equal(ng_state_count(f.p), 0);
  fixture_close(&f);
  sim a;
  open_and_step(&a, &plain, 1);
  assert_int_equal(sim_begin(&a, 1), NG_OK);
  const uint64_t before = sim_fingerprint(&a);
  assert_int_equal(ng_save_to(a.p, stream_write, &s), NG_ERR_STATE);
  assert_refusal(&a, "between ng_begin and a step", before);
  assert_int_equal(ng_load_from(a.p, stream_read, &s), NG_ERR_STATE);
  assert_refusal(&a, "between ng_begin and a step", before);
  assert_int_equal(ng_state_manifest(a.p, NULL, 0), NG_ERR_STATE);
  assert_refusal(&a, "ng_state_manifest: called between ng_begin and a step", before);
  assert_int_equal(ng_state_at(a.p, 0, &info), NG_OK);
  void *room = malloc((size_t)info.bytes);
  assert_non_null(room);
  assert_int_equal(ng_state_read(a.p, 0, room, info.bytes), NG_ERR_STATE);
  assert_refusal(&a, "ng_state_read: called between ng_begin and a step", before);
  assert_int_equal(ng_reset_batch(a.p), NG_OK);
  assert_int_equal(ng_state_read(a.p, 0, room, info.bytes), NG_OK);
  assert_int_equal(s.calls, 0);
  free(room);
  sim_close(&a);
}

/* ---- two ranks -------------------------------------------------------------------------------*/

enum { RANKS = 2 };

typedef struct pair {
  stream s, alone;           /* the stream of ng_save; the stream of ng_save_local on rank 1 */
  bool loading, no_callback; /* no_callback: rank 0 has no callback */
  bool is_spread;            /* each rank holds the inverses of some layers only */
  ng_status got[RANKS];
  char message[RANKS][512];
  bool changed[RANKS];
  state_arrays walk[RANKS];
  int32_t lacks[RANKS];
} pair;

static ng_status fail_at_one_call(int32_t rank, ng_transport *t, void *arg) {
  pair *x = arg;
  sim s;
  const bool first = (rank == 0) != x->no_callback; /* callbacks of other ranks are not called */
  ng_status st = sim_open(&s, &spread, t, NULL);
  for (int64_t i = 0; i < 2 && st >= NG_OK; i++)
    st = sim_step(&s, i);
  if (st >= NG_OK) {
    const uint64_t before = sim_fingerprint(&s);
    x->got[rank] = x->loading ? ng_load_from(s.p, first ? stream_read : NULL, first ? &x->s : NULL)
                              : ng_save_to(s.p, first ? stream_write : NULL, first ? &x->s : NULL);
    (void)snprintf(x->message[rank], sizeof x->message[0], "%s", ng_last_error(s.ctx));
    x->changed[rank] = sim_fingerprint(&s) != before;
    st = sim_step(&s, 2); /* the model is still usable */
  }
  sim_close(&s);
  return st < NG_OK ? st : NG_OK;
}

static void ranks_fail_together(void **state) {
  stream whole = {0};
  for (int loading = 0; loading < 2; loading++) {
    int64_t k = 1;
    for (;; k++) {
      pair x = {.loading = loading != 0};
      if (loading) x.s = whole;
      x.s.piece = loading ? 2000 : 0;
      x.s.fail_at = k;
      x.s.says = -3;
      const ng_status st = ranks_run(RANKS, fail_at_one_call, &x, NULL);
      if (st != NG_OK) fail_msg("failing call %d: %s", (int)k, ng_status_name(st));
      assert_int_equal(x.got[0], x.got[1]);
      assert_string_equal(x.message[0], x.message[1]);
      if (x.got[0] == NG_OK) {
        if (!loading) whole = x.s;
        stream_rewind(&whole);
        break;
      }
      assert_int_equal(x.got[0], NG_ERR_FILE);
      assert_non_null(strstr(x.message[0], "failed (-3)"));
      assert_false(x.changed[0] || x.changed[1]);
      if (!loading) stream_free(&x.s);
    }
    assert_true(k > 10);
  }
  /* a file that two ranks write has the bytes of their stream */
  const path file = path_of("two");
  size_t n;
  must_transfer(RANKS, (transfer){.steps = 2, .one = file.text});
  unsigned char *bytes = read_file(file.text, &n);
  assert_int_equal(n, whole.n);
  assert_memory_equal(bytes, whole.bytes, n);
  free(bytes);
  assert_int_equal(unlink(file.text), 0);
  stream_free(&whole);
}

static void rank_0_needs_a_callback(void **state) {
  for (int loading = 0; loading < 2; loading++) {
    pair x = {.loading = loading != 0, .no_callback = true};
    assert_int_equal(ranks_run(RANKS, fail_at_one_call, &x, NULL), NG_OK);
    for (int r = 0; r < RANKS; r++) {
      assert_int_equal(x.got[r], NG_ERR_ARG);
      assert_non_null(strstr(x.message[r], "the callback is NULL"));
      assert_string_equal(x.message[r], x.message[0]);
      assert_false(x.changed[r]);
    }
    assert_int_equal(x.s.calls, 0);
  }
}

static ng_status save_on_each_rank(int32_t rank, ng_transport *t, void *arg) {
  pair *x = arg;
  sim s;
  stream all = {0};
  sim_setup how = spread;
  if (!x->is_spread)
    how.set = "update=sgd grad_worker_fraction=1"; /* every rank holds every array */
  ng_status st = sim_open(&s, &how, t, NULL);
  for (int64_t i = 0; i < 3 && st >= NG_OK; i++)
    st = sim_step(&s, i);
  if (st >= NG_OK) st = ng_save_to(s.p, stream_write, &all);
  if (st >= NG_OK && rank == 1) { /* rank 0 makes no call */
    x->got[0] = ng_save_local(s.p, NULL, NULL);
    x->got[1] = ng_save_local(s.p, stream_write, &x->alone);
    (void)snprintf(x->message[1], sizeof x->message[1], "%s", ng_last_error(s.ctx));
  } else if (st >= NG_OK) {
    x->s = all;
  }
  if (st >= NG_OK) st = sim_step(&s, 3);
  sim_close(&s);
  return st < NG_OK ? st : NG_OK;
}

static void one_rank_saves_all_arrays_that_it_holds(void **state) {
  pair x = {.is_spread = false};
  assert_int_equal(ranks_run(RANKS, save_on_each_rank, &x, NULL), NG_OK);
  assert_int_equal(x.got[0], NG_OK);
  assert_int_equal(x.got[1], NG_OK);
  assert_int_equal(x.s.n, x.alone.n);
  assert_memory_equal(x.s.bytes, x.alone.bytes, (size_t)x.s.n);
  stream_free(&x.alone);
  stream_free(&x.s);
  x = (pair){.is_spread = true};
  assert_int_equal(ranks_run(RANKS, save_on_each_rank, &x, NULL), NG_OK);
  assert_int_equal(x.got[0], NG_ERR_STATE);
  assert_int_equal(x.got[1], NG_ERR_STATE);
  assert_non_null(strstr(x.message[1], "rank 1 does not hold all of '"));
  stream_free(&x.s);
}

/* ---- array by array --------------------------------------------------------------------------*/

static ng_status read_arrays_together(int32_t rank, ng_transport *t, void *arg) {
  pair *x = arg;
  sim a, b;
  sim_setup other = spread;
  /* the loaded state replaces this damping */
  other.set = "damping=0.9 update=sgd grad_worker_fraction=0";
  ng_status st = sim_open(&a, &spread, t, NULL);
  for (int64_t i = 0; i < 3 && st >= NG_OK; i++)
    st = sim_step(&a, i);
  if (st >= NG_OK) st = state_arrays_read(a.p, rank, &x->walk[rank]);
  for (int32_t i = 0; i < ng_state_count(a.p) && st == NG_OK; i++) {
    ng_field_info info;
    double room[2048];
    info = (ng_field_info){.struct_size = sizeof info};
    if (x->walk[rank].data[i] != NULL) continue;
    st = ng_state_at(a.p, i, &info);
    char want[400];
    (void)snprintf(want, sizeof want, "rank %d does not hold '%s', rank %d does", rank, info.name,
                   info.owner);
    if (info.bytes > (int64_t)sizeof room ||
        ng_state_read(a.p, i, room, info.bytes) != NG_ERR_STATE ||
        strstr(ng_last_error(a.ctx), want) == NULL)
      st = NG_ERR_STATE;
    x->lacks[rank]++;
  }
  if (st == NG_OK && rank == 0) st = state_arrays_write(a.p, x->walk, &x->s);
  if (st == NG_OK) st = sim_open(&b, &other, t, NULL);
  if (st == NG_OK) st = ng_load_from(b.p, rank == 0 ? stream_read : NULL, &x->s);
  if (st != NG_OK)
    (void)snprintf(x->message[rank], sizeof x->message[0], "%s", ng_last_error(a.ctx));
  if (st == NG_OK) {
    memcpy(b.weight, a.weight, (size_t)a.weight_count * sizeof *a.weight);
    for (int64_t i = 3; i < 6 && st >= NG_OK; i++) {
      st = sim_step(&a, i);
      if (st >= NG_OK) st = sim_step(&b, i);
      x->changed[rank] = x->changed[rank] ||
                         memcmp(a.grad, b.grad, (size_t)a.weight_count * sizeof *a.grad) != 0 ||
                         memcmp(a.weight, b.weight, (size_t)a.weight_count * sizeof *a.weight) != 0;
    }
    sim_close(&b);
  }
  sim_close(&a);
  return st < NG_OK ? st : NG_OK;
}

static void two_ranks_read_arrays_together(void **state) {
  pair x = {.loading = true};
  const ng_status st = ranks_run(RANKS, read_arrays_together, &x, NULL);
  if (st != NG_OK) fail_msg("%s %s", ng_status_name(st), x.message[0]);
  assert_true(x.lacks[0] > 0 && x.lacks[1] > 0);
  assert_string_equal(x.walk[0].manifest, x.walk[1].manifest);
  assert_false(x.changed[0] || x.changed[1]);
  for (int r = 0; r < RANKS; r++)
    state_arrays_free(&x.walk[r]);
  stream_free(&x.s);
}

/* ng_state_at lists the arrays in the file's order, from any index to any other. */
static void arrays_equal_the_file(void **state) {
  for (int row = 0; row < ROWS; row++) {
    sim a;
    stream s = {0};
    ngio_tensors *f;
    open_and_step(&a, &rows[row], 3);
    must_save(&a, &s);
    assert_int_equal(ngio_tensors_parse(s.bytes, (size_t)s.n, "x", NULL, &f, NULL, 0), NGIO_OK);
    const int32_t n = ng_state_count(a.p);
    assert_int_equal(n, ngio_tensors_count(f));
    for (int32_t turn = 0; turn < 3 * n; turn++) { /* forwards, backwards, mixed */
      const int32_t i = turn < n       ? turn
                        : turn < 2 * n ? 2 * n - 1 - turn
                                       : (int32_t)((int64_t)turn * 7919 % n);
      const ngio_tensor *t = ngio_tensors_at(f, i);
      ng_field_info info = {.struct_size = sizeof info};
      assert_int_equal(ng_state_at(a.p, i, &info), NG_OK);
      assert_string_equal(info.name, t->name);
      assert_int_equal((int)info.dtype, (int)t->dtype);
      assert_int_equal(info.ndim, t->ndim);
      assert_int_equal(info.shape[0], t->shape[0]);
      assert_int_equal(info.shape[1], t->ndim > 1 ? t->shape[1] : 0);
      assert_int_equal(info.bytes, t->bytes);
      assert_int_equal(info.owner, 0);
      unsigned char *room = malloc((size_t)info.bytes + 8);
      assert_non_null(room);
      memset(room, 0xab, (size_t)info.bytes + 8);
      assert_int_equal(ng_state_read(a.p, i, room, info.bytes), NG_OK);
      assert_memory_equal(room, t->data, (size_t)info.bytes);
      for (int k = 0; k < 8; k++)
        assert_int_equal(room[info.bytes + k], 0xab);
      free(room);
    }
    const char *manifest = ngio_tensors_text(f, "natgrad");
    const int64_t length = ng_state_manifest(a.p, NULL, 0);
    assert_int_equal(length, strlen(manifest));
    char *text = malloc((size_t)length + 1), cut[9] = "????????";
    assert_non_null(text);
    assert_int_equal(ng_state_manifest(a.p, text, (size_t)length + 1), length);
    assert_string_equal(text, manifest);
    ngio_json *json = json_must_parse(text, strlen(text)); /* each key once */
    ngio_json_free(&json);
    assert_int_equal(ng_state_manifest(a.p, cut, 5), length);
    assert_memory_equal(cut, manifest, 4);
    assert_memory_equal(cut + 4, "\0???", 4);
    free(text);
    ngio_tensors_close(&f);
    stream_free(&s);
    sim_close(&a);
  }
}

static void wrong_arguments_are_refused(void **state) {
  sim a;
  open_and_step(&a, &plain, 2);
  const uint64_t before = sim_fingerprint(&a);
  const int32_t n = ng_state_count(a.p);
  ng_field_info info;
  info = (ng_field_info){.struct_size = sizeof info};
  assert_int_equal(ng_state_at(a.p, -1, &info), NG_ERR_ARG);
  assert_refusal(&a, "index is -1", before);
  assert_int_equal(ng_state_at(a.p, n, &info), NG_ERR_ARG);
  assert_refusal(&a, "expected 0 to", before);
  assert_int_equal(ng_state_at(a.p, 1, &info), NG_OK);
  double room[2048];
  assert_true(info.bytes + 8 <= (int64_t)sizeof room);
  memset(room, 0, sizeof room);
  static const double zeros[2048];
  char says[400];
  (void)snprintf(says, sizeof says, "'%s' has %lld bytes", info.name, (long long)info.bytes);
  assert_int_equal(ng_state_read(a.p, 1, room, info.bytes - 1), NG_ERR_ARG);
  assert_refusal(&a, says, before);
  assert_int_equal(ng_state_read(a.p, 1, room, info.bytes + 1), NG_ERR_ARG);
  assert_refusal(&a, says, before);
  assert_int_equal(ng_state_read(a.p, 1, (char *)room + 1, info.bytes), NG_ERR_ARG);
  assert_refusal(&a, "aligned for f32", before);
  assert_int_equal(ng_state_read(a.p, n, room, info.bytes), NG_ERR_ARG);
  assert_int_equal(ng_state_read(a.p, INT32_MAX, room, info.bytes), NG_ERR_ARG);
  assert_memory_equal(room, zeros, sizeof room);
  sim_close(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(streams_equal_files),
      cmocka_unit_test(every_failing_read_is_refused),
      cmocka_unit_test(streams_must_end_with_the_state),
      cmocka_unit_test(announced_lengths_are_not_trusted),
      cmocka_unit_test(streams_need_a_ready_model),
      cmocka_unit_test(ranks_fail_together),
      cmocka_unit_test(rank_0_needs_a_callback),
      cmocka_unit_test(one_rank_saves_all_arrays_that_it_holds),
      cmocka_unit_test(two_ranks_read_arrays_together),
      cmocka_unit_test(arrays_equal_the_file),
      cmocka_unit_test(wrong_arguments_are_refused),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_empty_folder);
}
