/* words.h: the distance between a misspelt word and a name. */
#ifndef NG_WORDS_H
#define NG_WORDS_H

#include <stddef.h>
#include <stdint.h>

/* Longer words have distance INT32_MAX. */
enum { NG_WORD_MOST = 63 };

/* Return the number of letters to insert, delete, change or swap to get from a to b (Damerau
 * 1964, each letter changed once at most); INT32_MAX if a word is too long. `letter` maps letters;
 * equal results are equal letters. */
int32_t ng_word_distance(const char *a, size_t na, const char *b, size_t nb, char (*letter)(char));

#endif
