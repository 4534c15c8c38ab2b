"""Models of torch.compile: hooks run in Python between compiled parts."""
import copy
import unittest

import torch
from torch import nn

import natgrad
from front import Case, NEW, gradients_of, loss_of, make_preconditioner, random_batch, small_conv_net
from natgrad import compat

BACKEND = dict(backend="aot_eager")  # autograd as with the default backend, without a C++ compiler


def gradients_of_steps(how, make=make_preconditioner):
    """Return the gradients after two steps of a model that is compiled in the given way."""
    model = compiled = small_conv_net()
    if how == "whole" or how == "used before":
        compiled = torch.compile(model, **BACKEND)
    elif how == "in place":
        model.compile(**BACKEND)
    elif how == "part in place":
        model[6].compile(**BACKEND)
    if how == "used before":
        copied = copy.deepcopy(model[3].state_dict())
        loss_of(compiled, *random_batch()).backward()
        model[3].load_state_dict(copied)
    k = make(compiled)
    for seed in (1, 2):
        model.zero_grad()
        loss_of(compiled, *random_batch(seed=seed)).backward()
        k.step()
    return gradients_of(model)


@unittest.skipUnless(NEW, "torch.compile is in PyTorch 2")
class CompiledModels(Case):
    def test_gradients_equal_the_model_without_compiler(self):
        for make in (make_preconditioner, lambda m: natgrad.SGD(m, 0.1, damping=0.1), lambda m: compat.EVA(m, damping=0.1)):
            expected = gradients_of_steps("not", make)
            for how in ("whole", "used before", "in place", "part in place")[:4 if make is make_preconditioner else 1]:
                found = gradients_of_steps(how, make)
                for name, gradient in expected.items():
                    self.assertTrue(torch.allclose(found[name], gradient, rtol=1e-4, atol=1e-6), (how, name))

    def test_attention_keeps_gradients(self):
        model = torch.compile(nn.TransformerEncoderLayer(8, 2, 16), **BACKEND)
        with self.assertWarnsRegex(UserWarning, "self_attn.in_proj_weight"):
            make_preconditioner(model)

    def test_compilation_after_construction_is_refused(self):
        model = small_conv_net()
        k = make_preconditioner(model)
        with self.assertRaisesRegex(Exception, "compile the model before the preconditioner is made"):
            torch.compile(model, **BACKEND)(random_batch()[0]).sum().backward()
            k.step()


if __name__ == "__main__":
    unittest.main()
