/* damaged.h: unreadable files of a set of images. Each is counted and named once, whichever rank finds it; more
 * than 1 % of the files is an error.
 *
 * Each rank records the files that it finds; damaged_agree shares them, so that all ranks decide alike.
 * Checkpoints contain the list. */
#ifndef DAMAGED_H
#define DAMAGED_H

#include "data/images.h"
#include "ranks.h"

typedef struct damaged {
  image_set *set;             /* NULL: the data are no files; nothing below is used */
  uint8_t *known;             /* [files] */
  int32_t count;              /* files known to all ranks */
  struct damaged_file *found; /* found by this rank since the last damaged_agree */
  int32_t n_found, room;
} damaged;

/* Start with the files that earlier runs of this process found. */
void damaged_create(const data_set *d, damaged *out);
void damaged_free(damaged *a);

void damaged_found(damaged *a, const image_list *list, int32_t row, const char *why);
/* True: this rank alone has found too many. */
bool damaged_too_many(const damaged *a);
/* Share the `n` files that all ranks have found (the sum of n_found); collective unless n is 0. The finder names
 * each file. CLI_BAD after one message: more than 1 %. */
int damaged_agree(damaged *a, const run_ranks *r, int64_t n);

/* The numbers of the files, separated by commas, for free(); NULL: none. */
char *damaged_text(const damaged *a);
/* Read that text; false: invalid, nothing changed. */
bool damaged_read(damaged *a, const char *text);
int damaged_share(damaged *a, const run_ranks *r); /* Send the list of rank 0 to all; collective. */

#endif
