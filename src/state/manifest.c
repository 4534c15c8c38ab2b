/* manifest.c: everything of the state that is not an array, as a JSON text, and how it is read.
 *
 *   {"format": 2, "library": "0.2.0", "method": "natgrad",
 *    "options":  {"solver": "cholesky", ...}        every option, as ng_options_set takes it
 *    "counters": {"steps": 120, ...},  "last": {"clip": 0.8, "inner": 3.5},
 *    "layers":   [{"name": "fc1", "is": "linear in=64 out=10 ...", "options": ""}, ...]
 *    "blocks":   {"fc1": {"solved": 1.0, "input_seen": 1.0, "A_started": 1.0, ...}, ...}
 *    "tensors":  {"fc1/A": {"crc32": "89abcdef"}, ...}}    added by save.c; blocks are keyed by their name
 *
 * Layers and options are kept as text rather than as a hash, so that a state of another model is
 * refused with what differs.  A state fits when the layers are the same and every option is the
 * same that was fixed at ng_ready; live options are taken from the state, and the ones that only
 * say where results are kept do not matter.
 *
 * In: a model, or an untrusted JSON text.  Out: the text; or its verified values in separate memory
 * (ng_snapshot, `values`), from where ng_snapshot_apply cannot fail.  Nothing of the model
 * changes before all of the text has been understood.  Every key may be missing, have another
 * type, or a number out of range. */
#include "io.h"
#include "state/manifest.h"

/* ---- layers ----------------------------------------------------------------------------------*/

typedef struct words {
  char *text;
  size_t size;
} words;

/* "in=" 64, "x" 3: without printf, which takes longer than all else that is said about a layer. */
static void say(const words *w, const char *what, int64_t x) {
  ng_name_add(w->text, w->size, what);
  if (x < 0) ng_name_add(w->text, w->size, "-");
  ng_name_count(w->text, w->size, x < 0 ? -x : x);
}

static void say_two(const words *w, const char *what, const int64_t x[2]) {
  say(w, what, x[0]);
  say(w, "x", x[1]);
}

/* What a layer is, as far as the state depends on it: not in which order its arrays arrive.  A
 * layout of NHWC or positions first read the same weights.  With names in front of the numbers,
 * since people read it in a refusal. */
void ng_manifest_describe(const ng_entry *e, char *text, size_t size) {
  const ng_layer *d = &e->d;
  const words w = {text, size};
  text[0] = 0;
  if (e->tensor) {
    say(&w, "tensor of ", e->slot[0].cols);
  } else if (d->kind == NG_NORM) {
    static const char *const kind[] = {"", "batch", "layer", "group"};
    (void)snprintf(
        text, size,
        "norm in=%lld weight=%d bias=%d frozen=%d over=%s groups=%lld eps=%.17g input=%s",
        (long long)d->in, d->norm_no_weight == 0, d->bias, d->frozen, kind[d->norm_kind],
        (long long)d->groups, d->norm_eps, d->norm_input == NG_NORM_RAW ? "raw" : "normalised");
  } else if (d->kind == NG_EMBEDDING) {
    say(&w, "embedding in=", d->in);
    say(&w, " out=", d->out);
    say(&w, " frozen=", d->frozen);
    say(&w, " positions=", d->positions);
  } else {
    const bool conv = d->kind == NG_CONV2D;
    say(&w, conv ? "conv2d in=" : "linear in=", d->in);
    say(&w, " out=", d->out);
    say(&w, " bias=", d->bias);
    say(&w, " frozen=", d->frozen);
    if (conv) {
      say_two(&w, " kernel=", d->kernel);
      say_two(&w, " stride=", d->stride);
      say_two(&w, " padding=", d->padding);
      say_two(&w, " dilation=", d->dilation);
      say(&w, " groups=", d->groups);
      say_two(&w, " image=", d->image);
    } else {
      say(&w, " positions=", d->positions);
    }
  }
  for (int32_t k = 0; k < e->slots; k++) { /* where groups have windows of their own */
    const ng_block *b = e->slot[k].block;
    if (b == NULL || b->entry != NULL || b->base.window_scope != NG_WINDOW_GROUP) continue;
    ng_name_add(text, size, k == 0 ? " group=" : ",");
    ng_name_count(text, size, b->segment[e->slot[k].segment].group);
  }
}

/* Name the layer, the value in the file and the value in the model. */
static ng_status differs(char *message, size_t size, const char *what, const char *name,
                         const char *theirs, const char *ours) {
  return ng_fail_to(message, size, NG_ERR_FILE, "%s '%s' is '%s' in the state and '%s' here", what,
                    name, theirs, ours);
}

/* In order, one by one: the first that differs is what the message is about. */
static ng_status read_layers(const ng_precond *p, const ngio_value *layers, char *message,
                             size_t size) {
  const size_t n = layers == NULL ? 0 : layers->count;
  const ngio_value *l = ngio_first(layers);
  char is[NG_MESSAGE];
  if (!ngio_is(layers, NGIO_ARRAY)) {
    return ng_fail_to(message, size, NG_ERR_FILE, "the manifest has no list of layers");
  }
  for (size_t i = 0; i < n || i < (size_t)p->entries;
       i++, l = l == NULL ? NULL : ngio_next(layers, l)) {
    const char *name = ngio_text_of(ngio_get(l, "name"));
    if (i >= n) {
      return ng_fail_to(message, size, NG_ERR_FILE, "layer '%s' is not in the state",
                        p->entry[i]->d.name);
    }
    if (name == NULL) {
      return ng_fail_to(message, size, NG_ERR_FILE, "layer %zu of the manifest has no name", i);
    }
    if (i >= (size_t)p->entries) {
      return ng_fail_to(message, size, NG_ERR_FILE,
                        "layer '%.255s' of the state is not in this model", name);
    }
    const ng_entry *e = p->entry[i];
    const char *theirs = ngio_text_of(ngio_get(l, "is"));
    const char *options = ngio_text_of(ngio_get(l, "options"));
    const char *ours = e->d.options == NULL ? "" : e->d.options;
    ng_manifest_describe(ng_entry_seen(e), is, sizeof is);
    if (!ng_is(name, e->d.name)) {
      return ng_fail_to(message, size, NG_ERR_FILE,
                        "layer %zu is '%.160s' in the state and '%.160s' here", i, name, e->d.name);
    }
    if (theirs == NULL || !ng_is(theirs, is)) {
      return differs(message, size, "layer", name, theirs == NULL ? "nothing" : theirs, is);
    }
    if (options == NULL || !ng_is(options, ours)) {
      return differs(message, size, "options of layer", name, options == NULL ? "none" : options,
                     ours);
    }
  }
  return NG_OK;
}

/* ---- options ---------------------------------------------------------------------------------*/

/* Where results are kept and who owns what: a state does not depend on it, and a run may go on with
 * another number of ranks; nor on options that only measure. */
static bool does_not_matter(const char *option) {
  const int32_t id = ng_option_find(option);
  return id == NG_OPTION_placement || id == NG_OPTION_placement_cost || id == NG_OPTION_colocate ||
         id == NG_OPTION_grad_worker_fraction || id == NG_OPTION_quantify;
}

/* Statistics of all samples, stored whole on each rank or divided between ranks. */
static bool holds_all(const char *statistics) {
  return ng_is(statistics, "all") || ng_is(statistics, "sharded");
}

/* Room for any option as text: numbers, choices, and the free texts. */
size_t ng_manifest_room(const ng_precond *p) {
  return NG_MESSAGE + strlen(p->opt.skip_layers) + strlen(p->opt.per_layer);
}

/* Over the public list: the state knows options as a user does, by name and text. */
bool ng_manifest_option(int32_t i, ng_option_info *info) {
  memset(info, 0, sizeof *info);
  info->struct_size = sizeof *info;
  return ng_option_at(i, info) == NG_OK;
}

/* Fixed options must be the same, as texts; live ones are taken; what this version does not know is
 * refused by read_options. */
static ng_status read_option(const ng_precond *p, const ngio_value *options, const char *method,
                             const ng_option_info *info, ng_options *o, char *ours, size_t room,
                             char *message, size_t size) {
  char why[NG_MESSAGE] = "";
  const ngio_value *v = ngio_get(options, info->name);
  /* A library that did not know the option yet did what the option's default does. */
  const char *theirs = v == NULL ? info->standard : ngio_text_of(v);
  if (theirs == NULL) {
    return ng_fail_to(message, size, NG_ERR_FILE, "option '%s' of the manifest is not a text",
                      info->name);
  }
  if (info->live) {
    if (ng_options_set(o, info->name, theirs, why, sizeof why) == NG_OK) return NG_OK;
    return ng_fail_to(message, size, NG_ERR_FILE, "option of the state: %s", why);
  }
  if (does_not_matter(info->name)) return NG_OK;
  if (ng_options_get(&p->opt, info->name, ours, room) != NG_OK) {
    return ng_fail_to(message, size, NG_ERR_FILE, "option '%s' has no text", info->name);
  }
  if (ng_is(theirs, ours) || (ng_option_find(info->name) == NG_OPTION_statistics &&
                              holds_all(theirs) && holds_all(ours))) {
    return NG_OK;
  }
  return ng_fail_to(message, size, NG_ERR_FILE,
                    "option '%s' is '%.120s' in the state (method '%.40s') and '%.120s' here "
                    "(method '%.40s')",
                    info->name, theirs, method, ours, p->opt.method);
}

/* On a copy, to be put in place later.  Each may be in its range and still not go with the others
 * or with a layer's own, so all that is asked of a new model is asked again. */
static ng_status read_options(const ng_precond *p, const ngio_value *manifest, ng_options *o,
                              char *message, size_t size) {
  char why[NG_MESSAGE] = "";
  const ngio_value *options = ngio_get(manifest, "options");
  const char *method = ngio_text_of(ngio_get(manifest, "method"));
  if (!ngio_is(options, NGIO_OBJECT) || method == NULL) {
    return ng_fail_to(message, size, NG_ERR_FILE, "the manifest has no options or no method");
  }
  for (const ngio_value *v = ngio_first(options); v != NULL; v = ngio_next(options, v)) {
    const ng_option_gone *gone = ng_option_removed(v->key);
    if (gone != NULL) {
      const char *was = ngio_text_of(v);
      if (was != NULL && ng_is(was, gone->standard)) continue;
      return ng_fail_to(message, size, NG_ERR_FILE,
                        "option '%s' is '%.80s' in the state; it was removed: %s", gone->name,
                        was == NULL ? "" : was, gone->instead);
    }
    if (ng_option_find(v->key) < 0) {
      return ng_fail_to(message, size, NG_ERR_FILE,
                        "option '%.80s' of the state is not known to this version", v->key);
    }
  }
  const size_t room = ng_manifest_room(p);
  char *ours = ng_alloc(p->ctx, room);
  if (ours == NULL) return ng_fail_to(message, size, NG_ERR_NOMEM, "no memory");
  ng_status st = NG_OK;
  ng_option_info info;
  *o = p->opt;
  for (int32_t i = 0; i < ng_option_count() && st == NG_OK; i++) {
    if (ng_manifest_option(i, &info)) {
      st = read_option(p, options, method, &info, o, ours, room, message, size);
    }
  }
  ng_free(p->ctx, ours, room);
  if (st == NG_OK) {
    st = ng_family_check(o, why, sizeof why);
    if (st != NG_OK) {
      st = ng_fail_to(message, size, st == NG_ERR_NOMEM ? st : NG_ERR_FILE,
                      "options of the state: %s", why);
    }
  }
  const ng_family *asked =
      NULL; /* of blocks without options of their own, one for each family is enough */
  for (int32_t i = 0; i < p->blocks && st == NG_OK; i++) {
    const ng_block *b = p->block[i];
    if (b->options == NULL && b->family == asked) continue;
    if (b->options == NULL) {
      asked = b->family;
      st = ng_block_check(b, o, why, sizeof why);
    } else {
      ng_options own = *o;
      st = ng_options_override(&own, b->options, why, sizeof why);
      if (st == NG_OK) st = ng_block_check(b, &own, why, sizeof why);
    }
    if (st != NG_OK) {
      st = ng_fail_to(message, size, NG_ERR_FILE, "options of the state, layer '%s': %s", b->name,
                      why);
    }
  }
  return st;
}

/* ---- counters --------------------------------------------------------------------------------*/

const char *const ng_rung_name[NG_RESCUES] = {"more_damping", "in_double", "kept_last", "plain"};

static ng_status read_count(const ngio_value *object, const char *where, const char *name,
                            int64_t most, int64_t *out, char *message, size_t size) {
  const ngio_value *v = ngio_get(object, name);
  *out = ngio_is(v, NGIO_INTEGER) ? v->is.integer : -1;
  if (*out >= 0 && *out <= most) return NG_OK;
  return ng_fail_to(message, size, NG_ERR_FILE,
                    "%s '%s' of the manifest is no whole number from 0 to %lld", where, name,
                    (long long)most);
}

/* updates <= steps: a bias correction that begins in the future has no meaning. */
static ng_status read_counters(const ngio_value *manifest, ng_snapshot *s, char *message,
                               size_t size) {
  const int64_t most = NG_COUNT_MOST;
  const ngio_value *c = ngio_get(manifest, "counters");
  const ngio_value *last = ngio_get(manifest, "last");
  ng_status st = read_count(c, "counter", "steps", most, &s->steps, message, size);
  if (st == NG_OK) st = read_count(c, "counter", "updates", s->steps, &s->updates, message, size);
  if (st == NG_OK) st = read_count(c, "counter", "skipped", most, &s->skipped, message, size);
  for (int i = 0; i < NG_RESCUES && st == NG_OK; i++) {
    st = read_count(c, "counter", ng_rung_name[i], most, &s->rung[i], message, size);
  }
  if (st != NG_OK) return st;
  const ngio_value *nu = ngio_get(last, "clip"), *inner = ngio_get(last, "inner");
  if (!ngio_is_number(nu) || !ngio_is_number(inner)) {
    return ng_fail_to(message, size, NG_ERR_FILE, "'last' of the manifest has no clip or no inner");
  }
  s->nu = ngio_number_of(nu); /* what ng_report shows, until the next step */
  s->inner = ngio_number_of(inner);
  return NG_OK;
}

/* Of layers that missed no update nothing is said. */
static ng_status read_missed(const ng_precond *p, const ngio_value *layers, int64_t updates,
                             double *missed, char *message, size_t size) {
  ng_status st = NG_OK;
  const ngio_value *l = ngio_first(layers); /* as many as entries: read_layers */
  for (int32_t i = 0; i < p->entries && st == NG_OK; i++, l = ngio_next(layers, l)) {
    int64_t n = 0;
    if (ngio_get(l, "missed") != NULL) {
      st = read_count(l, p->entry[i]->d.name, "missed", updates, &n, message, size);
    }
    missed[i] = (double)n;
  }
  return st;
}

/* ---- reading ---------------------------------------------------------------------------------*/

typedef struct block_reader {
  const ngio_value *from;
  const char *layer;
  double *to;
  int64_t at;
  size_t seen, counts; /* the first so many are flags and counts */
  char *message;       /* of the call, as everywhere here */
  size_t size;
} block_reader;

/* Flags and counts are bounded here, because they turn into integers; what a family adds is its own
 * double. */
static ng_status read_number(void *arg, ng_number *n) {
  block_reader *r = arg;
  const ngio_value *v = ngio_get(r->from, n->name);
  if (!ngio_is_number(v)) {
    return ng_fail_to(r->message, r->size, NG_ERR_FILE,
                      "block '%s' of the manifest has no number '%s'", r->layer, n->name);
  }
  const double x = ngio_number_of(v);
  if (r->seen < r->counts && !(x >= 0.0 && x <= (double)NG_COUNT_MOST)) {
    return ng_fail_to(r->message, r->size, NG_ERR_FILE,
                      "'%s' of block '%s' of the manifest is %g, expected a count", n->name,
                      r->layer, x);
  }
  r->to[r->at++] = x;
  r->seen++;
  return NG_OK;
}

/* Numbers are found by name and counted: with none missing and as many as there are, none is
 * extra. */
static ng_status read_blocks(ng_precond *p, const ngio_value *blocks, double *values,
                             int64_t *count, char *message, size_t size) {
  block_reader r = {.to = values, .message = message, .size = size};
  for (int32_t i = 0; i < p->blocks; i++) {
    r.layer = p->block[i]->name;
    r.from = ngio_get(blocks, r.layer);
    r.seen = 0; /* counted for each block */
    r.counts = ng_block_counts(p->block[i]);
    const ng_status st = ng_block_numbers(p->block[i], read_number, &r);
    if (st != NG_OK) return st;
    if (r.from->count != r.seen) { /* a map: it had numbers */
      return ng_fail_to(message, size, NG_ERR_FILE,
                        "block '%s' of the manifest has numbers that this version does not know",
                        r.layer);
    }
  }
  const size_t n = ngio_is(blocks, NGIO_OBJECT) ? blocks->count : 0;
  if (n != (size_t)p->blocks) {
    return ng_fail_to(message, size, NG_ERR_FILE, "the state has %zu blocks and this model %d", n,
                      p->blocks);
  }
  *count = r.at;
  return NG_OK;
}

/* The format before all else, as it says what the rest means.  Layers before options: who loads the
 * wrong file should read about layers. */
ng_status ng_manifest_read(ng_precond *p, const ngio_value *manifest, ng_snapshot *s,
                           double *values, char *message, size_t size) {
  memset(s, 0, sizeof *s);
  const ngio_value *format = ngio_get(manifest, "format");
  const int64_t is = ngio_is(format, NGIO_INTEGER) ? format->is.integer : 0;
  if (is != NG_STATE_FORMAT && is != NG_STATE_PARTS) {
    return ng_fail_to(message, size, NG_ERR_FILE,
                      "format %lld of the state is not known to this version (it reads %d and %d)",
                      (long long)is, NG_STATE_FORMAT, NG_STATE_PARTS);
  }
  if (is == NG_STATE_PARTS) {
    const ngio_value *parts = ngio_get(manifest, "parts");
    if (!ngio_is(parts, NGIO_ARRAY) || parts->count < 2 || parts->count > NG_PARTS_MOST) {
      return ng_fail_to(message, size, NG_ERR_FILE, "the manifest has no good list of parts");
    }
    s->parts = (int32_t)parts->count;
  }
  const ngio_value *layers = ngio_get(manifest, "layers");
  int64_t count = 0; /* values of blocks */
  ng_status st = read_layers(p, layers, message, size);
  if (st == NG_OK) st = read_options(p, manifest, &s->opt, message, size);
  if (st == NG_OK) st = read_counters(manifest, s, message, size);
  if (st == NG_OK) {
    st = read_blocks(p, ngio_get(manifest, "blocks"), values, &count, message, size);
  }
  return st == NG_OK ? read_missed(p, layers, s->updates, values + count, message, size) : st;
}

/* A layer's own options are applied again over the new ones. */
void ng_snapshot_apply(ng_precond *p, const ng_snapshot *s, const double *values) {
  p->opt = s->opt;
  ng_settings_of(&p->opt, &p->base);
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    b->base = p->base;
    if (b->options != NULL) { /* tried on a copy by read_options */
      ng_options own = p->opt;
      (void)ng_options_override(&own, b->options, NULL, 0);
      ng_settings_of(&own, &b->base);
    }
  }
  p->steps = s->steps;
  p->updates = s->updates;
  p->skipped = s->skipped;
  /* A rung is counted by the rank that climbed it; the sum over ranks is what a file can keep. */
  const bool first = p->ctx->rank == 0;
  for (int i = 0; i < NG_RESCUES; i++) {
    p->rescued[i] = first ? s->rung[i] : 0;
  }
  p->step->nu = s->nu;
  p->step->inner = s->inner;
  p->step->d2 = p->step->pd2 = 0.0; /* not in a state */
  p->step->quantify.found = (ng_scaling){0};
  ng_state_put(p, values);
  ng_step_values(p);
}
