/* expected.c: what a file that was written here must say of its tensors, and whether it does; see work.h.
 *
 * A model of 10,000 layers has 66,000 arrays, and a JSON text of two lines for each.  All but the checksums is known
 * to who loads, so it is compared instead of understood: entry after entry against what would be written.
 * One byte that differs, and all of it is read as what anybody may have written. */
#include "state/work.h"

void ng_expected_tensor(void *work, int32_t i, ngio_tensor *t) {
  const ng_work *w = work;
  *t = ng_tensor_of(&w->item[i]);
}

/* The entry of an item as its text, with a checksum of zeros. */
static void make_entry(ngio_out *o, const ng_item *item, bool finite) {
  o->used = 0;
  ng_manifest_tensor(o, item->name, "00000000", finite);
}

/* How far the checksum is from the end of an entry. */
static const size_t behind_crc[2] = {sizeof "\",\"finite\":false}" - 1,
                                     sizeof "\",\"finite\":true}" - 1};

static bool same_entry(const ngio_out *o, bool finite, const char *text, size_t n) {
  const size_t crc = o->used - behind_crc[finite] - NG_HEX;
  return !o->lost && o->used <= n && memcmp(o->text, text, crc) == 0 &&
         memcmp(o->text + crc + NG_HEX, text + crc + NG_HEX, behind_crc[finite]) == 0;
}

/* From `text` on: all entries, and the brackets of the map and of the manifest. */
static bool all_entries(ng_work *w, ngio_out *o, const char *text, size_t n) {
  for (int32_t i = 0; i < w->fields; i++) {
    ng_item *item = &w->item[i];
    bool same = false, says = true; /* that it is finite */
    if (i > 0 && (n == 0 || *text != ',')) return false;
    text += i > 0;
    n -= i > 0;
    for (int finite = 1; finite >= 0 && !same; finite--) {
      make_entry(o, item, finite == 1);
      same = same_entry(o, finite == 1, text, n);
      says = finite == 1;
    }
    if (!same) return false;
    item->crc = text + o->used - behind_crc[says] - NG_HEX;
    text += o->used;
    n -= o->used;
  }
  return n == 2 && memcmp(text, "}}", 2) == 0;
}

static const char begin[] = ",\"tensors\":{";

const char *ng_expected_place(const char *at, size_t n) {
  return memmem(at, n, begin, sizeof begin - 1);
}

bool ng_expected_entries(ng_work *w, const char *at, size_t n, bool *lost) {
  const size_t length = sizeof begin - 1;
  ngio_out o = {0};
  const bool all = all_entries(w, &o, at + length, n - length);
  *lost = o.lost;
  ngio_out_free(&o);
  for (int32_t i = 0; i < w->fields && !all; i++)
    w->item[i].crc = NULL;
  return all;
}
