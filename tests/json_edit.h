/* json_edit.h: JSON texts with one value changed, for tests of damaged files. */
#ifndef JSON_EDIT_H
#define JSON_EDIT_H

#include "json.h"

typedef struct json_edit {
  const ngio_value *at; /* the value that is replaced */
  const char *with;     /* JSON text that replaces the value; NULL: remove the value */
  const char *key;      /* new key of the value, or NULL */
  const char *add;      /* JSON text of a further member or element inside `at`, or NULL */
  const char *add_key;  /* key of the member that `add` adds */
  int reverse;          /* write the members of `at` from the last to the first */
} json_edit;

/* Append `v` as compact JSON; `edit` may be NULL. */
void json_write(ngio_out *o, const char *key, const ngio_value *v, const json_edit *edit);
/* `text` with the value at `path` replaced, or removed (with = NULL); a member that is missing is added.
 * `path` has keys and positions, separated by '|'.  Abort if there is no such value.  For free(). */
char *json_edit_copy(const char *text, const char *path, const char *with);
/* Edit *text: free the old text and store the new one. */
void json_edit_text(char **text, const char *path, const char *with);
/* The value at `path`, or NULL. */
const ngio_value *json_find(const ngio_value *root, const char *path);
/* Parse or abort. */
ngio_json *json_must_parse(const char *text, size_t n);

#endif
