"""Process groups: the private group of the library, groups of some ranks, Horovod."""
import inspect
import os
import tempfile
import time
import unittest

import torch

import natgrad
import oracle
import ranks
from front import DAMPING, Case, random_batch, loss_of, make_preconditioner
from natgrad import _distributed
from test_ranks import two_layer_net


def step_beside_nccl(rank, world, given=False):
    """A group that cannot send host memory, the default group or the caller's: the package makes a group of gloo."""
    dist, real = torch.distributed, torch.distributed.get_backend
    new_group, asked = dist.new_group, []
    own = new_group(list(range(world))) if given else None
    dist.get_backend = lambda group=None: "nccl" if group is own else real(group)

    def record_backend(*args, backend=None, **more):
        asked.append(backend)
        return new_group(*args, backend=backend, **more)
    record_backend.__signature__ = inspect.signature(new_group)  # the package inspects the arguments of new_group
    dist.new_group = record_backend
    try:
        k = make_preconditioner(two_layer_net(), process_group=own, grad_worker_fraction=1.0)
    except natgrad.Error as error:
        return str(error), set(asked)
    finally:
        dist.get_backend, dist.new_group = real, new_group
    loss_of(k.model, *random_batch(4, shape=(2, 3, 3))).backward()
    return k.step(), set(asked)


def step_beside_nccl_group(rank, world):
    return step_beside_nccl(rank, world, given=True)


class StubHorovod:
    """horovod.torch on top of torch.distributed, which ignores the names of messages."""

    Sum = "sum"

    def __init__(self, rank, world):
        self.names, self.rank, self.size, self.is_initialized = [], lambda: rank, lambda: world, lambda: True

    def init(self):
        pass

    def allreduce_async_(self, tensor, name, op):
        assert op == self.Sum and name not in self.names
        self.names.append(name)
        return torch.distributed.all_reduce(tensor, async_op=True)

    def broadcast_async_(self, tensor, root, name):
        assert name not in self.names
        self.names.append(name)
        return torch.distributed.broadcast(tensor, root, async_op=True)

    def synchronize(self, handle):
        handle.wait()

    def poll(self, handle):
        return handle.is_completed()


def step_over_horovod(rank, world):
    """Horovod gives the gradients and the state of torch.distributed, with the same message names on all ranks."""
    import sys
    import types
    import natgrad.compat as kfac
    found, hvd = [], StubHorovod(rank, world)
    x, y = random_batch(12, shape=(2, 3, 3))
    for group in (None, hvd):
        model = two_layer_net()
        k = make_preconditioner(model, process_group=group, method="kaisa", grad_worker_fraction=0)
        loss_of(model, x[rank::world], y[rank::world]).backward()
        for p in model.parameters():
            torch.distributed.all_reduce(p.grad)
            p.grad /= world
        k.step()
        found.append([p.grad.clone() for p in model.parameters()] + list(k.state_dict()["fields"].values()))
    same = all(torch.equal(a, b) for a, b in zip(*found))
    sys.modules["horovod"] = types.ModuleType("horovod")
    sys.modules["horovod.torch"] = sys.modules["horovod"].torch = hvd
    kfac.backend.init("Horovod")
    before = len(hvd.names)
    k = kfac.get_kfac_module("eva")(two_layer_net())
    loss_of(k.preconditioner.model, x, y).backward()
    k.step()
    return same, len(hvd.names) > before, hvd.names


def step_in_subgroup(rank, world):
    """A group of two of three processes: ranks in the group differ from ranks in the world."""
    group = torch.distributed.new_group([1, 2])
    if rank == 0:
        return None
    model = two_layer_net()
    k = make_preconditioner(model, process_group=group, grad_worker_fraction=0)
    x, y = random_batch(12, shape=(2, 3, 3))
    loss_of(model, x[rank - 1::2], y[rank - 1::2]).backward()
    for p in model.parameters():
        torch.distributed.all_reduce(p.grad, group=group)
        p.grad /= 2
    k.step()
    return {name: p.grad.tolist() for name, p in model.named_parameters()}


def make_groups_slowly(rank, world, folder):
    """The last rank takes long to connect to a group.  Return whether this rank waited for it, for the private group and for a
    group of the ranks 0 and 2."""
    dist, waited = torch.distributed, []
    new_group = dist.new_group

    def connect_late(*arguments, **more):
        group = new_group(*arguments, **more)
        if rank == world - 1:
            time.sleep(0.3)
            open(os.path.join(folder, str(len(waited))), "w").close()
        return group
    connect_late.__signature__ = inspect.signature(new_group)
    dist.new_group = connect_late
    try:
        transport = _distributed.make_transport(None)
        waited.append(os.path.exists(os.path.join(folder, "0")))
        made = [None]
        transport._group_create(None, (0, 2), 2, made)
        waited.append(os.path.exists(os.path.join(folder, "1")))
    finally:
        dist.new_group = new_group
    dist.barrier()
    transport._group_destroy(None, made[0])
    transport.close()
    return waited


class Groups(Case):
    def test_no_rank_leaves_before_all_are_connected(self):
        """A rank that closed a group earlier would break the connections of the others: gloo fails in connectFullMesh."""
        with tempfile.TemporaryDirectory() as folder:
            found = ranks.run_on_ranks(3, make_groups_slowly, folder)
        self.assertEqual([found[0], found[1][0]], [[True, True], True])

    def test_private_group_beside_nccl(self):
        for found in ranks.run_on_ranks(2, step_beside_nccl):
            self.assertEqual(found, (0, {"gloo"}))
        for found, asked in ranks.run_on_ranks(2, step_beside_nccl_group):
            if "use_local_synchronization" in inspect.signature(torch.distributed.new_group).parameters:
                self.assertEqual((found, asked), (0, {"gloo"}))
            else:  # PyTorch 1.13 needs all ranks to make a group of some ranks
                self.assertIn("process_group: backend 'nccl' cannot send host memory", found)

    def test_horovod_matches_distributed(self):
        found = ranks.run_on_ranks(2, step_over_horovod)
        for same, used, names in found:
            self.assertTrue(same and used)
            self.assertEqual(names, found[0][2])

    def test_group_of_two_of_three_ranks(self):
        data = random_batch(12, shape=(2, 3, 3))
        expected = oracle.kfac_gradients(two_layer_net(), ("1", "3"), lambda m: [loss_of(m, *data)], DAMPING)
        for found in ranks.run_on_ranks(3, step_in_subgroup)[1:]:
            self.assert_near_oracle({name: torch.tensor(g) for name, g in found.items()}, expected)

    def test_uninitialised_group_is_refused(self):
        with self.assert_refused("torch.distributed is not initialised"):
            make_preconditioner(two_layer_net(), process_group=object())


if __name__ == "__main__":
    unittest.main()
