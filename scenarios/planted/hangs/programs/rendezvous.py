"""K5: a process group that never forms.

`absent`: one rank waits for a lock file before it joins. `world`: nobody is wrong but the expected number of ranks: the
launcher was told of one rank more than it started. `subgroup`: one rank does not call `new_group`, because its own
configuration says that tensor parallelism is off.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
import toy


def wait_for_lock(path: Path) -> None:
    """Another process is downloading the model, they say."""
    while not path.exists():
        time.sleep(0.1)


def make_tensor_parallel(enabled: bool) -> dist.ProcessGroup | None:
    return dist.new_group(list(range(toy.WORLD)), group_desc="tp") if enabled else None


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", choices=["absent", "world", "subgroup"], default="absent")
    arguments.add_argument("--rank", type=int, default=1)
    asked = arguments.parse_args()
    odd = asked.rank == toy.RANK
    if asked.phase == "absent" and odd:
        wait_for_lock(Path("/nonexistent/model.complete"))
    toy.setup()
    dist.all_reduce(torch.ones(4, device=toy.DEVICE))
    make_tensor_parallel(not odd)
    dist.all_reduce(torch.ones(4, device=toy.DEVICE))


if __name__ == "__main__":
    main()
