"""Optimizers of IST-DASLab: M-FAC, EFCP (dense, sparse and low-rank M-FAC, GGT), ISTA-DASLab-Optimizers (SparseMFAC).

The classes are optimizers of parameters, not of a model.  A step replaces the gradients by directions and updates the
weights.  lr is read from each param_group, and weight_decay, if the published program reads it there.
"""
import inspect

import torch
from torch import nn

from .. import _abi, _core, _layers
from .._core import make_error
from .._wrapped import PreconditioningOptimizer
from ..preconditioner import Preconditioner

_REQUIRED = inspect.Parameter.empty


class _WindowPreconditioner(Preconditioner):
    """A preconditioner with one window over the parameters of an optimizer, in the order of the param_groups."""

    def __init__(self, groups, chosen, process_group):
        self._functions, holder = {}, nn.Module()
        for i, group in enumerate(groups):
            names = group.get("param_names", [f"param_groups[{i}][{k}]" for k in range(len(group["params"]))])
            holder._parameters.update(zip(names, group["params"]))
        self._setup(holder, chosen, process_group=process_group)

    def _plan_entries(self, _exclusion_reason):
        matrices = self._chosen.get("window_store") == "lowrank"  # a low-rank store needs rows and columns
        entries = []
        for name, parameter in self.model._parameters.items():
            kind = _layers.MatrixParameter if matrices and parameter.dim() > 1 else _layers.Entry
            entry = kind(name, "a parameter")
            entry.places.append((_abi.NG_WEIGHT, self.model, name, name))
            entry.frozen = not parameter.requires_grad
            entries.append(entry)
        return entries


def _check_device(name, value):
    """Return None for the CPU, which is the only supported device; raise an error for other devices."""
    given = value if isinstance(value, (list, tuple)) else [value]
    if all(one is None or str(one) == "cpu" for one in given):
        return None
    raise make_error(_abi.NG_ERR_ABSENT, f"{name}: {value}: gradients stay on the CPU; expected None")


class _WindowOptimizer(PreconditioningOptimizer):
    """The base class.  `system` and `variant` select a published program and its configuration.  `arguments` are pairs
    of name and default (or _REQUIRED) in the published order.  `decay_from` is "group" if groups have their own
    weight_decay."""

    system = variant = decay_from = None
    arguments = ()

    def __init__(self, params, *given, process_group=None, **named):
        values = self._bind_arguments(given, named)
        self._chosen = chosen = _core.Options()
        chosen.set_system(self.system, self.variant)
        self._set_options(chosen, dict(values))
        chosen.check_values()
        defaults = {"lr": values["lr"]}
        if self.decay_from is not None:
            defaults["weight_decay"] = values["weight_decay"]
        self._decay = values.get("weight_decay", values.get("wd"))
        super().__init__(params, defaults)
        self._check_groups()
        self.preconditioner = _WindowPreconditioner(self.param_groups, chosen, process_group)

    @classmethod
    def _bind_arguments(cls, given, named):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(n, kind, default=d) for n, d in cls.arguments])
        try:
            bound = signature.bind(*given, **named)
        except TypeError as error:
            raise make_error(_abi.NG_ERR_ARG, f"{cls.__name__}() {error}") from None
        bound.apply_defaults()
        return bound.arguments

    def _set_options(self, chosen, values):
        for name in ("moddev", "optdev", "dev", "gpus"):
            if name in values:
                _check_device(name, values.pop(name))
        for name, value in values.items():
            chosen.set_published(name, value)

    def _check_groups(self):
        """Check that all groups have the same value of each argument that must not differ between groups."""
        for i, group in enumerate(self.param_groups):
            if self.decay_from is None and group.get("weight_decay", self._decay) != self._decay:
                raise make_error(_abi.NG_ERR_ARG, f"weight_decay of param_groups[{i}]: {type(self).__name__} has one for all "
                                 f"parameters, {self._decay}")
        if self._chosen.get("window_feedback_lr") == "1" and len({group["lr"] for group in self.param_groups}) > 1:
            raise make_error(_abi.NG_ERR_ARG, "topk_lr_on_update=False: the groups have different lr, but a window needs "
                             "one")

    def _weight_decay_factor(self, group):
        """Return the factor that multiplies the weights before the update (decoupled weight decay)."""
        return 1.0

    @torch.no_grad()
    def step(self, closure=None):
        """Take one step; return the closure's result.  Set `note` to the status: 0 done, 2 skipped, ..."""
        loss = self._evaluate_closure(closure)
        self._check_groups()
        self.note = self.preconditioner.step(self.param_groups[0]["lr"])
        if self.note == _abi.NG_SKIPPED:
            return loss
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.requires_grad and p.grad is not None]
            if not moved:
                continue
            factor = self._weight_decay_factor(group)
            if factor != 1.0:
                torch._foreach_mul_(moved, factor)
            torch._foreach_add_(moved, [p.grad for p in moved], alpha=-float(group["lr"]))
        return loss


_MFAC_ARGUMENTS = (("lr", 1e-3), ("momentum", 0), ("weight_decay", 0), ("ngrads", 1024), ("damp", 1e-5), ("moddev", None),
                   ("optdev", None))


class MFAC(_WindowOptimizer):
    """IST-DASLab/M-FAC, optim.MFAC(params, lr=1e-3, momentum=0, weight_decay=0, ngrads=1024, damp=1e-5, moddev=None,
    optdev=None, gpus=[], sparse=False)."""

    system, variant = "M-FAC", "mfac"
    arguments = _MFAC_ARGUMENTS + (("gpus", ()), ("sparse", False))


def _required_arguments(names):
    return tuple((name, _REQUIRED) for name in names.split())


class DenseMFAC(_WindowOptimizer):
    """IST-DASLab/EFCP, DenseMFAC(params, ngrads, lr, damp, wd_type, weight_decay, momentum, sparse=False, dev=None,
    gpus=None)."""

    system, variant, decay_from = "EFCP", "mfac", "group"
    arguments = _required_arguments("ngrads lr damp wd_type weight_decay momentum") + (
        ("sparse", False), ("dev", None), ("gpus", None))

    def _set_options(self, chosen, values):
        if isinstance(values["wd_type"], int):
            values["wd_type"] = str(int(values["wd_type"]))
        self._has_decoupled_decay = values["wd_type"] in ("wd", "both", "0", "2")
        super()._set_options(chosen, values)

    def _weight_decay_factor(self, group):
        return 1.0 - float(group["weight_decay"]) if self._has_decoupled_decay else 1.0


class SparseGradientMFAC(DenseMFAC):
    """IST-DASLab/EFCP, SparseGradientMFAC(params, ngrads, k_init, lr, damp, wd_type, weight_decay, momentum,
    sparse=False, dev=None, gpus=None), and the two switches of the program, topk_lr_on_update=True,
    precondition_sparse_grad=True."""

    variant = "sparse-mfac"
    arguments = _required_arguments("ngrads k_init lr damp wd_type weight_decay momentum") + (
        ("sparse", False), ("dev", None), ("gpus", None), ("topk_lr_on_update", True), ("precondition_sparse_grad", True))


class SparseMFAC(_WindowOptimizer):
    """ISTA-DASLab-Optimizers, SparseMFAC(params, lr, damp, m, k_init, weight_decay, use_bf16): the largest entries of
    each block of 32,768, where the program has blocks of the size of a GPU's shared memory."""

    system, variant, decay_from = "EFCP", "sparse-mfac", "group"
    arguments = _required_arguments("lr damp m k_init weight_decay use_bf16")

    def _set_options(self, chosen, values):
        use_bf16 = values.pop("use_bf16")
        if not isinstance(use_bf16, bool):
            raise make_error(_abi.NG_ERR_ARG, f"use_bf16 is {use_bf16!r}, expected True or False")
        k_init = values["k_init"]
        if isinstance(k_init, (int, float)) and k_init > 1:
            raise make_error(_abi.NG_ERR_ARG, f"k_init is {k_init!r}, expected a fraction of each block, at most 1")
        chosen.set("window_dtype", "bf16" if use_bf16 else "f32")
        chosen.set("window_store", "topk-block")
        super()._set_options(chosen, {"ngrads" if name == "m" else name: value for name, value in values.items()})

    def _weight_decay_factor(self, group):
        return 1.0 - float(group["lr"]) * float(group["weight_decay"])


class GGT(_WindowOptimizer):
    """IST-DASLab/EFCP, GGT(params, lr, wd, r, beta1, beta2, eps)."""

    system, variant = "EFCP", "ggt"
    arguments = _required_arguments("lr wd r beta1 beta2 eps")


class SparseGGT(_WindowOptimizer):
    """IST-DASLab/EFCP, sparse GGT of either format (params, k_init, lr, wd, r, beta1, beta2, eps)."""

    system, variant = "EFCP", "sparse-ggt"
    arguments = _required_arguments("k_init lr wd r beta1 beta2 eps")


SparseGGT_DenseFormat = SparseGGT_SparseFormatSpmm = SparseGGT  # the published names: one for each storage of gradients


class LowRankMFAC(_WindowOptimizer):
    """IST-DASLab/EFCP, LowRankMFAC(params, lr=1e-3, momentum=0, weight_decay=0, ngrads=1024, damp=1e-5, moddev=None,
    optdev=None, rank=1): a window for each parameter."""

    system, variant, scope = "EFCP", "lowrank-mfac", "tensor"
    arguments = _MFAC_ARGUMENTS + (("rank", 1),)

    def _set_options(self, chosen, values):
        super()._set_options(chosen, {**values, "scope": self.scope})


class LowRankAggregateMFAC(LowRankMFAC):
    """IST-DASLab/EFCP, LowRankAggregateMFAC: LowRankMFAC with num_grads for ngrads, and one window for all."""

    scope = "global"
    arguments = tuple(("num_grads" if name == "ngrads" else name, value) for name, value in LowRankMFAC.arguments)


class RankOneMFAC(LowRankMFAC):
    """IST-DASLab/EFCP, RankOneMFAC: LowRankMFAC of rank 1."""

    arguments = _MFAC_ARGUMENTS


class RankOneAggregateMFAC(LowRankAggregateMFAC):
    """IST-DASLab/EFCP, RankOneAggregateMFAC: LowRankAggregateMFAC of rank 1."""

    arguments = LowRankAggregateMFAC.arguments[:-1]
