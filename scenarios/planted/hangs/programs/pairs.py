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


def ones() -> torch.Tensor:
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
            dist.broadcast(ones(), src=0, group=groups.samples)
        dist.all_reduce(ones(), group=groups.tensor)


def rounds(groups: Groups, batches: int) -> None:
    for _ in range(batches):
        if toy.RANK > 1:
            dist.all_reduce(ones(), group=groups.data)
        else:
            forward(groups)
        if toy.RANK < 3:
            dist.broadcast(ones(), src=2, group=groups.weights)
    dist.barrier()


def engine_rounds(groups: Groups, batches: int) -> None:
    while batches > 0:
        forward(groups)
        dist.broadcast(ones(), src=2, group=groups.weights)
        batches -= 1
    dist.barrier()


def serve(groups: Groups, phase: str, odd: bool) -> None:
    """Run the engine: the first rank gives orders; the second follows them and survives an order that fails."""
    for step in range(BATCHES):
        strikes = step == STRIKES
        if toy.RANK == 0:
            dist.broadcast(ones(), src=0, group=groups.orders)
            forward(groups, publishes=strikes and phase == "both")
        elif phase == "cut":
            dist.broadcast(ones(), src=0, group=groups.orders)
            forward(groups, stops=strikes and odd)
        else:
            try:
                dist.broadcast(ones(), src=0, group=groups.orders)
                forward(groups, fails=strikes and odd)
            except Exception as error:
                print(f"rank {toy.RANK}: step {step}: {error}", file=sys.stderr, flush=True)
        if toy.RANK == 0:
            dist.broadcast(ones(), src=0, group=groups.samples)


def train(groups: Groups) -> None:
    for _ in range(BATCHES):
        dist.broadcast(ones(), src=0, group=groups.samples)
        dist.all_reduce(ones(), group=groups.data)


def main() -> None:
    arguments = argparse.ArgumentParser()
    phases = ["short", "long", "apart", "swallowed", "cut", "both"]
    arguments.add_argument("--phase", choices=phases, default="short")
    arguments.add_argument("--rank", type=int, default=3)
    asked = arguments.parse_args()
    toy.setup()
    groups = Groups()
    odd = asked.rank == toy.RANK
    if asked.phase in ("short", "long", "apart"):
        more = (1 if asked.phase == "long" else -1) if odd else 0
        (engine_rounds if asked.phase == "apart" and toy.RANK < 2 else rounds)(groups, BATCHES + more)
    elif toy.RANK < 2:
        serve(groups, asked.phase, odd)
    else:
        train(groups)


if __name__ == "__main__":
    main()
