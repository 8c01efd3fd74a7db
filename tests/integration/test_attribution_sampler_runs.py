"""Whole recorded runs whose sampler is at fault, judged and put on the bench: the cause, and nothing beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_support import BASE, Laboratory, compared, laboratory
from ppo_support import random_models

from harness.parity.attribution import attribute
from scenarios.planted.differences.fault import Fault
from scenarios.settings import Rollout

MORE = dataclasses.replace(
    BASE,
    rollout=Rollout(prompts_per_step=8, samples_per_prompt=3),
    ppo=dataclasses.replace(BASE.ppo, train_batch_size=24),
)
TENSOR = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    with laboratory(random_models(tmp_path_factory.mktemp("models"))) as made:
        yield made


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    ("fault", "causes"),
    [
        pytest.param(Fault("second", engine={"draw": {"second": 7}}), ["SAMPLER(another token now and then)"],
                     marks=pytest.mark.night),
        (Fault("limit", engine={"limit": 9}), ["LENGTH(context)"]),
        pytest.param(Fault("pairs", engine={"permute": "pairs"}), ["ORDER"], marks=pytest.mark.night),
        pytest.param(Fault("unsaid", engine={"truncate": {"side": "left", "keep": 4, "unsaid": True}}),
                     ["TRUNCATION(left)"], marks=pytest.mark.night),
        (Fault("late", engine={"misloaded": {"names": [TENSOR], "how": "late", "from": 1}}),
         [f"STALE_WEIGHTS({TENSOR})"]),
    ],
    ids=lambda one: one.name if isinstance(one, Fault) else "",
)  # fmt: skip
def test_the_cause_is_named_and_nothing_beside_it(
    lab: Laboratory, tmp_path: Path, fault: Fault, causes: list[str]
) -> None:
    judged, bench = compared(lab, tmp_path, fault, MORE)
    assert judged.verdict.verdict == "DIVERGENT", judged.verdict.reason
    verdict = attribute(judged, bench)
    assert [one.name for one in verdict.causes] == causes
    assert verdict.causes[0].proofs
