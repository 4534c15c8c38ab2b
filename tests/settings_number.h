/* settings_number.h: the value of an option in ng_settings by its id; a choice counts as its enum, a text as 0. */
#ifndef TESTS_SETTINGS_NUMBER_H
#define TESTS_SETTINGS_NUMBER_H

#include "option/settings.h"

#define NUMBER_REAL(name) s->name
#define NUMBER_INT(name) (double)s->name
#define NUMBER_BOOL(name) (double)s->name
#define NUMBER_CHOICE(name) (double)s->name
#define NUMBER_TEXT(name) 0.0
#define NUMBER(kind, name, type)                                                                   \
  case NG_OPTION_##name:                                                                           \
    return NUMBER_##kind(name);

static inline double settings_number(const ng_settings *s, ng_option_id id) {
  switch (id) {
    NG_OPTION_LIST(NUMBER)
  case NG_OPTION_COUNT:
    break;
  }
  return 0.0;
}

#endif
