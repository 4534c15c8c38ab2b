/* npy.c: read NumPy's .npy files.
 *
 * The layout is NEP 1 of NumPy: "\x93NUMPY", two version bytes, a little-endian header length (2 bytes in version 1, 4
 * bytes in later versions), then a Python dictionary with exactly 'descr', 'fortran_order' and 'shape', then the data.
 * The dictionary is parsed, not searched for substrings, because the file is untrusted. */
#include "npy.h"

#include <stdlib.h>
#include <string.h>

enum { HEADER_LIMIT = 1 << 20 };

typedef struct scan {
  const char *at, *end;
} scan;

static void skip_blanks(scan *s) {
  while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
    s->at++;
}

static int take_char(scan *s, char c) {
  skip_blanks(s);
  if (s->at >= s->end || *s->at != c) return 0;
  s->at++;
  return 1;
}

static int take_word(scan *s, const char *word) {
  skip_blanks(s);
  size_t n = strlen(word);
  if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0) return 0;
  s->at += n;
  return 1;
}

/* Parse a quoted text of fewer than `size` bytes without escapes; return 0 if there is none. */
static int take_text(scan *s, char *out, size_t size) {
  skip_blanks(s);
  if (s->at >= s->end || (*s->at != '\'' && *s->at != '"')) return 0;
  char quote = *s->at++;
  size_t n = 0;
  while (s->at < s->end && *s->at != quote) {
    if (*s->at == '\\' || *s->at == 0 || n + 1 >= size) return 0;
    out[n++] = *s->at++;
  }
  if (s->at >= s->end) return 0;
  s->at++;
  out[n] = 0;
  return 1;
}

static int take_number(scan *s, int64_t *out) {
  skip_blanks(s);
  int64_t v = 0;
  int digits = 0;
  for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++, digits++) {
    int d = *s->at - '0';
    if (v > (INT64_MAX - d) / 10) return 0;
    v = v * 10 + d;
  }
  *out = v;
  return digits > 0;
}

/* Parse a shape such as "(2, 3)", "(2,)" or "()" and return its number of axes; -1: not a shape; -2: too many axes. */
static int32_t take_shape(scan *s, int64_t *shape) {
  if (!take_char(s, '(')) return -1;
  int32_t n = 0;
  int comma = 1;
  while (!take_char(s, ')')) {
    int64_t v;
    if (!comma || !take_number(s, &v)) return -1;
    if (n == NGIO_MAX_DIMS) return -2;
    shape[n++] = v;
    comma = take_char(s, ',');
  }
  if (n == 1 && !comma) return -1; /* (3) is a number in Python */
  return n;
}

static int find_dtype(const char *descr, ngio_dtype *out) {
  static const struct {
    const char *descr;
    ngio_dtype t;
  } known[] = {{"<f4", NGIO_F32}, {"<f8", NGIO_F64}, {"<i4", NGIO_I32},
               {"<i8", NGIO_I64}, {"|u1", NGIO_U8},  {"<u1", NGIO_U8}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    if (strcmp(descr, known[i].descr) == 0) {
      *out = known[i].t;
      return 1;
    }
  }
  return 0;
}

static ngio_status parse_header(const char *label, const char *text, size_t n, ngio_npy *a,
                                char *message, size_t size) {
  scan s = {text, text + n};
  char key[24], descr[24];
  int have_descr = 0, have_order = 0, have_shape = 0, comma = 1;
  if (!take_char(&s, '{'))
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: npy header is no dictionary", label);
  while (!take_char(&s, '}')) {
    if (!comma || !take_text(&s, key, sizeof key) || !take_char(&s, ':'))
      return ngio_say(message, size, NGIO_ERR_FILE, "%s: npy header is no dictionary", label);
    if (strcmp(key, "descr") == 0 && !have_descr) {
      have_descr = 1;
      if (!take_text(&s, descr, sizeof descr))
        return ngio_say(message, size, NGIO_ERR_FILE,
                        "%s: structured dtypes are not supported, expected f4, f8, i4, i8 or u1",
                        label);
      if (!find_dtype(descr, &a->dtype))
        return ngio_say(
            message, size, NGIO_ERR_FILE,
            "%s: dtype '%s' is not supported, expected little-endian f4, f8, i4, i8 or u1", label,
            ngio_printable(descr).text);
    } else if (strcmp(key, "fortran_order") == 0 && !have_order) {
      have_order = 1;
      if (take_word(&s, "True"))
        return ngio_say(message, size, NGIO_ERR_FILE,
                        "%s: fortran_order is True; save numpy.ascontiguousarray(x) instead",
                        label);
      if (!take_word(&s, "False"))
        return ngio_say(message, size, NGIO_ERR_FILE, "%s: fortran_order is neither True nor False",
                        label);
    } else if (strcmp(key, "shape") == 0 && !have_shape) {
      have_shape = 1;
      a->ndim = take_shape(&s, a->shape);
      if (a->ndim == -2)
        return ngio_say(message, size, NGIO_ERR_FILE, "%s: more than %d axes", label,
                        NGIO_MAX_DIMS);
      if (a->ndim < 0)
        return ngio_say(message, size, NGIO_ERR_FILE, "%s: shape is not a tuple of sizes", label);
    } else {
      return ngio_say(message, size, NGIO_ERR_FILE,
                      "%s: npy header has an unknown or repeated key '%s'", label,
                      ngio_printable(key).text);
    }
    comma = take_char(&s, ',');
  }
  skip_blanks(&s);
  if (s.at != s.end)
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: text after the npy header", label);
  if (!have_descr || !have_order || !have_shape)
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: npy header lacks '%s'", label,
                    !have_descr ? "descr" : (!have_order ? "fortran_order" : "shape"));
  return NGIO_OK;
}

static ngio_status read_array(ngio_source *s, ngio_npy *out, char *message, size_t size) {
  static const unsigned char magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};
  unsigned char head[12] = {0};
  ngio_npy a;
  memset(&a, 0, sizeof a);
  char *text = NULL;
  ngio_status st = NGIO_OK;

  if (s->size < 10 || ngio_source_read(s, 0, head, 10, NULL, 0) != NGIO_OK ||
      memcmp(head, magic, sizeof magic) != 0)
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: not an npy file", s->label);
  if (head[6] < 1 || head[6] > 3 || head[7] != 0)
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: npy version is %d.%d, expected 1.0 to 3.0",
                    s->label, head[6], head[7]);
  int64_t start = 10, length = head[8] | head[9] << 8;
  if (head[6] > 1) {
    st = ngio_source_read(s, 10, head + 10, 2, message, size);
    if (st != NGIO_OK) return st;
    start = 12;
    length |= (int64_t)head[10] << 16 | (int64_t)head[11] << 24;
  }
  if (length > s->size - start)
    return ngio_say(message, size, NGIO_ERR_FILE,
                    "%s: header of %lld bytes in a file of %lld: truncated", s->label,
                    (long long)length, (long long)s->size);
  if (length > HEADER_LIMIT)
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: header of %lld bytes is above the limit %d",
                    s->label, (long long)length, HEADER_LIMIT);

  text = malloc((size_t)length + 1);
  if (!text) return ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory", s->label);
  st = ngio_source_read(s, start, text, length, message, size);
  if (st == NGIO_OK) st = parse_header(s->label, text, (size_t)length, &a, message, size);
  free(text);
  if (st != NGIO_OK) return st;

  a.bytes = ngio_bytes_of(a.dtype, a.shape, a.ndim);
  int64_t left = s->size - start - length;
  if (a.bytes < 0)
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: the shape overflows", s->label);
  if (a.bytes != left)
    return ngio_say(message, size, NGIO_ERR_FILE,
                    "%s: %lld bytes of data, its shape and dtype need %lld%s", s->label,
                    (long long)left, (long long)a.bytes, left < a.bytes ? ": truncated" : "");
  a.count = a.bytes / ngio_dtype_size(a.dtype);
  a.data = malloc(a.bytes > 0 ? (size_t)a.bytes : 1);
  if (!a.data)
    return ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory for %lld bytes", s->label,
                    (long long)a.bytes);
  st = ngio_source_read(s, start + length, a.data, a.bytes, message, size);
  if (st != NGIO_OK) {
    free(a.data);
    return st;
  }
  *out = a;
  return NGIO_OK;
}

ngio_status ngio_npy_read(const char *path, ngio_npy *out, char *message, size_t size) {
  memset(out, 0, sizeof *out);
  ngio_source s;
  ngio_status st = ngio_source_open(&s, path, message, size);
  if (st == NGIO_OK) st = read_array(&s, out, message, size);
  ngio_source_close(&s);
  return st;
}

ngio_status ngio_npy_parse(const void *bytes, size_t n, const char *label, ngio_npy *out,
                           char *message, size_t size) {
  memset(out, 0, sizeof *out);
  ngio_source s;
  ngio_source_memory(&s, label, bytes, n);
  return read_array(&s, out, message, size);
}

void ngio_npy_free(ngio_npy *a) {
  free(a->data);
  memset(a, 0, sizeof *a);
}
