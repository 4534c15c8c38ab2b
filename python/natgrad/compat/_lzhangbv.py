"""Classes and schedulers of lzhangbv/kfac_pytorch (MPD-KFAC, DP-KFAC), lzhangbv/eva and ffhh927/fused_eva.

Each class is an optimizer with one param_group of all parameters.  A step reads lr, damping, fac_update_freq and
kfac_update_freq of this group, so schedulers may change them.
"""
import torch

from .. import _abi, _core, _layers
from .._core import make_error
from .._wrapped import PreconditioningOptimizer
from ..preconditioner import Preconditioner
from . import backend

_GROUP_ARGUMENTS = ("lr", "damping", "fac_update_freq", "kfac_update_freq")
_POSITIONAL = _GROUP_ARGUMENTS + (
    "kfac_batch_size", "diag_blocks", "communicate_inverse_or_not", "distribute_layer_factors", "kl_clip", "factor_decay",
    "exclude_vocabulary_size", "hook_enabled", "exclude_parts")


class _LinearAndConvPreconditioner(Preconditioner):
    def __init__(self, model, chosen, process_group):
        self._functions = {}
        self._setup(model, chosen, process_group=process_group, exclusion_reason=lambda name, m: "" if type(m).__name__ in (
            "Linear", "Conv2d") else f"its class is {type(m).__name__}, not Linear or Conv2d")


class _PublishedOptimizer(PreconditioningOptimizer):
    """The base class.  `system` and `variant` select a published program and its configuration; `_defaults` has the
    defaults of the arguments, `_keyword_only` the arguments that are not positional."""

    system = variant = None
    _defaults, _keyword_only = {}, ()

    def __init__(self, model, *given, process_group=None, **named):
        values = {**self._defaults, **self._arguments_by_name(given, named)}
        enabled = values.pop("hook_enabled")
        chosen = self._make_options(values)
        names = {row["name"]: row["option"] for row in _core.published(chosen.get("method"))}
        self._option_of_argument = {name: names.get(name, "") for name in _GROUP_ARGUMENTS}
        super().__init__(list(_layers.unwrap(model).parameters()), {name: values[name] for name in _GROUP_ARGUMENTS})
        ranks = backend.group() if process_group is None else process_group
        self.preconditioner = _LinearAndConvPreconditioner(model, chosen, ranks)
        self._period = values["fac_update_freq"]  # the period that the hooks use
        self.set_hook_enabled(enabled)

    def _make_options(self, values):
        chosen = _core.Options()
        chosen.set_system(self.system, self.variant)
        for name, value in values.items():
            chosen.set_published(name, value)
        return chosen

    def _check_group(self, group):
        self._make_options({name: group[name] for name in _GROUP_ARGUMENTS})

    @classmethod
    def _arguments_by_name(cls, given, named):
        names = [name for name in _POSITIONAL if name in cls._defaults and name not in cls._keyword_only]
        if len(given) > len(names):
            raise make_error(_abi.NG_ERR_ARG, f"{cls.__name__}() takes {len(names)} arguments after the model, {len(given)} were "
                             "given")
        for name in named:
            if name not in cls._defaults:
                raise make_error(_abi.NG_ERR_ARG, f"{cls.__name__}() got an unexpected keyword argument '{name}'")
            if name in names[:len(given)]:
                raise make_error(_abi.NG_ERR_ARG, f"{cls.__name__}() got multiple values for argument '{name}'")
        return {**dict(zip(names, given)), **named}

    def set_hook_enabled(self, mode=True):
        """mode=False: the hooks observe nothing; True: they observe."""
        self.preconditioner.hook_enabled = mode

    def _set_options_from_group(self, *names):
        for name in names:
            if self._option_of_argument[name]:
                self.preconditioner._core.set(self._option_of_argument[name], self.param_groups[0][name])
            if name == "fac_update_freq":
                self._period = self.param_groups[0][name]

    def step(self, closure=None, epoch=None):
        """Precondition the gradients in place.  closure and epoch are ignored, as published."""
        group = self.param_groups[0]
        if group["fac_update_freq"] != self._period:
            self._check_group(group)
        self._set_options_from_group("damping", "kfac_update_freq")
        if self.system == "DP-KFACrepo" and self.steps % group["fac_update_freq"]:
            # in the published program, hooks still use the period of the previous step, averages already the new one
            if self.preconditioner._observer.open_batch is not None and not self.preconditioner._observer.has_failed:
                self.preconditioner.reset_batch()
            self._set_options_from_group("fac_update_freq")
        note = self.preconditioner.step(group["lr"])
        self._set_options_from_group("fac_update_freq")  # hooks use this period from now on
        return note

    def load_state_dict(self, state_dict):
        """Load a state of this class, or of the published class, whose states contain no averages."""
        if isinstance(state_dict, dict) and "natgrad" in state_dict:
            super().load_state_dict(state_dict)
        else:
            self.preconditioner._fail_on_all_ranks(lambda: self._check_optimizer_state(state_dict), lambda _: 1)
            torch.optim.Optimizer.load_state_dict(self, state_dict)
        self._set_options_from_group("fac_update_freq")


_KFAC_DEFAULTS = dict(lr=0.1, damping=0.001, fac_update_freq=1, kfac_update_freq=1, kl_clip=0.001, factor_decay=0.95,
                      exclude_vocabulary_size=None, hook_enabled=True, exclude_parts="")
_EVA_DEFAULTS = dict(lr=0.1, damping=0.03, fac_update_freq=1, kfac_update_freq=1, kfac_batch_size=16, kl_clip=0.001,
                     factor_decay=0.95, exclude_vocabulary_size=None, hook_enabled=True, exclude_parts="")

# (class, system, variant, defaults of its program, more defaults of the class)
_CLASSES = (
    ("KFAC_EIGEN", "DP-KFACrepo", "eigen", _KFAC_DEFAULTS, dict(communicate_inverse_or_not=True,
                                                                distribute_layer_factors=None)),
    ("KFAC_INV", "DP-KFACrepo", "inverse", _KFAC_DEFAULTS, dict(communicate_inverse_or_not=False)),
    ("KFAC_EIGEN_DP", "DP-KFACrepo", "eigen_dp", _KFAC_DEFAULTS, dict(communicate_inverse_or_not=False)),
    ("KFAC_INV_DP", "DP-KFACrepo", "inverse_dp", _KFAC_DEFAULTS, dict(communicate_inverse_or_not=False)),
    ("EVA", "Eva", "eva", _EVA_DEFAULTS, {}),
    ("KFAC", "Eva", "kfac", _EVA_DEFAULTS, dict(diag_blocks=1)),
    ("ADASGD", "Eva", "adasgd", _EVA_DEFAULTS, dict(kl_clip=0.01)),
    ("SAM", "Eva", "sam", _EVA_DEFAULTS, dict(kl_clip=0.01)),
)
for _name, _system, _variant, _program, _more in _CLASSES:
    globals()[_name] = type(_name, (_PublishedOptimizer,), {
        "__module__": __name__, "system": _system, "variant": _variant, "_defaults": {**_program, **_more},
        "_keyword_only": ("communicate_inverse_or_not",) if _variant != "inverse" else (),
        "__doc__": f"{_system} {_variant}: " + ", ".join(f"{n}={v!r}" for n, v in {**_program, **_more}.items())})
FusedEVA = type("FusedEVA", (globals()["EVA"],), {"__module__": __name__, "__doc__": globals()["EVA"].__doc__})
MPD_KFAC = KFAC_EIGEN = globals()["KFAC_EIGEN"]
EVA, KFAC, ADASGD, SAM = (globals()[name] for name in ("EVA", "KFAC", "ADASGD", "SAM"))
KFAC_INV, KFAC_EIGEN_DP, KFAC_INV_DP = (globals()[name] for name in ("KFAC_INV", "KFAC_EIGEN_DP", "KFAC_INV_DP"))
Eva = EVA

kfac_mappers = {"eigen": KFAC_EIGEN, "inverse": KFAC_INV, "eigen_dp": KFAC_EIGEN_DP, "inverse_dp": KFAC_INV_DP, "eva": EVA,
                "kfac": KFAC, "adasgd": ADASGD, "sam": SAM}


def get_kfac_module(kfac="eigen_dp"):
    """Return the class that has this name in kfac_mappers, as published."""
    if kfac not in kfac_mappers:
        raise make_error(_abi.NG_ERR_ABSENT, f"get_kfac_module: '{kfac}' is not supported, expected "
                         + ", ".join(kfac_mappers))
    return kfac_mappers[kfac]


def DP_KFAC(model, inv_type="eigen", lr=0.1, damping=0.001, fac_update_freq=1, kfac_update_freq=1, kl_clip=0.001,
            factor_decay=0.95, exclude_vocabulary_size=None, hook_enabled=True, exclude_parts="", **options):
    """Return a DP-KFAC preconditioner: with eigenbases if inv_type is "eigen", otherwise with inverses."""
    return get_kfac_module("eigen_dp" if inv_type == "eigen" else "inverse_dp")(
        model, lr, damping, fac_update_freq, kfac_update_freq, kl_clip=kl_clip, factor_decay=factor_decay,
        exclude_vocabulary_size=exclude_vocabulary_size, hook_enabled=hook_enabled, exclude_parts=exclude_parts, **options)


class KFACParamScheduler:
    """Schedules damping = d damping_alpha^n and both periods = int(p update_freq_alpha^n), where d and p are the values
    at construction, and n counts the epochs of the schedule that are <= the current epoch."""

    def __init__(self, kfac, damping_alpha=1, damping_schedule=None, update_freq_alpha=1, update_freq_schedule=None,
                 start_epoch=0):
        self.kfac, self.epoch = kfac, start_epoch
        self._base = dict(kfac.param_groups[0])
        self._damping = (damping_alpha, sorted(damping_schedule or []))
        self._freq = (update_freq_alpha, sorted(update_freq_schedule or []))

    def step(self, epoch=None):
        self.epoch = self.epoch + 1 if epoch is None else epoch
        group = self.kfac.param_groups[0]

        def factor_at_epoch(alpha, schedule):
            return alpha ** sum(at <= self.epoch for at in schedule)
        group["damping"] = self._base["damping"] * factor_at_epoch(*self._damping)
        for name in ("fac_update_freq", "kfac_update_freq"):
            group[name] = int(self._base[name] * factor_at_epoch(*self._freq))
