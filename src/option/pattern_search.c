/* pattern_search.c: does an expression match somewhere in a text.
 *
 * In: steps and a text.  Out: yes or no.  All ways through the steps are walked at once, a byte at a
 * time, and none is walked twice at the same position: the time is the product of both lengths at
 * most, whatever the expression. */
#include "option/pattern_steps.h"

/* The bytes beside a position; -1: there is none. */
typedef struct place {
  int before, behind;
} place;

static bool holds(step_kind kind, place at) {
  const bool left = pattern_is_word(at.before), right = pattern_is_word(at.behind);
  switch (kind) {
  case STEP_START:
    return at.before < 0;
  case STEP_END:
    return at.behind < 0;
  case STEP_EDGE:
    return left != right;
  case STEP_INSIDE:
    return left == right;
  case STEP_BEGIN:
    return !left && right;
  case STEP_STOP:
    return left && !right;
  default:
    return false;
  }
}

static void reach(ng_pattern *p, int32_t step, int32_t *open) {
  if (p->seen[step] == p->stamp) return;
  p->seen[step] = p->stamp;
  p->open[(*open)++] = step;
}

/* Everything that can be reached from a step without a byte; steps that take one go into the list.
 * True: STEP_FOUND is among them. */
static bool follow(ng_pattern *p, int32_t step, place at, int32_t *list, int32_t *n) {
  int32_t open = 0;
  reach(p, step, &open);
  while (open > 0) {
    const int32_t here = p->open[--open];
    const pattern_step *s = &p->step[here];
    switch ((step_kind)s->kind) {
    case STEP_LETTER:
    case STEP_ANY:
    case STEP_SET:
      list[(*n)++] = here;
      break;
    case STEP_FORK:
      reach(p, here + s->to, &open);
      reach(p, here + 1, &open);
      break;
    case STEP_JUMP:
      reach(p, here + s->to, &open);
      break;
    case STEP_FOUND:
      return true;
    default:
      if (holds((step_kind)s->kind, at)) reach(p, here + 1, &open);
    }
  }
  return false;
}

static bool takes(const ng_pattern *p, const pattern_step *s, int c) {
  return s->kind == STEP_ANY || (s->kind == STEP_LETTER && s->arg == c) ||
         (s->kind == STEP_SET && pattern_has(&p->set[s->arg], c));
}

static int byte_at(const char *text) { return *text == 0 ? -1 : (unsigned char)*text; }

bool ng_pattern_found(ng_pattern *p, const char *text) {
  int32_t n = 0;
  place at = {-1, byte_at(text)};
  p->stamp++;
  for (;; text++) {
    if (follow(p, 0, at, p->now, &n)) return true; /* a match may begin here */
    if (at.behind < 0) return false;
    int32_t found = 0;
    const int c = at.behind;
    at = (place){c, byte_at(text + 1)};
    p->stamp++;
    for (int32_t i = 0; i < n; i++) {
      if (!takes(p, &p->step[p->now[i]], c)) continue;
      if (follow(p, p->now[i] + 1, at, p->next, &found)) return true;
    }
    int32_t *list = p->now;
    p->now = p->next;
    p->next = list;
    n = found;
  }
}
