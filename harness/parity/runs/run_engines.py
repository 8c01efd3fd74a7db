"""The engines of a run: those that `harness up` keeps, or new ones on a cluster of the run's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from harness.cluster.launch import Cluster
from harness.cluster.preload import preloads
from harness.cluster.side import Side
from harness.parity.runs.run_options import LaunchOptions
from harness.warm.pool import Pool, claim


@contextlib.contextmanager
def cluster_for(
    sides: Sequence[Side], options: LaunchOptions, *, native: bool = False, refused: str = ""
) -> Iterator[tuple[Cluster, Pool | None]]:
    """Yield an open cluster, and the running engines on it that fit all sides; None where the run must start its own.

    `refused`: why running engines cannot be used.
    """
    if any(side.mapping for side in sides):
        refused = "a mapping of your own starts an engine of its own"
    if any(side.scenario.engine.engines > 1 for side in sides):
        refused = "this run has several engines on a side"
    with contextlib.ExitStack() as opened:
        warm = None
        if not (options.cold or options.address):
            warm = opened.enter_context(
                claim(sides, device=options.device, native=native, refused=refused, say=options.say)
            )
        if warm is not None:
            cluster = Cluster(warm.address, ours=True, fork_sockets=warm.fork_sockets)
        else:
            cluster = Cluster(options.address, preload=() if options.address else preloads(sides, options.device))
        yield opened.enter_context(cluster), warm
