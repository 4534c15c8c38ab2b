#!/usr/bin/env python3
"""A Transformer for translation, as in kfac-pytorch's example on Multi30k.  Attention is written with nn.Linear, so that
published methods, too, precondition every projection.

    translate.py [--data FOLDER with train.en and train.de] [--method kaisa] [--layers 2] [--width 64] [--noam 4000]
    Without --data, the target is the reversed source sequence.

After each epoch the model translates sentences of test.en, word by word (each the most likely one), and BLEU compares the result
with test.de.  --noam: Noam's schedule, in which lr is a factor (published: 2 with Adam).
"""
import os

import torch
from torch import nn
import torch.nn.functional as F

import common
import metrics

PAD, BEGIN, END, UNKNOWN = range(4)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, memory, hidden):
        def split_heads(y):
            return y.reshape(*y.shape[:2], self.heads, -1).transpose(1, 2)
        q, k, v = split_heads(self.query(x)), split_heads(self.key(memory)), split_heads(self.value(memory))
        scores = (q @ k.transpose(2, 3) / q.shape[-1]**0.5).masked_fill(hidden, -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class TransformerLayer(nn.Module):
    def __init__(self, width, heads, decoder):
        super().__init__()
        self.own, self.norms = Attention(width, heads), nn.ModuleList(nn.LayerNorm(width) for _ in range(2 + decoder))
        self.other = Attention(width, heads) if decoder else None
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x, hidden, memory=None, memory_hidden=None):
        x = self.norms[0](x + self.own(x, x, hidden))
        if self.other is not None:
            x = self.norms[2](x + self.other(x, memory, memory_hidden))
        return self.norms[1](x + self.feed(x))


class Transformer(nn.Module):
    def __init__(self, words, width, layers, heads=4, longest=128):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.encoder = nn.ModuleList(TransformerLayer(width, heads, False) for _ in range(layers))
        self.decoder = nn.ModuleList(TransformerLayer(width, heads, True) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, source, target):
        def embed_tokens(tokens):
            return self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        hidden = (source == PAD)[:, None, None, :]
        x = embed_tokens(source)
        for layer in self.encoder:
            x = layer(x, hidden)
        n = target.shape[1]
        later = torch.ones(n, n, dtype=torch.bool, device=target.device).triu(1)[None, None]
        y = embed_tokens(target)
        for layer in self.decoder:
            y = layer(y, later, x, hidden)
        return self.head(y)


def read_sentences(folder, part, longest):
    """Return the sentences of English and German, each a list of at most longest - 2 words."""
    found = []
    for language in ("en", "de"):
        with open(os.path.join(folder, f"{part}.{language}"), encoding="utf-8") as file:
            found.append([line.lower().split()[:longest - 2] for line in file])
    if len(found[0]) != len(found[1]):
        raise SystemExit(f"--data: {part}.en has {len(found[0])} lines, {part}.de {len(found[1])}: expected the same number")
    return found


def make_reversed_sentences(words=16, length=8, count=1024):
    found = [[str(word) for word in line] for line in torch.randint(words, (count, length)).tolist()]
    return found, [line[::-1] for line in found]


def make_tokens(sentences, known, longest):
    """Return tokens [n, longest]."""
    found = torch.full((len(sentences), longest), PAD)
    for i, line in enumerate(sentences):
        tokens = [BEGIN, *(known.get(word, UNKNOWN) for word in line), END]
        found[i, :len(tokens)] = torch.tensor(tokens)
    return found


def translate(model, source, names):
    """Return the translation of each row of `source`, a list of words: each next word is the most likely one."""
    target = torch.full((len(source), 1), BEGIN, device=source.device)
    while target.shape[1] < source.shape[1] and not (target == END).any(1).all():
        target = torch.cat([target, model(source, target)[:, -1:].argmax(-1)], 1)
    rows = [row[1:] for row in target.tolist()]
    return [[names[token] for token in (row[:row.index(END)] if END in row else row)] for row in rows]


def make_bleu_test(args, source, references, names):
    """Return the evaluate() of common.train.  Numbers of samples go to the ranks instead of texts."""
    def evaluate(model):
        counts = [0] * 10
        for tokens, numbers in common.share_of_rank(args, [source, torch.arange(len(source))], 64):
            for words, i in zip(translate(model, tokens, names), numbers.tolist()):
                counts = [a + b for a, b in zip(counts, metrics.bleu_counts(words, references[i]))]
        return dict(BLEU=metrics.bleu(common.sum_over_ranks(args, counts)))
    return evaluate


def make_noam_factor(width, warmup):
    """Return Noam's factor of the learning rate (Vaswani et al. 2017): it rises for `warmup` steps, then falls as 1 / sqrt(n)."""
    return lambda step: width**-0.5 * min((step + 1)**-0.5, (step + 1) * warmup**-1.5)


def make_translation_loss(args):
    def loss_of(model, batch):
        source, target = batch
        output = model(source, target[:, :-1])
        return F.cross_entropy(output.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD,
                               label_smoothing=args.label_smoothing), output
    return loss_of


def main():
    step = dict(inv_update_steps=1, damping=0.03)
    parser = common.make_parser(__doc__, batch_size=64, epochs=10, lr=0.05, weight_decay=0.0,
                                damping=0.003, inv_update_steps=10, warmup_epochs=5.0, width=64, layers=2)
    parser.add_argument("--noam", type=int, default=0, help="steps in which Noam's schedule rises; it replaces --lr-decay and "
                        "--warmup-epochs; 0: no such schedule")
    parser.add_argument("--bleu", type=int, default=200, help="sentences to translate after each epoch")
    args = common.parse_arguments(parser, dict(eigen_dp=step, inverse_dp=step, eigen=step, inverse=step, eva=step,
                                               mfac=dict(lr=0.001, momentum=0.0, damping=1e-5),
                                               efcp=dict(lr=0.001, momentum=0.0, damping=1e-4)))
    if args.noam:
        args.warmup_epochs = None  # lr is not multiplied by the ranks
    torch.manual_seed(args.seed)
    longest, test = 40 if args.data else 10, None
    source, target = read_sentences(args.data, "train", longest) if args.data else make_reversed_sentences()
    if args.bleu and not args.data:
        test = make_reversed_sentences(count=args.bleu)
    elif args.bleu and os.path.exists(os.path.join(args.data, "test.en")):
        test = [side[:args.bleu] for side in read_sentences(args.data, "test", longest)]
    counts = {}
    for line in source + target:
        for word in line:
            counts[word] = counts.get(word, 0) + 1
    names = ["<pad>", "<begin>", "<end>", "<unk>"] + sorted(counts, key=counts.get, reverse=True)[:8000]
    known = {word: i for i, word in enumerate(names)}
    source, target = (make_tokens(side, known, longest) for side in (source, target))
    evaluate = make_bleu_test(args, make_tokens(test[0], known, longest), test[1], names) if test else None
    return common.train(args, Transformer(len(names), args.width, args.layers), common.shuffled_batches(args, source, target),
                        make_translation_loss(args), evaluate=evaluate, vocabulary=len(names),
                        step_factor=make_noam_factor(args.width, args.noam) if args.noam else None)


if __name__ == "__main__":
    main()
