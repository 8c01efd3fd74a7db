"""Tables of a recording: the frames of one kind and step as flat NumPy columns, and recorded values as Python ones."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from harness.recordings.records.frame_header import FrameHeader
from probes import limits
from probes.format import FormatError
from probes.frames import CODES


@dataclass(frozen=True)
class Rows:
    """Rows of unequal length in one flat array: row r is `values[offsets[r]:offsets[r + 1]]`."""

    values: np.ndarray
    offsets: np.ndarray  # int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def row(self, index: int) -> np.ndarray:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def row_of(self, flat: np.ndarray) -> np.ndarray:
        """Return the row that each of these positions in `values` belongs to."""
        rows: np.ndarray = np.searchsorted(self.offsets, flat, side="right") - 1
        return rows

    def last(self, absent: int) -> np.ndarray:
        """Return the last value of each row; `absent` for an empty row."""
        is_filled = self.lengths > 0
        values = np.full(len(self), absent, np.int64)
        values[is_filled] = self.values[self.offsets[1:][is_filled] - 1]
        return values

    def joined_at(self, rows: np.ndarray) -> np.ndarray:
        """The values of these rows, concatenated. Copies only if rows are left out or reordered."""
        if np.array_equal(rows, np.arange(len(self))):
            return self.values
        # Build the index of every value without a loop over rows: the row's start, repeated, plus the position within
        # the row.
        lengths = self.lengths[rows]
        ends = np.cumsum(lengths)
        place = np.repeat(self.offsets[:-1][rows] - (ends - lengths), lengths)
        place += np.arange(len(place))
        joined: np.ndarray = self.values[place]
        return joined

    @staticmethod
    def joined(parts: list[Rows]) -> Rows:
        """The rows of several parts, concatenated."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0, *(part.offsets[-1] for part in parts)])
        offsets = [part.offsets[1:] + start for part, start in zip(parts, starts, strict=False)]
        return Rows(np.concatenate([part.values for part in parts]), np.concatenate([[0], *offsets]).astype(np.int64))


@dataclass(frozen=True)
class Table:
    """Every frame of one kind and step, joined: each column has one entry per sample.

    `fields` are those of the first frame without `finish`, except what the frames disagree about. `finish` is one
    reason per sample if the frames have it. `rank` is the rank of the process that recorded the sample.
    """

    kind: str
    step: int
    sample: np.ndarray
    rank: np.ndarray
    fields: dict[str, Any]
    columns: dict[str, np.ndarray | Rows] = field(default_factory=dict)
    finish: np.ndarray | None = None

    @cached_property
    def header(self) -> FrameHeader:
        """`fields` as a type."""
        return FrameHeader.of(self.fields)

    def at(self, row: int) -> dict[str, Any]:
        """Return the step, rank and sample of a row, as a verdict's `Place` names them."""
        return {"step": self.step, "rank": int(self.rank[row]), "sample": int(self.sample[row])}

    @cached_property
    def row_by_sample(self) -> dict[int, int]:
        """Return sample -> its row, the last one for a sample that was recorded twice."""
        return {sample: row for row, sample in enumerate(self.sample.tolist())}

    @property
    def nbytes(self) -> int:
        columns = self.columns.values()
        flat = [
            part
            for column in columns
            for part in ((column.values, column.offsets) if isinstance(column, Rows) else (column,))
        ]
        return sum(part.nbytes for part in (self.sample, self.rank, *flat))

    def rows(self, name: str) -> Rows | None:
        column = self.columns.get(name)
        return column if isinstance(column, Rows) else None

    def together(self, *names: str) -> tuple[Rows, ...] | None:
        """Return these columns in this order; None where one of them was not recorded."""
        columns = tuple(column for name in names if (column := self.rows(name)) is not None)
        return columns if len(columns) == len(names) else None

    def per_token(self, name: str, tokens: Rows) -> Rows | None:
        """Return a column that has one value for each of these tokens; None where it has not, or was not recorded."""
        column = self.rows(name)
        return column if column is not None and np.array_equal(column.lengths, tokens.lengths) else None

    def flat(self, name: str) -> np.ndarray | None:
        column = self.columns.get(name)
        return column if isinstance(column, np.ndarray) else None


@dataclass(frozen=True)
class Spans:
    """Spans as columns with one entry per span.

    `process`: the journal that holds it. `step`: -1 if it has none. `start` and `seconds`: in seconds, NaN if not
    recorded.
    """

    process: np.ndarray
    name: np.ndarray
    step: np.ndarray
    start: np.ndarray
    seconds: np.ndarray

    def where(self, mask: np.ndarray) -> Spans:
        return Spans(*(column[mask] for column in vars(self).values()))

    @staticmethod
    def joined(parts: list[Spans]) -> Spans:
        """The spans of several parts, concatenated."""
        columns = [[getattr(part, key.name) for part in parts] for key in fields(Spans)]
        return Spans(*(np.concatenate(column) if column else np.zeros(0) for column in columns))


@dataclass(frozen=True)
class FrameArrays:
    kind: str
    step: int
    rank: int
    fields: dict[str, Any]
    arrays: dict[str, np.ndarray | Rows]


def arrays_of(header: dict[str, Any], payload: bytes | memoryview) -> dict[str, np.ndarray | Rows]:
    """The arrays of a frame as views of its payload. Raises FormatError for a malformed array."""
    arrays: dict[str, np.ndarray | Rows] = {}
    for name, spec in header["arrays"].items():
        try:
            dtype = spec["dtype"]
            if dtype not in CODES:  # NumPy would take a structure, or several numbers in one
                raise ValueError(f"dtype {dtype!r} is not one of {', '.join(CODES)}")
            # A view of the payload, without a copy: `frombuffer` refuses what lies outside of it.
            values = np.frombuffer(payload, f"<{dtype}", spec["count"], spec["at"])
            if name in limits.COLUMNS and len(values):
                least, largest = limits.COLUMNS[name]
                for extreme in (values.min(), values.max()):
                    limits.bounded(int(extreme), largest, f"a number of {name!r}", least=least)
            if "offsets_at" not in spec:
                arrays[name] = values
                continue
            offsets = np.frombuffer(payload, "<i8", spec["offsets_count"], spec["offsets_at"])
            if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(values) or np.any(np.diff(offsets) < 0):
                raise ValueError(f"offsets must rise from 0 to {len(values)}")
            arrays[name] = Rows(values, offsets)
        except (KeyError, TypeError, ValueError, OverflowError, FormatError) as error:
            raise FormatError(f"array {name!r} of the frame is malformed: {error}") from error
    return arrays


def table_of(frames: list[FrameArrays]) -> Table:
    """Join the samples of several frames of one kind and step, with the arrays that all of them have.

    Raises FormatError if the arrays of a frame disagree about the number of samples.
    """
    first = frames[0]
    names = sorted(set(first.arrays).intersection(*(frame.arrays for frame in frames[1:])))
    for frame in frames:
        _check_samples(frame, names)
    columns = {name: _column([frame.arrays[name] for frame in frames]) for name in names}
    sample = columns.pop("sample")
    if not isinstance(sample, np.ndarray):
        raise FormatError(f"{first.kind} frame of step {first.step}: `sample` must be one number a sample")
    return Table(
        kind=first.kind,
        step=first.step,
        sample=sample,
        rank=np.repeat([frame.rank for frame in frames], [len(frame.arrays["sample"]) for frame in frames]),
        fields=_fields(frames),
        columns=columns,
        finish=_finish(frames),
    )


def _check_samples(frame: FrameArrays, names: list[str]) -> None:
    counts = {name: len(frame.arrays[name]) for name in names}
    if "sample" not in counts or len(set(counts.values())) != 1:
        raise FormatError(f"{frame.kind} frame of step {frame.step}: its arrays disagree about the samples: {counts}")
    finish = frame.fields.get("finish")
    if isinstance(finish, list) and len(finish) != counts["sample"]:
        raise FormatError(
            f"{frame.kind} frame of step {frame.step}: {len(finish)} finish reasons for {counts['sample']} samples"
        )


def _finish(frames: list[FrameArrays]) -> np.ndarray | None:
    """The finish reason of each sample; None if a frame has none."""
    if not all(isinstance(frame.fields.get("finish"), list) for frame in frames):
        return None
    return np.array([reason for frame in frames for reason in frame.fields["finish"]], dtype=object)


def _fields(frames: list[FrameArrays]) -> dict[str, Any]:
    """The first frame's fields, without values that do not hold for all frames."""
    fields = {key: value for key, value in frames[0].fields.items() if key != "finish"}
    versions = [frame.fields.get("weight_version") for frame in frames]
    if any(version != versions[0] for version in versions):  # no single version drew all samples
        fields["weight_version"] = None
    if any(uncompared := [frame.fields.get("uncompared") for frame in frames]):
        fields["uncompared"] = next(value for value in uncompared if value)
    return fields


def _column(parts: list[Any]) -> np.ndarray | Rows:
    if len(parts) == 1:
        single: np.ndarray | Rows = parts[0]
        return single
    return Rows.joined(parts) if isinstance(parts[0], Rows) else np.concatenate(parts)
