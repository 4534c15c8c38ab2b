"""Changes of a model between two steps: parameters that are frozen or replaced, modules that change."""
import unittest

import torch
from torch import nn
import torch.nn.functional as F

import natgrad
from front import NEW, Case, make_preconditioner
from natgrad.compat import KFACPreconditioner

if NEW:
    from torch.func import functional_call
else:
    from torch.nn.utils.stateless import functional_call


class NormNet(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.f1, self.norm, self.f2 = nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, x):
        return self.f2(torch.tanh(self.norm(self.f1(x))))


def random_data(seed=2, samples=6):
    torch.manual_seed(seed)
    return torch.randn(samples, 4), torch.randint(3, (samples,))


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


def copy_tensors(named):
    return {name: p.detach().clone() for name, p in named}


def copy_gradients(model):
    return copy_tensors((name, p.grad) for name, p in model.named_parameters() if p.grad is not None)


class FreezingBetweenSteps(Case):
    """One parameter of a layer is frozen after a step: its gradient is None, or zeros."""

    def test_freezing_part_of_a_layer_is_refused(self):
        for part, other in (("f1.bias", "f1.weight"), ("f1.weight", "f1.bias"), ("norm.bias", "norm.weight"),
                            ("norm.weight", "norm.bias")):
            for none in (False, True):
                for kind in (natgrad.KFAC, natgrad.SGD, natgrad.AdamW, natgrad.MFAC):
                    model = NormNet()
                    k = kind(model, lr=0.1, **({} if kind is natgrad.MFAC else dict(norm_block="unit")))
                    loss_of(model, *random_data()).backward()
                    k.step()
                    model.zero_grad(set_to_none=none)
                    frozen = dict(model.named_parameters())[part]
                    frozen.requires_grad_(False)
                    loss_of(model, *random_data(3)).backward()
                    weights, before = copy_tensors(model.named_parameters()), copy_gradients(model)
                    with self.subTest(part=part, none=none, kind=kind.__name__):
                        with self.assert_refused(f"'{part}' is frozen and '{other}' is not; both learned when"):
                            k.step()
                        self.assert_same_tensors(copy_tensors(model.named_parameters()), weights)
                        self.assert_same_tensors(copy_gradients(model), before)
                        frozen.requires_grad_(True)  # training continues
                        model.zero_grad(set_to_none=none)
                        k.reset_batch()
                        loss_of(model, *random_data(3)).backward()
                        k.step()
                    k.close()

    def test_update_skips_frozen_layer(self):
        for kind, more in ((natgrad.SGD, dict(norm_block="unit")), (natgrad.AdamW, dict(norm_block="unit")),
                           (natgrad.SGD, dict(method="mfac", window=3)),
                           (natgrad.AdamW, dict(method="lowrank-mfac", window=3))):
            model = NormNet()
            k = kind(model, lr=0.1, weight_decay=0.1, **more)
            for frozen in (False, True, False):
                for layer in (model.f1, model.norm):
                    layer.requires_grad_(not frozen)
                model.zero_grad(set_to_none=False)
                loss_of(model, *random_data()).backward()
                before = copy_tensors(model.named_parameters())
                k.step()
                for name, p in model.named_parameters():
                    with self.subTest(kind=kind.__name__, more=more, frozen=frozen, name=name):
                        self.assertEqual(torch.equal(p, before[name]), frozen and not name.startswith("f2"))

    def test_unfreezing_part_of_a_layer_is_refused(self):
        for part in ("weight", "bias"):
            model = NormNet()
            model.f1.requires_grad_(False)
            k = make_preconditioner(model)
            getattr(model.f1, part).requires_grad_(True)
            loss_of(model, *random_data()).backward()
            with self.assert_refused(f"'f1.{part}' was frozen when the preconditioner was made, and is not any more"):
                k.step()


class OtherParameters(Case):
    """functional_call runs the forward pass with other parameters than the model's."""

    def test_functional_call_is_refused(self):
        for kind, options in ((natgrad.KFAC, dict(norm_block="none")), (natgrad.KFAC, dict(norm_block="unit")),
                              (KFACPreconditioner, dict(damping=0.1))):
            for which in ("f1.weight", "f1.bias", ""):
                model = NormNet()
                k = kind(model, **options)
                others = {name: p if name != which else (2 * p.detach()).requires_grad_()
                          for name, p in model.named_parameters()}
                loss = F.cross_entropy(functional_call(model, others, (random_data()[0],)), random_data()[1])
                with self.subTest(kind=kind.__name__, which=which, **options):
                    if which:
                        with self.assert_refused(f"layer 'f1': its {which[3:]} was replaced in the forward .functional_call"):
                            loss.backward()
                        model.zero_grad()
                        k.hook_enabled = False  # as the message asks
                        F.cross_entropy(functional_call(model, others, (random_data(3)[0],)), random_data(3)[1]).backward()
                        k.hook_enabled = True
                        model.zero_grad()
                        self.silence_warnings()
                        loss = loss_of(model, *random_data())
                    loss.backward()
                    self.assertEqual(k.step(), 0)
                    plain = NormNet()
                    k = kind(plain, **options)
                    loss_of(plain, *random_data()).backward()
                    k.step()
                    self.assert_same_tensors(copy_gradients(model), copy_gradients(plain))


class ChangedModules(Case):
    """A layer gets another weight, bias or geometry after the preconditioner was made."""

    def assert_change_refused(self, model, x, change, pattern):
        k = make_preconditioner(model)
        model(x).sum().backward()
        k.step()
        change(model[0])
        model.zero_grad()
        model(x).sum().backward()
        before = copy_gradients(model)
        with self.subTest(pattern), self.assert_refused(f"layer '0': its {pattern} changed after"):
            k.step()
        self.assert_same_tensors(copy_gradients(model), before)
        k.close()

    def test_changed_settings_are_refused(self):
        torch.manual_seed(1)
        image, tokens = torch.randn(2, 4, 9, 9), torch.randint(5, (2, 3))
        for change, pattern in ((dict(stride=(2, 2)), "stride"), (dict(padding=(1, 1)), "padding"),
                                (dict(dilation=(2, 2)), "dilation"), (dict(padding_mode="circular"), "padding_mode"),
                                (dict(_reversed_padding_repeated_twice=[1, 0, 0, 0], padding_mode="zeros"),
                                 "padding of each side")):
            self.assert_change_refused(nn.Sequential(nn.Conv2d(4, 3, 3)), image, lambda m: m.__dict__.update(change), pattern)
        for module, x, change, pattern in (
                (nn.GroupNorm(2, 4), image, dict(num_groups=4), "num_groups"),
                (nn.BatchNorm2d(4), image, dict(eps=0.1), "eps"),
                (nn.Embedding(5, 3), tokens, dict(padding_idx=0), "padding_idx"),
                (nn.Linear(9, 3), image, dict(forward=lambda x: 2 * x[..., :3].requires_grad_()), "forward")):
            self.assert_change_refused(nn.Sequential(module), x, lambda m: m.__dict__.update(change), pattern)

        class DoubledLinear(nn.Linear):
            def forward(self, x):
                return 2 * super().forward(x)
        self.assert_change_refused(nn.Sequential(nn.Linear(9, 3)), image, lambda m: setattr(m, "__class__", DoubledLinear),
                                   "class")

    def test_modules_without_curvature_may_change(self):
        model = nn.Sequential(nn.Conv2d(4, 3, 3), nn.Dropout(0.5))
        model[0].requires_grad_(True)
        k = natgrad.MFAC(model)  # a window needs gradients only
        for stride in (1, 2):
            model[0].stride, model[1].p = (stride, stride), 0.0
            model(torch.randn(2, 4, 9, 9)).sum().backward()
            k.step()

    def test_explain_lists_added_layer(self):
        model = NormNet()
        k = make_preconditioner(model)
        model.late = nn.Linear(2, 2)
        self.assertEqual([row["why"] for row in k.explain() if row["name"] == "late.weight"],
                         ["added after the preconditioner was made"])

    def test_error_names_disabled_hooks(self):
        model = NormNet()
        k = make_preconditioner(model)
        k.hook_enabled = False
        loss_of(model, *random_data()).backward()
        with self.assert_refused("never observed.*; hook_enabled is False, so nothing is observed"):
            k.step()

    def test_options_in_param_groups_are_refused(self):
        """Parameters that the preconditioner does not know would not be updated."""
        for kind in (natgrad.SGD, natgrad.AdamW):
            model = NormNet()
            with self.assert_refused("param_groups.0. has 'damping', which is not per group"):
                kind(model, 0.1, params=[dict(params=list(model.parameters()), damping=5.0)])
            optimizer = kind(model, 0.1)
            loss_of(model, *random_data()).backward()
            weights = copy_tensors(model.named_parameters())
            optimizer.param_groups[0]["damping"] = 5.0
            with self.assert_refused("param_groups.0. has 'damping'"):
                optimizer.step()
            self.assert_same_tensors(copy_tensors(model.named_parameters()), weights)
            del optimizer.param_groups[0]["damping"]
            optimizer.param_groups[0]["initial_lr"] = 0.1  # schedulers add this key
            optimizer.step()


if __name__ == "__main__":
    unittest.main()
