"""Ranks: two and four processes of torch.distributed."""
import contextlib
import ctypes
import itertools
import os
import random
import tempfile
import unittest

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import natgrad
import oracle
import ranks
import recording
from front import DAMPING, NEW, Case, random_batch, loss_of, make_preconditioner
from natgrad import _abi, _distributed, compat
from natgrad.compat import KFACPreconditioner


def two_layer_net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(18, 5), nn.Tanh(), nn.Linear(5, 3))


def train_as_published(rank, world, fraction):
    """The published test: 20 steps on one random batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 20, bias=False), nn.ReLU(), nn.Linear(20, 10), nn.Softmax(dim=1))
    model = DDP(model)
    k = KFACPreconditioner(model, factor_update_steps=5, inv_update_steps=10, allreduce_bucket_cap_mb=0,
                           update_factors_in_hook=False, grad_worker_fraction=fraction, lr=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y, losses = torch.rand(4, 10), torch.rand(4, 10), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).sum()
        loss.backward()
        k.step()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1], [p.detach().numpy().tobytes() for p in model.parameters()]


def replay_on_rank(rank, world, names):
    return {name: recording.replay(*recording.read_recording(name), rank=rank) for name in names}


def gradients_of_shard(rank, world, accumulate, kind):
    """Return the gradients after one step on this rank's shard of 12 samples; accumulate: in two micro-batches."""
    model, (x, y) = DDP(two_layer_net()), random_batch(12, shape=(2, 3, 3))
    x, y = x[rank::world], y[rank::world]
    parts = ((x[:1], y[:1]), (x[1:], y[1:])) if accumulate else ((x, y),)
    k = make_preconditioner(model, getattr(natgrad, kind))
    for i, (px, py) in enumerate(parts):
        share = len(px) / len(x)
        with contextlib.ExitStack() as stack:
            if i + 1 < len(parts):
                stack.enter_context(model.no_sync())
            k.begin(len(px), share)
            (loss_of(model, px, py) * share).backward()
    k.step()
    return {name: p.grad.tolist() for name, p in model.module.named_parameters()}


RESUMED = dict(method="kaisa", grad_worker_fraction=0, solve_period=2)


def train(model, k, steps, rank):
    for t in steps:
        model.zero_grad()
        x, y = random_batch(6, seed=10 * t + rank, shape=(2, 3, 3))
        loss_of(model, x, y).backward()
        k.step()


def damage_last_byte(rank, path):
    """Rank 0 changes the last byte of the file."""
    torch.distributed.barrier()
    if rank == 0:
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)[0]
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last ^ 255]))
    torch.distributed.barrier()


def save_and_load_parts(rank, world, path):
    """Save and load in parts: training continues with the same bits; a damaged part changes nothing on any rank."""
    model, other = DDP(two_layer_net()), DDP(two_layer_net())
    k, k2 = make_preconditioner(model, **RESUMED), make_preconditioner(other, **RESUMED)
    train(model, k, range(3), rank)
    k.save_parts(path)
    saved = str(k.state_dict())
    train(model, k, range(3, 5), rank)
    files, before = sorted(os.listdir(os.path.dirname(path))), str(k2.state_dict())
    damage_last_byte(rank, os.path.join(os.path.dirname(path), files[-1]))
    try:
        k2.load_parts(path)
        told = "nothing"
    except natgrad.Error as error:
        told = str(error), str(k2.state_dict()) == before, k2.steps
    damage_last_byte(rank, os.path.join(os.path.dirname(path), files[-1]))
    k2.load_parts(path)
    loaded = str(k2.state_dict()) == saved and k2.steps == 3
    train(other, k2, range(3, 5), rank)
    same = all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), other.parameters()))
    return files, told, loaded, same


def load_parts_on_one_rank(rank, world, path):
    k = make_preconditioner(two_layer_net(), **RESUMED)
    k.load_parts(path)
    return k.steps, sorted(k.state_dict()["fields"])


def resume_from_state(rank, world):
    """The state is equal on all ranks; after loading, training continues with the same bits."""
    model = DDP(two_layer_net())
    k = make_preconditioner(model, **RESUMED)
    train(model, k, range(3), rank)
    state = k.state_dict()
    train(model, k, range(3, 5), rank)
    other = DDP(two_layer_net())
    k2 = make_preconditioner(other, **RESUMED)
    k2.load_state_dict(state)
    train(other, k2, range(3, 5), rank)
    same = all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), other.parameters()))
    return same, state["manifest"], {name: tensor.tolist() for name, tensor in state["fields"].items()}


def save_on_rank_0(rank, world, path, fraction):
    """Rank 0 alone saves a state, as scripts of kfac-pytorch do; after loading, the next step has the same result, up
    to the order in which DDP sums gradients: it changes after the first backward pass."""
    model, other = DDP(two_layer_net()), DDP(two_layer_net())
    k, k2 = (KFACPreconditioner(m, damping=0.1, grad_worker_fraction=fraction) for m in (model, other))
    train(model, k, range(3), rank)
    if rank == 0:
        torch.save(k.state_dict(), path)
    train(model, k, [3], rank)
    k2.load_state_dict(torch.load(path))  # the step of all ranks came after the file
    train(other, k2, [3], rank)
    broken = torch.load(path)
    if rank == 1:
        broken["layers"]["1"]["A"] = None
    try:
        k2.load_state_dict(broken)
        told = ""
    except natgrad.Error as error:
        told = str(error)
    pairs = [(a.grad, b.grad) for a, b in zip(model.parameters(), other.parameters())]
    return k2.steps, all((a - b).norm() < 1e-5 * a.norm() for a, b in pairs), told


def load_different_kinds(rank, world):
    """Rank 0 loads an exact state, rank 1 a state in the layout of the published program."""
    found = []
    for make, published in ((KFACPreconditioner, lambda state: {"steps": 0}),
                            (compat.DP_KFAC, lambda state: {name: state[name] for name in ("state", "param_groups")})):
        k = make(two_layer_net())
        exact = {**natgrad.Preconditioner.state_dict(k), "numbers": {}} if make is KFACPreconditioner else k.state_dict()
        try:
            k.load_state_dict(exact if rank == 0 else published(exact))
        except natgrad.Error as error:
            found.append(str(error))
    return found


def save_on_one_rank(rank, world):
    """Return states that all ranks save together (on rank 0) and that one rank saves alone (on rank 1); then the errors if
    rank 0 saves divided arrays alone."""
    _distributed.MEETING_SECONDS = 1
    found = []
    for make in (lambda m: natgrad.SGD(m, 0.1, momentum=0.9), natgrad.AdamW, compat.MPD_KFAC, natgrad.MFAC, natgrad.Eva):
        model = DDP(two_layer_net())
        k = make(model)
        train(model, k, range(2), rank)
        together = getattr(k, "preconditioner", k)._core.save(rank == 0)
        if rank == 1:
            k.state_dict()
        found.append(together if rank == 0 else getattr(k, "preconditioner", k)._core.save(call="save_local"))
        train(model, k, [2], rank)
    model = two_layer_net()
    k = compat.DP_KFAC(model)
    k.state_dict()
    try:
        train(model, k, [0], rank) if rank == 1 else k.state_dict()
    except natgrad.Error as error:
        return found, str(error)
    return found, ""


def make_with_different_damping(rank, world):
    try:
        make_preconditioner(two_layer_net(), damping=0.1 + rank)
    except natgrad.Error as error:
        return str(error)
    return ""


def step_with_broken_transport(rank, world):
    k = make_preconditioner(two_layer_net())
    def raise_connection_error(*_arguments, **_more):
        raise ConnectionError("the cable")
    k._core.transport._dist = type("Dist", (), dict(all_reduce=raise_connection_error, broadcast=raise_connection_error,
                                                    is_initialized=lambda: False))
    loss_of(k.model, *random_batch(4, shape=(2, 3, 3))).backward()
    try:
        k.step()
    except natgrad.Error as error:
        return repr(error.__cause__)
    return ""


def step_with_broken_rank(rank, world):
    """The transport of rank 1 fails; all other ranks get the error at once."""
    k = make_preconditioner(two_layer_net())
    if rank == 1:
        def raise_connection_error(*_arguments, **_more):
            raise ConnectionError("the cable")
        k._core.transport._start_sum = k._core.transport._start_broadcast = raise_connection_error
    loss_of(k.model, *random_batch(4, shape=(2, 3, 3))).backward()
    try:
        k.step()
    except natgrad.Error as error:
        return str(error)
    return None


FAULTS = int(40 * float(os.environ.get("NG_TEST_MULT") or 1))


def step_with_random_faults(rank, world, tries, seed):
    """A random collective of a random rank fails in one of three steps.  Return a description of each try in which a rank got
    no error although the failing rank did, or in which a rank moved a gradient in the failed step; and the number of faults."""
    dice, wrong, faults = random.Random(seed), [], 0
    for n in range(tries):
        kind, options = dice.choice((("KFAC", dict()), ("KFAC", dict(grad_worker_fraction=0)), ("Eva", dict()),
                                     ("KFAC", dict(statistics="owner")), ("MFAC", dict(window=2)),
                                     ("KFAC", dict(solver="eigen", damping_split="joint"))))
        bad, at = dice.randrange(world), dice.randrange(1, 13)
        k = make_preconditioner(two_layer_net(), getattr(natgrad, kind), **options)
        table, count = k._core.transport, itertools.count(1)

        def fail_once(start):
            def call(*arguments):
                if next(count) == at:
                    raise ConnectionError("the cable")
                return start(*arguments)
            return call
        if rank == bad:
            table._start_sum, table._start_broadcast = fail_once(table._start_sum), fail_once(table._start_broadcast)
        failed = None
        for step in range(3):
            loss_of(k.model, *random_batch(4, seed=step, shape=(2, 3, 3))).backward()
            before = [p.grad.clone() for p in k.model.parameters()]
            try:
                k.step()
            except natgrad.Error:
                failed = step
                if not all(torch.equal(p.grad, g) for p, g in zip(k.model.parameters(), before)) and rank != bad:
                    failed = -1 - step
                break
        told = [None] * world
        torch.distributed.all_gather_object(told, failed)
        k.close()
        first = told[bad]
        faults += first is not None
        # A rank that finished the failed step gets the error in the next one, which the last step has not.
        late = first is not None and first < 2
        if (late and not all(t is not None and first <= t <= first + 1 for t in told)) or (first is None and any(
                t is not None for t in told)):
            wrong.append((n, kind, options, bad, at, told))
    return wrong, faults


def errors_of_sharded_parameters(rank, world):
    """Messages of a fused update about tensor-parallel parameters, and of three classes about FSDP of PyTorch 1."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import distribute_module
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    mesh, said = init_device_mesh("cpu", (world,)), []
    plan, all_of_it = two_layer_net(), two_layer_net()
    parallelize_module(plan, mesh, {"3": ColwiseParallel()})
    distribute_module(all_of_it, mesh)
    outer = FullyShardedDataParallel.__new__(FullyShardedDataParallel)  # __init__ needs an accelerator
    nn.Module.__init__(outer)
    outer.model = two_layer_net()
    fsdp = nn.Sequential(outer)
    for make_one in (lambda: natgrad.SGD(plan, 0.1), lambda: natgrad.SGD(all_of_it, 0.1), lambda: make_preconditioner(fsdp),
                     lambda: natgrad.SGD(fsdp, 0.1), lambda: KFACPreconditioner(fsdp)):
        try:
            make_one()
            said.append("nothing")
        except natgrad.Error as error:
            said.append(str(error))
    return said


def check_collectives(rank, world):
    """Each kind and dtype of a collective, in place and not in place; 16-bit sums are rounded once."""
    transport, wrong = _distributed.make_transport(None), []
    for dtype, kind in ((torch.float64, _abi.NG_F64), (torch.float32, _abi.NG_F32), (torch.bfloat16, _abi.NG_BF16),
                        (torch.float16, _abi.NG_F16)):
        parts = [torch.arange(1, 6).to(dtype) / 3 + r * 7 for r in range(world)]
        wide = sum(p.double() for p in parts) if dtype == torch.float64 else sum(p.float() for p in parts)
        for collective, expected in ((_abi.NG_ALL_REDUCE, wide.to(dtype)), (_abi.NG_BROADCAST, parts[1])):
            for in_place in (True, False):
                send = parts[rank].clone()
                recv = send if in_place else torch.full_like(send, 9)
                do = _abi.ng_collective()
                do.kind, do.dtype, do.root, do.count = collective, kind, 1, 5
                do.send, do.recv = send.data_ptr(), recv.data_ptr()
                request, done = ctypes.c_void_p(), ctypes.c_int32()
                for how in ("run", "wait", "test"):
                    send.copy_(parts[rank])
                    if how == "run":
                        transport._run(None, ctypes.pointer(do))
                    else:
                        transport._start(None, ctypes.pointer(do), ctypes.pointer(request))
                    if how == "wait":
                        transport._wait(None, request.value)
                    while how == "test" and not done.value:
                        transport._test(None, request.value, ctypes.pointer(done))
                    if not torch.equal(recv, expected) or not (in_place or torch.equal(send, parts[rank])):
                        wrong.append((str(dtype), collective, in_place, how))
                if transport._requests:
                    wrong.append("a request that is left")
    return wrong


class Ranks(Case):
    def test_collectives_give_sums_and_copies(self):
        for wrong in ranks.run_on_ranks(3, check_collectives):
            self.assertEqual(wrong, [])

    def test_published_training_learns(self):
        for world, fraction in ((1, 1), (1, 0), (2, 0.5), (4, 0.5)):
            with self.subTest(world=world, fraction=fraction):
                found = ranks.run_on_ranks(world, train_as_published, fraction)
                for first, last, weights in found:
                    self.assertLess(last, first)
                    self.assertEqual(weights, found[0][2])

    def test_recordings_of_several_ranks(self):
        for world in (2, 4):
            names = recording.recording_names(f"ranks{world}-*", f"spngd-ranks{world}*")
            self.assertGreaterEqual(len(names), 6)
            for found in ranks.run_on_ranks(world, replay_on_rank, names):
                for name, error in found.items():
                    self.assertLess(error, 1e-5, name)

    def test_shards_match_whole_batch(self):
        data = random_batch(12, shape=(2, 3, 3))
        expected = oracle.kfac_gradients(two_layer_net(), ("1", "3"), lambda m: [loss_of(m, *data)], DAMPING)
        for world, accumulate in ((2, False), (2, True), (3, False)):
            with self.subTest(world=world, accumulate=accumulate):
                for found in ranks.run_on_ranks(world, gradients_of_shard, accumulate, "KFAC"):
                    self.assert_near_oracle({name: torch.tensor(g) for name, g in found.items()}, expected)

    def test_state_is_equal_on_all_ranks(self):
        found = ranks.run_on_ranks(2, resume_from_state)
        for same, *state in found:
            self.assertTrue(same)
            self.assertEqual(state, list(found[0][1:]))
            self.assertIn("1/A", state[1])  # the names of the model inside of DistributedDataParallel

    def test_rank_0_saves_a_kaisa_state_alone(self):
        for world, fraction in ((2, 1), (2, 0), (4, 0.5)):
            with self.subTest(world=world, fraction=fraction), tempfile.TemporaryDirectory() as folder:
                found = ranks.run_on_ranks(world, save_on_rank_0, os.path.join(folder, "state"), fraction)
                self.assertEqual([row[:2] for row in found], [(4, True)] * world)
                told = [row[2] for row in found]
                self.assertRegex(told[1], r"layers\['1'\]\['A'\] is a NoneType")
                self.assertTrue(all("another rank rejected" in text for rank, text in enumerate(told) if rank != 1), told)

    def test_states_of_different_kinds_fail_on_all_ranks(self):
        for told in ranks.run_on_ranks(2, load_different_kinds):
            self.assertEqual(told, ["the ranks have states of different kinds: load the same state on all ranks"] * 2)

    def test_one_rank_saves_alone_or_all_ranks_fail(self):
        (together, reason), (alone, told) = ranks.run_on_ranks(2, save_on_one_rank)
        self.assertEqual(together, alone)
        self.assertIn("only some ranks save or load the state", reason)
        self.assertIn("transport failed", told)

    def test_parts_restore_bits(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "state")
            for files, told, loaded, same in ranks.run_on_ranks(2, save_and_load_parts, path):
                self.assertEqual(len(files), 2)
                self.assertIn("is damaged", told[0])
                self.assertEqual(told[1:], (True, 0))
                self.assertTrue(loaded)
                self.assertTrue(same)
            (steps, fields), = ranks.run_on_ranks(1, load_parts_on_one_rank, path)
            self.assertEqual(steps, 3)
            self.assertIn("1/A", fields)

    def test_different_options_fail_on_all_ranks(self):
        for text in ranks.run_on_ranks(2, make_with_different_damping):
            self.assertRegex(text, "options of 1 of 2 ranks differ")

    def test_error_has_transport_error_as_cause(self):
        for text in ranks.run_on_ranks(2, step_with_broken_transport):
            self.assertIn("the cable", text)

    def test_other_ranks_do_not_wait_for_failed_rank(self):
        # torch.distributed would wait for half an hour, longer than ranks.run_on_ranks
        for found in ranks.run_on_ranks(2, step_with_broken_rank):
            self.assertIsNotNone(found)

    def test_random_faults_reach_all_ranks(self):
        seed = int(os.environ.get("NG_TEST_SEED") or 20260714)
        for world in (2, 3):
            for wrong, faults in ranks.run_on_ranks(world, step_with_random_faults, FAULTS // 2, seed):
                self.assertEqual(wrong, [])
                self.assertGreater(2 * faults, FAULTS // 2 - 10)

    @unittest.skipUnless(NEW, "DTensor is in PyTorch 2")
    def test_unsupported_sharded_parameters_are_refused(self):
        tensor, fsdp = "is a DTensor: sharded and traced tensors", "'0' is a FullyShardedDataParallel: parameters that FSDP has sharded"
        expected = ("'3.weight' " + tensor, "'1.weight' " + tensor, fsdp, fsdp, fsdp)
        for said in ranks.run_on_ranks(2, errors_of_sharded_parameters):
            self.assertEqual(len(said), len(expected))
            for text, why in zip(said, expected):
                self.assertIn(why, text)


if __name__ == "__main__":
    unittest.main()
