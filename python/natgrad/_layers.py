"""The layers of a model: describe them to the library, and convert their arrays to its layout."""
import math

import torch
from torch import nn
import torch.nn.functional as F

from . import _abi
from ._core import to_utf8, make_error, new_struct

_UNSUPPORTED = {
    "FullyShardedDataParallel": "parameters that FSDP has sharded are not supported",
    "DataParallel": "DataParallel runs copies of the model in threads: use DistributedDataParallel",
    "ScriptModule": "hooks of a scripted module may not run: pass the model before torch.jit",
    "RecursiveScriptModule": "hooks of a scripted module may not run: pass the model before torch.jit",
}


def unwrap(model):
    """Return the model inside DistributedDataParallel and torch.compile."""
    while type(model).__name__ in ("DistributedDataParallel", "OptimizedModule"):
        model = model.module if type(model).__name__ == "DistributedDataParallel" else model._orig_mod
    return model


def is_compiled(model):
    """Return True if torch.compile or Module.compile() compiles the model or a part."""
    return any(type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
               for module in model.modules())


def check_model_supported(model):
    if not isinstance(model, nn.Module):
        raise make_error(_abi.NG_ERR_ARG, f"model is a {type(model).__name__}, expected a torch.nn.Module")
    for name, module in model.named_modules():
        for kind in type(module).__mro__:
            if kind.__name__ in _UNSUPPORTED and kind.__module__.split(".")[0] == "torch":
                where = f"'{name}' is a {kind.__name__}" if name else f"the model is a {kind.__name__}"
                raise make_error(_abi.NG_ERR_ABSENT, f"{where}: {_UNSUPPORTED[kind.__name__]}")


class Entry:
    """A layer or tensor of the library, and its parameters.  `reason` tells why it has no curvature; '' if it has."""

    def __init__(self, name, reason=""):
        self.name, self.reason = name, reason
        self.index = -1
        self.places = []  # (ng_param, module, name of the attribute, full name) of each parameter
        self.is_tied = False  # several modules use its weight, and it has no curvature
        self.is_excluded_by_choice = False  # by the method, or by an argument such as skip_layers
        self.frozen = False  # frozen when it was registered
        self.frozen_now = False  # frozen since then, by ng_freeze

    def parameters(self):
        return [getattr(module, attribute) for _, module, attribute, _ in self.places]

    def count_matrix_elements(self):
        """Return the number of elements of its trainable parameters that have two axes or more."""
        return sum(p.numel() for p in self.parameters() if p.dim() > 1 and p.requires_grad)

    def view_of(self, which):
        """Return a function that makes the view of a parameter (ng_param) which the library reads; None: the parameter."""

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
    lends_input = False  # the library reads the input again with the output gradient
    shard_axis = -1  # of a linear layer: 0 outputs sharded, 1 inputs sharded; -1: not sharded
    lead_parameter = "weight"  # the layer is frozen if this parameter does not require a gradient
    parameter_names = ("weight", "bias")
    covers_bias = True
    frames = 1  # of a convolution: number of images that convert_input() made of each sample
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

    def _conv_geometry(self):
        """Return the input channels, kernel, stride and dilation of a convolution."""
        m = self.modules[0]
        one = (1,) * (2 - len(m.kernel_size))  # Conv1d: images of height 1
        return m.in_channels, one + m.kernel_size, one + m.stride, one + m.dilation

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
        columns, kernel, stride, dilation = self._conv_geometry()
        setattr(layer, "in", columns)
        layer.out, layer.groups = m.out_channels, m.groups
        for field, value in (("kernel", kernel), ("stride", stride), ("padding", self.padding), ("dilation", dilation)):
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

    def view_of(self, which):
        return torch.Tensor.t if which == _abi.NG_WEIGHT else None


_NORMS = {nn.BatchNorm1d: _abi.NG_BATCH_NORM, nn.BatchNorm2d: _abi.NG_BATCH_NORM, nn.BatchNorm3d: _abi.NG_BATCH_NORM,
          nn.LayerNorm: _abi.NG_LAYER_NORM, nn.GroupNorm: _abi.NG_GROUP_NORM, nn.InstanceNorm1d: _abi.NG_GROUP_NORM,
          nn.InstanceNorm2d: _abi.NG_GROUP_NORM, nn.InstanceNorm3d: _abi.NG_GROUP_NORM}


def norm_class_of(module):
    """Return the class of _NORMS that a module derives from, or None."""
    return next((kind for kind in type(module).__mro__ if kind in _NORMS), None)


class Norm(Layer):
    """A batch, layer, group or instance norm with a trainable gamma or beta."""

    norm = needs_input_and_gradient = lends_input = True

    def __init__(self, name, module, gamma, beta):
        super().__init__(name, module, beta)
        self.gamma, self.lead_parameter = gamma, "weight" if gamma else "bias"
        self.kind = _NORMS[norm_class_of(module)]
        self.channels = getattr(module, self.lead_parameter).numel()
        self.axes = len(getattr(module, "normalized_shape", ()))  # layer norm: number of axes normalised together

    def view_of(self, which):
        return (lambda p: p.view(-1)) if self.axes > 1 else None

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
                x.dim() == {nn.InstanceNorm1d: 2, nn.InstanceNorm2d: 3, nn.InstanceNorm3d: 4}[norm_class_of(self.modules[0])]):
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


_SETTINGS = ("stride", "padding", "dilation", "groups", "padding_mode", "num_groups", "eps", "normalized_shape",
             "padding_idx", "output_padding", "scale_grad_by_freq", "sparse")


def module_settings(module):
    """Return the settings of a module, such as stride and padding, as {name: value}."""
    own = module.__dict__
    found = {name: own[name] for name in _SETTINGS if name in own}
    found["class"], found["forward"] = type(module), own.get("forward")
    found["padding of each side"] = tuple(own.get("_reversed_padding_repeated_twice", ()))
    return found
