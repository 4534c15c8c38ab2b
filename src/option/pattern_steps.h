/* pattern_steps.h: what an expression becomes; pattern.c makes it, pattern_search.c walks it. */
#ifndef NG_OPTION_PATTERN_STEPS_H
#define NG_OPTION_PATTERN_STEPS_H

#include "option/pattern.h"

typedef enum step_kind {
  STEP_LETTER, /* one byte: `arg`                                   */
  STEP_ANY,    /* any one byte                                      */
  STEP_SET,    /* one byte of set `arg`                             */
  STEP_FORK,   /* goes on behind it and at `to`                     */
  STEP_JUMP,   /* goes on at `to`                                   */
  STEP_START,  /* nothing, at the start of the text; as all below   */
  STEP_END,    /* ... at its end                                    */
  STEP_EDGE,   /* ... where a word begins or ends                   */
  STEP_INSIDE, /* ... where none does                               */
  STEP_BEGIN,  /* ... where a word begins                           */
  STEP_STOP,   /* ... where a word ends                             */
  STEP_FOUND
} step_kind;

/* Jumps are relative: a piece that is copied or moved stays right. */
typedef struct pattern_step {
  uint16_t kind, arg;
  int32_t to;
} pattern_step;

typedef struct pattern_set {
  uint32_t bits[256 / 32];
} pattern_set;

/* One block with everything behind it. */
struct ng_pattern {
  size_t bytes;
  int32_t steps, room, sets;
  pattern_step *step;
  pattern_set *set;
  int64_t *seen, stamp; /* [step]: the position at which it was last reached */
  int32_t *now, *next, *open;
};

static inline bool pattern_has(const pattern_set *s, int c) {
  return (s->bits[c / 32] >> (c % 32) & 1U) != 0;
}

static inline bool pattern_is_word(int c) { /* -1: before the start, behind the end */
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* pattern_set.c: the list in brackets.  *at stands behind the opening one and moves behind the closing one; false:
 * there is none, or what stands between is no list. */
bool pattern_set_read(const char **at, pattern_set *out);
/* \w \W \s \S; false: no such class. */
bool pattern_set_class(char letter, pattern_set *out);

#endif
