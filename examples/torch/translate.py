#!/usr/bin/env python3
"""A Transformer for translation, as in kfac-pytorch's example on Multi30k.  Attention is written with nn.Linear, so that
published methods, too, precondition every projection.

    translate.py [--data FOLDER with train.en and train.de] [--method kaisa] [--layers 2] [--width 64]
    Without --data, the target is the reversed source sequence.
"""
import os

import torch
from torch import nn
import torch.nn.functional as F

import common

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


def read_sentences(folder, longest=40, most=8000):
    """Return source and target tokens [n, longest] and the size of their common vocabulary of words."""
    lines = []
    for language in ("en", "de"):
        with open(os.path.join(folder, f"train.{language}"), encoding="utf-8") as file:
            lines.append([line.lower().split()[:longest - 2] for line in file])
    counts = {}
    for line in lines[0] + lines[1]:
        for word in line:
            counts[word] = counts.get(word, 0) + 1
    known = {word: 4 + i for i, word in enumerate(sorted(counts, key=counts.get, reverse=True)[:most])}
    found = torch.full((2, len(lines[0]), longest), PAD)
    for side in range(2):
        for i, line in enumerate(lines[side]):
            tokens = [BEGIN, *(known.get(word, UNKNOWN) for word in line), END]
            found[side, i, :len(tokens)] = torch.tensor(tokens)
    return found[0], found[1], 4 + len(known)


def make_reversed_pairs(words=20, length=8, count=1024):
    body = torch.randint(4, words, (count, length))
    begin, end = torch.full((count, 1), BEGIN), torch.full((count, 1), END)
    return torch.cat([begin, body, end], 1), torch.cat([begin, body.flip(1), end], 1), words


def make_translation_loss(args):
    def loss_of(model, batch):
        source, target = batch
        output = model(source, target[:, :-1])
        return F.cross_entropy(output.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD,
                               label_smoothing=args.label_smoothing), output
    return loss_of


def main():
    step = dict(inv_update_steps=1, damping=0.03)
    args = common.parse_arguments(common.make_parser(__doc__, batch_size=64, epochs=10, lr=0.05, weight_decay=0.0,
                                                     damping=0.003, inv_update_steps=10, warmup_epochs=5.0, width=64, layers=2),
                                  dict(eigen_dp=step, inverse_dp=step, eigen=step, inverse=step, eva=step,
                                       mfac=dict(lr=0.001, momentum=0.0, damping=1e-5),
                                       efcp=dict(lr=0.001, momentum=0.0, damping=1e-4)))
    torch.manual_seed(args.seed)
    source, target, words = read_sentences(args.data) if args.data else make_reversed_pairs()
    return common.train(args, Transformer(words, args.width, args.layers), common.shuffled_batches(args, source, target),
                        make_translation_loss(args), vocabulary=words)


if __name__ == "__main__":
    main()
