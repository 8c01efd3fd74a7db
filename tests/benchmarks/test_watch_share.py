"""What recording and watching cost of a PPO step: on and off in turns within one run, and their own time. Bar: 1 %.

A pair is one step of ppo-tiny with everything on and one with nothing, on the same prompts, in an order drawn by lot.
On: the recorders of six processes with their spans, shapes, boundaries, frames and process groups, and six heartbeats,
each once a second. Digests of weights are a probe of their own: they stay on in both, and their share is printed. The
ratio of a pair is taken in wall time, which a busy machine blurs, and in processor time of the process. The own
time is what is held against the bar, since the intervals are too wide to see one percent; but what it cannot see (a
slower step by another way than the probes' own code) shows in them, so the lower end must stay below five.

The watchdog looks once a second from the controller's process, so it stands beside the step: its own time, of one core.

By hand, with digests switched off as well: `python tests/benchmarks/test_watch_share.py 30 digests`.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "benchmarks")]

PAIRS, WARM = 30, 2
BAR = 0.01
GROSS = 0.05  # of 30 pairs on two busy cores the lower end was seen at +1.1 % where nothing had changed


def alternate(directory: Path, pairs: int, digests: bool) -> dict[str, Any]:
    """pairs: [(off, on)], each (wall, processor) seconds; own: shares; wall, cpu: seconds of a mean step with it on."""
    import ppo_steps

    from harness.triage.watch.watchdog import Watchdog

    lot, looks, measured = random.Random(0), [], []
    with ppo_steps.steps(directory) as steps:
        dog = Watchdog(directory / "watch" / "trainer", (os.getpid(),), stall_s=600.0)
        for number in range(-WARM, pairs):
            if number == 0:
                steps.meter.ns.clear()
            pair: dict[bool, tuple[float, float]] = {}
            for on in lot.sample((False, True), 2):
                steps.switch(on, digests=on or not digests)
                pair[on] = steps.step(WARM + number)
            began = time.thread_time()
            dog.tick()  # after a step, when nothing of it is in a cache any more
            looks.append(time.thread_time() - began)
            if number >= 0:
                measured.append((pair[False], pair[True]))
        wall, cpu = (sum(on[clock] for _, on in measured) for clock in (0, 1))
        recording, hashing, beating = (
            sum(steps.meter.seconds(what).values()) for what in ("recording", "digests", "heartbeat")
        )
        dog.close()
    hashed = len(measured) * (1 if digests else 2)  # steps with digests
    own = {
        "recording": recording / cpu, "digests": hashing / hashed / (cpu / len(measured)),
        "heartbeats": beating / wall,  # they come by the clock, however long a busy machine makes the step
        "watchdog": statistics.median(looks) / ppo_steps.heartbeat.PERIOD_S,
    }  # fmt: skip
    return {"pairs": measured, "own": own, "wall": wall / pairs, "cpu": cpu / pairs, "load": os.getloadavg()[0]}


def intervals(pairs: list[Any]) -> dict[str, tuple[float, float, float]]:
    """(low, median, high) of the cost that pairs show, by the clock it is measured with."""
    from ppo_steps import interval

    return {
        name: tuple(ratio - 1 for ratio in interval(on[clock] / off[clock] for off, on in pairs))  # type: ignore[misc]
        for clock, name in enumerate(("wall", "processor"))
    }


def said(found: dict[str, Any]) -> str:
    """The figures, for people."""
    lines = [f"{len(found['pairs'])} pairs of steps of {found['wall']:.2f} s ({found['cpu']:.2f} s of processor), "
             f"load {found['load']:.1f}"]  # fmt: skip
    for clock, (low, middle, high) in intervals(found["pairs"]).items():
        lines.append(f"on against off, {clock} time: median {middle:+.2%}, 95 % interval {low:+.2%} to {high:+.2%}")
    lines.append("own time: " + ", ".join(f"{what} {share:.2%}" for what, share in found["own"].items()))
    return "\n".join(lines)


@pytest.mark.night
@pytest.mark.benchmark
def test_share_of_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, __file__, str(PAIRS), "", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    with capsys.disabled():
        print(f"\n{said(found)}")
    own = found["own"]
    assert min(own.values()) > 0, "something was not running"
    # The figures are printed; what is asserted allows for a busy machine: 0.58 % was 0.90 % on another day.
    assert own["recording"] + own["heartbeats"] <= 1.5 * BAR
    assert own["heartbeats"] + own["watchdog"] <= 1.5 * BAR
    for clock, (low, _, _) in intervals(found["pairs"]).items():
        assert low <= GROSS, clock


@pytest.mark.parametrize("cost, shows", [(0.0, False), (0.02, False), (0.2, True)])
def test_a_gross_cost_shows(cost: float, shows: bool) -> None:
    """Thirty made-up pairs with a noise of 3 % a step, and one step in ten that lost its core."""
    lot = random.Random(1)

    def step(cost: float) -> tuple[float, float]:
        seconds = (1 + cost) * lot.gauss(1, 0.03) * (3 if lot.random() < 0.1 else 1)
        return seconds, seconds

    found = intervals([(step(0.0), step(cost)) for _ in range(PAIRS)])
    assert all((low > GROSS) == shows for low, _, _ in found.values())


if __name__ == "__main__":
    asked = [*sys.argv[1:], *("30", "", "")[len(sys.argv) - 1 :]]
    with tempfile.TemporaryDirectory(dir=asked[2] or None) as place:
        result = alternate(Path(place), int(asked[0]), asked[1] == "digests")
    print(said(result))
    print(json.dumps(result))
