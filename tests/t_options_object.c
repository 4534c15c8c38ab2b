/* t_options_object.c: options as an object that a program holds by a pointer: order without effect,
 * lines, copies, texts of its own.  What a single value may be is in t_options.c. */
#include "options_help.h"

#include <stdbool.h>

static char message[512];

static ng_options *made(const char *line) {
  ng_options *o = NULL;
  const ng_status st = ng_options_create(line, message, sizeof message, &o);
  if (st != NG_OK) fail_msg("%s: %s", line == NULL ? "NULL" : line, message);
  return o;
}

/* By name, as a program would: every option, and the method. */
static bool same(const ng_options *x, const ng_options *y) {
  char a[NG_TEXT_SIZE], b[NG_TEXT_SIZE];
  for (int32_t i = -1; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i < 0 ? 0 : i);
    const char *name = i < 0 ? "method" : info.name;
    assert_int_equal(ng_options_get(x, name, a, sizeof a), NG_OK);
    assert_int_equal(ng_options_get(y, name, b, sizeof b), NG_OK);
    if (strcmp(a, b) == 0) continue;
    print_error("%s is '%s', not '%s'\n", name, a, b);
    return false;
  }
  return true;
}

/* ---- order -----------------------------------------------------------------------------------*/

typedef struct words {
  const char *name[3], *value[3];
} words;

/* In the order of place[]: by calls, one after the other; and as one line. */
static void set_in_order(ng_options *by_calls, ng_options *by_line, const words *w,
                         const int place[3]) {
  char line[512] = "";
  for (int k = 0; k < 3; k++) {
    const char *name = w->name[place[k]], *value = w->value[place[k]];
    const size_t n = strlen(line);
    assert_int_equal(ng_options_set(by_calls, name, value, message, sizeof message), NG_OK);
    (void)snprintf(line + n, sizeof line - n, "%s%s='%s'", k > 0 ? " " : "", name, value);
  }
  assert_int_equal(ng_options_set_line(by_line, line, message, sizeof message), NG_OK);
}

/* Every method with every pair of options, in all six orders, by calls and by a line: what was given
 * has its value, all else that of the row.  A method that was chosen before leaves no trace. */
static void order_has_no_effect(void **state) {
  static const int order[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  int64_t tried = 0, moved = 0;
  for (int32_t m = 0; m < ng_method_count(); m++) {
    ng_method_info method = {.struct_size = sizeof method}, other = method;
    assert_int_equal(ng_method_at(m, &method), NG_OK);
    assert_int_equal(ng_method_at((m + 1) % ng_method_count(), &other), NG_OK);
    ng_options row = standard_options();
    assert_int_equal(ng_options_set(&row, "method", method.name, NULL, 0), NG_OK);
    for (int32_t i = 0; i < ng_option_count(); i++) {
      for (int32_t j = i + 1; j < ng_option_count(); j++) {
        const ng_option_info a = option_info(i), b = option_info(j);
        char x[64], y[64], shown[NG_TEXT_SIZE];
        unusual(&a, x, sizeof x);
        unusual(&b, y, sizeof y);
        const words w = {{"method", a.name, b.name}, {method.name, x, y}};
        ng_options expected = row; /* the row, and the two over it */
        assert_int_equal(ng_option_read(&ng_option_table[i], x, &expected, NULL, 0), NG_OK);
        assert_int_equal(ng_option_read(&ng_option_table[j], y, &expected, NULL, 0), NG_OK);
        for (int k = 0; k < 6; k++) {
          ng_options calls = standard_options(), line = standard_options();
          if (k % 2 == 1) fixture_set(&calls, "method", other.name);
          set_in_order(&calls, &line, &w, order[k]);
          tried++;
          /* the same bytes are the same; others may still be the same values */
          if (memcmp(&calls, &expected, sizeof expected) == 0 &&
              memcmp(&line, &expected, sizeof expected) == 0) {
            continue;
          }
          if (!same(&calls, &expected) || !same(&line, &expected)) {
            fail_msg("method=%s %s=%s %s=%s, order %d", method.name, a.name, x, b.name, y, k);
          }
        }
        assert_true(ng_option_write(&ng_option_table[i], &row, shown, sizeof shown));
        moved += strcmp(shown, x) != 0;
      }
    }
  }
  assert_true(tried >= 30000 && moved > 4000); /* the values do differ from the rows' */
}

/* Of two calls for one option the last counts, whichever way the value came. */
static void the_last_call_counts(void **state) {
  ng_options *o = made("damping=0.5 method=eva");
  assert_int_equal(ng_options_set_real(o, "damping", 0.25, message, sizeof message), NG_OK);
  assert_option(o, "damping", "0.25");
  assert_int_equal(ng_options_set_line(o, "damping=0.75", message, sizeof message), NG_OK);
  assert_int_equal(ng_options_set(o, "method", "kaisa", message, sizeof message), NG_OK);
  assert_option(o, "damping", "0.75");
  assert_option(o, "method", "kaisa");
  assert_option(o, "solver", "eigen-prediv"); /* of kaisa, and nothing of eva */
  assert_option(o, "stat_batch", "0");
  /* given the value that it had anyway, it is given all the same */
  assert_int_equal(ng_options_set(o, "solver", "eigen", message, sizeof message), NG_OK);
  assert_int_equal(ng_options_set(o, "method", "natgrad", message, sizeof message), NG_OK);
  assert_option(o, "solver", "eigen");
  assert_option(o, "damping_split", "pi");
  /* a system is where options begin anew */
  assert_int_equal(ng_options_set_system(o, "KAISA", "inverse", message, sizeof message), NG_OK);
  assert_option(o, "damping", "0.001");
  assert_int_equal(ng_options_set(o, "method", "natgrad", message, sizeof message), NG_OK);
  ng_options *standard = made(NULL);
  assert_true(same(o, standard));
  ng_options_destroy(&standard);
  ng_options_destroy(&o);
}

/* What was given before a method that has no such option is not forgotten: it is refused. */
static void stale_words_are_refused(void **state) {
  ng_options *o = made("solver=eigen");
  assert_int_equal(ng_options_set(o, "method", "eva", message, sizeof message), NG_OK);
  assert_int_equal(ng_options_check(o, message, sizeof message), NG_ERR_ARG);
  assert_contains(message, "solver = eigen: method eva does not use this option");
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  assert_int_equal(ng_context_create(NG_VERSION, NULL, message, sizeof message, &ctx), NG_OK);
  assert_int_equal(ng_precond_create_from(ctx, o, &p), NG_ERR_ARG);
  assert_contains(ng_last_error(ctx), "solver = eigen");
  assert_int_equal(ng_precond_create(ctx, "solver=eigen method=eva", &p), NG_ERR_ARG);
  assert_contains(ng_last_error(ctx), "solver = eigen");
  assert_null(p);
  assert_int_equal(ng_options_set(o, "solver", "cholesky", message, sizeof message), NG_OK);
  assert_int_equal(ng_options_check(o, message, sizeof message), NG_OK);
  ng_options_destroy(&o);
  ng_context_destroy(&ctx);
}

/* ---- lines -----------------------------------------------------------------------------------*/

static void line_gives(const char *line, const char *name, const char *value) {
  ng_options *o = made(line);
  assert_option(o, name, value);
  ng_options_destroy(&o);
}

static void lines_are_read(void **state) {
  ng_options *standard = made(NULL), *empty = made(""), *blank = made(" \t\r\n ");
  assert_true(same(standard, empty) && same(standard, blank));
  ng_options_destroy(&standard);
  ng_options_destroy(&empty);
  ng_options_destroy(&blank);
  line_gives("method=eva update=sgd damping=0.01", "update", "sgd");
  line_gives("method=eva update=sgd damping=0.01", "method", "eva");
  line_gives("  damping=0.01\tkl-clip=0.5\nmethod=eva\r\n", "kl_clip", "0.5");
  line_gives("skip_layers=", "skip_layers", "");
  line_gives("skip_layers='' damping=1", "damping", "1");
  line_gives("skip_layers='a b' damping=1", "skip_layers", "a b");
  line_gives("damping=1 skip_layers=\"a b\"", "skip_layers", "a b");
  line_gives("skip_layers='say \"x\"'", "skip_layers", "say \"x\"");
  line_gives("skip_layers=\"it's\"", "skip_layers", "it's");
  line_gives("skip_layers=it's", "skip_layers", "it's"); /* only the first character is a quote */
  line_gives("skip_layers=a=b", "skip_layers", "a=b");
  line_gives("damping='0.5'", "damping", "0.5");
  line_gives("method=\"eva\"", "method", "eva");
}

/* Each with a good word before and behind it: nothing of the line is taken. */
static void all_of_a_line_or_nothing(void **state) {
  static const struct {
    const char *words, *part;
    ng_status st;
  } bad[] = {
      {"damping=0", "0 < damping", NG_ERR_ARG},
      {"dampin=1", "did you mean 'damping'?", NG_ERR_ARG},
      {"metod=eva", "did you mean 'method'?", NG_ERR_ARG},
      {"method=kiasa", "did you mean 'kaisa'?", NG_ERR_ARG},
      {"factor_dtype=f64", "not supported yet", NG_ERR_ABSENT},
      {"damping", "'damping", NG_ERR_ARG},
      {"damping", "NAME=VALUE", NG_ERR_ARG},
      {"damping = 1", "NAME=VALUE", NG_ERR_ARG},
      {"=1", "NAME=VALUE", NG_ERR_ARG},
      {"damping=1 damping=1", "damping is given twice", NG_ERR_ARG},
      {"stat-decay=0.5 stat_decay=0.5", "stat_decay is given twice", NG_ERR_ARG},
      {"method=eva method=eva", "method is given twice", NG_ERR_ARG},
      {"update=sgd", "update is given twice", NG_ERR_ARG},
      {"skip_layers='a", "skip_layers: 'a", NG_ERR_ARG},
      {"skip_layers='a", "closing '", NG_ERR_ARG},
      {"skip_layers=\"a'", "closing \"", NG_ERR_ARG},
      {"skip_layers='a'b", "behind the closing '", NG_ERR_ARG},
      {"schedule=damping*0.5@2", "option 'schedule' was removed: call ng_set_real", NG_ERR_ARG}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    for (int behind = 0; behind < 2; behind++) {
      char line[256];
      const char *good = "update=sgd radius=0.5 skip_layers=fc";
      if (strstr(bad[i].words, "skip_layers") != NULL) good = "update=sgd radius=0.5";
      (void)snprintf(line, sizeof line, "%s %s", behind ? bad[i].words : good,
                     behind ? good : bad[i].words);
      ng_options *o = made("method=eva damping=0.5"), *before = NULL;
      assert_int_equal(ng_options_copy(o, &before), NG_OK);
      message[0] = 0;
      const ng_status st = ng_options_set_line(o, line, message, sizeof message);
      if (st != bad[i].st) fail_msg("%s: %s", line, ng_status_name(st));
      assert_contains(message, bad[i].part);
      assert_null(strchr(message, '\n'));
      assert_memory_equal(o, before, sizeof *o);
      assert_int_equal(ng_options_set_line(o, line, NULL, 0), st);
      ng_options *none = before;
      assert_int_equal(ng_options_create(line, message, sizeof message, &none), st);
      assert_null(none);
      assert_contains(message, bad[i].part);
      ng_options_destroy(&o);
      ng_options_destroy(&before);
    }
  }
  /* of all options at once */
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i);
    char line[256], value[64];
    unusual(&info, value, sizeof value);
    (void)snprintf(line, sizeof line, "%s='%s' method=eva %s='%s'", info.name, value, info.name,
                   value);
    assert_int_equal(ng_options_create(line, message, sizeof message, &(ng_options *){NULL}),
                     NG_ERR_ARG);
    assert_contains(message, info.name);
    assert_contains(message, "given twice");
  }
}

/* ---- texts, copies, memory -------------------------------------------------------------------*/

/* The caller's text may go, and what is too long is refused by name, by every way in. */
static void texts_are_our_own(void **state) {
  static const char *const name[] = {"skip_layers", "per_layer"};
  enum { ROOM = 8192 };
  char *text = malloc(ROOM), *line = malloc(ROOM), *back = malloc(ROOM);
  assert_true(text != NULL && line != NULL && back != NULL);
  for (int k = 0; k < 2; k++) {
    for (int length = 4094; length <= 4097; length++) {
      const bool fits = length <= 4095;
      ng_options *o = made(NULL), *before = made(NULL), *by_line = NULL;
      memset(text, 'a', ROOM);
      if (k == 1) memcpy(text, "a: damping=1 ", 13);
      if (k == 1) memset(text + 13, ' ', ROOM - 13);
      text[length] = 0;
      (void)snprintf(line, ROOM, "damping=0.5 %s='%s'", name[k], text);
      message[0] = 0;
      assert_int_equal(ng_options_set(o, name[k], text, message, sizeof message),
                       fits ? NG_OK : NG_ERR_ARG);
      if (!fits) assert_contains(message, name[k]);
      if (!fits) assert_contains(message, "expected at most 4095");
      if (!fits) assert_true(same(o, before));
      message[0] = 0;
      assert_int_equal(ng_options_create(line, message, sizeof message, &by_line),
                       fits ? NG_OK : NG_ERR_ARG);
      if (!fits) assert_contains(message, name[k]);
      if (!fits) assert_contains(message, "expected at most 4095");
      if (fits) {
        memset(line, 'x', ROOM - 1);
        (void)snprintf(line, ROOM, "%s", text);
        memset(text, 'x', ROOM - 1);
        assert_int_equal(ng_options_get(o, name[k], back, ROOM), NG_OK);
        assert_string_equal(back, line);
        assert_int_equal(ng_options_get(by_line, name[k], back, ROOM), NG_OK);
        assert_string_equal(back, line);
      }
      ng_options_destroy(&o);
      ng_options_destroy(&by_line);
      ng_options_destroy(&before);
    }
  }
  free(text);
  free(line);
  free(back);
}

/* Neither sees what is set in the other, nor misses the other when it is gone. */
static void a_copy_is_another_object(void **state) {
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i);
    char value[64];
    ng_options *o = made("skip_layers=conv* kl_clip=0.25 method=eva"), *copy = NULL;
    ng_options *as_it_was = made("method=eva kl_clip=0.25 skip_layers=conv*");
    unusual(&info, value, sizeof value);
    assert_int_equal(ng_options_copy(o, &copy), NG_OK);
    assert_true(copy != o && same(copy, as_it_was));
    assert_int_equal(ng_options_set(o, info.name, value, message, sizeof message), NG_OK);
    assert_int_equal(ng_options_set(o, "method", "natgrad", message, sizeof message), NG_OK);
    assert_option(o, info.name, value);
    assert_true(same(copy, as_it_was));
    memset(o, 'x', sizeof *o); /* a pointer into it would show */
    ng_options_destroy(&o);
    assert_null(o);
    assert_true(same(copy, as_it_was));
    /* what was given is known to a copy, too */
    assert_int_equal(ng_options_set(copy, "method", "natgrad", message, sizeof message), NG_OK);
    assert_option(copy, "kl_clip", "0.25");
    assert_option(copy, "stat_batch", "0");
    ng_options_destroy(&copy);
    ng_options_destroy(&as_it_was);
  }
  ng_options *none = (ng_options *)message; /* overwritten, not freed */
  assert_int_equal(ng_options_copy(NULL, &none), NG_ERR_ARG);
  assert_null(none);
}

/* A preconditioner has a copy of its own; a context counts it and gives back every byte. */
static void a_preconditioner_keeps_its_own(void **state) {
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  char text[64];
  int64_t before, with, after, held = 0;
  assert_int_equal(ng_context_create(NG_VERSION, NULL, message, sizeof message, &ctx), NG_OK);
  ng_context_allocated(ctx, &before, NULL, NULL);
  ng_options *o = made("skip_layers=fc2* damping=0.5");
  ng_context_allocated(ctx, &with, NULL, NULL);
  assert_int_equal(with, before); /* options are nobody's */
  assert_int_equal(ng_precond_create_from(ctx, o, &p), NG_OK);
  memset(o, 'x', sizeof *o);
  ng_options_destroy(&o);
  assert_int_equal(ng_get(p, "skip_layers", text, sizeof text), NG_OK);
  assert_string_equal(text, "fc2*");
  assert_int_equal(ng_get(p, "damping", text, sizeof text), NG_OK);
  assert_string_equal(text, "0.5");
  assert_int_equal(ng_get(p, "method", text, sizeof text), NG_OK);
  assert_string_equal(text, "natgrad");
  assert_int_equal(ng_set(p, "method", "eva"), NG_ERR_STATE); /* the family is chosen */
  assert_contains(ng_last_error(ctx), "'method' is given to ng_precond_create");
  assert_int_equal(ng_get(p, "method", text, sizeof text), NG_OK);
  assert_string_equal(text, "natgrad");
  ng_context_allocated(ctx, &with, NULL, NULL);
  ng_report r = {.struct_size = sizeof r};
  assert_int_equal(ng_report_read(p, &r), NG_OK);
  held = r.factors + r.sums + r.results + r.direction + r.moments + r.scratch + r.objects;
  assert_int_equal(held, with - before);
  ng_precond_destroy(&p);
  ng_context_allocated(ctx, &after, NULL, NULL);
  assert_int_equal(after, before);
  ng_context_destroy(&ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(order_has_no_effect),      cmocka_unit_test(the_last_call_counts),
      cmocka_unit_test(stale_words_are_refused),  cmocka_unit_test(lines_are_read),
      cmocka_unit_test(all_of_a_line_or_nothing), cmocka_unit_test(texts_are_our_own),
      cmocka_unit_test(a_copy_is_another_object), cmocka_unit_test(a_preconditioner_keeps_its_own),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
