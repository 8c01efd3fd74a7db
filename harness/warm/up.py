"""`harness up` and `harness down`: start the keeper and wait for its engines; end it and check that nothing is left."""

from __future__ import annotations

import contextlib
import datetime
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness import envs
from harness.cluster import launch
from harness.cluster.launch import driver_seat
from harness.errors import BadInput, HarnessError
from harness.parity.runs.preflight import check_device, environment_for, preflight
from harness.warm import state
from harness.warm.keeper import Order, Word
from scenarios.settings import Scenario

END_S = 30.0  # a keeper ends its engines within 7 s (SIGTERM, SIGKILL); a busy machine takes longer
Say = Callable[[str], None]


class StartFailed(HarnessError):
    """The engines could not be started. Nothing of them is left."""


def up(
    backends: Sequence[str], scenario: Scenario, *, native: bool = True, device: str = "auto", idle_s: float, say: Say
) -> state.Kept:
    """Start these engines, and return when all of them can be used. Raises BadInput, StartFailed."""
    if scenario.rollout.mode == "native":
        raise BadInput(
            "rollout.mode = native: engines of whole native runs are not kept up",
            fix="--mode coupled",
            instead="rollout.mode",
        )
    if scenario.engine.engines > 1:
        raise BadInput(
            f"engine.engines = {scenario.engine.engines}: only one engine a side is kept up",
            fix=f"{_parity(backends)} --set engine.engines={scenario.engine.engines}   # starts its own engines",
        )
    with state.starting():
        return _up(backends, scenario, native, device, idle_s, say)


def _parity(backends: Sequence[str]) -> str:
    """The comparison for which these engines were to be kept up."""
    return shlex.join(["harness", "parity", *(*backends, "B")[:2]])


def _up(backends: Sequence[str], scenario: Scenario, native: bool, device: str, idle_s: float, say: Say) -> state.Kept:
    for backend in backends:
        preflight(scenario, backend)
    check_device(device, None)
    running = state.current(say)
    if running is not None:
        raise BadInput(f"engines are up already ({running.names}, since {running.since})", fix="harness down")
    environments = [environment_for(backend, scenario, say=say) for backend in backends]
    if on_gpu := [environment.name for environment in environments if environment.device == "cuda"]:
        raise BadInput(
            f"{', '.join(on_gpu)}: no engine is kept up on a GPU, of which each comparison gives its engines a share",
            fix=f"{_parity(backends)}   # starts its own engines",
        )
    order = Order(
        [str(envs.parse(backend)) for backend in backends], [environment.to_json() for environment in environments],
        scenario.to_json(), native and scenario.native.samples > 0, device, idle_s,
    )  # fmt: skip
    root = driver_seat().env["PYTHONPATH"]
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    keeper = subprocess.Popen(
        [sys.executable, "-m", "harness.warm.keeper"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
    )  # fmt: skip
    assert keeper.stdin is not None and keeper.stdout is not None
    try:
        keeper.stdin.write(msgspec.json.encode(order) + b"\n")
        keeper.stdin.flush()
        for line in keeper.stdout:
            word = msgspec.json.decode(line, type=Word)
            if word.ready:
                kept = state.current(say)
                if kept is not None:
                    return kept
                break
            if word.error:
                failed = StartFailed(word.error, fix=word.fix)
                failed.exit_code = word.exit_code
                raise failed
            say(word.say)
        log = state.folder() / state.LOG
        raise StartFailed("the engines did not come up: their keeper ended without a word", fix=f"tail {log}")
    except BaseException:
        _end(state.Process.of(keeper.pid))
        keeper.wait()
        raise


def down(say: Say) -> state.Kept | None:
    """End the warm engines and everything that is left of them. Return None where there are none.

    Raises BadInput while engines start.
    """
    with state.starting():
        kept = state.current(say)
    if kept is not None:
        if holder := state.holder():
            say(f"a run (pid {holder}) loses its engines")
        _end(kept.keeper, kept.processes)
        state.remove()
    return kept


@dataclass(frozen=True)
class Listed:
    """One engine as `harness ps` shows it.

    backend, version, environment, stage, since, idle_s: as in `state.KeptEngine` and `state.Kept`.
    pid: its process.
    memory_bytes: resident memory of its process and descendants together.
    ends_in_s: seconds until it ends unless a run uses it.
    used_by: the pid of the run that uses it now; 0 for none.
    """

    backend: str
    version: str
    environment: str
    stage: state.Stage
    pid: int
    memory_bytes: int
    since: str
    idle_s: float
    ends_in_s: float
    used_by: int


def listed(say: Say) -> list[Listed]:
    """Return the warm engines."""
    kept = state.current(say)
    if kept is None:
        return []
    used_by, used = state.holder(), max(state.last_use(), datetime.datetime.fromisoformat(kept.since).timestamp())
    ends_in_s = kept.idle_s if used_by else max(0.0, round(used + kept.idle_s - time.time(), 1))
    return [
        Listed(
            backend=entry.backend,
            version=entry.version,
            environment=entry.environment,
            stage=entry.stage,
            pid=entry.process.pid,
            memory_bytes=_memory(entry.process.pid),
            since=kept.since,
            idle_s=kept.idle_s,
            ends_in_s=ends_in_s,
            used_by=used_by,
        )
        for entry in kept.engines
    ]


def _memory(pid: int) -> int:
    pages = 0
    for process in state.below(pid):
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _end(keeper: state.Process, noted: Sequence[state.Process] = ()) -> None:
    """Let the keeper end its engines, and then end what is left of them."""
    below = {*noted, *(state.below(keeper.pid) if keeper.alive else ())}
    with contextlib.suppress(ProcessLookupError):
        if keeper.alive:
            os.kill(keeper.pid, signal.SIGTERM)
    deadline = time.monotonic() + END_S
    while keeper.alive and time.monotonic() < deadline:
        time.sleep(0.05)
    launch.end([process.pid for process in below if process.alive])
