"""Times of PyTorch operations beside eva_bench, and of solves that K-FAC on a GPU would use."""
import sys, time, math, torch
torch.manual_seed(0)
dev = torch.device("cuda")
torch.backends.cuda.matmul.allow_tf32 = False
print(torch.__version__, torch.cuda.get_device_name(0))

def timed(f, runs=20, warm=3):
    for _ in range(warm): f()
    torch.cuda.synchronize()
    t = []
    for _ in range(runs):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); f(); b.record(); torch.cuda.synchronize()
        t.append(a.elapsed_time(b))
    return sorted(t)[len(t) // 2]

def resnet(deep):
    shapes = []
    def conv(o, i, k): shapes.append((o, i * k * k)); shapes.append((o,)); shapes.append((o,))
    n = 64; conv(64, 3, 7)
    for s, b in enumerate([[2, 2, 2, 2], [3, 4, 6, 3]][deep]):
        w = 64 << s; out = 4 * w if deep else w
        for k in range(b):
            if deep: conv(w, n, 1); conv(w, w, 3); conv(out, w, 1)
            else: conv(w, n, 3); conv(w, w, 3)
            if k == 0 and (deep or s): conv(out, n, 1)
            n = out
    shapes.append((1000, n)); shapes.append((1000,))
    return shapes

def eva(name):
    shapes = resnet(name == "resnet50")
    ps = [torch.nn.Parameter(torch.randn(s, device=dev) * 0.1) for s in shapes]
    for p in ps: p.grad = torch.randn_like(p) * 1e-2
    mats = [p for p in ps if p.dim() == 2]
    A = [torch.randn(p.shape[1], 1, device=dev) for p in mats]
    G = [torch.randn(p.shape[0], 1, device=dev) * 1e-2 for p in mats]
    na, ng_ = [torch.randn_like(a) for a in A], [torch.randn_like(g) for g in G]
    damping, kl, lr = 0.03, 1e-3, 0.1
    def published():  # the sequence of operations of lzhangbv/eva, spec/eva.md 1.3 to 1.6
        vg = 0.0; upd = []
        for p, a, g, x, y in zip(mats, A, G, na, ng_):
            a.mul_(0.05).add_(x, alpha=0.95); g.mul_(0.05).add_(y, alpha=0.95)
            grad = p.grad
            v = g @ a.T
            al, be = (a.T @ a).item(), (g.T @ g).item()
            s = (g.T @ grad @ a).item()
            v.mul_(-s / (al * be + damping)); v.add_(grad); v.div_(damping)
            upd.append(v)
            vg += (v * grad * lr ** 2).sum().item()
        nu = min(1.0, math.sqrt(kl / vg))
        for p, v in zip(mats, upd): p.grad.data.copy_(v.mul_(nu))
    keep = [p.grad.clone() for p in ps]
    for how, kw in (("loop", dict(foreach=False)), ("foreach", dict(foreach=True)), ("fused", dict(fused=True))):
        opt = torch.optim.SGD(ps, lr=1e-6, momentum=0.9, weight_decay=5e-4, **kw)
        def step(): published(); opt.step()
        def sgd(): opt.step()
        print(f"{name}: Eva as published + SGD({how}) {timed(step) * 1e3:.0f} us; SGD({how}) alone {timed(sgd) * 1e3:.0f} us")
        for p, k in zip(ps, keep): p.grad.copy_(k)

for name in ("resnet18", "resnet50"): eva(name)

def psd(n, b=()):
    x = torch.randn(*b, n, n, device=dev) / math.sqrt(n)
    return x @ x.mT + 1e-3 * torch.eye(n, device=dev)
for n in (256, 512, 1024, 2304, 4608):
    S = psd(n)
    runs = 5 if n > 2000 else 10
    Q = torch.linalg.qr(torch.randn(n, n, device=dev))[0]
    L = torch.linalg.cholesky(S)
    row = {"potrf": lambda: torch.linalg.cholesky_ex(S), "potri": lambda: torch.cholesky_inverse(L),
           "eigh": lambda: torch.linalg.eigh(S), "SQ + QR": lambda: torch.linalg.qr(S @ Q),
           "gemm n": lambda: S @ Q}
    print(f"n = {n}: " + ", ".join(f"{k} {timed(f, runs, 1):.3f} ms" for k, f in row.items()))
for n, b in ((64, 64), (256, 16), (576, 8), (1152, 4)):
    S = psd(n, (b,))
    L = torch.linalg.cholesky(S)
    print(f"n = {n}, batch {b}: potrf {timed(lambda: torch.linalg.cholesky_ex(S), 10, 1):.3f} ms, "
          f"potrs {timed(lambda: torch.cholesky_inverse(L), 10, 1):.3f} ms, eigh {timed(lambda: torch.linalg.eigh(S), 5, 1):.3f} ms")
# one orthogonal iteration: how far is its subspace from the eigenvectors, after k steps on a drifting matrix
