"""Activation checkpointing with re-entry: a call that backward repeats has the samples of its own forward pass."""
import unittest

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from front import Case, gradients_of, make_preconditioner

# Sums of a few rows in another order, through an inverse of condition 1e2 at most.
ORDER = 1e-4


class RowsModel(nn.Module):
    """The layers have the rows of all samples in one axis, so only the input of the model tells the number of samples."""

    def __init__(self, how=None, nested=False):
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b, self.c, self.how, self.nested = nn.Linear(5, 5), nn.Linear(5, 4), nn.Linear(4, 3), how, nested

    def run_or_checkpoint(self, function, x):
        return function(x) if self.how is None else checkpoint(function, x, use_reentrant=self.how)

    def forward(self, x):
        def last_layer(h):
            return self.c(torch.tanh(h))

        def last_two_layers(h):
            h = self.b(h)
            return self.run_or_checkpoint(last_layer, h) if self.nested else last_layer(h)
        return self.run_or_checkpoint(last_two_layers, torch.tanh(self.a(x.flatten(0, 1)))).view(*x.shape[:2], 3).mean(1)


def random_input(samples, positions=4, seed=2):
    torch.manual_seed(seed)
    return torch.randn(samples, positions, 5)


def loss_of(model, x):
    return model(x).logsumexp(1).mean()


class RepeatedForward(Case):
    def compare_checkpointed(self, play, calls=1, **model):
        """Compare the gradients after play(model, k) with and without checkpointing.  Backward repeats the last of several
        calls first; methods that depend on the order of calls are compared with one call only."""
        published = (dict(calls="ema", stat_scale="chainerkfac", stat_start="identity"),) if calls == 1 else ()
        for options in (dict(), dict(samples="layer"), *published):
            found = []
            for how in (None, True, False):
                m = RowsModel(how, **model)
                k = make_preconditioner(m, **options)
                play(m, k)
                self.assertEqual(k.step(), 0)
                found.append(gradients_of(m))
                k.close()
            for got in found[1:]:
                for name, g in found[0].items():
                    self.assertLess(((got[name] - g).abs().max() / g.abs().max()).item(), ORDER, (name, options))

    def test_checkpoint_keeps_sample_count(self):
        for nested in (False, True):
            self.compare_checkpointed(lambda m, k: loss_of(m, random_input(6)).backward(), nested=nested)

    def test_sample_count_changes_gradients(self):
        """The test can fail: 24 samples of one row give other numbers than 6 samples of 4 rows."""
        found = []
        for shape in ((6, 4), (24, 1)):
            m = RowsModel(True)
            k = make_preconditioner(m)
            k.begin(shape[0])
            loss_of(m, random_input(6)).backward()
            k.step()
            found.append(gradients_of(m)["b.weight"])
        self.assertGreater(((found[0] - found[1]).abs().max() / found[0].abs().max()).item(), 0.1)

    def test_two_forwards_and_one_backward(self):
        for first, second in ((8, 4), (4, 8), (6, 4)):
            for nested in (False, True):
                def run_passes(model, preconditioner):
                    (loss_of(model, random_input(first)) + loss_of(model, random_input(second, 3))).backward()
                self.compare_checkpointed(run_passes, 2, nested=nested)

    def test_sample_counts_given_by_begin(self):
        def run_passes(model, preconditioner):
            loss = 0
            for samples in (8, 4):
                preconditioner.begin(samples, samples / 12)
                loss = loss + loss_of(model, random_input(samples)) * samples / 12
            loss.backward()
        self.compare_checkpointed(run_passes, 2)

    def test_eval_forward_before_backward(self):
        def run_passes(model, preconditioner):
            loss = loss_of(model, random_input(6))
            model.eval()
            with torch.no_grad():
                model(random_input(3))
                model(random_input(4, 6))  # rows of the same shape
            model.train()
            loss.backward()
        self.compare_checkpointed(run_passes)

    def test_no_grad_forward_before_backward(self):
        for samples, positions in ((3, 4), (6, 4), (5, 2)):
            def run_passes(model, preconditioner):
                loss = loss_of(model, random_input(6))
                preconditioner.hook_enabled = False  # methods that depend on the order of calls count such a forward pass
                with torch.no_grad():
                    model(random_input(samples, positions))
                preconditioner.hook_enabled = True
                loss.backward()
            self.compare_checkpointed(run_passes)

        def run_passes(model, preconditioner):
            loss = loss_of(model, random_input(6))
            with torch.no_grad():
                model(random_input(3))
            loss.backward()
        found = []
        for how in (None, True):
            m = RowsModel(how)
            k = make_preconditioner(m)
            run_passes(m, k)
            k.step()
            found.append(gradients_of(m))
        self.assert_same_tensors(*found)

    def test_micro_batches_of_different_sizes(self):
        def run_passes(model, preconditioner):
            for samples, positions in ((6, 4), (4, 6), (6, 4)):
                loss_of(model, random_input(samples, positions)).backward()
        self.compare_checkpointed(run_passes)

    def test_unknown_sample_count_is_refused(self):
        m = RowsModel(True)
        k = make_preconditioner(m)
        with self.assert_refused("layer 'c': activation checkpointing repeats it, and its samples are not known: two forwards"):
            (loss_of(m, random_input(6, 4)) + loss_of(m, random_input(4, 6))).backward()
        self.silence_warnings()
        m.zero_grad()
        loss_of(m, random_input(6)).backward()  # training continues
        self.assertEqual(k.step(), 0)
        expected, other = gradients_of(m), RowsModel()
        k.close()
        k = make_preconditioner(other)
        loss_of(other, random_input(6)).backward()
        k.step()
        self.assert_same_tensors(gradients_of(other), expected)

    def test_step_between_forward_and_backward(self):
        found = []
        for how in (None, True):
            m = RowsModel(how)
            k = make_preconditioner(m, stat_decay=0)
            losses = [loss_of(m, random_input(samples)) for samples in (8, 4)]
            for loss in losses:
                m.zero_grad()
                loss.backward()
                self.assertEqual(k.step(), 0)
            found.append(gradients_of(m))
        self.assert_same_tensors(*found)

    def test_two_backward_passes_of_one_forward(self):
        """As published: each pass is observed."""
        m = RowsModel(True)
        k = make_preconditioner(m, calls="ema", stat_scale="chainerkfac", stat_start="identity")
        loss = loss_of(m, random_input(6))
        loss.backward(retain_graph=True)
        loss.backward()
        self.assertEqual(k.step(), 0)


if __name__ == "__main__":
    unittest.main()
