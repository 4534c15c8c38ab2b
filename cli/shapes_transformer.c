/* shapes_transformer.c: list the layers of transformer encoders and decoders. The output layer over all words is
 * omitted, because it shares its weight with the word embedding. */
#include "shapes.h"

#include <stdio.h>
#include <string.h>

typedef struct transformer {
  const char *name;
  int blocks;
  /* number of features of a block; of its inner layer; number of tokens of a sample */
  int64_t width, inner, tokens;
  int64_t words, types; /* rows of the word embedding; of the type embedding (0: none) */
  bool fused;           /* true: query, key and value are one layer; false: three layers */
  /* true: a norm after each sublayer, and a pooler; false: a norm before each sublayer, and a final norm */
  bool encoder;
} transformer;

/* bert-*: Devlin et al. 2019 (arXiv 1810.04805), with 512 tokens a sample, as in the second phase of the training.
 * gpt-24: GPT-2 medium (Radford et al. 2019), with 1,024 tokens a sample. */
static const transformer table[] = {
    {"bert-base", 12, 768, 3072, 512, 30522, 2, false, true},
    {"bert-large", 24, 1024, 4096, 512, 30522, 2, false, true},
    {"gpt-24", 24, 1024, 4096, 1024, 50257, 0, true, false},
};
enum { TABLE = sizeof table / sizeof table[0] };

typedef struct list {
  const transformer *t;
  shapes *out;
} list;

static shape *append_layer(list *to, int block, const char *part) {
  shape *l = &to->out->layer[to->out->n++];
  char prefix[24] = "";
  if (block >= 0) (void)snprintf(prefix, sizeof prefix, "layer%d.", block);
  (void)snprintf(l->name, sizeof l->name, "%s%s", prefix, part);
  return l;
}

/* Add a linear layer. Splits follow Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053): query, key, value and the
 * inner layer are split along their outputs; the layers that read their results are split along their inputs. */
static void add_linear(list *to, int64_t in, int64_t out, int64_t positions, int block,
                       const char *part, shape_split split) {
  shape *l = append_layer(to, block, part);
  l->has_bias = true;
  l->in = in;
  l->out = out;
  l->positions = positions;
  l->split = split;
  l->p = in + 1;
  l->q = out;
}

static void add_norm(list *to, int block, const char *part) {
  shape *l = append_layer(to, block, part);
  shapes_set_norm(l, to->t->width, NG_LAYER_NORM, 1e-5);
}

static void add_embedding(list *to, int64_t tokens, const char *part) {
  if (tokens > 0)
    shapes_set_embedding(append_layer(to, -1, part), tokens, to->t->width, to->t->tokens);
}

bool shapes_list_transformer(const char *name, shapes *out) {
  const transformer *t = NULL;
  for (int i = 0; i < TABLE; i++)
    if (strcmp(table[i].name, name) == 0) t = &table[i];
  if (t == NULL) return false;
  list to = {t, out};
  add_embedding(&to, t->words, "embeddings.word");
  add_embedding(&to, t->tokens, "embeddings.position");
  add_embedding(&to, t->types, "embeddings.type");
  if (t->encoder) add_norm(&to, -1, "embeddings.norm");
  for (int i = 0; i < t->blocks; i++) {
    static const char *const parts[] = {"query", "key", "value"};
    if (!t->encoder) add_norm(&to, i, "norm1");
    if (t->fused)
      add_linear(&to, t->width, 3 * t->width, t->tokens, i, "query_key_value", SPLIT_OUTPUT);
    for (int k = 0; k < 3 && !t->fused; k++)
      add_linear(&to, t->width, t->width, t->tokens, i, parts[k], SPLIT_OUTPUT);
    add_linear(&to, t->width, t->width, t->tokens, i, "output", SPLIT_INPUT);
    add_norm(&to, i, t->encoder ? "norm1" : "norm2");
    add_linear(&to, t->width, t->inner, t->tokens, i, "inner", SPLIT_OUTPUT);
    add_linear(&to, t->inner, t->width, t->tokens, i, "outer", SPLIT_INPUT);
    if (t->encoder) add_norm(&to, i, "norm2");
  }
  if (t->encoder) add_linear(&to, t->width, t->width, 1, -1, "pooler", SPLIT_NONE);
  if (!t->encoder) add_norm(&to, -1, "norm");
  return true;
}
