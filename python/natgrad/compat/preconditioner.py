"""The module kfac.preconditioner of kfac-pytorch, with the classes of natgrad."""
from ._kaisa import KFACPreconditioner

__all__ = ["KFACPreconditioner"]
