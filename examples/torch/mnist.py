#!/usr/bin/env python3
"""MNIST, the network of kfac-pytorch's integration test: two convolutions, two linear layers.

    mnist.py [--data FOLDER with train-images-idx3-ubyte ...] [--method kaisa] [--epochs 5]
"""
import gzip
import os
import struct

import torch
from torch import nn

import common


def read_idx(folder, name):
    """Return the array of an IDX file of bytes, plain or gzipped."""
    path = os.path.join(folder, name)
    path, opener = (path, open) if os.path.exists(path) else (path + ".gz", gzip.open)
    with opener(path, "rb") as file:
        data = bytearray(file.read())
    axes = data[3]
    shape = struct.unpack(f">{axes}I", data[4:4 + 4 * axes])
    return torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * axes).reshape(shape)


def read_or_make_digits(folder, part):
    if folder:
        return (read_idx(folder, part + "-images-idx3-ubyte")[:, None].float() - 33.3) / 78.6, read_idx(
            folder, part + "-labels-idx1-ubyte").long()
    generator = torch.Generator().manual_seed(3)  # an image is the prototype of its class plus noise
    prototypes = torch.randn(10, 1, 28, 28, generator=generator)
    count, generator = (2048, generator.manual_seed(4)) if part == "train" else (512, generator.manual_seed(5))
    labels = torch.randint(10, (count,), generator=generator)
    return prototypes[labels] + 2 * torch.randn(count, 1, 28, 28, generator=generator), labels


def make_network():
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), nn.ReLU(),
                         nn.Flatten(), nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, 10))


def main():
    # The published script uses Adadelta and updates factors every 10 steps; windows, SGD and AdamW have other learning rates.
    plain = dict(lr=0.05, lr_decay=[])
    args = common.parse_arguments(common.make_parser(__doc__, optimizer="adadelta", batch_size=64, epochs=5, lr=0.1,
                                                     lr_decay=(1, 2, 3, 4), lr_decay_alpha=0.7, weight_decay=0.0, damping=0.001,
                                                     factor_update_steps=10, inv_update_steps=100, warmup_epochs=None),
                                  dict(sgd=plain, mfac=dict(plain, lr=0.001, damping=1e-5, momentum=0.0),
                                       efcp=dict(plain, lr=0.001, damping=1e-4, momentum=0.0), adamw=dict(plain, lr=0.001)))
    torch.manual_seed(args.seed)
    return common.train(args, make_network(), common.shuffled_batches(args, *read_or_make_digits(args.data, "train")),
                        common.make_classification_loss(args), common.accuracy_of_batch,
                        common.make_accuracy_test(args, *read_or_make_digits(args.data, "t10k")))


if __name__ == "__main__":
    main()
