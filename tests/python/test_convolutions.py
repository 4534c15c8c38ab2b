"""Conv3d, ConvTranspose1d and ConvTranspose2d, against a dense K-FAC of linear layers that compute the same."""
import itertools

import torch
from torch import nn
import torch.nn.functional as F

import natgrad
import oracle
from front import DAMPING, Case, gradients_of, make_preconditioner

SAMPLES, FEATURES = 4, 3


class Unfolded(nn.Module):
    """A Conv3d as a linear layer over patches [sample, position, (channel, place in the kernel)]."""

    def __init__(self, conv):
        super().__init__()
        self.conv, self.out = (conv,), None
        self.linear = nn.Linear(conv.weight[0].numel(), conv.out_channels, bias=conv.bias is not None)
        self.linear.weight.data.copy_(conv.weight.flatten(1))
        if conv.bias is not None:
            self.linear.bias.data.copy_(conv.bias)

    def forward(self, x):
        conv, = self.conv
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        x = F.pad(x, conv._reversed_padding_repeated_twice, mode=mode)
        sizes = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], conv.kernel_size, conv.stride, conv.dilation)]
        taps = []
        for place in itertools.product(*map(range, conv.kernel_size)):
            cut = [slice(d * i, d * i + s * (n - 1) + 1, s) for i, n, s, d in zip(place, sizes, conv.stride, conv.dilation)]
            taps.append(x[(slice(None), slice(None), *cut)])
        patches = torch.stack(taps, 2).flatten(1, 2).flatten(2).transpose(1, 2)
        return self.linear(patches).transpose(1, 2).unflatten(2, sizes)


class Folded(nn.Module):
    """A transposed convolution as a linear layer at each input position, and a sum over positions."""

    def __init__(self, conv, size):
        super().__init__()
        self.size, self.bias = size, None if conv.bias is None else nn.Parameter(conv.bias.detach().clone())
        one = 2 - len(conv.kernel_size)
        # F.fold accepts less output padding than the stride: zeros follow
        self.more = [more if more >= stride else 0 for more, stride in zip(conv.output_padding, conv.stride)][::-1]
        inner = tuple(n - more for n, more in zip(size, self.more[::-1]))
        self.fold = dict(output_size=(1,) * one + inner, kernel_size=(1,) * one + conv.kernel_size, padding=(0,) * one + conv.padding,
                         dilation=(1,) * one + conv.dilation, stride=(1,) * one + conv.stride)
        self.linear = nn.Linear(conv.in_channels, conv.weight[0].numel(), bias=False)
        self.linear.weight.data.copy_(conv.weight.flatten(1).t())

    def forward(self, x):
        y = F.fold(self.linear(x.flatten(2).transpose(1, 2)).transpose(1, 2), **self.fold)
        y = F.pad(y, [n for more in self.more for n in (0, more)]).view(*y.shape[:2], *self.size)
        return y if self.bias is None else y + self.bias.view(-1, *(1,) * len(self.size))


CASES = (  # (module, sizes of the input)
    (nn.Conv3d(2, 3, (2, 3, 2), padding=(1, 0, 1)), (3, 4, 3)),
    (nn.Conv3d(2, 3, 2, stride=2, dilation=(2, 1, 1), bias=False), (5, 4, 4)),
    (nn.Conv3d(2, 3, 3, padding=1, padding_mode="circular"), (3, 3, 4)),
    (nn.ConvTranspose2d(2, 3, 3), (3, 4)),
    (nn.ConvTranspose2d(2, 3, (3, 2), stride=2, padding=1, output_padding=(1, 0), bias=False), (3, 4)),
    (nn.ConvTranspose2d(2, 3, 2, dilation=3, output_padding=2), (3, 2)),
    (nn.ConvTranspose1d(2, 3, 4, stride=2), (5,)),
)


def make_models(conv, sizes):
    """Return the model with the convolution, and the model with a linear layer."""
    torch.manual_seed(1)
    conv.reset_parameters()
    output = conv(torch.zeros(1, 2, *sizes))
    head = nn.Linear(output.numel(), FEATURES)
    other = Unfolded(conv) if isinstance(conv, nn.Conv3d) else Folded(conv, tuple(output.shape[2:]))
    return [nn.Sequential(first, nn.Tanh(), nn.Flatten(), head) for first in (conv, other)]


def loss_of(model, sizes, seed=2):
    torch.manual_seed(seed)
    x, y = torch.randn(SAMPLES, 2, *sizes), torch.randint(FEATURES, (SAMPLES,))
    return F.cross_entropy(model(x.to(next(model.parameters()).dtype)), y)


class Convolutions(Case):
    def test_gradients_match_dense_kfac(self):
        for conv, sizes in CASES:
            for options in ({}, dict(samples="layer")):
                with self.subTest(str(conv), **options):
                    model, other = make_models(conv, sizes)
                    model.zero_grad()
                    self.assertLess(abs(loss_of(model, sizes) - loss_of(other, sizes)).item(), 1e-6)
                    expected = oracle.kfac_gradients(other, ["0.linear"], lambda m: [loss_of(m, sizes)], DAMPING)["0.linear"]
                    k = make_preconditioner(model, **options)
                    loss_of(model, sizes).backward()
                    before = gradients_of(model)
                    self.assertEqual(k.step(), 0)
                    expected[0] = expected[0].t() if isinstance(other[0], Folded) else expected[0]
                    got = gradients_of(model)
                    self.assert_near_oracle({"weight": got["0.weight"].flatten(1), "bias": got.get("0.bias")}, {"": expected})
                    if isinstance(other[0], Folded) and conv.bias is not None:
                        self.assertTrue(torch.equal(got["0.bias"], before["0.bias"]))
                        why = {row["name"]: row["why"] for row in k.explain()}
                        self.assertEqual(why["0.bias"], "its layer has curvature without it")

    def test_frames_are_positions(self):
        """Frames [B T, c, h, w]: the positions of all frames of a sample are positions of the linear layer."""
        sizes, found = (3, 4), []
        for model in make_models(nn.ConvTranspose2d(2, 3, 3), sizes):
            frames = nn.Sequential(nn.Flatten(0, 1), model, nn.Unflatten(0, (SAMPLES, 2)))
            k = make_preconditioner(frames)
            torch.manual_seed(2)
            frames(torch.randn(SAMPLES, 2, 2, *sizes)).pow(2).mean().backward()
            self.assertEqual(k.step(), 0)
            weight, = (p.grad for name, p in model[0].named_parameters() if name.endswith("weight"))
            found.append(weight if weight.dim() == 2 else weight.flatten(1).t())
        self.assertLess(oracle.relative_difference(found[0], found[1].double()), 1e-5)

    def test_one_sample_needs_no_batch_axis(self):
        for conv, size in ((nn.Conv3d(2, 3, 2), (3, 4, 3)), (nn.ConvTranspose2d(2, 3, 3, bias=False), (3, 4))):
            model, found = conv, []
            torch.manual_seed(2)
            x = torch.randn(2, *size)
            for sample, begins in ((x.unsqueeze(0), False), (x, True), (x, False)):
                model.zero_grad()
                k = make_preconditioner(model)
                if begins:
                    k.begin(1)
                model(sample).pow(2).mean().backward()
                self.assertEqual(k.step(), 0)
                found.append({name: g.clone() for name, g in gradients_of(model).items()})
                k.close()
            self.assert_same_tensors(found[0], found[1])
            self.assert_same_tensors(found[0], found[2])

    def test_depth_one_equals_conv2d(self):
        """A Conv3d with a kernel of depth 1 on one image equals a Conv2d, also with groups."""
        found = []
        for kind, one in ((nn.Conv3d, (1,)), (nn.Conv2d, ())):
            torch.manual_seed(1)
            conv = kind(4, 6, one + (3, 2), groups=2, padding=(0,) * len(one) + (1, 0))
            model = nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(6 * 4 * 3, FEATURES))
            k = make_preconditioner(model)
            torch.manual_seed(2)
            x = torch.randn(SAMPLES, 4, *one, 4, 4)
            model(x).pow(2).mean().backward()
            k.step()
            found.append([g.flatten() for g in gradients_of(model).values()])
        for a, b in zip(*found):
            self.assertTrue(torch.equal(a, b))

    def test_updates_match_the_optimizer_of_pytorch(self):
        for conv, sizes in CASES[1], CASES[4]:
            weights = []
            for fused in (False, True):
                model, _ = make_models(conv, sizes)
                k = natgrad.SGD(model, 0.1, momentum=0.9, damping=DAMPING) if fused else make_preconditioner(model, clip="kl", lr=0.1)
                optimizer = k if fused else torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
                for t in range(3):
                    optimizer.zero_grad()
                    loss_of(model, sizes, t).backward()
                    if not fused:
                        k.step()
                    optimizer.step()
                weights.append([p.detach().clone() for p in model.parameters()])
                (k.preconditioner if fused else k).close()
            for one, other in zip(*weights):
                self.assertLess(oracle.relative_difference(one, other.double()), 1e-5)

    def test_unsupported_convolutions_are_named(self):
        model = nn.Sequential(nn.ConvTranspose2d(4, 4, 3, groups=2), nn.ConvTranspose3d(4, 4, 3))
        with self.assertWarnsRegex(UserWarning, "1.weight: a parameter of ConvTranspose3d; 0.weight: ConvTranspose2d with groups"):
            make_preconditioner(model)
        with self.assertWarnsRegex(UserWarning, "0.weight: a parameter of Conv3d"):
            make_preconditioner(nn.Sequential(nn.Conv3d(2, 2, 2)), method="kaisa")


if __name__ == "__main__":
    import unittest
    unittest.main()
