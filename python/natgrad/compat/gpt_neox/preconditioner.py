"""kfac.gpt_neox.preconditioner of kfac-pytorch."""
from .._gptneox import GPTNeoXKFACPreconditioner

__all__ = ["GPTNeoXKFACPreconditioner"]
