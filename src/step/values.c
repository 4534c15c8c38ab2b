/* values.c: change option values between steps (ng_set), and check that all ranks have the same values. */
#include "step/step.h"

void ng_step_copy_decay(ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    for (int32_t k = 0; k < b->stats; k++) {
      b->stat[k].rule.decay = b->base.stat_decay;
    }
  }
}

/* ---- the same on every rank? -----------------------------------------------------------------*/

/* Ranks of one run compare these hashes of bits; no file has them. */
uint64_t ng_hash_number(uint64_t so_far, double x) {
  uint64_t bits;
  x += 0.0; /* -0 becomes 0 */
  memcpy(&bits, &x, sizeof bits);
  const uint64_t h = (so_far ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
  return h ^ h >> 29;
}

#define HASH_REAL(name, type) h = ng_hash_number(h, s->name);
#define HASH_INT(name, type) h = ng_hash_number(h, (double)s->name);
#define HASH_BOOL(name, type) h = ng_hash_number(h, (double)s->name);
#define HASH_CHOICE(name, type) h = ng_hash_number(h, (double)s->name);
#define HASH_TEXT(name, type) /* texts are fixed at creation; ng_ready compares them */
#define HASH(kind, name, type) HASH_##kind(name, type)
uint64_t ng_options_hash(const ng_precond *p) {
  const ng_settings *s = &p->base;
  uint64_t h = 0;
  NG_OPTION_LIST(HASH)
  return h;
}

enum { PIECES = 2 }; /* pieces of a number, 16 bits each */
_Static_assert(NG_HASH_PIECES == 2 * PIECES && NG_HASH_NUMBERS == 2 * NG_HASH_PIECES,
               "two numbers, two sums of each piece");

/* Write each piece v and v^2.  The v_i of W ranks are equal iff W sum v_i^2 - (sum v_i)^2, the sum of (v_i - v_j)^2
 * over pairs of ranks, is 0. v < 2^16, so sums are exact up to 46,000 ranks. */
void ng_hash_split(double x[NG_HASH_PIECES], uint64_t number) {
  for (int i = 0; i < PIECES; i++) {
    const double v = (double)(number >> (16 * i) & 0xffff);
    x[2 * i] = v;
    x[2 * i + 1] = v * v;
  }
}

/* Return a hash of lr, kind, coefficients and groups of the update, excluded parameters, and dtypes written. */
static uint64_t update_hash(const ng_precond *p) {
  const ng_engine *s = p->step;
  uint64_t h = ng_hash_number(ng_hash_number(s->update_hash, s->lr), (double)s->output.kind);
  for (int32_t i = 0; i < p->entries; i++) {
    const ng_entry *e = p->entry[i];
    for (int32_t k = 0; k < e->slots; k++) {
      const ng_place *to =
          s->output.kind == NG_OUT_GRADIENT ? &e->slot[k].grad : &e->slot[k].weight;
      const double dtype = to->data == NULL ? -1.0 : (double)to->dtype;
      h = ng_hash_number(h, (double)(p->update_groups > 1 ? e->slot[k].update_group : 0));
      h = ng_hash_number(h, e->slot[k].is_excluded ? -1.0 : dtype);
    }
  }
  return h;
}

bool ng_hash_sums_agree(const double x[NG_HASH_PIECES], int32_t ranks) {
  for (int i = 0; i < PIECES; i++) {
    const uint64_t sum = (uint64_t)x[2 * i], squares = (uint64_t)x[2 * i + 1];
    if ((uint64_t)ranks * squares != sum * sum) return false;
  }
  return true;
}

/* Report differences that arose after ng_ready: ng_set, learning rates, coefficients of groups, dtypes. */
ng_status ng_hashes_check(ng_precond *p, const double *x) {
  if (p->ctx->ranks == 1) return NG_OK;
  if (!ng_hash_sums_agree(x, p->ctx->ranks)) {
    return ng_fail(p->ctx, NG_ERR_STATE,
                   "options differ between the %d ranks: call ng_set with the same values on all "
                   "ranks before the "
                   "same step",
                   p->ctx->ranks);
  }
  if (!ng_hash_sums_agree(x + 2 * PIECES, p->ctx->ranks)) {
    return ng_fail(
        p->ctx, NG_ERR_STATE,
        "the learning rate, the update, its numbers or its groups differ between the %d ranks, or "
        "the dtypes of bound arrays",
        p->ctx->ranks);
  }
  return NG_OK;
}

void ng_hashes_write(const ng_precond *p, double x[NG_HASH_NUMBERS]) {
  memset(x, 0, NG_HASH_NUMBERS * sizeof *x);
  if (p->ctx->ranks == 1) return;
  ng_hash_split(x, ng_options_hash(p));
  ng_hash_split(x + 2 * PIECES, update_hash(p));
}

/* ---- ng_set ----------------------------------------------------------------------------------*/

/* Override *o, the model's options, by the options of the layer; check the combination. */
static ng_status with_overrides(const ng_block *b, ng_options *o, char *message, size_t size) {
  ng_status st = NG_OK;
  if (b->line != NULL) {
    st = ng_options_override(o, b->line, message, size);
    if (st == NG_OK) st = ng_family_check_line(o, message, size);
  }
  return st == NG_OK ? ng_block_check(b, o, message, size) : st;
}

/* Numbers are passed as text, too, so that ng_set_real makes the same checks as the command line. */
ng_status ng_step_set(ng_precond *p, const char *option, const char *value) {
  const int32_t row = ng_option_find(option);
  char message[NG_MESSAGE] = "";
  ng_options o = p->opt;
  if (ng_is(option, "method")) { /* the method decides the family */
    return ng_fail(p->ctx, NG_ERR_STATE, "ng_set: 'method' is given to ng_precond_create");
  }
  if (row >= 0) {
    const ng_option_row *r = &ng_option_table[row];
    if (!r->can_change && p->is_ready) {
      return ng_fail(p->ctx, NG_ERR_STATE, "ng_set: '%s' is fixed once ng_ready was called",
                     r->name);
    }
    if (r->type == NG_OPTION_TEXT) {
      return ng_fail(p->ctx, NG_ERR_STATE, "ng_set: '%s' is given to ng_precond_create", r->name);
    }
  }
  /* Change a copy: a value in its range may still contradict other options. */
  ng_status st = ng_options_set(&o, option, value, message, sizeof message);
  if (st == NG_OK) st = ng_family_check(&o, message, sizeof message);
  if (st != NG_OK) return ng_fail(p->ctx, st, "ng_set: %s", message);
  /* The first pass checks the options of all blocks before the second pass changes them. */
  for (int apply = 0; apply < 2; apply++) {
    for (int32_t i = 0; i < p->blocks; i++) {
      ng_options mine = o;
      st = with_overrides(p->block[i], &mine, message, sizeof message);
      if (st != NG_OK) {
        return ng_fail(p->ctx, st, "ng_set: layer '%s': %s", p->block[i]->name, message);
      }
      if (apply != 0) ng_settings_of(&mine, &p->block[i]->base);
    }
  }
  p->opt = o;
  ng_settings_of(&p->opt, &p->base);
  ng_step_copy_decay(p);
  return NG_OK;
}
