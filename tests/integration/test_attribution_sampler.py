"""Samplers that draw with a penalty that nobody asked for, or now and then take another token; and what is near."""

from __future__ import annotations

from typing import Any

import pytest
from bench_lab import Lab
from cause_keys import NO_HISTORY

from harness.parity.attribution import live, reference
from harness.parity.attribution.merge import _proven
from harness.parity.attribution.outcome import Attribution
from harness.parity.rivals import open_rivals, told_apart
from scenarios.settings import Sampling

ASKED = Sampling(max_tokens=32)
SPORADIC = "SAMPLER(another token now and then)"


def named(lab: Lab, plants: dict[str, Any], asked: Sampling = ASKED) -> list[str]:
    s = lab.situation(asked, engine=plants)
    reference.search(s)
    live.search(s, restarts=False, then=reference.search)
    assert all(not open_rivals(one) for one in _proven([], Attribution(named=s.named))[0])
    return [str(one.cause) for one in s.named]


@pytest.mark.by_day(1)
@pytest.mark.parametrize("reported", ["raw", "penalised"])
@pytest.mark.parametrize(
    "kind, value", [("repetition", 1.3), ("repetition", 0.8), ("presence", -4.0), ("frequency", -3.0)], ids=str
)
def test_a_penalty_that_nobody_asked_for(lab: Lab, kind: str, value: float, reported: str) -> None:
    assert named(lab, {"draw": {kind: value, "reported": reported}}) == [f"SAMPLING_PARAM({kind}_penalty)"]


@pytest.mark.by_day(1)
@pytest.mark.parametrize("second", [5, 11])
def test_another_token_now_and_then(lab: Lab, second: int) -> None:
    assert named(lab, {"draw": {"second": second}}) == [SPORADIC]


@pytest.mark.by_day(1)
@pytest.mark.parametrize("sampling", [{"temperature": 0.97}, {"temperature": 0.9, "min_p": 0.02}], ids=str)
def test_a_parameter_is_not_taken_for_it(lab: Lab, sampling: dict[str, Any]) -> None:
    found = named(lab, {"sampling": sampling})
    assert set(found) <= {f"SAMPLING_PARAM({name})" for name in sampling}


def test_of_two_filters_that_explain_every_choice_neither_is_proven(lab: Lab) -> None:
    """A top-k of 300 and a top-p of 0.86 leave the same choices in, of a model that is nearly uniform."""
    s = lab.situation(ASKED, engine={"sampling": {"top_k": 300}})
    reference.search(s)
    (cause,), _ = _proven([], Attribution(named=s.named))
    told = told_apart(cause, NO_HISTORY)
    assert not told.proofs and "not told apart from another sampling parameter" in told.evidence
    assert any("top_" in other for other in told.details["explained as well by"])


@pytest.mark.night
def test_jitter_is_not_taken_for_it(lab: Lab) -> None:
    assert SPORADIC not in named(lab, {"draw": {"jitter": 0.1}})
