"""Evidence: typed kinds of divergence, and nothing that writes into it once it was gathered."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import Recording, jagged, pair, scenario

from harness.parity.facts.divergence import Divergence, DivergenceKey, Kind, keys
from harness.parity.facts.evidence import Evidence
from harness.parity.verdict import decided, judged_pair
from probes.format import SIDES
from reports.model import Place


def second_bos(candidate: Recording) -> None:
    for frame in candidate.frames("rollout"):
        prompt = frame.arrays["prompt"]
        frame.arrays["prompt_seen"] = jagged([np.concatenate([row[:1], row]) for row in prompt.rows()])


def shifted(candidate: Recording) -> None:
    for frame in candidate.frames("rollout"):
        frame.arrays["logprob"].values = np.roll(frame.arrays["logprob"].values, 1)


def sound(candidate: Recording) -> None:
    """A control."""


def contents(value: Any) -> Any:
    """All that a value holds, recordings apart, as plain data that can be compared."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: contents(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): contents(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, (list, tuple)):
        return [contents(one) for one in value]
    return repr(value)


@pytest.mark.by_day(3)
@pytest.mark.slow
@pytest.mark.parametrize("plant", [second_bos, shifted, sound])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_judging_twice_gives_the_same_verdict_and_leaves_the_evidence(dtype: str, plant: Any, tmp_path: Path) -> None:
    baseline, candidate = pair(plan=scenario(dtype=dtype))
    plant(candidate)
    found = judged_pair(baseline.write(tmp_path / "baseline"), candidate.write(tmp_path / "candidate"))
    assert found.evidence is not None
    before = contents(found.evidence)
    again = decided(found.evidence)
    assert again.verdict.to_json() == found.verdict.to_json() and again.kinds == found.kinds
    assert contents(found.evidence) == before
    assert (found.verdict.verdict == "DIVERGENT") == (plant is not sound)


@pytest.mark.slow
def test_evidence_that_was_gathered_is_not_written_again(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    found = judged_pair(
        baseline.write(tmp_path / "baseline"), candidate.write(tmp_path / "candidate"), native=False
    ).evidence
    assert isinstance(found, Evidence)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.guided = False  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        found.first[Kind.FLIP.of()] = Divergence(
            *Kind.FLIP.of(), Place(0, "rollout", 0, 1, 0, "token", 1, 2), "rollout"
        )  # type: ignore[index]
    with pytest.raises(AttributeError):
        found.completeness.missing.append("more")  # type: ignore[attr-defined]
    assert dataclasses.replace(found, guided=False).guided is False  # a copy is another evidence


def test_kinds_have_labels_of_their_own() -> None:
    """What a verdict lists: two kinds of one label would be one."""
    every = [kind.of(side) for kind in Kind for side in (SIDES if kind.sided else (None,))]
    assert len({key.label for key in every}) == len(every) == len({key.words for key in every})
    assert Kind.ENGINE.of("candidate").label == "learner:candidate" and Kind.LEARNER.of().label == "learner"
    assert keys((Kind.FLIP, Kind.CHOICE), "baseline") == (Kind.FLIP.of(), DivergenceKey(Kind.CHOICE, "baseline"))


def test_divergences_are_in_the_order_in_which_they_happen() -> None:
    def at(step: int, phase: str, sample: int = -1) -> Divergence:
        return Divergence(*Kind.FLIP.of(), Place(step, phase, 0, sample, 0, "token", 1, 2), phase)

    inorder = [at(0, "prompt"), at(0, "rollout"), at(0, "rollout", 3), at(0, "train"), at(1, "floor"), at(-1, "native")]
    assert sorted([*inorder[3:], *inorder[:3]], key=lambda one: one.order) == inorder
