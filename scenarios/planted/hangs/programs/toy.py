"""What the lab's training programs share: a process group, a tiny model, one training step.

It uses NCCL where there is a GPU, else gloo. These programs are written as a user would write them: none of them
knows about the harness.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
DEVICE = torch.device("cuda", RANK % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")


def setup() -> None:
    """Join the default group. The address comes from the environment, as under torchrun."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")


def model() -> torch.nn.Module:
    return torch.nn.Linear(16, 16).to(DEVICE)


def batch(step: int) -> torch.Tensor:
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(step)).to(DEVICE)


def average_gradients(module: torch.nn.Module) -> None:
    """Average every gradient over the ranks."""
    for parameter in module.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def train_step(module: torch.nn.Module, inputs: torch.Tensor) -> None:
    """Run forward, backward, averaging and update by hand, because an optimizer would import torch._dynamo."""
    module.zero_grad()
    module(inputs).square().mean().backward()
    average_gradients(module)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.1)


def gathered(value: float) -> list[float]:
    """Return one number of every rank."""
    rows = [torch.zeros(1, device=DEVICE) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, torch.tensor([value], device=DEVICE))
    return [float(row) for row in rows]
