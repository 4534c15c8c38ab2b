"""kfac.scheduler of kfac-pytorch."""
from ._kaisa import LambdaParamScheduler

__all__ = ["LambdaParamScheduler"]
