"""natgrad.Curvature against a dense float64 Kronecker product, and against a step of natgrad.KFAC."""
import math
import unittest

import torch
from torch import nn

import natgrad
from front import Case, loss_of, random_batch, small_conv_net

EYE = torch.eye(64, dtype=torch.float64)


def random_factor(n, seed):
    x = torch.randn(n, n + 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x @ x.T / n


def dense_power(left, right, damping, power, split="joint"):
    """(left (x) right + damping)^power for D flattened by rows."""
    n, m = len(left), len(right)
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

    def test_wrong_arguments_are_refused_by_name(self):
        k = natgrad.Curvature({"fc": (torch.eye(2), torch.zeros(3))})
        for text, call in (
                ("layer 'fc': D is [3, 2], expected [2, 3]", lambda: k.apply({"fc": torch.zeros(3, 2)}, 1)),
                ("there is no layer 'fc9'; layers: fc", lambda: k.apply({"fc9": torch.zeros(2, 3)}, 1)),
                ("damping = -1: must be >= 0", lambda: k.logdet(-1)),
                ("layer 'fc': ng_curvature_diagonal: damping = 0: the curvature is singular", lambda: k.diagonal(0)),
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
