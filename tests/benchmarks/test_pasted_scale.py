"""`harness triage FOLDER` on pasted stacks of many ranks, against reading their lines once.

What is measured is what the command does, in a process of its own: reading, sorting, the rules and the text. Prints one
table. For other sizes: `python tests/benchmarks/test_pasted_scale.py 10000`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_TIMES = 15  # the CPU time of reading the lines once
MOST_MIB = 300
ODD, OTHERS = "all_reduce (torch/distributed/distributed_c10d.py:3252)", "recv_requests (serve.py:27)"
TRIAGE = """
import json, sys, time
from harness.triage.run import triage
triage([sys.argv[1]])  # the smallest folder: imports and tables
began = time.process_time()
verdict = triage([sys.argv[2]])
spent = time.process_time() - began
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
print(json.dumps({"verdict": verdict.verdict, "reason": verdict.reason, "cpu": spent, "mib": peak}))
"""


class Row(NamedTuple):
    """One folder. cpu: processor seconds of triage, reading: of reading its lines once; mib: peak of the process."""

    stacks: int
    cpu: float
    reading: float
    mib: float
    reason: str


def paste(folder: Path, ranks: int) -> Path:
    """A stack of each rank in a file of its own, as py-spy prints it: rank 0 stands in another collective."""
    folder.mkdir(parents=True)
    for rank in range(ranks):
        frames = [
            ODD if rank == 0 else "broadcast (torch/distributed/distributed_c10d.py:3151)",
            "_exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)",
            "writing_check (serve.py:20)" if rank == 0 else OTHERS,
            *(f"layer_{depth} (serve.py:{100 + depth})" for depth in range(14)),
            "<module> (serve.py:56)",
        ]
        head = f"Process {20000 + rank}: python -u serve.py\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
        thread = f'Thread {20000 + rank} (idle): "MainThread"\n'
        text = head + thread + "".join(f"    {frame}\n" for frame in frames)
        (folder / f"rank{rank}.txt").write_text(text)
    return folder


def reading(folder: Path) -> float:
    """Processor seconds of reading each line once and matching it with the pattern of a frame."""
    frame = re.compile(r"(?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)")
    began = time.process_time()
    for file in sorted(folder.iterdir()):
        for line in file.read_text().splitlines():
            frame.fullmatch(line.strip())
    return time.process_time() - began


def measure(ranks: int, home: Path) -> Row:
    few, many = paste(home / f"few-{ranks}", 4), paste(home / f"many-{ranks}", ranks)
    command = [sys.executable, "-c", TRIAGE, str(few), str(many)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    return Row(ranks, answer["cpu"], reading(many), answer["mib"], answer["reason"])


def table(rows: list[Row]) -> str:
    head = f"{'stacks':>8} {'cpu s':>8} {'lines read once':>16} {'times':>6} {'MiB':>6}"
    return "\n".join([head, *(
        f"{row.stacks:>8,} {row.cpu:>8.2f} {row.reading:>16.2f} {row.cpu / row.reading:>6.1f} {row.mib:>6.0f}"
        for row in rows
    )])  # fmt: skip


@pytest.mark.benchmark
def test_a_stack_costs_some_times_its_lines_and_thousands_cost_no_more_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [measure(ranks, tmp_path) for ranks in (1_000, 4_000)]
    with capsys.disabled():
        print(f"\n{table(rows)}")
    for row in rows:
        assert row.cpu <= MOST_TIMES * row.reading and row.mib <= MOST_MIB, row
        assert "rank 0" in row.reason and "serve.py:20" in row.reason
    few, many = rows
    assert many.cpu / many.stacks <= 1.5 * few.cpu / few.stacks


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(table([measure(int(size), Path(place)) for size in sys.argv[1:] or ["1000", "10000"]]))
