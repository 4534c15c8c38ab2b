"""natgrad.Muon beside torch.optim.Muon in one process: ms of a step, for the weights of ResNet-18 (convolutions as [out, -1]) and of a
12-layer GPT (d = 768). torch.optim.Muon runs as published (bf16) and with bfloat16() made the identity. Steps of all three are
interleaved; the ratio is of medians.

    NATGRAD_LIBRARY=build/libnatgrad.so.0 PYTHONPATH=python python bench/vs_torch_muon.py [--rounds 5] [resnet18 gpt]
"""
import argparse
import os
import statistics
import time

import torch
from torch import nn

import natgrad


def resnet18():
    widths, shapes, last = (64, 128, 256, 512), [(64, 3 * 49)], 64
    for w in widths:
        shapes += [(w, last * 9), (w, w * 9), (w, w * 9), (w, w * 9)] + ([(w, last)] if w != last else [])
        last = w
    return shapes + [(1000, 512)]


def gpt(d=768, layers=12):
    return [(3 * d, d), (d, d), (4 * d, d), (d, 4 * d)] * layers


class Weights(nn.Module):
    """The weights as linear layers; nothing is computed with them."""

    def __init__(self, shapes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(n, m, bias=False) for m, n in shapes)


def bench(name, shapes, rounds):
    torch.manual_seed(0)
    models = [Weights(shapes) for _ in range(3)]
    for p, *others in zip(*(m.parameters() for m in models)):
        gradient = torch.randn_like(p)
        for q in (p, *others):
            q.grad = gradient.clone()
    mine = natgrad.Muon(models[0], lr=0.02)
    published, plain = (torch.optim.Muon(m.parameters(), lr=0.02) for m in models[1:])
    bfloat16 = torch.Tensor.bfloat16

    def step_plain():
        torch.Tensor.bfloat16 = lambda x: x
        plain.step()
        torch.Tensor.bfloat16 = bfloat16

    steps = {"natgrad, f32": mine.step, "torch, f32": step_plain, "torch, bf16": published.step}
    times = {key: [] for key in steps}
    for _ in range(rounds + 1):
        for key, step in steps.items():
            start = time.perf_counter()
            step()
            times[key].append(1e3 * (time.perf_counter() - start))
    medians = {key: statistics.median(values[1:]) for key, values in times.items()}
    flops = [(min(s), max(s)) for s in shapes]
    needed = sum(15 * r * r * R + 5 * r**3 for r, R in flops)
    print(f"{name}: {len(shapes)} weights, {sum(m * n for m, n in shapes) / 1e6:.1f} M parameters, "
          f"{needed / 1e9:.0f} of {sum(20 * r * r * R + 10 * r**3 for r, R in flops) / 1e9:.0f} Gflop")
    for key, ms in medians.items():
        low, high = min(times[key][1:]), max(times[key][1:])
        print(f"  {key:14s} {ms:9.1f} ms [{low:.1f}, {high:.1f}]  ratio {ms / medians['natgrad, f32']:.2f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("networks", nargs="*", default=["resnet18", "gpt"])
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()}; natgrad {natgrad.build_info()['blas']}")
    for name in args.networks:
        bench(name, {"resnet18": resnet18, "gpt": gpt}[name](), args.rounds)


if __name__ == "__main__":
    main()
