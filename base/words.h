/* words.h: how near a word that somebody typed is to a name. */
#ifndef NG_WORDS_H
#define NG_WORDS_H

#include <stddef.h>
#include <stdint.h>

/* Longer words than this are compared with nothing. */
enum { NG_WORD_MOST = 63 };

/* Letters to put in, leave out, change or swap with a neighbour to come from a to b (Damerau 1964, in
 * the restricted form that touches no letter twice); INT32_MAX if either is too long.  Two letters
 * are the same if `letter` says the same of both. */
int32_t ng_word_distance(const char *a, size_t na, const char *b, size_t nb, char (*letter)(char));

#endif
