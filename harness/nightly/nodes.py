"""Run a night's cells in parallel over the nodes of a Ray cluster.

A cell's resources are reserved on one node for all its runs. A keeper (`harness.nightly.keeper`) runs it there. Only
the driver writes the history. Recordings go to --out, which every node has at the same path.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness.cluster.launch import Cluster, driver_seat
from harness.doctor.cluster import PATIENCE_S
from harness.envs import home
from harness.errors import BadInput, last_line
from harness.nightly import cells, keeper
from harness.nightly.cells import Attempt
from harness.nightly.keeper import LOOK_S
from harness.nightly.matrix import Cell, Needs, Pair
from harness.nightly.observation import Observation, failed
from probes.files import FILE_MODE

END_S = 2 * cells.GRACE_S + 10.0  # twice the grace, once after SIGTERM and once after SIGKILL
NAMES = ("CPU", "GPU", "memory")  # the names of Ray's resources
THREADS = 1000  # a choice: the driver has one thread for each running cell


class Cut(Exception):
    """Raised where the night ended while the cell ran."""


class Nodes:
    """The nodes of a Ray cluster as a `Place`. `joined` opens it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._threads = ThreadPoolExecutor(THREADS)
        self._started: list[Future[None]] = []
        self._runs: set[Any] = set()
        self._reserved: dict[str, Any] = {}  # the cell's name -> its placement group
        self._ending = False

    def lacking(self, needs: Needs) -> str:
        if self.at_once(needs):
            return ""
        missing = [needs.missing(*(int(resources.get(name, 0)) for name in NAMES)) for resources in _resources()]
        return f"it needs {min(missing, key=len, default='a CPU')}, which no node has"

    def at_once(self, needs: Needs) -> int:
        wanted = self._wanted(needs)
        return sum(
            min(int(resources.get(name, 0) // amount) for name, amount in wanted.items()) for resources in _resources()
        )  # fmt: skip

    def room(self, waiting: Sequence[Cell]) -> tuple[Cell, Attempt]:
        """Wait for room for a cell. Cells with the same needs are started in order.

        A cell whose needs are free does not wait for a cell that needs other resources.
        """
        from ray.util.placement_group import placement_group

        first: dict[Needs, Cell] = {}
        for cell in waiting:
            first.setdefault(cell.what.needs, cell)
        while True:
            self._raise_errors()
            for needs, cell in first.items():
                if lacking := self.lacking(needs):  # the node that had these resources was lost
                    return cell, lambda cell, place, pair, why=lacking: failed(why)
                if cell.name not in self._reserved:
                    self._reserved[cell.name] = placement_group([self._wanted(needs)])
                if self._reserved[cell.name].wait(LOOK_S):
                    return cell, self._attempt

    def start(self, cell: Cell, work: Callable[[], None]) -> None:
        self._started.append(self._threads.submit(self._work, cell, work))

    def wait(self) -> None:
        while any(not future.done() for future in self._started):
            self._raise_errors()
            time.sleep(LOOK_S)
        self._raise_errors()

    def end(self) -> None:
        """End the cells that still run, and wait until nothing of them is left on the nodes."""
        import ray

        self._ending = True
        runs = list(self._runs)
        for run in runs:
            ray.cancel(run)
        if runs:
            self._say("ending the cells that run")
            ray.wait(runs, num_returns=len(runs), timeout=END_S)
        self._threads.shutdown()

    def _work(self, cell: Cell, work: Callable[[], None]) -> None:
        from ray.util.placement_group import remove_placement_group

        try:
            work()
        finally:
            group = self._reserved.pop(cell.name, None)
            if group is not None and not self._ending:  # at the end Ray frees it with the driver
                remove_placement_group(group)

    def _attempt(self, cell: Cell, place: Path, pair: Pair | None) -> Observation:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        wanted = self._wanted(cell.what.needs)
        reserved = PlacementGroupSchedulingStrategy(self._reserved[cell.name], placement_group_bundle_index=0)
        task = _task(
            keeper.keep, num_cpus=wanted["CPU"], num_gpus=wanted.get("GPU", 0), memory=wanted.get("memory"),
            scheduling_strategy=reserved,
        )  # fmt: skip
        started = time.monotonic()
        run = task.remote(cell, place, pair, cells.COMMAND, os.getcwd())
        self._runs.add(run)
        if self._ending:
            ray.cancel(run)
        try:
            observation: Observation = ray.get(run)
            return observation
        except ray.exceptions.RayError as error:
            if self._ending:
                raise Cut from error
            why = f"Ray lost it: {last_line(error)}"
            return failed(why, seconds=time.monotonic() - started, recording=str(place))
        finally:
            self._runs.discard(run)

    def _wanted(self, needs: Needs) -> dict[str, float]:
        """Return the resources to reserve, by Ray's names.

        A cell without a number of CPUs gets a node for itself, because cells on one node would disturb each other's
        times and memory. Where nodes differ, it gets as many CPUs as the smallest node has.
        """
        smallest = min((resources["CPU"] for resources in _resources()), default=1)
        wanted = zip(NAMES, (needs.cpus or smallest, needs.gpus, needs.bytes), strict=True)
        return {name: float(amount) for name, amount in wanted if amount}

    def _raise_errors(self) -> None:
        for future in self._started:
            if future.done():
                future.result()


@contextlib.contextmanager
def joined(address: str, say: Callable[[str], None]) -> Iterator[Nodes]:
    """Join the cluster at that address. When the context ends, no cell runs on its nodes any more. Raises
    LaunchFailed.
    """
    with Cluster(address):
        nodes = Nodes(say)
        try:
            yield nodes
        finally:
            nodes.end()


def refuse_unshared(out: Path) -> None:
    """Raise BadInput unless every node has `out` and the current folder, and can write into `out`."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    fix = "--out DIR   # on a file system that every node has at the same path"
    with tempfile.TemporaryDirectory(prefix=".shared-", dir=out.resolve()) as folder:
        pending = {}
        for node in _nodes():
            pinned = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
            task = _task(_sign, num_cpus=0, scheduling_strategy=pinned)
            pending[task.remote(folder, node["NodeID"], os.getcwd())] = node
        until = time.monotonic() + PATIENCE_S
        for answer, node in pending.items():
            name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
            try:
                unseen = ray.get(answer, timeout=max(1.0, until - time.monotonic()))
            except ray.exceptions.GetTimeoutError as error:
                message = f"node {name} started no worker within {PATIENCE_S:.0f} s"
                raise BadInput(message, fix=f"ls {sys.executable}   # on that node") from error
            except ray.exceptions.RayError as error:
                raise BadInput(
                    f"node {name} cannot run a cell: {last_line(error)}", fix="harness doctor --address ADDRESS"
                ) from error
            if unseen:
                raise BadInput(f"node {name} has no {unseen}", fix="cd to a folder that every node has")
            if node["NodeID"] not in os.listdir(folder):
                raise BadInput(f"--out {out} is not shared: node {name} does not write into it", fix=fix)


def _nodes() -> list[dict[str, Any]]:
    """Return the nodes that can run a cell."""
    import ray

    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]


def _resources() -> list[dict[str, float]]:
    return [node["Resources"] for node in _nodes()]


def _task(function: Callable[..., Any], **options: Any) -> Any:
    """Return a Ray task with this interpreter and this harness, which every node has at the same path."""
    import ray

    variables = {"PYTHONPATH": driver_seat().env["PYTHONPATH"], "HARNESS_HOME": str(home.home())}
    place = {"py_executable": shlex.quote(sys.executable), "env_vars": variables}
    decorate: Any = ray.remote
    return decorate(function).options(max_retries=0, runtime_env=place, **options)


def _sign(folder: str, name: str, current: str) -> str:
    """Create a file in the folder, on a node, if the folder exists. Return `current` where the node lacks that
    folder.
    """
    with contextlib.suppress(OSError):
        Path(folder, name).touch(mode=FILE_MODE)
    return "" if Path(current).is_dir() else current
