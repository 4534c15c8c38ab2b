"""natgrad: precondition the gradients of PyTorch models with curvature.

    preconditioner = natgrad.KFAC(model, lr=0.1, damping=0.003)
    ...
    loss.backward()
    preconditioner.step()
    optimizer.step()

natgrad.options() lists the options.  PyTorch is imported on first use of a class.
"""
import importlib

from ._core import ArgumentError, Error, build_info, methods, options, published

from ._methods import CLASSES as _CLASSES

_LAZY = {"Preconditioner": ".preconditioner", "SGD": ".optim", "AdamW": ".optim", "KFACAdam": ".optim", "SOAP": ".optim",
         "Shampoo": ".optim", "KLShampoo": ".optim", "Muon": ".optim", "Curvature": ".curvature", "Log": ".records",
         **{row[0]: ".preconditioner" for row in _CLASSES}}
__all__ = ["ArgumentError", "Error", "build_info", "methods", "options", "published", *_LAZY]


def __getattr__(name):
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module 'natgrad' has no attribute '{name}'")
