/* pattern.c: from a regular expression to steps.
 *
 *   expression  = branch { "|" branch }                     branch = { piece }, also none
 *   piece       = anchor | atom { "*" | "+" | "?" | "{m}" | "{m,}" | "{,n}" | "{m,n}" }
 *   atom        = letter | "." | "[...]" | "\" letter | "(" expression ")"
 *   anchor      = "^" | "$" | "\b" | "\B" | "\<" | "\>" | "\`" | "\'"
 *
 * In comes text, out go steps as in Thompson (1968).  Every byte adds at most two, but for counted
 * repetitions, which copy their atom; hence the room is known before the first is written.  The only
 * recursion is that of parentheses, and is counted. */
#include "option/pattern_steps.h"

typedef struct reader {
  ng_pattern *p;
  const char *at, *why;
  int depth;
} reader;

static bool limit(reader *r, const char *why) {
  r->why = why;
  return false;
}

_Static_assert(NG_PATTERN_STEPS == 8192 && NG_PATTERN_DEPTH == 50 && NG_TEXT_ROOM == 4096,
               "messages have these numbers");

/* ---- steps -----------------------------------------------------------------------------------*/

static bool has_room(reader *r, int64_t more) {
  return r->p->steps + more < r->p->room || /* one is kept for STEP_FOUND */
         limit(r, "takes more than 8192 steps with its repetitions written out");
}

static bool put(reader *r, step_kind kind, int arg, int32_t to) {
  if (!has_room(r, 1)) return false;
  r->p->step[r->p->steps++] = (pattern_step){(uint16_t)kind, (uint16_t)arg, to};
  return true;
}

/* A fork in front of what begins at `from`, which stays right where it then is. */
static bool put_fork(reader *r, int32_t from, int32_t to) {
  ng_pattern *p = r->p;
  if (!has_room(r, 1)) return false;
  memmove(&p->step[from + 1], &p->step[from], (size_t)(p->steps - from) * sizeof *p->step);
  p->step[from] = (pattern_step){STEP_FORK, 0, to};
  p->steps++;
  return true;
}

/* Room was asked for. */
static void put_copy(ng_pattern *p, int32_t from, int32_t length) {
  memcpy(&p->step[p->steps], &p->step[from], (size_t)length * sizeof *p->step);
  p->steps += length;
}

/* What begins at `from`, `least` to `most` times; most < 0: without end. */
static bool repeat(reader *r, int32_t from, int32_t least, int32_t most) {
  ng_pattern *p = r->p;
  const int32_t length = p->steps - from;
  if (most == 0) {
    p->steps = from;
    return true;
  }
  if (most < 0 && least == 0) {
    return put_fork(r, from, length + 2) && put(r, STEP_JUMP, 0, -(length + 1));
  }
  const int32_t times = most < 0 ? least : most, forks = most < 0 ? 1 : most - least;
  if (!has_room(r, (int64_t)length * (times - 1) + forks)) return false;
  for (int32_t i = 1; i < least; i++) {
    put_copy(p, from, length);
  }
  if (most < 0) return put(r, STEP_FORK, 0, -length);
  int32_t optional = p->steps, body = from;
  if (least == 0) { /* the atom itself is the first of them */
    (void)put_fork(r, from, 0);
    optional = from;
    body = from + 1;
  }
  for (int32_t i = least > 0 ? least : 1; i < most; i++) {
    (void)put(r, STEP_FORK, 0, 0);
    put_copy(p, body, length);
  }
  for (int32_t at = optional; at < p->steps; at += length + 1) {
    p->step[at].to = p->steps - at;
  }
  return true;
}

/* ---- reading ---------------------------------------------------------------------------------*/

/* -1: no digit stands there.  What is too large stays too large. */
static int32_t number(const char **at) {
  int32_t n = -1;
  for (; **at >= '0' && **at <= '9'; ++*at) {
    n = (n < 0 ? 0 : n) * 10 + (**at - '0');
    if (n > NG_PATTERN_STEPS) n = NG_PATTERN_STEPS + 1;
  }
  return n;
}

static bool braces(reader *r, int32_t *least, int32_t *most) {
  *least = number(&r->at);
  *most = *least;
  if (*r->at == ',') {
    r->at++;
    if (*least < 0) *least = 0;
    *most = number(&r->at);
  } else if (*least < 0) {
    return false;
  }
  if (*r->at != '}' || (*most >= 0 && *most < *least)) return false;
  r->at++;
  return (*least <= NG_PATTERN_STEPS && *most <= NG_PATTERN_STEPS) ||
         has_room(r, (int64_t)NG_PATTERN_STEPS + 1);
}

static bool repetitions(reader *r, int32_t from) {
  for (;;) {
    int32_t least = 0, most = -1;
    switch (*r->at) {
    case '*':
      break;
    case '+':
      least = 1;
      break;
    case '?':
      most = 1;
      break;
    case '{':
      r->at++;
      if (!braces(r, &least, &most)) return false;
      r->at--; /* on the closing one */
      break;
    default:
      return true;
    }
    r->at++;
    if (!repeat(r, from, least, most)) return false;
  }
}

/* Nothing can be repeated behind an anchor: a repetition there has nothing before it. */
static bool anchor(reader *r, bool *is) {
  static const struct {
    const char *text;
    step_kind kind;
  } all[] = {{"^", STEP_START},   {"$", STEP_END},    {"\\b", STEP_EDGE},  {"\\B", STEP_INSIDE},
             {"\\<", STEP_BEGIN}, {"\\>", STEP_STOP}, {"\\`", STEP_START}, {"\\'", STEP_END}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    const size_t n = strlen(all[i].text);
    if (strncmp(r->at, all[i].text, n) != 0) continue;
    *is = true;
    r->at += n;
    return put(r, all[i].kind, 0, 0);
  }
  return true;
}

static bool put_set(reader *r) { return put(r, STEP_SET, r->p->sets++, 0); }

/* *at stands behind the backslash. */
static bool escaped(reader *r) {
  const char c = *r->at;
  if (c == 0) return false;
  if (c >= '1' && c <= '9') return limit(r, "has a back reference, which is not supported");
  r->at++;
  if (pattern_set_class(c, &r->p->set[r->p->sets])) return put_set(r);
  return put(r, STEP_LETTER, (unsigned char)c, 0);
}

static bool expression(reader *r);

static bool group(reader *r) {
  if (r->depth == NG_PATTERN_DEPTH) return limit(r, "has more than 50 parentheses in each other");
  r->depth++;
  if (!expression(r) || *r->at != ')') return false;
  r->at++;
  r->depth--;
  return true;
}

static bool atom(reader *r) {
  const char c = *r->at++;
  switch (c) {
  case '(':
    return group(r);
  case '[':
    return pattern_set_read(&r->at, &r->p->set[r->p->sets]) && put_set(r);
  case '\\':
    return escaped(r);
  case '.':
    return put(r, STEP_ANY, 0, 0);
  case '*':
  case '+':
  case '?':
  case '{':
    return false; /* of nothing */
  default:
    return put(r, STEP_LETTER, (unsigned char)c, 0);
  }
}

static bool branch(reader *r) {
  while (*r->at != 0 && *r->at != '|' && !(*r->at == ')' && r->depth > 0)) {
    const int32_t from = r->p->steps;
    bool anchored = false;
    if (!anchor(r, &anchored)) return false;
    if (!anchored && !(atom(r) && repetitions(r, from))) return false;
  }
  return true;
}

/* fork A jump fork B jump C: the jumps, whose end is known last, hang together by `to` until then. */
static bool expression(reader *r) {
  ng_pattern *p = r->p;
  int32_t from = p->steps, jump = -1;
  if (!branch(r)) return false;
  while (*r->at == '|') {
    r->at++;
    if (!put_fork(r, from, p->steps - from + 2) || !put(r, STEP_JUMP, 0, jump)) return false;
    jump = p->steps - 1;
    from = p->steps;
    if (!branch(r)) return false;
  }
  while (jump >= 0) {
    const int32_t before = p->step[jump].to;
    p->step[jump].to = p->steps - jump;
    jump = before;
  }
  return true;
}

/* ---- the block -------------------------------------------------------------------------------*/

static int32_t count(const char *text, const char *letters) {
  int32_t n = 0;
  for (; *text != 0; text++) {
    n += strchr(letters, *text) != NULL;
  }
  return n;
}

static ng_pattern *make_room(const char *text, size_t length) {
  const size_t plain = 2 * length + 1, sets = (size_t)count(text, "[\\");
  const size_t room = count(text, "{") > 0 || plain > NG_PATTERN_STEPS ? NG_PATTERN_STEPS : plain;
  const size_t each =
      sizeof(int64_t) + sizeof(pattern_step) + 3 * sizeof(int32_t); /* the widest first */
  const size_t bytes = sizeof(ng_pattern) + room * each + sets * sizeof(pattern_set);
  ng_pattern *p = ng_plain_alloc(NULL, bytes);
  if (p == NULL) return NULL;
  memset(p, 0, sizeof *p);
  p->bytes = bytes;
  p->room = (int32_t)room;
  p->seen = (int64_t *)(p + 1);
  p->step = (pattern_step *)(p->seen + room);
  p->now = (int32_t *)(p->step + room);
  p->next = p->now + room;
  p->open = p->next + room;
  p->set = (pattern_set *)(p->open + room);
  memset(p->seen, 0, room * sizeof *p->seen);
  return p;
}

ng_status ng_pattern_make(const char *text, ng_pattern **out, const char **why) {
  const size_t length = strlen(text);
  reader r = {.at = text, .why = ""};
  *out = NULL;
  *why = "";
  if (length >= NG_TEXT_ROOM) {
    *why = "has more than 4095 bytes";
    return NG_ERR_ARG;
  }
  r.p = make_room(text, length);
  if (r.p == NULL) return NG_ERR_NOMEM;
  if (!expression(&r)) {
    *why = r.why;
    ng_pattern_free(&r.p);
    return NG_ERR_ARG;
  }
  r.p->step[r.p->steps++] = (pattern_step){STEP_FOUND, 0, 0};
  *out = r.p;
  return NG_OK;
}

void ng_pattern_free(ng_pattern **p) {
  if (*p != NULL) ng_plain_free(NULL, *p, (*p)->bytes);
  *p = NULL;
}
