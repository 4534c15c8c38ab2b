/* t_pattern.c: regular expressions of options.  What they mean is held against the C library's own, on
 * small ones made at random; what they may cost, by thousands that are made to cost, in a child with
 * little memory, stack and time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fixture.h"
#include "option/pattern.h"
#include "sanitized.h"

#include <inttypes.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 4095 }; /* bytes of a free text */

/* ---- what they mean --------------------------------------------------------------------------*/

static bool known(const char *expression) {
  ng_pattern *p = NULL;
  const char *why = "x";
  const ng_status st = ng_pattern_make(expression, &p, &why);
  assert_true(st == NG_OK || st == NG_ERR_ARG);
  assert_true((st == NG_OK) == (p != NULL));
  ng_pattern_free(&p);
  return st == NG_OK;
}

/* 1: found, 0: not, -1: no expression. */
static int ours(const char *expression, const char *text) {
  ng_pattern *p = NULL;
  const char *why = "";
  if (ng_pattern_make(expression, &p, &why) != NG_OK) return -1;
  const bool once = ng_pattern_found(p, text);
  assert_int_equal(ng_pattern_found(p, text), once); /* nothing is left of the first search */
  ng_pattern_free(&p);
  return once;
}

static int theirs(const char *expression, const char *text) {
  regex_t re;
  if (regcomp(&re, expression, REG_EXTENDED | REG_NOSUB) != 0) return -1;
  const bool found = regexec(&re, text, 0, NULL, 0) == 0;
  regfree(&re);
  return found;
}

static uint64_t draw(uint64_t *s, uint64_t n) {
  *s = *s * 6364136223846793005U + 1442695040888963407U;
  return (*s >> 33) % n;
}

/* Pieces rather than letters: letters alone are seldom an expression. */
static void make(uint64_t *s, const char *const *piece, int pieces, char *out, size_t size) {
  size_t n = 0;
  for (int k = 1 + (int)draw(s, 9); k > 0; k--) {
    const char *p = piece[draw(s, (uint64_t)pieces)];
    if (n + strlen(p) + 1 > size) break;
    memcpy(out + n, p, strlen(p));
    n += strlen(p);
  }
  out[n] = 0;
}

static void as_the_c_library(void **state) {
  (void)state;
  static const char *const piece[] = {"a",
                                      "b",
                                      "c",
                                      ".",
                                      "*",
                                      "+",
                                      "?",
                                      "|",
                                      "(",
                                      ")",
                                      "(",
                                      ")",
                                      "^",
                                      "$",
                                      "[ab]",
                                      "[^a]",
                                      "{2}",
                                      "{1,2}",
                                      "{,2}",
                                      "{1,}",
                                      "{0}",
                                      "{",
                                      "}",
                                      ",",
                                      "[",
                                      "]",
                                      "-",
                                      "[a-b]",
                                      "[b-a]",
                                      "[]a]",
                                      "[^]a]",
                                      "[a-]",
                                      "[-a]",
                                      "[a-b-c]",
                                      "\\.",
                                      "\\(",
                                      "\\",
                                      "_",
                                      "\\w",
                                      "\\W",
                                      "\\s",
                                      "\\S",
                                      "\\`",
                                      "\\'",
                                      "[[:alpha:]]",
                                      "[[:digit:]_]",
                                      "[[:x:]]",
                                      "[[.a.]-c]",
                                      "[[=a=]]",
                                      "[[:alpha:]-z]",
                                      "[a-[:alpha:]]",
                                      "[[.ab.]]",
                                      "[+--]",
                                      "1",
                                      "2",
                                      "{2,1}",
                                      "{1,2,3}",
                                      "()",
                                      "(a|b)",
                                      "(a|)",
                                      "(|a)",
                                      "[\\]",
                                      "[$^.]",
                                      " ",
                                      "\\a"};
  static const char *const word[] = {"a", "b", "c",  "ab", "_", " ", "-", ".",
                                     "1", "z", "\\", "(",  ")", "^", "]"};
  const int pieces = sizeof piece / sizeof piece[0], words = sizeof word / sizeof word[0];
  const char *mult = getenv("NG_TEST_MULT"), *seed = getenv("NG_TEST_SEED");
  uint64_t s = seed != NULL ? strtoull(seed, NULL, 10) : 1;
  const int64_t cases = 40000 * (mult != NULL ? strtoll(mult, NULL, 10) : 1);
  int64_t answers[3] = {0, 0, 0};
  for (int64_t i = 0; i < cases; i++) {
    char expression[128], text[64];
    make(&s, piece, pieces, expression, sizeof expression);
    make(&s, word, words, text, sizeof text);
    if (strstr(expression, "\\1") != NULL || strstr(expression, "\\2") != NULL) continue;
    const int expected = theirs(expression, text), got = ours(expression, text);
    answers[expected + 1]++;
    if (got == expected) continue;
    print_error("'%s' in '%s': %d, the C library says %d\n", expression, text, got, expected);
    fail();
  }
  for (int k = 0; k < 3; k++) { /* none of the three answers is rare */
    assert_true(answers[k] * 20 > cases);
  }
}

/* ends of words, where C libraries differ in what they get right */
static void words(void **state) {
  (void)state;
  static const struct {
    const char *expression, *text;
    int found;
  } all[] = {{"\\bfc\\b", "a fc b", 1},
             {"\\bfc\\b", "afc", 0},
             {"\\<fc", "x.fc1", 1},
             {"\\<fc", "xfc1", 0},
             {"fc\\>", "fc.1", 1},
             {"fc\\>", "fc1", 0},
             {"f\\Bc", "fc", 1},
             {"fc\\B", "fc", 0},
             {"\\B", "", 1},
             {"\\b", "", 0},
             {"a\\b.", "a", 0},
             {"(\\bx|y\\b)z", "yz", 0},
             {"^\\w+$", "layer_1", 1},
             {"^\\w+$", "layer.1", 0},
             {"\xc3\xa9", "caf\xc3\xa9", 1},
             {"^caf..$", "caf\xc3\xa9", 1},
             {"[^a]", "\xff", 1},
             {"[\x80-\xff]", "\xc3", 1}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if (ours(all[i].expression, all[i].text) == all[i].found) continue;
    print_error("'%s' in '%s' is not %d\n", all[i].expression, all[i].text, all[i].found);
    fail();
  }
}

/* ---- limits ----------------------------------------------------------------------------------*/

static void refused(const char *expression, const char *expected) {
  ng_pattern *p = NULL;
  const char *why = NULL;
  assert_int_equal(ng_pattern_make(expression, &p, &why), NG_ERR_ARG);
  assert_null(p);
  assert_string_equal(why, expected);
}

/* n times text, between two others. */
static char *many(const char *before, const char *text, int n, const char *behind) {
  const size_t a = strlen(before), b = strlen(text), c = strlen(behind);
  char *out = malloc(a + (size_t)n * b + c + 1), *at = out + a;
  assert_non_null(out);
  memcpy(out, before, a);
  for (int i = 0; i < n; i++, at += b)
    memcpy(at, text, b);
  memcpy(at, behind, c + 1);
  return out;
}

static void at_the_limits(void **state) {
  (void)state;
  static const char *const steps = "takes more than 8192 steps with its repetitions written out";
  static const char *const deep = "has more than 50 parentheses in each other";
  assert_true(known("a{8191}")); /* and one for the end */
  refused("a{8192}", steps);
  refused("a{99999999999999999999}", steps);
  refused("(){8193}", steps);
  assert_true(known("(a{90}){90}"));
  refused("(a{91}){91}", steps);
  refused("((((a{1,99}){1,99}){1,99}){1,99}){1,99}", steps);
  refused("(a{0,8191}){0,8191}", steps);
  refused("(a)\\1", "has a back reference, which is not supported");
  char *open = many("", "(", 50, "a"), *whole = many(open, ")", 50, ""),
       *more = many("(", whole, 1, ")");
  assert_true(known(whole));
  refused(more, deep);
  free(open);
  free(whole);
  free(more);
  /* whatever has no counted repetition fits, up to the room of a text */
  static const char *const unit[] = {"a",  "|",   "*",   "a*",  "a|", "a?",
                                     "()", "(|)", "[a]", "\\w", "^",  "."};
  for (size_t i = 0; i < sizeof unit / sizeof unit[0]; i++) {
    char *text = many("a", unit[i], (MOST - 1) / (int)strlen(unit[i]), "");
    assert_true(known(text));
    free(text);
  }
  char *longer = many("", "a", MOST + 1, "");
  refused(longer, "has more than 4095 bytes");
  free(longer);
}

/* ---- what they cost --------------------------------------------------------------------------*/

/* In a child: an expression through every door of the library; 0, or what went wrong. */
static int through(ng_context *ctx, const char *expression, int64_t *accepted) {
  char message[256] = "";
  char name[256];
  const char *by = NULL;
  ng_options *o = NULL;
  ng_precond *p = NULL;
  int32_t fc;
  memset(name, 'a', 255);
  name[255] = 0;
  ng_layer l;
  ng_layer_init(&l, NG_LINEAR, sizeof l);
  l.name = name;
  l.in = 3;
  l.out = 2;
  if (ng_options_create(NULL, message, sizeof message, &o) != NG_OK) return 10;
  ng_status st = ng_options_set(o, "skip_layers", expression, message, sizeof message);
  if (st == NG_OK) st = ng_options_skip(o, &l, &by, message, sizeof message);
  if (st != NG_OK && (st != NG_ERR_ARG || strncmp(message, "skip_layers: ", 13) != 0 ||
                      strpbrk(message, "\n\t") != NULL)) {
    return 11;
  }
  const ng_status made = ng_precond_create_from(ctx, o, &p);
  if (made != st) return 12;
  if (st == NG_OK && (ng_add_layer(p, &l, &fc) != NG_OK || ng_ready(p) != NG_OK)) return 13;
  *accepted += st == NG_OK;
  ng_precond_destroy(&p);
  ng_options_destroy(&o);
  return 0;
}

/* Nested, repeated, alternating, cut off: expressions that some library or other has died of. */
static void hostile(uint64_t *s, char *out) {
  static const char *const seed[] = {"(",
                                     "((((",
                                     "(a*)*",
                                     "(a+)+",
                                     "(a|a)*",
                                     "(a|aa)+",
                                     "(.*)*",
                                     "{9}",
                                     "{255}",
                                     "{32767}",
                                     "{1,255}",
                                     "{0,8191}",
                                     "a{1,99}",
                                     "[[:alpha:]]{50}",
                                     "(a?){30}",
                                     "a?",
                                     "a|",
                                     "|",
                                     "*",
                                     ")",
                                     ".*",
                                     "[^b]*",
                                     "(a|b)*a(a|b){12}",
                                     "\\1",
                                     "(((a{9}){9}){9}){9}",
                                     "[a-z",
                                     "[[.",
                                     "\\",
                                     "x*x*",
                                     "(^|a)*",
                                     "($|a)+b"};
  const int seeds = sizeof seed / sizeof seed[0];
  const size_t size = draw(s, 8) == 0 ? MOST : 8 + draw(s, 300);
  const int shape = (int)draw(s, 4);
  const char *one = seed[draw(s, (uint64_t)seeds)], *two = seed[draw(s, (uint64_t)seeds)];
  size_t n = 0;
  for (int i = 0; n < size; i++) {
    const char *p = shape == 0   ? one
                    : shape == 1 ? (i % 2 == 0 ? one : two)
                                 : seed[draw(s, (uint64_t)seeds)];
    if (n + strlen(p) > size) break;
    memcpy(out + n, p, strlen(p));
    n += strlen(p);
  }
  if (shape == 3) { /* what was opened is closed, and repeated */
    int open = 0;
    for (size_t i = 0; i < n; i++)
      open += (out[i] == '(') - (out[i] == ')');
    static const char *const close[] = {")", ")*", "){9}", ")+b", "){1,40}"};
    const char *c = close[draw(s, 5)];
    for (; open > 0 && n + strlen(c) <= MOST; open--) {
      memcpy(out + n, c, strlen(c));
      n += strlen(c);
    }
  }
  out[n] = 0;
}

static struct rlimit most(rlim_t n) { return (struct rlimit){n, n}; }
static void limited(int rc) {
  if (rc != 0) _exit(20);
}

/* The stack is that of the caller's thread, which may be small; memory is what the child has and 64 MB. */
static int in_child(int64_t n, uint64_t seed) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    int64_t pages = 0, accepted = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL || fscanf(f, "%" SCNd64, &pages) != 1) _exit(21);
    (void)fclose(f);
    if (!SANITIZED) {
      const struct rlimit r = most((rlim_t)(pages * sysconf(_SC_PAGESIZE)) + (64U << 20)),
                          stack = most(256U << 10);
      limited(setrlimit(RLIMIT_AS, &r));
      limited(setrlimit(RLIMIT_STACK, &stack));
    }
    const struct rlimit seconds = most(SANITIZED ? 300 : 60);
    limited(setrlimit(RLIMIT_CPU, &seconds));
    static char expression[MOST + 1];
    ng_context_config config;
    ng_context *ctx = NULL;
    ng_context_config_init(&config, sizeof config);
    config.threads = 1;
    config.linalg = "ref";
    if (ng_context_create(NG_VERSION, &config, NULL, 0, &ctx) != NG_OK) _exit(22);
    for (int64_t i = 0; i < n; i++) {
      hostile(&seed, expression);
      const int rc = through(ctx, expression, &accepted);
      if (rc != 0) {
        fprintf(stderr, "%d: '%s'\n", rc, expression);
        _exit(rc);
      }
    }
    ng_context_destroy(&ctx);
    _exit(accepted * 10 < n ? 23 : accepted * 10 > 9 * n ? 24 : 0); /* both answers are common */
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status)) print_error("the child died of signal %d\n", WTERMSIG(status));
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void thousands_of_hostile_ones(void **state) {
  (void)state;
  const char *mult = getenv("NG_TEST_MULT"), *seed = getenv("NG_TEST_SEED");
  const int64_t n = 2000 * (mult != NULL ? strtoll(mult, NULL, 10) : 1);
  assert_int_equal(in_child(n, seed != NULL ? strtoull(seed, NULL, 10) : 1), 0);
  print_message("expressions: hostile = %" PRId64 " in a child with 64 MB and 256 KB of stack,\n",
                n);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_c_library), cmocka_unit_test(words),
                                     cmocka_unit_test(at_the_limits),
                                     cmocka_unit_test(thousands_of_hostile_ones)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
