/* table.h: a table of texts, printed aligned. */
#ifndef TABLE_H
#define TABLE_H

#include <stdio.h>

typedef struct table {
  int columns, rows; /* rows include the heading */
  char **cell;       /* [rows, columns]; NULL for "" */
} table;

/* `headings` ends with NULL. */
void table_begin(table *t, const char *const *headings);
void table_add(table *t); /* add a row */
/* Append to a cell of the last row. */
__attribute__((format(printf, 3, 4))) void table_put(table *t, int column, const char *format, ...);
void table_free(table *t);

/* Columns of numbers (all cells start with a digit, a sign or a point) are right-aligned, others left-aligned.
 * Widths count characters of UTF-8. */
void table_print(const table *t, FILE *f);

#endif
