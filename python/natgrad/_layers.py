"""Find the layers of a model, and convert their arrays to the library's layout.

Each parameter belongs to a layer with curvature, or is an entry of its own without curvature; explain() prints why.
"""
import functools
import math

import torch
from torch import nn
import torch.nn.functional as F

from . import _abi
from ._core import to_utf8, make_error, new_struct
from ._tensors import FlatDescriptor, TensorDescriptor, TransposedDescriptor

_UNSUPPORTED = {
    "FullyShardedDataParallel": "parameters that FSDP has sharded are not supported",
    "OptimizedModule": "hooks of a compiled module may not run: pass the uncompiled model",
    "DataParallel": "DataParallel runs copies of the model in threads: use DistributedDataParallel",
    "ScriptModule": "hooks of a scripted module may not run: pass the model before torch.jit",
    "RecursiveScriptModule": "hooks of a scripted module may not run: pass the model before torch.jit",
}


def unwrap_ddp(model):
    """Return the model inside DistributedDataParallel."""
    while type(model).__name__ == "DistributedDataParallel":
        model = model.module
    return model


def check_model_supported(model):
    if not isinstance(model, nn.Module):
        raise make_error(_abi.NG_ERR_ARG, f"model is a {type(model).__name__}, expected a torch.nn.Module")
    for name, module in model.named_modules():
        for kind in type(module).__mro__:
            if kind.__name__ in _UNSUPPORTED and kind.__module__.split(".")[0] == "torch":
                where = f"'{name}' is a {kind.__name__}" if name else f"the model is a {kind.__name__}"
                raise make_error(_abi.NG_ERR_ABSENT, f"{where}: {_UNSUPPORTED[kind.__name__]}")
        if getattr(module, "_compiled_call_impl", None) is not None:
            raise make_error(_abi.NG_ERR_ABSENT, f"'{name}' was compiled in place: {_UNSUPPORTED['OptimizedModule']}")


class Entry:
    """A layer or tensor of the library, and its parameters.  `reason` tells why it has no curvature; '' if it has."""

    def __init__(self, name, reason=""):
        self.name, self.reason = name, reason
        self.index = -1
        self.places = []  # (ng_param, module, name of the attribute, full name) of each parameter
        self.is_excluded_by_choice = False  # by the method, or by an argument such as skip_layers
        self.frozen = False  # frozen when it was registered
        self.frozen_now = False  # frozen since then, by ng_freeze

    def parameters(self):
        return [getattr(module, attribute) for _, module, attribute, _ in self.places]

    def count_matrix_elements(self):
        """Return the number of elements of its trainable parameters that have two axes or more."""
        return sum(p.numel() for p in self.parameters() if p.dim() > 1 and p.requires_grad)

    def descriptor_class(self, which):
        """Return the class that describes a parameter (ng_param) to the library."""
        return TensorDescriptor

    def make_ng_layer(self, options=None):
        """Return the ng_layer to register; None: register a tensor, which has no curvature."""


class MatrixParameter(Entry):
    """A parameter [out, ...] of an unknown module, registered as a layer."""

    def make_ng_layer(self, options=None):
        shape = tuple(self.parameters()[0].shape)
        layer = new_struct(_abi.ng_layer, _abi.NG_LINEAR if len(shape) == 2 else _abi.NG_CONV2D)
        layer.name, layer.bias, layer.frozen, layer.out = to_utf8("the name of a layer", self.name), 0, int(self.frozen), shape[0]
        if len(shape) > 4:
            raise make_error(_abi.NG_ERR_ABSENT, f"'{self.name}' has {len(shape)} axes, expected at most 4")
        setattr(layer, "in", shape[1])
        if len(shape) > 2:
            layer.kernel[0:2] = ((1,) + shape[2:])[-2:]
        return layer


class Layer(Entry):
    """A linear or convolution layer: one module, or several modules that share their parameters."""

    norm = embedding = False
    needs_input_and_gradient = False  # the library reads input and output gradient together
    shard_axis = -1  # of a linear layer: 0 outputs sharded, 1 inputs sharded; -1: not sharded
    lead_parameter = "weight"  # the layer is frozen if this parameter does not require a gradient
    parameter_names = ("weight", "bias")
    is_called = True  # the model calls the module of this layer; False: the module of the layer calls other functions

    def __init__(self, name, module, bias):
        super().__init__(name)
        self.modules, self.bias = [module], bias
        self.conv = isinstance(module, (nn.Conv1d, nn.Conv2d))
        self.pad_arguments = None  # arguments of F.pad for the input, if the library cannot describe this padding
        self.padding = (0, 0)
        self.calls = self.calls_without_gradients = 0  # forwards with gradients; in eval mode or without gradients
        if self.conv:
            self._set_padding(module)

    def _set_padding(self, m):
        axes = len(m.kernel_size)
        sides = list(m._reversed_padding_repeated_twice)[::-1]  # (after, before) of each axis, the first axis first
        both = [(sides[2 * i + 1], sides[2 * i]) for i in range(axes)]
        if m.padding_mode != "zeros":
            self.pad_arguments = dict(pad=m._reversed_padding_repeated_twice, mode=m.padding_mode)
        elif any(before != after for before, after in both):  # padding='same' with an even kernel
            self.pad_arguments = dict(pad=m._reversed_padding_repeated_twice)
        else:
            self.padding = (0,) * (2 - axes) + tuple(before for before, _ in both)

    def _linear_shape(self, weight):
        return weight.shape

    def make_ng_layer(self, options=None):
        m = self.modules[0]
        layer = new_struct(_abi.ng_layer, _abi.NG_CONV2D if self.conv else _abi.NG_LINEAR)
        layer.name = to_utf8("the name of a layer", self.name)
        layer.bias, layer.frozen = int(self.bias), int(self.frozen)
        if options:
            layer.options = options.encode()
        if not self.conv:
            layer.out, columns = self._linear_shape(getattr(m, self.lead_parameter))
            setattr(layer, "in", columns)
            layer.shard_axis = self.shard_axis
            return layer
        setattr(layer, "in", m.in_channels)
        layer.out, layer.groups = m.out_channels, m.groups
        one = (1,) * (2 - len(m.kernel_size))  # Conv1d: images of height 1
        for field, value in (("kernel", one + m.kernel_size), ("stride", one + m.stride),
                             ("padding", self.padding), ("dilation", one + m.dilation)):
            getattr(layer, field)[0:2] = value
        return layer

    # ---- arrays in the library's layout

    def convert_input(self, x, samples, first):
        """Convert the input of a call to the library's layout.  Return the array with its number of samples."""
        if not self.conv:
            return self.as_rows(x, samples, first)
        if x.dim() == len(self.modules[0].kernel_size) + 1:
            x = x.unsqueeze(0)
        if self.pad_arguments is not None:
            x = F.pad(x, **self.pad_arguments)
        return self.as_images(x), x.shape[0]

    def convert_output_gradient(self, g, samples, first):
        if not self.conv:
            return self.as_rows(g, samples, first)[0]
        return self.as_images(g if g.dim() == len(self.modules[0].kernel_size) + 2 else g.unsqueeze(0))

    @staticmethod
    def as_images(x):
        """Return images as [n, c, h, w]; images of a 1-D convolution have height 1."""
        return x.unsqueeze(2) if x.dim() == 3 else x

    def as_rows(self, x, samples, first):
        """Return x as [samples, positions, ..., features] and the number of samples.  samples=None: use the leading
        axis."""
        axes, shape = x.dim(), x.shape
        if axes == 2 and (samples is None or shape[0] == samples):
            return x, shape[0]
        if axes == 1:
            return x.unsqueeze(0), 1
        if samples is None:
            if not first and x.dim() > 2:
                x = x.transpose(0, 1)
            return x, x.shape[0]
        if x.dim() > 2:
            if x.shape[0 if first else 1] == samples:
                return (x if first else x.transpose(0, 1)), samples
            if x.shape[1 if first else 0] == samples:
                return (x.transpose(0, 1) if first else x), samples
        if x.shape[0] % samples == 0:
            if first:
                return x.reshape(samples, x.shape[0] // samples, *x.shape[1:]), samples
            return x.reshape(x.shape[0] // samples, samples, *x.shape[1:]).transpose(0, 1), samples
        rows = x.numel() // x.shape[-1]
        if rows % samples:
            raise make_error(_abi.NG_ERR_SHAPE, f"layer '{self.name}': an array is {list(x.shape)}; the model's input has "
                             f"{samples} samples, which do not divide its {rows} rows; samples='layer' counts the leading "
                             "axis of each layer")
        return x.reshape(samples, rows // samples, x.shape[-1]), samples


class TransposedLinear(Layer):
    """A linear layer with a weight [in, out]: Conv1D of transformers, as in GPT-2."""

    @staticmethod
    def applies_to(module):
        kind = type(module)
        return kind.__name__ == "Conv1D" and kind.__module__.split(".")[0] == "transformers"

    def _linear_shape(self, weight):
        return weight.shape[::-1]

    def descriptor_class(self, which):
        return TransposedDescriptor if which == _abi.NG_WEIGHT else TensorDescriptor


_NORMS = {nn.BatchNorm1d: _abi.NG_BATCH_NORM, nn.BatchNorm2d: _abi.NG_BATCH_NORM, nn.BatchNorm3d: _abi.NG_BATCH_NORM,
          nn.LayerNorm: _abi.NG_LAYER_NORM, nn.GroupNorm: _abi.NG_GROUP_NORM, nn.InstanceNorm1d: _abi.NG_GROUP_NORM,
          nn.InstanceNorm2d: _abi.NG_GROUP_NORM, nn.InstanceNorm3d: _abi.NG_GROUP_NORM}


def _norm_class_of(module):
    """Return the class of _NORMS that a module derives from, or None."""
    return next((kind for kind in type(module).__mro__ if kind in _NORMS), None)


class Norm(Layer):
    """A batch, layer, group or instance norm with a trainable gamma or beta."""

    norm = needs_input_and_gradient = True

    def __init__(self, name, module, gamma, beta):
        super().__init__(name, module, beta)
        self.gamma, self.lead_parameter = gamma, "weight" if gamma else "bias"
        self.kind = _NORMS[_norm_class_of(module)]
        self.channels = getattr(module, self.lead_parameter).numel()
        self.axes = len(getattr(module, "normalized_shape", ()))  # layer norm: number of axes normalised together

    def descriptor_class(self, which):
        return FlatDescriptor if self.axes > 1 else TensorDescriptor

    def make_ng_layer(self, options=None):
        m = self.modules[0]
        layer = new_struct(_abi.ng_layer, _abi.NG_NORM)
        layer.name = to_utf8("the name of a layer", self.name)
        layer.bias, layer.norm_no_weight, layer.frozen = int(self.bias), int(not self.gamma), int(self.frozen)
        layer.norm_kind, layer.norm_eps = self.kind, m.eps
        setattr(layer, "in", self.channels)
        if self.kind == _abi.NG_GROUP_NORM:
            layer.groups = getattr(m, "num_groups", self.channels)
        if options:
            layer.options = options.encode()
        return layer

    def convert_input(self, x, samples, first):
        if self.kind == _abi.NG_LAYER_NORM:
            return self.as_rows(x if self.axes == 1 else x.flatten(-self.axes), samples, first)
        if isinstance(self.modules[0], nn.modules.instancenorm._InstanceNorm) and x.shape[0] == self.channels and (
                x.dim() == {nn.InstanceNorm1d: 2, nn.InstanceNorm2d: 3, nn.InstanceNorm3d: 4}[_norm_class_of(self.modules[0])]):
            x = x.unsqueeze(0)  # add the batch axis to one sample
        count = x.shape[0]
        if self.kind == _abi.NG_BATCH_NORM and samples and count != samples and count % samples == 0:
            # consecutive rows or frames of a sample are its positions
            x = x.reshape(samples, count // samples, *x.shape[1:]) if first else x.reshape(
                count // samples, samples, *x.shape[1:]).transpose(0, 1)
            x, count = x.transpose(1, 2), samples
        return x, count

    def convert_output_gradient(self, g, samples, first):
        return self.convert_input(g, samples, first)[0]


class Embedding(Layer):
    """An embedding.  Padding tokens do not count, and their output gradients are set to 0.

    `scale` multiplies the loss scale of the output gradient, so that G is a mean over the counted tokens only.  If all
    B samples share an input, such as torch.arange(T), its output gradient is the sum over the samples.  Their gradients
    are assumed independent, so G is divided by B: `scale` contains sqrt(B).
    """

    embedding = needs_input_and_gradient = True

    def __init__(self, name, module):
        super().__init__(name, module, False)
        self.padding_idx = module.padding_idx
        self.scale, self.counted, self._padding = 1.0, 0, None

    def make_ng_layer(self, options=None):
        layer = new_struct(_abi.ng_layer, _abi.NG_EMBEDDING)
        layer.name, layer.frozen = to_utf8("the name of a layer", self.name), int(self.frozen)
        tokens, layer.out = self.modules[0].weight.shape
        setattr(layer, "in", tokens)
        if options:
            layer.options = options.encode()
        return layer

    @staticmethod
    def _is_shared_input(shape, samples, first):
        """Return True if all samples share an input of this shape."""
        rows = math.prod(shape)
        return samples is not None and (rows % samples != 0 or (
            len(shape) > 1 and samples > 1 and shape[0 if first else 1] == 1))

    def as_rows(self, x, samples, first):
        if self._is_shared_input(x.shape[:-1], samples, first):
            return x.unsqueeze(0).expand(samples, *x.shape), samples
        return super().as_rows(x if x.dim() > 1 else x.unsqueeze(0), samples, first)

    def convert_input(self, x, samples, first):
        padding = None if self.padding_idx is None else x == self.padding_idx
        self._padding = padding if padding is not None and bool(padding.any()) else None
        self.scale, self.counted = 1.0, x.numel()
        if self._padding is not None:
            self.counted -= int(self._padding.sum())
            self.scale = math.sqrt(self.counted / x.numel())
            x = x.masked_fill(self._padding, _abi.NG_NO_TOKEN)
        if self._is_shared_input(x.shape, samples, first):
            self.scale *= math.sqrt(samples)
        x, count = self.as_rows(x.to(torch.int64).unsqueeze(-1), samples, first)
        return x.squeeze(-1), count

    def convert_output_gradient(self, g, samples, first):
        if self._padding is not None:
            g = g.masked_fill(self._padding.unsqueeze(-1), 0)
        return self.as_rows(g, samples, first)[0]


def _layer_problem(name, module, parent, linear, attention):
    """Return '' for a supported layer, None for a module of another kind, else the reason why a layer is
    unsupported."""
    if linear is not None and linear(module):
        return ""
    if TransposedLinear.applies_to(module):
        if "forward" in module.__dict__:
            return "Conv1D has a custom forward: its computation is not known"
        return "" if module._parameters.get("weight") is not None else "its weight is computed (weight_norm, a parametrization)"
    if isinstance(module, nn.SyncBatchNorm):
        return "SyncBatchNorm takes its mean over all ranks, which hooks cannot observe"
    kind, plain = type(module), _norm_class_of(module)
    if plain is not None and module.weight is None and module.bias is None:
        return None
    if plain is None:
        plain = next((p for p in (nn.Linear, nn.Conv1d, nn.Conv2d) if isinstance(module, p)), None)
    if plain is None and isinstance(module, nn.Embedding):
        plain = nn.Embedding
        if module.scale_grad_by_freq:
            return "scale_grad_by_freq divides its gradient by the counts of its tokens"
        if module.sparse:
            return "its gradient is sparse (sparse=True)"
    if plain is None:
        return None
    if isinstance(parent, nn.MultiheadAttention) and not (attention and attention.is_observable(parent)):
        return "MultiheadAttention does not call it, so hooks cannot observe it"
    if "forward" in module.__dict__ or kind.forward is not plain.forward or (hasattr(plain, "_conv_forward") and
                                             kind._conv_forward is not plain._conv_forward):
        return f"{kind.__name__} has a custom forward: its computation is not known"
    if module.weight is not None and module._parameters.get("weight") is None:
        return "its weight is computed (weight_norm, spectral_norm, a parametrization)"
    return ""


def plan_entries(model, exclusion_reason=None, linear=None, embeddings="", attention=None):
    """Return the entries of a model in the order of its modules.  exclusion_reason(name, module) returns '', or the reason why
    the module gets no curvature.  linear(module) returns True if the module computes x W' + b.  embeddings: '', or the
    reason why embeddings get no curvature.  attention: natgrad._attention, or None if attention gets no curvature."""
    modules = list(model.named_modules())
    parents = {id(child): module for _, module in modules for child in module.children()}
    users = {}  # id of a parameter -> [(module, full name)] of the modules that use it
    for name, module in modules:
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                users.setdefault(id(parameter), []).append((module, f"{name}.{attribute}" if name else attribute))
    entries, layers, taken, chosen = [], {}, set(), set()  # chosen: parameters that no layer uses by choice
    for name, module in modules:
        parent, is_attention = parents.get(id(module)), isinstance(module, nn.MultiheadAttention)
        if is_attention and attention:
            problem = attention.find_problem(module, users)
        else:
            problem = _layer_problem(name, module, parent, linear, attention)
        is_possible = problem == ""
        if problem == "" and isinstance(module, nn.Embedding):
            problem = embeddings
        if problem == "" and exclusion_reason is not None:
            problem = exclusion_reason(name, module)
        is_choice = is_possible and problem != ""
        if is_attention and problem == "":
            added = attention.make_layers(name, module, users)
            entries += added
            taken.update(id(p) for layer in added for p in layer.parameters())
        elif problem == "":
            kind = functools.partial(attention.OutputProjection, attention=parent) if isinstance(parent, nn.MultiheadAttention) \
                else TransposedLinear if TransposedLinear.applies_to(module) else Layer
            problem = _add_layer(name or "root", module, users, layers, entries, taken, kind)
        if is_attention:
            problem = problem or "MultiheadAttention uses it without a layer"
        for attribute, parameter in module._parameters.items():
            if parameter is None:
                continue
            if not is_choice:
                chosen.discard(id(parameter))
            if id(parameter) in taken:
                continue
            taken.add(id(parameter))
            full = users[id(parameter)][0][1]
            others = [other for _, other in users[id(parameter)][1:]]
            if problem == "":
                reason = "frozen; its layer has curvature without it"
            else:
                tied = f"tied to '{others[0]}'" if others and (is_choice or not problem) else ""
                reason = "; ".join(filter(None, (problem, tied))) or f"a parameter of {type(module).__name__}"
            entry = Entry(full, reason)
            if is_choice:
                chosen.add(id(parameter))
            entry.places.append((_abi.NG_WEIGHT, module, attribute, full))
            entries.append(entry)
    for entry in entries:
        entry.frozen = isinstance(entry, Layer) and not any(p.requires_grad for p in entry.parameters())
        entry.is_excluded_by_choice = chosen.issuperset(map(id, entry.parameters()))
    return entries


_SETTINGS = ("stride", "padding", "dilation", "groups", "padding_mode", "num_groups", "eps", "normalized_shape",
             "padding_idx", "scale_grad_by_freq", "sparse")


def module_settings(module):
    """Return the settings of a module, such as stride and padding, as {name: value}."""
    own = module.__dict__
    found = {name: own[name] for name in _SETTINGS if name in own}
    found["class"], found["forward"] = type(module), own.get("forward")
    found["padding of each side"] = tuple(own.get("_reversed_padding_repeated_twice", ()))
    return found


def _add_layer(name, module, users, layers, entries, taken, kind):
    """Add the module to `layers` as a layer of this kind, or to the layer with which it shares parameters.  Return '', or the
    reason why the module cannot be added."""
    weight, bias = module.weight, getattr(module, "bias", None)
    key = (id(weight), id(bias))
    if key in layers:
        other = layers[key]
        if module_settings(module) != module_settings(other.modules[0]):
            raise make_error(_abi.NG_ERR_ABSENT, f"'{name}' and '{other.name}' share their weight with "
                             "different settings: not supported")
        other.modules.append(module)
        return ""
    for parameter in (weight, bias):
        for other, full in users[id(parameter)] if parameter is not None else ():
            same = isinstance(other, type(module)) and (id(other._parameters.get("weight")),
                                                        id(other._parameters.get("bias"))) == key
            if not same:
                return f"tied to '{full}'"
    wants = [p is not None and p.requires_grad for p in (weight, bias)]
    if _norm_class_of(module) is not None:
        has = wants if any(wants) else [p is not None for p in (weight, bias)]
        layer = Norm(name, module, *has)
    elif isinstance(module, nn.Embedding):
        has, layer = (True, False), Embedding(name, module)
    else:
        if wants == [False, True]:
            return "its weight is frozen, its bias is not"
        has = [True, bias is not None and wants[0] == wants[1]]  # a frozen bias becomes an entry of its own
        layer = kind(name, module, has[1])
    for which, attribute, mine in ((_abi.NG_WEIGHT, "weight", has[0]), (_abi.NG_BIAS, "bias", has[1])):
        if mine:
            parameter = module._parameters[attribute]
            full = next(full for other, full in users[id(parameter)] if other is module)
            layer.places.append((which, module, attribute, full))
            taken.add(id(parameter))
    layers[key] = layer
    entries.append(layer)
    return ""
