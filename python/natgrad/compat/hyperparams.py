"""The module kfac.hyperparams of kfac-pytorch."""
from ._kaisa import exp_decay_factor_averaging

__all__ = ["exp_decay_factor_averaging"]
