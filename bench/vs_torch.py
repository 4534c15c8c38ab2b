#!/usr/bin/env python3
"""Time a step of Eva in PyTorch, then in natgrad: median milliseconds and their ratio.

PyTorch runs the published sequence of operations (lzhangbv/eva): for every layer an outer product, a
scale, an add, a divide, three scalars read by the host; then the clip; then torch.optim.SGD with
momentum and weight decay.  natgrad is `natgrad bench fused-eva` on the same shapes and threads.  Run it on a quiet machine.

    python3 bench/vs_torch.py build/natgrad [--model resnet18] [--threads 2] [--steps 15]
"""
import argparse
import json
import math
import statistics
import subprocess
import sys
import time

try:
    import torch
except ImportError as missing:
    sys.exit(f"vs_torch.py: {missing}: needs PyTorch (pip install torch)")

DAMPING, KL_CLIP, LR = 0.03, 0.001, 0.1


def read_gradient_shapes(program, model):
    """Return [rows, columns] of each layer's gradient; a bias is one more column."""
    lines = subprocess.run([program, "bench", "kfac", "--model", model, "--list"], check=True, text=True,
                           capture_output=True).stdout.splitlines()
    return [(int(g), int(a)) for _, a, g, _ in (line.split() for line in lines[1:-1])]


def precondition_with_eva(params, vectors):
    """Run the operations of kfac/eva.py of lzhangbv/eva in their order."""
    results = []
    for p, (a, g) in zip(params, vectors):
        grad = p.grad
        alpha = (a.t() @ a).item()
        beta = (g.t() @ g).item()
        s = (g.t() @ grad @ a).item()
        v = g @ a.t()
        v.mul_(-s / (alpha * beta + DAMPING))
        v.add_(grad)
        v.div_(DAMPING)
        results.append(v)
    total = 0.0
    for p, v in zip(params, results):
        total += (v * p.grad * LR**2).sum().item()
        p.grad.copy_(v)
    nu = min(1.0, math.sqrt(KL_CLIP / total)) if total > 0 else 1.0
    for p in params:
        p.grad.mul_(nu)


def measure_ms(function):
    start = time.perf_counter()
    function()
    return 1e3 * (time.perf_counter() - start)


def measure_torch(sizes, steps):
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(s) * 0.1) for s in sizes]
    fresh = [torch.randn(s) * 0.01 for s in sizes]
    vectors = [(torch.rand(c, 1) - 0.5, torch.rand(r, 1) - 0.5) for r, c in sizes]
    sgd = torch.optim.SGD(params, lr=LR, momentum=0.9, weight_decay=5e-4)
    other = torch.zeros(64 << 20)  # overwritten before each step, so that the caches do not hold the gradients
    rows = []
    for _ in range(steps + 2):
        for p, f in zip(params, fresh):
            p.grad = f.clone()
        other.add_(1)
        first = measure_ms(lambda: precondition_with_eva(params, vectors))
        rows.append((first, first + measure_ms(sgd.step)))
    return [statistics.median(r[k] for r in rows[2:]) for k in range(2)]


def measure_natgrad(program, model, threads, steps):
    command = [program, "bench", "fused-eva", "--model", model, "--repeat", str(steps), "--json"]
    out = subprocess.run(command, check=True, text=True, capture_output=True,
                         env={"NG_THREADS": str(threads), "PATH": "/usr/bin:/bin"}).stdout
    lines = [json.loads(line) for line in out.splitlines()]
    found = {line["case"].split("/", 1)[1]: line for line in lines if "case" in line}
    return found["precondition"], found["with sgd"]


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("program")
    args.add_argument("--model", default="resnet18")
    args.add_argument("--threads", type=int, default=2)
    args.add_argument("--steps", type=int, default=15)
    args.add_argument("--peer", help="also write PyTorch's times for scripts/performance.py")
    args = args.parse_args()
    torch.set_num_threads(args.threads)
    sizes = read_gradient_shapes(args.program, args.model)
    count = sum(r * c for r, c in sizes)
    theirs = measure_torch(sizes, args.steps)
    ours = measure_natgrad(args.program, args.model, args.threads, args.steps)
    print(f"{args.model}, {count} parameters, {args.threads} threads, torch {torch.__version__}, medians of {args.steps}")
    print(f"{'':14} {'torch ms':>9} {'natgrad ms':>10} {'faster':>7} {'/ bound':>9}")
    for name, t, o in zip(("precondition", "with sgd"), theirs, ours):
        floor = o["floor_ms"]
        print(f"{name:14} {t:9.2f} {o['median_ms']:10.3f} {t / o['median_ms']:7.1f} "
              f"{o['median_ms'] / floor if floor else float('nan'):9.2f}")
    if args.peer:
        times = {o["case"]: t for t, o in zip(theirs, ours)}
        with open(args.peer, "w") as f:
            json.dump({"peer": f"PyTorch {torch.__version__}", "ms": times}, f)


if __name__ == "__main__":
    main()
