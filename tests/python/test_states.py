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
from front import NEW, Case, batch, grads, loss_of, make, net
from natgrad.compat import KFACPreconditioner


def stepped(model, optimizer, steps=2):
    for t in range(steps):
        model.zero_grad()
        loss_of(model, *batch(seed=t)).backward()
        optimizer.step()
    return optimizer


def of_two(rank, world):
    """Only one rank loads a state that does not fit."""
    model = net()
    k = stepped(model, make(model))
    state, found = k.state_dict(), []
    for wrong in range(world):
        try:
            k.load_state_dict({**state, "steps": -1} if rank == wrong else state)
            found.append("loaded")
        except natgrad.Error as error:
            found.append(str(error))
    k.load_state_dict(state)
    stepped(model, k)
    k.close()
    return found


class Atomic(Case):
    def unchanged(self, make_one, wrong, pattern):
        """wrong(state) is refused; then the object continues like an object that loaded nothing."""
        mine, other, from_model = net(), net(), net(7)
        state = stepped(from_model, make_one(from_model), 3).state_dict()
        one, two = (stepped(model, make_one(model)) for model in (mine, other))
        bad = copy.deepcopy(state)
        bad = wrong(bad) or bad
        with self.subTest(pattern), self.refused(pattern):
            one.load_state_dict(bad)
        self.assertEqual(one.steps, 2)
        self.assertEqual(str(one.state_dict()), str(two.state_dict()))
        stepped(mine, one), stepped(other, two)
        self.same(grads(mine), grads(other))
        one.load_state_dict(state)
        self.assertEqual(one.steps, 3)

    def test_of_a_preconditioner(self):
        def later(step):
            if step == 3:
                raise natgrad.Error("the function of the step")
            return 0.1
        for wrong, pattern in ((lambda s: {**s, "steps": "a"}, "steps is 'a'"), (lambda s: {**s, "steps": -5}, "steps is -5"),
                               (lambda s: {**s, "steps": 7}, "steps is 7, and its manifest counts 3"),
                               (lambda s: {**s, "fields": {**s["fields"], "6/A": [1.0]}}, "'6/A' is a list"),
                               (lambda s: {**s, "manifest": 3}, "."), (lambda s: {**s, "fields": []}, "fields is a list"), (lambda s: [s], "the state is a list")):
            self.unchanged(make, wrong, pattern)
        model, other = net(), net(7)
        state = stepped(other, make(other), 3).state_dict()
        for function, pattern in ((later, "the function of the step"), (lambda t: 0.1 if t < 3 else -1.0, "damping")):
            k = stepped(model, make(model, damping=function), 1)
            before = str(k.state_dict())
            with self.refused(pattern):
                k.load_state_dict(state)
            self.assertEqual(str(k.state_dict()), before)
            k.close()

    def test_of_kaisa(self):
        def number(name, value):
            def change(state):
                state["numbers"][name] = value
            return change

        def gone(state):
            del state["numbers"]
        for change, pattern in ((number("damping", -1.0), "damping"), (number("damping", "x"), "damping"),
                                (number("inv_update_steps", 0), "inv_update_steps"), (number("speed", 1), "numbers is"),
                                (gone, "numbers is None"), (lambda s: {**s, "steps": 1.5}, "steps is 1.5")):
            self.unchanged(lambda m: KFACPreconditioner(m, damping=0.1), change, pattern)
        k = KFACPreconditioner(net(), damping=0.25)
        for state, pattern in (({"steps": -1, "numbers": {}}, "steps is -1"), ({"steps": 4}, "not a state of natgrad.compat"),
                               ({"steps": 4, "numbers": {"lr": -1}}, "lr"), (None, "not a state of natgrad.compat")):
            with self.refused(pattern):
                k.load_state_dict(state)
            self.assertEqual((k.steps, k.lr, k.damping), (0, 0.1, 0.25))

    def test_steps_of_a_state_without_factors(self):
        """The counter continues from the loaded steps, and is saved with the new factors."""
        model = net()
        k = KFACPreconditioner(model, damping=0.1)
        k.load_state_dict({"steps": 40, "numbers": {}})
        state = stepped(model, k).state_dict()
        self.assertEqual(state["steps"], 42)
        other = KFACPreconditioner(net(), damping=0.1)
        other.load_state_dict(state)
        self.assertEqual(other.steps, 42)

    def test_of_optimizers(self):
        def less(name):
            def change(state):
                del state["param_groups"][0][name]
            return change

        def drop(name):
            def change(state):
                del state[name]
            return change
        for make_one, last in ((lambda m: natgrad.SGD(m, 0.1, momentum=0.9), "momentum"),
                               (lambda m: natgrad.AdamW(m, 0.01), "betas"),
                               (lambda m: kfac.SPNGD(m), "momentum"), (lambda m: kfac.EVA(m), "damping")):
            for change, pattern in ((less(last), f"param_groups.0. has no '{last}'"), (drop("state"), "has no 'state'"),
                                    (drop("natgrad"), "has no 'natgrad'"), (drop("param_groups"), "has no 'param_groups'"),
                                    (lambda s: {**s, "param_groups": []}, "param_groups of"),
                                    (lambda s: {**s, "natgrad": {**s["natgrad"], "steps": 9}}, "manifest counts")):
                if last != "damping" or pattern != "has no 'natgrad'":  # without 'natgrad' the state is a state of the published class
                    self.unchanged(make_one, change, pattern)

        def bad(state):
            state["param_groups"][0]["kfac_update_freq"] = 0
        self.unchanged(lambda m: kfac.DP_KFAC(m), bad, "kfac_update_freq")

    def test_skipped_steps_are_counted_by_both(self):
        model = net()
        optimizer = natgrad.SGD(model, 0.1)
        stepped(model, optimizer)
        optimizer.zero_grad()
        (loss_of(model, *batch()) * float("inf")).backward()
        versions = [p._version for p in model.parameters()]  # autograd counts updates only
        optimizer.step()
        self.assertEqual((optimizer.note, optimizer.steps), (2, 2))
        self.assertEqual([p._version for p in model.parameters()], versions)
        other = natgrad.SGD(net(), 0.1)
        other.load_state_dict(optimizer.state_dict())
        self.assertEqual(other.steps, 2)

    def test_ranks_refuse_together(self):
        found = ranks.run(2, of_two)
        mine, others = "the state: steps is -1, expected a count", "another rank rejected its state"
        self.assertEqual(found, [[mine, others], [others, mine]])


MAKERS = {"KFAC": make, "SGD": lambda m: natgrad.SGD(m, 0.1), "kaisa": KFACPreconditioner, "FusedEVA": kfac.FusedEVA,
          "eigen_dp": kfac.KFAC_EIGEN_DP, "SPNGD": kfac.SPNGD, "MFAC": lambda m: kfac.MFAC(m.parameters(), ngrads=3)}


def foreign(model):
    groups = dict(state={}, param_groups=[dict(params=list(range(12)))])
    return {"torch": torch.optim.SGD(model.parameters(), 0.1).state_dict(), "none": None, "list": [], "empty": {},
            "natgrad": stepped(model, make(model)).state_dict(), "numbers": {**groups, "natgrad": {}},
            "groups": dict(state={}, param_groups=5, natgrad={}, lr_before=None)}


def foreign_of_two(rank, world):
    """A state of the published class that only one rank accepts."""
    model, found = net(), []
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


class Foreign(Case):
    def test_states_of_others(self):
        """Each state is refused in one line, and changes nothing."""
        for name, make_one in MAKERS.items():
            for kind, state in foreign(net()).items():
                if (name, kind) == ("KFAC", "natgrad"):
                    continue
                one, two = net(), net()
                a, b = make_one(one), make_one(two)
                before = str(getattr(a, "param_groups", None))
                with self.subTest(name, state=kind):
                    with self.assertRaisesRegex(natgrad.Error, "state"):
                        a.load_state_dict(state)
                    self.assertEqual(str(getattr(a, "param_groups", None)), before)
                    stepped(one, a), stepped(two, b)
                    self.same(grads(one), grads(two))
                a.close(), b.close()

    def test_ranks_refuse_them_together(self):
        first, second = ranks.run(2, foreign_of_two)
        self.assertEqual([one for one in first if isinstance(one, float)], [0.001, 0.001])
        self.assertEqual([one for one in second if isinstance(one, float)], [0.001, 0.001])
        self.assertIn("NoneType", first[0])
        self.assertIn("another rank rejected", first[2])
        self.assertIn("another rank rejected", second[0])


class Copies(Case):
    def test_they_say_what_to_do(self):
        for make_one in (make, lambda m: natgrad.Eva(m), lambda m: natgrad.SGD(m, 0.1), lambda m: KFACPreconditioner(m),
                         lambda m: kfac.EVA(m), lambda m: kfac.MFAC(m.parameters(), ngrads=3), lambda m: kfac.SPNGD(m)):
            one = make_one(net())
            name = type(one).__name__
            for copied in (copy.copy, copy.deepcopy, pickle.dumps, lambda k: torch.save(k, io.BytesIO())):
                with self.refused(f"^{name} cannot be copied or pickled, .*load state_dict"):
                    copied(one)

    def test_a_copy_of_the_model_and_its_state(self):
        model = net()
        k = stepped(model, make(model))
        other = copy.deepcopy(model)
        mine = make(other)
        mine.load_state_dict(copy.deepcopy(k.state_dict()))
        stepped(model, k), stepped(other, mine)
        self.same(grads(model), grads(other))


class Closed(Case):
    def test_what_it_is_asked(self):
        k = make(net())
        k.close()
        for ask in (k.step, k.explain, k.memory_usage, k.report, k.reset_batch, k.state_dict,
                    lambda: setattr(k, "hook_enabled", True)):
            with self.refused("^the preconditioner was closed$"):
                ask()

    def test_between_forward_and_backward_and_inside_of_it(self):
        model = net()
        loss_of(model, *batch()).backward()
        plain = grads(model)
        for inside in (False, True):
            model.zero_grad()
            k = make(model)

            def close_in_backward(_module, _inputs, output):
                output.register_hook(lambda g: k.close())
            hook = model[6].register_forward_hook(close_in_backward) if inside else None
            loss = loss_of(model, *batch())
            if not inside:
                k.close()
            loss.backward()
            if inside:
                hook.remove()
            self.same(grads(model), plain)


class Arguments(Case):
    def test_they_are_named(self):
        k = make(net())
        for call, pattern in ((lambda: k.begin(0), "samples is 0"), (lambda: k.begin("x"), "samples is .x."),
                              (lambda: k.begin(2.5), "samples is 2.5"), (lambda: k.begin(3, float("nan")), "loss_scale is nan"),
                              (lambda: k.begin(3, 0.0), "loss_scale is 0.0"), (lambda: k.step("x"), "lr is 'x'"),
                              (lambda: k.step(torch.ones(2)), "lr is tensor"),
                              (lambda: setattr(k, "hook_enabled", "no"), "hook_enabled is 'no'")):
            with self.refused(pattern):
                call()
        with self.refused("hook_enabled is 'off', expected True or False"):
            kfac.EVA(net()).set_hook_enabled("off")

    def test_of_another_kind(self):
        for options, pattern in ((dict(threads="x"), "threads is 'x'"), (dict(linalg=3), "linalg is 3"),
                                 (dict(layer_options={"0": 3}), "layer_options..0.. is 3")):
            with self.refused(pattern):
                make(net(), **options)

    @unittest.skipUnless(NEW, "torch.func is in PyTorch 2")
    def test_gradients_of_torch_func(self):
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
        k, (x, y) = make(model), batch(shape=(4,), classes=2)
        parameters = {name: p.detach() for name, p in model.named_parameters()}

        def of_them():
            return torch.func.grad(lambda p: nn.functional.cross_entropy(torch.func.functional_call(model, p, (x,)), y))(
                parameters)
        with self.refused("layer '2': its weight was replaced in the forward .functional_call.: set hook_enabled = False"):
            of_them()
        with self.refused("the output gradient of 2 has no memory, as under torch.func: set hook_enabled"):
            torch.func.grad(lambda x: nn.functional.cross_entropy(model(x), y))(x)
        k.hook_enabled = False
        got = of_them()
        nn.functional.cross_entropy(model(x), y).backward()
        for name, g in grads(model).items():
            self.assertTrue(torch.allclose(got[name], g))


if __name__ == "__main__":
    unittest.main()
