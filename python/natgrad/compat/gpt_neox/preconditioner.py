"""The module kfac.gpt_neox.preconditioner of kfac-pytorch, with the classes of natgrad."""
from .._gptneox import GPTNeoXKFACPreconditioner

__all__ = ["GPTNeoXKFACPreconditioner"]
