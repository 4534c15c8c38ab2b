/* settings_rows.h: what settings.c, settings_check.c and settings_json.c share. */
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
  size_t offset; /* in `settings` */
  bool shapes;
} settings_row;

extern const settings_row settings_rows[];
extern const int settings_rows_count;

const settings_row *settings_find(const char *name); /* or NULL */
/* What there is instead of a key of chainerkfac's scripts that is none here; NULL: not theirs. */
const char *settings_published(const char *name);
/* The first that is not at its default although the method has no use for it; NULL: none. */
const settings_row *settings_useless(const settings *s);
/* settings_set that tells nobody: the reason, without the name, goes to `message`. */
int settings_put(settings *s, const char *name, const char *value, char *message, size_t size);
/* 15 digits read well, 17 always read back. */
void settings_write_real(double v, char *text, size_t size);

#endif
