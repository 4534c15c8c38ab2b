"""If gradients are dropped without a step, their observations are dropped, too."""
import unittest
import warnings

import torch
from torch import nn

import natgrad
from front import NEW, Case, gradients_of, make_preconditioner
from test_between import NormNet, copy_tensors, loss_of, random_data

OPTIONS = dict(clip="none", damping=0.1, norm_block="none")


class DroppedGradients(Case):
    def setUp(self):
        self.silence_warnings()

    def result_after(self, disturb, kind=natgrad.KFAC):
        """Return the gradients or weights after disturb(model, k) and one step."""
        model = NormNet()
        k = kind(model, lr=0.1, **OPTIONS)
        disturb(model, k)
        loss_of(model, *random_data()).backward()
        k.step()
        k.close()
        return gradients_of(model) if kind is natgrad.KFAC else copy_tensors(model.named_parameters())

    def test_zero_grad_drops_observations(self):
        for kind in (natgrad.KFAC, natgrad.SGD):
            expected = self.result_after(lambda m, k: None, kind)
            for none in (True, False):
                for scale in (1, float("inf")):
                    for passes in (1, 2):
                        def disturb(m, k):
                            for seed in range(passes):
                                (loss_of(m, *random_data(seed + 5)) * scale).backward()
                            m.zero_grad(set_to_none=none)
                        with self.subTest(kind=kind.__name__, none=none, scale=scale, passes=passes):
                            self.assert_same_tensors(self.result_after(disturb, kind), expected)

    def test_zero_grad_between_forward_and_backward(self):
        for none in (True, False):
            model = NormNet()
            k = make_preconditioner(model, norm_block="none")
            loss_of(model, *random_data(5)).backward()
            loss = loss_of(model, *random_data())
            model.zero_grad(set_to_none=none)
            loss.backward()
            k.step()
            self.assert_same_tensors(gradients_of(model), self.result_after(lambda m, k: None))

    def test_zero_grad_of_other_optimizer(self):
        def disturb(m, k):
            loss_of(m, *random_data(5)).backward()
            torch.optim.SGD(m.parameters(), 0.1).zero_grad(set_to_none=none)
        for none in (True, False):
            self.assert_same_tensors(self.result_after(disturb), self.result_after(lambda m, k: None))

    def test_backward_for_input_gradient(self):
        """An adversarial example, and a saliency map, which leaves no gradients in the model."""
        def make_adversarial_input(m, k):
            for _ in range(2):
                x, y = random_data(5)
                x.requires_grad_()
                loss_of(m, x, y).backward()
                m.zero_grad()

        def make_saliency_map(m, k):
            x = random_data(5)[0].requires_grad_()
            torch.autograd.grad(m(x).sum(), x)
        for disturb in (make_adversarial_input, make_saliency_map):
            self.assert_same_tensors(self.result_after(disturb), self.result_after(lambda m, k: None))

    @unittest.skipUnless(NEW, "PyTorch 1.13 has no GradScaler of the CPU")
    def test_step_skipped_by_grad_scaler(self):
        """A skipped step has no effect if the loss overflows, or only a parameter without curvature."""
        for scale in (1, float("inf")):
            found = []
            for skipped in (False, True):
                model = NormNet()
                model.raw = nn.Parameter(torch.ones(3))
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
                optimizer = natgrad.SGD(model, 0.1, grad_scaler=scaler, **OPTIONS)
                for seed, over in ((5, True), (2, False))[not skipped:]:
                    loss = loss_of(model, *random_data(seed)) * (scale if over else 1)
                    scaler.scale(loss + (model.raw * (1e38 if over else 0)).sum()).backward()
                    optimizer.note = None
                    scaler.step(optimizer)
                    scaler.update(2.0**10)
                    self.assertEqual(optimizer.note, None if over else 0)
                    model.zero_grad()
                found.append(copy_tensors(model.named_parameters()))
            self.assert_same_tensors(*found)

    def test_changed_gradients_keep_observations(self):
        """Gradients are scaled, clipped or moved between micro-batches."""
        def gradients_of_two_micro_batches(model, between):
            k = make_preconditioner(model, norm_block="none", accumulation_steps=2)
            for seed in (5, 2):
                (loss_of(model, *random_data(seed)) / 2).backward()
                between(model)
            k.step()
            return gradients_of(model)

        def clip_gradients(model):
            nn.utils.clip_grad_norm_(model.parameters(), 1e6)

        def halve_and_double_gradients(model):
            for p in model.parameters():
                p.grad.mul_(0.5)
                p.grad.mul_(2)

        def drop_one_gradient(model):
            model.norm.weight.grad = None
        expected = gradients_of_two_micro_batches(NormNet(), lambda model: None)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for between in (clip_gradients, halve_and_double_gradients):
                self.assert_same_tensors(gradients_of_two_micro_batches(NormNet(), between), expected)
            got = gradients_of_two_micro_batches(NormNet(), drop_one_gradient)
        self.assert_same_tensors({n: g for n, g in got.items() if "norm" not in n},
                                 {n: g for n, g in expected.items() if "norm" not in n})

        model = NormNet()  # both micro-batches count; the second one alone has another curvature
        k = make_preconditioner(model, norm_block="none")
        loss_of(model, *random_data()).backward()
        k.step()
        self.assertFalse(torch.equal(gradients_of(model)["f1.weight"], expected["f1.weight"]))

    def warnings_of_steps(self, steps=1, kind=natgrad.KFAC, scaler=None, passes=1, unscales=True, **arguments):
        """Return the warnings of `steps` steps of `passes` backward passes."""
        model = NormNet()
        k = kind(model, lr=0.1, **OPTIONS, **arguments)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(steps):
                optimizer = k if kind is natgrad.SGD else torch.optim.SGD(model.parameters(), 0.1)
                optimizer.zero_grad()
                for seed in range(passes):
                    loss = loss_of(model, *random_data(seed)) / passes
                    (loss if scaler is None else scaler.scale(loss)).backward()
                if kind is natgrad.SGD and scaler is not None:
                    scaler.step(optimizer)
                else:
                    if scaler is not None and unscales:
                        scaler.unscale_(optimizer)
                    k.step()
        return [str(one.message) for one in said]

    def test_undeclared_accumulation_is_reported_once(self):
        for kind in (natgrad.KFAC, natgrad.SGD):
            said = self.warnings_of_steps(3, kind=kind, passes=2)
            self.assertEqual(len(said), 1)
            self.assertIn("2 backward passes before step(), and accumulation_steps is 1", said[0])
            self.assertEqual(self.warnings_of_steps(3, kind=kind, passes=2, accumulation_steps=2), [])

    @unittest.skipUnless(NEW, "PyTorch 1.13 has no GradScaler of the CPU")
    def test_undeclared_loss_scale_is_reported_once(self):
        for kind in (natgrad.KFAC, natgrad.SGD):
            for given in (False, True):
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
                said = self.warnings_of_steps(1, kind=kind, scaler=scaler, **{"grad_scaler": scaler} if given else {})
                self.assertEqual(["divided by 1024" in text for text in said], [True] * (not given))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        said = self.warnings_of_steps(3, scaler=scaler, grad_scaler=scaler, unscales=False)
        self.assertEqual(["still contain the loss scale" in text for text in said], [True])

    def test_sum_or_mean_of_losses_is_reported_once(self):
        """Losses whose graph shows the reduction; a loss that was divided, or is a sum of two losses, is not known."""
        entropy, error, none = nn.functional.cross_entropy, nn.functional.mse_loss, dict(reduction="none")
        for reduction, loss, expected, *scale in (
                ("mean", lambda z, y: entropy(z, y, reduction="sum"), "sum"), ("mean", entropy, ""), ("sum", entropy, "mean"),
                ("mean", lambda z, y: entropy(z, y, **none).sum(), "sum"), ("sum", lambda z, y: entropy(z, y, **none).sum(), ""),
                ("mean", lambda z, y: error(z, z.detach() + 1, reduction="sum"), "sum"), ("sum", lambda z, y: z.pow(2).mean(), "mean"),
                ("mean", lambda z, y: 8 * entropy(z, y, reduction="sum"), "sum", 8), ("mean", lambda z, y: z.mean(0).pow(2).sum(), ""),
                ("mean", lambda z, y: entropy(z, y, reduction="sum") / len(y), ""), ("mean", lambda z, y: z.sum() + z.sum(), "")):
            model = nn.Linear(4, 3)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                k = natgrad.KFAC(model, reduction=reduction, grad_scaler=(lambda: 8) if scale else None, **OPTIONS)
                for _ in range(2):
                    model.zero_grad()
                    loss(model(torch.randn(5, 4)), torch.arange(5) % 3).backward()
                    for p in model.parameters() if scale else ():
                        p.grad.div_(8)
                    k.step()
                k.close()
            self.assertEqual([f"the loss is a {expected} over the samples" in str(one.message) for one in said], [True] * bool(expected))

    def test_report_states_assumptions(self):
        k = natgrad.KFAC(NormNet(), **OPTIONS)
        self.assertEqual(k.report()["assumed"], "mean loss, 1 backward a step, no loss scale")
        k = natgrad.KFAC(NormNet(), reduction="sum", accumulation_steps=3, grad_scaler=lambda: 2, **OPTIONS)
        self.assertEqual(k.report()["assumed"], "sum loss, 3 backward a step, the loss scale of grad_scaler")

    def test_warning_appears_once(self):
        model = NormNet()
        k = make_preconditioner(model)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for seed in range(3):
                loss_of(model, *random_data(seed)).backward()
                model.zero_grad(set_to_none=True)
        self.assertEqual(["dropped without a step" in str(w.message) for w in said], [True])
        k.close()


if __name__ == "__main__":
    unittest.main()
