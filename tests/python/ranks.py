"""Runs a function on several processes of torch.distributed (gloo), forked from this one."""
import os
import tempfile
import time
import traceback

import torch
import torch.multiprocessing as processes

if not torch.__version__.startswith("1."):
    import torch._dynamo  # noqa: F401  DistributedDataParallel imports it in seconds: import it once, before the forks

os.environ.setdefault("NG_THREADS", "1")  # ranks share the processors

def _run_rank(rank, world, file, function, arguments, results):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    try:
        results.put((rank, True, function(rank, world, *arguments)))
    except BaseException:
        results.put((rank, False, traceback.format_exc()))
        return  # other ranks may wait for this rank; the parent ends them
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run_on_ranks(world, function, *arguments):
    """Return [function(rank, world, *arguments) of each rank]; raise the exception of a rank.  A rank that does not answer
    within NG_TEST_TIMEOUT seconds, or ten minutes on a slow and busy machine, counts as hanging."""
    context = processes.get_context("fork")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "meet")
        children = [context.Process(target=_run_rank, args=(r, world, file, function, arguments, results), daemon=True)
                    for r in range(world)]
        for child in children:
            child.start()
        found, end = {}, time.monotonic() + float(os.environ.get("NG_TEST_TIMEOUT") or 600)
        try:
            while len(found) < world and time.monotonic() < end:
                gone = any(not child.is_alive() for rank, child in enumerate(children) if rank not in found)
                if results.empty():
                    if gone:  # the rank ended before the queue was read, so it sends no result
                        break
                    time.sleep(0.02)
                    continue
                rank, good, value = results.get()
                if not good:
                    raise AssertionError(f"rank {rank} of {world}:\n{value}")
                found[rank] = value
            for child in children:
                child.join(5)
        finally:
            for child in children:
                child.kill()
        if len(found) < world:
            raise AssertionError(f"ranks {sorted(set(range(world)) - set(found))} of {world} did not answer")
    return [found[rank] for rank in range(world)]
