"""The examples of examples/torch under torchrun: two processes divide the data, and rank 0 prints."""
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

import torch

SOURCE = os.environ.get("NG_TEST_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", ".."))
EXAMPLES = os.path.join(SOURCE, "examples", "torch")
sys.path.insert(0, EXAMPLES)
# torchrun of PyTorch 1.13 fails on Python 3.11 with its default "0" of both options.
FLAGS = ("--redirects", "1:1", "--tee", "1:1") if torch.__version__.startswith("1.") else ()


class Torchrun(unittest.TestCase):
    def run_example(self, name, *arguments, ranks=2):
        """Run an example on `ranks` processes, or in one process without torchrun, and return its output."""
        launcher = ["-m", "torch.distributed.run", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0",
                    "--nproc_per_node", str(ranks), *FLAGS] if ranks > 1 else []
        command = [sys.executable, *launcher, os.path.join(EXAMPLES, name + ".py"), *map(str, arguments)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
                                 env=dict(os.environ, OMP_NUM_THREADS="1", NG_THREADS="1"))
        try:
            out = child.communicate(timeout=float(os.environ.get("NG_TEST_TIMEOUT") or 600))[0]
        except subprocess.TimeoutExpired:
            self.fail(f"{name} did not end")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        self.assertEqual(child.returncode, 0, out)
        return out

    def run_steps(self, name, *arguments, ranks=2):
        """Run steps of one epoch; return the numbers that rank 0, and no other rank, printed: the loss first."""
        out = self.run_example(name, *arguments, ranks=ranks)
        lines = re.findall("epoch 1: (.*)", out)
        self.assertEqual(len(lines), 1, out)
        return list(map(float, re.findall("[0-9]+[.][0-9]+", lines[0])))

    def assert_ranks_give_whole_batch(self, name, *arguments):
        """Two ranks with batches of 16 give the loss and the scores of one process with batches of 32."""
        arguments += ("--method", "natgrad", "--warmup-epochs", "none", "--steps", 4)
        found = [self.run_steps(name, *arguments, "--batch-size", 32 // ranks, ranks=ranks) for ranks in (1, 2)]
        self.assertLessEqual(abs(found[0][0] - found[1][0]), 2e-4, found)  # printed with 4 digits; sums in another order
        self.assertEqual(len(found[0]), len(found[1]))
        for one, two in zip(*found):  # an accuracy may change by a sample
            self.assertLessEqual(abs(one - two), 0.01 * one, found)

    def test_mnist_ranks_give_whole_batch(self):
        self.assert_ranks_give_whole_batch("mnist", "--optimizer", "sgd", "--lr", 0.05, "--accumulation-steps", 2,
                                           "--grad-worker-fraction", 0)

    def test_translate_ranks_give_whole_batch(self):
        # Without the embedding of positions, whose G squares the sum of the samples of a rank.
        self.assert_ranks_give_whole_batch("translate", "--width", 16, "--layers", 1, "--skip-layers", "place")

    def test_mnist_evaluates_and_logs_on_rank_0(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            out = self.run_example("mnist", "--method", "kaisa", "--grad-worker-fraction", 0.5, "--epochs", 1,
                                   "--batch-size", 256, "--log-folder", log)
            self.assertRegex(out, "epoch 1: loss [0-9.]+, accuracy [0-9.]+ %, test accuracy [0-9.]+ %\n")
            with open(os.path.join(log, "log.jsonl")) as file:
                self.assertEqual([line.count('"event": "epoch"') for line in file].count(1), 1)

    def test_resnet(self):
        small = ("resnet", "--steps", 2, "--batch-size", 8)
        self.run_steps(*small, "--depth", 8, "--image", 16, "--method", "eigen_dp")
        self.run_steps(*small, "--depth", 18, "--image", 32, "--imagenet", "--method", "eva")

    def test_bert(self):
        self.run_steps("bert", "--steps", 2, "--batch-size", 8, "--task", "answer", "--method", "kaisa",
                       "--grad-worker-fraction", 0)

    def test_language_model_ranks_give_whole_batch(self):
        self.assert_ranks_give_whole_batch("language", "--width", 16, "--hidden", 16, "--layers", 1, "--context", 8, "--dropout", 0)

    def test_windows(self):
        self.run_steps("mnist", "--steps", 3, "--method", "efcp", "--ngrads", 8)


class WarmUp(unittest.TestCase):
    def parse_arguments(self, ranks, *arguments):
        import common
        before, sys.argv = sys.argv, ["x", *map(str, arguments)]
        try:
            args = common.parse_arguments(common.make_parser("", lr=0.5, lr_decay=(6,)))
        finally:
            sys.argv = before
        args.ranks = ranks
        return common, args

    def find_rates(self, ranks, *arguments):
        common, args = self.parse_arguments(ranks, "--method", "none", *arguments)
        method, rates = common.Method(args, torch.nn.Linear(2, 2)), []
        for _ in range(8):
            rates.append(round(method.optimizer.param_groups[0]["lr"], 9))
            method.optimizer.step()
            method.end_epoch()
        return rates

    def test_learning_rate(self):
        """With four ranks and two warm-up epochs: lr (3 e / 2 + 1), then four times lr, then a tenth."""
        self.assertEqual(self.find_rates(4, "--warmup-epochs", 2), [0.5, 1.25] + [2.0] * 4 + [0.2] * 2)
        self.assertEqual(self.find_rates(4, "--warmup-epochs", 0), [2.0] * 6 + [0.2] * 2)
        for ranks, warmup in ((4, "none"), (1, 2)):
            self.assertEqual(self.find_rates(ranks, "--warmup-epochs", warmup), [0.5] * 6 + [0.05] * 2)

    def test_ranks_divide_the_data(self):
        found = []
        for rank in range(3):
            common, args = self.parse_arguments(3, "--batch-size", 4)
            args.rank = rank
            batches = common.shuffled_batches(args, torch.arange(30))
            found.append([[batch[0].tolist() for batch in batches()] for _ in range(2)])
            self.assertEqual([len(epoch) for epoch in found[-1]], [2, 2])
        for epoch in range(2):
            seen = [sample for rank in found for batch in rank[epoch] for sample in batch]
            self.assertEqual(len(set(seen)), 24)  # no sample twice
        self.assertNotEqual(found[0][0], found[0][1])
        tested = []
        for rank in range(3):
            args.rank = rank
            tested += [sample for batch in common.share_of_rank(args, [torch.arange(30)], 4) for sample in batch[0].tolist()]
        self.assertEqual(sorted(tested), list(range(30)))

    def test_grad_worker_fraction_needs_kfac(self):
        with self.assertRaisesRegex(SystemExit, "--grad-worker-fraction needs --method kaisa, natgrad"):
            self.parse_arguments(2, "--method", "eva", "--grad-worker-fraction", 0.5)


if __name__ == "__main__":
    unittest.main()
