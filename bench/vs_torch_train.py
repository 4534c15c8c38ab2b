#!/usr/bin/env python3
"""Time forward and backward of ResNet-18 (32x32 images, 100 classes), ResNet-20 (10 classes) or gpt-char (context 128, 65
characters) in PyTorch and in natgrad's trainer, alternately, with equal thread numbers: median milliseconds and their ratio.

    python3 bench/vs_torch_train.py build/natgrad [--model resnet18] [--batch 32] [--threads 2] [--rounds 3]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError as missing:
    sys.exit(f"vs_torch_train.py: {missing}: needs PyTorch (pip install torch)")
from networks import Transformer, make_resnet


def time_torch_steps(net, x, labels, steps):
    times = []
    for _ in range(steps + 1):
        for p in net.parameters():
            p.grad = None
        begin = time.perf_counter()
        F.cross_entropy(net(x), labels).backward()
        times.append(1e3 * (time.perf_counter() - begin))
    return times[1:]


def time_natgrad_steps(args, steps):
    env = dict(os.environ, OPENBLAS_NUM_THREADS=str(args.threads))
    out = subprocess.run([args.program, "bench", "train", "--model", args.model, "--batch", str(args.batch),
                          "--repeat", str(steps), "--no-floors", "--json"],
                         check=True, text=True, capture_output=True, env=env).stdout
    return next(line["median_ms"] for line in map(json.loads, out.splitlines()) if line.get("case") == "both")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("program")
    args.add_argument("--model", choices=("resnet18", "resnet20", "gpt-char"), default="resnet18")
    args.add_argument("--batch", type=int, default=32)
    args.add_argument("--threads", type=int, default=2)
    args.add_argument("--rounds", type=int, default=3)
    args.add_argument("--peer", help="also write PyTorch's time for scripts/performance.py")
    args = args.parse_args()
    torch.set_num_threads(args.threads)
    images = args.model != "gpt-char"
    if images:
        net, classes = make_resnet(args.model)
        x, labels = torch.randn(args.batch, 3, 32, 32), torch.arange(args.batch) % classes
    else:
        net, x, labels = Transformer(), torch.randint(65, (args.batch, 128)), torch.arange(128 * args.batch) % 65
    plain, last, ours = [], [], []
    for _ in range(args.rounds):
        plain += time_torch_steps(net, x, labels, 5)
        ours.append(time_natgrad_steps(args, 5))
        if not images:
            continue
        wide = net.to(memory_format=torch.channels_last)
        last += time_torch_steps(wide, x.to(memory_format=torch.channels_last), labels, 5)
        net = net.to(memory_format=torch.contiguous_format)
    print(f"{args.model}, batch {args.batch}, {args.threads} threads, PyTorch {torch.__version__}; "
          f"medians of {args.rounds} rounds of 5, ms")
    ms = statistics.median(ours)
    print(f"  natgrad                 {ms:8.1f}")
    for name, times in (("PyTorch", plain), ("PyTorch, channels last", last)):
        if not times:
            continue
        median = statistics.median(times)
        print(f"  {name:22}  {median:8.1f}   natgrad / this {ms / median:.2f}")
    if args.peer:
        with open(args.peer, "w") as f:
            json.dump({"peer": f"PyTorch {torch.__version__}", "ms": {"both": statistics.median(plain)}}, f)


if __name__ == "__main__":
    main()
