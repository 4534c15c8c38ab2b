"""Times of PyTorch beside gpu_eva: Eva as published with SGD, and the solves that K-FAC on a GPU would use.

usage: gpu_peer.py        (PyTorch with CUDA); prints medians
"""
import math

import torch

DAMPING, CLIP, LR = 0.03, 1e-3, 0.1


def median_ms(f, runs=20, warm_up=3):
    for _ in range(warm_up):
        f()
    torch.cuda.synchronize()
    times = []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        f()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[runs // 2]


def resnet_shapes(deep):
    """Return the parameter shapes of ResNet-18 or ResNet-50 for 1,000 classes, as in gpu_eva.c."""
    shapes = []

    def add_conv(out, channels, kernel):
        shapes.extend([(out, channels * kernel * kernel), (out,), (out,)])

    channels = 64
    add_conv(64, 3, 7)
    for stage, blocks in enumerate([3, 4, 6, 3] if deep else [2, 2, 2, 2]):
        width = 64 << stage
        out = 4 * width if deep else width
        for block in range(blocks):
            for conv in [(width, channels, 1), (width, width, 3), (out, width, 1)] if deep else [
                    (width, channels, 3), (width, width, 3)]:
                add_conv(*conv)
            if block == 0 and (deep or stage > 0):
                add_conv(out, channels, 1)
            channels = out
    shapes.extend([(1000, channels), (1000,)])
    return shapes


def time_eva(name):
    """Time the operations of lzhangbv/eva in their order, with its reads of scalars by the host, then torch.optim.SGD."""
    parameters = [torch.nn.Parameter(torch.randn(s, device="cuda") * 0.1) for s in resnet_shapes(name == "resnet50")]
    for p in parameters:
        p.grad = torch.randn_like(p) * 1e-2
    kept = [p.grad.clone() for p in parameters]
    weights = [p for p in parameters if p.dim() == 2]
    means = [(torch.randn(p.shape[1], 1, device="cuda"), torch.randn(p.shape[0], 1, device="cuda") * 1e-2) for p in weights]
    new = [(torch.randn_like(a), torch.randn_like(g)) for a, g in means]

    def precondition():
        total, directions = 0.0, []
        for p, (a, g), (new_a, new_g) in zip(weights, means, new):
            a.mul_(0.05).add_(new_a, alpha=0.95)
            g.mul_(0.05).add_(new_g, alpha=0.95)
            v = g @ a.T
            alpha, beta, s = (a.T @ a).item(), (g.T @ g).item(), (g.T @ p.grad @ a).item()
            v.mul_(-s / (alpha * beta + DAMPING)).add_(p.grad).div_(DAMPING)
            directions.append(v)
            total += (v * p.grad * LR ** 2).sum().item()
        factor = min(1.0, math.sqrt(CLIP / total))
        for p, v in zip(weights, directions):
            p.grad.copy_(v.mul_(factor))

    for how in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        sgd = torch.optim.SGD(parameters, lr=1e-6, momentum=0.9, weight_decay=5e-4, **how)

        def step():
            precondition()
            sgd.step()

        label = "SGD(" + ", ".join(f"{k}={v}" for k, v in how.items()) + ")"
        print(f"{name}: Eva as published + {label} {median_ms(step) * 1e3:.0f} us; {label} alone {median_ms(sgd.step) * 1e3:.0f} us")
        for p, g in zip(parameters, kept):
            p.grad.copy_(g)


def random_covariance(n, batch=()):
    x = torch.randn(*batch, n, n, device="cuda") / math.sqrt(n)
    return x @ x.mT + 1e-3 * torch.eye(n, device="cuda")


def time_solves(n, batch=()):
    S = random_covariance(n, batch)
    Q = torch.linalg.qr(torch.randn_like(S))[0]
    L = torch.linalg.cholesky(S)
    work = {"potrf": lambda: torch.linalg.cholesky_ex(S), "potri": lambda: torch.cholesky_inverse(L),
            "eigh": lambda: torch.linalg.eigh(S), "S Q and QR": lambda: torch.linalg.qr(S @ Q), "S Q": lambda: S @ Q}
    print(f"n = {n}, batch {batch[0] if batch else 1}: " +
          ", ".join(f"{k} {median_ms(f, 5 if n > 2000 else 10, 1):.3f} ms" for k, f in work.items()))


def main():
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    print(torch.__version__, torch.cuda.get_device_name(0))
    for name in ("resnet18", "resnet50"):
        time_eva(name)
    for n in (256, 512, 1024, 2304, 4608):
        time_solves(n)
    for n, batch in ((64, 64), (256, 16), (576, 8), (1152, 4)):
        time_solves(n, (batch,))


if __name__ == "__main__":
    main()
