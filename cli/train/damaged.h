/* damaged.h: which files of a set of images are no good, as a run finds out.  Each is counted once, however
 * often and by whichever rank it was met, and named once; more than 1 % of the files is an error.
 *
 * A rank notes what it finds; damaged_agree makes it what all ranks know.  With the same runs behind
 * them all ranks know the same, so all of them end with the same.  A checkpoint has the list. */
#ifndef DAMAGED_H
#define DAMAGED_H

#include "data/images.h"
#include "ranks.h"

typedef struct damaged {
  image_set *set;             /* NULL: the data are no files, and nothing below is used */
  uint8_t *known;             /* [files] */
  int32_t count;              /* of them, known to all ranks */
  struct damaged_file *found; /* by this rank since then */
  int32_t n_found, room;
} damaged;

/* What an earlier run of this process knew of the set is known. */
void damaged_create(const data_set *d, damaged *out);
void damaged_free(damaged *a);

void damaged_found(damaged *a, const image_list *list, int32_t row, const char *why);
/* Of what this rank has found alone: there is no going on. */
bool damaged_too_many(const damaged *a);
/* `n`: how many all ranks have found, the sum of their n_found.  Collective unless that is 0.  Who found a file
 * names it.  CLI_BAD, told by one rank for all: these are more than 1 %. */
int damaged_agree(damaged *a, const run_ranks *r, int64_t n);

/* Numbers of files with commas between, for free(); NULL: there are none. */
char *damaged_text(const damaged *a);
/* And back; false: these are no such numbers, and nothing is known. */
bool damaged_read(damaged *a, const char *text);
int damaged_tell(damaged *a, const run_ranks *r); /* rank 0's, to all; collective */

#endif
