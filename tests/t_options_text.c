/* t_options_text.c: any text at all, as a value, a line, a published value: taken or refused in words, and
 * nothing half changed. */
#include "options_help.h"

static char message[512];

/* ---- any text at all -------------------------------------------------------------------------*/

static void random_text(rng *r, char *text, int64_t most) {
  static const char *const piece[] = {"damping",  "stat_decay", "solve_period",
                                      "solver",   "=",          "*",
                                      "*=",       "@",          ",",
                                      "~",        "0.5",        "1e-3",
                                      "2",        "10",         " ",
                                      "inf",      "-",          "+",
                                      "eigen",    "cholesky",   "pi",
                                      "joint",    "nan",        ".",
                                      "e",        "0",          "%s%n",
                                      "\n",       "='",         "damping='",
                                      "\x01\xff", "1e400",      "99999999999999999999",
                                      "|",        "[",          "none",
                                      "kl_clip"};
  int64_t pieces = rng_below(r, 12);
  size_t n = 0;
  text[0] = 0;
  while (pieces-- > 0) {
    const char *p = piece[rng_below(r, (int64_t)(sizeof piece / sizeof piece[0]))];
    char one[2] = {(char)(1 + rng_below(r, 255)), 0};
    if (rng_below(r, 6) == 0) p = one;
    if (n + strlen(p) + 1 >= (size_t)most) break;
    memcpy(text + n, p, strlen(p) + 1);
    n += strlen(p);
  }
}

/* A message is one line. */
static bool is_line(const char *text) {
  for (; *text != 0; text++) {
    if ((unsigned char)*text < 32 || *text == 127) return false;
  }
  return true;
}

static ng_status any_published(rng *r, ng_options *o, const char *name, const char *value) {
  const int32_t m = (int32_t)rng_below(r, ng_method_count());
  ng_method_info method = {.struct_size = sizeof method};
  ng_published_info p = {.struct_size = sizeof p, .name = name};
  ng_status st = ng_method_at(m, &method);
  *o = standard_options(); /* what was given before need not go with the method */
  if (st == NG_OK) st = ng_options_set(o, "method", method.name, NULL, 0);
  if (st != NG_OK) return st;
  const ng_options before = *o;
  double lr = -1;
  if (method.published > 0 && rng_below(r, 4) != 0) {
    st = ng_method_published_at(m, (int32_t)rng_below(r, method.published), &p);
  }
  if (st == NG_OK) st = ng_options_set_published(o, p.name, value, &lr, message, sizeof message);
  if (st != NG_OK && (memcmp(o, &before, sizeof before) != 0 || lr > 0)) {
    fail_msg("published option '%s' = '%s' was refused, and something changed", p.name, value);
  }
  return st;
}

static void any_text(void **state) {
  (void)state;
  const uint64_t seed = test_seed();
  rng r = {seed};
  int64_t taken = 0, published = 0;
  for (int i = 0; i < 60000; i++) {
    char name[128], value[128], shown[160];
    ng_options o = standard_options();
    random_text(&r, value, sizeof value);
    random_text(&r, name, sizeof name);
    if (rng_below(&r, 4) != 0) {
      (void)snprintf(name, sizeof name, "%s",
                     option_info((int32_t)rng_below(&r, ng_option_count())).name);
    }
    const ng_options before = o;
    memset(message, 'x', sizeof message);
    const ng_status st = ng_options_set(&o, name, value, message, sizeof message);
    if (st == NG_OK) {
      taken++;
      CHECK_SEED(seed, ng_options_get(&o, name, shown, sizeof shown) == NG_OK, value);
      CHECK_SEED(seed, ng_options_set(&o, name, shown, NULL, 0) == NG_OK, shown);
    } else {
      CHECK_SEED(seed, st == NG_ERR_ARG || st == NG_ERR_ABSENT, value);
      CHECK_SEED(seed, memcmp(&o, &before, sizeof o) == 0, value);
      CHECK_SEED(seed, memchr(message, 0, sizeof message) != NULL, value);
      CHECK_SEED(seed, is_line(message), message);
    }
    o = before;
    if (ng_options_set_line(&o, value, message, sizeof message) != NG_OK) {
      CHECK_SEED(seed, memcmp(&o, &before, sizeof o) == 0 && is_line(message), message);
    }
    o = before;
    ng_option_mask mask = {{7}};
    if (ng_options_override(&o, value, message, sizeof message) == NG_OK) {
      CHECK_SEED(seed, ng_options_check(&o, NULL, 0) == NG_OK, value);
    } else {
      CHECK_SEED(seed, memcmp(&o, &before, sizeof o) == 0 && mask.word[0] == 7, value);
    }
    CHECK_SEED(seed, ng_options_set(&o, "method", name, message, sizeof message) != NG_OK, name);
    CHECK_SEED(seed, ng_options_set_system(&o, name, value, message, sizeof message) != NG_OK,
               name);
    if (any_published(&r, &o, name, value) == NG_OK) published++;
    /* whatever a published option says, the methods stay consistent */
    CHECK_SEED(seed, ng_options_check(&o, message, sizeof message) == NG_OK, message);
  }
  assert_true(taken > 100 && published > 100); /* the generator does find values that are right */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(any_text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
