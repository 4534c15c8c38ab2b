"""Calls of layers in unusual ways give the numbers of plain calls."""
import copy
import unittest

import torch
from torch import nn
import torch.nn.functional as F
import torch.nn.utils.prune

import natgrad
import oracle
from front import Case, gradients_of, make_preconditioner

# Sums in another order or layout, in float32, through an inverse of condition 1e3.
SAME = 1e-4


def gradients_after_step_with(model, run, **options):
    """Return the gradients after one step with the loss run(model)."""
    k = make_preconditioner(model, **options)
    model.zero_grad()
    run(model).backward()
    assert k.step() == 0
    k.close()
    return gradients_of(model)


class GradientCase(Case):
    def assert_close_gradients(self, got, expected, tolerance=SAME):
        self.assertEqual(sorted(got), sorted(expected))
        for name, g in expected.items():
            self.assertLess(oracle.relative_difference(got[name], g.double()), tolerance, name)


class InPlaceChange(GradientCase):
    """An in-place operation on the output of a layer whose output is a view."""

    class Net(nn.Module):
        def __init__(self, first, last, change, branch):
            super().__init__()
            self.first, self.last, self.change, self.branch = first, last, change, branch

        def forward(self, x):
            h = self.first(x)
            r = h * 2 if self.branch else 0
            return self.last(self.change(h) + r)

    def compare_in_place_with_plain(self, first, last, shape, changes, **options):
        x = torch.randn(*shape)
        for branch in (False, True):
            for plain, in_place in changes:
                got, expected = (gradients_after_step_with(self.Net(copy.deepcopy(first), copy.deepcopy(last), change, branch),
                                                           lambda m: m(x).pow(2).mean(), **options)
                                 for change in (in_place, plain))
                with self.subTest(first=str(first), branch=branch, change=in_place):
                    self.assert_close_gradients(got, expected)

    changes = ((F.relu, F.relu_), (lambda h: h + 1, lambda h: h.add_(1)), (lambda h: h / 3, lambda h: h.div_(3)))

    def test_in_place_after_linear(self):
        torch.manual_seed(1)
        for options in ({}, {"method": "kaisa"}):  # kaisa observes the input in forward
            self.compare_in_place_with_plain(nn.Linear(6, 5), nn.Linear(5, 3), (4, 7, 6), self.changes, **options)
        self.compare_in_place_with_plain(nn.Linear(6, 5), nn.Linear(5, 3), (4, 2, 7, 6), self.changes)

    def test_in_place_after_instance_norm(self):
        torch.manual_seed(1)
        for norm, shape in ((nn.InstanceNorm1d, (4, 5, 6)), (nn.InstanceNorm2d, (4, 5, 3, 6)),
                            (nn.InstanceNorm3d, (4, 5, 2, 3, 6))):
            self.compare_in_place_with_plain(norm(5, affine=True), nn.Linear(6, 3), shape, self.changes)

    def test_in_place_on_channels_last_view(self):
        torch.manual_seed(1)
        x, last = torch.randn(4, 5, 3, 6), nn.Linear(6, 3)
        norm = nn.InstanceNorm2d(5, affine=True)
        got, expected = (gradients_after_step_with(self.Net(copy.deepcopy(norm), copy.deepcopy(last), change, True),
                                                   lambda m: m(x.to(memory_format=torch.channels_last)).pow(2).mean())
                         for change in (F.relu_, F.relu))
        self.assert_close_gradients(got, expected)


class SamplesAndRows(GradientCase):
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.experts, self.last = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)), nn.Linear(4, 2)

        def forward(self, x, tokens, always):
            parts = [e(part) for e, part in zip(self.experts, (x[tokens:], x[:tokens])) if always or len(part)]
            return self.last(torch.cat(parts))

    def test_call_without_rows_is_not_observed(self):
        x, model = torch.randn(6, 4), self.Experts()
        got, expected = (gradients_after_step_with(
            copy.deepcopy(model), lambda m: sum(m(x, tokens, always).pow(2).mean() / 2 for tokens in (2, 0)),
            accumulation_steps=2, samples="layer") for always in (True, False))
        self.assert_close_gradients(got, expected)

    def test_error_names_expert_without_tokens(self):
        model = self.Experts()
        k = make_preconditioner(model)
        model(torch.randn(6, 4), 0, True).pow(2).mean().backward()
        with self.assert_refused("'experts.1' was never observed.*its output received no gradient"):
            k.step()

    def test_empty_micro_batch_is_not_observed(self):
        torch.manual_seed(3)
        x, model = torch.randn(6, 4), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        expected = gradients_after_step_with(copy.deepcopy(model), lambda m: m(x).pow(2).mean())
        got = gradients_after_step_with(model, lambda m: m(x).pow(2).mean() + m(x[:0]).sum())
        self.assert_close_gradients(got, expected)

    def test_negated_view_as_input(self):
        torch.manual_seed(3)
        model, z = nn.Linear(4, 2), torch.randn(6, 4, dtype=torch.complex64)
        x = z.conj().imag
        self.assertTrue(x.is_neg())
        expected = gradients_after_step_with(copy.deepcopy(model), lambda m: m(x.resolve_neg()).pow(2).mean())
        self.assert_close_gradients(gradients_after_step_with(model, lambda m: m(x).pow(2).mean()), expected)

    def loss_of_direct_layer_calls(self, m, x):
        return m[2](torch.tanh(m[0](x))).pow(2).mean()

    def test_sample_count_ends_with_forward(self):
        torch.manual_seed(3)
        model, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), torch.randn(8, 4)
        expected = gradients_after_step_with(copy.deepcopy(model), lambda m: self.loss_of_direct_layer_calls(m, x))

        def loss_after_smaller_forward(m):
            m.eval()(x[:4])
            return self.loss_of_direct_layer_calls(m.train(), x)
        self.assert_close_gradients(gradients_after_step_with(model, loss_after_smaller_forward), expected)

    def test_removed_sample_hooks_are_refused(self):
        for which in ("_forward_pre_hooks", "_forward_hooks"):
            model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
            k = make_preconditioner(model)
            getattr(model, which).clear()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            with self.subTest(which), self.assert_refused("count the model's samples were removed"):
                k.step()


class ForeignHooks(GradientCase):
    """Hooks and forwards of other programs."""

    def test_earlier_hook_that_changes_output(self):
        torch.manual_seed(3)
        x, model = torch.randn(6, 4), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))

        class TripleOutput(nn.Module):
            def forward(self, x):
                return 3 * x
        written = nn.Sequential(copy.deepcopy(model[0]), TripleOutput(), nn.Tanh(), copy.deepcopy(model[2]))
        expected = gradients_after_step_with(written, lambda m: m(x).pow(2).mean())
        model[0].register_forward_hook(lambda _module, _inputs, output: 3 * output)
        got = gradients_after_step_with(model, lambda m: m(x).pow(2).mean())
        self.assert_close_gradients({n.replace("2.", "3."): g for n, g in got.items()}, expected)

    def test_replaced_forward_has_no_curvature(self):
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        model[0].forward = lambda x: F.linear(x, model[0].weight * 2, model[0].bias)
        text = str(make_preconditioner(model).explain())
        self.assertIn("has a custom forward", text)


class ChangedModules(Case):
    """The step refuses, by name, modules that changed after the preconditioner was made."""

    def assert_step_refused_after(self, model, change, pattern):
        k = make_preconditioner(model)
        model(torch.randn(8, 4)).pow(2).mean().backward()
        self.assertEqual(k.step(), 0)
        change(model)
        with self.subTest(pattern), self.assert_refused(pattern):
            model(torch.randn(8, 4)).pow(2).mean().backward()
            k.step()

    def two_layer_net(self):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def test_changed_modules_and_parameters_are_refused(self):
        def replace_layer(m):
            m[0] = nn.Linear(4, 4)

        def remove_bias(m):
            m[0].bias = None
        tied = self.two_layer_net()
        tied[2].weight, tied[2].bias = tied[0].weight, tied[0].bias

        def untie_weights(m):
            m[2].weight = nn.Parameter(m[0].weight.detach().clone())

        def tie_weights(m):
            m[2].weight = m[0].weight

        def tie_to_added_layer(m):
            m[1].head = nn.Linear(4, 4)
            m[1].head.weight = m[0].weight
        self.assert_step_refused_after(self.two_layer_net(), tie_weights,
                                       "'2.weight' and '0.weight' were not the same parameter")
        self.assert_step_refused_after(self.two_layer_net(), tie_to_added_layer,
                                       "module '1.head' was added after .* shares '0.weight'")
        self.assert_step_refused_after(self.two_layer_net(), replace_layer, "module '0' was replaced")
        self.assert_step_refused_after(self.two_layer_net(), remove_bias, "'0.bias' was removed")
        self.assert_step_refused_after(self.two_layer_net(), lambda m: nn.utils.prune.l1_unstructured(m[0], "weight", 0.5),
                                       "layer '0': its weight is no parameter any more")
        self.assert_step_refused_after(tied, untie_weights, "'0.weight' was shared by several modules")

    def test_optimizer_refuses_replaced_parameter(self):
        """zero_grad() of the optimizer would not clear these gradients; the preconditioner has its own zero_grad()."""
        def replace_weight(m):
            m[0].weight = nn.Parameter(torch.randn(4, 4))
        model = self.two_layer_net()
        optimizer = natgrad.SGD(model, 0.1, damping=0.1)
        replace_weight(model)
        before = copy.deepcopy(model.state_dict())
        model(torch.randn(8, 4)).pow(2).mean().backward()
        with self.assert_refused("'0.weight' differs from the parameter in param_groups"):
            optimizer.step()
        self.assert_same_tensors(model.state_dict(), before)
        model = self.two_layer_net()
        k = make_preconditioner(model)
        replace_weight(model)
        model(torch.randn(8, 4)).pow(2).mean().backward()
        self.assertEqual(k.step(), 0)

    def test_argument_types(self):
        for options, pattern in ((dict(accumulation_steps=1.5), "accumulation_steps is 1.5"),
                                 (dict(grad_scaler=3), "grad_scaler is 3"),
                                 (dict(damping=torch.ones(2)), "several numbers")):
            with self.assert_refused(pattern):
                make_preconditioner(self.two_layer_net(), **options)
        for value in (torch.tensor(0.25), NumpyLikeFloat(0.25)):
            self.assertEqual(float(make_preconditioner(self.two_layer_net(), damping=value)._core.get("damping")), 0.25)
        self.assertEqual(make_preconditioner(self.two_layer_net(), solve_period=2.0)._core.get("solve_period"), "2")


class NumpyLikeFloat(float):
    """A number whose repr is the repr of numpy."""

    def __repr__(self):
        return f"np.float64({float(self)})"


if __name__ == "__main__":
    unittest.main()
