"""What may be called proven, and what a difference is told apart by: each planted fault beside its control."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from recordings import EOS, FrameRecord, Recording, cause, causes, check, pair, put, scenario

STEPS = 4
EFFECT = {"before": 9.0, "after": 0.1, "outside_before": 9, "outside_after": 0}


def plain() -> tuple[Recording, Recording]:
    return pair(plan=scenario(steps=STEPS), native=False)


def unended() -> tuple[Recording, Recording]:
    """A pair whose native samples end at no end token."""
    baseline, candidate = pair()
    for recording in (baseline, candidate):
        for frame in recording.frames("native"):
            frame.fields["finish"] = ["length"] * len(frame.fields["finish"])
    return baseline, candidate


def rolled(recording: Recording, first: int = 0) -> list[FrameRecord]:
    return [frame for frame in recording.frames("rollout") if frame.step >= first]


def last_tokens(frame: FrameRecord) -> np.ndarray:
    return frame.arrays["logprob"].offsets[1:][np.array(frame.fields["finish"]) == "stop"] - 1


def in_bfloat16(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (((bits + 0x8000) >> 16) << 16).view(np.float32)


@pytest.mark.slow
def test_log_probabilities_that_are_rounded_are_no_noise(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate):
        frame.arrays["logprob"].values[:] = in_bfloat16(frame.arrays["logprob"].values)
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == ["LOGPROB_SEMANTICS(rounded)"]
    assert verdict.causes[0].party == "candidate" and not verdict.causes[0].proofs


@pytest.mark.slow
@pytest.mark.parametrize(("off", "every"), [(0.0, 2), (1.0, 1)])
def test_rounding_explains_no_number_that_is_not_rounded_and_no_larger_fault(
    off: float, every: int, tmp_path: Path
) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate):
        values = frame.arrays["logprob"].values
        values[::every] = in_bfloat16(values[::every] - off)
    assert "LOGPROB_SEMANTICS(rounded)" not in causes(put(tmp_path, baseline, candidate))


@pytest.mark.slow
def test_a_placeholder_of_end_tokens_is_no_noise(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate):
        frame.arrays["logprob"].values[last_tokens(frame)] = 0.0
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == ["LOGPROB_SEMANTICS(placeholder)"]
    named = cause(verdict, "LOGPROB_SEMANTICS(placeholder)")
    assert named.party == "candidate" and named.proofs[0].removed == 1
    assert "end tokens of samples that stopped" in verdict.account


@pytest.mark.slow
def test_end_tokens_with_other_numbers_are_no_placeholder(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate):
        frame.arrays["logprob"].values[last_tokens(frame)] -= 0.3
    verdict = put(tmp_path, baseline, candidate)
    assert "LOGPROB_SEMANTICS(placeholder)" not in causes(verdict)
    assert "end tokens of samples that stopped" in verdict.account


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_weights_change_in_mid_generation_only_after_a_sync(tmp_path: Path, first: int) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate, first):
        rows = frame.arrays["logprob"]
        at = np.arange(len(rows.values)) - np.repeat(rows.offsets[:-1], rows.lengths)
        rows.values[at < np.repeat(3 + np.arange(len(rows.lengths)) % 9, rows.lengths)] -= 0.05
    assert ("MIXED_VERSION" in causes(put(tmp_path, baseline, candidate))) is (first > 0)


@pytest.mark.slow
def test_answers_that_were_encoded_again_are_no_mixed_version(tmp_path: Path) -> None:
    """Log-probabilities keep the ids of before: from one place on each stands two positions early."""
    baseline, candidate = plain()
    for frame in rolled(candidate, 1):
        rows = frame.arrays["logprob"]
        for row in np.flatnonzero(rows.lengths > 12)[:4]:
            begin, end = rows.offsets[row] + 2 + row % 3, rows.offsets[row + 1]
            rows.values[begin : end - 2] = rows.values[begin + 2 : end].copy() + 0.001
            rows.values[end - 2 : end] = 0.0
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == ["RETOKENIZATION"] and not verdict.causes[0].proofs


@pytest.mark.slow
def test_a_split_of_a_few_samples_proves_no_change_of_the_weights(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate, 1):
        rows = frame.arrays["logprob"]
        for row in np.flatnonzero(rows.lengths > 12)[:4]:
            rows.values[rows.offsets[row] + 3 + row % 7 : rows.offsets[row + 1]] -= 0.05
    assert not any(named.proofs for named in put(tmp_path, baseline, candidate).causes)


@pytest.mark.slow
def test_the_sampler_of_an_engine_with_other_numbers_is_not_judged(tmp_path: Path) -> None:
    baseline, candidate = unended()
    frames = [*candidate.frames("native"), *rolled(candidate)]
    for number, frame in enumerate(frames):
        values = frame.arrays["logprob"].values
        values += np.random.default_rng(number).normal(0, 0.3, len(values)).astype(values.dtype)
    for frame in candidate.frames("native_score"):
        frame.fields["fits"] = [{"change": "temperature", "value": 1.3, "gain": 90.0, "over": 80.0, **EFFECT}]
        frame.arrays["outside"].values[:9] = 0.5  # tokens that no draw as asked could give
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT" and "SAMPLING_PARAM(temperature)" not in causes(verdict)
    assert any("its sampler was not judged, since its log-probabilities" in item for item in verdict.missing)


@pytest.mark.slow
def test_a_fit_of_a_judged_sampler_is_no_proof(tmp_path: Path) -> None:
    baseline, candidate = unended()
    for frame in candidate.frames("native_score"):
        frame.fields["fits"] = [{"change": "temperature", "value": 1.3, "gain": 90.0, "over": 80.0, **EFFECT}]
        frame.arrays["outside"].values[:9] = 0.5  # tokens that no draw as asked could give
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == ["SAMPLING_PARAM(temperature)"] and not verdict.causes[0].proofs
    assert check(verdict, "sampling-parameter-map").state == "confirmed"


@pytest.mark.slow
@pytest.mark.parametrize(("others", "named"), [(0, ["SAMPLING_PARAM(min_tokens)"]), (9, ["UNEXPLAINED"])])
def test_a_sampler_that_only_early_end_tokens_depart_from_lost_min_tokens(
    others: int, named: list[str], tmp_path: Path
) -> None:
    """The engine goes on after an end token before min_tokens; beside `others`, further tokens, it explains not all."""
    baseline, candidate = unended()
    for recording in (baseline, candidate):
        recording.manifest["scenario"]["sampling"]["min_tokens"] = 3
    output = candidate.frame("native", -1).arrays["output"]
    outside = candidate.frame("native_score", -1).arrays["outside"].values
    first, long = np.cumsum(output.lengths) - output.lengths, output.lengths > 3
    outside[first[long][:20]] = 0.5  # tokens that no draw as asked could give
    outside[first[long][20 : 20 + others] + 1] = 0.5
    output.values[first[long][:20]] = EOS
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == named and verdict.causes[0].party == "candidate"
    assert not verdict.causes[0].proofs


def experience(recording: Recording, first: int) -> list[FrameRecord]:
    return [frame for frame in recording.frames("experience") if frame.step >= first]


@pytest.mark.slow
def test_an_engine_with_the_references_numbers_was_reached_by_no_update(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for drawn, made in zip(rolled(candidate, 1), experience(candidate, 1), strict=True):
        drawn.arrays["logprob"].values[:] = made.arrays["reference_logprob"].values
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == ["STALE_WEIGHTS(those of the reference)"]
    assert verdict.causes[0].party == "candidate" and verdict.causes[0].proofs[0].after == 0


@pytest.mark.slow
def test_a_learner_with_the_references_numbers_moved_and_not_its_engine(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for made in experience(candidate, 1):
        made.arrays["actor_logprob"].values[:] = made.arrays["reference_logprob"].values
    verdict = put(tmp_path, baseline, candidate)
    assert [(named.name, named.party) for named in verdict.causes] == [
        ("TRAINER(scored with the reference)", "trainer")
    ]


@pytest.mark.slow
def test_other_numbers_than_the_references_are_of_neither(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for drawn in rolled(candidate, 1):
        drawn.arrays["logprob"].values -= 0.05
    assert not any("reference" in name for name in causes(put(tmp_path, baseline, candidate)))


@pytest.mark.slow
def test_samples_that_a_batch_pads_are_told_from_the_longest(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate):
        rows, prompts = frame.arrays["logprob"], frame.arrays["prompt"].lengths
        rows.values[np.repeat(prompts < prompts.max(), rows.lengths)] -= 0.2
    verdict = put(tmp_path, baseline, candidate)
    assert "shorter than the longest of the step" in check(verdict, "engine-against-learner").evidence


@pytest.mark.slow
def test_engines_that_agree_with_each_other_are_not_named_for_their_learners(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        for made in experience(recording, 0):
            made.arrays["actor_logprob"].values += 0.3 * np.cos(np.arange(len(made.arrays["actor_logprob"].values)))
    assert {named.party for named in put(tmp_path, baseline, candidate).causes} <= {"trainer", "unknown"}
