/* table.h: collect a table of texts, and print it aligned. */
#ifndef TABLE_H
#define TABLE_H

#include <stdio.h>

typedef struct table {
  int columns, rows; /* rows include the headings */
  char **cell;       /* [rows, columns]; NULL: an empty text */
} table;

/* Begin a table; `headings` ends with NULL. */
void table_begin(table *t, const char *const *headings);
void table_add_row(table *t);
/* Append to a cell of the last row. */
__attribute__((format(printf, 3, 4))) void table_put(table *t, int column, const char *format, ...);
void table_free(table *t);

/* Print the table. A column is right-aligned if all its cells are numbers (begin with a digit, a sign or a point), else
 * left-aligned. Widths count characters of UTF-8. */
void table_print(const table *t, FILE *f);

#endif
