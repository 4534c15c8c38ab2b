"""Hooks that let the library observe the input and the output gradient of each call of a layer.

The library observes both arrays when backward reaches the call.  So a call without a backward pass is not observed: a
forward whose loss is not used, or the first forward of activation checkpointing.  Only methods with calls = ema or last
observe the input already in forward, as the published programs do (`early_input`).
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
    """For PyTorch 1: return 0 in a backward pass, else -1.  Backward runs in the calling thread, so search the
    stack."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code not in _BACKWARD:
        frame = frame.f_back
    return -1 if frame is None else 0


_in_backward = getattr(torch._C, "_current_graph_task_id", _called_by_backward)
_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


def _made_by_layer(output, x):
    """If the output is a view that the layer made, return its base tensor, else None (x: the input of the layer).
    After an in-place operation on a view, autograd continues at the base, so the hook must be on the base."""
    base = output._base if output._is_view() else None
    if base is None or base.grad_fn is None or base.numel() != output.numel() or base is x or base is x._base:
        return None
    return base


def _as_output(output, base):
    """Return a function that converts the gradient of `base` to the gradient of its view `output`."""
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
    """Let the backward pass call arrived(gradient of output).  A hook on the autograd node is faster than on the
    tensor."""
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
    """Take the place of a hook in a copied or pickled model, which has no preconditioner."""


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
    """Base class of hooks.  In a copied or pickled model, `_nothing` replaces the hook."""

    __slots__ = ()

    def __deepcopy__(self, memo):
        return _nothing

    def __reduce__(self):
        return _no_hook, ()


class RootHook(_Uncopied):
    """Before the model's forward, read the number of samples from the first tensor passed to the model."""

    def __init__(self, observer):
        self.observer = weakref.ref(observer)

    def __call__(self, _module, inputs, named=None):
        observer = self.observer()
        if observer is not None and observer.by_model:
            x = _first_tensor(inputs if named is None else (inputs, named))
            axis = 0 if observer.batch_first or x is None or x.dim() < 2 else 1
            observer.model_samples = None if x is None else x.shape[axis]


class RootEnd(_Uncopied):
    """After the model's forward, forget this number: a layer that is called alone counts its own samples."""

    def __init__(self, observer):
        self.observer = weakref.ref(observer)

    def __call__(self, _module, _inputs, _output):
        observer = self.observer()
        if observer is not None:
            observer.model_samples = None


class Pass:
    """A backward pass.  The autograd engine calls this object at the end; if the pass fails, it only deletes the
    object."""

    __slots__ = ("observer", "over")

    def __init__(self, observer):
        self.observer, self.over = weakref.ref(observer), False

    def __call__(self):
        self.over = True
        observer = self.observer()
        if observer is not None:
            observer.in_pass = False
            observer.mark()

    def __del__(self):
        observer = self.observer()
        if observer is not None and not self.over:
            observer.in_pass, observer.failed = False, True


class Hook(_Uncopied):
    """The forward hook of a layer."""

    __slots__ = ("observer", "layer", "handles", "input", "output", "size", "names", "settings", "__weakref__")

    def __init__(self, observer, layer):
        self.names = [name for name in ("weight", "bias") if layer.modules[0]._parameters.get(name) is not None]
        self.settings = [(m, _layers.geometry(m)) for m in layer.modules]
        self.observer, self.layer, self.size = weakref.ref(observer), layer, None
        self.input = (Tokens if layer.embedding else Described)(f"the input of {layer.name}")
        self.output = Described(f"the output gradient of {layer.name}")
        extra = {"with_kwargs": True} if _KWARGS else {}
        self.handles = [(m, m.register_forward_hook(self, **extra)) for m in layer.modules]
        for module, handle in self.handles:  # run before other hooks, which may replace the output
            module._forward_hooks.move_to_end(handle.id, last=False)

    def lost(self):
        """Return a module from which this hook was removed, or None."""
        for module, handle in self.handles:
            if handle.id not in module._forward_hooks:
                return module
        return None

    def changed(self):
        """Return the name of a setting of a module that has changed since construction, or ''."""
        for module, before in self.settings:
            now = _layers.geometry(module)
            if now != before:
                return next(name for name in (*before, *now) if before.get(name) != now.get(name))
        return ""

    def remove(self):
        for _, handle in self.handles:
            handle.remove()

    def __call__(self, module, inputs, *rest):
        if _KWARGS:
            named, output = rest
        else:
            named, output = {}, rest[0]
        if type(output) is tuple:  # linear layers of Megatron return (output, bias)
            output = output[0]
        observer, layer = self.observer(), self.layer
        if observer is None or not observer.enabled:
            return
        if observer.failed and _in_backward() == -1:
            observer.forget_failed()
        if not module.training or not output.requires_grad:  # eval mode, or no_grad
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
        if layer.frozen_now == lead.requires_grad and not layer.frozen:  # the user changed requires_grad
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
    """Begins micro-batches of the library, and passes the arrays of hooks to it."""

    def __init__(self, precond, layers, model, early_input, samples, first, reduction, expand):
        self.core, self.p, library = precond, precond.p, precond.library
        self.wants = library.ng_wants
        self._begin, self._input, self._output = (library.ng_begin, library.ng_observe_input,
                                                  library.ng_observe_output_grad)
        self.batch = _abi.ng_batch()
        library.ng_batch_init(c.byref(self.batch), c.sizeof(self.batch))
        self._batch = c.byref(self.batch)
        self.batch.reduction = _abi.NG_SUM if reduction == "sum" else _abi.NG_MEAN
        # A convolution observes the T frames of a sample as T samples instead of T positions.  Then A is 1/T of the right
        # value, so G should be T times the right value; it is T^2 times (mean loss) or once (summed loss) the right value.
        # G has the factor 1 / (loss scale)^2, so T^frame_exponent times the loss scale corrects G.
        self.frame_exponent = 0.0 if not expand else -0.5 if reduction == "sum" else 0.5
        self.early_input, self.batch_first, self.by_model = early_input, first, samples == "model"
        self.enabled = True
        self.open = None  # (samples, scale, whole, first) of the micro-batch that the library has begun
        self.given = None  # arguments of begin() for the next micro-batch: (samples, scale, whole, first); or None
        self.equal_shares = None  # (rank, number of ranks) if the ranks share one batch in equal parts
        self.model_samples = None  # number of samples of the model's input; None outside the model's forward
        self.repeatable = {}  # for early_input: layer index -> calls without gradients that checkpointing may repeat
        self.first_forwards = {}  # first forwards of checkpointing: (layer index, input shape) ->
        #   [(samples, arguments of begin()), number of calls to repeat, round]
        self.in_pass = self.failed = False  # in_pass: an observed backward pass is running; failed: the last one raised
        self.round = 0  # number of steps and resets so far
        self.marked_gradient = None  # (a gradient, its version) at the end of the last backward pass
        self.summed_outside = False  # the optimizer sums gradients of micro-batches in its own tensors
        self.warned = False  # True after the warning about dropped gradients
        self.fixed_scale, self.scale = None, None  # a constant loss scale, else a function that returns it
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
        """Return True if a hook that counts samples was removed."""
        return self.by_model and (self.root.id not in self.model._forward_pre_hooks
                                  or self.end.id not in self.model._forward_hooks)

    def close_batch(self):
        self.open = None
        self.given = None
        self.repeatable.clear()
        self.first_forwards = {call: run for call, run in self.first_forwards.items()
                               if run[1] and run[2] == self.round}
        self.failed, self.marked_gradient = False, None
        self.round += 1

    def _drop_observations(self):
        given = self.given
        self.core.call("reset_batch")
        self.close_batch()
        self.given = given  # arguments of begin() remain, as they describe the next micro-batch

    def forget_failed(self):
        """Discard the observations of a failed backward pass, which has reached only some layers."""
        self._drop_observations()
        self.first_forwards.clear()
        warnings.warn("natgrad: a backward pass failed: the observations since the last step are dropped",
                      stacklevel=4)

    def _gradients(self):
        """Yield the gradients of the weights of all trainable layers, where they exist."""
        for hook in self.hooks:
            weight = hook.layer.modules[0]._parameters.get(hook.layer.lead)
            if weight is not None and weight.requires_grad and weight.grad is not None:
                yield weight.grad

    def mark(self):
        """At the end of a backward pass, remember one gradient, to detect later that the caller dropped the
        gradients."""
        first = next(self._gradients(), None)
        self.marked_gradient = None if first is None else (first, first._version)

    def _dropped(self):
        """Return True if the gradients of earlier passes are missing or zero.  If the remembered gradient was not
        written since mark(), they are not, and the values need no test."""
        first = next(self._gradients(), None)
        if first is None:
            return True
        marked, version = self.marked_gradient or (first, first._version)
        if first is marked and first._version == version:
            return False
        return not any(bool(g.any()) for g in self._gradients())

    def _enter_backward(self):
        """Begin a backward pass.  If the caller dropped the gradients of earlier passes, discard their observations."""
        if self.open is not None and not self.early_input and not self.summed_outside and self._dropped():
            self._drop_observations()
            if not self.warned:
                self.warned = True
                warnings.warn("natgrad: gradients of a backward pass were dropped without a step, or it left none: its "
                              "observations are dropped, now and in later passes", stacklevel=3)
        self.in_pass = True
        _queue_callback(Pass(self))

    # ---- one call of a layer

    def without_gradients(self, hook, x):
        """Remember a call in training mode without gradients: activation checkpointing may repeat it in backward."""
        index = hook.layer.index
        if self.early_input:
            self.repeatable[index] = self.repeatable.get(index, 0) + 1
        if x is None or _in_backward() != -1:  # nested checkpointing
            return
        context, run = (self.model_samples, self.given), self.first_forwards.get((index, x.shape))
        if run is None or not run[1]:
            self.first_forwards[index, x.shape] = [context, 1, self.round]
            return
        run[0] = context if run[0] == context else None
        run[1:] = run[1] + 1, self.round

    def _first_forward(self, hook, x):
        """Return samples and arguments of begin() at the first forward, which checkpointing repeats; then '', or the
        reason why they are unknown."""
        run = self.first_forwards.get((hook.layer.index, x.shape))
        if run is not None:
            run[1] = max(run[1] - 1, 0)
            if run[0] is not None:
                return (*run[0], "")
            return None, None, "two forwards with different numbers of samples gave it an input of this shape"
        if self.model_samples is not None or not self.by_model or self.given is not None:
            return self.model_samples, self.given, ""
        return None, None, "no forward since the last step called it"

    def forward(self, hook, module, x, output):
        used = [getattr(module, name) for name in hook.names]
        again, why = _in_backward() != -1, ""
        seen, given = self.model_samples, self.given  # values of this forward: a later begin() changes them
        if again:  # activation checkpointing
            seen, given, why = self._first_forward(hook, x)
        samples = seen if given is None else given[0]
        if self.early_input and not hook.layer.needs_both:  # else backward observes input and output gradient
            x = x.detach()
            if again and not self.in_pass:
                self._enter_backward()
            repeats = self.repeatable.get(hook.layer.index, 0)
            if not again or repeats:
                if again:
                    self.repeatable[hook.layer.index] = repeats - 1
                self._check_samples(hook, why)
                self.observe(hook, x, samples, None, given)

            def arrived_early(g):
                self._check_parameters(hook, module, used)
                self._check_samples(hook, why)
                self.observe(hook, None, samples, g, given)
            _on_gradient(output, x, arrived_early)
            return
        if again and not self.in_pass:
            self._enter_backward()
        version, shown = x._version, None

        def arrived(g):
            nonlocal shown
            if not self.enabled:
                return
            if not self.in_pass:
                self._enter_backward()
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
        """Check that the forward used the module's own parameters, not parameters passed by functional_call."""
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
        """Return the members `whole` and `first` of ng_batch, counted in samples of this layer."""
        if given is not None and given[2] is not None:
            samples, _, whole, first = given
            if count % samples:
                raise failure(_abi.NG_ERR_STATE, f"layer '{layer.name}' has {count} samples of its own, not a multiple of the "
                              f"{samples} of begin(): their place among {whole} is unknown")
            return whole * (count // samples), first * (count // samples)
        if self.equal_shares is None:
            return 0, 0
        rank, ranks = self.equal_shares
        return count * ranks, count * rank

    def observe(self, hook, x, samples, g, given):
        if self.enabled:
            with self.core.lock:
                self._observe(hook, x, samples, g, given)

    def _observe(self, hook, x, samples, g, given):
        if g is not None and not self.in_pass:
            self._enter_backward()
        layer = hook.layer
        if g is not None and not g.numel() or x is not None and not x.numel():  # an empty call, as of an unused expert
            return
        if x is not None and x.is_neg():  # PyTorch has not negated the values yet
            x = x.resolve_neg()
        if g is not None and g.is_neg():
            g = g.resolve_neg()
        if x is not None:
            x, count = layer.input(x, samples, self.batch_first)
        if g is not None:
            g = layer.output(g, samples, self.batch_first)
            if x is None:
                count = g.shape[0]
        given = given or self.given
        if given is None and self.fixed_scale is not None:
            scale = self.fixed_scale
        else:
            scale = given[1] if given is not None and given[1] is not None else self.scale()
        if layer.embedding:
            if layer.counted == 0:
                return
            scale *= layer.scale
        # count includes the frames of each sample
        if layer.conv and samples and count != samples and count % samples == 0:
            scale *= (count // samples) ** self.frame_exponent
        other = layer.conv and g is not None and g.shape[2:] != hook.size  # a new image size: begin a micro-batch
        whole, first = self._place(layer, count, given)
        if self.open != (count, scale, whole, first) or other:
            hook.size = g.shape[2:] if g is not None else None
            self.batch.samples, self.batch.loss_scale = count, scale
            self.batch.whole, self.batch.first = whole, first
            self.core.check(self._begin(self.p, self._batch))
            self.open = (count, scale, whole, first)
        if layer.norm:  # borrowed until the output gradient of the norm is observed
            status = self._input(self.p, layer.index, hook.input.of(x), _abi.NG_BORROW)
            x = None
            if status:
                self.core.check(status)
                return
        if g is not None:  # before the input: if a scaled loss overflowed, the library then ignores the input
            status = self._output(self.p, layer.index, hook.output.of(g), _abi.NG_COPY)
            if status:
                self.core.check(status)
                return
        if x is not None:
            status = self._input(self.p, layer.index, hook.input.of(x), _abi.NG_COPY)
            if status < 0:
                self.core.check(status)
