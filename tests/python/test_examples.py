"""The examples of examples/torch: each runs some steps, learns, and takes every method."""
import contextlib
import importlib
import io
import os
import struct
import sys
import tempfile
import unittest
from unittest import mock

import torch

from front import Case

SOURCE = os.environ.get("NG_TEST_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path.insert(0, os.path.join(SOURCE, "examples", "torch"))

METHODS = ("none", "sgd", "adamw", "natgrad", "spngd", "eva-natgrad", "kaisa", "eigen_dp", "inverse_dp", "eigen", "inverse",
           "eva", "mfac", "efcp")


class Examples(Case):
    def run_example(self, name, *arguments):
        before, sys.argv = sys.argv, [name + ".py", *map(str, arguments)]
        try:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                losses = importlib.import_module(name).main()
        finally:
            sys.argv = before
        self.assertTrue(all(loss == loss for loss in losses), losses)
        self.assertRegex(out.getvalue(), "epoch 1: loss ")
        return losses

    def assert_loss_falls(self, name, *arguments):
        losses = self.run_example(name, *arguments)
        last = losses[-(len(losses) // 3):]
        self.assertLess(sum(last) / len(last), 0.95 * sum(losses[:5]) / 5, losses)

    def test_mnist_loss_falls(self):
        self.assert_loss_falls("mnist", "--steps", 15, "--optimizer", "sgd", "--lr", 0.05)
        self.run_example("mnist", "--steps", 3)

    def test_mnist_runs_with_each_method(self):
        for method in METHODS:
            with self.subTest(method):
                self.assertEqual(len(self.run_example("mnist", "--steps", 3, "--method", method, "--lr", 0.01, "--ngrads", 8)),
                                 3)
        with self.assertRaisesRegex(SystemExit, "--method noone"):
            self.run_example("mnist", "--method", "noone")

    def test_cifar_loss_falls(self):
        self.assert_loss_falls("resnet", "--steps", 12, "--depth", 8, "--batch-size", 16, "--image", 16, "--lr", 0.05)

    def test_imagenet_runs(self):
        self.assertEqual(len(self.run_example("resnet", "--imagenet", "--steps", 1, "--depth", 18, "--batch-size", 2,
                                              "--method", "eva")), 1)

    def test_translate_loss_falls(self):
        self.assert_loss_falls("translate", "--steps", 15, "--width", 32, "--layers", 1, "--batch-size", 32)

    def test_bert_loss_falls(self):
        for task in ("classify", "answer"):
            self.assert_loss_falls("bert", "--steps", 30, "--task", task)
        for method in ("kaisa", "efcp"):
            self.run_example("bert", "--steps", 2, "--method", method, "--lr", 0.001)

    def test_unsupported_device_is_refused(self):
        for name in ("mnist", "resnet", "translate", "bert"):
            with self.assert_refused("is on meta: only the CPU and CUDA are supported"):
                self.run_example(name, "--device", "meta", "--steps", 1)

    def test_data_files_are_read(self):
        """Files in the formats of MNIST and CIFAR-10."""
        with tempfile.TemporaryDirectory() as folder:
            for part, count in (("train", 128), ("t10k", 256)):
                for name, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
                    with open(os.path.join(folder, f"{part}-{name}-ubyte"), "wb") as file:
                        body = torch.randint(10, shape, dtype=torch.uint8)
                        file.write(struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + body.numpy().tobytes())
            self.run_example("mnist", "--data", folder, "--epochs", 1, "--log", os.path.join(folder, "log"))
            self.assertTrue(os.path.exists(os.path.join(folder, "log", "log.jsonl")))
            for i in (1, 3):  # two of the five files
                with open(os.path.join(folder, f"data_batch_{i}.bin"), "wb") as file:
                    file.write(torch.randint(10, (8, 3073), dtype=torch.uint8).numpy().tobytes())
            self.run_example("resnet", "--data", folder, "--depth", 8, "--batch-size", 8, "--steps", 1)
            for language, text in (("en", "a man walks .\nthe dog runs\n"), ("de", "ein mann geht .\nder hund rennt\n")):
                with open(os.path.join(folder, f"train.{language}"), "w", encoding="utf-8") as file:
                    file.write(text * 4)
            self.run_example("translate", "--data", folder, "--batch-size", 4, "--width", 16, "--layers", 1, "--steps", 2)
            data = dict(tokens=torch.randint(1, 64, (8, 12)), labels=torch.randint(2, (8,)))
            torch.save(data, os.path.join(folder, "texts.pt"))
            self.run_example("bert", "--data", os.path.join(folder, "texts.pt"), "--batch-size", 4, "--steps", 2)


class PublishedOptions(Case):
    """The arguments of the published scripts."""

    def parse_arguments(self, *arguments, published=(), **defaults):
        """Parse the command line of an example with these defaults; published: the defaults of each method's own script."""
        import common
        before, sys.argv = sys.argv, ["x", *map(str, arguments)]
        try:
            return common, common.parse_arguments(common.make_parser("", **defaults), published)
        finally:
            sys.argv = before

    def make_method(self, *arguments, **standard):
        common, args = self.parse_arguments(*arguments, **standard)
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
        return common.Method(args, model)

    def test_published_defaults(self):
        import resnet
        for method, imagenet, expected in (
                ("kaisa", False, dict(batch_size=128, lr=0.1, damping=0.003, inv_update_steps=10, lr_decay=[35, 75, 90])),
                ("eigen_dp", False, dict(damping=0.03, inv_update_steps=1, lr=0.1)),
                ("eva", True, dict(damping=0.001, batch_size=64, factor_update_steps=1, label_smoothing=0.1)),
                ("kaisa", True, dict(damping=0.001, factor_update_steps=10, inv_update_steps=100, lr=0.0125, epochs=55)),
                ("mfac", False, dict(lr=0.001, damping=1e-5, ngrads=512, weight_decay=0.003, momentum=0.0, epochs=164))):
            found = []

            def record_arguments(args, *rest):
                found.append(args)
                return [1.0]
            with mock.patch("common.train", record_arguments), mock.patch.object(resnet, "make_resnet"), \
                    mock.patch.object(resnet, "make_image_batches"):
                before, sys.argv = sys.argv, ["resnet.py", "--method", method] + ["--imagenet"] * imagenet
                try:
                    resnet.main()
                finally:
                    sys.argv = before
            self.assertEqual({name: getattr(found[0], name) for name in expected}, expected, (method, imagenet))
        _, args = self.parse_arguments("--method", "eva", "--damping", 0.5, published=dict(eva=dict(damping=0.03, lr=0.2)))
        self.assertEqual((args.damping, args.lr), (0.5, 0.2))  # the command line wins

    def test_published_schedules(self):
        lists = ("--lr-decay", 1, 3, "--damping-decay", 1, "--update-steps-decay", 2)
        for name in ("kaisa", "eigen_dp"):
            method, found = self.make_method("--method", name, *lists, lr=1.0, damping=0.5), []
            for _ in range(4):
                k = method.preconditioner
                group = k.param_groups[0] if name == "eigen_dp" else dict(
                    damping=k.damping, kfac_update_freq=k.inv_update_steps, lr=k.lr)
                found.append([round(method.optimizer.param_groups[0]["lr"], 6), round(group["lr"], 6), group["damping"],
                              group["kfac_update_freq"]])
                method.end_epoch()
            self.assertEqual(found, [[1, 1, 0.5, 10], [0.1, 0.1, 0.25, 10], [0.1, 0.1, 0.25, 100], [0.01, 0.01, 0.25, 100]],
                             name)
        for name in ("natgrad", "mfac", "none"):
            method = self.make_method("--method", name, "--lr-decay", 1)
            method.end_epoch()
            self.assertAlmostEqual(method.optimizer.param_groups[0]["lr"], 0.01)
            if name == "natgrad":
                self.assertAlmostEqual(method.preconditioner.lr(0), 0.01)
            with self.assertRaisesRegex(SystemExit, "--damping-decay needs --method kaisa, eigen_dp"):
                self.make_method("--method", name, "--damping-decay", 2)

    def test_skip_layers_is_passed_on(self):
        for name in ("kaisa", "natgrad", "eva-natgrad", "spngd"):
            k = self.make_method("--method", name, "--skip-layers", "^0$").preconditioner
            rows = {row["name"]: row["why"] for row in k.explain()}
            self.assertIn("skip_layers", rows["0.weight"])
            self.assertNotIn("skip_layers", rows["2.weight"])
        with self.assertRaisesRegex(SystemExit, "--skip-layers needs"):
            self.make_method("--method", "eva", "--skip-layers", "^0$")
        common, args = self.parse_arguments("--method", "eva")
        model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3))
        rows = {row["name"]: row["why"] for row in common.Method(args, model, vocabulary=3).preconditioner.explain()}
        self.assertIn("skip_layers", rows["1.weight"])

    def test_kl_clip_none_disables_clip(self):
        for name in ("kaisa", "natgrad", "eva-natgrad"):
            self.assertEqual(self.make_method("--method", name, "--kl-clip", "none").preconditioner._core.get("clip"), "none")

    def test_micro_batches_match_whole_batch(self):
        x, y, found = torch.randn(32, 4), torch.randint(3, (32,)), []
        for size, parts in ((16, 1), (8, 2)):
            common, args = self.parse_arguments("--method", "natgrad", "--batch-size", size, "--accumulation-steps", parts,
                                                "--damping", 0.1)
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
            with contextlib.redirect_stdout(io.StringIO()):
                losses = common.train(args, model, lambda: [[x[:16], y[:16]], [x[16:], y[16:]]],
                                      common.make_classification_loss(args))
            found.append(torch.tensor(losses + [p.sum().item() for p in model.parameters()]))
        self.assertLess((found[0] - found[1]).abs().max().item(), 1e-4)  # sums in another order, through two inverses
        common, args = self.parse_arguments("--batch-size", 8, "--accumulation-steps", 2)
        self.assertEqual([len(batch[0]) for batch in common.shuffled_batches(args, x)()], [16, 16])

    def test_label_smoothing_matches_pytorch(self):
        model, batch = torch.nn.Linear(4, 3), [torch.randn(6, 4), torch.randint(3, (6,))]
        common, args = self.parse_arguments("--label-smoothing", 0.1)
        expected = torch.nn.functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)
        self.assertEqual(common.make_classification_loss(args)(model, batch)[0].item(), expected.item())


if __name__ == "__main__":
    unittest.main()
