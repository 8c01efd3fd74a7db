"""A timeline of a run, or of two side by side, in the Trace Event Format that https://ui.perfetto.dev opens.

The format is Chrome's "Trace Event Format" (JSON, 2016): complete events X, counters C, instants i, metadata M. Times
are microseconds. Slices of one thread must nest, so slices that overlap in another way get a thread of their own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from probes.format import FormatError
from reports import displayed_paths
from reports.renderers import Renderer
from reports.sections import timeline, triage
from reports.text import clean

if TYPE_CHECKING:
    from reports.model import Verdict
    from reports.renderers import Subject
    from reports.run_model import RecordedRun
    from reports.sections.timeline import Process, Slice, Timeline


class PerfettoRenderer(Renderer):
    name = "perfetto"
    suffix = ".perfetto.json"
    takes = frozenset({"parity", "audit", "triage", "run"})

    def render(self, subject: Subject) -> str:
        notes: list[str] = []
        events = [event for pid, process in enumerate(_processes(subject, notes), 1) for event in _events(process, pid)]
        about = {"of": _title(subject), "notes": "; ".join(notes)}
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}) + "\n"


def _title(subject: Subject) -> str:
    if subject.kind == "run":
        return clean(cast("RecordedRun", subject).command)
    verdict = cast("Verdict", subject)
    return clean(f"{triage.title(verdict)}: {verdict.reason}")


def _processes(subject: Subject, notes: list[str]) -> Iterator[Process]:
    """Yield the processes of each run, then those of a hang. What is missing or left out is added to `notes`."""
    made: list[Timeline] = []
    for side, path in _runs(subject):
        place = displayed_paths.of(path)
        if not place or not os.path.isdir(place):  # false for an invalid path, where Path.is_dir raises
            notes.append(f"the recording {clean(path)} of the {clean(side) or 'run'} is not there")
            continue
        try:
            made.append(timeline.of(place, clean(side)))
        except (FormatError, OSError) as error:
            notes.append(clean(displayed_paths.displayed(str(error))))
    hang = cast("Verdict", subject).triage if subject.kind != "run" else None
    if hang is not None:
        made.append(timeline.waits(hang))
    for drawn_timeline in made:
        if drawn_timeline.left_out:
            notes.append(f"{drawn_timeline.left_out:,} of the shortest slices are left out")
        yield from drawn_timeline.processes


def _runs(subject: Subject) -> list[tuple[str, str]]:
    if subject.kind == "run":
        return [("", cast("RecordedRun", subject).run)]
    body = cast("Verdict", subject).parity
    return [(run.side, run.path) for run in body.runs] if body else []


def _events(process: Process, pid: int) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process.name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    tid = 0
    for track in timeline.TRACKS:
        for number, lane in enumerate(_lanes([slice_ for slice_ in process.slices if slice_.track == track])):
            tid += 1
            name = f"{track} {number + 1}" if number else track
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
            for slice_ in lane:
                yield {
                    "ph": "X", "name": slice_.name, "cat": track, "pid": pid, "tid": tid, "ts": slice_.start_ns / 1000,
                    "dur": slice_.dur_ns / 1000, "args": _clean_args(slice_.args),
                }  # fmt: skip
    for point in process.points:
        where = {"name": point.name, "pid": pid, "tid": 0, "ts": point.at_ns / 1000}
        if point.values:
            yield {"ph": "C", **where, "args": point.values}
        else:
            yield {"ph": "i", "s": "p", **where, "args": _clean_args(point.args)}


def _lanes(slices: list[Slice]) -> list[list[Slice]]:
    """Return the slices in lanes: within a lane any two slices are disjoint or one contains the other."""
    lanes: list[tuple[list[Slice], list[int]]] = []  # with the ends of its open slices, the innermost last
    for slice_ in sorted(slices, key=lambda item: (item.start_ns, -item.dur_ns)):
        end = slice_.start_ns + slice_.dur_ns
        lane = next((lane for lane in lanes if _fits(lane[1], slice_.start_ns, end)), None)
        if lane is None:
            lane = ([], [])
            lanes.append(lane)
        lane[0].append(slice_)
        lane[1].append(end)
    return [lane for lane, _ in lanes]


def _fits(ends: list[int], start: int, end: int) -> bool:
    while ends and ends[-1] <= start:
        ends.pop()
    return not ends or end <= ends[-1]


def _clean_args(args: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in args.items() if value is not None}
    return {name: value if isinstance(value, int) else clean(value) for name, value in kept.items()}
