"""The history of many cells over many nights: every query finds its rows by an index, and what a person waits for.

By hand, for figures: `python tests/benchmarks/test_history_scale.py CELLS NIGHTS [FILE]` (10000 365: 3.65 M verdicts,
1.3 GB). Prints seconds and processor seconds of each query, of `harness history list`, and of the dashboard.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="the extra [nightly] is not installed")
from harness.nightly.history import History
from probes.files import make_folder, write_whole
from reports.dashboard import write as write_dashboard

NIGHTS_SHOWN = 60  # of the dashboard, by default


def generate(file: Path, cells: int, nights: int) -> None:
    """A history in which every cell ran on every night, one in fifty with a problem; written by SQLite itself."""
    with History.at(str(file)):
        pass
    changes = {"new": [], "standing": [], "gone": [], "explains": [], "known": [], "confirmation": ""}
    problem = [{"kind": "cause", "subject": "STOP", "text": "cause STOP"}]
    quiet, bad = json.dumps(changes), json.dumps(changes | {"new": problem})
    phases = json.dumps({"baseline rollout": 0.41, "candidate rollout": 0.43, "baseline train": 0.3})

    def verdicts() -> Iterator[tuple[object, ...]]:
        for night in range(1, nights + 1):
            for cell in range(1, cells + 1):
                wrong = (cell * 31 + night) % 50 == 0
                told = ("REGRESSED", "DIVERGENT", 1, "a reason") if wrong else ("OK", "EQUIVALENT", 0, "a reason")
                metrics = f'{{"k1": 1e-7, "max_delta_logprob": {4e-6 + night % 7 * 1e-7}, "compared_tokens": 2000}}'
                parts = (metrics, phases, bad if wrong else quiet, "harness parity hf vllm")
                yield night, cell, 1, *told, 40.0 + cell % 60, *parts

    connection = sqlite3.connect(file)
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("INSERT INTO facts VALUES (1, 'x', ?, '{}', '{}', '{}')", (json.dumps({"check": "ruled out"}),))
    connection.executemany(
        "INSERT INTO cells VALUES (?, ?)", ((n, f"pair-{n % 97}/cell-{n}") for n in range(1, cells + 1))
    )
    connection.executemany(
        "INSERT INTO nights VALUES (?, 'scale', 'here', ?, ?, '[]', '[]')",
        (
            (n, f"{2025 + n // 360}-{n // 30 % 12 + 1:02}-{n % 28 + 1:02}T02:00:00+00:00", "x")
            for n in range(1, nights + 1)
        ),
    )
    names = (
        "night_id, cell_id, facts_id, status, verdict, exit_code, reason, seconds, metrics, phases, changes, reproduce"
    )
    connection.executemany(f"INSERT INTO verdicts ({names}) VALUES ({','.join('?' * 12)})", verdicts())
    connection.commit()
    connection.close()


def queries(history: History, folder: Path) -> dict[str, Callable[[], object]]:
    """What a person asks for, and what a night asks of every cell."""
    name = "pair-5/cell-5"

    def dashboard() -> int:
        days = [(row.id, row.started) for row, _ in history.listing(NIGHTS_SHOWN)]
        make_folder(folder / "cells")
        return write_dashboard(folder, list(reversed(days)), history.course(NIGHTS_SHOWN), write_whole)

    return {
        "past of a cell": lambda: history.past(name),
        "a metric's course": lambda: history.past(name, last=365),
        "list of 30 nights": lambda: history.listing(30),
        "a night": history.night,
        "when each cell ran last": lambda: history.last_runs("scale"),
        "dashboard": dashboard,
    }


def plans(history: History, ask: Callable[[], object]) -> list[str]:
    """How SQLite finds the rows of each statement that `ask` sends."""
    import sqlalchemy

    sent: list[tuple[str, object]] = []
    engine = history._engine

    def note(connection: object, cursor: object, statement: str, parameters: object, *_: object) -> None:
        sent.append((statement, parameters))

    sqlalchemy.event.listen(engine, "before_cursor_execute", note)
    ask()
    sqlalchemy.event.remove(engine, "before_cursor_execute", note)
    with engine.connect() as connection:
        return [
            str(row[3])
            for statement, parameters in sent
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)  # type: ignore[arg-type]
        ]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    file = tmp_path_factory.mktemp("history") / "history.db"
    generate(file, cells=200, nights=90)
    with History.at(str(file)) as opened:
        yield opened


def test_no_query_reads_every_verdict(history: History, tmp_path: Path) -> None:
    for name, ask in queries(history, tmp_path / "site").items():
        scans = [line for line in plans(history, ask) if line.startswith("SCAN verdicts")]
        covering = [line for line in scans if "USING COVERING INDEX" in line]  # `seen` reads each cell's newest night
        assert scans == (covering if name == "when each cell ran last" else []), (name, scans)


def main(cells: int, nights: int, file: str = "") -> None:
    with tempfile.TemporaryDirectory(prefix="history-scale-") as scratch:
        place = Path(file or f"{scratch}/history.db")
        if not place.exists():
            generate(place, cells, nights)
        print(f"{cells:,} cells, {nights} nights, {place.stat().st_size / 1e9:.1f} GB")
        with History.at(str(place)) as history:
            for name, ask in queries(history, Path(scratch) / "site").items():
                clock, processor = time.perf_counter(), time.process_time()
                ask()
                print(
                    f"{name:25} {time.process_time() - processor:6.2f} s processor {time.perf_counter() - clock:6.2f} s"
                )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:4])
