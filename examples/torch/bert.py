#!/usr/bin/env python3
"""BERT: fine-tune a model for text classification or for question answering.

    bert.py [--task classify | answer] [--model FOLDER of a model of transformers] [--method kaisa]

With the package transformers the script trains the model of --model; without --model, a small BERT of random weights.
Without the package it trains a small encoder of PyTorch, which has the same outputs.  --data is a file of torch.save:
{"tokens": [n, t], "labels": [n]} for classify, {"tokens": [n, t], "begin": [n], "end": [n]} for answer; without --data the
texts are generated.
"""
import sys

import torch
from torch import nn
import torch.nn.functional as F

import common
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

    def forward(self, tokens):
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        hidden = (tokens == 0)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, hidden)
        return self.head(x if self.each_token else x[:, 0])


class TransformersBert(nn.Module):
    """A BERT of the package transformers with the outputs of Encoder."""

    def __init__(self, answer, folder):
        super().__init__()
        kind = transformers.BertForQuestionAnswering if answer else transformers.BertForSequenceClassification
        self.bert = kind.from_pretrained(folder) if folder else kind(transformers.BertConfig(
            vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, num_labels=2,
            initializer_range=0.1))  # 0.02 sqrt(768 / 32): the outputs of a layer have the size of those of BERT-base
        self.answer = answer

    def forward(self, tokens):
        found = self.bert(tokens, attention_mask=(tokens != 0).long())
        return torch.stack([found.start_logits, found.end_logits], -1) if self.answer else found.logits


def read_or_make_texts(args, answer):
    """Return tokens and labels.  A generated label says whether token 4 occurs more often than 5, or where tokens 2 and 3 are."""
    if args.data:
        stored = torch.load(args.data)
        return [stored[name] for name in (("tokens", "begin", "end") if answer else ("tokens", "labels"))]
    tokens = torch.randint(4, 64, (1024, 16))
    tokens[:, 0] = 1
    if not answer:
        tokens[:, 1:] = torch.where(torch.rand(1024, 15) < 0.5, torch.randint(4, 6, (1024, 15)), tokens[:, 1:])
        return tokens, ((tokens == 4).sum(1) > (tokens == 5).sum(1)).long()
    begin = torch.randint(1, 14, (1024,))
    end = begin + torch.randint(0, 2, (1024,))
    tokens.scatter_(1, (end + 1)[:, None], 3)
    tokens.scatter_(1, begin[:, None], 2)
    return tokens, begin, end


def make_answer_loss(args):
    def loss_of(model, batch):
        output = model(batch[0])
        return (F.cross_entropy(output[..., 0], batch[1], label_smoothing=args.label_smoothing)
                + F.cross_entropy(output[..., 1], batch[2], label_smoothing=args.label_smoothing)) / 2, output
    return loss_of


def main():
    tuned = "--model" in sys.argv  # defaults of kfac_pytorch's SQuAD script, else for random weights
    standard = dict(batch_size=4, lr=5e-6, kl_clip=None, inv_update_steps=1) if tuned else dict(batch_size=32, lr=0.02,
                                                                                                inv_update_steps=10)
    parser = common.make_parser(__doc__, epochs=3, momentum=0.8, weight_decay=0.0, damping=0.03, **standard)
    parser.add_argument("--task", choices=("classify", "answer"), default="classify")
    parser.add_argument("--model", help="folder of a saved transformers model")
    args = common.parse_arguments(parser)
    torch.manual_seed(args.seed)
    answer = args.task == "answer"
    if args.model and transformers is None:
        sys.exit("--model: transformers is not installed (pip install transformers)")
    model = Encoder(2, answer) if transformers is None else TransformersBert(answer, args.model)
    return common.train(args, model, common.shuffled_batches(args, *read_or_make_texts(args, answer)),
                        (make_answer_loss if answer else common.make_classification_loss)(args),
                        None if answer else common.accuracy_of_batch)


if __name__ == "__main__":
    main()
