"""Every argument of the two preconditioners of kfac-pytorch: the published table, and the layers of GPT-NeoX."""
import inspect
import logging
import os
import tempfile
import unittest

import torch
from torch import nn

import natgrad.compat as compat
from front import Case, random_batch, gradients_of, loss_of, small_conv_net
from natgrad import Preconditioner
from natgrad.compat import _averages, _kaisa
from natgrad.compat import AssignmentStrategy, ComputeMethod, DistributedStrategy, KFACPreconditioner

# name: (default, (another value, whether this value changes the results of small_conv_net()) or None, an invalid value)
TABLE = dict(
    factor_update_steps=(1, (2, True), 0), inv_update_steps=(1, (2, True), 0), damping=(0.001, (0.1, True), 0),
    factor_decay=(0.95, (0.5, True), 1.5), kl_clip=(0.001, (0.1, True), -1), lr=(0.1, (1.0, True), -0.1),
    accumulation_steps=(1, (2, True), 0), allreduce_bucket_cap_mb=(25.0, (0, False), -1),
    assignment_strategy=(AssignmentStrategy.COMPUTE, ("memory", False), "fast"), colocate_factors=(True, None, "maybe"),
    compute_method=(ComputeMethod.EIGEN, ("inverse", True), "lu"),
    compute_eigenvalue_outer_product=(True, (False, False), "maybe"),
    grad_worker_fraction=(DistributedStrategy.COMM_OPT, (0.5, False), 1.5), symmetry_aware=(False, (True, False), "maybe"),
    grad_scaler=(None, (lambda: 4.0, True), None), factor_dtype=(None, (torch.bfloat16, True), torch.int8),
    inv_dtype=(torch.float32, (torch.bfloat16, True), torch.int8), skip_layers=(None, (["6$"], True), ["("]),
    update_factors_in_hook=(True, (False, True), "maybe"), loglevel=(logging.DEBUG, (logging.INFO, False), None))
# rows that differ for GPT-NeoX
NEOX = dict(compute_eigenvalue_outer_product=(False, None, "maybe"), compute_method=(ComputeMethod.EIGEN, None, "inverse"),
            factor_checkpoint_dir=(None, None, "/tmp"), data_parallel_group=(None, None, None),
            model_parallel_group=(None, None, None), pipeline_parallel_group=(None, None, None))
ABSENT = ("colocate_factors", "grad_worker_fraction")


class LayerCalledTwice(nn.Module):
    """A layer that runs twice, because update_factors_in_hook matters for such layers only."""

    def __init__(self):
        super().__init__()
        self.net = small_conv_net()

    def forward(self, x):
        return self.net[8](torch.tanh(self.net(x)[:, [0, 1, 2, 0, 1]]))


def gradients_after_steps(**options):
    model = LayerCalledTwice()
    k = KFACPreconditioner(model, **options)
    for t in range(4):
        model.zero_grad()
        loss_of(model, *random_batch(seed=10 + t)).backward()
        k.step()
    return gradients_of(model)


class PublishedArguments(Case):
    def test_defaults_are_published(self):
        signature = inspect.signature(KFACPreconditioner).parameters
        self.assertEqual([n for n in signature][1:], [*TABLE, "process_group"])
        self.assertEqual({n: signature[n].default for n in TABLE}, {n: row[0] for n, row in TABLE.items()})
        signature = inspect.signature(compat.GPTNeoXKFACPreconditioner).parameters
        expected = {**{n: row for n, row in TABLE.items() if n not in ABSENT}, **NEOX}
        self.assertEqual(set(signature), {"model", *expected})
        for name, (default, *_) in expected.items():
            self.assertEqual(signature[name].default, default, name)

    def test_each_argument_changes_gradients(self):
        self.silence_warnings()
        plain = gradients_after_steps()
        for name, (_, other, _) in TABLE.items():
            if other is None:
                continue
            with self.subTest(name):
                value, differs = other
                got = gradients_after_steps(**{name: value})
                far = max(((got[n] - g).abs().max() / g.abs().max()).item() for n, g in plain.items() if n != "net.2.bias")
                # sums in another order: rounding, times the condition of the eigenbases
                (self.assertGreater if differs else self.assertLess)(far, 1e-4)

    def test_wrong_values_name_argument(self):
        for name, (_, _, wrong) in TABLE.items():
            if wrong is not None:
                with self.assertRaisesRegex(Exception, name if name != "skip_layers" else "unterminated", msg=name):
                    KFACPreconditioner(small_conv_net(), **{name: wrong})
        with self.assertRaisesRegex(TypeError, "colocate"):
            KFACPreconditioner(small_conv_net(), colocate=True)

    def test_functions_get_each_step(self):
        for name in ("factor_update_steps", "inv_update_steps", "damping", "factor_decay", "kl_clip", "lr"):
            seen = []
            default = TABLE[name][0]
            gradients_after_steps(**{name: lambda t: seen.append(t) or default})
            self.assertEqual(set(seen), {0, 1, 2, 3, 4}, name)
        self.assert_same_tensors(gradients_after_steps(damping=lambda t: 0.001), gradients_after_steps())

    def test_memory_usage_has_kaisa_keys(self):
        for model, a, g in ((nn.Linear(3, 2), 4 * 5, 2 * 3), (nn.Conv2d(4, 6, 3, groups=2, bias=False), 18 * 19, 3 * 4)):
            k = KFACPreconditioner(nn.Sequential(model))
            found, whole = k.memory_usage(), Preconditioner.memory_usage(k)
            keys = {f"{side}_{key}" for side in "ag" for key in ("factors", "batch", "inverses")}
            self.assertEqual(set(found), keys | {"direction", "moments", "scratch", "objects", "total"})
            self.assertEqual(found["total"], whole["total"])
            self.assertEqual(found["total"], sum(n for key, n in found.items() if key != "total"))
            for key, use in (("factors", "factors"), ("batch", "sums"), ("inverses", "results")):
                self.assertEqual(found[f"a_{key}"] + found[f"g_{key}"], whole[use])
                self.assertAlmostEqual(found[f"a_{key}"], whole[use] * a / (a + g), delta=1)


class TestsOfThePublishedProgram(Case):
    """Assertions of kfac-pytorch's own tests; scripts/published.py runs its tests themselves."""

    def test_arguments_are_attributes(self):
        k = KFACPreconditioner(small_conv_net(), assignment_strategy="memory", compute_method="inverse", grad_worker_fraction=1)
        self.assertIs(k.assignment_strategy, AssignmentStrategy.MEMORY)
        self.assertIs(k.compute_method, ComputeMethod.INVERSE)
        self.assertEqual((k.distributed_strategy, k.grad_worker_fraction), (DistributedStrategy.COMM_OPT, 1.0))
        for megabytes, method in ((25, "ALLREDUCE_BUCKETED"), (0, "ALLREDUCE")):
            k = KFACPreconditioner(small_conv_net(), allreduce_bucket_cap_mb=megabytes)
            self.assertIs(k.allreduce_method, compat.enums.AllreduceMethod[method])
        for ranks, fraction, expected in ((4, DistributedStrategy.HYBRID_OPT, ("HYBRID_OPT", 0.5)), (4, 1, ("COMM_OPT", 1.0)),
                                          (4, DistributedStrategy.MEM_OPT, ("MEM_OPT", 0.25)), (4, 0, ("MEM_OPT", 0.25)),
                                          (4, 0.5, ("HYBRID_OPT", 0.5)), (4, 0.25, ("MEM_OPT", 0.25))):
            strategy, number = _kaisa._choose_strategy(fraction, ranks)
            self.assertEqual((strategy.name, number), expected)
        self.assertTrue(issubclass(KFACPreconditioner, compat.base_preconditioner.BaseKFACPreconditioner))

    def test_numbers_may_be_texts_and_wrong_values_are_named(self):
        self.assertEqual(KFACPreconditioner(small_conv_net(), grad_worker_fraction="0.5").grad_worker_fraction, 0.5)
        for name in ("grad_worker_fraction", "allreduce_bucket_cap_mb"):
            with self.assert_refused(name):
                KFACPreconditioner(small_conv_net(), **{name: [1]})

    def test_parts_are_loaded_again(self):
        model = small_conv_net()
        k = KFACPreconditioner(model, damping=0.1)
        loss_of(model, *random_batch()).backward()
        k.step()
        with tempfile.TemporaryDirectory() as folder:
            k.save_parts(os.path.join(folder, "state"))
            other = KFACPreconditioner(small_conv_net(), damping=0.1)
            other.load_parts(os.path.join(folder, "state"))
        self.assertEqual(other.steps, 1)

    def test_memory_strategy_colocates_factors_with_a_warning(self):
        with self.assertWarnsRegex(UserWarning, "MEM_OPT.* requires colocate_factors=True"):
            k = KFACPreconditioner(small_conv_net(), compute_method="inverse", colocate_factors=False,
                                   grad_worker_fraction=DistributedStrategy.MEM_OPT)
        self.assertEqual(k._core.get("colocate"), "1")

    def test_log_has_each_layer_and_one_assignment(self):
        with self.assertLogs("natgrad", logging.INFO) as log:
            KFACPreconditioner(small_conv_net(), loglevel=logging.DEBUG)
            logging.getLogger("natgrad").info("end")
        self.assertEqual(len(log.records), 1)
        with self.assertLogs("natgrad", logging.INFO) as log:
            KFACPreconditioner(small_conv_net(), loglevel=logging.INFO)
        texts = [record.getMessage() for record in log.records]
        self.assertEqual([sum(word in text for text in texts) for word in ("Registered", "KAISAAssignment")], [4, 1])

    def test_scheduler_multiplies_beyond_the_limits(self):
        """The next step checks the arguments, which may leave their limits between two calls of the scheduler."""
        model, k = small_conv_net(), None
        names = ("factor_update_steps", "inv_update_steps", "damping", "factor_decay", "kl_clip", "lr")
        k = KFACPreconditioner(model, **dict.fromkeys(names, 1))
        scheduler = compat.LambdaParamScheduler(k, **{f"{name}_lambda": lambda step, n=n: n for n, name in enumerate(names, 2)})
        for steps in range(1, 10):
            scheduler.step()
            self.assertEqual([getattr(k, name) for name in names], [n**steps for n in range(2, 8)])
        loss_of(model, *random_batch()).backward()
        with self.assert_refused("^factor_decay: "):
            k.step()

    def test_step_names_the_assigned_argument(self):
        for name, wrong in (("damping", None), ("factor_decay", None), ("factor_update_steps", None), ("lr", None), ("damping", -1),
                            ("factor_decay", 2), ("inv_update_steps", 0), ("kl_clip", -1), ("damping", lambda step: -1)):
            k = KFACPreconditioner(small_conv_net())
            setattr(k, name, wrong)
            with self.subTest(name, wrong=wrong), self.assert_refused(f"^{name}\\b"):
                k.step()


class PublishedStates(Case):
    """The layout of kfac-pytorch: {steps, arguments, layers: {name: {A, G}}}."""

    def make_published_state(self, k, prefix=""):
        layers = _averages.read_averages(k._core)
        return {"steps": k.steps, "damping": 0.1, "lr": 0.2, "layers": {prefix + name: pair for name, pair in layers.items()}}

    def train_step(self, model, k, t):
        model.zero_grad()
        loss_of(model, *random_batch(seed=t)).backward()
        k.step()
        return gradients_of(model)

    def test_next_step_continues_from_the_averages(self):
        for options in (dict(), dict(compute_method="inverse"), dict(factor_dtype=torch.float64)):
            for prefix in ("", "module."):  # of DistributedDataParallel
                with self.subTest(options, prefix=prefix):
                    one, two = small_conv_net(), small_conv_net()
                    k, other = (KFACPreconditioner(m, damping=0.1, lr=0.2, **options) for m in (one, two))
                    for t in range(3):
                        self.train_step(one, k, t)
                    other.damping = 0.7
                    other.load_state_dict(self.make_published_state(k, prefix))
                    self.assertEqual((other.steps, other.damping), (3, 0.1))
                    self.assert_same_tensors(self.train_step(one, k, 3), self.train_step(two, other, 3))

    def test_averages_are_means_of_outer_products(self):
        model = nn.Sequential(nn.Linear(3, 2))
        k, x = KFACPreconditioner(model), torch.randn(5, 3)
        model(x).sum().backward()
        k.step()
        a = torch.cat([x, torch.ones(5, 1)], 1)
        # kfac-pytorch starts its averages at the identity, with the weight 0.95
        expected = 0.95 * torch.eye(4) + 0.05 * a.T @ a / 5
        found = _averages.read_averages(k._core)["0"]
        self.assertLess((found["A"] - expected).abs().max().item(), 1e-6)  # f32, numbers near 1
        self.assertEqual(list(found), ["A", "G"])

    def test_wrong_published_state_is_refused(self):
        model = small_conv_net()
        k = KFACPreconditioner(model, damping=0.1)
        self.train_step(model, k, 0)
        before = str(k.state_dict())

        def replace_layer_value(name, key, value):
            state = self.make_published_state(k)
            state["layers"][name] = {**state["layers"][name], key: value}
            return state
        less, more, mixed, half = (self.make_published_state(k) for _ in range(4))
        del less["layers"]["6"], half["layers"]["6"]["G"]
        more["layers"]["extra"] = more["layers"]["6"]
        mixed["layers"]["module.6"] = mixed["layers"].pop("6")
        skewed = replace_layer_value("0", "G", torch.eye(4).index_fill(0, torch.tensor(1), 1.0))
        for state, pattern in ((less, "has 3 layers, expected 4; it has no '6'"), (more, "has 5 layers, expected 4; 'extra'"),
                               (mixed, "it has no '6'; 'module.6' is unknown"), (half, r"layers\['6'\] has no 'G'"),
                               (skewed, r"layers\['0'\]\['G'\] is not symmetric"),
                               (replace_layer_value("0", "G", None), r"layers\['0'\]\['G'\] is a NoneType"),
                               (replace_layer_value("0", "G", torch.eye(4).int()), "has elements of torch.int32"),
                               (replace_layer_value("0", "G", torch.eye(3)), r"\['G'\] is \[3, 3\], expected \[4, 4\]"),
                               (replace_layer_value("0", "G", torch.full((4, 4), float("nan"))), "not finite"),
                               ({**self.make_published_state(k), "layers": 3}, "layers is a int"),
                               ({"steps": 1, "numbers": {"speed": 1}}, "expected some of factor_update_steps, inv_update_steps, damping"),
                               ({**self.make_published_state(k), "lr": -1}, "lr"), ({**self.make_published_state(k), "speed": 1}, "'speed'")):
            with self.assert_refused(pattern):
                k.load_state_dict(state)
            self.assertEqual(str(k.state_dict()), before)
        k = KFACPreconditioner(model, damping=0.1, factor_dtype=torch.float16)
        with self.assert_refused(r"^the state: layers\['0'\]\['G'\] has elements beyond the range of torch.float16"):
            k.load_state_dict(replace_layer_value("0", "G", torch.eye(4) * 1e6))

    def test_a_model_that_is_one_layer(self):
        """kfac-pytorch calls its layer ''."""
        for name in ("", "root", "module"):
            k = KFACPreconditioner(nn.Linear(3, 2))
            k.load_state_dict({"steps": 1, "layers": {name: {"A": torch.eye(4) * 7, "G": torch.eye(2)}}})
            self.assertEqual(_averages.read_averages(k._core)["root"]["A"][0, 0], 7)

    def test_layers_load_at_any_step(self):
        """None: an average that was never observed, as in a state of kfac-pytorch before the first step."""
        k, other = (KFACPreconditioner(small_conv_net(), damping=0.1) for _ in range(2))
        state = self.make_published_state(k)
        state["layers"].update({"6": {"A": torch.eye(49) * 7, "G": torch.eye(5)}, "8": {"A": None, "G": None}})
        other.load_state_dict(state)
        found = _averages.read_averages(other._core)
        self.assertEqual((found["6"]["A"][0, 0], found["8"]["A"][0, 0]), (7, 1))

    def test_periods_count_from_the_step_of_the_state(self):
        for has_layers in (True, False):
            one, two = small_conv_net(), small_conv_net()
            k, other = (KFACPreconditioner(m, damping=0.1, lr=0.2, factor_update_steps=2, inv_update_steps=4) for m in (one, two))
            for t in range(3):
                self.train_step(one, k, t)
            state = self.make_published_state(k)
            if not has_layers:
                self.train_step(two, other, 0)
                del state["layers"]
            other.load_state_dict({**state, "steps": 3})
            for t in range(3, 7):
                before = other.report()["layers"][0]["observations"]
                pair = self.train_step(one, k, t), self.train_step(two, other, t)
                self.assertEqual(other.report()["layers"][0]["observations"] > before, t in (4, 6))
                if has_layers and t >= 4:  # both have solved the averages of step 4
                    self.assert_same_tensors(*pair)


class ColumnParallelLinear(nn.Module):
    """A linear layer as in Megatron: no nn.Linear, and forward returns (output, bias)."""

    def __init__(self, columns, rows):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(rows, columns) / 3), nn.Parameter(torch.zeros(rows))

    def forward(self, x):
        return nn.functional.linear(x, self.weight), self.bias


class RowParallelLinear(ColumnParallelLinear):
    pass


class PipelineModule(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.up, self.down, self.head = ColumnParallelLinear(4, 6), RowParallelLinear(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        out, bias = self.up(x)
        out, bias = self.down(torch.tanh(out + bias))
        return self.head(out + bias)


class LinearTwin(nn.Module):
    """The same network of nn.Linear."""

    def __init__(self, other):
        super().__init__()
        self.up, self.down, self.head = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 3)
        self.load_state_dict(other.state_dict())

    def forward(self, x):
        return self.head(self.down(torch.tanh(self.up(x))))


class FakeGroup:
    def __init__(self, size):
        self.size = lambda: size


class GptNeoX(Case):
    def make_gpt_neox(self, model, **options):
        with self.assertWarnsRegex(UserWarning, "experimental"):
            return compat.GPTNeoXKFACPreconditioner(model, **options)

    def test_gradients_match_kaisa(self):
        """Results equal the same network of nn.Linear without the head."""
        model, x = PipelineModule(), torch.randn(7, 2, 4)  # [T, B, F]
        other = LinearTwin(model)
        k = self.make_gpt_neox(model, compute_eigenvalue_outer_product=True, data_parallel_group=None)
        plain = KFACPreconditioner(other, skip_layers=["head"], compute_eigenvalue_outer_product=False)
        for _ in range(3):
            for one, step in ((model, k), (other, plain)):
                one.zero_grad()
                one(x).pow(2).mean().backward()
                step.step()
        for name, p in model.named_parameters():
            expected = dict(other.named_parameters())[name].grad
            self.assertLess(((p.grad - expected).abs().max() / expected.abs().max()).item(), 1e-5, name)
        self.assertEqual([layer["name"] for layer in k.report()["layers"]], ["up", "down"])
        self.assertEqual(k._chosen.get("solver"), "eigen")
        why = {row["name"]: row["why"] for row in k.explain()}
        self.assertEqual(why["head.weight"], "kfac-pytorch has no Linear")
        for options, left in ((dict(skip_layers=["rowparallel"]), ["up"]), (dict(skip_layers=["^up$"]), ["down"]),
                              (dict(skip_layers=["RowParallel"]), ["up", "down"])):  # class names are lower-cased
            self.assertEqual([layer["name"] for layer in self.make_gpt_neox(PipelineModule(), **options).report()["layers"]],
                             left)

    def test_factor_folder_restores_factors(self):
        """A model that loads the folder of another model has the same gradients; the state_dict has no factors."""
        x = torch.randn(7, 2, 4)

        def step_once(model, k):
            model.zero_grad()
            model(x).pow(2).mean().backward()
            k.step()
            return {name: p.grad.clone() for name, p in model.named_parameters()}

        with tempfile.TemporaryDirectory() as folder:
            where = os.path.join(folder, "a", "b")
            first, again, fresh = PipelineModule(), PipelineModule(), PipelineModule()
            for other in (again, fresh):
                other.load_state_dict(first.state_dict())
            one, two, new = (self.make_gpt_neox(m, factor_checkpoint_dir=where) for m in (first, again, fresh))
            with self.assertWarnsRegex(UserWarning, "no folder"):
                self.assertEqual(two.load_factors_from_dir(), 0)
            for _ in range(2):
                step_once(first, one)
            state = one.state_dict()
            self.assertEqual(sorted(os.listdir(where)), ["down.safetensors", "up.safetensors"])
            self.assertNotIn("fields", state)
            two.load_state_dict(state)
            self.assertEqual(two.steps, 2)
            expected, got, plain = step_once(first, one), step_once(again, two), step_once(fresh, new)
            for name, gradient in expected.items():
                self.assertTrue(torch.equal(gradient, got[name]), name)
            self.assertFalse(torch.equal(expected["up.weight"], plain["up.weight"]))
            with open(os.path.join(where, "up.safetensors"), "r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"\x55")
            with self.assert_refused("up.safetensors: is damaged"):
                two.load_state_dict({**state, "steps": 7})
            self.assertEqual(two.steps, 3)
            with self.assert_refused("factor_checkpoint_dir was not given"):
                self.make_gpt_neox(PipelineModule()).save_factors_to_dir()

    def test_wrong_arguments_are_refused(self):
        self.silence_warnings()
        for options, pattern in ((dict(compute_method="inverse"), "compute_method"),
                                 (dict(compute_method=ComputeMethod.INVERSE), "compute_method"),
                                 (dict(model_parallel_group=FakeGroup(2)),
                                  "model_parallel_group is a FakeGroup, expected a group"),
                                 (dict(pipeline_parallel_group=FakeGroup(2)), "data_parallel_group"),
                                 (dict(damping=-1), "damping"), (dict(compute_eigenvalue_outer_product=2), "outer_product")):
            with self.assert_refused(pattern):
                compat.GPTNeoXKFACPreconditioner(PipelineModule(), **options)
        with self.assert_refused("model is a Sequential, expected a PipelineModule"):
            compat.GPTNeoXKFACPreconditioner(small_conv_net())
        compat.GPTNeoXKFACPreconditioner(PipelineModule(), model_parallel_group=FakeGroup(1),
                                         pipeline_parallel_group=FakeGroup(1))


if __name__ == "__main__":
    unittest.main()
