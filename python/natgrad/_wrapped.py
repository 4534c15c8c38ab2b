"""What every torch.optim.Optimizer of this package is: parameter groups around a preconditioner."""
import torch

from . import _abi
from ._core import failure


class Wrapped(torch.optim.Optimizer):
    """Its `preconditioner` does the work; state_dict() has that of both.

    What Lightning puts around an optimizer is of a class derived from it, and asks it for what neither has: so
    `preconditioner` is no attribute of the class.
    """

    def add_param_group(self, param_group):
        if getattr(self, "preconditioner", None) is not None:
            raise failure(_abi.NG_ERR_STATE, "param_groups are fixed once the optimizer is made: give all of them as params")
        super().add_param_group(param_group)

    @staticmethod
    def _evaluate(closure):
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    @property
    def steps(self):
        return self.preconditioner.steps

    def state_dict(self):
        """The optimizer's, and beside it what the preconditioner keeps."""
        return {**super().state_dict(), "natgrad": self.preconditioner.state_dict()}

    def load_state_dict(self, state_dict):
        if "natgrad" not in state_dict:
            raise failure(_abi.NG_ERR_FILE, "the state has no 'natgrad': it is not one of this optimizer")
        groups = state_dict.get("param_groups")
        mine, theirs = ([len(group["params"]) for group in some or ()] for some in (self.param_groups, groups))
        if mine != theirs:  # before anything has changed
            raise failure(_abi.NG_ERR_ARG, f"the state has param_groups of {theirs} parameters, expected {mine}")
        self.preconditioner.load_state_dict(state_dict["natgrad"])
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "natgrad"})

    def explain(self):
        return self.preconditioner.explain()

    def report(self):
        return self.preconditioner.report()

    def memory_usage(self):
        return self.preconditioner.memory_usage()

    def close(self):
        """Take the hooks out of the model and give the memory back."""
        self.preconditioner.close()
