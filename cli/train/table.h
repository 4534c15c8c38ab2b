/* table.h: a table of texts, written aligned or as markdown. */
#ifndef TABLE_H
#define TABLE_H

#include <stdio.h>

typedef struct table {
  int columns, rows; /* rows with the headings */
  char **cell;       /* [rows, columns], each of its own, NULL for "" */
} table;

/* The headings, ended by NULL. */
void table_begin(table *t, const char *const *headings);
void table_row(table *t); /* a new row; table_put fills the last one */
__attribute__((format(printf, 3, 4))) void table_put(table *t, int column, const char *format, ...);
void table_free(table *t);

/* Columns whose texts all begin with a digit, a sign or '-' are set to the right, all others to
 * the left.  Widths count characters of UTF-8, not bytes. */
void table_text(const table *t, FILE *f);
void table_markdown(const table *t, FILE *f);

#endif
