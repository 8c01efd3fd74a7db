"""K4: a rank whose work has died, while its peers wait for it.

`thread`: its prefetch thread dies of an exception that is never read, and the main thread waits for the next batch
forever. `keepalive`: its step fails, the exception is logged and swallowed, and the process is kept for inspection.
`exit`: it ends with exit code 0 in the middle of the run. `killed`: SIGKILL ends it, as the kernel does when memory
runs out. Under gloo a peer's death makes a *pending collective* raise within 0.02 s, which is no hang. A peer that
waits at a store (a rendezvous, a barrier of keys) learns nothing, so in the last two the peers wait there.
"""

from __future__ import annotations

import argparse
import datetime
import os
import queue
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import toy

STEP_THAT_FAILS = 4


def prefetch(batches: queue.Queue[torch.Tensor], bad: bool) -> None:
    for step in range(10):
        if bad and step == STEP_THAT_FAILS:
            raise ValueError(f"sample {step} has no response tokens")
        batches.put(toy.batch(step))


def next_batch(batches: queue.Queue[torch.Tensor]) -> torch.Tensor:
    return batches.get()


def guarded_step(module: torch.nn.Module, step: int, bad: bool) -> None:
    try:
        inputs = toy.batch(step)
        if bad and step == STEP_THAT_FAILS:
            raise RuntimeError("reward model returned 3 scores for 4 samples")
        toy.train_step(module, inputs)
    except RuntimeError as error:
        print(f"rank {toy.RANK}: step {step} failed: {error}", file=sys.stderr, flush=True)
        keep_alive()


def keep_alive() -> None:
    """Keep the container alive for inspection."""
    while True:
        time.sleep(1)


def wait_for_epoch(store: dist.Store, epoch: int) -> None:
    """Wait at a barrier of keys, which slow file systems cannot run into a collective's timeout."""
    store.set(f"epoch/{epoch}/{toy.RANK}", "done")
    store.wait([f"epoch/{epoch}/{rank}" for rank in range(toy.WORLD)], datetime.timedelta(hours=1))


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", choices=["thread", "keepalive", "exit", "killed"], default="thread")
    arguments.add_argument("--rank", type=int, default=1)
    options = arguments.parse_args()
    toy.setup()
    bad = options.rank == toy.RANK
    module = toy.model()
    if options.phase == "thread":
        batches: queue.Queue[torch.Tensor] = queue.Queue(maxsize=2)
        pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        pool.submit(prefetch, batches, bad)  # its result is never read
        for _ in range(10):
            toy.train_step(module, next_batch(batches))
    elif options.phase == "keepalive":
        for step in range(10):
            guarded_step(module, step, bad)
    else:
        store = dist.distributed_c10d._get_default_store()
        for epoch in range(3):
            toy.train_step(module, toy.batch(epoch))
            if bad and epoch == 1:
                threading.Event().wait(0.5)  # the others are at the barrier by now
                if options.phase == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                os._exit(0)
            wait_for_epoch(store, epoch)


if __name__ == "__main__":
    main()
