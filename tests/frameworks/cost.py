"""What `harness record` costs a real job: the same job without and with it, in turn, so that a busy machine bears on
both.

    python tests/frameworks/cost.py [PAIRS] [--framework trl|verl|openrlhf] [--ways WAY,WAY…] [--cold]

Prints a table of each pair: the processor time (user and system) of the job with every process that it started, its
wall time from its start to the end of its command, and what the wrapper itself took around it and beside it; then the
ratios' medians and extremes. Processor time is that of a group of processes (`accounting`): Ray starts its cluster
inside the job and ends it there, and nobody waits for its workers. Where no group can be made TRL's job, whose
processes are all waited for, is counted by its shell; the others are refused.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import environments
from accounting import Group
from framework_jobs import harness, openrlhf_command, trl_command, verl_command
from jobs.material import prepare

WAYS = {"without": [], "record": ["record"], "digests": ["record", "--digests"]}
STACKS = {"trl": "trl", "openrlhf": "openrlhf", "verl": "vllm"}
_TIMES = re.compile(r"^(\d+)m([\d.]+)s (\d+)m([\d.]+)s$", re.MULTILINE)


@dataclass(frozen=True)
class Seen:
    """One run, in seconds. `cpu`, `wall`: of the job. `shell`: of its processor time what its shell counted.
    `beside`: the wrapper's processor time (NaN: not known). `around`: the wrapper's wall time before and after."""

    cpu: float
    wall: float
    shell: float
    beside: float
    around: float


def command_of(framework: str, home: Path, name: str) -> list[str]:
    """The job: ten steps of TRL, two of the others."""
    if framework == "trl":
        return trl_command(home, name, "--steps", "10")
    return openrlhf_command(home, name) if framework == "openrlhf" else verl_command(home, name, "vllm")


def run(framework: str, home: Path, name: str, way: list[str]) -> Seen:
    """One run of the job, with the wrapper where a way is given; ends the program where the job fails."""
    began_at = home / f"{name}.began"
    timed = ["sh", "-c", 'date +%s.%N > "$0"; "$@" || exit; date +%s.%N >> "$0"; times', str(began_at)]
    command = [*timed, *command_of(framework, home, f"{name}-job")]
    whole, job = groups()
    command = job.enter(command) if job else command
    if way:
        command = [harness(), *way, "--framework", framework, "--out", str(home / name), "--", *command]
    before = time.time()
    with open(home / f"{name}.log", "w+", errors="replace") as log:  # no pipe: what outlives the job may hold it
        done = subprocess.run(whole.enter(command) if whole else command, stdout=log, stderr=subprocess.STDOUT)
        ended = time.time() - before
        log.seek(0)
        said = log.read()
    if done.returncode:
        for group in (job, whole):
            if group is not None:
                group.end()
        sys.exit(f"the job ended with {done.returncode}:\n{said[-3000:]}")
    shell = shell_seconds(said)
    first, last = (float(line) for line in began_at.read_text().split())
    around = ended - (last - first)
    if whole is None or job is None:
        return Seen(shell, last - first, shell, float("nan"), around)
    if left := [*job.wait(), *whole.wait()]:
        job.end()
        whole.end()
        sys.exit(f"the job left processes behind, which were ended: {', '.join(map(str, left))}")
    seen = Seen(job.seconds, last - first, shell, whole.seconds - job.seconds, around)
    job.remove()
    whole.remove()
    return seen


def shell_seconds(said: str) -> float:
    """User and system time of the children of a shell that ended with `times`."""
    user_m, user_s, system_m, system_s = (float(part) for part in _TIMES.findall(said)[-1])
    return 60 * (user_m + system_m) + user_s + system_s


def groups() -> tuple[Group, Group] | tuple[None, None]:
    """A group for everything and one in it for the job; None where none can be made."""
    try:
        whole = Group(f"harness-cost-{os.getpid()}")
    except OSError:
        return None, None
    return whole, Group("job", whole)


def main(pairs: int, framework: str, ways: list[str], *, cold: bool) -> None:
    """Run every way `pairs` times, in turn, and print what was seen."""
    if not environments.python(STACKS[framework]).exists():
        sys.exit(f"no environment for it: python tests/frameworks/environments.py {STACKS[framework]}")
    whole, job = groups()
    if whole is not None and job is not None:
        job.remove()
        whole.remove()
    elif framework != "trl":
        sys.exit(
            f"nobody waits for Ray's workers, and without a cgroup v2 that may be written to their time is lost "
            f"(systemd-run --user --scope -p Delegate=yes python tests/frameworks/cost.py --framework {framework})"
        )
    seen: dict[str, list[Seen]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        prepare(home / "material")
        if not cold:
            run(framework, home, "warm", [])
        for pair in range(pairs):
            for place, way in enumerate(ways if pair % 2 == 0 else reversed(ways)):
                one = run(framework, home, f"{pair}-{place}", WAYS[way])
                seen[way].append(one)
                figures = f"cpu {one.cpu:7.2f} s  wall {one.wall:7.2f} s"
                aside = f"wrapper: cpu {one.beside:5.2f} s, around it {one.around:5.2f} s"
                load = f"load {os.getloadavg()[0]:.1f}"
                print(f"{pair} {way:<8} {figures}  ({aside}; its shell saw {one.shell:.2f} s; {load})", flush=True)
    print(f"{framework}: {os.cpu_count()} cores")
    for name in [way for way in ways if way != "without" and "without" in ways]:
        both = list(zip(seen[name], seen["without"], strict=True))
        for what in ("cpu", "wall"):
            ratios = [getattr(with_, what) / getattr(bare, what) for with_, bare in both]
            print(f"{name}: {what} × {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("pairs", nargs="?", type=int, default=3)
    parser.add_argument("--framework", choices=sorted(STACKS), default="trl")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)}")
    parser.add_argument("--cold", action="store_true", help="without a run before the first pair that nobody counts")
    given = parser.parse_args()
    asked = given.ways.split(",")
    if unknown := set(asked) - set(WAYS):
        parser.error(f"there is no way {', '.join(sorted(unknown))} (there are: {', '.join(WAYS)})")
    main(given.pairs, given.framework, asked, cold=given.cold)
