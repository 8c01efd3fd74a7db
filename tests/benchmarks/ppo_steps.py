"""Whole PPO steps of ppo-tiny in one process, whose recording and watching can be taken away and put back; and a meter.

What runs is what runs in a run of ours, as threads of one process: the trainer, four roles, the embedded engine, and a
heartbeat for each of these six. Nothing is spent on Ray, so a share of this step is rather more than one of a real run.
Time of the probes is processor time of the thread that spends it: wall time would count the interpreter's lock and
whoever else uses the core.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import ppo_support  # noqa: E402

from harness import config  # noqa: E402
from harness.envs import home  # noqa: E402
from probes import collectives, heartbeat, identity, install, spans, weights  # noqa: E402
from probes.attach import Attachment  # noqa: E402
from probes.format import write_manifest  # noqa: E402
from scenarios import models  # noqa: E402
from scenarios.engines import frames  # noqa: E402
from scenarios.engines.hf import engine as hf  # noqa: E402
from scenarios.ppo import experience, role, trainer  # noqa: E402

# What a run without probes would not do, by what it is counted as.
METERED: dict[str, tuple[tuple[Any, str], ...]] = {
    "recording": (
        (install.Recorder, "event"), (install.Recorder, "shapes"), (install.Recorder, "frame"),
        (install.Recorder, "boundaries"), (spans.Span, "__enter__"), (spans.Span, "__exit__"),
        (role.Role, "_shapes"), (trainer.Trainer, "_shapes"), (experience.Experience, "arrays"),
        (frames, "samples"), (frames, "floor"),
    ),
    "digests": (
        (weights, "digest"), (weights, "digests"), (weights, "combine"), (hf, "digest"),
        (experience.Experience, "digest"),
    ),
    "heartbeat": ((Attachment, "_look"), (Attachment, "_watch_the_watchdog"), (heartbeat.Heartbeat, "beat")),
}  # fmt: skip
PARTS = {"MainThread": "trainer", "ActorRole_0": "actor", "CriticRole_0": "critic", "RewardRole_0": "reward",
         "ReferenceRole_0": "reference", "EngineSession_0": "rollout"}  # fmt: skip
# What stays of a call that is switched off; recorders are exchanged as a whole.
SILENT: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (role.Role, "_shapes", lambda *a, **k: None), (trainer.Trainer, "_shapes", lambda *a, **k: None),
    (experience.Experience, "arrays", lambda self: {}),
)  # fmt: skip
BLANK: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (weights, "digest", lambda tensor: ""), (hf, "digest", lambda tensor: ""),
    (experience.Experience, "digest", lambda self: ""),
)  # fmt: skip


class Meter:
    """Processor time by (thread, what), each nanosecond once: of calls inside each other, to the inner one's `what`.

    A measurement costs up to 8 µs between two passes of a model, of which 100 a step are counted with the probes.
    """

    def __init__(self) -> None:
        self.ns: Counter[tuple[threading.Thread, str]] = Counter()
        self._now = threading.local()

    def wrap(self, call: Callable[..., Any], what: str) -> Callable[..., Any]:
        now, clock = self._now, time.thread_time_ns

        @functools.wraps(call)
        def metered(*args: Any, **kwargs: Any) -> Any:
            outer = getattr(now, "what", "")
            if outer == what:
                return call(*args, **kwargs)
            outside, now.what, now.inside = getattr(now, "inside", 0), what, 0
            began = clock()
            try:
                return call(*args, **kwargs)
            finally:
                spent = clock() - began
                # A key belongs to one thread, so no other one can come in between.
                self.ns[threading.current_thread(), what] += spent - now.inside
                now.what, now.inside = outer, outside + spent

        return metered

    def seconds(self, what: str) -> dict[str, float]:
        """By role, for what the roles do themselves; by the thread's name else."""
        found: Counter[str] = Counter()
        for (thread, kind), ns in list(self.ns.items()):
            if kind == what:
                found[PARTS.get(thread.name, thread.name)] += ns
        return {name: ns / 1e9 for name, ns in sorted(found.items())}


class Gate(threading.Event):
    """The `stop` event of a thread that beats; its clock stands still while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self._changed, self._is_open = threading.Condition(), False

    def turn(self, is_open: bool) -> None:
        with self._changed:
            self._is_open = is_open
            self._changed.notify_all()

    def set(self) -> None:
        super().set()
        self.turn(self._is_open)

    def wait(self, timeout: float | None = None) -> bool:
        left = math.inf if timeout is None else timeout
        with self._changed:
            while left > 0 and not self.is_set():
                self._changed.wait_for(lambda: self._is_open or self.is_set())
                began = time.monotonic()
                self._changed.wait_for(lambda: not self._is_open or self.is_set(), min(left, threading.TIMEOUT_MAX))
                left -= time.monotonic() - began
        return self.is_set()


class Steps:
    """Makes one step after another; `switch` decides what runs beside it."""

    def __init__(self, stack: ppo_support.Stack, leader: trainer.Trainer, gates: Sequence[Gate], meter: Meter) -> None:
        self.meter, self._leader, self._gates = meter, leader, gates
        targets: list[Any] = [actors[0]._target for actors in stack.roles.values()]  # type: ignore[attr-defined]
        engine: Any = stack.session._target  # type: ignore[attr-defined]
        self._recorders = [
            (leader, "_recorder", leader._recorder, install.OFF), (engine, "_recorder", engine._recorder, None),
            *((target, "recorder", target.recorder, install.OFF) for target in targets),
        ]  # fmt: skip
        self._calls = [(owner, name, getattr(owner, name)) for owner, name, _ in (*SILENT, *BLANK)]

    def switch(self, probes: bool, digests: bool = True) -> None:
        """Recording and watching on or off, and digests."""
        for owner, name, on, off in self._recorders:
            setattr(owner, name, on if probes else off)
        for owner, name, call in (*self._calls, *(() if probes else SILENT), *(() if digests else BLANK)):
            setattr(owner, name, call)
        for gate in self._gates:
            gate.turn(probes)

    def step(self, number: int) -> tuple[float, float]:
        """(wall seconds, processor seconds of the whole process) of one step; the number decides on its prompts."""
        wall, cpu = time.perf_counter(), time.process_time()
        self._leader.step(number)
        return time.perf_counter() - wall, time.process_time() - cpu


@contextmanager
def steps(directory: Path) -> Iterator[Steps]:
    """ppo-tiny with everything on, and everything metered; recordings go to `directory`, beats below it."""
    meter = Meter()
    for what, calls in METERED.items():
        for owner, name in calls:
            setattr(owner, name, meter.wrap(getattr(owner, name), what))
    os.environ[identity.ROLE] = "trainer"  # the guard of a run tells every process what it is
    scenario, made = config.load("ppo-tiny"), home.directory("models")
    where: dict[str, Any] = {"seed": scenario.seed, "home": made}
    policy, reward = (
        models.policy_path(scenario.model.path, **where), models.reward_path(scenario.model.reward, **where)
    )  # fmt: skip
    write_manifest(directory, {})
    with ExitStack() as opened:
        stack = opened.enter_context(ppo_support.stack(scenario, {"policy": str(policy), "reward": str(reward)}))
        leader = stack.trainer(directory)
        leader.start()
        opened.callback(leader.close)
        gates = [opened.enter_context(_heartbeat(directory / "watch", one)) for one in install.live()]
        made_steps = Steps(stack, leader, gates, meter)
        opened.callback(made_steps.switch, True)
        made_steps.switch(True)
        yield made_steps


@contextmanager
def _heartbeat(directory: Path, recorder: install.Recorder) -> Iterator[Gate]:
    """The watching of one process: a run has one for each of its recorders."""
    attachment, gate = Attachment(directory / recorder.role, heartbeat.PERIOD_S), Gate()
    attachment._stop = gate
    attachment._recorders = lambda: [attachment.journal, recorder]  # type: ignore[method-assign]
    attachment._server = None if recorder.role == "trainer" else False  # torch's worker server: one a process
    attachment.start()
    collectives.watch(attachment.journal)  # type: ignore[arg-type]
    try:
        yield gate
    finally:
        gate.set()


def interval(values: Iterable[float], doubt: float = 0.05) -> tuple[float, float, float]:
    """(low, median, high): the order statistics that hold the median with probability 1 - doubt, whatever the noise."""
    ordered = sorted(values)
    n, cut, tail = len(ordered), 0, 0.0
    while True:
        tail += math.comb(n, cut) / 2**n
        if 2 * tail > doubt:
            break
        cut += 1
    if not cut:
        raise ValueError(f"{n} values are too few for an interval")
    return ordered[cut - 1], statistics.median(ordered), ordered[n - cut]
