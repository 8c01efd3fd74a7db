"""`harness triage http://HOST:PORT ...` as a function of the number of nodes: seconds until every watch has sent its
evidence, and of the verdict on it.

Prints one table. `make test` serves 1 and 16 nodes of 4 ranks from this machine. For the large figures, 64 ranks of
2,000 operations a node: `python tests/benchmarks/test_gather_scale.py 64 2000 1 2 4 8 16`. Each node's watch is a
process that serves synthesised evidence on a loopback port, after the pause between two looks; so the watches share the
processors of this machine with who asks.

`python tests/benchmarks/test_gather_scale.py hosts 1 2 4` measures real watches of a real job, two ranks on each host
(harness/planted/hangs/hosts.py); root is needed. There the whole command is measured, with its interpreter's start.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "integration")]

import test_nodes_scale as synthesis  # noqa: E402

from harness.triage.remote import gather, serve  # noqa: E402

pytestmark = pytest.mark.benchmark
TOKEN = b"the token of this job's nodes"
APART_S = 1.5  # between the two looks of harness.triage.collect.conduct.collect
FEWER = 12.0  # chosen: asked one after the other, 16 nodes take 16 times as long as one; on two busy processors, 6


class Figures(NamedTuple):
    nodes: int
    gathered_s: float
    cpu_s: float  # of who asks, unpacking included
    verdict_s: float
    verdict_cpu_s: float
    mib: float  # as it lies on the disk afterwards


def watch(folder: str) -> None:
    """What the watch of a node does when it is asked, but for the look itself, until its standard input ends."""

    def take(_: Path) -> Path:
        time.sleep(APART_S)
        return Path(folder)

    server = serve.Server("0", TOKEN)
    server.start(take)
    print(server.url, flush=True)
    sys.stdin.read()
    server.close()


def measured(folders: list[Path], out: Path) -> Figures:
    """Of the evidence of one node each, served and gathered."""
    with ExitStack() as ended:
        watches = [
            ended.enter_context(
                subprocess.Popen(
                    [sys.executable, __file__, "watch", str(folder)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )
            )
            for folder in folders
        ]  # fmt: skip
        urls = [one.stdout.readline().strip() for one in watches if one.stdout]
        began, cpu = time.perf_counter(), _cpu_s()
        gathered = gather.gather(urls, TOKEN, out)
        gathered_s, cpu_s = time.perf_counter() - began, _cpu_s() - cpu
    assert not gathered.silent
    _, verdict_s, verdict_cpu_s = synthesis.judged(gathered.folders)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return Figures(len(folders), gathered_s, cpu_s, verdict_s, verdict_cpu_s, size / 2**20)


def _cpu_s() -> float:
    """Of this process and of those that it waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def table(root: Path, ranks: int, entries: int, numbers: list[int]) -> list[Figures]:
    """`ranks`: of each node."""
    folders, _ = synthesis.evidence(root / "made", ranks * synthesis.NODES, entries)
    return [measured(folders[-number:], root / f"of-{number}") for number in numbers]


def shown(rows: list[Figures]) -> str:
    lines = ["| nodes | gathered, s | CPU s of who asks | verdict, s | CPU s | MiB |", "|---|---|---|---|---|---|"]
    for row in rows:
        seconds = " | ".join(f"{one:.1f}" for one in row[1:5])
        lines.append(f"| {row.nodes} | {seconds} | {row.mib:,.0f} |")
    return "\n".join(lines)


def on_hosts(root: Path, number: int) -> float:
    """Seconds of `harness triage` of real watches, whose verdict names the rank that stops."""
    from test_hosts import Job

    from harness.planted.hangs import hosts as lab

    with lab.laboratory(number) as hosts:
        job = Job(hosts, root, "stops", 1000, "4s")
        job.wait_until_under_way()
        job.wait_for_a_look_at(0)
        began = time.perf_counter()
        code, said = job.gather("gathered")
        seconds = time.perf_counter() - began
    assert code == 1, said
    return seconds


def test_16_nodes_are_gathered_at_one_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, all_of_them = rows = table(tmp_path, 4, 200, [1, synthesis.NODES])
    with capsys.disabled():
        print("", shown(rows), sep="\n")
    assert all_of_them.gathered_s < FEWER * one.gathered_s


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        watch(sys.argv[2])
        os._exit(0)
    with tempfile.TemporaryDirectory() as made:
        if sys.argv[1] == "hosts":
            for number in map(int, sys.argv[2:]):
                (folder := Path(made, str(number))).mkdir()
                print(f"{number} hosts: {on_hosts(folder, number):.1f} s", flush=True)
        else:
            ranks, entries, *numbers = map(int, sys.argv[1:])
            print(shown(table(Path(made), ranks, entries, numbers)))
