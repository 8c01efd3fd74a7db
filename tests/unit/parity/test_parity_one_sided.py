"""Evidence of one side never passes for the other's.

No list says which check reads what. Whatever leaves a check without a result when both runs lack it, that check needs
of each run: where one run alone lacks it, the check must not rule anything out.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import pickle
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from recordings import Recording, make, scenario
from tampered_runs import FOREIGN, HALF, ONE, OWN, STEPS, Runs, judged, sound
from test_parity_engines import TWO, split
from test_parity_lifecycle import run as asleep

NIGHT = os.environ.get("TEST_PROFILE") == "nightly"
RANKS, ENGINES, ASLEEP = "two ranks", "two engines", "asleep"
PAIRS = (OWN, HALF, FOREIGN, RANKS, ENGINES, ASLEEP)
EVENTS = (
    "boundaries", "call", "data", "engine_info", "engine_stats", "environment", "group", "learner", "model", "open",
    "probe_cost", "sampling", "shapes", "share", "span", "step", "sync", "tokenizer", "weights",
)  # fmt: skip
FRAMES = ("experience", "floor", "native", "native_score", "repeat", "rollout", "updates")
# By day all of our own pair, and of the others what only they have, or have otherwise, but for what takes 5 s or more.
DAY = [*((OWN, record) for record in (*EVENTS, *FRAMES)), (FOREIGN, "experience"), (RANKS, "share"),
       (ENGINES, "rollout"), (ASLEEP, "call")]  # fmt: skip
KINDS = ("source", "phase", "mode", "variant")  # fields that tell records of one name apart
Part = tuple[str, str, Any, str]  # record, role that wrote it, of which kind, field or column; "" for all of it


@cache
def _pickled(pair: str) -> bytes:
    if pair in (OWN, HALF, FOREIGN):
        return pickle.dumps(sound(pair, native=True))
    runs = {}
    for side in ONE:
        if pair == ASLEEP:
            runs[side] = asleep(side, 2)
        elif pair == ENGINES:
            runs[side] = split(make(side, dataclasses.replace(TWO, steps=STEPS)))
        else:
            plan = scenario(steps=STEPS)
            runs[side] = make(side, dataclasses.replace(plan, ppo=dataclasses.replace(plan.ppo, world_size=2)))
        runs[side].made = {}
    return pickle.dumps(Runs(**runs))


def _runs(pair: str) -> Runs:
    found: Runs = pickle.loads(_pickled(pair))
    return found


def _states(runs: Runs) -> tuple[str, dict[str, str]]:
    verdict = judged(runs)
    return verdict.verdict, {one.name: one.state for one in verdict.parity.checks} if verdict.parity else {}


@cache
def _sound(pair: str) -> tuple[str, dict[str, str]]:
    return _states(_runs(pair))


def _kind(fields: dict[str, Any]) -> Any:
    return next((fields[name] for name in KINDS if name in fields), None)


def _parts(run: Recording, record: str) -> Iterator[Part]:
    """All that this record says: as a whole, and at night each of its fields. Of frames always each column."""
    for log in run.logs.values():
        for name, fields in log.events:
            if name == record:
                yield record, log.role, _kind(fields), ""
                yield from ((record, log.role, _kind(fields), field) for field in fields if NIGHT)
        for frame in log.frames:
            if frame.kind == record:
                yield record, log.role, _kind(frame.fields), ""
                yield from ((record, log.role, _kind(frame.fields), name) for name in frame.arrays)
                yield from ((record, log.role, _kind(frame.fields), name) for name in frame.fields if NIGHT)


def _strip(run: Recording, part: Part) -> None:
    record, role, kind, name = part
    for log in run.logs.values():
        if log.role != role:
            continue
        if not name:
            log.events = [one for one in log.events if one[0] != record or _kind(one[1]) != kind]
            log.frames = [one for one in log.frames if one.kind != record or _kind(one.fields) != kind]
            continue
        for _, fields in [one for one in log.events if one[0] == record and _kind(one[1]) == kind]:
            fields.pop(name, None)
        for frame in [one for one in log.frames if one.kind == record and _kind(one.fields) == kind]:
            frame.arrays.pop(name, None)
            frame.fields.pop(name, None)


def _excepted(check: str, side: str, part: Part) -> bool:
    """What a check does not need of this side, and why."""
    if check in ("baseline-itself", "candidate-itself"):  # a floor is of one side
        return not check.startswith(side)
    if check == "lifted-precision":  # both stages compute with the weights that the baseline ended with
        return side == "candidate" and part[0] in ("weights", "open")
    if check == "tokens":  # both learners scored the same tokens: the margins of either say how close a choice was
        return part[0] == "experience"
    # Differences of environments are not tested for what they move, beside any difference that they may have moved.
    return check == "environment" and part[0] not in ("open", "environment", "engine_info")


@pytest.mark.by_day(4)
@pytest.mark.slow
@pytest.mark.parametrize(("pair", "record"), list(itertools.product(PAIRS, (*EVENTS, *FRAMES))) if NIGHT else DAY)
def test_what_a_check_needs_it_needs_of_each_side(pair: str, record: str) -> None:
    verdict, good = _sound(pair)
    assert verdict == "EQUIVALENT"
    pooled, runs = [], _runs(pair)
    for part in dict.fromkeys(part for side in ONE for part in _parts(runs.of(side), record)):
        both = _runs(pair)
        for run in (both.baseline, both.candidate, *([both.again] if both.again is not None else [])):
            _strip(run, part)
        verdict, states = _states(both)
        if verdict in ("DIVERGENT", "CONFOUNDED"):  # by what is lacking the runs differ, and checks give way to that
            continue
        needing = [name for name, state in good.items() if state == "ruled out" and states.get(name) != state]
        for side in ONE if needing else ():
            one = _runs(pair)
            _strip(one.of(side), part)
            if side == "baseline" and one.again is not None:  # a job that lacks it lacks it again
                _strip(one.again, part)
            told = _states(one)[1]
            pooled += [
                (name, side, part)
                for name in needing
                if told.get(name) == "ruled out" and not _excepted(name, side, part)
            ]
    assert pooled == []


@pytest.mark.slow
def test_every_record_is_tried() -> None:
    """A record of another name would be stripped of nothing."""
    for pair in PAIRS:
        runs = _runs(pair)
        for run in (runs.baseline, runs.candidate):
            told = {name for log in run.logs.values() for name, _ in log.events}
            assert told <= set(EVENTS) and {one.kind for log in run.logs.values() for one in log.frames} <= set(FRAMES)
