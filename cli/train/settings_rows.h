/* settings_rows.h: shared by settings.c, settings_check.c and settings_json.c. */
#ifndef SETTINGS_ROWS_H
#define SETTINGS_ROWS_H

#include "settings.h"
#include "settings_table.h"

typedef enum settings_kind {
  SETTINGS_TEXT,
  SETTINGS_WORD,
  SETTINGS_REAL,
  SETTINGS_OWN,
  SETTINGS_INT,
  SETTINGS_BOOL
} settings_kind;

typedef struct settings_row {
  settings_kind kind;
  const char *name, *standard;
  double lower, upper;
  size_t offset; /* offset in `settings` */
  bool shapes;
} settings_row;

extern const settings_row settings_rows[];
extern const int settings_rows_count;

const settings_row *settings_find(const char *name); /* or NULL */
/* The first setting that was changed but does not apply to the method; NULL: none. */
const settings_row *settings_useless(const settings *s);
/* settings_set without output: the reason, without the name, goes to `message`. */
int settings_put(settings *s, const char *name, const char *value, char *message, size_t size);
/* 15 digits if they give the same number, else 17. */
void settings_write_real(double v, char *text, size_t size);

#endif
