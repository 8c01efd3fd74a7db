"""Jobs in which every rank does the same in every step, and variants in which one rank does more or stops.

`--phase`: `steps` (only collectives), `sleeps` (half a second per step), `computes`, `loads` (batches from a separate
process), `backward` (torch's own data parallelism). `late`: one rank computes two seconds longer in each step, and
the others wait for it. `stands`: after some steps one rank takes part no more, which is a hang; the other phases do
not hang. Prints `under way` once its steps run, and ends after `--seconds`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
import toy

WARM = 5  # steps


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    """A data set whose batches take a while to make."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.001)
        return torch.randn(16, generator=torch.Generator().manual_seed(index))


def batches(phase: str) -> Iterator[torch.Tensor]:
    if phase == "loads":
        while True:
            yield from torch.utils.data.DataLoader(Samples(), batch_size=32, num_workers=1)
    step = 0
    while True:
        yield toy.batch(step)
        step += 1


def compute(seconds: float) -> None:
    hidden, until = torch.ones(64, 64), time.monotonic() + seconds
    while time.monotonic() < until:
        hidden = torch.tanh(hidden @ hidden.T / 64)


def stand_aside() -> None:
    """Take part in nothing any more."""
    while True:
        time.sleep(3600.0)


def over(until: float) -> bool:
    """Whether any rank's time is up; all ranks then leave in the same step."""
    flag = torch.tensor([float(time.monotonic() > until)], device=toy.DEVICE)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def work(phase: str, is_planted_rank: bool) -> None:
    """Do what a step does besides its gradients."""
    if phase == "sleeps":
        time.sleep(0.5)
    if phase == "computes":
        compute(0.5)
    if phase == "late" and is_planted_rank:
        compute(2.0)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", default="steps")
    arguments.add_argument("--rank", type=int, default=1)
    arguments.add_argument("--seconds", type=float, default=60.0)
    options = arguments.parse_args()
    is_planted_rank = options.rank == toy.RANK
    toy.setup()
    module = toy.model()
    trained = torch.nn.parallel.DistributedDataParallel(module) if options.phase == "backward" else module
    until = time.monotonic() + options.seconds
    for step, inputs in enumerate(batches(options.phase)):
        trained(inputs).square().mean().backward()
        if options.phase != "backward":
            toy.average_gradients(module)
        module.zero_grad()
        work(options.phase, is_planted_rank)
        if options.phase == "stands" and is_planted_rank and step == WARM:
            stand_aside()
        if step == WARM - 1 and toy.RANK == 0:
            print("under way", flush=True)
        if over(until):
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
