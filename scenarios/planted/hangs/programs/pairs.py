"""K1, K2: a pair of engine ranks and a pair of trainer ranks in a ring of waits. No second pair does the same work.

`short`: a trainer rank has one batch less and waits in the final barrier, while the others continue their loop.
`long`: one has one batch more, and the others are at the end. `swallowed`: an engine rank raises in its forward pass;
its loop catches that and waits for the next order.

In the following no process can be named. `apart`: as `short`, but the engines run a loop of their own, so either of
the two that share the trainers' loop may be wrong. `cut`: as `swallowed`, but the rank itself decides that it is
done, which may be right. `both`: as `swallowed`, while its peer does something new too.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.distributed as dist
import toy

LAYERS, BATCHES, STRIKES = 4, 12, 9


def message() -> torch.Tensor:
    return torch.ones(16, device=toy.DEVICE)


class Groups:
    def __init__(self) -> None:
        self.tensor, self.orders = dist.new_group([0, 1]), dist.new_group([0, 1])
        self.data, self.weights = dist.new_group([2, 3]), dist.new_group([0, 1, 2])
        self.samples = dist.new_group([0, 2, 3])


def forward(groups: Groups, *, fails: bool = False, stops: bool = False, publishes: bool = False) -> None:
    for layer in range(LAYERS):
        if layer == 2 and fails:
            raise IndexError("token id 151936 is not in the vocabulary")
        if layer == 2 and stops:
            return
        if layer == 2 and publishes:
            dist.broadcast(message(), src=0, group=groups.samples)
        dist.all_reduce(message(), group=groups.tensor)


def rounds(groups: Groups, batches: int) -> None:
    for _ in range(batches):
        if toy.RANK > 1:
            dist.all_reduce(message(), group=groups.data)
        else:
            forward(groups)
        if toy.RANK < 3:
            dist.broadcast(message(), src=2, group=groups.weights)
    dist.barrier()


def engine_rounds(groups: Groups, batches: int) -> None:
    while batches > 0:
        forward(groups)
        dist.broadcast(message(), src=2, group=groups.weights)
        batches -= 1
    dist.barrier()


def serve(groups: Groups, phase: str, is_planted_rank: bool) -> None:
    """Run the engine: the first rank gives orders; the second follows them and survives an order that fails."""
    for step in range(BATCHES):
        strikes = step == STRIKES
        if toy.RANK == 0:
            dist.broadcast(message(), src=0, group=groups.orders)
            forward(groups, publishes=strikes and phase == "both")
        elif phase == "cut":
            dist.broadcast(message(), src=0, group=groups.orders)
            forward(groups, stops=strikes and is_planted_rank)
        else:
            try:
                dist.broadcast(message(), src=0, group=groups.orders)
                forward(groups, fails=strikes and is_planted_rank)
            except Exception as error:
                print(f"rank {toy.RANK}: step {step}: {error}", file=sys.stderr, flush=True)
        if toy.RANK == 0:
            dist.broadcast(message(), src=0, group=groups.samples)


def train(groups: Groups) -> None:
    for _ in range(BATCHES):
        dist.broadcast(message(), src=0, group=groups.samples)
        dist.all_reduce(message(), group=groups.data)


def main() -> None:
    arguments = argparse.ArgumentParser()
    phases = ["short", "long", "apart", "swallowed", "cut", "both"]
    arguments.add_argument("--phase", choices=phases, default="short")
    arguments.add_argument("--rank", type=int, default=3)
    options = arguments.parse_args()
    toy.setup()
    groups = Groups()
    is_planted_rank = options.rank == toy.RANK
    if options.phase in ("short", "long", "apart"):
        more = (1 if options.phase == "long" else -1) if is_planted_rank else 0
        (engine_rounds if options.phase == "apart" and toy.RANK < 2 else rounds)(groups, BATCHES + more)
    elif toy.RANK < 2:
        serve(groups, options.phase, is_planted_rank)
    else:
        train(groups)


if __name__ == "__main__":
    main()
