"""Models and calls that are rejected by name, because the library could not observe the right arrays."""
import unittest

import torch
from torch import nn
import torch.nn.functional as F

from front import NEW, Case, random_batch, loss_of, make_preconditioner, small_conv_net, gradients_after_step


class RejectedModels(Case):
    def assert_step_refused(self, model, x, pattern, k=None):
        k = k or make_preconditioner(model)
        with self.assert_refused(pattern):
            model(x).sum().backward()
            k.step()

    def test_unsupported_dtypes_and_layouts(self):
        with self.assert_refused("'0.weight' is complex64: expected float32, float64"):
            make_preconditioner(small_conv_net().to(torch.complex64))
        with self.assert_refused("no shape yet"):
            make_preconditioner(nn.Sequential(nn.LazyLinear(3)))

    def test_unsupported_wrappers(self):
        for name in ("FullyShardedDataParallel", "DataParallel", "ScriptModule"):
            wrapper = type(name, (nn.Module,), {"__module__": "torch.stand_in"})
            for model in (wrapper(), nn.Sequential(wrapper())):
                with self.assert_refused(f"is a {name}: "):
                    make_preconditioner(model)
        with self.assert_refused("is a DataParallel"):
            make_preconditioner(nn.DataParallel(small_conv_net()))
        with self.assert_refused("ScriptModule"):
            make_preconditioner(torch.jit.script(nn.Linear(2, 2)))

    def test_error_names_unobserved_layer(self):
        class WeightUsedDirectly(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

            def forward(self, x):
                return self.b(F.linear(x, self.a.weight, self.a.bias))
        self.assert_step_refused(WeightUsedDirectly(), torch.randn(5, 4),
                                 "'a' was never observed.*another module uses its weight")
        model = WeightUsedDirectly()
        model.a.eval()
        model.forward = lambda x: model.b(model.a(x))
        self.assert_step_refused(model, torch.randn(5, 4), "'a' was never observed.*eval mode")

    def test_error_names_unused_layer(self):
        class UnusedLayer(nn.Module):
            def __init__(self):
                super().__init__()
                self.spare, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

            def forward(self, x):
                return self.b(x)
        self.assert_step_refused(UnusedLayer(), torch.randn(5, 4),
                                 "'spare': the gradient of its weight is not bound; missing = keep")
        model = UnusedLayer()
        model.forward = lambda x: model.b(model.spare(x))
        k = make_preconditioner(model)
        model(torch.randn(5, 4)).sum().backward()
        k.step()
        model.zero_grad(set_to_none=True)
        del model.forward  # used once, and not any more: nothing is left of the old gradient
        self.assert_step_refused(model, torch.randn(5, 4), "'spare': the gradient of its weight is not bound", k)
        model = UnusedLayer()
        k = make_preconditioner(model, missing="keep")
        model(torch.randn(5, 4)).sum().backward()
        self.assertEqual(k.step(), 0)
        self.assertIsNone(model.spare.weight.grad)

    def test_removed_hook_is_refused(self):
        model = small_conv_net()
        k = make_preconditioner(model)
        loss_of(model, *random_batch()).backward()
        k.step()
        model[6]._forward_hooks.clear()
        self.assert_step_refused(model, random_batch()[0], "layer '6': its hook was removed", k)

    def test_replaced_module_is_refused(self):
        model = small_conv_net()
        k = make_preconditioner(model)
        model[6] = nn.Linear(48, 5)
        self.assert_step_refused(model, random_batch()[0], "module '6' was replaced or removed", k)

    def test_warning_names_layer_not_observed(self):
        model = small_conv_net()
        k = make_preconditioner(model)
        for hidden in (False, True):
            model[8].eval() if hidden else None
            model.zero_grad()
            loss_of(model, *random_batch()).backward()
            if hidden:
                with self.assertWarnsRegex(UserWarning, "layer '8' was not observed in step 1"):
                    self.assertEqual(k.step(), 3)
            else:
                k.step()

    def test_input_changed_in_place_is_refused(self):
        class InputChangedInPlace(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                h = self.a(x).float()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    out = self.b(h)  # saves its bf16 copy, so autograd does not mind
                h.add_(1)
                return out.float() + h
        self.assert_step_refused(InputChangedInPlace(), torch.randn(5, 4), "layer 'b': its input was changed in place")

    def test_input_passed_by_keyword(self):
        class CalledByKeyword(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(1)
                self.a = nn.Linear(4, 3)

            def forward(self, x):
                return self.a(input=x)
        data = random_batch(6, shape=(4,))
        if NEW:
            plain = nn.Sequential(CalledByKeyword().a)
            self.assert_same_tensors(gradients_after_step(CalledByKeyword(), data),
                                     {f"a.{n[2:]}": g for n, g in gradients_after_step(plain, data).items()})
        else:
            self.assert_step_refused(CalledByKeyword(), data[0], "layer 'a' was called with keywords")

    def test_rows_not_divisible_by_samples_are_refused(self):
        class CutRows(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(4, 3)

            def forward(self, x):
                return self.a(x.reshape(-1, 4)[:13])
        self.assert_step_refused(CutRows(), torch.randn(5, 3, 4), "layer 'a': an array is .13, .*5 samples")
        k = make_preconditioner(CutRows(), samples="layer")
        k.model(torch.randn(5, 3, 4)).sum().backward()
        self.assertEqual(k.step(), 0)

    def test_shared_weight_with_other_padding_is_refused(self):
        model = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=0))
        model[1].weight, model[1].bias = model[0].weight, model[0].bias
        with self.assert_refused("'1' and '0' share their weight"):
            make_preconditioner(model)


if __name__ == "__main__":
    unittest.main()
