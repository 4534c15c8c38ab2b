/* families.c: the families there are, by name. */
#include "model/model.h"

static const ng_family_ops *const all[] = {&ng_family_kronecker, &ng_family_rankone};

const ng_family_ops *ng_family_find(const char *name) {
  for (size_t i = 0; name != NULL && i < sizeof all / sizeof all[0]; i++) {
    if (ng_is(all[i]->name, name)) return all[i];
  }
  return NULL;
}
