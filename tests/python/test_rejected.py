"""Models and calls that are rejected by name, because the library could not observe the right arrays."""
import unittest

import torch
from torch import nn
import torch.nn.functional as F

from front import NEW, Case, batch, loss_of, make, net, one_step


class Refused(Case):
    def stepped(self, model, x, pattern, k=None):
        k = k or make(model)
        with self.refused(pattern):
            model(x).sum().backward()
            k.step()

    def test_dtypes_and_layouts(self):
        with self.refused("'0.weight' is complex64: expected float32, float64"):
            make(net().to(torch.complex64))
        with self.refused("no shape yet"):
            make(nn.Sequential(nn.LazyLinear(3)))

    def test_wrapped_models(self):
        for name in ("FullyShardedDataParallel", "DataParallel", "ScriptModule"):
            wrapper = type(name, (nn.Module,), {"__module__": "torch.stand_in"})
            for model in (wrapper(), nn.Sequential(wrapper())):
                with self.refused(f"is a {name}: "):
                    make(model)
        with self.refused("is a DataParallel"):
            make(nn.DataParallel(net()))
        with self.refused("ScriptModule"):
            make(torch.jit.script(nn.Linear(2, 2)))

    @unittest.skipUnless(NEW, "torch.compile is in PyTorch 2")
    def test_compiled_models(self):
        with self.refused("the model is a OptimizedModule: .*compile"):
            make(torch.compile(net(), backend="eager"))
        inside = net()
        inside[6].compile(backend="eager")
        with self.refused("'6' was compiled in place"):
            make(inside)
        model = net()
        k = make(model)
        with self.assertRaisesRegex(Exception, "compile"):
            torch.compile(model, backend="eager")(batch()[0]).sum().backward()
            k.step()

    def test_never_observed(self):
        class Around(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

            def forward(self, x):
                return self.b(F.linear(x, self.a.weight, self.a.bias))
        self.stepped(Around(), torch.randn(5, 4), "'a' was never observed.*another module uses its weight")
        model = Around()
        model.a.eval()
        model.forward = lambda x: model.b(model.a(x))
        self.stepped(model, torch.randn(5, 4), "'a' was never observed.*eval mode")

    def test_unused(self):
        class Spare(nn.Module):
            def __init__(self):
                super().__init__()
                self.spare, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

            def forward(self, x):
                return self.b(x)
        self.stepped(Spare(), torch.randn(5, 4), "'spare': the gradient of its weight is not bound; missing = keep")
        model = Spare()
        model.forward = lambda x: model.b(model.spare(x))
        k = make(model)
        model(torch.randn(5, 4)).sum().backward()
        k.step()
        model.zero_grad(set_to_none=True)
        del model.forward  # used once, and not any more: nothing is left of the old gradient
        self.stepped(model, torch.randn(5, 4), "'spare': the gradient of its weight is not bound", k)
        model = Spare()
        k = make(model, missing="keep")
        model(torch.randn(5, 4)).sum().backward()
        self.assertEqual(k.step(), 0)
        self.assertIsNone(model.spare.weight.grad)

    def test_a_lost_hook(self):
        model = net()
        k = make(model)
        loss_of(model, *batch()).backward()
        k.step()
        model[6]._forward_hooks.clear()
        self.stepped(model, batch()[0], "layer '6': its hook was removed", k)

    def test_a_replaced_module(self):
        model = net()
        k = make(model)
        model[6] = nn.Linear(48, 5)
        self.stepped(model, batch()[0], "module '6' was replaced or removed", k)

    def test_later_without_observation(self):
        model = net()
        k = make(model)
        for hidden in (False, True):
            model[8].eval() if hidden else None
            model.zero_grad()
            loss_of(model, *batch()).backward()
            if hidden:
                with self.assertWarnsRegex(UserWarning, "layer '8' was not observed in step 1"):
                    self.assertEqual(k.step(), 3)
            else:
                k.step()

    def test_an_input_that_is_changed_in_place(self):
        class Changed(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                h = self.a(x).float()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    out = self.b(h)  # saves its bf16 copy, so autograd does not mind
                h.add_(1)
                return out.float() + h
        self.stepped(Changed(), torch.randn(5, 4), "layer 'b': its input was changed in place")

    def test_a_call_by_keyword(self):
        class Keyword(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(1)
                self.a = nn.Linear(4, 3)

            def forward(self, x):
                return self.a(input=x)
        data = batch(6, shape=(4,))
        if NEW:
            plain = nn.Sequential(Keyword().a)
            self.same(one_step(Keyword(), data), {f"a.{n[2:]}": g for n, g in one_step(plain, data).items()})
        else:
            self.stepped(Keyword(), data[0], "layer 'a' was called with keywords")

    def test_samples_that_do_not_divide(self):
        class Rows(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(4, 3)

            def forward(self, x):
                return self.a(x.reshape(-1, 4)[:13])
        self.stepped(Rows(), torch.randn(5, 3, 4), "layer 'a': an array is .13, .*5 samples")
        k = make(Rows(), samples="layer")
        k.model(torch.randn(5, 3, 4)).sum().backward()
        self.assertEqual(k.step(), 0)

    def test_shared_weights_that_compute_differently(self):
        model = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=0))
        model[1].weight, model[1].bias = model[0].weight, model[0].bias
        with self.refused("'1' and '0' share their weight"):
            make(model)


if __name__ == "__main__":
    unittest.main()
