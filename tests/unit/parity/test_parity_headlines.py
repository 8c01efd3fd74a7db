"""What a verdict says first: of a pass how many tokens are equal, and what it leaves open; of a place the ids there."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from recordings import check, jagged, pair, put

from harness.parity.audit import audit
from harness.parity.facts.align import around
from harness.parity.runs.scenario_check import with_scenario
from harness.parity.subjects.recording.observed_replay import ROLLOUTS, TRAINING, answer
from harness.recordings.store import Recording as Stored
from probes.format import SIDES
from reports.model import IN_PART, PASSES, Finding, Verdict
from reports.sections.answer import of
from reports.sections.parity import warnings
from scenarios.ppo.selfcheck import _above, _at_least


@pytest.mark.slow
def test_a_sound_pair_says_how_many_tokens_are_equal(tmp_path: Path) -> None:
    verdict = put(tmp_path, *pair())
    tokens = verdict.coverage["compared_tokens"]
    assert verdict.reason == f"{tokens:,} of {tokens:,} tokens equal"
    assert verdict.headline == "EQUIVALENT" and verdict.evidence


@pytest.mark.slow
def test_a_check_that_lacks_a_part_of_what_it_tests_is_counted_in_the_first_line(tmp_path: Path) -> None:
    """An engine that does not report a setting, in a comparison and in an audit of each of its runs."""
    verdict = put(tmp_path, *pair(native=False))
    for passed in (verdict, *(audit(Path(verdict.paths[side])) for side in SIDES)):
        assert passed.verdict in PASSES and passed.coverage[IN_PART] == 1
        assert any("not reported" in line for line in passed.missing)
        answer = of(passed)
        assert answer.reason == f"{passed.reason}; {passed.in_part}" or answer.evidence[0] == passed.in_part
        many = of(dataclasses.replace(passed, coverage={IN_PART: 2}, reason=" ".join(["word"] * 15)))
        assert many.evidence[0].startswith("2 checks")
        assert not dataclasses.replace(passed, coverage={}).in_part
        assert not dataclasses.replace(passed, verdict="INCONCLUSIVE").in_part


@pytest.mark.slow
def test_what_was_asked_of_one_side_is_not_listed_as_not_asked(tmp_path: Path) -> None:
    """As --candidate-set does: the candidate is asked, and given, another value than the baseline."""
    baseline, candidate = pair(native=False)
    candidate.manifest["scenario"]["sampling"]["top_p"] = 0.999
    for event in candidate.events("sampling"):
        event["canonical"] = event["canonical"] | {"top_p": 0.999}
        event["given"] = event.get("given", {}) | {"top_p": 0.999}
    verdict = put(tmp_path, baseline, candidate)
    assert any(item.name == "SAMPLING_PARAM(top_p)" and item.where == "both" for item in verdict.findings)
    assert not warnings(verdict)


def test_ids_are_shown_around_the_place_where_they_differ() -> None:
    one = np.arange(100)
    two = np.where(one == 56, 999, one)
    assert around(one, 56).split() == ["…", "53", "54", "55", "[56]", *map(str, range(57, 65)), "…"]
    assert "[999]" in around(two, 56) and around(one, 56) != around(two, 56)
    assert around(one[:56], 56).split() == ["…", "53", "54", "55", "[end]"]
    assert around(one[:3], 0) == "[0] 1 2"


@pytest.mark.slow
def test_a_prompt_that_differs_late_shows_two_texts_that_differ(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    frame = candidate.frame("rollout", 0)
    rows = [np.concatenate([row[:-1], [700]]) for row in frame.arrays["prompt"].rows()]
    frame.arrays["prompt_seen"] = jagged(rows)
    place = put(tmp_path, baseline, candidate).parity.first_divergence  # type: ignore[union-attr]
    assert place is not None and place.position == len(rows[0]) - 1
    assert place.baseline != place.candidate and "[700]" in place.candidate and "[" in place.baseline


@pytest.mark.parametrize(("rollouts", "training"), [*itertools.product(["agrees", "parts", "not tested"], repeat=2)])
def test_a_replay_answers_whether_it_is_the_rollouts_or_the_training(rollouts: str, training: str) -> None:
    halves = [Finding(ROLLOUTS, "", rollouts), Finding(TRAINING, "", training)]
    said = answer(Verdict("parity", "DIVERGENT", 1, ""), halves)
    assert "the rollouts" in said and "the training" in said
    assert ("not known" in said) == ("not tested" in (rollouts, training))
    assert said.startswith("it is the rollouts") == (rollouts == "parts" and training != "parts")
    assert not answer(Verdict("parity", "CONFOUNDED", 3, ""), halves)
    assert not answer(Verdict("parity", "INCONCLUSIVE", 3, ""), [])


def test_a_scenario_says_what_is_needed_and_which_fault_it_hides() -> None:
    nothing = _above("samples cut at the limit", 0.0, 0.0, "a fault at the limit")
    assert not nothing.ok and "more than 0" in nothing.summary and nothing.hides in nothing.summary
    few = _at_least("samples that end by themselves", 0.1, 0.3, "a lost end token")
    assert not few.ok and "at least 0.3" in few.summary
    assert _at_least("samples that end by themselves", 0.3, 0.3, "").ok
    assert dataclasses.replace(nothing, ok=True).value == 0.0


def _stale_weights(verdict: Verdict) -> dict[str, str]:
    return {item.where: item.summary for item in verdict.findings if item.name == "stale weights"}


def _with_floors(verdict: Verdict, **floors: float) -> Verdict:
    assert verdict.parity is not None
    return dataclasses.replace(verdict, parity=dataclasses.replace(verdict.parity, floor=verdict.parity.floor | floors))


@pytest.mark.slow
def test_each_side_is_checked_for_stale_weights_against_the_floor_of_its_own_engine(tmp_path: Path) -> None:
    move, runs = 0.01, pair(native=False)
    for run in runs:
        for event in run.events("step"):
            event["metrics"] = {**event["metrics"], "update_logprob_shift": move}
    verdict = put(tmp_path, *runs)
    stored = [Stored(tmp_path / side) for side in SIDES]
    shown = {
        floors: _stale_weights(with_scenario(_with_floors(verdict, baseline=floors[0], candidate=floors[1]), *stored))
        for floors in ((move / 200, move), (move, move / 200), (move / 200, move / 200))
    }
    assert [list(sides) for sides in shown.values()] == [["candidate"], ["baseline"], []]
    assert f"at least {100 * move:.3g} nats" in shown[move / 200, move]["candidate"]


@pytest.mark.slow
def test_a_verdict_that_calls_nothing_equal_says_nothing_of_what_could_not_have_shown(tmp_path: Path) -> None:
    """The floor of a diverging engine is in doubt, and no equality is claimed that could say less than it seems to."""
    verdict = put(tmp_path, *pair(native=False))
    runs = [Stored(tmp_path / side) for side in SIDES]
    divergent = dataclasses.replace(
        _with_floors(verdict, baseline=1.0, candidate=1.52), verdict="DIVERGENT", exit_code=1
    )
    shown = with_scenario(divergent, *runs)
    assert shown.findings == divergent.findings
    assert shown.coverage["scenario"]


@pytest.mark.slow
def test_suspicion_7_names_what_failed_in_the_native_stage(tmp_path: Path) -> None:
    """The samplers draw alike; only the log-probabilities that the candidate reports are off."""
    baseline, candidate = pair()
    for frame in candidate.frames("native"):
        values = frame.arrays["logprob"]
        values.values = values.values + 0.3
    verdict = put(tmp_path, baseline, candidate)
    native, suspicion = check(verdict, "native"), check(verdict, "sampling-parameter-map")
    assert set(native.details["outcomes"].values()) == {"equal"}
    assert suspicion.state == "confirmed"
    assert "logprob" in suspicion.evidence and "candidate" in suspicion.evidence
    assert "draw" not in suspicion.evidence
