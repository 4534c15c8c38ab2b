"""Texts for bert.py from local files: tables of GLUE and questions of SQuAD, cut into tokens by a tokenizer of transformers."""
import csv
import json
import sys

import torch

import common
import metrics

LONGEST_ANSWER = 30  # tokens


def read_table(path, columns, label, tokenizer, length):
    """Return tokens, segments and the names of the labels of a table with a header, such as train.tsv of SST-2.  `columns` names
    the column of a text, or of a pair of texts."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    for name in (*columns, label):
        if not rows or rows[0].get(name) is None:
            sys.exit(f"--data: {path} has no column {name}, expected it in the first line")
    found = tokenizer(*([row[name] for row in rows] for name in columns), padding="max_length", truncation=True, max_length=length,
                      return_tensors="pt")
    return found["input_ids"], found["token_type_ids"], [row[label] for row in rows]


class Questions:
    """The questions of a file of SQuAD 1.1.  A long paragraph has several windows, which overlap by `stride` tokens; `begin` and
    `end` are 0 in a window without the answer."""

    def __init__(self, path, tokenizer, length, stride):
        with open(path, encoding="utf-8") as file:
            paragraphs = [paragraph for article in json.load(file)["data"] for paragraph in article["paragraphs"]]
        asked = [(question, paragraph["context"]) for paragraph in paragraphs for question in paragraph["qas"]]
        for question, _ in asked:
            if not question["answers"]:
                sys.exit(f"--data: {path}: question {question['id']} has no answer, expected the format of SQuAD 1.1")
        self.contexts = [context for _, context in asked]
        self.answers = [[answer["text"] for answer in question["answers"]] for question, _ in asked]
        found = tokenizer([question["question"] for question, _ in asked], self.contexts, truncation="only_second",
                          max_length=length, stride=stride, return_overflowing_tokens=True, return_offsets_mapping=True,
                          padding="max_length", return_tensors="pt")
        self.tokens, self.segments, self.places = found["input_ids"], found["token_type_ids"], found["offset_mapping"]
        self.question = found["overflow_to_sample_mapping"]
        self.in_context = torch.tensor([[part == 1 for part in found.sequence_ids(i)] for i in range(len(self.tokens))])
        self.begin, self.end = (torch.zeros(len(self.tokens), dtype=torch.long) for _ in range(2))
        for i, number in enumerate(self.question.tolist()):
            answer = asked[number][0]["answers"][0]
            first, last = answer["answer_start"], answer["answer_start"] + len(answer["text"]) - 1
            at = [(self.in_context[i] & (self.places[i, :, 0] <= c) & (c < self.places[i, :, 1])).nonzero() for c in (first, last)]
            if len(at[0]) and len(at[1]):
                self.begin[i], self.end[i] = at[0][0, 0], at[1][0, 0]

    def make_test(self, args):
        """Return the evaluate() of common.train: EM and F1 of the most likely answer among all windows of a question."""
        def evaluate(model):
            best, sums = {}, [0.0, 0.0]
            mine = (self.question % args.ranks == args.rank).nonzero()[:, 0]  # all windows of a question are on one rank
            for rows in mine.split(32):
                output = model(self.tokens[rows].to(args.device), self.segments[rows].to(args.device)).cpu()
                for i, scores in zip(rows.tolist(), output):
                    inside = self.in_context[i]
                    pairs = (scores[:, None, 0] + scores[None, :, 1]).masked_fill(~(inside[:, None] & inside[None, :]), -1e9)
                    order = torch.ones_like(pairs, dtype=torch.bool)
                    pairs = pairs.masked_fill(~(order.triu() & order.tril(LONGEST_ANSWER - 1)), -1e9)
                    score, at = pairs.flatten().max(0)
                    begin, end = divmod(at.item(), len(pairs))
                    number = self.question[i].item()
                    text = self.contexts[number][self.places[i, begin, 0]:self.places[i, end, 1]]
                    best[number] = max(best.get(number, (-1e10, "")), (score.item(), text))
            for number, (_, text) in best.items():
                found = metrics.exact_and_f1(metrics.normalize(text), [metrics.normalize(a) for a in self.answers[number]])
                sums = [a + b for a, b in zip(sums, found)]
            exact, f1 = common.sum_over_ranks(args, sums)
            return dict(EM=exact / len(self.answers), F1=f1 / len(self.answers))
        return evaluate
