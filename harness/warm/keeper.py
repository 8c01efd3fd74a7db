"""The keeper: the process that owns the Ray cluster of the warm engines. It ends both on request or after an idle
time.

`harness up` starts it in a session of its own, so that it outlives the terminal, and sends it an order on standard
input. Until the engines are ready this pipe is a lifeline: when `harness up` ends, for whatever reason, everything
here ends too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import msgspec

from harness import dates
from harness.cluster.engine_actors import engine_seat, natively, session
from harness.cluster.launch import Cluster, driver_seat
from harness.cluster.preload import preloads
from harness.cluster.seats import chosen_device
from harness.cluster.side import Side
from harness.cluster.waiting import Waiting
from harness.envs import home
from harness.envs.environment import Environment
from harness.errors import HarnessError, Terminated
from harness.warm import state
from harness.warm.fit import facts
from harness.warm.spares import Spares
from scenarios.engines.make import EngineOptions
from scenarios.remote import Remote
from scenarios.settings import Scenario

LOOK_S = 1.0  # the interval at which it checks the cluster and the idle time
SPARE_S = 5.0  # after a run ended, before its learners are replaced: the run still judges and prints for 3 s
NOTE_S = 10.0  # the interval at which its processes are stored, for cleaning up after a keeper that was killed


@dataclasses.dataclass(frozen=True)
class Order:
    """What to keep warm.

    backends: the engines.
    environments: their environments, in the form of `to_json`.
    scenario: the scenario, in the form of `to_json`.
    native: whether native engines are started too.
    device: the device of the engines.
    idle_s: the idle time after which the keeper ends.
    """

    backends: list[str]
    environments: list[dict[str, Any]]
    scenario: dict[str, Any]
    native: bool
    device: str
    idle_s: float


@dataclasses.dataclass(frozen=True)
class Word:
    """One message from the keeper to `harness up`.

    say: a line of progress.
    ready: the engines can be used.
    error, fix, exit_code: of an error that ended the start.
    """

    say: str = ""
    ready: bool = False
    error: str = ""
    fix: str | None = None
    exit_code: int = 0


def main() -> int:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    up = os.fdopen(os.dup(1), "w", encoding="utf-8")
    log = os.open(state.folder() / state.LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    for ignored in (signal.SIGINT, signal.SIGHUP):  # signals of a terminal that is not ours
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _terminated)
    scenario = Scenario.from_json(order.scenario)
    sides = [
        Side("kept", backend, Environment.from_json(environment), scenario, state.folder())
        for backend, environment in zip(order.backends, order.environments, strict=True)
    ]
    wanted = [facts(side, order.device) for side in sides]  # computed before Ray sets variables of its own
    ready = threading.Event()
    threading.Thread(target=_lifeline, args=(ready,), daemon=True).start()
    code = 0
    try:
        with Cluster(preload=preloads(sides, order.device, engines=False)) as cluster:
            try:
                kept, spares = _started(cluster, order, sides, wanted, lambda line: _tell(up, Word(say=line)))
                state.write(kept)
                ready.set()
                _tell(up, Word(ready=True))
                up.close()
                _keep(kept, spares)
            finally:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the shutdown that it asks for is already running
                state.remove()
    except HarnessError as error:
        _tell(up, Word(error=error.message, fix=error.fix, exit_code=error.exit_code))
        code = error.exit_code
    except Terminated:
        pass
    return code


def _started(
    cluster: Cluster, order: Order, sides: list[Side], wanted: list[dict[str, str]], say: Callable[[str], None]
) -> tuple[state.Kept, Spares | None]:
    import ray

    waiting = Waiting(None, lambda side, phase, step: None)
    device = chosen_device(order.device, cluster.gpus())
    say("preparing the model")
    maker = cluster.actor("scenarios.stage:Stage", driver_seat(), str(home.directory("models")))
    model = waiting.result(maker.submit("prepare", order.scenario), sides[0], "preparing the scenario")["policy"]
    maker.stop()
    # A learner on a GPU needs a share of the GPU, which a process without a run does not have.
    spares = Spares(cluster, sides[0].scenario, model) if device == "cpu" else None
    engines: list[state.KeptEngine] = []
    stages: tuple[state.Stage, ...] = ("coupled", "native") if order.native else ("coupled",)
    for stage in stages:
        say(f"starting {', '.join(order.backends)}" + (" for the native stage" if stage == "native" else ""))
        names = [f"{side.environment.engine}-{stage}-{place}" for place, side in enumerate(sides)]
        actors = [start(cluster, side, model, device, stage, name) for side, name in zip(sides, names, strict=True)]
        for actor, side, name, agreed in zip(actors, sides, names, wanted, strict=True):
            version, process = settled(actor, side, stage, waiting)
            engines.append(
                state.KeptEngine(
                    backend=side.backend,
                    version=version,
                    environment=side.environment.name,
                    stage=stage,
                    actor=name,
                    process=process,
                    model=model,
                    facts=agreed,
                )
            )
    for actor in spares.actors if spares is not None else ():
        waiting.result(actor.submit("ready"), sides[0], "starting the learners' processes")
    kept = state.Kept(
        boot=state.boot(),
        address=ray.get_runtime_context().gcs_address,
        since=dates.now(),
        idle_s=order.idle_s,
        device=device,
        keeper=state.Process.of(os.getpid()),
        raylet=state.Process.of(_raylet()),
        processes=state.below(os.getpid()),
        engines=tuple(engines),
        spares=spares.names if spares is not None else (),
        fork_sockets=cluster.fork_sockets,
    )
    return kept, spares


def of_stage(scenario: Scenario, stage: state.Stage) -> Scenario:
    """Return the scenario that an engine of this stage serves."""
    return natively(scenario) if stage == "native" else scenario


def start(cluster: Cluster, side: Side, model: str, device: str, stage: state.Stage, name: str) -> Remote:
    """Start the actor of one warm engine, without waiting for it."""
    stage_side = dataclasses.replace(side, scenario=of_stage(side.scenario, stage))
    options = EngineOptions(device=device, pure=stage == "native")
    return session(cluster, stage_side, model, engine_seat(stage_side, driver_seat()), options, name=name)


def settled(actor: Remote, side: Side, stage: state.Stage, waiting: Waiting) -> tuple[str, state.Process]:
    """Wait until the engine has started, and let it record its state. Return its version and its process."""
    scenario, doing = of_stage(side.scenario, stage), f"starting {side.backend}"
    waiting.result(actor.submit("adopt", scenario.to_json()), side, doing)
    live = waiting.result(actor.submit("snapshot"), side, doing)
    return live["version"], state.Process.of(live["pid"])


def _keep(kept: state.Kept, spares: Spares | None) -> None:
    """Return when no run has used the engines for the idle time, or when their cluster has ended."""
    up, noted = time.time(), time.monotonic()
    while kept.raylet.alive:
        time.sleep(LOOK_S)
        with state.claimed(0.0, used=False) as ours:
            idle_s = time.time() - max(up, state.last_use())
            if ours and idle_s > kept.idle_s:
                state.remove()  # while the lock prevents their use
                return
            now = state.current(lambda line: None) if ours else None
            if now is None:
                continue
            if spares is not None and spares.lacking(now.spares) and idle_s > SPARE_S:
                now = dataclasses.replace(now, spares=spares.replace(now.spares))
                state.write(now)
            if time.monotonic() - noted > NOTE_S:
                noted = time.monotonic()
                state.write(dataclasses.replace(now, processes=state.below(os.getpid())))


def _raylet() -> int:
    for process in state.below(os.getpid()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process.pid}/comm").read_text().strip() == "raylet":
                return process.pid
    raise HarnessError(
        "the Ray cluster ended while its engines were started",
        fix="harness doctor   # of memory, /dev/shm and the disk, for want of which Ray ends",
    )


def _tell(up: TextIO, word: Word) -> None:
    with contextlib.suppress(OSError, ValueError):  # `harness up` does not read any more
        up.write(msgspec.json.encode(word).decode() + "\n")
        up.flush()


def _lifeline(ready: threading.Event) -> None:
    while sys.stdin.buffer.read(1):
        pass
    if not ready.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


def _terminated(signum: int, frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated()


if __name__ == "__main__":
    sys.exit(main())
