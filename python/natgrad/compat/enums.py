"""kfac.enums of kfac-pytorch."""
from ._kaisa import AssignmentStrategy, ComputeMethod, DistributedStrategy

__all__ = ["AssignmentStrategy", "ComputeMethod", "DistributedStrategy"]
