"""natgrad.EKFAC against the formula in float64: A, G and second moments of samples from the same forward and backward."""
import unittest

import torch
from torch import nn

import natgrad


DAMPING, DECAY = 0.05, 0.6


def small_net():
    torch.manual_seed(5)
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(2), nn.Linear(6, 4, bias=False), nn.Tanh(), nn.Flatten(),
                         nn.Linear(12, 5))


def rows_of_input(module, x):
    """Return the input rows [samples, positions, columns]; with a bias, the last column is 1."""
    x = x.detach().double()
    if isinstance(module, nn.Conv2d):
        rows = nn.functional.unfold(x, module.kernel_size).transpose(1, 2)
    else:
        rows = x.reshape(len(x), -1, x.shape[-1])
    return rows if module.bias is None else torch.cat([rows, torch.ones_like(rows[..., :1])], 2)


def rows_of_gradient(module, g):
    g = g.double()
    return g.flatten(2).transpose(1, 2) if isinstance(module, nn.Conv2d) else g.reshape(len(g), -1, g.shape[-1])


class Oracle:
    def __init__(self, module, period):
        self.module, self.period, self.steps, self.A, self.G = module, period, 0, None, None
        module.register_forward_hook(self.forward)

    def forward(self, module, inputs, output):
        self.a = rows_of_input(module, inputs[0])
        output.register_hook(self.backward)

    def backward(self, g):  # of a mean loss
        self.g = len(g) * rows_of_gradient(self.module, g)

    def direction(self):
        n, positions = self.a.shape[:2]
        A = torch.einsum("nsi,nsj->ij", self.a, self.a) / n
        G = torch.einsum("nsi,nsj->ij", self.g, self.g) / (n * positions)
        keep = DECAY if self.steps else 0
        self.A = A if self.A is None else keep * self.A + (1 - keep) * A
        self.G = G if self.G is None else keep * self.G + (1 - keep) * G
        age = self.steps % self.period
        if age == 0:
            (dA, self.QA), (dG, self.QG) = torch.linalg.eigh(self.A), torch.linalg.eigh(self.G)
            self.V = dG[:, None] * dA
        else:
            D = torch.einsum("nsi,nsj->nij", self.g, self.a)
            V = (self.QG.T @ D @ self.QA).square().mean(0)
            self.V = DECAY * self.V + (1 - DECAY) * V
        self.steps += 1
        D = self.module.weight.grad.double().flatten(1)
        if self.module.bias is not None:
            D = torch.cat([D, self.module.bias.grad.double()[:, None]], 1)
        return self.QG @ ((self.QG.T @ D @ self.QA) / (self.V + DAMPING)) @ self.QA.T


class EKFAC(unittest.TestCase):
    def run_steps(self, steps):
        model = small_net()
        oracles = [Oracle(m, 3) for m in model if isinstance(m, (nn.Conv2d, nn.Linear))]
        p = natgrad.EKFAC(model, damping=DAMPING, stat_decay=DECAY, solve_period=3, clip="none")
        largest = 0.0
        for t in range(steps):
            torch.manual_seed(t)
            x, y = torch.randn(40, 2, 4, 3), torch.randint(0, 5, (40,))
            model.zero_grad()
            nn.functional.cross_entropy(model(x) * 3, y).backward()
            want = [o.direction() for o in oracles]
            p.step()
            for o, w in zip(oracles, want):
                got = o.module.weight.grad.double().flatten(1)
                if o.module.bias is not None:
                    got = torch.cat([got, o.module.bias.grad.double()[:, None]], 1)
                largest = max(largest, float((got - w).abs().max() / w.abs().max()))
        return largest

    def test_directions_match_the_formula(self):
        # the softmax head: G has an exact null vector, so the eigenvectors of the others are determined
        self.assertLess(self.run_steps(7), 1e-3)

    def test_checkpointed_inputs(self):
        from torch.utils.checkpoint import checkpoint
        plain, again = small_net(), small_net()
        x, y = torch.randn(40, 2, 4, 3), torch.randint(0, 5, (40,))
        for model in plain, again:
            p = natgrad.EKFAC(model, damping=DAMPING)
            for _ in range(3):
                model.zero_grad()
                out = model[1:](checkpoint(model[0], x.requires_grad_(), use_reentrant=False)) if model is again else model(x)
                nn.functional.cross_entropy(out, y).backward()
                p.step()
        for a, b in zip(plain.parameters(), again.parameters()):
            self.assertTrue(torch.equal(a.grad, b.grad))


if __name__ == "__main__":
    unittest.main()
