#!/usr/bin/env python3
"""Compare the memory of natgrad.KFAC with kfac-pytorch: each program trains in a process of its own.

    NATGRAD_LIBRARY=build/libnatgrad.so.0 PYTHONPATH=python python3 bench/memory_front.py CLONE [--batch 32] [MODEL ...]

CLONE is the folder of a clone of gpauloski/kfac-pytorch.  The models are ResNets for 32x32 images (resnet18, resnet20).  `factors`
has averages, sums and inverses, which is all that kfac-pytorch counts in memory_usage(); `scratch` is the rest of the total of
memory_usage(), which a program that allocates in each step does not hold; `peak` is the growth of the peak resident memory from a
step of SGD to two steps with new statistics and new inverses.
"""
import argparse
import importlib.metadata
import multiprocessing
import resource
import sys

try:
    import torch
    import torch.nn.functional as F
    import natgrad.compat
except ImportError as missing:
    sys.exit(f"memory_front.py: {missing}: needs PyTorch, and natgrad (pip install . or PYTHONPATH=python)")
from networks import make_resnet


def make_peer(model):
    installed = importlib.metadata.version  # the package reads its own version, which a clone lacks
    importlib.metadata.version = lambda name: "0" if name == "kfac-pytorch" else installed(name)
    from kfac.preconditioner import KFACPreconditioner
    return KFACPreconditioner(model, lr=0.01)


FACTORS = "factors", "sums", "results"  # in natgrad.compat and kfac-pytorch: a_factors, g_batch, a_inverses, ...
PROGRAMS = {"natgrad.KFAC": lambda model: natgrad.KFAC(model, lr=0.01),
            "natgrad.compat.KFACPreconditioner": lambda model: natgrad.compat.KFACPreconditioner(model, lr=0.01),
            "kfac-pytorch": make_peer}


def measure(program, name, batch, results):
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model, classes = make_resnet(name)
    x, y = torch.randn(batch, 3, 32, 32), torch.arange(batch) % classes
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(precondition=lambda: None):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        precondition()
        optimizer.step()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for _ in range(2):
        before = step()
    preconditioner = PROGRAMS[program](model)
    for _ in range(2):
        after = step(preconditioner.step)
    used = preconditioner.memory_usage()
    total = used.pop("total")
    factors = sum(size for key, size in used.items() if key in FACTORS or key[:2] in ("a_", "g_"))
    results.put((factors / 2**20, (total - factors) / 2**20, after - before))


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("clone", metavar="CLONE")
    args.add_argument("models", metavar="MODEL", nargs="*", default=["resnet20", "resnet18"])
    args.add_argument("--batch", type=int, default=32)
    args = args.parse_args()
    sys.path.insert(0, args.clone)
    context = multiprocessing.get_context("spawn")
    print(f"torch {torch.__version__}, batch {args.batch}, MiB\n| model | program | factors | scratch | peak |\n|---|---|--:|--:|--:|")
    for name in args.models:
        for program in PROGRAMS:
            results = context.SimpleQueue()
            child = context.Process(target=measure, args=(program, name, args.batch, results))
            child.start()
            child.join()
            print(f"| {name} | {program} | {' | '.join(f'{number:.0f}' for number in results.get())} |", flush=True)


if __name__ == "__main__":
    main()
