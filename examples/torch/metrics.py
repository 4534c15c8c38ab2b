"""Scores of texts: BLEU of a corpus, exact match and F1 of an answer, F1 of a class.  Ranks add the counts."""
import collections
import math
import re
import string


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


def normalize(text):
    """Return the words of an answer, as SQuAD compares them: without case, punctuation and articles."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def exact_and_f1(candidate, references):
    """Return exact match (0 or 1) and F1 of the common words, each the largest over the references (lists of words)."""
    scores = []
    for reference in references:
        common = sum((collections.Counter(candidate) & collections.Counter(reference)).values())
        scores.append((float(candidate == reference), f1(common, len(candidate), len(reference))))
    return max(exact for exact, _ in scores), max(score for _, score in scores)


def f1(right, found, expected):
    """Return F1 of `right` true positives among `found` positives, of `expected` ones; 1 if there are none of both."""
    return 2 * right / (found + expected) if found + expected else 1.0
