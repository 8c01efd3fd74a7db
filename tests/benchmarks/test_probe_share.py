"""What the probes cost of a PPO step: self-time of every process's recorder over the time of the steps, within one run.
 The bar is 1 %. Roles must be processes of their own, as in every real run: as threads of one process each write(2)
gives the interpreter's lock away and waits up to 5 ms for it. What a recording costs once, at its start, cancels: a run
of two steps is taken from a run of eight. The digests of all weights after every update are counted in.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import harness
from probes.format import Run

pytestmark = pytest.mark.benchmark


def spent(out: Path, steps: int) -> tuple[dict[str, float], float]:
    """(seconds inside each process's recorder, seconds of all steps) of a run of so many steps on the embedded
    engine."""
    run = Run(harness.run_scenario("ppo-tiny", backend="hf", steps=steps, out=out))
    recorders = {event["role"]: event["self_ns"] / 1e9 for event in run.events(kind="close")}
    return recorders, sum(event["metrics"]["seconds"] for event in run.events(kind="step"))


def test_share_of_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (few, few_s), (many, many_s) = spent(tmp_path / "few", 2), spent(tmp_path / "many", 8)
    parts = {role: many[role] - few[role] for role in many}
    share = sum(parts.values()) / (many_s - few_s)
    with capsys.disabled():
        each = ", ".join(f"{role} {1000 * value / 6:.2f} ms" for role, value in parts.items())
        print(f"\nprobes: {100 * share:.2f} % of a step of {(many_s - few_s) / 6:.2f} s ({each})")
    assert share < 0.05  # five times the bar: self-time is wall time, and a busy machine takes the core away inside it
