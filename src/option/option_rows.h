/* option_rows.h: macros for the rows of option_table.c. */
#ifndef NG_OPTION_ROWS_H
#define NG_OPTION_ROWS_H

#include "option/option.h"

/* Constants that ROW derives the kind and the field of an option from, such as KIND_solver = NG_OPTION_CHOICE and
 * OFFSET_solver = offsetof(ng_options, base.solver). */
#define AT_REAL(name) offsetof(ng_options, base.name)
#define AT_INT AT_REAL
#define AT_BOOL AT_REAL
#define AT_CHOICE AT_REAL
#define AT_TEXT(name) offsetof(ng_options, name)
#define KIND(kind, name, type) KIND_##name = NG_OPTION_##kind, OFFSET_##name = AT_##kind(name),
enum { NG_OPTION_LIST(KIND) };

/* The index of a row is the option's id, so the compiler warns of a second row for the same option. */
#define ROW(field, of, standard, ...)                                                              \
  [NG_OPTION_##field] = {.name = #field,                                                           \
                         .group = of,                                                              \
                         .type = (ng_option_type)KIND_##field,                                     \
                         .offset = OFFSET_##field,                                                 \
                         .default_text = standard,                                                 \
                         __VA_ARGS__}

/* The bounds and the unit of a number; ABOVE: the lower bound itself is excluded. */
#define FROM(low, high, what) .lower = low, .upper = high, .unit = what
#define ABOVE(low, high, what) FROM(low, high, what), .lower_open = true
#define LAYER .per_layer = true
#define LIVE .can_change = true

/* Arguments: the common beginning of the enum values of a choice, then for each value the end of its name and its text.
 * Messages use .choices, the parser .choice. */
#define ONE_OF_2(p, a, at, b, bt) .choices = at "|" bt, .choice = {[p##a] = at, [p##b] = bt}
#define ONE_OF_3(p, a, at, b, bt, c, ct)                                                           \
  .choices = at "|" bt "|" ct, .choice = {[p##a] = at, [p##b] = bt, [p##c] = ct}
#define ONE_OF_4(p, a, at, b, bt, c, ct, d, dt)                                                    \
  .choices = at "|" bt "|" ct "|" dt, .choice = {[p##a] = at, [p##b] = bt, [p##c] = ct, [p##d] = dt}
#define ONE_OF_5(p, a, at, b, bt, c, ct, d, dt, e, et)                                             \
  .choices = at "|" bt "|" ct "|" dt "|" et,                                                       \
  .choice = {[p##a] = at, [p##b] = bt, [p##c] = ct, [p##d] = dt, [p##e] = et}
#define ONE_OF_6(p, a, at, b, bt, c, ct, d, dt, e, et, f, ft)                                      \
  .choices = at "|" bt "|" ct "|" dt "|" et "|" ft,                                                \
  .choice = {[p##a] = at, [p##b] = bt, [p##c] = ct, [p##d] = dt, [p##e] = et, [p##f] = ft}
#define ONE_OF_7(p, a, at, b, bt, c, ct, d, dt, e, et, f, ft, g, gt)                               \
  .choices = at "|" bt "|" ct "|" dt "|" et "|" ft "|" gt,                                         \
  .choice = {[p##a] = at, [p##b] = bt, [p##c] = ct, [p##d] = dt,                                   \
             [p##e] = et, [p##f] = ft, [p##g] = gt}

/* Methods whose family lacks the trait must leave the option at its default (ng_family_check_others). */
#define FACTORS .trait = NG_TRAIT_FACTORS

/* The option has an effect only if option `which` has one of `values`, the sum of 1U << value over these values. */
#define NEED(which, values)                                                                        \
  { .exists = true, .option = NG_OPTION_##which, .one_of = (values) }
#define NEEDS(which, values) .needs = {NEED(which, values)}
/* The option has an effect if at least one of two such conditions holds. */
#define NEEDS_EITHER(which, values, other, others)                                                 \
  .needs = {NEED(which, values), NEED(other, others)}
/* The option has an effect only if option `which`, a number, is above 0. */
#define NEEDS_ABOVE(which) .needs = {NEED(which, 0)}
#define OBSERVED NEEDS(sides, 1U << NG_SIDES_BOTH | 1U << NG_SIDES_INPUT)

#define MFAC (1U << NG_WINDOW_MFAC | 1U << NG_WINDOW_MFAC_FILLED)
#define TOPK (1U << NG_STORE_TOPK | 1U << NG_STORE_TOPK_LAYER | 1U << NG_STORE_TOPK_BLOCK)
#define WINDOW .trait = NG_TRAIT_WINDOW, LAYER
#define MUON .trait = NG_TRAIT_MUON, LAYER
#define OWN_SET NEEDS(muon_coefficients, 1U << NG_MUON_SIMPLE)
#define MOMENTS .trait = NG_TRAIT_MOMENTS
#define GRAMS .trait = NG_TRAIT_AXES
#define ROOTS .trait = NG_TRAIT_ROOTS, LAYER

/* Bounds exclude only values that the arithmetic cannot represent.  A double represents every whole number up to
 * COUNT_MAX exactly; the product of REAL_MAX and an eigenvalue up to 3e8 fits f32. */
#define COUNT_MAX 1e15
#define REAL_MAX 1e30

#endif
