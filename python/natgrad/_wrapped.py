"""The base class of optimizers in this package: an optimizer with parameter groups that owns a preconditioner."""
import torch

from . import _abi
from ._core import make_error
from ._state import NotCopyable


class PreconditioningOptimizer(NotCopyable, torch.optim.Optimizer):
    """An optimizer that owns `preconditioner`.  state_dict() has the states of the optimizer and of the preconditioner.

    Lightning derives a class from an optimizer's class and looks up missing attributes on that class, so
    `preconditioner` must not be a class attribute.
    """

    def __init__(self, params, defaults):
        self._settings = tuple(defaults)  # PyTorch adds settings of its own to `defaults` when it loads a state
        super().__init__(params, defaults)

    def add_param_group(self, param_group):
        if getattr(self, "preconditioner", None) is not None:
            raise make_error(_abi.NG_ERR_STATE, "param_groups are fixed after construction: pass all groups as params")
        super().add_param_group(param_group)

    @staticmethod
    def _evaluate_closure(closure):
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    @property
    def steps(self):
        return self.preconditioner.steps

    def state_dict(self):
        """Return the state of the optimizer; its key "natgrad" has the state of the preconditioner."""
        return {**super().state_dict(), "natgrad": self.preconditioner.state_dict()}

    def load_state_dict(self, state_dict):
        self.preconditioner._load_on_all_ranks(lambda: self._check_whole_state(state_dict))
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "natgrad"})

    def _check_whole_state(self, state_dict):
        """Check that `state` and `param_groups` fit this optimizer, and return the state of the preconditioner."""
        self._check_optimizer_state(state_dict, "natgrad")
        return state_dict["natgrad"]

    def _check_optimizer_state(self, state_dict, *names):
        if not isinstance(state_dict, dict):
            raise make_error(_abi.NG_ERR_FILE, f"the state is a {type(state_dict).__name__}, expected a dict")
        for name in (*names, "state", "param_groups"):
            if name not in state_dict:
                raise make_error(_abi.NG_ERR_FILE, f"the state has no '{name}': it is not a state of this optimizer")
        groups = state_dict["param_groups"]
        if not (isinstance(groups, list) and all(isinstance(group, dict) and isinstance(group.get("params"), list)
                                                 for group in groups)):
            raise make_error(_abi.NG_ERR_FILE, "the state: param_groups is not a list of dicts with params")
        mine, theirs = ([len(group["params"]) for group in some] for some in (self.param_groups, groups))
        if mine != theirs:
            raise make_error(_abi.NG_ERR_ARG, f"the state has param_groups of {theirs} parameters, expected {mine}")
        for i, group in enumerate(groups):
            for name in self._settings:
                if name not in group:
                    raise make_error(_abi.NG_ERR_FILE, f"the state: param_groups[{i}] has no '{name}'")
            self._check_group(group)

    def _check_group(self, group):
        """Raise an error for values that a step would reject."""

    def begin(self, samples, loss_scale=None):
        """See Preconditioner.begin."""
        self.preconditioner.begin(samples, loss_scale)

    def reset_batch(self):
        """Drop the observations since the last step."""
        self.preconditioner.reset_batch()

    def explain(self):
        return self.preconditioner.explain()

    def report(self):
        return self.preconditioner.report()

    def memory_usage(self):
        return self.preconditioner.memory_usage()

    def close(self):
        """Remove the hooks from the model and free the memory."""
        self.preconditioner.close()
