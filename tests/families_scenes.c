/* families_scenes.c: the scenes of families.h, what is changed in them, and numbers. */
#include "families.h"

#include <math.h>

/* ---- scenes ----------------------------------------------------------------------------------*/

static void grouped(scene *s) {
  ng_layer *l = scene_conv(s, 4, 6, 3, 2, 7, 5, true);
  l->groups = l->stride[0] = l->dilation[1] = 2;
  l->padding[0] = 1;
}

/* Those that others look at alone are the first and the last. */
static void beside_norms(const variant *v, scene *s) {
  scene_linear(s, 7, 4, true, 1);
  scene_norm(s, NG_LAYER_NORM, 5, 1, 3);
  ng_layer *l = scene_norm(s, NG_BATCH_NORM, 4, 3, 2);
  if (!(v->f->promises & RAW)) l->norm_input = NG_NORM_NORMALISED;
  l = scene_norm(s, NG_GROUP_NORM, 6, 2, 3);
  l->groups = 2;
  l->bias = 0;
  if (v->f->promises & TOKENS) scene_embedding(s, 9, 4, 2)->token_dtype = NG_I32;
  grouped(s);
}

scene *v_layers_of(const variant *v, int32_t steps, int32_t ranks) {
  scene *s = scene_create(steps, ranks);
  if (v->f->promises & NORMS) {
    beside_norms(v, s);
    scene_close(s);
    return s;
  }
  scene_linear(s, 7, 4, true, 1);
  scene_linear(s, 5, 3, false, 3);
  ng_layer *l = scene_conv(s, 3, 4, 3, 3, 5, 6, true);
  l->padding[0] = l->padding[1] = 1;
  grouped(s);
  scene_close(s);
  return s;
}

scene *v_uneven(const variant *v, int32_t steps, int32_t ranks, uint64_t salt) {
  rng r = {test_seed() ^ salt};
  scene *s = v_layers_of(v, steps, ranks);
  for (int32_t t = 0; t < steps; t++) {
    for (int32_t k = 0; k < ranks; k++) {
      for (int64_t c = 1 + (k + t) % 2; c > 0; c--)
        scene_call(s, t, k, 1 + (3 * k + t + c) % 5)->batch.reduction = NG_SUM;
    }
  }
  scene_fill(s, &r);
  return s;
}

scene *v_even(const variant *v, int32_t steps, int32_t ranks, uint64_t salt) {
  rng r = {test_seed() ^ salt};
  scene *s = v_layers_of(v, steps, ranks);
  for (int32_t t = 0; t < steps; t++) {
    for (int32_t k = 0; k < ranks; k++)
      scene_call(s, t, k, 3)->batch.reduction = NG_SUM;
  }
  scene_fill(s, &r);
  return s;
}

static void scale(scene *s, double c, bool by_samples) {
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t r = 0; r < s->ranks; r++) {
      for (int32_t k = 0; k < s->calls[t][r]; k++) {
        scene_micro *m = &s->micro[t][r][k];
        if (by_samples) m->batch.reduction = NG_MEAN;
        for (int32_t l = 0; l < s->layers; l++) {
          for (int32_t u = 0; u < s->uses[l]; u++) {
            for (int64_t i = 0; i < scene_out_count(s, l, m->batch.samples); i++)
              m->g[l][u][i] *= by_samples ? 1 / (double)m->batch.samples : c;
          }
        }
      }
    }
  }
}

void v_means(scene *s) { scale(s, 1, true); }
void v_scale_losses(scene *s, double c) { scale(s, c, false); }

void v_weights(scene *s) {
  for (int32_t l = 0; l < s->layers; l++) {
    s->W[l] = scene_room(sizeof(double) * (size_t)scene_weights(s, l));
    for (int64_t i = 0; i < scene_weights(s, l); i++)
      s->W[l][i] = 1 + (double)(i % 7) / 8;
  }
}

void v_silence(const scene *s, scene_micro *m, int32_t l, bool grad) {
  const bool tokens = s->layer[l].kind == NG_EMBEDDING && !grad;
  const int64_t B = m->batch.samples, n = grad ? scene_out_count(s, l, B) : scene_in_count(s, l, B);
  for (int32_t u = 0; u < s->uses[l]; u++) {
    for (int64_t i = 0; i < n; i++)
      (grad ? m->g : m->a)[l][u][i] = tokens ? NG_NO_TOKEN : 0;
  }
}

const char *const v_clips[V_CLIPS] = {"none", "kl", "rescale", "norm", "ratio", "rms"};

/* ---- numbers ---------------------------------------------------------------------------------*/

double v_dot(const double *x, const double *y, int64_t n) {
  double s = 0;
  for (int64_t i = 0; i < n; i++)
    s += x[i] * y[i];
  return s;
}

double v_most(const double *x, int64_t n) {
  double most = 0;
  for (int64_t i = 0; i < n; i++)
    most = fmax(most, fabs(x[i]));
  return most;
}
