/* t_options_object.c: options as an opaque object: the order of calls has no effect; lines, copies, own memory.
 * t_options.c tests single values. */
#include "options_help.h"

#include <stdbool.h>

static char message[512];

static ng_options *create_options(const char *line) {
  ng_options *o = NULL;
  const ng_status st = ng_options_create(line, message, sizeof message, &o);
  if (st != NG_OK) fail_msg("%s: %s", line == NULL ? "NULL" : line, message);
  return o;
}

/* Compare all options and the method by name. */
static bool are_equal_options(const ng_options *x, const ng_options *y) {
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

typedef struct option_set {
  const char *name[3], *value[3];
} option_set;

/* Set the options in the order place[]: one call each, and as one line. */
static void set_in_order(ng_options *by_calls, ng_options *by_line, const option_set *given,
                         const int place[3]) {
  char line[512] = "";
  for (int k = 0; k < 3; k++) {
    const char *name = given->name[place[k]], *value = given->value[place[k]];
    const size_t n = strlen(line);
    assert_int_equal(ng_options_set(by_calls, name, value, message, sizeof message), NG_OK);
    (void)snprintf(line + n, sizeof line - n, "%s%s='%s'", k > 0 ? " " : "", name, value);
  }
  assert_int_equal(ng_options_set_line(by_line, line, message, sizeof message), NG_OK);
}

/* For every method and pair of options, in all six orders, by calls and by a line: a given option has the given value,
 * every other option the value of the method's row.  A method chosen before leaves no trace. */
static void order_of_options_has_no_effect(void **state) {
  static const int order[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  int64_t tried = 0, differ = 0;
  for (int32_t m = 0; m < ng_method_count(); m++) {
    ng_method_info method = {.struct_size = sizeof method}, other = method;
    assert_int_equal(ng_method_at(m, &method), NG_OK);
    assert_int_equal(ng_method_at((m + 1) % ng_method_count(), &other), NG_OK);
    ng_options row = standard_options();
    assert_int_equal(ng_options_set(&row, "method", method.name, NULL, 0), NG_OK);
    for (int32_t i = 0; i < ng_option_count(); i++) {
      for (int32_t j = i + 1; j < ng_option_count(); j++) {
        const ng_option_info a = option_info(i), b = option_info(j);
        char x[64], y[64], text[NG_TEXT_SIZE];
        write_other_value(&a, x, sizeof x);
        write_other_value(&b, y, sizeof y);
        const option_set given = {{"method", a.name, b.name}, {method.name, x, y}};
        ng_options expected = row; /* the method's row with the two given values */
        assert_int_equal(ng_option_read(&ng_option_table[i], x, &expected, NULL, 0), NG_OK);
        assert_int_equal(ng_option_read(&ng_option_table[j], y, &expected, NULL, 0), NG_OK);
        for (int k = 0; k < 6; k++) {
          ng_options calls = standard_options(), line = standard_options();
          if (k % 2 == 1) fixture_set(&calls, "method", other.name);
          set_in_order(&calls, &line, &given, order[k]);
          tried++;
          /* the values may be equal although the bytes differ */
          if (memcmp(&calls, &expected, sizeof expected) == 0 &&
              memcmp(&line, &expected, sizeof expected) == 0) {
            continue;
          }
          if (!are_equal_options(&calls, &expected) || !are_equal_options(&line, &expected)) {
            fail_msg("method=%s %s=%s %s=%s, order %d", method.name, a.name, x, b.name, y, k);
          }
        }
        assert_true(ng_option_write(&ng_option_table[i], &row, text, sizeof text));
        differ += strcmp(text, x) != 0;
      }
    }
  }
  assert_true(tried >= 30000 && differ > 4000); /* many values differ from the rows */
}

/* Whichever function sets the option. */
static void last_value_of_an_option_counts(void **state) {
  ng_options *o = create_options("damping=0.5 method=eva");
  assert_int_equal(ng_options_set_real(o, "damping", 0.25, message, sizeof message), NG_OK);
  assert_option(o, "damping", "0.25");
  assert_int_equal(ng_options_set_line(o, "damping=0.75", message, sizeof message), NG_OK);
  assert_int_equal(ng_options_set(o, "method", "kaisa", message, sizeof message), NG_OK);
  assert_option(o, "damping", "0.75");
  assert_option(o, "method", "kaisa");
  assert_option(o, "solver", "eigen-prediv"); /* the value of kaisa; no value of eva remains */
  assert_option(o, "stat_batch", "0");
  /* the value equals the current one, but counts as given */
  assert_int_equal(ng_options_set(o, "solver", "eigen", message, sizeof message), NG_OK);
  assert_int_equal(ng_options_set(o, "method", "natgrad", message, sizeof message), NG_OK);
  assert_option(o, "solver", "eigen");
  assert_option(o, "damping_split", "pi");
  /* a system replaces all options */
  assert_int_equal(ng_options_set_system(o, "KAISA", "inverse", message, sizeof message), NG_OK);
  assert_option(o, "damping", "0.001");
  assert_int_equal(ng_options_set(o, "method", "natgrad", message, sizeof message), NG_OK);
  ng_options *standard = create_options(NULL);
  assert_true(are_equal_options(o, standard));
  ng_options_destroy(&standard);
  ng_options_destroy(&o);
}

/* An option that the new method does not have is refused, not dropped. */
static void options_of_another_method_are_refused(void **state) {
  ng_options *o = create_options("solver=eigen");
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

static void expect_line_sets(const char *line, const char *name, const char *value) {
  ng_options *o = create_options(line);
  assert_option(o, name, value);
  ng_options_destroy(&o);
}

static void lines_set_options(void **state) {
  ng_options *standard = create_options(NULL), *empty = create_options(""),
             *blank = create_options(" \t\r\n ");
  assert_true(are_equal_options(standard, empty) && are_equal_options(standard, blank));
  ng_options_destroy(&standard);
  ng_options_destroy(&empty);
  ng_options_destroy(&blank);
  expect_line_sets("method=eva update=sgd damping=0.01", "update", "sgd");
  expect_line_sets("method=eva update=sgd damping=0.01", "method", "eva");
  expect_line_sets("  damping=0.01\tkl-clip=0.5\nmethod=eva\r\n", "kl_clip", "0.5");
  expect_line_sets("skip_layers=", "skip_layers", "");
  expect_line_sets("skip_layers='' damping=1", "damping", "1");
  expect_line_sets("skip_layers='a b' damping=1", "skip_layers", "a b");
  expect_line_sets("damping=1 skip_layers=\"a b\"", "skip_layers", "a b");
  expect_line_sets("skip_layers='say \"x\"'", "skip_layers", "say \"x\"");
  expect_line_sets("skip_layers=\"it's\"", "skip_layers", "it's");
  expect_line_sets("skip_layers=it's", "skip_layers",
                   "it's"); /* a quote within a word is an ordinary character */
  expect_line_sets("skip_layers=a=b", "skip_layers", "a=b");
  expect_line_sets("damping='0.5'", "damping", "0.5");
  expect_line_sets("method=\"eva\"", "method", "eva");
}

/* A bad word makes the whole line fail; the good words before and after it are not applied. */
static void lines_are_applied_whole_or_not_at_all(void **state) {
  static const struct {
    const char *words, *part;
    ng_status st;
  } bad[] = {
      {"damping=0", "0 < damping", NG_ERR_ARG},
      {"dampin=1", "did you mean 'damping'?", NG_ERR_ARG},
      {"metod=eva", "did you mean 'method'?", NG_ERR_ARG},
      {"method=kiasa", "did you mean 'kaisa'?", NG_ERR_ARG},
      {"window_dtype=f64", "not supported yet", NG_ERR_ABSENT},
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
      ng_options *o = create_options("method=eva damping=0.5"), *before = NULL;
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
  /* every option given twice */
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i);
    char line[256], value[64];
    write_other_value(&info, value, sizeof value);
    (void)snprintf(line, sizeof line, "%s='%s' method=eva %s='%s'", info.name, value, info.name,
                   value);
    assert_int_equal(ng_options_create(line, message, sizeof message, &(ng_options *){NULL}),
                     NG_ERR_ARG);
    assert_contains(message, info.name);
    assert_contains(message, "given twice");
  }
}

/* ---- texts, copies, memory -------------------------------------------------------------------*/

/* The object copies texts, so the caller may free them.  Texts above 4,095 bytes are refused with the option's name. */
static void texts_are_copied(void **state) {
  static const char *const name[] = {"skip_layers", "per_layer"};
  enum { ROOM = 8192 };
  char *text = malloc(ROOM), *line = malloc(ROOM), *back = malloc(ROOM);
  assert_true(text != NULL && line != NULL && back != NULL);
  for (int k = 0; k < 2; k++) {
    for (int length = 4094; length <= 4097; length++) {
      const bool fits = length <= 4095;
      ng_options *o = create_options(NULL), *before = create_options(NULL), *by_line = NULL;
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
      if (!fits) assert_true(are_equal_options(o, before));
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

/* A change of the original does not change the copy, nor does its destruction. */
static void copies_are_independent(void **state) {
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i);
    char value[64];
    ng_options *o = create_options("skip_layers=conv* kl_clip=0.25 method=eva"), *copy = NULL;
    ng_options *as_it_was = create_options("method=eva kl_clip=0.25 skip_layers=conv*");
    write_other_value(&info, value, sizeof value);
    assert_int_equal(ng_options_copy(o, &copy), NG_OK);
    assert_true(copy != o && are_equal_options(copy, as_it_was));
    assert_int_equal(ng_options_set(o, info.name, value, message, sizeof message), NG_OK);
    assert_int_equal(ng_options_set(o, "method", "natgrad", message, sizeof message), NG_OK);
    assert_option(o, info.name, value);
    assert_true(are_equal_options(copy, as_it_was));
    memset(o, 'x', sizeof *o); /* reveals pointers into the original */
    ng_options_destroy(&o);
    assert_null(o);
    assert_true(are_equal_options(copy, as_it_was));
    /* a copy knows which options were given */
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

/* A preconditioner owns a copy.  The context counts its memory and frees every byte. */
static void preconditioners_own_their_options(void **state) {
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  char text[64];
  int64_t before, with, after, held = 0;
  assert_int_equal(ng_context_create(NG_VERSION, NULL, message, sizeof message, &ctx), NG_OK);
  ng_context_allocated(ctx, &before, NULL, NULL);
  ng_options *o = create_options("skip_layers=fc2* damping=0.5");
  ng_context_allocated(ctx, &with, NULL, NULL);
  assert_int_equal(with, before); /* options belong to no context */
  assert_int_equal(ng_precond_create_from(ctx, o, &p), NG_OK);
  memset(o, 'x', sizeof *o);
  ng_options_destroy(&o);
  assert_int_equal(ng_get(p, "skip_layers", text, sizeof text), NG_OK);
  assert_string_equal(text, "fc2*");
  assert_int_equal(ng_get(p, "damping", text, sizeof text), NG_OK);
  assert_string_equal(text, "0.5");
  assert_int_equal(ng_get(p, "method", text, sizeof text), NG_OK);
  assert_string_equal(text, "natgrad");
  assert_int_equal(ng_set(p, "method", "eva"), NG_ERR_STATE); /* the family is fixed */
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
      cmocka_unit_test(order_of_options_has_no_effect),
      cmocka_unit_test(last_value_of_an_option_counts),
      cmocka_unit_test(options_of_another_method_are_refused),
      cmocka_unit_test(lines_set_options),
      cmocka_unit_test(lines_are_applied_whole_or_not_at_all),
      cmocka_unit_test(texts_are_copied),
      cmocka_unit_test(copies_are_independent),
      cmocka_unit_test(preconditioners_own_their_options),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
