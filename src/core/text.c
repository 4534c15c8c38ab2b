/* text.c: words in messages: suggest a name for a misspelt word, and quote text from the caller.
 *
 * In: a word and the valid names.  Out: the nearest name, if at most 1 + n/4 of its n letters are inserted, missing,
 * changed or swapped (base/words.h).
 *
 * The search for the nearest name ignores case, takes '-' as '_', and does not depend on the locale. */
#include "core/core.h"
#include "words.h"

/* Longer than every name of the library, so as a distance WORD_MAX means that two names differ too much. */
#define WORD_MAX 40

/* Return `c` in lower case, or '_' for '-'.  Names of the library are ASCII. */
static char folded(char c) {
  if (c == '-') return '_';
  return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Return the edit distance between `word` and the n letters of `name`, or WORD_MAX if the two differ too much.  If
 * `word` is a prefix of `name` with at least three letters, the distance is 1. */
static int32_t name_distance(const char *word, const char *name, size_t n) {
  const size_t typed = strlen(word);
  size_t same = 0;
  while (same < typed && same < n && folded(word[same]) == folded(name[same])) {
    same++;
  }
  if (typed >= 3 && same == typed) return typed == n ? 0 : 1;
  const int32_t d = ng_word_distance(word, typed, name, n, folded);
  return d <= 1 + (int32_t)(n / 4) ? d : WORD_MAX;
}

/* If several names are equally near, return the first. */
const char *ng_nearest(const char *word, const char *(*at)(int32_t i), int32_t n) {
  const char *best = NULL;
  int32_t least = WORD_MAX;
  for (int32_t i = 0; word != NULL && i < n; i++) {
    const int32_t d = name_distance(word, at(i), strlen(at(i)));
    if (d < least) {
      least = d;
      best = at(i);
    }
  }
  return best;
}

/* ---- "a|b|c" ---------------------------------------------------------------------------------*/

/* Return the length of the first word of `list`; 0: the end of the list, because no word is empty. */
static size_t word_length(const char *list) { return strcspn(list, "|"); }

/* Return the list behind its first word, which has n letters. */
static const char *next_word(const char *list, size_t n) {
  return list[n] == '|' ? list + n + 1 : list + n;
}

bool ng_in_list(const char *list, const char *word) {
  const size_t typed = strlen(word);
  for (size_t n; (n = word_length(list)) > 0; list = next_word(list, n)) {
    if (n == typed && memcmp(list, word, n) == 0) return true;
  }
  return false;
}

ng_hint ng_hint_of(const char *nearest) {
  ng_hint h = {""};
  if (nearest != NULL) (void)snprintf(h.text, sizeof h.text, "; did you mean '%s'?", nearest);
  return h;
}

/* The hint is returned by value, so that a message may contain several hints. */
ng_hint ng_hint_list(const char *word, const char *list) {
  char best[WORD_MAX + 1] = "";
  int32_t least = WORD_MAX;
  for (size_t n; (n = word_length(list)) > 0; list = next_word(list, n)) {
    const int32_t d = n <= WORD_MAX ? name_distance(word, list, n) : WORD_MAX;
    if (d < least) {
      least = d;
      memcpy(best, list, n);
      best[n] = 0;
    }
  }
  return ng_hint_of(best[0] == 0 ? NULL : best);
}

/* ---- words -----------------------------------------------------------------------------------*/

static char lower_case(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

bool ng_same_word(const char *a, const char *b) {
  while (*a != 0 && lower_case(*a) == lower_case(*b)) {
    a++;
    b++;
  }
  return lower_case(*a) == lower_case(*b);
}

ng_quoted ng_quote(const char *text) {
  ng_quoted q;
  size_t n = 0;
  while (n < sizeof q.text - 4 && text[n] != 0) {
    q.text[n] = text[n];
    n++;
  }
  const bool cut = text[n] != 0;
  for (int dots = 0; cut && dots < 3; dots++) {
    q.text[n++] = '.';
  }
  q.text[n] = 0;
  return q;
}

void ng_name_append(char *name, size_t size, const char *more) {
  const size_t at = strlen(name), n = strlen(more);
  const size_t fits = n < size - 1 - at ? n : size - 1 - at;
  memcpy(name + at, more, fits);
  name[at + fits] = 0;
}

void ng_name_append_number(char *name, size_t size, int64_t count) {
  char digits[24];
  char *at = digits + sizeof digits - 1;
  *at = 0;
  do {
    *--at = (char)('0' + count % 10);
    count /= 10;
  } while (count > 0);
  ng_name_append(name, size, at);
}
