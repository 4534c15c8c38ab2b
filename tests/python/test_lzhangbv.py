"""Every argument of the classes of lzhangbv: the published tables, by name and by position."""
import unittest
import warnings

import torch
from torch import nn

import natgrad
import natgrad.compat as kfac
from front import Case, random_batch, gradients_of, loss_of, small_conv_net

# name: ((another value, whether this value changes results on one rank), an invalid value); defaults are below
SAME = dict(lr=((1.0, True), -1), damping=((0.2, True), -1), fac_update_freq=((2, True), 0), kfac_update_freq=((2, True), 0),
            factor_decay=((0.5, True), 2), kl_clip=((0.1, True), "x"), exclude_vocabulary_size=((5, True), -1),
            exclude_parts=(None, "ComputeFactor"))
KFAC = dict(lr=0.1, damping=0.001, fac_update_freq=1, kfac_update_freq=1, kl_clip=0.001, factor_decay=0.95,
            exclude_vocabulary_size=None, hook_enabled=True, exclude_parts="")
EVA = dict(lr=0.1, damping=0.03, fac_update_freq=1, kfac_update_freq=1, kfac_batch_size=16, kl_clip=0.001,
           factor_decay=0.95, exclude_vocabulary_size=None, hook_enabled=True, exclude_parts="")
ORDER = ("lr damping fac_update_freq kfac_update_freq kfac_batch_size diag_blocks communicate_inverse_or_not "
         "distribute_layer_factors kl_clip factor_decay exclude_vocabulary_size hook_enabled exclude_parts").split()


def argument_table(defaults, **more):
    return defaults, {**SAME, **more}


FIRST = (4, True)  # 4 of the 8 samples
FORCED = dict(communicate_inverse_or_not=((None, False), "maybe"))
CLASSES = {
    "eigen": argument_table({**KFAC, "distribute_layer_factors": None}, distribute_layer_factors=((True, False), "maybe")),
    "inverse": argument_table({**KFAC, "communicate_inverse_or_not": False}, communicate_inverse_or_not=((True, False), "maybe")),
    "eigen_dp": argument_table(KFAC), "inverse_dp": argument_table(KFAC),
    "eva": argument_table(EVA, kfac_batch_size=(FIRST, 0), kfac_update_freq=((2, False), None)),
    "kfac": argument_table({**EVA, "diag_blocks": 1}, kfac_batch_size=(FIRST, 0), diag_blocks=((2, True), 0)),
    # as published, without clip and statistics
    "adasgd": argument_table({**EVA, "kl_clip": 0.01}, kfac_batch_size=((4, False), None), kfac_update_freq=((2, False), None),
                             lr=((1.0, False), -1), fac_update_freq=((2, False), None), factor_decay=((0.5, False), None),
                             kl_clip=((0.1, False), None)),
    "sam": argument_table({**EVA, "kl_clip": 0.01}, kfac_batch_size=(FIRST, 0), kfac_update_freq=((2, False), None),
                          lr=((1.0, False), -1), damping=((0.2, False), None))}


def gradients_after_steps(name, *given, **options):
    model = small_conv_net()
    k = kfac.get_kfac_module(name)(model, *given, **options)
    for t in range(4):
        model.zero_grad()
        loss_of(model, *random_batch(seed=10 + t)).backward()
        k.step()
    return gradients_of(model)


def largest_difference(one, two):
    return max(((two[n] - g).abs().max() / g.abs().max()).item() for n, g in one.items() if n != "2.bias")


class PublishedArguments(Case):
    def test_defaults_are_published(self):
        for name, (defaults, _) in CLASSES.items():
            plain = gradients_after_steps(name)
            self.assert_same_tensors(gradients_after_steps(name, **defaults), plain)
            given = [defaults[argument] for argument in ORDER if argument in defaults]
            self.assert_same_tensors(gradients_after_steps(name, *given), plain)

    def test_each_argument_changes_gradients(self):
        for name, (defaults, rows) in CLASSES.items():
            base = {"kl_clip": 10.0} if name == "sam" else {}  # kl_clip is rho of sam: with 0.01 all other effects are small
            plain = gradients_after_steps(name, **base)
            for argument, (other, _) in rows.items():
                if other is None:
                    continue
                with self.subTest(name, argument=argument):
                    got = gradients_after_steps(name, **{**base, argument: other[0]})
                    # sums in another order: rounding, times the condition of the eigenbases
                    (self.assertGreater if other[1] else self.assertLess)(largest_difference(plain, got), 1e-4)
                    order = [one for one in ORDER if one in defaults]
                    given = {one: {**defaults, **base}[one] for one in order[:order.index(argument)]}
                    rest = {one: value for one, value in base.items() if one not in given and one != argument}
                    self.assert_same_tensors(gradients_after_steps(name, *given.values(), other[0], **rest), got)

    def test_wrong_values_name_argument(self):
        for name, (_, rows) in CLASSES.items():
            for argument, (_, wrong) in rows.items():
                if wrong is not None:
                    with self.subTest(name, argument=argument), self.assert_refused(argument):
                        gradients_after_steps(name, **{argument: wrong})

    def test_unknown_arguments_are_refused(self):
        for name, argument, value in (("eigen_dp", "kfac_batch_size", 3), ("eva", "diag_blocks", 2), ("kfac", "nesterov", 1)):
            with self.assertRaisesRegex(TypeError, f"unexpected keyword argument '{argument}'"):
                gradients_after_steps(name, **{argument: value})
        for name, value in (("eigen", False), ("eigen_dp", True), ("inverse_dp", True)):
            with self.assert_refused("communicate_inverse_or_not"):
                gradients_after_steps(name, communicate_inverse_or_not=value)
        for name in ("eigen_dp", "inverse_dp"):
            with self.assertRaisesRegex((TypeError, natgrad.Error), "distribute_layer_factors"):
                gradients_after_steps(name, distribute_layer_factors=True)
        with self.assertRaisesRegex(TypeError, "multiple values for argument 'lr'"):
            gradients_after_steps("eva", 0.1, lr=0.1)
        with self.assertRaisesRegex(TypeError, "takes 10 arguments after the model, 11 were given"):
            gradients_after_steps("eva", *range(11))

    def test_set_hook_enabled_switches_hooks(self):
        for name in CLASSES:
            model = small_conv_net()
            k = kfac.get_kfac_module(name)(model, hook_enabled=False)
            loss_of(model, *random_batch()).backward()
            if name == "adasgd":  # adasgd has no hooks
                self.assertEqual(k.step(), 0)
                continue
            with self.assert_refused("never observed"):
                k.step()
            k.set_hook_enabled()
            loss_of(model, *random_batch()).backward()
            self.assertEqual(k.step(), 0)


class ScheduledPeriods(Case):
    """KFACParamScheduler doubles the periods between the forward pass and the step."""

    def test_averages_use_period_of_step(self):
        """At step 2 hooks use the period 2, and DP-KFAC averages with the period 4; Eva averages in its hooks."""
        for name in ("eigen", "inverse", "eigen_dp", "inverse_dp", "eva", "kfac"):
            model, moved = small_conv_net(), []
            k = kfac.get_kfac_module(name)(model, fac_update_freq=2, kfac_update_freq=8, damping=0.1)
            schedule = kfac.KFACParamScheduler(k, update_freq_alpha=2, update_freq_schedule=[2])
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for t in range(5):
                    before = k.state_dict()["natgrad"]["fields"] if t else {}
                    model.zero_grad()
                    loss_of(model, *random_batch(seed=10 + t)).backward()
                    self.assertEqual(k.step(), 0)
                    schedule.step()
                    fields = k.state_dict()["natgrad"]["fields"]
                    averages = [field for field in fields if field.split("/")[1][0] in "AGag"]
                    self.assertTrue(averages, list(fields))
                    moved.append(any(not torch.equal(fields[field], before.get(field, fields[field][:0]))
                                     for field in averages))
            with self.subTest(name):
                self.assertEqual(moved, [True, False, name in ("eva", "kfac"), False, True])

    def test_period_0_is_refused(self):
        model = small_conv_net()
        k = kfac.get_kfac_module("eigen_dp")(model)
        loss_of(model, *random_batch()).backward()
        before = gradients_of(model)
        k.param_groups[0]["fac_update_freq"] = 0
        with self.assert_refused("fac_update_freq"):
            k.step()
        self.assert_same_tensors(gradients_of(model), before)
        k.param_groups[0]["fac_update_freq"] = 1
        self.assertEqual(k.step(), 0)


class CommonCalls(Case):
    """Calls that all optimizers of the package have."""

    MAKERS = (lambda m: natgrad.SGD(m, 0.1), lambda m: natgrad.AdamW(m), lambda m: kfac.EVA(m), lambda m: kfac.FusedEVA(m),
              lambda m: kfac.DP_KFAC(m), lambda m: kfac.SPNGD(m, acc_iters=2), lambda m: kfac.MFAC(m.parameters(), ngrads=3),
              lambda m: kfac.SparseGGT(m.parameters(), 0.1, 0.05, 0.0, 4, 0.9, 0.99, 1e-5))
    OWN = tuple(getattr(natgrad, name) for name in ("KFAC", "SPNGD", "Eva", "MFAC", "GGT")) + (kfac.KFACPreconditioner,)

    def test_every_optimizer_explains_and_reports(self):
        for make_one in self.MAKERS + self.OWN:
            model = small_conv_net()
            k = make_one(model)
            with self.subTest(type(k).__name__):
                for _ in range(2):
                    loss_of(model, *random_batch()).backward()
                    k.step()
                self.assertIn("why", str(k.explain()))
                self.assertGreater(k.memory_usage()["total"], 0)
                self.assertEqual(k.report()["steps"], k.steps)

    def test_reset_batch_drops_gradients(self):
        """reset_batch() drops the gradients and the observations."""
        for make_one in self.MAKERS + self.OWN:
            found = []
            for dropped in (False, True):
                model = small_conv_net()
                k = make_one(model)
                if dropped:
                    loss_of(model, *random_batch(seed=5)).backward()
                    if isinstance(k, kfac.SPNGD):
                        k.step()  # the first of two micro-batches
                    k.reset_batch()
                    for module in model.modules():
                        if isinstance(module, nn.BatchNorm2d):
                            module.reset_running_stats()
                for _ in range(2):
                    model.zero_grad()
                    loss_of(model, *random_batch()).backward()
                    k.step()
                found.append({**gradients_of(model), **model.state_dict()})
            with self.subTest(type(k).__name__):
                self.assert_same_tensors(*found)

    def test_begin_sets_samples(self):
        found = []
        for said in (False, True):
            model = small_conv_net()
            optimizer = natgrad.SGD(model, 0.1)
            if said:
                optimizer.begin(8, 1.0)
            loss_of(model, *random_batch()).backward()
            optimizer.step()
            found.append(model.state_dict())
        self.assert_same_tensors(*found)
        with self.assert_refused("samples is 0"):
            optimizer.begin(0)


if __name__ == "__main__":
    unittest.main()
