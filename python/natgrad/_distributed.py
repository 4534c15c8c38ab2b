"""Ranks: torch.distributed behind the library's table of callbacks."""
import ctypes as c

import torch

from . import _abi
from ._core import failure, filled

_TORCH = {_abi.NG_F64: torch.float64, _abi.NG_F32: torch.float32, _abi.NG_BF16: torch.bfloat16,
          _abi.NG_F16: torch.float16, _abi.NG_I32: torch.int32, _abi.NG_I64: torch.int64, _abi.NG_U8: torch.uint8}
_HALF = (torch.bfloat16, torch.float16)
_RUN = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(_abi.ng_collective))
_CREATE = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(c.c_int32), c.c_int32, c.POINTER(c.c_void_p))
_DESTROY = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p)


def transport(group):
    """Of a process group; None where there is none, or this process is alone."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized():
        if group is not None:
            raise failure(_abi.NG_ERR_ARG, "process_group: torch.distributed is not initialised")
        return None
    return None if dist.get_world_size(group) == 1 else Transport(group)


def _memory(address, count, dtype):
    """A tensor over memory of the library."""
    size = torch.empty((), dtype=dtype).element_size()
    return torch.frombuffer((c.c_char * (count * size)).from_address(address), dtype=dtype)


class Transport:
    """The table of one rank.  A callback that raised gives NG_ERR_COMM; its exception is the cause of the error."""

    def __init__(self, group):
        self._dist, self._group = torch.distributed, group
        backend = str(self._dist.get_backend(group))
        if "gloo" not in backend and "mpi" not in backend and "ucc" not in backend:
            raise failure(_abi.NG_ERR_ABSENT, f"process_group: backend '{backend}' does not carry host memory: give a "
                          "group of torch.distributed.new_group(backend='gloo')")
        self.rank, self.size = self._dist.get_rank(group), self._dist.get_world_size(group)
        self._groups, self._failure = {}, None
        self.table = filled(_abi.ng_transport)
        self._name = b"torch.distributed"
        self._callbacks = [_RUN(self._guarded(self._run)), _CREATE(self._guarded(self._create)), _DESTROY(self._destroy)]
        table = self.table
        table.name, table.rank, table.size = self._name, self.rank, self.size
        table.run = c.cast(self._callbacks[0], c.c_void_p)
        if group is None:  # new_group is a call of all processes; ranks are those of the default group
            table.group_create = c.cast(self._callbacks[1], c.c_void_p)
            table.group_destroy = c.cast(self._callbacks[2], c.c_void_p)

    def _guarded(self, function):
        def call(*arguments):
            try:
                function(*arguments)
                return _abi.NG_OK
            except BaseException as error:  # nothing may pass through C
                self._failure = error
                return _abi.NG_ERR_COMM
        return call

    def take_failure(self):
        error, self._failure = self._failure, None
        return error

    def _global(self, rank):
        if self._group is None:
            return rank
        return self._dist.distributed_c10d.get_global_rank(self._group, rank)

    def _run(self, _user, pointer):
        do = pointer.contents
        group = self._groups[do.group] if do.group else self._group
        if do.count == 0:
            return
        dtype = _TORCH[do.dtype]
        recv = _memory(do.recv, do.count, dtype)
        mine = do.kind == _abi.NG_ALL_REDUCE or do.root == self.rank
        if mine and do.send != do.recv:
            recv.copy_(_memory(do.send, do.count, dtype))
        if do.kind == _abi.NG_BROADCAST:
            moved = recv.view(torch.uint8)  # of any dtype
            self._dist.broadcast(moved, self._global(do.root), group=group)
        elif do.kind == _abi.NG_ALL_REDUCE:
            sums = recv.float() if dtype in _HALF else recv
            self._dist.all_reduce(sums, group=group)
            if sums is not recv:
                recv.copy_(sums)
        else:
            raise ValueError(f"collective {do.kind} was not offered")

    def _create(self, _user, ranks, count, out):
        key = len(self._groups) + 1
        self._groups[key] = self._dist.new_group([ranks[i] for i in range(count)])
        out[0] = key

    def _destroy(self, _user, key):
        group = self._groups.pop(key, None)
        if group is not None and self._dist.is_initialized():
            try:
                self._dist.destroy_process_group(group)
            except Exception:  # of a group that this rank is no member of, or at the end of the process
                self._failure = None

    def share(self, data):
        """Bytes of rank 0 on every rank."""
        size = torch.tensor([len(data)])
        self._dist.broadcast(size, self._global(0), group=self._group)
        body = torch.frombuffer(bytearray(data), dtype=torch.uint8) if self.rank == 0 else torch.empty(
            int(size), dtype=torch.uint8)
        self._dist.broadcast(body, self._global(0), group=self._group)
        return data if self.rank == 0 else c.string_at(body.data_ptr(), int(size))
