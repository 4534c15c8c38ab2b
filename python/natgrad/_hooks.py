"""Hooks: observe the input and the output gradient of each call of a layer.

The library receives both arrays when the output gradient arrives.  A call of a layer counts only if a backward pass
goes through the call: a forward whose loss is dropped, or the first forward of activation checkpointing, leaves no
observation.  Methods with calls = ema or last observe the input in forward, as the published programs do.
"""
import ctypes as c
import inspect
import sys
import warnings
import weakref

import torch

from . import _abi, _layers
from ._core import failure
from ._tensors import Described, Tokens

_KWARGS = "with_kwargs" in inspect.signature(torch.nn.Module.register_forward_hook).parameters
_grad_enabled = torch.is_grad_enabled
_queue_callback = torch.autograd.Variable._execution_engine.queue_callback
_BACKWARD = {torch.autograd.backward.__code__, torch.autograd.grad.__code__}


def _called_by_backward():
    """Return 0 in a backward pass, else -1, for PyTorch 1: search the stack, since backward runs in this thread."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code not in _BACKWARD:
        frame = frame.f_back
    return -1 if frame is None else 0


_in_backward = getattr(torch._C, "_current_graph_task_id", _called_by_backward)
_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


def _made_by_layer(output, x):
    """Return the base tensor if the output is a view that the layer with input x made, else None: an in-place operation
    on a view continues the graph at the base."""
    base = output._base if output._is_view() else None
    if base is None or base.grad_fn is None or base.numel() != output.numel() or base is x or base is x._base:
        return None
    return base


def _as_output(output, base):
    """Return a function that turns a gradient of base into a gradient of output, a view of base."""
    shape = output.shape
    if output.is_contiguous() and base.is_contiguous():
        return lambda g: g.reshape(shape)
    steps, offset = output.stride(), output.storage_offset() - base.storage_offset()
    whole, order = base.shape, base.stride()

    def view(g):
        like = torch.empty_strided(whole, order, dtype=g.dtype, device=g.device)
        return like.copy_(g).as_strided(shape, steps, offset)
    return view


def _on_gradient(output, x, arrived):
    """Call arrived(gradient of output) in the backward pass.  A hook on the node is faster than on the tensor."""
    base, turned = _made_by_layer(output, x), None
    if base is not None:
        turned = _as_output(output, base)
        output = base
    node = output.grad_fn
    place = output.output_nr

    def before(gradients):
        g = gradients[place]
        if g is not None:
            arrived(g if turned is None else turned(g))
    if hasattr(node, "register_prehook"):
        node.register_prehook(before)
    elif turned is None:  # PyTorch 1
        output.register_hook(arrived)
    else:
        node.register_hook(lambda _inputs, outputs: before(outputs))


def _nothing(*_arguments, **_more):
    """Replace a hook in a copied or pickled model, to which the preconditioner does not belong."""


def _first_tensor(values):
    for value in values:
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return value
        if isinstance(value, (list, tuple, dict)):
            found = _first_tensor(value.values() if isinstance(value, dict) else value)
            if found is not None:
                return found
    return None


def _no_hook():
    return _nothing


class _Uncopied:
    """Base class of hooks: a copied or pickled model gets `_nothing` in place of the hook."""

    __slots__ = ()

    def __deepcopy__(self, memo):
        return _nothing

    def __reduce__(self):
        return _no_hook, ()


class RootHook(_Uncopied):
    """Count the samples on the first tensor passed to the model."""

    def __init__(self, observer):
        self.observer = weakref.ref(observer)

    def __call__(self, _module, inputs, named=None):
        observer = self.observer()
        if observer is not None and observer.by_model:
            x = _first_tensor(inputs if named is None else (inputs, named))
            axis = 0 if observer.first or x is None or x.dim() < 2 else 1
            observer.seen = None if x is None else x.shape[axis]


class RootEnd(_Uncopied):
    """Clear the sample count after the model's forward: a layer called outside counts its own samples."""

    def __init__(self, observer):
        self.observer = weakref.ref(observer)

    def __call__(self, _module, _inputs, _output):
        observer = self.observer()
        if observer is not None:
            observer.seen = None


class Pass:
    """One backward pass.  The autograd engine calls the object at the end, or deletes it uncalled after a failure."""

    __slots__ = ("observer", "over")

    def __init__(self, observer):
        self.observer, self.over = weakref.ref(observer), False

    def __call__(self):
        self.over = True
        observer = self.observer()
        if observer is not None:
            observer.passing = False
            observer.mark()

    def __del__(self):
        observer = self.observer()
        if observer is not None and not self.over:
            observer.passing, observer.failed = False, True


class Hook(_Uncopied):
    """A forward hook of one layer."""

    __slots__ = ("observer", "layer", "handles", "input", "output", "size", "names", "said", "__weakref__")

    def __init__(self, observer, layer):
        self.names = [name for name in ("weight", "bias") if layer.modules[0]._parameters.get(name) is not None]
        self.said = [(m, _layers.geometry(m)) for m in layer.modules]
        self.observer, self.layer, self.size = weakref.ref(observer), layer, None
        self.input = (Tokens if layer.embedding else Described)(f"the input of {layer.name}")
        self.output = Described(f"the output gradient of {layer.name}")
        extra = {"with_kwargs": True} if _KWARGS else {}
        self.handles = [(m, m.register_forward_hook(self, **extra)) for m in layer.modules]
        for module, handle in self.handles:  # run this hook first: other hooks may change the output
            module._forward_hooks.move_to_end(handle.id, last=False)

    def lost(self):
        """Return a module whose hook was removed, or None."""
        for module, handle in self.handles:
            if handle.id not in module._forward_hooks:
                return module
        return None

    def changed(self):
        """Return the name of a changed setting of a module, or ''."""
        for module, said in self.said:
            now = _layers.geometry(module)
            if now != said:
                return next(name for name in (*said, *now) if said.get(name) != now.get(name))
        return ""

    def remove(self):
        for _, handle in self.handles:
            handle.remove()

    def __call__(self, module, inputs, *rest):
        if _KWARGS:
            named, output = rest
        else:
            named, output = {}, rest[0]
        if type(output) is tuple:  # linear layers as in Megatron return (output, bias)
            output = output[0]
        observer, layer = self.observer(), self.layer
        if observer is None or not observer.enabled:
            return
        if observer.failed and _in_backward() == -1:
            observer.forget_failed()
        if not module.training or not output.requires_grad:  # requires_grad is False under no_grad
            layer.calls_without_gradients += 1
            if module.training and not _grad_enabled():
                observer.without_gradients(self, inputs[0] if inputs else named.get("input"))
            return
        if _compiling():
            raise failure(_abi.NG_ERR_ABSENT, f"layer '{layer.name}' runs in a compiled module, where hooks may not "
                          "run: do not compile the model")
        lead = module._parameters.get(layer.lead)
        if lead is None:
            raise failure(_abi.NG_ERR_STATE, f"layer '{layer.name}': its {layer.lead} is no parameter any more: make a new "
                          "preconditioner")
        if layer.frozen_now == lead.requires_grad and not layer.frozen:  # requires_grad changed
            layer.frozen_now = not layer.frozen_now
            observer.core.call("freeze", layer.index, int(layer.frozen_now))
        if not observer.wants(observer.p, layer.index):
            layer.calls += 1
            return
        x = inputs[0] if inputs else named.get("input")
        if x is None:
            raise failure(_abi.NG_ERR_ABSENT, f"layer '{layer.name}' was called with keywords, which this PyTorch does "
                          "not show to hooks: give its input as a positional argument")
        layer.calls += 1
        observer.forward(self, module, x, output)


class Observer:
    """Begin micro-batches and pass the arrays of hooks to the library."""

    def __init__(self, precond, layers, model, early, samples, first, reduction, expand):
        self.core, self.p, library = precond, precond.p, precond.library
        self.wants = library.ng_wants
        self._begin, self._input, self._output = (library.ng_begin, library.ng_observe_input,
                                                  library.ng_observe_output_grad)
        self.batch = _abi.ng_batch()
        library.ng_batch_init(c.byref(self.batch), c.sizeof(self.batch))
        self._batch = c.byref(self.batch)
        self.batch.reduction = _abi.NG_SUM if reduction == "sum" else _abi.NG_MEAN
        # A convolution observes the T frames of a sample as T samples, not as T positions.  A is then 1/T of its value,
        # so G must be T times its value.  Uncorrected, G is T^2 times its value (mean loss) or equal (sum).  G is
        # divided by the square of the loss scale, so the loss scale is multiplied by T^frames.
        self.frames = 0.0 if not expand else -0.5 if reduction == "sum" else 0.5
        self.early, self.first, self.by_model = early, first, samples == "model"
        self.enabled = True
        self.open = None  # (samples, scale, whole, first) of the library's micro-batch
        self.given = None  # (samples, scale, whole, first) of begin() for the coming micro-batch; None: not called
        self.share = None  # (rank, number of ranks) if the ranks have equal shares of one batch
        self.seen = None  # samples of the model's input, during the model's forward
        self.owed = {}  # if early: layer index -> calls without gradients, which checkpointing may repeat
        self.runs = {}  # (layer index, input shape) -> [(samples, arguments of begin()), calls to repeat, round]
        self.passing = self.failed = False  # an observed backward pass is running; the last one failed
        self.round = 0  # counts steps and resets
        self.marked = None  # (a gradient after the last backward pass, its version)
        self.gathered = False  # the optimizer adds up the gradients of micro-batches in tensors of its own
        self.warned = False  # the warning about dropped gradients was given
        self.fixed, self.scale = None, None  # the loss scale, or a function that returns it
        self.hooks = [Hook(self, layer) for layer in layers]
        extra = {"with_kwargs": True} if _KWARGS else {}
        self.model = model
        self.root = model.register_forward_pre_hook(RootHook(self), **extra)
        self.end = model.register_forward_hook(RootEnd(self))

    def remove(self):
        for hook in self.hooks:
            hook.remove()
        self.root.remove()
        self.end.remove()

    def lost_root(self):
        """Return whether the hooks that count samples were removed."""
        return self.by_model and (self.root.id not in self.model._forward_pre_hooks
                                  or self.end.id not in self.model._forward_hooks)

    def close_batch(self):
        self.open = None
        self.given = None
        self.owed.clear()
        self.runs = {call: run for call, run in self.runs.items() if run[1] and run[2] == self.round}
        self.failed, self.marked = False, None
        self.round += 1

    def _forget(self):
        given = self.given
        self.core.call("reset_batch")
        self.close_batch()
        self.given = given  # begin() described the coming micro-batch

    def forget_failed(self):
        """Drop the observations of a failed backward pass: they cover only some layers."""
        self._forget()
        self.runs.clear()
        warnings.warn("natgrad: a backward pass failed: the observations since the last step are dropped",
                      stacklevel=4)

    def _gradients(self):
        """Yield the existing gradients of the weights of trainable layers."""
        for hook in self.hooks:
            weight = hook.layer.modules[0]._parameters.get(hook.layer.lead)
            if weight is not None and weight.requires_grad and weight.grad is not None:
                yield weight.grad

    def mark(self):
        """After a backward pass, store one gradient, to detect later whether all gradients were dropped."""
        first = next(self._gradients(), None)
        self.marked = None if first is None else (first, first._version)

    def _dropped(self):
        """Return whether the gradients of earlier passes are missing or zero.  Values are tested only if the marked
        gradient was written after mark()."""
        first = next(self._gradients(), None)
        if first is None:
            return True
        if self.marked is None or first is self.marked[0] and first._version == self.marked[1]:
            return False
        return not any(bool(g.any()) for g in self._gradients())

    def _enter(self):
        """Enter a backward pass.  If the gradients of earlier passes were dropped, drop their observations, too."""
        if self.open is not None and not self.early and not self.gathered and self._dropped():
            self._forget()
            if not self.warned:
                self.warned = True
                warnings.warn("natgrad: gradients of a backward pass were dropped without a step, or it left none: its "
                              "observations are dropped, now and in later passes", stacklevel=3)
        self.passing = True
        _queue_callback(Pass(self))

    # ---- one call of a layer

    def without_gradients(self, hook, x):
        """Store a training-mode call without gradients: activation checkpointing may repeat the call in backward."""
        index = hook.layer.index
        if self.early:
            self.owed[index] = self.owed.get(index, 0) + 1
        if x is None or _in_backward() != -1:  # nested checkpointing
            return
        said, run = (self.seen, self.given), self.runs.get((index, x.shape))
        if run is None or not run[1]:
            self.runs[index, x.shape] = [said, 1, self.round]
            return
        run[0] = said if run[0] == said else None
        run[1:] = run[1] + 1, self.round

    def _said_before(self, hook, x):
        """Return (samples, arguments of begin()) of the forward that checkpointing repeats, and '' or the reason why
        they are unknown."""
        run = self.runs.get((hook.layer.index, x.shape))
        if run is not None:
            run[1] = max(run[1] - 1, 0)
            if run[0] is not None:
                return (*run[0], "")
            return None, None, "two forwards with different numbers of samples gave it an input of this shape"
        if self.seen is not None or not self.by_model or self.given is not None:
            return self.seen, self.given, ""
        return None, None, "no forward since the last step called it"

    def forward(self, hook, module, x, output):
        used = [getattr(module, name) for name in hook.names]
        again, why = _in_backward() != -1, ""
        seen, given = self.seen, self.given  # values of this forward: begin() may be called again before backward
        if again:  # activation checkpointing
            seen, given, why = self._said_before(hook, x)
        samples = seen if given is None else given[0]
        if self.early and not hook.layer.both:  # norms and embeddings need input and output gradient at once
            x = x.detach()
            if again and not self.passing:
                self._enter()
            owed = self.owed.get(hook.layer.index, 0)
            if not again or owed:
                if again:
                    self.owed[hook.layer.index] = owed - 1
                self._check_samples(hook, why)
                self.observe(hook, x, samples, None, given)

            def arrived_early(g):
                self._check_parameters(hook, module, used)
                self._check_samples(hook, why)
                self.observe(hook, None, samples, g, given)
            _on_gradient(output, x, arrived_early)
            return
        if again and not self.passing:
            self._enter()
        version, shown = x._version, None

        def arrived(g):
            nonlocal shown
            if not self.enabled:
                return
            if not self.passing:
                self._enter()
            self._check_parameters(hook, module, used)
            self._check_samples(hook, why)
            if shown == self.round:
                raise failure(_abi.NG_ERR_STATE, f"layer '{hook.layer.name}': a second backward pass goes through the same "
                              "forward: call backward once, of the sum of the losses, or set hook_enabled = False around "
                              "a pass that is not of the loss")
            shown = self.round
            if x._version != version:
                raise failure(_abi.NG_ERR_STATE, f"layer '{hook.layer.name}': its input was changed in place between "
                              "forward and backward, so it cannot be observed")
            self.observe(hook, x, samples, g, given)

        _on_gradient(output, x, arrived)

    def _check_parameters(self, hook, module, used):
        """Check that the forward used the module's parameters (functional_call replaces them)."""
        parameters = module._parameters
        for name, one in zip(hook.names, used):
            if parameters.get(name) is not one and self.enabled:
                raise failure(_abi.NG_ERR_STATE, f"layer '{hook.layer.name}': its {name} was replaced in the forward "
                              "(functional_call): set hook_enabled = False around a forward with other parameters than "
                              "the model's")

    def _check_samples(self, hook, why):
        if why and self.enabled:
            raise failure(_abi.NG_ERR_STATE, f"layer '{hook.layer.name}': activation checkpointing repeats it, and its "
                          f"samples are not known: {why}.  Step after each backward pass, set use_reentrant=False, or "
                          "set hook_enabled = False around a forward that is not of the loss")

    def _place(self, layer, count, given):
        """Return (whole, first) of ng_batch, in samples as this layer counts them."""
        if given is not None and given[2] is not None:
            samples, _, whole, first = given
            if count % samples:
                raise failure(_abi.NG_ERR_STATE, f"layer '{layer.name}' has {count} samples of its own, not a multiple of the "
                              f"{samples} of begin(): their place among {whole} is unknown")
            return whole * (count // samples), first * (count // samples)
        if self.share is None:
            return 0, 0
        rank, ranks = self.share
        return count * ranks, count * rank

    def observe(self, hook, x, samples, g, given):
        if self.enabled:
            with self.core.lock:
                self._observe(hook, x, samples, g, given)

    def _observe(self, hook, x, samples, g, given):
        if g is not None and not self.passing:
            self._enter()
        layer = hook.layer
        if g is not None and not g.numel() or x is not None and not x.numel():  # an unused expert
            return
        if x is not None and x.is_neg():  # a lazy negation
            x = x.resolve_neg()
        if g is not None and g.is_neg():
            g = g.resolve_neg()
        if x is not None:
            x, count = layer.input(x, samples, self.first)
        if g is not None:
            g = layer.output(g, samples, self.first)
            if x is None:
                count = g.shape[0]
        given = given or self.given
        if given is None and self.fixed is not None:
            scale = self.fixed
        else:
            scale = given[1] if given is not None and given[1] is not None else self.scale()
        if layer.embedding:
            if layer.shown == 0:
                return
            scale *= layer.scale
        if layer.conv and samples and count != samples and count % samples == 0:  # count: the frames of all samples
            scale *= (count // samples) ** self.frames
        other = layer.conv and g is not None and g.shape[2:] != hook.size  # a new image size: begin a micro-batch
        whole, first = self._place(layer, count, given)
        if self.open != (count, scale, whole, first) or other:
            hook.size = g.shape[2:] if g is not None else None
            self.batch.samples, self.batch.loss_scale = count, scale
            self.batch.whole, self.batch.first = whole, first
            self.core.check(self._begin(self.p, self._batch))
            self.open = (count, scale, whole, first)
        if layer.norm:  # the library reads the input of a norm together with the output gradient
            status = self._input(self.p, layer.index, hook.input.of(x), _abi.NG_BORROW)
            x = None
            if status:
                self.core.check(status)
                return
        if g is not None:  # before the input: if a scaled loss overflowed, the input is not observed
            status = self._output(self.p, layer.index, hook.output.of(g), _abi.NG_COPY)
            if status:
                self.core.check(status)
                return
        if x is not None:
            status = self._input(self.p, layer.index, hook.input.of(x), _abi.NG_COPY)
            if status < 0:
                self.core.check(status)
