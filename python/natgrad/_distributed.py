"""Transports for the library (ng_transport, a table of callbacks) over torch.distributed or Horovod."""
import ctypes as c
import datetime
import inspect
import itertools

import torch

from . import _abi
from ._core import make_error, new_struct

_TORCH_DTYPES = {_abi.NG_F64: torch.float64, _abi.NG_F32: torch.float32, _abi.NG_BF16: torch.bfloat16,
                 _abi.NG_F16: torch.float16, _abi.NG_I32: torch.int32, _abi.NG_I64: torch.int64, _abi.NG_U8: torch.uint8}
_HALF_DTYPES = (torch.bfloat16, torch.float16)
_COLLECTIVE_POINTER = c.POINTER(_abi.ng_collective)
_CALLBACKS = dict(run=c.CFUNCTYPE(c.c_int, c.c_void_p, _COLLECTIVE_POINTER), 
                  start=c.CFUNCTYPE(c.c_int, c.c_void_p, _COLLECTIVE_POINTER, c.POINTER(c.c_void_p)),
                  wait=c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p),
                  test=c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.POINTER(c.c_int32)),
                  group_create=c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(c.c_int32), c.c_int32, c.POINTER(c.c_void_p)))
MEETING_SECONDS = 300
_ABORT_CALLBACK, _DESTROY_CALLBACK = c.CFUNCTYPE(None, c.c_void_p), c.CFUNCTYPE(None, c.c_void_p, c.c_void_p)


def count_processes(group):
    """Return the number of processes of a process group or of the module horovod.torch; 1 if it is not initialised, and for
    False."""
    if group is False:
        return 1
    if hasattr(group, "allreduce_async_"):
        return group.size() if group.is_initialized() else 1
    dist = torch.distributed
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def make_transport(group):
    """Return the transport for a process group or for the module horovod.torch; None if there is one process."""
    if hasattr(group, "allreduce_async_"):
        if not group.is_initialized():
            raise make_error(_abi.NG_ERR_ARG, "process_group: horovod.torch.init() was not called")
        return None if count_processes(group) == 1 else HorovodTransport(group)
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized():
        if group is not None:
            raise make_error(_abi.NG_ERR_ARG, "process_group: torch.distributed is not initialised")
        return None
    return None if count_processes(group) == 1 else TorchTransport(group)


def _global_ranks(group):
    dist = torch.distributed
    return [dist.distributed_c10d.get_global_rank(group, i) for i in range(dist.get_world_size(group))]


def create_stage_group(data_group, model_group):
    """Create the group of all processes that data groups and model groups connect to this process, which are the ranks
    of its pipeline stage.  Collective over all processes."""
    dist = torch.distributed
    if data_group is None:
        return None
    world, meeting = dist.get_world_size(), dist.new_group(backend="gloo")
    mine = sorted({dist.get_rank(), *_global_ranks(data_group),
                   *([] if model_group is None else _global_ranks(model_group))})
    lists = [None] * world
    dist.all_gather_object(lists, mine, group=meeting)
    dist.destroy_process_group(meeting)
    sets = [{rank, *lists[rank]} for rank in range(world)]
    for _ in range(2):  # twice, because the ranks of a model group are in different data groups
        sets = [set().union(*(sets[other] for other in joined)) for joined in sets]
    found = None
    for joined in sorted({tuple(sorted(one)) for one in sets}):
        group = dist.new_group(list(joined), backend="gloo")
        found = group if dist.get_rank() in joined else found
    return found


def _tensor_at(address, count, dtype):
    """Return a tensor [count] that shares the memory at the address."""
    size = torch.empty((), dtype=dtype).element_size()
    return torch.frombuffer((c.c_char * (count * size)).from_address(address), dtype=dtype)


class _CallbackTable:
    """The table of callbacks of one rank.  A callback that raises an exception returns NG_ERR_COMM to the library, and
    Precond.raise_on_error raises the exception again.

    A subclass has rank, size, _start_sum(tensor, group) and _start_broadcast(tensor, root, group).  Both methods start
    a collective in place, and return an object with is_completed() and wait().
    """

    def __init__(self, name, groups):
        self._groups, self._requests, self._exception, self._numbers = {}, {}, None, itertools.count(1)
        self.table, self._name, self._callbacks = new_struct(_abi.ng_transport), name, []
        self.table.name, self.table.rank, self.table.size = name, self.rank, self.size
        for field, kind in _CALLBACKS.items():
            if field != "group_create" or groups:
                self._set_callback(field, kind(self._catch_exceptions(getattr(self, "_" + field))))
        self._set_callback("abort", _ABORT_CALLBACK(self._abort))
        if groups:
            self._set_callback("group_destroy", _DESTROY_CALLBACK(self._group_destroy))

    def _set_callback(self, field, callback):
        self._callbacks.append(callback)
        setattr(self.table, field, c.cast(callback, c.c_void_p))

    def _catch_exceptions(self, function):
        def call(*arguments):
            try:
                function(*arguments)
                return _abi.NG_OK
            except BaseException as error:  # an exception must not pass through C
                # Without its frames, which refer to the last collective: a collective keeps the connections of a group open.
                self._exception = error.with_traceback(None)
                return _abi.NG_ERR_COMM
        return call

    def take_exception(self):
        error, self._exception = self._exception, None
        return error

    def _abort(self, _user):
        """Let the other ranks fail instead of waiting for this rank, if the backend can."""

    def close(self):
        pass

    # ---- a collective

    def _begin_collective(self, do):
        """Start a collective.  Return (work, function to call after the wait), or None if there is no data."""
        if do.count == 0:
            return None
        group = self._groups[do.group] if do.group else None
        dtype = _TORCH_DTYPES[do.dtype]
        recv = _tensor_at(do.recv, do.count, dtype)
        if (do.kind == _abi.NG_ALL_REDUCE or do.root == self.rank) and do.send != do.recv:
            recv.copy_(_tensor_at(do.send, do.count, dtype))
        if do.kind == _abi.NG_BROADCAST:
            moved = recv.view(torch.uint8)  # as bytes: a backend may not support the dtype
            return self._start_broadcast(moved, do.root, group), lambda: moved
        if do.kind != _abi.NG_ALL_REDUCE:
            raise ValueError(f"collective {do.kind} was not offered")
        sums = recv.float() if dtype in _HALF_DTYPES else recv
        return self._start_sum(sums, group), lambda: sums if sums is recv else recv.copy_(sums)

    def _run(self, _user, pointer):
        begun = self._begin_collective(pointer.contents)
        if begun is not None:
            begun[0].wait()
            begun[1]()

    def _start(self, _user, pointer, request):
        key = next(self._numbers)
        self._requests[key] = self._begin_collective(pointer.contents)
        request[0] = key

    def _wait(self, _user, key):
        begun = self._requests.pop(key)
        if begun is not None:
            begun[0].wait()
            begun[1]()

    def _test(self, _user, key, done):
        begun = self._requests[key]
        done[0] = int(begun is None or begun[0].is_completed())
        if done[0]:
            self._wait(None, key)  # raises if the collective failed

    def meet(self):
        """Wait until all ranks call meet(), where the backend can.  If rank 0 waits MEETING_SECONDS for another rank, fail.
        Other ranks wait as long as the backend does.  Collective."""

    def gather_numbers(self, number):
        """Return a list of the numbers of all ranks.  Collective."""
        numbers = torch.zeros(self.size)
        numbers[self.rank] = number
        self._start_sum(numbers, None).wait()
        return numbers.tolist()

    def broadcast_bytes(self, data):
        """Return the bytes of rank 0 on every rank.  Collective."""
        size = torch.tensor([len(data)])
        self._start_broadcast(size, 0, None).wait()
        body = torch.frombuffer(bytearray(data), dtype=torch.uint8) if self.rank == 0 else torch.empty(
            int(size), dtype=torch.uint8)
        self._start_broadcast(body, 0, None).wait()
        return data if self.rank == 0 else c.string_at(body.data_ptr(), int(size))


class TorchTransport(_CallbackTable):
    """A transport over torch.distributed, with a private process group of the same ranks as the given group.  abort()
    closes the private group, so that no other rank waits for this one.  If the given group uses nccl, the private group
    uses gloo, because the arrays are in host memory."""

    _host_backends = ("gloo", "mpi", "ucc")

    def __init__(self, group):
        self._dist, self._given_group = torch.distributed, group
        self.rank, self.size = self._dist.get_rank(group), self._dist.get_world_size(group)
        self._group = self._own_group = self._private_group()
        if self._own_group is None:  # in older PyTorch only all processes together can create a group
            self._group = group
        super().__init__(b"torch.distributed", group is None)  # creating groups needs all processes

    def _private_group(self):
        backend = str(self._dist.get_backend(self._given_group))
        host = any(name in backend for name in self._host_backends)
        if self._given_group is None:
            return self._new_group(backend=None if host else "gloo")
        if "use_local_synchronization" in inspect.signature(self._dist.new_group).parameters and "mpi" not in backend:
            return self._new_group(self._dist.get_process_group_ranks(self._given_group), use_local_synchronization=True,
                                   backend=backend if host else "gloo")
        if not host:
            raise make_error(_abi.NG_ERR_ABSENT, f"process_group: backend '{backend}' cannot send host memory: pass a "
                             "group of torch.distributed.new_group(backend='gloo')")
        return None

    def _new_group(self, *ranks, **options):
        """Create a group, and wait until all its ranks are connected.  Else a rank that closes the group early, because its model
        or options are rejected, breaks the connections that other ranks still make."""
        group = self._dist.new_group(*ranks, **options)
        if self._dist.get_rank(group) >= 0:  # -1: this rank is no member
            self._dist.barrier(group)
        return group

    def meet(self):
        if self._own_group is None or self._private_backend() != "gloo":
            return
        try:
            self._dist.monitored_barrier(self._group, datetime.timedelta(seconds=MEETING_SECONDS))
        except RuntimeError as error:
            self._abort(None)  # the other ranks get an error in their next collective
            raise make_error(_abi.NG_ERR_COMM, "only some ranks save or load the state: state_dict() of divided arrays, "
                             "load_state_dict(), save_parts() and load_parts() are calls of all ranks") from error

    def _open_group(self, group):
        if group is None and self._group is None:
            raise ConnectionError("the process group was closed after a failure")
        return group or self._group

    def _start_sum(self, tensor, group):
        return self._dist.all_reduce(tensor, group=self._open_group(group), async_op=True)

    def _start_broadcast(self, tensor, root, group):
        if self._given_group is not None:
            root = self._dist.distributed_c10d.get_global_rank(self._given_group, root)
        return self._dist.broadcast(tensor, root, group=self._open_group(group), async_op=True)

    def _group_create(self, _user, ranks, count, out):
        key = next(self._numbers)
        self._groups[key] = self._new_group([ranks[i] for i in range(count)], backend=self._private_backend())
        out[0] = key

    def _private_backend(self):
        return str(self._dist.get_backend(self._group))

    def _group_destroy(self, _user, key):
        self._destroy_if_exists(self._groups.pop(key, None))

    def _destroy_if_exists(self, group):
        if group is not None and self._dist.is_initialized():
            try:
                self._dist.destroy_process_group(group)
            except Exception:  # this rank is no member, or the process is ending
                self._exception = None

    def close(self):
        """Close the private group, after the last collective."""
        own, self._own_group = self._own_group, None
        self._group = None
        self._destroy_if_exists(own)

    def _abort(self, _user):
        cause = self._exception
        self._requests.clear()
        for group in self._groups.values():
            self._destroy_if_exists(group)
        self.close()
        self._exception = cause


class _HorovodHandle:
    """A handle of Horovod with wait() and is_completed()."""

    def __init__(self, hvd, handle):
        self.wait, self.is_completed = lambda: hvd.synchronize(handle), lambda: hvd.poll(handle)


class HorovodTransport(_CallbackTable):
    """A transport over horovod.torch.  Each collective has a name, which is the same on all ranks."""

    _instance_numbers = itertools.count()

    def __init__(self, hvd):
        self._hvd, self.rank, self.size = hvd, hvd.rank(), hvd.size()
        self._prefix, self._calls = f"natgrad.{next(self._instance_numbers)}", itertools.count()
        super().__init__(b"horovod", False)

    def _next_name(self):
        return f"{self._prefix}.{next(self._calls)}"

    def _start_sum(self, tensor, _group):
        return _HorovodHandle(self._hvd, self._hvd.allreduce_async_(tensor, name=self._next_name(), op=self._hvd.Sum))

    def _start_broadcast(self, tensor, root, _group):
        return _HorovodHandle(self._hvd, self._hvd.broadcast_async_(tensor, root, name=self._next_name()))
