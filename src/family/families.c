/* families.c: the list of families, the choice of a family for a layer, and the saved arrays and numbers of a block.
 * ng_family_choose tries the families of a context from last to first. So a family that a test registers precedes the
 * library's families, and adam, which accepts every entry, gets what no other family accepts.
 *
 * Code outside a family never compares the family's name or solver: families differ only by the entries of their
 * ng_family table. A new family needs a file and a line in `own`. */
#include "family/family.h"

static const ng_family *const own[] = {&ng_family_adam,           &ng_family_kronecker,
                                       &ng_family_kronecker_adam, &ng_family_kronecker_ekfac,
                                       &ng_family_kronecker_muon, &ng_family_rankone,
                                       &ng_family_norm,           &ng_family_window,
                                       &ng_family_muon,           &ng_family_soap,
                                       &ng_family_shampoo};
enum { OWN_FAMILIES = sizeof own / sizeof own[0] };

/* ---- registering -----------------------------------------------------------------------------*/

void ng_family_register(ng_context *ctx, const ng_family *f) {
  NG_ASSERT(ctx->families < NG_FAMILIES_MAX);
  ctx->family[ctx->families++] = f;
}

void ng_family_register_own(ng_context *ctx) {
  for (int i = 0; i < OWN_FAMILIES; i++) {
    ng_family_register(ctx, own[i]);
  }
}

/* ---- choosing --------------------------------------------------------------------------------*/

/* Options are checked without a context, so only the library's families are known. */
const ng_family *ng_family_find(const char *name) {
  for (int i = 0; name != NULL && i < OWN_FAMILIES; i++) {
    if (ng_is(own[i]->name, name)) return own[i];
  }
  return NULL;
}

const ng_family *ng_family_choose(const ng_context *ctx, const ng_settings *o, const ng_entry *e) {
  for (int32_t i = ctx->families - 1; i >= 0; i--) {
    if (ctx->family[i]->accepts_entry(o, e)) return ctx->family[i];
  }
  return NULL;
}

/* ---- options ---------------------------------------------------------------------------------*/

/* Check the option statistics: its value sharded needs a window; its other values except all need factors. */
static ng_status check_statistics_option(uint32_t traits, const ng_options *o, char *message,
                                         size_t size) {
  const ng_statistics is = o->base.statistics;
  const uint32_t need = is == NG_STATISTICS_SHARDED ? NG_TRAIT_WINDOW : NG_TRAIT_FACTORS;
  if (is == NG_STATISTICS_ALL || (traits & need) != 0 || o->own_method) return NG_OK;
  return ng_fail_to(
      message, size, NG_ERR_ARG,
      "statistics = %s: method %s does not support this value, which is for methods with %s; "
      "set all",
      ng_choice_text(NG_OPTION_statistics, (int32_t)is), o->base.method, ng_trait_text(need));
}

/* Write the option's value as text to `value`, where every value fits, and compare it with the text of the default. */
static bool write_and_compare_default(ng_option_id id, const ng_options *o, char value[64]) {
  const ng_option_row *row = &ng_option_table[id];
  return ng_option_write(row, o, value, 64) && ng_is(value, row->default_text);
}

/* If the layer has its own method, only per-layer options are checked. */
ng_status ng_family_check_others(uint32_t traits, const ng_options *o, char *message, size_t size) {
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    const ng_option_row *row = &ng_option_table[i];
    char value[64];
    if (row->trait == 0 || (row->trait & traits) != 0) continue;
    if (o->own_method && !row->per_layer) continue;
    if (write_and_compare_default((ng_option_id)i, o, value)) continue;
    return ng_fail_to(
        message, size, NG_ERR_ARG,
        "%s = %s: method %s does not use this option, which is for methods with %s; set %s",
        row->name, value, o->base.method, ng_trait_text(row->trait), row->default_text);
  }
  return check_statistics_option(traits, o, message, size);
}

ng_status ng_family_check_unused(const ng_option_id *list, size_t n, const char *why,
                                 const ng_options *o, char *message, size_t size) {
  for (size_t i = 0; i < n; i++) {
    const ng_option_row *row = &ng_option_table[list[i]];
    char value[64];
    if (write_and_compare_default(list[i], o, value)) continue;
    return ng_fail_to(message, size, NG_ERR_ARG, "%s = %s: %s; set %s", row->name, value, why,
                      row->default_text);
  }
  return NG_OK;
}

ng_status ng_family_check_list(const ng_refusal *list, size_t n, const ng_options *o, char *message,
                               size_t size) {
  for (size_t i = 0; i < n; i++) {
    char value[64];
    if (!list[i].is_refused) continue;
    (void)write_and_compare_default(list[i].option, o, value);
    return ng_fail_to(message, size, NG_ERR_ARG, "%s = %s%s", ng_option_table[list[i].option].name,
                      value, list[i].reason);
  }
  return NG_OK;
}

ng_status ng_family_check_method_options(const ng_options *o, char *message, size_t size) {
  return ng_family_find(o->base.family)
      ->check_options(o, message, size); /* the test t_published detects a wrong row in the table */
}

/* The family's check runs before ng_options_check_rules, because the family's messages are more specific. */
ng_status ng_family_check(const ng_options *o, char *message, size_t size) {
  ng_status st = ng_family_check_method_options(o, message, size);
  if (st == NG_OK) st = ng_options_check_rules(o, message, size);
  return st == NG_OK ? ng_lines_check_options(o, ng_family_check_method_options, message, size)
                     : st;
}

ng_conv ng_layer_conv(const ng_entry *e, bool outputs) {
  const ng_layer *d = &e->d;
  const bool conv = d->kind == NG_CONV2D, patch = conv && !outputs;
  ng_conv c = {.channels = outputs ? d->out : d->in,
               .height = !conv     ? 1
                         : outputs ? e->out_size[0]
                                   : d->image[0],
               .width = !conv     ? 1
                        : outputs ? e->out_size[1]
                                  : d->image[1],
               .out_height = conv ? e->out_size[0] : 1,
               .out_width = conv ? e->out_size[1] : 1,
               .outputs = d->out,
               .is_linear = !conv};
  for (int i = 0; i < 2; i++) {
    c.kernel[i] = patch ? d->kernel[i] : 1;
    c.stride[i] = patch ? d->stride[i] : 1;
    c.padding[i] = patch ? d->padding[i] : 0;
    c.dilation[i] = patch ? d->dilation[i] : 1;
  }
  return c;
}

int32_t ng_rung_from_float(float says) {
  return says >= 0.0f && says <= (float)NG_RUNG_PLAIN ? (int32_t)says : NG_RUNG_PLAIN;
}

void ng_count_rung(ng_precond *p, int32_t rung) {
  if (rung == 0) return;
  p->rescued[rung < NG_RUNG_DOUBLE    ? NG_RESCUE_DAMPING
             : rung == NG_RUNG_DOUBLE ? NG_RESCUE_DOUBLE
             : rung == NG_RUNG_LAST   ? NG_RESCUE_LAST
                                      : NG_RESCUE_PLAIN]++;
}

/* ---- the statistics of a block ---------------------------------------------------------------*/

ng_status ng_block_alloc_stats(ng_block *b, int32_t count) {
  b->stat = ng_object(b->p, (size_t)count * sizeof *b->stat);
  if (b->stat == NULL) return NG_ERR_NOMEM;
  b->stats = count;
  return NG_OK;
}

void ng_block_list_matrix(ng_block *b, ng_matrix *m, double shift, double damping, double floor) {
  m->name = b->name;
  m->shift = shift;
  m->damping = damping;
  m->floor = floor;
  m->uses_double = false;
  b->p->solve_list[b->p->solve_listed++] = m;
  b->matrices_listed++;
}

ng_status ng_block_read_sums(ng_block *b, const ng_direction_sums *s, int64_t count) {
  ng_queue *q = b->ctx->queue;
  if (ng_read_info(q, &s->finite) == 0) {
    ng_linalg(q)->scale(q, count, b->direction, NG_F32, 0.0);
    ng_queue_wait(q);
    return ng_fail(b->ctx, NG_SKIPPED, "layer '%s': its gradient is not finite", b->name);
  }
  const double *total = ng_read_numbers(q, s->total);
  b->inner = total[0];
  b->d2 = total[1];
  b->pd2 = total[2];
  return NG_OK;
}

void ng_block_emit_direction(const ng_block *b, int32_t segment, int32_t g, double factor,
                             ng_direction *e) {
  const ng_segment *s = &b->segment[segment];
  (void)g, (void)factor;
  e->is_stored = true;
  e->u = b->direction + s->offset + e->D.row * s->slot->cols + e->D.col;
  e->u_row = s->slot->cols;
}

/* offsets = 1 means that memory and files have the same order; the family may change offsets later. */
ng_status ng_stat_alloc_parts(ng_block *b, ng_stat *s, int32_t groups, int32_t each) {
  s->groups = groups;
  s->part = ng_object(b->p, (size_t)groups * (size_t)each * sizeof *s->part);
  if (s->part == NULL) return NG_ERR_NOMEM;
  s->parts = groups * each;
  for (int32_t i = 0; i < s->parts; i++) {
    s->part[i].group = i / each;
    s->part[i].offsets = s->part[i].matrices = 1;
  }
  return NG_OK;
}

/* ---- what a block saves ----------------------------------------------------------------------*/

ng_field ng_field_plain(const char *name, ng_dtype t, int64_t rows, int64_t cols, void *data,
                        int32_t owner) {
  ng_field f = {.dtype = t,
                .rows = rows,
                .cols = cols,
                .data = data,
                .owner = owner,
                .row_offsets = 1,
                .row_channels = rows,
                .col_offsets = 1,
                .col_channels = cols};
  ng_name_append(f.name, sizeof f.name, name);
  return f;
}

ng_field ng_part_field(const ng_stat *s, int32_t i, const char *suffix, ng_dtype t, int64_t rows,
                       int64_t cols, void *data) {
  ng_field f = ng_field_plain(s->name, t, rows, cols, data, s->owner);
  if (s->parts > 1) {
    ng_name_append(f.name, sizeof f.name, ".");
    ng_name_append_number(f.name, sizeof f.name, i);
  }
  ng_name_append(f.name, sizeof f.name, suffix);
  return f;
}

ng_field ng_average_field(const ng_stat *s, int32_t i, bool older) {
  const ng_stat_part *part = &s->part[i];
  ng_field f = ng_part_field(s, i, older ? "_older" : "", s->average_dtype, part->rows, part->cols,
                             older ? part->older : part->average);
  f.is_symmetric = s->symmetric;
  f.is_nonnegative = s->nonnegative;
  if (s->symmetric) {
    f.row_offsets = f.col_offsets = part->offsets;
    f.row_channels = f.col_channels = part->channels;
  }
  return f;
}

/* Statistics without an average do not outlive a step, so they are not saved. */
void ng_block_fields(ng_block *b, ng_field_visit visit, void *arg) {
  for (int32_t i = 0; i < b->stats; i++) {
    const ng_stat *s = &b->stat[i];
    for (int32_t k = 0; k < s->parts && s->rule.averaged; k++) {
      ng_field f = ng_average_field(s, k, false);
      visit(arg, &f);
      if (!s->stale.enabled) continue;
      f = ng_average_field(s, k, true);
      visit(arg, &f);
    }
  }
  if (b->family->visit_fields != NULL) b->family->visit_fields(b, visit, arg);
}

/* Flags and counts are visited as doubles, exact up to 2^53, and read back. */
static void visit_number(const char *name, const ng_stat *s, const char *what, double *value,
                         ng_number_visit visit, void *arg) {
  ng_number n = {.value = value, .stat = s};
  /* both texts are literals, so their lengths are known to fit */
  (void)stpcpy(stpcpy(n.name, name), what);
  visit(arg, &n);
}

static void visit_flag(const char *name, const ng_stat *s, const char *what, bool *flag,
                       ng_number_visit visit, void *arg) {
  double x = *flag;
  visit_number(name, s, what, &x, visit, arg);
  *flag = x != 0.0;
}

/* was_observed is saved, so that a block that was observed before a save is not reported as unobserved after a load. */
static void visit_observation_counts(ng_block *b, int kind, ng_number_visit visit, void *arg) {
  static const char *const name[NG_OBSERVED_KINDS] = {"input", "output_grad", "gradient"};
  double count = (double)b->observation_count[kind];
  if ((b->observed & ng_observed_bit(kind)) == 0) return;
  visit_flag(name[kind], NULL, "_seen", &b->was_observed[kind], visit, arg);
  visit_number(name[kind], NULL, "_observations", &count, visit, arg);
  b->observation_count[kind] = (int64_t)count;
}

/* A file may contain any numbers: replace numbers out of range by 0, and then intervals of 0 by 1. */
static void visit_stale(ng_stat *s, ng_number_visit visit, void *arg) {
  static const char *const name[] = {"_next",   "_interval",   "_interval_before", "_refreshed",
                                     "_passed", "_bytes_sent", "_bytes_passed"};
  ng_stale *t = &s->stale;
  int64_t *const count[] = {&t->next_refresh,  &t->interval,   &t->previous_interval, &t->refreshes,
                            &t->steps_without, &t->bytes_sent, &t->bytes_saved};
  for (int i = 0; i < 7; i++) {
    double x = (double)*count[i];
    visit_number(s->name, s, name[i], &x, visit, arg);
    *count[i] = x >= 0.0 && x < 9e15 ? (int64_t)x : 0;
  }
  t->interval = ng_max64(1, t->interval);
  t->previous_interval = ng_max64(1, t->previous_interval);
}

size_t ng_block_flags_and_counts(const ng_block *b) {
  size_t n = 1;
  for (int kind = 0; kind < NG_OBSERVED_KINDS; kind++) {
    n += (b->observed & ng_observed_bit(kind)) != 0 ? 2 : 0;
  }
  return n;
}

/* The flags and counts, ng_block_flags_and_counts(b) numbers, come first. */
void ng_block_numbers(ng_block *b, ng_number_visit visit, void *arg) {
  visit_flag("solved", NULL, "", &b->was_solved, visit, arg);
  for (int kind = 0; kind < NG_OBSERVED_KINDS; kind++) {
    visit_observation_counts(b, kind, visit, arg);
  }
  for (int32_t i = 0; i < b->stats; i++) {
    ng_stat *s = &b->stat[i];
    if (!s->rule.averaged) continue;
    visit_flag(s->name, s, "_started", &s->started, visit, arg);
    if (s->stale.enabled) visit_stale(s, visit, arg);
  }
  if (b->family->visit_numbers != NULL) b->family->visit_numbers(b, visit, arg);
}
