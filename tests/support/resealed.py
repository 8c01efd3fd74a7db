"""Changes to a recording with checksums, counts and index that fit: one number, or all records of a kind."""

from __future__ import annotations

import dataclasses
import json
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from probes import frames
from probes.format import Flat, Frame, Ragged, encode_frame, encode_lines, run_id
from probes.index import INDEX, LIFTED, MANIFEST
from probes.index import write as write_index

OPENS = frozenset({"open", "close"})
_HEAD = frozenset({"seq", "t_ns", "kind", "crc"})  # what every line has


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the frames of a recording, in the first frame that has it. `file`: relative to the run."""

    file: str
    frame: int
    kind: str
    variant: str
    name: str
    whole: bool  # holds whole numbers

    def __str__(self) -> str:
        stage = f"{LIFTED} " if self.file.startswith(LIFTED) else ""
        return f"{stage}{self.kind}{f' {self.variant}' if self.variant else ''} {self.name}"


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A value of an event, the first at its path. `file`: relative to the run."""

    file: str
    line: int
    kind: str
    path: tuple[Any, ...]
    value: Any

    def __str__(self) -> str:
        stage = f"{LIFTED} " if self.file.startswith(LIFTED) else ""
        return f"{stage}{self.kind} {'.'.join(map(str, self.path))}"


@dataclasses.dataclass(frozen=True)
class Place:
    """An event of a recording. `file`: relative to the run. `label`: its mode, stage, name or source."""

    file: str
    kind: str
    label: str
    line: int

    def __str__(self) -> str:
        return f"{self.kind} {self.label} of {self.file}"


def columns(run: Path) -> list[Column]:
    """Every column of tokens, once for each kind and variant of frames."""
    found: dict[tuple[str, ...], Column] = {}
    for file in sorted(run.rglob("*.bin")):
        name = file.relative_to(run).as_posix()
        for number, frame in enumerate(read_frames(file)):
            variant = str(frame.fields.get("variant", ""))
            for column, values in frame.arrays.items():
                if len(values.values):
                    key = (name.split("/")[0], frame.kind, variant, column)
                    found.setdefault(key, Column(name, number, frame.kind, variant, column, values.dtype[0] == "i"))
    return list(found.values())


def leaves(run: Path) -> list[Leaf]:
    """Every value of the events but of those that open and close a journal, once for each kind and key."""
    found: dict[tuple[str, ...], Leaf] = {}
    for file in sorted(run.rglob("*.jsonl")):
        name = file.relative_to(run).as_posix()
        for number, event in enumerate(read_events(file)):
            fields = {key: value for key, value in event.items() if key not in _HEAD}
            for path, value in _values(fields) if event["kind"] not in OPENS else ():
                key = (name.split("/")[0], event["kind"], str(event.get("source", "")), *_place(path))
                found.setdefault(key, Leaf(name, number, event["kind"], path, value))
    return list(found.values())


def change_column(run: Path, column: Column, new: float | str) -> None:
    """Put a number into the middle of a column; a text is added to what is there, as `+1`."""
    file = run / column.file
    listed = read_frames(file)
    frame = listed[column.frame]
    before = frame.arrays[column.name]
    values = before.values.tolist()
    at = len(values) // 2
    values[at] = new if not isinstance(new, str) else values[at] + (int(new) if column.whole else float(new))
    held = memoryview(array(frames.CODES[before.dtype], values))
    after = Ragged(before.dtype, held, before.offsets) if isinstance(before, Ragged) else Flat(before.dtype, held)
    listed[column.frame] = dataclasses.replace(frame, arrays={**frame.arrays, column.name: after})
    write_frames(file, listed)
    reseal(run)


def change_leaf(run: Path, leaf: Leaf) -> None:
    """Put another value of its type in the place of a leaf."""
    file = run / leaf.file
    events = read_events(file)
    holder: Any = events[leaf.line]
    for key in leaf.path[:-1]:
        holder = holder[key]
    holder[leaf.path[-1]] = _other(leaf.value)
    write_events(file, events)
    reseal(run)


def places(run: Path) -> list[Place]:
    """A place of every kind of event in every journal, the middle one of each mode, stage, name or source."""
    lines: dict[tuple[str, str, str], list[int]] = {}
    for file in sorted(run.rglob("*.jsonl")):
        name = file.relative_to(run).as_posix()
        for number, event in enumerate(read_events(file)):
            if event["kind"] not in OPENS:
                texts = (event.get(key) for key in ("mode", "phase", "name", "source"))
                label = next((text for text in texts if isinstance(text, str)), "")
                lines.setdefault((name, event["kind"], label), []).append(number)
    return [Place(*key, numbers[len(numbers) // 2]) for key, numbers in lines.items()]


def drop_event(run: Path, place: Place) -> None:
    events = read_events(run / place.file)
    del events[place.line]
    _write_closed(run / place.file, events)
    reseal(run)


def drop_events(run: Path, kind: str) -> None:
    for file in run.rglob("*.jsonl"):
        _write_closed(file, [event for event in read_events(file) if event["kind"] != kind])
    reseal(run)


def drop_frames(run: Path, kind: str) -> None:
    for file in run.rglob("*.bin"):
        kept = [frame for frame in read_frames(file) if frame.kind != kind]
        if kept:
            write_frames(file, kept)
        else:
            file.unlink()
        journal = file.parents[1] / "events" / f"{file.stem}.jsonl"
        counts = {"frames": len(kept), "frame_kinds": Counter(frame.kind for frame in kept)}
        *events, close = read_events(journal)
        _write_closed(journal, [*events, {**close, **counts}])
    reseal(run)


def _write_closed(file: Path, events: list[dict[str, Any]]) -> None:
    """Write a journal that ends with its `close` event, which counts the others."""
    *others, close = events
    write_events(file, [*others, {**close, "events": Counter(event["kind"] for event in others)}])


def read_frames(file: Path) -> list[Frame]:
    with open(file, "rb") as stream:
        extents = list(frames.read_extents(stream))
    data = file.read_bytes()
    ends = [extent.start for extent in extents[1:]] + [len(data)]
    return [frames.decode_frame(data[extent.start : end]) for extent, end in zip(extents, ends, strict=True)]


def write_frames(file: Path, listed: list[Frame]) -> None:
    file.write_bytes(
        b"".join(
            encode_frame(
                frame.kind, frame.step, frame.role, frame.rank, frame.fields, frame.arrays, seq=number, run=frame.run
            )
            for number, frame in enumerate(listed)
        )
    )


def read_events(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def write_events(file: Path, events: list[dict[str, Any]]) -> None:
    file.write_bytes(encode_lines((event["t_ns"], event["kind"], _fields(event)) for event in events))


def reseal(run: Path) -> None:
    """Index the files of a recording, and of its lifted stage, as they are now."""
    for folder in (run / LIFTED, run):
        if (folder / INDEX).exists() and (folder / MANIFEST).exists():
            write_index(folder, run_id(folder))


def _fields(event: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in _HEAD}


def _values(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _values(part, (*path, key))
    elif isinstance(value, list):
        for number, part in enumerate(value[:1]):
            yield from _values(part, (*path, number))
    else:
        yield path, value


def _place(path: tuple[Any, ...]) -> tuple[str, ...]:
    """The path without names of packages and tensors, of which each event has many."""
    return tuple(map(str, path[:1] if path[0] in ("packages", "digests", "env", "libraries") else path))


def _other(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 1.01 + 0.01
    return ("e" if value[:1] == "f" else "f") + value[1:]
