#!/usr/bin/env python3
"""Compare the mean time of a training step in PyTorch: SGD (fused), natgrad.KFAC and kfac-pytorch, each with SGD, in one run.
The model is a ResNet for 32x32 images.  The programs alternate.  kfac-pytorch rejects gradients in channels-last, so SGD runs in
both formats, and `of SGD` divides by the faster SGD.

    NATGRAD_LIBRARY=build/libnatgrad.so.0 PYTHONPATH=python python3 bench/vs_kfac_pytorch.py CLONE
        [--model resnet18|resnet20] [--batch 32] [--threads 2] [--rounds 5]

CLONE is the folder of a clone of gpauloski/kfac-pytorch.  natgrad has its defaults: statistics in each step, a solve in each
tenth.  kfac-pytorch has its usual periods, 10 and 100.  A round times each kind of step; the table has the medians of the rounds
and the mean over a period:  plain + (statistics - plain) / stat period + (solve - statistics) / solve period.
"""
import argparse
import copy
import importlib.metadata
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from natgrad import KFAC
except ImportError as missing:
    sys.exit(f"vs_kfac_pytorch.py: {missing}: needs PyTorch, and natgrad (pip install . or PYTHONPATH=python)")
from networks import make_resnet

PLAIN, STATISTICS, SOLVE = "no new statistics", "new statistics", "new inverses, too"
NEVER = 10**6


class Program:
    """A model with its optimizer.  `set_periods`: make the next step one of the given kind."""

    def __init__(self, name, model, memory_format, periods=None, precondition=None, set_periods=None):
        self.name, self.model, self.memory_format, self.periods = name, model, memory_format, periods
        self.optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
        self.precondition, self.set_periods = precondition, set_periods
        self.kinds = (PLAIN,) if precondition is None else (PLAIN, STATISTICS, SOLVE)
        self.ms = {kind: [] for kind in self.kinds}

    def step(self, x, y):
        x = x.contiguous(memory_format=self.memory_format)
        start = time.perf_counter()
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(x), y).backward()
        if self.precondition is not None:
            self.precondition()
        self.optimizer.step()
        return 1e3 * (time.perf_counter() - start)

    def run_round(self, x, y, is_timed):
        for kind in self.kinds:
            if self.set_periods is not None:
                self.set_periods(NEVER if kind == PLAIN else 1, 1 if kind == SOLVE else NEVER)
            ms = self.step(x, y)
            if is_timed:
                self.ms[kind].append(ms)

    def mean_ms(self):
        each = [statistics.median(self.ms[kind]) for kind in self.kinds]
        if len(each) == 1:
            return each[0]
        plain, observed, solved = each
        return plain + (observed - plain) / self.periods[0] + (solved - observed) / self.periods[1]


def copy_model(model, memory_format):
    return copy.deepcopy(model).to(memory_format=memory_format)


def make_natgrad(model):
    model = copy_model(model, torch.channels_last)
    kfac = KFAC(model, lr=0.01)

    def set_periods(stat, solve):
        kfac._core.set("stat_period", stat)
        kfac._core.set("solve_period", solve)

    return Program("natgrad.KFAC, channels-last", model, torch.channels_last, (1, 10), kfac.step, set_periods)


def make_peer(model):
    installed = importlib.metadata.version  # the package reads its own version, which a clone lacks
    importlib.metadata.version = lambda name: "0" if name == "kfac-pytorch" else installed(name)
    from kfac.preconditioner import KFACPreconditioner

    model, periods = copy_model(model, torch.contiguous_format), [1, 1]
    kfac = KFACPreconditioner(model, lr=0.01, factor_update_steps=lambda step: periods[0], inv_update_steps=lambda step: periods[1])

    def set_periods(stat, solve):
        periods[:] = stat, solve

    return Program("kfac-pytorch, contiguous", model, torch.contiguous_format, (10, 100), kfac.step, set_periods)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("clone", metavar="CLONE")
    args.add_argument("--model", default="resnet18", choices=("resnet18", "resnet20"))
    args.add_argument("--batch", type=int, default=32)
    args.add_argument("--threads", type=int, default=2)
    args.add_argument("--rounds", type=int, default=5)
    args = args.parse_args()
    sys.path.insert(0, args.clone)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model, classes = make_resnet(args.model)
    x, y = torch.randn(args.batch, 3, 32, 32), torch.arange(args.batch) % classes
    formats = {"channels-last": torch.channels_last, "contiguous": torch.contiguous_format}
    programs = [Program(f"SGD, {name}", copy_model(model, memory_format), memory_format) for name, memory_format in formats.items()]
    programs += [make_natgrad(model), make_peer(model)]
    for i in range(args.rounds + 1):  # the first round warms up
        for program in programs:
            program.run_round(x, y, i > 0)
    sgd = min(program.mean_ms() for program in programs[:2])
    print(f"torch {torch.__version__}, {args.model}, batch {args.batch}, {args.threads} threads; ms, medians of {args.rounds}")
    print(f"| program | periods | {PLAIN} | {STATISTICS} | {SOLVE} | mean | of SGD |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for program in programs:
        periods = "-" if program.periods is None else f"{program.periods[0]}, {program.periods[1]}"
        cells = [f"{statistics.median(program.ms[kind]):.0f}" for kind in program.kinds] + [""] * (3 - len(program.kinds))
        print(f"| {program.name} | {periods} | {' | '.join(cells)} | {program.mean_ms():.0f} | {program.mean_ms() / sgd:.2f} |")


if __name__ == "__main__":
    main()
