/* table.c: print a table of texts, aligned by blanks. Texts are never truncated. */
#include "table.h"
#include "common/cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char *get_cell_text(const table *t, int row, int column) {
  const char *text = t->cell[row * t->columns + column];
  return text != NULL ? text : "";
}

void table_add_row(table *t) {
  const size_t have = (size_t)t->rows * (size_t)t->columns;
  char **cell = cli_alloc(have + (size_t)t->columns, sizeof *cell);
  if (have > 0) memcpy(cell, t->cell, have * sizeof *cell);
  free(t->cell);
  t->cell = cell;
  t->rows++;
}

void table_put(table *t, int column, const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): as in messages.c */
  (void)vsnprintf(text, sizeof text, format, args);
  va_end(args);
  char **cell = &t->cell[(t->rows - 1) * t->columns + column];
  const size_t had = *cell != NULL ? strlen(*cell) : 0, more = strlen(text) + 1;
  char *longer = cli_alloc(had + more, 1);
  if (had > 0) memcpy(longer, *cell, had);
  memcpy(longer + had, text, more);
  free(*cell);
  *cell = longer;
}

void table_begin(table *t, const char *const *headings) {
  memset(t, 0, sizeof *t);
  while (headings[t->columns] != NULL)
    t->columns++;
  table_add_row(t);
  for (int i = 0; i < t->columns; i++)
    table_put(t, i, "%s", headings[i]);
}

void table_free(table *t) {
  for (int i = 0; i < t->rows * t->columns; i++)
    free(t->cell[i]);
  free(t->cell);
  memset(t, 0, sizeof *t);
}

/* Return the number of characters of UTF-8 text. */
static int count_letters(const char *text) {
  int n = 0;
  for (; *text != 0; text++)
    n += ((unsigned char)*text & 0xc0) != 0x80;
  return n;
}

static bool is_numeric(const table *t, int column) {
  bool some = false;
  for (int row = 1; row < t->rows; row++) {
    const char *text = get_cell_text(t, row, column);
    if (text[0] == 0) continue;
    if (strchr("0123456789-+.", text[0]) == NULL) return false;
    some = true;
  }
  return some;
}

void table_print(const table *t, FILE *f) {
  int *width = cli_alloc((size_t)t->columns, sizeof *width);
  for (int row = 0; row < t->rows; row++) {
    for (int c = 0; c < t->columns; c++) {
      const int w = count_letters(get_cell_text(t, row, c));
      if (w > width[c]) width[c] = w;
    }
  }
  for (int row = 0; row < t->rows; row++) {
    int owed = 0; /* blanks to print before the next text; none at the end of a line */
    for (int c = 0; c < t->columns; c++) {
      const char *text = get_cell_text(t, row, c);
      const int gap = width[c] - count_letters(text);
      const bool right = is_numeric(t, c);
      if (right) owed += gap;
      if (text[0] != 0) {
        (void)fprintf(f, "%*s%s", owed, "", text);
        owed = 0;
      }
      owed += (right ? 0 : gap) + 2;
    }
    (void)fputc('\n', f);
  }
  free(width);
}
