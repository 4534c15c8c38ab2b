"""The module kfac.enums of kfac-pytorch, with the classes of natgrad."""
from ._kaisa import AllreduceMethod, AssignmentStrategy, ComputeMethod, DistributedStrategy

__all__ = ["AllreduceMethod", "AssignmentStrategy", "ComputeMethod", "DistributedStrategy"]
