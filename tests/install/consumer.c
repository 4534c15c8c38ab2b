/* consumer.c: a program that uses only an installed natgrad. */
#include <natgrad.h>

#include <stdio.h>

int main(void) {
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  char why[200];
  int32_t layer = -1;
  if (ng_version() != NG_VERSION) return fprintf(stderr, "header and library differ\n"), 1;
  if (ng_context_create(NG_VERSION, NULL, why, sizeof why, &ctx) != NG_OK)
    return fprintf(stderr, "%s\n", why), 1;
  const int made = ng_precond_create(ctx, "method=eva", &p) == NG_OK &&
                   ng_add_linear(p, "fc", 4, 2, 1, &layer) == NG_OK && layer == 0;
  if (!made) fprintf(stderr, "%s\n", ng_last_error(ctx));
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
  return made ? 0 : 1;
}
