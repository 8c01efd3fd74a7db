"""The native stage: each planted sampler is found, named and laid at the right door, and no sound one is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from native_samples import MARGIN, Stage, give
from recordings import Recording, causes, check, jagged, make, put, scenario

from reports.model import Verdict
from scenarios.ppo.native_scores import Hypothesis
from scenarios.settings import Native, Sampling, Scenario

pytestmark = pytest.mark.usefixtures("one_thread")
PLAIN = Hypothesis(Sampling())


def plan(asked: Sampling, margin: float = MARGIN) -> Scenario:
    base = scenario(steps=2)
    asked = dataclasses.replace(asked, max_tokens=base.sampling.max_tokens)
    return dataclasses.replace(base, sampling=asked, native=Native(samples=384, margin=margin))


def pair(asked: Sampling, one: Stage, two: Stage, margin: float = MARGIN) -> tuple[Recording, Recording]:
    both = make("baseline", plan(asked, margin)), make("candidate", plan(asked, margin))
    for recording, stage in zip(both, (one, two), strict=True):
        give(recording, stage)
    return both


def judged(folder: Path, asked: Sampling, candidate: Stage, margin: float = MARGIN) -> Verdict:
    """A sound baseline (seed 1) against a candidate."""
    return put(folder, *pair(asked, Stage(Hypothesis(asked), asked, 1), candidate, margin))


@pytest.mark.parametrize(
    "asked",
    [Sampling(), Sampling(temperature=0.7), Sampling(top_k=6, top_p=0.8), Sampling(min_p=0.1)],
    ids=["plain", "tempered", "top-k and top-p", "min-p"],
)
def test_another_random_number_generator_is_no_difference_and_equality_is_shown(
    asked: Sampling, tmp_path: Path
) -> None:
    verdict = judged(tmp_path, asked, Stage(Hypothesis(asked), asked, 2))
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    native = check(verdict, "native")
    assert native.state == "ruled out" and set(native.details["outcomes"].values()) == {"equal"}
    assert check(verdict, "sampling-parameter-map").state == "ruled out"
    assert all(one["fits"] == [] and one["outside"] == 0 for one in native.details["sampler"].values())


@pytest.mark.parametrize(
    "asked, did, cause",
    [
        (Sampling(), Sampling(temperature=0.7), "SAMPLING_PARAM(temperature)"),
        (Sampling(), Sampling(top_p=0.8), "SAMPLING_PARAM(top_p)"),
        (Sampling(top_p=0.8), Sampling(), "SAMPLING_PARAM(top_p)"),
        (Sampling(), Sampling(top_k=5), "SAMPLING_PARAM(top_k)"),
        (Sampling(min_tokens=3), Sampling(), "SAMPLING_PARAM(min_tokens)"),
    ],
)
def test_a_parameter_of_the_engines_own_sampler(asked: Sampling, did: Sampling, cause: str, tmp_path: Path) -> None:
    verdict = judged(tmp_path, asked, Stage(Hypothesis(did), asked, 2))
    assert verdict.verdict == "DIVERGENT" and causes(verdict) == [cause], (verdict.reason, causes(verdict))
    assert verdict.causes[0].party == "candidate"
    proof = verdict.causes[0].proofs[0]
    assert proof.after < proof.before and proof.on == "recordings"


def test_the_side_at_fault_may_be_the_baseline(tmp_path: Path) -> None:
    one, two = Stage(Hypothesis(Sampling(temperature=1.4)), seed=1), Stage(PLAIN, seed=2)
    verdict = put(tmp_path, *pair(Sampling(), one, two))
    assert [(cause.name, cause.party) for cause in verdict.causes] == [("SAMPLING_PARAM(temperature)", "baseline")]


def test_both_sides_wrong_alike_differ_from_what_was_asked(tmp_path: Path) -> None:
    """A generation_config that leaks into both engines: the two agree, and neither draws what was asked."""
    leaked = Hypothesis(Sampling(temperature=0.7))
    verdict = put(tmp_path, *pair(Sampling(), Stage(leaked, seed=1), Stage(leaked, seed=2)))
    assert verdict.verdict == "DIVERGENT"
    assert {cause.party for cause in verdict.causes} == {"baseline", "candidate"}


def test_joint_top_k_and_top_p_are_told_by_tokens_outside_of_the_support(tmp_path: Path) -> None:
    asked = Sampling(top_k=6, top_p=0.8)
    verdict = judged(tmp_path, asked, Stage(Hypothesis(asked, joint=True), asked, 2))
    assert causes(verdict) == ["SAMPLER(joint top-k/top-p)"] and verdict.causes[0].party == "candidate"
    proof = verdict.causes[0].proofs[0]
    assert proof.unit == "tokens outside" and proof.before > 0 and proof.after == 0


def test_what_a_users_mapping_passed_is_laid_to_the_mapping(tmp_path: Path) -> None:
    asked = Sampling(top_k=6, top_p=0.8)
    both = pair(asked, Stage(Hypothesis(asked), asked, 1), Stage(Hypothesis(asked, joint=True), asked, 2))
    for event in both[1].events("sampling", mode="native"):
        event.update(mapping="my_mapping.py", unlike={"top_k with top_p": "joint"}, given=dict(event["canonical"]))
    verdict = put(tmp_path, *both)
    assert ("SAMPLER(joint top-k/top-p)", "mapping") in [(cause.name, cause.party) for cause in verdict.causes]


def test_tempered_log_probabilities_of_an_engine_that_documents_them_are_a_finding(tmp_path: Path) -> None:
    asked = Sampling(temperature=0.7)
    candidate = Stage(Hypothesis(asked), asked, 2, reported="tempered_logprob")
    verdict = judged(tmp_path, asked, candidate)  # the candidate is SGLang
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert check(verdict, "native").details["semantics"]["candidate"]["recognised"] == "tempered"
    assert any(finding.name == "native log-probability semantics" for finding in verdict.findings)


@pytest.mark.parametrize("column, name", [("tempered_logprob", "tempered"), ("processed_logprob", "renormalised")])
def test_another_meaning_than_the_documented_one_is_a_cause(column: str, name: str, tmp_path: Path) -> None:
    asked = Sampling(temperature=0.7, top_p=0.8)
    one = Stage(Hypothesis(asked), asked, 1, reported=column)  # the baseline is vLLM: raw
    verdict = put(tmp_path, *pair(asked, one, Stage(Hypothesis(asked), asked, 2)))
    assert [(cause.name, cause.party) for cause in verdict.causes] == [(f"LOGPROB_SEMANTICS({name})", "baseline")]
    assert verdict.causes[0].proofs[0].after == 0


@pytest.mark.parametrize(("said", "party"), [("processed_logprobs", "mapping"), ("raw_logprobs", "baseline")])
def test_processed_log_probabilities_without_filters_are_tempered_ones(said: str, party: str, tmp_path: Path) -> None:
    asked = Sampling(temperature=0.7)
    both = pair(
        asked, Stage(Hypothesis(asked), asked, 1, reported="tempered_logprob"), Stage(Hypothesis(asked), asked, 2)
    )
    for event in both[0].events("engine_info"):
        event["resolved"] = {**event["resolved"], "logprobs_mode": said}
    verdict = put(tmp_path, *both)
    assert [(cause.name, cause.party) for cause in verdict.causes] == [("LOGPROB_SEMANTICS(tempered)", party)]


def test_numbers_that_follow_from_the_temperature_that_was_drawn_with_are_no_cause_of_their_own(tmp_path: Path) -> None:
    """The candidate, SGLang, documents log-probabilities after temperature, and draws at another than was asked."""
    cool = Stage(Hypothesis(Sampling(temperature=0.7)), Sampling(), 2, reported="drawn")
    verdict = judged(tmp_path / "sglang", Sampling(), cool)
    assert causes(verdict) == ["SAMPLING_PARAM(temperature)"]
    # Control: numbers that no temperature near the drawn one gives.
    both = pair(Sampling(), Stage(PLAIN, seed=1), cool)
    next(both[1].frames("native")).arrays["logprob"].values *= 1.6  # type: ignore[union-attr]
    assert causes(put(tmp_path / "other", *both)) == ["SAMPLING_PARAM(temperature)", "UNEXPLAINED"]


def test_numbers_of_no_known_meaning_stay_unexplained(tmp_path: Path) -> None:
    both = pair(Sampling(), Stage(PLAIN, seed=1), Stage(PLAIN, seed=2))
    next(both[1].frames("native")).arrays["logprob"].values *= 1.3  # type: ignore[union-attr]
    assert causes(put(tmp_path, *both)) == ["UNEXPLAINED"]


def test_clones_and_no_clones(tmp_path: Path) -> None:
    verdict = judged(tmp_path, Sampling(), Stage(PLAIN, seed=2, clones=True))
    assert "RNG_COLLISION" in causes(verdict)


def test_a_seed_that_is_ignored_where_it_was_promised(tmp_path: Path) -> None:
    verdict = judged(tmp_path, Sampling(), Stage(PLAIN, seed=2, repeats=0.0))
    assert [(cause.name, cause.party) for cause in verdict.causes] == [("RNG(seed ignored)", "candidate")]


def test_samples_drawn_again_under_other_numbers_are_no_ignored_seed(tmp_path: Path) -> None:
    verdict = judged(tmp_path, Sampling(), Stage(PLAIN, seed=2, exchanged=True))
    assert [(cause.name, cause.party) for cause in verdict.causes] == [("ORDER", "candidate")]
    assert verdict.causes[0].proofs[0].after == 0


@pytest.mark.parametrize("shift", [1, -1])
def test_log_probabilities_that_stand_beside_their_tokens(shift: int, tmp_path: Path) -> None:
    both = pair(Sampling(), Stage(PLAIN, seed=1), Stage(PLAIN, seed=2))
    frame = next(both[1].frames("native"))
    frame.arrays["logprob"] = jagged([np.roll(row, shift) for row in frame.arrays["logprob"].rows()])  # type: ignore[union-attr]
    verdict = put(tmp_path, *both)
    assert [(cause.name, cause.party) for cause in verdict.causes] == [("ALIGNMENT", "candidate")]
    assert verdict.causes[0].proofs[0].intervention == f"read {shift:+d} position"


def test_a_limit_that_shortens_native_samples_is_no_matter_of_the_sampler(tmp_path: Path) -> None:
    verdict = judged(tmp_path, Sampling(), Stage(PLAIN, seed=2, limit=5))
    assert [(one.name, one.party) for one in verdict.causes] == [("LENGTH(context)", "candidate")], verdict.reason


def test_an_engine_that_promises_no_repetition_is_a_finding(tmp_path: Path) -> None:
    verdict = judged(tmp_path, Sampling(), Stage(PLAIN, seed=2, repeats=0.0, request_seed="ignored"))
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert any(finding.name == "native seeds" for finding in verdict.findings)


def test_ties_that_rounding_turned_do_not_break_a_promise(tmp_path: Path) -> None:
    verdict = judged(tmp_path, Sampling(), Stage(PLAIN, seed=2, repeats=0.9))
    assert verdict.verdict == "EQUIVALENT", verdict.reason


def test_too_little_data_is_said_with_how_much_would_be_enough_and_tests_nothing(tmp_path: Path) -> None:
    verdict = judged(tmp_path, Sampling(), Stage(PLAIN, seed=2), margin=0.1)
    native = check(verdict, "native")
    assert native.state == "not tested" and "too little data" in native.evidence
    assert 2000 <= native.details["enough"] <= 3200
    assert check(verdict, "sampling-parameter-map").state == "not tested"
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert "too little data" in verdict.account and verdict.coverage["native"]["length"] == "too little data"


def test_samples_of_a_foreign_learner_say_what_is_missing(tmp_path: Path) -> None:
    both = pair(Sampling(), Stage(PLAIN, seed=1), Stage(PLAIN, seed=2))
    for recording in both:
        score = next(recording.frames("native_score"))
        score.arrays = {name: score.arrays[name] for name in ("sample", "learner_logprob", "reward")}
        recording.drop("repeat")
    verdict = put(tmp_path, *both)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert any("sampler should have drawn" in item for item in verdict.missing)
    assert any("drawn twice" in item for item in verdict.missing)


def twice(folder: Path, did: Hypothesis, seed: int, *, second: bool) -> Verdict:
    """A candidate that draws as `did`, once or twice, by an alpha that chance reaches often."""
    planned = dataclasses.replace(plan(Sampling()), native=Native(samples=384, margin=MARGIN, alpha=0.2))
    both = make("baseline", planned), make("candidate", planned)
    for recording, how, number in zip(both, (PLAIN, did), (seed, seed + 2), strict=True):
        give(recording, Stage(how, seed=number), Stage(how, seed=number + 1) if second else None)
    return put(folder, *both)


def test_a_difference_that_a_second_draw_does_not_repeat_was_chance(tmp_path: Path) -> None:
    chance = 1024  # of 100 seeds, 11 are such: alpha is 0.2 here
    alone = twice(tmp_path / "alone", PLAIN, chance, second=False)
    assert alone.verdict == "INCONCLUSIVE" and "one draw differs, which may be chance" in alone.reason
    assert check(alone, "native").state == "not tested" and not alone.causes
    verdict = twice(tmp_path / "twice", PLAIN, chance, second=True)
    assert verdict.verdict == "EQUIVALENT" and check(verdict, "native").state == "ruled out"
    assert any("both draws do not" in finding.summary for finding in verdict.findings)


def test_a_small_difference_is_told_by_a_second_draw(tmp_path: Path) -> None:
    small = Hypothesis(Sampling(temperature=0.93))
    alone = twice(tmp_path / "alone", small, 1072, second=False)
    assert alone.verdict == "INCONCLUSIVE", alone.reason
    verdict = twice(tmp_path / "twice", small, 1072, second=True)
    assert verdict.verdict == "DIVERGENT" and check(verdict, "native").details["first_draw"]
