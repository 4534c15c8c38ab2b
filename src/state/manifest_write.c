/* manifest_write.c: write the manifest, which manifest.c describes and reads.  The manifest of 10,000 layers has about
 * a hundred thousand values, so the text is written directly, without a tree of values. */
#include "state/work.h"

/* Write every option as a text that ng_options_set reads. */
static void write_options(const ng_precond *p, ngio_out *o) {
  char text[NG_TEXT_SIZE];
  ngio_open(o, "options", '{');
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    (void)ng_option_write(&ng_option_table[i], &p->opt, text, sizeof text);
    ngio_put_text(o, ng_option_table[i].name, text);
  }
  ngio_shut(o, '}');
}

static void write_layers(const ng_precond *p, const double *missed, ngio_out *o) {
  char is[NG_MESSAGE];
  ngio_open(o, "layers", '[');
  for (int32_t i = 0; i < p->entries; i++) {
    const ng_entry *e = p->entry[i];
    ng_manifest_describe(ng_entry_whole(e), is);
    ngio_open(o, NULL, '{');
    ngio_put_text(o, "name", e->d.name);
    ngio_put_text(o, "is", is);
    ngio_put_text(o, "options", e->d.options == NULL ? "" : e->d.options);
    if (missed[i] > 0.0) ngio_put_integer(o, "missed", (int64_t)missed[i]);
    ngio_shut(o, '}');
  }
  ngio_shut(o, ']');
}

static void write_blocks(const ng_work *w, ngio_out *o) {
  const char *name = w->number_names.text;
  const double *value = w->values;
  ngio_open(o, "blocks", '{');
  for (int32_t i = 0; i < w->p->blocks; i++, name++) {
    ngio_open(o, w->p->block[i]->name, '{');
    for (; *name != 0; name += strlen(name) + 1)
      ngio_put_real(o, name, *value++);
    ngio_shut(o, '}');
  }
  ngio_shut(o, '}');
}

/* A clip factor or `inner` that is not finite must not prevent a save. */
static double finite_or(double x, double otherwise) { return x - x == 0.0 ? x : otherwise; }

/* Check that JSON can represent all texts and numbers: it is UTF-8 and has only finite numbers. */
static bool can_be_written(ng_work *w) {
  const ng_precond *p = w->p;
  if (p->steps > NG_COUNT_MOST || p->skipped > NG_COUNT_MOST) {
    return ng_work_fail(w, NG_ERR_FILE, "the number of steps exceeds 2^53");
  }
  for (int32_t i = 0; i < p->entries; i++) {
    const ng_layer *d = &p->entry[i]->d;
    if (!ngio_is_utf8(d->name) || (d->options != NULL && !ngio_is_utf8(d->options))) {
      return ng_work_fail(w, NG_ERR_FILE, "layer '%s': its name is not UTF-8", d->name);
    }
  }
  if (!ngio_is_utf8(p->opt.skip_layers) || !ngio_is_utf8(p->opt.per_layer)) {
    return ng_work_fail(w, NG_ERR_FILE, "skip_layers or per_layer is not UTF-8");
  }
  for (int64_t i = 0; i < w->value_count; i++) {
    if (!(w->values[i] - w->values[i] == 0.0)) {
      return ng_work_fail(w, NG_ERR_FILE, "number %lld of the blocks is not finite", (long long)i);
    }
  }
  return true;
}

/* Keys have a fixed order, so that the same state gives the same bytes. */
bool ng_manifest_begin(ng_work *w, int32_t parts) {
  ng_precond *p = w->p;
  ngio_out *o = &w->out;
  char version[32];
  if (!can_be_written(w)) return false;
  (void)snprintf(version, sizeof version, "%d.%d.%d", NG_VERSION_MAJOR, NG_VERSION_MINOR,
                 NG_VERSION_PATCH);
  ngio_open(o, NULL, '{');
  ngio_put_integer(o, "format", parts == 1 ? NG_STATE_FORMAT : NG_STATE_PARTS);
  /* for people who read the file; ng_load ignores this text */
  ngio_put_text(o, "library", version);
  ngio_put_text(o, "method", p->opt.base.method);
  write_options(p, o);
  ngio_open(o, "counters", '{');
  ngio_put_integer(o, "steps", p->steps);
  ngio_put_integer(o, "updates", p->updates);
  ngio_put_integer(o, "skipped", p->skipped);
  for (int i = 0; i < NG_RESCUES; i++)
    ngio_put_integer(o, ng_rung_name[i], (int64_t)w->values[w->value_count + i]);
  ngio_shut(o, '}');
  ngio_open(o, "last", '{');
  ngio_put_real(o, "clip", finite_or(p->step->nu, 1.0));
  ngio_put_real(o, "inner", finite_or(p->step->inner, 0.0));
  ngio_shut(o, '}');
  write_layers(p, w->values + w->value_count - p->entries, o);
  write_blocks(w, o);
  ngio_open(o, "tensors", '{');
  return true;
}

void ng_manifest_tensor(ngio_out *o, const char *name, const char *crc, bool finite) {
  ngio_put_key(o, name);
  ngio_out_put(o, "{\"crc32\":\"");
  ngio_out_put(o, crc); /* digits */
  ngio_out_put(o, finite ? "\",\"finite\":true}" : "\",\"finite\":false}");
}

void ng_manifest_open(ngio_out *o, const ng_item *item) {
  const ngio_tensor t = ng_tensor_describe(item->name, &item->field, NULL);
  ngio_open(o, item->name, '{');
  ngio_open(o, "shape", '[');
  for (int32_t i = 0; i < t.ndim; i++)
    ngio_put_integer(o, NULL, t.shape[i]);
  ngio_shut(o, ']');
  ngio_open(o, "pieces", '[');
}

void ng_manifest_piece(ngio_out *o, const ng_part_piece *q) {
  ngio_open(o, NULL, '{');
  ngio_put_integer(o, "part", q->part);
  if (!q->is_whole) {
    ngio_put_integer(o, q->by_rows ? "from_row" : "from", q->from);
    ngio_put_integer(o, q->by_rows ? "to_row" : "to", q->to);
  }
  ngio_put_text(o, "crc32", q->crc);
  ngio_put_flag(o, "finite", q->finite);
  ngio_shut(o, '}');
}

bool ng_manifest_end(ng_work *w, const int64_t *bytes, const int64_t *tensors, int32_t parts) {
  ngio_out *o = &w->out;
  ngio_shut(o, '}');
  if (parts > 1) ngio_open(o, "parts", '[');
  for (int32_t r = 0; r < parts && parts > 1; r++) {
    ngio_open(o, NULL, '{');
    ngio_put_integer(o, "bytes", bytes[r]);
    ngio_put_integer(o, "tensors", tensors[r]);
    ngio_shut(o, '}');
  }
  if (parts > 1) ngio_shut(o, ']');
  ngio_out_bytes(o, "}", sizeof "}"); /* sizeof includes the terminating 0 */
  if (o->lost) (void)ng_work_fail(w, NG_ERR_NOMEM, "no memory for the manifest");
  return w->st == NG_OK;
}
