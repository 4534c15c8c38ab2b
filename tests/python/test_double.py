"""float64 models: updates against torch.optim, directions against float64 definitions, range, state."""
import copy
import math
import unittest

import torch
from torch import nn

import natgrad
import oracle
from front import TOLERANCE, Case, random_batch, gradients_of, loss_of, make_preconditioner, small_conv_net
from natgrad.compat import KFACPreconditioner

UNIT = 2.0**-53
DOUBLE = dict(factor_dtype="f64", inverse_dtype="f64")
CLOSE = 200 * UNIT  # five steps; at most 8 roundings of a result in each, on both sides
SGD = (dict(lr=0.1), dict(lr=0.1, momentum=0.9), dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
       dict(lr=0.1, momentum=0.9, dampening=0.3))


def double_net(last=False, norm=True):
    model = small_conv_net().double()
    if not norm:
        model[3] = nn.Identity()
    return model.to(memory_format=torch.channels_last) if last else model


def train(model, optimizer, steps=5, start=0):
    for t in range(start, start + steps):
        optimizer.zero_grad()
        loss_of(model, *random_batch(seed=t)).backward()
        optimizer.step()
    return model


class Updates(Case):
    """Without curvature the update is the update of torch.optim."""

    def assert_equal_weights(self, ours, theirs, tolerance=CLOSE):
        for (name, a), b in zip(ours.named_parameters(), theirs.parameters()):
            self.assertEqual(a.dtype, torch.float64)
            self.assertLess(oracle.relative_difference(a.detach(), b.detach()), tolerance, name)

    def test_sgd_matches_pytorch(self):
        for last in (False, True):
            for numbers in SGD:
                a, b = double_net(last), double_net(last)
                train(a, natgrad.SGD(a, skip_layers=".*", **numbers))
                self.assert_equal_weights(a, train(b, torch.optim.SGD(b.parameters(), **numbers)))

    def test_adamw_matches_pytorch(self):
        for last in (False, True):
            numbers = dict(lr=0.01, weight_decay=0.1)
            a, b = (double_net(last, norm=False) for _ in range(2))  # before a norm the gradient of a bias is rounding
            train(a, natgrad.AdamW(a, skip_layers=".*", **numbers))
            self.assert_equal_weights(a, train(b, torch.optim.AdamW(b.parameters(), **numbers)))

    def test_gradients_above_float32_range(self):
        model = nn.Linear(3, 2).double()
        before = model.weight.detach().clone()
        optimizer = natgrad.SGD(model, lr=1e-300, skip_layers=".*")
        (model(torch.ones(1, 3, dtype=torch.float64)).sum() * 1e300).backward()
        optimizer.step()
        self.assertEqual(optimizer.note, 0)
        self.assertLess((before - 1.0 - model.weight).abs().max().item(), 4 * UNIT)

    def test_overflowing_weight_keeps_value(self):
        model = nn.Linear(3, 2).double()
        before = model.weight.detach().clone()
        optimizer = natgrad.SGD(model, lr=1e10, skip_layers=".*")
        model(torch.tensor([[1e300, 1.0, 1.0]], dtype=torch.float64)).sum().backward()
        optimizer.step()
        self.assertEqual(optimizer.note, 1)
        self.assertTrue(torch.equal(model.weight[:, 0], before[:, 0]))
        self.assertTrue(torch.equal(model.weight[:, 1:], before[:, 1:] - 1e10))

    def test_moments_of_state_are_float64(self):
        for kind in (natgrad.SGD, natgrad.AdamW):
            numbers = dict(lr=0.01, **(dict(momentum=0.9) if kind is natgrad.SGD else {}))
            model = double_net()
            optimizer = kind(model, **numbers)
            train(model, optimizer, 3)
            other = copy.deepcopy(model)
            resumed = kind(other, **numbers)
            state = optimizer.state_dict()
            moments = [v for k, v in state["natgrad"]["fields"].items() if "/momentum." in k or "/first." in k]
            self.assertTrue(moments and all(v.dtype == torch.float64 for v in moments))
            resumed.load_state_dict(state)
            train(model, optimizer, 2, 3), train(other, resumed, 2, 3)
            for a, b in zip(model.parameters(), other.parameters()):
                self.assertTrue(torch.equal(a, b))

    def test_model_converted_after_first_step_is_refused(self):
        model = small_conv_net()
        optimizer = natgrad.SGD(model, lr=0.1)
        model.double()
        with self.assert_refused("dtype f64 and its moments are f32"):
            train(model, optimizer, 1)


class Directions(Case):
    def test_kfac_matches_oracle(self):
        model = double_net()
        x, y = random_batch()
        expected = oracle.kfac_gradients(model, ("0", "2", "6", "8"), lambda m: [loss_of(m, x, y)], 0.1)
        k = make_preconditioner(model, skip_layers="3")
        loss_of(model, x, y).backward()
        self.assertEqual(k.step(), 0)
        self.assert_near_oracle(gradients_of(model), expected)
        self.assertTrue(all(p.grad.dtype == torch.float64 for p in model.parameters()))

    def test_float64_factors_match_oracle(self):
        """A solve loses cond(F + d I) 2^-53 of the result; the condition is below 1e3 and 1e6 here.
        f32 cannot represent the scales 49/81 (sum of G of the first layer) and 1/7 (averages)."""
        x, y = random_batch(samples=7, shape=(2, 9, 9))
        solvers = (dict(), dict(solver="eigen"), dict(solver="eigen-prediv"), dict(linalg="ref"))
        for damping, tolerance in ((0.1, 1e-12), (1e-4, 1e-10)):
            for solver in solvers:
                model = double_net(last=len(solver) == 0)
                expected = oracle.kfac_gradients(model, ("0", "2", "6", "8"), lambda m: [loss_of(m, x, y)], damping)
                k = make_preconditioner(model, skip_layers="3", damping=damping, damping_split="pi", **DOUBLE, **solver)
                loss_of(model, x, y).backward()
                self.assertEqual(k.step(), 0)
                self.assert_near_oracle(gradients_of(model), expected, tolerance)

    def test_layers_that_share_only_a_weight_are_one_layer(self):
        """The oracle observes a model with one layer that is called twice, and with biases outside of the layer."""
        class CalledTwice(nn.Module):
            def __init__(self, pair):
                super().__init__()
                self.layer, self.head = copy.deepcopy(pair[0]), copy.deepcopy(pair[4])
                self.biases = [layer.bias for layer in (pair[0], pair[2])]
                self.layer.bias = None

            def forward(self, x):
                for bias in self.biases:
                    x = self.layer(x)
                    x = torch.tanh(x if bias is None else x + bias.detach().view(-1, *(1,) * (x.dim() - 2)))
                return self.head(x)

        torch.manual_seed(3)
        for make, shape in ((lambda bias: nn.Linear(4, 4, bias), (4,)),
                            (lambda bias: nn.Conv2d(4, 4, 3, padding=1, bias=bias), (4, 3, 2))):
            for biases in ((True, True), (True, False), (False, True)):
                x, y = random_batch(samples=7, shape=shape)
                first, second = map(make, biases)
                second.weight = first.weight
                head = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 3))
                model = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), head).double()
                expected = oracle.kfac_gradients(CalledTwice(model), ("layer",), lambda m: [loss_of(m, x, y)], 0.1)
                k = make_preconditioner(model, damping_split="pi", **DOUBLE)
                loss_of(model, x, y).backward()
                before = gradients_of(model)
                self.assertEqual(k.step(), 0)
                self.assert_near_oracle({"layer.weight": first.weight.grad}, expected, 1e-12)
                why = {row["name"]: row["why"] for row in k.explain()}
                for name, has_bias in zip(("0.bias", "2.bias"), biases):
                    if has_bias:
                        self.assertTrue(torch.equal(gradients_of(model)[name], before[name]))
                        self.assertEqual(why[name], "its layer has curvature without it")

    def test_float64_factors_of_each_shape(self):
        """Diagonal blocks, groups of a convolution, embeddings, reduced positions: as in float32."""
        for options in (dict(factor_blocks=2), dict(positions="reduce"), dict(output_factor="diagonal"),
                        dict(solver="eigen", damping_split="joint"), dict(calls="ema", stat_start="identity")):
            found = []
            for dtypes in (dict(), DOUBLE):
                torch.manual_seed(4)
                model = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(1, 2), nn.Linear(6, 4)).double()
                table = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)).double()
                k = [make_preconditioner(m, **options, **dtypes) for m in (model, *([] if "positions" in options else [table]))]
                loss = model(torch.sin(torch.arange(8 * 2 * 8 * 8, dtype=torch.float64)).reshape(8, 2, 8, 8)).pow(2).mean()
                (loss + table(torch.arange(8).reshape(4, 2) % 5).pow(2).mean()).backward()
                for one in k:
                    self.assertEqual(one.step(), 0)
                found.append(torch.cat([p.grad.flatten() for m in (model, table) for p in m.parameters()]))
            self.assertLess(oracle.relative_difference(*found), TOLERANCE, options)
            self.assertFalse(torch.equal(*found))

    def test_float64_state_restores_bits(self):
        model, other = double_net(), double_net()
        ours = make_preconditioner(model, solve_period=2, **DOUBLE)
        for t in range(2):
            model.zero_grad()
            loss_of(model, *random_batch(seed=t)).backward()
            ours.step()
        resumed = make_preconditioner(other, solve_period=2, **DOUBLE)
        resumed.load_state_dict(ours.state_dict())
        for m, k in ((model, ours), (other, resumed)):
            m.zero_grad()
            loss_of(m, *random_batch(seed=9)).backward()
            self.assertEqual(k.step(), 0)
        for (name, a), b in zip(gradients_of(model).items(), gradients_of(other).values()):
            if not name.startswith("3"):  # the norm has seen other batches
                self.assertTrue(torch.equal(a, b), name)

    def test_published_dtype_arguments(self):
        model = double_net()
        k = KFACPreconditioner(model, factor_dtype=torch.float64, inv_dtype=torch.float64)
        loss_of(model, *random_batch()).backward()
        k.step()
        self.assertTrue(all(torch.isfinite(p.grad).all() for p in model.parameters()))

    def test_float64_inverse_with_product_solver_is_refused(self):
        with self.assert_refused("inverse_dtype.*solver = product"):
            natgrad.KFAC(small_conv_net(), method="sam", inverse_dtype="f64")

    def test_every_method_agrees_with_float32(self):
        for kind in (natgrad.KFAC, natgrad.Eva, natgrad.SPNGD, natgrad.MFAC, natgrad.GGT):
            found = []
            for double in (False, True):
                model = double_net() if double else small_conv_net()
                k = kind(model, damping=0.1)
                for seed in range(3):
                    model.zero_grad()
                    loss_of(model, *random_batch(seed=seed)).backward()
                    self.assertEqual(k.step(lr=0.1), 0)
                found.append(torch.cat([p.grad.double().flatten() for p in model.parameters()]))
            self.assertLess(oracle.relative_difference(*found), TOLERANCE, kind.__name__)

    def test_eva_direction_is_float64(self):
        """lambda PD - D = -c g a' has rank one: its second singular value is a rounding error of double."""
        torch.manual_seed(5)
        model = nn.Linear(7, 6, bias=False).double()
        k = natgrad.Eva(model, damping=0.1, clip="none")
        loss_of(model, torch.randn(9, 7), torch.arange(9) % 6).backward()
        D = model.weight.grad.clone()
        self.assertEqual(k.step(), 0)
        values = torch.linalg.svdvals(0.1 * model.weight.grad - D)
        self.assertGreater(values[0].item(), 1e-3 * D.norm().item())
        self.assertLess(values[1].item(), 20 * UNIT * D.norm().item())

    def test_gradient_above_float32_skips_step(self):
        for kind in (natgrad.KFAC, natgrad.Eva, natgrad.SPNGD, natgrad.MFAC, natgrad.GGT):
            model = double_net()
            k = kind(model)
            (loss_of(model, *random_batch()) * 1e60).backward()
            before = gradients_of(model)
            self.assertEqual(k.step(lr=0.1), 2)
            self.assert_same_tensors(before, gradients_of(model))


if __name__ == "__main__":
    unittest.main()
