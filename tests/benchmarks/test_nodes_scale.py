"""The evidence of 16 nodes judged together: seconds of one verdict on as many ranks as asked, and what their heartbeats
and journals write, by the real writers.

Prints one table. `make test` runs 64 ranks of 200 operations; for the large figures:
`python tests/benchmarks/test_nodes_scale.py 1024 2000`, or NODES_SCALE=1024,2000 with pytest. Making the evidence is
not measured.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import triage_evidence as make  # noqa: E402

from harness.triage import directory, run  # noqa: E402
from harness.triage.evidence import Evidence, Thread  # noqa: E402
from harness.triage.flight.synthesis import Fault, encoded, simulate  # noqa: E402
from probes import heartbeat, journal  # noqa: E402
from reports.model import Verdict  # noqa: E402

pytestmark = pytest.mark.benchmark
NODES = 16
THREADS = 6  # of a rank in its evidence, which takes 16 kB with them; ranks of test_hosts.py take 5 to 7 kB
SPANS = 16  # that a rank writes in a step of a second
DEEP = " ".join(f"layer{number}:{number}" for number in range(20))
WAIT, APART = f"main:10 {DEEP} step:42 all_reduce", f"main:10 {DEEP} step:44 keep_alive"


def evidence(root: Path, ranks: int, entries: int) -> tuple[list[Path], int]:
    """A directory for each node, in which one rank of the last node has stopped; and that rank."""
    odd, here = ranks - 3, ranks // NODES
    job = simulate(ranks, entries, Fault("dead", rank=odd, at=entries - 24))
    folders = []
    for node in range(NODES):
        folder = root / f"node{node}"
        (folder / "recorder").mkdir(parents=True)
        processes = []
        for rank in range(node * here, (node + 1) * here):
            environ = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "WORLD_SIZE": str(ranks),
                       "LOCAL_WORLD_SIZE": str(here)}  # fmt: skip
            stack = APART if rank == odd else WAIT
            one = make.rank(rank, stack, world=ranks, environ=environ)
            idle = tuple(Thread(f"worker-{number}", number, make.frames(DEEP)) for number in range(2, THREADS))
            looks = tuple(dataclasses.replace(look, threads=(*look.threads, *idle)) for look in one.samples)
            pid = 1000 + rank % here
            dump = f"recorder/{directory.file_name(f'node{node}', pid)}"
            (folder / dump).write_bytes(encoded(job, rank, "json"))
            processes.append(
                dataclasses.replace(one, host=f"node{node}", pid=pid, samples=looks, dump=dump, dump_taken_ns=0)
            )
        directory.write(Evidence("", "watch", "", 30.0, tuple(processes), expected_world=ranks), folder)
        folders.append(folder)
    return folders, odd


def judged(folders: list[Path]) -> tuple[Verdict, float, float]:
    """The verdict, its seconds on the clock, and of processors, those of readers in other processes included."""
    began, cpu = time.perf_counter(), sum(os.times()[:4])
    verdict = run.triage([str(folder) for folder in folders])
    return verdict, time.perf_counter() - began, sum(os.times()[:4]) - cpu


def written(folder: Path) -> tuple[int, int]:
    """Bytes that a rank's heartbeat writes each second, and its journal, in a step of a second with SPANS spans."""
    beating = heartbeat.Heartbeat(
        folder, sources=heartbeat.Sources(sequences=lambda: {str(group): 12_345 for group in range(8)})
    )
    beating.beat()
    beat = int(beating.path.stat().st_size / beating.period_s)
    beating.close()
    events = journal.Journal(folder / "actor-0-1.jsonl")
    for number in range(SPANS):
        span = {"name": "actor_update", "step": 100, "start_ns": time.monotonic_ns(), "dur_ns": 98_765_432, "ok": True}
        events.write("span", {**span, "rss": 10**10 + number, "shared": 10**9})
    events.close()
    return beat, (folder / "actor-0-1.jsonl").stat().st_size


def figures(root: Path, ranks: int, entries: int) -> tuple[Verdict, int, list[str]]:
    folders, odd = evidence(root, ranks, entries)
    verdict, seconds, cpu = judged(folders)
    beat, events = written(root)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size = sum(file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file())
    return (
        verdict,
        odd,
        [
            f"{ranks:,} ranks on {NODES} nodes, {entries:,} operations and {THREADS} threads each, {size >> 20:,} MiB",
            f"one verdict: {seconds:.1f} s, {cpu:.1f} CPU s, peak {peak:.0f} MiB",
            f"heartbeats, in place: {_rate(beat, ranks)}",
            f"journals of {SPANS} spans/s: {_rate(events, ranks)}",
        ],
    )


def _rate(size: int, ranks: int) -> str:
    node, job = size * ranks / NODES / 1024, size * ranks / 2**20
    return f"{size:,} bytes/s a rank, {node:.0f} KiB/s a node, {job:.1f} MiB/s in all"


def test_a_verdict_on_all_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks, entries = map(int, os.environ.get("NODES_SCALE", "64,200").split(","))
    verdict, odd, lines = figures(tmp_path, ranks, entries)
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert verdict.triage is not None
    assert [(one.rank, one.host) for one in verdict.triage.culprits] == [(odd, f"node{NODES - 1}")], verdict.reason


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        print(*figures(Path(made), *map(int, sys.argv[1:3]))[2], sep="\n")
