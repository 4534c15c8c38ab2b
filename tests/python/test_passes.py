"""Backward passes other than one complete pass of one loss give right results, or are refused by name."""
import threading
import unittest
import warnings

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import natgrad
from front import Case, gradients_of, make_preconditioner
from natgrad.compat import KFACPreconditioner


class FailInBackward(torch.autograd.Function):
    """A function whose backward raises an exception."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        raise ValueError("boom")


def two_layer_net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def random_data(seed=2, samples=8):
    torch.manual_seed(seed)
    return torch.randn(samples, 6), torch.randint(3, (samples,))


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


class FailedBackward(Case):
    def fail_backward(self, model):
        """A backward pass that fails between the last and the first layer."""
        with self.assertRaisesRegex(ValueError, "boom"):
            model[2](FailInBackward.apply(torch.tanh(model[0](random_data(9)[0])))).pow(2).mean().backward()

    def gradients_without_failure(self, kind=natgrad.KFAC, **options):
        model = two_layer_net()
        k = make_preconditioner(model, kind, **options)
        loss_of(model, *random_data()).backward()
        self.assertEqual(k.step(), 0)
        return gradients_of(model)

    def test_failed_pass_does_not_affect_next_batch(self):
        for kind in (natgrad.KFAC, natgrad.Eva):
            model = two_layer_net()
            k = make_preconditioner(model, kind)
            loss_of(model, *random_data(7)).backward()  # an earlier micro-batch, which zero_grad drops, too
            self.fail_backward(model)
            model.zero_grad()
            with self.assertWarnsRegex(UserWarning, "a backward pass failed"):
                loss = loss_of(model, *random_data())
            loss.backward()
            self.assertEqual(k.step(), 0)
            self.assert_same_tensors(gradients_of(model), self.gradients_without_failure(kind))

    def test_begin_after_failure_describes_next_batch(self):
        model = two_layer_net()
        k = make_preconditioner(model)
        self.fail_backward(model)
        model.zero_grad()
        k.begin(8, 0.5)
        self.silence_warnings()
        (loss_of(model, *random_data()) / 2).backward()
        k.step()
        other = two_layer_net()
        k = make_preconditioner(other)
        k.begin(8, 0.5)
        (loss_of(other, *random_data()) / 2).backward()
        k.step()
        self.assert_same_tensors(gradients_of(model), gradients_of(other))

    def test_step_after_failed_pass_is_refused(self):
        model = two_layer_net()
        k = make_preconditioner(model)
        self.fail_backward(model)
        before = gradients_of(model)
        with self.assert_refused("the last backward pass failed"):
            k.step()
        self.assert_same_tensors(gradients_of(model), before)
        k.reset_batch()
        model.zero_grad()
        loss_of(model, *random_data()).backward()  # without a warning
        k.step()
        self.assert_same_tensors(gradients_of(model), self.gradients_without_failure())

    def test_natgrad_error_in_backward(self):
        class CutRows(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.cut = two_layer_net(), None

            def forward(self, x):
                if self.cut is None:
                    return self.body(x)
                return self.body[2](torch.tanh(self.body[0](x[:self.cut])).mean(0).expand(len(x), -1))
        model = CutRows()
        k = make_preconditioner(model)
        model.cut = 3
        with self.assert_refused("8 samples"):
            model(random_data()[0]).sum().backward()
        model.cut = None
        model.zero_grad()
        self.silence_warnings()
        loss_of(model, *random_data()).backward()
        k.step()
        self.assert_same_tensors({n[5:]: g for n, g in gradients_of(model).items()}, self.gradients_without_failure())

    def test_failure_inside_checkpoint(self):
        """Observations of the inner backward pass are dropped, too."""
        for reentrant in (True, False):
            class CheckpointedFailure(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.body, self.boom = two_layer_net(), True

                def forward(self, x):
                    h = FailInBackward.apply(self.body[0](x)) if self.boom else self.body[0](x)
                    return checkpoint(self.body[2], torch.tanh(h), use_reentrant=reentrant)
            model = CheckpointedFailure()
            k = make_preconditioner(model)
            with self.assertRaisesRegex(ValueError, "boom"):
                loss_of(model, *random_data(9)).backward()
            model.zero_grad()
            model.boom = False
            with self.subTest(reentrant=reentrant), self.assertWarnsRegex(UserWarning, "backward pass failed"):
                loss_of(model, *random_data()).backward()
                k.step()
                self.assert_same_tensors({n[5:]: g for n, g in gradients_of(model).items()}, self.gradients_without_failure())

    def test_zero_grad_after_failure_drops_observations(self):
        found = []
        for fail in (False, True):
            model = two_layer_net()
            optimizer = natgrad.SGD(model, 0.1, clip="none")
            if fail:
                self.fail_backward(model)
            optimizer.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                loss_of(model, *random_data()).backward()
            optimizer.step()
            found.append(model.state_dict())
        self.assert_same_tensors(*found)

    def test_kaisa_drops_inputs_of_failed_pass(self):
        """Averages of a published program that observes inputs in forward."""
        found = []
        for fail in (False, True):
            model = two_layer_net()
            k = KFACPreconditioner(model, damping=0.1)
            if fail:
                self.fail_backward(model)
                model.zero_grad()
            self.silence_warnings()
            loss_of(model, *random_data()).backward()
            k.step()
            found.append({**gradients_of(model), **k.state_dict()["fields"]})
        self.assert_same_tensors(*found)

    def test_backward_in_another_thread(self):
        model = two_layer_net()
        k = make_preconditioner(model)
        loss = loss_of(model, *random_data())
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        k.step()
        self.assert_same_tensors(gradients_of(model), self.gradients_without_failure())


class TwoBackwardPasses(Case):
    def test_second_backward_of_forward_is_refused(self):
        for kind in (natgrad.KFAC, natgrad.Eva):
            model = two_layer_net()
            k = make_preconditioner(model, kind)
            out = model(random_data()[0])
            out.pow(2).mean().backward(retain_graph=True)
            with self.assert_refused("layer '2': a second backward pass goes through the same forward: call backward once"):
                out.mean().backward()
            with self.assert_refused("the last backward pass failed"):
                k.step()

    def test_second_backward_of_norms_and_embeddings(self):
        torch.manual_seed(1)
        for model, x in ((nn.LayerNorm(4), torch.randn(6, 4)), (nn.Embedding(5, 3), torch.arange(5))):
            k = make_preconditioner(model)
            out = model(x)
            out.pow(2).mean().backward(retain_graph=True)
            with self.assert_refused("layer 'root': a second backward pass"):
                out.mean().backward()
            k.close()

    def test_gradient_penalty_is_not_observed(self):
        """A gradient penalty: the pass of the inner gradient is not observed."""
        def gradients_with_penalty(model, k):
            x, y = random_data()
            x.requires_grad_()
            out = model(x)
            if k is not None:
                k.hook_enabled = False
            inner, = torch.autograd.grad(out.sum(), x, create_graph=True)
            if k is not None:
                k.hook_enabled = True
            (F.cross_entropy(out, y) + inner.pow(2).sum()).backward()
        model, plain = two_layer_net(), two_layer_net()
        k = make_preconditioner(model)
        with self.assert_refused("layer '.': a second backward pass.*hook_enabled = False"):
            x = random_data()[0].requires_grad_()
            inner, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            inner.pow(2).sum().backward()
        k.reset_batch()
        model.zero_grad()
        before = k.report()["layers"][0]["observations"]
        gradients_with_penalty(model, k)
        self.assertEqual(k.report()["layers"][0]["observations"], before + 2)  # an input and an output gradient
        self.assertEqual(k.step(), 0)
        gradients_with_penalty(plain, None)
        self.assertFalse(torch.equal(gradients_of(model)["0.weight"], gradients_of(plain)["0.weight"]))

    def test_step_between_two_passes(self):
        model = two_layer_net()
        k = make_preconditioner(model, stat_decay=0)
        out = model(random_data()[0])
        for _ in range(2):
            model.zero_grad()
            out.pow(2).mean().backward(retain_graph=True)
            self.assertEqual(k.step(), 0)
        whole, other = gradients_of(model), two_layer_net()
        k = make_preconditioner(other)
        other(random_data()[0]).pow(2).mean().backward()
        k.step()
        self.assert_same_tensors(gradients_of(other), whole)

    def test_kaisa_observes_both_passes(self):
        """The hooks of KAISA run in both passes: A is folded once, G twice, once for each pass."""
        torch.manual_seed(1)
        model, x = nn.Linear(3, 2), torch.randn(4, 3)
        k = KFACPreconditioner(model, damping=0.1, factor_decay=0.9)
        out, g = model(x), torch.randn(2, 4, 2)
        out.backward(g[0], retain_graph=True)
        out.backward(g[1])
        k.step()
        G, A = torch.eye(2), 0.9 * torch.eye(4)
        for one in g:
            G = 0.9 * G + 0.1 * one.T @ one / 4
        ones = torch.cat([x, torch.ones(4, 1)], 1)
        A += 0.1 * ones.T @ ones / 4
        fields = k.state_dict()["fields"]
        for name, factor in (("A", A), ("G", G)):
            lower = torch.cat([row[:i + 1] for i, row in enumerate(factor)])
            self.assertLess((fields[f"root/{name}"] - lower).abs().max().item(), 1e-6, name)


class SeveralForwards(Case):
    def test_forwards_of_several_sizes(self):
        """begin() before each forward pass gives its number of samples."""
        whole, parts = two_layer_net(), two_layer_net()
        (a, one), (b, two) = random_data(2, 8), random_data(3, 4)
        k = make_preconditioner(whole)
        F.cross_entropy(whole(torch.cat([a, b])), torch.cat([one, two])).backward()
        k.step()
        for order in (((a, one), (b, two)), ((b, two), (a, one))):
            parts.zero_grad()
            k, loss = make_preconditioner(parts), 0
            for x, y in order:
                k.begin(len(x), len(x) / 12)
                loss = loss + F.cross_entropy(parts(x), y) * len(x) / 12
            loss.backward()
            self.assertEqual(k.step(), 0)
            k.close()
            for name, g in gradients_of(whole).items():  # sums in another order, through an inverse of condition 1e2
                self.assertLess(((gradients_of(parts)[name] - g).abs().max() / g.abs().max()).item(), 1e-4, name)


if __name__ == "__main__":
    unittest.main()
