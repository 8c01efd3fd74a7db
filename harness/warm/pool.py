"""The warm engines that one run uses: selected by fit, checked before use, and restarted where state is left over."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from harness.cluster import launch
from harness.cluster.launch import Cluster, Seat
from harness.cluster.side import Side
from harness.cluster.waiting import Waiting
from harness.warm import state
from harness.warm.fit import difference, facts
from harness.warm.keeper import of_stage, settled, start
from scenarios.remote import Future, Remote

LOOK_S = 120.0  # a look at an engine takes 1 to 3 s; an engine that is still in a call of an ended run does not answer

Place = tuple[str, state.Stage]  # the name of a side, and the stage of its engine


class Pool:
    """The warm engines that one run has claimed. `say` prints one line for the user."""

    def __init__(self, kept: state.Kept, chosen: dict[Place, state.KeptEngine], say: Callable[[str], None]) -> None:
        self._kept, self._chosen, self._say = kept, chosen, say
        self._started_anew: dict[Place, str] = {}
        self.address, self.raylet, self.fork_sockets = kept.address, kept.raylet.pid, kept.fork_sockets
        self.becoming: list[Future] = []  # learners in warm processes; each is still a spare until its future is done

    def has(self, side: Side, stage: state.Stage) -> bool:
        return (side.name, stage) in self._chosen

    def look(self, side: Side, stage: state.Stage) -> tuple[Remote | None, Future | None]:
        """Start a look at an engine. `adopt` waits for its result."""
        scenario = of_stage(side.scenario, stage)
        try:
            actor = Cluster.named(self._chosen[side.name, stage].actor)
        except ValueError:  # the actor has ended
            return None, None
        return actor, actor.submit("adopt", scenario.to_json(), side.plants.engine, side.parameter_map or None)

    def adopt(
        self, cluster: Cluster, side: Side, stage: state.Stage, looked: tuple[Remote | None, Future | None],
        waiting: Waiting, check: Callable[[Remote], str] = lambda actor: "",
    ) -> Remote:  # fmt: skip
        """Return an engine that is as sound as a fresh one.

        This is the warm engine where no state of earlier runs is left and `check` returns no objection; otherwise it
        is a new engine in its place.
        """
        actor, looking = looked
        why = _why_unusable(looking)
        if actor is not None and not why:
            why = check(actor)
            if not why:
                return actor
        self._say(f"{side.backend} is up but not used, and started anew: {why}")
        self._started_anew[side.name, stage] = why
        return self._renew(cluster, side, stage, waiting)

    def learner(
        self, cluster: Cluster, target: str, seat: Seat, *args: Any, urgent: tuple[str, ...] = (), **kwargs: Any
    ) -> Remote:
        """Start an actor as `Cluster.actor` does, in a warm process where one is left."""
        while self._kept.spares:
            name, *remaining = self._kept.spares
            self._kept = dataclasses.replace(self._kept, spares=tuple(remaining))
            state.write(self._kept)
            with contextlib.suppress(ValueError):  # the actor has ended
                actor = cluster.adopt(name, urgent)
                self.becoming.append(actor.become(target, seat.env, *args, **kwargs))
                return actor
        return cluster.actor(target, seat, *args, urgent=urgent, **kwargs)

    def renewed(self, side: Side, stage: state.Stage) -> bool:
        """Whether the engine was restarted for this run."""
        return (side.name, stage) in self._started_anew

    def facts(self, side: Side) -> dict[str, Any]:
        """Return the facts for run.json: since when the engines are warm, and which were restarted for this run, and
        why.
        """
        anew = {stage: why for (name, stage), why in self._started_anew.items() if name == side.name}
        return {"since": self._kept.since, "started_anew": anew}

    def _renew(self, cluster: Cluster, side: Side, stage: state.Stage, waiting: Waiting) -> Remote:
        old = self._chosen[side.name, stage]
        if old.process.alive:
            launch.end([old.process.pid])
        with contextlib.suppress(ValueError):
            Cluster.named(old.actor).stop()
        prefix, _, number = old.actor.partition("+")
        name = f"{prefix}+{int(number or 0) + 1}"
        actor = start(cluster, side, old.model, self._kept.device, stage, name)
        version, process = settled(actor, side, stage, waiting)
        new = dataclasses.replace(old, version=version, process=process, actor=name)
        self._chosen[side.name, stage] = new
        engines = tuple(new if engine == old else engine for engine in self._kept.engines)
        self._kept = dataclasses.replace(self._kept, engines=engines)
        state.write(self._kept)
        return actor


@contextlib.contextmanager
def claim(
    sides: Sequence[Side], *, device: str, native: bool, refused: str = "", say: Callable[[str], None]
) -> Iterator[Pool | None]:
    """Claim warm engines where every side finds one that fits; otherwise yield None and say why in one line.

    `refused`: why this run must not use warm engines.
    """
    kept = state.current(say)
    if kept is None:
        yield None
        return
    with state.claimed() as free:
        kept = state.current(say)  # they may have ended before we got the lock
        why = refused or ("" if free else f"a run (pid {state.holder()}) uses them")
        chosen: dict[Place, state.KeptEngine] = {}
        if kept is not None and not why:
            chosen, why = _chosen(kept, sides, device, native)
        if kept is not None and not why:
            say(f"warm: {', '.join(side.backend for side in sides)}, up since {kept.since}")
            yield Pool(kept, chosen, say)
            return
    say(f"the engines that are up are not used: {why or 'they have ended'}")
    yield None


def _chosen(
    kept: state.Kept, sides: Sequence[Side], device: str, native: bool
) -> tuple[dict[Place, state.KeptEngine], str]:
    """Return (an engine of its own for each side and stage, ""), or ({}, why there is none)."""
    chosen: dict[Place, state.KeptEngine] = {}
    for side in sides:
        stages: tuple[state.Stage, ...] = ("coupled", "native") if native else ("coupled",)
        wanted = facts(side, device)
        for stage in stages:
            of_stage = [engine for engine in kept.engines if engine.backend == side.backend and engine.stage == stage]
            free = [engine for engine in of_stage if engine not in chosen.values()]
            fitting = [engine for engine in free if not difference(engine.facts, wanted)]
            if not fitting:
                kind = "native " if stage == "native" else ""
                if not of_stage:
                    return {}, f"there is no {kind}{side.backend} (there are: {kept.names})"
                if not free:
                    return {}, f"there is one {kind}{side.backend}, and two are needed"
                return {}, f"{side.backend}: {difference(free[0].facts, wanted)}"
            chosen[side.name, stage] = fitting[0]
    return chosen, ""


def _why_unusable(looking: Future | None) -> str:
    if looking is None:
        return "it has ended"
    import ray.exceptions as failures

    try:
        return "; ".join(looking.result(timeout=LOOK_S))
    except failures.GetTimeoutError:
        return f"it gave no answer in {LOOK_S:.0f} s"
    except failures.RayError as error:
        lines = str(getattr(error, "cause", None) or error).strip().splitlines()
        return f"a look at it failed: {lines[-1] if lines else type(error).__name__}"
