"""Calls of layers in unusual ways give the numbers of plain calls."""
import copy
import unittest

import torch
from torch import nn
import torch.nn.functional as F
import torch.nn.utils.prune

import natgrad
import oracle
from front import Case, grads, make

# Sums in another order or layout, in float32, through an inverse of condition 1e3.
SAME = 1e-4


def stepped(model, run, **options):
    """Return the gradients after one step with the loss run(model)."""
    k = make(model, **options)
    model.zero_grad()
    run(model).backward()
    assert k.step() == 0
    k.close()
    return grads(model)


class Alike(Case):
    def alike(self, got, expected, tolerance=SAME):
        self.assertEqual(sorted(got), sorted(expected))
        for name, g in expected.items():
            self.assertLess(oracle.distance(got[name], g.double()), tolerance, name)


class InPlace(Alike):
    """An in-place operation on the output of a layer whose output is a view."""

    class Net(nn.Module):
        def __init__(self, first, last, change, branch):
            super().__init__()
            self.first, self.last, self.change, self.branch = first, last, change, branch

        def forward(self, x):
            h = self.first(x)
            r = h * 2 if self.branch else 0
            return self.last(self.change(h) + r)

    def both(self, first, last, shape, changes, **options):
        x = torch.randn(*shape)
        for branch in (False, True):
            for plain, in_place in changes:
                got, expected = (stepped(self.Net(copy.deepcopy(first), copy.deepcopy(last), change, branch),
                                         lambda m: m(x).pow(2).mean(), **options) for change in (in_place, plain))
                with self.subTest(first=str(first), branch=branch, change=in_place):
                    self.alike(got, expected)

    changes = ((F.relu, F.relu_), (lambda h: h + 1, lambda h: h.add_(1)), (lambda h: h / 3, lambda h: h.div_(3)))

    def test_linear_of_sequences(self):
        torch.manual_seed(1)
        for options in ({}, {"method": "kaisa"}):  # kaisa observes the input in forward
            self.both(nn.Linear(6, 5), nn.Linear(5, 3), (4, 7, 6), self.changes, **options)
        self.both(nn.Linear(6, 5), nn.Linear(5, 3), (4, 2, 7, 6), self.changes)

    def test_instance_norms(self):
        torch.manual_seed(1)
        for norm, shape in ((nn.InstanceNorm1d, (4, 5, 6)), (nn.InstanceNorm2d, (4, 5, 3, 6)),
                            (nn.InstanceNorm3d, (4, 5, 2, 3, 6))):
            self.both(norm(5, affine=True), nn.Linear(6, 3), shape, self.changes)

    def test_a_view_that_lies_otherwise(self):
        torch.manual_seed(1)
        x, last = torch.randn(4, 5, 3, 6), nn.Linear(6, 3)
        norm = nn.InstanceNorm2d(5, affine=True)
        got, expected = (stepped(self.Net(copy.deepcopy(norm), copy.deepcopy(last), change, True),
                                 lambda m: m(x.to(memory_format=torch.channels_last)).pow(2).mean())
                         for change in (F.relu_, F.relu))
        self.alike(got, expected)


class Rows(Alike):
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.experts, self.last = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)), nn.Linear(4, 2)

        def forward(self, x, tokens, always):
            parts = [e(part) for e, part in zip(self.experts, (x[tokens:], x[:tokens])) if always or len(part)]
            return self.last(torch.cat(parts))

    def test_a_call_without_rows_shows_nothing(self):
        x, model = torch.randn(6, 4), self.Experts()
        got, expected = (stepped(copy.deepcopy(model), lambda m: sum(m(x, tokens, always).pow(2).mean() / 2
                                                                     for tokens in (2, 0)), accumulation_steps=2,
                                 samples="layer")
                         for always in (True, False))
        self.alike(got, expected)

    def test_an_expert_that_never_had_a_token_is_said(self):
        model = self.Experts()
        k = make(model)
        model(torch.randn(6, 4), 0, True).pow(2).mean().backward()
        with self.refused("'experts.1' was never observed.*its output received no gradient"):
            k.step()

    def test_an_empty_micro_batch_shows_nothing(self):
        torch.manual_seed(3)
        x, model = torch.randn(6, 4), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        expected = stepped(copy.deepcopy(model), lambda m: m(x).pow(2).mean())
        got = stepped(model, lambda m: m(x).pow(2).mean() + m(x[:0]).sum())
        self.alike(got, expected)

    def test_an_input_whose_memory_has_the_other_sign(self):
        torch.manual_seed(3)
        model, z = nn.Linear(4, 2), torch.randn(6, 4, dtype=torch.complex64)
        x = z.conj().imag
        self.assertTrue(x.is_neg())
        expected = stepped(copy.deepcopy(model), lambda m: m(x.resolve_neg()).pow(2).mean())
        self.alike(stepped(model, lambda m: m(x).pow(2).mean()), expected)

    def layers(self, m, x):
        return m[2](torch.tanh(m[0](x))).pow(2).mean()

    def test_the_count_of_a_forward_ends_with_it(self):
        torch.manual_seed(3)
        model, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), torch.randn(8, 4)
        expected = stepped(copy.deepcopy(model), lambda m: self.layers(m, x))

        def after_another(m):
            m.eval()(x[:4])
            return self.layers(m.train(), x)
        self.alike(stepped(model, after_another), expected)

    def test_the_hooks_that_count_were_removed(self):
        for which in ("_forward_pre_hooks", "_forward_hooks"):
            model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
            k = make(model)
            getattr(model, which).clear()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            with self.subTest(which), self.refused("count the model's samples were removed"):
                k.step()


class ForeignHooks(Alike):
    """Hooks and forwards of other programs."""

    def test_a_hook_that_was_there_and_changes_the_output(self):
        torch.manual_seed(3)
        x, model = torch.randn(6, 4), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))

        class Tripled(nn.Module):
            def forward(self, x):
                return 3 * x
        written = nn.Sequential(copy.deepcopy(model[0]), Tripled(), nn.Tanh(), copy.deepcopy(model[2]))
        expected = stepped(written, lambda m: m(x).pow(2).mean())
        model[0].register_forward_hook(lambda _module, _inputs, output: 3 * output)
        got = stepped(model, lambda m: m(x).pow(2).mean())
        self.alike({n.replace("2.", "3."): g for n, g in got.items()}, expected)

    def test_a_forward_of_the_instance_is_not_known(self):
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        model[0].forward = lambda x: F.linear(x, model[0].weight * 2, model[0].bias)
        text = str(make(model).explain())
        self.assertIn("has a custom forward", text)


class Changed(Case):
    """The step refuses, by name, modules that changed after the preconditioner was made."""

    def stopped(self, model, change, pattern):
        k = make(model)
        model(torch.randn(8, 4)).pow(2).mean().backward()
        self.assertEqual(k.step(), 0)
        change(model)
        with self.subTest(pattern), self.refused(pattern):
            model(torch.randn(8, 4)).pow(2).mean().backward()
            k.step()

    def plain(self):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def test_modules_and_parameters(self):
        def replace(m):
            m[0] = nn.Linear(4, 4)

        def drop(m):
            m[0].bias = None
        tied = self.plain()
        tied[2].weight, tied[2].bias = tied[0].weight, tied[0].bias

        def untie(m):
            m[2].weight = nn.Parameter(m[0].weight.detach().clone())

        def tie(m):
            m[2].weight = m[0].weight

        def tie_to_a_newcomer(m):
            m[1].head = nn.Linear(4, 4)
            m[1].head.weight = m[0].weight
        self.stopped(self.plain(), tie, "'2.weight' and '0.weight' were not the same parameter")
        self.stopped(self.plain(), tie_to_a_newcomer, "module '1.head' was added after .* shares '0.weight'")
        self.stopped(self.plain(), replace, "module '0' was replaced")
        self.stopped(self.plain(), drop, "'0.bias' was removed")
        self.stopped(self.plain(), lambda m: nn.utils.prune.l1_unstructured(m[0], "weight", 0.5),
                     "layer '0': its weight is no parameter any more")
        self.stopped(tied, untie, "'0.weight' was shared by several modules")

    def test_other_parameters_than_those_of_an_optimizer(self):
        """zero_grad() of the optimizer would not clear these gradients; the preconditioner has its own zero_grad()."""
        def change(m):
            m[0].weight = nn.Parameter(torch.randn(4, 4))
        model = self.plain()
        optimizer = natgrad.SGD(model, 0.1, damping=0.1)
        change(model)
        before = copy.deepcopy(model.state_dict())
        model(torch.randn(8, 4)).pow(2).mean().backward()
        with self.refused("'0.weight' differs from the parameter in param_groups"):
            optimizer.step()
        self.same(model.state_dict(), before)
        model = self.plain()
        k = make(model)
        change(model)
        model(torch.randn(8, 4)).pow(2).mean().backward()
        self.assertEqual(k.step(), 0)

    def test_arguments(self):
        for options, pattern in ((dict(accumulation_steps=1.5), "accumulation_steps is 1.5"),
                                 (dict(grad_scaler=3), "grad_scaler is 3"),
                                 (dict(damping=torch.ones(2)), "several numbers")):
            with self.refused(pattern):
                make(self.plain(), **options)
        for value in (torch.tensor(0.25), Number(0.25)):
            self.assertEqual(float(make(self.plain(), damping=value)._core.get("damping")), 0.25)
        self.assertEqual(make(self.plain(), solve_period=2.0)._core.get("solve_period"), "2")


class Number(float):
    """A number whose repr is the repr of numpy."""

    def __repr__(self):
        return f"np.float64({float(self)})"


if __name__ == "__main__":
    unittest.main()
