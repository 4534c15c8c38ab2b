"""Invalid arguments, gradients without memory, several threads: the result, or an error that names the argument."""
import threading
import unittest
import warnings
from unittest import mock

import torch
from torch import nn

import natgrad
from natgrad import compat
from front import random_batch, loss_of, small_conv_net

HUGE = 10**400


class Arguments(unittest.TestCase):
    def assert_error_says(self, says, call):
        with self.subTest(says), self.assertRaises(natgrad.Error) as caught:
            call()
        self.assertIn(says, str(caught.exception))
        self.assertNotRegex(str(caught.exception), r"[\0-\x1f\x7f]")

    def test_constructors_name_the_argument(self):
        for says, options in {
                "damping": dict(damping="\ud800"), "damping is '0.1\\x00'": dict(damping="0.1\0"), "damping: '": dict(damping=HUGE),
                "damping: its function failed for step 0": dict(damping=lambda: 1), "damping is a Tensor": dict(damping=torch.ones(2)),
                "the name of an option": {"a\0b": 1}, "linalg": dict(linalg="x\0"), "threads": dict(threads=10**30),
                "accumulation_steps": dict(accumulation_steps=HUGE), "layer_options is 3": dict(layer_options=3),
                "layer_options['0']": dict(layer_options={"0": "damping=\ud800"}), "skip_layers is 3": dict(skip_layers=3),
                "grad_scaler": dict(grad_scaler=lambda: "a")}.items():
            self.assert_error_says(says, lambda options=options: self.backward_and_step(natgrad.KFAC(small_conv_net(), **options)))
        self.assert_error_says("model is a int", lambda: natgrad.KFAC(3))

    def backward_and_step(self, k):
        loss_of(k.model, *random_batch()).backward()
        k.step()

    def test_step_and_begin_name_the_argument(self):
        k = natgrad.KFAC(small_conv_net())
        for lr in (HUGE, "x", None, [1]):
            self.assert_error_says("lr is", lambda lr=lr: k.step(lr) if lr is not None else
                                   natgrad.KFAC(small_conv_net(), lr=None).step())
        self.assert_error_says("samples is", lambda: k.begin(10**30))
        self.assert_error_says("loss_scale is", lambda: k.begin(1, loss_scale=HUGE))
        self.assert_error_says("path is", lambda: k.save_parts("a\0b"))
        self.assert_error_says("path is", lambda: k.load_parts(3))
        self.assert_error_says("momentum is 'x'", lambda: natgrad.SGD(small_conv_net(), 0.1, momentum="x").step())
        self.assert_error_says("betas is (1,)", lambda: natgrad.AdamW(small_conv_net(), betas=(1,)).step())

    def test_published_classes_name_the_argument(self):
        for says, call in {
                "pi_type": lambda: compat.SPNGD(small_conv_net(),
                                                pi_type="nosuch"), "lr: 'x'": lambda: compat.SPNGD(small_conv_net(), lr="x"),
                "diagonalize is 3": lambda: compat.SPNGD(small_conv_net(), diagonalize=3),
                "acc_iters": lambda: compat.SPNGD(small_conv_net(), acc_iters=2.5),
                "unexpected keyword": lambda: compat.DP_KFAC(small_conv_net(), nosuch=1),
                "compute_method": lambda: compat.KFACPreconditioner(small_conv_net(), compute_method="zz")}.items():
            self.assert_error_says(says, call)

    def test_control_characters_are_replaced(self):
        bad, model = "a\n\x1b[31m\x7f", small_conv_net()
        k, curvature = natgrad.KFAC(model), natgrad.Curvature({"fc": (torch.eye(2), torch.eye(3))})
        state = {"steps": 1, "layers": {}, bad: 0}
        for call in (lambda: natgrad.KFAC(model, **{bad: 1}), lambda: natgrad.KFAC(model, damping=bad),
                     lambda: natgrad.KFAC(model, method=bad), lambda: natgrad.KFAC(model, linalg=bad),
                     lambda: natgrad.KFAC(model, layer_options={"0": bad}), lambda: natgrad.KFAC(model, layer_options={bad: "damping=1"}),
                     lambda: natgrad.KFAC(model, skip_layers=bad),
                     lambda: k.load_parts("/" + bad), lambda: k.save_parts("/nosuch/" + bad),
                     lambda: curvature.apply({bad: torch.eye(2)}, 1), lambda: curvature.trace(1, split=bad),
                     lambda: compat.KFACPreconditioner(model, compute_method=bad),
                     lambda: compat.KFACPreconditioner(model).load_state_dict(state), lambda: compat.SPNGD(model, pi_type=bad)):
            self.assert_error_says("a", call)

    def test_gradient_with_freed_storage_is_refused(self):
        model = small_conv_net()
        k = natgrad.KFAC(model)
        loss_of(model, *random_batch()).backward()
        getattr(model[0].weight.grad, "untyped_storage", model[0].weight.grad.storage)().resize_(4)
        self.assert_error_says("the gradient of 0.weight has a storage of", k.step)

    def test_strided_flat_parameter_is_refused(self):
        model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm([2, 3], eps=1e-3))
        model.forward = lambda x: model[1](model[0](x).reshape(-1, 2, 3))
        k = natgrad.MFAC(model, window=2)
        model(torch.ones(4, 6)).square().mean().backward()
        model[1].weight.grad = torch.ones(3, 2).t()
        self.assert_error_says("1.weight has the strides (1, 2), expected a contiguous", k.step)


class Threads(unittest.TestCase):
    def test_three_threads_get_result_or_error(self):
        """Every call returns or raises natgrad.Error."""
        model, other = small_conv_net(), []
        k = natgrad.KFAC(model)
        loss_of(model, *random_batch()).backward()
        k.step()

        def call_repeatedly(call):
            for _ in range(200):
                try:
                    call()
                except natgrad.Error:
                    pass
                except Exception as error:
                    other.append(error)
        threads = [threading.Thread(target=call_repeatedly, args=(call,)) for call in (k.step, k.step, k.state_dict)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(other, [])

    def test_whole_step_waits_for_the_lock(self):
        """A step of another thread does not begin, not even in Python, while this thread has the lock."""
        k, begun = natgrad.KFAC(small_conv_net()), []
        loss_of(k.model, *random_batch()).backward()
        thread = threading.Thread(target=k.step)
        with mock.patch.object(k, "_check_hooks", lambda: begun.append(1)):
            with k._core.lock:
                thread.start()
                thread.join(0.5)
                self.assertEqual(begun, [])
            thread.join()
        self.assertEqual(begun, [1])


if __name__ == "__main__":
    unittest.main()
