"""natgrad.SOAP: vectors against Adam's formula, weights of the first step, bad input, exact resume.  cli_replay_golden compares
with nikhilvyas/SOAP."""
import copy
import math
import unittest

import torch
from torch import nn

import natgrad
import oracle
from front import NEW, Case, loss_of, random_batch, small_conv_net


def train(model, optimizer, steps, start=0):
    for t in range(start, start + steps):
        optimizer.zero_grad()
        loss_of(model, *random_batch(seed=t)).backward()
        optimizer.step()


class Soap(Case):
    def test_vectors_follow_adam(self):
        model = small_conv_net()
        bias = model[-1].bias
        lr, decay, one, two, eps = 0.01, 0.1, 0.9, 0.8, 1e-6
        optimizer = natgrad.SOAP(model, lr=lr, betas=(one, two), eps=eps, weight_decay=decay)
        w, m, v = bias.detach().double(), 0, 0
        for t in range(5):
            optimizer.zero_grad()
            loss_of(model, *random_batch(seed=t)).backward()
            g = bias.grad.double().clone()
            before = copy.deepcopy(model.state_dict())
            optimizer.step()
            if t == 0:  # the first gradient chooses the bases only
                for name, parameter in model.named_parameters():
                    self.assertTrue(torch.equal(parameter, before[name]), name)
                continue
            m, v = one * m + (1 - one) * g, two * v + (1 - two) * g * g
            step = lr * math.sqrt(1 - two**t) / (1 - one**t)
            w = (w - step * m / (v.sqrt() + eps)) * (1 - lr * decay)
            self.assertLess(oracle.relative_difference(bias.detach().double(), w), 1e-6)

    def test_first_gradient_of_zero_or_nan(self):
        for value, note in ((0.0, 0), (math.nan, 2)):
            model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
            optimizer = natgrad.SOAP(model)
            before = copy.deepcopy(model.state_dict())
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, value)
            optimizer.step()
            self.assertEqual(optimizer.note, note)
            for _ in range(3):
                for parameter in model.parameters():
                    parameter.grad = torch.zeros_like(parameter) if note == 0 else torch.randn_like(parameter)
                optimizer.step()
            for name, parameter in model.named_parameters():
                self.assertTrue(torch.isfinite(parameter).all(), name)
                self.assertEqual(note == 2, bool((parameter - before[name]).abs().max() > 1e-3), name)

    def test_a_late_first_gradient(self):
        """Steps without a gradient leave the layer: its later steps have the bits of a run that starts with the gradient."""
        weights = []
        for late in (0, 2):
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
            optimizer = natgrad.SOAP(model, missing="keep")
            for t in range(late + 3):
                generator = torch.Generator().manual_seed(t - late if t >= late else 9)
                for parameter in model[0].parameters():
                    parameter.grad = torch.randn(parameter.shape, generator=generator) if t >= late else None
                for parameter in model[1].parameters():
                    parameter.grad = torch.ones_like(parameter)
                before = model[0].weight.detach().clone()
                optimizer.step()
                if t < late:
                    self.assertEqual(optimizer.note, 0)
                    self.assertTrue(torch.equal(before, model[0].weight))
            weights.append(model[0].weight.detach())
        self.assertTrue(torch.equal(*weights))

    def test_scalars_half_precision_and_wide_axes(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc, self.scale = nn.Linear(5, 4), nn.Parameter(torch.tensor(1.0))

            def forward(self, x):
                return self.scale * self.fc(x)

        halves = (torch.bfloat16, torch.float16) if NEW else (torch.bfloat16,)  # torch 1.13 has no products in f16
        for dtype in (torch.float32, *halves):
            for options in ({}, dict(max_precond_dim=4), dict(max_precond_dim=1), dict(merge_dims=True, precondition_1d=True),
                            dict(method="soap-natgrad")):
                torch.manual_seed(1)
                model = Net().to(dtype)
                optimizer = natgrad.SOAP(model, lr=0.02, **options)
                x = torch.randn(16, 5)
                losses = []
                for _ in range(30):
                    optimizer.zero_grad()
                    loss = (model(x.to(dtype)).float() - x[:, :4].roll(1, 1)).square().mean()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                self.assertLess(losses[-1], 0.75 * losses[0], (dtype, options))

    def test_resumed_runs_have_the_same_bits(self):
        for method in ("soap", "soap-natgrad"):
            a = small_conv_net()
            first = natgrad.SOAP(a, method=method, precondition_frequency=2)
            train(a, first, 3)
            b = copy.deepcopy(a)
            second = natgrad.SOAP(b, method=method, precondition_frequency=2)
            second.load_state_dict(copy.deepcopy(first.state_dict()))
            train(a, first, 3, start=3)
            train(b, second, 3, start=3)
            for x, y in zip(a.state_dict().values(), b.state_dict().values()):
                self.assertTrue(torch.equal(x, y))

    def test_shampoo_beta(self):
        for given, want in ((dict(), 0.95), (dict(shampoo_beta=0.5), 0.5), (dict(shampoo_beta=0.0), 0.0)):
            self.assertEqual(float(natgrad.SOAP(small_conv_net(), **given).preconditioner._core.get("stat_decay")), want)

    def test_bad_arguments_are_named(self):
        for options, text in ((dict(betas=0.9), "betas"), (dict(max_precond_dim=0), "max_axis"), (dict(eps=0), "moment_epsilon"),
                              (dict(precondition_frequency=0), "solve_period"), (dict(betas=(1.0, 0.9)), "first_decay")):
            with self.assertRaisesRegex(natgrad.ArgumentError, text):
                natgrad.SOAP(small_conv_net(), **options)


if __name__ == "__main__":
    unittest.main()
