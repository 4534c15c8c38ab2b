"""Find out whether the loss of a backward pass is a sum or a mean, from the graph of autograd."""
import math
import sys

import torch

_BACKWARD_CODES = {torch.autograd.backward.__code__, torch.autograd.grad.__code__}
_REDUCTIONS = {1: "mean", 2: "sum"}


def find_backward_frame():
    """Return the frame of torch.autograd.backward or grad in the stack of this thread, or None."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code not in _BACKWARD_CODES:
        frame = frame.f_back
    return frame


def find_reduction(is_scaled):
    """Return ('sum' or 'mean', number of values) of the loss whose backward pass runs; (None, 0) if not known.  A loss that
    was multiplied or divided, or is a sum of two losses, is not known; is_scaled: one product is the loss scale."""
    frame = find_backward_frame()
    if frame is None or frame.f_code is not torch.autograd.backward.__code__:
        return None, 0
    roots = frame.f_locals.get("tensors")
    if isinstance(roots, (tuple, list)):
        roots = roots[0] if len(roots) == 1 else None
    node = getattr(roots, "grad_fn", None)
    if is_scaled and node is not None and node.name() == "MulBackward0":
        node = next((factor for factor, _ in node.next_functions if factor is not None), None)
    if node is None:
        return None, 0
    if node.name() in ("SumBackward0", "MeanBackward0"):
        sizes = getattr(node, "_saved_self_sym_sizes", None) or getattr(node, "_saved_self_sizes", ())
        return ("sum" if node.name() == "SumBackward0" else "mean"), math.prod(sizes)
    return _REDUCTIONS.get(getattr(node, "_saved_reduction", None)), 0
