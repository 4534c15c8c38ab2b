"""The module kfac.scheduler of kfac-pytorch, with the classes of natgrad."""
from ._kaisa import LambdaParamScheduler

__all__ = ["LambdaParamScheduler"]
