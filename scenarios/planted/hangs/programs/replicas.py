"""K2: two replicas of two tensor-parallel ranks each; one rank deviates once from its replica's sequence of calls.

`more`: it makes one more call in its replica's group. `less`: one less. `elsewhere`: one of its calls is in the
default group. `evaluation`: all ranks but that one evaluate for the first time: it is at fault, although the three
others do something new.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import toy

LAYERS, STRIKES, STEPS = 3, 9, 12


def layer(group: dist.ProcessGroup | None) -> None:
    dist.all_reduce(torch.ones(16, device=toy.DEVICE), group=group)


def forward(group: dist.ProcessGroup, *, more: int = 0, less: int = 0, elsewhere: bool = False) -> None:
    for number in range(LAYERS + more - less):
        layer(None if elsewhere and number == 1 else group)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", choices=["more", "less", "elsewhere", "evaluation"], default="more")
    arguments.add_argument("--rank", type=int, default=3)
    options = arguments.parse_args()
    toy.setup()
    group = [dist.new_group([0, 1]), dist.new_group([2, 3])][toy.RANK // 2]
    module = toy.model()
    for step in range(STEPS):
        strikes = step == STRIKES
        is_planted_rank = strikes and options.rank == toy.RANK
        forward(group, more=is_planted_rank and options.phase == "more",
                less=is_planted_rank and options.phase == "less",
                elsewhere=is_planted_rank and options.phase == "elsewhere")  # fmt: skip
        if options.phase == "evaluation" and strikes and not is_planted_rank:
            forward(group)
        toy.train_step(module, toy.batch(step))


if __name__ == "__main__":
    main()
