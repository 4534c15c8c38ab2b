/* fuzz_options.c: text lines through all functions that read options: ng_options_set ("name=value", or a method),
 * the published names (lines with ':'), whole lines (with '+'), options of a layer (with '@').  An accepted value
 * must be readable by ng_options_get as text that is accepted again.  A refused line must change nothing.  A
 * preconditioner with these options must be created or refused with a message. */
#include "fuzz.h"

#include <stdbool.h>
#include <string.h>

#include "natgrad.h"

enum { TEXT = 4096 };

static void check_value_round_trip(const ng_options *o, const char *name) {
  char text[TEXT], again[TEXT], message[256];
  ng_options *twin = NULL;
  if (ng_options_get(o, name, text, sizeof text) != NG_OK) return;
  NEED(ng_options_copy(o, &twin) == NG_OK);
  NEED(ng_options_set(twin, name, text, message, sizeof message) == NG_OK);
  NEED(ng_options_get(twin, name, again, sizeof again) == NG_OK);
  NEED(strcmp(text, again) == 0);
  ng_options_destroy(&twin);
}

static void check_equal_options(const ng_options *x, const ng_options *y) {
  char a[TEXT], b[TEXT];
  for (int32_t i = -1; i < ng_option_count(); i++) {
    ng_option_info info = {.struct_size = sizeof info};
    NEED(i < 0 || ng_option_at(i, &info) == NG_OK);
    const char *name = i < 0 ? "method" : info.name;
    NEED(ng_options_get(x, name, a, sizeof a) == NG_OK);
    NEED(ng_options_get(y, name, b, sizeof b) == NG_OK);
    NEED(strcmp(a, b) == 0);
  }
}

static void set_line(ng_options *o, char *line, char *own, size_t own_size) {
  char message[256] = "";
  double lr = 0;
  ng_status st;
  ng_options *before = NULL;
  char *value = strchr(line, '=');
  if (line[0] == '@') {
    (void)snprintf(own, own_size, "%s", line + 1);
    return;
  }
  NEED(ng_options_copy(o, &before) == NG_OK);
  if (line[0] == '+') {
    st = ng_options_set_line(o, line + 1, message, sizeof message);
  } else if (value == NULL) {
    st = ng_options_set(o, "method", line, message, sizeof message);
  } else {
    *value++ = 0;
    st = line[0] == ':' ? ng_options_set_published(o, line + 1, value, &lr, message, sizeof message)
                        : ng_options_set(o, line, value, message, sizeof message);
    if (st == NG_OK && line[0] != ':') check_value_round_trip(o, line);
  }
  NEED(st <= NG_OK);
  if (st != NG_OK) {
    NEED(message[0] != 0 && strchr(message, '\n') == NULL);
    check_equal_options(before, o);
  }
  ng_options_destroy(&before);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char message[256] = "", own[4096] = "";
  ng_options *o = NULL;
  ng_context_config c;
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  if (size > 4000) return 0;
  char *text = malloc(size + 1);
  NEED(text != NULL);
  memcpy(text, data, size);
  text[size] = 0;
  NEED(ng_options_create("", message, sizeof message, &o) == NG_OK);
  for (char *line = text, *end; line <= text + size; line = end + 1) {
    end = line + strcspn(line, "\n");
    *end = 0;
    set_line(o, line, own, sizeof own);
  }
  const ng_status checked = ng_options_check(o, message, sizeof message);
  NEED((checked == NG_OK) == (message[0] == 0));
  ng_context_config_init(&c, sizeof c);
  c.threads = 1;
  NEED(ng_context_create(NG_VERSION, &c, NULL, 0, &ctx) == NG_OK);
  const ng_status st = ng_precond_create_from(ctx, o, &p);
  NEED(st == NG_OK || ng_last_error(ctx)[0] != 0);
  NEED(checked == NG_OK || st != NG_OK);
  if (st == NG_OK) {
    ng_layer l;
    int32_t i = -1;
    ng_layer_init(&l, NG_LINEAR, sizeof l);
    l.name = "fc";
    l.in = 3;
    l.out = 2;
    l.options = own;
    if (ng_add_layer(p, &l, &i) == NG_OK) {
      NEED(ng_ready(p) == NG_OK || ng_last_error(ctx)[0] != 0);
    } else {
      NEED(ng_last_error(ctx)[0] != 0);
    }
  }
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
  ng_options_destroy(&o);
  free(text);
  return 0;
}
