/* manifest.h: what the writer and the reader of a manifest must say in the same words; for these two alone.
 *
 * In:  a layer, a number.
 * Out: how the manifest calls it. */
#ifndef NG_STATE_MANIFEST_H
#define NG_STATE_MANIFEST_H

#include "state/state.h"

/* JSON numbers are doubles elsewhere: counts are exact up to here, and no larger one is written or taken. */
#define NG_COUNT_MOST (INT64_C(1) << 53)

extern const char *const ng_rung_name[NG_RESCUES];
void ng_manifest_describe(const ng_entry *e, char *text, size_t size);
size_t ng_manifest_room(const ng_precond *p); /* for the text of any option */
bool ng_manifest_option(int32_t i, ng_option_info *info);

#endif
