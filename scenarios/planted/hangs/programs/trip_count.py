"""K1: data-parallel training in which one rank runs another number of collectives than its peers.

`micro`: sequence packing gives one rank one microbatch more. `short`: its shard ends one batch early, and it
continues with the epoch's metrics. `publish`: it runs one epoch less, and then waits for a file, outside any
collective. `sharded`: as `short`, with sharded gradients (reduce_scatter, all_gather).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
import toy


def microbatches(step: int, extra: bool) -> range:
    """Return the microbatches of a step. Packing by token count is local to a rank, so counts may differ."""
    return range(3 if extra and step == 2 else 2)


def accumulate(module: torch.nn.Module, step: int, extra: bool) -> None:
    for micro in microbatches(step, extra):
        toy.train_step(module, toy.batch(step * 10 + micro))


def sharded_step(weights: torch.Tensor, step: int) -> None:
    """Run a step in which each rank owns one slice of the gradient and of the weights."""
    gradient = toy.batch(step)[:, : toy.WORLD * 4].reshape(-1)[: weights.numel()].contiguous()
    mine = torch.empty(weights.numel() // toy.WORLD, device=toy.DEVICE)
    dist.reduce_scatter_tensor(mine, gradient)
    dist.all_gather_into_tensor(weights, mine * 0.9)


def publish(folder: Path) -> None:
    """Hand the epoch to the evaluator, and wait until it has taken it."""
    while not (folder / "taken").exists():
        time.sleep(0.05)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", choices=["micro", "short", "publish", "sharded"], default="micro")
    arguments.add_argument("--rank", type=int, default=1)
    options = arguments.parse_args()
    toy.setup()
    is_planted_rank = options.rank == toy.RANK
    module = toy.model()
    weights = torch.zeros(toy.WORLD * 8, device=toy.DEVICE)
    leaves = is_planted_rank and options.phase == "publish"
    for epoch in range(2 if leaves else 3):
        is_short = is_planted_rank and options.phase in ("short", "sharded") and epoch > 0
        steps = 3 if is_short else 4  # of this rank's shard
        for step in range(steps):
            if options.phase == "sharded":
                sharded_step(weights, step)
            else:
                accumulate(module, step, is_planted_rank and epoch > 0 and options.phase == "micro")
        toy.gathered(float(epoch))
    if leaves:
        publish(Path("/nonexistent/evaluator"))


if __name__ == "__main__":
    main()
