"""Writes a recording as Parquet, for pandas and similar tools: events.parquet and tokens.parquet beside run.json."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from harness.recordings.library import Library
from harness.recordings.store import Recording
from harness.recordings.tables import Rows, Table
from probes.files import FILE_MODE

BATCH = 50_000  # events that are in memory at a time
RESPONSES = {"rollout": "output", "experience": "tokens", "native": "output", "floor": "output"}  # kind -> its tokens

_TEXT, _WHOLE = pa.string(), pa.int64()
EVENTS = pa.schema(
    [
        ("file", _TEXT),
        ("role", _TEXT),
        ("rank", _WHOLE),
        ("pid", _WHOLE),
        ("seq", _WHOLE),
        ("t_ns", _WHOLE),
        ("kind", _TEXT),
        ("step", _WHOLE),
        ("event", _TEXT),  # the line as it is in the journal
    ]
)


def compact(path: str | os.PathLike[str], library: Library | None = None) -> tuple[Path, Path]:
    """Write both files and return their paths. A torn recording is compacted as far as it is readable.

    tokens.parquet has one row per response token of each frame, with kind, variant, step, rank, sample, position,
    token, every array with one value per token, and arrays with one value per sample, repeated. Raises FormatError as
    `Recording` does.
    """
    run = (library or Library()).open(Path(path))
    events, tokens = run.path / "events.parquet", run.path / "tokens.parquet"
    for target, write in ((events, _events), (tokens, _tokens)):
        part_file = target.with_suffix(".parquet.part")
        try:
            write(run, part_file)
            os.chmod(part_file, FILE_MODE)
            os.replace(part_file, target)
        finally:
            part_file.unlink(missing_ok=True)
    return events, tokens


def _events(run: Recording, target: Path) -> None:
    with parquet.ParquetWriter(target, EVENTS) as writer:
        rows: list[dict[str, Any]] = []
        for journal, line in run.every_line():
            event = run.parsed(journal, line) or {}
            row = {"file": journal.name, **{key: journal.opening.get(key) for key in ("role", "rank", "pid")}}
            row |= {key: event.get(key) for key in ("seq", "t_ns", "kind")}
            row["step"] = event.get("step") if isinstance(event.get("step"), int) else None
            rows.append({**row, "event": line.decode(errors="replace").rstrip("\n")})
            if len(rows) == BATCH:
                writer.write_table(pa.Table.from_pylist(rows, schema=EVENTS))
                rows = []
        writer.write_table(pa.Table.from_pylist(rows, schema=EVENTS))


def _tokens(run: Recording, target: Path) -> None:
    """Write one row group per step of each kind, all with the columns of every kind."""
    fields: dict[str, pa.DataType] = {}
    for kind in RESPONSES:  # each step of a kind has the columns of its first
        for step in run.steps(kind)[:1]:
            table = _flat(run, kind, step)[0]
            fields |= {name: column.type for name, column in zip(table.column_names, table.columns, strict=True)}
    schema = pa.schema(list(fields.items()))
    with parquet.ParquetWriter(target, schema) as writer:
        for kind in RESPONSES:
            for step in run.steps(kind):
                for table in _flat(run, kind, step):
                    writer.write_table(_with_columns(table, schema))


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the columns of a schema, empty ones where it has none."""
    columns = []
    for column in schema:
        if column.name in table.column_names:
            columns.append(table[column.name].cast(column.type))
        else:
            columns.append(pa.nulls(len(table), column.type))
    return pa.table(columns, schema=schema)


def _flat(run: Recording, kind: str, step: int) -> list[pa.Table]:
    """The response tokens of one kind and step: one table, or one for each variant of a floor."""
    variants = ("base", "batch", "order", "prefill") if kind == "floor" else (None,)
    wanted = [{} if variant is None else {"variant": variant} for variant in variants]
    tables = [(fields.get("variant"), run.table(kind, step, **fields)) for fields in wanted]
    return [_rows(kind, variant, table) for variant, table in tables if table is not None]


def _rows(kind: str, variant: str | None, table: Table) -> pa.Table:
    response = table.rows(RESPONSES[kind]) or Rows(np.zeros(0, np.int32), np.zeros(len(table.sample) + 1, np.int64))
    lengths = response.lengths
    n = len(response.values)
    # One row for each token: what a sample has once is repeated for its tokens.
    row = np.repeat(np.arange(len(lengths)), lengths)
    columns: dict[str, Any] = {
        "kind": pa.array([kind] * n, _TEXT),
        "variant": pa.array([variant] * n, _TEXT),
        "step": np.full(n, table.step),
        "rank": table.rank[row].astype(np.int64),
        "sample": table.sample[row],
        "position": np.arange(n) - np.repeat(response.offsets[:-1], lengths),
        "token": response.values,
    }
    for name, column in table.columns.items():
        if isinstance(column, np.ndarray):
            columns[name] = column[row]
        elif name != RESPONSES[kind] and np.array_equal(column.lengths, lengths):  # prompts are left out
            columns[name] = column.values
    return pa.table(columns)
