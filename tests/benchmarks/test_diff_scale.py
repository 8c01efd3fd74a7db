"""Cost of judging two recordings: linear time in their tokens and events, within the memory of a step.

Prints seconds, processor seconds and memory of one judgement in a process of its own. By hand, for figures:
`python tests/benchmarks/test_diff_scale.py TOKENS EVENTS [FOLDER]` (10000000 1000000; about 120 bytes a token on disk).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from synthetic_pair import Size, write

ROOT = Path(__file__).resolve().parents[2]
# The memory that a judgement adds to its imports, and what it costs, in a process of its own. `small`: what is held up
# to a bound (a block of a journal, values whose quantiles are exact, the tables last read) is small beside a step.
# `hoard` plants what must not be: every table that was read is kept.
JUDGE = """
import json, sys, time
import harness.parity.verdict as judge  # before the clock
import harness.parity.subjects.log_probabilities.observed_metrics as metrics
import harness.recordings.scan as scan
import harness.recordings.store as store
# Not ru_maxrss, which starts at the memory of the process that started this one.
peak = lambda: int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
folder, how = sys.argv[1:3]
if how:
    scan.SCAN_BYTES, metrics.EXACT, store.TABLES_BYTES = 1 << 18, 1 << 14, 1 << 18
if how == "hoard":
    kept, table = [], store.Recording.table
    def keep(self, *args, **kwargs):
        kept.append(table(self, *args, **kwargs))
        return kept[-1]
    store.Recording.table = keep
before, wall, cpu = peak(), time.perf_counter(), time.process_time()
verdict = judge.judge(folder + "/baseline", folder + "/candidate")
found = {"verdict": verdict.verdict, "reason": verdict.reason, "tokens": verdict.coverage["compared_tokens"],
         "seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu,
         "peak_MiB": peak(), "added_MiB": peak() - before}
if how == "read":  # what the bound is measured in: both recordings, every line and every frame decoded once
    from probes.format import Run
    cpu = time.process_time()
    for side in ("/baseline", "/candidate"):
        for _ in Run(folder + side).frames():
            pass
    found["read_cpu_seconds"] = time.process_time() - cpu
print(json.dumps(found))
"""
# One step of 68,000 tokens and 4,000 events, and four times as many steps of it.
SMALL, TIMES = Size(tokens=270_000, events=16_000, prompts=125, group=4), 4
HELD = 24  # bytes a token; a recording has 60, and a judge that keeps every table was seen to add 105


def judged(folder: Path, how: str = "") -> dict[str, float]:
    command = [sys.executable, "-c", JUDGE, str(folder), how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


# The judge's processor seconds in those of reading and decoding the same files once, by `probes.format.Run`. Measured
# on two cores beside other work: 1.9 to 2.0; 8.0 when every comparison went through the steps by itself.
READ_ONCE = 2.6


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two recordings, and two of four times their size."""
    folders = [tmp_path_factory.mktemp(name) for name in ("once", "four-times")]
    for folder, times in zip(folders, (1, TIMES), strict=True):
        write(folder, Size(SMALL.tokens * times, SMALL.events * times, SMALL.prompts, SMALL.group))
    return folders


def grows(pairs: list[Path], how: str) -> tuple[float, float]:
    """How many times the smaller pair's processor time the larger takes, and the bytes that each further token adds."""
    # In turns, so that another program does not fall on one of them only.
    turns = [[judged(folder, how) for folder in pairs] for _ in range(3)]
    once, four = (min(those, key=lambda one: one["cpu_seconds"]) for those in zip(*turns, strict=True))
    print(f"\n{how}: {once}\n{four}")
    assert once["verdict"] == four["verdict"] == "EQUIVALENT", (once, four)
    further = four["tokens"] - once["tokens"]
    return four["cpu_seconds"] / once["cpu_seconds"], (four["added_MiB"] - once["added_MiB"]) * (1 << 20) / further


@pytest.mark.benchmark
def test_judging_is_linear_in_time_and_holds_a_step_in_memory(pairs: list[Path]) -> None:
    seconds, memory = grows(pairs, "small")
    assert seconds <= 1.5 * TIMES
    assert memory <= HELD


@pytest.mark.benchmark
def test_judging_costs_little_more_than_decoding_the_recordings_once(pairs: list[Path]) -> None:
    runs = [judged(pairs[1], "read") for _ in range(3)]  # both within one process, so that they share what disturbs
    ratios = [run["cpu_seconds"] / run["read_cpu_seconds"] for run in runs]
    print(f"\njudging costs {min(ratios):.2f} of decoding once: {runs}")
    assert min(ratios) <= READ_ONCE


@pytest.mark.benchmark
def test_a_judge_that_keeps_what_it_read_would_be_seen(pairs: list[Path]) -> None:
    _, memory = grows(pairs, "hoard")
    assert memory > 2 * HELD


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[3] if len(sys.argv) > 3 else None) as name:
        print(write(Path(name), Size(int(sys.argv[1]), int(sys.argv[2]))))
        print(judged(Path(name)))
