"""Sound pairs of recordings, ours and those of a framework, that are tampered with; and how a pair is judged."""

from __future__ import annotations

import dataclasses
import pickle
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from framework_recordings import PLAN, job
from recordings import Jagged, Recording, digest, make, scenario, stage

from harness.parity import judge
from reports.model import Verdict
from scenarios.settings import Scenario

STOPPED, TOLD, KEPT = "stopped", "told", "kept"
OWN, FOREIGN = "own", "foreign"
PAIRS = (OWN, FOREIGN)  # of the table
HALF = "half"  # our own in bfloat16, which must be stopped wherever that in float32 is
GREEDY, FILTERED = "greedy", "filtered"  # our own, drawn greedily or with top-p: margins mean something else there
ONE, BOTH, SWAPPED = ("baseline", "candidate"), "both", "swapped"
ALIKE = "another sound job would have recorded the same in both runs, and nothing else speaks of it"
STEPS = 4


@dataclass
class Runs:
    """A pair of recordings, and the second run of the baseline that a framework's pair has for its floor."""

    baseline: Recording
    candidate: Recording
    again: Recording | None = None

    def of(self, side: str) -> Recording:
        return self.baseline if side == "baseline" else self.candidate


def own(kind: str) -> Scenario:
    plan = scenario(steps=STEPS, dtype="bfloat16" if kind == HALF else "float32")
    if kind == GREEDY:
        plan = scenario(steps=STEPS, mode="greedy", temperature=0.0)
    if kind == FILTERED:
        plan = dataclasses.replace(plan, sampling=dataclasses.replace(plan.sampling, top_p=0.95))
    return plan


def sound(kind: str, *, native: bool) -> Runs:
    """A pair that is EQUIVALENT: our own with everything, or a framework's without margins, floor and native stage."""
    runs: Runs = pickle.loads(_pickled(kind, native))
    return runs


@cache
def _pickled(kind: str, native: bool) -> bytes:
    return pickle.dumps(
        _made(kind, native)
    )  # a copy of a thousand small arrays is read faster than `deepcopy` makes it


def _made(kind: str, native: bool) -> Runs:
    if kind != FOREIGN:
        runs = Runs(make("baseline", own(kind), native=native), make("candidate", own(kind), native=native))
        runs.baseline.made, runs.candidate.made = {}, {}
        if kind == HALF:
            runs.baseline.stage, runs.candidate.stage = stage("baseline", own(kind)), stage("candidate", own(kind))
        return runs
    plan = dataclasses.replace(PLAN, steps=STEPS)
    runs = Runs(job("baseline", plan=plan), job("candidate", plan=plan), job("baseline", plan=plan, noise=2e-7))
    assert runs.again is not None
    for opened in runs.again.events("open"):
        opened["wall_ns"] += 10**9
    runs.again.made = {}
    for side in ("baseline", "candidate"):
        run = runs.of(side)
        run.made = {}
        run.manifest["backend"] = "vllm" if side == "baseline" else "sglang"
        for info in run.events("engine_info"):
            info.update(engine=run.manifest["backend"], version="0.32.0" if side == "baseline" else "0.5.23")
    return runs


def judged(runs: Runs) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        again = {} if runs.again is None else {"baseline": runs.again.write(where / "again")}
        return judge(runs.baseline.write(where / "baseline"), runs.candidate.write(where / "candidate"), again=again)


def fingerprint(runs: Runs) -> str:
    told = []
    every = [runs.baseline, runs.candidate]
    for run in [*every, *(run.stage for run in every if run.stage is not None)]:
        frames = [
            (frame.kind, frame.step, frame.fields, {name: _bytes(one) for name, one in frame.arrays.items()})
            for log in run.logs.values()
            for frame in log.frames
        ]
        told.append(
            (run.manifest, [(log.role, log.rank, log.pid, log.events, log.closed) for log in run.logs.values()])
        )
        told.append(frames)
    return digest(told)


def _bytes(column: np.ndarray | Jagged) -> tuple[bytes, ...]:
    parts = (column.values, column.lengths) if isinstance(column, Jagged) else (column,)
    return tuple(part.tobytes() for part in parts)
