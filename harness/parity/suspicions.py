"""The suspicions about tokens and sizes: prompt ids, token boundaries, experience shapes, and the time of each step.

Source of all eleven: "NCCL Hang 的猜想", the user's guesses why two engines differ (`SUSPICIONS` in `reports.model`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.parity.evidence import Evidence, Side
from harness.parity.registry import Outcome, check, outcome, trains, unless_native
from harness.parity.summary import step_seconds
from harness.parity.surroundings import effect
from harness.tables import mapping, number
from reports.model import SUSPICIONS, Finding
from reports.text import show


@check(SUSPICIONS[1], 1)
def token_ids_not_text(e: Evidence) -> Outcome:
    return _prompts(e, 1, "went in as ids and were seen as they were sent", "the engine saw")


@check(SUSPICIONS[10], 10, required=unless_native)
def prompt_ids(e: Evidence) -> Outcome:
    return _prompts(e, 10, "prompt_seen equals prompt", "prompt_seen is not prompt:")


def _prompts(e: Evidence, number: int, good: str, bad: str) -> Outcome:
    name = SUSPICIONS[number]
    kinds = tuple(f"prompt:{side.name}" for side in e.sides if f"prompt:{side.name}" in e.first)
    if kinds:
        found: dict[str, Any] = {
            side.name: {kind: len(where) for kind, where in e.notes.get(f"prompt kinds:{side.name}", {}).items()}
            for side in e.sides
        }
        text = "; ".join(
            f"{side}: {', '.join(f'{kind} in {count} samples' for kind, count in counts.items())}"
            for side, counts in found.items()
            if counts
        )
        return outcome(name, "confirmed", f"{bad} {text}", number=number, kinds=kinds, **found)
    silent = [side for side in e.sides if side.seen_samples < side.samples or not side.samples]
    if silent:
        counts = f"{silent[0].seen_samples} of {silent[0].samples}"
        text = f"the {silent[0].name}'s engine said of {counts} samples which prompt it saw"
        return outcome(name, "not tested", text, number=number)
    counts = " and ".join(f"{side.seen_samples:,} of {side.samples:,}" for side in e.sides)
    return outcome(name, "ruled out", f"{good} in {counts} samples", number=number)


PROMPT_ENDS = ("prompt_first", "prompt_last", "prompt_len")
OUTPUT_ENDS = ("output_first", "output_last", "output_len", "specials")


@check(SUSPICIONS[2], 2)
def token_boundaries(e: Evidence) -> Outcome:
    """First and last ids, lengths and specials. Lines are compared as bytes; only those that differ are parsed."""
    name, number = SUSPICIONS[2], 2
    counts = [side.recording.count("boundaries") for side in e.sides]
    if not all(counts):
        return outcome(name, "not tested", "no token boundaries were recorded", number=number)
    for side in e.sides:
        journal, line = next(side.recording.lines("boundaries"))
        event = side.recording.parsed(journal, line) or {}
        silent = [field for field in ("step", "sample", *PROMPT_ENDS, *OUTPUT_ENDS) if event.get(field) is None]
        if silent:
            text = f"the {side.name}'s token boundaries lack {', '.join(silent)}"
            return outcome(name, "not tested", text, number=number)
    if e.confounded("everything", "prompts") is not None or e.mode == "native":
        return outcome(name, "not tested", "the runs do not share their samples", number=number)
    one, two = _different_boundaries(e.baseline, e.candidate), _different_boundaries(e.candidate, e.baseline)
    parted = {tuple(item) for kind in ("any flip", "length") for item in e.found(kind).tolist()}
    compared, wrong = counts[0] - len(one), []
    for key in sorted(set(one) & set(two)):
        if key[0] in e.unjudged_steps:
            continue
        compared += 1
        fields = PROMPT_ENDS + (() if key in parted else OUTPUT_ENDS)
        differ = [field for field in fields if one[key].get(field) != two[key].get(field)]
        if differ:
            wrong.append((key, differ[0], one[key].get(differ[0]), two[key].get(differ[0])))
    alone = len(set(one) ^ set(two))
    if wrong:
        (step, sample), field, a, b = wrong[0]
        text = (
            f"{len(wrong)} of {compared} samples differ, first step {step}, sample {sample}, {field}: {a} against {b}"
        )
        finding = Finding(
            "token boundaries", text, effect(e), details={"samples": [list(key) for key, *_ in wrong[:50]]}
        )
        return outcome(name, "confirmed", text, number=number, decides=False, findings=[finding])
    if alone and not e.unjudged_steps:
        return outcome(
            name, "not tested", f"the boundaries of {alone} samples were recorded in one run only", number=number
        )
    return outcome(
        name, "ruled out", f"first and last ids, lengths and specials agree in {compared:,} samples", number=number
    )


def _different_boundaries(side: Side, against: Side) -> dict[tuple[int, int], dict[str, Any]]:
    """The boundaries of one run that the other run has not, byte for byte, parsed; by (step, sample)."""
    own, theirs = side.recording.content_hashes("boundaries"), against.recording.content_hashes("boundaries")
    alone = ~np.isin(own, theirs)
    found = {}
    if alone.any():
        for (journal, line), wanted in zip(side.recording.lines("boundaries"), alone.tolist(), strict=True):
            event = side.recording.parsed(journal, line) if wanted else None
            if event is not None and isinstance(event.get("step"), int) and isinstance(event.get("sample"), int):
                found[event["step"], event["sample"]] = event
    return found


@check(SUSPICIONS[3], 3)
def experience_matrix_shapes(e: Evidence) -> Outcome:
    """Shapes, padding and longest sample of each experience batch."""
    name, number = SUSPICIONS[3], 3
    one, two = (_shapes(side) for side in e.sides)
    steps = [step for step in sorted(set(one) & set(two)) if step not in e.unjudged_steps]
    steps = [step for step in steps if e.confounded("everything", "prompts", "experience", step=step) is None]
    parted = e.notes.get("trained on other tokens", [])
    if not steps or not any(_skew(shapes, steps)["longest"] for shapes in (one, two)):
        return outcome(name, "not tested", "no shapes of an experience batch that both runs share", number=number)
    wrong = [step for step in steps if one[step]["shape"] != two[step]["shape"]]
    skew: dict[str, Any] = {side.name: _skew(shapes, steps) for side, shapes in zip(e.sides, (one, two), strict=True)}
    shown = "; ".join(f"{side} padding ×{s['padding']:.2f}, longest {s['longest']:g}" for side, s in skew.items())
    if wrong:
        parts = _apart(one[wrong[0]]["shape"], two[wrong[0]]["shape"])
        why = " (the runs trained on other tokens)" if wrong[0] in parted else ""
        text = f"shapes differ in {len(wrong)} of {len(steps)} steps, first step {wrong[0]}{why}: {parts}; {shown}"
        return outcome(
            name,
            "confirmed",
            text,
            number=number,
            decides=False,
            findings=[Finding("experience shapes", text, effect(e))],
            **skew,
        )
    return outcome(name, "ruled out", f"equal in {len(steps)} steps; {shown}", number=number, **skew)


def _apart(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> str:
    """The first few entries that differ, of the first rank that has any."""
    if len(one) != len(two):
        return f"{len(one)} against {len(two)} batches"
    a, b = next((pair for pair in zip(one, two, strict=True) if pair[0] != pair[1]), ({}, {}))
    keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
    said = [f"{key} {show(a.get(key))} against {show(b.get(key))}" for key in keys[:3]]
    return ", ".join(said) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def _shapes(side: Side) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for event in side.recording.all("shapes"):
        if event.get("phase") == "experience" and isinstance(event.get("step"), int):
            tensors = mapping(event.get("tensors"))
            tensors = {
                key: value[:2] if isinstance(value, list) else value for key, value in tensors.items()
            }  # no device
            sizes = {key: number(event.get(key), 0) for key in ("padded_tokens", "real_tokens", "longest", "samples")}
            entry = found.setdefault(event["step"], {"shape": [], "sizes": []})
            entry["shape"].append({**tensors, **sizes})
            entry["sizes"].append(sizes)
    return found


def _skew(shapes: dict[int, dict[str, Any]], steps: list[int]) -> dict[str, float]:
    sizes = [size for step in steps for size in shapes[step]["sizes"]]
    padded, real = (sum(size[key] for size in sizes) for key in ("padded_tokens", "real_tokens"))
    return {
        "padding": padded / real if real else float("nan"),
        "longest": max((size["longest"] for size in sizes), default=0),
    }


SLOW = 5.0  # times the median step of the run
SLOW_SECONDS = 5.0


@check(SUSPICIONS[11], 11)
def sizes_and_times(e: Evidence) -> Outcome:
    """Input size and time of every step: does one take far longer than its run's median, and does its size say why?"""
    name, number = SUSPICIONS[11], 11
    seconds = {side.name: step_seconds(side) for side in e.sides}
    sizes = {
        side.name: {step: sum(s["real_tokens"] for s in entry["sizes"]) for step, entry in _shapes(side).items()}
        for side in e.sides
    }
    if not all(seconds.values()):
        return outcome(name, "not tested", "no step times were recorded", number=number)
    slow = []
    for side, times in seconds.items():
        later = sorted(times.values())
        median = later[len(later) // 2]
        slow += [
            (side, step, t, median)
            for step, t in times.items()
            if t > SLOW * median and t > median + SLOW_SECONDS and step != min(times)
        ]
    details: dict[str, Any] = {side: {"seconds": seconds[side], "real_tokens": sizes[side]} for side in seconds}
    if slow:
        side, step, t, median = max(slow, key=lambda one: one[2])
        tokens = sizes[side].get(step)
        text = f"the {side}'s step {step} took {t:.1f} s, its median step {median:.1f} s"
        text += (
            f"; its {tokens} tokens are {tokens / max(1, _median(list(sizes[side].values()))):.1f} times the median"
            if tokens
            else ""
        )
        return outcome(
            name,
            "confirmed",
            text,
            number=number,
            decides=False,
            findings=[Finding("slow step", text, where=side)],
            **details,
        )
    shown = ", ".join(
        f"{side} median {_median(list(times.values())):.2f} s, longest {max(times.values()):.2f} s"
        for side, times in seconds.items()
    )
    if trains(e) and not all(sizes.values()):
        return outcome(name, "not tested", f"no input sizes were recorded; {shown}", number=number, **details)
    return outcome(name, "ruled out", f"no step stands out: {shown}", number=number, **details)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else float("nan")
