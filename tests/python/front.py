"""Helpers for tests of the PyTorch front."""
import unittest
import warnings

import torch
from torch import nn

import natgrad
import oracle

NEW = not torch.__version__.startswith("1.")
# Factors of a few samples are inverted in float32: cond(A + d_A) is about 1e3 at most, eps is 6e-8.
TOLERANCE = 2e-4
DAMPING = 0.1


def small_conv_net(seed=1, relu=True):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(inplace=relu), nn.Conv2d(4, 3, 2, stride=2),
                         nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5), nn.Tanh(), nn.Linear(5, 3))


def random_batch(samples=8, seed=2, shape=(2, 8, 8), classes=3):
    torch.manual_seed(seed)
    return torch.randn(samples, *shape), torch.randint(classes, (samples,))


def loss_of(model, x, y):
    return nn.functional.cross_entropy(model(x if next(model.parameters()).dtype != torch.float64 else x.double()), y)


def gradients_of(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def make_preconditioner(model, kind=None, **options):
    options.setdefault("damping", DAMPING)
    options.setdefault("clip", "none")
    return (kind or natgrad.KFAC)(model, **options)


def gradients_after_step(model, *batches, **options):
    """Gradients after one step of a fresh preconditioner; `batches` are accumulated with equal weight."""
    k = make_preconditioner(model, **options)
    model.zero_grad()
    for x, y in batches:
        (loss_of(model, x, y) / len(batches)).backward()
    assert k.step() == 0
    k.close()
    return gradients_of(model)


class Case(unittest.TestCase):
    def assert_same_tensors(self, a, b):
        self.assertEqual(sorted(a), sorted(b))
        for name in a:
            self.assertTrue(torch.equal(a[name], b[name]), name)

    def assert_near_oracle(self, got, expected, tolerance=TOLERANCE, prefix=None):
        """Compare the gradients `got`, by name, with the gradients `expected` of the oracle."""
        for name, parts in expected.items():
            for kind, part in zip(("weight", "bias"), parts):
                full = kind if name == "" else f"{name}.{kind}"
                self.assertLess(oracle.relative_difference(got[full], part), tolerance, full)

    def assert_refused(self, pattern):
        return self.assertRaisesRegex(natgrad.Error, pattern)

    def silence_warnings(self):
        context = warnings.catch_warnings()
        context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        warnings.simplefilter("ignore")
