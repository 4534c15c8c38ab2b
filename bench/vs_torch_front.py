#!/usr/bin/env python3
"""Compare natgrad's PyTorch front with the same methods written in PyTorch: median milliseconds, and natgrad's speed-up.
The model is ResNet-18 for 32x32 images.  Eva uses 16 samples as published; K-FAC is the inverse method of kfac-pytorch with
statistics and inverses in every step.  The three programs alternate.

    NATGRAD_LIBRARY=build/libnatgrad.so.0 PYTHONPATH=python python3 bench/vs_torch_front.py [eva] [kfac]
        [--batch 32] [--threads 2] [--rounds 9]

`published` is the sequence of operations of the published program.  `at its best` uses the fewest passes over memory that PyTorch
allows (Eva: a product, norms by foreach, one addr_ in place; K-FAC: patches, addmm_ into the average, Cholesky).  The three
programs start from the same weights, and their gradients after the first step must agree.  With one thread the figures are
processor time, which other load on the machine does not change.
"""
import argparse
import copy
import math
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from natgrad import SGD, _hooks, compat
except ImportError as missing:
    sys.exit(f"vs_torch_front.py: {missing}: needs PyTorch, and natgrad (pip install . or PYTHONPATH=python)")
from networks import make_resnet

LR, KL_CLIP = 0.1, 0.001
EVA = dict(damping=0.03, decay=0.95)  # decay: the weight of the new sample
KFAC = dict(damping=0.001, decay=0.95)  # decay: the weight of the old average
# Relative difference accepted between float32 programs.  Eva subtracts c g a' from D, which cancels digits where g' D a is large:
# measured 1e-4 at batch 4, 6e-6 at batch 32.  K-FAC's first factors are 0.95 I + 0.05 new: condition at most 1e3, times 6e-8.
TOLERANCE = 1e-3


class WrittenInPyTorch:
    """Base class of the two methods written in PyTorch: hooks, gradients as matrices, the clip."""

    def __init__(self, model, best):
        self.best, self.is_due, self.steps = best, True, 0
        self.layers = [m for m in model.modules() if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear))]
        self.a, self.g = {}, {}
        for m in self.layers:
            m.register_forward_pre_hook(self.observe_input)
            m.register_forward_hook(self.hook_output_gradient)

    def hook_output_gradient(self, m, _inputs, output):
        if self.is_due:
            output.register_hook(lambda g: self.observe_output_gradient(m, g))

    @staticmethod
    def gradient_matrix(m):
        """Return the gradient [q, p], with the gradient of the bias as the last column."""
        D = m.weight.grad.view(len(m.weight), -1)
        return D if m.bias is None else torch.cat([D, m.bias.grad[:, None]], 1)

    @staticmethod
    def write_gradient(m, P):
        if m.bias is not None:
            m.bias.grad.copy_(P[:, -1])
            P = P[:, :-1]
        m.weight.grad.copy_(P.reshape(m.weight.shape))

    @staticmethod
    def clip_factor(total):
        return min(1.0, math.sqrt(KL_CLIP / abs(total))) if total else 1.0


class WrittenEva(WrittenInPyTorch):
    """Eva as in kfac/eva.py of lzhangbv/eva."""

    def fold_mean(self, kept, m, new):
        kept[m] = new if m not in kept else kept[m].mul_(1 - EVA["decay"]).add_(new, alpha=EVA["decay"])

    def observe_input(self, m, inputs):
        if not self.is_due:
            return
        x = inputs[0].detach()[:16]
        if isinstance(m, torch.nn.Conv2d):  # mean over the patches of the mean image
            a = F.unfold(x.mean(0, keepdim=True), m.kernel_size, 1, m.padding, m.stride).mean(2).view(-1)
        else:
            a = x.mean(0)
        self.fold_mean(self.a, m, a if m.bias is None else torch.cat([a, a.new_ones(1)]))

    def observe_output_gradient(self, m, g):
        self.fold_mean(self.g, m, g[:16].mean((0, 2, 3) if g.dim() == 4 else 0))

    def step(self):
        (self.step_in_few_passes if self.best else self.step_as_published)()
        self.steps += 1

    def step_as_published(self):
        damping, found, total = EVA["damping"], [], 0.0
        for m in self.layers:
            a, g, D = self.a[m][:, None], self.g[m][:, None], self.gradient_matrix(m)
            alpha, beta, s = (a.t() @ a).item(), (g.t() @ g).item(), (g.t() @ D @ a).item()
            P = g @ a.t()
            P.mul_(-s / (alpha * beta + damping)).add_(D).div_(damping)
            found.append((P, D))
        for P, D in found:
            total += (P * D * LR**2).sum().item()
        nu = self.clip_factor(total)
        for m, (P, _) in zip(self.layers, found):
            self.write_gradient(m, P)
            m.weight.grad.mul_(nu)
            if m.bias is not None:
                m.bias.grad.mul_(nu)

    def step_in_few_passes(self):
        """<D, P> = (|D|^2 - s c) / damping is known before P is computed, so one scaled D.addr_(g, a) yields nu P."""
        damping, Ds = EVA["damping"], [self.gradient_matrix(m) for m in self.layers]
        a, g = [self.a[m] for m in self.layers], [self.g[m] for m in self.layers]
        s = torch.stack([(u @ D).dot(v) if D.shape[0] < D.shape[1] else u.dot(D @ v) for D, u, v in zip(Ds, g, a)])
        D2, a2, g2 = (torch.stack(torch._foreach_norm(rows)).square() for rows in (Ds, a, g))
        c = s / (a2 * g2 + damping)
        nu = self.clip_factor(LR**2 * ((D2 - s * c).sum() / damping).item())
        for m, D, u, v, w in zip(self.layers, Ds, g, a, c.tolist()):
            D.addr_(u, v, beta=nu / damping, alpha=-w * nu / damping)
            if m.bias is not None:
                self.write_gradient(m, D)


class WrittenKFAC(WrittenInPyTorch):
    """K-FAC as in kfac-pytorch with compute_method inverse."""

    def input_rows(self, m, x):
        """Return x as rows [samples * positions, p] (patches of a convolution, a column of ones for the bias), and positions."""
        if isinstance(m, torch.nn.Conv2d):
            x = F.pad(x, (m.padding[1],) * 2 + (m.padding[0],) * 2)
            x = x.unfold(2, m.kernel_size[0], m.stride[0]).unfold(3, m.kernel_size[1], m.stride[1])
            positions = x.shape[2] * x.shape[3]
            x = x.permute(0, 2, 3, 1, 4, 5).reshape(len(x) * positions, -1)
        else:
            positions = 1
        return (x if m.bias is None else torch.cat([x, x.new_ones(len(x), 1)], 1)), positions

    def observe_input(self, m, inputs):
        if self.is_due:
            self.fold_factor(self.a, m, *self.input_rows(m, inputs[0].detach()))

    def observe_output_gradient(self, m, g):
        positions = g.shape[2] * g.shape[3] if g.dim() == 4 else 1
        self.fold_factor(self.g, m, g.permute(0, 2, 3, 1).reshape(-1, g.shape[1]) if g.dim() == 4 else g, positions)

    def fold_factor(self, kept, m, x, positions):
        decay, n = KFAC["decay"], x.shape[1]
        if m not in kept:
            kept[m] = torch.eye(n)
        if self.best:
            kept[m].addmm_(x.t(), x, beta=decay, alpha=(1 - decay) / len(x) / positions**2)
            return
        x = x / positions
        new = x.t() @ (x / len(x))
        new = (new + new.t()) / 2
        kept[m] = kept[m].mul_(decay).add_(new, alpha=1 - decay)

    def damped_inverse(self, factor):
        damped = factor + torch.diag(factor.new_full((len(factor),), KFAC["damping"]))
        return torch.cholesky_inverse(torch.linalg.cholesky(damped)) if self.best else torch.linalg.inv(damped)

    def step(self):
        if self.is_due:
            self.inverses = [(self.damped_inverse(self.g[m]), self.damped_inverse(self.a[m])) for m in self.layers]
        found, total = [], 0.0
        for m, (G, A) in zip(self.layers, self.inverses):
            D = self.gradient_matrix(m)
            P = G @ D @ A
            found.append(P)
            total += LR**2 * ((P.flatten().dot(D.flatten())) if self.best else (P * D).sum()).item()
        nu = self.clip_factor(total)
        for m, P in zip(self.layers, found):
            self.write_gradient(m, P.mul_(nu))
        self.steps += 1


class NatgradFront:
    """The class of natgrad.compat, with the options of the two programs written in PyTorch."""

    def __init__(self, model, method):
        self.k, self.method = (compat.EVA(model) if method == "eva" else
                               compat.KFACPreconditioner(model, compute_method="inverse")), method
        self.step = self.k.step

    @property
    def is_due(self):
        return True

    @is_due.setter
    def is_due(self, due):
        period = 1 if due else 10**6
        if self.method == "kfac":
            self.k.factor_update_steps = self.k.inv_update_steps = period


class HookTimer:
    """Measures the time inside hooks of the model that runs; a hook called by another hook is not counted twice."""

    def __init__(self, clock):
        self.clock, self.inside, self.ms = clock, False, 0.0
        for kind, names in ((WrittenEva, ("observe_input", "observe_output_gradient")),
                            (WrittenKFAC, ("observe_input", "observe_output_gradient")),
                            (_hooks.LayerHook, ("__call__",)), (_hooks.Observer, ("observe",))):
            for name in names:
                setattr(kind, name, self.add_timer(getattr(kind, name)))

    def add_timer(self, function):
        def timed_call(*arguments):
            if self.inside:
                return function(*arguments)
            self.inside, begin = True, self.clock()
            try:
                return function(*arguments)
            finally:
                self.ms += 1e3 * (self.clock() - begin)
                self.inside = False
        return timed_call


class TimedProgram:
    """One of the programs, with its own copy of the model, preconditioner and optimizer."""

    def __init__(self, name, model, make, hooks, optimizer):
        self.name, self.model, self.hooks, self.rows = name, copy.deepcopy(model), hooks, {True: [], False: []}
        self.k = make(self.model)
        self.optimizer = optimizer(self.model)

    def run_iteration(self, x, y, due=True):
        """Run one iteration (forward, backward, preconditioner, optimizer) and record the times of its parts."""
        clock = self.hooks.clock
        self.model.zero_grad(set_to_none=True)
        if self.k is not None:
            self.k.is_due = due
        self.hooks.ms, times = 0.0, [clock()]
        F.cross_entropy(self.model(x), y).backward()
        times.append(clock())
        if self.k is not None:
            self.k.step()
        times.append(clock())
        if self.first is None:
            self.first = [p.grad.clone() for p in self.model.parameters()]
        again = clock()
        self.optimizer.step()
        times.append(times[-1] + clock() - again)
        whole, step, update = times[3] - times[0], times[2] - times[1], times[3] - times[2]
        self.rows[due].append((self.hooks.ms, 1e3 * step, 1e3 * update, 1e3 * whole))

    first = None

    def median_ms(self, due, *columns):
        """Return the median over rounds of the sum of these columns, without the first two rounds."""
        return statistics.median(sum(row[c] for c in columns) for row in self.rows[due][2:])


def make_fastest_sgd(model):
    """PyTorch's SGD in its fastest form: fused if this PyTorch has a fused SGD for the CPU, else foreach."""
    def make_sgd(**form):
        return torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4, **form)
    try:
        return make_sgd(fused=True)
    except (TypeError, RuntimeError):
        return make_sgd(foreach=True)


def check_same_gradients(method, runs):
    """Exit with a message if the gradients of the first step differ by more than TOLERANCE."""
    for run in runs[1:]:
        worst = max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(run.first, runs[0].first))
        print(f"  {run.name}: gradients of the first step differ by {worst:.1e} from '{runs[0].name}'")
        if not worst < TOLERANCE:
            sys.exit(f"vs_torch_front.py: {method}: expected a difference of at most {TOLERANCE:.0e}: not the same method")


HOOKS, STEP, UPDATE, ALL = range(4)
ROWS = {"eva": (("statistics, in hooks", True, (HOOKS,)), ("step()", True, (STEP,)),
                ("statistics, step() and SGD", True, (HOOKS, STEP, UPDATE)), ("the whole iteration", True, (ALL,))),
        "kfac": (("statistics, in hooks", True, (HOOKS,)), ("step() with new inverses", True, (STEP,)),
                 ("step() with old inverses", False, (STEP,)),
                 ("statistics, step() and SGD", True, (HOOKS, STEP, UPDATE)), ("the whole iteration", True, (ALL,)))}


def compare_programs(method, model, x, y, args, hooks):
    written = WrittenEva if method == "eva" else WrittenKFAC
    runs = [TimedProgram("published", model, lambda m: written(m, False), hooks, make_fastest_sgd),
            TimedProgram("at its best", model, lambda m: written(m, True), hooks, make_fastest_sgd),
            TimedProgram("natgrad", model, lambda m: NatgradFront(m, method), hooks, make_fastest_sgd)]
    fused = [TimedProgram("natgrad.SGD", model, lambda m: None, hooks, lambda m: SGD(
        m, LR, momentum=0.9, weight_decay=5e-4, method="eva", samples="layer"))] if method == "eva" else []
    plain = TimedProgram("no preconditioner", model, lambda m: None, hooks, make_fastest_sgd)
    print(f"{method}: PyTorch {torch.__version__}, resnet18, batch {args.batch}, {args.threads} threads, medians of "
          f"{args.rounds} in turns, {'processor time' if args.threads == 1 else 'wall clock'}")
    for t in range(args.rounds + 2):
        for run in (plain, *runs, *fused):
            run.run_iteration(x, y)
            if method == "kfac" and run in runs:
                run.run_iteration(x, y, due=False)
        if t == 0:
            check_same_gradients(method, runs)
    runs += fused
    print(f"{'milliseconds (natgrad is faster)':34}" + "".join(f"{run.name:>20}" for run in runs))
    for name, due, columns in ROWS[method]:
        values = [run.median_ms(due, *columns) for run in runs]
        print(f"{name:34}" + "".join(f"{v:11.2f}{f'({v / values[2]:.1f} times)':>9}" if i < 2 else f"{v:11.2f}{'':9}"
                                     for i, v in enumerate(values)))
    print(f"without a preconditioner: the iteration {plain.median_ms(True, ALL):.2f}, SGD {plain.median_ms(True, UPDATE):.2f}\n")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("methods", nargs="*", choices=[[], "eva", "kfac"])
    args.add_argument("--batch", type=int, default=32)
    args.add_argument("--threads", type=int, default=2)
    args.add_argument("--rounds", type=int, default=9)
    args = args.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model, classes = make_resnet("resnet18")
    x, y = torch.randn(args.batch, 3, 32, 32), torch.arange(args.batch) % classes
    hooks = HookTimer(time.process_time if args.threads == 1 else time.perf_counter)
    for method in args.methods or ("eva", "kfac"):
        compare_programs(method, model, x, y, args, hooks)


if __name__ == "__main__":
    main()
