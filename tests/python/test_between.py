"""What happens to a model between two steps: parameters that are frozen, in part or whole."""
import unittest

import torch
from torch import nn
import torch.nn.functional as F

import natgrad
from front import Case, make


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.f1, self.norm, self.f2 = nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, x):
        return self.f2(torch.tanh(self.norm(self.f1(x))))


def data(seed=2, samples=6):
    torch.manual_seed(seed)
    return torch.randn(samples, 4), torch.randint(3, (samples,))


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


def copies(named):
    return {name: p.detach().clone() for name, p in named}


def gradients(model):
    return copies((name, p.grad) for name, p in model.named_parameters() if p.grad is not None)


class Frozen(Case):
    """One parameter of a layer is frozen after a step: its gradient is None, or zeros."""

    def test_a_part_of_a_layer(self):
        for part, other in (("f1.bias", "f1.weight"), ("f1.weight", "f1.bias"), ("norm.bias", "norm.weight"),
                            ("norm.weight", "norm.bias")):
            for none in (False, True):
                for kind in (natgrad.KFAC, natgrad.SGD, natgrad.AdamW, natgrad.MFAC):
                    model = Net()
                    k = kind(model, lr=0.1, **({} if kind is natgrad.MFAC else dict(norm_block="unit")))
                    loss_of(model, *data()).backward()
                    k.step()
                    model.zero_grad(set_to_none=none)
                    frozen = dict(model.named_parameters())[part]
                    frozen.requires_grad_(False)
                    loss_of(model, *data(3)).backward()
                    weights, before = copies(model.named_parameters()), gradients(model)
                    with self.subTest(part=part, none=none, kind=kind.__name__):
                        with self.refused(f"'{part}' is frozen and '{other}' is not; both learned when"):
                            k.step()
                        self.same(copies(model.named_parameters()), weights)
                        self.same(gradients(model), before)
                        frozen.requires_grad_(True)  # and it goes on
                        model.zero_grad(set_to_none=none)
                        k.reset_batch()
                        loss_of(model, *data(3)).backward()
                        k.step()
                    k.close()

    def test_a_whole_layer_is_not_touched(self):
        for kind in (natgrad.SGD, natgrad.AdamW):
            model = Net()
            k = kind(model, lr=0.1, norm_block="unit", weight_decay=0.1)
            for frozen in (False, True, False):
                for layer in (model.f1, model.norm):
                    layer.requires_grad_(not frozen)
                model.zero_grad(set_to_none=False)
                loss_of(model, *data()).backward()
                before = copies(model.named_parameters())
                k.step()
                for name, p in model.named_parameters():
                    with self.subTest(kind=kind.__name__, frozen=frozen, name=name):
                        self.assertEqual(torch.equal(p, before[name]), frozen and not name.startswith("f2"))

    def test_a_part_of_a_layer_that_was_frozen(self):
        for part in ("weight", "bias"):
            model = Net()
            model.f1.requires_grad_(False)
            k = make(model)
            getattr(model.f1, part).requires_grad_(True)
            loss_of(model, *data()).backward()
            with self.refused(f"'f1.{part}' was frozen when the preconditioner was made, and is not any more"):
                k.step()


if __name__ == "__main__":
    unittest.main()
