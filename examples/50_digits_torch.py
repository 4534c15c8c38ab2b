#!/usr/bin/env python3
"""natgrad in a PyTorch script: train a small convolution network on the UCI digits with four optimizers.

    50_digits_torch.py [--data data/digits.csv] [--epochs 4] [--seed 1]

    sgd         torch.optim.SGD alone
    natgrad     natgrad.KFAC between backward() and the step of torch.optim.SGD
    fused       natgrad.SGD: K-FAC and SGD in one pass over the gradients
    kaisa       natgrad.compat.KFACPreconditioner, as scripts of kfac-pytorch call it

Learning rates are not tuned; `make demo` compares methods.
"""
import argparse
import os
import time

import torch
from torch import nn
import torch.nn.functional as F

import natgrad
from natgrad.compat import KFACPreconditioner


def make_network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(16, 16, 3, stride=2, padding=1),
                         nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(256, 10))


def read_digits(path):
    """Return (images [n, 1, 8, 8], labels) for training and for test; the last 360 rows are the test split."""
    with open(path, encoding="ascii") as file:
        rows = torch.tensor([[float(number) for number in line.split(",")] for line in file if line[0].isdigit()])
    x, y = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long()
    return (x[:-360], y[:-360]), (x[-360:], y[-360:])


class PreconditionedOptimizer:
    """A preconditioner and an optimizer: step() calls them in this order."""

    def __init__(self, preconditioner, optimizer):
        self.preconditioner, self.optimizer, self.zero_grad = preconditioner, optimizer, optimizer.zero_grad

    def step(self):
        self.preconditioner.step()
        self.optimizer.step()


def make_sgd(model, lr):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


OPTIMIZERS = {
    "sgd": lambda model: make_sgd(model, 0.1),
    "natgrad": lambda model: PreconditionedOptimizer(natgrad.KFAC(model, lr=0.1, damping=0.03), make_sgd(model, 0.1)),
    "fused": lambda model: natgrad.SGD(model, lr=0.1, momentum=0.9, damping=0.03),
    "kaisa": lambda model: PreconditionedOptimizer(
        KFACPreconditioner(model, lr=0.1, damping=0.003, inv_update_steps=10), make_sgd(model, 0.1)),
}


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--data", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data",
                                                     "digits.csv"))
    args.add_argument("--epochs", type=int, default=4)
    args.add_argument("--seed", type=int, default=1)
    args = args.parse_args()
    (x, y), (test_x, test_y) = read_digits(args.data)
    for name, make_optimizer in OPTIMIZERS.items():
        model = make_network(args.seed)
        optimizer = make_optimizer(model)
        begin, losses = time.time(), []
        for _ in range(args.epochs):
            for batch in torch.randperm(len(x)).split(64):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x[batch]), y[batch])
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        seconds = time.time() - begin
        model.eval()
        with torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
        print(f"{name:8} loss {sum(losses[-20:]) / 20:.4f}  test accuracy {100 * accuracy:.2f} %  {seconds:.1f} s")


if __name__ == "__main__":
    main()
