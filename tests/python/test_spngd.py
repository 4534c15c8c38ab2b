"""SP-NGD with the arguments of chainerkfac (recordings: test_compat, test_ranks)."""
import inspect
import io
import unittest

import torch
from torch import nn
import torch.nn.functional as F

import natgrad.compat as compat
from front import NEW, Case, random_batch, small_conv_net

PUBLISHED = dict(lr=0.001, momentum=0.9, cov_ema_decay=0.99, damping=0.03, stab_coeff=16.0, pi_type="tracenorm",
                 use_cholesky=True, loss_scale=None, adjust_momentum=False, acc_iters=1, weight_decay=0.0,
                 communicate_after_forward=False, only_pic_update_weight=True)


def train_steps(count=4, scale=1.0, model=None, optimizer=None, start=0, **options):
    model = model or small_conv_net()
    optimizer = optimizer or compat.SPNGD(model, **options)
    for t in range(start, start + count):
        if t == 3:
            optimizer.param_groups[0]["lr"] *= 0.5
        optimizer.zero_grad()
        x, y = random_batch(seed=10 + t)
        (F.cross_entropy(model(x), y) * scale).backward()
        optimizer.step()
    return model, optimizer


class Arguments(Case):
    def test_defaults_are_published(self):
        signature = inspect.signature(compat.SPNGD).parameters
        self.assertEqual({n: signature[n].default for n in PUBLISHED}, PUBLISHED)
        self.assertEqual(list(signature)[1:1 + len(PUBLISHED)], list(PUBLISHED))

    def test_each_argument_changes_weights(self):
        plain = train_steps()[0][8].weight
        for name, value in dict(lr=0.01, momentum=0.5, cov_ema_decay=0.5, damping=0.1, stab_coeff=1.0, pi_type="none",
                                adjust_momentum=True, acc_iters=2, weight_decay=0.1, diagonalize=["8"]).items():
            self.assertFalse(torch.equal(train_steps(**{name: value})[0][8].weight, plain), name)
        for name, value in dict(use_cholesky=False, communicate_after_forward=True, only_pic_update_weight=False).items():
            self.assertTrue(torch.equal(train_steps(**{name: value})[0][8].weight, plain), name)
        for name in ("3.weight", "3.bias"):
            self.assertFalse(torch.equal(dict(train_steps(diagonalize=["3"])[0].named_parameters())[name],
                                         dict(train_steps()[0].named_parameters())[name]))
        scaled = train_steps(scale=64.0, loss_scale=64.0)[0][8].weight  # a power of two changes no bit
        self.assertTrue(torch.equal(scaled, plain))

    def test_wrong_arguments_are_refused(self):
        for options in (dict(lr=-1), dict(damping=0), dict(cov_ema_decay=2), dict(stab_coeff=0), dict(acc_iters=0),
                        dict(loss_scale=-1), dict(momentum=-1), dict(weight_decay=-1), dict(diagonalize=["nobody"])):
            with self.assertRaisesRegex(ValueError, next(iter(options)), msg=options):
                compat.SPNGD(small_conv_net(), **options)

    def test_layers_with_curvature_as_published(self):
        model = nn.Sequential(nn.Conv1d(2, 2, 1), nn.LayerNorm(4), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Linear(2, 2))
        why = {row["name"]: row["why"] for row in compat.SPNGD(model).explain()}
        self.assertEqual([why["0.weight"], why["1.weight"]], ["chainerkfac has no Conv1d", "chainerkfac has no LayerNorm"])
        self.assertIn("full", why["3.weight"])


class TrainingSteps(Case):
    def test_micro_batches_match_whole_batch(self):
        torch.manual_seed(1)
        x, y = torch.randn(8, 6), torch.randint(3, (8,))
        found = []
        for parts in (1, 2):
            torch.manual_seed(2)
            model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
            optimizer = compat.SPNGD(model, lr=0.1, acc_iters=parts)
            for _ in range(3):
                for px, py in zip(x.chunk(parts), y.chunk(parts)):
                    optimizer.zero_grad()
                    F.cross_entropy(model(px), py).backward()
                    before = model[0].weight.clone()
                    optimizer.step()
                    self.assertEqual(optimizer.note is None, torch.equal(before, model[0].weight))
            found.append(model[0].weight.detach().clone())
            self.assertEqual(optimizer.steps, 3)
        self.assertLess((found[0] - found[1]).abs().max().item(), 1e-5)  # sums in another order

    def test_resumed_training_has_same_bits(self):
        whole = train_steps(6, adjust_momentum=True)[0]
        model, optimizer = train_steps(3, adjust_momentum=True)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        other = compat.SPNGD(model, adjust_momentum=True)
        other.load_state_dict(torch.load(file, weights_only=NEW))
        optimizer.close()
        train_steps(3, model=model, optimizer=other, start=3)
        self.assert_same_tensors(dict(model.state_dict()), dict(whole.state_dict()))

    def test_non_finite_step_is_skipped(self):
        model, optimizer = train_steps(1)
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        optimizer.zero_grad()
        (F.cross_entropy(*[f(v) for f, v in zip((model, lambda y: y), random_batch())]) * float("inf")).backward()
        optimizer.step()
        self.assertEqual(optimizer.note, 2)
        self.assert_same_tensors(before, {n: p.detach() for n, p in model.named_parameters()})


if __name__ == "__main__":
    unittest.main()
