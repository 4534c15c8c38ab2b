"""The package kfac.gpt_neox of kfac-pytorch."""
from . import preconditioner

__all__ = ["preconditioner"]
