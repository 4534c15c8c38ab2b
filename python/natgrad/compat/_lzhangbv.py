"""Classes and schedulers of lzhangbv/kfac_pytorch (MPD-KFAC, DP-KFAC), lzhangbv/eva and ffhh927/fused_eva.

The classes are optimizers over all parameters with one param_group.  lr, damping, fac_update_freq and
kfac_update_freq of the group are read at each step, so schedulers may change them.
"""
import torch

from .. import _abi, _core, _layers
from .._core import failure
from .._wrapped import Wrapped
from ..preconditioner import Preconditioner
from . import backend

_GROUP = ("lr", "damping", "fac_update_freq", "kfac_update_freq")
_ORDER = _GROUP + ("kfac_batch_size", "diag_blocks", "communicate_inverse_or_not", "distribute_layer_factors", "kl_clip",
                   "factor_decay", "exclude_vocabulary_size", "hook_enabled", "exclude_parts")  # positional arguments


class _Inner(Preconditioner):
    def __init__(self, model, chosen, process_group):
        self._functions = {}
        self._setup(model, chosen, process_group=process_group, accept=lambda name, m: "" if type(m).__name__ in (
            "Linear", "Conv2d") else f"its class is {type(m).__name__}, not Linear or Conv2d")


class _Published(Wrapped):
    """Base class.  `system` and `variant` name a published program and its configuration; `_standard`: defaults of the
    arguments; `_forced`: keyword-only arguments."""

    system = variant = None
    _standard, _forced = {}, ()

    def __init__(self, model, *given, process_group=None, **named):
        values = {**self._standard, **self._by_name(given, named)}
        enabled = values.pop("hook_enabled")
        chosen = self._set(values)
        names = {row["name"]: row["option"] for row in _core.published(chosen.get("method"))}
        self._options = {name: names.get(name, "") for name in _GROUP}
        super().__init__(list(_layers.unwrap(model).parameters()), {name: values[name] for name in _GROUP})
        self.preconditioner = _Inner(model, chosen, backend.group() if process_group is None else process_group)
        self._period = values["fac_update_freq"]  # used by the hooks
        self.set_hook_enabled(enabled)

    def _set(self, values):
        chosen = _core.Options()
        chosen.set_system(self.system, self.variant)
        for name, value in values.items():
            chosen.set_published(name, value)
        return chosen

    def _check_group(self, group):
        self._set({name: group[name] for name in _GROUP})

    @classmethod
    def _by_name(cls, given, named):
        names = [name for name in _ORDER if name in cls._standard and name not in cls._forced]
        if len(given) > len(names):
            raise failure(_abi.NG_ERR_ARG, f"{cls.__name__}() takes {len(names)} arguments after the model, {len(given)} were "
                          "given")
        for name in named:
            if name not in cls._standard:
                raise failure(_abi.NG_ERR_ARG, f"{cls.__name__}() got an unexpected keyword argument '{name}'")
            if name in names[:len(given)]:
                raise failure(_abi.NG_ERR_ARG, f"{cls.__name__}() got multiple values for argument '{name}'")
        return {**dict(zip(names, given)), **named}

    def set_hook_enabled(self, mode=True):
        """Switch the hooks on (mode=True) or off (False)."""
        self.preconditioner.hook_enabled = mode

    def _take(self, *names):
        for name in names:
            if self._options[name]:
                self.preconditioner._core.set(self._options[name], self.param_groups[0][name])
            if name == "fac_update_freq":
                self._period = self.param_groups[0][name]

    def step(self, closure=None, epoch=None):
        """Precondition gradients in place.  Both arguments are ignored, as published."""
        group = self.param_groups[0]
        if group["fac_update_freq"] != self._period:
            self._check_group(group)
        self._take("damping", "kfac_update_freq")
        if self.system == "DP-KFACrepo" and self.steps % group["fac_update_freq"]:
            # as published, hooks use the period of the step before, and averages use the present period
            if self.preconditioner._observer.open is not None and not self.preconditioner._observer.failed:
                self.preconditioner.reset_batch()
            self._take("fac_update_freq")
        note = self.preconditioner.step(group["lr"])
        self._take("fac_update_freq")  # hooks use this period from now on
        return note

    def load_state_dict(self, state_dict):
        """Load a state of this class, or a state of the published class, which has no averages."""
        if isinstance(state_dict, dict) and "natgrad" in state_dict:
            super().load_state_dict(state_dict)
        else:
            self.preconditioner._agreed(lambda: self._check_state_of(state_dict))
            torch.optim.Optimizer.load_state_dict(self, state_dict)
        self._take("fac_update_freq")


_KFAC = dict(lr=0.1, damping=0.001, fac_update_freq=1, kfac_update_freq=1, kl_clip=0.001, factor_decay=0.95,
             exclude_vocabulary_size=None, hook_enabled=True, exclude_parts="")
_EVA = dict(lr=0.1, damping=0.03, fac_update_freq=1, kfac_update_freq=1, kfac_batch_size=16, kl_clip=0.001,
            factor_decay=0.95, exclude_vocabulary_size=None, hook_enabled=True, exclude_parts="")

# (class, system, variant, defaults of the program, defaults of the class that differ)
_CLASSES = (
    ("KFAC_EIGEN", "DP-KFACrepo", "eigen", _KFAC, dict(communicate_inverse_or_not=True,
                                                       distribute_layer_factors=None)),
    ("KFAC_INV", "DP-KFACrepo", "inverse", _KFAC, dict(communicate_inverse_or_not=False)),
    ("KFAC_EIGEN_DP", "DP-KFACrepo", "eigen_dp", _KFAC, dict(communicate_inverse_or_not=False)),
    ("KFAC_INV_DP", "DP-KFACrepo", "inverse_dp", _KFAC, dict(communicate_inverse_or_not=False)),
    ("EVA", "Eva", "eva", _EVA, {}),
    ("KFAC", "Eva", "kfac", _EVA, dict(diag_blocks=1)),
    ("ADASGD", "Eva", "adasgd", _EVA, dict(kl_clip=0.01)),
    ("SAM", "Eva", "sam", _EVA, dict(kl_clip=0.01)),
)
for _name, _system, _variant, _program, _more in _CLASSES:
    globals()[_name] = type(_name, (_Published,), {
        "__module__": __name__, "system": _system, "variant": _variant, "_standard": {**_program, **_more},
        "_forced": ("communicate_inverse_or_not",) if _variant != "inverse" else (),
        "__doc__": f"{_system} {_variant}: " + ", ".join(f"{n}={v!r}" for n, v in {**_program, **_more}.items())})
FusedEVA = type("FusedEVA", (globals()["EVA"],), {"__module__": __name__, "__doc__": globals()["EVA"].__doc__})
MPD_KFAC = KFAC_EIGEN = globals()["KFAC_EIGEN"]
EVA, KFAC, ADASGD, SAM = (globals()[name] for name in ("EVA", "KFAC", "ADASGD", "SAM"))
KFAC_INV, KFAC_EIGEN_DP, KFAC_INV_DP = (globals()[name] for name in ("KFAC_INV", "KFAC_EIGEN_DP", "KFAC_INV_DP"))
Eva = EVA

kfac_mappers = {"eigen": KFAC_EIGEN, "inverse": KFAC_INV, "eigen_dp": KFAC_EIGEN_DP, "inverse_dp": KFAC_INV_DP, "eva": EVA,
                "kfac": KFAC, "adasgd": ADASGD, "sam": SAM}


def get_kfac_module(kfac="eigen_dp"):
    """Return the class of a published name."""
    if kfac not in kfac_mappers:
        raise failure(_abi.NG_ERR_ABSENT, f"get_kfac_module: '{kfac}' is not supported, expected "
                      + ", ".join(kfac_mappers))
    return kfac_mappers[kfac]


def DP_KFAC(model, inv_type="eigen", lr=0.1, damping=0.001, fac_update_freq=1, kfac_update_freq=1, kl_clip=0.001,
            factor_decay=0.95, exclude_vocabulary_size=None, hook_enabled=True, exclude_parts="", **options):
    """Return a DP preconditioner: with eigenbases if inv_type is "eigen", otherwise with inverses."""
    return get_kfac_module("eigen_dp" if inv_type == "eigen" else "inverse_dp")(
        model, lr, damping, fac_update_freq, kfac_update_freq, kl_clip=kl_clip, factor_decay=factor_decay,
        exclude_vocabulary_size=exclude_vocabulary_size, hook_enabled=hook_enabled, exclude_parts=exclude_parts, **options)


class KFACParamScheduler:
    """Set damping = base damping_alpha^n, both periods to int(base update_freq_alpha^n); base: value at construction;
    n: number of epochs in the schedule that are <= the present epoch."""

    def __init__(self, kfac, damping_alpha=1, damping_schedule=None, update_freq_alpha=1, update_freq_schedule=None,
                 start_epoch=0):
        self.kfac, self.epoch = kfac, start_epoch
        self._base = dict(kfac.param_groups[0])
        self._damping = (damping_alpha, sorted(damping_schedule or []))
        self._freq = (update_freq_alpha, sorted(update_freq_schedule or []))

    def step(self, epoch=None):
        self.epoch = self.epoch + 1 if epoch is None else epoch
        group = self.kfac.param_groups[0]

        def factor(alpha, schedule):
            return alpha ** sum(at <= self.epoch for at in schedule)
        group["damping"] = self._base["damping"] * factor(*self._damping)
        for name in ("fac_update_freq", "kfac_update_freq"):
            group[name] = int(self._base[name] * factor(*self._freq))
