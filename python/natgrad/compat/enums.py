"""The module kfac.enums of kfac-pytorch, with the classes of natgrad."""
from ._kaisa import AssignmentStrategy, ComputeMethod, DistributedStrategy

__all__ = ["AssignmentStrategy", "ComputeMethod", "DistributedStrategy"]
