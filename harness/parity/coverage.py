"""How much was compared, and what was not: the limits of a verdict's evidence."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from harness.parity.checks.registry import Outcome, Registered
from harness.parity.checks.summary import mode_name
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.native_sampler.observed import NOT_RUN
from probes.format import EVENTS, LIFTED, mapping
from probes.kinds import EVENT_KEYS, FRAME_KEYS, MANIFEST_KEYS
from reports.model import IN_PART, Finding
from reports.text import first_of
from scenarios.settings import Scenario

# Settings without which it is unknown how many steps and samples a run should have.
_COUNTS = {"steps", "rollout.prompts_per_step", "rollout.samples_per_prompt"}
MOST_NAMES, MOST_LETTERS = 8, 60  # limits for lists of unread names: a recording may have any number of them


def coverage(e: Evidence, outcomes: list[tuple[Registered, Outcome]]) -> dict[str, Any]:
    """Return the verdict's `coverage` (docs/reference/verdicts.md)."""
    # What was not run has no figure: an absent key says "not recorded", where 0 would say "nothing".
    native = e.compared_native
    modes = [mode_name(e)]
    if e.lifted is not None and not e.lifted.skipped:
        modes.append("lifted")
    if native is not None:
        modes.append("native")
    facts = {
        "steps": len(e.steps),
        "steps_not_compared": len(e.unjudged_steps),
        "samples": e.counts.samples,
        "tokens": min(side.counts.tokens for side in e.sides),
        "compared_tokens": e.counts.compared_tokens,
        "benign_flips": e.counts.benign_flips,
        "flips_beyond_margin": e.counts.flips_beyond_margin,
        "logprobs_beyond_tolerance_between_engines": e.beyond(Kind.LOGPROB.of()),
        "tokens_after_first_difference": e.counts.after_first_difference,
        "repeated": {name: second_run.facts() for name, second_run in e.second_runs.items()} or None,
        "native_samples": list(native.samples) if native is not None else None,
        "native_draws": len(native.looks) if native is not None else None,
        "native": e.native.covered if e.native is not None else NOT_RUN,
        "lifted": e.lifted.covered if e.lifted is not None else None,
        "modes": modes,
        "replaced": sorted({part for side in e.sides for part in _replaced(side)}),
        "cap_set_by_user": e.cap,
    }
    return {name: value for name, value in facts.items() if value is not None} | by_state(outcomes)


def _replaced(side: Side) -> Iterator[str]:
    """Yield the parts of a side's engines that were replaced, as the recording names them."""
    infos = side.recording.records.engines
    for info in infos:
        yield from (f"{side.name}: {part}" for part in info.replaced or ())
    if not infos or any(info.replaced is None for info in infos):
        yield f"{side.name}: not recorded"


def by_state(outcomes: list[tuple[Registered, Outcome]]) -> dict[str, Any]:
    """Return how many checks have each state, and how many are ruled out although a part of what they test was not
    recorded.
    """
    states = Counter(outcome.check.state for _, outcome in outcomes)
    in_part = sum(outcome.check.state == "ruled out" and bool(outcome.missing) for _, outcome in outcomes)
    return {"checks": dict(states), **({IN_PART: in_part} if in_part else {})}


def limits(e: Evidence) -> list[str]:
    """Return sentences on what limits the evidence without belonging to one check."""
    sentences = [] if e.alone else _between(e)
    for side in e.sides:
        if not side.recording.records.settings.recorded:
            sentences.append(
                f"the {side.name}'s run.json has no scenario: its configuration and promised steps are unknown"
            )
        again = side.name in e.second_runs  # a second run measured the floor that the adapter cannot provide
        lines = side.recording.records.manifest.unrecorded
        sentences += [f"{side.name}: {line}" for line in lines if not (again and line.startswith("floor:"))]
        if not side.recording.count("data"):
            sentences.append(f"the {side.name} recorded no digests of its data")
        sentences += _unread(side, stage_read=not e.alone)
    return sentences


def _unread(side: Side, *, stage_read: bool) -> list[str]:
    """Return sentences on parts of a recording that have no reader, and on damage that may go unseen.

    `stage_read`: the lifted stage is read.
    """
    # What has no reader may differ without being noticed: other writers may record more than this version knows.
    recording = side.recording
    fields: set[str] = set()
    for kind, usual in EVENT_KEYS.items():
        if usual:  # the others may have any fields
            fields.update(f"{kind}.{key}" for key in recording.keys(kind) - usual)
    keys = sorted(recording.manifest.keys() - MANIFEST_KEYS)
    silent: list[str] = []
    if "framework" not in recording.manifest and recording.scenario:
        settings, read = _paths(recording.scenario), _paths(Scenario().to_json())
        keys += sorted(f"scenario.{path}" for path in settings - read)
        silent = sorted(f"scenario.{path}" for path in _COUNTS - settings)
    unread = {
        " recorded events of kinds": sorted(recording.kinds - EVENT_KEYS.keys()),
        " recorded fields of events": sorted(fields),
        " recorded frames of kinds": sorted(recording.frame_kinds - FRAME_KEYS.keys()),
        " recorded fields and arrays of frames": sorted(recording.unread_of_frames()),
        "'s run.json has keys": keys,
    }
    sentences = [
        f"the {side.name}{what} that are not read: {_listed(names)}" for what, names in unread.items() if names
    ]
    if silent:
        sentences.append(f"the {side.name}'s run.json does not say how much it promises: no {_listed(silent)}")
    sentences += _unnoticed(side, stage_read=stage_read)
    if not stage_read and os.path.isdir(recording.path / LIFTED / EVENTS):
        sentences.append(f"the {side.name}'s lifted stage was not read")
    return sentences


def _unnoticed(side: Side, *, stage_read: bool) -> list[str]:
    """Return sentences on damage that could be in a recording without being noticed; [] where its files are indexed
    and have checksums. `stage_read`: the lifted stage is read.
    """
    recording, sentences = side.recording, []
    if recording.unchecked:
        version = recording.manifest["format_version"]
        sentences.append(f"the {side.name}'s recording has format {version}, without checksums: damage may go unseen")
    unbound = not (recording.unchecked or recording.manifest_is_named)
    if not recording.indexed:
        unseen = ["deleted files"]
        if unbound:
            unseen.append("an edited run.json")
        if not (recording.older_than_indexes and stage_read):  # else `unequal_counts` compares them
            unseen.append("single deleted events")
        text = " and ".join(filter(None, (", ".join(unseen[:-1]), unseen[-1])))
        sentences.append(f"the {side.name}'s recording has no index of its files: {text} may go unseen")
    elif unbound:
        sentences.append(f"no journal of the {side.name} names its run.json: an edited run.json may go unseen")
    return sentences


def unnoticed_damage(e: Evidence) -> list[Finding]:
    """Return a finding for each side of which records may have been lost without a trace: it limits what a pass
    means.
    """
    return [
        Finding("lost records", "; ".join(sentences), where=side.name, severity="warning", about="recording")
        for side in e.sides
        if (sentences := _unnoticed(side, stage_read=not e.alone))
    ]


def uncalled_functions(e: Evidence) -> list[Finding]:
    """Return a finding for each function of a user's mapping that maps and that no engine called."""
    findings = []
    for side in e.sides:
        spec = mapping(side.recording.manifest.get("mapping"))
        file, listed = str(spec.get("file", "")), spec.get("uncalled")
        for function in map(mapping, listed if isinstance(listed, list) else []):
            name, names = function.get("name"), function.get("called_as")
            if not isinstance(name, str) or not isinstance(names, list):
                continue
            called = " and ".join(f"{called_name}(asked, ours)" for called_name in names)
            unclear = f"; whether it maps is not clear: {why}" if (why := function.get("unclear")) else ""
            findings.append(
                Finding(
                    name,
                    f"{name} of {file} was not called: what is called is named {called}{unclear}",
                    effect="what it does to the settings was not compared",
                    severity="warning",
                    where=side.name,
                    details={"file": file, "function": name, "called_as": names},
                    about="mapping",
                )
            )
    return findings


def _paths(settings: Mapping[str, Any], above: str = "") -> set[str]:
    """Return the names of all settings of a scenario with those of their sections, such as `rollout.mode`."""
    names = set()
    for key, value in settings.items():
        names |= _paths(value, f"{above}{key}.") if isinstance(value, dict) and value else {f"{above}{key}"}
    return names


def _listed(names: list[str]) -> str:
    return first_of([name[:MOST_LETTERS] for name in names], MOST_NAMES)


def _between(e: Evidence) -> list[str]:
    """Return sentences on what was not compared between the runs."""
    sentences = []
    for unknown_steps, what in (
        (e.completeness.weights_unknown, "the learners' weights were not recorded as equal or unequal"),
        (e.completeness.prompts_unknown, "prompts were not recorded"),
    ):
        if unknown_steps:
            sentences.append(f"{what} (step {first_of(unknown_steps, 1)})")
    for count, what in (
        (
            e.counts.not_reached,
            "of the baseline's tokens were not compared: the candidate drew another one before them",
        ),
        (e.counts.after_first_difference, "tokens after the first difference of their sample were not compared"),
        (e.counts.other_prompts, "samples had other prompts and were not compared"),
    ):
        if count:
            sentences.append(f"{count:,} {what}")
    unjudged: dict[str, list[int]] = {}
    for step, reason in sorted(e.unjudged_steps.items()):
        unjudged.setdefault(reason, []).append(step)
    sentences += [f"the rollouts of {_steps(steps)} were not compared: {reason}" for reason, steps in unjudged.items()]
    return sentences


def _steps(steps: list[int]) -> str:
    """Return `step 3`, `steps 1, 4` or `steps 2 to 7`. `steps`: in ascending order."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    if len(steps) > 2 and steps[-1] - steps[0] == len(steps) - 1:
        return f"steps {steps[0]} to {steps[-1]}"
    return f"steps {', '.join(map(str, steps))}"


# Calls without which an engine is not in the state that its samples are judged by. A call that only reads, such as
# scoring for the floor, leaves nothing behind but its own absence.
_STATEFUL = {"join", "sync", "flush", "restart", "set"}


def refused_calls(e: Evidence) -> list[str]:
    """Return a sentence for each failed call after which it is unknown what an engine drew with. Such a side never
    passes.
    """
    sentences = []
    for side in e.sides:
        for event in _failed(side):
            if event.get("name") in _STATEFUL:
                text = f"the {side.name}'s engine refused its {event.get('name')} in step {event.get('step')}"
                sentences.append(f"{text}: {event.get('message') or 'no reason given'}")
    return sentences


def _failed(side: Side) -> list[dict[str, Any]]:
    """Return the engine calls of a side that failed. Most lines need no parsing to see that theirs did not."""
    failed = []
    for journal, line in side.recording.lines("call"):
        if b'"ok":true' in line and line.count(b'"ok":') == 1:  # with two, one of them is in the answer
            continue
        event = side.recording.parsed(journal, line)
        if event is not None and event.get("ok") not in (True, 1):
            failed.append(event)
    return failed


def failed_calls(e: Evidence) -> list[Finding]:
    """Return a finding for each side with failed engine calls."""
    findings = []
    for side in e.sides:
        failed = _failed(side)
        if failed:
            first = failed[0]
            place = f"{first.get('name')} in step {first.get('step')}"
            text = f"{len(failed):,} engine calls failed, the first is {place}: {first.get('message')}"
            findings.append(Finding("engine calls", text, where=side.name, severity="warning"))
    return findings
