"""The module kfac.base_preconditioner of kfac-pytorch: scripts name its class in annotations."""
from ._kaisa import KFACPreconditioner as BaseKFACPreconditioner

__all__ = ["BaseKFACPreconditioner"]
