/* text.c: texts in messages: suggest a name for a misspelt word, quote text of the caller, append to names.
 *
 * A name of n letters is suggested if at most 1 + n/4 letters must be inserted, deleted, changed or swapped
 * (base/words.h).  The search ignores case, treats '-' and '_' as equal, and does not depend on the locale. */
#include "core/core.h"
#include "words.h"

/* No name of the library has so many letters.  As a distance, WORD_MAX means that two names differ too much. */
#define WORD_MAX 40

/* Names of the library are ASCII; tolower would depend on the locale. */
static char lower_case(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

static char normal_letter(char c) { return c == '-' ? '_' : lower_case(c); }

/* Return the edit distance between `word` and the n letters of `name`, or WORD_MAX if they differ too much.  A prefix
 * of `name` with at least three letters has distance 1: it is probably an abbreviation. */
static int32_t name_distance(const char *word, const char *name, size_t n) {
  const size_t typed = strlen(word);
  size_t same = 0;
  while (same < typed && same < n && normal_letter(word[same]) == normal_letter(name[same])) {
    same++;
  }
  if (typed >= 3 && same == typed) return typed == n ? 0 : 1;
  const int32_t d = ng_word_distance(word, typed, name, n, normal_letter);
  return d <= 1 + (int32_t)(n / 4) ? d : WORD_MAX;
}

/* If several names are equally near, return the first. */
const char *ng_nearest(const char *word, const char *(*at)(int32_t i), int32_t n) {
  const char *best = NULL;
  int32_t least = WORD_MAX;
  for (int32_t i = 0; i < n; i++) {
    const int32_t d = name_distance(word, at(i), strlen(at(i)));
    if (d < least) {
      least = d;
      best = at(i);
    }
  }
  return best;
}

/* ---- "a|b|c" ---------------------------------------------------------------------------------*/

/* Return the length of the first word of `list`.  No word is empty, so 0 means that the list is empty. */
static size_t word_length(const char *list) { return strcspn(list, "|"); }

/* Return the rest of the list after its first word, which has n letters. */
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

ng_message_text ng_hint_of(const char *nearest) {
  ng_message_text h = {""};
  if (nearest != NULL) (void)snprintf(h.text, sizeof h.text, "; did you mean '%s'?", nearest);
  return h;
}

ng_message_text ng_hint_list(const char *word, const char *list) {
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

bool ng_same_word(const char *a, const char *b) {
  while (*a != 0 && lower_case(*a) == lower_case(*b)) {
    a++;
    b++;
  }
  return lower_case(*a) == lower_case(*b);
}

ng_message_text ng_shorten(const char *text) {
  ng_message_text t;
  (void)snprintf(t.text, sizeof t.text, "%.60s%s", text, strlen(text) > 60 ? "..." : "");
  return t;
}

void ng_name_append(char *name, size_t size, const char *more) {
  const size_t at = strlen(name), n = strlen(more);
  const size_t fits = n < size - 1 - at ? n : size - 1 - at;
  memcpy(name + at, more, fits);
  name[at + fits] = 0;
}

void ng_name_append_number(char *name, size_t size, int64_t number) {
  char digits[24];
  char *at = digits + sizeof digits - 1;
  *at = 0;
  do {
    *--at = (char)('0' + number % 10);
    number /= 10;
  } while (number > 0);
  ng_name_append(name, size, at);
}
