"""The library without PyTorch: contexts, options, models.  Errors raise exceptions; other statuses are returned."""
import ctypes as c
import functools
import logging
import numbers
import reprlib
import sys
import threading
import warnings

from . import _abi
from ._library import load_library

log = logging.getLogger("natgrad")
log.addHandler(logging.NullHandler())  # silent unless the program wants logs
_LEVEL = {_abi.NG_LOG_ERROR: logging.ERROR, _abi.NG_LOG_WARN: logging.WARNING}  # all others: DEBUG
_MESSAGE_SIZE = 1024


class Error(RuntimeError):
    """An error of the library, with its message.  `status` is the ng_status."""

    def __init__(self, text, status=_abi.NG_ERR_STATE):
        super().__init__(text)
        self.status = status


class ArgumentError(Error, ValueError, TypeError):
    """A wrong or unsupported option or argument."""


_CONTROL = dict.fromkeys([*range(32), 127], "?")  # a message may quote any text; no terminal gets its control characters


def make_error(status, text):
    text = text.translate(_CONTROL)
    wrong = status in (_abi.NG_ERR_ARG, _abi.NG_ERR_SHAPE, _abi.NG_ERR_ABSENT)
    return (ArgumentError if wrong else Error)(text, status)


def short_repr(value):
    """Return a short text that shows a value in a message."""
    try:
        return reprlib.repr(value)
    except Exception:  # __repr__ failed, or an integer has too many digits for str()
        return f"a {type(value).__name__}"


def warn_caller(text):
    """Warn with the line of the first caller outside of natgrad."""
    frame, level = sys._getframe(1), 2
    while frame.f_globals.get("__name__", "").startswith("natgrad.") and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(f"natgrad: {text}", stacklevel=level)


def to_float(name, value):
    """Convert a number, not a bool, to float.  `name` is the name of the argument in the error message."""
    try:
        if not isinstance(value.item() if hasattr(value, "item") else value, bool):
            return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # a tensor raises RuntimeError
        pass
    raise make_error(_abi.NG_ERR_ARG, f"{name} is {short_repr(value)}, expected a number")


def to_int(name, value, least=1, most=2**63 - 1):
    """Convert a whole number, not a bool, to int.  `name` is the name of the argument in the error message."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise make_error(_abi.NG_ERR_ARG, f"{name} is {short_repr(value)}, expected a whole number of at least {least}")
    if value > most:
        raise make_error(_abi.NG_ERR_ARG, f"{name} is {short_repr(value)}, expected at most {most}")
    return int(value)


def to_utf8(name, text):
    """Convert a text to UTF-8.  `name` is the name of the argument in the error message."""
    if not isinstance(text, str):
        raise make_error(_abi.NG_ERR_ARG, f"{name} is {short_repr(text)}, expected a text")
    try:
        found = text.encode()
    except UnicodeEncodeError:
        raise make_error(_abi.NG_ERR_ARG, f"{name} is {text!a}, which has no UTF-8 form") from None
    if b"\0" in found:
        raise make_error(_abi.NG_ERR_ARG, f"{name} is {text!a}: a NUL is not accepted")
    return found


def with_core_lock(method):
    """Decorator: only one thread at a time runs the decorated methods of a preconditioner."""
    @functools.wraps(method)
    def call(self, *arguments, **keywords):
        with self._core.lock:
            return method(self, *arguments, **keywords)
    return call


def new_struct(struct, *arguments):
    """Return a new struct with default values."""
    value = struct()
    if arguments or struct.__name__ in _abi.INITIALISED:
        getattr(load_library(), struct.__name__ + "_init")(c.byref(value), *arguments, c.sizeof(value))
    else:
        value.struct_size = c.sizeof(value)
    return value


def struct_to_dict(struct):
    """Return the fields of a struct as a dict; texts are str."""
    names = [name for name, *_ in struct._fields_ if name != "struct_size"]
    values = [getattr(struct, name) for name in names]
    return {n: v.decode() if isinstance(v, bytes) else v for n, v in zip(names, values)}


def read_rows(call, struct, *before):
    """Return the rows 0, 1, ... of a table, read by `call(*before, i, out)`."""
    found = []
    while True:
        row = new_struct(struct)
        if call(*before, len(found), c.byref(row)) != _abi.NG_OK:
            return found
        found.append(struct_to_dict(row))


def build_info():
    """Return version, components, BLAS and its kernels."""
    library = load_library()
    text = c.create_string_buffer(library.ng_build_info(None, 0) + 1)
    library.ng_build_info(text, len(text))
    return dict(line.split(" = ", 1) for line in text.value.decode().splitlines())


def options():
    """Return the options as a list of dicts: name, type, default (key "standard"), bounds, choices, help, ..."""
    return read_rows(load_library().ng_option_at, _abi.ng_option_info)


def methods():
    """Return the methods as a list of dicts: name, family, help, paper, number of published names, traits."""
    return read_rows(load_library().ng_method_at, _abi.ng_method_info)


def traits(method):
    """Return the traits of a method, such as ["Kronecker factors", "a solve"].  The options of these traits apply to
    it."""
    return next(row["traits"] for row in methods() if row["name"] == method).split(", ")


def published(method):
    """Return the published option names of a method, the option that each name sets, and the meaning of its values."""
    names = [row["name"] for row in methods()]
    return read_rows(load_library().ng_method_published_at, _abi.ng_published_info, names.index(method))


def option_text(name, value):
    """Return the UTF-8 text of a value for option `name`: a Python value, a numpy number, a tensor of one element."""
    return to_utf8(name, _option_str(name, value))


def _option_str(name, value):
    if hasattr(value, "item") and hasattr(value, "dtype"):
        if getattr(value, "size", None) != 1 and not (callable(getattr(value, "numel", None)) and value.numel() == 1):
            raise make_error(_abi.NG_ERR_ARG, f"{name} is a {type(value).__name__} of several numbers, expected one")
        value = value.item()
    if isinstance(value, bool):  # a number does not accept these words
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):  # regular expressions, as published programs take
        return "|".join(str(one) for one in value)
    if value is None:
        return "none"
    if hasattr(value, "name") and not isinstance(value, str):  # an enum: its name is the value
        return value.name
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and 0 < abs(value) < 2**53 else repr(float(value))
    return short_repr(value) if isinstance(value, int) else str(value)  # str() refuses very long integers


class Options:
    """A set of option values (ng_options in natgrad.h)."""

    def __init__(self):
        self._library, self._handle, self._message = load_library(), c.c_void_p(), c.create_string_buffer(_MESSAGE_SIZE)
        self._raise_on_error(self._library.ng_options_create(None, self._message, _MESSAGE_SIZE, c.byref(self._handle)))

    def __del__(self):
        if getattr(self, "_handle", None):
            self._library.ng_options_destroy(c.byref(self._handle))

    def _raise_on_error(self, status):
        if status < 0:
            raise make_error(status, self._message.value.decode())

    @property
    def pointer(self):
        return self._handle

    def set(self, name, value):
        self._raise_on_error(self._library.ng_options_set(self._handle, to_utf8("the name of an option", name),
                                                          option_text(name, value), self._message,
                                                          _MESSAGE_SIZE))

    def set_system(self, system, variant):
        self._raise_on_error(self._library.ng_options_set_system(self._handle, system.encode(), variant.encode(),
                                                                 self._message, _MESSAGE_SIZE))

    def set_published(self, name, value):
        """Set an option by its published name.  If this name means the lr of a step, return the lr, else None."""
        lr = c.c_double(-1.0)
        self._raise_on_error(self._library.ng_options_set_published(self._handle, name.encode(),
                                                                    option_text(name, value), c.byref(lr),
                                                                    self._message, _MESSAGE_SIZE))
        return lr.value if lr.value >= 0 else None

    def get(self, name):
        value = c.create_string_buffer(8192)
        if self._library.ng_options_get(self._handle, to_utf8("the name of an option", name), value, len(value)) < 0:
            raise make_error(_abi.NG_ERR_ARG, f"there is no option '{name}'")
        return value.value.decode()

    def check_values(self):
        self._raise_on_error(self._library.ng_options_check(self._handle, self._message, _MESSAGE_SIZE))


_LOG_CALLBACK = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)
_ALLOC_CALLBACK = c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_size_t)
_FREE_CALLBACK = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_size_t)
_WRITE_CALLBACK = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_void_p, c.c_int64)
_READ_CALLBACK = c.CFUNCTYPE(c.c_int64, c.c_void_p, c.c_void_p, c.c_int64)


@_LOG_CALLBACK
def _forward_log_line(_user, level, line):
    log.log(_LEVEL.get(level, logging.DEBUG), "%s", line.decode(errors="replace"))


class _DeviceMemory:
    """The callbacks device_alloc and device_free of a context, by two functions: alloc(bytes) returns an address or raises an
    exception, free(address)."""

    def __init__(self, alloc, free):
        self.exception = None

        def alloc_or_none(_user, size):
            try:
                return alloc(size)
            except Exception as exception:  # the library returns an error
                self.exception = exception
                return None

        self.alloc, self.free = _ALLOC_CALLBACK(alloc_or_none), _FREE_CALLBACK(lambda _user, address, _size: free(address))


class Precond:
    """An ng_precond with its own context.  call("bind", ...) calls ng_bind(p, ...), and raises an exception on
    failure."""

    def __init__(self, chosen, threads=0, transport=None, linalg=None, model_group=None, stage_group=None,
                 stream=None, device_memory=None):
        self.library, self.ctx, self.p, self.lock = load_library(), c.c_void_p(), c.c_void_p(), threading.RLock()
        self.transport, self.model_group, self.stage_group = transport, model_group, stage_group
        config = new_struct(_abi.ng_context_config)
        config.threads = to_int("threads", threads, least=0, most=2**31 - 1)
        config.log = c.cast(_forward_log_line, c.c_void_p)
        level = log.getEffectiveLevel()
        config.log_level = _abi.NG_LOG_TRACE if level <= logging.DEBUG else _abi.NG_LOG_WARN
        if linalg is not None:
            config.linalg = to_utf8("linalg", linalg)
        config.queue = stream
        self._device_memory = _DeviceMemory(*device_memory) if device_memory is not None else None
        if self._device_memory is not None:
            config.device_alloc = c.cast(self._device_memory.alloc, c.c_void_p)
            config.device_free = c.cast(self._device_memory.free, c.c_void_p)
        if transport is not None:
            config.transport = c.addressof(transport.table)
        if model_group is not None:
            config.model_group = c.addressof(model_group.table)
        if stage_group is not None:
            config.stage_group = c.addressof(stage_group.table)
        why = c.create_string_buffer(_MESSAGE_SIZE)
        status = self.library.ng_context_create(_abi.VERSION, c.byref(config), why, _MESSAGE_SIZE, c.byref(self.ctx))
        if status < 0:
            raise make_error(status, why.value.decode()) from getattr(self._device_memory, "exception", None)
        self.raise_on_error(self.library.ng_precond_create_from(self.ctx, chosen.pointer, c.byref(self.p)))

    def close(self):
        if not hasattr(self, "lock"):  # the constructor failed early: no library was found
            return
        with self.lock:
            if self.p:
                self.library.ng_precond_destroy(c.byref(self.p))
            if self.ctx:
                self.library.ng_context_destroy(c.byref(self.ctx))
                for transport in (self.transport, self.model_group, self.stage_group):
                    if transport is not None:
                        transport.close()

    __del__ = close

    def check_open(self):
        if not self.ctx:
            raise Error("the preconditioner was closed")

    def raise_on_error(self, status):
        if status >= 0:
            return status
        self.check_open()
        error = make_error(status, self.library.ng_last_error(self.ctx).decode())
        groups = (self.transport, self.model_group, self.stage_group)
        causes = [group.take_exception() for group in groups if group is not None]
        raise error from next((cause for cause in causes if cause is not None), None)

    def call(self, name, *arguments):
        with self.lock:
            return self.raise_on_error(getattr(self.library, "ng_" + name)(self.p, *arguments))

    def read_struct(self, name, struct, *arguments):
        out = new_struct(struct)
        self.call(name, *arguments, c.byref(out))
        return struct_to_dict(out)

    def get(self, option):
        value = c.create_string_buffer(8192)
        self.call("get", to_utf8("the name of an option", option), value, len(value))
        return value.value.decode()

    def set(self, option, value):
        self.call("set", to_utf8("the name of an option", option), option_text(option, value))

    def can_save_alone(self):
        """Return True if this rank holds all arrays of the state."""
        return self.library.ng_save_local(self.p, None, None) == _abi.NG_OK

    def save(self, writes=True, call="save_to"):
        """Return the bytes of the state if `writes` (on rank 0), else b"" (on other ranks).  Collective; with the call
        save_local not."""
        pieces = []

        def write(_user, data, size):
            pieces.append(c.string_at(data, size))
            return 0

        self.call(call, c.cast(_WRITE_CALLBACK(write), c.c_void_p) if writes else None, None)
        return b"".join(pieces)

    def load(self, state):
        """Load a state from the bytes that rank 0 passes; other ranks may pass None.  Collective."""
        at, source = 0, None if state is None else memoryview(state)

        def read(_user, data, size):
            nonlocal at
            piece = source[at:at + size]
            c.memmove(data, bytes(piece), len(piece))
            at += len(piece)
            return len(piece)

        self.call("load_from", None if source is None else c.cast(_READ_CALLBACK(read), c.c_void_p), None)
