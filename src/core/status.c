/* status.c: names of statuses and dtypes; error messages; structs with a size; the joint status of many ranks.
 *
 * The context stores the first message of a call, because later failures are consequences of the first.
 * Functions without a context write their message to the caller's buffer.
 *
 * In: a status, a format.  Out: the same status, so that code reports a failure with `return ng_fail(...)`. */
#include "core/core.h"

const char *ng_status_name(ng_status s) {
  switch (s) {
#define NG_X(name, value, meaning)                                                                 \
  case name:                                                                                       \
    return #name;
    NG_STATUS_LIST(NG_X)
#undef NG_X
  }
  return "unknown status";
}

const char *ng_status_meaning(ng_status s) {
  switch (s) {
#define NG_X(name, value, meaning)                                                                 \
  case name:                                                                                       \
    return meaning;
    NG_STATUS_LIST(NG_X)
#undef NG_X
  }
  return "not a status of this library";
}

static const struct {
  int64_t size;
  const char *name;
} dtypes[] = {
    [NG_F32] = {4, "f32"}, [NG_F64] = {8, "f64"}, [NG_F16] = {2, "f16"}, [NG_BF16] = {2, "bf16"},
    [NG_I32] = {4, "i32"}, [NG_I64] = {8, "i64"}, [NG_U8] = {1, "u8"}};

static bool is_dtype(ng_dtype t) {
  return (size_t)t < sizeof dtypes / sizeof dtypes[0] && dtypes[t].size > 0;
}

int64_t ng_dtype_size(ng_dtype t) { return is_dtype(t) ? dtypes[t].size : 0; }
const char *ng_dtype_name(ng_dtype t) { return is_dtype(t) ? dtypes[t].name : "?"; }

/* Only public functions may call ng_enter: a call from inside the library would clear the message. */
ng_status ng_enter(ng_context *ctx) {
  ctx->failed = false;
  ctx->error[0] = 0;
  if (ng_process_same(ctx)) return NG_OK;
  return ng_fail(ctx, NG_ERR_STATE,
                 "this context belongs to process %lld; create a context in this process",
                 (long long)ctx->process);
}

/* A message may quote any text of the caller; without control characters the message is a single line. */
void ng_print_line(char *line, size_t size, const char *format, va_list args) {
  (void)vsnprintf(line, size, format, args);
  for (char *c = line; *c != 0; c++) {
    if ((unsigned char)*c < 32 || *c == 127) *c = '?';
  }
}

/* Errors are logged as errors, statuses above NG_OK (NG_SKIPPED, NG_RESCUED) as warnings. */
ng_status ng_fail(ng_context *ctx, ng_status status, const char *format, ...) {
  if (!ctx->failed) {
    va_list args;
    va_start(args, format);
    ng_print_line(ctx->error, sizeof ctx->error, format, args);
    va_end(args);
    ctx->failed = true;
    ng_log(ctx, status < 0 ? NG_LOG_ERROR : NG_LOG_WARN, "%s: %s", ng_status_name(status),
           ctx->error);
  }
  return status;
}

/* Unlike ng_fail, overwrite an earlier message. */
ng_status ng_fail_to(char *message, size_t size, ng_status status, const char *format, ...) {
  if (message != NULL && size > 0) {
    va_list args;
    va_start(args, format);
    ng_print_line(message, size, format, args);
    va_end(args);
  }
  return status;
}

/* The result is never NULL, so that callers may print the result without a check. */
const char *ng_last_error(const ng_context *ctx) { return ctx == NULL ? "" : ctx->error; }

/* A bound above the size of every public struct.  An uninitialised struct_size usually exceeds this bound. */
enum { NG_STRUCT_MOST = 4096 };

/* A struct of an older header is smaller than `ours`: fields beyond its end keep their values in *dst.  A struct of a
 * newer header is larger, and is accepted only if its bytes from `ours` on are zero. */
ng_status ng_struct_read(void *dst, size_t ours, const void *src, size_t least, const char *what,
                         char *message, size_t size) {
  size_t given;
  memcpy(&given, src, sizeof given);
  if (given < least || given > NG_STRUCT_MOST) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "%s: struct_size is %zu, expected %zu to %d; call %s_init first", what, given,
                      least, NG_STRUCT_MOST, what);
  }
  for (size_t i = ours; i < given; i++) {
    if (((const unsigned char *)src)[i] != 0) {
      return ng_fail_to(message, size, NG_ERR_ARG,
                        "%s: struct_size is %zu and byte %zu is set, but this library knows only "
                        "%zu bytes",
                        what, given, i, ours);
    }
  }
  memcpy(dst, src, given < ours ? given : ours);
  memcpy(dst, &ours, sizeof ours);
  return NG_OK;
}

/* Fields of the caller's struct that are unknown to the library become 0. */
ng_status ng_struct_write(void *dst, const void *src, size_t ours) {
  size_t given;
  memcpy(&given, dst, sizeof given);
  if (given < sizeof given || given > NG_STRUCT_MOST) return NG_ERR_ARG; /* uninitialised */
  memset(dst, 0, given);
  memcpy(dst, src, given < ours ? given : ours);
  memcpy(dst, &given, sizeof given);
  return NG_OK;
}

/* ---- statuses of many ranks ------------------------------------------------------------------*/

enum { CODE_ZERO = 8 }; /* index of NG_OK: statuses are -8 to 7 */

/* A reduction of doubles can only add.  Each rank sets the entry of its status to 1, so the sum over ranks counts the
 * ranks of each status. */
void ng_codes_write(double code[NG_CODES], ng_status st) {
  memset(code, 0, NG_CODES * sizeof *code);
  code[CODE_ZERO + (int)st] = 1.0;
}

/* The cast is exact, because code[] has sums of ones. */
int ng_codes_count(const double code[NG_CODES], ng_status st) {
  return (int)code[CODE_ZERO + (int)st];
}

ng_status ng_codes_worst(const double code[NG_CODES]) {
  for (int i = 0; i < CODE_ZERO; i++) {
    if (code[i] > 0.0) return (ng_status)(i - CODE_ZERO);
  }
  for (int i = NG_CODES - 1; i >= CODE_ZERO; i--) {
    if (code[i] > 0.0) return (ng_status)(i - CODE_ZERO);
  }
  return NG_OK;
}
