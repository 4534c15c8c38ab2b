/* plan.c: ng_ready: which layer gets which block, who owns it, and all the memory.
 *
 * Placement: W ranks are a grid of m rows and n = W/m columns, rank = row * n + column.  Block i is
 * owned by rank i mod W; the m ranks of the owner's column hold its result (spec: KAISA's gradient
 * workers, SC'21), every row receives the preconditioned gradient from the member of that column in
 * it.  m = W: everybody holds everything; m = 1: the owner only.
 *
 * Memory: one arena a use.  Families ask twice, first to count, then to be placed; blocks are
 * walked in the order (column, owner), so what one rank sends to others is one run of bytes. */
#include "model/model.h"

#include <math.h>
#include <regex.h>

#include "linalg/linalg.h"

/* ---- asking for memory -----------------------------------------------------------------------*/

static int64_t round_up(int64_t bytes) { return (bytes + NG_ALIGN - 1) / NG_ALIGN * NG_ALIGN; }

void *ng_plan_take(ng_plan *plan, ng_use use, int64_t bytes) {
  const int64_t at = plan->bytes[use];
  plan->bytes[use] += round_up(bytes);
  return plan->place && bytes > 0 ? plan->base[use] + at : NULL;
}

void ng_plan_scratch(ng_plan *plan, int64_t bytes) {
  plan->bytes[NG_USE_SCRATCH] = ng_max64(plan->bytes[NG_USE_SCRATCH], round_up(bytes));
}

/* ---- which layer gets a block ----------------------------------------------------------------*/

/* skip_layers is searched in the name and in the kind, spelt as here and as in PyTorch. */
static bool skipped(const ng_entry *e, const regex_t *skip) {
  static const char *const kind[2][2] = {{"linear", "Linear"}, {"conv2d", "Conv2d"}};
  const int k = e->d.kind == NG_CONV2D ? 1 : 0;
  return regexec(skip, e->d.name, 0, NULL, 0) == 0 || regexec(skip, kind[k][0], 0, NULL, 0) == 0 ||
         regexec(skip, kind[k][1], 0, NULL, 0) == 0;
}

static bool wants_block(ng_precond *p, ng_entry *e, const regex_t *skip) {
  const char *why = NULL;
  if (e->tensor) {
    why = "registered as a tensor: no curvature";
  } else if (e->d.frozen) {
    why = "frozen: never touched";
  } else if (p->opt.skip_layers[0] != 0 && skipped(e, skip)) {
    why = "matches skip_layers";
  } else if (p->opt.exclude_width > 0 && e->d.kind == NG_LINEAR &&
             e->d.out == p->opt.exclude_width) {
    why = "has exclude_width outputs";
  }
  if (why != NULL) (void)snprintf(e->why, sizeof e->why, "%s", why);
  return why == NULL;
}

static ng_status make_block(ng_precond *p, ng_entry *e) {
  ng_block *b = ng_object(p, sizeof *b);
  if (b == NULL) return ng_fail(p->ctx, NG_ERR_NOMEM, "no memory for the block of '%s'", e->d.name);
  b->ops = ng_family_find(p->base.family);
  b->p = p;
  b->entry = e;
  b->number = p->blocks;
  ng_options mine = p->opt;
  b->rung = 0;
  if (e->d.options != NULL) {
    char message[NG_MESSAGE] = "";
    const ng_status st =
        ng_options_override(&mine, e->d.options, &b->overridden, message, sizeof message);
    if (st != NG_OK) {
      ng_object_free(p, b, sizeof *b);
      return ng_fail(p->ctx, st, "layer '%s': options: %s", e->d.name, message);
    }
  }
  ng_settings_of(&mine, &b->base);
  b->opt = b->base;
  b->owner = b->number % p->ctx->ranks;
  b->column = b->owner % p->grid.n;
  const bool own = b->owner == p->ctx->rank;
  b->holds_stats = own || b->opt.statistics == NG_STATISTICS_ALL;
  b->holds_result = b->column == p->grid.column;
  b->sees = b->ops->sees;
  const ng_status st = b->ops->create(b);
  if (st != NG_OK) {
    ng_object_free(p, b, sizeof *b);
    return st;
  }
  p->block[p->blocks++] = b;
  e->block = b;
  return NG_OK;
}

static ng_status make_blocks(ng_precond *p) {
  regex_t skip;
  p->block = ng_object(p, (size_t)p->entries * sizeof *p->block);
  if (p->block == NULL) return ng_fail(p->ctx, NG_ERR_NOMEM, "ng_ready: no memory");
  if (regcomp(&skip, p->opt.skip_layers, REG_EXTENDED | REG_NOSUB) != 0) {
    return ng_fail(p->ctx, NG_ERR_NOMEM, "ng_ready: skip_layers could not be compiled");
  }
  ng_status st = NG_OK;
  for (int32_t i = 0; i < p->entries && st == NG_OK; i++) {
    if (wants_block(p, p->entry[i], &skip)) st = make_block(p, p->entry[i]);
  }
  regfree(&skip);
  return st;
}

/* ---- placement -------------------------------------------------------------------------------*/

static ng_status make_grid(ng_precond *p) {
  const int32_t W = p->ctx->ranks;
  const double workers = p->opt.grad_worker_fraction * W;
  int32_t m = (int32_t)lround(workers);
  if (m < 1) m = 1;
  if (W % m != 0 || (workers >= 1.0 && fabs(workers - m) > 1e-6 * W)) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "grad_worker_fraction is %g: %g of %d ranks, expected a whole number that "
                   "divides %d",
                   p->opt.grad_worker_fraction, workers, W, W);
  }
  if (m > 1 && m < W && p->ctx->comm->t.group_create == NULL) {
    return ng_fail(p->ctx, NG_ERR_ABSENT,
                   "grad_worker_fraction is %g, but the transport '%s' has no groups; use 0 or 1",
                   p->opt.grad_worker_fraction,
                   p->ctx->comm->t.name == NULL ? "" : p->ctx->comm->t.name);
  }
  p->grid.m = m;
  p->grid.n = W / m;
  p->grid.row = p->ctx->rank / p->grid.n;
  p->grid.column = p->ctx->rank % p->grid.n;
  p->grid.ranks = ng_object(p, (size_t)W * sizeof *p->grid.ranks);
  if (p->grid.ranks == NULL) return ng_fail(p->ctx, NG_ERR_NOMEM, "ng_ready: no memory");
  return NG_OK;
}

/* Collective: every rank makes every column, then every row, and keeps its own. */
static ng_status make_groups(ng_precond *p) {
  ng_comm *c = p->ctx->comm;
  ng_grid *g = &p->grid;
  g->column_group = g->row_group = ng_group_world(c);
  if (g->m == c->size || g->m == 1) return NG_OK; /* one of them is the world, the other single */
  for (int32_t k = 0; k < g->n + g->m; k++) {
    const bool column = k < g->n;
    const int32_t count = column ? g->m : g->n, first = column ? k : (k - g->n) * g->n;
    for (int32_t i = 0; i < count; i++) {
      g->ranks[i] = column ? first + i * g->n : first + i;
    }
    ng_group made;
    const ng_status st = ng_group_create(c, g->ranks, count, &made);
    if (st != NG_OK) {
      return ng_fail(p->ctx, NG_ERR_COMM, "ng_ready: the transport could not make its groups");
    }
    if (column && k == g->column) {
      g->column_group = made;
    } else if (!column && k - g->n == g->row) {
      g->row_group = made;
    } else {
      ng_group_destroy(c, &made);
    }
  }
  return NG_OK;
}

/* ---- arenas ----------------------------------------------------------------------------------*/

static ng_status walk_blocks(ng_precond *p, ng_plan *plan) {
  int32_t results = 0, directions = 0;
  for (int32_t column = 0; column < p->grid.n; column++) {
    ng_span *d = plan->place ? &p->direction_span[directions++] : NULL;
    if (d != NULL) *d = (ng_span){column, plan->bytes[NG_USE_DIRECTION], 0};
    for (int32_t owner = column; owner < p->ctx->ranks; owner += p->grid.n) {
      const int64_t begin = plan->bytes[NG_USE_RESULTS];
      for (int32_t i = 0; i < p->blocks; i++) {
        ng_block *b = p->block[i];
        if (b->owner != owner) continue;
        const ng_status st = b->ops->plan(b, plan);
        if (st != NG_OK) return st;
      }
      if (plan->place && plan->bytes[NG_USE_RESULTS] > begin) {
        p->result_span[results++] = (ng_span){owner, begin, plan->bytes[NG_USE_RESULTS]};
      }
    }
    if (d != NULL) d->end = plan->bytes[NG_USE_DIRECTION];
  }
  if (plan->place) {
    p->result_spans = results;
    p->direction_spans = directions;
  }
  return NG_OK;
}

static void walk_moments(ng_precond *p, ng_plan *plan) {
  const ng_update update = p->base.update;
  const int each = update == NG_UPDATE_ADAMW ? 2 : update == NG_UPDATE_SGD ? 1 : 0;
  for (int32_t i = 0; i < p->entries; i++) {
    ng_entry *e = p->entry[i];
    for (int32_t k = 0; k < e->slots && !e->d.frozen; k++) {
      ng_slot *s = &e->slot[k];
      const int64_t bytes = s->rows * s->cols * (int64_t)sizeof(float);
      s->m = each > 0 ? ng_plan_take(plan, NG_USE_MOMENTS, bytes) : NULL;
      s->v = each > 1 ? ng_plan_take(plan, NG_USE_MOMENTS, bytes) : NULL;
    }
  }
}

static ng_status take_arenas(ng_precond *p) {
  const int32_t W = p->ctx->ranks;
  p->result_span = ng_object(p, (size_t)W * sizeof *p->result_span);
  p->direction_span = ng_object(p, (size_t)W * sizeof *p->direction_span);
  p->small_count = 32 + 4 * (int64_t)p->blocks;
  p->small = ng_object(p, (size_t)p->small_count * sizeof *p->small);
  if (p->result_span == NULL || p->direction_span == NULL || p->small == NULL) {
    return ng_fail(p->ctx, NG_ERR_NOMEM, "ng_ready: no memory");
  }
  ng_plan plan;
  memset(&plan, 0, sizeof plan);
  ng_status st = walk_blocks(p, &plan);
  if (st != NG_OK) return st;
  walk_moments(p, &plan);
  for (int u = 0; u < NG_USE_OBJECTS; u++) {
    if (plan.bytes[u] == 0) continue;
    p->arena[u] = ng_alloc(p->ctx, (size_t)plan.bytes[u]);
    if (p->arena[u] == NULL) {
      return ng_fail(p->ctx, NG_ERR_NOMEM, "ng_ready: no memory for %lld bytes",
                     (long long)plan.bytes[u]);
    }
    p->held[u] = plan.bytes[u];
    memset(p->arena[u], 0, (size_t)plan.bytes[u]);
    plan.base[u] = p->arena[u];
    plan.bytes[u] = 0;
  }
  plan.place = true;
  st = walk_blocks(p, &plan);
  if (st != NG_OK) return st;
  walk_moments(p, &plan);
  for (int32_t i = 0; i < p->blocks && st == NG_OK; i++) {
    st = p->block[i]->ops->begin(p->block[i]);
  }
  ng_queue_wait(p->ctx->queue);
  return st;
}

/* ---- the same model on every rank? -----------------------------------------------------------*/

static uint64_t mix(uint64_t h, const void *data, size_t bytes) { /* FNV-1a */
  const unsigned char *c = data;
  for (size_t i = 0; i < bytes; i++) {
    h = (h ^ c[i]) * UINT64_C(1099511628211);
  }
  return h;
}

static uint64_t mix_text(uint64_t h, const char *text) {
  return text == NULL ? mix(h, "", 1) : mix(h, text, strlen(text) + 1);
}

static void hash_model(const ng_precond *p, uint64_t hash[2]) {
  hash[0] = hash[1] = UINT64_C(14695981039346656037);
  for (int32_t i = 0; i < ng_option_count(); i++) {
    ng_option_info info;
    char value[NG_MESSAGE] = "";
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    if (ng_option_at(i, &info) != NG_OK) continue;
    if (info.type == NG_OPTION_TEXT) continue; /* any length: below */
    if (ng_options_get(&p->opt, info.name, value, sizeof value) != NG_OK) continue;
    hash[0] = mix_text(mix_text(hash[0], info.name), value);
  }
  hash[0] = mix_text(mix_text(hash[0], p->opt.skip_layers), p->opt.schedule);
  hash[0] = mix_text(hash[0], p->opt.method); /* it chooses the family */
  for (int32_t i = 0; i < p->entries; i++) {
    const ng_entry *e = p->entry[i];
    const ng_layer *d = &e->d;
    const int64_t field[] = {
        d->kind,       d->in,          d->out,         d->bias,      d->frozen,    d->positions,
        d->order,      d->kernel[0],   d->kernel[1],   d->stride[0], d->stride[1], d->padding[0],
        d->padding[1], d->dilation[0], d->dilation[1], d->groups,    d->image[0],  d->image[1],
        d->layout,     e->tensor,      e->slot[0].cols};
    hash[1] = mix_text(mix_text(hash[1], d->name), d->options);
    hash[1] = mix(hash[1], field, sizeof field);
  }
}

/* ---- ready, release --------------------------------------------------------------------------*/

ng_status ng_plan_model(ng_precond *p) {
  ng_status st = make_grid(p);
  if (st == NG_OK) st = make_blocks(p);
  if (st == NG_OK) st = take_arenas(p);
  if (st == NG_OK) st = ng_tiles_plan(p);
  uint64_t hash[2];
  hash_model(p, hash);
  st = ng_exchange_same(p, hash, st);
  if (st == NG_OK) st = make_groups(p);
  return st;
}

void ng_plan_release(ng_precond *p) {
  const size_t W = (size_t)p->ctx->ranks;
  if (p->grid.m > 1 && p->grid.m < p->ctx->ranks) {
    ng_group_destroy(p->ctx->comm, &p->grid.column_group);
    ng_group_destroy(p->ctx->comm, &p->grid.row_group);
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    b->entry->block = NULL;
    b->ops->destroy(b);
    ng_object_free(p, b, sizeof *b);
  }
  ng_tiles_release(p);
  ng_object_free(p, p->block, (size_t)p->entries * sizeof *p->block);
  ng_object_free(p, p->result_span, W * sizeof *p->result_span);
  ng_object_free(p, p->direction_span, W * sizeof *p->direction_span);
  ng_object_free(p, p->grid.ranks, W * sizeof *p->grid.ranks);
  ng_object_free(p, p->small, (size_t)p->small_count * sizeof *p->small);
  for (int u = 0; u < NG_USE_OBJECTS; u++) {
    if (p->arena[u] != NULL) ng_free(p->ctx, p->arena[u], (size_t)p->held[u]);
    p->arena[u] = NULL;
    p->held[u] = 0;
  }
  p->block = NULL;
  p->blocks = 0;
  p->result_span = p->direction_span = NULL;
  p->small = NULL;
  memset(&p->grid, 0, sizeof p->grid);
}

ng_status ng_ready(ng_precond *p) {
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
  if (p->broken) return ng_fail(p->ctx, NG_ERR_COMM, "ng_ready: the transport failed before");
  if (p->ready) return ng_fail(p->ctx, NG_ERR_STATE, "ng_ready: called a second time");
  if (p->entries == 0) {
    return ng_fail(p->ctx, NG_ERR_STATE, "ng_ready: no layer or tensor is registered");
  }
  const ng_status st = ng_plan_model(p);
  if (st != NG_OK) {
    if (st == NG_ERR_COMM) p->broken = true;
    ng_plan_release(p);
    return st;
  }
  p->ready = true;
  ng_live_update(p);
  ng_log(p->ctx, NG_LOG_INFO, "ready: blocks = %d parameters = %d bytes = %lld", p->blocks,
         p->entries, (long long)p->ctx->bytes);
  return NG_OK;
}
