"""Samplers that draw with a penalty that nobody asked for, or now and then take another token; and what is near."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from bench_lab import Lab

from harness.parity.attribution import live, reference
from scenarios.settings import Sampling

ASKED = Sampling(max_tokens=32)
SPORADIC = "SAMPLER(another token now and then)"


def named(lab: Lab, plants: dict[str, Any], asked: Sampling = ASKED) -> list[str]:
    s = lab.situation(asked, engine=plants)
    print("SYMPTOMS", s.symptoms)
    reference.search(s)
    live.search(s, restarts=False, then=reference.search)
    print("TRIED", [(one.intervention, one.cause, one.before, one.after) for one in s.tried])
    print([(one.name, one.summary, one.proof) for one in s.named])
    print(s.symptoms)
    return [one.name for one in s.named]


@pytest.mark.parametrize("reported", ["raw", "penalised"])
@pytest.mark.parametrize(
    "kind, value", [("repetition", 1.3), ("repetition", 0.8), ("presence", -4.0), ("frequency", -3.0)], ids=str
)
def test_a_penalty_that_nobody_asked_for(lab: Lab, kind: str, value: float, reported: str) -> None:
    assert named(lab, {"draw": {kind: value, "reported": reported}}) == [f"SAMPLING_PARAM({kind}_penalty)"]


@pytest.mark.parametrize("second", [5, 11])
def test_another_token_now_and_then(lab: Lab, second: int) -> None:
    assert named(lab, {"draw": {"second": second}}) == [SPORADIC]


@pytest.mark.parametrize("sampling", [{"temperature": 0.97}, {"top_k": 300}, {"temperature": 0.9, "min_p": 0.02}], ids=str)
def test_a_parameter_is_not_taken_for_it(lab: Lab, sampling: dict[str, Any]) -> None:
    found = named(lab, {"sampling": sampling})
    assert set(found) <= {f"SAMPLING_PARAM({name})" for name in sampling}


def test_jitter_is_not_taken_for_it(lab: Lab) -> None:
    assert SPORADIC not in named(lab, {"draw": {"jitter": 0.1}})
