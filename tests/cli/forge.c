/* forge.c: make damaged files from a valid one.
 *
 *   forge FILE FOLDER SEED COUNT     FOLDER/forged-K, from 0 on, with the extension of FILE
 *
 * Each file has one to four changes: in the tree of case.json of a recording (types, numbers, texts, lists, depth;
 * missing, new or repeated keys), in its text, in the header (names, types, shapes, offsets of arrays) or in any byte.
 * A file that is no .safetensors file is JSON, or JSON in lines: changes are in the tree of a line, or in any byte.  The
 * same seed gives the same files. */
#include "json_edit.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static uint64_t draw(uint64_t n) {
  state = state * 6364136223846793005U + 1442695040888963407U;
  return (state >> 33) % n;
}

static void put_nested(ngio_out *o, int depth) {
  char shut[2101];
  for (int i = 0; i < depth; i++) {
    const bool list = draw(2) == 0;
    ngio_out_put(o, list ? "[" : "{\"x\":");
    shut[depth - 1 - i] = list ? ']' : '}';
  }
  ngio_out_put(o, "[]");
  ngio_out_bytes(o, shut, (size_t)depth);
}

static void put_random_text(ngio_out *o, size_t n) {
  static const char letter[] = "aaaa((((*+|)[]{},19\\^$.%n\" \n\t\x7f";
  char *text = calloc(n + 1, 1);
  for (size_t i = 0; i < n; i++)
    text[i] = letter[draw(sizeof letter - 1)];
  ngio_put_text(o, NULL, text);
  free(text);
}

/* Return JSON text of a value that is usually invalid. */
static char *new_invalid_value(void) {
  static const int64_t whole[] = {0,      1,          -1,         2,          3,         7,
                                  64,     1000,       4096,       65536,      1 << 20,   1 << 24,
                                  100000, 2147483647, 2147483648, 4294967296, INT64_MAX, INT64_MIN};
  static const double real[] = {0.0, -0.0, 0.5, 1e-320, 1e308, -1e308, 0.003, 1e30, 1e-30};
  static const char *const text[] = {
      "",         "fc1",      "conv1",
      "KAISA",    "MPD",      "eigen",
      "inverse",  "none",     "float16",
      "bfloat16", "COMM_OPT", "%s%n%s",
      "../../x",  "true",     "linear",
      "conv2d",   "\xc3\xa9", "((((((((a{9}){9}){9}){9}){9}){9}){9}){9}"};
  ngio_out o = {0};
  switch (draw(9)) {
  case 0:
    ngio_put_null(&o, NULL);
    break;
  case 1:
    ngio_put_flag(&o, NULL, draw(2) != 0);
    break;
  case 2:
  case 3:
    ngio_put_integer(&o, NULL, whole[draw(sizeof whole / sizeof whole[0])]);
    break;
  case 4:
    ngio_put_real(&o, NULL, real[draw(sizeof real / sizeof real[0])]);
    break;
  case 5:
    ngio_put_text(&o, NULL, text[draw(sizeof text / sizeof text[0])]);
    break;
  case 6:
    put_random_text(&o, draw(2) == 0 ? draw(100) : draw(9000));
    break;
  case 7:
    put_nested(&o, (int)(draw(3) == 0 ? draw(2100) : draw(4)));
    break;
  default: /* texts, as of skip_layers */
    ngio_open(&o, NULL, '[');
    for (uint64_t n = draw(5) == 0 ? draw(5000) : draw(5); n > 0; n--) {
      if (draw(20) == 0) {
        ngio_put_integer(&o, NULL, 3);
      } else {
        ngio_put_text(&o, NULL, text[draw(sizeof text / sizeof text[0])]);
      }
    }
    ngio_shut(&o, ']');
  }
  ngio_out_bytes(&o, "", 1);
  return o.text;
}

/* Change one value of `text`, at a random path from the root. */
static char *change_value(char *text) {
  static const char *const name[] = {"damping",
                                     "skip_layers",
                                     "kl_clip",
                                     "lr",
                                     "factor_decay",
                                     "inv_dtype",
                                     "factor_dtype",
                                     "compute_method",
                                     "grad_worker_fraction",
                                     "ranks",
                                     "micro_batches",
                                     "steps",
                                     "batch",
                                     "kernel",
                                     "stride",
                                     "padding",
                                     "bias",
                                     "kind",
                                     "order",
                                     "layers",
                                     "shape",
                                     "method",
                                     "system",
                                     "inv_update_steps",
                                     "factor_update_steps",
                                     "accumulation_steps"};
  ngio_json *json = NULL;
  if (ngio_json_parse(text, strlen(text), &json, NULL, 0) != NGIO_OK) return text;
  const ngio_value *v = ngio_json_root(json), *inner = NULL;
  json_edit edit = {0};
  char key[256], *other = new_invalid_value();
  for (bool down = true; down; v = down ? inner : v) {
    const bool map = ngio_is(v, NGIO_OBJECT);
    down = false;
    if (!map && !ngio_is(v, NGIO_ARRAY)) break;
    if (v->count == 0 || (map && draw(12) == 0)) {
      if (map)
        edit = (json_edit){v, NULL, NULL, other, name[draw(sizeof name / sizeof name[0])], 0};
      break;
    }
    inner = ngio_first(v);
    for (uint64_t k = draw(v->count); k > 0; k--)
      inner = ngio_next(v, inner);
    const uint64_t what = draw(8);
    down = what < 4 && (ngio_is(inner, NGIO_ARRAY) || ngio_is(inner, NGIO_OBJECT));
    if (down) continue;
    if (what == 4) {
      edit.at = inner;             /* removed */
    } else if (what == 5 && map) { /* under another name */
      (void)snprintf(key, sizeof key, "%s", inner->key);
      key[draw(strlen(key) + 1)] = (char)('a' + draw(26));
      edit = (json_edit){.at = inner, .key = key[0] == 0 ? "x" : key};
    } else {
      edit = (json_edit){.at = inner, .with = other};
    }
  }
  ngio_out o = {0};
  json_write(&o, NULL, ngio_json_root(json), &edit);
  ngio_out_bytes(&o, "", 1);
  ngio_json_free(&json);
  free(other);
  free(text);
  return o.text;
}

/* Change, delete or repeat bytes, or truncate; in JSON also repeat a key. */
static char *damage_bytes(char *text, size_t *n) {
  static const char twice[] = "{\"steps\":1,\"config\":{},";
  char *out = calloc(*n + sizeof twice + 1, 1);
  const size_t at = (size_t)draw(*n);
  memcpy(out, text, *n);
  switch (draw(4)) {
  case 0:
    out[at] = (char)draw(256);
    break;
  case 1:
    memmove(out + at, out + at + 1, *n - at - 1);
    --*n;
    break;
  case 2:
    *n = at;
    break;
  default:
    if (text[0] != '{') break;
    memcpy(out, twice, sizeof twice - 1);
    memcpy(out + sizeof twice - 1, text + 1, *n - 1);
    *n += sizeof twice - 2;
  }
  free(text);
  out[*n] = 0;
  return out;
}

typedef struct base {
  char *header; /* JSON text */
  char *data;
  size_t bytes;
} base;

static int read_recording(const char *path, base *b) {
  FILE *f = fopen(path, "rb");
  uint64_t n = 0;
  if (f == NULL || fread(&n, sizeof n, 1, f) != 1 || n > 1 << 24) return 1;
  char *text = calloc(n + 1, 1);
  if (fread(text, 1, n, f) != n) return 1;
  b->header = text;
  b->data = calloc(1 << 24, 1);
  b->bytes = fread(b->data, 1, 1 << 24, f);
  return fclose(f) != 0 || b->header == NULL;
}

static int write_file(const char *path, const char *head, size_t n, const char *data,
                      size_t bytes) {
  FILE *f = fopen(path, "wb");
  if (f == NULL) return 1;
  const uint64_t size = n;
  const int bad = fwrite(&size, sizeof size, 1, f) != 1 || fwrite(head, 1, n, f) != n ||
                  fwrite(data, 1, bytes, f) != bytes;
  return fclose(f) != 0 || bad;
}

/* Write one damaged file. */
static int write_forgery(const base *b, const char *path) {
  char *header = strdup(b->header), *text;
  size_t bytes = b->bytes;
  ngio_json *json = json_must_parse(header, strlen(header));
  const ngio_value *recorded = json_find(ngio_json_root(json), "__metadata__|case.json");
  const uint64_t kind =
      recorded != NULL ? draw(8) : 6 + draw(2); /* other tensors have no case.json */
  text = strdup(recorded != NULL ? ngio_text_of(recorded) : "");
  ngio_json_free(&json);
  for (uint64_t i = 1 + draw(4); i > 0; i--) {
    if (kind < 6)
      text = change_value(text);
    else if (kind == 6)
      header = change_value(header);
  }
  size_t n = strlen(text);
  if (kind < 7 && draw(10) == 0 && n > 1) text = damage_bytes(text, &n);
  if (kind < 6) {
    ngio_out o = {0};
    ngio_put_text(&o, NULL, text); /* fails for bytes that are not UTF-8 */
    ngio_out_bytes(&o, "", 1);
    if (!o.lost) json_edit_text(&header, "__metadata__|case.json", o.text);
    ngio_out_free(&o);
  }
  free(text);
  char *head = header;
  n = strlen(head);
  if (kind == 7) head = damage_bytes(head, &n);
  if (kind == 7 && draw(2) == 0) bytes = (size_t)draw(bytes + 1);
  if (kind < 7) { /* padded to eight bytes */
    head = realloc(head, n + 9);
    memset(head + n, ' ', 8 - n % 8);
    n += (8 - n % 8) % 8;
  }
  const int rc = write_file(path, head, n, b->data, bytes);
  free(head);
  return rc;
}

/* Write a damaged copy of a JSON text, or of one with a line for each value. */
static int write_json_forgery(const base *b, const char *path) {
  char *text = strdup(b->data);
  size_t n = strlen(text);
  if (draw(4) == 0) {
    text = damage_bytes(text, &n);
  } else {
    const bool lines = path[strlen(path) - 1] == 'l'; /* .jsonl */
    size_t first = lines ? (size_t)draw(n) : 0;
    while (first > 0 && text[first - 1] != '\n')
      first--;
    const char *at = text + first;
    const size_t length = lines ? strcspn(at, "\n") : n;
    char *line = strndup(at, length);
    for (uint64_t i = 1 + draw(4); i > 0; i--)
      line = change_value(line);
    ngio_out o = {0};
    ngio_out_bytes(&o, text, first);
    ngio_out_put(&o, line);
    ngio_out_bytes(&o, at + length, n - first - length + 1);
    free(line);
    free(text);
    text = o.text;
    n = strlen(text);
  }
  FILE *f = fopen(path, "wb");
  const int bad = f == NULL || fwrite(text, 1, n, f) != n;
  free(text);
  return (f != NULL && fclose(f) != 0) || bad;
}

static int read_text(const char *path, base *b) {
  FILE *f = fopen(path, "rb");
  if (f == NULL) return 1;
  b->data = calloc(1 << 20, 1);
  b->bytes = fread(b->data, 1, (1 << 20) - 1, f);
  return fclose(f) != 0;
}

int main(int argc, char **argv) {
  base b = {0};
  const char *end = argc == 5 ? strrchr(argv[1], '.') : NULL;
  const bool tensors = end != NULL && strcmp(end, ".safetensors") == 0;
  if (end == NULL || (tensors ? read_recording : read_text)(argv[1], &b) != 0) {
    (void)fprintf(stderr, "forge FILE FOLDER SEED COUNT\n");
    return 1;
  }
  state = strtoull(argv[3], NULL, 10);
  for (long k = 0; k < strtol(argv[4], NULL, 10); k++) {
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/forged-%ld%s", argv[2], k, end);
    if ((tensors ? write_forgery : write_json_forgery)(&b, path) != 0) {
      (void)fprintf(stderr, "forge: %s cannot be written\n", path);
      return 1;
    }
  }
  free(b.header);
  free(b.data);
  return 0;
}
