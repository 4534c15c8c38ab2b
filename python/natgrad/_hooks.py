"""Hooks that let the library observe the input and the output gradient of each call of a layer.

The library observes both arrays when backward reaches the call.  So a call without a backward pass is not observed: a
forward whose loss is not used, or the first forward of activation checkpointing.  Only methods with calls = ema or last
observe the input already in forward, as the published programs do (`early_input`).
"""
import ctypes as c
import functools
import inspect
import math
import weakref

import torch

from . import _abi, _layers, _loss
from ._core import make_error, warn_caller
from ._gradients import hook_output_gradient
from ._tensors import TensorDescriptor, TokenDescriptor, gather

HOOKS_GET_KEYWORDS = "with_kwargs" in inspect.signature(torch.nn.Module.register_forward_hook).parameters
_grad_enabled = torch.is_grad_enabled
_queue_callback = torch.autograd.Variable._execution_engine.queue_callback
_backward_task = getattr(torch._C, "_current_graph_task_id", lambda: -1 if _loss.find_backward_frame() is None else 0)
_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


# Pickled models refer to `_nothing` and `_no_hook` by name.
def _nothing(*_arguments, **_more):
    """Take the place of a hook in a copied or pickled model, which has no preconditioner."""


@functools.lru_cache(maxsize=None)
def for_compiled(kind):
    """Return a subclass of a class of hooks whose calls break the graph of torch.compile, so that they run in Python."""
    return type(kind.__name__, (kind,), {"__slots__": (), "__call__": torch.compiler.disable(kind.__call__)})


def _find_first_tensor(values):
    for value in values:
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return value
        if isinstance(value, (list, tuple, dict)):
            found = _find_first_tensor(value.values() if isinstance(value, dict) else value)
            if found is not None:
                return found
    return None


# Unpickling a hook calls this function.
def _no_hook():
    return _nothing


class HookOfOneModel:
    """Base class of hooks.  In a copied or pickled model, `_nothing` replaces the hook."""

    __slots__ = ()

    def __deepcopy__(self, memo):
        return _nothing

    def __reduce__(self):
        return _no_hook, ()


class CountSamplesHook(HookOfOneModel):
    """Before the model's forward, read the number of samples from the first tensor passed to the model."""

    def __init__(self, observer):
        self.observer = weakref.ref(observer)

    def __call__(self, _module, inputs, named=None):
        observer = self.observer()
        if observer is not None and observer.counts_on_model:
            x = _find_first_tensor(inputs if named is None else (inputs, named))
            axis = 0 if observer.batch_first or x is None or x.dim() < 2 else 1
            observer.model_samples = None if x is None else x.shape[axis]


class ForgetSamplesHook(HookOfOneModel):
    """After the model's forward, forget the number of samples: a layer that is called alone counts its own samples."""

    def __init__(self, observer):
        self.observer = weakref.ref(observer)

    def __call__(self, _module, _inputs, _output):
        observer = self.observer()
        if observer is not None:
            observer.model_samples = None


class BackwardEndCallback:
    """The autograd engine calls this object at the end of a backward pass.  If the pass fails, the engine only deletes
    the object."""

    __slots__ = ("observer", "has_ended")

    def __init__(self, observer):
        self.observer, self.has_ended = weakref.ref(observer), False

    def __call__(self):
        self.has_ended = True
        observer = self.observer()
        if observer is not None:
            observer.is_in_backward = False
            observer.remember_gradient()

    def __del__(self):
        observer = self.observer()
        if observer is not None and not self.has_ended:
            observer.is_in_backward, observer.has_failed = False, True


class LayerHook(HookOfOneModel):
    """The forward hook of a layer."""

    __slots__ = ("observer", "layer", "handles", "input", "output", "size", "names", "settings", "__weakref__")

    def __init__(self, observer, layer):
        self.names = [name for name in layer.parameter_names if layer.modules[0]._parameters.get(name) is not None]
        self.settings = [(m, _layers.module_settings(m)) for m in layer.modules]
        self.observer, self.layer, self.size = weakref.ref(observer), layer, None
        self.input = (TokenDescriptor if layer.embedding else TensorDescriptor)(f"the input of {layer.name}")
        self.output = TensorDescriptor(f"the output gradient of {layer.name}")
        extra = {"with_kwargs": True} if HOOKS_GET_KEYWORDS else {}
        self.handles = [(m, m.register_forward_hook(self, **extra)) for m in layer.modules if layer.is_called]
        for module, handle in self.handles:  # run before other hooks, which may replace the output
            module._forward_hooks.move_to_end(handle.id, last=False)

    def find_removed(self):
        """Return a module from which this hook was removed, or None."""
        for module, handle in self.handles:
            if handle.id not in handle.hooks_dict_ref():
                return module
        return None

    def changed_setting(self):
        """Return the name of a setting of a module that has changed since construction, or ''."""
        for module, before in self.settings:
            now = _layers.module_settings(module)
            if now != before:
                return next(name for name in (*before, *now) if before.get(name) != now.get(name))
        return ""

    def remove(self):
        for _, handle in self.handles:
            handle.remove()

    def __call__(self, module, inputs, *rest):
        if HOOKS_GET_KEYWORDS:
            named, output = rest
        else:
            named, output = {}, rest[0]
        if type(output) is tuple:  # linear layers of Megatron return (output, bias)
            output = output[0]
        self.observe_call(module, inputs[0] if inputs else named.get("input"), output)

    def observe_call(self, module, x, output, to_rows=None):
        """Observe a call of the layer with the input x.  to_rows converts the gradient of `output` to the layer's."""
        observer, layer = self.observer(), self.layer
        if observer is None or not observer.is_enabled:
            return
        if observer.has_failed and _backward_task() == -1:
            observer.drop_failed_pass()
        if not (module.training or observer.observes_eval) or not output.requires_grad:  # eval mode, or no_grad
            layer.calls_without_gradients += 1
            if module.training and not _grad_enabled():
                observer.remember_repeatable_call(self, x)
            return
        if _is_compiling():
            raise make_error(_abi.NG_ERR_ABSENT, f"layer '{layer.name}' runs in a compiled module, where hooks may not "
                             "run: compile the model before the preconditioner is made, and pass the compiled model")
        lead = module._parameters.get(layer.lead_parameter)
        if lead is None:
            raise make_error(_abi.NG_ERR_STATE, f"layer '{layer.name}': its {layer.lead_parameter} is no parameter any more: "
                             "make a new preconditioner")
        if layer.frozen_now == lead.requires_grad and not layer.frozen:  # the user changed requires_grad
            layer.frozen_now = not layer.frozen_now
            observer.core.call("freeze", layer.index, int(layer.frozen_now))
        if not observer.wants(observer.p, layer.index):
            layer.calls += 1
            return
        if x is None:
            raise make_error(_abi.NG_ERR_ABSENT, f"layer '{layer.name}' was called with keywords, which this PyTorch does "
                             "not show to hooks: give its input as a positional argument")
        layer.calls += 1
        observer.observe_call(self, module, x, output, to_rows)


class Observer:
    """Begins micro-batches of the library, and passes the arrays of hooks to the library."""

    def __init__(self, precond, layers, model, early_input, samples, first, reduction, expand, compiled):
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
        self.early_input, self.batch_first, self.counts_on_model = early_input, first, samples == "model"
        self.is_enabled = True
        self.observes_eval = False  # observe calls of modules in eval mode, too
        self.open_batch = None  # (samples, scale, whole, first) of the micro-batch that the library has begun
        self.given_batch = None  # arguments of begin() for the next micro-batch: (samples, scale, whole, first); or None
        self.rank_of_equal_parts = None  # (rank, number of ranks) if the ranks share one batch in equal parts
        self.model_samples = None  # number of samples of the model's input; None outside the model's forward
        self.repeatable = {}  # for early_input: layer index -> calls without gradients that checkpointing may repeat
        self.first_forwards = {}  # first forwards of checkpointing: (layer index, input shape) ->
        #   [(samples, arguments of begin()), number of calls to repeat, round of the last one]
        self.is_in_backward = False  # an observed backward pass is running
        self.has_failed = False  # the last backward pass raised an exception
        self.round = 0  # number of steps and resets so far
        self.marked_gradient = None  # (a gradient, its version) at the end of the last backward pass
        self.sums_outside = False  # the optimizer sums gradients of micro-batches in its own tensors
        self.has_warned = False  # True after the warning about dropped gradients
        self.passes = 0  # observed backward passes since the last step
        self.loss = None  # ('sum' or 'mean', number of values) of the loss of the first pass; (None, 0): not known
        self.fixed_scale, self.scale = None, None  # a constant loss scale, else a function that returns it
        self.hook_class = lambda kind: kind
        if compiled:
            self.hook_class = for_compiled
            torch.compiler.reset()  # code that was compiled before has no hooks
        self.hooks = [self.hook_class(LayerHook)(self, layer) for layer in layers]
        # a linear layer whose output gradients are summed, to compare with the gradient of its bias; None after the first step
        self.compared = next((h for h in self.hooks if h.layer.bias and h.layer.is_called
                              and not (h.layer.conv or h.layer.norm)), None)
        self.bias_gradient = 0.0  # the sum of the output gradients of this layer since the last step
        extra = {"with_kwargs": True} if HOOKS_GET_KEYWORDS else {}
        self.model = model
        self.count_handle = model.register_forward_pre_hook(self.hook_class(CountSamplesHook)(self), **extra)
        self.forget_handle = model.register_forward_hook(self.hook_class(ForgetSamplesHook)(self))

    def remove(self):
        for hook in self.hooks:
            hook.remove()
        self.count_handle.remove()
        self.forget_handle.remove()

    def has_lost_sample_hooks(self):
        """Return True if a hook that counts samples was removed."""
        return self.counts_on_model and (self.count_handle.id not in self.model._forward_pre_hooks
                                         or self.forget_handle.id not in self.model._forward_hooks)

    def start_next_batch(self):
        self.open_batch = None
        self.given_batch = None
        self.repeatable.clear()
        self.first_forwards = {call: run for call, run in self.first_forwards.items()
                               if run[1] and run[2] == self.round}
        self.has_failed, self.marked_gradient = False, None
        self.passes, self.bias_gradient = 0, 0.0
        self.round += 1

    def _drop_observations(self):
        given = self.given_batch
        self.core.call("reset_batch")
        self.start_next_batch()
        self.given_batch = given  # arguments of begin() remain, as they describe the next micro-batch

    def drop_failed_pass(self):
        """Discard the observations of a failed backward pass, which has reached only some layers."""
        self._drop_observations()
        self.first_forwards.clear()
        warn_caller("a backward pass failed: the observations since the last step are dropped")

    def _layer_gradients(self):
        """Yield the gradients of the weights of all trainable layers, where they exist."""
        for hook in self.hooks:
            weight = hook.layer.modules[0]._parameters.get(hook.layer.lead_parameter)
            if weight is not None and weight.requires_grad and weight.grad is not None:
                yield weight.grad

    def remember_gradient(self):
        """At the end of a backward pass, remember one gradient, to detect later that the caller dropped the
        gradients."""
        first = next(self._layer_gradients(), None)
        self.marked_gradient = None if first is None else (first, first._version)

    def _gradients_were_dropped(self):
        """Return True if the gradients of earlier passes are missing or zero.  If the remembered gradient was not
        written since remember_gradient(), they are not, and the values need no test."""
        first = next(self._layer_gradients(), None)
        if first is None:
            return True
        marked, version = self.marked_gradient or (first, first._version)
        if first is marked and first._version == version:
            return False
        return not any(bool(g.any()) for g in self._layer_gradients())

    def _begin_backward(self):
        """Begin a backward pass.  If the caller dropped the gradients of earlier passes, discard their observations."""
        if self.open_batch is not None and not self.early_input and not self.sums_outside and self._gradients_were_dropped():
            self._drop_observations()
            if not self.has_warned:
                self.has_warned = True
                warn_caller("gradients of a backward pass were dropped without a step, or it left none: its observations "
                            "are dropped, now and in later passes")
        self.is_in_backward = True
        self.passes += 1
        if self.loss is None:
            self.loss = (None, 0) if self.given_batch is not None else _loss.find_reduction(self.fixed_scale is None)
        _queue_callback(BackwardEndCallback(self))

    def read_gradient_ratio(self):
        """Return the gradient of a bias divided by the sum of the output gradients of its layer, once; else None.  The ratio
        is 1 / (loss scale) after GradScaler.unscale_(), and 1 before."""
        bias = None if self.compared is None else self.compared.layer.modules[0].bias
        if bias is None or bias.grad is None or not isinstance(self.bias_gradient, torch.Tensor):
            return None
        ratio = float(bias.grad.double().dot(self.bias_gradient) / self.bias_gradient.square().sum())
        if not math.isfinite(ratio):
            return None
        self.compared = None
        return ratio

    # ---- one call of a layer

    def remember_repeatable_call(self, hook, x):
        """Remember a call in training mode without gradients: activation checkpointing may repeat it in backward."""
        index = hook.layer.index
        if self.early_input:
            self.repeatable[index] = self.repeatable.get(index, 0) + 1
        if x is None or _backward_task() != -1:  # nested checkpointing
            return
        context, run = (self.model_samples, self.given_batch), self.first_forwards.get((index, x.shape))
        if run is None or not run[1]:
            self.first_forwards[index, x.shape] = [context, 1, self.round]
            return
        run[0] = context if run[0] == context else None
        run[1:] = run[1] + 1, self.round

    def _recorded_first_forward(self, hook, x):
        """Return samples and arguments of begin() at the first forward, which checkpointing repeats; then '', or the
        reason why they are unknown."""
        run = self.first_forwards.get((hook.layer.index, x.shape))
        if run is not None:
            run[1] = max(run[1] - 1, 0)
            if run[0] is not None:
                return (*run[0], "")
            return None, None, "two forwards with different numbers of samples gave it an input of this shape"
        if self.model_samples is not None or not self.counts_on_model or self.given_batch is not None:
            return self.model_samples, self.given_batch, ""
        return None, None, "no forward since the last step called it"

    def observe_call(self, hook, module, x, output, to_rows):
        used = [getattr(module, name) for name in hook.names]
        again, why = _backward_task() != -1, ""
        seen, given = self.model_samples, self.given_batch  # values of this forward: a later begin() changes them
        if again:  # activation checkpointing
            seen, given, why = self._recorded_first_forward(hook, x)
        samples = seen if given is None else given[0]
        if self.early_input and not hook.layer.needs_input_and_gradient:  # else backward observes input and output gradient
            x = x.detach()
            if again and not self.is_in_backward:
                self._begin_backward()
            repeats = self.repeatable.get(hook.layer.index, 0)
            if not again or repeats:
                if again:
                    self.repeatable[hook.layer.index] = repeats - 1
                self._check_samples_known(hook, why)
                self.observe(hook, x, samples, None, given)

            def observe_gradient(g):
                self._check_own_parameters(hook, module, used)
                self._check_samples_known(hook, why)
                self.observe(hook, None, samples, g, given)
            hook_output_gradient(output, x, self, observe_gradient, to_rows)
            return
        if again and not self.is_in_backward:
            self._begin_backward()
        version, observed_round = x._version, None

        def observe_call_once(g):
            nonlocal observed_round
            if not self.is_enabled:
                return
            if not self.is_in_backward:
                self._begin_backward()
            self._check_own_parameters(hook, module, used)
            self._check_samples_known(hook, why)
            if observed_round == self.round:
                raise make_error(_abi.NG_ERR_STATE, f"layer '{hook.layer.name}': a second backward pass goes through the same "
                                 "forward: call backward once, of the sum of the losses, or set hook_enabled = False around "
                                 "a pass that is not of the loss")
            observed_round = self.round
            if x._version != version:
                raise make_error(_abi.NG_ERR_STATE, f"layer '{hook.layer.name}': its input was changed in place between "
                                 "forward and backward, so it cannot be observed")
            self.observe(hook, x, samples, g, given)

        hook_output_gradient(output, x, self, observe_call_once, to_rows)

    def _check_own_parameters(self, hook, module, used):
        """Check that the forward used the module's own parameters, not parameters passed by functional_call."""
        parameters = module._parameters
        for name, one in zip(hook.names, used):
            if parameters.get(name) is not one and self.is_enabled:
                raise make_error(_abi.NG_ERR_STATE, f"layer '{hook.layer.name}': its {name} was replaced in the forward "
                                 "(functional_call): set hook_enabled = False around a forward with other parameters than "
                                 "the model's")

    def _check_samples_known(self, hook, why):
        if why and self.is_enabled:
            raise make_error(_abi.NG_ERR_STATE, f"layer '{hook.layer.name}': activation checkpointing repeats it, and its "
                             f"samples are not known: {why}.  Step after each backward pass, set use_reentrant=False, or "
                             "set hook_enabled = False around a forward that is not of the loss")

    def _batch_position(self, layer, count, given):
        """Return the members `whole` and `first` of ng_batch, counted in samples of this layer."""
        if given is not None and given[2] is not None:
            samples, _, whole, first = given
            if count % samples:
                raise make_error(_abi.NG_ERR_STATE, f"layer '{layer.name}' has {count} samples of its own, not a multiple of the "
                                 f"{samples} of begin(): their place among {whole} is unknown")
            return whole * (count // samples), first * (count // samples)
        if self.rank_of_equal_parts is None:
            return 0, 0
        rank, ranks = self.rank_of_equal_parts
        return count * ranks, count * rank

    def observe(self, hook, x, samples, g, given):
        if self.is_enabled:
            with self.core.lock:
                self._observe_locked(hook, x, samples, g, given)

    def _observe_locked(self, hook, x, samples, g, given):
        if g is not None and not self.is_in_backward:
            self._begin_backward()
        layer = hook.layer
        x = None if x is None else gather(x)
        if g is not None and not g.numel() or x is not None and not x.numel():  # an empty call, as of an unused expert
            return
        if x is not None and x.is_neg():  # PyTorch has not negated the values yet
            x = x.resolve_neg()
        if g is not None and g.is_neg():
            g = g.resolve_neg()
        if g is not None and hook is self.compared:
            self.bias_gradient = self.bias_gradient + g.detach().double().flatten(0, -2).sum(0)
        if x is not None:
            x, count = layer.convert_input(x, samples, self.batch_first)
        if g is not None:
            g = layer.convert_output_gradient(g, samples, self.batch_first)
            if x is None:
                count = g.shape[0]
        given = given or self.given_batch
        if given is None and self.fixed_scale is not None:
            scale = self.fixed_scale
        else:
            scale = given[1] if given is not None and given[1] is not None else self.scale()
        if layer.embedding:
            if layer.counted == 0:
                return
            scale *= layer.scale
        if layer.conv:
            samples = 1 if count == layer.frames else samples or count // layer.frames
        # count includes the frames of each sample
        if layer.conv and count != samples and count % samples == 0:
            scale *= (count // samples) ** self.frame_exponent
        other = layer.conv and g is not None and g.shape[2:] != hook.size  # a new image size: begin a micro-batch
        whole, first = self._batch_position(layer, count, given)
        if self.open_batch != (count, scale, whole, first) or other:
            hook.size = g.shape[2:] if g is not None else None
            self.batch.samples, self.batch.loss_scale = count, scale
            self.batch.whole, self.batch.first = whole, first
            self.core.raise_on_error(self._begin(self.p, self._batch))
            self.open_batch = (count, scale, whole, first)
        if layer.lends_input and x is not None:  # borrowed until the output gradient is observed
            lent, x = x, None
            status = self._input(self.p, layer.index, hook.input.describe(lent), _abi.NG_BORROW)
            if status:
                self.core.raise_on_error(status)
                return
        if g is not None:  # before the input: if a scaled loss overflowed, the library then ignores the input
            status = self._output(self.p, layer.index, hook.output.describe(g), _abi.NG_COPY)
            if status:
                self.core.raise_on_error(status)
                return
        if x is not None:
            status = self._input(self.p, layer.index, hook.input.describe(x), _abi.NG_COPY)
            if status < 0:
                self.core.raise_on_error(status)
