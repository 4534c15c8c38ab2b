"""natgrad.Shampoo: four steps against the definition in float64, missing and bad gradients, half precision, exact resume.
cli_replay_golden compares with facebookresearch/optimizers."""
import copy
import math
import unittest

import torch
from torch import nn

import natgrad
import oracle
from front import Case, loss_of, random_batch, small_conv_net


class Piece:
    """Distributed Shampoo of one piece of a parameter, in float64, with grafting to Adam (facebookresearch/optimizers)."""

    def __init__(self, beta1, beta2, epsilon, graft_beta2, graft_epsilon):
        self.numbers = beta1, beta2, epsilon, graft_beta2, graft_epsilon
        self.L, self.M, self.V = None, 0.0, 0.0

    def direction(self, g, t):
        beta1, beta2, epsilon, graft_beta2, graft_epsilon = self.numbers
        if self.L is None:
            self.L = [torch.zeros(n, n, dtype=torch.float64) for n in g.shape]
        self.M = beta1 * self.M + (1 - beta1) * g
        self.V = graft_beta2 * self.V + (1 - graft_beta2) * g * g
        F = P = self.M / (1 - beta1**t)
        for k in range(g.dim()):
            unfolded = g.transpose(0, k).reshape(g.shape[k], -1)
            self.L[k] = beta2 * self.L[k] + (1 - beta2) * unfolded @ unfolded.T
            e, Q = torch.linalg.eigh(self.L[k] / (1 - beta2**t))
            X = (Q * (e - min(e[0].item(), 0.0) + epsilon) ** (-0.5 / g.dim())) @ Q.T
            P = torch.tensordot(X, P, ([1], [k])).transpose(0, k) if k > 0 else torch.tensordot(X, P, ([1], [0]))
        S = F / ((self.V / (1 - graft_beta2**t)).sqrt() + graft_epsilon)
        return P * S.norm() / (P.norm() + 1e-16)


def cut(x, most):
    """The pieces of a vector or matrix, as slices of its axes."""
    ranges = [[slice(i, i + most) for i in range(0, n, most)] for n in x.shape]
    return [(a,) for a in ranges[0]] if x.dim() == 1 else [(a, b) for a in ranges[0] for b in ranges[1]]


class Shampoo(Case):
    def test_gradients_that_are_too_large_change_nothing(self):
        """The squares of the gradient overflow f32 in the last or the first layer: as if the step had not been."""
        torch.manual_seed(1)
        gradients = [[torch.randn(6, 5), torch.randn(6), torch.randn(3, 6), torch.randn(3)] for _ in range(4)]
        for kind in (natgrad.Shampoo, natgrad.SOAP):
            for layer in (0, 2):
                weights = []
                for steps in (range(4), (0, 1, 3)):
                    torch.manual_seed(2)
                    model = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3))
                    optimizer = kind(model, lr=0.1)
                    for t in steps:
                        for i, (weight, gradient) in enumerate(zip(model.parameters(), gradients[t])):
                            weight.grad = gradient * (1e25 if (t, i) == (2, layer) else 1)
                        optimizer.step()
                    weights.append([weight.detach() for weight in model.parameters()])
                for one, other in zip(*weights):
                    self.assertTrue(torch.equal(one, other), (kind.__name__, layer))

    def test_steps_follow_the_definition(self):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3))
        lr, mu, dampening, decay, most = 0.02, 0.5, 0.1, 0.05, 4
        optimizer = natgrad.Shampoo(model, lr=lr, betas=(0.9, 0.95), epsilon=1e-2, momentum=mu, dampening=dampening,
                                    use_nesterov=True, weight_decay=decay, max_preconditioner_dim=most, grafting="adam",
                                    grafting_beta2=0.9, grafting_epsilon=1e-3, target_parameter_dimensionality=2)
        weights = [p.detach().double() for p in model.parameters()]
        pieces = [{i: Piece(0.9, 0.95, 1e-2, 0.9, 1e-3) for i in range(len(cut(w, most)))} for w in weights]
        momentum = [torch.zeros_like(w) for w in weights]
        for t in range(1, 5):
            optimizer.zero_grad()
            x = torch.randn(5, 7)
            model(x).square().sum().backward()
            gradients = [p.grad.double().clone() for p in model.parameters()]
            optimizer.step()
            for n, (w, g, p) in enumerate(zip(weights, gradients, model.parameters())):
                P = torch.empty_like(w)
                for i, at in enumerate(cut(w, most)):
                    P[at] = pieces[n][i].direction(g[at], t)
                P = P + decay * w
                momentum[n] = mu * momentum[n] + (1 - dampening) * P
                weights[n] = w - lr * ((1 - dampening) * P + mu * momentum[n])
                self.assertLess(oracle.relative_difference(p.detach().double(), weights[n]), 1e-5, (t, n))

    def test_steps_of_kl_shampoo_follow_the_definition(self):
        """A weight whose first gradient is zero starts with its first other gradient."""
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3))
        lr, decay, beta1, beta2, epsilon = 0.02, 0.05, 0.9, 0.8, 1e-3
        optimizer = natgrad.KLShampoo(model, lr=lr, betas=(beta1, beta2), epsilon=epsilon, weight_decay=decay,
                                      precondition_frequency=1)
        weights = [p.detach().double() for p in model.parameters()]
        state = [dict(L=None, X=[torch.eye(n, dtype=torch.float64) for n in w.shape], M=0.0) for w in weights]
        for t in range(1, 7):
            optimizer.zero_grad()
            (1e-3 * model(torch.randn(5, 7)).square().sum()).backward()
            if t == 1:
                model[0].weight.grad.zero_()
            gradients = [p.grad.double().clone() for p in model.parameters()]
            optimizer.step()
            for n, (w, g, p, s) in enumerate(zip(weights, gradients, model.parameters(), state)):
                size, axes = g.square().mean().sqrt(), g.dim()
                is_new = s["L"] is None and size > 0
                if is_new:
                    s["L"] = [size ** (2 / axes) * torch.eye(k, dtype=torch.float64) for k in g.shape]
                    s["X"] = [size ** (-1 / axes) * torch.eye(k, dtype=torch.float64) for k in g.shape]
                roots = list(s["X"])
                for k in range(axes if s["L"] is not None else 0):
                    T = g
                    for j in range(axes):
                        if j != k:
                            T = torch.tensordot(roots[j], T, ([1], [j])).movedim(0, j)
                    unfolded = T.transpose(0, k).reshape(g.shape[k], -1)
                    s["L"][k] = beta2 * s["L"][k] + (1 - beta2) * unfolded @ unfolded.T / unfolded.shape[1]
                    e, Q = torch.linalg.eigh(s["L"][k])
                    s["X"][k] = (Q * (e + epsilon * e.mean()) ** -0.5) @ Q.T
                s["M"] = beta1 * s["M"] + (1 - beta1) * g
                P = s["M"] / (1 - beta1**t)
                for j in range(axes if s["L"] is not None else 0):
                    P = torch.tensordot(s["X"][j], P, ([1], [j])).movedim(0, j)
                weights[n] = w * (1 - lr * decay) - lr * P
                self.assertLess(oracle.relative_difference(p.detach().double(), weights[n]), 1e-5, (t, n))
        with self.assertRaisesRegex(natgrad.ArgumentError, "stat_decay = 1: gram_form = kl requires a value below 1"):
            natgrad.KLShampoo(small_conv_net(), betas=(0.9, 1.0))

    def test_arguments_are_those_of_the_program(self):
        for given, want in ((dict(), dict(filter_decay=0.9, solve_start=1, second_decay=0.999, stat_decay=1.0)),
                            (dict(betas=(0.8, 0.9), precondition_frequency=5), dict(filter_decay=0.8, solve_start=5)),
                            (dict(beta3=0.7, start_preconditioning_step=3), dict(filter_decay=0.7, solve_start=3)),
                            (dict(grafting="rmsprop"), dict(second_decay=0.99, moment_epsilon=1e-10))):
            options = natgrad.Shampoo(small_conv_net(), **given).preconditioner._core
            for name, value in want.items():
                self.assertEqual(float(options.get(name)), value, name)

    def test_layers_without_gradient_and_bad_gradients(self):
        model = small_conv_net()
        optimizer = natgrad.Shampoo(model, epsilon=1e-3)
        for bad in (None, None, math.nan):
            optimizer.zero_grad()
            loss_of(model, *random_batch(seed=1)).backward()
            last = list(model[-1].parameters())
            for parameter in last:
                parameter.grad = None if bad is None else torch.full_like(parameter, bad)
            before = copy.deepcopy(model.state_dict())
            optimizer.step()
            self.assertEqual(optimizer.note, 0 if bad is None else 2)
            for name, parameter in model.named_parameters():
                if name == "2.bias" and bad is None:
                    continue  # before a batch norm the gradient of a bias is a rounding error
                is_same = torch.equal(parameter, before[name])
                self.assertEqual(is_same, bad is not None or any(parameter is p for p in last), name)

    def test_zero_gradients_scalars_and_half_precision(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc, self.scale = nn.Linear(5, 4), nn.Parameter(torch.tensor(1.0))

            def forward(self, x):
                return self.scale * self.fc(x)

        for dtype in (torch.float32, torch.bfloat16):
            for options in (dict(epsilon=1e-4), dict(epsilon=1e-4, max_preconditioner_dim=3, target_parameter_dimensionality=2),
                            dict(grafting="adagrad", epsilon=1e-4, precondition_frequency=4)):
                torch.manual_seed(1)
                model = Net().to(dtype)
                optimizer = natgrad.Shampoo(model, lr=0.05, **options)
                x = torch.randn(16, 5)
                losses = []
                for parameter in model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
                optimizer.step()
                for _ in range(30):
                    optimizer.zero_grad()
                    loss = (model(x.to(dtype)).float() - x[:, :4].roll(1, 1)).square().mean()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                self.assertLess(losses[-1], 0.75 * losses[0], (dtype, options))

    def test_directions_in_bases(self):
        """gram_form = eigen in float64; 1e-3: eigenvectors of close eigenvalues amplify rounding errors."""
        for decay, corrects, exponents, ignored in ((0.9, True, "", ()), (1.0, True, "", ()), (0.9, False, "", ()),
                                                    (0.9, True, "2: 0 *", (0,)), (0.9, True, "2: * 0; 1: 0", (1,))):
            torch.manual_seed(4)
            model = nn.Linear(4, 4, bias=False)
            optimizer = natgrad.Shampoo(model, lr=1, betas=(0.6, decay), epsilon=0.1, target_parameter_dimensionality=2,
                                        use_bias_correction=corrects, gram_form="eigen", root_exponents=exponents)
            L, M, V = [torch.zeros(4, 4, dtype=torch.float64) for _ in range(2)], 0, 0
            for t in range(1, 5):
                model.weight.grad = torch.randn(4, 4)
                g, fresh = model.weight.grad.double(), 1 - decay if decay < 1 else 1
                c = 1 - decay**t if corrects and decay < 1 else 1
                for k, D in enumerate((g, g.t())):
                    L[k] = decay * L[k] + fresh * D @ D.t()
                left, right = (torch.eye(4, dtype=torch.float64) if k in ignored else torch.linalg.eigh(L[k])[1] for k in range(2))
                M = 0.6 * M + 0.4 * g
                V = decay * V + fresh * (left.t() @ g @ right)**2
                F = left.t() @ M @ right / (1 - 0.6**t if corrects else 1)
                want = left @ (F / ((V / c).sqrt() + 0.1)) @ right.t()
                before = model.weight.detach().clone()
                optimizer.step()
                found = (before - model.weight.detach()).double()
                self.assertLess((found - want).abs().max(), 1e-3 * want.abs().max(), (decay, corrects, exponents, t))

    def test_bias_correction_counts_statistics(self):
        """With a constant gradient D, L / c is D D' in every step, also if only every second step adds to L."""
        torch.manual_seed(5)
        model, moves = nn.Linear(3, 3, bias=False), []
        optimizer = natgrad.Shampoo(model, lr=1, betas=(0, 0.9), epsilon=0.1, target_parameter_dimensionality=2, stat_period=2)
        model.weight.grad = torch.randn(3, 3)
        for _ in range(5):
            before = model.weight.detach().clone()
            optimizer.step()
            moves.append(before - model.weight.detach())
            self.assertLess((moves[-1] - moves[0]).abs().max(), 1e-5)  # f32 rounding of weights near 5

    def test_resumed_runs_have_the_same_bits(self):
        for options in (dict(grafting="adam"), dict(precondition_frequency=2, max_preconditioner_dim=5, momentum=0.9),
                        dict(kl=True, precondition_frequency=2, max_axis=5)):
            a = small_conv_net()
            kind = natgrad.KLShampoo if options.pop("kl", False) else natgrad.Shampoo
            first = kind(a, epsilon=1e-4, **options)
            for t in range(6):
                if t == 3:
                    b = copy.deepcopy(a)
                    second = kind(b, epsilon=1e-4, **options)
                    second.load_state_dict(copy.deepcopy(first.state_dict()))
                for model, optimizer in ((a, first), (b, second)) if t >= 3 else ((a, first),):
                    optimizer.zero_grad()
                    loss_of(model, *random_batch(seed=t)).backward()
                    optimizer.step()
            for x, y in zip(a.state_dict().values(), b.state_dict().values()):
                self.assertTrue(torch.equal(x, y))

    def test_bad_arguments_are_named(self):
        for options, text in ((dict(betas=0.9), "betas"), (dict(max_preconditioner_dim=0), "max_axis"), (dict(epsilon=0), "damping"),
                              (dict(precondition_frequency=0), "solve_period"), (dict(grafting="adamw"), "grafting"),
                              (dict(betas=(1.0, 0.9)), "first_decay"), (dict(normalize=True), "normalize"),
                              (dict(stat_start="first"), "stat_start")):
            with self.assertRaisesRegex(natgrad.ArgumentError, text):
                natgrad.Shampoo(small_conv_net(), **options)
        with self.assertRaisesRegex(natgrad.ArgumentError, "fc.*max_axis = 1 cuts it into more than 1048576 pieces"):
            model = nn.Sequential()
            model.add_module("fc", nn.Linear(1024, 1025, bias=False))
            natgrad.Shampoo(model, max_preconditioner_dim=1, target_parameter_dimensionality=2)


if __name__ == "__main__":
    unittest.main()
