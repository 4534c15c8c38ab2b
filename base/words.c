/* words.c: the distance of two words, for messages that suggest a name. The caller decides up to
 * which distance a name is suggested. */
#include "words.h"

#include <stdbool.h>

static int32_t smaller_of(int32_t x, int32_t y) { return x < y ? x : y; }

/* The rows of the table are on the stack because names are short. */
int32_t ng_word_distance(const char *a, size_t na, const char *b, size_t nb, char (*letter)(char)) {
  int32_t row[3][NG_WORD_MOST + 1];
  if (na > NG_WORD_MOST || nb > NG_WORD_MOST) return INT32_MAX;
  for (size_t j = 0; j <= nb; j++) {
    row[0][j] = (int32_t)j;
  }
  for (size_t i = 1; i <= na; i++) {
    int32_t *now = row[i % 3];
    const int32_t *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
    now[0] = (int32_t)i;
    for (size_t j = 1; j <= nb; j++) {
      const bool same = letter(a[i - 1]) == letter(b[j - 1]);
      int32_t d = smaller_of(last[j - 1] + (same ? 0 : 1), smaller_of(last[j], now[j - 1]) + 1);
      if (i > 1 && j > 1 && letter(a[i - 1]) == letter(b[j - 2]) &&
          letter(a[i - 2]) == letter(b[j - 1])) {
        d = smaller_of(d, before[j - 2] + 1);
      }
      now[j] = d;
    }
  }
  return row[na % 3][nb];
}
