/* arena.c: the memory plan (one arena for each use, allocated once at ng_ready), and objects.
 *
 * Sums are contiguous in the order of blocks, so that the sums of a step need few messages; after them come the sums
 * that only one owner receives, sorted by owner.  Results are sorted by owner and directions by column, so that a rank
 * sends one span of bytes.
 *
 * After ng_ready only an observation of a larger image allocates (ng_scratch_grow).  So a step cannot run out of memory
 * on one rank while other ranks wait, and ng_report shows the memory of the whole run. */
#include "model/model.h"

static int64_t round_up(int64_t bytes) {
  return ng_min64(bytes, NG_MOST) / NG_ALIGN * NG_ALIGN + (bytes % NG_ALIGN != 0 ? NG_ALIGN : 0);
}

/* ---- requests --------------------------------------------------------------------------------*/

/* Append a request to a span of an arena.  Each request begins at a cache line, so that no two share a line. */
static void *append_request(ng_plan *plan, ng_use use, ng_span *span, int64_t bytes) {
  const int64_t at = span->end;
  span->end = ng_plus(at, round_up(bytes));
  plan->bytes[use] = ng_plus(plan->bytes[use], round_up(bytes));
  return plan->is_placing && bytes > 0 ? plan->base[use] + at : NULL;
}

void *ng_plan_take(ng_plan *plan, ng_use use, int64_t bytes) {
  ng_span whole = {0, plan->bytes[use]}; /* an arena without spans */
  return append_request(plan, use, use == NG_USE_SUMS ? &plan->shared_sum : &whole, bytes);
}

void *ng_plan_result(ng_plan *plan, int32_t owner, int64_t bytes) {
  return append_request(plan, NG_USE_RESULTS, &plan->result[owner], bytes);
}

/* All ranks of a column compute the PD of the same blocks, and each rank sends this PD to its row. */
void ng_plan_direction(ng_plan *plan, ng_block *b, ng_filled_by by, int64_t floats) {
  b->filled_by = by;
  b->direction = append_request(plan, NG_USE_DIRECTION, &plan->direction[b->column],
                                floats * (int64_t)sizeof(float));
}

/* Blocks use the scratch one after the other, so the largest request is enough for all blocks. */
void ng_plan_scratch(ng_plan *plan, int64_t bytes) {
  plan->bytes[NG_USE_SCRATCH] = ng_max64(plan->bytes[NG_USE_SCRATCH], round_up(bytes));
}

int64_t ng_plan_counted_bytes(const ng_plan *plan) {
  return plan->bytes[NG_USE_FACTORS] + plan->bytes[NG_USE_SUMS] + plan->bytes[NG_USE_RESULTS];
}

/* On a rank that does not store a statistic, `average` stays NULL; if it does not observe it, `sum` stays NULL. */
void ng_plan_stats(ng_plan *plan, ng_block *b) {
  for (int32_t i = 0; i < b->stats; i++) {
    ng_stat *s = &b->stat[i];
    for (int32_t k = 0; k < s->parts; k++) {
      ng_stat_part *part = &s->part[k];
      const int64_t n = ng_stat_part_count(s, part);
      if (s->has_average && s->rule.averaged) {
        part->average = ng_plan_take(plan, NG_USE_FACTORS, n * ng_dtype_size(s->average_dtype));
        if (s->stale.enabled) {
          part->older = ng_plan_take(plan, NG_USE_FACTORS, n * ng_dtype_size(s->average_dtype));
        }
      }
      if (!s->observes) continue;
      ng_span *span = ng_stat_goes_to_owner(s) ? &plan->sum[s->owner] : &plan->shared_sum;
      part->sum = append_request(plan, NG_USE_SUMS, span, n * ng_dtype_size(s->sum_dtype));
    }
    ng_plan_scratch(plan, ng_stat_stale_scratch(s));
  }
}

/* ---- arenas ----------------------------------------------------------------------------------*/

/* Between the passes: the spans, whose lengths are known, follow one another from byte `at` on.  Set their begins. */
static void place_spans(ng_span *span, int32_t ranks, int64_t at) {
  for (int32_t i = 0; i < ranks; i++) {
    const int64_t bytes = span[i].end;
    span[i] = (ng_span){at, at};
    at += bytes;
  }
}

/* The arenas are zeroed: sums start at 0, and the gaps between the sums of a message stay 0 when ranks add them.  After
 * a failure the caller calls ng_arena_release. */
ng_status ng_plan_commit(ng_precond *p, ng_plan *plan) {
  for (int u = 0; u < NG_USE_OBJECTS; u++) {
    if (plan->bytes[u] == 0) continue;
    p->arena[u] = ng_alloc(p->ctx, (size_t)plan->bytes[u]);
    if (p->arena[u] == NULL) {
      return ng_fail(p->ctx, NG_ERR_NOMEM, "ng_ready: no memory for %lld bytes",
                     (long long)plan->bytes[u]);
    }
    p->arena_bytes[u] = plan->bytes[u];
    memset(p->arena[u], 0, (size_t)plan->bytes[u]);
    plan->base[u] = p->arena[u];
    plan->bytes[u] = 0;
  }
  place_spans(plan->result, p->ctx->ranks, 0);
  place_spans(plan->direction, p->ctx->ranks, 0);
  place_spans(plan->sum, p->ctx->ranks, plan->shared_sum.end);
  plan->shared_sum.end = 0;
  plan->is_placing = true;
  return NG_OK;
}

/* Called when an observed image is larger than the declared image and all earlier images.  Wait for the queue, because
 * queued work may use the old scratch. */
ng_status ng_scratch_grow(ng_precond *p, int64_t bytes, const char *name) {
  const int64_t wanted = round_up(bytes);
  if (wanted <= p->arena_bytes[NG_USE_SCRATCH]) return NG_OK;
  char *larger = ng_alloc(p->ctx, (size_t)wanted);
  if (larger == NULL) {
    return ng_fail(p->ctx, NG_ERR_NOMEM,
                   "layer '%s': no memory for %lld bytes of scratch, for an image larger than any "
                   "before",
                   name, (long long)wanted);
  }
  memset(larger, 0, (size_t)wanted);
  ng_queue_wait(p->ctx->queue);
  if (p->arena[NG_USE_SCRATCH] != NULL) {
    ng_free(p->ctx, p->arena[NG_USE_SCRATCH], (size_t)p->arena_bytes[NG_USE_SCRATCH]);
  }
  p->arena[NG_USE_SCRATCH] = larger;
  p->arena_bytes[NG_USE_SCRATCH] = wanted;
  ng_log(p->ctx, NG_LOG_INFO, "scratch: bytes = %lld layer = %s", (long long)wanted, name);
  return NG_OK;
}

void ng_arena_release(ng_precond *p) {
  for (int u = 0; u < NG_USE_OBJECTS; u++) {
    if (p->arena[u] != NULL) ng_free(p->ctx, p->arena[u], (size_t)p->arena_bytes[u]);
    p->arena[u] = NULL;
    p->arena_bytes[u] = 0;
  }
}

/* ---- objects ---------------------------------------------------------------------------------*/

/* The header in front of each object: a doubly linked list.  Objects are aligned to 16 bytes, as by malloc. */
struct ng_object_head {
  _Alignas(16) ng_object_head *older;
  ng_object_head *newer;
  size_t bytes; /* size of the header and the object together */
};

void *ng_object_unset(ng_precond *p, size_t bytes) {
  if (bytes == 0) return NULL;
  ng_object_head *h = ng_alloc(p->ctx, sizeof *h + bytes);
  if (h == NULL) {
    p->out_of_memory = true;
    (void)ng_fail(p->ctx, NG_ERR_NOMEM, "no memory for %zu bytes", bytes);
    return NULL;
  }
  *h = (ng_object_head){.bytes = sizeof *h + bytes, .older = p->objects};
  if (h->older != NULL) h->older->newer = h;
  p->objects = h;
  p->arena_bytes[NG_USE_OBJECTS] += (int64_t)h->bytes;
  return h + 1;
}

void *ng_object(ng_precond *p, size_t bytes) {
  void *object = ng_object_unset(p, bytes);
  return object == NULL ? NULL : memset(object, 0, bytes);
}

static void free_object(ng_precond *p, ng_object_head *h) {
  *(h->newer != NULL ? &h->newer->older : &p->objects) = h->older;
  if (h->older != NULL) h->older->newer = h->newer;
  p->arena_bytes[NG_USE_OBJECTS] -= (int64_t)h->bytes;
  ng_free(p->ctx, h, h->bytes);
}

void ng_object_free(ng_precond *p, void *object) {
  if (object != NULL) free_object(p, (ng_object_head *)object - 1);
}

void ng_objects_open(ng_precond *p) {
  p->lasting = p->objects;
  p->out_of_memory = false;
}

void ng_objects_free_after(ng_precond *p, const ng_object_head *last) {
  while (p->objects != last) {
    free_object(p, p->objects);
  }
}

ng_status ng_objects_status(const ng_precond *p) { return p->out_of_memory ? NG_ERR_NOMEM : NG_OK; }

char *ng_object_copy_text(ng_precond *p, const char *text) {
  char *copy = ng_object(p, strlen(text) + 1);
  if (copy != NULL) memcpy(copy, text, strlen(text) + 1);
  return copy;
}
