"""Published programs by their own names: recordings, golden numbers, arguments, schedulers."""
import io
import importlib.util
import logging
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
from torch import nn

import natgrad.compat as kfac
import recording
from front import NEW, Case, random_batch, gradients_of, loss_of, small_conv_net
from natgrad.compat import KFACPreconditioner, LambdaParamScheduler, exp_decay_factor_averaging


def sine_pattern(shape, m, b, mod, s):
    """The inputs of the golden numbers: a sine."""
    k = torch.arange(torch.Size(shape).numel())
    return ((((m * k + b) % mod).double() - (mod - 1) / 2) / s).float().reshape(shape)


def step_of_test_t1(model, k, t, shift=None, scale=1.0):
    """Test T1: a linear layer with given input and output gradient."""
    shift = t if shift is None else shift
    x, g = sine_pattern((4, 3), 7, 3 + shift, 11, 4), sine_pattern((4, 2), 5, 2 + shift, 7, 8)
    model.zero_grad()
    model(x.requires_grad_()).backward(g * scale)
    for p in model.parameters():
        p.grad /= scale
    k.step()
    return torch.cat([model.weight.grad, model.bias.grad[:, None]], 1)


# rows of the new gradient [w1 w2 w3 b], double precision references
T1_EIGEN = ([[-0.0355264528, -0.0365448741, -0.0359629191, -0.000581955025],
             [-0.0590351916, -0.261947654, -0.145997675, -0.115949978]],
            [[-0.0952853514, 0.168408436, 0.0187811195, 0.152088628],
             [0.0927887558, 0.0652102165, -0.0421930164, -0.179975696]],
            [[-0.0510029776, 0.301546274, -0.0389161499, 0.0161157703],
             [-0.0371960235, -0.168909658, -0.0271304681, 0.0134207406]])
T1_SCHED = ([[-0.0355264528, -0.0365448741, -0.0359629191, -0.000581955025],
             [-0.0590351916, -0.261947654, -0.145997675, -0.115949978]],
            [[-0.0963140769, 0.167132353, 0.0163988866, 0.150283951],
             [0.0879062323, 0.0540439735, -0.0394237522, -0.169773313]],
            [[-0.0510675408, 0.297725721, -0.0384986771, 0.0167584849],
             [-0.0360378817, -0.166445958, -0.026313419, 0.0129659502]])
T1_NOCLIP = [[-0.0367525738, -0.0378061437, -0.0372041038, -0.000602039981],
             [-0.0610726673, -0.270988227, -0.151036479, -0.119951749]]


class Recordings(Case):
    def test_every_recording_of_one_rank(self):
        found = [name for name in recording.recording_names("kaisa-*", "eigen*", "inverse*", "eva-*", "spngd-*")
                 if "ranks" not in name]
        self.assertEqual(len(found), 34)
        for name in found:
            with self.subTest(name):
                case, arrays = recording.read_recording(name)
                self.assertLess(recording.replay(case, arrays), case.get("tolerance", recording.TOLERANCE))

    def test_fused_eva_is_eva(self):
        case, arrays = recording.read_recording("eva-0")

        def make(case, model):
            config = {n: v for n, v in case["config"].items() if n != "system"}
            return kfac.FusedEVA(model, **config)
        self.assertLess(recording.replay(case, arrays, make=make), recording.TOLERANCE)


class Golden(Case):
    def make(self, **options):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        return model, KFACPreconditioner(model, damping=options.pop("damping", 0.01), factor_decay=0.9, **options)

    def assert_near_rows(self, got, rows):
        self.assertLess((got - torch.tensor(rows)).abs().max().item(), 1e-5)

    def test_eigen_matches_golden_rows(self):
        model, k = self.make()
        for t, rows in enumerate(T1_EIGEN):
            self.assert_near_rows(step_of_test_t1(model, k, t), rows)

    def test_scheduled_damping_matches_golden_rows(self):
        model, k = self.make(damping=lambda t: 0.01 * (t + 1), inv_update_steps=2)
        for t, rows in enumerate(T1_SCHED):
            self.assert_near_rows(step_of_test_t1(model, k, t), rows)

    def test_no_clip_matches_golden_rows(self):
        for kl_clip in (None, lambda t: None):
            model, k = self.make(kl_clip=kl_clip)
            self.assert_near_rows(step_of_test_t1(model, k, 0), T1_NOCLIP)

    def test_loss_scale_is_divided_out(self):
        model, k = self.make(grad_scaler=lambda: 4.0)
        self.assert_near_rows(step_of_test_t1(model, k, 0, scale=4.0), T1_EIGEN[0])

    def test_sequence_positions_count_as_rows(self):
        model, k = self.make()
        x, g = sine_pattern((2, 2, 3), 7, 3, 11, 4), sine_pattern((2, 2, 2), 5, 2, 7, 8)
        model(x.requires_grad_()).backward(g)
        k.step()
        self.assert_near_rows(torch.cat([model.weight.grad, model.bias.grad[:, None]], 1), T1_EIGEN[0])

    def test_module_called_twice_updates_averages_twice(self):
        model, k = self.make()
        for shift in (0, 5):
            model(sine_pattern((4, 3), 7, 3 + shift, 11, 4).requires_grad_()).backward(sine_pattern((4, 2), 5, 2 + shift, 7, 8))
        k.step()
        fields = k.state_dict()["fields"]
        lower = torch.tensor([0.9078125, -0.0775, 0.9328125, 0.0153125, -0.048125, 0.935625, -0.04125, 0.01625, 0.0325, 1])
        self.assertLess((fields["root/A"] - lower).abs().max().item(), 1e-6)
        self.assertLess((fields["root/G"] - torch.tensor([0.8209375, -0.00140625, 0.823710938])).abs().max().item(), 1e-6)


class Arguments(Case):
    def test_placement_options_of_kaisa(self):
        """Owners are assigned as in KAISA: by the same cost, with A and G on one rank or on two."""
        for options, *expected in (({}, "kaisa", "1"), (dict(assignment_strategy="MEMORY"), "kaisa-memory", "1"),
                                   (dict(colocate_factors=False, compute_method="inverse"), "kaisa", "0")):
            got = KFACPreconditioner(small_conv_net(), **options)._core
            self.assertEqual([got.get(n) for n in ("placement", "colocate")], expected)
        with self.assertRaisesRegex(ValueError, "colocate_factors must be True"):
            KFACPreconditioner(small_conv_net(), colocate_factors=False)

    def test_each_argument_form_gives_same_result(self):
        data, plain = random_batch(), {}
        for options in ({}, dict(assignment_strategy="memory"), dict(assignment_strategy=kfac.AssignmentStrategy.MEMORY),
                        dict(compute_method=kfac.ComputeMethod.EIGEN), dict(compute_method="EIGEN"),
                        dict(grad_worker_fraction=kfac.DistributedStrategy.MEM_OPT),
                        dict(grad_worker_fraction=kfac.DistributedStrategy.HYBRID_OPT), dict(grad_worker_fraction=0.25),
                        dict(symmetry_aware=True), dict(allreduce_bucket_cap_mb=0), dict(factor_dtype=torch.float32),
                        dict(inv_dtype=torch.float32), dict(skip_layers=[]), dict(update_factors_in_hook=False),
                        dict(loglevel=logging.INFO), dict(accumulation_steps=2),
                        dict(colocate_factors=False, compute_eigenvalue_outer_product=False)):
            model = small_conv_net()
            k = KFACPreconditioner(model, **options)
            loss_of(model, *data).backward()
            k.step()
            got = gradients_of(model)
            del got["2.bias"]  # a batch norm follows, so the gradient is 0 up to rounding
            for name, g in (plain or got).items():  # the options change numbers by rounding only
                self.assertLess(((got[name] - g).abs().max() / g.abs().max()).item(), 1e-4, (options, name))
            plain = plain or got

    def test_arguments_change_results(self):
        data, found = random_batch(), []
        for options in ({}, dict(compute_method="inverse"), dict(damping=0.1), dict(factor_decay=0.5), dict(lr=2.0),
                        dict(kl_clip=0.1), dict(factor_dtype=torch.bfloat16), dict(inv_dtype=torch.bfloat16),
                        dict(skip_layers=["^0$"])):
            model = small_conv_net()
            k = KFACPreconditioner(model, **options)
            loss_of(model, *data).backward()
            k.step()
            found.append(model[8].weight.grad.clone())
            for other in found[:-1]:
                self.assertFalse(torch.equal(other, found[-1]), options)

    def test_wrong_arguments_are_refused(self):
        for options in (dict(damping=0), dict(factor_update_steps=0), dict(inv_update_steps=-1), dict(factor_decay=1.5),
                        dict(kl_clip=0), dict(lr=-1), dict(accumulation_steps=0), dict(allreduce_bucket_cap_mb=-1),
                        dict(assignment_strategy="fast"), dict(compute_method="lu"), dict(grad_worker_fraction=2.0),
                        dict(colocate_factors=False), dict(factor_dtype=torch.int8)):
            with self.assertRaisesRegex(ValueError, next(iter(options)), msg=options):
                KFACPreconditioner(small_conv_net(), **options)
        with self.assertWarnsRegex(UserWarning, "multiple"):
            KFACPreconditioner(small_conv_net(), factor_update_steps=2, inv_update_steps=3)

    def test_layers_with_curvature_as_published(self):
        model = nn.Sequential(nn.Conv1d(2, 2, 1), nn.Conv2d(2, 2, 1), nn.Linear(2, 2), nn.Linear(2, 2))
        model[3].bias.requires_grad_(False)
        why = {row["name"]: row["why"] for row in KFACPreconditioner(model, skip_layers=[r"^\d$(?<!2)(?<!3)(?<!0)"]).explain()}
        self.assertEqual(why["0.weight"], "kfac-pytorch has no Conv1d")
        self.assertIn("matches skip_layers", why["1.weight"])  # a regular expression of Python
        self.assertIn("A 3x3", why["2.weight"])
        self.assertEqual(why["3.weight"], "one of its parameters is frozen")
        why = {row["name"]: row["why"] for row in KFACPreconditioner(model, skip_layers=["^Conv2d$"]).explain()}
        self.assertEqual(why["1.weight"], "matches skip_layers: '^Conv2d$'")  # the name of a class
        self.assertIn("A 3x3", why["2.weight"])

        class DerivedLinear(nn.Linear):
            pass
        model = nn.Sequential(DerivedLinear(2, 2), nn.Linear(2, 7), nn.Linear(2, 3))
        why = {row["name"]: row["why"] for row in kfac.EVA(model, exclude_vocabulary_size=7).explain()}
        self.assertIn("DerivedLinear", why["0.weight"])
        self.assertIn("skip_layers", why["1.weight"])
        self.assertNotIn("skip_layers", why["2.weight"])

    def test_get_kfac_module_returns_classes(self):
        self.assertIs(kfac.get_kfac_module("eva"), kfac.EVA)
        for name in ("eigen", "inverse", "eigen_dp", "inverse_dp", "eva", "kfac", "adasgd", "sam"):
            model = small_conv_net()
            k = kfac.get_kfac_module(name)(model, 0.1, 0.02, 1, 1, hook_enabled=True, exclude_parts="")
            loss_of(model, *random_batch()).backward()
            self.assertEqual(k.step(None, epoch=3), 0)
            self.assertEqual(k.steps, 1)
        with self.assert_refused("'adasgd2' is not supported, expected eigen"):
            kfac.get_kfac_module("adasgd2")
        with self.assert_refused("exclude_parts"):
            kfac.EVA(small_conv_net(), exclude_parts="ComputeFactor")
        with self.assertRaisesRegex(TypeError, "'kfac_batch_size'"):
            kfac.DP_KFAC(small_conv_net(), kfac_batch_size=3)
        self.assertEqual(type(kfac.DP_KFAC(small_conv_net(), inv_type="inverse")).__name__, "KFAC_INV_DP")
        with self.assert_refused("communicate_inverse_or_not"):
            kfac.get_kfac_module("eigen")(small_conv_net(), communicate_inverse_or_not=False)
        for name, why in (("Horovod", "'Horovod': horovod.torch cannot be imported"), ("Gloo", "'Gloo': not supported")):
            with self.assert_refused(why):
                kfac.backend.init(name)
        kfac.backend.init("Torch")

    def test_hook_enabled_false_observes_nothing(self):
        model = small_conv_net()
        k = kfac.EVA(model, hook_enabled=False)
        loss_of(model, *random_batch()).backward()
        with self.assert_refused("never observed"):
            k.step()
        k.set_hook_enabled(True)
        loss_of(model, *random_batch()).backward()
        self.assertEqual(k.step(), 0)


class PublishedPrograms(unittest.TestCase):
    """scripts/published.py on a clone of a few lines."""

    FILES = {
        "kfac/__init__.py": "raise ImportError('the published package')",
        "examples/helper.py": "number = 5",
        "examples/train.py": "import sys, kfac, helper, kfac.enums, testing\n"
                             "from kfac.preconditioner import KFACPreconditioner\n"
                             "print(KFACPreconditioner.__module__, helper.number, testing.number, __name__, sys.argv[1:])",
        "optim.py": "raise ImportError('the published module')",
        "main_optim.py": "from optim import *\nprint(MFAC.__module__)",
        "testing/__init__.py": "number = 6",
        "tests/preconditioner_test.py": "from kfac.preconditioner import KFACPreconditioner\ndef test_name():\n"
                                        "    assert KFACPreconditioner.__module__.startswith('natgrad.')",
        "tests/training_test.py": "import testing, os\ndef test_folder():\n    assert os.path.exists('tests/training_test.py')",
        "tests/hyperparams_test.py": "from kfac.hyperparams import *\ndef test_decay():\n"
                                     "    assert exp_decay_factor_averaging()(2) == 0.5",
        "tests/scheduler_test.py": "def test_scheduler():\n    from kfac.scheduler import LambdaParamScheduler",
        "tests/layers_test.py": "def test_of_private_names():\n    assert False"}

    def run_published(self, *arguments, **files):
        """Return exit status and output of the script with the arguments, on the clone, in which `files` are replaced."""
        script = pathlib.Path(__file__).parents[2] / "scripts/published.py"
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**self.FILES, **files}.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
            given = [argument.replace("FOLDER", folder) for argument in arguments]
            done = subprocess.run([sys.executable, script, *given], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_script_finds_compat_and_its_own_files(self):
        self.assertEqual(self.run_published("FOLDER", "examples/train.py", "--epochs", "2"),
                         (0, "natgrad.compat._kaisa 5 6 __main__ ['--epochs', '2']\n"))
        self.assertEqual(self.run_published("FOLDER", "main_optim.py"), (0, "natgrad.compat._istdaslab\n"))
        for wrong in ((), ("FOLDER/none",)):
            status, text = self.run_published(*wrong)
            self.assertEqual((status, "scripts/published.py FOLDER" in text), (2, True))

    @unittest.skipUnless(importlib.util.find_spec("pytest"), "pytest is not installed")
    def test_tests_with_public_names_run(self):
        status, text = self.run_published("FOLDER")
        self.assertEqual(status, 0, text)
        self.assertIn("4 passed", text)
        status, text = self.run_published("FOLDER", **{"tests/scheduler_test.py": "def test_scheduler():\n    assert False"})
        self.assertEqual(status, 1, text)
        self.assertIn("1 failed, 3 passed", text)


class Schedulers(Case):
    def test_lambda_scheduler_multiplies_arguments(self):
        k = KFACPreconditioner(small_conv_net(), damping=1, factor_update_steps=1, inv_update_steps=1, kl_clip=1,
                               factor_decay=1, lr=1)
        factors = dict(factor_update_steps=2, inv_update_steps=3, damping=5, kl_clip=9, lr=11)
        scheduler = LambdaParamScheduler(k, **{f"{name}_lambda": (lambda t, f=f: f) for name, f in factors.items()})
        for n in range(1, 5):
            scheduler.step()
            for name, f in factors.items():
                self.assertEqual(getattr(k, name), f**n)
        k.inv_update_steps = 3
        LambdaParamScheduler(k, inv_update_steps_lambda=lambda t: 1.5).step()
        self.assertEqual(k.inv_update_steps, 4)  # truncated, as published
        seen = []
        LambdaParamScheduler(k, lr_lambda=lambda t: seen.append(t) or 1).step(0)
        loss_of(k.model, *random_batch()).backward()
        k.step()
        self.assertEqual(float(k._core.get("damping")), 5**4)
        self.assertEqual(int(k._core.get("stat_period")), 2**4)
        scheduler = LambdaParamScheduler(k, lr_lambda=lambda t: seen.append(t) or 1)
        scheduler.step(0)
        scheduler.step()
        self.assertEqual(seen, [0, 0, 1])  # 0 is a value
        with self.assertRaisesRegex(ValueError, "callable"):
            LambdaParamScheduler(KFACPreconditioner(small_conv_net(), damping=lambda t: 1), damping_lambda=lambda t: 1)

    def test_exp_decay_factor_averaging_values(self):
        for m, values in ((0.95, {0: 0, 1: 0, 5: 0.8, 10: 0.9, 100: 0.95, 1000: 0.95}), (0.1, {1: 0, 10: 0.1, 1000: 0.1}),
                          (1, {1: 0, 10: 0.9, 100: 0.99})):
            f = exp_decay_factor_averaging(m)
            for t, value in values.items():
                self.assertAlmostEqual(f(t), value)
        for wrong in (lambda: exp_decay_factor_averaging(0), lambda: exp_decay_factor_averaging()(-1)):
            self.assertRaises(ValueError, wrong)
        model = small_conv_net()
        k = KFACPreconditioner(model, factor_decay=exp_decay_factor_averaging(0.5))
        for t in range(3):
            self.assertEqual(float(k._core.get("stat_decay")), min(1 - 1 / max(t, 1), 0.5))
            loss_of(model, *random_batch()).backward()
            k.step()

    def test_kfac_param_scheduler_values(self):
        k = kfac.get_kfac_module("eigen")(small_conv_net(), damping=0.4, fac_update_freq=1, kfac_update_freq=10)
        scheduler = kfac.KFACParamScheduler(k, 0.5, [2, 4], 10, [3])
        for epoch, damping, period in ((1, 0.4, 10), (2, 0.2, 10), (3, 0.2, 100), (4, 0.1, 100)):
            scheduler.step()
            self.assertEqual((k.param_groups[0]["damping"], k.param_groups[0]["kfac_update_freq"]), (damping, period))
        loss_of(k.preconditioner.model, *random_batch()).backward()
        k.step()
        self.assertEqual(float(k.preconditioner._core.get("damping")), 0.1)
        self.assertEqual(int(k.preconditioner._core.get("stat_period")), 10)

    def test_pytorch_scheduler_changes_clip_lr(self):
        """A scheduler that is attached to the preconditioner changes the lr of the clip."""
        found = []
        for lr, factor in ((2.0, 0.25), (0.5, 1.0), (2.0, 1.0)):
            model = small_conv_net()
            k = kfac.EVA(model, lr=lr)
            torch.optim.lr_scheduler.LambdaLR(k, lambda epoch: factor)
            loss_of(model, *random_batch()).backward()
            k.step()
            found.append(gradients_of(model))
        self.assert_same_tensors(found[0], found[1])
        self.assertFalse(torch.equal(found[0]["8.weight"], found[2]["8.weight"]))


class State(Case):
    def test_resumed_training_has_same_bits(self):
        for make in (lambda m: KFACPreconditioner(m, inv_update_steps=3, damping=lambda t: 0.1 + t),
                     lambda m: kfac.EVA(m), lambda m: kfac.DP_KFAC(m, kfac_update_freq=3)):
            model = small_conv_net()
            k = make(model)
            for t in range(4):
                if t == 2:
                    file = io.BytesIO()
                    torch.save(k.state_dict(), file)
                    file.seek(0)
                    k.close() if isinstance(k, KFACPreconditioner) else k.preconditioner.close()
                    k = make(model)
                    k.load_state_dict(torch.load(file, weights_only=NEW))
                model.zero_grad()
                loss_of(model, *random_batch(seed=t)).backward()
                k.step()
            other = small_conv_net()
            k = make(other)
            for t in range(4):
                other.zero_grad()
                loss_of(other, *random_batch(seed=t)).backward()
                k.step()
            self.assert_same_tensors(gradients_of(model), gradients_of(other))
            self.assertEqual(k.steps, 4)

    def test_state_restores_arguments(self):
        k = KFACPreconditioner(small_conv_net(), damping=0.25)
        other = KFACPreconditioner(small_conv_net(), damping=lambda t: 1.0)
        other.load_state_dict(k.state_dict(include_factors=False))
        self.assertEqual(other.damping, 0.25)
        self.assertEqual(float(other._core.get("damping")), 0.25)
        with self.assert_refused("the state has 0 layers, expected 4; it has no '0'"):
            other.load_state_dict({"steps": 3, "layers": {}})
        self.assertIn("damping=0.25", repr(k))


if __name__ == "__main__":
    unittest.main()
