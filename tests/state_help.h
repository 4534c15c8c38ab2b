/* state_help.h: what the tests of the state share: files of the test folder, files compared, a small run to save from. */
#ifndef TESTS_STATE_HELP_H
#define TESTS_STATE_HELP_H

#include "folder.h"
#include "sim.h"

typedef struct path {
  char text[160];
} path;

path path_of(const char *name);

typedef struct names {
  int32_t n;
  char text[32][256];
} names;

names list_folder(void); /* all that is there, in order of names */
void clear_folder(void);
/* Of a state that `ranks` ranks have saved in parts under `base`, the file of rank r. */
path file_of_part(const char *base, int32_t r, int32_t ranks);
void assert_same_file(const char *a, const char *b);

extern const sim_setup plain, spread; /* spread: ranks hold what others do not */

void open_at(sim *s, const sim_setup *how, int64_t to); /* opened, and so many steps made */

/* The last call was refused in one line with these words, and nothing of *s changed since `before` (its
 * fingerprint); after all refusals, the next step is that of one who never tried. */
void assert_refusal(const sim *s, const char *says, uint64_t before);
void assert_untouched(sim *s, const sim_setup *how, int64_t at);

/* What each of several ranks does: steps, load, save.  A rank has the status of the last call. */
typedef struct transfer {
  const sim_setup *how; /* NULL: spread */
  int32_t steps;
  const char *load, *one, *parts; /* loaded; saved in one file, and in parts; NULL: not */
  const char *apart;              /* the last rank saves its part here */
  const char *says;   /* a refusal has these words and changes nothing, on every rank, */
  int32_t wrong[8];   /* or else this is not 0 */
  int32_t changed[8]; /* by a load that was refused */
  char message[512];  /* of rank 0 */
} transfer;

/* `arg` is a transfer.  Asserts nothing. */
ng_status play_transfer(int32_t rank, ng_transport *t, void *arg);
void must_transfer(int32_t ranks, transfer x); /* all ranks succeed */

#endif
