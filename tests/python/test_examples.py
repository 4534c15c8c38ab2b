"""The examples of examples/torch: each runs some steps, learns, and takes every method."""
import contextlib
import importlib
import io
import os
import struct
import sys
import tempfile
import unittest

import torch

from front import Case

SOURCE = os.environ.get("NG_TEST_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path.insert(0, os.path.join(SOURCE, "examples", "torch"))

METHODS = ("sgd", "adamw", "natgrad", "spngd", "eva-natgrad", "kaisa", "eigen_dp", "inverse", "eva", "mfac", "efcp")


class Examples(Case):
    def run_one(self, name, *arguments):
        before, sys.argv = sys.argv, [name + ".py", *map(str, arguments)]
        try:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                losses = importlib.import_module(name).main()
        finally:
            sys.argv = before
        self.assertTrue(all(loss == loss for loss in losses), losses)
        self.assertRegex(out.getvalue(), "epoch 1: loss ")
        return losses

    def learns(self, name, *arguments):
        losses = self.run_one(name, *arguments)
        self.assertLess(sum(losses[-5:]) / 5, 0.95 * sum(losses[:5]) / 5, losses)

    def test_mnist(self):
        self.learns("mnist", "--steps", 15)

    def test_mnist_takes_every_method(self):
        for method in METHODS:
            with self.subTest(method):
                self.assertEqual(len(self.run_one("mnist", "--steps", 3, "--method", method, "--lr", 0.01)), 3)
        with self.assertRaisesRegex(SystemExit, "--method noone"):
            self.run_one("mnist", "--method", "noone")

    def test_cifar(self):
        self.learns("resnet", "--steps", 12, "--depth", 8, "--batch-size", 16, "--image", 16, "--lr", 0.05)

    def test_imagenet(self):
        self.assertEqual(len(self.run_one("resnet", "--imagenet", "--steps", 1, "--depth", 18, "--batch-size", 2,
                                          "--method", "eva")), 1)

    def test_translate(self):
        self.learns("translate", "--steps", 15, "--width", 32, "--layers", 1, "--batch-size", 32)

    def test_bert(self):
        for task in ("classify", "answer"):
            self.learns("bert", "--steps", 30, "--task", task)
        for method in ("kaisa", "efcp"):
            self.run_one("bert", "--steps", 2, "--method", method, "--lr", 0.001)

    def test_data_by_path(self):
        """Files as the real ones are."""
        with tempfile.TemporaryDirectory() as folder:
            for part, count in (("train", 128), ("t10k", 256)):
                for name, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
                    with open(os.path.join(folder, f"{part}-{name}-ubyte"), "wb") as file:
                        body = torch.randint(10, shape, dtype=torch.uint8)
                        file.write(struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + body.numpy().tobytes())
            self.run_one("mnist", "--data", folder, "--epochs", 1, "--log", os.path.join(folder, "log"))
            self.assertTrue(os.path.exists(os.path.join(folder, "log", "log.jsonl")))
            for i in range(1, 6):
                with open(os.path.join(folder, f"data_batch_{i}.bin"), "wb") as file:
                    file.write(torch.randint(10, (8, 3073), dtype=torch.uint8).numpy().tobytes())
            self.run_one("resnet", "--data", folder, "--depth", 8, "--batch-size", 8, "--steps", 1)
            for language, text in (("en", "a man walks .\nthe dog runs\n"), ("de", "ein mann geht .\nder hund rennt\n")):
                with open(os.path.join(folder, f"train.{language}"), "w", encoding="utf-8") as file:
                    file.write(text * 4)
            self.run_one("translate", "--data", folder, "--batch-size", 4, "--width", 16, "--layers", 1, "--steps", 2)
            data = dict(tokens=torch.randint(1, 64, (8, 12)), labels=torch.randint(2, (8,)))
            torch.save(data, os.path.join(folder, "texts.pt"))
            self.run_one("bert", "--data", os.path.join(folder, "texts.pt"), "--batch-size", 4, "--steps", 2)


if __name__ == "__main__":
    unittest.main()
