"""How the processes of a run share the GPUs of a cluster."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from harness.cluster.launch import LaunchFailed
from scenarios.engines.spec import EngineSpec
from scenarios.settings import Engine


def shares(gpus: float, ranks: Sequence[int]) -> list[float]:
    """The share of a GPU for each actor, for Ray. All are 0 without GPUs. Raises LaunchFailed if there are too few
    GPUs.

    An engine of several ranks has a whole GPU for each of them. The others share the rest, equally many on each GPU,
    because Ray never splits a share over two GPUs.
    """
    if not gpus:
        return [0.0] * len(ranks)
    wide, single = sum(count for count in ranks if count > 1), sum(count == 1 for count in ranks)
    shared_gpus = int(gpus) - wide
    if shared_gpus < 0 or (single and not shared_gpus):
        raise LaunchFailed(
            f"the engines' tensor-parallel ranks need {wide} GPUs of their own, and the cluster has {gpus:g}"
            + (", which the learner needs too" if shared_gpus >= 0 else ""),
            fix="lower engine.tensor_parallel or engine.engines   # or --address HOST:PORT, of a Ray cluster with more",
        )
    each = math.floor(100 / math.ceil(single / shared_gpus)) / 100 if single else 0.0
    return [float(count) if count > 1 else each for count in ranks]


def check_memory(gpus: float, sides: Iterable[tuple[EngineSpec, Engine]]) -> None:
    """Raise LaunchFailed if the engines of all sides together need more GPU memory than there is.

    An engine itself would say so only when it starts beside the others.
    """
    demands = [
        (spec.workers(engine), engine.memory_fraction)
        for spec, engine in sides
        if "memory_fraction" in spec.engine_arguments
    ]
    workers, total = sum(number for number, _ in demands), sum(number * fraction for number, fraction in demands)
    if gpus and total > gpus:
        raise LaunchFailed(
            f"{workers} workers of engines ask for the memory of {total:g} GPUs together, and the cluster has {gpus:g}",
            fix=f"--set engine.memory_fraction={math.floor(80 * gpus / workers) / 100}   # the learner has the rest",
        )
