/* values.c: change option values between steps (ng_set), and check that all ranks have the same values. */
#include "step/step.h"

/* ---- the same on every rank? -----------------------------------------------------------------*/

/* Ranks of one run compare these hashes; no file contains them, so they may differ between versions and machines. */
uint64_t ng_hash_number(uint64_t so_far, double x) {
  uint64_t bits;
  x += 0.0; /* -0 becomes 0 */
  memcpy(&bits, &x, sizeof bits);
  const uint64_t h = (so_far ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
  return h ^ h >> 29;
}

/* Options with texts are not hashed: they cannot change after ng_ready, which compares them. */
uint64_t ng_options_hash(const ng_precond *p) {
  uint64_t h = 0;
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    const ng_option_row *row = &ng_option_table[i];
    if (row->type != NG_OPTION_TEXT) h = ng_hash_number(h, ng_option_number(row, &p->opt));
  }
  return h;
}

enum { PIECES = 2 }; /* pieces of a number, 16 bits each */
_Static_assert(NG_HASH_PIECES == 2 * PIECES && NG_HASH_NUMBERS == 2 * NG_HASH_PIECES,
               "two numbers, two sums of each piece");

/* For each piece v of 16 bits write v and v^2, which the ranks sum. The v_i of W ranks are equal if and only if W sum
 * v_i^2 - (sum v_i)^2, which is the sum of (v_i - v_j)^2 over pairs of ranks, is 0. The sums are exact for up to 46,000
 * ranks. */
void ng_hash_split(double x[NG_HASH_PIECES], uint64_t number) {
  for (int i = 0; i < PIECES; i++) {
    const double v = (double)(number >> (16 * i) & 0xffff);
    x[2 * i] = v;
    x[2 * i + 1] = v * v;
  }
}

/* Return a hash of everything that the update of this step depends on: kind, lr, coefficients, groups of parameters,
 * excluded parameters, dtypes of the arrays that are written. */
static uint64_t hash_update(const ng_precond *p) {
  const ng_engine *s = p->step;
  uint64_t h = ng_hash_number(ng_hash_number(s->update_hash, s->lr), (double)s->output.kind);
  for (int32_t i = 0; i < p->slots; i++) {
    const ng_slot *slot = p->slot[i];
    const ng_place *to = s->output.kind == NG_OUT_GRADIENT ? &slot->grad : &slot->weight;
    const double dtype = to->data == NULL ? -1.0 : (double)to->dtype;
    h = ng_hash_number(h, (double)(p->update_groups > 1 ? slot->update_group : 0));
    h = ng_hash_number(h, slot->is_excluded ? -1.0 : dtype);
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

/* Report differences between ranks that ng_ready could not find: values of ng_set, learning rates, coefficients, dtypes. */
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
  if (p->ctx->ranks == 1) return;
  ng_hash_split(x, ng_options_hash(p));
  ng_hash_split(x + 2 * PIECES, hash_update(p));
}

/* ---- ng_set ----------------------------------------------------------------------------------*/

/* Blocks of one family without own options have the same options, so only the first such block is checked. */
ng_status ng_model_check_options(const ng_precond *p, const ng_options *o, char *message,
                                 size_t size) {
  char why[NG_MESSAGE] = "";
  const ng_family *checked = NULL;
  ng_status st = ng_family_check(o, message, size);
  for (int32_t i = 0; i < p->blocks && st == NG_OK; i++) {
    const ng_block *b = p->block[i];
    if (b->own_options == NULL && b->family == checked) continue;
    ng_options own = *o;
    checked = b->own_options == NULL ? b->family : checked;
    st = ng_options_override(&own, b->own_options, why, sizeof why);
    if (st == NG_OK) st = ng_family_check_method_options(&own, why, sizeof why);
    if (st == NG_OK) st = b->family->check_options(&own, why, sizeof why);
    if (st != NG_OK) st = ng_fail_to(message, size, st, "layer '%s': %s", b->name, why);
  }
  return st;
}

/* Options that the block's family lacks get neutral values.  A block has periods of solves if its family or the method's
 * family has them. */
void ng_block_set_options(ng_block *b, const ng_options *o) {
  const uint32_t traits = b->family->traits | ng_family_find(o->base.family)->traits;
  b->base = o->base;
  if ((traits & NG_TRAIT_SOLVES) == 0) b->base.solve_period = 1;
  if ((b->family->traits & NG_TRAIT_FACTORS) == 0) b->base.radius = 0.0;
  if ((b->family->traits & NG_TRAIT_ROOTS) == 0) b->base.solve_start = 0;
}

void ng_model_set_options(ng_precond *p, const ng_options *o) {
  p->opt = *o;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    ng_options own;
    if (b->own_options != NULL) own = *o; /* a large copy */
    if (b->own_options != NULL) (void)ng_options_override(&own, b->own_options, NULL, 0);
    ng_block_set_options(b, b->own_options != NULL ? &own : o);
    for (int32_t k = 0; k < b->stats; k++)
      b->stat[k].rule.decay = b->base.stat_decay;
  }
}

/* ng_set_real passes its number as text, too, so that every caller passes the same checks. */
ng_status ng_step_set(ng_precond *p, const char *option, const char *value) {
  const int32_t row = ng_option_find(option);
  char message[NG_MESSAGE] = "";
  ng_options o = p->opt;
  const ng_option_row *r = row < 0 ? NULL : &ng_option_table[row];
  if (r != NULL && !r->can_change && p->is_ready) {
    return ng_fail(p->ctx, NG_ERR_STATE, "ng_set: '%s' is fixed once ng_ready was called", r->name);
  }
  if (ng_is(option, "method") || (r != NULL && r->type == NG_OPTION_TEXT)) {
    return ng_fail(p->ctx, NG_ERR_STATE, "ng_set: '%s' is given to ng_precond_create",
                   r == NULL ? "method" : r->name);
  }
  /* Change a copy: a value in its range may still contradict other options. */
  ng_status st = ng_options_set(&o, option, value, message, sizeof message);
  if (st == NG_OK) st = ng_model_check_options(p, &o, message, sizeof message);
  if (st != NG_OK) return ng_fail(p->ctx, st, "ng_set: %s", message);
  ng_model_set_options(p, &o);
  return NG_OK;
}
