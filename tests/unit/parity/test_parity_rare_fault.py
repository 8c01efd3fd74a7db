"""A fault that shows in few samples is looked for in more of them, before a cause is sought."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path
from typing import Any

import pytest
from recordings import pair, scenario

from harness.parity.attribution.outcome import Attribution
from harness.parity.interventions.situation import LEAST, Situation
from harness.parity.verdict import judged_pair
from scenarios.bench.case import CaseSample, Symptoms

module = importlib.import_module("harness.parity.attribution.attribute")  # the package has a function of its name
EVERY, DIFFERS = 16, 9  # of so many samples, the one of this number differs on the bench


class RareBench:
    """A bench whose candidate turns one token in every sixteenth sample. `opened`: the cases that were drawn."""

    def __init__(self, every: int) -> None:
        self.opened: list[list[CaseSample]] = []
        self._every = every

    def open(self, samples: list[CaseSample], tolerance: Any) -> list[str]:
        self.opened.append(samples)
        return ["candidate"]

    def texts(self, rows: list[list[int]]) -> list[str]:
        return ["" for _ in rows]

    def read(self, side: str, *, again: bool = False) -> Symptoms:
        differing = {
            sample.number: 1 for sample in self.opened[-1] if sample.number % self._every == DIFFERS % self._every
        }
        return Symptoms(counts={"tokens": len(differing)} if differing else {}, by_sample=differing)


@pytest.fixture
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Search for a fault of a few flips in each recorded step on a bench, and return (bench, situations)."""

    def search(every: int) -> tuple[RareBench, Attribution, list[Situation]]:
        baseline, candidate = pair(plan=scenario(steps=4), native=False)
        for frame, row in itertools.product(candidate.frames("rollout"), (1, 2, 3)):
            at = int(frame.arrays["output"].offsets[row])
            frame.arrays["output"].values[at] -= 1
            frame.arrays["logprob"].values[at] -= 1.0
        judged = judged_pair(baseline.write(tmp_path / "baseline"), candidate.write(tmp_path / "candidate"))
        situations: list[Situation] = []
        monkeypatch.setattr(module, "_search_side", lambda s, *rest: situations.append(s))
        bench: Any = RareBench(every)
        return bench, module.search(judged, bench), situations

    return search


@pytest.mark.slow
def test_samples_that_differ_are_looked_for_in_a_wide_case_and_tried_in_a_small_one(searched: Any) -> None:
    bench, attribution, [situation] = searched(EVERY)
    first, wide, narrow = bench.opened
    assert len(first) < len(wide) and len(narrow) < len(wide)
    differing = {sample.number for sample in wide if sample.number % EVERY == DIFFERS}
    assert {sample.number for sample in narrow if sample.offends} == differing and len(differing) > LEAST
    assert situation.symptoms.total == attribution.drawn == len(differing)
    assert not attribution.reproduced, "none of the samples that the recordings leave unexplained is tried"
    assert any(not sample.offends for sample in narrow)


@pytest.mark.slow
def test_a_fault_that_shows_at_once_needs_no_wider_case(searched: Any) -> None:
    bench, attribution, _ = searched(2)
    assert attribution.reproduced
    assert len(bench.opened) == 1
