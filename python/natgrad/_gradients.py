"""Hooks on the gradient of the output of a layer."""
import torch

from ._tensors import gather


def _base_of_new_view(output, x):
    """If the output is a view that the layer made, return its base tensor, else None (x: the input of the layer).
    After an in-place operation on a view, autograd continues at the base, so the hook must be on the base."""
    base = output._base if output._is_view() else None
    if base is None or base.grad_fn is None or base.numel() != output.numel() or base is x or base is x._base:
        return None
    return base


def _make_gradient_view(output, base):
    """Return a function that converts the gradient of `base` to the gradient of its view `output`."""
    shape = output.shape
    if output.is_contiguous() and base.is_contiguous():
        return lambda g: g.reshape(shape)
    steps, offset = output.stride(), output.storage_offset() - base.storage_offset()
    whole, order = base.shape, base.stride()

    def view_gradient(g):
        like = torch.empty_strided(whole, order, dtype=g.dtype, device=g.device)
        return like.copy_(g).as_strided(shape, steps, offset)
    return view_gradient


def hook_output_gradient(output, x, observer, on_gradient, to_rows=None):
    """Let the backward pass call on_gradient(gradient of output), converted by to_rows if given, while the observer is enabled.  x: the
    input of the layer.
    A hook on the autograd node is faster than on the tensor."""
    if to_rows is not None:
        observe = on_gradient
        on_gradient = lambda g: observe(to_rows(g))
    base, to_view = _base_of_new_view(output, x), None
    if base is not None:
        to_view = _make_gradient_view(output, base)
        output = base
    node = output.grad_fn
    place = output.output_nr

    def pass_gradient(gradients):
        g = gradients[place]
        if g is not None and observer.is_enabled:
            g = gather(g)
            on_gradient(g if to_view is None else to_view(g))
    if hasattr(node, "register_prehook"):
        node.register_prehook(pass_gradient)
    elif to_view is None:  # PyTorch 1
        output.register_hook(on_gradient)
    else:
        node.register_hook(lambda _inputs, outputs: pass_gradient(outputs))
