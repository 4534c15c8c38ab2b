"""The library observes the right arrays, or the call is rejected by name: numbers against the oracle, exclusions."""
import copy
import pickle
import unittest
import warnings

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import natgrad
import oracle
from front import DAMPING, NEW, Case, batch, grads, loss_of, make, net, one_step

NAMES = ("0", "2", "6", "8")


class Numbers(Case):
    """Compared with the oracle."""

    def oracle(self, model, names, *batches, **more):
        m = len(batches)
        return oracle.kfac(model, names, lambda n: (loss_of(n, x, y) / m for x, y in batches), DAMPING, 1 / m, **more)

    def test_network(self):
        model, data = net(), batch()
        self.near(one_step(model, data), self.oracle(net(), NAMES, data))

    def test_channels_last_is_read_where_it_lies(self):
        model, (x, y) = net().to(memory_format=torch.channels_last), batch()
        got = one_step(model, (x.to(memory_format=torch.channels_last), y))
        self.near(got, self.oracle(net(), NAMES, (x, y)))

    def test_accumulation_is_the_whole_batch(self):
        model = nn.Sequential(nn.Flatten(), nn.Linear(18, 5), nn.Tanh(), nn.Linear(5, 3))
        (x, y), whole = batch(12, shape=(2, 3, 3)), copy.deepcopy(model)
        got = one_step(model, *((x[i::3], y[i::3]) for i in range(3)), accumulation_steps=3)
        self.near(got, self.oracle(whole, ("1", "3"), (x, y)))

    def test_uneven_micro_batches_are_said(self):
        model = nn.Sequential(nn.Flatten(), nn.Linear(18, 5), nn.Tanh(), nn.Linear(5, 3))
        (x, y), whole = batch(12, shape=(2, 3, 3)), copy.deepcopy(model)
        k = make(model)
        for part in (slice(0, 3), slice(3, 12)):
            share = (part.stop - part.start) / 12
            k.begin(part.stop - part.start, share)
            (loss_of(model, x[part], y[part]) * share).backward()
        k.step()
        self.near(grads(model), self.oracle(whole, ("1", "3"), (x, y)))

    def test_padding(self):
        for kwargs in (dict(padding=1, padding_mode="reflect"), dict(padding=(2, 1), padding_mode="circular"),
                       dict(padding="same"), dict(padding="same", dilation=2), dict(padding="valid"),
                       dict(padding="same", padding_mode="replicate")):
            for kernel in (3, 2, (2, 3)):
                torch.manual_seed(1)
                model = nn.Sequential(nn.Conv2d(2, 3, kernel, **kwargs), nn.AdaptiveAvgPool2d(1), nn.Flatten())
                whole, data = copy.deepcopy(model), batch(6, shape=(2, 7, 6))
                with self.subTest(kernel=kernel, **kwargs):
                    self.near(one_step(model, data), self.oracle(whole, ("0",), data))

    def test_convolution_of_one_axis(self):
        for kwargs in (dict(padding=1), dict(padding="same", dilation=3), dict(stride=2), dict(padding="same")):
            for kernel in (3, 4):
                if "padding" in kwargs and kwargs["padding"] == "same" and "stride" in kwargs:
                    continue
                torch.manual_seed(1)
                model = nn.Sequential(nn.Conv1d(2, 3, kernel, **kwargs), nn.AdaptiveAvgPool1d(1), nn.Flatten())
                whole, data = copy.deepcopy(model), batch(6, shape=(2, 9))
                with self.subTest(kernel=kernel, **kwargs):
                    self.near(one_step(model, data), self.oracle(whole, ("0",), data))

    def test_a_second_image_size(self):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
        whole, data = copy.deepcopy(model), (batch(6), batch(6, 3, (2, 11, 5)))
        self.near(one_step(model, *data, accumulation_steps=2), self.oracle(whole, ("0", "4"), *data))

    def test_the_model_is_a_layer(self):
        torch.manual_seed(1)
        model, (x, y) = nn.Linear(4, 3), batch(6, shape=(4,))
        whole = copy.deepcopy(model)
        k = make(model)
        self.assertEqual([row["name"] for row in k.explain()], ["root.weight", "root.bias"])
        loss_of(model, x, y).backward()
        k.step()
        self.near(grads(model), self.oracle(whole, ("",), (x, y)))

    def test_sequences_of_either_order(self):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        x = torch.randn(6, 3, 4)
        expected = oracle.kfac(model, ("0", "2"), lambda m: [m(x.double()).pow(2).mean()], DAMPING)
        reduced = {}
        for first, kind in ((True, "view"), (False, "view"), (True, "flat"), (False, "flat"), (True, "turned"),
                            (False, "turned")):
            for positions in ("expand", "reduce"):
                m = copy.deepcopy(model)
                k = make(m, batch_first=first, positions=positions)
                given = x if first == (kind != "turned") else x.transpose(0, 1).contiguous()
                if kind != "view":  # layers have one leading axis, or axes in another order; there are 6 samples
                    k.begin(6)
                if kind == "flat":
                    given = given.reshape(18, 4)
                m(given).pow(2).mean().backward()
                k.step()
                with self.subTest(first=first, kind=kind, positions=positions):
                    if positions == "expand":
                        self.near(grads(m), expected)
                    reduced.setdefault(positions, grads(m))
                    for name, g in reduced[positions].items():
                        self.assertLess(oracle.distance(grads(m)[name], g.double()), 1e-4, name)

    def test_a_module_used_twice_and_modules_that_share(self):
        class Twice(nn.Module):
            def __init__(self, shared):
                super().__init__()
                torch.manual_seed(1)
                self.a, self.c = nn.Linear(4, 4), nn.Linear(4, 3)
                self.b = nn.Linear(4, 4) if shared else self.a
                if shared:
                    self.b.weight, self.b.bias = self.a.weight, self.a.bias

            def forward(self, x):
                return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))
        data = batch(6, shape=(4,))
        expected = self.oracle(Twice(False), ("a", "c"), data)
        for shared in (False, True):
            with self.subTest(shared=shared):
                self.near(one_step(Twice(shared), data), expected)

    def test_a_frozen_bias_leaves_the_weight(self):
        model, data = net(), batch()
        model[8].bias.requires_grad_(False)
        expected = self.oracle(net(), ("8",), data, bias=False)
        got = one_step(model, data)
        self.near(got, expected)
        self.assertNotIn("8.bias", got)

    def test_autocast(self):
        model, (x, y) = net(), batch()

        def loss(n):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = n(x)
            self.assertEqual(out.dtype, torch.bfloat16)
            return F.cross_entropy(out.float(), y)
        k = make(model)
        loss(model).backward()
        k.step()
        # The bf16 inputs and gradients depend on the processor, so the oracle uses the same arrays.
        self.near(grads(model), oracle.kfac(net(), NAMES, lambda n: [loss(n)], DAMPING, rounded=True))


class NoTrace(Case):
    """Calls that are no part of the loss change no bit."""

    def check(self, disturb, **options):
        data = batch()
        expected = one_step(net(), data, **options)
        model = net()
        k = make(model, **options)
        disturb(model, k)
        model.zero_grad()
        loss_of(model, *data).backward()
        self.assertEqual(k.step(), 0)
        self.same(grads(model), expected)

    def test_a_forward_without_gradients(self):
        def disturb(model, _):
            with torch.no_grad():
                model[0](torch.randn(5, 2, 8, 8)), model[8](torch.randn(7, 5))
        self.check(disturb)

    def test_a_forward_in_eval_mode(self):
        def disturb(model, _):
            model.eval()
            loss_of(model, *batch(5, 9)).backward()
            model.train()
        self.check(disturb)

    def test_a_forward_whose_loss_is_dropped(self):
        self.check(lambda model, _: model[8](model[6](torch.randn(4, 48))))

    def test_hooks_that_are_switched_off(self):
        for forward, backward in ((False, False), (False, True), (True, False)):
            def disturb(model, k):
                k.hook_enabled = forward
                out = model[8](torch.randn(4, 5)).sum()
                k.hook_enabled = backward
                out.backward()
                k.hook_enabled = True
            with self.subTest(forward=forward, backward=backward):
                self.check(disturb)

    def test_a_batch_that_is_reset(self):
        def disturb(model, k):
            model[8](torch.randn(4, 5)).sum().backward()
            k.reset_batch()
        self.check(disturb)

    def test_copies_of_the_model(self):
        def disturb(model, _):
            for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
                loss_of(other, *batch(5, 9)).backward()
        self.check(disturb)

    def test_a_closed_preconditioner(self):
        def disturb(model, _):
            other = make(model)
            other.close()
            self.assertEqual(len(model[0]._forward_hooks), 1)
        self.check(disturb)

    def test_checkpointing(self):
        class Some(nn.Module):
            def __init__(self, how):
                super().__init__()
                self.body, self.how = net(), how

            def forward(self, x):
                if self.how is None:
                    return self.body(x)
                # the checkpoint omits the last layers, because PyTorch 2 may stop a repeated forward pass early
                return self.body[7:](checkpoint(self.body[:7], x.requires_grad_(), use_reentrant=self.how))
        for options in (dict(), dict(calls="ema", stat_scale="chainerkfac", stat_start="identity")):
            expected = one_step(Some(None), batch(), **options)
            for how in (True, False):
                with self.subTest(reentrant=how, **options), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self.same(one_step(Some(how), batch(), **options), expected)

    def test_gradients_that_are_freed(self):
        """Two steps, with and without set_to_none between them."""
        found = []
        for none in (True, False):
            model = net()
            k = make(model)
            for seed in (2, 3):
                model.zero_grad(set_to_none=none)
                loss_of(model, *batch(seed=seed)).backward()
                k.step()
            found.append(grads(model))
        self.same(*found)


class Scaler:
    def __init__(self, scale):
        self.scale = scale

    def get_scale(self):
        return self.scale


class MixedPrecision(Case):
    def test_a_loss_scale_changes_no_number(self):
        data = batch()
        expected = one_step(net(), data)
        for scaler in (Scaler(1024.0), lambda: 1024.0):
            model = net()
            k = make(model, grad_scaler=scaler)
            (loss_of(model, *data) * 1024.0).backward()
            for p in model.parameters():
                p.grad /= 1024.0  # unscale_
            k.step()
            self.same(grads(model), expected)  # a power of two

    def test_a_skipped_step_leaves_nothing(self):
        data, scaler = batch(), Scaler(1024.0)
        expected = one_step(net(), data)
        model = net()
        k = make(model, grad_scaler=scaler)
        (loss_of(model, *batch(seed=5)) * float("inf")).backward()
        before = grads(model)
        self.assertEqual(k.step(), 2)
        self.assertEqual(k.steps, 0)
        for name, p in model.named_parameters():
            self.assertEqual(p.grad.numpy().tobytes(), before[name].numpy().tobytes(), name)
        model = net()  # the batch norm has had two batches; gradients in training mode do not depend on them
        k = make(model, grad_scaler=scaler)
        (loss_of(model, *batch(seed=5)) * float("inf")).backward()
        k.step()
        model.zero_grad()
        scaler.scale = 1.0
        loss_of(model, *data).backward()
        self.assertEqual(k.step(), 0)
        self.same(grads(model), expected)

    @unittest.skipUnless(NEW, "a GradScaler for the CPU is in PyTorch 2")
    def test_grad_scaler_of_pytorch(self):
        model, data = net(), batch()
        expected = one_step(net(), data)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        k = make(model, grad_scaler=scaler)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scaler.scale(loss_of(model, *data)).backward()
        scaler.unscale_(optimizer)
        k.step()
        self.same(grads(model), expected)
        scaler.step(optimizer)
        scaler.update()


class LeftOut(Case):
    """Parameters without curvature keep their gradients, and explain() says why."""

    def why(self, k):
        return {row["name"]: row["why"] for row in k.explain()}

    def untouched(self, model, loss, names, **options):
        loss(model).backward()
        plain = grads(model)
        k = make(model, **options)
        model.zero_grad()
        loss(model).backward()
        k.step()
        for name in names:
            self.assertTrue(torch.equal(grads(model)[name], plain[name]), name)
        return self.why(k)

    def test_norms(self):
        data = batch()
        why = self.untouched(net(), lambda m: loss_of(m, *data), ["3.weight", "3.bias"], norm_block="none")
        self.assertEqual(why["3.weight"], "norm_block = none")
        model = nn.Sequential(nn.SyncBatchNorm(3), nn.Flatten(), nn.Linear(12, 3))
        self.assertIn("SyncBatchNorm takes its mean over all ranks", self.why(make(model))["0.weight"])

    def test_attention(self):
        torch.manual_seed(1)
        model, x = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), torch.randn(5, 3, 8)
        with self.assertWarnsRegex(UserWarning, "self_attn"):
            k = make(copy.deepcopy(model), batch_first=False)
        k.close()
        self.quiet()
        names = ["self_attn.in_proj_weight", "self_attn.out_proj.weight", "self_attn.out_proj.bias"]
        why = self.untouched(model, lambda m: m(x).pow(2).mean(), names, batch_first=False)
        for name in names:
            self.assertIn("MultiheadAttention", why[name])
        self.assertIn("A 9x9, G 16x16", why["linear1.weight"])

    def test_tied_to_an_embedding(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(1)
                self.embed, self.body, self.head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7, bias=False)
                self.head.weight = self.embed.weight

            def forward(self, x):
                return self.head(torch.tanh(self.body(self.embed(x))))
        x = torch.randint(7, (6,))
        why = self.untouched(Tied(), lambda m: F.cross_entropy(m(x), x), ["embed.weight"])
        self.assertEqual(why["embed.weight"], "tied to 'head.weight'")

    def test_frozen(self):
        model, data = net(), batch()
        model[0].requires_grad_(False)
        model[6].weight.requires_grad_(False)
        why = self.untouched(model, lambda m: loss_of(m, *data), ["6.bias"])
        self.assertIn("frozen", why["0.weight"])
        self.assertIn("its weight is frozen, its bias is not", why["6.bias"])
        self.assertIsNone(model[0].weight.grad)

    def test_computed_weights_and_forwards_of_ones_own(self):
        class Mine(nn.Linear):
            def forward(self, x):
                return super().forward(x) * 2
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), Mine(4, 3), nn.Linear(3, 3))
        data = batch(6, shape=(4,))
        why = self.untouched(model, lambda m: loss_of(m, *data), ["0.weight_v", "0.bias", "1.weight"])
        self.assertIn("computed", why["0.weight_v"])
        self.assertIn("custom forward", why["1.weight"])

    def test_frozen_between_steps(self):
        model, data = net(), batch()
        k = make(model)
        for frozen in (False, True, False):
            model[8].requires_grad_(not frozen)
            model.zero_grad(set_to_none=True)
            loss_of(model, *data).backward()
            self.assertEqual(k.step(), 0)
        self.assertEqual(k.report()["layers"][4]["observations"], 4)  # inputs and output gradients of two steps
        model[0].requires_grad_(False)
        other = make(model)
        model[0].requires_grad_(True)
        loss_of(model, *data).backward()
        with self.refused("'0.weight' was frozen when"):
            other.step()


if __name__ == "__main__":
    unittest.main()
