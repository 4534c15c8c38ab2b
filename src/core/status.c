/* status.c: names of statuses and dtypes; error messages; copies of public structs; the joint status of many ranks.
 *
 * The context stores only the first message of a call, because later failures are consequences of the first.  The
 * functions return the status they get, so that code reports a failure with `return ng_fail(...)`. */
#include "core/core.h"

enum {
  CODE_ZERO = 8
}; /* position of NG_OK in a list of statuses in ascending order, from -8 to 7 */

static const struct {
  const char *name, *meaning;
} statuses[NG_CODES] = {
#define NG_X(name, value, meaning) [CODE_ZERO + (value)] = {#name, meaning},
    NG_STATUS_LIST(NG_X)
#undef NG_X
};

static bool is_status(ng_status s) {
  return s >= -CODE_ZERO && s < NG_CODES - CODE_ZERO && statuses[CODE_ZERO + s].name != NULL;
}

const char *ng_status_name(ng_status s) {
  return is_status(s) ? statuses[CODE_ZERO + s].name : "unknown status";
}

const char *ng_status_meaning(ng_status s) {
  return is_status(s) ? statuses[CODE_ZERO + s].meaning : "not a status of this library";
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

/* Only public functions call ng_enter: a call from inside the library could clear the message of a failure. */
ng_status ng_enter(ng_context *ctx) {
  ctx->has_failed = false;
  ctx->error[0] = 0;
  if (ng_is_creating_process(ctx)) return NG_OK;
  return ng_fail(ctx, NG_ERR_STATE,
                 "this context belongs to process %lld; create a context in this process",
                 (long long)ctx->creator_pid);
}

/* A message may quote any text of the caller.  Without control characters it is one line, as callers expect. */
void ng_print_line(char *line, size_t size, const char *format, va_list args) {
  (void)vsnprintf(line, size, format, args);
  for (char *c = line; *c != 0; c++) {
    if ((unsigned char)*c < 32 || *c == 127) *c = '?';
  }
}

/* Errors are logged as errors, statuses above NG_OK (NG_SKIPPED, NG_RESCUED) as warnings. */
ng_status ng_fail(ng_context *ctx, ng_status status, const char *format, ...) {
  if (!ctx->has_failed) {
    va_list args;
    va_start(args, format);
    ng_print_line(ctx->error, sizeof ctx->error, format, args);
    va_end(args);
    ctx->has_failed = true;
    ng_log(ctx, status < 0 ? NG_LOG_ERROR : NG_LOG_WARN, "%s: %s", ng_status_name(status),
           ctx->error);
  }
  return status;
}

/* Unlike ng_fail, this function overwrites an earlier message. */
ng_status ng_fail_to(char *message, size_t size, ng_status status, const char *format, ...) {
  if (message != NULL && size > 0) {
    va_list args;
    va_start(args, format);
    ng_print_line(message, size, format, args);
    va_end(args);
  }
  return status;
}

/* Never return NULL, so that callers can print the result without a check. */
const char *ng_last_error(const ng_context *ctx) { return ctx == NULL ? "" : ctx->error; }

/* No public struct is larger than this bound, but an uninitialised struct_size usually is. */
enum { NG_STRUCT_MOST = 4096 };

/* A caller with an older header has a smaller struct: the fields it lacks keep the defaults that *dst has.  A caller
 * with a newer header has a larger struct, which is accepted if all bytes after the first `ours` are 0. */
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

/* If the caller's struct is larger, because its header is newer, the additional fields become 0. */
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

/* All-reduce only adds, so each rank contributes a 1 at the index of its status. */
void ng_codes_write(double code[NG_CODES], ng_status st) {
  memset(code, 0, NG_CODES * sizeof *code);
  code[CODE_ZERO + (int)st] = 1.0;
}

int ng_codes_count(const double code[NG_CODES], ng_status st) {
  return (int)code[CODE_ZERO + (int)st];
}

ng_status ng_codes_worst(const double code[NG_CODES]) {
  for (int i = 0; i < NG_CODES; i++) {
    const int st = i < CODE_ZERO ? i - CODE_ZERO : NG_CODES - 1 - i; /* -8 to -1, 7 to 0 */
    if (code[CODE_ZERO + st] > 0.0) return (ng_status)st;
  }
  return NG_OK;
}
