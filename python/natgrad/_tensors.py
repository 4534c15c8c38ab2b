"""Describe tensors to the library by address, dtype, shape and strides.  No data is copied."""
import ctypes as c

import torch

from . import _abi
from ._core import make_error

DTYPES = {torch.float32: _abi.NG_F32, torch.float64: _abi.NG_F64, torch.bfloat16: _abi.NG_BF16, torch.float16: _abi.NG_F16}
STORED_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64,
                 "I32": torch.int32, "U8": torch.uint8}
_storage_of = getattr(torch.Tensor, "untyped_storage", torch.Tensor.storage)  # PyTorch 1.13 has storage() only
_INLINE_AXES = 4  # up to this many axes, shape and strides are stored in ng_array.room


def is_sharded(tensor):
    """Return True for a DTensor."""
    return type(tensor).__name__ == "DTensor"


def gather(tensor):
    """Return the whole tensor of a DTensor, which needs all ranks of its mesh; wait for the result of an asynchronous collective."""
    if is_sharded(tensor):
        tensor = tensor.detach().full_tensor()
    return tensor.wait() if type(tensor).__name__ == "AsyncCollectiveTensor" else tensor


def device_of(tensor):
    """Return the device of a tensor.  A test replaces this function, current_stream and device_memory, to need no GPU."""
    return tensor.device


def current_stream(device):
    """Return the handle of PyTorch's current stream of a CUDA device; 1 is CUDA's handle of the default stream, whose own handle
    is 0."""
    return torch.cuda.current_stream(device).cuda_stream or 1


def device_memory(device):
    """Return functions that allocate and free blocks of PyTorch's caching allocator, for the current stream of a CUDA device."""
    return lambda size: torch.cuda.caching_allocator_alloc(size, device), torch.cuda.caching_allocator_delete


def unsupported_reason(name, tensor, dtypes=DTYPES):
    """Return the reason why the library cannot use this tensor, or ''."""
    kind = type(tensor).__name__
    if kind in ("DTensor", "FakeTensor", "ShardedTensor"):
        return f"'{name}' is a {kind}: sharded and traced tensors are not supported"
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        return f"'{name}' has no shape yet: run the model once, then make the preconditioner"
    if tensor.layout != torch.strided:
        return f"'{name}' is {tensor.layout}: only dense tensors are supported (sparse=False)"
    if device_of(tensor).type not in ("cpu", "cuda"):
        return f"'{name}' is on {device_of(tensor)}: only the CPU and CUDA are supported"
    if tensor.dtype not in dtypes:
        expected = "float32, float64, bfloat16 or float16" if dtypes is DTYPES else "int64"
        return f"'{name}' is {str(tensor.dtype).replace('torch.', '')}: expected {expected}"
    return ""


class TensorDescriptor:
    """An ng_array that describes different tensors in turn.  describe() is cheap if only the address has changed."""

    __slots__ = ("array", "reference", "name", "_layout", "_long_layout", "_extent")
    dtypes = DTYPES

    def __init__(self, name):
        self.array, self.name, self._layout, self._long_layout = _abi.ng_array(), name, None, None
        self.reference = c.byref(self.array)

    def describe(self, tensor):
        try:
            layout = (tensor.shape, tensor.stride(), tensor.dtype, device_of(tensor))
        except RuntimeError:  # sparse tensors have no strides
            layout = None
        if layout != self._layout or layout is None:
            self._set_layout(tensor)
            self._layout = layout
        try:
            self.array.data = tensor.data_ptr()
            stored = _storage_of(tensor).nbytes()
        except RuntimeError:
            raise make_error(_abi.NG_ERR_ARG, f"{self.name} has no memory, as under torch.func: set hook_enabled = "
                             "False around backward passes of something other than the loss") from None
        needed = (tensor.storage_offset() + self._extent) * tensor.element_size() if self._extent else 0
        if needed > stored:
            raise make_error(_abi.NG_ERR_ARG, f"{self.name} has a storage of {stored} bytes, and its shape needs {needed}: the "
                             "storage was resized")
        return self.reference

    def describe_and_compare(self, tensor):
        """Describe the tensor.  Return True if its address, shape, strides or dtype differ from the last tensor."""
        before = self.array.data, self._layout
        self.describe(tensor)
        return before != (self.array.data, self._layout)

    def describe_missing(self):
        self.array.data = None
        return self.reference

    def _set_layout(self, tensor):
        self._layout = None
        why = unsupported_reason(self.name, tensor, self.dtypes)
        if why:
            raise make_error(_abi.NG_ERR_ARG, why)
        array, axes = self.array, tensor.dim()
        if axes > 8:
            raise make_error(_abi.NG_ERR_SHAPE, f"'{self.name}' has {axes} axes, expected at most 8")
        array.dtype, array.ndim = self.dtypes[tensor.dtype], axes
        array.mem = _abi.NG_DEVICE if device_of(tensor).type == "cuda" else _abi.NG_HOST
        self._extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
        if axes <= _INLINE_AXES:
            array.shape = array.stride = None
            array.room[0:axes], array.room[_INLINE_AXES:_INLINE_AXES + axes] = tensor.shape, tensor.stride()
        else:
            self._long_layout = ((c.c_int64 * axes)(*tensor.shape), (c.c_int64 * axes)(*tensor.stride()))
            array.shape, array.stride = (c.addressof(one) for one in self._long_layout)


class ViewDescriptor(TensorDescriptor):
    """Describes a view of each tensor: make_view(tensor)."""

    __slots__ = ("make_view",)

    def __init__(self, name, make_view):
        super().__init__(name)
        self.make_view = make_view

    def describe(self, tensor):
        try:
            view = self.make_view(tensor)
        except RuntimeError:
            raise make_error(_abi.NG_ERR_ARG, f"{self.name} has the strides {tensor.stride()}, expected a contiguous "
                             "tensor") from None
        return super().describe(view)


class TokenDescriptor(TensorDescriptor):
    """Describes the int64 token numbers that are the input of an embedding."""

    __slots__ = ()
    dtypes = {torch.int64: _abi.NG_I64}
