/* manifest.c: read and check the manifest: the JSON text of everything in a state that is not an array.
 *
 *   {"format": 2, "library": "0.2.0", "method": "natgrad",
 *    "options":  {"solver": "cholesky", ...}        every option, as ng_options_set takes it
 *    "counters": {"steps": 120, ...},  "last": {"clip": 0.8, "inner": 3.5},
 *    "layers":   [{"name": "fc1", "is": "linear in=64 out=10 ...", "options": ""}, ...]
 *    "blocks":   {"fc1": {"solved": 1.0, "input_seen": 1.0, "A_started": 1.0, ...}, ...}
 *    "tensors":  {"fc1/A": {"crc32": "89abcdef"}, ...}}    written by save.c
 *
 * The manifest has layers and options as texts, not as a hash, so that the error for a state of another model can name
 * the difference.  The text is untrusted: every key may be missing, have another type, or a number out of range.  The
 * checked values are in memory of their own (ng_snapshot, ng_work.values) until the whole state is checked. */
#include "state/work.h"

/* ---- layers ----------------------------------------------------------------------------------*/

/* Append a text and a number.  With many layers, printf would take most of the time of a save. */
static void append_property(char *text, const char *what, int64_t x) {
  ng_name_append(text, NG_MESSAGE, what);
  if (x < 0) ng_name_append(text, NG_MESSAGE, "-");
  ng_name_append_number(text, NG_MESSAGE, x < 0 ? -x : x);
}

static void append_pair(char *text, const char *what, const int64_t x[2]) {
  append_property(text, what, x[0]);
  append_property(text, "x", x[1]);
}

/* Describe a layer by the properties on which its arrays in the state depend.  They do not depend on the order of the
 * axes of observed arrays. */
void ng_manifest_describe(const ng_entry *e, char text[NG_MESSAGE]) {
  const ng_layer *d = &e->d;
  text[0] = 0;
  if (e->is_tensor) {
    append_property(text, "tensor of ", e->slot[0].cols);
  } else if (d->kind == NG_NORM) {
    static const char *const kind[] = {"", "batch", "layer", "group"};
    (void)snprintf(
        text, NG_MESSAGE,
        "norm in=%lld weight=%d bias=%d frozen=%d over=%s groups=%lld eps=%.17g input=%s",
        (long long)d->in, d->norm_no_weight == 0, d->bias, d->frozen, kind[d->norm_kind],
        (long long)d->groups, d->norm_eps, d->norm_input == NG_NORM_RAW ? "raw" : "normalised");
  } else if (d->kind == NG_EMBEDDING) {
    append_property(text, "embedding in=", d->in);
    append_property(text, " out=", d->out);
    append_property(text, " frozen=", d->frozen);
    append_property(text, " positions=", d->positions);
  } else {
    const bool conv = d->kind == NG_CONV2D;
    append_property(text, conv ? "conv2d in=" : "linear in=", d->in);
    append_property(text, " out=", d->out);
    append_property(text, " bias=", d->bias);
    append_property(text, " frozen=", d->frozen);
    if (conv) {
      append_pair(text, " kernel=", d->kernel);
      append_pair(text, " stride=", d->stride);
      append_pair(text, " padding=", d->padding);
      append_pair(text, " dilation=", d->dilation);
      append_property(text, " groups=", d->groups);
      append_pair(text, " image=", d->image);
    } else {
      append_property(text, " positions=", d->positions);
    }
  }
  for (int32_t k = 0; k < e->slots; k++) { /* window_scope = group: a window for each group */
    const ng_block *b = e->slot[k].block;
    if (b == NULL || b->entry != NULL || b->base.window_scope != NG_WINDOW_GROUP) continue;
    append_property(text, k == 0 ? " group=" : ",", b->segment[e->slot[k].segment].group);
  }
}

/* Return the integer that has the key, or -1 if there is none. */
static int64_t integer_of_key(const ngio_value *v, const char *key) {
  return ngio_integer_or(ngio_get(v, key), -1);
}

static bool read_count(ng_work *w, const ngio_value *object, const char *where, const char *name,
                       int64_t most, int64_t *out) {
  *out = integer_of_key(object, name);
  return (*out >= 0 && *out <= most) ||
         ng_work_fail(w, NG_ERR_FILE,
                      "%s '%s' of the manifest is not a whole number from 0 to %lld", where, name,
                      (long long)most);
}

/* Compare the layers in order; the error names the first difference.  Also read "missed", the number of missed updates,
 * which is absent if 0. */
static bool read_layers(ng_work *w, const ngio_value *layers, int64_t updates) {
  const ng_precond *p = w->p;
  double *missed = w->values + w->value_count - p->entries;
  const size_t n = ngio_count(layers);
  const ngio_value *l = ngio_first(layers);
  char is[NG_MESSAGE];
  if (!ngio_is(layers, NGIO_ARRAY)) {
    return ng_work_fail(w, NG_ERR_FILE, "the manifest has no list of layers");
  }
  for (size_t i = 0; i < n || i < (size_t)p->entries;
       i++, l = l == NULL ? NULL : ngio_next(layers, l)) {
    const char *name = ngio_text_of(ngio_get(l, "name"));
    if (i >= n) {
      return ng_work_fail(w, NG_ERR_FILE, "layer '%s' is not in the state", p->entry[i]->d.name);
    }
    if (name == NULL) {
      return ng_work_fail(w, NG_ERR_FILE, "layer %zu of the manifest has no name", i);
    }
    if (i >= (size_t)p->entries) {
      return ng_work_fail(w, NG_ERR_FILE, "layer '%.255s' of the state is not in this model", name);
    }
    const ng_entry *e = p->entry[i];
    const char *theirs = ngio_text_of(ngio_get(l, "is"));
    const char *options = ngio_text_of(ngio_get(l, "options"));
    const char *ours = e->d.options == NULL ? "" : e->d.options;
    ng_manifest_describe(ng_entry_whole(e), is);
    if (!ng_is(name, e->d.name)) {
      return ng_work_fail(w, NG_ERR_FILE, "layer %zu is '%.160s' in the state and '%.160s' here", i,
                          name, e->d.name);
    }
    if (theirs == NULL || !ng_is(theirs, is)) {
      return ng_work_fail(w, NG_ERR_FILE, "layer '%s' is '%s' in the state and '%s' here", name,
                          theirs == NULL ? "nothing" : theirs, is);
    }
    if (options == NULL || !ng_is(options, ours)) {
      return ng_work_fail(w, NG_ERR_FILE,
                          "options of layer '%s' is '%s' in the state and '%s' here", name,
                          options == NULL ? "none" : options, ours);
    }
    int64_t count = 0;
    if (ngio_get(l, "missed") != NULL && !read_count(w, l, name, "missed", updates, &count))
      return false;
    missed[i] = (double)count;
  }
  return true;
}

/* ---- options ---------------------------------------------------------------------------------*/

/* Return whether an option may differ from the state: placement does not change saved values, quantify only measures, and
 * gradient_rows only selects the cheaper of two equal formulas. */
static bool may_differ(ng_option_id id) {
  return id == NG_OPTION_placement || id == NG_OPTION_colocate ||
         id == NG_OPTION_grad_worker_fraction || id == NG_OPTION_quantify ||
         id == NG_OPTION_gradient_rows;
}

/* Return whether statistics include the samples of all ranks. */
static bool has_all_samples(const char *statistics) {
  return ng_is(statistics, "all") || ng_is(statistics, "sharded");
}

/* Compare an option with the model's or, if it may change, set it in *o. */
static bool read_option(ng_work *w, const ngio_value *options, const char *method, ng_option_id id,
                        ng_options *o) {
  const ng_options *opt = &w->p->opt;
  const ng_option_row *row = &ng_option_table[id];
  char why[NG_MESSAGE] = "", ours[NG_TEXT_SIZE] = "";
  const ngio_value *v = ngio_get(options, row->name);
  const char *older = row->older_states == NULL ? row->default_text : row->older_states;
  const char *theirs = v == NULL ? older : ngio_text_of(v);
  if (theirs == NULL) {
    return ng_work_fail(w, NG_ERR_FILE, "option '%s' of the manifest is not a text", row->name);
  }
  if (row->can_change) {
    return ng_option_read(row, theirs, o, why, sizeof why) == NG_OK ||
           ng_work_fail(w, NG_ERR_FILE, "option of the state: %s", why);
  }
  (void)ng_option_write(row, opt, ours, sizeof ours);
  return may_differ(id) || ng_is(theirs, ours) ||
         (id == NG_OPTION_statistics && has_all_samples(theirs) && has_all_samples(ours)) ||
         ng_work_fail(w, NG_ERR_FILE,
                      "option '%s' is '%.120s' in the state (method '%.40s') and '%.120s' here "
                      "(method '%.40s')",
                      row->name, theirs, method, ours, opt->base.method);
}

/* Check that this version has each option of the state, or has removed the option and the state has its default. */
static bool check_known_options(ng_work *w, const ngio_value *options) {
  for (const ngio_value *v = ngio_first(options); v != NULL; v = ngio_next(options, v)) {
    const ng_removed_option *gone = ng_find_removed_option(v->key);
    const char *was = ngio_text_of(v);
    if (gone == NULL && ng_option_find(v->key) < 0) {
      return ng_work_fail(w, NG_ERR_FILE, "option '%.80s' of the state is unknown to this version",
                          v->key);
    }
    if (gone != NULL && (was == NULL || !ng_is(was, gone->default_text))) {
      return ng_work_fail(w, NG_ERR_FILE, "option '%s' is '%.80s' in the state; it was removed: %s",
                          gone->name, was == NULL ? "" : was, gone->replacement);
    }
  }
  return true;
}

/* Set *o to the model's options with the values of the state, and check them as for a new model. */
static bool read_options(ng_work *w, const ngio_value *manifest, ng_options *o) {
  char why[NG_MESSAGE] = "";
  const ngio_value *options = ngio_get(manifest, "options");
  const char *method = ngio_text_of(ngio_get(manifest, "method"));
  if (!ngio_is(options, NGIO_OBJECT) || method == NULL) {
    return ng_work_fail(w, NG_ERR_FILE, "the manifest has no options or no method");
  }
  if (!check_known_options(w, options)) return false;
  *o = w->p->opt;
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    if (!read_option(w, options, method, (ng_option_id)i, o)) return false;
  }
  memcpy(o->given, w->p->opt.given, sizeof o->given); /* the caller's choice, not the state's */
  const ng_status st = ng_model_check_options(w->p, o, why, sizeof why);
  return st == NG_OK ||
         ng_work_fail(w, st == NG_ERR_NOMEM ? st : NG_ERR_FILE, "options of the state: %s", why);
}

/* ---- counters --------------------------------------------------------------------------------*/

const char *const ng_rung_name[NG_RESCUES] = {"more_damping", "in_double", "kept_last", "plain"};

static bool read_counters(ng_work *w, const ngio_value *manifest, ng_snapshot *s) {
  const int64_t most = NG_COUNT_MOST;
  const ngio_value *c = ngio_get(manifest, "counters");
  const ngio_value *last = ngio_get(manifest, "last");
  const ngio_value *nu = ngio_get(last, "clip"), *inner = ngio_get(last, "inner");
  bool ok = read_count(w, c, "counter", "steps", most, &s->steps) &&
            read_count(w, c, "counter", "updates", s->steps, &s->updates) &&
            read_count(w, c, "counter", "skipped", most, &s->skipped);
  for (int i = 0; i < NG_RESCUES && ok; i++)
    ok = read_count(w, c, "counter", ng_rung_name[i], most, &s->rung[i]);
  if (ok && (!ngio_is_number(nu) || !ngio_is_number(inner))) {
    return ng_work_fail(w, NG_ERR_FILE, "'last' of the manifest lacks clip or inner");
  }
  s->nu = ngio_number_of(nu); /* ng_report shows these values until the next step */
  s->inner = ngio_number_of(inner);
  return ok;
}

/* ---- pieces of arrays ------------------------------------------------------------------------*/

ng_part_piece ng_piece_of(const ngio_value *v, const ng_field *f) {
  const bool sliced = v->count > 3, by_rows = sliced && ngio_get(v, "from_row") != NULL;
  ng_part_piece q = {.part = (int32_t)integer_of_key(v, "part"),
                     .to = f->cols,
                     .by_rows = by_rows,
                     .is_whole = !by_rows && (!sliced || ngio_get(v, "from") == NULL),
                     .crc = ngio_text_of(ngio_get(v, "crc32"))};
  if (!q.is_whole) {
    q.from = integer_of_key(v, by_rows ? "from_row" : "from");
    q.to = integer_of_key(v, by_rows ? "to_row" : "to");
  }
  if (q.crc != NULL && strlen(q.crc) != NG_HEX) q.crc = NULL;
  return q;
}

static bool same_shape(const ngio_value *v, const ng_field *f) {
  const ngio_tensor t = ng_tensor_describe(NULL, f, NULL);
  const ngio_value *x = ngio_first(v);
  if (ngio_count(v) != (size_t)t.ndim) return false;
  for (int32_t i = 0; i < t.ndim; i++, x = ngio_next(v, x)) {
    if (ngio_integer_or(x, -1) != t.shape[i]) return false;
  }
  return true;
}

/* Return whether one file has two pieces of the array.  Needed only if the files of the pieces are not in ascending
 * order, as for sharded layers. */
static bool has_duplicate_part(const ngio_value *pieces) {
  for (const ngio_value *x = ngio_first(pieces); x != NULL; x = ngio_next(pieces, x)) {
    for (const ngio_value *y = ngio_next(pieces, x); y != NULL; y = ngio_next(pieces, y)) {
      if (integer_of_key(x, "part") == integer_of_key(y, "part")) return true;
    }
  }
  return false;
}

/* The pieces must be in order and without gaps, and every key must be known. */
const ngio_value *ng_pieces_check(const ngio_value *v, const ng_field *f, int32_t parts) {
  const ngio_value *pieces = ngio_get(v, "pieces"), *x = ngio_first(pieces);
  const bool by_rows = ngio_get(x, "from_row") != NULL;
  const int64_t all = by_rows ? f->rows : f->cols;
  int64_t at = 0, part = -1;
  bool ordered = true;
  if (!same_shape(ngio_get(v, "shape"), f) || v->count != 2 || ngio_count(pieces) == 0) {
    return NULL;
  }
  for (; x != NULL; x = ngio_next(pieces, x)) {
    const int64_t its = integer_of_key(x, "part");
    const ng_part_piece q = ng_piece_of(x, f);
    if (its < 0 || its >= parts || q.by_rows != by_rows || x->count != (q.is_whole ? 3 : 5) ||
        q.crc == NULL || !ngio_is_flag(ngio_get(x, "finite"))) {
      return NULL;
    }
    if (q.is_whole ? pieces->count != 1
                   : f->is_symmetric || q.from != at || q.to <= q.from || q.to > all) {
      return NULL;
    }
    ordered = ordered && its > part;
    part = its;
    at = q.to;
  }
  return at == all && (ordered || !has_duplicate_part(pieces)) ? pieces : NULL;
}

/* ---- reading ---------------------------------------------------------------------------------*/

/* Read the numbers of all blocks by name.  The first numbers of a block are flags and counts; check their range, because
 * they are converted to integers.  A block with more numbers than were read has an unknown number. */
static bool read_blocks(ng_work *w, const ngio_value *blocks) {
  const ng_precond *p = w->p;
  const char *name = w->number_names.text;
  const ngio_value *next = ngio_first(blocks); /* probably the next block */
  double *to = w->values;
  for (int32_t i = 0; i < p->blocks; i++, name++) {
    const char *layer = p->block[i]->name;
    const size_t counts = ng_block_flags_and_counts(p->block[i]);
    const ngio_value *block = ngio_get_hinted(blocks, next, layer), *hint = ngio_first(block);
    size_t n = 0;
    for (; *name != 0; name += strlen(name) + 1, n++) {
      const ngio_value *v = ngio_get_hinted(block, hint, name);
      const double x = ngio_number_of(v);
      if (!ngio_is_number(v)) {
        return ng_work_fail(w, NG_ERR_FILE, "block '%s' of the manifest has no number '%s'", layer,
                            name);
      }
      if (n < counts && !(x >= 0.0 && x <= (double)NG_COUNT_MOST)) {
        return ng_work_fail(w, NG_ERR_FILE,
                            "'%s' of block '%s' of the manifest is %g, expected a count", name,
                            layer, x);
      }
      hint = ngio_next(block, v);
      *to++ = x;
    }
    if (block->count != n) { /* `solved` names the block, so the block exists */
      return ng_work_fail(w, NG_ERR_FILE,
                          "block '%s' of the manifest has numbers that are unknown to this "
                          "version",
                          layer);
    }
    next = ngio_next(blocks, block);
  }
  const size_t n = ngio_is(blocks, NGIO_OBJECT) ? blocks->count : 0;
  return n == (size_t)p->blocks ||
         ng_work_fail(w, NG_ERR_FILE, "the state has %zu blocks, this model has %d", n, p->blocks);
}

/* Compare layers before options, so that the error for a state of another model names a layer. */
bool ng_manifest_read(ng_work *w, ng_snapshot *s) {
  const ngio_value *manifest = ngio_json_root(w->manifest);
  const ngio_value *layers = ngio_get(manifest, "layers"), *parts = ngio_get(manifest, "parts");
  const int64_t is = ngio_integer_of(ngio_get(manifest, "format"));
  memset(s, 0, sizeof *s);
  if (is != NG_STATE_FORMAT && is != NG_STATE_PARTS) {
    return ng_work_fail(
        w, NG_ERR_FILE,
        "format %lld of the state is unknown to this version, which reads %d and %d", (long long)is,
        NG_STATE_FORMAT, NG_STATE_PARTS);
  }
  s->parts = is == NG_STATE_FORMAT ? 1 : (int32_t)ng_min64((int64_t)ngio_count(parts), INT32_MAX);
  if (is == NG_STATE_PARTS && (s->parts < 2 || s->parts > NG_PARTS_MOST)) {
    return ng_work_fail(w, NG_ERR_FILE, "the manifest has an invalid list of parts");
  }
  return read_counters(w, manifest, s) && read_layers(w, layers, s->updates) &&
         read_options(w, manifest, &s->opt) && read_blocks(w, ngio_get(manifest, "blocks"));
}

static void set_number(void *arg, ng_number *n) {
  const double **from = arg;
  *n->value = *(*from)++;
}

void ng_snapshot_apply(ng_precond *p, const ng_snapshot *s, const double *values) {
  ng_model_set_options(p, &s->opt);
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block_numbers(p->block[i], set_number, &values);
  }
  for (int32_t i = 0; i < p->entries; i++)
    p->entry[i]->missed_updates = (int64_t)values[i];
  p->steps = s->steps;
  p->updates = s->updates;
  p->skipped = s->skipped;
  /* each rank counts its own rungs; the file has their sum over ranks, which is given to rank 0 only */
  const bool first = p->ctx->rank == 0;
  for (int i = 0; i < NG_RESCUES; i++) {
    p->rescued[i] = first ? s->rung[i] : 0;
  }
  p->step->nu = s->nu;
  p->step->inner = s->inner;
  p->step->d2 = p->step->pd2 = 0.0; /* a state does not contain d2 and pd2 */
  p->step->quantify.result = (ng_scaling){0};
}
