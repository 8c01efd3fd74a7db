"""The trial of the judge: six planted faults that it must find, and controls that it must not alarm at, or must not
pass.

Written before the judge. The worst defect of a judge is to pass what it did not test.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from recordings import BOS, EOS, TENSORS, causes, check, jagged, make, pair, put, scenario

from harness.parity import judge
from reports.model import Verdict

# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stale_tensor_from_the_third_sync_on(tmp_path: Path) -> None:
    baseline, candidate = pair()
    stale, rng = TENSORS[3], np.random.default_rng(1)
    for sync in candidate.events("sync"):
        if sync["version"] >= 3:
            sync.update(absent=[stale], proof_max_delta=0.083, proof_mean_delta=0.011)
    for received in candidate.events("weights", source="received"):
        if received["version"] >= 3:
            del received["digests"][stale]
    for frame in candidate.frames("rollout"):
        if frame.step >= 3:
            logprob, output = frame.arrays["logprob"], frame.arrays["output"]
            logprob.values = logprob.values + rng.normal(0, 0.05, len(logprob.values))
            truth = baseline.frame("experience", frame.step).arrays
            flips = truth["margin"].values < 0.1
            output.values[flips] = truth["runner_up"].values[flips]

    verdict = put(tmp_path, baseline, candidate)

    assert (verdict.verdict, verdict.exit_code) == ("DIVERGENT", 1), verdict.reason
    place = verdict.parity.first_divergence
    assert (place.step, place.phase) == (3, "sync")
    assert stale in str(place.candidate) + place.context
    assert causes(verdict) == [f"STALE_WEIGHTS({stale})"]
    assert verdict.causes[0].party == "candidate"
    assert check(verdict, "weight-sync").state == "confirmed"
    assert check(verdict, "logprobs").state == "confirmed"
    assert check(verdict, "learner").state == "ruled out"
    assert (
        verdict.parity.series["flips_beyond_margin"][:3] == [0, 0, 0]
        and verdict.parity.series["flips_beyond_margin"][3] > 0
    )


@pytest.mark.slow
def test_another_temperature_in_the_candidate(tmp_path: Path) -> None:
    baseline, candidate = pair()
    for sampling in candidate.events("sampling"):
        sampling["canonical"]["temperature"] = 0.9
    rng = np.random.default_rng(2)
    for frame in candidate.frames("rollout"):
        truth = baseline.frame("experience", frame.step).arrays
        flips = rng.random(len(truth["margin"].values)) < 0.06 * np.exp(-truth["margin"].values)
        frame.arrays["output"].values[flips] = truth["runner_up"].values[flips]
        frame.arrays["logprob"].values[flips] -= 0.7

    verdict = put(tmp_path, baseline, candidate)

    assert verdict.verdict == "DIVERGENT", verdict.reason
    place = verdict.parity.first_divergence
    assert (place.step, place.phase, place.field) == (0, "rollout", "token")
    assert place.margin is not None and place.margin > 0
    assert causes(verdict) == ["SAMPLING_PARAM(temperature)"]
    assert check(verdict, "sampling-parameter-map").state == "confirmed"
    assert check(verdict, "tokens").state == "confirmed"
    assert check(verdict, "logprobs").state == "ruled out"  # raw log-probabilities do not see the temperature
    assert any(finding.severity == "warning" and "temperature" in finding.summary for finding in verdict.findings)


@pytest.mark.slow
@pytest.mark.parametrize("shift", [1, -1])
def test_log_probabilities_shifted_by_one(tmp_path: Path, shift: int) -> None:
    baseline, candidate = pair()
    for frame in candidate.frames("rollout"):
        frame.arrays["logprob"] = jagged([np.roll(row, shift) for row in frame.arrays["logprob"].rows()])

    verdict = put(tmp_path, baseline, candidate)

    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert causes(verdict) == ["ALIGNMENT"]
    assert verdict.causes[0].party == "candidate"
    place = verdict.parity.first_divergence
    assert (place.step, place.phase, place.field) == (0, "rollout", "logprob")
    assert check(verdict, "tokens").state == "ruled out"
    assert check(verdict, "engine-against-learner").state == "confirmed"


@pytest.mark.slow
def test_a_double_bos_in_one_prompt_seen_by_the_engine(tmp_path: Path) -> None:
    baseline, candidate = pair()
    frame, row = candidate.frame("rollout", 2), 5
    seen = frame.arrays["prompt_seen"].rows()
    seen[row] = np.concatenate([[BOS], seen[row]])
    frame.arrays["prompt_seen"] = jagged(seen)
    start = frame.arrays["logprob"].offsets[row]
    frame.arrays["logprob"].values[start : start + frame.arrays["logprob"].lengths[row]] -= 0.2

    verdict = put(tmp_path, baseline, candidate)

    assert verdict.verdict == "DIVERGENT", verdict.reason
    place = verdict.parity.first_divergence
    assert (place.step, place.phase, place.sample) == (2, "prompt", int(frame.arrays["sample"][row]))
    assert causes(verdict) == ["TOKENIZATION(double BOS)"]
    assert check(verdict, "token-ids-not-text").state == "confirmed"
    assert check(verdict, "token-ids-not-text").evidence.startswith("the candidate's engine saw other prompt ids")
    assert check(verdict, "prompt-ids-in against prompt-ids-the-engine-saw").state == "confirmed"


@pytest.mark.slow
def test_a_candidate_whose_own_floor_exceeds_the_cap(tmp_path: Path) -> None:
    baseline, candidate = make("baseline"), make("candidate", noise=3e-3)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert "candidate-itself" in causes(verdict)
    assert check(verdict, "candidate-itself").state == "confirmed"
    assert check(verdict, "baseline-itself").state == "ruled out"
    assert verdict.parity.floor["tolerance"] <= verdict.parity.floor["cap"] == 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("margin", "left"), [(0.4, ["UNEXPLAINED"]), (0.01, [])])
def test_noise_explains_no_flip_that_is_larger_than_it(tmp_path: Path, margin: float, left: list[str]) -> None:
    """A noisy engine that draws the same tokens each time may draw with another top-k as well."""
    baseline, candidate = make("baseline"), make("candidate", noise=3e-3)
    for recording in (baseline, candidate):
        recording.frame("experience", 1).arrays["margin"].values[7] = margin
    frame = candidate.frame("rollout", 1)
    frame.arrays["output"].values[7] = baseline.frame("experience", 1).arrays["runner_up"].values[7]
    assert sorted(causes(put(tmp_path, baseline, candidate))) == [*left, "candidate-itself"]


@pytest.mark.slow
def test_another_engine_seed_in_native_mode_is_no_alarm(tmp_path: Path) -> None:
    baseline, candidate = pair()
    for frame in candidate.frames("native"):
        frame.fields["engine_seed"] = 12345
    verdict = put(tmp_path, baseline, candidate)
    assert (verdict.verdict, verdict.exit_code) == ("EQUIVALENT", 0), verdict.reason
    assert check(verdict, "native").state == "ruled out"


# --- controls that must pass ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_equal_runs_are_equivalent_with_coverage(tmp_path: Path, seed: int) -> None:
    verdict = put(tmp_path, *pair(plan=scenario(seed=seed)))
    assert (verdict.verdict, verdict.exit_code) == ("EQUIVALENT", 0), verdict.reason
    assert verdict.causes == [] and verdict.confounders == [] and verdict.parity.first_divergence is None
    coverage = verdict.coverage
    assert coverage["steps"] == 6 and coverage["samples"] == 96
    assert coverage["compared_tokens"] == coverage["tokens"] > 500
    assert coverage["benign_flips"] == coverage["flips_beyond_margin"] == 0
    assert coverage["replaced"]
    assert [one.number for one in verdict.parity.checks if one.number] == list(range(1, 12))
    assert [one.name for one in verdict.parity.checks if one.state == "confirmed"] == []
    assert [check.name for check in verdict.parity.checks if check.state == "not tested"] == []
    assert Verdict.from_dict(verdict.to_dict()).verdict == "EQUIVALENT"


@pytest.mark.slow
def test_a_tied_flip_is_benign_and_counted(tmp_path: Path) -> None:
    baseline, candidate = pair()
    for recording in (baseline, candidate):
        recording.frame("experience", 1).arrays["margin"].values[7] = 3e-7
    frame, truth = candidate.frame("rollout", 1), baseline.frame("experience", 1).arrays
    frame.arrays["output"].values[7] = truth["runner_up"].values[7]
    frame.arrays["logprob"].values[7] -= 4.0  # it is another token's
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert verdict.coverage["benign_flips"] == 1 and verdict.coverage["flips_beyond_margin"] == 0
    assert verdict.parity.series["flips"][1] == 1


@pytest.mark.slow
@pytest.mark.parametrize("last", [True, False])
def test_a_sample_that_ends_at_a_flip_is_counted_beside_the_finish_reasons(tmp_path: Path, last: bool) -> None:
    baseline, candidate = pair()
    frame, truth = candidate.frame("rollout", 1), baseline.frame("experience", 1).arrays
    cut = frame.fields["finish"].index("length")  # its last token is no end token
    at = int(frame.arrays["output"].offsets[cut + 1]) - (1 if last else 2)
    for recording in (baseline, candidate):
        recording.frame("experience", 1).arrays["margin"].values[at] = 3e-7
    frame.arrays["output"].values[at] = truth["runner_up"].values[at]
    verdict = put(tmp_path, baseline, candidate)
    finish, samples = check(verdict, "finish-reasons"), verdict.coverage["samples"]
    assert finish.state == "ruled out"
    counts = list(map(int, re.findall(r"\d+", finish.evidence)))
    assert counts == ([samples - 1, 1, samples] if last else [samples])  # equal in, not compared in, of


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["margin", "other token"])
def test_a_flip_is_not_benign_for_either_half_of_the_rule_alone(tmp_path: Path, fault: str) -> None:
    baseline, candidate = pair()
    margin = 0.4 if fault == "margin" else 3e-7
    for recording in (baseline, candidate):
        recording.frame("experience", 1).arrays["margin"].values[7] = margin
    frame, truth = candidate.frame("rollout", 1), baseline.frame("experience", 1).arrays
    frame.arrays["output"].values[7] = truth["runner_up"].values[7] + (fault == "other token")
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert verdict.coverage["flips_beyond_margin"] == 1
    place = verdict.parity.first_divergence
    assert (place.step, place.field, place.margin) == (1, "token", pytest.approx(margin))
    assert causes(verdict) == ["UNEXPLAINED"]


@pytest.mark.slow
@pytest.mark.parametrize("column", ["margin", "runner_up"])
def test_a_flip_is_no_tie_where_only_the_baselines_learner_takes_it_for_one(tmp_path: Path, column: str) -> None:
    """Margins that were lost in one recording excuse nothing: the other learner was asked the same."""
    baseline, candidate = pair()
    frame, trained = candidate.frame("rollout", 1), baseline.frame("experience", 1)
    output, runner_up = frame.arrays["output"], trained.arrays["runner_up"]
    at = np.flatnonzero(trained.arrays["margin"].values > 0.1)[::5]
    output.values[at] = runner_up.values[at]
    trained.arrays["margin"].values[:] = 0.0
    if column == "runner_up":
        other = candidate.frame("experience", 1)
        other.arrays["margin"].values[:] = 0.0
        other.arrays["runner_up"].values[:] = -1
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert check(verdict, "tokens").state == "confirmed"
    assert verdict.coverage["flips_beyond_margin"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("flips", "seen"), [(2, "EQUIVALENT"), (40, "DIVERGENT")])
def test_more_ties_than_a_draw_can_have_are_none(tmp_path: Path, flips: int, seen: str) -> None:
    """Margins that were lost in both recordings would excuse any number of flips."""
    baseline, candidate = pair(native=False)
    frame, trained = candidate.frame("rollout", 1), baseline.frame("experience", 1)
    frame.arrays["output"].values[:flips] = trained.arrays["runner_up"].values[:flips]
    for recording in (baseline, candidate):
        recording.frame("experience", 1).arrays["margin"].values[:flips] = 0.0
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == seen, verdict.reason
    assert verdict.coverage["benign_flips"] == flips
    assert check(verdict, "tokens").state == ("confirmed" if seen == "DIVERGENT" else "ruled out")


@pytest.mark.slow
def test_another_batch_order_is_equal_after_alignment(tmp_path: Path) -> None:
    baseline, candidate = pair()
    for frame in (*candidate.frames("rollout"), *candidate.frames("experience"), *candidate.frames("floor")):
        order = np.random.default_rng(frame.step).permutation(len(frame.arrays["sample"]))
        frame.take(list(order))
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert verdict.coverage["compared_tokens"] == verdict.coverage["tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_noise_of_bfloat16_in_a_bfloat16_run(tmp_path: Path, seed: int) -> None:
    verdict = put(tmp_path, *pair(plan=scenario(dtype="bfloat16", seed=seed)))
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert verdict.coverage["benign_flips"] > 0
    assert verdict.parity.floor["cap"] == 0.05


@pytest.mark.slow
def test_the_same_noise_in_a_float32_run_is_a_divergence(tmp_path: Path) -> None:
    verdict = put(tmp_path, *pair(noise=0.008))
    assert verdict.verdict == "DIVERGENT"


# --- controls that must not pass ------------------------------------------------------------------


@pytest.mark.by_day(5)
@pytest.mark.slow
@pytest.mark.parametrize("side", ["baseline", "candidate"])
@pytest.mark.parametrize("share", [0.5, 0.999])
@pytest.mark.parametrize("file", ["tokens/rollout", "events/rollout", "events/trainer", "tokens/trainer"])
def test_a_torn_recording_is_inconclusive(tmp_path: Path, side: str, file: str, share: float) -> None:
    baseline, candidate = pair(native=False)
    paths = {"baseline": baseline.write(tmp_path / "baseline"), "candidate": candidate.write(tmp_path / "candidate")}
    torn = next((paths[side] / file.split("/")[0]).glob(file.split("/")[1] + "*"))
    content = torn.read_bytes()
    torn.write_bytes(content[: int(len(content) * share)])
    verdict = judge(paths["baseline"], paths["candidate"])
    assert (verdict.verdict, verdict.exit_code) == ("INCONCLUSIVE", 3), verdict.reason
    assert side in verdict.account and verdict.missing


@pytest.mark.slow
def test_half_a_recording_cut_between_frames_is_inconclusive(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    for log in candidate.logs.values():
        log.frames = [frame for frame in log.frames if frame.step < 3]
        log.events = [event for event in log.events if event[1].get("step", 0) < 3]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason
    assert "3" in verdict.account and "candidate" in verdict.account


@pytest.mark.slow
def test_a_process_that_did_not_close_is_inconclusive(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    candidate.logs["actor"].closed = False
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE"
    assert "actor" in verdict.account


def test_empty_recordings_are_inconclusive(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    baseline.logs, candidate.logs = {}, {}
    verdict = put(tmp_path, baseline, candidate)
    assert (verdict.verdict, verdict.exit_code) == ("INCONCLUSIVE", 3)


def test_recordings_without_tokens_are_inconclusive(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    for recording in (baseline, candidate):
        for log in recording.logs.values():
            log.frames = []
    assert put(tmp_path, baseline, candidate).verdict == "INCONCLUSIVE"


@pytest.mark.slow
def test_twenty_tokens_are_inconclusive(tmp_path: Path) -> None:
    plan = scenario(steps=1, prompts=2, group=2, max_tokens=5)
    verdict = put(tmp_path, *pair(plan=plan))
    assert verdict.verdict == "INCONCLUSIVE"
    assert "tokens" in verdict.account


@pytest.mark.by_day(2)
@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("experience",), ("floor",), ("sync",), ("learner",), ("rollout",)])
def test_what_was_not_recorded_was_not_passed(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    baseline, candidate = pair(native=False)
    baseline.drop(*kinds)
    candidate.drop(*kinds)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason
    assert verdict.missing


@pytest.mark.slow
def test_a_halved_train_batch_is_confounded(tmp_path: Path) -> None:
    baseline = make("baseline", scenario(train_batch_size=16), native=False)
    candidate = make("candidate", scenario(train_batch_size=8), parted=1, native=False)
    verdict = put(tmp_path, baseline, candidate)
    assert (verdict.verdict, verdict.exit_code) == ("CONFOUNDED", 3), verdict.reason
    assert [one.name for one in verdict.confounders] == ["ppo.train_batch_size"]
    assert "train_batch_size" in verdict.account


@pytest.mark.slow
def test_what_was_recorded_before_the_confounder_acted_is_judged(tmp_path: Path) -> None:
    baseline = make("baseline", scenario(train_batch_size=16), native=False)
    candidate = make("candidate", scenario(train_batch_size=8), parted=1, native=False)
    output = candidate.frame("rollout", 0).arrays["output"]
    output.values[3] = EOS + 1 if output.values[3] != EOS + 1 else EOS + 2
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert verdict.parity.first_divergence.step == 0
    assert [one.name for one in verdict.confounders] == ["ppo.train_batch_size"]


@pytest.mark.slow
def test_another_learner_environment_is_confounded_and_another_engine_environment_is_a_finding(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    for _, fields in candidate.logs["trainer"].events:
        if "packages" in fields:  # of `open` and of `environment`
            fields["packages"] = {"torch": "2.9.0", "numpy": "2.4.6", "transformers": "5.19.0"}
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "CONFOUNDED", verdict.reason
    assert any("torch" in str(confounder) for confounder in verdict.confounders), verdict.confounders
    assert any("transformers" in finding.summary for finding in verdict.findings)


@pytest.mark.slow
def test_a_learner_on_a_cpu_and_one_on_cuda_are_confounded(tmp_path: Path) -> None:
    """On the CPU there is no name of a device that could differ."""
    baseline, candidate = pair(native=False)
    for recording in (baseline, candidate):
        for log in recording.logs.values():
            for kind, fields, *_ in log.events:
                if kind == "environment":
                    fields["device"] = {"torch": "2.13.0", "cuda_built": "13.0", "cuda_initialized": False}
                    if recording is candidate:
                        fields["device"] |= {"cuda_initialized": True, "name": "H200", "capability": [9, 0]}
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "CONFOUNDED", verdict.reason
    assert "cpu against cuda" in verdict.account


@pytest.mark.slow
def test_other_prompts_and_other_initial_weights_are_confounded(tmp_path: Path) -> None:
    baseline, candidate = (
        make("baseline", scenario(seed=0), native=False),
        make("candidate", scenario(seed=1), native=False),
    )
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "CONFOUNDED", verdict.reason
    names = {one.name for one in verdict.confounders}
    assert {"seed", "data", "initial weights"} <= names


@pytest.mark.slow
def test_a_recording_against_itself_proves_nothing(tmp_path: Path) -> None:
    path = make("baseline").write(tmp_path / "run")
    verdict = judge(path, path)
    assert verdict.verdict == "INCONCLUSIVE" and verdict.fix.startswith(f"harness audit {path} ")
    assert verdict.parity is None, "nothing was compared, so nothing is ruled out"


def test_no_such_directory_is_an_error(tmp_path: Path) -> None:
    verdict = judge(tmp_path / "nowhere", make("candidate").write(tmp_path / "candidate"))
    assert (verdict.verdict, verdict.exit_code) == ("ERROR", 2)
    assert "nowhere" in verdict.account


@pytest.mark.slow
def test_native_stage_not_run_is_said_and_does_not_block(tmp_path: Path) -> None:
    verdict = put(tmp_path, *pair(native=False))
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert check(verdict, "sampling-parameter-map").state == "not tested"
    assert any("native" in item for item in verdict.missing)


@pytest.mark.slow
def test_a_native_sampler_at_another_temperature_is_a_divergence(tmp_path: Path) -> None:
    baseline, candidate = pair()
    for frame in candidate.frames("native_score"):
        frame.arrays["learner_logprob"].values *= 0.75  # colder: likelier tokens
    for frame in candidate.frames("native"):
        frame.arrays["logprob"].values *= 0.75
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert check(verdict, "native").state == "confirmed"


@pytest.mark.slow
@pytest.mark.parametrize("rollouts", [False, True])
def test_prompts_of_the_native_stage_that_the_engine_saw_otherwise(tmp_path: Path, rollouts: bool) -> None:
    """With the same cause in the rollouts it is named once."""
    baseline, candidate = pair()
    for kind in ("native", "rollout") if rollouts else ("native",):
        for frame in candidate.frames(kind):
            frame.arrays["prompt_seen"] = jagged(
                [np.concatenate([[BOS], row]) for row in frame.arrays["prompt_seen"].rows()]
            )
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert [(cause.name, cause.party) for cause in verdict.causes] == [("TOKENIZATION(double BOS)", "candidate")]
    assert verdict.parity.first_divergence.phase == ("prompt" if rollouts else "native")
    assert check(verdict, "native").state == "confirmed"
    assert check(verdict, "prompt-ids-in against prompt-ids-the-engine-saw").state == "confirmed"


@pytest.mark.by_day(2)
@pytest.mark.slow
@pytest.mark.parametrize("column", ["entropy", "varentropy", "mass_before", "outside", "processed_logprob"])
def test_a_native_stage_whose_scores_are_no_numbers_was_not_passed(tmp_path: Path, column: str) -> None:
    """NaN rejects nothing, so the sampler would pass unseen."""
    baseline, candidate = pair()
    next(candidate.frames("native_score")).arrays[column].values[3] = np.nan
    verdict = put(tmp_path, baseline, candidate)
    assert check(verdict, "native").state == "not tested"
    assert f"`{column}` of every token" in "; ".join(verdict.missing)


@pytest.mark.slow
@pytest.mark.parametrize("lacking", ["prompt_seen", "logprob", "one logprob", "request_seed"])
def test_a_native_stage_that_does_not_say_everything_was_not_passed(tmp_path: Path, lacking: str) -> None:
    """One log-probability that is not there hid whatever the others said."""
    baseline, candidate = pair()
    frame, again = next(candidate.frames("native")), next(candidate.frames("repeat"))
    if lacking == "request_seed":
        del again.fields[lacking]
    elif lacking == "one logprob":
        rows = frame.arrays["logprob"].rows()
        frame.arrays["logprob"] = jagged([*rows[:-1], rows[-1][:-1]])
    else:
        del frame.arrays[lacking]
    verdict = put(tmp_path, baseline, candidate)
    assert check(verdict, "native").state == "not tested"
    assert check(verdict, "sampling-parameter-map").state == "not tested"
    assert f"`{lacking.split()[-1]}` of" in verdict.account


@pytest.mark.slow
def test_a_floor_that_only_one_side_scored_by_prefill_was_not_passed(tmp_path: Path) -> None:
    baseline, candidate = pair()
    for frame in candidate.frames("floor", variant="prefill"):
        frame.fields["variant"] = "lost"
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE"
    assert check(verdict, "candidate-itself").state == "not tested" and "prefill" in verdict.account


@pytest.mark.slow
def test_clones_in_a_native_group_are_a_collision(tmp_path: Path) -> None:
    baseline, candidate = pair()
    frame = next(candidate.frames("native"))
    score = next(candidate.frames("native_score"))
    order = [4 * (i // 4) for i in range(len(frame.arrays["sample"]))]
    for one in (frame, score):
        sample = one.arrays["sample"].copy()
        one.take(order)
        one.arrays["sample"] = sample
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert "RNG_COLLISION" in causes(verdict)


@pytest.mark.slow
def test_rollouts_only_need_no_learner(tmp_path: Path) -> None:
    verdict = put(tmp_path, *pair(plan=scenario(train=False)))
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert check(verdict, "learner").state == "not tested"


@pytest.mark.slow
def test_a_nan_is_a_divergence_and_no_pass(tmp_path: Path) -> None:
    baseline, candidate = pair()
    candidate.frame("rollout", 2).arrays["logprob"].values[4] = np.nan
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert verdict.parity.first_divergence.step == 2
    assert causes(verdict) == ["NUMERIC_FATAL"]


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "seen"), [(None, "EQUIVALENT"), ("--cap", "EQUIVALENT"), ("float32", "DIVERGENT")])
def test_engines_in_float32_beside_a_bfloat16_learner_have_the_tolerance_of_float32(
    tmp_path: Path, asked: str | None, seen: str
) -> None:
    """verl on a CPU is so: what a learner's rounding excuses does not excuse its engines."""
    baseline, candidate = pair(plan=scenario(dtype="bfloat16"), native=False, noise=1e-6)
    for recording in (baseline, candidate):
        for event in recording.events("engine_info"):
            event["resolved"]["dtype"] = "float32" if asked else "bfloat16"
    generator = np.random.default_rng(3)
    for frame in candidate.frames("rollout"):
        frame.arrays["logprob"].values[:] += generator.uniform(-0.02, 0.02, len(frame.arrays["logprob"].values))
    verdict = put(tmp_path, baseline, candidate, **({"cap": 0.05} if asked == "--cap" else {}))
    assert verdict.verdict == seen, verdict.reason
    found = check(verdict, "logprobs")
    assert found.state == ("confirmed" if seen == "DIVERGENT" else "ruled out"), found.evidence
