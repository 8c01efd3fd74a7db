"""What rules out any verdict: a recording that is torn, cut short, too small, or the same recording twice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.native_sampler.observed import MOST_DRAWS
from harness.parity.subjects.ranks.observed import world_size
from harness.parity.subjects.recording.observed_promises import unkept_promises
from harness.recordings.records.values import parameters
from harness.recordings.store import Recording
from probes.format import INDEX, number
from reports.text import first_of, part_of
from scenarios.settings import Sampling


@dataclass(frozen=True)
class Minimum:
    """The least evidence for a verdict on the engines."""

    tokens: int = 200
    samples: int = 8
    share: float = 0.9  # of the drawn tokens; reason in `observed_compared_share`


LEAST = Minimum()
_RANKED = ("actor", "critic", "reference", "reward")
NATIVE_MODE = "native"
_STAGE = ("native", "repeat", "native_score")  # frames of a native stage
# Settings that are used as numbers. A recording in which one is no number is unreadable.
_NUMBERS = {
    "scenario": ("steps", "seed"),
    "scenario.native": ("alpha", "margin", "draws", "samples", "further"),
    "scenario.rollout": ("prompts_per_step", "samples_per_prompt"),
    "scenario.sampling": tuple(parameter.name for parameter in fields(Sampling) if parameter.type in ("int", "float")),
}
_COUNTS = ("steps", "seed", "prompts_per_step", "samples_per_prompt")
_NATIVE = {"alpha": 0.5, "margin": 2.0, "draws": MOST_DRAWS}  # the largest error rate, margin and number of looks


def integrity(recordings: Mapping[str, Recording]) -> list[str]:
    """Return a sentence for each damage and each unfinished process, which make a recording incomplete."""
    return [what for name, recording in recordings.items() for what in damage(recording, name)]


def damage(recording: Recording, name: str) -> list[str]:
    """Return the damage of one recording."""
    if recording.is_empty:
        return [f"the {name} recorded nothing: it has a run.json, and no process of it wrote an event"]
    problems = _unreadable(recording, name)
    problems += [f"the {name}'s recording is torn: {file}: {what}" for file, what in recording.torn]
    problems += [f"the {name}'s recording was cut short: {file} has no close event" for file in recording.incomplete]
    problems += [f"the {name}'s recording has {lack}" for lack in unkept_promises(recording)]
    for kind in _without_frames(recording):
        problems.append(
            f"the {name}'s recording has no frames of kind {kind!r}, though its engine drew samples of its own"
        )
    for end in recording.records.ends:
        if not end.succeeded:
            problems.append(f"the {name}'s {end.role} ended badly: {end.reason or 'no reason given'}")
    if recording.unsealed:
        lack = f"no {INDEX}, which its run.json promises: the run was cut short, or files were deleted"
        problems.append(f"the {name}'s recording has {lack}")
    return problems


def _without_frames(recording: Recording) -> list[str]:
    """Return the kinds of frames that a native stage lacks: a run with promises has all of them, or no such stage."""
    records = recording.records
    # In a run of native mode every rollout is drawn by the engine's own sampler, without a stage of its own.
    if not records.manifest.promised_kinds or records.settings.rollout.mode == NATIVE_MODE:
        return []
    if all(request.mode != NATIVE_MODE for request in records.sampling):
        return []
    return [kind for kind in _STAGE if not recording.steps(kind)]


def _unreadable(recording: Recording, name: str) -> list[str]:
    """Find parts of run.json that are no objects or numbers: what they promise cannot be read."""
    problems = [*_no_objects(recording)]
    for part, keys in _NUMBERS.items():
        problems += _no_numbers(recording, part, keys)
    if recording.steps("native"):
        problems += _no_tests(parameters(recording.scenario.get("native")))
    return [f"the {name}'s recording is unreadable: {problem}" for problem in problems]


def _no_objects(recording: Recording) -> Iterator[str]:
    parts = {"scenario": recording.manifest.get("scenario")}
    for section in ("model", "rollout", "sampling", "engine", "native"):
        parts[f"scenario.{section}"] = recording.scenario.get(section)
    for part, value in parts.items():
        if value is not None and not isinstance(value, dict):
            yield f"{part} of its run.json is no object"


def _no_numbers(recording: Recording, part: str, keys: Iterable[str]) -> Iterator[str]:
    section = part.removeprefix("scenario").removeprefix(".")
    values = parameters(recording.scenario.get(section) if section else recording.manifest.get("scenario"))
    for key in keys:
        is_valid, kind = (_is_whole, "whole number") if key in _COUNTS else (_is_number, "number")
        value = values.get(key)
        if value is not None and not is_valid(value):
            yield f"{part}.{key} of its run.json is {value!r}, which is not a {kind}"


def _no_tests(native: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings of a native stage with which it tests nothing."""
    for key, most in _NATIVE.items():
        value = native.get(key)
        if _is_number(value) and not 1e-9 <= number(value) <= most:
            yield f"scenario.native.{key} of its run.json is {value!r}, which tests nothing"


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def too_little(e: Evidence, minimum: Minimum) -> list[str]:
    """Find promised steps that are missing, samples without a partner, and too few tokens."""
    problems = [problem for side in e.sides for problem in _absent_steps(e, side)]
    problems += e.completeness.repeated
    # Runs with other prompts share no samples. The confounder says so, and lost samples are no second reason.
    if e.confounded("prompts", "everything") is None:
        problems += e.completeness.unmatched
    tokens, samples = min(side.counts.tokens for side in e.sides), min(side.counts.samples for side in e.sides)
    if tokens < minimum.tokens or samples < minimum.samples:
        problems.append(
            f"too little was recorded: {tokens} tokens in {samples} samples, at least {minimum.tokens} in "
            f"{minimum.samples} are needed"
        )
    return problems


def _absent_steps(e: Evidence, side: Side) -> Iterator[str]:
    """Yield a sentence where steps have no rollouts, and one where they have fewer samples than the scenario draws."""
    recorded = set(side.recording.steps("rollout"))
    if not recorded:
        yield f"the {side.name} recorded no rollouts"
        return
    # Only recorded steps count for the samples: a step that is missing is reported once, as a step.
    absent = sorted(_expected_steps(e) - recorded)
    if absent:
        yield f"the {side.name} recorded no rollouts of step {first_of(absent, 1)}"
    rollout = side.recording.records.settings.rollout
    promised = (rollout.prompts_per_step or 0) * (rollout.samples_per_prompt or 0) * len(recorded)
    if side.counts.samples < promised:
        yield f"the {side.name} recorded {part_of(side.counts.samples, promised, 'sample')}"


def _expected_steps(e: Evidence) -> set[int]:
    """Return the promised steps; without a promise those that either side recorded."""
    # Recordings that were restricted to a window of steps promise only those.
    promised = e.candidate.recording.window or range(max(side.recording.promised_steps for side in e.sides))
    return set(promised) or set().union(*(side.recording.steps("rollout") for side in e.sides))


def failed_jobs(e: Evidence) -> list[str]:
    """Find sides whose recorded command ended with another exit code than 0.

    They never pass, since what the job should still have done is unknown. A recording without an exit code, as of the
    scenario's own runs, is no finding.
    """
    return [why for side in e.sides for why in bad_exit(side.recording, side.name)]


def bad_exit(recording: Recording, name: str) -> list[str]:
    code = recording.records.manifest.exit_code
    return [f"the {name}'s job ended with exit code {code}"] if code not in (None, 0) else []


def absent_processes(e: Evidence) -> list[str]:
    """Find processes of the harness' own runs that left no record: without their journals a recording is incomplete.

    Only the job of a framework knows which processes it starts, and which of them record.
    """
    if e.of_a_framework:
        return []
    # What either run recorded of a first process, both must have. Further trainers or engines may start or not: the
    # native stage has its own.
    started_roles: set[str] = set()
    for side in e.sides:
        started_roles.update(start.role or "" for start in side.recording.records.starts if not start.rank)
    problems = []
    for side in e.sides:
        processes = {(start.role or "", start.rank) for start in side.recording.records.starts}
        ranks_of_role = dict.fromkeys(started_roles, 1)
        if e.train:
            ranks_of_role |= {"trainer": 1, **dict.fromkeys(_RANKED, world_size(side.recording))}
        for role, size in sorted(ranks_of_role.items()):
            absent = [rank for rank in range(size) if (role, rank) not in processes]
            if absent:
                problems.append(f"the {side.name} has no record of its {role} (rank {first_of(absent, 1)})")
    return problems


def strange_engines(e: Evidence) -> list[str]:
    """Find runs whose run.json names another engine than the process that drew: which was compared is unknown."""
    problems = []
    for side in e.sides:
        records = side.recording.records
        named_engine = (records.manifest.backend or "").partition("@")[0]
        drew = {info.engine_name for info in records.engines} - {""}
        if named_engine and drew and drew != {named_engine}:
            engines = " and ".join(sorted(drew))
            problems.append(
                f"the {side.name}'s run.json says that {named_engine} drew, and its processes that {engines} did"
            )
    return problems


def copies(first: Recording, second: Recording) -> bool:
    """Whether two recordings are one, or one a copy of the other: every process has the same start time."""
    if first.path.resolve() == second.path.resolve():
        return True
    # Without start times two runs of the same processes could look like copies.
    timed = bool(first.records.starts) and all(start.wall_ns is not None for start in first.records.starts)
    return timed and _processes(first) == _processes(second)


def _processes(recording: Recording) -> list[tuple[str, int, int, str]]:
    """Return host, pid, start time and role of every process, sorted."""
    starts = recording.records.starts
    return sorted((start.host or "", start.pid or 0, start.wall_ns or 0, start.role or "") for start in starts)
