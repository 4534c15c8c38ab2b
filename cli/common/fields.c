/* fields.c: parse and print JSON, and read fields of JSON objects with checks. */
#include "common/cli.h"

#include <stdarg.h>
#include <stdio.h>

int cli_json_parse(const char *path, const char *text, size_t size, ngio_json **out) {
  char message[160];
  return ngio_json_parse(text, size, out, message, sizeof message) == NGIO_OK
             ? CLI_OK
             : cli_fail("%s: no JSON: %s", path, message);
}

const char *cli_json_text(const ngio_value *v, char *number, size_t size) {
  if (ngio_is(v, NGIO_STRING)) return ngio_text_of(v);
  if (ngio_is_flag(v)) return ngio_is(v, NGIO_TRUE) ? "true" : "false";
  if (!ngio_is_number(v)) return NULL;
  if (ngio_is(v, NGIO_INTEGER))
    (void)snprintf(number, size, "%lld", (long long)ngio_integer_of(v));
  else
    (void)snprintf(number, size, "%.17g", ngio_number_of(v));
  return number;
}

int cli_json_print(const char *who, ngio_out *o) {
  const bool bad = o->lost != 0;
  if (!bad) (void)fwrite(o->text, 1, o->used, stdout);
  ngio_out_free(o);
  if (bad)
    return cli_fail("%s: the result does not fit JSON: no memory, or a name that is not UTF-8",
                    who);
  (void)putchar('\n'); /* the result is not checked, because main checks stdout at the end */
  return CLI_OK;
}

void cli_field_error(cli_fields *f, const char *format, ...) {
  if (f->rc != CLI_OK) return;
  char text[512];
  va_list args;
  va_start(args, format);
  /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): as in messages.c */
  (void)vsnprintf(text, sizeof text, format, args);
  va_end(args);
  f->rc = cli_fail("%s: %s%s", f->path, f->where, text);
}

static int64_t read_int(cli_fields *f, const ngio_value *v, const char *key, int64_t lower,
                        int64_t upper) {
  const int64_t x = ngio_integer_of(v);
  if (ngio_is(v, NGIO_INTEGER) && x >= lower && x <= upper) return x;
  cli_field_error(f, "%s is not a whole number from %lld to %lld", key, (long long)lower,
                  (long long)upper);
  return lower;
}

int64_t cli_read_whole(cli_fields *f, const ngio_value *object, const char *key, int64_t lower,
                       int64_t upper, int64_t absent) {
  const ngio_value *v = ngio_get(object, key);
  return v == NULL && absent >= 0 ? absent : read_int(f, v, key, lower, upper);
}

void cli_read_pair(cli_fields *f, const ngio_value *object, const char *key, int64_t lower,
                   int64_t absent, int64_t out[2]) {
  const ngio_value *v = ngio_get(object, key);
  const bool pair = ngio_count(v) == 2;
  for (size_t k = 0; k < 2; k++)
    out[k] = v == NULL && absent >= 0 ? absent
                                      : read_int(f, pair ? ngio_at(v, k) : v, key, lower, 1 << 20);
}
