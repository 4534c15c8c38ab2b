/* models_gpt.c: a decoder that predicts the next token at each position (GPT-2, Radford et al. 2019): embeddings of
 * tokens and positions, blocks with norms before attention and MLP, a final norm, and a linear layer with a weight of
 * its own. Parameters have the names of nanoGPT.
 *
 * Weights are normal with deviation 0.02; the layers that add to the residual stream have 0.02 / sqrt(2 blocks). */
#include "models.h"

#include <math.h>
#include <stdio.h>

static int add_part(nn *n, int64_t block, const char *part, int x,
                    int (*add)(nn *n, const char *name, int x)) {
  char name[NN_NAME];
  (void)snprintf(name, sizeof name, "transformer.h.%d.%s", (int)block, part);
  return add(n, name, x);
}

static int add_linear(nn *n, int64_t block, const char *part, int x, int64_t out,
                      double deviation) {
  char name[NN_NAME];
  (void)snprintf(name, sizeof name, "transformer.h.%d.%s", (int)block, part);
  nn_set_normal_initializer(n, deviation);
  return nn_add_projection(n, name, x, out, true);
}

void gpt_add(nn *n, const model_task *t, int x, const int64_t number[MODEL_NUMBERS]) {
  const int64_t width = number[0], blocks = number[1], heads = number[2];
  const double plain = 0.02, residual = plain / sqrt(2.0 * (double)blocks);
  nn_set_normal_initializer(n, plain);
  const int token = nn_add_embedding(n, "transformer.wte", x, t->classes, width);
  const int position = nn_add_embedding(n, "transformer.wpe", nn_add_positions(n, x),
                                        nn_count_values(t->input), width);
  x = nn_add_sum(n, token, position);
  for (int64_t i = 0; i < blocks; i++) {
    int y = add_part(n, i, "ln_1", x, nn_add_layer_norm);
    y = nn_add_attention(n, add_linear(n, i, "attn.c_attn", y, 3 * width, plain), heads);
    x = nn_add_sum(n, add_linear(n, i, "attn.c_proj", y, width, residual), x);
    y = add_part(n, i, "ln_2", x, nn_add_layer_norm);
    y = nn_add_gelu(n, add_linear(n, i, "mlp.c_fc", y, 4 * width, plain));
    x = nn_add_sum(n, add_linear(n, i, "mlp.c_proj", y, width, residual), x);
  }
  x = nn_add_layer_norm(n, "transformer.ln_f", x);
  nn_set_normal_initializer(n, plain);
  (void)nn_add_projection(n, "lm_head", x, t->classes, false);
}
