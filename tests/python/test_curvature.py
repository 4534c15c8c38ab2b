"""natgrad.Curvature against a dense float64 Kronecker product, and against a step of natgrad.KFAC."""
import math
import unittest

import torch
from torch import nn

import natgrad
from front import Case, loss_of, random_batch, small_conv_net

EYE = torch.eye(128, dtype=torch.float64)


def random_factor(n, seed):
    x = torch.randn(n, n + 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x @ x.T / n


def dense_power(left, right, damping, power, split="joint"):
    """(left (x) right + damping)^power for D flattened by rows."""
    n, m = len(left), len(right)
    left, right = (q @ e.clamp(min=0).diag() @ q.T for e, q in map(torch.linalg.eigh, (left, right)))  # as ng_damped_power
    root = math.sqrt(damping)
    pi = math.sqrt(right.trace() / m / (left.trace() / n)) if split == "pi" else 1.0
    on = {"joint": (0, 0), "full": (damping, damping), "pi": (root / pi, root * pi), "root": (root, root)}[split]
    k = torch.kron(left + on[0] * EYE[:n, :n], right + on[1] * EYE[:m, :m])
    e, q = torch.linalg.eigh(k + (damping if split == "joint" else 0) * EYE[:n * m, :n * m])
    return q @ torch.diag(e**power) @ q.T


class CurvatureOfLayers(Case):
    def close_to(self, x, y):  # order 30 in double, condition below 1e4
        self.assertLess((x - y).abs().max(), 1e-10 * y.abs().max())

    def test_powers_match_a_dense_product(self):
        pairs = {"one": (random_factor(4, 1), random_factor(6, 2)), "two": (random_factor(3, 3), random_factor(5, 4))}
        curvature = natgrad.Curvature(pairs)
        damping = {"one": 0.1, "two": 0.4}
        for split in "joint", "full", "pi", "root":
            for power in -1, -0.5, 0.5, 1:
                dense = {name: dense_power(*pairs[name], damping[name], power, split) for name in pairs}
                d = {"one": torch.randn(7, 4, 6, dtype=torch.float64), "two": torch.randn(3, 5, dtype=torch.float64)}
                found = curvature.apply(d, damping, power, split)
                self.close_to(found["one"].flatten(1), d["one"].flatten(1) @ dense["one"])
                self.close_to(found["two"].flatten(), dense["two"] @ d["two"].flatten())
                diagonal = curvature.diagonal(damping, power, split)
                for name in pairs:
                    self.close_to(diagonal[name].flatten(), dense[name].diagonal())
                total = [sum(f(m) for m in dense.values()) for f in (torch.trace, torch.logdet)]
                self.assertAlmostEqual(curvature.trace(damping, power, split) / float(total[0]), 1, places=10)
                self.assertAlmostEqual(curvature.logdet(damping, power, split), float(total[1]), places=8)
        self.assertEqual(natgrad.Curvature({"zero": (torch.zeros(2, 2), torch.eye(2))}).logdet(0), -math.inf)

    def test_the_inverse_is_the_step_of_kfac(self):
        model = small_conv_net()
        kfac = natgrad.KFAC(model, damping=0.3, clip="none")
        loss_of(model, *random_batch(seed=1)).backward()

        def gradients():
            layers = {name: m for name, m in model.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear))}
            parts = {name: [m.weight.grad.flatten(1)] + ([m.bias.grad[:, None]] if m.bias is not None else [])
                     for name, m in layers.items()}
            return {name: torch.cat(part, 1) for name, part in parts.items()}

        before = gradients()
        kfac.step()
        found = natgrad.Curvature.of(kfac).apply(before, 0.3, split="pi")
        for name, want in gradients().items():  # the step solves in f32 with a condition below 1000
            self.assertEqual(found[name].dtype, torch.float32)
            self.assertLess((found[name] - want).abs().max(), 1e-4 * want.abs().max(), name)

    def test_scores_are_products_of_gradients_of_samples(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.conv = nn.Embedding(6, 8, padding_idx=0), nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
                self.twice, self.out = nn.Linear(5, 5), nn.Linear(24, 3, bias=False)

            def forward(self, tokens):
                x = torch.tanh(self.words(tokens))                  # [n, 10, 8]
                x = torch.tanh(self.twice(torch.tanh(self.twice(x.reshape(-1, 16, 5)))))
                return self.out(self.conv(x.reshape(-1, 4, 4, 5)).flatten(1)[:, :24])

        torch.manual_seed(3)
        model, tokens, labels = Net().double(), torch.randint(6, (7, 10)), torch.randint(3, (7,))
        layers = {name: m for name, m in model.named_modules() if name}
        kfac = natgrad.KFAC(model, damping=0.3)
        nn.functional.cross_entropy(model(tokens), labels).backward()
        kfac.step()
        curvature = natgrad.Curvature.of(kfac)
        kfac.close()  # otherwise its hooks would observe the next passes
        self.assertEqual(set(curvature.factors), set(layers))

        def record(first, last):
            with curvature.record(model) as found:
                nn.functional.cross_entropy(model(tokens[first:last]), labels[first:last], reduction="sum").backward()
            return found

        def gradients(i):
            model.zero_grad()
            nn.functional.cross_entropy(model(tokens[i:i + 1]), labels[i:i + 1]).backward()
            return {name: torch.cat([m.weight.grad.flatten(1)] + (
                [m.bias.grad[:, None]] if getattr(m, "bias", None) is not None else []), 1) for name, m in layers.items()}

        rows = [gradients(i) for i in range(7)]
        for split in "joint", "pi":
            want = torch.zeros(7, 7, dtype=torch.float64)
            for name, (left, right) in curvature.factors.items():
                left, right = (torch.diag(f) if f.dim() == 1 else f for f in (left, right))
                left, right = (f if f.dim() == 3 else f[None] for f in (left, right))
                split_rows = [r[name].reshape(len(left), left.shape[-1] * right.shape[-1]) for r in rows]
                for g in range(len(left)):
                    D = torch.stack([r[g] for r in split_rows])
                    want += D @ dense_power(left[g], right[g], 0.02, -1, split) @ D.T
            found = curvature.scores(record(0, 3), record(3, 7), damping=0.02, split=split)
            self.close_to(found, want[:3, 3:])
            self.close_to(curvature.scores(record(0, 7), damping=0.02, split=split), want.diagonal())

    def test_wrong_arguments_are_refused_by_name(self):
        k = natgrad.Curvature({"fc": (torch.eye(2), torch.zeros(3))})
        for text, call in (
                ("layer 'fc': D is [3, 2], expected [2, 3]", lambda: k.apply({"fc": torch.zeros(3, 2)}, 1)),
                ("there is no layer 'fc9'; layers: fc", lambda: k.apply({"fc9": torch.zeros(2, 3)}, 1)),
                ("damping = -1: must be >= 0", lambda: k.logdet(-1)),
                ("layer 'fc': ng_curvature_diagonal: damping = 0: the curvature is singular", lambda: k.diagonal(0)),
                ("layer 'fc': not a Linear", lambda: k.record(nn.Sequential()).__enter__()),
                ("the arrays of x are [1, 1, 1, 3] and [1, 1, 1, 2], expected [samples, positions, 1, 2]",
                 lambda: k.scores({"fc": (torch.zeros(1, 1, 1, 3), torch.zeros(1, 1, 1, 2))}, damping=1)),
                ("expected the same layers in both", lambda: k.scores({"fc": 1}, {}, damping=1)),
                ("damping has no layer 'fc'", lambda: k.trace({})),
                ("split = sum", lambda: k.trace(1, split="sum")),
                ("layer 'fc': G is [2, 3], expected", lambda: natgrad.Curvature({"fc": (torch.zeros(2, 3), torch.eye(2))})),
                ("expected the same number of groups",
                 lambda: natgrad.Curvature({"fc": (torch.zeros(2, 3, 3), torch.eye(2))})),
                ("right is not finite", lambda: natgrad.Curvature({"fc": (torch.eye(2), torch.eye(2) / 0)})),
                ("expected {layer: (G, A)}", lambda: natgrad.Curvature([torch.eye(2)]))):
            with self.assertRaises(natgrad.ArgumentError) as caught:
                call()
            self.assertIn(text, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
