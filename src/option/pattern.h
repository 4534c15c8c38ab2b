/* pattern.h: POSIX extended regular expressions that cannot cost more than is said here.
 *
 * In: an expression, which may be a stranger's.  Out: does it match somewhere in a text.  The C
 * library's own regcomp and regexec promise no bound: nested parentheses overflow its stack, counted
 * repetitions in each other take gigabytes, back references take exponential time.  Here an
 * expression of n bytes becomes at most 2 n + 1 steps, or NG_PATTERN_STEPS with counted repetitions
 * written out; a text of m bytes takes at most m + 1 visits of each, on lists that were taken before.
 *
 * Bytes are compared as in the C locale, whatever the locale of the program: ranks must agree.  As
 * in the GNU C library, \w \W \s \S are classes, \b \B \< \> ends of words, \` and \' ends of the
 * text, and a closing parenthesis without its opening one is a letter. */
#ifndef NG_OPTION_PATTERN_H
#define NG_OPTION_PATTERN_H

#include "option/option.h"

enum { NG_PATTERN_STEPS = 8192, NG_PATTERN_DEPTH = 50 };

/* NG_ERR_NOMEM; NG_ERR_ARG, and *why says which limit ("" if it is no such expression).  The text may
 * go afterwards. */
ng_status ng_pattern_make(const char *text, ng_pattern **out, const char **why);
void ng_pattern_free(ng_pattern **p);

/* Anywhere in the text, unless the expression says ^ or $.  One search at a time: it uses the
 * pattern's own lists. */
bool ng_pattern_found(ng_pattern *p, const char *text);
/* skip.c: in the name of a layer, or its kind as it is spelt here or in PyTorch. */
bool ng_pattern_finds(ng_pattern *p, const ng_layer *l);

#endif
