"""The classes: options, state, reports; the optimizers compared with torch.optim."""
import copy
import io
import os
import re
import subprocess
import sys
import unittest

import torch
from torch import nn

import natgrad
import oracle
from front import (DAMPING, NEW, Case, gradients_after_step, gradients_of, loss_of, make_preconditioner, random_batch,
                   small_conv_net)
from natgrad import compat
from natgrad._methods import CLASSES


def train(model, step, steps, start=0):
    for t in range(start, start + steps):
        model.zero_grad(set_to_none=True)
        loss_of(model, *random_batch(seed=10 + t)).backward()
        step()


class FirstWindowStep(Case):
    """The first step of M-FAC by hand: one gradient x over all parameters, also of the norm."""

    def check_first_step(self, decay):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 4))
        ours = natgrad.MFAC(model, window=8, damping=0.01, window_decay=decay)
        torch.nn.functional.cross_entropy(model(torch.randn(7, 6)), torch.arange(7) % 4).backward()
        x = torch.cat([(w.grad + decay * w.detach()).double().flatten() for w in model.parameters()])
        self.assertEqual(ours.step(lr=0.1), 0)
        got = torch.cat([w.grad.double().flatten() for w in model.parameters()])
        want = x / (0.01 + x.dot(x) / 8)
        self.assertLess((got - want).norm() / want.norm(), 1e-5)  # the bound of t_window: f32 rows

    def test_first_step_matches_formula(self):
        self.check_first_step(0.0)

    def test_first_step_with_weight_decay(self):
        self.check_first_step(0.1)

    def test_window_excludes_frozen_parameters(self):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Embedding(4, 6), torch.nn.Linear(6, 5), torch.nn.Linear(5, 4))
        model[0].requires_grad_(False)
        model[1].requires_grad_(False)
        k = natgrad.GGT(model, window=3, damping=0.1)
        torch.nn.functional.cross_entropy(model(torch.arange(4)), torch.arange(4)).backward()
        self.assertEqual(k.step(), 0)
        why = {row["name"]: row["why"] for row in k.explain()}
        self.assertEqual(why["0.weight"], "frozen")
        self.assertIn("frozen", why["1.weight"])
        model[0].requires_grad_(True)
        with self.assert_refused("'0.weight' was frozen when"):
            k.step()


class Options(Case):
    def test_class_accepts_methods_of_its_family(self):
        traits = {row["name"]: row["traits"] for row in natgrad.methods()}
        self.assertEqual(natgrad.Preconditioner(small_conv_net())._chosen.get("method"), "natgrad")
        for name, standard, _ in CLASSES:
            kind = getattr(natgrad, name)
            for method, other in traits.items():
                if other == traits[standard]:
                    self.assertEqual(kind(small_conv_net(), method=method)._chosen.get("method"), method)
                else:
                    with self.assert_refused(f"{name}: method '{method}' belongs to "):
                        kind(small_conv_net(), method=method)

    def test_errors_name_wrong_options(self):
        for options, pattern in ((dict(dampin=1), "did you mean 'damping'"), (dict(damping=-1), "damping"),
                                 (dict(solver=lambda t: "eigen"), "solver: not a live option"),
                                 (dict(accumulation_steps=0), "accumulation_steps is 0"),
                                 (dict(samples="all"), "samples is 'all'"), (dict(reduction="max"), "reduction is 'max'"),
                                 (dict(layer_options={"9": "damping=1"}), "no layer '9'"),
                                 (dict(damping_split="joint", solver="cholesky"), "joint")):
            with self.assert_refused(pattern):
                natgrad.KFAC(small_conv_net(), **options)

    def test_scheduled_option_equals_set_option(self):
        """A callable damping equals damping(t) that is set before step t."""
        one, two = small_conv_net(), small_conv_net()
        by_function = make_preconditioner(one, damping=lambda t: 0.1 * (t + 1), solve_period=lambda t: 1 + (t > 0))
        by_hand = make_preconditioner(two, damping=0.1, solve_period=1)
        for t in range(4):
            train(one, by_function.step, 1, t)
            by_hand._core.set("damping", 0.1 * (t + 1))
            by_hand._core.set("solve_period", 1 + (t > 0))
            train(two, by_hand.step, 1, t)
            self.assert_same_tensors(gradients_of(one), gradients_of(two))

    def test_clip_uses_lr(self):
        found = []
        for lr in (0.5, lambda t: 0.5, None):
            model = small_conv_net()
            k = make_preconditioner(model, clip="kl", lr=0.1 if lr is None else lr)
            loss_of(model, *random_batch()).backward()
            k.step(0.5) if lr is None else k.step()
            self.assertLess(k.report()["clip"], 1.0)
            found.append(gradients_of(model))
        self.assert_same_tensors(found[0], found[1])
        self.assert_same_tensors(found[0], found[2])

    def test_layer_options_change_one_layer(self):
        mine, data = gradients_after_step(small_conv_net(), random_batch(), layer_options={"8": "damping=10"}), random_batch()
        self.assert_near_oracle(mine, oracle.kfac_gradients(small_conv_net(), ("8",), lambda m: [loss_of(m, *data)], 10.0))
        self.assert_near_oracle(mine, oracle.kfac_gradients(small_conv_net(), ("6",), lambda m: [loss_of(m, *data)], DAMPING))

    def test_skipped_layers_keep_gradients(self):
        model = small_conv_net()
        loss_of(model, *random_batch()).backward()
        plain = gradients_of(model)
        got = gradients_after_step(model, random_batch(), skip_layers=["^0$", "Linear"])
        for name in ("0.weight", "6.bias", "8.weight"):
            self.assertTrue(torch.equal(got[name], plain[name]), name)
        self.assertFalse(torch.equal(got["2.weight"], plain["2.weight"]))

    def test_summed_loss_matches_mean_loss(self):
        (x, y), model = random_batch(), nn.Sequential(nn.Flatten(), nn.Linear(128, 3))
        found = []
        for reduction in ("mean", "sum"):
            k = make_preconditioner(model, reduction=reduction)
            model.zero_grad()
            nn.functional.cross_entropy(model(x), y, reduction=reduction).backward()
            k.step()
            k.close()
            found.append({n: g / (len(x) if reduction == "sum" else 1) for n, g in gradients_of(model).items()})
        for name, g in found[0].items():
            self.assertLess(oracle.relative_difference(found[1][name], g.double()), 1e-5)

    def test_eva_matches_formula(self):
        """P = (D - c g a') / l, c = g' D a / (|a|^2 |g|^2 + l), a and g: means of the vectors whose squares are A and G."""
        model, data = small_conv_net(), random_batch()
        k = make_preconditioner(model, natgrad.Eva)
        loss_of(model, *data).backward()
        k.step()
        calls = oracle.record_layer_calls(small_conv_net(), ("6", "8"), lambda m: [loss_of(m, *data)])
        for name, (pairs, D, module) in calls.items():
            (x, g), = pairs
            a = torch.cat([x.mean((0, 1)), torch.ones(1, dtype=torch.float64)])
            g = (g * len(x)).mean((0, 1))
            D = torch.cat([D[0], D[1][:, None]], 1)
            P = (D - (g @ D @ a) / (a @ a * (g @ g) + DAMPING) * torch.outer(g, a)) / DAMPING
            self.assert_near_oracle(gradients_of(model), {name: [P[:, :-1], P[:, -1]]}, 1e-5)


class Readme(Case):
    def test_readme_example_runs(self):
        with open(os.path.join(os.environ.get("NG_TEST_SOURCE_DIR", "."), "README.md"), encoding="utf-8") as file:
            example = re.search(r"```python\n(.*?)```", file.read(), re.S).group(1)
        model = small_conv_net()
        before = loss_of(model, *random_batch()).item()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        exec(example, dict(natgrad=natgrad, model=model, optimizer=optimizer, batches=[random_batch()] * 10,
                           loss_function=nn.functional.cross_entropy))
        self.assertLess(loss_of(model, *random_batch()).item(), before)

    def test_pytorch_page_names_every_export(self):
        with open(os.path.join(os.environ.get("NG_TEST_SOURCE_DIR", "."), "docs", "pytorch.md"), encoding="utf-8") as file:
            page = file.read()
        for name in natgrad.__all__ + compat.__all__:
            self.assertRegex(page, rf"[`.(]{name}[`.()]", name)


class DigitsExample(Case):
    def test_digits_example_learns(self):
        """The loss falls, and the fused update equals the preconditioner followed by torch.optim.SGD."""
        file = os.path.join(os.environ.get("NG_TEST_SOURCE_DIR", "."), "examples", "50_digits_torch.py")
        done = subprocess.run([sys.executable, file, "--epochs", "2"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = {line.split()[0]: [float(number) for number in re.findall(r"[\d.]+", line)] for line in
                 done.stdout.splitlines()}
        self.assertEqual(sorted(lines), ["fused", "kaisa", "natgrad", "sgd"])
        for name, (_, accuracy, _) in lines.items():
            self.assertGreater(accuracy, 60, name)
        self.assertAlmostEqual(lines["fused"][0], lines["natgrad"][0], delta=2e-3)


class State(Case):
    def check_resumed_bits(self, make_one, steps=3):
        """6 steps have the bits of 3 steps, a state that torch.load(weights_only=True) reads, and 3 more steps."""
        whole = small_conv_net()
        k = make_one(whole)
        train(whole, k.step, 2 * steps)
        half = small_conv_net()
        k = make_one(half)
        train(half, k.step, steps)
        file = io.BytesIO()
        torch.save({"k": k.state_dict(), "model": half.state_dict()}, file)
        file.seek(0)
        plain = NEW or "param_groups" not in k.state_dict()  # PyTorch 1.13 then refuses even a float
        saved = torch.load(file, weights_only=plain)
        other = small_conv_net(seed=5)
        other.load_state_dict(saved["model"])
        k = make_one(other)
        k.load_state_dict(saved["k"])
        train(other, k.step, steps, steps)
        self.assert_same_tensors(gradients_of(other), gradients_of(whole))
        self.assert_same_tensors(other.state_dict(), whole.state_dict())
        return saved["k"]

    def test_resumed_training_has_same_bits(self):
        state = self.check_resumed_bits(lambda m: make_preconditioner(m, damping=lambda t: 0.1 + 0.01 * t, solve_period=2))
        self.assertIn("6/A", state["fields"])
        self.assertEqual(state["steps"], 3)
        self.check_resumed_bits(lambda m: make_preconditioner(m, natgrad.Eva))
        state = self.check_resumed_bits(lambda m: make_preconditioner(m, factor_dtype="bf16", inverse_dtype="f16",
                                                                      method="kaisa"))
        self.assertEqual(state["fields"]["6/A"].dtype, torch.bfloat16)
        self.check_resumed_bits(lambda m: natgrad.SGD(m, lr=0.05, momentum=0.9, clip="none"))
        self.check_resumed_bits(lambda m: natgrad.AdamW(m, lr=0.01, clip="none"))

    def test_wrong_state_is_refused_and_changes_nothing(self):
        model = small_conv_net()
        k = make_preconditioner(model)
        train(model, k.step, 2)
        state = k.state_dict()
        other = make_preconditioner(small_conv_net())
        before = other.state_dict()
        changed = copy.deepcopy(state)
        changed["fields"]["8/A"][0] += 1
        for wrong, pattern in ((changed, "8/A"), ({**state, "manifest": state["manifest"][:-1]}, "."),
                               ({n: v for n, v in state.items() if n != "fields"}, "no 'fields'"),
                               ({**state, "fields": {**state["fields"], "8/A": torch.zeros(3, dtype=torch.int8)}},
                                "'8/A' is torch.int8")):
            with self.assert_refused(pattern):
                other.load_state_dict(wrong)
        after = other.state_dict()
        self.assert_same_tensors(after["fields"], before["fields"])
        self.assertEqual(after["manifest"], before["manifest"])
        with self.assert_refused("."):
            make_preconditioner(small_conv_net(), natgrad.Eva).load_state_dict(state)

    def test_closed_preconditioner_refuses_calls(self):
        model = small_conv_net()
        k = make_preconditioner(model)
        k.close()
        k.close()
        for call in (k.report, k.state_dict, k.reset_batch):
            with self.assert_refused("was closed"):
                call()
        self.assertEqual(len(model[0]._forward_hooks), 0)

    def test_reports_have_expected_fields(self):
        model = small_conv_net()
        k = make_preconditioner(model)
        train(model, k.step, 2)
        report, memory = k.report(), k.memory_usage()
        self.assertEqual((report["steps"], report["skipped"], k.steps), (2, 0, 2))
        self.assertEqual([layer["name"] for layer in report["layers"]], ["0", "2", "3", "6", "8"])
        self.assertIn("solve", [station["name"] for station in report["stations"]])
        self.assertIn(("3", "F", 2, 0), [(s["layer"], s["name"], s["refreshed"], s["passed"]) for s in report["statistics"]])
        self.assertEqual(memory["total"], sum(b for use, b in memory.items() if use != "total"))
        table = str(k.explain()).splitlines()
        self.assertEqual(len(table), 1 + len(list(model.parameters())))
        self.assertRegex(table[1], r"^0\.weight +72 +1 +kronecker +A 19x19, G 4x4 +\d+$")


class Optimizers(Case):
    def two_param_groups(self, model):
        return [dict(params=[p for p in model.parameters() if p.dim() > 1], weight_decay=0.1),
                dict(params=[p for p in model.parameters() if p.dim() == 1], lr=0.02)]

    def compare_with_pytorch(self, mine, theirs, **more):
        """The fused optimizer compared with a preconditioner and the optimizer of PyTorch."""
        one, two = small_conv_net(), small_conv_net()
        fused = mine(self.two_param_groups(one), model=one, damping=DAMPING, clip="none", **more)
        k, plain = make_preconditioner(two), theirs(self.two_param_groups(two), **more)
        schedules = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (fused, plain)]
        for t in range(5):
            train(one, fused.step, 1, t)
            train(two, lambda: (k.step(), plain.step()), 1, t)
            for schedule in schedules:
                schedule.step()
        for (name, a), b in zip(one.named_parameters(), two.parameters()):
            # operations in another order: a few units in the last place per step, in five networks
            self.assertLess(oracle.relative_difference(a.detach(), b.detach().double()), 2e-4, name)

    def test_sgd_matches_pytorch(self):
        self.compare_with_pytorch(natgrad.SGD, torch.optim.SGD, lr=0.05, momentum=0.9)
        self.compare_with_pytorch(natgrad.SGD, torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True)
        self.compare_with_pytorch(natgrad.SGD, torch.optim.SGD, lr=0.05, momentum=0.5, dampening=0.3, weight_decay=0.01)

    def test_adamw_matches_pytorch(self):
        self.compare_with_pytorch(natgrad.AdamW, torch.optim.AdamW, lr=0.01, betas=(0.8, 0.95), eps=1e-4)

    def test_each_pytorch_scheduler_works(self):
        """Every class of torch.optim.lr_scheduler gives the group values and weights of PyTorch's optimizer."""
        of = torch.optim.lr_scheduler
        makers = dict(
            LambdaLR=lambda o: of.LambdaLR(o, lambda t: 1 / (1 + t)), StepLR=lambda o: of.StepLR(o, 2, 0.5),
            MultiplicativeLR=lambda o: of.MultiplicativeLR(o, lambda t: 0.8), ConstantLR=lambda o: of.ConstantLR(o, 0.3, 2),
            MultiStepLR=lambda o: of.MultiStepLR(o, [1, 3], 0.5), LinearLR=lambda o: of.LinearLR(o, 0.2, 1.0, 3),
            ExponentialLR=lambda o: of.ExponentialLR(o, 0.7), PolynomialLR=lambda o: of.PolynomialLR(o, 4, 2.0),
            CosineAnnealingLR=lambda o: of.CosineAnnealingLR(o, 4),
            ReduceLROnPlateau=lambda o: of.ReduceLROnPlateau(o, patience=0),
            CosineAnnealingWarmRestarts=lambda o: of.CosineAnnealingWarmRestarts(o, 2),
            CyclicLR=lambda o: of.CyclicLR(o, 0.01, 0.1, 2, cycle_momentum="momentum" in o.defaults),
            OneCycleLR=lambda o: of.OneCycleLR(o, 0.1, total_steps=6),
            SequentialLR=lambda o: of.SequentialLR(o, [of.ConstantLR(o, 0.3, 2), of.ExponentialLR(o, 0.7)], [2]),
            ChainedScheduler=lambda o: of.ChainedScheduler([of.ConstantLR(o, 0.3, 2), of.ExponentialLR(o, 0.7)]))
        self.silence_warnings()
        for mine, theirs, more in ((natgrad.SGD, torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
                                   (natgrad.AdamW, torch.optim.AdamW, dict(lr=0.1, eps=1e-4))):
            for name, maker in makers.items():
                if not hasattr(of, name):
                    continue
                torch.manual_seed(1)
                one = nn.Linear(4, 3)
                two = copy.deepcopy(one)
                fused, k, plain = mine(one, damping=DAMPING, clip="none",
                                       **more), make_preconditioner(two), theirs(two.parameters(), **more)
                schedules = maker(fused), maker(plain)
                with self.subTest(name, optimizer=mine.__name__):
                    for t in range(4):
                        for model, step in ((one, fused.step), (two, lambda: (k.step(), plain.step()))):
                            model.zero_grad()
                            loss_of(model, *random_batch(shape=(4,), seed=t)).backward()
                            step()
                        for schedule in schedules:
                            schedule.step(*([1.0] if name == "ReduceLROnPlateau" else []))
                        for number in more:
                            self.assertEqual(fused.param_groups[0][number], plain.param_groups[0][number])
                    for a, b in zip(one.parameters(), two.parameters()):
                        self.assertLess(oracle.relative_difference(a.detach(), b.detach().double()),
                                        1e-4)  # sums in another order

    def test_default_lr_is_unused_if_groups_have_lr(self):
        groups = [{"lr": 0.1, **group} for group in self.two_param_groups(small_conv_net())]
        weights = []
        for model in (small_conv_net(), small_conv_net()):
            for group, mine in zip(groups, self.two_param_groups(model)):
                group["params"] = mine["params"]
            train(model, natgrad.SGD(groups, *[0.5][len(weights):], model=model).step, 2)
            weights.append(dict(model.named_parameters()))
        self.assert_same_tensors(*weights)

    def test_sgd_is_a_torch_optimizer(self):
        model = small_conv_net()
        optimizer = natgrad.SGD(model, 0.05, method="eva-natgrad")
        self.assertIsInstance(optimizer, torch.optim.Optimizer)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, *random_batch())
            loss.backward()
            return loss
        first = optimizer.step(closure)
        for _ in range(20):
            last = optimizer.step(closure)
        self.assertLess(last.item(), first.item())
        self.assertEqual(optimizer.report()["steps"], 21)
        self.assertGreater(optimizer.memory_usage()["total"], 0)
        self.assertIn("rankone", str(optimizer.explain()))

    def test_model_and_parameters_in_any_form(self):
        model = small_conv_net()
        for name in ("SGD", "AdamW", "KFACAdam", "SOAP", "KLShampoo", "Shampoo"):
            kind = getattr(natgrad, name)
            for optimizer in (kind(model, 0.1), kind(model.parameters(), 0.1, model=model),
                              kind(lr=0.1, model=model, params=model.parameters())):
                self.assertEqual(len(optimizer.param_groups[0]["params"]), len(list(model.parameters())), name)

    def test_wrong_param_groups_are_refused(self):
        model = small_conv_net()
        with self.assert_refused("'0.bias' requires a gradient but is in no param_group"):
            natgrad.SGD(model, 0.1, params=self.two_param_groups(model)[:1])
        with self.assert_refused(r"param_groups\[0\] has a parameter that is not in the model"):
            natgrad.SGD(model, 0.1, params=[*model.parameters(), nn.Parameter(torch.zeros(3))])
        for kind in (natgrad.SGD, natgrad.AdamW):
            for given in ((model.parameters(), 0.1), (self.two_param_groups(model), 0.1), ()):
                with self.assert_refused(f"{kind.__name__} needs the model, .* {kind.__name__}\\(parameters, ..., model=model\\)"):
                    kind(*given)
            with self.assert_refused("model is given twice"):
                kind(model, 0.1, model=small_conv_net())
            with self.assert_refused("params is given twice"):
                kind(model.parameters(), 0.1, model=model, params=[])
        with self.assert_refused("lr is None, expected a number"):
            natgrad.SGD(model)
        with self.assert_refused("lr is None, expected a number"):
            natgrad.SGD(self.two_param_groups(model), model=model)
        with self.assert_refused("param_groups are fixed"):
            natgrad.SGD(model, 0.1).add_param_group(dict(params=[nn.Parameter(torch.zeros(3))]))
        for p in self.two_param_groups(model)[0]["params"]:
            p.requires_grad_(False)
        optimizer = natgrad.SGD(model, 0.1, params=self.two_param_groups(model))  # the first group is frozen
        before = model[6].weight.clone()
        train(model, optimizer.step, 1)
        self.assertTrue(torch.equal(model[6].weight, before))

    def test_zero_grad_drops_observations_of_omitted_step(self):
        """GradScaler does not call step() if gradients overflowed."""
        one, two = small_conv_net(), small_conv_net()
        for model, disturbed in ((one, False), (two, True)):
            optimizer = natgrad.SGD(model, 0.1, clip="none")
            if disturbed:
                (loss_of(model, *random_batch(seed=9)) * float("inf")).backward()
                optimizer.zero_grad()
                for module in model.modules():
                    if isinstance(module, nn.BatchNorm2d):
                        module.reset_running_stats()
            loss_of(model, *random_batch()).backward()
            optimizer.step()
            self.assertEqual(optimizer.note, 0)
        self.assert_same_tensors(one.state_dict(), two.state_dict())

    @unittest.skipUnless(NEW, "autograd can be told in PyTorch 2")
    def test_update_invalidates_saved_tensors(self):
        model = small_conv_net()
        optimizer = natgrad.SGD(model, 0.1)
        stale = loss_of(model, *random_batch())
        train(model, optimizer.step, 1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            stale.backward()


if __name__ == "__main__":
    unittest.main()
