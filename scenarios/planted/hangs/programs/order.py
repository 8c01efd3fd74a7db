"""K2: ranks that use two process groups in opposite orders (ABBA), or three groups in a ring.

`pair`: gradients of two towers, reduced in the order in which each rank's backward finished. `ring`: three ranks and
three groups of two; each rank waits in the next one's group. `sync`: the trainer broadcasts weights to an engine
while that engine asks the trainer for metrics.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import toy


def reduce_tower(name: str, group: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.ones(8, device=toy.DEVICE), group=group)


def backward(towers: dict[str, dist.ProcessGroup], reverse: bool) -> None:
    """Reduce each tower as soon as its gradients are ready."""
    for name in sorted(towers, reverse=reverse):
        reduce_tower(name, towers[name])


def neighbours(groups: list[dist.ProcessGroup], first: int) -> None:
    """Exchange borders with both neighbours of the ring."""
    for number in (first, (first - 1) % 3):
        dist.all_reduce(torch.ones(8, device=toy.DEVICE), group=groups[number])


def push_weights(group: dist.ProcessGroup) -> None:
    dist.broadcast(torch.ones(64, device=toy.DEVICE), src=0, group=group)


def collect_metrics(group: dist.ProcessGroup) -> None:
    rows = [torch.zeros(2, device=toy.DEVICE) for _ in range(2)]
    dist.all_gather(rows, torch.ones(2, device=toy.DEVICE), group=group)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", choices=["pair", "ring", "sync"], default="pair")
    options = arguments.parse_args()
    toy.setup()
    if options.phase == "ring":
        groups = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([0, 2])]
        for step in range(4):
            for number in range(3) if step < 3 else ():
                if dist.get_rank(groups[number]) >= 0:
                    dist.all_reduce(torch.ones(8, device=toy.DEVICE), group=groups[number])
        neighbours(groups, toy.RANK)
        return
    # Three steps in the right order first: the fault begins in a run that has made progress.
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    for _ in range(3):
        if options.phase == "pair":
            backward({"critic": first, "policy": second}, reverse=False)
        else:
            push_weights(first)
            collect_metrics(second)
    if options.phase == "pair":
        backward({"critic": first, "policy": second}, reverse=toy.RANK == 1)
    elif toy.RANK == 0:
        collect_metrics(second)
        push_weights(first)
    else:
        push_weights(first)
        collect_metrics(second)


if __name__ == "__main__":
    main()
