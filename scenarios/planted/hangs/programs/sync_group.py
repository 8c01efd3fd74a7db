"""K5: the group of a weight sync in which two engines claim the same rank, so that it never forms.

Rank 0 trains, the others are engines, and the odd one takes the rank of the engine before it. The group is made
outside torch's registry, as OpenRLHF, slime and SGLang make theirs.
"""

from __future__ import annotations

import argparse
import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
HOUR = timedelta(hours=1)


def join_group(store: dist.Store, name: Any, size: int, rank: int) -> Any:
    prefix = c10d.PrefixStore(name, store)
    return c10d._new_process_group_helper(size, rank, [], c10d.Backend("gloo"), prefix, group_name=name, timeout=HOUR)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", choices=["twice"], default="twice")
    arguments.add_argument("--rank", type=int, default=2)
    options = arguments.parse_args()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, RANK == 0, HOUR)
    join_group(store, "weights", WORLD, RANK - (options.rank == RANK))


if __name__ == "__main__":
    main()
