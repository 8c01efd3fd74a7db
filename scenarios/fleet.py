"""Several engines of one run behind one handle.

Each engine has its own actor, draws the samples that `engine_of` assigns to it, and is synced and checked on its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from scenarios.engines.engine_interface import Misloaded, Request, SyncGroup, SyncReport
from scenarios.remote import Actor, Future
from scenarios.session import RolloutResult

# Methods that every engine runs and whose answers do not differ between engines.
EVERY = frozenset({
    "record_to", "end_recording", "end_native", "flush", "sleep", "wake", "configure", "become_pure", "serve",
    "put_back", "restart", "set", "close",
})  # fmt: skip


def engine_of(sample: int, samples_per_prompt: int, engines: int) -> int:
    """Return the engine that draws a sample: prompts are distributed in turn, and all samples of one prompt stay
    together.
    """
    return sample // samples_per_prompt % engines


def members(session: Actor) -> list[Actor]:
    """Return the engines behind a handle: those of a fleet, or the single one."""
    return session.members if isinstance(session, Fleet) else [session]


class Gathered:
    """Several futures as one: done when all are done, or as soon as one has failed."""

    def __init__(self, futures: Sequence[Future], merge: Callable[[list[Any]], Any]) -> None:
        self._futures, self._merge = futures, merge

    def done(self) -> bool:
        done = [future for future in self._futures if future.done()]
        if len(done) == len(self._futures):
            return True
        for future in done:
            try:
                future.result()
            except Exception:  # `result` raises it
                return True
        return False

    def result(self, timeout: float | None = None) -> Any:
        for future in self._futures:
            if future.done():  # a failure must not wait for an engine that never answers
                future.result()
        return self._merge([future.result(timeout) for future in self._futures])


class Fleet:
    """The `scenarios.session.EngineSession`s of one run as an `Actor`. `members`: by engine number.

    Methods that only one engine can answer (`rescore`, `layers`, `held`) must be called on `members`.
    """

    def __init__(self, members: list[Actor], samples_per_prompt: int) -> None:
        self.members = members
        self._per_prompt = samples_per_prompt

    def submit(self, method: str, *args: Any, **kwargs: Any) -> Gathered:
        if method in ("rollout", "replay", "floor", "native"):
            return self._drawn(method, *args, **kwargs)
        if method == "join":
            return self._join(*args)
        if method == "configure":
            self._per_prompt = int(args[0]["rollout"]["samples_per_prompt"])
        merge = self._merges().get(method) or (_first if method in EVERY else None)
        if merge is None:
            raise ValueError(f"{method}: ask one engine of the fleet, not all of them")
        return Gathered([member.submit(method, *args, **kwargs) for member in self.members], merge)

    def stop(self) -> None:
        for member in self.members:
            member.stop()

    @staticmethod
    def _merges() -> dict[str, Callable[[list[Any]], Any]]:
        return {
            "sync": _reports,
            "workers": _first,  # computed from the scenario, which counts the workers of every engine
            "snapshot": _first,
            "pids": lambda answers: tuple(pid for pids in answers for pid in pids),
            "starts": lambda answers: (sum(answer[0] for answer in answers), sum(answer[1] for answer in answers)),
        }

    def _join(self, group: SyncGroup) -> Gathered:
        each = (group.world_size - group.rank_offset) // len(self.members)
        parts = [
            dataclasses.replace(group, rank_offset=group.rank_offset + number * each)
            for number in range(len(self.members))
        ]
        return Gathered([m.submit("join", part) for m, part in zip(self.members, parts, strict=True)], _first)

    def _drawn(self, method: str, requests: list[Request], **kwargs: Any) -> Gathered:
        """Let each engine draw its part, and return the answers in the order of `requests`."""
        places_of: dict[int, list[int]] = {}  # engine -> places of its requests
        for place, request in enumerate(requests):
            number = engine_of(request.sample, self._per_prompt, len(self.members))
            places_of.setdefault(number, []).append(place)
        futures = []
        for number, places in places_of.items():
            part = [requests[place] for place in places]
            futures.append(self.members[number].submit(method, part, **kwargs))
        merge = _in_order if method in ("floor", "native") else _rollout
        return Gathered(futures, partial(merge, list(places_of.values())))


def _in_order(places_of_engines: list[list[int]], answers: list[list[Any]]) -> list[Any]:
    """Return the rows of all engines in the order of the requests."""
    rows = [row for answer in answers for row in answer]
    if list(map(len, answers)) != list(map(len, places_of_engines)):
        return rows  # samples are missing or duplicated: the trainer checks their numbers
    places = [place for places in places_of_engines for place in places]
    return [row for _, row in sorted(zip(places, rows, strict=True), key=lambda pair: pair[0])]


def _rollout(places_of_engines: list[list[int]], answers: list[RolloutResult]) -> RolloutResult:
    return RolloutResult(
        _in_order(places_of_engines, [answer.completions for answer in answers]),
        _in_order(places_of_engines, [answer.used for answer in answers]),
        max(answer.rounds for answer in answers),
        sum(answer.uncompared for answer in answers),
    )


def _first(answers: list[Any]) -> Any:
    return answers[0]


def _reports(reports: list[SyncReport]) -> SyncReport:
    """Merge the reports of all engines.

    Where one engine received another tensor than the first, that digest is kept. Tensors that an engine does not
    report are left out.
    """
    first, *others = reports
    reported_names = set(first.received).intersection(*(report.received for report in others))
    received = {name: value for name, value in first.received.items() if name in reported_names}
    # A digest that differs in any engine is what the learner has to see.
    for report in others:
        received |= {name: report.received[name] for name in reported_names if report.received[name] != received[name]}
    loaded = [report.loaded for report in reports if report.loaded is not None]
    misloaded: list[Misloaded] = []
    for number, report in enumerate(reports):
        misloaded += [dataclasses.replace(tensor, engine=number) for tensor in report.misloaded]
    return SyncReport(
        all(report.ok for report in reports),
        "; ".join(dict.fromkeys(report.message for report in reports if report.message)),
        max(report.seconds for report in reports),
        received,
        min(loaded) if len(loaded) == len(reports) else None,
        tuple(misloaded),
    )
