"""Where the seconds of a command go: `python tests/benchmarks/timeline.py -- harness parity vllm sglang`.

Samples /proc ten times a second and prints a table in Markdown: each process below the command with its life and its
processor seconds, then the load before and what the whole machine was busy with meanwhile. Processes that live for less
than a sample are in the last figure only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass

from harness.triage.watch.observe import argv, table
from scenarios.engines.engine_processes import descendants

PERIOD_S = 0.1
LISTED_S = 0.3  # processor seconds of a process that is worth a row


@dataclass
class Life:
    """One process: seconds since the command began, and processor seconds."""

    pid: int
    parent: int
    name: str
    began_s: float
    ended_s: float = 0.0
    cpu_s: float = 0.0


def busy_s() -> float:
    """Processor seconds of the machine since it started, all but idle ones and waits for disks."""
    with open("/proc/stat", encoding="ascii") as stream:
        ticks = [int(word) for word in stream.readline().split()[1:]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def lives(command: list[str]) -> tuple[int, float, list[Life]]:
    """Run the command; its exit code, its seconds, and every process that was seen below it."""
    began = time.monotonic()
    process = subprocess.Popen(command)
    seen: dict[tuple[int, int], Life] = {}
    while process.poll() is None:
        now, there = time.monotonic() - began, table()
        for pid in descendants(process.pid):
            if (stat := there.get(pid)) is not None:
                name = " ".join(argv(pid))
                life = seen.setdefault((pid, stat.started), Life(pid, stat.ppid, name, now))
                life.name, life.ended_s, life.cpu_s = name or life.name, now, stat.cpu_s
        time.sleep(PERIOD_S)
    return process.returncode, time.monotonic() - began, list(seen.values())


def main(command: list[str]) -> int:
    with open("/proc/loadavg", encoding="ascii") as stream:
        load = stream.read().split()[0]
    before = busy_s()
    code, seconds, found = lives(command)
    print("| from, s | to, s | CPU s | process |\n|---|---|---|---|")
    for life in sorted(found, key=lambda life: life.began_s):
        if life.cpu_s >= LISTED_S:
            print(
                f"| {life.began_s:.1f} | {life.ended_s:.1f} | {life.cpu_s:.1f} | {life.name[:70].replace('|', '/')} |"
            )
    total = sum(life.cpu_s for life in found)
    print(f"\n{seconds:.1f} s, {total:.1f} CPU s in {len(found)} processes; load before {load}, ", end="")
    print(f"the machine was busy for {busy_s() - before:.1f} CPU s")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[sys.argv.index("--") + 1 :]))
