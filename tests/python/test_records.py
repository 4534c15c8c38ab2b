"""log.jsonl in the format of `natgrad train`, and ten lines of a page that forward each line."""
import csv
import json
import math
import os
import re
import subprocess
import tempfile
import types
import unittest

import natgrad
from front import Case, random_batch, loss_of, make_preconditioner, small_conv_net

SOURCE = os.environ.get("NG_TEST_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", ".."))
PROGRAM = os.path.join(os.path.dirname(os.environ.get("NATGRAD_LIBRARY", "")), "natgrad")


def log_two_epochs(folder, forward=None, kind=None):
    model = small_conv_net()
    k = kind(model) if kind else make_preconditioner(model)
    log = natgrad.Log(os.path.join(folder, "log.jsonl"), k, every=2, forward=forward)
    for epoch in range(2):
        for t in range(4):
            model.zero_grad()
            loss = loss_of(model, *random_batch(seed=t))
            loss.backward()
            k.step()
            log.step(epoch, 0.1, loss.item(), 0.5)
        log.epoch(epoch, 0.1, 1.25, 0.5, math.nan, 0.75)
    log.end()
    with open(os.path.join(folder, "log.jsonl"), encoding="ascii") as file:
        return [json.loads(line) for line in file], k


class LogLines(Case):
    def test_lines_have_expected_fields(self):
        with tempfile.TemporaryDirectory() as folder:
            rows, k = log_two_epochs(folder)
        self.assertEqual([(row["event"], row["step"], row["epoch"]) for row in rows],
                         [("step", 2, 0), ("step", 4, 0), ("epoch", 4, 0), ("step", 6, 1), ("step", 8, 1), ("epoch", 8, 1),
                          ("end", 8, 1)])
        with open(os.path.join(SOURCE, "cli", "train", "log.h"), encoding="utf-8") as file:
            card = re.sub(r"\n \*", "", file.read())
        for row in rows:  # exactly the fields that log.h lists
            listed = re.search(rf'"event": "{row["event"]}"(.*?)( "event"| ms: )', card, re.S).group(1)
            listed = re.sub(r"\([^)]*\)", "", listed).replace(" ", "").rstrip(".").split(",")
            self.assertEqual(list(row), ["schema", "event", *listed], row["event"])
            self.assertEqual(row["schema"], 1)
            self.assertEqual(list(row["ms"]), [s["name"] for s in k.report()["stations"]])
        last, report = rows[4], k.report()  # the line of the last step: <PD, D> / (|D| |PD|), degrees, |PD| / |D|
        self.assertAlmostEqual(last["cosine"], report["inner"] / math.sqrt(report["d2"] * report["pd2"]), 12)
        self.assertAlmostEqual(math.cos(math.radians(last["angle"])), last["cosine"], 12)
        self.assertAlmostEqual(last["rotation"], 90 * (1 - last["cosine"]), 12)
        self.assertAlmostEqual(last["stretch"], math.sqrt(report["pd2"] / report["d2"]), 12)
        self.assertEqual((rows[2]["train_loss"], rows[2]["test_loss"], rows[2]["test_accuracy"]), (1.25, None, 0.75))
        self.assertEqual(rows[-1]["why"], "done")
        self.assertEqual(rows[-1]["precond_bytes"], k.memory_usage()["total"])
        total = sum(s["total_ms"] for s in k.report()["stations"])
        self.assertAlmostEqual(sum(rows[-1]["ms"].values()) * 8, total, delta=0.01 * 8)
        self.assertAlmostEqual(sum(sum(row["ms"].values()) * 2 for row in rows if row["event"] == "step"), total, delta=0.1)

    @unittest.skipUnless(os.access(PROGRAM, os.X_OK), "the program natgrad is not built")
    def test_natgrad_export_reads_log(self):
        with tempfile.TemporaryDirectory() as folder:
            rows, _ = log_two_epochs(folder, kind=lambda m: natgrad.SGD(m, 0.1))
            table = os.path.join(folder, "run.csv")
            done = subprocess.run([PROGRAM, "export", folder, "--csv", table], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(table, newline="", encoding="ascii") as file:
                read = list(csv.DictReader(file))
        self.assertEqual([float(row["train_loss"]) for row in read], [row["train_loss"] for row in rows])
        self.assertIn("ms.solve", read[0])

    def test_wrong_arguments_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a", "log.jsonl")
            k = make_preconditioner(small_conv_net())
            log = natgrad.Log(path, k)
            with self.assert_refused("why is 'tired'"):
                log.end("tired")
            log.end("stopped")
            with self.assertRaises(FileExistsError):
                natgrad.Log(path, k)
            with self.assert_refused("every is 0"):
                natgrad.Log(path + "2", k, every=0)


class Forwarding(Case):
    """The lines of docs/pytorch.md, with writers that record their calls."""

    def example_of_page(self, what):
        with open(os.path.join(SOURCE, "docs", "pytorch.md"), encoding="utf-8") as file:
            found = [code for code in re.findall(r"```python\n(.*?)```", file.read(), re.S) if what in code]
        self.assertEqual(len(found), 1)
        self.assertLessEqual(len(found[0].splitlines()), 10)
        return found[0]

    def check_forwarded_lines(self, what, modules, notes):
        import sys
        with tempfile.TemporaryDirectory() as folder:
            before = {name: sys.modules.get(name) for name in modules}
            sys.modules.update(modules)
            try:
                scope = {}
                exec(self.example_of_page(what), scope)
                rows, _ = log_two_epochs(folder, scope["forward"])
            finally:
                for name, module in before.items():
                    sys.modules.pop(name) if module is None else sys.modules.__setitem__(name, module)
        self.assertIn(("step/train_loss", rows[0]["train_loss"], 2), notes)
        self.assertIn(("epoch/test_accuracy", 0.75, 8), notes)
        self.assertIn(("step_ms/solve", rows[0]["ms"]["solve"], 2), notes)
        self.assertNotIn("epoch/test_loss", [name for name, *_ in notes])  # test_loss is no number

    def test_tensorboard_example_forwards_lines(self):
        notes = []
        module = types.ModuleType("torch.utils.tensorboard")
        module.SummaryWriter = lambda folder: types.SimpleNamespace(
            add_scalar=lambda tag, value, step: notes.append((tag, value, step)))
        self.check_forwarded_lines("SummaryWriter", {"torch.utils.tensorboard": module}, notes)

    def test_wandb_example_forwards_lines(self):
        notes = []
        module = types.ModuleType("wandb")
        module.init = lambda **_: None
        module.log = lambda values, step: notes.extend((tag, value, step) for tag, value in values.items())
        self.check_forwarded_lines("wandb", {"wandb": module}, notes)


if __name__ == "__main__":
    unittest.main()
