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
from front import DAMPING, NEW, Case, batch, grads, loss_of, make, net, one_step
from natgrad import compat
from natgrad._methods import CLASSES


def train(model, step, steps, start=0):
    for t in range(start, start + steps):
        model.zero_grad(set_to_none=True)
        loss_of(model, *batch(seed=10 + t)).backward()
        step()


class Windows(Case):
    """The first step of M-FAC by hand: one gradient x over all parameters, also of the norm."""

    def first(self, decay):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 4))
        ours = natgrad.MFAC(model, window=8, damping=0.01, window_decay=decay)
        torch.nn.functional.cross_entropy(model(torch.randn(7, 6)), torch.arange(7) % 4).backward()
        x = torch.cat([(w.grad + decay * w.detach()).double().flatten() for w in model.parameters()])
        self.assertEqual(ours.step(lr=0.1), 0)
        got = torch.cat([w.grad.double().flatten() for w in model.parameters()])
        want = x / (0.01 + x.dot(x) / 8)
        self.assertLess((got - want).norm() / want.norm(), 1e-5)  # the bound of t_window: f32 rows

    def test_of_gradients(self):
        self.first(0.0)

    def test_with_weight_decay(self):
        self.first(0.1)

    def test_frozen_parameters_are_not_in_it(self):
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
        with self.refused("'0.weight' was frozen when"):
            k.step()


class Options(Case):
    def test_each_class_takes_the_methods_of_its_family(self):
        family = {row["name"]: row["family"] for row in natgrad.methods()}  # families differ in their traits
        self.assertEqual(natgrad.Preconditioner(net())._chosen.get("method"), "natgrad")
        for name, standard, _ in CLASSES:
            kind = getattr(natgrad, name)
            for method, other in family.items():
                if other == family[standard]:
                    self.assertEqual(kind(net(), method=method)._chosen.get("method"), method)
                else:
                    with self.refused(f"{name}: method '{method}' belongs to "):
                        kind(net(), method=method)

    def test_wrong_ones_are_named(self):
        for options, pattern in ((dict(dampin=1), "did you mean 'damping'"), (dict(damping=-1), "damping"),
                                 (dict(solver=lambda t: "eigen"), "solver: not a live option"),
                                 (dict(accumulation_steps=0), "accumulation_steps is 0"),
                                 (dict(samples="all"), "samples is 'all'"), (dict(reduction="max"), "reduction is 'max'"),
                                 (dict(layer_options={"9": "damping=1"}), "no layer '9'"),
                                 (dict(damping_split="joint", solver="cholesky"), "joint")):
            with self.refused(pattern):
                natgrad.KFAC(net(), **options)

    def test_functions_of_the_step(self):
        """A callable damping equals damping(t) that is set before step t."""
        one, two = net(), net()
        by_function = make(one, damping=lambda t: 0.1 * (t + 1), solve_period=lambda t: 1 + (t > 0))
        by_hand = make(two, damping=0.1, solve_period=1)
        for t in range(4):
            train(one, by_function.step, 1, t)
            by_hand._core.set("damping", 0.1 * (t + 1))
            by_hand._core.set("solve_period", 1 + (t > 0))
            train(two, by_hand.step, 1, t)
            self.same(grads(one), grads(two))

    def test_lr_is_that_of_the_clip(self):
        found = []
        for lr in (0.5, lambda t: 0.5, None):
            model = net()
            k = make(model, clip="kl", lr=0.1 if lr is None else lr)
            loss_of(model, *batch()).backward()
            k.step(0.5) if lr is None else k.step()
            self.assertLess(k.report()["clip"], 1.0)
            found.append(grads(model))
        self.same(found[0], found[1])
        self.same(found[0], found[2])

    def test_options_of_one_layer(self):
        mine, data = one_step(net(), batch(), layer_options={"8": "damping=10"}), batch()
        self.near(mine, oracle.kfac(net(), ("8",), lambda m: [loss_of(m, *data)], 10.0))
        self.near(mine, oracle.kfac(net(), ("6",), lambda m: [loss_of(m, *data)], DAMPING))

    def test_skipped_layers(self):
        model = net()
        loss_of(model, *batch()).backward()
        plain = grads(model)
        got = one_step(model, batch(), skip_layers=["^0$", "Linear"])
        for name in ("0.weight", "6.bias", "8.weight"):
            self.assertTrue(torch.equal(got[name], plain[name]), name)
        self.assertFalse(torch.equal(got["2.weight"], plain["2.weight"]))

    def test_sum_of_a_loss(self):
        (x, y), model = batch(), nn.Sequential(nn.Flatten(), nn.Linear(128, 3))
        found = []
        for reduction in ("mean", "sum"):
            k = make(model, reduction=reduction)
            model.zero_grad()
            nn.functional.cross_entropy(model(x), y, reduction=reduction).backward()
            k.step()
            k.close()
            found.append({n: g / (len(x) if reduction == "sum" else 1) for n, g in grads(model).items()})
        for name, g in found[0].items():
            self.assertLess(oracle.distance(found[1][name], g.double()), 1e-5)

    def test_eva_by_its_formula(self):
        """P = (D - c g a') / l, c = g' D a / (|a|^2 |g|^2 + l), a and g: means of the vectors whose squares are A and G."""
        model, data = net(), batch()
        k = make(model, natgrad.Eva)
        loss_of(model, *data).backward()
        k.step()
        for name, (pairs, D, module) in oracle.calls_of(net(), ("6", "8"), lambda m: [loss_of(m, *data)]).items():
            (x, g), = pairs
            a = torch.cat([x.mean((0, 1)), torch.ones(1, dtype=torch.float64)])
            g = (g * len(x)).mean((0, 1))
            D = torch.cat([D[0], D[1][:, None]], 1)
            P = (D - (g @ D @ a) / (a @ a * (g @ g) + DAMPING) * torch.outer(g, a)) / DAMPING
            self.near(grads(model), {name: [P[:, :-1], P[:, -1]]}, 1e-5)


class Readme(Case):
    def test_its_example_runs(self):
        with open(os.path.join(os.environ.get("NG_TEST_SOURCE_DIR", "."), "README.md"), encoding="utf-8") as file:
            example = re.search(r"```python\n(.*?)```", file.read(), re.S).group(1)
        model = net()
        before = loss_of(model, *batch()).item()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        exec(example, dict(natgrad=natgrad, model=model, optimizer=optimizer, batches=[batch()] * 10,
                           loss_function=nn.functional.cross_entropy))
        self.assertLess(loss_of(model, *batch()).item(), before)

    def test_the_page_has_every_name(self):
        with open(os.path.join(os.environ.get("NG_TEST_SOURCE_DIR", "."), "docs", "pytorch.md"), encoding="utf-8") as file:
            page = file.read()
        for name in natgrad.__all__ + compat.__all__:
            self.assertRegex(page, rf"[`.(]{name}[`.()]", name)


class Example(Case):
    def test_digits(self):
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
    def resumed(self, make_one, steps=3):
        """6 steps have the bits of 3 steps, a state that torch.load(weights_only=True) reads, and 3 more steps."""
        whole = net()
        k = make_one(whole)
        train(whole, k.step, 2 * steps)
        half = net()
        k = make_one(half)
        train(half, k.step, steps)
        file = io.BytesIO()
        torch.save({"k": k.state_dict(), "model": half.state_dict()}, file)
        file.seek(0)
        plain = NEW or "param_groups" not in k.state_dict()  # PyTorch 1.13 then refuses even a float
        saved = torch.load(file, weights_only=plain)
        other = net(seed=5)
        other.load_state_dict(saved["model"])
        k = make_one(other)
        k.load_state_dict(saved["k"])
        train(other, k.step, steps, steps)
        self.same(grads(other), grads(whole))
        self.same(other.state_dict(), whole.state_dict())
        return saved["k"]

    def test_resumed_bit_for_bit(self):
        state = self.resumed(lambda m: make(m, damping=lambda t: 0.1 + 0.01 * t, solve_period=2))
        self.assertIn("6/A", state["fields"])
        self.assertEqual(state["steps"], 3)
        self.resumed(lambda m: make(m, natgrad.Eva))
        state = self.resumed(lambda m: make(m, factor_dtype="bf16", inverse_dtype="f16", method="kaisa"))
        self.assertEqual(state["fields"]["6/A"].dtype, torch.bfloat16)
        self.resumed(lambda m: natgrad.SGD(m, lr=0.05, momentum=0.9, clip="none"))
        self.resumed(lambda m: natgrad.AdamW(m, lr=0.01, clip="none"))

    def test_what_does_not_fit_is_refused_and_changes_nothing(self):
        model = net()
        k = make(model)
        train(model, k.step, 2)
        state = k.state_dict()
        other = make(net())
        before = other.state_dict()
        changed = copy.deepcopy(state)
        changed["fields"]["8/A"][0] += 1
        for wrong, pattern in ((changed, "8/A"), ({**state, "manifest": state["manifest"][:-1]}, "."),
                               ({n: v for n, v in state.items() if n != "fields"}, "no 'fields'"),
                               ({**state, "fields": {**state["fields"], "8/A": torch.zeros(3, dtype=torch.int8)}},
                                "'8/A' is torch.int8")):
            with self.refused(pattern):
                other.load_state_dict(wrong)
        after = other.state_dict()
        self.same(after["fields"], before["fields"])
        self.assertEqual(after["manifest"], before["manifest"])
        with self.refused("."):
            make(net(), natgrad.Eva).load_state_dict(state)

    def test_closed(self):
        model = net()
        k = make(model)
        k.close()
        k.close()
        for call in (k.report, k.state_dict, k.reset_batch):
            with self.refused("was closed"):
                call()
        self.assertEqual(len(model[0]._forward_hooks), 0)

    def test_what_they_tell(self):
        model = net()
        k = make(model)
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
    def groups(self, model):
        return [dict(params=[p for p in model.parameters() if p.dim() > 1], weight_decay=0.1),
                dict(params=[p for p in model.parameters() if p.dim() == 1], lr=0.02)]

    def beside(self, mine, theirs, **more):
        """The fused optimizer compared with a preconditioner and the optimizer of PyTorch."""
        one, two = net(), net()
        fused = mine(self.groups(one), model=one, damping=DAMPING, clip="none", **more)
        k, plain = make(two), theirs(self.groups(two), **more)
        schedules = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (fused, plain)]
        for t in range(5):
            train(one, fused.step, 1, t)
            train(two, lambda: (k.step(), plain.step()), 1, t)
            for schedule in schedules:
                schedule.step()
        for (name, a), b in zip(one.named_parameters(), two.parameters()):
            # operations in another order: a few units in the last place per step, in five networks
            self.assertLess(oracle.distance(a.detach(), b.detach().double()), 2e-4, name)

    def test_sgd(self):
        self.beside(natgrad.SGD, torch.optim.SGD, lr=0.05, momentum=0.9)
        self.beside(natgrad.SGD, torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True)
        self.beside(natgrad.SGD, torch.optim.SGD, lr=0.05, momentum=0.5, dampening=0.3, weight_decay=0.01)

    def test_adamw(self):
        self.beside(natgrad.AdamW, torch.optim.AdamW, lr=0.01, betas=(0.8, 0.95), eps=1e-4)

    def test_schedulers_of_pytorch(self):
        """Every class of torch.optim.lr_scheduler gives the group values and weights of PyTorch's optimizer."""
        of = torch.optim.lr_scheduler
        makers = dict(
            LambdaLR=lambda o: of.LambdaLR(o, lambda t: 1 / (1 + t)), StepLR=lambda o: of.StepLR(o, 2, 0.5),
            MultiplicativeLR=lambda o: of.MultiplicativeLR(o, lambda t: 0.8), ConstantLR=lambda o: of.ConstantLR(o, 0.3, 2),
            MultiStepLR=lambda o: of.MultiStepLR(o, [1, 3], 0.5), LinearLR=lambda o: of.LinearLR(o, 0.2, 1.0, 3),
            ExponentialLR=lambda o: of.ExponentialLR(o, 0.7), PolynomialLR=lambda o: of.PolynomialLR(o, 4, 2.0),
            CosineAnnealingLR=lambda o: of.CosineAnnealingLR(o, 4), ReduceLROnPlateau=lambda o: of.ReduceLROnPlateau(o, patience=0),
            CosineAnnealingWarmRestarts=lambda o: of.CosineAnnealingWarmRestarts(o, 2),
            CyclicLR=lambda o: of.CyclicLR(o, 0.01, 0.1, 2, cycle_momentum="momentum" in o.defaults),
            OneCycleLR=lambda o: of.OneCycleLR(o, 0.1, total_steps=6),
            SequentialLR=lambda o: of.SequentialLR(o, [of.ConstantLR(o, 0.3, 2), of.ExponentialLR(o, 0.7)], [2]),
            ChainedScheduler=lambda o: of.ChainedScheduler([of.ConstantLR(o, 0.3, 2), of.ExponentialLR(o, 0.7)]))
        self.quiet()
        for mine, theirs, more in ((natgrad.SGD, torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
                                   (natgrad.AdamW, torch.optim.AdamW, dict(lr=0.1, eps=1e-4))):
            for name, maker in makers.items():
                if not hasattr(of, name):
                    continue
                torch.manual_seed(1)
                one = nn.Linear(4, 3)
                two = copy.deepcopy(one)
                fused, k, plain = mine(one, damping=DAMPING, clip="none", **more), make(two), theirs(two.parameters(), **more)
                schedules = maker(fused), maker(plain)
                with self.subTest(name, optimizer=mine.__name__):
                    for t in range(4):
                        for model, step in ((one, fused.step), (two, lambda: (k.step(), plain.step()))):
                            model.zero_grad()
                            loss_of(model, *batch(shape=(4,), seed=t)).backward()
                            step()
                        for schedule in schedules:
                            schedule.step(*([1.0] if name == "ReduceLROnPlateau" else []))
                        for number in more:
                            self.assertEqual(fused.param_groups[0][number], plain.param_groups[0][number])
                    for a, b in zip(one.parameters(), two.parameters()):
                        self.assertLess(oracle.distance(a.detach(), b.detach().double()), 1e-4)  # sums in another order

    def test_it_is_an_optimizer(self):
        model = net()
        optimizer = natgrad.SGD(model, 0.05, method="eva-natgrad")
        self.assertIsInstance(optimizer, torch.optim.Optimizer)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, *batch())
            loss.backward()
            return loss
        first = optimizer.step(closure)
        for _ in range(20):
            last = optimizer.step(closure)
        self.assertLess(last.item(), first.item())
        self.assertEqual(optimizer.report()["steps"], 21)
        self.assertGreater(optimizer.memory_usage()["total"], 0)
        self.assertIn("rankone", str(optimizer.explain()))

    def test_groups_are_checked(self):
        model = net()
        with self.refused("'0.bias' requires a gradient but is in no param_group"):
            natgrad.SGD(model, 0.1, params=self.groups(model)[:1])
        with self.refused(r"param_groups\[0\] has a parameter that is not in the model"):
            natgrad.SGD(model, 0.1, params=[*model.parameters(), nn.Parameter(torch.zeros(3))])
        for kind in (natgrad.SGD, natgrad.AdamW):
            for given in ((model.parameters(), 0.1), (self.groups(model), 0.1), ()):
                with self.refused(f"{kind.__name__} needs the model, .* {kind.__name__}\\(parameters, ..., model=model\\)"):
                    kind(*given)
            with self.refused("model is given twice"):
                kind(model, 0.1, model=net())
            with self.refused("params is given twice"):
                kind(model.parameters(), 0.1, model=model, params=[])
        with self.refused("lr is None, expected a number"):
            natgrad.SGD(model)
        with self.refused("param_groups are fixed"):
            natgrad.SGD(model, 0.1).add_param_group(dict(params=[nn.Parameter(torch.zeros(3))]))
        for p in self.groups(model)[0]["params"]:
            p.requires_grad_(False)
        optimizer = natgrad.SGD(model, 0.1, params=self.groups(model))  # the first group is frozen
        before = model[6].weight.clone()
        train(model, optimizer.step, 1)
        self.assertTrue(torch.equal(model[6].weight, before))

    def test_a_step_that_was_left_out_takes_its_observations_along(self):
        """GradScaler does not call step() if gradients overflowed."""
        one, two = net(), net()
        for model, disturbed in ((one, False), (two, True)):
            optimizer = natgrad.SGD(model, 0.1, clip="none")
            if disturbed:
                (loss_of(model, *batch(seed=9)) * float("inf")).backward()
                optimizer.zero_grad()
                for module in model.modules():
                    if isinstance(module, nn.BatchNorm2d):
                        module.reset_running_stats()
            loss_of(model, *batch()).backward()
            optimizer.step()
            self.assertEqual(optimizer.note, 0)
        self.same(one.state_dict(), two.state_dict())

    @unittest.skipUnless(NEW, "autograd can be told in PyTorch 2")
    def test_autograd_sees_the_update(self):
        model = net()
        optimizer = natgrad.SGD(model, 0.1)
        stale = loss_of(model, *batch())
        train(model, optimizer.step, 1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            stale.backward()


if __name__ == "__main__":
    unittest.main()
