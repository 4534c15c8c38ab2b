"""Refused states change nothing; objects that cannot be copied, or are closed, raise an error."""
import copy
import io
import pickle
import unittest

import torch
from torch import nn

import natgrad
import natgrad.compat as kfac
import ranks
from front import NEW, Case, random_batch, gradients_of, loss_of, make_preconditioner, small_conv_net
from natgrad.compat import KFACPreconditioner


def train(model, optimizer, steps=2):
    for t in range(steps):
        model.zero_grad()
        loss_of(model, *random_batch(seed=t)).backward()
        optimizer.step()
    return optimizer


def load_on_one_rank_only(rank, world):
    """Only one rank loads a state that does not fit."""
    model = small_conv_net()
    k = train(model, make_preconditioner(model))
    state, found = k.state_dict(), []
    for wrong in range(world):
        try:
            k.load_state_dict({**state, "steps": -1} if rank == wrong else state)
            found.append("loaded")
        except natgrad.Error as error:
            found.append(str(error))
    k.load_state_dict(state)
    train(model, k)
    k.close()
    return found


class RejectedStates(Case):
    def assert_refused_without_effect(self, make_one, wrong, pattern):
        """wrong(state) is refused; then the object continues like an object that loaded nothing."""
        mine, other, from_model = small_conv_net(), small_conv_net(), small_conv_net(7)
        state = train(from_model, make_one(from_model), 3).state_dict()
        one, two = (train(model, make_one(model)) for model in (mine, other))
        bad = copy.deepcopy(state)
        bad = wrong(bad) or bad
        with self.subTest(pattern), self.assert_refused(pattern):
            one.load_state_dict(bad)
        self.assertEqual(one.steps, 2)
        self.assertEqual(str(one.state_dict()), str(two.state_dict()))
        train(mine, one), train(other, two)
        self.assert_same_tensors(gradients_of(mine), gradients_of(other))
        one.load_state_dict(state)
        self.assertEqual(one.steps, 3)

    def test_wrong_preconditioner_state(self):
        def fail_at_step_3(step):
            if step == 3:
                raise natgrad.Error("the function of the step")
            return 0.1
        for wrong, pattern in ((lambda s: {**s, "steps": "a"}, "steps is 'a'"), (lambda s: {**s, "steps": -5}, "steps is -5"),
                               (lambda s: {**s, "steps": 7}, "steps is 7, and its manifest counts 3"),
                               (lambda s: {**s, "fields": {**s["fields"], "6/A": [1.0]}}, "'6/A' is a list"),
                               (lambda s: {**s, "manifest": 3}, "."), (lambda s: {**s, "fields": []}, "fields is a list"),
                               (lambda s: [s], "the state is a list")):
            self.assert_refused_without_effect(make_preconditioner, wrong, pattern)
        model, other = small_conv_net(), small_conv_net(7)
        state = train(other, make_preconditioner(other), 3).state_dict()
        for function, pattern in ((fail_at_step_3, "the function of the step"), (lambda t: 0.1 if t < 3 else -1.0, "damping")):
            k = train(model, make_preconditioner(model, damping=function), 1)
            before = str(k.state_dict())
            with self.assert_refused(pattern):
                k.load_state_dict(state)
            self.assertEqual(str(k.state_dict()), before)
            k.close()

    def test_wrong_kaisa_state(self):
        def number(name, value):
            def change(state):
                state["numbers"][name] = value
            return change

        def remove_numbers(state):
            del state["numbers"]
        for change, pattern in ((number("damping", -1.0), "damping"), (number("damping", "x"), "damping"),
                                (number("inv_update_steps", 0), "inv_update_steps"), (number("speed", 1), "numbers is"),
                                (remove_numbers, "numbers is None"), (lambda s: {**s, "steps": 1.5}, "steps is 1.5")):
            self.assert_refused_without_effect(lambda m: KFACPreconditioner(m, damping=0.1), change, pattern)
        k = KFACPreconditioner(small_conv_net(), damping=0.25)
        for state, pattern in (({"steps": -1, "numbers": {}}, "steps is -1"), ({"numbers": {}}, "has no 'steps'"),
                               ({"steps": 4, "numbers": {"lr": -1}}, "lr"), (None, "has no 'steps'")):
            with self.assert_refused(pattern):
                k.load_state_dict(state)
            self.assertEqual((k.steps, k.lr, k.damping), (0, 0.1, 0.25))

    def test_state_without_factors_sets_steps(self):
        """The counter continues from the loaded steps, and is saved with the new factors."""
        model = small_conv_net()
        k = KFACPreconditioner(model, damping=0.1)
        k.load_state_dict({"steps": 40, "numbers": {}})
        state = train(model, k).state_dict()
        self.assertEqual(state["steps"], 42)
        other = KFACPreconditioner(small_conv_net(), damping=0.1)
        other.load_state_dict(state)
        self.assertEqual(other.steps, 42)

    def test_wrong_optimizer_state(self):
        def remove_group_value(name):
            def change(state):
                del state["param_groups"][0][name]
            return change

        def remove_key(name):
            def change(state):
                del state[name]
            return change
        for make_one, last in ((lambda m: natgrad.SGD(m, 0.1, momentum=0.9), "momentum"),
                               (lambda m: natgrad.AdamW(m, 0.01), "betas"),
                               (lambda m: kfac.SPNGD(m), "momentum"), (lambda m: kfac.EVA(m), "damping")):
            for change, pattern in ((remove_group_value(last), f"param_groups.0. has no '{last}'"),
                                    (remove_key("state"), "has no 'state'"),
                                    (remove_key("natgrad"), "has no 'natgrad'"),
                                    (remove_key("param_groups"), "has no 'param_groups'"),
                                    (lambda s: {**s, "param_groups": []}, "param_groups of"),
                                    (lambda s: {**s, "natgrad": {**s["natgrad"], "steps": 9}}, "manifest counts")):
                # without 'natgrad' the state is a state of the published class
                if last != "damping" or pattern != "has no 'natgrad'":
                    self.assert_refused_without_effect(make_one, change, pattern)

        def set_period_0(state):
            state["param_groups"][0]["kfac_update_freq"] = 0
        self.assert_refused_without_effect(lambda m: kfac.DP_KFAC(m), set_period_0, "kfac_update_freq")

    def test_skipped_step_is_not_counted_or_saved_as_one(self):
        model = small_conv_net()
        optimizer = natgrad.SGD(model, 0.1)
        train(model, optimizer)
        optimizer.zero_grad()
        (loss_of(model, *random_batch()) * float("inf")).backward()
        versions = [p._version for p in model.parameters()]  # autograd counts updates only
        optimizer.step()
        self.assertEqual((optimizer.note, optimizer.steps), (2, 2))
        self.assertEqual([p._version for p in model.parameters()], versions)
        other = natgrad.SGD(small_conv_net(), 0.1)
        other.load_state_dict(optimizer.state_dict())
        self.assertEqual(other.steps, 2)

    def test_all_ranks_refuse_wrong_state(self):
        found = ranks.run_on_ranks(2, load_on_one_rank_only)
        mine, others = "the state: steps is -1, expected a count", "another rank rejected its state"
        self.assertEqual(found, [[mine, others], [others, mine]])


MAKERS = {"KFAC": make_preconditioner, "SGD": lambda m: natgrad.SGD(m, 0.1), "kaisa": KFACPreconditioner,
          "FusedEVA": kfac.FusedEVA,
          "eigen_dp": kfac.KFAC_EIGEN_DP, "SPNGD": kfac.SPNGD, "MFAC": lambda m: kfac.MFAC(m.parameters(), ngrads=3)}


def make_foreign_states(model):
    groups = dict(state={}, param_groups=[dict(params=list(range(12)))])
    return {"torch": torch.optim.SGD(model.parameters(), 0.1).state_dict(), "none": None, "list": [], "empty": {},
            "natgrad": train(model, make_preconditioner(model)).state_dict(), "numbers": {**groups, "natgrad": {}},
            "groups": dict(state={}, param_groups=5, natgrad={}, lr_before=None)}


def load_foreign_state_on_ranks(rank, world):
    """A state of the published class that only one rank accepts."""
    model, found = small_conv_net(), []
    k = kfac.KFAC_EIGEN_DP(model, process_group=torch.distributed.group.WORLD)
    good = {name: value for name, value in k.state_dict().items() if name != "natgrad"}
    good["param_groups"][0]["damping"] = 0.5
    for wrong in range(world):
        try:
            k.load_state_dict(None if rank == wrong else good)
            found.append("loaded")
        except natgrad.Error as error:
            found.append(str(error))
        found.append(k.param_groups[0]["damping"])
    k.close()
    return found


class ForeignStates(Case):
    def test_foreign_states_are_refused(self):
        """Each state is refused in one line, and changes nothing."""
        for name, make_one in MAKERS.items():
            for kind, state in make_foreign_states(small_conv_net()).items():
                if (name, kind) == ("KFAC", "natgrad"):
                    continue
                one, two = small_conv_net(), small_conv_net()
                a, b = make_one(one), make_one(two)
                before = str(getattr(a, "param_groups", None))
                with self.subTest(name, state=kind):
                    with self.assertRaisesRegex(natgrad.Error, "state"):
                        a.load_state_dict(state)
                    self.assertEqual(str(getattr(a, "param_groups", None)), before)
                    train(one, a), train(two, b)
                    self.assert_same_tensors(gradients_of(one), gradients_of(two))
                a.close(), b.close()

    def test_all_ranks_refuse_foreign_state(self):
        first, second = ranks.run_on_ranks(2, load_foreign_state_on_ranks)
        self.assertEqual([one for one in first if isinstance(one, float)], [0.001, 0.001])
        self.assertEqual([one for one in second if isinstance(one, float)], [0.001, 0.001])
        self.assertIn("NoneType", first[0])
        self.assertIn("another rank rejected", first[2])
        self.assertIn("another rank rejected", second[0])


class Copies(Case):
    def test_copying_is_refused_with_advice(self):
        for make_one in (make_preconditioner, lambda m: natgrad.Eva(m), lambda m: natgrad.SGD(m, 0.1),
                         lambda m: KFACPreconditioner(m),
                         lambda m: kfac.EVA(m), lambda m: kfac.MFAC(m.parameters(), ngrads=3), lambda m: kfac.SPNGD(m)):
            one = make_one(small_conv_net())
            name = type(one).__name__
            for copied in (copy.copy, copy.deepcopy, pickle.dumps, lambda k: torch.save(k, io.BytesIO())):
                with self.assert_refused(f"^{name} cannot be copied or pickled, .*load state_dict"):
                    copied(one)

    def test_copied_model_continues_from_state(self):
        model = small_conv_net()
        k = train(model, make_preconditioner(model))
        other = copy.deepcopy(model)
        mine = make_preconditioner(other)
        mine.load_state_dict(copy.deepcopy(k.state_dict()))
        train(model, k), train(other, mine)
        self.assert_same_tensors(gradients_of(model), gradients_of(other))


class Closed(Case):
    def test_calls_after_close_are_refused(self):
        k = make_preconditioner(small_conv_net())
        k.close()
        for ask in (k.step, k.explain, k.memory_usage, k.report, k.reset_batch, k.state_dict,
                    lambda: setattr(k, "hook_enabled", True)):
            with self.assert_refused("^the preconditioner was closed$"):
                ask()

    def test_close_before_and_inside_backward(self):
        model = small_conv_net()
        loss_of(model, *random_batch()).backward()
        plain = gradients_of(model)
        for inside in (False, True):
            model.zero_grad()
            k = make_preconditioner(model)

            def close_in_backward(_module, _inputs, output):
                output.register_hook(lambda g: k.close())
            hook = model[6].register_forward_hook(close_in_backward) if inside else None
            loss = loss_of(model, *random_batch())
            if not inside:
                k.close()
            loss.backward()
            if inside:
                hook.remove()
            self.assert_same_tensors(gradients_of(model), plain)


class Arguments(Case):
    def test_errors_name_argument(self):
        k = make_preconditioner(small_conv_net())
        for call, pattern in ((lambda: k.begin(0), "samples is 0"), (lambda: k.begin("x"), "samples is .x."),
                              (lambda: k.begin(2.5), "samples is 2.5"), (lambda: k.begin(3, float("nan")), "loss_scale is nan"),
                              (lambda: k.begin(3, 0.0), "loss_scale is 0.0"), (lambda: k.step("x"), "lr is 'x'"),
                              (lambda: k.step(torch.ones(2)), "lr is tensor"),
                              (lambda: setattr(k, "hook_enabled", "no"), "hook_enabled is 'no'")):
            with self.assert_refused(pattern):
                call()
        with self.assert_refused("hook_enabled is 'off', expected True or False"):
            kfac.EVA(small_conv_net()).set_hook_enabled("off")

    def test_wrong_types_are_refused(self):
        for options, pattern in ((dict(threads="x"), "threads is 'x'"), (dict(linalg=3), "linalg is 3"),
                                 (dict(layer_options={"0": 3}), "layer_options..0.. is 3")):
            with self.assert_refused(pattern):
                make_preconditioner(small_conv_net(), **options)

    @unittest.skipUnless(NEW, "torch.func is in PyTorch 2")
    def test_torch_func_gradients_are_refused(self):
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
        k, (x, y) = make_preconditioner(model), random_batch(shape=(4,), classes=2)
        parameters = {name: p.detach() for name, p in model.named_parameters()}

        def torch_func_gradients():
            return torch.func.grad(lambda p: nn.functional.cross_entropy(torch.func.functional_call(model, p, (x,)), y))(
                parameters)
        with self.assert_refused("layer '2': its weight was replaced in the forward .functional_call.: set hook_enabled = False"):
            torch_func_gradients()
        with self.assert_refused("the output gradient of 2 has no memory, as under torch.func: set hook_enabled"):
            torch.func.grad(lambda x: nn.functional.cross_entropy(model(x), y))(x)
        k.hook_enabled = False
        got = torch_func_gradients()
        nn.functional.cross_entropy(model(x), y).backward()
        for name, g in gradients_of(model).items():
            self.assertTrue(torch.allclose(got[name], g))


if __name__ == "__main__":
    unittest.main()
