/* fuzz_options.c: lines "name=value" through every door that text enters by: ng_options_set, the
 * published names (lines with ':'), schedules, a layer's own options (lines with '@').  Whatever is
 * accepted must come back from ng_options_get as text that is accepted again, and a preconditioner
 * must be made of it or refuse with a message. */
#include "fuzz.h"

#include <stdbool.h>
#include <string.h>

#include "natgrad.h"

static void come_back(const ng_options *o, const char *name) {
  char text[4096], again[4096], message[256];
  ng_options twin = *o;
  if (ng_options_get(o, name, text, sizeof text) != NG_OK) return;
  NEED(ng_options_set(&twin, name, text, message, sizeof message) == NG_OK);
  NEED(ng_options_get(&twin, name, again, sizeof again) == NG_OK);
  NEED(strcmp(text, again) == 0);
}

static void one_line(ng_options *o, char *line, char *own, size_t own_size) {
  char message[256] = "";
  double lr = 0;
  char *value = strchr(line, '=');
  if (line[0] == '@') {
    (void)snprintf(own, own_size, "%s", line + 1);
    return;
  }
  if (value == NULL) {
    const ng_options before = *o;
    if (ng_options_set_method(o, line, message, sizeof message) != NG_OK) {
      NEED(message[0] != 0 && strchr(message, '\n') == NULL);
      NEED(memcmp(&before, o, sizeof before) == 0);
    }
    return;
  }
  *value++ = 0;
  const ng_options before = *o;
  const bool published = line[0] == ':';
  const ng_status st =
      published ? ng_options_set_published(o, line + 1, value, &lr, message, sizeof message)
                : ng_options_set(o, line, value, message, sizeof message);
  NEED(st <= NG_OK);
  if (st == NG_OK) {
    if (!published) come_back(o, line);
  } else {
    NEED(message[0] != 0 && strchr(message, '\n') == NULL);
    NEED(memcmp(&before, o, sizeof before) == 0);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char message[256] = "", own[4096] = "";
  ng_options o;
  ng_context_config c;
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  if (size > 4000) return 0;
  /* The C library's regcomp takes time and memory by the product of counted repeats, "a{9}{9}{9}":
   * skip_layers is the caller's own, and this fuzzer is not after the C library. */
  if (memchr(data, '{', size) != NULL) return 0;
  char *text = malloc(size + 1);
  NEED(text != NULL);
  memcpy(text, data, size);
  text[size] = 0;
  NEED(ng_options_init(&o) == NG_OK);
  for (char *line = text, *end; line <= text + size; line = end + 1) {
    end = line + strcspn(line, "\n");
    *end = 0;
    one_line(&o, line, own, sizeof own);
  }
  const ng_status checked = ng_options_check(&o, message, sizeof message);
  NEED((checked == NG_OK) == (message[0] == 0));
  ng_context_config_init(&c, sizeof c);
  c.threads = 1;
  NEED(ng_context_create(NG_VERSION, &c, NULL, 0, &ctx) == NG_OK);
  const ng_status st = ng_precond_create(ctx, &o, &p);
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
  free(text);
  return 0;
}
