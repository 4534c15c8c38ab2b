"""float64 models: updates against torch.optim, directions against float64 definitions, range, state."""
import copy
import unittest

import torch
from torch import nn

import natgrad
import oracle
from front import TOLERANCE, Case, batch, grads, loss_of, make, net

UNIT = 2.0**-53
CLOSE = 200 * UNIT  # five steps; at most 8 roundings of a result in each, on both sides
SGD = (dict(lr=0.1), dict(lr=0.1, momentum=0.9), dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
       dict(lr=0.1, momentum=0.9, dampening=0.3))


def double_net(last=False, norm=True):
    model = net().double()
    if not norm:
        model[3] = nn.Identity()
    return model.to(memory_format=torch.channels_last) if last else model


def trained(model, optimizer, steps=5, start=0):
    for t in range(start, start + steps):
        optimizer.zero_grad()
        loss_of(model, *batch(seed=t)).backward()
        optimizer.step()
    return model


class Updates(Case):
    """Without curvature the update is the update of torch.optim."""

    def equal(self, ours, theirs, tolerance=CLOSE):
        for (name, a), b in zip(ours.named_parameters(), theirs.parameters()):
            self.assertEqual(a.dtype, torch.float64)
            self.assertLess(oracle.distance(a.detach(), b.detach()), tolerance, name)

    def test_sgd(self):
        for last in (False, True):
            for numbers in SGD:
                a, b = double_net(last), double_net(last)
                trained(a, natgrad.SGD(a, skip_layers=".*", **numbers))
                self.equal(a, trained(b, torch.optim.SGD(b.parameters(), **numbers)))

    def test_adamw(self):
        for last in (False, True):
            numbers = dict(lr=0.01, weight_decay=0.1)
            a, b = (double_net(last, norm=False) for _ in range(2))  # before a norm the gradient of a bias is rounding
            trained(a, natgrad.AdamW(a, skip_layers=".*", **numbers))
            self.equal(a, trained(b, torch.optim.AdamW(b.parameters(), **numbers)))

    def test_gradients_above_f32(self):
        model = nn.Linear(3, 2).double()
        before = model.weight.detach().clone()
        optimizer = natgrad.SGD(model, lr=1e-300, skip_layers=".*")
        (model(torch.ones(1, 3, dtype=torch.float64)).sum() * 1e300).backward()
        optimizer.step()
        self.assertEqual(optimizer.note, 0)
        self.assertLess((before - 1.0 - model.weight).abs().max().item(), 4 * UNIT)

    def test_an_element_that_overflows_stays(self):
        model = nn.Linear(3, 2).double()
        before = model.weight.detach().clone()
        optimizer = natgrad.SGD(model, lr=1e10, skip_layers=".*")
        model(torch.tensor([[1e300, 1.0, 1.0]], dtype=torch.float64)).sum().backward()
        optimizer.step()
        self.assertEqual(optimizer.note, 1)
        self.assertTrue(torch.equal(model.weight[:, 0], before[:, 0]))
        self.assertTrue(torch.equal(model.weight[:, 1:], before[:, 1:] - 1e10))

    def test_state(self):
        for kind in (natgrad.SGD, natgrad.AdamW):
            numbers = dict(lr=0.01, **(dict(momentum=0.9) if kind is natgrad.SGD else {}))
            model = double_net()
            optimizer = kind(model, **numbers)
            trained(model, optimizer, 3)
            other = copy.deepcopy(model)
            resumed = kind(other, **numbers)
            state = optimizer.state_dict()
            moments = [v for k, v in state["natgrad"]["fields"].items() if "/momentum." in k or "/first." in k]
            self.assertTrue(moments and all(v.dtype == torch.float64 for v in moments))
            resumed.load_state_dict(state)
            trained(model, optimizer, 2, 3), trained(other, resumed, 2, 3)
            for a, b in zip(model.parameters(), other.parameters()):
                self.assertTrue(torch.equal(a, b))

    def test_a_model_that_became_double(self):
        model = net()
        optimizer = natgrad.SGD(model, lr=0.1)
        model.double()
        with self.refused("dtype f64 and its moments are f32"):
            trained(model, optimizer, 1)


class Directions(Case):
    def test_kfac(self):
        model = double_net()
        x, y = batch()
        expected = oracle.kfac(model, ("0", "2", "6", "8"), lambda m: [loss_of(m, x, y)], 0.1)
        k = make(model, skip_layers="3")
        loss_of(model, x, y).backward()
        self.assertEqual(k.step(), 0)
        self.near(grads(model), expected)
        self.assertTrue(all(p.grad.dtype == torch.float64 for p in model.parameters()))

    def test_every_method_agrees_with_float32(self):
        for kind in (natgrad.KFAC, natgrad.Eva, natgrad.SPNGD, natgrad.MFAC, natgrad.GGT):
            found = []
            for double in (False, True):
                model = double_net() if double else net()
                k = kind(model, damping=0.1)
                for seed in range(3):
                    model.zero_grad()
                    loss_of(model, *batch(seed=seed)).backward()
                    self.assertEqual(k.step(lr=0.1), 0)
                found.append(torch.cat([p.grad.double().flatten() for p in model.parameters()]))
            self.assertLess(oracle.distance(*found), TOLERANCE, kind.__name__)

    def test_eva_combines_in_double(self):
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

    def test_a_gradient_above_f32_skips_the_step(self):
        for kind in (natgrad.KFAC, natgrad.Eva, natgrad.SPNGD, natgrad.MFAC, natgrad.GGT):
            model = double_net()
            k = kind(model)
            (loss_of(model, *batch()) * 1e60).backward()
            before = grads(model)
            self.assertEqual(k.step(lr=0.1), 2)
            self.same(before, grads(model))


if __name__ == "__main__":
    unittest.main()
