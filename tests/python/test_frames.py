"""A convolution of frames, [B*T, C, H, W]: the frames of a sample are positions, like rows of a linear layer."""
import unittest

import torch
from torch import nn
import torch.nn.functional as F

import natgrad
from front import Case, gradients_of, make_preconditioner

B, T = 6, 4
# Sums in another order, through inverses of condition at most 1e2.
ORDER = 1e-4


class ConvolutionOrPatches(nn.Module):
    """A convolution, or a linear layer of its patches, and a second layer of the means."""

    def __init__(self, conv, kernel):
        super().__init__()
        torch.manual_seed(1)
        c = nn.Conv2d(3, 4, kernel)
        self.a, self.o, self.kernel = c, nn.Linear(4, 3), kernel
        if not conv:
            self.a = nn.Linear(3 * kernel * kernel, 4)
            with torch.no_grad():
                self.a.weight.copy_(c.weight.flatten(1))
                self.a.bias.copy_(c.bias)

    def forward(self, x):  # [B, T, 3, 5, 5]
        frames = x.flatten(0, 1)
        if isinstance(self.a, nn.Conv2d):
            h = self.a(frames).flatten(2).transpose(1, 2)
        else:
            h = self.a(F.unfold(frames, self.kernel).transpose(1, 2))
        return self.o(torch.tanh(h).mean(1)).view(B, T, 3).mean(1)


def gradients_of_step(conv, kernel, kind, given, reduction, **options):
    model = ConvolutionOrPatches(conv, kernel)
    k = make_preconditioner(model, kind, reduction=reduction, **options)
    torch.manual_seed(2)
    x, y = torch.randn(B, T, 3, 5, 5), torch.randint(3, (B,))
    for part in range(2):
        if given:
            k.begin(B, 0.5)
        (F.cross_entropy(model(x * (1 + part)), y, reduction=reduction) / (2 if given else 1)).backward()
    assert k.step() == 0
    k.close()
    return gradients_of(model)


class FramesOfSamples(Case):
    def largest_difference(self, one, two):
        return max(((one[name].flatten() - g.flatten()).abs().max() / g.abs().max()).item() for name, g in two.items())

    def test_convolution_matches_linear_of_patches(self):
        for kernel in (1, 3):
            for kind, options in ((natgrad.KFAC, {}), (natgrad.KFAC, dict(solver="eigen", damping_split="joint")),
                                  (natgrad.Eva, {}), (natgrad.Eva, dict(positions="reduce"))):
                for given in (False, True):
                    for reduction in ("mean", "sum"):
                        if options.get("positions") == "reduce" and reduction == "sum":
                            continue
                        found = [gradients_of_step(conv, kernel, kind, given, reduction, **options) for conv in (True, False)]
                        with self.subTest(kernel=kernel, kind=kind.__name__, given=given, reduction=reduction, **options):
                            self.assertLess(self.largest_difference(*found), ORDER)


if __name__ == "__main__":
    unittest.main()
