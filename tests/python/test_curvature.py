"""natgrad.Curvature against a dense float64 Kronecker product, and against a step of natgrad.KFAC."""
import gc
import math
import unittest
import unittest.mock

import torch
from torch import nn

import natgrad
import ranks
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


def net_with_dropout():
    torch.manual_seed(5)
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, stride=2), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Dropout(),
                         nn.Linear(64, 5, bias=False), nn.Tanh(), nn.Linear(5, 3)).eval()


def sum_of_losses(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def batches_of(sizes):
    return [random_batch(size, seed=10 + i) for i, size in enumerate(sizes)]


def dense_factors(model, batches):
    """{layer: (G, A)}, in float64 from the arrays of all samples at once: means over samples; A sums over positions."""
    model, found = model.double(), {}
    layers = [m for m in model if isinstance(m, (nn.Conv2d, nn.Linear))]
    x, y = (torch.cat(part) for part in zip(*batches))
    outputs, inputs = [], []
    for m in model:
        inputs.append(x if not outputs else outputs[-1])
        outputs.append(m(inputs[-1].double()))
    wanted = [i for i, m in enumerate(model) if m in layers]
    gradients = torch.autograd.grad(nn.functional.cross_entropy(outputs[-1], y, reduction="sum"), [outputs[i] for i in wanted])
    for i, g in zip(wanted, gradients):
        a = inputs[i].detach().double()
        if isinstance(model[i], nn.Conv2d):
            a = nn.functional.unfold(a, 3, padding=1, stride=2).transpose(1, 2).flatten(0, 1)
            g = g.flatten(2).transpose(1, 2).flatten(0, 1)
        if model[i].bias is not None:
            a = torch.cat([a, torch.ones(len(a), 1)], 1)
        found[str(i)] = g.T @ g / len(g), a.T @ a / len(x)
    model.float()
    return found


def accumulate_on_rank(rank, world, sizes):
    """Return the pairs of a pass over batches rank, rank + world, ..."""
    batches = batches_of(sizes)[rank::world] if rank < 2 else []
    factors = natgrad.Curvature.accumulate(net_with_dropout(), batches, sum_of_losses).factors
    return {name: [f.tolist() for f in pair] for name, pair in factors.items()}


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

    def assert_near_factors(self, found, want):  # sums of at most 23 samples in f32
        self.assertEqual(set(found), set(want))
        for name in want:
            for x, y in zip(found[name], want[name]):
                self.assertLess((torch.as_tensor(x, dtype=torch.float64) - y).abs().max(), 1e-6 * y.abs().max(), name)

    def test_a_pass_over_data_gives_means_over_all_samples(self):
        model, batches = net_with_dropout(), batches_of((7, 3, 12, 1))
        model[0].weight.grad = kept = torch.ones_like(model[0].weight)
        want, before = dense_factors(model, batches), model[1].running_mean.clone()
        self.assert_near_factors(natgrad.Curvature.accumulate(model, batches, sum_of_losses).factors, want)
        mean = natgrad.Curvature.accumulate(
            model, iter(batches), lambda model, batch: loss_of(model, *batch), reduction="mean", skip_layers="7")
        del want["7"]
        self.assert_near_factors(mean.factors, want)
        self.assertIs(model[0].weight.grad, kept)
        self.assertIsNone(model[5].weight.grad)
        self.assertTrue(torch.equal(model[1].running_mean, before))
        self.assertFalse(any(m._forward_hooks for m in model.modules()))

    def test_other_preconditioners_observe_nothing(self):
        """Passes in training mode between backward and step leave the step as it is."""
        steps = []
        for method in ("natgrad", "kaisa"):
            for accumulates in (False, True):
                model = small_conv_net()
                k = natgrad.KFAC(model, method=method, damping=0.1)
                for t in range(2):
                    model.zero_grad()
                    loss_of(model, *random_batch(seed=t)).backward()
                    averages = {name: tensor.clone() for name, tensor in model.named_buffers()}  # of the batch norm
                    gradients = [p.grad.clone() for p in model.parameters()]
                    if accumulates:
                        curvature = natgrad.Curvature.accumulate(model, batches_of((7, 3)), sum_of_losses)
                        with curvature.record(model):
                            sum_of_losses(model, *batches_of((5,))).backward()
                        model.load_state_dict(averages, strict=False)
                    for p, g in zip(model.parameters(), gradients):
                        p.grad.copy_(g)
                    k.step()
                steps.append([p.grad for p in model.parameters()])
                self.assertTrue(k.hook_enabled)
            for a, b in zip(*steps[-2:]):
                self.assertTrue(torch.equal(a, b))

    def test_a_pass_in_eval_mode_observes_attention(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.attention, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

            def forward(self, x):
                return self.out(self.attention(x, x, x)[0].mean(1))

        torch.manual_seed(4)
        model, batches = Net(), [(torch.randn(n, 3, 8), torch.randint(3, (n,))) for n in (5, 2)]
        found = [natgrad.Curvature.accumulate(model.train(train), batches, sum_of_losses).factors for train in (True, False)]
        self.assertEqual(len(found[0]), 5)  # query, key, value, output projection; the last layer
        self.assert_near_factors(*found)

    def test_a_pass_without_finite_data_is_refused(self):
        model = net_with_dropout()
        (x, y), = batches_of((4,))
        with self.assert_refused("not finite"):
            natgrad.Curvature.accumulate(model, [(x / 0, y)], sum_of_losses)
        with self.assert_refused("layer '0' was never observed|'0'.*never observed"):
            natgrad.Curvature.accumulate(model, [], sum_of_losses)
        self.assertIsNone(model[0].weight.grad)
        self.assertFalse(any(m._forward_hooks for m in model.modules()))

    def test_ranks_with_other_numbers_of_batches_give_the_factors_of_all(self):
        sizes = (7, 3, 12)
        want = dense_factors(net_with_dropout(), batches_of(sizes))
        for world in 2, 3:
            for found in ranks.run_on_ranks(world, accumulate_on_rank, sizes):
                self.assert_near_factors(found, dense_factors(net_with_dropout(), batches_of(sizes[:2])) if world == 3 else want)

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
                ("expected the layers of the curvature", lambda: k.correct({})),
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

    def test_an_object_that_was_not_closed_releases_its_memory(self):
        library, called = natgrad.curvature.load_library(), []

        class Library:
            def __getattr__(self, name):
                called.append(name)
                return getattr(library, name)
        with unittest.mock.patch("natgrad.curvature.load_library", Library):
            k = natgrad.Curvature({"fc": (torch.eye(2), torch.eye(3))})
        del k
        gc.collect()
        self.assertEqual([name for name in called if "destroy" in name], ["ng_curvature_destroy", "ng_context_destroy"])


if __name__ == "__main__":
    unittest.main()
