/* shapes_transformer.c: linear layers of transformer encoders and decoders by name, as K-FAC takes them: what
 * is in the blocks and the pooler, without embeddings, norms and the head over all words. */
#include "shapes.h"

#include <stdio.h>
#include <string.h>

typedef struct transformer {
  const char *name;
  int blocks;
  int64_t width, inner, tokens; /* of one sample */
  bool fused;                   /* query, key and value are one layer */
  bool pooler;
} transformer;

/* Devlin et al. 2019 (arXiv 1810.04805), sequences of 512 as in its second phase; 24 blocks of the width of
 * GPT-2 medium (Radford et al. 2019), sequences of 1,024. */
static const transformer table[] = {
    {"bert-base", 12, 768, 3072, 512, false, true},
    {"bert-large", 24, 1024, 4096, 512, false, true},
    {"gpt-24", 24, 1024, 4096, 1024, true, false},
};
enum { TABLE = sizeof table / sizeof table[0] };

/* Cut as Megatron-LM does (Shoeybi et al. 2019, arXiv 1909.08053): what makes heads and the inner layer by outputs, what
 * brings them together by inputs. */
static void add(shapes *out, int64_t in, int64_t to, int64_t positions, int block, const char *part,
                shape_split split) {
  shape *l = &out->layer[out->n++];
  if (block < 0) {
    (void)snprintf(l->name, sizeof l->name, "%s", part);
  } else {
    (void)snprintf(l->name, sizeof l->name, "layer%d.%s", block, part);
  }
  l->bias = true;
  l->in = in;
  l->out = to;
  l->positions = positions;
  l->split = split;
  l->p = in + 1;
  l->q = to;
}

bool shapes_transformer(const char *name, shapes *out) {
  const transformer *t = NULL;
  for (int i = 0; i < TABLE; i++) {
    if (strcmp(table[i].name, name) == 0) t = &table[i];
  }
  for (int i = 0; t != NULL && i < t->blocks; i++) {
    static const char *const parts[] = {"query", "key", "value"};
    if (t->fused) add(out, t->width, 3 * t->width, t->tokens, i, "query_key_value", SPLIT_OUTPUT);
    for (int k = 0; k < 3 && !t->fused; k++)
      add(out, t->width, t->width, t->tokens, i, parts[k], SPLIT_OUTPUT);
    add(out, t->width, t->width, t->tokens, i, "output", SPLIT_INPUT);
    add(out, t->width, t->inner, t->tokens, i, "inner", SPLIT_OUTPUT);
    add(out, t->inner, t->width, t->tokens, i, "outer", SPLIT_INPUT);
  }
  if (t != NULL && t->pooler) add(out, t->width, t->width, 1, -1, "pooler", SPLIT_NOT);
  return t != NULL;
}
