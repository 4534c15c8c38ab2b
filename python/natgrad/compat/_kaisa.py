"""The preconditioner, scheduler and enums of gpauloski/kfac-pytorch (KAISA).

The library translates the arguments to options (natgrad.published("kaisa") prints how).  This file adds arguments that
are functions of the step, enums, regular expressions and the selection of modules.
"""
import enum
import logging
import re
import warnings

import torch
from torch import nn

from .. import _abi, _core, _distributed, _layers
from .._core import make_error
from ..preconditioner import Preconditioner
from ._averages import Averages, read_averages


class AllreduceMethod(enum.Enum):
    ALLREDUCE = 1
    ALLREDUCE_BUCKETED = 2


class AssignmentStrategy(enum.Enum):
    COMPUTE = 1
    MEMORY = 2


class ComputeMethod(enum.Enum):
    EIGEN = 1
    INVERSE = 2


class DistributedStrategy(enum.Enum):
    COMM_OPT = 1
    MEM_OPT = 2
    HYBRID_OPT = 3


# The six arguments that may be functions of the step, with their options (None: lr is no option but an argument of a
# step).
_LIVE_ARGUMENTS = {"factor_update_steps": "stat_period", "inv_update_steps": "solve_period", "damping": "damping",
                   "factor_decay": "stat_decay", "kl_clip": "kl_clip", "lr": None}


def exp_decay_factor_averaging(min_value=0.95):
    """Return the function factor_decay(t) = min(1 - 1 / max(t, 1), min_value) of the step t.  With this decay, the
    first factors have equal weights in the average."""
    if min_value <= 0:
        raise ValueError("min_value must be greater than 0")

    def factor_weight(step):
        if step < 0:
            raise ValueError(f"step value cannot be negative. Got step={step}.")
        return min(1 - 1 / max(step, 1), min_value)
    return factor_weight


def _as_enum(kind, value):
    """Return the member of an enum that a text names in any case."""
    return getattr(kind, value.upper(), value) if isinstance(value, str) else value


def _choose_strategy(fraction, ranks):
    """Return the DistributedStrategy of a grad_worker_fraction, and the fraction as a number."""
    fixed = {DistributedStrategy.COMM_OPT: 1.0, DistributedStrategy.HYBRID_OPT: 0.5, DistributedStrategy.MEM_OPT: 1 / ranks}
    if isinstance(fraction, DistributedStrategy):
        return fraction, fixed[fraction]
    fraction = _core.to_float("grad_worker_fraction", fraction)
    if fraction == 1:
        return DistributedStrategy.COMM_OPT, 1.0
    if fraction <= 1 / ranks:
        return DistributedStrategy.MEM_OPT, fraction or 1 / ranks
    return DistributedStrategy.HYBRID_OPT, fraction


class KFACPreconditioner(Preconditioner):
    """K-FAC as gpauloski/kfac-pytorch computes it, with the arguments of its KFACPreconditioner."""

    _saves_exact_state = False  # on several ranks

    def __init__(self, model, *, factor_update_steps=1, inv_update_steps=1, damping=0.001, factor_decay=0.95,
                 kl_clip=0.001, lr=0.1, accumulation_steps=1, allreduce_bucket_cap_mb=25.0,
                 assignment_strategy=AssignmentStrategy.COMPUTE, colocate_factors=True,
                 compute_method=ComputeMethod.EIGEN, compute_eigenvalue_outer_product=True,
                 grad_worker_fraction=DistributedStrategy.COMM_OPT, symmetry_aware=False, grad_scaler=None,
                 factor_dtype=None, inv_dtype=torch.float32, skip_layers=None, update_factors_in_hook=True,
                 loglevel=logging.DEBUG, process_group=None):
        given = dict(factor_update_steps=factor_update_steps, inv_update_steps=inv_update_steps, damping=damping,
                     factor_decay=factor_decay, kl_clip=kl_clip, lr=lr)
        self._fixed_arguments, self._argument_functions = {}, {}
        for name, value in given.items():
            self._set_argument(name, value)
        chosen = _core.Options()
        eigen = _core.option_text("compute_method", compute_method).upper() != b"INVERSE"
        chosen.set_system("KAISA", "eigen" if eigen else "inverse")
        fixed = dict(accumulation_steps=accumulation_steps, allreduce_bucket_cap_mb=allreduce_bucket_cap_mb,
                     assignment_strategy=assignment_strategy, colocate_factors=colocate_factors,
                     compute_method=compute_method, compute_eigenvalue_outer_product=compute_eigenvalue_outer_product,
                     grad_worker_fraction=grad_worker_fraction, symmetry_aware=symmetry_aware,
                     factor_dtype=factor_dtype, inv_dtype=inv_dtype, update_factors_in_hook=update_factors_in_hook)
        for name, value in {**fixed, **{name: self._argument_at(name, 0) for name in given}}.items():
            chosen.set_published(name, value)
        if "factor_decay" in self._fixed_arguments and float(factor_decay) == 0:
            raise make_error(_abi.NG_ERR_ARG, "factor_decay is 0, expected more than 0 and at most 1")
        if eigen and compute_eigenvalue_outer_product and not colocate_factors:
            raise make_error(_abi.NG_ERR_ARG, "colocate_factors must be True to use compute_eigenvalue_outer_product")
        self.assignment_strategy = _as_enum(AssignmentStrategy, assignment_strategy)
        self.compute_method = _as_enum(ComputeMethod, compute_method)
        self.distributed_strategy, self.grad_worker_fraction = _choose_strategy(
            _as_enum(DistributedStrategy, grad_worker_fraction), _distributed.count_processes(process_group))
        if not colocate_factors and self.distributed_strategy is DistributedStrategy.MEM_OPT:
            warnings.warn("grad_worker_fraction=1/world_size (MEM_OPT) requires colocate_factors=True: changed from False",
                          stacklevel=2)
            chosen.set("colocate", 1)
        is_bucketed = _core.to_float("allreduce_bucket_cap_mb", allreduce_bucket_cap_mb) > 0
        self.allreduce_method = AllreduceMethod.ALLREDUCE_BUCKETED if is_bucketed else AllreduceMethod.ALLREDUCE
        if accumulation_steps == 1 and update_factors_in_hook:
            chosen.set("calls", "ema")  # as published, two calls of a module update its averages twice
        periods = [self._fixed_arguments.get(name) for name in ("inv_update_steps", "factor_update_steps")]
        if None not in periods and periods[0] % periods[1]:
            warnings.warn("It is suggested that inv_update_steps be an integer multiple of factor_update_steps",
                          stacklevel=2)
        expressions = [skip_layers] if isinstance(skip_layers, str) else skip_layers or []
        self._skip_expressions = [re.compile(text) for text in expressions]
        self._functions = {}
        self._setup(model, chosen, lr, grad_scaler=grad_scaler, process_group=process_group, exclusion_reason=self._exclusion_reason)
        self._set_live_options()
        for layer in self.report()["layers"]:
            _core.log.log(loglevel, "Registered layer %s", layer["name"])
        owners = {row["name"]: row["owner"] for row in self.explain() if row["covered"]}
        _core.log.log(loglevel, "KAISAAssignment: the ranks that solve each layer: %s", owners)

    def _class_name(self, module):
        return type(module).__name__

    def _is_supported(self, module):
        return isinstance(module, (nn.Linear, nn.Conv2d))

    def _exclusion_reason(self, name, module):
        """Return '' for Linear and Conv2d modules without frozen parameters, else the reason why they are left out."""
        for pattern in self._skip_expressions:
            if pattern.search(name) or pattern.search(self._class_name(module)):
                return f"matches skip_layers: '{pattern.pattern}'"
        if not self._is_supported(module):
            return f"kfac-pytorch has no {type(module).__name__}"
        if not all(p.requires_grad for p in module.parameters()):
            return "one of its parameters is frozen"
        return ""

    # ---- the six arguments of _LIVE_ARGUMENTS

    def _set_argument(self, name, value):
        self._argument_functions.pop(name, None)
        self._fixed_arguments.pop(name, None)
        (self._argument_functions if callable(value) else self._fixed_arguments)[name] = value

    def _argument_at(self, name, step):
        return self._argument_functions[name](step) if name in self._argument_functions else self._fixed_arguments[name]

    def _set_live_options(self):
        """Set the options of the arguments in _LIVE_ARGUMENTS to their values for the next step."""
        for name, option in _LIVE_ARGUMENTS.items():
            value = self._argument_at(name, self._steps)
            if name == "kl_clip":
                self._core.set("clip", "none" if value is None else "kl")
            if option is not None and (value is not None or name != "kl_clip"):
                try:
                    self._core.set(option, value)
                except _core.ArgumentError:
                    self._check_arguments({name: value})
                    raise

    def step(self):
        """Precondition the gradients in place.  The clip factor uses `lr`."""
        self._set_live_options()  # a scheduler may have changed an argument
        return super().step(self.lr)

    def _live_property(name):
        def get(self):
            return self._argument_at(name, self._steps)

        def put(self, value):
            self._set_argument(name, value)  # the next step() checks the value
        return property(get, put)

    factor_update_steps, inv_update_steps = _live_property("factor_update_steps"), _live_property("inv_update_steps")
    damping, factor_decay, kl_clip = _live_property("damping"), _live_property("factor_decay"), _live_property("kl_clip")
    lr = _live_property("lr")
    del _live_property

    def memory_usage(self):
        """Return the bytes of memory on this rank: under KAISA's keys, for natgrad's other uses, and their `total`.

        The library reports the bytes of A and G together.  They are divided in the ratio of p (p + 1) to q (q + 1),
        summed over layers, where p and q are the orders of A and G: the ratio of their triangles, and of their
        eigenbases with eigenvalues. """
        found, a, g = super().memory_usage(), 0, 0
        for entry in self.entries:
            if isinstance(entry, _layers.Layer):
                weight, groups = entry.modules[0].weight, getattr(entry.modules[0], "groups", 1)
                p, q = weight[0].numel() + entry.bias, len(weight) // groups
                a, g = a + groups * p * (p + 1), g + groups * q * (q + 1)
        split = {}
        for key, use in (("factors", "factors"), ("batch", "sums"), ("inverses", "results")):
            both = found.pop(use)
            split[f"a_{key}"] = both * a // max(a + g, 1)
            split[f"g_{key}"] = both - split[f"a_{key}"]
        return {**split, **found}

    # ---- state

    def state_dict(self, include_factors=True):
        """Return the state, with the arguments that are no functions of the step.  Local, as in kfac-pytorch.

        One rank: the exact state.  Several ranks, of which a script may call this on one only: the layout of
        kfac-pytorch, with the running averages of all layers.  include_factors=False: only `steps` and the arguments."""
        if not include_factors:
            return {"steps": self._steps, "numbers": dict(self._fixed_arguments)}
        if self._core.transport is None or self._saves_exact_state:
            return {**super().state_dict(), "numbers": dict(self._fixed_arguments)}
        return {"steps": self._steps, **self._fixed_arguments, "layers": read_averages(self._core)}

    def load_state_dict(self, state_dict, compute_inverses=True):
        """Load a state of this class or of kfac-pytorch.  Collective.  If this fails, nothing changes.

        After running averages are loaded, the next step solves them.  compute_inverses is ignored."""
        if isinstance(state_dict, dict) and "fields" in state_dict:
            super().load_state_dict(state_dict)
            numbers = state_dict["numbers"]
        else:
            numbers, averages = self._fail_on_all_ranks(lambda: self._check_parts(state_dict),
                                                        lambda parts: 1 if parts[1] is None else 2)
            if averages is not None:
                averages.load()
            self._set_step_count(state_dict["steps"])
        for name, value in numbers.items():
            self._set_argument(name, value)
        self._set_live_options()

    def _check_parts(self, state):
        """Return the arguments and the Averages (or None) of a state in the layout of kfac-pytorch."""
        if not isinstance(state, dict) or "steps" not in state:
            raise make_error(_abi.NG_ERR_FILE, "the state is no state of KFACPreconditioner: it has no 'steps'")
        numbers = state.get("numbers", {name: state[name] for name in _LIVE_ARGUMENTS if name in state})
        self._check_state({"steps": state["steps"], "numbers": numbers})
        unknown = set(state) - {"steps", "numbers", "layers", *_LIVE_ARGUMENTS}
        if unknown:
            raise make_error(_abi.NG_ERR_FILE, f"the state has '{min(unknown, key=str)}', which is unknown")
        return numbers, Averages(self._core, state["layers"]) if "layers" in state else None

    def _check_state(self, state):
        """Check a state.  `steps` may differ from its manifest, because a state without factors sets only `steps`."""
        steps, numbers = state["steps"], state.get("numbers")
        if type(steps) is not int or steps < 0:
            raise make_error(_abi.NG_ERR_FILE, f"the state: steps is {steps!r}, expected a count")
        if not isinstance(numbers, dict) or not set(numbers) <= set(_LIVE_ARGUMENTS):
            raise make_error(_abi.NG_ERR_FILE, f"the state: numbers is {numbers!r}, expected some of "
                             f"{', '.join(_LIVE_ARGUMENTS)}")
        self._check_arguments({name: numbers[name] if name in numbers else self._argument_at(name, steps)
                               for name in _LIVE_ARGUMENTS})

    @staticmethod
    def _check_arguments(values):
        """Raise an error, with the published name of the argument, if a value is wrong."""
        chosen = _core.Options()
        chosen.set_system("KAISA", "eigen")
        for name, value in values.items():
            chosen.set_published(name, value)

    def __repr__(self):
        lines = [f"  {name}={self._argument_functions.get(name, self._fixed_arguments.get(name))},"
                 for name in sorted(_LIVE_ARGUMENTS)]
        return "\n".join([f"{type(self).__name__}(", *lines, f"  layers={len(self.report()['layers'])},",
                          f"  steps={self._steps},", ")"])


class LambdaParamScheduler:
    """At each step(), multiplies arguments of a KFACPreconditioner by values of functions of the step, cumulatively."""

    def __init__(self, preconditioner, *, factor_update_steps_lambda=None, inv_update_steps_lambda=None,
                 damping_lambda=None, factor_decay_lambda=None, kl_clip_lambda=None, lr_lambda=None):
        self._preconditioner = preconditioner
        self._functions = {name: function for name, function in
                           (("factor_update_steps", factor_update_steps_lambda),
                            ("inv_update_steps", inv_update_steps_lambda), ("damping", damping_lambda),
                            ("factor_decay", factor_decay_lambda), ("kl_clip", kl_clip_lambda), ("lr", lr_lambda))
                           if function is not None}
        for name in self._functions:
            if name in preconditioner._argument_functions:
                raise ValueError(f"preconditioner.{name} is already a callable and cannot be updated by the "
                                 "LambdaParamScheduler.")

    def step(self, step=None):
        """Multiply by the values of the functions at `step` (None: the preconditioner's number of steps)."""
        at = self._preconditioner.steps if step is None else step
        for name, function in self._functions.items():
            value = getattr(self._preconditioner, name) * function(at)
            setattr(self._preconditioner, name, int(value) if name.endswith("steps") else value)
