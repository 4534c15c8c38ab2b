#!/usr/bin/env python3
"""A language model, as in kfac-pytorch's example: a Transformer encoder with a causal mask predicts each next word.

    language.py [--data FILE or FOLDER] [--method kaisa] [--epochs 20]

--data is a text file, whose last tenth of the lines tests the model, or a folder with files whose names have "train" and "valid",
such as Penn Treebank or WikiText.  Without --data, each word of a generated text has three equally likely successors: the best
perplexity is 3.  The published scripts reduce the learning rate on a plateau of the test loss, and do not multiply it by the ranks.
"""
import math
import os
import sys

import torch
from torch import nn
import torch.nn.functional as F

import common

UNKNOWN = "<unk>"


class LanguageModel(nn.Module):
    def __init__(self, words, args):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(words, args.width), nn.Dropout(args.dropout)
        layer = nn.TransformerEncoderLayer(args.width, args.heads, args.hidden, args.dropout, batch_first=True)
        self.encoder, self.decoder = nn.TransformerEncoder(layer, args.layers), nn.Linear(args.width, words)
        for weight in (self.embedding.weight, self.decoder.weight):
            nn.init.uniform_(weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        angles = torch.arange(args.context)[:, None] * 1e4**(-torch.arange(0, args.width, 2) / args.width)
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))

    def forward(self, tokens):
        n = tokens.shape[1]
        later = torch.ones(n, n, dtype=torch.bool, device=tokens.device).triu(1)
        x = self.dropout(self.embedding(tokens) * self.positions.shape[1]**0.5 + self.positions[:n])
        return self.decoder(self.encoder(x, later))


def read_words(path):
    """Return the words of the training text and of the test text; each line ends with <eos>."""
    def split(lines):
        return [word for line in lines for word in (*line.split(), "<eos>")]
    if not os.path.isdir(path):
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
        cut = len(lines) - max(1, len(lines) // 10)
        return split(lines[:cut]), split(lines[cut:])
    found = []
    for part in ("train", "valid"):
        names = sorted(name for name in os.listdir(path) if part in name)
        if not names:
            sys.exit(f"--data: {path} has no file with {part} in its name")
        found.append([])
        for name in names:
            with open(os.path.join(path, name), encoding="utf-8") as file:
                found[-1] += split(file)
    return found


def make_words(count=20000, words=50):
    """Return the words of a Markov chain whose words have three successors, and a tenth as many for the test."""
    next_words, chosen, text = torch.randint(words, (words, 3)).tolist(), torch.randint(3, (count,)).tolist(), [0]
    for i in chosen:
        text.append(next_words[text[-1]][i])
    text = [str(word) for word in text]
    return text[:-count // 10], text[-count // 10:]


def make_samples(words, numbers, context):
    """Return tokens and next tokens, [n, context], of a text."""
    tokens = torch.tensor([numbers.get(word, 0) for word in words])
    n = (len(tokens) - 1) // context
    if n <= 0:
        sys.exit(f"--data: a text has {len(words)} words, expected more than --context {context}")
    return tokens[:n * context].view(n, context), tokens[1:n * context + 1].view(n, context)


def loss_of(model, batch):
    output = model(batch[0])
    return F.cross_entropy(output.flatten(0, 1), batch[1].flatten()), output


def main():
    window = dict(lr=0.001, momentum=0.0, clip_norm=0.0)
    args = common.parse_arguments(
        common.make_parser(__doc__, batch_size=20, epochs=20, lr=1.0, momentum=0.0, weight_decay=0.0, damping=0.003, clip_norm=0.5,
                           patience=2, warmup_epochs=None, width=256, hidden=256, heads=4, layers=2, dropout=0.2, context=64,
                           words=10000),
        dict(kaisa=dict(skip_layers=["embedding", "decoder", "self_attn"]), adamw=dict(lr=0.001), mfac=dict(window, damping=1e-5),
             efcp=dict(window, damping=1e-4)))
    torch.manual_seed(args.seed)
    text, test_text = read_words(args.data) if args.data else make_words()
    counts = {}
    for word in text:
        counts[word] = counts.get(word, 0) + 1
    counts.pop(UNKNOWN, None)
    numbers = {word: 1 + i for i, word in enumerate(sorted(counts, key=counts.get, reverse=True)[:args.words - 1])}
    test = make_samples(test_text, numbers, args.context)

    def evaluate(model):
        total = sum(loss_of(model, batch)[0].item() * batch[1].numel() for batch in common.share_of_rank(args, test, 20))
        loss = common.sum_over_ranks(args, [total])[0] / test[1].numel()
        return dict(loss=loss, perplexity=math.exp(loss))
    return common.train(args, LanguageModel(1 + len(numbers), args),
                        common.shuffled_batches(args, *make_samples(text, numbers, args.context)), loss_of, evaluate=evaluate,
                        vocabulary=1 + len(numbers))


if __name__ == "__main__":
    main()
