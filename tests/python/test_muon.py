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


def step_by_definition(model, matrices, states, t):
    for name, p in model.named_parameters():
        if p.grad is None:
            continue
        state = states.setdefault(name, {"t": 0})
        state["t"] += 1
        mu, nu = (MOMENTUM, None) if name in matrices else BETAS
        D = p.grad.flatten(1) if name in matrices else p.grad
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

    def test_bad_arguments_are_named(self):
        model = Net()
        everything = [dict(params=list(model.parameters()), use_muon=True)]
        for first, keywords, says in (
                (model, {"ns_coefficients": "quintic"}, "ns_coefficients is 'quintic', expected three numbers"),
                (model, {"muon_coefficients": "cubic"}, "muon_coefficients: 'cubic'"),
                (model, {"adjust_lr_fn": "rms"}, "adjust_lr_fn is 'rms', expected None, 'original' or 'match_rms_adamw'"),
                (model, {"ns_steps": 0}, "muon_steps: '0' is out of range"),
                (everything, {"model": model}, "'gain' is in a group with use_muon=True, but is no weight")):
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
