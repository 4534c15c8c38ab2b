"""Muon against its definition in float64, and against torch.optim.Muon where PyTorch has it."""
import copy
import io
import unittest

import torch
from torch import nn
import torch.nn.functional as F

import natgrad

LR, DECAY, MOMENTUM, BETAS, EPS = 0.05, 0.1, 0.8, (0.8, 0.7), 1e-3
COEFFICIENTS = (3.4445, -4.775, 2.0315)
# Elements of a step are at most about lr; the iteration multiplies rounding errors of f32 by up to 3.4445^5 = 485 (3e-5).
TOLERANCE = 1e-4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(5, 4), nn.LayerNorm(4)
        self.mix, self.conv = nn.Linear(4, 6), nn.Conv2d(1, 2, 3, padding=1)
        self.head = nn.Linear(2 * 6, 3, bias=False)
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, tokens):
        x = self.mix(self.norm(self.table(tokens)))  # [B, T, 6]
        return self.gain * self.head(self.conv(x[:, None]).mean(2).flatten(1))


def orthogonalise(U):
    W = U if U.shape[0] <= U.shape[1] else U.t()
    W = W / max(W.norm(), 1e-7)
    for _ in range(5):
        A = W @ W.t()
        W = COEFFICIENTS[0] * W + (COEFFICIENTS[1] * A + COEFFICIENTS[2] * A @ A) @ W
    return (W if U.shape[0] <= U.shape[1] else W.t()) * max(1, U.shape[0] / U.shape[1]) ** 0.5


def step_by_definition(model, matrices, states, t, inverses=None):
    for name, p in model.named_parameters():
        if p.grad is None:
            continue
        state = states.setdefault(name, {"t": 0})
        state["t"] += 1
        mu, nu = (MOMENTUM, None) if name in matrices else BETAS
        D = p.grad.flatten(1) if name in matrices else p.grad
        if inverses is not None and name in matrices:
            D = D @ inverses[name]
        state["m"] = mu * state.get("m", 0) + (1 - mu) * D
        if name in matrices:
            step = orthogonalise((1 - mu) * D + mu * state["m"]).reshape_as(p)
        else:
            state["v"] = nu * state.get("v", 0) + (1 - nu) * D**2
            step = state["m"] / (1 - mu**state["t"]) / ((state["v"] / (1 - nu**state["t"])).sqrt() + EPS)
        p.data -= LR * DECAY * p.data + LR * step


class MuonTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.model = Net()
        self.batches = [(torch.randint(0, 5, (7, 4)), torch.randn(7, 3)) for _ in range(4)]

    def make(self, first, **more):
        return natgrad.Muon(first, lr=LR, weight_decay=DECAY, momentum=MOMENTUM, betas=BETAS, adam_eps=EPS, **more)

    @staticmethod
    def loss(model, batch):
        return F.mse_loss(model(batch[0]), batch[1].to(model.head.weight.dtype))

    def run_beside_definition(self, optimizer, matrices, without=None):
        exact, states = copy.deepcopy(self.model).double(), {}
        for t, batch in enumerate(self.batches, 1):
            for model in (self.model, exact):
                model.zero_grad()
                self.loss(model, batch).backward()
                if without is not None and t == 2:
                    for p in model.get_submodule(without).parameters():
                        p.grad = None
            step_by_definition(exact, matrices, states, t)
            optimizer.step()
            for (name, x), y in zip(self.model.named_parameters(), exact.parameters()):
                self.assertLess((x - y).abs().max().item(), TOLERANCE, f"step {t}: {name}")

    def test_weights_match_the_definition(self):
        self.run_beside_definition(self.make(self.model), ("mix.weight", "conv.weight", "head.weight"))

    def test_a_layer_without_gradient_is_skipped(self):
        self.run_beside_definition(self.make(self.model), ("mix.weight", "conv.weight", "head.weight"), "mix")

    def test_groups_select_adam(self):
        head = list(self.model.head.parameters())
        rest = [p for p in self.model.parameters() if p is not head[0]]
        optimizer = self.make([dict(params=rest), dict(params=head, use_muon=False)], model=self.model)
        self.run_beside_definition(optimizer, ("mix.weight", "conv.weight"))
        families = {row["name"]: row["family"] for row in optimizer.preconditioner.explain()}
        self.assertEqual({name for name, family in families.items() if family == "muon"}, {"mix.weight", "conv.weight"})

    def test_resumed_run_has_the_same_bits(self):
        optimizer, saved = self.make(self.model), io.BytesIO()
        for i, batch in enumerate(self.batches):
            if i == 2:
                torch.save((self.model.state_dict(), optimizer.state_dict()), saved)
            optimizer.zero_grad()
            self.loss(self.model, batch).backward()
            optimizer.step()
        again = Net()
        saved.seek(0)
        weights, state = torch.load(saved, **({} if torch.__version__ < "2" else {"weights_only": False}))
        again.load_state_dict(weights)
        optimizer = self.make(again)
        optimizer.load_state_dict(state)
        for batch in self.batches[2:]:
            optimizer.zero_grad()
            self.loss(again, batch).backward()
            optimizer.step()
        for x, y in zip(self.model.parameters(), again.parameters()):
            self.assertTrue(torch.equal(x, y))

    def test_zero_and_nan_at_the_first_gradient(self):
        before = copy.deepcopy(self.model.state_dict())
        for value, status in ((0.0, 0), (float("nan"), 2)):
            optimizer = natgrad.Muon(self.model, lr=LR, weight_decay=0)
            self.loss(self.model, self.batches[0]).backward()
            for p in self.model.parameters():
                p.grad.fill_(value)
            optimizer.step()
            self.assertEqual(optimizer.note, status)
            for name, x in self.model.state_dict().items():
                self.assertTrue(torch.equal(x, before[name]), name)

    def test_newton_muon_divides_by_the_second_moment_of_inputs(self):
        """D (A / m + damping I)^-1 has the error of D times the condition, at most 1 + 12 / 0.2: ten times the tolerance."""
        model, damping, decay = self.model, 0.2, 0.6
        exact, states, rows, averages, inverses = copy.deepcopy(model).double(), {}, {}, {}, {}
        for name in ("mix", "conv", "head"):
            exact.get_submodule(name).register_forward_pre_hook(lambda _, x, name=name: rows.__setitem__(name, x[0].detach()))
        optimizer = self.make(model, method="newton-muon", damping=damping, stat_decay=decay, solve_period=1)
        for t, batch in enumerate(self.batches, 1):
            for net in (model, exact):
                net.zero_grad()
                self.loss(net, batch).backward()
            for name, x in rows.items():
                x = F.unfold(x, 3, padding=1).transpose(1, 2) if name == "conv" else x
                x = x.reshape(-1, x.shape[-1])
                A = x.t() @ x / 7
                averages[name] = A if t == 1 else decay * averages[name] + (1 - decay) * A
                A = averages[name] / averages[name].diagonal().mean()
                inverses[name + ".weight"] = torch.linalg.inv(A + damping * torch.eye(len(A), dtype=A.dtype))
            step_by_definition(exact, inverses, states, t, inverses)
            optimizer.step()
            for (name, x), y in zip(model.named_parameters(), exact.named_parameters()):
                self.assertLess((x - y[1]).abs().max().item(), 10 * TOLERANCE, f"step {t}: {name}")
        families = {row["name"]: row["family"] for row in optimizer.preconditioner.explain()}
        self.assertEqual({name for name, family in families.items() if family == "kronecker-muon"}, set(inverses))
        self.assertEqual(families["mix.bias"], "adam")

    def test_half_precision_and_a_late_first_gradient(self):
        """A weight in bf16 or f16 gets the step in f32, rounded to its dtype; without a gradient it stays."""
        for dtype in (torch.bfloat16, torch.float16):
            model = nn.Linear(4, 6, bias=False).to(dtype)
            optimizer = natgrad.Muon(model, lr=LR, weight_decay=DECAY, momentum=MOMENTUM)
            weight, states = model.weight.detach().double(), {}
            for t in range(4):
                model.weight.grad = None if t == 0 else torch.randn(6, 4).to(dtype)
                exact = nn.Linear(4, 6, bias=False).double()
                exact.weight.data.copy_(model.weight.detach())
                exact.weight.grad = None if t == 0 else model.weight.grad.double()
                step_by_definition(exact, ("weight",), states, t)
                optimizer.step()
                self.assertEqual(model.weight.dtype, dtype)
                eps = torch.finfo(dtype).eps * exact.weight.abs().clamp_min(0.1)
                self.assertTrue(((model.weight.double() - exact.weight).abs() <= eps + TOLERANCE).all(), (dtype, t))
            self.assertEqual(optimizer.note, 0)
            self.assertGreater((model.weight.double() - weight).abs().max(), 0.05)

    def test_coefficient_sets(self):
        """Without momentum a square weight moves by X, whose singular values are p(s), p the composed polynomials.  The last two
        columns: the least and largest p(s) in float64 for s from 0.01 to 1, as in docs/options.md.  f32: 1e-3, because the first
        triples multiply rounding errors of s by up to 8.5 * 4.2 * 4 * 3.3 * 2.3 = 1100."""
        jordan = (3.4445, -4.7750, 2.0315)
        sets = {
            "simple": ([jordan] * 5, 0.6818, 1.1344),
            "quintic": ([(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037),
                         (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)] * 2, 0.97, 1.04),
            "deepseekv4": ([jordan] * 8 + [(2, -1.5, 0.5)] * 2, 0.9999, 1.0006),
            "polar_express": ([(8.2051, -22.9019, 16.4607), (4.0664, -2.8612, 0.5184), (3.9096, -2.8234, 0.5250),
                               (3.2856, -2.4153, 0.4853), (2.2779, -1.6198, 0.3985), (1.8726, -1.2307, 0.3585),
                               (1.8564, -1.2132, 0.3568), (1.875, -1.25, 0.375), (1.875, -1.25, 0.375)], 0.9999, 1.0001),
            "cans": ([(8.4703, -25.1081, 18.6293), (4.1828, -3.1087, 0.5806), (3.9619, -2.9541, 0.5630),
                      (3.2866, -2.4647, 0.5074), (2.2737, -1.6447, 0.4162)], 0.8843, 1.1199),
            "cubic5": ([(3.3656576, -3.3420992, 0), (2.5744352, -1.4957376, 0), (2.5368962, -1.4312570, 0),
                        (2.4418906, -1.2764040, 0), (2.2230472, -0.9630650, 0)], 0.7741, 1.3)}
        s = torch.logspace(-1.75, 0, 12, dtype=torch.float64)
        s = s / s.norm()
        self.assertGreater(s.min(), 0.01)
        left, right = (torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64))[0] for _ in range(2))
        for name, (triples, least, most) in sets.items():
            model = nn.Linear(12, 12, bias=False)
            optimizer = natgrad.Muon(model, lr=1, weight_decay=0, momentum=0, nesterov=False, muon_coefficients=name,
                                     ns_steps=len(triples))
            model(torch.zeros(1, 12)).sum().backward()
            before = model.weight.detach().clone()
            model.weight.grad.copy_(left * s @ right)
            optimizer.step()
            X = left.t() @ (before - model.weight.detach()).double() @ right.t()
            p = s
            for a, b, c in triples:
                p = a * p + b * p**3 + c * p**5
            self.assertLess((X - p.diag()).abs().max(), 1e-3, name)
            self.assertTrue(least - 1e-3 <= X.diagonal().min() and X.diagonal().max() <= most + 1e-3, (name, X.diagonal()))

    def test_bad_arguments_are_named(self):
        model = Net()
        everything = [dict(params=list(model.parameters()), use_muon=True)]
        table = [dict(params=model.table.parameters(), use_muon=True)]
        for first, keywords, says in (
                (model, {"ns_coefficients": "quintic"}, "ns_coefficients is 'quintic', expected three numbers"),
                (model, {"muon_coefficients": "aol"}, "muon_coefficients: 'aol'"),
                (model, {"adjust_lr_fn": "rms"}, "adjust_lr_fn is 'rms', expected None, 'original' or 'match_rms_adamw'"),
                (model, {"ns_steps": 0}, "muon_steps: '0' is out of range"),
                (everything, {"model": model}, "'gain' is in a group with use_muon=True, but is no weight"),
                (table, {"model": model}, "'table.weight' is in a group with use_muon=True, but is no weight of a linear layer")):
            with self.assertRaisesRegex(natgrad.Error, says):
                natgrad.Muon(first, **keywords)

    @unittest.skipUnless(hasattr(torch.optim, "Muon"), "this PyTorch has no torch.optim.Muon")
    def test_published_program(self):
        """Single entries of bf16 products may be rounded the other way, which later iterations enlarge: 2e-2 of a step."""
        model = nn.Sequential(nn.Linear(12, 20, bias=False), nn.Tanh(), nn.Linear(20, 6, bias=False))
        other = copy.deepcopy(model)
        for more in ({}, {"adjust_lr_fn": "match_rms_adamw", "nesterov": False}):
            mine = natgrad.Muon(model, lr=0.02, muon_rounding="fused", **more)
            theirs = torch.optim.Muon(other.parameters(), lr=0.02, **more)
            for _ in range(4):
                x, y = torch.randn(9, 12), torch.randn(9, 6)
                for net, optimizer in ((model, mine), (other, theirs)):
                    optimizer.zero_grad()
                    F.mse_loss(net(x), y).backward()
                    optimizer.step()
                for a, b in zip(model.parameters(), other.parameters()):
                    self.assertLess((a - b).abs().max().item(), 2e-2 * 0.02)
                other.load_state_dict(model.state_dict())


if __name__ == "__main__":
    unittest.main()
