"""kfac.preconditioner of kfac-pytorch."""
from ._kaisa import KFACPreconditioner

__all__ = ["KFACPreconditioner"]
