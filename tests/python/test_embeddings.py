"""Embeddings against K-FAC by its definition in float64, for inputs of every shape."""
import copy
import tempfile
import unittest

import torch
from torch import nn
import torch.nn.functional as F

import natgrad
from natgrad import _core
from front import DAMPING, Case, gradients_of, make_preconditioner

EPS = 2.0**-24  # gradients, A, G and the solve are float32: a few EPS times the condition of the damped factors


def embedding_gradient_by_definition(model, name, loss, counts, damping=DAMPING, full=False):
    """(new gradient, tolerance) of the embedding `name`: P = (A + pi sqrt(l) I)^-1 D (G + sqrt(l)/pi I)^-1; full: l on both
    sides.  A = E[a a'], a: the sum of the unit vectors of a sample's tokens.  G = E[d d'] over positions, d: samples times
    the output gradient.  diagonal_and_rows(one, tokens, gradients) returns the diagonal of A and the rows d of one call."""
    model = copy.deepcopy(model).double()
    module, calls = dict(model.named_modules())[name], []

    def hook(m, inputs, output):
        pair = [inputs[0].detach(), None]
        calls.append(pair)
        output.register_hook(lambda g: pair.__setitem__(1, g.detach()))
    module.register_forward_hook(hook)
    loss(model).backward()
    D, A, G = module.weight.grad, 0.0, 0.0
    for tokens, g in calls:
        a, d = counts(F.one_hot(tokens.long(), len(D)).double(), tokens, g)
        A, G = A + a / len(calls), G + d.t() @ d / len(d) / len(calls)
    pi = ((A.sum() / len(A)) / (G.trace() / len(G))).sqrt()
    add = (damping, damping) if full else (pi * damping**0.5, damping**0.5 / pi)
    left, right = A + add[0], G + add[1] * torch.eye(len(G), dtype=torch.float64)
    condition = (left.max() / left.min() * torch.linalg.cond(right)).item()
    return torch.linalg.solve(right, (D / left[:, None]).t()).t(), 10 * EPS * condition


def counts_per_sample(samples, padding=None):
    """Every token belongs to one sample; tokens equal to `padding` are ignored."""
    def diagonal_and_rows(one, tokens, g):
        keep = torch.ones(tokens.numel(), dtype=torch.bool) if padding is None else (tokens != padding).flatten()
        return one.flatten(0, -2)[keep].sum(0) / samples, samples * g.flatten(0, -2)[keep]
    return diagonal_and_rows


def counts_of_shared_input(samples):
    """The table is read once for all samples.  B times the square of a mean over B samples is the mean square of one."""
    def diagonal_and_rows(one, _tokens, g):
        return one.flatten(0, -2).sum(0) if one.dim() > 1 else one, samples**0.5 * g.reshape(-1, g.shape[-1])
    return diagonal_and_rows


class EmbeddingNet(nn.Module):
    """An embedding of `read(tokens)`, tokens [B, T], and a head."""

    def __init__(self, table, read=lambda x: x, of_head=None):
        super().__init__()
        torch.manual_seed(3)
        self.table, self.head, self.read = table, nn.Linear(table.embedding_dim, 3), read
        self.head_input = of_head or (lambda x, e: e)

    def forward(self, x):
        return self.head(torch.tanh(self.head_input(x, self.table(self.read(x)))))


def make_table(tokens=7, features=4, **more):
    torch.manual_seed(5)
    return nn.Embedding(tokens, features, **more)


def positions_of(x):
    return torch.arange(x.shape[1])


def make_mean_loss(x, samples):
    torch.manual_seed(6)
    factor = torch.rand(x.numel() * 6 + 99, dtype=torch.float64)

    def loss(model):
        y = model(x)
        return (torch.sin(3 * y) * factor[:y.numel()].reshape(y.shape).to(y.dtype)).sum() / samples
    return loss


class GradientsByDefinition(Case):
    def check_against_definition(self, model, x, samples, counts, kind=None, **options):
        loss = make_mean_loss(x, samples)
        expected, tolerance = embedding_gradient_by_definition(model, "table", loss, counts,
                                                               full=options.get("damping_split") == "full")
        k = make_preconditioner(model, kind, **options)
        self.addCleanup(k.close)
        loss(model).backward()
        plain = model.table.weight.grad.clone()
        self.assertEqual(k.step(), 0)
        got = model.table.weight.grad
        worst = ((got.double() - expected).abs().max() / expected.abs().max()).item()
        self.assertLess(worst, tolerance)
        self.assertFalse(torch.equal(got, plain))
        row = next(row for row in k.explain() if row["name"].startswith("table"))
        self.assertEqual((row["family"], row["covered"]), ("kronecker", 1))
        return got

    def random_tokens(self, *shape):
        torch.manual_seed(8)
        return torch.randint(0, 7, shape)

    def test_each_class_and_solver_matches_definition(self):
        x = self.random_tokens(6, 5)
        for kind, options in ((natgrad.KFAC, {}), (natgrad.KFAC, dict(solver="eigen", damping_split="pi")),
                              (natgrad.SPNGD, dict(damping_leak=0, norm_block="unit"))):
            with self.subTest(kind.__name__, **options):
                self.check_against_definition(EmbeddingNet(make_table()), x, 6, counts_per_sample(6), kind, **options)

    def test_token_shapes_match_definition(self):
        for what, shape, options in (("[B]", (6,), {}), ("[B, T]", (6, 5), {}), ("[B, T, K]", (6, 2, 3), {}),
                                     ("[T, B]", (5, 6), dict(batch_first=False))):
            with self.subTest(what):
                self.check_against_definition(EmbeddingNet(make_table()), self.random_tokens(*shape), 6, counts_per_sample(6),
                                              **options)
        with self.subTest("rows of samples"):
            self.check_against_definition(EmbeddingNet(make_table(), lambda x: x.flatten()), self.random_tokens(6, 5), 6,
                                          counts_per_sample(6))
        with self.subTest("int32"):
            self.check_against_definition(EmbeddingNet(make_table(), lambda x: x.int()), self.random_tokens(6, 5), 6,
                                          counts_per_sample(6))
        with self.subTest("a transposed array"):
            self.check_against_definition(EmbeddingNet(make_table(), lambda x: x.t().contiguous().t()),
                                          self.random_tokens(6, 5), 6, counts_per_sample(6))

    def test_input_shared_by_all_samples(self):
        """nn.Embedding(torch.arange(T)) is called once for all samples, for any T and any number of samples."""
        for samples, T in ((6, 5), (5, 5), (3, 6), (2, 7), (1, 4)):
            for what, read in (("[T]", positions_of), ("[1, T]", lambda x: positions_of(x)[None]),
                               ("[T, T]", lambda x: (positions_of(x)[:, None] - positions_of(x)).abs())):
                def make_head_input(x, e, what=what):
                    inputs = x.unsqueeze(-1) % 3 - 1.0  # so that samples differ
                    return inputs * (e.mean(0) if what == "[T, T]" else e)
                with self.subTest(what, samples=samples, T=T):
                    self.check_against_definition(EmbeddingNet(make_table(), read, make_head_input),
                                                  self.random_tokens(samples, T), samples, counts_of_shared_input(samples))
        for samples, T in ((3, 6), (5, 5)):  # one leading row belongs to all samples, also if T divides their number
            with self.subTest("[1, T]", samples=samples, damping_split="full"):
                model = EmbeddingNet(make_table(), lambda x: positions_of(x)[None], lambda x, e: (x.unsqueeze(-1) % 3 - 1.0) * e)
                self.check_against_definition(model, self.random_tokens(samples, T), samples, counts_of_shared_input(samples),
                                              damping_split="full")
        with self.subTest("a number"):
            model = EmbeddingNet(make_table(), lambda x: torch.tensor(3), lambda x, e: (x.unsqueeze(-1) % 3 - 1.0) * e)
            self.check_against_definition(model, self.random_tokens(4, 3), 4, counts_of_shared_input(4))

    def test_padding_tokens_are_ignored(self):
        x = self.random_tokens(6, 5)
        x[:, 3:] = 2
        x[0, 1:] = 2
        got = self.check_against_definition(EmbeddingNet(make_table(padding_idx=2)), x, 6, counts_per_sample(6, 2))
        self.assertEqual(got[2].abs().max().item(), 0)
        self.check_against_definition(EmbeddingNet(make_table(padding_idx=-5)), x, 6, counts_per_sample(6, 2))
        self.check_against_definition(EmbeddingNet(make_table(padding_idx=2)), self.random_tokens(6, 5) // 4, 6,
                                      counts_per_sample(6, 2))  # token 2 is ignored
        model = EmbeddingNet(make_table(padding_idx=2))
        k = make_preconditioner(model)
        for padded in (False, True):  # a batch of padding only observes nothing of the table
            model.zero_grad()
            make_mean_loss(torch.full_like(x, 2) if padded else x, 6)(model).backward()
            self.assertEqual(k.step(), 3 if padded else 0)
            self.silence_warnings()

    def test_max_norm_table_matches_definition(self):
        self.check_against_definition(EmbeddingNet(make_table(max_norm=0.7)), self.random_tokens(6, 5), 6, counts_per_sample(6))

    def test_two_calls_match_definition(self):
        class CalledTwice(EmbeddingNet):
            def forward(self, x):
                return self.head(torch.tanh(self.table(x) * self.table(x.flip(0))))
        self.check_against_definition(CalledTwice(make_table()), self.random_tokens(6, 5), 6, counts_per_sample(6))

    def test_accumulation_and_loss_scale_match_definition(self):
        x, model = self.random_tokens(8, 5), EmbeddingNet(make_table(padding_idx=2))
        x[:, 4] = 2
        x[1] = torch.tensor([1, 3, 4, 5, 2])
        x[x == 2] = 3
        x[:, 4] = 2  # equally much padding in each half
        expected, tolerance = embedding_gradient_by_definition(model, "table", lambda m: m(x).pow(2).sum() / 8,
                                                               counts_per_sample(8, 2))
        k = make_preconditioner(model, accumulation_steps=2, grad_scaler=lambda: 64.0)
        for half in x.split(4):
            (model(half).pow(2).sum() / 4 / 2 * 64).backward()
        for p in model.parameters():
            p.grad /= 64
        self.assertEqual(k.step(), 0)
        got = model.table.weight.grad.double()
        self.assertLess(((got - expected).abs().max() / expected.abs().max()).item(), tolerance)

    def test_embedding_leaves_other_layers_unchanged(self):
        """Inputs without a sample axis, and padding, are properties of one layer."""
        x = self.random_tokens(6, 5)
        x[:, 4] = 2
        found = []
        for padding in (None, 2):
            model = EmbeddingNet(make_table(padding_idx=padding), of_head=lambda x, e: e.detach() if padding is None else e)
            model.table.weight.data.copy_(make_table().weight)
            if padding is None:
                model.table.weight.requires_grad_(False)
            k = make_preconditioner(model)
            make_mean_loss(x, 6)(model).backward()
            k.step()
            found.append({n: g for n, g in gradients_of(model).items() if n.startswith("head")})
        self.assert_same_tensors(*found)


class WithoutCurvature(Case):
    """Embeddings that keep their gradient, with the reason."""

    def reason_and_gradient(self, model, kind=None, **options):
        k = make_preconditioner(model, kind, **options)
        self.addCleanup(k.close)
        x = torch.arange(12).reshape(3, 4) % 7
        make_mean_loss(x, 3)(model).backward()
        before = model.table.weight.grad
        before = None if before is None or before.layout != torch.strided else before.clone()
        k.step()
        if before is not None:
            self.assertTrue(torch.equal(model.table.weight.grad, before))
        return next(row["why"] for row in k.explain() if row["name"].startswith("table"))

    def test_methods_without_embeddings_give_reason(self):
        for kind, options, pattern in (
                (natgrad.Eva, {}, "method eva-natgrad does not support embeddings"),
                (natgrad.KFAC, dict(positions="reduce"), "positions = reduce does not support embeddings"),
                (natgrad.KFAC, dict(method="sam", damping=default_option("damping", "sam")),
                 "solver = product does not support"),
                (natgrad.KFAC, dict(method="kaisa"), "method kaisa does not precondition embeddings, as published"),
                (natgrad.KFAC, dict(skip_layers="Embedding"), "skip_layers")):
            with self.subTest(pattern):
                self.assertIn(pattern, self.reason_and_gradient(EmbeddingNet(make_table()), kind, **options))

    def test_unsupported_embeddings_give_reason(self):
        self.assertIn("scale_grad_by_freq divides", self.reason_and_gradient(EmbeddingNet(make_table(scale_grad_by_freq=True))))
        self.assertIn("its gradient is sparse", self.reason_and_gradient(EmbeddingNet(make_table(sparse=True))))

        class DerivedEmbedding(nn.Embedding):
            def forward(self, x):
                return super().forward(x) * 2
        self.assertIn("custom forward", self.reason_and_gradient(EmbeddingNet(DerivedEmbedding(7, 4))))
        model = EmbeddingNet(make_table())
        model.table.weight.requires_grad_(False)
        self.assertIn("frozen", self.reason_and_gradient(model))

    def test_tied_table_keeps_gradient(self):
        model = EmbeddingNet(make_table())
        model.head = nn.Linear(4, 7, bias=False)
        model.head.weight = model.table.weight
        self.assertEqual(self.reason_and_gradient(model), "tied to 'head.weight' of a Linear, whose factors differ")

    def test_window_covers_embedding(self):
        model = EmbeddingNet(make_table())
        k = make_preconditioner(model, natgrad.MFAC)
        make_mean_loss(torch.arange(12).reshape(3, 4) % 7, 3)(model).backward()
        k.step()
        self.assertIn("window", {row["family"] for row in k.explain() if row["name"].startswith("table")})


def default_option(option, method):
    chosen = _core.Options()
    chosen.set("method", method)
    return chosen.get(option)


class SeveralTables(Case):
    def test_modules_that_share_a_table(self):
        """Two modules with one weight are one layer with two calls."""
        one = EmbeddingNet(make_table())
        two = copy.deepcopy(one)
        one.head_input = lambda x, e: e * one.table(x.flip(0))
        two.other = nn.Embedding(7, 4)
        two.other.weight = two.table.weight
        two.head_input = lambda x, e: e * two.other(x.flip(0))
        x, found = torch.arange(12).reshape(3, 4) % 7, []
        for model in (one, two):
            k = make_preconditioner(model)
            make_mean_loss(x, 3)(model).backward()
            k.step()
            found.append(gradients_of(model))
        self.assert_same_tensors(*found)

    def test_state_restores_bits(self):
        x, found = torch.arange(12).reshape(3, 4) % 7, []
        for resumed in (False, True):
            model = EmbeddingNet(make_table(padding_idx=2))
            k = make_preconditioner(model, solve_period=2, stat_decay=0.5)
            for t in range(4):
                if resumed and t == 1:
                    with tempfile.NamedTemporaryFile() as file:
                        torch.save(k.state_dict(), file.name)
                        k.close()
                        k = make_preconditioner(model, solve_period=2, stat_decay=0.5)
                        k.load_state_dict(torch.load(file.name))
                model.zero_grad()
                make_mean_loss((x + t) % 7, 3)(model).backward()
                k.step()
            found.append(gradients_of(model))
        self.assert_same_tensors(*found)

    def test_fused_update_matches_pytorch(self):
        """natgrad.SGD beside a preconditioner and torch.optim.SGD."""
        one, two = EmbeddingNet(make_table(padding_idx=2)), EmbeddingNet(make_table(padding_idx=2))
        fused, k = natgrad.SGD(one, 0.1, momentum=0.9, damping=DAMPING, clip="none"), make_preconditioner(two)
        plain = torch.optim.SGD(two.parameters(), 0.1, momentum=0.9)
        for t in range(3):
            x = (torch.arange(12).reshape(3, 4) + t) % 7
            for model in (one, two):
                model.zero_grad()
                make_mean_loss(x, 3)(model).backward()
            fused.step()
            k.step()
            plain.step()
        for a, b in zip(one.parameters(), two.parameters()):
            self.assertLess(((a - b).abs().max() / b.abs().max()).item(), 1e-5)  # three steps with sums in another order


if __name__ == "__main__":
    unittest.main()
