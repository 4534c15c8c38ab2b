"""What the library is shown while a model runs: of each call of a layer its input and its output gradient.

Both are shown when the output gradient arrives, so a call counts if a backward pass went through it and not
otherwise: a forward whose loss is dropped, or the second forward of activation checkpointing, leaves no trace.
Rows whose numbers depend on the order of several calls (calls = ema, last) show the input in forward, as the
published programs do.
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
    """PyTorch 1 does not say whether a backward pass runs; on the CPU it does in the thread that has called it."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code not in _BACKWARD:
        frame = frame.f_back
    return -1 if frame is None else 0


_in_backward = getattr(torch._C, "_current_graph_task_id", _called_by_backward)
_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


def _made_by_layer(output, x):
    """The tensor that the layer made, if its output is another view of that: an in-place operation on a view leaves
    the node of the view behind, and goes on at the tensor."""
    base = output._base if output._is_view() else None
    if base is None or base.grad_fn is None or base.numel() != output.numel() or base is x or base is x._base:
        return None
    return base


def _as_output(output, base):
    """What turns a gradient of base into one of output."""
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
    """Calls arrived(gradient of output) in the backward pass; by the node that made it, which is quicker, where it can."""
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
    """What a copied or pickled model has in place of a hook: the preconditioner is not of that model."""


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
    """A copied or pickled model has `_nothing` in its place."""

    __slots__ = ()

    def __deepcopy__(self, memo):
        return _nothing

    def __reduce__(self):
        return _no_hook, ()


class RootHook(_Uncopied):
    """The first tensor that the whole model is given says how many samples there are."""

    def __init__(self, observer):
        self.observer = weakref.ref(observer)

    def __call__(self, _module, inputs, named=None):
        observer = self.observer()
        if observer is not None and observer.by_model:
            x = _first_tensor(inputs if named is None else (inputs, named))
            axis = 0 if observer.first or x is None or x.dim() < 2 else 1
            observer.seen = None if x is None else x.shape[axis]


class RootEnd(_Uncopied):
    """The count of samples ends with the forward of the model: a layer that is called by itself counts its own."""

    def __init__(self, observer):
        self.observer = weakref.ref(observer)

    def __call__(self, _module, _inputs, _output):
        observer = self.observer()
        if observer is not None:
            observer.seen = None


class Pass:
    """One backward pass.  The engine calls it when the pass is over, and drops it uncalled when that has failed."""

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
        for module, handle in self.handles:  # the first: others may change the output
            module._forward_hooks.move_to_end(handle.id, last=False)

    def lost(self):
        """A module whose hook somebody has removed, or None."""
        for module, handle in self.handles:
            if handle.id not in module._forward_hooks:
                return module
        return None

    def changed(self):
        """What a module computes with that is not as it was, or ''."""
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
        if type(output) is tuple:  # linear layers of Megatron's kind give (output, bias)
            output = output[0]
        observer, layer = self.observer(), self.layer
        if observer is None or not observer.enabled:
            return
        if observer.failed and _in_backward() == -1:
            observer.forget_failed()
        if not module.training or not output.requires_grad:  # which nothing does without gradients
            layer.asleep_calls += 1
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
        if layer.asleep == lead.requires_grad and not layer.frozen:  # changed since the last step
            layer.asleep = not layer.asleep
            observer.core.call("freeze", layer.index, int(layer.asleep))
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
    """Opens micro-batches and shows what hooks bring."""

    def __init__(self, precond, layers, model, early, samples, first, reduction, expand):
        self.core, self.p, library = precond, precond.p, precond.library
        self.wants = library.ng_wants
        self._begin, self._input, self._output = (library.ng_begin, library.ng_observe_input,
                                                  library.ng_observe_output_grad)
        self.batch = _abi.ng_batch()
        library.ng_batch_init(c.byref(self.batch), c.sizeof(self.batch))
        self._batch = c.byref(self.batch)
        self.batch.reduction = _abi.NG_SUM if reduction == "sum" else _abi.NG_MEAN
        # A of T frames of a sample, each shown as a sample, is 1/T of that of T times the positions: G gets T times as much.
        self.frames = 0.0 if not expand else -0.5 if reduction == "sum" else 0.5
        self.early, self.first, self.by_model = early, first, samples == "model"
        self.enabled = True
        self.open = None  # (samples, scale, whole, first) of the micro-batch that the library is in
        self.given = None  # samples, loss scale, whole and first that the user said
        self.share = None  # (rank, ranks): each has an equal part of one batch
        self.seen = None  # samples of the model's input, while it runs
        self.owed = {}  # early: calls without gradients, which checkpointing may run again with them
        self.runs = {}  # of (layer, shape of an input): what was said of such calls, how many are not run again, the round
        self.passing = self.failed = False  # a backward pass that has shown something runs; one ended with an error
        self.round = 0  # of what was observed since the last step
        self.marked = None  # a weight's gradient when the last pass was over, and its version
        self.gathered = False  # gradients are taken away between micro-batches, and come back before the step
        self.warned = False
        self.fixed, self.scale = None, None  # the loss scale, or a function that gives it
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
        """Whether somebody has removed the hooks that count the samples."""
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
        self.given = given  # of what comes now

    def forget_failed(self):
        """A backward pass that ended with an error has shown some layers and not others."""
        self._forget()
        self.runs.clear()
        warnings.warn("natgrad: a backward pass ended with an error: what was observed since the last step is forgotten",
                      stacklevel=4)

    def _gradients(self):
        """Of the weights of layers that learn, those that are there."""
        for hook in self.hooks:
            weight = hook.layer.modules[0]._parameters.get(hook.layer.lead)
            if weight is not None and weight.requires_grad and weight.grad is not None:
                yield weight.grad

    def mark(self):
        """A pass is over: one gradient that it left tells later whether all were dropped."""
        first = next(self._gradients(), None)
        self.marked = None if first is None else (first, first._version)

    def _dropped(self):
        """Have the gradients of earlier passes gone since, or were set to zero, or never came?  Zeros are looked for
        only where somebody has written to them."""
        first = next(self._gradients(), None)
        if first is None:
            return True
        if self.marked is None or first is self.marked[0] and first._version == self.marked[1]:
            return False
        return not any(bool(g.any()) for g in self._gradients())

    def _enter(self):
        """Follows the backward pass that runs, to its end.  What earlier passes showed goes with their gradients."""
        if self.open is not None and not self.early and not self.gathered and self._dropped():
            self._forget()
            if not self.warned:
                self.warned = True
                warnings.warn("natgrad: gradients of a backward pass were dropped without a step, or it left none: what was "
                              "observed in it is forgotten, here and from now on", stacklevel=3)
        self.passing = True
        _queue_callback(Pass(self))

    # ---- one call of a layer

    def without_gradients(self, hook, x):
        """A call of a forward in training mode that activation checkpointing may run again in backward."""
        index = hook.layer.index
        if self.early:
            self.owed[index] = self.owed.get(index, 0) + 1
        if x is None or _in_backward() != -1:  # checkpointing within another one
            return
        said, run = (self.seen, self.given), self.runs.get((index, x.shape))
        if run is None or not run[1]:
            self.runs[index, x.shape] = [said, 1, self.round]
            return
        run[0] = said if run[0] == said else None
        run[1:] = run[1] + 1, self.round

    def _said_before(self, hook, x):
        """Samples and what begin() said of a call that is run again in backward, of its own forward, whatever came
        between; or why that is not known."""
        run = self.runs.get((hook.layer.index, x.shape))
        if run is not None:
            run[1] = max(run[1] - 1, 0)
            if run[0] is not None:
                return (*run[0], "")
            return None, None, "two forwards that had other samples gave it an input of this shape"
        if self.seen is not None or not self.by_model or self.given is not None:
            return self.seen, self.given, ""
        return None, None, "no forward since the last step has shown it"

    def forward(self, hook, module, x, output):
        used = [getattr(module, name) for name in hook.names]
        again, why = _in_backward() != -1, ""
        seen, given = self.seen, self.given  # of this forward, whatever is said of the next one before backward
        if again:  # activation checkpointing
            seen, given, why = self._said_before(hook, x)
        samples = seen if given is None else given[0]
        if self.early and not hook.layer.both:  # some need both at once, whatever the order of calls
            x = x.detach()
            if again and not self.passing:
                self._enter()
            owed = self.owed.get(hook.layer.index, 0)
            if not again or owed:
                if again:
                    self.owed[hook.layer.index] = owed - 1
                self._known(hook, why)
                self.show(hook, x, samples, None, given)

            def came(g):
                self._own(hook, module, used)
                self._known(hook, why)
                self.show(hook, None, samples, g, given)
            _on_gradient(output, x, came)
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
            self._own(hook, module, used)
            self._known(hook, why)
            if shown == self.round:
                raise failure(_abi.NG_ERR_STATE, f"layer '{hook.layer.name}': a second backward pass goes through the same "
                              "forward: call backward once, of the sum of the losses, or set hook_enabled = False around "
                              "a pass that is not of the loss")
            shown = self.round
            if x._version != version:
                raise failure(_abi.NG_ERR_STATE, f"layer '{hook.layer.name}': its input was changed in place between "
                              "forward and backward, so it cannot be observed")
            self.show(hook, x, samples, g, given)

        _on_gradient(output, x, arrived)

    def _own(self, hook, module, used):
        """The parameters of the forward are those of the module, which functional_call has put back."""
        parameters = module._parameters
        for name, one in zip(hook.names, used):
            if parameters.get(name) is not one and self.enabled:
                raise failure(_abi.NG_ERR_STATE, f"layer '{hook.layer.name}': its {name} was another one in the forward "
                              "(functional_call): set hook_enabled = False around a forward with parameters that are not "
                              "those of the model")

    def _known(self, hook, why):
        if why and self.enabled:
            raise failure(_abi.NG_ERR_STATE, f"layer '{hook.layer.name}': activation checkpointing runs it again, and its "
                          f"samples are not known: {why}.  Step after each backward pass, give use_reentrant=False, or "
                          "set hook_enabled = False around a forward that is not of the loss")

    def _place(self, layer, count, given):
        """Of a batch that ranks share its samples, as this layer counts them, and the place of the first of them here."""
        if given is not None and given[2] is not None:
            samples, _, whole, first = given
            if count % samples:
                raise failure(_abi.NG_ERR_STATE, f"layer '{layer.name}' has {count} samples of its own, not a multiple of the "
                              f"{samples} that begin() said: which part of {whole} they are is not known")
            return whole * (count // samples), first * (count // samples)
        if self.share is None:
            return 0, 0
        rank, ranks = self.share
        return count * ranks, count * rank

    def show(self, hook, x, samples, g, given):
        if not self.enabled:
            return
        if g is not None and not self.passing:
            self._enter()
        layer = hook.layer
        if g is not None and not g.numel() or x is not None and not x.numel():  # an expert that no token reached
            return
        if x is not None and x.is_neg():  # its memory has the other sign
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
        if layer.conv and samples and count != samples and count % samples == 0:  # frames of the samples
            scale *= (count // samples) ** self.frames
        other = layer.conv and g is not None and g.shape[2:] != hook.size  # the library holds one against the other
        whole, first = self._place(layer, count, given)
        if self.open != (count, scale, whole, first) or other:
            hook.size = g.shape[2:] if g is not None else None
            self.batch.samples, self.batch.loss_scale = count, scale
            self.batch.whole, self.batch.first = whole, first
            self.core.check(self._begin(self.p, self._batch))
            self.open = (count, scale, whole, first)
        if layer.norm:  # its input is read when its output gradient is shown
            status = self._input(self.p, layer.index, hook.input.of(x), _abi.NG_BORROW)
            x = None
            if status:
                self.core.check(status)
                return
        if g is not None:  # first: of a scaled loss that overflowed the input is not shown, either
            status = self._output(self.p, layer.index, hook.output.of(g), _abi.NG_COPY)
            if status:
                self.core.check(status)
                return
        if x is not None:
            status = self._input(self.p, layer.index, hook.input.of(x), _abi.NG_COPY)
            if status < 0:
                self.core.check(status)
