/* state_help.h: helpers for tests of the state: files of the test folder, comparisons, runs that save and load. */
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

names list_folder(void); /* sorted */
void clear_folder(void);
/* The file of rank r, of a state that `ranks` ranks saved in parts under `base`. */
path file_of_part(const char *base, int32_t r, int32_t ranks);
void assert_same_file(const char *a, const char *b);

extern const sim_setup plain, spread; /* spread: ranks store different statistics */

void open_and_step(sim *s, const sim_setup *how, int64_t to); /* open and take `to` steps */

/* Fail unless the message of the last call is one line that contains `says`, and the fingerprint of s is `before`. */
void assert_refusal(const sim *s, const char *says, uint64_t before);
/* Step `at` of s equals step `at` of a new sim that made no refused calls. */
void assert_untouched(sim *s, const sim_setup *how, int64_t at);

/* What each rank does: take steps, load a state, save the state. The rank returns the status of its last call. */
typedef struct transfer {
  const sim_setup *how; /* NULL: spread */
  int32_t steps;        /* taken before the load */
  /* files: load from `load`; save to one file; save in parts; NULL: skip this */
  const char *load, *one, *parts;
  const char *last_part; /* file of the last rank's part */
  int before_save;       /* not 0: rank 0 writes one byte to this file descriptor before it saves */
  /* not NULL: the load fails on every rank, with a message that contains this text */
  const char *says;
  int32_t wrong_refusal[8]; /* 1 if the rank got another status or message */
  int32_t changed[8];       /* the refused load changed the rank */
  char message[512];        /* message on rank 0 */
} transfer;

/* `arg` is a transfer.  Assert nothing. */
ng_status run_transfer(int32_t rank, ng_transport *t, void *arg);
void must_transfer(int32_t ranks, transfer x); /* all ranks succeed */

#endif
