"""The data-parallel group of one role. A single process has no group."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from probes.install import OFF, Recorder


@dataclass(frozen=True)
class RoleSettings:
    """Where one process of a role runs. `policy`, `reward`: directories (`models.policy_path`,
    `models.reward_path`).
    """

    policy: str
    reward: str
    rank: int = 0
    world_size: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 0  # of the role's own rendezvous; needed for two or more processes
    device: str = "cpu"
    backend: str = "gloo"  # of its process group: gloo or nccl


class DataParallel:
    """Rank `rank` of `world_size`. The constructor blocks until every rank has joined."""

    def __init__(self, name: str, settings: RoleSettings) -> None:
        self.name, self.rank, self.world_size = name, settings.rank, settings.world_size
        self.recorder = OFF  # where its collectives are recorded
        self.backend = settings.backend
        if self.world_size > 1:
            dist.init_process_group(
                self.backend,
                init_method=f"tcp://{settings.master_addr}:{settings.master_port}",
                rank=self.rank,
                world_size=self.world_size,
            )

    def sum(self, tensors: list[Tensor]) -> None:
        """Sum each tensor across ranks, in place, in one collective, and record how long it took."""
        if self.world_size == 1 or not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        began = time.monotonic_ns()
        dist.all_reduce(flat)
        if flat.is_cuda and self.recorder is not OFF:
            torch.cuda.current_stream().synchronize()  # the call only enqueues it, but its end is to be recorded
        took, size = time.monotonic_ns() - began, flat.numel() * flat.element_size()
        self.recorder.event("collective", name="all_reduce", group=self.name, bytes=size, start_ns=began, dur_ns=took)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def record(self, recorder: Recorder) -> None:
        """Record the group. The recorder's hook records torch's own groups; a single process has none."""
        self.recorder = recorder
        if self.world_size == 1:
            recorder.group(name=self.name, backend="none", rank=0, world_size=1, members=[0])

    def close(self) -> None:
        """Leave the group."""
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def deterministic(device: str) -> None:
    """Make arithmetic in this process bit-identical from now on: one thread on a CPU, deterministic kernels
    everywhere.
    """
    if device.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, deterministic matrix products raise
    else:
        torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
