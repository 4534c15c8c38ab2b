"""natgrad.Muon, SOAP and Shampoo beside the public programs in one process: time of an optimizer step for the weights of ResNet-18
and of the blocks of a 12-layer GPT (d = 768). Gradients are constant, so only the optimizers run.

    muon      torch.optim.Muon, as published (bf16) and with bfloat16() made the identity; convolutions are [out, -1]
    soap      nikhilvyas/SOAP: steps without and with new bases; natgrad also with frequency 1
    shampoo   facebookresearch/optimizers: target dimensionality 2, grafting to Adam, epsilon 1e-4

Steps of all programs are interleaved. The figures are medians of the elapsed time, and of the processor time of the process, which
a busy machine changes less. A ratio is the median of the other program divided by the median of natgrad in the same kind of step.

    env -u OPENBLAS_CORETYPE NATGRAD_LIBRARY=build/libnatgrad.so.0 PYTHONPATH=python python bench/vs_matrix.py [--soap CLONE] [--optimizers CLONE]
        [--rounds 2] [--frequency 10] [--layers 1] [--threads 2] [--networks gpt,resnet18] [muon soap shampoo]
"""
import argparse
import math
import os
import statistics
import sys
import time

import torch
from torch import nn

import natgrad

def resnet18(layers, flat):
    widths, shapes, last = (64, 128, 256, 512), [(64, 3, 7, 7)], 64
    for w in widths:
        shapes += [(w, last, 3, 3)] + [(w, w, 3, 3)] * 3 + ([(w, last, 1, 1)] if w != last else [])
        last = w
    return [(s[0], math.prod(s[1:])) if flat else s for s in shapes + [(1000, 512)]]


def gpt(layers, flat, d=768):
    return [(3 * d, d), (d, d), (4 * d, d), (d, 4 * d)] * layers


class Weights(nn.Module):
    """The weights as layers; nothing is computed with them."""

    def __init__(self, shapes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(s[1], s[0], bias=False) if len(s) == 2 else
                                    nn.Conv2d(s[1], s[0], s[2:], bias=False) for s in shapes)


def make_muon(args):
    bfloat16 = torch.Tensor.bfloat16

    def step_plain(optimizer):
        torch.Tensor.bfloat16 = lambda x: x
        optimizer.step()
        torch.Tensor.bfloat16 = bfloat16

    def torch_muon(model):
        return torch.optim.Muon(model.parameters(), lr=0.02)

    return {"natgrad, f32": (lambda m: natgrad.Muon(m, lr=0.02), None),
            "natgrad, bf16": (lambda m: natgrad.Muon(m, lr=0.02, muon_rounding="fused"), None), "torch, f32": (torch_muon, step_plain),
            "torch, bf16": (torch_muon, None)}, 1


def make_soap(args):
    sys.path.insert(0, args.soap)
    from soap import SOAP
    return {"natgrad": (lambda m: natgrad.SOAP(m, precondition_frequency=args.frequency), None),
            "natgrad, every step": (lambda m: natgrad.SOAP(m, precondition_frequency=1), None),
            "nikhilvyas/SOAP": (lambda m: SOAP(m.parameters(), precondition_frequency=args.frequency), None)}, args.frequency


def make_shampoo(args):
    sys.path.insert(0, args.optimizers)
    from distributed_shampoo import AdamPreconditionerConfig, DistributedShampoo, SingleDeviceDistributedConfig

    def published(model):
        return DistributedShampoo(model.parameters(), epsilon=args.epsilon, precondition_frequency=args.frequency, start_preconditioning_step=args.frequency,
                                  grafting_config=AdamPreconditionerConfig(beta2=0.999, epsilon=1e-10),
                                  distributed_config=SingleDeviceDistributedConfig(target_parameter_dimensionality=2))

    def ours(model):
        return natgrad.Shampoo(model, epsilon=args.epsilon, precondition_frequency=args.frequency, grafting="adam",
                               target_parameter_dimensionality=2)

    return {"natgrad": (ours, None), "facebookresearch/optimizers": (published, None)}, args.frequency


def bench(name, shapes, programs, period, first_solve, rounds):
    torch.manual_seed(0)
    models = [Weights(shapes) for _ in programs]
    for p, *others in zip(*(m.parameters() for m in models)):
        gradient = 1e-2 * torch.randn_like(p)
        for q in (p, *others):
            q.grad = gradient.clone()
    optimizers = [make(m) for (make, _), m in zip(programs.values(), models)]
    # The first period has no figures. SOAP counts its steps from the second one, so its bases change in steps 1, 11, 21, ...
    times = {}
    for t in range(1, (rounds + 1) * period + 1 + first_solve):
        for (key, (_, step)), optimizer in zip(programs.items(), optimizers):
            wall, cpu = time.perf_counter(), time.process_time()
            step(optimizer) if step else optimizer.step()
            elapsed = time.perf_counter() - wall, time.process_time() - cpu
            kind = "step" if period == 1 else "every" if "every" in key else "solve" if t % period == first_solve else "plain"
            if t > period:
                times.setdefault((kind, key), []).append(elapsed)
    first = next(iter(programs))
    print(f"{name}: {len(shapes)} weights, {sum(math.prod(s) for s in shapes) / 1e6:.1f} M parameters")
    for kind, key in times:
        values, base = times[kind, key], times[kind, first] if (kind, first) in times else times["plain", first]
        wall, cpu = (1e3 * statistics.median(v[i] for v in values) for i in (0, 1))
        ratio = [statistics.median(v[i] for v in values) / statistics.median(v[i] for v in base) for i in (0, 1)]
        print(f"  {kind:6s} {key:28s} {wall:9.1f} ms [{1e3 * min(v[0] for v in values):.1f}, {1e3 * max(v[0] for v in values):.1f}]"
              f"  cpu {cpu:9.1f} ms  ratio {ratio[0]:.2f}, cpu {ratio[1]:.2f}  ({len(values)} steps)", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--soap", default="SOAP")
    parser.add_argument("--optimizers", default="optimizers")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--frequency", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=1e-4)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--networks", default="gpt,resnet18")
    parser.add_argument("methods", nargs="*", default=["muon", "soap", "shampoo"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()}; natgrad {natgrad.build_info()['blas']}")
    for method in args.methods:
        programs, period = {"muon": make_muon, "soap": make_soap, "shampoo": make_shampoo}[method](args)
        for name in args.networks.split(","):
            shapes = {"resnet18": resnet18, "gpt": gpt}[name](args.layers, method != "soap")
            bench(f"{method}, {name}", shapes, programs, period, method == "soap", args.rounds * (5 if period == 1 else 1))


if __name__ == "__main__":
    main()
