"""Tolerances of two recordings of Distributed Shampoo, derived from the recorded inputs alone: no result of natgrad enters.

    4d       A root X = (A + epsilon I)^-e has the relative error e delta / least eigenvalue, with the error delta = 1e-7 |A| of an
             eigenvalue in f32.  Two programs differ by at most twice this error.
    soap-qr  A step in float64 whose inputs are rounded to f32 (a relative error of at most 2^-24 of the gradient, and of the largest
             entry of L, Q'LQ and q).  The median of 51 draws is the distance of two correct programs in f32; the largest over steps
             and parameters bounds the tolerance."""
import unittest

import torch

import recording

ROUNDING = 2.0**-24


def rounded(x, generator, by=None):
    """x with errors of at most ROUNDING of each entry, or of the number `by`."""
    if generator is None:
        return x
    noise = 2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1
    return x + ROUNDING * noise * (x if by is None else by)


def rotate(x, bases, back=False):
    for i, Q in enumerate(bases):
        if Q is not None:
            x = torch.tensordot(Q if back else Q.T, x, ([1], [i])).movedim(0, i)
    return x


def qr_step(case, arrays, parameter, step, generator=None):
    """Return the direction and the second moments of one step from the recorded state."""
    config, name, shape, t = case["config"], parameter["name"], parameter["merged"], step + 1
    (beta1, beta2), epsilon = config["betas"], config["epsilon"]

    def state(key):
        x = arrays.get(f"s{step - 1}.{name}.{key}")
        return None if x is None else x.double()

    g, bases = rounded(arrays[f"s{step}.{name}.grad"].double().reshape(shape), generator), []
    for i, n in enumerate(shape):
        L, Q = state(f"b0.L{i}"), state(f"b0.Q{i}")
        if L is None or Q is None:
            bases.append(None)
            continue
        unfolded = g.movedim(i, 0).reshape(n, -1)
        L = beta2 * L + (1 - beta2) * unfolded @ unfolded.T
        L = rounded(L, generator, L.abs().max())
        B = Q.T @ (L / (1 - beta2**t) + epsilon * torch.eye(n, dtype=L.dtype)) @ Q
        q, r = torch.linalg.qr(rounded(B, generator, B.abs().max()))
        order = (r @ q).diagonal().argsort(stable=True)
        bases.append((Q @ rounded(q, generator, 1.0))[:, order])
    v = state("b0.v")
    v = beta2 * (0.0 if v is None else v.reshape(shape)) + (1 - beta2) * rotate(g, bases)**2
    F = (beta1 * state("m").reshape(shape) + (1 - beta1) * g) / (1 - beta1**t)
    P = rotate(F, bases) / ((v / (1 - beta2**t)).sqrt() + epsilon)
    return rotate(P, bases, back=True), v


class Tolerances(unittest.TestCase):
    def test_roots_of_4d(self):
        case, arrays = recording.read_recording("matrix-shampoo-4d")
        largest, beta2, epsilon = 0.0, case["config"]["betas"][1], case["config"]["epsilon"]
        for name, L in arrays.items():
            if ".b0.L" not in name:
                continue
            step, X = int(name[1:].split(".")[0]), arrays[name.replace(".b0.L", ".b0.inv")].double()
            A = L.double() / (1 - beta2**(step + 1))
            e = torch.linalg.eigvalsh(A * max(A.trace(), epsilon)**-0.5) + epsilon
            exponent = torch.linalg.eigvalsh(X)[-1].log() / -e[0].log()
            largest = max(largest, (2 * exponent * 1e-7 * e[-1] / e[0]).item())
        self.assertLessEqual(case["state_tolerance"], 1.01 * largest)
        self.assertGreaterEqual(case["state_tolerance"], 0.5 * largest)

    def test_direction_of_soap_qr(self):
        case, arrays = recording.read_recording("matrix-shampoo-soap-qr")
        generator, largest = torch.Generator().manual_seed(1), [0.0, 0.0]
        for step in range(case["config"]["start_preconditioning_step"] - 1, case["steps"]):
            for parameter in case["parameters"]:
                want = qr_step(case, arrays, parameter, step)
                draws = [qr_step(case, arrays, parameter, step, generator) for _ in range(51)]
                for k, x in enumerate(want):
                    errors = torch.stack([(draw[k] - x).abs().max() / x.abs().max() for draw in draws])
                    largest[k] = max(largest[k], errors.median().item())
                out = arrays[f"s{step}.{parameter['name']}.out"].reshape(parameter["merged"])
                self.assertLess((out - want[0]).abs().max() / want[0].abs().max(), case["tolerance"])
        self.assertLessEqual(case["tolerance"], largest[0])
        self.assertLessEqual(case["state_tolerance"], largest[1])


if __name__ == "__main__":
    unittest.main()
