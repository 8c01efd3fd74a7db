"""The recorded text around a place in a sample, which recordings hold at token boundaries only."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from harness.parity.facts.align import AHEAD, around
from harness.parity.facts.evidence import Evidence, Side
from reports.model import Place

FEW = 16  # up to so many samples their numbers are searched for in the journal's bytes


def by_sample(side: Side, wanted: set[tuple[int, int]]) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the parsed `boundaries` events of these (step, sample)."""
    events: dict[tuple[int, int], dict[str, Any]] = {}
    if not wanted:
        return events
    # For few of very many samples, the number is searched for before a line is parsed.
    numbers = [f'"sample":{sample}'.encode() for _, sample in wanted] if len(wanted) <= FEW else []
    for journal, line in side.recording.lines("boundaries"):
        if numbers and not any(number in line for number in numbers):
            continue
        event = side.recording.parsed(journal, line) or {}
        key = (event.get("step"), event.get("sample"))
        if key in wanted:
            events[key] = event
    return events


def with_text(e: Evidence, place: Place | None) -> Place | None:
    """Return the place with the ids and the text around it in its context, as far as the recordings hold them."""
    if place is None or place.sample < 0 or place.step < 0 or place.position < 0:
        return place
    descriptions = [_described(side, place) for side in e.sides]
    if not any("“" in description for description in descriptions):
        descriptions.append("the recordings hold the text of the first and last eight ids only")
    return dataclasses.replace(place, context="; ".join(filter(None, [place.context, *descriptions])))


def _described(side: Side, place: Place) -> str:
    """Return what a side recorded around the place: its ids, and the text that contains them."""
    prompt = place.phase == "prompt"
    ids = _ids(side, place, "prompt_seen" if prompt else "output")
    if ids is None:
        return f"{side.name}: its ids were not recorded"
    text = _text(side, place, "prompt" if prompt else "output")
    return f"{side.name}: {ids}, in “{text}”" if text else f"{side.name}: {ids}"


def _ids(side: Side, place: Place, column: str) -> str | None:
    """Return the ids around the place; None where they were not recorded."""
    table = side.recording.table("rollout", place.step)
    if table is None or (rows := table.rows(column)) is None:
        return None
    where = (table.sample == place.sample).nonzero()[0]
    if not len(where):
        return None
    return around(rows.row(int(where[0])), place.position, behind=AHEAD)


# The fields with the text of the first and of the last ids. The seam is the end of the prompt and the begin of the
# output together.
_TEXTS = {"prompt": ("text_first", "text_seam"), "output": ("text_seam", "text_last")}


def _text(side: Side, place: Place, kind: Literal["prompt", "output"]) -> str:
    """Return the recorded text that contains the place; "" where there is none."""
    event = by_sample(side, {(place.step, place.sample)}).get((place.step, place.sample), {})
    first, last, length = (event.get(f"{kind}_{part}") for part in ("first", "last", "len"))
    if not isinstance(first, list) or not isinstance(last, list) or not isinstance(length, int):
        return ""
    text_of_first, text_of_last = _TEXTS[kind]
    if place.position < len(first):
        return str(event.get(text_of_first) or "")
    if place.position >= length - len(last):
        return str(event.get(text_of_last) or "")
    return ""
