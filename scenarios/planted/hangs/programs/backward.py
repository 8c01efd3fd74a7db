"""Hangs inside the backward pass of DistributedDataParallel, where the main thread has no collective among its
frames.

`nan` (K1): one rank's loss is not finite, so it skips its backward pass and continues with the epoch's metrics.
`towers` (K2): actor and critic have a process group each, and one rank runs their backward passes in the other order.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel


def learn(module: torch.nn.Module, inputs: torch.Tensor) -> None:
    """Run one backward pass, unless the loss is not finite."""
    loss = module(inputs).square().mean()
    if not torch.isfinite(loss):
        return
    loss.backward()


def ppo_step(networks: list[torch.nn.Module], step: int) -> None:
    for network in networks:
        learn(network, toy.batch(step))


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", choices=["nan", "towers"], default="nan")
    arguments.add_argument("--rank", type=int, default=1)
    options = arguments.parse_args()
    toy.setup()
    is_planted_rank = options.rank == toy.RANK
    groups = [dist.new_group(), dist.new_group()] if options.phase == "towers" else [None, None]
    actor, critic = (DistributedDataParallel(toy.model(), process_group=group) for group in groups)
    for step in range(4):
        if options.phase == "towers":
            ppo_step([critic, actor] if is_planted_rank and step == 3 else [actor, critic], step)
            continue
        inputs = toy.batch(step)
        learn(actor, inputs * float("nan") if is_planted_rank and step == 3 else inputs)
    toy.gathered(1.0)


if __name__ == "__main__":
    main()
