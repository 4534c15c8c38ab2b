"""KFACAdam against Adam in the eigenbases of A and G, by its definition in float64."""
import copy
import io
import unittest

import torch
from torch import nn
import torch.nn.functional as F

import natgrad

# A, G, an iteration and the rotations are float32. A vector of a basis has an error of about 2^-24 times the condition of A +
# shift I, at most n / damping = 450, and Adam divides by sqrt(v) + 0.1 of gradients near 1.
TOLERANCE = 2e-3
BETAS, EPS, DECAY, LR, DAMPING, STAT_DECAY = (0.8, 0.7), 0.1, 0.1, 0.05, 0.02, 0.6


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(5, 4), nn.LayerNorm(4)
        self.mix, self.conv = nn.Linear(4, 6), nn.Conv2d(1, 2, 3, padding=1)
        self.head = nn.Linear(2 * 6, 3, bias=False)

    def forward(self, tokens):
        x = self.mix(self.norm(self.table(tokens)))  # [B, T, 6]
        return self.head(self.conv(x[:, None]).mean(2).flatten(1))


def adam(state, gradient, t):
    """m / (sqrt(v) + eps), both without bias; `gradient` is in the basis of state["v"]."""
    state["v"] = BETAS[1] * state.get("v", 0) + (1 - BETAS[1]) * gradient**2
    return state["m"] / (1 - BETAS[0]**t) / ((state["v"] / (1 - BETAS[1]**t)).sqrt() + EPS)


def rows_of(module, inputs, gradients):
    """Inputs and output gradients of single positions, a 1 appended for the bias."""
    if isinstance(module, nn.Conv2d):
        inputs = F.unfold(inputs, module.kernel_size, padding=module.padding).transpose(1, 2)
        # natgrad has the order (kernel position, channel)
        inputs = inputs.unflatten(2, (module.in_channels, -1)).transpose(2, 3).flatten(2)
        gradients = gradients.flatten(2).transpose(1, 2)
    a, g = inputs.reshape(-1, inputs.shape[-1]), gradients.reshape(-1, gradients.shape[-1])
    return (a if module.bias is None else torch.cat([a, torch.ones(len(a), 1, dtype=a.dtype)], 1)), g


def step_by_definition(model, states, calls, t):
    layers = {p: m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d)) for p in m.parameters()}
    for parameter in model.parameters():
        state = states.setdefault(parameter, {})
        module = layers.get(parameter)
        if module is not None and parameter is not module.weight:
            continue
        D = parameter.grad.flatten(1) if module is not None else parameter.grad
        if module is not None and module.bias is not None:
            D = torch.cat([D, module.bias.grad[:, None]], 1)
        state["m"] = BETAS[0] * state.get("m", 0) + (1 - BETAS[0]) * D
        if module is None:
            parameter.data -= LR * DECAY * parameter.data + LR * adam(state, D, t)
            continue
        Q = []
        for i, rows in enumerate(rows_of(module, *calls[module])):
            fresh = rows.t() @ rows / len(rows)
            state["F", i] = fresh if t == 1 else STAT_DECAY * state["F", i] + (1 - STAT_DECAY) * fresh
            factor = state["F", i]
            shifted = factor + DAMPING * factor.diagonal().mean() * torch.eye(len(factor), dtype=factor.dtype)
            state["Q", i] = torch.linalg.qr(shifted @ state.get(("Q", i), torch.eye(len(factor), dtype=factor.dtype)))[0]
            Q.append(state["Q", i])
        moments = {"m": Q[1].t() @ state["m"] @ Q[0], **({"v": state["v"]} if "v" in state else {})}
        direction = Q[1] @ adam(moments, Q[1].t() @ D @ Q[0], t) @ Q[0].t()
        state["v"] = moments["v"]
        module.weight.data -= LR * DECAY * module.weight.data + LR * direction[:, :module.weight[0].numel()].reshape_as(module.weight)
        if module.bias is not None:
            module.bias.data -= LR * DECAY * module.bias.data + LR * direction[:, -1]


class KFACAdamTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.model = Net()
        self.batches = [(torch.randint(0, 5, (7, 4)), torch.randn(7, 3)) for _ in range(4)]

    def make(self, model, **more):
        return natgrad.KFACAdam(model, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, damping=DAMPING,
                                stat_decay=STAT_DECAY, **more)

    @staticmethod
    def loss(model, batch):
        return F.mse_loss(model(batch[0]), batch[1].to(model.head.weight.dtype), reduction="sum") / len(batch[0])

    def test_weights_match_the_definition(self):
        exact, states, calls = copy.deepcopy(self.model).double(), {}, {}
        for module in exact.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                def hook(m, inputs, output):
                    calls[m] = [inputs[0].detach(), None]
                    output.register_hook(lambda g: calls[m].__setitem__(1, g.detach()))
                module.register_forward_hook(hook)
        optimizer = self.make(self.model)
        for t, batch in enumerate(self.batches, 1):
            for model in (self.model, exact):
                model.zero_grad()
                self.loss(model, batch).backward()
            step_by_definition(exact, states, calls, t)
            optimizer.step()
            for (name, x), y in zip(self.model.named_parameters(), exact.parameters()):
                self.assertLess((x - y).abs().max().item(), TOLERANCE * LR, f"step {t}: {name}")

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
        weights, state = torch.load(saved, weights_only=False)
        again.load_state_dict(weights)
        optimizer = self.make(again)
        optimizer.load_state_dict(state)
        for batch in self.batches[2:]:
            optimizer.zero_grad()
            self.loss(again, batch).backward()
            optimizer.step()
        for x, y in zip(self.model.parameters(), again.parameters()):
            self.assertTrue(torch.equal(x, y))

    def test_bad_arguments_are_named(self):
        for keywords, says in (({"betas": 0.9}, "betas is 0.9, expected two numbers"),
                               ({"betas": (1.5, 0.9)}, "first_decay: '1.5' is out of range"),
                               ({"solver": "cholesky"}, "solver = cholesky: moments need an eigenbasis; set eigen"),
                               ({"damping_split": "full"}, "damping_split = full"),
                               ({"method": "sam"}, "method sam does not use")):
            with self.assertRaisesRegex(natgrad.Error, says):
                natgrad.KFACAdam(Net(), **keywords)


if __name__ == "__main__":
    unittest.main()
