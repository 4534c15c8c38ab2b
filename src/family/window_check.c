/* window_check.c: which options of windows exclude each other. */
#include "family/window.h"

/* A window keeps gradients, not running averages. */
static ng_status check_statistics(const ng_options *o, char *message, size_t size) {
  static const ng_option_id unused[] = {
      NG_OPTION_stat_decay, NG_OPTION_stat_start, NG_OPTION_stat_scale, NG_OPTION_positions,
      NG_OPTION_stat_batch, NG_OPTION_calls,      NG_OPTION_call_weight};
  for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++) {
    const ng_option_row *row = &ng_option_table[unused[i]];
    char value[64];
    if (ng_option_write(row, o, value, sizeof value) && ng_is(value, row->standard)) continue;
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "%s = %s: method %s keeps gradients and no averages; leave it at %s",
                      row->name, value, o->method, row->standard);
  }
  return NG_OK;
}

/* First-order methods keep one row and use it in every step. */
static ng_status check_first(const ng_options *o, const ng_settings *s, char *message,
                             size_t size) {
  const bool adam = s->window_function == NG_WINDOW_ADAM;
  const bool adagrad = s->window_function == NG_WINDOW_ADAGRAD;
  const char *wrong = s->window != 1                           ? "window = 1"
                      : s->stat_period != 1                    ? "stat_period = 1"
                      : s->window_divisor != NG_DIVISOR_WINDOW ? "window_divisor = window"
                      : s->window_fill != NG_FILL_NONE         ? "window_fill = none"
                      : s->window_empty > 0.0                  ? "window_empty = 0"
                      : !adam && s->window_forget != 1.0       ? "window_forget = 1"
                      : adagrad && s->window_momentum > 0.0    ? "window_momentum = 0"
                      : adagrad && s->window_feedback_lr       ? "window_feedback_lr = 0"
                      : s->window_momentum_form == NG_MOMENTUM_GRADIENT ||
                              (adam && s->window_momentum_form != NG_MOMENTUM_AVERAGE)
                          ? "window_momentum_form = average"
                      : s->window_decay_form == NG_DECAY_DIRECTION ? "window_decay_form = gradient"
                                                                   : NULL;
  if (wrong == NULL) return NG_OK;
  return ng_fail_to(message, size, NG_ERR_ARG, "window_function = %s needs %s", o->window_function,
                    wrong);
}

ng_status ng_window_check(const ng_options *o, const ng_settings *s, char *message, size_t size) {
  const bool first = ng_window_is_first(s);
  ng_status st = ng_family_check_others("window", o, message, size);
  if (st == NG_OK) st = check_statistics(o, message, size);
  if (st == NG_OK && first) st = check_first(o, s, message, size);
  if (st != NG_OK) return st;
  if (s->window_function == NG_WINDOW_MFAC && s->window_forget != 1.0) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "window_forget = %g: only window_function = ggt has it; leave it at 1",
                      s->window_forget);
  }
  if (s->window_function == NG_WINDOW_GGT && s->window_divisor != NG_DIVISOR_WINDOW) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "window_divisor = %s: window_function = ggt divides by nothing; leave it at "
                      "window",
                      o->window_divisor);
  }
  const bool rest = s->window_fill == NG_FILL_REST || s->window_fill == NG_FILL_ADDED;
  if (s->window_function == NG_WINDOW_GGT && rest) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "window_fill = %s: only window_function = mfac has it", o->window_fill);
  }
  const bool averages = s->window_momentum > 0.0 && s->window_momentum_form == NG_MOMENTUM_GRADIENT;
  if (s->window_fill != NG_FILL_NONE && (s->window_forget != 1.0 || averages)) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "window_fill = %s needs window_forget = 1 and another window_momentum_form "
                      "than gradient",
                      o->window_fill);
  }
  if (s->window_density > 1.0 && s->window_topk != NG_TOPK_GLOBAL) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "window_density = %g: a number of entries is for window_topk = global; layer "
                      "and block take a part, up to 1",
                      s->window_density);
  }
  if (s->window_fill == NG_FILL_ERROR && s->window_store == NG_STORE_DENSE) {
    return ng_fail_to(
        message, size, NG_ERR_ARG,
        "window_fill = error: window_store = dense leaves nothing of a gradient; only "
        "topk and lowrank do");
  }
  if (s->window_store == NG_STORE_LOWRANK && s->window_dtype != NG_F32) {
    return ng_fail_to(message, size, NG_ERR_ABSENT,
                      "window_dtype = %s: factors of window_store = lowrank are kept in f32",
                      o->window_dtype);
  }
  if (s->window_store == NG_STORE_LOWRANK && s->window_mask) {
    return ng_fail_to(message, size, NG_ERR_ABSENT,
                      "window_mask = 1: P Q' of window_store = lowrank is not 0 where a weight is; "
                      "only dense and topk leave weights out");
  }
  if (s->window_function == NG_WINDOW_GGT && s->window_decay > 0.0 &&
      s->window_decay_form == NG_DECAY_DIRECTION) {
    return ng_fail_to(
        message, size, NG_ERR_ARG,
        "window_decay_form = direction: window_function = ggt takes gradient or none");
  }
  return NG_OK;
}
