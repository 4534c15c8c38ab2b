"""Write the log of a run in the format of `natgrad train` (log.jsonl), for `natgrad export` and other readers.

    log = natgrad.Log("run/log.jsonl", preconditioner)
    for epoch in range(epochs):
        for x, y in batches:
            ...                                             # loss, backward, preconditioner.step(), optimizer.step()
            log.step(epoch, lr, loss.item(), accuracy)
        log.epoch(epoch, lr, train_loss, train_accuracy, test_loss, test_accuracy)
    log.end()
"""
import json
import math
import os
import time

from . import _abi
from ._core import make_error

_NUMBER_KEYS = ("lr", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "seconds", "clip")


def _angle_and_stretch(report):
    """Return angle and stretch between the gradient D and the direction PD of the last step.  If no layer is
    preconditioned but quantify=True, PD is the direction of the fused update."""
    d2, pd2 = report["d2"], report["pd2"]
    if not (d2 > 0 and pd2 > 0):
        return dict.fromkeys(("cosine", "angle", "rotation", "stretch"))
    cosine = max(-1.0, min(1.0, report["inner"] / math.sqrt(d2) / math.sqrt(pd2)))
    return {"cosine": cosine, "angle": math.degrees(math.acos(cosine)), "rotation": 90.0 * (1.0 - cosine),
            "stretch": math.sqrt(pd2) / math.sqrt(d2)}


def _scaling_quantiles(report):
    """Return quantiles and mean of |PD_i / (D_i + 1e-8)| over the elements i; {} if quantify is not True."""
    return {key: report[key] for key in report if key.startswith("scaling_")} if report["scaled"] else {}


class Log:
    """Writes the lines of a run: JSON objects with "schema": 1 and "event": "step", "epoch" or "end".

    path           a new file; its folder is created
    preconditioner a preconditioner or optimizer of this package, which counts steps and reports clip and times
    every          number of steps between "step" lines
    model          network_bytes of the "end" line counts the parameters of this model; None: the preconditioner's model
    forward        a function that is called with each line, as a dict, after it was written
    """

    def __init__(self, path, preconditioner, every=10, model=None, forward=None):
        if every < 1:
            raise make_error(_abi.NG_ERR_ARG, f"every is {every}, expected at least 1")
        self._preconditioner = getattr(preconditioner, "preconditioner", preconditioner)
        self._model = self._preconditioner.model if model is None else model
        self._every, self._forward, self._begin, self._counts_at_last_line = every, forward, time.monotonic(), {}
        self._last_epoch = dict(epoch=0, train_loss=None, test_accuracy=None)
        if os.path.dirname(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        self._file = open(path, "x", encoding="ascii")

    def _write_line(self, event, epoch, **values):
        report = self._preconditioner.report()
        before, steps = self._counts_at_last_line.get(event, ({}, 0))
        totals = {station["name"]: station["total_ms"] for station in report["stations"]}
        passed = max(report["steps"] + report["skipped"] - steps, 1)
        self._counts_at_last_line[event] = totals, report["steps"] + report["skipped"]
        row = {"schema": 1, "event": event, "step": report["steps"], "epoch": int(epoch)}
        if event == "step":
            values.update(clip=report["clip"], **_angle_and_stretch(report), **_scaling_quantiles(report))
        if event == "end":
            values.update(skipped=report["skipped"], rescued=self._preconditioner.rescued,
                          unobserved=self._preconditioner.unobserved,
                          network_bytes=sum(p.numel() * p.element_size() for p in self._model.parameters()),
                          precond_bytes=self._preconditioner.memory_usage()["total"])
        if event != "step":
            values["seconds"] = time.monotonic() - self._begin
        for name, value in values.items():
            if name in _NUMBER_KEYS or isinstance(value, float) or value is None:
                value = None if value is None or not math.isfinite(value) else float(value)
            row[name] = value
        row["ms"] = {name: round((total - before.get(name, 0.0)) / passed, 4) for name, total in totals.items()}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        if self._forward is not None:
            self._forward(row)

    def step(self, epoch, lr, loss, accuracy=None):
        """Write a "step" line with loss and accuracy (0 to 1) of a batch, if `every` divides the number of steps."""
        if (self._preconditioner.steps % self._every) == 0:
            self._write_line("step", epoch, lr=lr, train_loss=loss, train_accuracy=accuracy)

    def epoch(self, epoch, lr, train_loss, train_accuracy=None, test_loss=None, test_accuracy=None):
        """Write an "epoch" line; losses and accuracies are means over the epoch."""
        self._last_epoch = dict(epoch=epoch, train_loss=train_loss, test_accuracy=test_accuracy)
        self._write_line("epoch", epoch, lr=lr, train_loss=train_loss, train_accuracy=train_accuracy, test_loss=test_loss,
                         test_accuracy=test_accuracy)

    def end(self, why="done"):
        """Write the "end" line and close the file.  `why` is "done", "stopped" or "diverged"."""
        if why not in ("done", "stopped", "diverged"):
            raise make_error(_abi.NG_ERR_ARG, f"argument why is '{why}', expected done, stopped or diverged")
        self._write_line("end", self._last_epoch["epoch"], why=why, train_loss=self._last_epoch["train_loss"],
                         test_accuracy=self._last_epoch["test_accuracy"])
        self._file.close()
