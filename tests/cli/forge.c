/* forge.c: recordings that a stranger forged, from one that is whole.
 *
 *   forge FILE FOLDER SEED COUNT     FOLDER/forged-K.safetensors, from 0 on
 *
 * Each has one to four changes: of the tree of case.json (types, numbers, texts, lists, depth, keys that are
 * missing, new or there twice), of its text, of the header (names, types, shapes, places of arrays) or of any byte.
 * The same seed makes the same files. */
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static uint64_t draw(uint64_t n) {
  state = state * 6364136223846793005U + 1442695040888963407U;
  return (state >> 33) % n;
}

static json_t *of_depth(int depth) {
  json_t *v = json_array();
  for (int i = 0; i < depth; i++) {
    json_t *outer = draw(2) == 0 ? json_array() : json_object();
    if (json_is_array(outer))
      (void)json_array_append_new(outer, v);
    else
      (void)json_object_set_new(outer, "x", v);
    v = outer;
  }
  return v;
}

static json_t *of_letters(size_t n) {
  static const char letter[] = "aaaa((((*+|)[]{},19\\^$.%n\" \n\t\x7f";
  char *text = calloc(n + 1, 1);
  for (size_t i = 0; i < n; i++)
    text[i] = letter[draw(sizeof letter - 1)];
  json_t *v = json_string(text);
  free(text);
  return v;
}

/* A value that is seldom right. */
static json_t *strange(void) {
  static const json_int_t whole[] = {
      0,     1,       -1,      2,      3,          7,          64,         1000,      4096,
      65536, 1 << 20, 1 << 24, 100000, 2147483647, 2147483648, 4294967296, INT64_MAX, INT64_MIN};
  static const double real[] = {0.0, -0.0, 0.5, 1e-320, 1e308, -1e308, 0.003, 1e30, 1e-30};
  static const char *const text[] = {
      "",         "fc1",      "conv1",
      "KAISA",    "MPD",      "eigen",
      "inverse",  "none",     "float16",
      "bfloat16", "COMM_OPT", "%s%n%s",
      "../../x",  "true",     "linear",
      "conv2d",   "\xc3\xa9", "((((((((a{9}){9}){9}){9}){9}){9}){9}){9}"};
  json_t *v;
  switch (draw(9)) {
  case 0:
    return json_null();
  case 1:
    return json_boolean(draw(2));
  case 2:
  case 3:
    return json_integer(whole[draw(sizeof whole / sizeof whole[0])]);
  case 4:
    return json_real(real[draw(sizeof real / sizeof real[0])]);
  case 5:
    return json_string(text[draw(sizeof text / sizeof text[0])]);
  case 6:
    return of_letters(draw(2) == 0 ? draw(100) : draw(9000));
  case 7:
    return of_depth((int)(draw(3) == 0 ? draw(2100) : draw(4)));
  default:
    v = json_array(); /* of texts, as skip_layers is */
    for (uint64_t n = draw(5) == 0 ? draw(5000) : draw(5); n > 0; n--) {
      const char *t = text[draw(sizeof text / sizeof text[0])];
      (void)json_array_append_new(v, draw(20) == 0 ? json_integer(3) : json_string(t));
    }
    return v;
  }
}

/* One place of the tree, chosen by going down. */
static void change(json_t *v) {
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
  for (;;) {
    if (json_is_array(v) && json_array_size(v) > 0) {
      const size_t i = (size_t)draw(json_array_size(v));
      json_t *inner = json_array_get(v, i);
      const uint64_t what = draw(6);
      if (what < 2 && (json_is_array(inner) || json_is_object(inner))) {
        v = inner;
        continue;
      }
      if (what == 2)
        (void)json_array_remove(v, i);
      else if (what == 3)
        (void)json_array_append(v, inner);
      else
        (void)json_array_set_new(v, i, strange());
      return;
    }
    if (!json_is_object(v)) return;
    if (json_object_size(v) == 0 || draw(12) == 0) {
      (void)json_object_set_new(v, name[draw(sizeof name / sizeof name[0])], strange());
      return;
    }
    void *at = json_object_iter(v);
    for (uint64_t k = draw(json_object_size(v)); k > 0; k--)
      at = json_object_iter_next(v, at);
    json_t *inner = json_object_iter_value(at);
    char key[256];
    (void)snprintf(key, sizeof key, "%s", json_object_iter_key(at));
    const uint64_t what = draw(8);
    if (what < 5 && (json_is_array(inner) || json_is_object(inner))) {
      v = inner;
      continue;
    }
    if (what == 5) {
      (void)json_object_del(v, key);
    } else if (what == 6) { /* under another name */
      (void)json_incref(inner);
      (void)json_object_del(v, key);
      key[draw(strlen(key) + 1)] = (char)('a' + draw(26));
      (void)json_object_set_new(v, key[0] == 0 ? "x" : key, inner);
    } else {
      (void)json_object_set_new(v, key, strange());
    }
    return;
  }
}

/* Bytes: turned, left out, doubled, cut off; in JSON also a key that is there twice. */
static char *change_text(char *text, size_t *n) {
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
  json_t *header;
  char *data;
  size_t bytes;
} base;

static int read_base(const char *path, base *b) {
  FILE *f = fopen(path, "rb");
  uint64_t n = 0;
  if (f == NULL || fread(&n, sizeof n, 1, f) != 1 || n > 1 << 24) return 1;
  char *text = calloc(n + 1, 1);
  if (fread(text, 1, n, f) != n) return 1;
  b->header = json_loadb(text, n, 0, NULL);
  free(text);
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

/* One forgery; the rest of the file follows its header wherever that ends. */
static int forge(const base *b, const char *path) {
  json_t *header = json_deep_copy(b->header);
  json_t *meta = json_object_get(header, "__metadata__");
  json_t *root = json_loads(json_string_value(json_object_get(meta, "case.json")), 0, NULL);
  size_t bytes = b->bytes;
  const uint64_t kind = draw(8);
  for (uint64_t i = 1 + draw(4); i > 0; i--) {
    if (kind < 6)
      change(root);
    else if (kind == 6)
      change(header);
  }
  char *text = json_dumps(root, JSON_COMPACT);
  size_t n = text != NULL ? strlen(text) : 0;
  if (kind < 7 && draw(10) == 0 && n > 1) text = change_text(text, &n);
  meta = json_object_get(header, "__metadata__");
  if (kind < 6 && json_is_object(meta) && text != NULL) {
    json_t *t = json_string(text); /* NULL: bytes that are no UTF-8 */
    if (t != NULL) (void)json_object_set_new(meta, "case.json", t);
  }
  free(text);
  char *head = json_dumps(header, JSON_COMPACT);
  n = head != NULL ? strlen(head) : 0;
  if (head != NULL && kind == 7) head = change_text(head, &n);
  if (kind == 7 && draw(2) == 0) bytes = (size_t)draw(bytes + 1);
  while (head != NULL && n % 8 != 0 &&
         kind < 7) { /* room behind the text: jansson's block is cut to fit */
    char *more = calloc(n + 9, 1);
    memcpy(more, head, n);
    memset(more + n, ' ', 8 - n % 8);
    n += 8 - n % 8;
    free(head);
    head = more;
  }
  const int rc = head == NULL ? 0 : write_file(path, head, n, b->data, bytes);
  free(head);
  json_decref(root);
  json_decref(header);
  return rc;
}

int main(int argc, char **argv) {
  base b = {0};
  if (argc != 5 || read_base(argv[1], &b) != 0) {
    (void)fprintf(stderr, "forge FILE FOLDER SEED COUNT\n");
    return 1;
  }
  state = strtoull(argv[3], NULL, 10);
  for (long k = 0; k < strtol(argv[4], NULL, 10); k++) {
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/forged-%ld.safetensors", argv[2], k);
    if (forge(&b, path) != 0) {
      (void)fprintf(stderr, "forge: %s cannot be written\n", path);
      return 1;
    }
  }
  json_decref(b.header);
  free(b.data);
  return 0;
}
