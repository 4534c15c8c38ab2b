#!/usr/bin/env python3
"""Cost of the PyTorch front outside of the library: microseconds for each hooked layer (forward and backward hooks,
array descriptions, bindings), and its share of a ResNet-18 step.

    NATGRAD_LIBRARY=build/libnatgrad.so.0 PYTHONPATH=python python3 bench/front.py [--batch 32] [--threads 2]

The cost is the difference between two chains of small layers, with and without the front.  Calls into the library are
replaced by a function that does nothing, so the cost includes PyTorch's dispatch of hooks.
"""
import argparse
import ctypes
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    import natgrad
except ImportError as missing:
    sys.exit(f"front.py: {missing}: needs PyTorch, and natgrad (pip install . or PYTHONPATH=python)")
from networks import make_resnet

LAYERS = 100


def replace_library_calls(k):
    """Replace every call of the library in a step by a function that does nothing."""
    library = ctypes.CDLL(k._core.library._name)
    nothing = library.ng_dtype_size  # returns 0 for an invalid dtype and reads no other argument
    nothing.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int]
    k._observer._input = k._observer._output = nothing
    k._observer._begin = lambda *_arguments: 0
    k._core.call = lambda *_arguments: 0


def measure_step_ms(model, x, y, k=None, clock=time.perf_counter):
    for p in model.parameters():
        p.grad = None
    begin = clock()
    F.cross_entropy(model(x), y).backward()
    if k is not None:
        k.step()
    return 1e3 * (clock() - begin)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--batch", type=int, default=32)
    args.add_argument("--threads", type=int, default=2)
    args.add_argument("--rounds", type=int, default=200)
    args = args.parse_args()

    torch.set_num_threads(1)
    chain = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(LAYERS)))
    x, y = torch.randn(4, 8), torch.zeros(4, dtype=torch.long)
    hooked = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(LAYERS)))
    k = natgrad.KFAC(hooked)
    replace_library_calls(k)
    plain, front = [], []
    for _ in range(args.rounds):
        # processor time of this thread, which does all the work, so other load on the machine does not count
        plain.append(measure_step_ms(chain, x, y, clock=time.thread_time))
        front.append(measure_step_ms(hooked, x, y, k, clock=time.thread_time))
    least = [statistics.median(sorted(times)[:args.rounds // 2]) for times in (plain, front)]
    layer = 1e3 * (least[1] - least[0]) / LAYERS
    print(f"PyTorch {torch.__version__}: {layer:.1f} microseconds a hooked layer (chain of {LAYERS}: "
          f"{least[0]:.2f} ms without, {least[1]:.2f} ms with the front)")

    torch.set_num_threads(args.threads)
    model, classes = make_resnet("resnet18")
    x, y = torch.randn(args.batch, 3, 32, 32), torch.arange(args.batch) % classes
    measure_step_ms(model, x, y)
    step = min(measure_step_ms(model, x, y) for _ in range(5))
    k = natgrad.KFAC(model)
    layers = len(k.report()["layers"])
    print(f"resnet18, batch {args.batch}, {args.threads} threads: {layers} layers, {layers * layer / 1e3:.2f} ms of a "
          f"step of {step:.0f} ms (forward and backward alone, best of 5): {layers * layer / 10 / step:.2f} %")


if __name__ == "__main__":
    main()
