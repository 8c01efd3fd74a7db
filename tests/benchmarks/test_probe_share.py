"""What the probes cost of a PPO step: self-time of every process's recorder over the time of the steps, within one run.

The bar is 1 %. Digests of all weights after every update are counted in.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ppo_support import stack

from harness import config
from probes.format import Run, write_manifest
from scenarios.remote import call

pytestmark = pytest.mark.benchmark


def test_share_of_a_step(built_in: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_manifest(tmp_path, {})
    with stack(config.load("ppo-tiny", steps=4), built_in) as running:
        trainer = running.trainer(tmp_path)
        trainer.start()
        for step in range(4):
            trainer.step(step)
        trainer.finish()
        call(running.session, "end_recording")
    run = Run(tmp_path)
    spent = {event["role"]: event["self_ns"] / 1e9 for event in run.events(kind="close")}
    steps = sum(event["metrics"]["seconds"] for event in run.events(kind="step"))
    share = sum(spent.values()) / steps
    with capsys.disabled():
        parts = ", ".join(f"{role} {1000 * value:.1f} ms" for role, value in spent.items())
        print(f"\nprobes: {100 * share:.2f} % of {steps:.2f} s in 4 steps ({parts})")
    assert share < 0.05  # five times the bar: a busy machine slows the probes and the step alike, but not evenly
