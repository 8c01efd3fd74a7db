"""K10: work for rank 0 alone, with a collective inside that the others never reach.

`save`: the checkpoint ends with a barrier under `if rank == 0`. `gather`: the full state dict is gathered there.
`evaluate`: only rank 0 evaluates, and the metric is gathered over the group.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import toy


def save_checkpoint(module: torch.nn.Module, folder: Path, step: int) -> None:
    torch.save(module.state_dict(), folder / f"step-{step}.pt")
    dist.barrier()


def save_full_state(module: torch.nn.Module, folder: Path, step: int) -> None:
    """Save the shards of all ranks in one file."""
    shards: list[dict[str, torch.Tensor] | None] = [None] * toy.WORLD
    dist.all_gather_object(shards, dict(module.state_dict()))
    torch.save(shards, folder / f"step-{step}.pt")


def evaluate(module: torch.nn.Module, step: int) -> None:
    with torch.no_grad():
        score = module(toy.batch(1000 + step)).mean().reshape(1)
    rows = [torch.zeros(1, device=toy.DEVICE) for _ in range(toy.WORLD)]
    dist.all_gather(rows, score)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", choices=["save", "gather", "evaluate"], default="save")
    options = arguments.parse_args()
    toy.setup()
    module = toy.model()
    with tempfile.TemporaryDirectory() as folder:
        for step in range(6):
            toy.train_step(module, toy.batch(step))
            if step == 3 and toy.RANK == 0:
                if options.phase == "save":
                    save_checkpoint(module, Path(folder), step)
                elif options.phase == "gather":
                    save_full_state(module, Path(folder), step)
                else:
                    evaluate(module, step)


if __name__ == "__main__":
    main()
