/* oracle_tools.c: the parts of oracle.h that know nothing of curvature: sizes of layers, dense
 * eigenvalues and solves, the generator of the published numbers, the formulas of SGD and AdamW.
 */
#include "oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double *copy_of(const double *v, int64_t n) {
  double *w = malloc(sizeof(double) * (size_t)(n > 0 ? n : 1));
  if (!w) {
    fprintf(stderr, "oracle: no memory\n");
    abort();
  }
  memcpy(w, v, sizeof(double) * (size_t)n);
  return w;
}

/* ---- geometry --------------------------------------------------------------------------------*/

int64_t oracle_out(const ng_layer *l, int axis) {
  int64_t reach = l->dilation[axis] * (l->kernel[axis] - 1) + 1;
  return (l->image[axis] + 2 * l->padding[axis] - reach) / l->stride[axis] + 1;
}

int64_t oracle_positions(const ng_layer *l) {
  return l->kind == NG_CONV2D ? oracle_out(l, 0) * oracle_out(l, 1) : 1;
}

int64_t oracle_rows(const ng_layer *l) { return l->out; }

int64_t oracle_cols(const ng_layer *l) {
  if (l->kind == NG_NORM) return (l->norm_no_weight ? 0 : 1) + (l->bias ? 1 : 0);
  int64_t p = l->kind == NG_CONV2D ? l->in / l->groups * l->kernel[0] * l->kernel[1] : l->in;
  return p + (l->bias ? 1 : 0);
}

/* ---- dense tools -----------------------------------------------------------------------------*/

void oracle_eigen(int64_t n, const double *M, double *d, double *Q) {
  double *S = copy_of(M, n * n);
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < n; j++)
      Q[i * n + j] = i == j ? 1 : 0;
  }
  for (int sweep = 0; sweep < 100; sweep++) {
    double off = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = 0; j < n; j++) {
        all += S[i * n + j] * S[i * n + j];
        if (i != j) off += S[i * n + j] * S[i * n + j];
      }
    }
    if (off <= 1e-32 * all) break;
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = i + 1; j < n; j++) {
        double sij = S[i * n + j];
        if (sij == 0) continue;
        double theta = (S[j * n + j] - S[i * n + i]) / (2 * sij);
        double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1));
        double c = 1 / sqrt(t * t + 1), s = t * c;
        for (int64_t k = 0; k < n; k++) {
          double x = S[k * n + i], y = S[k * n + j];
          S[k * n + i] = c * x - s * y;
          S[k * n + j] = s * x + c * y;
        }
        for (int64_t k = 0; k < n; k++) {
          double x = S[i * n + k], y = S[j * n + k];
          S[i * n + k] = c * x - s * y;
          S[j * n + k] = s * x + c * y;
        }
        for (int64_t k = 0; k < n; k++) {
          double x = Q[k * n + i], y = Q[k * n + j];
          Q[k * n + i] = c * x - s * y;
          Q[k * n + j] = s * x + c * y;
        }
      }
    }
  }
  for (int64_t i = 0; i < n; i++)
    d[i] = S[i * n + i];
  free(S);
}

void oracle_solve(int64_t n, const double *M, int64_t m, double *R) {
  double *S = copy_of(M, n * n);
  for (int64_t k = 0; k < n; k++) {
    int64_t best = k;
    for (int64_t i = k + 1; i < n; i++) {
      if (fabs(S[i * n + k]) > fabs(S[best * n + k])) best = i;
    }
    if (S[best * n + k] == 0) {
      fprintf(stderr, "oracle: singular matrix\n");
      abort();
    }
    for (int64_t j = 0; j < n; j++) {
      double x = S[k * n + j];
      S[k * n + j] = S[best * n + j];
      S[best * n + j] = x;
    }
    for (int64_t j = 0; j < m; j++) {
      double x = R[k * m + j];
      R[k * m + j] = R[best * m + j];
      R[best * m + j] = x;
    }
    for (int64_t i = 0; i < n; i++) {
      if (i == k) continue;
      double f = S[i * n + k] / S[k * n + k];
      for (int64_t j = k; j < n; j++)
        S[i * n + j] -= f * S[k * n + j];
      for (int64_t j = 0; j < m; j++)
        R[i * m + j] -= f * R[k * m + j];
    }
  }
  for (int64_t k = 0; k < n; k++) {
    for (int64_t j = 0; j < m; j++)
      R[k * m + j] /= S[k * n + k];
  }
  free(S);
}

void oracle_pattern(double *out, int64_t n, int64_t m1, int64_t b, int64_t mod, double s) {
  for (int64_t k = 0; k < n; k++) {
    out[k] = ((double)((m1 * k + b) % mod) - (double)(mod - 1) / 2) / s;
  }
}

/* ---- updates ---------------------------------------------------------------------------------*/

void oracle_sgd(const ng_sgd *s, int64_t t, int64_t n, const double *d, double *w, double *v) {
  for (int64_t i = 0; i < n; i++) {
    double e = d[i] + (s->decoupled ? 0 : s->weight_decay * w[i]);
    v[i] = t == 1 ? e : s->momentum * v[i] + (1 - s->dampening) * e;
    double keep = s->decoupled ? 1 - s->lr * s->weight_decay : 1;
    double use = s->momentum == 0 ? e : s->nesterov ? e + s->momentum * v[i] : v[i];
    w[i] = keep * w[i] - s->lr * use;
  }
}

void oracle_adamw(const ng_adamw *a, int64_t t, int64_t n, const double *d, double *w, double *m,
                  double *s) {
  for (int64_t i = 0; i < n; i++) {
    m[i] = a->beta1 * m[i] + (1 - a->beta1) * d[i];
    s[i] = a->beta2 * s[i] + (1 - a->beta2) * d[i] * d[i];
    double mh = m[i] / (1 - pow(a->beta1, (double)t)), sh = s[i] / (1 - pow(a->beta2, (double)t));
    w[i] = (1 - a->lr * a->weight_decay) * w[i] - a->lr * mh / (sqrt(sh) + a->eps);
  }
}
