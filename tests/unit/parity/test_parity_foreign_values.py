"""Values of another type than the format's, in both runs: they are missing, and no error of the judge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recordings import Recording, pair, put, scenario


def events(kind: str, **fields: Any) -> Callable[[Recording], None]:
    """Give these fields of every event of a kind these values."""

    def change(run: Recording) -> None:
        for event in run.events(kind):
            event.update(fields)

    return change


def frames(kind: str, **fields: Any) -> Callable[[Recording], None]:
    """Give these fields of every frame of a kind these values."""

    def change(run: Recording) -> None:
        for frame in run.frames(kind):
            frame.fields.update(fields)

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slip", "verdict"),
    [
        (lambda run: None, "EQUIVALENT"),  # the control
        (events("engine_info", rank="nan"), "EQUIVALENT"),  # there is one engine, whatever its number
        (frames("rollout", weight_version=[1]), "INCONCLUSIVE"),
        (events("engine_info", resolved=[1]), "INCONCLUSIVE"),
        (events("data", prompts=5), "INCONCLUSIVE"),
    ],
    ids=["none", "engine number", "weight version", "resolved", "prompt digest"],
)
def test_a_value_of_another_type_is_missing(tmp_path: Path, slip: Callable[[Recording], None], verdict: str) -> None:
    sides = pair(plan=scenario(steps=2), native=False)
    for run in sides:
        slip(run)
    judged = put(tmp_path, *sides)
    assert judged.verdict == verdict, judged.account


@pytest.mark.slow
def test_a_generation_prompt_that_is_no_list_leaves_a_changed_prompt_named(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=scenario(steps=2), native=False)
    for run in (baseline, candidate):
        events("tokenizer", generation_prompt="abc")(run)
    candidate.frame("rollout", 0).arrays["prompt_seen"].values[0] += 1  # type: ignore[union-attr]
    assert put(tmp_path, baseline, candidate).verdict == "DIVERGENT"
