#!/usr/bin/env python3
"""BERT: fine-tune a model for text classification or for question answering.

    bert.py [--task classify | answer] [--model FOLDER of a model of transformers] [--method kaisa]

With the package transformers the script trains the model of --model; without --model, a small BERT of random weights.
Without the package it trains a small encoder of PyTorch, which has the same outputs.  --data, without it the texts are generated:

    a folder     with train.tsv and dev.tsv of GLUE (--columns sentence, or sentence1 sentence2; --label label), or train*.json and
                 dev*.json of SQuAD 1.1; needs --model, whose folder has the tokenizer, too
    a file       of torch.save: {"tokens": [n, t], "labels": [n]} for classify, {"tokens": [n, t], "begin": [n], "end": [n]} for
                 answer; the same names with "test_" test the model

After each epoch: accuracy, and for two classes the F1 score of class 1; or EM and F1 of the answers.
"""
import glob
import os
import sys

import torch
from torch import nn
import torch.nn.functional as F

import common
import metrics
import texts
from translate import TransformerLayer

try:
    import transformers
except ImportError:
    transformers = None


class Encoder(nn.Module):
    """A small encoder with `outputs` numbers for each text, or for each token."""

    def __init__(self, outputs, each_token, words=64, width=32, layers=2):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(128, width)
        self.layers = nn.ModuleList(TransformerLayer(width, 4, False) for _ in range(layers))
        self.head, self.each_token = nn.Linear(width, outputs), each_token

    def forward(self, tokens, segments):
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        hidden = (tokens == 0)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, hidden)
        return self.head(x if self.each_token else x[:, 0])


class TransformersBert(nn.Module):
    """BERT of the package transformers. Its outputs have the shape of those of Encoder."""

    def __init__(self, answer, folder, outputs):
        super().__init__()
        kind = transformers.BertForQuestionAnswering if answer else transformers.BertForSequenceClassification
        self.bert = kind.from_pretrained(folder, num_labels=outputs) if folder else kind(transformers.BertConfig(
            vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, num_labels=outputs,
            initializer_range=0.1))  # 0.02 sqrt(768 / 32): the outputs of a layer have the size of those of BERT-base
        self.answer = answer

    def forward(self, tokens, segments):
        found = self.bert(tokens, attention_mask=(tokens != 0).long(), token_type_ids=segments)
        return torch.stack([found.start_logits, found.end_logits], -1) if self.answer else found.logits


def make_texts(answer):
    """Return tokens and labels.  A label says whether token 4 occurs more often than 5, or where tokens 2 and 3 are."""
    tokens = torch.randint(4, 64, (1280, 16))
    tokens[:, 0] = 1
    if not answer:
        tokens[:, 1:] = torch.where(torch.rand(1280, 15) < 0.5, torch.randint(4, 6, (1280, 15)), tokens[:, 1:])
        return tokens, ((tokens == 4).sum(1) > (tokens == 5).sum(1)).long()
    begin = torch.randint(1, 14, (1280,))
    end = begin + torch.randint(0, 2, (1280,))
    tokens.scatter_(1, (end + 1)[:, None], 3)
    tokens.scatter_(1, begin[:, None], 2)
    return tokens, begin, end


def read_folder(args, answer):
    """Return the training tensors, the function evaluate() and the number of outputs."""
    if not args.model:
        sys.exit("--data: a folder needs --model, whose folder has the tokenizer")
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    if not answer:
        parts = [texts.read_table(os.path.join(args.data, name), args.columns, args.label, tokenizer, args.length)
                 for name in ("train.tsv", "dev.tsv")]
        names = sorted(set(parts[0][2] + parts[1][2]))
        train, test = ((tokens, segments, torch.tensor([names.index(label) for label in labels]))
                       for tokens, segments, labels in parts)
        return train, make_class_test(args, test, len(names)), len(names)
    found = []
    for part in ("train", "dev"):
        paths = sorted(glob.glob(os.path.join(args.data, part + "*.json")))
        if len(paths) != 1:
            sys.exit(f"--data: {args.data} has {len(paths)} files {part}*.json, expected one")
        found.append(texts.Questions(paths[0], tokenizer, args.length, min(args.stride, args.length // 4)))
    train, test = found
    return (train.tokens, train.segments, train.begin, train.end), test.make_test(args), 2


def read_or_make_texts(args, answer):
    """Return the training tensors (tokens, segments, labels), the function evaluate() or None, and the number of outputs."""
    if args.data and os.path.isdir(args.data):
        return read_folder(args, answer)
    if args.data:
        stored, names = torch.load(args.data), ("tokens", "begin", "end") if answer else ("tokens", "labels")
        train, test = ([stored[prefix + name] for name in names if prefix + name in stored] for prefix in ("", "test_"))
    else:
        found = make_texts(answer)
        train, test = [part[:1024] for part in found], [part[1024:] for part in found]
    train, test = ([part[0], torch.zeros_like(part[0]), *part[1:]] if part else None for part in (train, test))
    outputs = 2 if answer else max(2, 1 + max(part[2].max().item() for part in (train, test) if part))
    if not test:
        return train, None, outputs
    return train, make_span_test(args, test) if answer else make_class_test(args, test, outputs), outputs


def make_class_test(args, test, outputs):
    """Return the evaluate() of common.train: the accuracy, and for two classes the F1 score of class 1."""
    def evaluate(model):
        counts = [0] * 4
        for tokens, segments, labels in common.share_of_rank(args, test, 32):
            found = model(tokens, segments).argmax(1)
            more = [(found == labels).sum(), ((found == 1) & (labels == 1)).sum(), (found == 1).sum(), (labels == 1).sum()]
            counts = [a + b.item() for a, b in zip(counts, more)]
        right, *positive = common.sum_over_ranks(args, counts)
        return dict(accuracy=right / len(test[0]), **(dict(F1=metrics.f1(*positive)) if outputs == 2 else {}))
    return evaluate


def make_span_test(args, test):
    """Return the evaluate() of common.train: EM and F1 of the tokens from the most likely begin to the most likely end."""
    def evaluate(model):
        sums = [0.0, 0.0]
        for tokens, segments, *ends in common.share_of_rank(args, test, 32):
            found = model(tokens, segments).argmax(1)
            for row, (begin, end), (first, last) in zip(tokens.tolist(), found.tolist(), torch.stack(ends, 1).tolist()):
                scores = metrics.exact_and_f1(row[begin:end + 1], [row[first:last + 1]])
                sums = [a + b for a, b in zip(sums, scores)]
        exact, f1 = common.sum_over_ranks(args, sums)
        return dict(EM=exact / len(test[0]), F1=f1 / len(test[0]))
    return evaluate


def make_loss(args, answer):
    def loss_of(model, batch):
        tokens, segments, *labels = batch
        output = model(tokens, segments)
        losses = [F.cross_entropy(part, label, label_smoothing=args.label_smoothing)
                  for part, label in zip(output.unbind(-1) if answer else [output], labels)]
        return sum(losses) / len(losses), output
    return loss_of


def main():
    tuned = "--model" in sys.argv  # defaults of kfac_pytorch's SQuAD script, else for random weights
    standard = dict(batch_size=4, lr=5e-6, kl_clip=None, inv_update_steps=1) if tuned else dict(batch_size=32, lr=0.02,
                                                                                                inv_update_steps=10)
    parser = common.make_parser(__doc__, epochs=3, momentum=0.8, weight_decay=0.0, damping=0.03, length=384, stride=128,
                                label="label", **standard)
    parser.add_argument("--task", choices=("classify", "answer"), default="classify")
    parser.add_argument("--model", help="folder of a saved transformers model")
    parser.add_argument("--columns", nargs="+", default=["sentence"], help="columns of a text, or of two, in train.tsv")
    args = common.parse_arguments(parser)
    torch.manual_seed(args.seed)
    answer = args.task == "answer"
    if args.model and transformers is None:
        sys.exit("--model: transformers is not installed (pip install transformers)")
    train, evaluate, outputs = read_or_make_texts(args, answer)
    model = Encoder(outputs, answer) if transformers is None else TransformersBert(answer, args.model, outputs)
    return common.train(args, model, common.shuffled_batches(args, *train), make_loss(args, answer),
                        None if answer else lambda output, batch: (output.argmax(1) == batch[2]).float().mean().item(), evaluate)


if __name__ == "__main__":
    main()
