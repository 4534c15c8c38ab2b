/* huge_model.c: see huge_model.h. */
#include "huge_model.h"

#include <stdio.h>
#include <string.h>

#include "step/step.h"

void *address_of(uint32_t *of, ng_dtype t, int64_t i) { return (char *)of + i * ng_dtype_size(t); }

element element_of(const model *m, int i) {
  const ng_slot *s = &m->f.p->entry[i < FC ? 0 : 1]->slot[i >= IN * OUT && i < FC];
  const int k = i < IN * OUT ? i : i < FC ? i - IN * OUT : i - FC;
  return (element){get(m->weight, m->type, i), s->m == NULL ? 0 : ((float *)s->m)[k],
                   s->v == NULL ? 0 : ((float *)s->v)[k]};
}

ng_status model_open(model *m, const char *line, const update *by, ng_dtype grads, ng_dtype type,
                     const ng_transport *transport) {
  static const int64_t rows[] = {OUT, 1, 1}, cols[] = {IN, OUT, COUNT}, from[] = {0, IN * OUT, FC};
  const char *kind = by->beta2 > 0 ? "adamw" : by->in_place ? "gradient" : "sgd";
  char options[200];
  plane grad[3], weight[3];
  memset(m, 0, sizeof *m);
  m->r.state = test_seed();
  m->grads = grads;
  m->type = type;
  (void)snprintf(options, sizeof options, "%s update=%s", line, kind);
  ng_status st = fixture_open(&m->f, options, &(fixture_how){.threads = 1, .transport = transport});
  for (int i = 0; i < ALL; i++)
    put(m->weight, type, i, (float)rng_value(&m->r));
  for (int k = 0; k < 3; k++) {
    grad[k] = plane_of(address_of(m->grad, grads, from[k]), rows[k], cols[k], grads);
    weight[k] = plane_of(address_of(m->weight, type, from[k]), rows[k], cols[k], type);
  }
  if (st == NG_OK) st = fixture_add_linear(&m->f, "fc", grad, weight);
  if (st == NG_OK) st = fixture_add_tensor(&m->f, "t", &grad[2], &weight[2]);
  return st == NG_OK ? ng_ready(m->f.p) : st;
}

void fill_model(model *m, int place, double size) {
  for (int i = 0; i < ALL; i++) {
    const float x = (float)rng_value(&m->r) / 16;
    put(m->grad, m->grads, i, i == place && size > 0 ? (float)size : x);
  }
  rng_fill(&m->r, m->a, IN);
  rng_fill(&m->r, m->g, OUT);
  if (place >= ALL && place < ALL + IN) m->a[place - ALL] = (float)size;
  if (place >= ALL + IN) m->g[place - ALL - IN] = (float)size;
}

ng_status observe_and_step(model *m, const update *by) {
  const plane a = plane_of(m->a, 1, IN, NG_F32), g = plane_of(m->g, 1, OUT, NG_F32);
  ng_status st = fixture_begin(&m->f, 1);
  if (st == NG_OK) st = plane_observe_input(m->f.p, 0, &a, NG_BORROW);
  if (st >= NG_OK) st = plane_observe_output_grad(m->f.p, 0, &g, NG_COPY);
  if (st < NG_OK) return st;
  if (by->in_place) return ng_step(m->f.p, by->lr);
  if (by->beta2 > 0) {
    ng_adamw h;
    ng_adamw_init(&h, sizeof h);
    h.lr = by->lr;
    h.beta1 = by->beta1;
    h.beta2 = by->beta2;
    h.eps = by->eps;
    h.weight_decay = by->decay;
    return ng_step_adamw(m->f.p, &h, 1);
  }
  ng_sgd h = fixture_sgd(by->lr, by->momentum);
  h.dampening = by->dampening;
  h.weight_decay = by->decay;
  h.nesterov = by->nesterov;
  h.decoupled = by->decoupled;
  return ng_step_sgd(m->f.p, &h, 1);
}

ng_status fill_and_step(model *m, const update *by, int place, double size) {
  fill_model(m, place, size);
  return observe_and_step(m, by);
}
