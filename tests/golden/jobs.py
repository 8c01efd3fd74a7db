"""Recordings of frameworks' jobs and of a foreign writer, for the golden table.

    PYTHONPATH=tests/support python -m tests.golden.jobs DIR

DIR/verl holds a pair and a second run of its baseline, DIR/trl one run, DIR/foreign a pair of a writer that knows only
the tables of docs/reference/format.md: no framework, no floor, no proofs, no margins.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from framework_recordings import PLAN, job
from recordings import Recording


def verl(folder: Path) -> None:
    """The candidate of verl's pair has a tensor that arrived as another."""
    baseline, candidate, again = job("baseline"), job("candidate"), job("baseline", noise=2e-7, started=10**9)
    for run in (baseline, candidate, again):
        run.manifest["framework"] = "verl"
    for received in candidate.events("weights", source="received"):
        if received["version"] >= 2:
            received["digests"]["model.layers.2.mlp.down_proj.weight"] = "0" * 32
    for name, run in (("baseline", baseline), ("candidate", candidate), ("again", again)):
        run.write(folder / name)


def trl(folder: Path) -> None:
    """One run in bfloat16, whose engine saw a second BOS."""
    from recordings import BOS, jagged

    plan = dataclasses.replace(PLAN, model=dataclasses.replace(PLAN.model, dtype="bfloat16"))
    run = job("baseline", plan=plan, noise=0.008)
    run.manifest["framework"] = "trl"
    for frame in run.frames("rollout"):
        frame.arrays["prompt_seen"] = jagged([[BOS, *row] for row in frame.arrays["prompt"].rows()])
    run.write(folder / "run")


def foreign(folder: Path) -> None:
    for side in ("baseline", "candidate"):
        run: Recording = job(side)
        for name in ("framework", "command", "hardware"):
            del run.manifest[name]
        run.drop("floor", "shapes", "group", "span", "probe_cost", "tokenizer", "engine_stats", "boundaries")
        run.write(folder / side)


if __name__ == "__main__":
    for write in (verl, trl, foreign):
        target = Path(sys.argv[1]) / write.__name__
        target.mkdir(parents=True)
        write(target)
