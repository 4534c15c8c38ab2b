/* blocks.c: choose a family for each entry, and make the blocks with their statistics, in the same order on all
 * ranks. */
#include "setup/setup.h"

/* ---- one block -------------------------------------------------------------------------------*/

/* Return the layer to which globs are compared.  A tensor has kind 0, so that only its name can match. */
static ng_layer layer_for_globs(const ng_entry *e) {
  ng_layer d = ng_entry_whole(e)->d;
  if (e->is_tensor) d.kind = 0;
  return d;
}

/* Return whether the entry may have a block.  If not, set e->why, which ng_explain shows. */
static bool may_have_block(ng_entry *e, const ng_options *o) {
  const ng_layer d = layer_for_globs(e);
  const char *why = e->d.frozen                        ? "frozen: never touched"
                    : ng_globs_fit(o->skip_layers, &d) ? "matches skip_layers"
                                                       : NULL;
  if (why != NULL) (void)snprintf(e->why, sizeof e->why, "%s", why);
  return why == NULL;
}

/* Set *o to the model's options, overridden by a layer's own options, `line` (NULL: none). */
static ng_status override_options(ng_precond *p, const char *name, const char *line,
                                  ng_options *o) {
  char message[NG_MESSAGE] = "";
  *o = p->opt;
  const ng_status st = ng_options_override(o, line, message, sizeof message);
  return st == NG_OK ? st : ng_fail(p->ctx, st, "layer '%s': options: %s", name, message);
}

/* b->index is the same on all ranks, because all ranks create blocks in the same order. */
static ng_status new_block(ng_precond *p, const ng_family *f, const char *name, int32_t segments,
                           ng_block **out) {
  ng_block *b = ng_object(p, sizeof *b);
  if (b == NULL) return NG_ERR_NOMEM;
  b->segment = ng_object(p, (size_t)segments * sizeof *b->segment);
  if (b->segment == NULL) return NG_ERR_NOMEM;
  b->segments = segments;
  b->family = f;
  b->p = p;
  b->ctx = p->ctx;
  b->name = name;
  b->index = p->blocks;
  b->observed = f->observed;
  p->block[p->blocks++] = b;
  *out = b;
  return NG_OK;
}

/* Make one segment for each of the slots [from, to) of the entry, from index `at` on; return the next index. */
static int32_t add_slots(ng_block *b, ng_entry *e, int32_t from, int32_t to, int32_t at) {
  if (from == 0) e->block = b;
  for (int32_t k = from; k < to; k++, at++) {
    ng_slot *s = &e->slot[k];
    const ng_segment *last = at > 0 ? &b->segment[at - 1] : NULL;
    b->segment[at] = (ng_segment){.slot = s,
                                  .count = s->rows * s->cols,
                                  .group = s->update_group,
                                  .offset = last == NULL ? 0 : last->offset + last->count,
                                  .clip_factor = 1.0};
    s->block = b;
    s->segment = at;
  }
  return at;
}

/* Link a registered shard to its block, whose segments belong to the whole layer. */
static void add_shard(ng_block *b, ng_entry *e) {
  e->block = b;
  for (int32_t k = 0; k < e->slots; k++) {
    e->slot[k].block = b;
    e->slot[k].segment = k;
  }
}

/* Set rules, dtypes and spread of all statistics from the block's options, where the family has not set them.
 * statistics = local is DP-KFAC: an average has only samples of its owner (Zhang et al. 2022, arXiv 2206.15143). */
static void set_statistic_rules(ng_block *b) {
  const ng_settings *o = &b->base;
  for (int32_t i = 0; i < b->stats; i++) {
    ng_stat *s = &b->stat[i];
    s->rule.calls = s->rule.adds ? NG_CALLS_MEAN : o->calls;
    s->rule.equal_weights =
        o->stat_scale != NG_SCALE_TEXTBOOK && o->stat_scale != NG_SCALE_MPD_KFAC;
    s->rule.start = o->stat_start;
    s->rule.stat_batch = o->stat_batch;
    s->rule.decay = o->stat_decay;
    s->rule.whole_shift = o->damping_leak == NG_LEAK_ALL;
    if (s->average_dtype == 0) s->average_dtype = NG_F32;
    if (s->sum_dtype == 0) s->sum_dtype = NG_F32;
    s->wire_dtype = s->rule.averaged && s->sum_dtype == NG_F32 ? o->wire_dtype : s->sum_dtype;
    if (s->rule.averaged && s->spread == NG_SPREAD_ALL) {
      s->spread = o->statistics == NG_STATISTICS_LOCAL   ? NG_SPREAD_LOCAL
                  : o->statistics == NG_STATISTICS_OWNER ? NG_SPREAD_OWNER
                                                         : NG_SPREAD_ALL;
    }
    s->stale.enabled = s->rule.averaged && o->refresh_tolerance > 0.0;
    s->stale.tolerance = o->refresh_tolerance;
    s->stale.interval = s->stale.previous_interval = 1;
  }
}

static ng_status fail_statistic(const ng_block *b, const ng_stat *s, const char *why) {
  return ng_fail(b->ctx, NG_ERR_ARG, "'%s': family %s, statistic %s: %s", b->name, b->family->name,
                 s->name, why);
}

/* Check that the engine supports the kind of observation, the dtypes, the owner and the spread of a statistic. */
static ng_status check_stat(const ng_block *b, const ng_stat *s) {
  const bool one = s->observed != 0 && (s->observed & (s->observed - 1)) == 0 &&
                   (s->observed & ~b->observed) == 0;
  const bool sixteen = s->average_dtype == NG_BF16 || s->average_dtype == NG_F16;
  if (!one)
    return fail_statistic(b, s, "it must have exactly one kind of observation of the family");
  const bool wide = s->symmetric && s->average_dtype == NG_F64 && s->sum_dtype == NG_F64;
  if (s->rule.averaged && !wide &&
      (s->sum_dtype != NG_F32 || !(s->average_dtype == NG_F32 || (sixteen && s->symmetric)))) {
    return fail_statistic(
        b, s,
        "averages are f32, of symmetric matrices also bf16 or f16, over sums in f32, or "
        "f64 over sums in f64");
  }
  if (s->sum_dtype != NG_F32 && s->sum_dtype != NG_F64)
    return fail_statistic(b, s, "sums are f32 or f64");
  if (s->owner < 0 || s->owner >= b->ctx->ranks || s->owner % b->p->grid.n != b->column) {
    return fail_statistic(b, s, "its owner is not in the block's column");
  }
  if (!b->owners_differ) return NG_OK;
  /* The curvature is the product of A and G, so A and G must be averages over the same samples. */
  if (s->spread == NG_SPREAD_LOCAL) {
    return fail_statistic(b, s,
                          "statistics = local: the statistics of the block have different "
                          "owners, which have different "
                          "samples; set colocate = 1");
  }
  if (b->family->write_traces == NULL) {
    return fail_statistic(
        b, s,
        "the statistics of the block have different owners, and the family needs both on one rank; "
        "set colocate = 1");
  }
  return NG_OK;
}

/* Set b->is_worker: this rank can compute PD.  If the family solves, all ranks of the block's column store the results.
 * Otherwise PD is computed from the averages, and each row of the grid needs a rank that stores them. */
static ng_status set_worker(ng_block *b) {
  ng_status st = NG_OK;
  ng_place_stats(b);
  for (int32_t i = 0; i < b->stats && st == NG_OK; i++) {
    st = check_stat(b, &b->stat[i]);
  }
  if (st != NG_OK) return st;
  if (b->slice != NULL && b->solves && b->p->grid.n > 1) {
    return ng_fail(b->ctx, NG_ERR_ARG,
                   "'%s': family %s computes on every rank and needs "
                   "grad_worker_fraction = 1",
                   b->name, b->family->name);
  }
  if (!b->solves && !b->averages_everywhere && b->p->grid.m > 1) {
    return ng_fail(b->ctx, NG_ERR_ARG,
                   "'%s': only the owner stores the statistics, and family %s sends no results to "
                   "other ranks; set grad_worker_fraction = 0 or statistics = all",
                   b->name, b->family->name);
  }
  const bool in_column = b->solves || b->family->computes_in_column;
  b->is_worker = in_column ? b->column == b->p->grid.column : b->has_averages;
  for (int kind = 0; kind < NG_OBSERVED_KINDS; kind++) {
    b->was_observed[kind] = (b->observed & ng_observed_bit(kind)) == 0;
  }
  return NG_OK;
}

ng_status ng_blocks_set_workers(ng_precond *p) {
  ng_status st = NG_OK;
  for (int32_t i = 0; i < p->blocks && st == NG_OK; i++) {
    st = set_worker(p->block[i]);
  }
  return st;
}

/* Set and check the options of the block: the model's, overridden by `line`.  Then let the family create the block and
 * declare its statistics. */
static ng_status set_up_block(ng_block *b, const char *line) {
  ng_options o;
  char message[NG_MESSAGE] = "";
  ng_status st = override_options(b->p, b->name, line, &o);
  if (st != NG_OK) return st;
  b->own_options = line;
  ng_block_set_options(b, &o);
  st = b->family->check_options(&o, message, sizeof message);
  if (st != NG_OK) {
    return ng_fail(b->ctx, st, "%s '%s': options: %s", b->entry != NULL ? "layer" : "block",
                   b->name, message);
  }
  b->solves = b->family->solve != NULL;
  st = b->family->create_state(b);
  if (st == NG_OK && b->family->declare_statistics != NULL) st = b->family->declare_statistics(b);
  if (st == NG_OK) set_statistic_rules(b);
  return st;
}

/* Make a block of the bias, whose layer has a family that takes only the weight. Files name the block after the bias. */
static ng_status make_bias_block(ng_precond *p, ng_entry *e, const ng_family *f) {
  const char *name = e->slot[NG_BIAS].name;
  ng_block *b = NULL;
  if (ng_entry_find(p, name) >= 0) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "'%s': a layer or tensor has the name of the bias of layer '%s'; rename one",
                   name, e->d.name);
  }
  const ng_status st = new_block(p, f, name, 1, &b);
  if (st != NG_OK) return st;
  b->entry = e;
  (void)add_slots(b, e, NG_BIAS, NG_BIAS + 1, 0);
  return set_up_block(b, e->d.options);
}

static ng_status make_layer_block(ng_precond *p, ng_entry *e, const ng_family *f) {
  const int32_t slots = f->takes_weight_only ? 1 : e->slots;
  ng_block *b = NULL;
  ng_status st = new_block(p, f, e->d.name, slots, &b);
  if (st != NG_OK) return st;
  b->entry = e->shard == NULL ? e : &e->shard->whole;
  (void)add_slots(b, b->entry, 0, slots, 0);
  if (e->shard != NULL) add_shard(b, e);
  st = set_up_block(b, e->d.options);
  if (e->shard != NULL) (void)snprintf(e->why, sizeof e->why, "%s", b->entry->why);
  const ng_family *other = ng_family_find(b->base.other_family);
  return st == NG_OK && slots < e->slots && other != NULL ? make_bias_block(p, e, other) : st;
}

/* ---- blocks over many layers -----------------------------------------------------------------*/

/* Return whether two entries have the same own options, so that they share a block. */
static bool same_options(const ng_entry *a, const ng_entry *b) {
  const char *x = a->d.options, *y = b->d.options;
  return x == NULL || y == NULL ? x == y : ng_is(x, y);
}

/* Name a block after its family, and if it has own options, after the alphabetically first of its n entries: this name
 * does not depend on the order of registration. */
static ng_status name_block(ng_precond *p, ng_entry *const *of, int32_t n, char **out) {
  char name[NG_FIELD_KEY];
  const char *least = of[0]->d.name;
  for (int32_t i = 1; i < n; i++) {
    if (strcmp(of[i]->d.name, least) < 0) least = of[i]->d.name;
  }
  const bool own = of[0]->d.options != NULL;
  (void)snprintf(name, sizeof name, "%s%s%s", of[0]->family->name, own ? "." : "",
                 own ? least : "");
  if (ng_entry_find(p, name) >= 0) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "layer '%s': a block of several layers has this name; rename the layer", name);
  }
  *out = ng_object_copy_text(p, name);
  return ng_objects_status(p);
}

/* Make one block of the n entries in `of`. */
static ng_status make_model_block(ng_precond *p, ng_entry *const *of, int32_t n) {
  const ng_family *f = of[0]->family;
  ng_block *b = NULL;
  int32_t segments = 0, at = 0;
  char *name = NULL;
  for (int32_t i = 0; i < n; i++) {
    segments += of[i]->slots;
  }
  ng_status st = name_block(p, of, n, &name);
  if (st == NG_OK) st = new_block(p, f, name, segments, &b);
  if (st != NG_OK) return st;
  for (int32_t i = 0; i < n; i++) {
    (void)snprintf(of[i]->why, sizeof of[i]->why, "in block %.100s of family %s", b->name, f->name);
    at = add_slots(b, of[i], 0, of[i]->slots, at);
  }
  return set_up_block(b, of[0]->d.options);
}

/* Make the blocks of family f: one for the entries without own options, then one for each text of own options. */
static ng_status make_model_blocks(ng_precond *p, const ng_family *f) {
  ng_status st = NG_OK;
  ng_entry **of = ng_object(p, (size_t)p->entries * sizeof *of);
  if (of == NULL) return NG_ERR_NOMEM;
  for (int32_t at = 0; at < 2 * p->entries && st == NG_OK; at++) {
    const bool own = at >= p->entries;
    const ng_entry *first = p->entry[at % p->entries];
    int32_t n = 0;
    if ((first->d.options != NULL) != own || first->family != f || first->block != NULL) continue;
    for (int32_t k = at % p->entries; k < p->entries; k++) {
      ng_entry *e = p->entry[k];
      if (e->family == f && e->block == NULL && same_options(e, first)) of[n++] = e;
    }
    st = make_model_block(p, of, n);
  }
  ng_object_free(p, of);
  return st;
}

/* ---- all blocks -----------------------------------------------------------------------------*/

/* Set e->family, according to the entry's own options, or set e->why if no family preconditions the entry. */
static ng_status choose_family(ng_precond *p, ng_entry *e) {
  ng_options o;
  const ng_status st = override_options(p, e->d.name, e->d.options, &o);
  if (st == NG_OK) e->family = ng_family_choose(p->ctx, &o.base, ng_entry_whole(e));
  if (st == NG_OK && e->shard != NULL && e->family != NULL && !e->family->can_shard) {
    return ng_fail(p->ctx, NG_ERR_ABSENT,
                   "layer '%s': family %s does not support sharded layers (shard_axis); register "
                   "its parameters with ng_add_tensor, or name it in skip_layers",
                   e->d.name, e->family->name);
  }
  if (st == NG_OK && e->family == NULL && !e->is_tensor && e->d.kind == NG_EMBEDDING) {
    return ng_fail(p->ctx, NG_ERR_ABSENT,
                   "layer '%s': method %s does not support embeddings; register its weight with "
                   "ng_add_tensor, or name it in skip_layers",
                   e->d.name, o.base.method);
  }
  if (st == NG_OK && e->family == NULL) {
    (void)snprintf(e->why, sizeof e->why, "%s",
                   e->is_tensor ? "registered as a tensor: no curvature"
                   : e->d.kind == NG_NORM && o.base.norm_block == NG_NORM_NONE
                       ? "norm_block = none"
                       : "the method does not support this layer");
  }
  return st;
}

/* Give the line of an entry of per_layer to the layers that it fits and that have no options yet.  Return the number of
 * these layers; -1: no memory. */
static int32_t copy_layer_line(ng_precond *p, const ng_layer_line *line) {
  int32_t count = 0;
  for (int32_t i = 0; i < p->entries; i++) {
    ng_entry *e = p->entry[i];
    const ng_layer d = layer_for_globs(e);
    if (e->d.options != NULL || !ng_globs_fit(line->globs, &d)) continue;
    e->has_per_layer_options = true;
    e->d.options = ng_object_copy_text(p, line->line);
    if (e->shard != NULL) e->shard->whole.d.options = e->d.options;
    if (e->d.options == NULL) return -1;
    count++;
  }
  return count;
}

/* An unused entry of per_layer is an error, except with pipeline stages, where the entry may be for a layer of another
 * stage. */
static ng_status copy_per_layer_options(ng_precond *p) {
  const char *text = p->opt.per_layer;
  ng_layer_line line;
  for (const char *rest = text[0] == 0 ? NULL : text; ng_lines_next(&rest, &line);) {
    const int32_t count = copy_layer_line(p, &line);
    if (count < 0) return NG_ERR_NOMEM;
    if (count > 0 || p->ctx->stages != NULL) continue;
    return ng_fail(
        p->ctx, NG_ERR_ARG,
        "per_layer: '%s' applies to no layer: no name or kind matches, or an earlier entry or "
        "the layer's own options come first",
        ng_shorten(line.globs).text);
  }
  return NG_OK;
}

static bool is_glob_used(const ng_precond *p, const ng_glob *g) {
  bool used = false;
  for (int32_t i = 0; i < p->entries && !used; i++) {
    const ng_layer d = layer_for_globs(p->entry[i]);
    used = ng_glob_fits(g, &d);
  }
  return used;
}

/* Log the globs of skip_layers that match no layer, and list them for ng_explain.  With pipeline stages a glob may be
 * for a layer of another stage. */
static ng_status list_unused_globs(ng_precond *p) {
  const char *list = p->opt.skip_layers;
  ng_glob g;
  if (list[0] == 0 || p->ctx->stages != NULL) return NG_OK;
  p->unused_globs = ng_object(p, strlen(list) + 1);
  if (p->unused_globs == NULL) return NG_ERR_NOMEM;
  char *to = p->unused_globs;
  for (const char *at = list; ng_globs_next(&at, &g);) {
    if (is_glob_used(p, &g)) continue;
    const size_t n = (size_t)(g.to - g.from);
    memcpy(to, g.from, n);
    ng_log(p->ctx, NG_LOG_WARN, "skip_layers: '%s' matches no layer", ng_shorten(to).text);
    to += n + 1;
    p->unused_count++;
  }
  return NG_OK;
}

static ng_status list_stats(ng_precond *p) {
  int32_t count = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    count += p->block[i]->stats;
  }
  p->stat = ng_object(p, (size_t)count * sizeof *p->stat);
  if (p->stat == NULL && count > 0) return NG_ERR_NOMEM;
  for (int32_t i = 0; i < p->blocks; i++) {
    for (int32_t k = 0; k < p->block[i]->stats; k++) {
      p->stat[p->stats++] = (ng_block_stat){p->block[i], &p->block[i]->stat[k]};
    }
  }
  return NG_OK;
}

/* The blocks of single layers come first, each before the block of its bias, in the order of registration. The blocks over
 * many layers follow. */
ng_status ng_blocks_make(ng_precond *p) {
  p->block = ng_object(p, (size_t)(p->slots + NG_FAMILIES_MAX) * sizeof *p->block);
  if (p->block == NULL) return NG_ERR_NOMEM;
  ng_status st = copy_per_layer_options(p);
  if (st == NG_OK) st = list_unused_globs(p);
  for (int32_t i = 0; i < p->entries && st == NG_OK; i++) {
    ng_entry *e = p->entry[i];
    if (may_have_block(e, &p->opt)) st = choose_family(p, e);
    if (st != NG_OK || e->family == NULL) continue;
    if (e->family->scope == NG_SCOPE_LAYER) st = make_layer_block(p, e, e->family);
  }
  for (int32_t i = 0; i < p->ctx->families && st == NG_OK; i++) {
    if (p->ctx->family[i]->scope == NG_SCOPE_MODEL) st = make_model_blocks(p, p->ctx->family[i]);
  }
  if (st == NG_OK) st = list_stats(p);
  if (st == NG_OK) st = ng_place_blocks(p);
  return st == NG_OK ? ng_blocks_set_workers(p) : st;
}
