"""Backward passes other than one complete pass of one loss give right results, or are refused by name."""
import copy
import threading
import unittest
import warnings

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import natgrad
from front import Case, grads, make
from natgrad.compat import KFACPreconditioner


class Boom(torch.autograd.Function):
    """A function whose backward raises an exception."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        raise ValueError("boom")


def mlp():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def data(seed=2, samples=8):
    torch.manual_seed(seed)
    return torch.randn(samples, 6), torch.randint(3, (samples,))


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


class Failed(Case):
    def fail(self, model):
        """A backward pass that fails between the last and the first layer."""
        with self.assertRaisesRegex(ValueError, "boom"):
            model[2](Boom.apply(torch.tanh(model[0](data(9)[0])))).pow(2).mean().backward()

    def expected(self, kind=natgrad.KFAC, **options):
        model = mlp()
        k = make(model, kind, **options)
        loss_of(model, *data()).backward()
        self.assertEqual(k.step(), 0)
        return grads(model)

    def test_the_next_batch_is_as_if_it_had_not_been(self):
        for kind in (natgrad.KFAC, natgrad.Eva):
            model = mlp()
            k = make(model, kind)
            loss_of(model, *data(7)).backward()  # an earlier micro-batch, which zero_grad drops, too
            self.fail(model)
            model.zero_grad()
            with self.assertWarnsRegex(UserWarning, "a backward pass failed"):
                loss = loss_of(model, *data())
            loss.backward()
            self.assertEqual(k.step(), 0)
            self.same(grads(model), self.expected(kind))

    def test_the_count_that_was_said_is_of_the_next_one(self):
        model = mlp()
        k = make(model)
        self.fail(model)
        model.zero_grad()
        k.begin(8, 0.5)
        self.quiet()
        (loss_of(model, *data()) / 2).backward()
        k.step()
        other = mlp()
        k = make(other)
        k.begin(8, 0.5)
        (loss_of(other, *data()) / 2).backward()
        k.step()
        self.same(grads(model), grads(other))

    def test_a_step_right_after_it_is_refused(self):
        model = mlp()
        k = make(model)
        self.fail(model)
        before = grads(model)
        with self.refused("the last backward pass failed"):
            k.step()
        self.same(grads(model), before)
        k.reset_batch()
        model.zero_grad()
        loss_of(model, *data()).backward()  # without a warning
        k.step()
        self.same(grads(model), self.expected())

    def test_an_error_of_natgrad_in_backward(self):
        class Rows(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.cut = mlp(), None

            def forward(self, x):
                if self.cut is None:
                    return self.body(x)
                return self.body[2](torch.tanh(self.body[0](x[:self.cut])).mean(0).expand(len(x), -1))
        model = Rows()
        k = make(model)
        model.cut = 3
        with self.refused("8 samples"):
            model(data()[0]).sum().backward()
        model.cut = None
        model.zero_grad()
        self.quiet()
        loss_of(model, *data()).backward()
        k.step()
        self.same({n[5:]: g for n, g in grads(model).items()}, self.expected())

    def test_inside_of_checkpointing(self):
        """Observations of the inner backward pass are dropped, too."""
        for reentrant in (True, False):
            class Two(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.body, self.boom = mlp(), True

                def forward(self, x):
                    h = Boom.apply(self.body[0](x)) if self.boom else self.body[0](x)
                    return checkpoint(self.body[2], torch.tanh(h), use_reentrant=reentrant)
            model = Two()
            k = make(model)
            with self.assertRaisesRegex(ValueError, "boom"):
                loss_of(model, *data(9)).backward()
            model.zero_grad()
            model.boom = False
            with self.subTest(reentrant=reentrant), self.assertWarnsRegex(UserWarning, "backward pass failed"):
                loss_of(model, *data()).backward()
                k.step()
                self.same({n[5:]: g for n, g in grads(model).items()}, self.expected())

    def test_an_optimizer_that_is_zeroed_has_forgotten(self):
        found = []
        for fail in (False, True):
            model = mlp()
            optimizer = natgrad.SGD(model, 0.1, clip="none")
            if fail:
                self.fail(model)
            optimizer.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                loss_of(model, *data()).backward()
            optimizer.step()
            found.append(model.state_dict())
        self.same(*found)

    def test_kaisa_forgets_the_inputs_too(self):
        """Averages of a published program that observes inputs in forward."""
        found = []
        for fail in (False, True):
            model = mlp()
            k = KFACPreconditioner(model, damping=0.1)
            if fail:
                self.fail(model)
                model.zero_grad()
            self.quiet()
            loss_of(model, *data()).backward()
            k.step()
            found.append({**grads(model), **k.state_dict()["fields"]})
        self.same(*found)

    def test_a_pass_of_another_thread(self):
        model = mlp()
        k = make(model)
        loss = loss_of(model, *data())
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        k.step()
        self.same(grads(model), self.expected())


class Twice(Case):
    def test_a_second_pass_of_one_forward_is_refused(self):
        for kind in (natgrad.KFAC, natgrad.Eva):
            model = mlp()
            k = make(model, kind)
            out = model(data()[0])
            out.pow(2).mean().backward(retain_graph=True)
            with self.refused("layer '2': a second backward pass goes through the same forward: call backward once"):
                out.mean().backward()
            with self.refused("the last backward pass failed"):
                k.step()

    def test_norms_and_embeddings(self):
        torch.manual_seed(1)
        for model, x in ((nn.LayerNorm(4), torch.randn(6, 4)), (nn.Embedding(5, 3), torch.arange(5))):
            k = make(model)
            out = model(x)
            out.pow(2).mean().backward(retain_graph=True)
            with self.refused("layer 'root': a second backward pass"):
                out.mean().backward()
            k.close()

    def test_a_pass_that_is_not_of_the_loss(self):
        """A gradient penalty: the pass of the inner gradient is not observed."""
        def penalised(model, k):
            x, y = data()
            x.requires_grad_()
            out = model(x)
            if k is not None:
                k.hook_enabled = False
            inner, = torch.autograd.grad(out.sum(), x, create_graph=True)
            if k is not None:
                k.hook_enabled = True
            (F.cross_entropy(out, y) + inner.pow(2).sum()).backward()
        model, plain = mlp(), mlp()
        k = make(model)
        with self.refused("layer '.': a second backward pass.*hook_enabled = False"):
            x = data()[0].requires_grad_()
            inner, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            inner.pow(2).sum().backward()
        k.reset_batch()
        model.zero_grad()
        before = k.report()["layers"][0]["observations"]
        penalised(model, k)
        self.assertEqual(k.report()["layers"][0]["observations"], before + 2)  # an input and an output gradient
        self.assertEqual(k.step(), 0)
        penalised(plain, None)
        self.assertFalse(torch.equal(grads(model)["0.weight"], grads(plain)["0.weight"]))

    def test_a_step_between_the_passes_makes_them_two(self):
        model = mlp()
        k = make(model, stat_decay=0)
        out = model(data()[0])
        for _ in range(2):
            model.zero_grad()
            out.pow(2).mean().backward(retain_graph=True)
            self.assertEqual(k.step(), 0)
        whole, other = grads(model), mlp()
        k = make(other)
        other(data()[0]).pow(2).mean().backward()
        k.step()
        self.same(grads(other), whole)

    def test_kaisa_counts_both_as_published(self):
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


class Several(Case):
    def test_forwards_of_several_sizes_and_one_backward(self):
        """begin() before each forward pass gives its number of samples."""
        whole, parts = mlp(), mlp()
        (a, one), (b, two) = data(2, 8), data(3, 4)
        k = make(whole)
        F.cross_entropy(whole(torch.cat([a, b])), torch.cat([one, two])).backward()
        k.step()
        for order in (((a, one), (b, two)), ((b, two), (a, one))):
            parts.zero_grad()
            k, loss = make(parts), 0
            for x, y in order:
                k.begin(len(x), len(x) / 12)
                loss = loss + F.cross_entropy(parts(x), y) * len(x) / 12
            loss.backward()
            self.assertEqual(k.step(), 0)
            k.close()
            for name, g in grads(whole).items():  # sums in another order, through an inverse of condition 1e2
                self.assertLess(((grads(parts)[name] - g).abs().max() / g.abs().max()).item(), 1e-4, name)


if __name__ == "__main__":
    unittest.main()
