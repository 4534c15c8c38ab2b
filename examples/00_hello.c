/* 00_hello: one layer, one step.  The README shows this program; a test compiles and runs it. */
#include <natgrad.h>
#include <stdio.h>

int main(void) {
  float a[4 * 3] = {1, 2, 0, 0, 1, 1, 2, 0, 1, 1, 1, 1};   /* inputs  [4 samples, 3]          */
  float g[4 * 2] = {.1f, -.1f, .2f, 0, -.1f, .1f, 0, .2f}; /* d(mean loss)/d(output) [4, 2]   */
  float grad[2 * 3] = {0};                                 /* weight gradient [2, 3] = g' a   */
  for (int n = 0; n < 4; n++)
    for (int i = 0; i < 6; i++)
      grad[i] += g[n * 2 + i / 3] * a[n * 3 + i % 3];

  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  ng_batch batch;
  int32_t fc;
  char why[256] = "";
  ng_array in = ng_array_matrix(a, 4, 3, NG_F32), out = ng_array_matrix(g, 4, 2, NG_F32);
  ng_array dw = ng_array_matrix(grad, 2, 3, NG_F32);
  if (ng_context_create(NG_VERSION, NULL, why, sizeof why, &ctx))
    return fprintf(stderr, "%s\n", why), 1;
  if (ng_precond_create(ctx, "clip=none", &p) || ng_add_linear(p, "fc", 3, 2, 0, &fc) ||
      ng_bind_grad(p, fc, NG_WEIGHT, &dw) || ng_ready(p))
    return fprintf(stderr, "%s\n", ng_last_error(ctx)), 1;

  ng_batch_init(&batch, sizeof batch);
  batch.samples = 4;
  if (ng_begin(p, &batch) || ng_observe_input(p, fc, &in, NG_COPY) ||
      ng_observe_output_grad(p, fc, &out, NG_COPY) || ng_step(p, 0.1) < 0)
    return fprintf(stderr, "%s\n", ng_last_error(ctx)), 1;
  printf("preconditioned: %.3f %.3f %.3f | %.3f %.3f %.3f\n", grad[0], grad[1], grad[2], grad[3],
         grad[4], grad[5]);
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
  return 0;
}
