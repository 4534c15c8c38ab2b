"""Norm layers: gamma and beta against their definition in float64, on every class, shape and order of axes."""
import copy
import unittest

import torch
from torch import nn
import torch.nn.functional as F

import natgrad
from front import DAMPING, NEW, Case, gradients_of, make_preconditioner

EPS = 2.0**-24  # gradients, F and the solve are float32: a few EPS times the condition of F + damping I


def normalised_input(module, x):
    """The normalised input, which the norm multiplies by gamma."""
    if isinstance(module, nn.LayerNorm):
        return F.layer_norm(x, module.normalized_shape, eps=module.eps)
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(x, module.num_groups, eps=module.eps)
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        return F.instance_norm(x, eps=module.eps)
    return F.batch_norm(x, None, None, training=True, eps=module.eps)


def norm_gradients_by_definition(model, name, loss, samples, block, damping=DAMPING):
    """({parameter: new gradient}, tolerance): PD = (F + damping I)^-1 D with F = 1/B sum_i q_i q_i', q_i the gradient of gamma and
    beta of sample i alone.  The arrays of the model have samples first, or the rows of all samples in one axis."""
    model = copy.deepcopy(model).double()
    module, seen = dict(model.named_modules())[name], {}

    def record_arrays(m, inputs, output):
        seen["x"] = inputs[0].detach()
        output.register_hook(lambda g: seen.__setitem__("g", g))
    module.register_forward_hook(record_arrays)
    loss(model).backward()
    x, g = seen["x"], seen["g"]
    h = normalised_input(module, x)
    if isinstance(module, nn.LayerNorm):
        parts = [(g * h).reshape(samples, -1, module.weight.numel()), g.reshape(samples, -1, module.weight.numel())]
    else:
        parts = [(g * h).transpose(0, 1).flatten(2), g.transpose(0, 1).flatten(2)] if g.dim() > 2 else [
            (g * h).t().unsqueeze(-1), g.t().unsqueeze(-1)]  # [C, rows, positions]
        parts = [p.reshape(p.shape[0], samples, -1).permute(1, 2, 0) for p in parts]
    named = [(n, p) for n, p in (("weight", module.weight), ("bias", module.bias)) if p is not None and p.requires_grad]
    parts = [part for part, n in zip(parts, ("weight", "bias")) if n in dict(named)]
    q = torch.cat([part.sum(1) * samples for part in parts], 1)  # [B, slots C]
    whole = q.t() @ q / samples
    C = q.shape[1] // len(named)
    if block != "full":
        at = torch.arange(q.shape[1])
        whole = whole * ((at[:, None] % C == at % C) if block == "unit" else (at[:, None] == at))
    D = torch.cat([p.grad.flatten() for _, p in named])
    damped = whole + damping * torch.eye(len(D), dtype=torch.float64)
    PD = torch.linalg.solve(damped, D)
    return {f"{name}.{n}": piece.reshape(p.shape) for (n, p), piece in zip(named, PD.split(C))}, \
        10 * EPS * torch.linalg.cond(damped).item()


def norm_cases():
    """Yield (description, model whose layer '0' is the norm, input, samples)."""
    torch.manual_seed(4)
    for what, norm, shape, samples in (
            ("BatchNorm1d of rows", nn.BatchNorm1d(5), (8, 5), 8),
            ("BatchNorm1d of rows of samples", nn.BatchNorm1d(5), (12, 5), 4),
            ("BatchNorm1d", nn.BatchNorm1d(5, eps=1e-3), (6, 5, 4), 6),
            ("BatchNorm2d", nn.BatchNorm2d(3), (6, 3, 4, 5), 6),
            ("BatchNorm2d of frames", nn.BatchNorm2d(3), (6, 3, 4, 5), 3),
            ("BatchNorm3d", nn.BatchNorm3d(2), (4, 2, 2, 3, 2), 4),
            ("LayerNorm of rows", nn.LayerNorm(6), (7, 6), 7),
            ("LayerNorm of sequences", nn.LayerNorm(6), (4, 5, 6), 4),
            ("LayerNorm of rows of samples", nn.LayerNorm(6, eps=1e-2), (20, 6), 4),
            ("LayerNorm of two axes", nn.LayerNorm((3, 2)), (5, 4, 3, 2), 5),
            ("GroupNorm", nn.GroupNorm(2, 4), (5, 4, 3, 2), 5),
            ("GroupNorm of rows", nn.GroupNorm(2, 6), (5, 6), 5),
            ("InstanceNorm1d", nn.InstanceNorm1d(3, affine=True), (5, 3, 6), 5),
            ("InstanceNorm2d", nn.InstanceNorm2d(3, affine=True), (5, 3, 4, 3), 5),
            ("InstanceNorm3d", nn.InstanceNorm3d(2, affine=True), (4, 2, 3, 2, 2), 4)):
        nn.init.normal_(norm.weight, 1.0, 0.3)
        nn.init.normal_(norm.bias, 0.0, 0.3)
        yield what, nn.Sequential(norm), torch.randn(shape), samples


def loss(x):
    torch.manual_seed(6)
    factor = torch.rand(x.shape)  # so that the gradients of samples differ, too

    def of(model):
        dtype = next(model.parameters()).dtype
        return (torch.sin(3 * model(x.to(dtype))) * factor.to(dtype)).sum() / len(x)
    return of


class GradientsMatchDefinition(Case):
    def assert_near(self, got, expected, *what):
        values, tolerance = expected
        for name, value in values.items():
            worst = ((got[name].double() - value).abs().max() / value.abs().max()).item()
            self.assertLess(worst, tolerance, (*what, name))

    def check_against_definition(self, what, model, x, samples, block, **options):
        of = loss(x)
        expected = norm_gradients_by_definition(model, "0", of, samples, block)
        k = make_preconditioner(model, norm_block=block, **options)
        k.begin(samples)
        of(model).backward()
        self.assertEqual(k.step(), 0)
        got = gradients_of(model)
        k.close()
        self.assert_near(got, expected, what, block)

    def test_each_norm_class_matches_definition(self):
        for block in ("unit", "full", "diagonal"):
            for what, model, x, samples in norm_cases():
                with self.subTest(what, block=block):
                    self.check_against_definition(what, model, x, samples, block)

    def test_norms_in_each_family_match_definition(self):
        for kind in (natgrad.KFAC, natgrad.Eva, natgrad.SPNGD):
            for what, model, x, samples in norm_cases():
                with self.subTest(what, kind=kind.__name__):
                    of = loss(x)
                    k = make_preconditioner(model, kind, norm_block="unit", norm_damping=1)
                    expected = norm_gradients_by_definition(model, "0", of, samples, "unit")
                    k.begin(samples)
                    of(model).backward()
                    k.step()
                    self.assert_near(gradients_of(model), expected)

    def test_frozen_gamma_or_beta(self):
        for frozen in ("weight", "bias"):
            for what, model, x, samples in norm_cases():
                getattr(model[0], frozen).requires_grad_(False)
                with self.subTest(what, frozen=frozen):
                    self.check_against_definition(what, model, x, samples, "unit")
                    self.assertNotIn(f"0.{frozen}", gradients_of(model))

    @unittest.skipUnless(NEW, "LayerNorm(bias=False) is in PyTorch 2")
    def test_layer_norm_without_beta(self):
        torch.manual_seed(4)
        self.check_against_definition("no beta", nn.Sequential(nn.LayerNorm(6, bias=False)), torch.randn(4, 5, 6), 4, "unit")

    def test_positions_first_matches_definition(self):
        torch.manual_seed(4)
        model, x = nn.Sequential(nn.LayerNorm(6)), torch.randn(5, 4, 6)  # [T, B, F]
        k = make_preconditioner(model, batch_first=False)
        of = loss(x)
        of(model).backward()
        turned = x.transpose(0, 1).contiguous()
        torch.manual_seed(6)
        factor = torch.rand(x.shape).transpose(0, 1)

        def loss_of_transposed(m):
            dtype = next(m.parameters()).dtype
            return (torch.sin(3 * m(turned.to(dtype))) * factor.to(dtype)).sum() / 5
        expected = norm_gradients_by_definition(model, "0", loss_of_transposed, 4, "unit")
        k.step()
        self.assert_near(gradients_of(model), expected)

    def test_accumulation_matches_whole_batch(self):
        """Two micro-batches of a layer norm give the gradients of the whole batch."""
        torch.manual_seed(4)
        model, x = nn.Sequential(nn.LayerNorm(6)), torch.randn(8, 3, 6)
        expected = norm_gradients_by_definition(model, "0", lambda m: torch.sin(3 * m(x.double())).sum() / 8, 8, "unit")
        k = make_preconditioner(model, accumulation_steps=2)
        for part in (x[:4], x[4:]):
            (torch.sin(3 * model(part)).sum() / 4 / 2).backward()
        k.step()
        self.assert_near(gradients_of(model), expected)


class SpecialNorms(Case):
    def test_instance_norm_without_batch_axis(self):
        torch.manual_seed(3)
        x, found = torch.randn(3, 7), []
        for given in (x, x[None]):
            model = nn.Sequential(nn.InstanceNorm1d(3, affine=True))
            k = make_preconditioner(model, samples="layer")
            model(given).pow(3).mean().backward()
            k.step()
            found.append(gradients_of(model))
        self.assert_same_tensors(*found)

    def test_frozen_norm_has_no_curvature(self):
        model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6))
        model[1].requires_grad_(False)
        k = make_preconditioner(model)
        model(torch.randn(5, 4)).pow(2).mean().backward()
        self.assertEqual(k.step(), 0)
        self.assertIn("frozen", {row["name"]: row["why"] for row in k.explain()}["1.weight"])

    def test_error_names_batch_norm_in_eval_mode(self):
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
        k = make_preconditioner(model)
        model[1].eval()
        model(torch.randn(5, 4)).pow(2).mean().backward()
        with self.assert_refused("'1' was never observed.*eval mode.*skip_layers"):
            k.step()
        k = make_preconditioner(model, skip_layers=["^1$"])
        model(torch.randn(5, 4)).pow(2).mean().backward()
        self.assertEqual(k.step(), 0)

    def test_norm_called_twice(self):
        class NormCalledTwice(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(1)
                self.a, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

            def forward(self, x):
                return self.norm(torch.tanh(self.a(self.norm(x))))
        for options in ({}, dict(calls="ema")):
            model = NormCalledTwice()
            k = make_preconditioner(model, **options)
            model(torch.randn(5, 4)).pow(2).mean().backward()
            self.assertEqual(k.step(), 0)
            self.assertEqual([layer["observations"] for layer in k.report()["layers"]], [2, 4])

    def test_published_classes_exclude_norms(self):
        import natgrad.compat as kfac
        for k in (kfac.KFACPreconditioner(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6))),
                  kfac.EVA(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6)))):
            why = {row["name"]: row["why"] for row in k.explain()}
            self.assertRegex(why["1.weight"], "LayerNorm")


if __name__ == "__main__":
    unittest.main()
