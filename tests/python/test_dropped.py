"""If gradients are dropped without a step, their observations are dropped, too."""
import unittest
import warnings

import torch
from torch import nn

import natgrad
from front import NEW, Case, grads, make
from test_between import Net, copies, data, loss_of

OPTIONS = dict(clip="none", damping=0.1, norm_block="none")


class Dropped(Case):
    def setUp(self):
        self.quiet()

    def after(self, disturb, kind=natgrad.KFAC):
        """Return the gradients or weights after disturb(model, k) and one step."""
        model = Net()
        k = kind(model, lr=0.1, **OPTIONS)
        disturb(model, k)
        loss_of(model, *data()).backward()
        k.step()
        k.close()
        return grads(model) if kind is natgrad.KFAC else copies(model.named_parameters())

    def test_by_the_model(self):
        for kind in (natgrad.KFAC, natgrad.SGD):
            expected = self.after(lambda m, k: None, kind)
            for none in (True, False):
                for scale in (1, float("inf")):
                    for passes in (1, 2):
                        def disturb(m, k):
                            for seed in range(passes):
                                (loss_of(m, *data(seed + 5)) * scale).backward()
                            m.zero_grad(set_to_none=none)
                        with self.subTest(kind=kind.__name__, none=none, scale=scale, passes=passes):
                            self.same(self.after(disturb, kind), expected)

    def test_between_forward_and_backward(self):
        for none in (True, False):
            model = Net()
            k = make(model, norm_block="none")
            loss_of(model, *data(5)).backward()
            loss = loss_of(model, *data())
            model.zero_grad(set_to_none=none)
            loss.backward()
            k.step()
            self.same(grads(model), self.after(lambda m, k: None))

    def test_by_another_optimizer(self):
        def disturb(m, k):
            loss_of(m, *data(5)).backward()
            torch.optim.SGD(m.parameters(), 0.1).zero_grad(set_to_none=none)
        for none in (True, False):
            self.same(self.after(disturb), self.after(lambda m, k: None))

    def test_a_pass_that_is_for_its_input(self):
        """An adversarial example, and a saliency map, which leaves no gradients in the model."""
        def adversarial(m, k):
            for _ in range(2):
                x, y = data(5)
                x.requires_grad_()
                loss_of(m, x, y).backward()
                m.zero_grad()

        def saliency(m, k):
            x = data(5)[0].requires_grad_()
            torch.autograd.grad(m(x).sum(), x)
        for disturb in (adversarial, saliency):
            self.same(self.after(disturb), self.after(lambda m, k: None))

    @unittest.skipUnless(NEW, "PyTorch 1.13 has no GradScaler of the CPU")
    def test_a_grad_scaler_that_skips(self):
        """A skipped step has no effect if the loss overflows, or only a parameter without curvature."""
        for scale in (1, float("inf")):
            found = []
            for skipped in (False, True):
                model = Net()
                model.raw = nn.Parameter(torch.ones(3))
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
                optimizer = natgrad.SGD(model, 0.1, grad_scaler=scaler, **OPTIONS)
                for seed, over in ((5, True), (2, False))[not skipped:]:
                    loss = loss_of(model, *data(seed)) * (scale if over else 1)
                    scaler.scale(loss + (model.raw * (1e38 if over else 0)).sum()).backward()
                    optimizer.note = None
                    scaler.step(optimizer)
                    scaler.update(2.0**10)
                    self.assertEqual(optimizer.note, None if over else 0)
                    model.zero_grad()
                found.append(copies(model.named_parameters()))
            self.same(*found)

    def test_what_is_kept(self):
        """Gradients are scaled, clipped or moved between micro-batches."""
        def play(model, between):
            k = make(model, norm_block="none", accumulation_steps=2)
            for seed in (5, 2):
                (loss_of(model, *data(seed)) / 2).backward()
                between(model)
            k.step()
            return grads(model)

        def clip(model):
            nn.utils.clip_grad_norm_(model.parameters(), 1e6)

        def halved_and_back(model):
            for p in model.parameters():
                p.grad.mul_(0.5)
                p.grad.mul_(2)

        def one_is_none(model):
            model.norm.weight.grad = None
        expected = play(Net(), lambda model: None)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for between in (clip, halved_and_back):
                self.same(play(Net(), between), expected)
            got = play(Net(), one_is_none)
        self.same({n: g for n, g in got.items() if "norm" not in n}, {n: g for n, g in expected.items() if "norm" not in n})

        model = Net()  # both micro-batches count; the second one alone has another curvature
        k = make(model, norm_block="none")
        loss_of(model, *data()).backward()
        k.step()
        self.assertFalse(torch.equal(grads(model)["f1.weight"], expected["f1.weight"]))

    def test_it_is_said_once(self):
        model = Net()
        k = make(model)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for seed in range(3):
                loss_of(model, *data(seed)).backward()
                model.zero_grad(set_to_none=True)
        self.assertEqual(["dropped without a step" in str(w.message) for w in said], [True])
        k.close()


if __name__ == "__main__":
    unittest.main()
