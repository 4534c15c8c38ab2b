/* words.h: the distance between a misspelt word and a name. */
#ifndef NG_WORDS_H
#define NG_WORDS_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the longest word that is compared. */
enum { NG_WORD_MOST = 63 };

/* Return the number of letters to insert, delete, change or swap to get from a (na bytes) to b (nb
 * bytes; Damerau 1964, each letter changed once at most); INT32_MAX if a word is longer than
 * NG_WORD_MOST. Two letters are equal if `letter` maps both to the same letter. */
int32_t ng_word_distance(const char *a, size_t na, const char *b, size_t nb, char (*letter)(char));

#endif
