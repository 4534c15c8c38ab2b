"""Factors in the conventions of kronfluence and laplace-torch: recordings of kronfluence, float64 sums, damaged files."""
import copy
import importlib.util
import math
import os
import tempfile
import unittest

import torch
from torch import nn

import natgrad
import recording
from front import Case
from natgrad import _exchange
from test_curvature import batches_of, dense_factors, net_with_dropout, sum_of_losses

POSITIONS = {"0": 16}
ARGUMENTS = [_exchange.ARGUMENTS]
FILES = [name + ".safetensors" for name in _exchange.COVARIANCES + _exchange.COUNTS]


def rows_of(d, a, g):
    """(input rows with a 1 for the bias, gradient rows), [samples, positions, ...]."""
    a, g = a.double(), g.double()
    if d["kind"] == "conv2d":
        a = nn.functional.unfold(a, d["kernel"], padding=d["padding"], stride=d["stride"]).transpose(1, 2)
        g = g.flatten(2).transpose(1, 2)
    else:
        a, g = (x.reshape(len(x), -1, x.shape[-1]) for x in (a, g))
    return (torch.cat([a, torch.ones_like(a[..., :1])], 2) if d["bias"] else a), g


class Exchange(Case):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name

    def near(self, x, y, tolerance=1e-6):
        self.assertLess((x - y).abs().max(), tolerance * y.abs().max())

    def test_covariances_of_kronfluence_are_means_over_samples(self):
        for case_name in recording.recording_names("matrix-ekfac-image", "matrix-ekfac-sequence"):
            case, arrays = recording.read_recording(case_name)
            path = os.path.join(recording.GOLDEN, case_name + ".safetensors")
            for name, x in _exchange.read_safetensors(path).items():
                self.assertTrue(torch.equal(x, arrays[name]), name)
            files, want, positions = {name: {} for name in FILES}, {}, {}
            for name in case["order"]:
                rows = [rows_of(case["layers"][name], arrays[f"s{t}.{name}.a"], arrays[f"s{t}.{name}.g"])
                        for t in range(case["steps"])]
                a, g = (torch.cat(part) for part in zip(*rows))
                positions[name] = a.shape[1]
                want[name] = (torch.einsum("nsi,nsj->ij", g, g) / g[..., 0].numel(), torch.einsum("nsi,nsj->ij", a, a) / len(a))
                values = [arrays[f"{name}.A"], arrays[f"{name}.G"], *(torch.tensor([case["counts"][name][k]]) for k in "AG")]
                for file, value in zip(FILES, values):
                    files[file][name] = value
            for file, tensors in files.items():
                _exchange.write_safetensors(os.path.join(self.folder, file), tensors)
            found = natgrad.Curvature.load_kronfluence(self.folder, positions).factors
            self.assertEqual(found.keys(), want.keys())
            for name in want:
                self.near(found[name][0], want[name][0])
                self.near(found[name][1], want[name][1])

    def test_corrected_curvature_gives_directions_of_kronfluence(self):
        for case_name in recording.recording_names("matrix-ekfac-image", "matrix-ekfac-sequence"):
            case, arrays = recording.read_recording(case_name)
            layers, counts = {name: case["layers"][name] for name in case["order"]}, case["counts"]
            curvature = natgrad.Curvature({name: tuple(arrays[f"{name}.{k}"].double() / counts[name][k] for k in "GA")
                                           for name in layers})
            for t in range(case["steps"]):
                samples = {}
                for name, d in layers.items():
                    a, g = rows_of(d, arrays[f"s{t}.{name}.a"], arrays[f"s{t}.{name}.g"])
                    samples[name] = g[:, :, None], a[:, :, None]
                curvature.correct(samples)
            self.near(torch.tensor(curvature.trace()),
                      sum(arrays[f"{name}.lambda"].double().sum() / counts[name]["lambda"] for name in layers))
            for name, d in layers.items():
                damping = float(d["options"].split("damping=")[1])
                grad = torch.cat([arrays[f"s0.{name}.weight.grad"].flatten(1)] + (
                    [arrays[f"s0.{name}.bias.grad"][:, None]] if d["bias"] else []), 1)
                want = torch.cat([arrays[f"s0.{name}.weight.out"].flatten(1)] + (
                    [arrays[f"s0.{name}.bias.out"][:, None]] if d["bias"] else []), 1)
                self.near(curvature.apply({name: grad}, damping)[name], want, 1e-4)
            self.check_files_with_lambda(case, arrays, curvature)

    def check_files_with_lambda(self, case, arrays, curvature):
        """Files with the recorded eigenvectors and Lambda give the directions of `curvature`; so do the files that it writes."""
        counts, names = case["counts"], case["order"]
        folders = [os.path.join(self.folder, case["order"][-1] + end) for end in ("theirs", "ours")]
        os.mkdir(folders[0])
        for file, key, count in zip(
                _exchange.COVARIANCES + _exchange.COUNTS + _exchange.BASES + (_exchange.LAMBDA, _exchange.LAMBDA_COUNT),
                ("A", "G", None, None, "QA", "dA", "QG", "dG", "lambda", None), (0, 0, "A", "G", 0, 0, 0, 0, 0, "lambda")):
            _exchange.write_safetensors(os.path.join(folders[0], file + ".safetensors"), {
                name: torch.tensor([counts[name][count]]) if count else arrays[f"{name}.{key}"] for name in names})
        curvature.save_kronfluence(folders[1], case["steps"] * case["batch"])
        self.assertEqual(sorted(os.listdir(folders[0]) + ARGUMENTS), sorted(os.listdir(folders[1])))
        D = {name: torch.ones_like(arrays[f"{name}.lambda"], dtype=torch.float64) for name in names}
        want = curvature.apply(D, 0.01)
        for folder in folders:
            found = natgrad.Curvature.load_kronfluence(folder)
            self.assertTrue(found.is_corrected)
            for name, x in found.apply(D, 0.01).items():
                self.near(x, want[name], 1e-4)  # eigenvectors in f32
        V = _exchange.read_safetensors(os.path.join(folders[1], _exchange.LAMBDA + ".safetensors"))
        for name in names:
            self.near(V[name] / (case["steps"] * case["batch"]), arrays[f"{name}.lambda"] / counts[name]["lambda"], 1e-4)
        with self.assert_refused("lambda_matrix.safetensors belongs to other factors"):
            natgrad.Curvature(curvature.factors).save_kronfluence(folders[1], 1)
        _exchange.write_safetensors(os.path.join(folders[1], "lambda_matrix.safetensors"), {name: torch.ones(2, 2) for name in names})
        with self.assert_refused(rf"lambda_matrix.safetensors: '{names[0]}' is \[2, 2\], and its eigenvectors are"):
            natgrad.Curvature.load_kronfluence(folders[1])

    def test_files_for_kronfluence_have_sums_and_counts(self):
        model, batches = net_with_dropout(), batches_of((7, 4))
        curvature = natgrad.Curvature.accumulate(model, batches, sum_of_losses)
        curvature.save_kronfluence(self.folder, 11, POSITIONS)
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(FILES + ARGUMENTS))
        A, G, n_A, n_G = (_exchange.read_safetensors(os.path.join(self.folder, file)) for file in FILES)
        for name, (left, right) in dense_factors(model, batches).items():
            count = 11 * POSITIONS.get(name, 1)
            self.near(A[name], 11 * right)
            self.near(G[name], count * left)
            self.assertEqual((n_A[name].tolist(), n_G[name].tolist()), ([count], [count]))
            self.assertEqual((A[name].dtype, n_A[name].dtype), (torch.float32, torch.int64))
        again = natgrad.Curvature.load_kronfluence(self.folder, POSITIONS)
        for name, pair in curvature.factors.items():
            for x, y in zip(again.factors[name], pair):
                self.near(x, y, 1e-7)

    def test_blocks_of_laplace_are_sums_over_samples(self):
        model, batches = net_with_dropout(), batches_of((7, 4))
        curvature = natgrad.Curvature.accumulate(model, batches, sum_of_losses)
        blocks = curvature.to_laplace(model, 11)
        want = dense_factors(model, batches)
        self.assertEqual([len(block) for block in blocks], [2, 1, 2, 2, 1])  # as Kron.init_from_model
        for name, block, bias in (("0", blocks[0], blocks[1]), ("5", blocks[2], None), ("7", blocks[3], blocks[4])):
            left, right = want[name]
            weight = right[:-1, :-1] if bias else right
            self.assertEqual(block[0].dtype, torch.float32)
            self.near(torch.kron(*block), 11 * torch.kron(left, weight))
            if bias:
                self.near(bias[0], 11 * left * right[-1, -1])
        again = natgrad.Curvature.from_laplace(blocks, model, 11).factors
        for name, (left, right) in curvature.factors.items():
            right = right.clone()
            if name != "5":  # laplace-torch has no product of a weight and its bias
                right[-1, :-1] = right[:-1, -1] = 0
            self.near(again[name][0], left)
            self.near(again[name][1], right)

    def scores_of(self, curvature, model):
        with curvature.record(model) as samples:
            model(torch.ones(1, 4, 1, 1)).sum().backward()
        return curvature.scores(samples, damping=1)

    def test_wrong_files_and_arguments_are_refused_by_name(self):
        eye = torch.eye(2)
        curvature = natgrad.Curvature({"fc": (eye, eye)})
        with self.assert_refused("activation_covariance.safetensors: No such file"):
            natgrad.Curvature.load_kronfluence(self.folder)
        curvature.save_kronfluence(self.folder, 3)
        model = nn.Sequential()
        model.add_module("fc", nn.Linear(1, 2))
        kfacs = [[eye, torch.ones(1, 1)], [eye]]
        grouped = nn.Sequential(nn.Conv2d(4, 6, 1, groups=2))  # G of all outputs and A of one group fit its weight
        pairs = natgrad.Curvature({"0": (torch.eye(3).expand(2, 3, 3), eye.expand(2, 2, 2))})
        whole = natgrad.Curvature({"0": (torch.eye(6), torch.eye(3))})
        for text, call in (
                ("layer '0': kronfluence has no diagonal factors and no factors of groups", lambda: pairs.save_kronfluence(self.folder, 1)),
                ("layer '0': laplace-torch has no factors of groups", lambda: pairs.to_laplace(grouped, 1)),
                ("layer '0': laplace-torch has no factors of groups", lambda: whole.to_laplace(grouped, 1)),
                ("layer '0': laplace-torch has no factors of groups",
                 lambda: natgrad.Curvature.from_laplace([[torch.eye(6), eye], [torch.eye(6)]], grouped, 1)),
                ("layer '0': the arrays of x are .*, expected .samples, positions, 1, 6", lambda: self.scores_of(whole, grouped)),
                ("samples is 0", lambda: curvature.save_kronfluence(self.folder, 0)),
                ("samples is True", lambda: curvature.save_kronfluence(self.folder, True)),
                ("positions of layer 'fc' is 0", lambda: curvature.save_kronfluence(self.folder, 1, 0)),
                ("positions: there is no layer 'x'", lambda: natgrad.Curvature.load_kronfluence(self.folder, {"x": 1})),
                ("layer 'fc': kronfluence has no diagonal factors",
                 lambda: natgrad.Curvature({"fc": (torch.ones(2), eye)}).save_kronfluence(self.folder, 1)),
                ("layer 'fc' has no factors", lambda: natgrad.Curvature({}).to_laplace(model, 1)),
                ("layer 'x': not a Linear", lambda: natgrad.Curvature({"x": (eye, eye)}).to_laplace(model, 1)),
                ("kfacs is 5, expected 2 blocks", lambda: natgrad.Curvature.from_laplace(5, model, 1)),
                ("kfacs has 1 blocks, expected 2", lambda: natgrad.Curvature.from_laplace(kfacs[:1], model, 1)),
                (r"its block has \[\[2, 2\], \[2, 2\]\], expected \[\[2, 2\], \[1, 1\]\]",
                 lambda: natgrad.Curvature.from_laplace([[eye, eye], [eye]], model, 1)),
                (r"the block of its bias has \[\[2, 2\], \[2, 2\]\], expected \[\[2, 2\]\]",
                 lambda: natgrad.Curvature.from_laplace([kfacs[0], [eye, eye]], model, 1)),
                ("layer 'fc': its block is 5, expected a list of matrices of real numbers",
                 lambda: natgrad.Curvature.from_laplace([5, [eye]], model, 1)),
                ("layer 'fc': the block of its bias is .*, expected a list of matrices of real numbers",
                 lambda: natgrad.Curvature.from_laplace([kfacs[0], [eye.long()]], model, 1)),
                ("layer 'fc': .*right is not finite",
                 lambda: natgrad.Curvature.from_laplace([kfacs[0], [eye * math.nan]], model, 1)),
                ("method 'ekfac': no layer has Kronecker factors",
                 lambda: natgrad.Curvature.accumulate(model, [torch.ones(3, 1)], lambda m, x: m(x).sum(), method="ekfac")),
                ("the block of its bias is not a multiple of G",
                 lambda: natgrad.Curvature.from_laplace([kfacs[0], [eye.cumsum(0)]], model, 1))):
            with self.subTest(text), self.assert_refused(text):
                call()
        for file in FILES:
            path = os.path.join(self.folder, file)
            with open(path, "rb") as whole:
                data = whole.read()
            for cut in range(0, len(data), 5):
                with open(path, "wb") as part:
                    part.write(data[:cut])
                with self.assert_refused(f"{file}: no complete file"):
                    natgrad.Curvature.load_kronfluence(self.folder)
            with open(path, "wb") as whole:
                whole.write(data)
        three = torch.tensor([3])
        for file, tensors, text in (
                (FILES[0], {"fc": torch.ones(3, 4)}, r"'fc' is \[3, 4\], expected a square matrix"),
                (FILES[1], {"fc": torch.ones(3)}, r"'fc' is \[3\], expected a square matrix"),
                (FILES[1], {"fc": torch.ones(2, 2).long()}, "'fc' has the dtype torch.int64, expected real numbers"),
                (FILES[1], {"fc": eye * math.inf}, "'fc' is not finite"),
                (FILES[2], {"fc": torch.tensor([3.0])}, "'fc' has the dtype torch.float32, expected torch.int64"),
                (FILES[2], {"fc": torch.tensor([3, 3])}, r"'fc' is \[3, 3\], expected \[count\]"),
                (FILES[3], {"fc": torch.tensor([0])}, r"'fc' is \[0\], expected \[count\]"),
                (FILES[3], {"other": three}, "its layers differ"),
                (FILES[3], {"fc": three, "other": three}, "its layers differ")):
            path = os.path.join(self.folder, file)
            with open(path, "rb") as whole:
                data = whole.read()
            _exchange.write_safetensors(path, tensors)
            with self.subTest(text), self.assert_refused(f"{file}: {text}"):
                natgrad.Curvature.load_kronfluence(self.folder)
            with open(path, "wb") as whole:
                whole.write(data.replace(b'"F32"', b'"F99"').replace(b'"I64"', b'"U64"'))
            with self.assert_refused(f"{file}: 'fc' has the dtype [FU][96][94], expected one of F64, F32"):
                natgrad.Curvature.load_kronfluence(self.folder)
            with open(path, "wb") as whole:
                whole.write(data)
        other = natgrad.Curvature({"fc": (eye, eye), "conv": (torch.ones(2), eye)})
        with self.assert_refused("layer 'conv': kronfluence has no diagonal factors"):
            other.save_kronfluence(self.folder, 9)
        for x in natgrad.Curvature.load_kronfluence(self.folder).factors["fc"]:
            self.assertTrue(torch.equal(x, eye.double()))  # the refused call changed no file


def skip_without(package):
    """Skip where the package is not installed; `make check-all` installs it where the Python index has it."""
    return unittest.skipUnless(importlib.util.find_spec(package), f"{package} is not installed")


class RealPackages(Case):
    """The packages themselves read natgrad's files and lists, and natgrad reads theirs."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        self.model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(48, 5), nn.Tanh(),
                                   nn.Linear(5, 4))
        self.data = torch.utils.data.TensorDataset(torch.randn(12, 2, 4, 4), torch.randint(0, 4, (12,)))

    def near(self, x, y, tolerance=1e-5):  # both packages compute in f32: 6e-8 to 2e-7 were measured
        self.assertLess((x.double() - y.double()).abs().max(), tolerance * y.double().abs().max())

    @staticmethod
    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    def accumulate(self):
        return natgrad.Curvature.accumulate(self.model, torch.utils.data.DataLoader(self.data, batch_size=5), self.loss)

    @skip_without("kronfluence")
    def test_kronfluence_scores_with_factors_of_natgrad(self):
        from kronfluence.analyzer import Analyzer, prepare_model
        from kronfluence.arguments import FactorArguments, ScoreArguments
        from kronfluence.task import Task
        test = self

        class Classification(Task):
            def compute_train_loss(self, batch, model, sample=False):
                return test.loss(model, batch)

            def compute_measurement(self, batch, model):
                return test.loss(model, batch)

        analyzer = Analyzer("run", prepare_model(copy.deepcopy(self.model), Classification()), Classification(), cpu=True,
                            output_dir=self.folder, disable_tqdm=True, disable_model_save=True)
        analyzer.fit_all_factors("theirs", dataset=self.data, per_device_batch_size=5,
                                 factor_args=FactorArguments(strategy="ekfac", use_empirical_fisher=True))
        theirs = natgrad.Curvature.load_kronfluence(os.path.join(self.folder, "run", "factors_theirs"), POSITIONS)
        ours = self.accumulate()
        for name, pair in ours.factors.items():
            for x, y in zip(theirs.factors[name], pair):
                self.near(x, y)
        with ours.record(self.model) as samples:
            self.loss(self.model, self.data[:]).backward()
        ours.correct(samples)
        ours.save_kronfluence(os.path.join(self.folder, "run", "factors_ours"), len(self.data), POSITIONS)
        scores = {}
        for factors in ("theirs", "ours"):
            analyzer.compute_pairwise_scores(factors, factors_name=factors, query_dataset=self.data, train_dataset=self.data,
                                             per_device_query_batch_size=5, score_args=ScoreArguments(damping_factor=1e-3))
            scores[factors] = analyzer.load_pairwise_scores(factors)["all_modules"]
        for curvature in (theirs, ours):
            self.near(curvature.scores(samples, samples, damping=1e-3), scores["theirs"])
        self.near(scores["ours"], scores["theirs"])

    @skip_without("laplace")
    def test_laplace_has_the_evidence_of_blocks_of_natgrad(self):
        from laplace import KronLaplace
        from laplace.curvature import CurvlinopsEF
        from laplace.utils import Kron
        found = []
        for blocks in (None, self.accumulate().to_laplace(self.model, len(self.data))):
            posterior = KronLaplace(copy.deepcopy(self.model), "classification", backend=CurvlinopsEF)
            posterior.fit(torch.utils.data.DataLoader(self.data, batch_size=len(self.data)))
            if blocks:
                for x, y in zip(posterior.H_facs.kfacs, blocks):
                    self.near(*(torch.kron(*pair) if len(pair) == 2 else pair[0] for pair in (x, y)))
                posterior.H = Kron(blocks).decompose()
            else:
                again = natgrad.Curvature.from_laplace(posterior.H_facs.kfacs, self.model, len(self.data))
                self.near(*(torch.tensor(c.trace()) for c in (again, self.accumulate())))
            found.append(posterior.log_marginal_likelihood(torch.tensor(2.0)))
        self.near(found[1], found[0])


if __name__ == "__main__":
    unittest.main()
