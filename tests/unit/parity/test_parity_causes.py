"""Each rule of the causes: the planted fault that trips it, named with its party and with nothing left unexplained."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from framework_recordings import job
from recordings import EOS, TENSORS, Recording, cause, causes, check, jagged, make, pair, put, scenario

pytestmark = pytest.mark.slow

PARTED = dataclasses.replace(scenario(mode="native"), guided=False)


def plain() -> tuple[Recording, Recording]:
    return pair(native=False)


def test_another_tensor_arrived_than_was_sent(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for received in candidate.events("weights", source="received", version=2):
        received["digests"][TENSORS[1]] = "0" * 32
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT"
    assert causes(verdict) == [f"WEIGHTS({TENSORS[1]})"] and verdict.causes[0].party == "candidate"
    assert (verdict.parity.first_divergence.step, verdict.parity.first_divergence.phase) == (2, "sync")


def test_a_tensor_left_out_of_one_sync_only_is_stale_by_its_digest(tmp_path: Path) -> None:
    baseline, candidate = plain()
    stale = TENSORS[0]
    next(candidate.events("sync", version=3))["absent"] = [stale]
    del next(candidate.events("weights", source="received", version=3))["digests"][stale]
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == [f"STALE_WEIGHTS({stale})"]
    assert verdict.parity.first_divergence.step == 3


def test_a_tensor_that_is_never_sent_and_moves_nothing_is_a_finding(tmp_path: Path) -> None:
    """A tied output layer: absent from every sync, and the proof holds."""
    baseline, candidate = plain()
    for sync in candidate.events("sync"):
        sync["absent"] = ["lm_head.weight"]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert any("lm_head.weight" in finding.summary for finding in verdict.findings)


def test_a_proof_beyond_the_tolerance_is_a_divergence_even_when_every_digest_agrees(tmp_path: Path) -> None:
    baseline, candidate = plain()
    next(candidate.events("sync", version=4))["proof_max_delta"] = 0.02
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT" and causes(verdict) == ["UNEXPLAINED"]
    assert verdict.causes[0].party == "candidate"
    assert (verdict.parity.first_divergence.step, verdict.parity.first_divergence.field) == (4, "proof_max_delta")


@pytest.mark.parametrize("proof", ["nan", "inf"])
def test_a_proof_that_is_no_number_is_no_proof(tmp_path: Path, proof: str) -> None:
    baseline, candidate = plain()
    next(candidate.events("sync", version=4))["proof_max_delta"] = proof
    assert put(tmp_path, baseline, candidate).verdict == "DIVERGENT"


@pytest.mark.parametrize("cut, name", [("left", "TRUNCATION(left)"), ("right", "TRUNCATION(right)")])
def test_a_truncated_prompt(tmp_path: Path, cut: str, name: str) -> None:
    baseline, candidate = plain()
    frame = candidate.frame("rollout", 0)
    rows = frame.arrays["prompt_seen"].rows()
    rows[2] = rows[2][3:] if cut == "left" else rows[2][:-3]
    frame.arrays["prompt_seen"] = jagged(rows)
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == [name] and verdict.parity.first_divergence.sample == 2


def test_the_double_bos_of_both_engines_is_still_found(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        frame = recording.frame("rollout", 1)
        frame.arrays["prompt_seen"] = jagged([np.concatenate([row[:1], row]) for row in frame.arrays["prompt"].rows()])
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT"
    assert causes(verdict) == ["TOKENIZATION(double BOS)"] * 2
    assert {one.party for one in verdict.causes} == {"baseline", "candidate"}


def test_a_mask_shifted_by_one_in_the_trainer(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    for recording in (baseline, candidate):
        for frame in recording.frames("experience"):
            frame.arrays["tokens"] = jagged([np.roll(row, 1) for row in frame.arrays["tokens"].rows()])
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT"
    assert ("ALIGNMENT", "trainer") in {(one.name, one.party) for one in verdict.causes}


def test_differences_on_cached_samples_only_are_a_stale_cache(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in candidate.frames("rollout"):
        warm = np.repeat(frame.arrays["cached"] > 0, frame.arrays["logprob"].lengths)
        frame.arrays["logprob"].values[warm] -= 0.05
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == ["STALE_KV"] and verdict.causes[0].party == "candidate"
    assert check(verdict, "cache-hit-rate").state == "confirmed"


def test_permuted_responses(tmp_path: Path) -> None:
    baseline, candidate = plain()
    frame = candidate.frame("rollout", 2)
    for name in ("output", "logprob"):
        frame.arrays[name] = frame.arrays[name].take([3, 1, 2, 0, *range(4, 16)])
    frame.fields["finish"] = [frame.fields["finish"][i] for i in (3, 1, 2, 0, *range(4, 16))]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT"
    assert "ORDER" in causes(verdict)


def test_log_probabilities_of_the_engine_divided_by_the_temperature(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in candidate.frames("rollout"):
        frame.arrays["logprob"].values = frame.arrays["logprob"].values / 0.7
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == ["LOGPROB_SEMANTICS(scaled)"]
    assert cause(verdict, "LOGPROB_SEMANTICS(scaled)").details["scale"] == pytest.approx(0.7, abs=1e-4)


def test_log_probabilities_of_the_learner_divided_by_the_temperature(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        for frame in recording.frames("experience"):
            frame.arrays["actor_logprob"].values = frame.arrays["actor_logprob"].values / np.float32(0.7)
    verdict = put(tmp_path, baseline, candidate)
    assert {(one.name, one.party) for one in verdict.causes} == {("TRAINER(log-probabilities scaled)", "trainer")}
    assert check(verdict, "logprobs").state == "ruled out"


def parted(recording: Recording) -> None:
    """Every sample of it is another one from its first token on, as of two samplers that are not coupled."""
    for kind, name in (("rollout", "output"), ("experience", "tokens")):
        for frame in recording.frames(kind):
            frame.arrays[name] = jagged([np.r_[901, row[1:]] for row in frame.arrays[name].rows()])


@pytest.mark.by_day(2)
@pytest.mark.parametrize("kind, name", [("rollout", "logprob"), ("experience", "actor_logprob")])
@pytest.mark.parametrize("misread", ["scaled", "shifted"])
def test_where_no_token_is_equal_neither_the_engine_nor_its_learner_is_blamed(
    tmp_path: Path, kind: str, name: str, misread: str
) -> None:
    baseline, candidate = (job(side, plan=PARTED) for side in ("baseline", "candidate"))
    parted(candidate)
    for frame in candidate.frames(kind):
        column = frame.arrays[name]
        if misread == "scaled":
            column.values = column.values * np.float32(0.7)
        else:
            frame.arrays[name] = jagged([np.roll(row, 1) for row in column.rows()])
    verdict = put(tmp_path, baseline, candidate)
    found = cause(verdict, "LOGPROB_SEMANTICS(scaled)" if misread == "scaled" else "ALIGNMENT")
    assert verdict.verdict == "DIVERGENT" and found.party == "candidate"
    assert "which of the two is off no equal token of a second run shows" in found.summary
    assert "trainer" not in {one.party for one in verdict.causes}


def test_an_engine_that_moved_within_the_tolerance_is_no_scaled_learner(tmp_path: Path) -> None:
    """Its learner is the baseline's to the bit; a factor that brings the few tokens beyond back proves nothing."""
    pairs = pair(plan=scenario(dtype="bfloat16"), native=False)
    for recording, factor in zip(pairs, (1.0, 1.0225), strict=True):
        rng = np.random.default_rng(3)
        for kind, name in (("rollout", "logprob"), ("experience", "actor_logprob")):
            for frame in recording.frames(kind):
                values = np.full(len(frame.arrays[name].values), -2.2, np.float32)
                noise = rng.normal(0, 0.004, len(values)).astype(np.float32) if kind == "rollout" else np.float32(0)
                frame.arrays[name].values = (values + noise) * np.float32(factor if kind == "rollout" else 1)
    verdict = put(tmp_path, *pairs)
    assert check(verdict, "engine-against-learner").state == "confirmed", verdict.reason
    assert {check(verdict, name).state for name in ("experience", "logprobs")} == {"ruled out"}
    assert [one.name for one in verdict.causes] == ["UNEXPLAINED"]


def test_the_context_less_two(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in candidate.frames("rollout"):
        shorter = [reason == "length" for reason in frame.fields["finish"]]
        for name in ("output", "logprob"):
            rows = frame.arrays[name].rows()
            frame.arrays[name] = jagged([row[:-2] if cut else row for row, cut in zip(rows, shorter, strict=True)])
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == ["LENGTH(context)"]
    place = verdict.parity.first_divergence
    assert (place.field, place.baseline, place.candidate) == ("length", 24, 22)


def test_the_end_token_left_out(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in candidate.frames("rollout"):
        for name in ("output", "logprob"):
            rows = zip(frame.arrays[name].rows(), frame.fields["finish"], strict=True)
            frame.arrays[name] = jagged([row[:-1] if reason == "stop" else row for row, reason in rows])
    assert causes(put(tmp_path, baseline, candidate)) == ["STOP(end token dropped)"]


def test_a_sample_that_ends_one_token_earlier_has_not_lost_its_end_token(tmp_path: Path) -> None:
    baseline, candidate = plain()
    frame = candidate.frame("rollout", 3)
    outputs = [row.copy() for row in frame.arrays["output"].rows()]
    row = next(at for at, reason in enumerate(frame.fields["finish"]) if reason == "stop" and len(outputs[at]) > 3)
    end = outputs[row][-1]
    for name in ("output", "logprob"):
        rows = list(frame.arrays[name].rows())
        rows[row] = rows[row][:-1].copy()
        if name == "output":
            rows[row][-1] = end
        frame.arrays[name] = jagged(rows)
    assert "STOP(end token dropped)" not in causes(put(tmp_path, baseline, candidate))


def test_another_finish_reason_for_the_same_tokens(tmp_path: Path) -> None:
    baseline, candidate = plain()
    frame = candidate.frame("rollout", 1)
    stopped = frame.fields["finish"].index("stop")
    frame.fields["finish"][stopped] = "length"
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT" and check(verdict, "finish-reasons").state == "confirmed"
    assert verdict.parity.first_divergence.field == "finish_reason"


def test_a_noisy_baseline_is_the_baselines_fault(tmp_path: Path) -> None:
    verdict = put(tmp_path, make("baseline", noise=2e-3, native=False), make("candidate", native=False))
    assert causes(verdict) == ["baseline-itself"] and verdict.causes[0].party == "baseline"


def test_the_learner_says_which_engine_moved(tmp_path: Path) -> None:
    baseline, candidate = plain()
    frame = baseline.frame("rollout", 3)
    frame.arrays["logprob"].values[11] += 0.3
    verdict = put(tmp_path, baseline, candidate)
    assert [(one.name, one.party) for one in verdict.causes] == [("UNEXPLAINED", "baseline")]
    assert "step 3" in verdict.causes[0].evidence


def test_a_baseline_that_draws_what_the_learner_would_not(tmp_path: Path) -> None:
    """Both engines alike, both against the learner: the same wrong temperature on both sides, say."""
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        recording.frame("experience", 2).arrays["margin"].values[5] = -0.8
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT"
    assert check(verdict, "engine-against-learner").state == "confirmed"
    assert verdict.parity.first_divergence.margin == pytest.approx(-0.8)


def test_two_faults_at_once_are_both_named(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for sampling in candidate.events("sampling"):
        sampling["canonical"]["top_p"] = 0.9
    truth = baseline.frame("experience", 1).arrays
    frame = candidate.frame("rollout", 1)
    frame.arrays["output"].values[4] = truth["runner_up"].values[4]
    for one in candidate.frames("rollout"):
        one.arrays["logprob"] = jagged([np.roll(row, 1) for row in one.arrays["logprob"].rows()])
    assert set(causes(put(tmp_path, baseline, candidate))) == {"SAMPLING_PARAM(top_p)", "ALIGNMENT"}


def test_a_fault_beside_an_explained_one_stays_unexplained(tmp_path: Path) -> None:
    baseline, candidate = plain()
    frame = candidate.frame("rollout", 2)
    rows = frame.arrays["prompt_seen"].rows()
    rows[0] = np.concatenate([rows[0][:1], rows[0]])
    frame.arrays["prompt_seen"] = jagged(rows)
    other = candidate.frame("rollout", 4)
    other.arrays["logprob"].values[9] -= 0.4
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == ["TOKENIZATION(double BOS)", "UNEXPLAINED"]
    assert "step 4" in cause(verdict, "UNEXPLAINED").evidence


@pytest.mark.parametrize("field, phase", [("batch", "experience"), ("actor", "train"), ("critic", "train")])
def test_learners_that_part_without_a_confounder(tmp_path: Path, field: str, phase: str) -> None:
    baseline, candidate = plain()
    next(candidate.events("learner", step=3))[field] = "f" * 32
    verdict = put(tmp_path, baseline, candidate)
    place = verdict.parity.first_divergence
    assert verdict.verdict == "DIVERGENT" and (place.step, place.phase) == (3, phase)
    assert causes(verdict) == ["UNEXPLAINED"] and verdict.causes[0].party == "trainer"


@pytest.mark.parametrize("parted", [1, 4])
def test_a_learner_that_draws_numbers_of_its_own_is_the_odd_one_though_its_updates_part_the_runs(
    tmp_path: Path, parted: int
) -> None:
    """As with dropout left on: equal engines, learners that differ from both, and from each other at equal weights."""
    baseline, candidate = plain()
    for number, recording in enumerate((baseline, candidate)):
        random = np.random.default_rng(number)
        for frame in recording.frames("experience"):
            values = frame.arrays["actor_logprob"].values
            values += random.normal(0, 0.1, len(values)).astype(values.dtype)
    for event in candidate.events("weights"):  # what was sent and what arrived
        if event["version"] >= parted:
            event["digests"] = {name: "f" * len(digest) for name, digest in event["digests"].items()}
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.coverage["steps_not_compared"] == 6 - parted
    assert {cause.party for cause in verdict.causes} == {"trainer"}


def test_another_reward_for_the_same_tokens(tmp_path: Path) -> None:
    baseline, candidate = plain()
    candidate.frame("experience", 2).arrays["reward"][5] += 1.0
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT" and check(verdict, "rewards").state == "confirmed"
    assert verdict.parity.first_divergence.phase == "experience"


def test_an_end_token_is_an_ordinary_flip(tmp_path: Path) -> None:
    baseline, candidate = plain()
    frame = candidate.frame("rollout", 0)
    position = int(np.argmax(frame.arrays["output"].lengths > 3)) and int(frame.arrays["output"].offsets[1])
    frame.arrays["output"].values[position] = EOS
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.coverage["flips_beyond_margin"] == 1 and verdict.parity.first_divergence.candidate == EOS
