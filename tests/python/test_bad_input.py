"""Bad input at the first gradient: one table of methods with matrices, one defined answer for each event.

    NaN in the loss, or in one gradient     the step changes nothing (note 2); later steps have the bits of a run without that step
    no gradient (None) of one layer         missing = keep: the layer stays and the others move; missing = refuse: an error with its name
    zero                                    no weight moves; the next gradient is used as if it were the first
    f16, bf16                               the step in f32, rounded to the dtype of the weight
    0-D, 1-D                                as all parameters; the model has a scalar, biases and gains

    True or False for a number              refused with the name of the option

Tests of single methods have the rest: max_precond_dim below 1, unknown coefficients, Muon on an embedding."""
import math

import torch
from torch import nn

import natgrad
from front import NEW, Case
from natgrad import _core

STEPS = 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(1, 3, 3, padding=1), nn.LayerNorm(12), nn.Linear(12, 4)
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.gain * self.fc(self.norm(self.conv(x).flatten(1)))


def plain(kind, **fixed):
    return lambda model, **more: kind(model, lr=0.02, weight_decay=0, **fixed, **more)


# name: the optimizer, whether it skips layers without a gradient, the step of the first update
METHODS = {
    "torch-muon": (plain(natgrad.Muon), True, 0),
    "muon": (plain(natgrad.Muon, method="muon"), True, 0),
    "newton-muon": (plain(natgrad.Muon, method="newton-muon"), True, 0),
    "soap": (plain(natgrad.SOAP), False, 1),
    "soap-natgrad": (plain(natgrad.SOAP, method="soap-natgrad"), False, 1),
    "shampoo": (plain(natgrad.Shampoo, epsilon=1e-4), True, 0),
    "shampoo, grafted": (plain(natgrad.Shampoo, epsilon=1e-4, target_parameter_dimensionality=2, grafting="adam"), True, 0),
    "shampoo, bases": (plain(natgrad.Shampoo, epsilon=1e-4, betas=(0.9, 0.95), gram_form="qr"), True, 0),
    "kl-shampoo": (plain(natgrad.KLShampoo), False, 0),
    "kfac-adam": (plain(natgrad.KFACAdam), False, 0),
    "ekfac": (plain(natgrad.SGD, method="ekfac"), False, 0)}
OBSERVES = "newton-muon", "kfac-adam", "ekfac"  # statistics of inputs or output gradients


class BadInput(Case):
    def run_steps(self, name, first_gradient=None, dtype=torch.float32, start=0, scale=1, **options):
        """Return the weights after each step, and the notes.  first_gradient(model) changes the gradients of step 0."""
        torch.manual_seed(1)
        model, weights, notes = Net().to(dtype), [], []
        optimizer = METHODS[name][0](model, **options)
        for t in range(start, STEPS):
            generator = torch.Generator().manual_seed(t)
            x, y = torch.randn(9, 1, 2, 2, generator=generator), torch.randint(4, (9,), generator=generator)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(dtype)).float(), y)
            (loss * scale if t == 0 else loss).backward()
            if t == 0 and first_gradient is not None:
                first_gradient(model)
            optimizer.step()
            notes.append(optimizer.note)
            weights.append({key: p.detach().clone() for key, p in model.named_parameters()})
        return weights, notes

    def start_weights(self):
        torch.manual_seed(1)
        return {key: p.detach().clone() for key, p in Net().named_parameters()}

    def test_nan(self):
        """A NaN in one gradient keeps all gradients of the step out of the averages, also if no statistic reads this gradient, as the
        one of a scalar.  Sums of inputs and output gradients that were observed before stay in their averages (docs/algorithms.md)."""
        for name in METHODS:
            want, _ = self.run_steps(name, start=1)
            for layer in "loss", "fc", "gain":
                def spoil(model):
                    if layer != "loss":
                        next(p for key, p in model.named_parameters() if key.startswith(layer)).grad.view(-1)[0] = math.nan
                got, notes = self.run_steps(name, spoil, scale=math.nan if layer == "loss" else 1)
                self.assertEqual(notes, [2, 0, 0, 0], (name, layer))
                self.assert_same_tensors(got[0], self.start_weights())
                if name not in OBSERVES:
                    self.assert_same_tensors(got[-1], want[-1])
                self.assertTrue(all(torch.isfinite(x).all() for x in got[-1].values()), (name, layer))

    def test_none(self):
        def drop(model):
            model.fc.weight.grad = model.fc.bias.grad = None

        for name, (_, skips, first_update) in METHODS.items():
            if not skips:
                with self.assertRaisesRegex(natgrad.Error, "'fc': the gradient of its weight is not bound; missing = keep"):
                    self.run_steps(name, drop)
            got, notes = self.run_steps(name, drop, missing="keep")
            self.assertEqual(notes, [0] * STEPS, name)
            start = self.start_weights()
            for key, x in got[0].items():
                self.assertEqual(torch.equal(x, start[key]), first_update == 1 or key.startswith("fc"), (name, key))
            for key, x in got[-1].items():
                self.assertTrue(torch.isfinite(x).all() and not torch.equal(x, start[key]), (name, key))

    def test_zero(self):
        for name in METHODS:
            got, notes = self.run_steps(name, lambda model: [p.grad.zero_() for p in model.parameters()])
            self.assertEqual(notes, [0] * STEPS, name)
            self.assert_same_tensors(got[0], self.start_weights())
            for key, x in got[1].items():
                moved = (x - got[0][key]).abs().max()
                self.assertTrue(0 < moved < 1, (name, key, moved))
            self.assertTrue(all(torch.isfinite(x).all() for x in got[-1].values()), name)

    def test_a_bool_is_no_number(self):
        """Arguments of the classes, and every option whose values are numbers."""
        cases = [(natgrad.SOAP, "max_precond_dim", "max_axis"), (natgrad.SOAP, "shampoo_beta", "shampoo_beta"),
                 (natgrad.Shampoo, "epsilon", "damping"), (natgrad.Muon, "ns_steps", "muon_steps"), (natgrad.SGD, "momentum", "momentum"),
                 (natgrad.Muon, "lr", "lr"), (natgrad.SGD, "accumulation_steps", "accumulation_steps"), (natgrad.SGD, "threads", "threads")]
        for kind, name, says in cases:
            for value in True, torch.tensor(True):
                model = Net()
                with self.assert_refused(rf"{says}( is|:) ('true'|True|tensor\(True\))"):
                    optimizer = kind(model, **{"lr": 0.1, name: value})
                    model(torch.ones(2, 1, 2, 2)).sum().backward()
                    optimizer.step()
        numbers = [row["name"] for row in _core.options() if row["type"] in (1, 2)]  # NG_OPTION_REAL, NG_OPTION_INT
        self.assertGreater(len(numbers), 30)
        for name in numbers:
            with self.assert_refused(f"{name}: 'true'"):
                _core.Options().set(name, True)

    def half_dtypes(self):
        return (torch.bfloat16, torch.float16) if NEW else (torch.bfloat16,)  # torch 1.13 has no products in f16

    def test_half_precision(self):
        """The first step that moves, from equal gradients: two units in the last place of the weight."""
        for name, (make, _, first_update) in METHODS.items():
            for dtype in self.half_dtypes() if name not in OBSERVES else ():
                steps = {}
                for kind in (dtype, torch.float32):
                    torch.manual_seed(1)
                    model = Net().to(dtype).to(kind)
                    optimizer = make(model)
                    for t in range(first_update + 1):
                        generator = torch.Generator().manual_seed(t)
                        for p in model.parameters():
                            p.grad = torch.randn(p.shape, generator=generator).to(dtype).to(kind)
                        optimizer.step()
                    self.assertEqual((optimizer.note, {p.dtype for p in model.parameters()}), (0, {kind}), name)
                    steps[kind] = [p.detach().float() for p in model.parameters()]
                for x, y in zip(steps[dtype], steps[torch.float32]):
                    near = 2 * torch.finfo(dtype).eps * y.abs().clamp_min(0.1)
                    self.assertTrue(((x - y).abs() <= near).all(), (name, dtype, (x - y).abs().max()))

    def test_half_precision_of_observed_layers(self):
        """Inputs in bf16 or f16 have other bases, so the runs are compared by their loss."""
        for name in OBSERVES:
            for dtype in self.half_dtypes():
                torch.manual_seed(1)
                model, losses = Net().to(dtype), []
                optimizer = METHODS[name][0](model)
                x, y = torch.randn(64, 1, 2, 2), torch.randint(4, (64,))
                for _ in range(15):
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(x.to(dtype)).float(), y)
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                self.assertEqual(optimizer.note, 0, name)
                self.assertLess(losses[-1], 0.95 * losses[0], (name, dtype))


if __name__ == "__main__":
    import unittest
    unittest.main()
