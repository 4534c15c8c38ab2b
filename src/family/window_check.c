/* window_check.c: check the options of window methods against each other. */
#include "family/window.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

/* First-order methods (window_function = step, adam, adagrad) store one row and use this row in every step. */
static ng_status check_first(const ng_options *o, char *message, size_t size) {
  const ng_settings *s = &o->base;
  const ng_option_id function = NG_OPTION_window_function;
  const bool adam = s->window_function == NG_WINDOW_ADAM;
  const bool adagrad = s->window_function == NG_WINDOW_ADAGRAD;
  const bool average = s->window_momentum_form == NG_MOMENTUM_AVERAGE;
  const ng_refusal list[] = {
      {s->window != 1, function, " needs window = 1"},
      {s->stat_period != 1, function, " needs stat_period = 1"},
      {s->window_fill != NG_FILL_NONE, function, " needs window_fill = none"},
      {s->window_empty > 0.0, function, " needs window_empty = 0"},
      {!adam && s->window_forget != 1.0, function, " needs window_forget = 1"},
      {adagrad && s->window_momentum > 0.0, function, " needs window_momentum = 0"},
      {adagrad && s->window_feedback_lr, function, " needs window_feedback_lr = 0"},
      {s->window_momentum_form == NG_MOMENTUM_GRADIENT || (adam && !average), function,
       " needs window_momentum_form = average"},
      {s->window_decay_form == NG_DECAY_DIRECTION, function, " needs window_decay_form = gradient"},
  };
  return ng_family_check_list(list, COUNT(list), o, message, size);
}

ng_status ng_window_check_options(const ng_options *o, char *message, size_t size) {
  const ng_settings *s = &o->base;
  static const ng_option_id unused[] = {NG_OPTION_stat_decay, NG_OPTION_stat_start,
                                        NG_OPTION_stat_scale, NG_OPTION_positions,
                                        NG_OPTION_stat_batch, NG_OPTION_calls};
  const bool mfac = ng_is_mfac(s->window_function), ggt = s->window_function == NG_WINDOW_GGT;
  const bool lowrank = s->window_store == NG_STORE_LOWRANK;
  const bool rest = s->window_fill == NG_FILL_REST || s->window_fill == NG_FILL_ADDED;
  const bool averages = s->window_momentum > 0.0 && s->window_momentum_form == NG_MOMENTUM_GRADIENT;
  const ng_refusal list[] = {
      {mfac && s->window_forget != 1.0, NG_OPTION_window_forget,
       ": only window_function = ggt uses this option; set 1"},
      {ggt && rest, NG_OPTION_window_fill, ": only window_function = mfac supports this value"},
      {s->window_fill != NG_FILL_NONE && (s->window_forget != 1.0 || averages),
       NG_OPTION_window_fill,
       " needs window_forget = 1 and window_momentum_form = average or heavy-ball"},
      {s->window_density > 1.0 &&
           (s->window_store == NG_STORE_TOPK_LAYER || s->window_store == NG_STORE_TOPK_BLOCK),
       NG_OPTION_window_density,
       ": a number of entries needs window_store = topk; topk-layer and topk-block need a fraction "
       "up to 1"},
      {s->window_fill == NG_FILL_ERROR && s->window_store == NG_STORE_DENSE, NG_OPTION_window_fill,
       ": window_store = dense has no error feedback; set topk or lowrank"},
      {lowrank && s->window_dtype != NG_F32, NG_OPTION_window_dtype,
       ": window_store = lowrank stores f32 only"},
      {lowrank && s->window_mask, NG_OPTION_window_mask,
       ": window_store = lowrank cannot exclude single weights; set dense "
       "or topk"},
      {ggt && s->window_decay > 0.0 && s->window_decay_form == NG_DECAY_DIRECTION,
       NG_OPTION_window_decay_form, ": window_function = ggt supports gradient or none"},
  };
  ng_status st = ng_family_check_others(NG_TRAIT_WINDOW, o, message, size);
  if (st == NG_OK) {
    st =
        ng_family_check_unused(unused, COUNT(unused), "a window has no averages", o, message, size);
  }
  if (st == NG_OK && ng_window_is_adaptive(s)) st = check_first(o, message, size);
  return st == NG_OK ? ng_family_check_list(list, COUNT(list), o, message, size) : st;
}
