#!/usr/bin/env python3
"""Time KAISA (package `kfac` of kfac-pytorch, which must be importable) on the layers of
`natgrad bench kfac --model resnet18 --spatial full`: ResNet-18 for 32x32 images, inverse method, everything in
every step.  Run this script and that command one after the other on a quiet machine; compare the sums over layers.

    python3 bench/vs_kaisa.py [--batch 32] [--threads 2] [--steps 5]
"""
import argparse
import json
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from kfac.layers.inverse import KFACInverseLayer
    from kfac.preconditioner import KFACPreconditioner
except ImportError as missing:
    sys.exit(f"vs_kaisa.py: {missing}: needs PyTorch and the package kfac of gpauloski/kfac-pytorch")

from networks import make_resnet


PARTS = {
    "statistics": ("save_layer_input", "save_layer_grad_output", "update_a_factor", "update_g_factor"),
    "solve": ("compute_a_inv", "compute_g_inv"),
    "apply": ("preconditioned_grad",),
}


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--batch", type=int, default=32)
    args.add_argument("--threads", type=int, default=2)
    args.add_argument("--steps", type=int, default=5)
    args.add_argument("--peer", help="also write the times for scripts/performance.py")
    args = args.parse_args()
    torch.set_num_threads(args.threads)
    spent = dict.fromkeys(PARTS, 0.0)

    def add_timer(part, function):
        def timed_call(*a, **k):
            start = time.perf_counter()
            result = function(*a, **k)
            spent[part] += time.perf_counter() - start
            return result

        return timed_call

    for part, names in PARTS.items():
        for name in names:
            setattr(KFACInverseLayer, name, add_timer(part, getattr(KFACInverseLayer, name)))
    model = make_resnet("resnet18")[0]
    kfac = KFACPreconditioner(model, factor_update_steps=1, inv_update_steps=1, compute_method="inverse")
    x, y = torch.randn(args.batch, 3, 32, 32), torch.randint(0, 100, (args.batch,))
    rows = []
    for _ in range(args.steps + 1):
        for part in spent:
            spent[part] = 0.0
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        kfac.step()
        rows.append(dict(spent))
    print(f"torch = {torch.__version__} threads = {args.threads} batch = {args.batch}")
    for part in PARTS:  # the first step warms up
        print(f"{part}: {1e3 * statistics.median(r[part] for r in rows[1:]):.0f} ms")
    if args.peer:
        times = {f"resnet18/{args.batch}/sum/{part}": 1e3 * statistics.median(r[part] for r in rows[1:]) for part in PARTS}
        with open(args.peer, "w") as f:
            json.dump({"peer": "KAISA", "ms": times}, f)


if __name__ == "__main__":
    main()
