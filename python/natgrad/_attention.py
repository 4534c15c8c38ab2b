"""Layers of nn.MultiheadAttention: the projections of query, key and value, and the output projection.

MultiheadAttention calls no module for these layers, but F.multi_head_attention_forward.  A hook passes the query, key and value
as a subclass of Tensor.  PyTorch then passes the call of that function to the subclass, which runs a copy of the function.
In the copy, the name `linear` is a function that also lets the library observe its input and its output gradient.
"""
import types

import torch
from torch import nn
import torch.nn.functional as F

from . import _abi
from ._core import make_error
from ._hooks import HOOKS_GET_KEYWORDS, HookOfOneModel
from ._layers import Layer

_NAMES = ("q_proj", "k_proj", "v_proj")


class _AttentionLayer(Layer):
    def as_rows(self, x, samples, first):
        return super().as_rows(x, samples, True)  # the hook transposes to [samples, positions, features]


class OutputProjection(_AttentionLayer):
    """The output projection."""


class Projection(_AttentionLayer):
    """The projection of query, key or value: E rows of the packed weight [3 E, E], or a weight of its own."""

    is_called = False

    def __init__(self, name, module, which, bias):
        super().__init__(name, module, bias)
        self.lead_parameter = _weight_names(module)[which]
        self.parameter_names = (self.lead_parameter, "in_proj_bias")
        self.rows = slice(which * module.embed_dim, (which + 1) * module.embed_dim)
        self.is_packed = self.lead_parameter == "in_proj_weight"

    def _linear_shape(self, weight):
        return self.rows.stop - self.rows.start, weight.shape[1]

    def view_of(self, which):
        return None if which == _abi.NG_WEIGHT and not self.is_packed else lambda p: p[self.rows]

    def count_matrix_elements(self):
        return super().count_matrix_elements() // (3 if self.is_packed else 1)


def _weight_names(module):
    return ("in_proj_weight",) * 3 if module._qkv_same_embed_dim else tuple(f"{name}_weight" for name in _NAMES)


def is_observable(module):
    """Return True for a MultiheadAttention with the forward of PyTorch."""
    return (isinstance(module, nn.MultiheadAttention) and "forward" not in module.__dict__
            and type(module).forward is nn.MultiheadAttention.forward)


def find_problem(module, users):
    """Return '' if the projections of query, key and value can be layers, else the reason."""
    if not is_observable(module):
        return "it has a custom forward: its computation is not known"
    weights = [module._parameters.get(name) for name in _weight_names(module)]
    if any(weight is None for weight in weights):
        return "its weight is computed (weight_norm, a parametrization)"
    for parameter in (*weights, module.in_proj_bias):
        for _, full in users[id(parameter)][1:] if parameter is not None else ():
            return f"tied to '{full}'"
    if len({weight.requires_grad for weight in weights}) > 1:
        return "some of its weights are frozen"
    if module.in_proj_bias is not None and module.in_proj_bias.requires_grad and not weights[0].requires_grad:
        return "its weight is frozen, its bias is not"
    return ""


def make_layers(name, module, users):
    """Return the layers of query, key and value."""
    layers = []
    for which, (short, weight) in enumerate(zip(_NAMES, _weight_names(module))):
        bias = module.in_proj_bias
        has_bias = bias is not None and bias.requires_grad == module._parameters[weight].requires_grad
        layer = Projection(f"{name}.{short}" if name else short, module, which, has_bias)
        for param, attribute in ((_abi.NG_WEIGHT, weight), (_abi.NG_BIAS, "in_proj_bias"))[:1 + has_bias]:
            layer.places.append((param, module, attribute, users[id(module._parameters[attribute])][0][1]))
        layers.append(layer)
    return layers


def add_hooks(observer):
    """Let the LayerHooks of attention observe the calls of their layers."""
    hooks_by_module = {}
    for hook in observer.hooks:
        if isinstance(hook.layer, _AttentionLayer):
            hooks_by_module.setdefault(id(hook.layer.modules[0]), []).append(hook)
    for module in observer.model.modules() if hooks_by_module else ():
        if not isinstance(module, nn.MultiheadAttention):
            continue
        hooks = hooks_by_module.get(id(module), []) + hooks_by_module.get(id(module.out_proj), [])
        if hooks:
            handle = module.register_forward_pre_hook(AttentionHook(hooks), **({"with_kwargs": True} if HOOKS_GET_KEYWORDS else {}))
            for hook in hooks:
                hook.handles.append((module, handle))


def _copy_function(function, **names):
    """Return a copy of a function in which global names have other values."""
    copy = types.FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__, function.__defaults__,
                              function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


class _ObservedTensor(torch.Tensor):
    """A query, key or value.  `hook` of a subclass is the AttentionHook of the module."""

    hook = None

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        if function is F.multi_head_attention_forward:
            return cls.hook.run(args, kwargs or {})
        return super().__torch_function__(function, kinds, args, kwargs or {})


class AttentionHook(HookOfOneModel):
    """The hook before the forward of a MultiheadAttention.  `hooks` are the LayerHooks of its layers."""

    def __init__(self, hooks):
        self.hooks, self.samples = hooks, 1
        self.kind = type("ObservedTensor", (_ObservedTensor,), {"hook": self})
        inner = {name: _copy_function(getattr(F, name), linear=self.observe_linear)
                 for name in ("_in_projection", "_in_projection_packed")}
        self.forward = _copy_function(F.multi_head_attention_forward, linear=self.observe_linear,
                                      has_torch_function=lambda _tensors: False, **inner)

    def __call__(self, module, inputs, named=None):
        observer = self.hooks[0].observer()
        if observer is None or not observer.is_enabled:
            return None
        if not (module.training or observer.observes_eval):
            for hook in self.hooks:
                hook.layer.calls_without_gradients += 1
            return None
        tensors = dict(zip(("query", "key", "value"), inputs), **{name: x for name, x in (named or {}).items()
                                                                   if name in ("query", "key", "value")})
        if len(tensors) < 3:
            raise make_error(_abi.NG_ERR_ABSENT, f"layer '{self.hooks[0].layer.name}' was called with keywords, which this "
                             "PyTorch does not show to hooks: give query, key and value as positional arguments")
        observed = {id(x): x.as_subclass(self.kind) for x in tensors.values()}  # the same tensor stays the same
        inputs = tuple(observed.get(id(x), x) for x in inputs)
        if named is None:
            return inputs
        return inputs, {name: observed[id(x)] if name in tensors else x for name, x in named.items()}

    def run(self, args, kwargs):
        """Run F.multi_head_attention_forward, whose first arguments are query, key and value, and observe its layers."""
        plain = {id(x): x.as_subclass(torch.Tensor) for x in args[:3]}
        query = plain[id(args[0])]
        self.samples = query.shape[1] if query.dim() == 3 else 1
        return self.forward(*(plain[id(x)] for x in args[:3]), *args[3:], **kwargs)

    def observe_linear(self, x, weight, bias=None):
        """F.linear of rows in the order [positions, samples]."""
        output = F.linear(x, weight, bias)
        rows = x.detach().reshape(-1, self.samples, x.shape[-1]).transpose(0, 1)
        for hook, columns in self._find_layers(weight):
            hook.observe_call(hook.layer.modules[0], rows, output, self._rows_of(columns))
        return output

    def _rows_of(self, columns):
        """Return a function that converts the gradient of an output to [samples, positions, features] of one layer."""
        samples = self.samples
        return lambda g: g[..., columns].reshape(-1, samples, columns.stop - columns.start).transpose(0, 1)

    def _find_layers(self, weight):
        """Return the layers that a weight, or some rows of the packed weight, belong to: (LayerHook, columns of the output)."""
        for hook in self.hooks:
            layer = hook.layer
            whole = layer.modules[0]._parameters.get(layer.lead_parameter)
            if not isinstance(layer, Projection) or not layer.is_packed:
                if weight is whole:
                    yield hook, slice(0, weight.shape[0])
                continue
            first = 0 if weight is whole else (weight.data_ptr() - whole.data_ptr()) // (whole.stride(0) * whole.element_size())
            if weight.shape[1] == whole.shape[1] and first <= layer.rows.start and layer.rows.stop <= first + weight.shape[0]:
                yield hook, slice(layer.rows.start - first, layer.rows.stop - first)
