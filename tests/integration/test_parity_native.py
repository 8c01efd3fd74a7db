"""The native stage: each planted sampler is found, named and laid at the right door, and no sound one is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_samples import MARGIN, Stage, give
from recordings import Recording, causes, check, jagged, make, put, scenario

from reports.model import Verdict
from scenarios.ppo.native_scores import Hypothesis
from scenarios.settings import Native, Sampling, Scenario

pytestmark = pytest.mark.usefixtures("one_thread")
PLAIN = Hypothesis(Sampling())


def plan(asked: Sampling, native: Native) -> Scenario:
    base = scenario(steps=2)
    asked = dataclasses.replace(asked, max_tokens=base.sampling.max_tokens)
    return dataclasses.replace(base, sampling=asked, native=native)


def pair(asked: Sampling, one: Stage, two: Stage) -> tuple[Recording, Recording]:
    native = Native(samples=384, margin=MARGIN)
    both = make("baseline", plan(asked, native)), make("candidate", plan(asked, native))
    for recording, stage in zip(both, (one, two), strict=True):
        give(recording, stage)
    return both


def judged(folder: Path, asked: Sampling, candidate: Stage) -> Verdict:
    """A sound baseline (seed 1) against a candidate."""
    return put(folder, *pair(asked, Stage(Hypothesis(asked), asked, 1), candidate))


@pytest.mark.by_day(2)
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
    assert all(not one["fits"] and one["outside"] == 0 for one in native.details["sampler"].values())


@pytest.mark.by_day(2)
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
    how = "could not have drawn" if asked.min_tokens else "a fit, which is no proof"
    assert not verdict.causes[0].proofs and how in verdict.causes[0].evidence


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
    assert not verdict.causes[0].proofs and "to 0 tokens outside of the support" in verdict.causes[0].evidence


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


@pytest.mark.by_day(1)
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
    # Control: numbers that no temperature near the drawn one gives. Then the learner does not know what was drawn from.
    both = pair(Sampling(), Stage(PLAIN, seed=1), cool)
    next(both[1].frames("native")).arrays["logprob"].values *= 1.6  # type: ignore[union-attr]
    assert causes(put(tmp_path / "other", *both)) == ["UNEXPLAINED"]


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


def drawn(folder: Path, did: Hypothesis, times: int, seed: int = 1, **settings: Any) -> Verdict:
    """A sound baseline against a candidate that draws as `did`, both after so many draws."""
    native = Native(**{"samples": 384, "further": 384, "margin": MARGIN, **settings})
    both = make("baseline", plan(Sampling(), native)), make("candidate", plan(Sampling(), native))
    for side, (recording, how) in enumerate(zip(both, (PLAIN, did), strict=True)):
        give(recording, *(Stage(how, seed=seed + 10 * draw + side) for draw in range(times)))
    return put(folder, *both)


def test_what_a_first_draw_leaves_open_more_draws_decide(tmp_path: Path) -> None:
    """384 samples show equality to within 0.2 standard deviations too seldom, 1,152 nearly always."""
    first = drawn(tmp_path / "first", PLAIN, 1, margin=0.2)
    native = check(first, "native")
    assert native.state == check(first, "sampling-parameter-map").state == "undecided"
    assert first.verdict == "EQUIVALENT", first.reason
    assert "undecided" in first.coverage["native"].values() and first.coverage["native_draws"] == 1
    third = drawn(tmp_path / "third", PLAIN, 3, margin=0.2)
    assert set(third.coverage["native"].values()) == {"equal"} and third.coverage["native_samples"] == [1152, 1152]
    assert check(third, "native").state == check(third, "sampling-parameter-map").state == "ruled out"


def test_a_verdict_is_that_of_all_looks_and_not_of_the_last(tmp_path: Path) -> None:
    native = check(drawn(tmp_path, PLAIN, 3), "native").details
    assert [look["draws"] for look in native["looks"]] == [1, 2, 3]
    assert sum(look["alpha"] for look in native["looks"]) < Native.alpha
    early = {name for look in native["looks"][:1] for name in look["equal"]}
    assert early and all(native["quantities"][name]["samples"] == 384 for name in early)


def test_at_the_cap_each_undecided_quantity_says_how_many_samples_would_decide_it(tmp_path: Path) -> None:
    verdict = drawn(tmp_path, PLAIN, 1, margin=0.1, draws=1)
    native = check(verdict, "native")
    undecided = {
        name: quantity for name, quantity in native.details["quantities"].items() if quantity["outcome"] == "undecided"
    }
    assert native.state == "undecided" and undecided
    assert len({quantity["needed"] for quantity in undecided.values()}) == len(undecided)  # each its own
    assert all(quantity["needed"] > 384 and 2000 <= quantity["enough"] <= 3200 for quantity in undecided.values())
    sentences = verdict.account.split("; ")
    for name in undecided:
        [sentence] = [sentence for sentence in sentences if sentence.startswith(f"{name} ")]
        assert "undecided after 384 of at most 384 samples a side" in sentence
    assert "not tested" not in verdict.account


@pytest.mark.by_day(1)
@pytest.mark.parametrize(("draws", "outcome"), [(1, "INCONCLUSIVE"), (3, "DIVERGENT")])
def test_a_small_difference_that_a_first_draw_leaves_in_doubt_is_shown_by_later_ones(
    draws: int, outcome: str, tmp_path: Path
) -> None:
    verdict = drawn(tmp_path, Hypothesis(Sampling(temperature=0.93)), draws, alpha=1e-6)
    assert verdict.verdict == outcome, verdict.reason
    assert bool(verdict.causes) == (outcome == "DIVERGENT")


def test_a_side_that_has_drawn_on_for_another_comparison_is_read_as_far_as_both_have(tmp_path: Path) -> None:
    both = pair(Sampling(), Stage(PLAIN, seed=1), Stage(PLAIN, seed=2))
    give(both[0], Stage(PLAIN, seed=1), Stage(Hypothesis(Sampling(temperature=0.7)), seed=3))
    verdict = put(tmp_path, *both)
    assert verdict.verdict == "EQUIVALENT" and verdict.coverage["native_samples"] == [384, 384]


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
