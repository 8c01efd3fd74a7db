"""What `harness record` costs a real job: TRL's, without and with it, in turn, so that a busy machine bears on both.

    python tests/frameworks/cost.py [PAIRS]

Prints a table of each pair: the job's processor time (user and system, as its shell counted it) and its wall time, then
the ratios' medians and extremes. The wrapper's own start and end are in neither: they are told beside them.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import environments
from framework_jobs import harness, trl_command
from jobs.material import prepare

WAYS = {"without": [], "record": ["record"], "record --digests": ["record", "--digests"]}
_TIMES = re.compile(r"^(\d+)m([\d.]+)s (\d+)m([\d.]+)s$", re.MULTILINE)


def run(home: Path, name: str, way: list[str]) -> tuple[float, float, float]:
    """(processor seconds of the job, its wall seconds, wall seconds of the wrapper around it) of one run."""
    began_at = home / f"{name}.began"
    timed = ["sh", "-c", 'date +%s.%N > "$0"; "$@" || exit; date +%s.%N >> "$0"; times', str(began_at)]
    command = [*timed, *trl_command(home, f"{name}-job", "--steps", "10")]
    if way:
        command = [harness(), *way, "--framework", "trl", "--out", str(home / name), "--", *command]
    before = time.time()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    whole = time.time() - before
    if done.returncode:
        sys.exit(f"the job ended with {done.returncode}:\n{done.stdout[-3000:]}")
    minutes = [[float(part) for part in found] for found in _TIMES.findall(done.stdout)]
    user_m, user_s, system_m, system_s = minutes[-1]  # of the shell's children
    began, ended = (float(line) for line in began_at.read_text().split())
    return 60 * (user_m + system_m) + user_s + system_s, ended - began, whole - (ended - began)


def main(pairs: int) -> None:
    """Run every way `pairs` times, in turn, and print what was seen."""
    if not environments.python("trl").exists():
        sys.exit("no environment for it: python tests/frameworks/environments.py trl")
    seen: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        prepare(home / "material")
        run(home, "warm", [])
        for pair in range(pairs):
            order = list(WAYS.items())
            for place, (name, way) in enumerate(order if pair % 2 == 0 else reversed(order)):
                seen[name].append(run(home, f"{pair}-{place}", way))
                processor, wall, around = seen[name][-1]
                figures = f"cpu {processor:6.2f} s  wall {wall:6.2f} s  around it {around:5.2f} s"
                print(f"{pair} {name:<18} {figures}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name in list(WAYS)[1:]:
        for place, what in enumerate(("cpu", "wall")):
            ratios = [with_[place] / bare[place] for with_, bare in zip(seen[name], seen["without"], strict=True)]
            print(f"{name}: {what} × {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
