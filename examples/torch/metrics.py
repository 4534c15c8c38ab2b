"""Scores of texts as sums of counts, which ranks add: BLEU of a corpus."""
import collections
import math


def _count_ngrams(words, n):
    return collections.Counter(tuple(words[i:i + n]) for i in range(len(words) - n + 1))


def bleu_counts(candidate, reference):
    """Return, for a candidate and its reference (lists of words): the matched n-grams for n = 1 to 4, the n-grams of the candidate
    for n = 1 to 4, the length of the candidate and the length of the reference."""
    pairs = [(_count_ngrams(candidate, n), _count_ngrams(reference, n)) for n in range(1, 5)]
    return [sum((mine & other).values()) for mine, other in pairs] + [sum(mine.values()) for mine, _ in pairs] + [
        len(candidate), len(reference)]


def bleu(counts):
    """Return BLEU-4 (Papineni et al. 2002, without smoothing) of a corpus, whose counts are the sum of its bleu_counts."""
    matched, found, length, expected = counts[:4], counts[4:8], counts[8], counts[9]
    if min(matched) == 0:
        return 0.0
    precision = sum(math.log(m / n) for m, n in zip(matched, found)) / 4
    return math.exp(precision + min(0.0, 1 - expected / length))
