"""The library observes the right arrays, or the call is rejected by name: numbers against the oracle, exclusions."""
import copy
import pickle
import unittest
import warnings

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import oracle
import natgrad
from front import (DAMPING, NEW, Case, gradients_after_step, gradients_of, loss_of, make_preconditioner, random_batch,
                   small_conv_net)
from natgrad import compat

NAMES = ("0", "2", "6", "8")


class Conv1D(nn.Module):
    """Like Conv1D of transformers: a linear layer with the weight [in, out]."""

    def __init__(self, columns, rows):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(columns, rows) / 3), nn.Parameter(torch.zeros(rows))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


Conv1D.__module__ = "transformers.pytorch_utils"


class GradientsMatchOracle(Case):
    """Compared with the oracle."""

    def oracle(self, model, names, *batches, **more):
        m = len(batches)
        return oracle.kfac_gradients(model, names, lambda n: (loss_of(n, x, y) / m for x, y in batches), DAMPING, 1 / m, **more)

    def test_conv_net_matches_oracle(self):
        model, data = small_conv_net(), random_batch()
        self.assert_near_oracle(gradients_after_step(model, data), self.oracle(small_conv_net(), NAMES, data))

    def test_channels_last_matches_oracle(self):
        model, (x, y) = small_conv_net().to(memory_format=torch.channels_last), random_batch()
        got = gradients_after_step(model, (x.to(memory_format=torch.channels_last), y))
        self.assert_near_oracle(got, self.oracle(small_conv_net(), NAMES, (x, y)))

    def test_accumulation_matches_whole_batch(self):
        model = nn.Sequential(nn.Flatten(), nn.Linear(18, 5), nn.Tanh(), nn.Linear(5, 3))
        (x, y), whole = random_batch(12, shape=(2, 3, 3)), copy.deepcopy(model)
        got = gradients_after_step(model, *((x[i::3], y[i::3]) for i in range(3)), accumulation_steps=3)
        self.assert_near_oracle(got, self.oracle(whole, ("1", "3"), (x, y)))

    def test_uneven_micro_batches_given_by_begin(self):
        model = nn.Sequential(nn.Flatten(), nn.Linear(18, 5), nn.Tanh(), nn.Linear(5, 3))
        (x, y), whole = random_batch(12, shape=(2, 3, 3)), copy.deepcopy(model)
        k = make_preconditioner(model)
        for part in (slice(0, 3), slice(3, 12)):
            share = (part.stop - part.start) / 12
            k.begin(part.stop - part.start, share)
            (loss_of(model, x[part], y[part]) * share).backward()
        k.step()
        self.assert_near_oracle(gradients_of(model), self.oracle(whole, ("1", "3"), (x, y)))

    def test_padding_modes_match_oracle(self):
        for kwargs in (dict(padding=1, padding_mode="reflect"), dict(padding=(2, 1), padding_mode="circular"),
                       dict(padding="same"), dict(padding="same", dilation=2), dict(padding="valid"),
                       dict(padding="same", padding_mode="replicate")):
            for kernel in (3, 2, (2, 3)):
                torch.manual_seed(1)
                model = nn.Sequential(nn.Conv2d(2, 3, kernel, **kwargs), nn.AdaptiveAvgPool2d(1), nn.Flatten())
                whole, data = copy.deepcopy(model), random_batch(6, shape=(2, 7, 6))
                with self.subTest(kernel=kernel, **kwargs):
                    self.assert_near_oracle(gradients_after_step(model, data), self.oracle(whole, ("0",), data))

    def test_grouped_conv1d_matches_conv2d(self):
        """A convolution of images of height 1, with the same groups."""
        torch.manual_seed(1)
        flat = nn.Sequential(nn.Conv1d(4, 6, 3, groups=2, padding=1), nn.Flatten(), nn.Linear(42, 3))
        images = nn.Sequential(nn.Conv2d(4, 6, (1, 3), groups=2, padding=(0, 1)), nn.Flatten(), copy.deepcopy(flat[2]))
        with torch.no_grad():
            images[0].weight.copy_(flat[0].weight.unsqueeze(2))
            images[0].bias.copy_(flat[0].bias)
        x, y = random_batch(shape=(4, 7))
        loss_of(flat, x, y).backward()
        plain, found = gradients_of(flat), gradients_after_step(flat, (x, y))
        expected = gradients_after_step(images, (x.unsqueeze(2), y))
        for name, gradient in found.items():
            self.assertFalse(torch.equal(gradient, plain[name]), name)
            # PyTorch sums both convolutions in another order
            self.assertLess(oracle.relative_difference(gradient, expected[name].double().reshape(gradient.shape)), 1e-4, name)

    def test_conv1d_matches_oracle(self):
        for kwargs in (dict(padding=1), dict(padding="same", dilation=3), dict(stride=2), dict(padding="same")):
            for kernel in (3, 4):
                if "padding" in kwargs and kwargs["padding"] == "same" and "stride" in kwargs:
                    continue
                torch.manual_seed(1)
                model = nn.Sequential(nn.Conv1d(2, 3, kernel, **kwargs), nn.AdaptiveAvgPool1d(1), nn.Flatten())
                whole, data = copy.deepcopy(model), random_batch(6, shape=(2, 9))
                with self.subTest(kernel=kernel, **kwargs):
                    self.assert_near_oracle(gradients_after_step(model, data), self.oracle(whole, ("0",), data))

    def test_two_image_sizes_match_oracle(self):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
        whole, data = copy.deepcopy(model), (random_batch(6), random_batch(6, 3, (2, 11, 5)))
        self.assert_near_oracle(gradients_after_step(model, *data, accumulation_steps=2), self.oracle(whole, ("0", "4"), *data))

    def test_model_of_one_layer(self):
        torch.manual_seed(1)
        model, (x, y) = nn.Linear(4, 3), random_batch(6, shape=(4,))
        whole = copy.deepcopy(model)
        k = make_preconditioner(model)
        self.assertEqual([row["name"] for row in k.explain()], ["root.weight", "root.bias"])
        loss_of(model, x, y).backward()
        k.step()
        self.assert_near_oracle(gradients_of(model), self.oracle(whole, ("",), (x, y)))

    def test_batch_first_and_positions_first(self):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        x = torch.randn(6, 3, 4)
        expected = oracle.kfac_gradients(model, ("0", "2"), lambda m: [m(x.double()).pow(2).mean()], DAMPING)
        reduced = {}
        for first, kind in ((True, "view"), (False, "view"), (True, "flat"), (False, "flat"), (True, "turned"),
                            (False, "turned")):
            for positions in ("expand", "reduce"):
                m = copy.deepcopy(model)
                k = make_preconditioner(m, batch_first=first, positions=positions)
                given = x if first == (kind != "turned") else x.transpose(0, 1).contiguous()
                if kind != "view":  # layers have one leading axis, or axes in another order; there are 6 samples
                    k.begin(6)
                if kind == "flat":
                    given = given.reshape(18, 4)
                m(given).pow(2).mean().backward()
                k.step()
                with self.subTest(first=first, kind=kind, positions=positions):
                    if positions == "expand":
                        self.assert_near_oracle(gradients_of(m), expected)
                    reduced.setdefault(positions, gradients_of(m))
                    for name, g in reduced[positions].items():
                        self.assertLess(oracle.relative_difference(gradients_of(m)[name], g.double()), 1e-4, name)

    def test_module_called_twice_and_shared_weights(self):
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
        data = random_batch(6, shape=(4,))
        expected = self.oracle(Twice(False), ("a", "c"), data)
        for shared in (False, True):
            with self.subTest(shared=shared):
                self.assert_near_oracle(gradients_after_step(Twice(shared), data), expected)

    def test_frozen_bias_keeps_curvature_of_weight(self):
        model, data = small_conv_net(), random_batch()
        model[8].bias.requires_grad_(False)
        expected = self.oracle(small_conv_net(), ("8",), data, bias=False)
        got = gradients_after_step(model, data)
        self.assert_near_oracle(got, expected)
        self.assertNotIn("8.bias", got)

    def test_autocast_matches_oracle(self):
        model, (x, y) = small_conv_net(), random_batch()

        def autocast_loss(n):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = n(x)
            self.assertEqual(out.dtype, torch.bfloat16)
            return F.cross_entropy(out.float(), y)
        k = make_preconditioner(model)
        autocast_loss(model).backward()
        k.step()
        # The bf16 inputs and gradients depend on the processor, so the oracle uses the same arrays.
        expected = oracle.kfac_gradients(small_conv_net(), NAMES, lambda n: [autocast_loss(n)], DAMPING, rounded=True)
        self.assert_near_oracle(gradients_of(model), expected)


class CallsOutsideTheLoss(Case):
    """Calls that are no part of the loss change no bit."""

    def check_no_effect(self, disturb, **options):
        data = random_batch()
        expected = gradients_after_step(small_conv_net(), data, **options)
        model = small_conv_net()
        k = make_preconditioner(model, **options)
        disturb(model, k)
        model.zero_grad()
        loss_of(model, *data).backward()
        self.assertEqual(k.step(), 0)
        self.assert_same_tensors(gradients_of(model), expected)

    def test_no_grad_forward_has_no_effect(self):
        def disturb(model, _):
            with torch.no_grad():
                model[0](torch.randn(5, 2, 8, 8)), model[8](torch.randn(7, 5))
        self.check_no_effect(disturb)

    def test_eval_forward_has_no_effect(self):
        def disturb(model, _):
            model.eval()
            loss_of(model, *random_batch(5, 9)).backward()
            model.train()
        self.check_no_effect(disturb)

    def test_forward_without_backward_has_no_effect(self):
        self.check_no_effect(lambda model, _: model[8](model[6](torch.randn(4, 48))))

    def test_disabled_hooks_observe_nothing(self):
        for forward, backward in ((False, False), (False, True), (True, False)):
            def disturb(model, k):
                k.hook_enabled = forward
                out = model[8](torch.randn(4, 5)).sum()
                k.hook_enabled = backward
                out.backward()
                k.hook_enabled = True
            with self.subTest(forward=forward, backward=backward):
                self.check_no_effect(disturb)

    def test_reset_batch_drops_observations(self):
        def disturb(model, k):
            model[8](torch.randn(4, 5)).sum().backward()
            k.reset_batch()
        self.check_no_effect(disturb)

    def test_copied_model_has_no_hooks(self):
        def disturb(model, _):
            for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
                loss_of(other, *random_batch(5, 9)).backward()
        self.check_no_effect(disturb)

    def test_closed_preconditioner_removes_hooks(self):
        def disturb(model, _):
            other = make_preconditioner(model)
            other.close()
            self.assertEqual(len(model[0]._forward_hooks), 1)
        self.check_no_effect(disturb)

    def test_checkpointing_keeps_gradients(self):
        class CheckpointedNet(nn.Module):
            def __init__(self, how):
                super().__init__()
                self.body, self.how = small_conv_net(), how

            def forward(self, x):
                if self.how is None:
                    return self.body(x)
                # the checkpoint omits the last layers, because PyTorch 2 may stop a repeated forward pass early
                return self.body[7:](checkpoint(self.body[:7], x.requires_grad_(), use_reentrant=self.how))
        for options in (dict(), dict(calls="ema", stat_scale="chainerkfac", stat_start="identity")):
            expected = gradients_after_step(CheckpointedNet(None), random_batch(), **options)
            for how in (True, False):
                with self.subTest(reentrant=how, **options), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self.assert_same_tensors(gradients_after_step(CheckpointedNet(how), random_batch(), **options), expected)

    def test_set_to_none_keeps_results(self):
        """Two steps, with and without set_to_none between them."""
        found = []
        for none in (True, False):
            model = small_conv_net()
            k = make_preconditioner(model)
            for seed in (2, 3):
                model.zero_grad(set_to_none=none)
                loss_of(model, *random_batch(seed=seed)).backward()
                k.step()
            found.append(gradients_of(model))
        self.assert_same_tensors(*found)


class FixedScaler:
    def __init__(self, scale):
        self.scale = scale

    def get_scale(self):
        return self.scale


class MixedPrecision(Case):
    def test_loss_scale_keeps_gradients(self):
        data = random_batch()
        expected = gradients_after_step(small_conv_net(), data)
        for scaler in (FixedScaler(1024.0), lambda: 1024.0):
            model = small_conv_net()
            k = make_preconditioner(model, grad_scaler=scaler)
            (loss_of(model, *data) * 1024.0).backward()
            for p in model.parameters():
                p.grad /= 1024.0  # unscale_
            k.step()
            self.assert_same_tensors(gradients_of(model), expected)  # a power of two

    def test_skipped_step_has_no_effect(self):
        data, scaler = random_batch(), FixedScaler(1024.0)
        expected = gradients_after_step(small_conv_net(), data)
        model = small_conv_net()
        k = make_preconditioner(model, grad_scaler=scaler)
        (loss_of(model, *random_batch(seed=5)) * float("inf")).backward()
        before = gradients_of(model)
        self.assertEqual(k.step(), 2)
        self.assertEqual(k.steps, 0)
        for name, p in model.named_parameters():
            self.assertEqual(p.grad.numpy().tobytes(), before[name].numpy().tobytes(), name)
        model = small_conv_net()  # the batch norm has had two batches; gradients in training mode do not depend on them
        k = make_preconditioner(model, grad_scaler=scaler)
        (loss_of(model, *random_batch(seed=5)) * float("inf")).backward()
        k.step()
        model.zero_grad()
        scaler.scale = 1.0
        loss_of(model, *data).backward()
        self.assertEqual(k.step(), 0)
        self.assert_same_tensors(gradients_of(model), expected)

    @unittest.skipUnless(NEW, "a GradScaler for the CPU is in PyTorch 2")
    def test_pytorch_grad_scaler_keeps_gradients(self):
        model, data = small_conv_net(), random_batch()
        expected = gradients_after_step(small_conv_net(), data)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        k = make_preconditioner(model, grad_scaler=scaler)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scaler.scale(loss_of(model, *data)).backward()
        scaler.unscale_(optimizer)
        k.step()
        self.assert_same_tensors(gradients_of(model), expected)
        scaler.step(optimizer)
        scaler.update()


class WithoutCurvature(Case):
    """Parameters without curvature keep their gradients, and explain() says why."""

    def why_by_name(self, k):
        return {row["name"]: row["why"] for row in k.explain()}

    def assert_gradients_untouched(self, model, loss, names, **options):
        loss(model).backward()
        plain = gradients_of(model)
        k = make_preconditioner(model, **options)
        model.zero_grad()
        loss(model).backward()
        k.step()
        for name in names:
            self.assertTrue(torch.equal(gradients_of(model)[name], plain[name]), name)
        return self.why_by_name(k)

    def test_norms_without_block_keep_gradients(self):
        data = random_batch()
        why = self.assert_gradients_untouched(small_conv_net(), lambda m: loss_of(m, *data), ["3.weight", "3.bias"],
                                              norm_block="none")
        self.assertEqual(why["3.weight"], "norm_block = none")
        model = nn.Sequential(nn.SyncBatchNorm(3), nn.Flatten(), nn.Linear(12, 3))
        self.assertIn("SyncBatchNorm takes its mean over all ranks",
                      self.why_by_name(make_preconditioner(model))["0.weight"])

    def test_matrices_of_other_modules_keep_gradients(self):
        torch.manual_seed(1)
        model, x = nn.Sequential(nn.Linear(8, 6), nn.Bilinear(6, 6, 5), nn.Linear(5, 16)), torch.randn(5, 8)

        def loss(m):
            h = m[0](x)
            return m[2](m[1](h, h)).pow(2).mean()
        with self.assertWarnsRegex(UserWarning, r"58% of the elements of matrices .* largest: 1.weight: a parameter of Bilinear\."):
            k = make_preconditioner(copy.deepcopy(model), batch_first=False)
        k.close()
        self.silence_warnings()
        why = self.assert_gradients_untouched(model, loss, ["1.weight", "1.bias"])
        self.assertIn("A 6x6, G 16x16", why["2.weight"])

    def test_warning_names_the_line_of_the_user(self):
        for kind in (natgrad.KFAC, lambda m: natgrad.SGD(m, 0.1), lambda m: natgrad.AdamW(m, 0.1), compat.EVA):
            with self.assertWarnsRegex(UserWarning, "elements of matrices") as said:
                kind(nn.LSTM(8, 8))
            self.assertEqual(said.filename, __file__)

    def test_excluded_matrices_give_no_warning(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for skipped in ("self_attn", "MultiheadAttention"):
                make_preconditioner(nn.TransformerEncoderLayer(8, 2, 16), skip_layers=[skipped, "out_proj"])
            make_preconditioner(nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 3)), method="kaisa")

    def test_few_matrices_without_curvature_give_no_warning(self):
        torch.manual_seed(1)
        model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 128, dropout=0.0), nn.Embedding(9, 4))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make_preconditioner(model).close()  # 256 of 2,340
            make_preconditioner(model, skip_layers="linear", norm_block="none").close()
            natgrad.MFAC(model).close()  # a window covers everything

    def test_transposed_weight_of_conv1d(self):
        """Results equal nn.Linear up to the order of sums."""
        makers = (lambda m: make_preconditioner(m), natgrad.Eva, lambda m: natgrad.MFAC(m, window=3),
                  lambda m: natgrad.SGD(m, lr=0.1, momentum=0.9, damping=0.1), lambda m: natgrad.AdamW(m, weight_decay=0.1),
                  lambda m: natgrad.SGD(m, lr=0.1, method="eva-f"), lambda m: natgrad.KFAC(m, clip="ratio", clip_bound=0.01))
        for make in makers:
            torch.manual_seed(3)
            model = nn.Sequential(Conv1D(4, 6), nn.Tanh(), Conv1D(6, 3))
            other = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
            with torch.no_grad():
                for mine, theirs in ((model[0], other[0]), (model[2], other[2])):
                    theirs.weight.copy_(mine.weight.t())
                    theirs.bias.copy_(mine.bias)
            for net, k in ((model, make(model)), (other, make(other))):
                for t in range(4):
                    torch.manual_seed(t)
                    net.zero_grad()
                    net(torch.randn(2, 5, 4)).pow(2).mean().backward()
                    k.step()
                self.assertEqual(sum(row["covered"] for row in k.explain()), 4)
            for mine, theirs in ((model[0], other[0]), (model[2], other[2])):
                for a, b in ((mine.weight.t(), theirs.weight), (mine.weight.grad.t(), theirs.weight.grad)):
                    self.assertLess(((a - b).norm() / b.norm()).item(), 1e-5)

    def test_custom_forward_of_conv1d_keeps_gradient(self):
        kind = type("Conv1D", (nn.Linear,), {"__module__": "transformers.pytorch_utils"})
        model = nn.Sequential(kind(4, 4), nn.utils.weight_norm(kind(4, 4)), nn.Linear(4, 3))
        model[0].forward = nn.Linear(4, 4).forward
        self.silence_warnings()
        why = self.why_by_name(make_preconditioner(model))
        self.assertIn("custom forward", why["0.weight"])
        self.assertIn("computed", why["1.weight_v"])

    def test_weight_of_linear_and_conv1d_keeps_gradient(self):
        """A linear layer and a Conv1D that share a weight use its transpose, so the factors differ."""
        for first, second in ((nn.Linear(4, 6), Conv1D(6, 4)), (Conv1D(4, 6), nn.Linear(6, 4))):
            second.weight = first.weight
            model = nn.Sequential(first, second, nn.Linear(4, 3))
            x, y = torch.randn(8, 4), torch.randint(3, (8,))
            why = self.assert_gradients_untouched(model, lambda m: F.cross_entropy(m(x), y), ["0.weight"])
            self.assertRegex(why["0.weight"], "^tied to '1.weight' of a .*, whose factors differ$")
            with self.assertWarnsRegex(UserWarning, "0.weight: tied to '1.weight'"):
                make_preconditioner(model)

    def test_tied_embedding_keeps_gradient(self):
        class TiedNet(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(1)
                self.embed, self.body, self.head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7, bias=False)
                self.head.weight = self.embed.weight

            def forward(self, x):
                return self.head(torch.tanh(self.body(self.embed(x))))
        x = torch.randint(7, (6,))
        why = self.assert_gradients_untouched(TiedNet(), lambda m: F.cross_entropy(m(x), x), ["embed.weight"])
        self.assertEqual(why["embed.weight"], "tied to 'head.weight' of a Linear, whose factors differ")
        for body, start in (((4, 4), "The largest"), ((4, 400, 4), "Tied")):  # the table has 64 % and 1 % of the elements
            for method in ("natgrad", "kaisa"):
                model = TiedNet()
                model.body = nn.Sequential(*(nn.Linear(*sizes) for sizes in zip(body, body[1:])))
                with self.assertWarnsRegex(UserWarning, start + ": embed.weight: .*tied to 'head.weight'"):
                    make_preconditioner(model, method=method)

    def test_frozen_layers_keep_gradients(self):
        model, data = small_conv_net(), random_batch()
        model[0].requires_grad_(False)
        model[6].weight.requires_grad_(False)
        why = self.assert_gradients_untouched(model, lambda m: loss_of(m, *data), ["6.bias"])
        self.assertIn("frozen", why["0.weight"])
        self.assertIn("its weight is frozen, its bias is not", why["6.bias"])
        self.assertIsNone(model[0].weight.grad)

    def test_custom_forward_and_computed_weight(self):
        class CustomLinear(nn.Linear):
            def forward(self, x):
                return super().forward(x) * 2
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), CustomLinear(4, 3), nn.Linear(3, 3))
        data = random_batch(6, shape=(4,))
        why = self.assert_gradients_untouched(model, lambda m: loss_of(m, *data), ["0.weight_v", "0.bias", "1.weight"])
        self.assertIn("computed", why["0.weight_v"])
        self.assertIn("custom forward", why["1.weight"])

    def test_layer_frozen_for_one_step(self):
        model, data = small_conv_net(), random_batch()
        k = make_preconditioner(model)
        for frozen in (False, True, False):
            model[8].requires_grad_(not frozen)
            model.zero_grad(set_to_none=True)
            loss_of(model, *data).backward()
            self.assertEqual(k.step(), 0)
        self.assertEqual(k.report()["layers"][4]["observations"], 4)  # inputs and output gradients of two steps
        model[0].requires_grad_(False)
        other = make_preconditioner(model)
        model[0].requires_grad_(True)
        loss_of(model, *data).backward()
        with self.assert_refused("'0.weight' was frozen when"):
            other.step()


if __name__ == "__main__":
    unittest.main()
