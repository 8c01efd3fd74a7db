"""Ranks on several hosts that sum a tensor again and again: one of them stops, or all continue.

A file `rank-N` in the working directory says that rank N is running.
"""

from __future__ import annotations

import argparse
import datetime
import time
from pathlib import Path

import torch
import torch.distributed as dist

UNDER_WAY = 10  # steps


def keep_alive() -> None:
    while True:
        time.sleep(3600)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", choices=("stops", "works", "rests"), required=True)
    arguments.add_argument("--steps", type=int, required=True)
    options = arguments.parse_args()
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    for step in range(options.steps):
        if options.phase == "stops" and dist.get_rank() == dist.get_world_size() - 1 and step == 2 * UNDER_WAY:
            keep_alive()
        dist.all_reduce(torch.ones(1000))
        if step == UNDER_WAY:
            Path(f"rank-{dist.get_rank()}").touch()
        time.sleep(0.5 if options.phase == "rests" else 0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
