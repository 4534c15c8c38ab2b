"""Invalid arguments, gradients without memory, several threads: the result, or an error that names the argument."""
import threading
import unittest
import warnings

import torch
from torch import nn

import natgrad
from natgrad import compat
from front import batch, loss_of, net

HUGE = 10**400


class Arguments(unittest.TestCase):
    def refused(self, says, call):
        with self.subTest(says), self.assertRaises(natgrad.Error) as caught:
            call()
        self.assertIn(says, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))

    def test_constructors_name_the_argument(self):
        for says, options in {
                "damping": dict(damping="\ud800"), "damping is '0.1\\x00'": dict(damping="0.1\0"), "damping: '": dict(damping=HUGE),
                "damping: its function failed for step 0": dict(damping=lambda: 1), "damping is a Tensor": dict(damping=torch.ones(2)),
                "the name of an option": {"a\0b": 1}, "linalg": dict(linalg="x\0"), "threads": dict(threads=10**30),
                "accumulation_steps": dict(accumulation_steps=HUGE), "layer_options is 3": dict(layer_options=3),
                "layer_options['0']": dict(layer_options={"0": "damping=\ud800"}), "skip_layers is 3": dict(skip_layers=3),
                "grad_scaler": dict(grad_scaler=lambda: "a")}.items():
            self.refused(says, lambda options=options: self.step(natgrad.KFAC(net(), **options)))
        self.refused("model is a int", lambda: natgrad.KFAC(3))

    def step(self, k):
        loss_of(k.model, *batch()).backward()
        k.step()

    def test_numbers_of_a_step_are_named(self):
        k = natgrad.KFAC(net())
        for lr in (HUGE, "x", None, [1]):
            self.refused("lr is", lambda lr=lr: k.step(lr) if lr is not None else natgrad.KFAC(net(), lr=None).step())
        self.refused("samples is", lambda: k.begin(10**30))
        self.refused("loss_scale is", lambda: k.begin(1, loss_scale=HUGE))
        self.refused("path is", lambda: k.save_parts("a\0b"))
        self.refused("path is", lambda: k.load_parts(3))
        self.refused("momentum is 'x'", lambda: natgrad.SGD(net(), 0.1, momentum="x").step())
        self.refused("betas is (1,)", lambda: natgrad.AdamW(net(), betas=(1,)).step())

    def test_published_classes_name_the_argument(self):
        for says, call in {
                "pi_type": lambda: compat.SPNGD(net(), pi_type="nosuch"), "lr: 'x'": lambda: compat.SPNGD(net(), lr="x"),
                "diagonalize is 3": lambda: compat.SPNGD(net(), diagonalize=3),
                "acc_iters": lambda: compat.SPNGD(net(), acc_iters=2.5),
                "unexpected keyword": lambda: compat.DP_KFAC(net(), nosuch=1),
                "compute_method": lambda: compat.KFACPreconditioner(net(), compute_method="zz")}.items():
            self.refused(says, call)

    def test_gradients_without_their_memory_are_refused(self):
        model = net()
        k = natgrad.KFAC(model)
        loss_of(model, *batch()).backward()
        getattr(model[0].weight.grad, "untyped_storage", model[0].weight.grad.storage)().resize_(4)
        self.refused("the gradient of 0.weight has a storage of", k.step)

    def test_strides_that_a_flat_parameter_cannot_have_are_refused(self):
        model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm([2, 3], eps=1e-3))
        model.forward = lambda x: model[1](model[0](x).reshape(-1, 2, 3))
        k = natgrad.MFAC(model, window=2)
        model(torch.ones(4, 6)).square().mean().backward()
        model[1].weight.grad = torch.ones(3, 2).t()
        self.refused("1.weight has the strides (1, 2), expected a contiguous", k.step)


class Threads(unittest.TestCase):
    def test_three_threads_on_one_preconditioner(self):
        """Every call returns or raises natgrad.Error."""
        model, other = net(), []
        k = natgrad.KFAC(model)
        loss_of(model, *batch()).backward()
        k.step()

        def run(call):
            for _ in range(200):
                try:
                    call()
                except natgrad.Error:
                    pass
                except Exception as error:
                    other.append(error)
        threads = [threading.Thread(target=run, args=(call,)) for call in (k.step, k.step, k.state_dict)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(other, [])


if __name__ == "__main__":
    unittest.main()
