"""What each mode compares, what stays unjudged and is said to, and what no mode may pass."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import Recording, check, digest, jagged, make, pair, put, scenario

from harness import cli
from harness.parity import judge
from harness.parity.subjects.precision.observed_floor import asked_again
from harness.parity.subjects.recording.observed_integrity import Minimum
from harness.parity.verdict import decided, judged_pair
from probes.format import FORMAT_VERSION
from probes.lines import decode_line, encode_events
from reports.model import SUSPICIONS
from reports.sections import answer
from scenarios.settings import Scenario

ROOT = Path(__file__).resolve().parents[3]


def free(plan: Scenario | None = None) -> tuple[Recording, Recording]:
    """Two runs that each go on from their own tokens."""
    both = pair(plan=dataclasses.replace(plan or scenario(), guided=False), native=False)
    for recording in both:
        for frame in recording.frames("rollout"):
            frame.fields["guided"] = False
    return both


def flip(baseline: Recording, candidate: Recording, step: int, row: int, at: int, margin: float) -> None:
    """In `step` the candidate takes the runner-up at position `at` of sample row `row`, and goes on differently."""
    for recording in (baseline, candidate):
        values = recording.frame("experience", step).arrays["margin"]
        values.values[values.offsets[row] + at] = margin
    truth = baseline.frame("experience", step).arrays["runner_up"]
    for frame in (candidate.frame("rollout", step), candidate.frame("experience", step)):
        name = "output" if frame.kind == "rollout" else "tokens"
        rows = [one.copy() for one in frame.arrays[name].rows()]
        rows[row][at] = truth.rows()[row][at]
        rows[row][at + 1 :] = (rows[row][at + 1 :] + 77) % 2000 + 3
        frame.arrays[name] = jagged(rows)


def long_row(recording: Recording, step: int) -> int:
    return int(np.argmax(recording.frame("rollout", step).arrays["output"].lengths))


@pytest.mark.slow
def test_a_free_run_without_flips_is_equivalent(tmp_path: Path) -> None:
    verdict = put(tmp_path, *free())
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert verdict.coverage["modes"] == ["coupled, free"]


@pytest.mark.slow
def test_a_free_run_is_judged_up_to_its_first_benign_flip_and_never_passed_beyond(tmp_path: Path) -> None:
    baseline, candidate = free()
    row = long_row(baseline, 2)
    flip(baseline, candidate, 2, row, 4, 1e-6)
    for step in range(2, 6):  # what was trained on differs, and so does everything after it
        next(candidate.events("learner", step=step)).update(actor=digest("other", step), batch=digest("batch", step))
        for source in ("learner", "received"):
            for weights in candidate.events("weights", source=source, version=step + 1):
                weights["digests"] = {name: digest(name, step, "other") for name in weights["digests"]}
    for step in range(3, 6):
        frame = candidate.frame("rollout", step)
        frame.arrays["output"].values = (frame.arrays["output"].values + 5) % 2000 + 3
        candidate.frame("experience", step).arrays["tokens"] = frame.arrays["output"].copy()
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason
    assert verdict.coverage["benign_flips"] == 1 and verdict.coverage["flips_beyond_margin"] == 0
    assert verdict.coverage["steps_not_compared"] == 3
    assert verdict.coverage["tokens_after_first_difference"] == int(
        baseline.frame("rollout", 2).arrays["output"].lengths[row] - 5
    )
    assert check(verdict, "learner").state == "not tested"
    assert any("steps 3 to 5" in item for item in verdict.missing)


@pytest.mark.slow
def test_a_free_run_with_a_flip_beyond_the_margin_diverges_there(tmp_path: Path) -> None:
    baseline, candidate = free()
    flip(baseline, candidate, 1, long_row(baseline, 1), 3, 0.5)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT"
    place = verdict.parity.first_divergence
    assert (place.step, place.position, place.field) == (1, 3, "token")
    assert verdict.coverage["flips_beyond_margin"] == 1  # what follows the flip is another sample, not more flips


def cut_at_a_flip(baseline: Recording, candidate: Recording, *, length: int | None, flipped: bool) -> None:
    """The candidate's longest sample of step 1 ends after `length` tokens for "flip", with a benign flip or without."""
    frame, row = candidate.frame("rollout", 1), long_row(candidate, 1)
    length = length if length is not None else int(frame.arrays["output"].lengths[row])
    truth = baseline.frame("experience", 1).arrays
    for name in ("output", "logprob"):
        rows = [one.copy() for one in frame.arrays[name].rows()]
        rows[row] = rows[row][:length]
        if flipped and name == "output":
            rows[row][-1] = truth["runner_up"].rows()[row][length - 1]
        frame.arrays[name] = jagged(rows)
    frame.fields["finish"][row] = "flip"
    for recording in (baseline, candidate):
        margin = recording.frame("experience", 1).arrays["margin"]
        margin.values[margin.offsets[row] + length - 1] = 1e-7


@pytest.mark.slow
@pytest.mark.parametrize("length", [0, 6, None])
def test_a_sample_that_ends_for_a_flip_without_one_is_a_difference(tmp_path: Path, length: int | None) -> None:
    baseline, candidate = pair(native=False)
    cut_at_a_flip(baseline, candidate, length=length, flipped=False)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert check(verdict, "finish-reasons" if length is None else "lengths").state == "confirmed"


@pytest.mark.slow
def test_a_flip_at_the_last_token_is_no_other_end(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    cut_at_a_flip(baseline, candidate, length=None, flipped=True)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert verdict.coverage["benign_flips"] == 1


@pytest.mark.slow
def test_a_guided_sample_that_was_cut_at_a_flip_is_not_a_length_difference(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    cut_at_a_flip(baseline, candidate, length=6, flipped=True)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert check(verdict, "lengths").state == "ruled out"
    assert any("the candidate drew another one before them" in item for item in verdict.missing)
    assert verdict.coverage["compared_tokens"] < verdict.coverage["tokens"] or verdict.coverage["compared_tokens"] > 0


@pytest.mark.slow
def test_flips_without_a_margin_are_not_judged_and_not_passed(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    for recording in (baseline, candidate):
        for frame in recording.frames("experience"):
            frame.arrays["margin"].values[:] = np.nan
    candidate.frame("rollout", 1).arrays["output"].values[3] += 1
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE" and "margin" in verdict.account
    assert verdict.coverage["benign_flips"] == 0


@pytest.mark.slow
def test_greedy_uses_the_plain_margin_whatever_the_temperature_says(tmp_path: Path) -> None:
    plan = scenario(mode="greedy", temperature=0.25)
    verdict = put(tmp_path, *pair(plan=plan, native=False))
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert verdict.parity.floor["flip margin"] == pytest.approx(2 * verdict.parity.floor["tolerance"])


@pytest.mark.slow
def test_native_mode_compares_distributions_only(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=scenario(mode="native", train=False))
    rng = np.random.default_rng(8)
    for frame in candidate.frames("rollout"):
        frame.arrays["output"].values = rng.integers(3, 2000, len(frame.arrays["output"].values))
        candidate.frame("experience", frame.step).arrays["tokens"] = frame.arrays["output"].copy()
        frame.fields["guided"] = False
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert verdict.coverage["compared_tokens"] == 0
    assert check(verdict, "tokens").state == "not tested" and check(verdict, "native").state == "ruled out"


@pytest.mark.slow
def test_native_mode_without_a_native_stage_is_inconclusive(tmp_path: Path) -> None:
    assert put(tmp_path, *pair(plan=scenario(mode="native"), native=False)).verdict == "INCONCLUSIVE"


@pytest.mark.slow
def test_learners_part_where_each_engine_drew_its_own_samples(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=scenario(mode="native"), native=False)
    for frame in candidate.frames("rollout"):
        frame.fields["guided"] = False
    next(candidate.events("learner", step=2)).update(actor="f" * 32)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason
    assert check(verdict, "learner").evidence == "the runs trained on other tokens from step 2 on"


@pytest.mark.slow
@pytest.mark.parametrize("same", [True, False])
def test_learners_that_took_equal_samples_in_another_order_round_otherwise(tmp_path: Path, same: bool) -> None:
    """Seen with verl on two coupled engines: the order of training depends on who was finished first."""
    baseline, candidate = pair(native=False)
    for recording, order in ((baseline, [0, 1, 2, 3]), (candidate, [0, 1, 2, 3] if same else [1, 0, 2, 3])):
        recording.frame("experience", 2).fields["order"] = order
    next(candidate.events("learner", step=2)).update(actor="f" * 32)
    verdict = put(tmp_path, baseline, candidate)
    assert check(verdict, "learner").state == ("confirmed" if same else "not tested")
    assert verdict.verdict == ("DIVERGENT" if same else "INCONCLUSIVE")


@pytest.mark.slow
def test_too_few_native_samples_leave_each_quantity_undecided_with_the_number_that_would_decide_it(
    tmp_path: Path,
) -> None:
    baseline, candidate = pair()
    for recording in (baseline, candidate):
        for kind in ("native", "native_score"):
            next(recording.frames(kind)).take(list(range(40)))
    verdict = put(tmp_path, baseline, candidate)
    native = check(verdict, "native")
    assert native.state == check(verdict, "sampling-parameter-map").state == "undecided"
    undecided = [one for one in native.details["quantities"].values() if one["outcome"] == "undecided"]
    assert undecided and all(one["samples"] == 40 < one["enough"] <= 320 for one in undecided)
    assert all(one["needed"] > 40 for one in undecided)
    assert verdict.verdict == "EQUIVALENT", verdict.reason


@pytest.mark.slow
def test_a_native_stage_at_other_weights_is_not_compared(tmp_path: Path) -> None:
    baseline, candidate = pair()
    for frame in candidate.frames("native"):
        frame.fields["weight_version"] = 2
    verdict = put(tmp_path, baseline, candidate)
    assert check(verdict, "native").state == "not tested"
    assert any("weights" in item for item in verdict.missing)


@pytest.mark.slow
def test_the_engines_native_log_probabilities_are_held_against_the_learner(tmp_path: Path) -> None:
    baseline, candidate = pair()
    for frame in candidate.frames("native"):
        frame.arrays["logprob"].values = frame.arrays["logprob"].values * 1.4
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT" and "native" in verdict.account


@pytest.mark.slow
def test_tempered_native_log_probabilities_are_said_and_not_compared(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=scenario(temperature=0.7))
    for info in candidate.events("engine_info"):
        info["resolved"]["logprobs_mode"] = "after temperature"
    for frame in candidate.frames("native"):
        frame.arrays["logprob"].values = frame.arrays["logprob"].values * 1.4
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert any("temperature" in item for item in verdict.missing)


@pytest.mark.slow
def test_the_native_stage_can_be_left_out(tmp_path: Path) -> None:
    verdict = put(tmp_path, *pair(), native=False)
    assert verdict.verdict == "EQUIVALENT" and "native" not in verdict.coverage["modes"]
    assert check(verdict, "native").state == "not tested"


@pytest.mark.slow
def test_a_sample_without_a_partner_is_missing_evidence_by_its_number(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    frame = candidate.frame("rollout", 2)
    lost = int(frame.arrays["sample"][7])
    frame.take([i for i in range(16) if i != 7])
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE"
    assert any(str(lost) in item for item in verdict.missing)


@pytest.mark.slow
def test_a_sample_recorded_twice_is_no_evidence(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    candidate.frame("rollout", 2).arrays["sample"][3] = candidate.frame("rollout", 2).arrays["sample"][4]
    assert put(tmp_path, baseline, candidate).verdict == "INCONCLUSIVE"


@pytest.mark.slow
@pytest.mark.parametrize("kind, column", [("rollout", "logprob"), ("experience", "actor_logprob")])
def test_one_step_without_its_log_probabilities_is_not_passed(tmp_path: Path, kind: str, column: str) -> None:
    baseline, candidate = pair(native=False)
    del candidate.frame(kind, 4).arrays[column]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason
    assert "step 4" in verdict.account


@pytest.mark.slow
@pytest.mark.parametrize("event", ["sync", "learner"])
def test_one_step_without_its_proof_is_not_passed(tmp_path: Path, event: str) -> None:
    baseline, candidate = pair(native=False)
    log = candidate.logs["trainer"]
    log.events = [one for one in log.events if not (one[0] == event and one[1]["step"] == 3)]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason


@pytest.mark.slow
def test_only_the_digest_of_the_batch_is_no_digest_of_the_learner(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    for recording in (baseline, candidate):
        for learner in recording.events("learner"):
            learner.pop("actor"), learner.pop("critic")
    assert put(tmp_path, baseline, candidate).verdict == "INCONCLUSIVE"


@pytest.mark.slow
def test_a_missing_proof_is_not_a_proof(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    next(candidate.events("sync", version=2)).pop("proof_max_delta")
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE" and "proof" in verdict.account


@pytest.mark.slow
def test_a_failed_sync_is_a_divergence(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    next(candidate.events("sync", version=2)).update(ok=False, message="must run between begin and end")
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT" and verdict.parity.first_divergence.step == 2


@pytest.mark.slow
def test_rollouts_at_another_weight_version_than_the_learner(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    candidate.frame("rollout", 3).fields["weight_version"] = 2
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT"
    assert verdict.parity.first_divergence.field == "weight_version"


@pytest.mark.slow
def test_another_frameworks_recording_without_floor_can_diverge_but_not_pass(tmp_path: Path) -> None:
    for fault in (False, True):
        baseline, candidate = pair(native=False, floor=False)
        if fault:
            candidate.frame("rollout", 0).arrays["logprob"].values[2] -= 1.0
        verdict = put(tmp_path / str(fault), baseline, candidate)
        assert verdict.verdict == ("DIVERGENT" if fault else "INCONCLUSIVE"), verdict.reason
        assert verdict.parity.floor["combined"] == "not measured"
        assert verdict.parity.floor["tolerance"] == verdict.parity.floor["cap"]
        assert any("floor" in item for item in verdict.missing)


def test_a_recording_that_says_almost_nothing(tmp_path: Path) -> None:
    """A foreign writer: token frames and their process, no scenario, no engine, no learner."""
    baseline, candidate = pair(native=False)
    for recording in (baseline, candidate):
        recording.manifest = {"backend": "other"}
        recording.logs = {"rollout": recording.logs["rollout"]}
        recording.logs["rollout"].events = recording.logs["rollout"].events[:1]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason
    assert verdict.coverage["compared_tokens"] > 500
    assert any("scenario" in item for item in verdict.missing)
    assert len(verdict.parity.checks) == 24


@pytest.mark.slow
def test_the_cap_and_the_minimum_can_be_set(tmp_path: Path) -> None:
    both = pair(native=False, noise=2e-3)
    assert put(tmp_path / "a", *both).verdict == "DIVERGENT"
    assert put(tmp_path / "b", *both, cap=0.05).verdict == "EQUIVALENT"
    quiet = pair(native=False)
    assert put(tmp_path / "c", *quiet).verdict == "EQUIVALENT"
    evidence = judged_pair(tmp_path / "c" / "baseline", tmp_path / "c" / "candidate").evidence
    assert evidence is not None
    assert decided(evidence, Minimum(tokens=10**6)).verdict.verdict == "INCONCLUSIVE"


@pytest.mark.slow
def test_a_process_that_ended_badly_is_inconclusive(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    log = candidate.logs["actor"]
    log.closed = False
    log.event("close", ok=False, reason="OutOfMemory", frames=0)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE" and "OutOfMemory" in verdict.account


@pytest.mark.slow
def test_a_torn_run_json_is_inconclusive_and_a_newer_format_an_error(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    verdict = put(tmp_path, baseline, candidate)
    file = tmp_path / "candidate" / "run.json"
    whole = file.read_text()

    file.write_text(whole[: len(whole) // 2])
    verdict = judge(tmp_path / "baseline", tmp_path / "candidate")
    assert verdict.verdict == "INCONCLUSIVE" and verdict.fix.startswith("harness record")
    assert ("fix", verdict.fix) in answer.of(verdict).parts
    file.write_text(whole.replace(f'"format_version": {FORMAT_VERSION}', '"format_version": 99'))
    verdict = judge(tmp_path / "baseline", tmp_path / "candidate")
    assert (verdict.verdict, verdict.exit_code) == ("ERROR", 2) and "newer one" in verdict.fix


def test_a_malformed_frame_is_inconclusive(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    candidate.frame("rollout", 1).arrays["cached"] = np.zeros(2, np.int64)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE" and "malformed" in verdict.account


@pytest.mark.slow
def test_a_verdict_is_the_same_twice_and_survives_json(tmp_path: Path) -> None:
    from harness.parity import judge
    from reports.model import Verdict

    put(tmp_path, *pair())
    one, two = (judge(tmp_path / "baseline", tmp_path / "candidate") for _ in range(2))
    assert one.to_json() == two.to_json()

    assert Verdict.from_dict(json.loads(one.to_json())).to_json() == one.to_json()


@pytest.mark.slow
def test_a_verdict_is_the_same_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sets have another order there."""
    put(tmp_path, *pair())
    monkeypatch.chdir(tmp_path)
    words = ["diff", "baseline", "candidate", "--format", "json"]
    cli.main(words)
    here = capsys.readouterr().out
    # Python keeps no seed that it drew itself: so one that is not the one of this process, whatever that is.
    environ = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    command = [sys.executable, "-m", "harness.cli", *words]
    there = subprocess.run(command, env={**environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert here == there.stdout != ""


@pytest.mark.slow
def test_a_replay_only_scores(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    for frame in candidate.frames("rollout"):
        frame.fields.update(mode="replay", guided=False)
    candidate.manifest |= {"sampling_mode": "replay", "replay": {"of": "x", "first_step": 0, "stop": 6}}
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert "tokens" in verdict.parity.not_applicable and check(verdict, "logprobs").state == "ruled out"
    assert "tokens equal" not in verdict.reason, "it did not draw them"


@pytest.mark.slow
@pytest.mark.parametrize("scores_only", [False, True])
def test_an_engine_that_only_scores_lacks_no_decoding(tmp_path: Path, scores_only: bool) -> None:
    baseline, candidate = pair(native=False)
    for side in (baseline, candidate):
        for log in side.logs.values():
            log.frames = [frame for frame in log.frames if frame.fields.get("variant") != "prefill"]
    if scores_only:
        for frame in candidate.frames("rollout"):
            frame.fields.update(mode="replay", guided=False)
        candidate.manifest |= {"sampling_mode": "replay", "replay": {"of": "x", "first_step": 0, "stop": 6}}
    verdict = put(tmp_path, baseline, candidate)
    lacking = [item for item in verdict.missing if item.endswith(asked_again(["prefill"]))]
    assert [item.partition(":")[0] for item in lacking] == [
        "baseline-itself",
        *["candidate-itself"] * (not scores_only),
    ]


def _mode(
    recording: Recording, *, scenario: Any = "coupled", manifest: Any = "coupled", frames: Any = "coupled"
) -> None:
    recording.manifest["scenario"]["rollout"]["mode"] = scenario
    recording.manifest["sampling_mode"] = manifest
    for frame in recording.frames("rollout"):
        frame.fields["mode"] = frames


@pytest.mark.by_day(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            {"scenario": "sampled", "manifest": "sampled", "frames": "sampled"},
            "'sampled', of run.json's scenario, cannot be judged",
        ),
        (
            {"scenario": "Coupled", "manifest": None, "frames": None},
            "'Coupled', of run.json's scenario, cannot be judged",
        ),
        ({"frames": "free"}, "'free', of the frames of its rollouts, cannot be judged"),
        ({"scenario": ["coupled"]}, "cannot be judged"),
        ({"frames": "replay"}, "is a replay by the frames of its rollouts, but run.json does not say"),
        ({"manifest": "replay"}, "is a replay by run.json's sampling_mode, but run.json does not say"),
        ({"frames": "native"}, "is coupled by run.json's scenario and native by the frames of its rollouts"),
        ({"manifest": "greedy"}, "is coupled by run.json's scenario and greedy by run.json's sampling_mode"),
        ({"scenario": None, "frames": "native"}, "is coupled by run.json's sampling_mode and native by the frames"),
    ],
)
@pytest.mark.parametrize("which", ["baseline", "candidate"])
def test_a_mode_that_is_unknown_or_said_two_ways_passes_nothing(
    tmp_path: Path, which: str, told: dict[str, Any], said: str
) -> None:
    sides = pair(plan=scenario(steps=2), native=False)
    _mode(sides[which == "candidate"], **told)
    verdict = put(tmp_path, *sides)
    assert verdict.verdict == "INCONCLUSIVE"
    assert said in verdict.account and f"the {which}" in verdict.account


@pytest.mark.slow
def test_one_frame_of_another_mode_is_enough(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    candidate.frame("rollout", 4).fields["mode"] = "native"
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE" and "native by the frames" in verdict.account


@pytest.mark.slow
def test_a_mode_that_only_one_place_says_is_enough(tmp_path: Path) -> None:
    sides = pair(plan=scenario(mode="greedy"), native=False)
    for recording in sides:
        _mode(recording, scenario=None, manifest="greedy", frames=None)
    verdict = put(tmp_path, *sides)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert verdict.coverage["modes"] == ["greedy, guided"]


@pytest.mark.slow
def test_a_replay_whose_frames_are_none_passes_nothing(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    candidate.manifest |= {"sampling_mode": "replay", "replay": {"of": "x", "first_step": 0, "stop": 6}}
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE" and "replay" in verdict.account


@pytest.mark.slow
def test_runs_are_made_of_the_rows_that_the_report_shows(tmp_path: Path) -> None:
    verdict = put(tmp_path, *pair())
    one, two = verdict.parity.runs
    assert (one.side, one.backend, two.backend) == ("baseline", "vllm", "sglang")
    assert set(one.rows) == set(two.rows)
    wanted = {"reward", "kl", "length_mean", "length_max", "padded_tokens", "real_tokens", "seconds", "rollout_seconds",
              "experience_seconds", "train_seconds", "policy_loss", "value_loss"}  # fmt: skip
    assert wanted <= set(one.series)
    assert all(len(values) == 6 for values in one.series.values())
    assert one.series["reward"] == two.series["reward"]
    assert set(verdict.parity.series) >= {"max_delta_logprob", "mean_delta_logprob", "flips", "flips_beyond_margin"}
    assert make("baseline").manifest["side"] == "baseline"


@pytest.mark.by_day(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, field",
    [
        ("engine_info", "resolved"),
        ("environment", "packages"),
        ("group", "world_size"),
        ("sampling", "canonical"),
        ("shapes", "longest"),
        ("span", "dur_ns"),
        ("step", "metrics"),
        ("sync", "mismatched"),
        ("weights", "digests"),
    ],
)
def test_a_foreign_writers_slip_is_missing_evidence_and_no_crash(tmp_path: Path, kind: str, field: str) -> None:
    baseline, candidate = pair(plan=scenario(steps=2), native=False)
    for event in candidate.events(kind):
        event[field] = "not what the format says"
    verdict = put(tmp_path, baseline, candidate)
    # Without digests nothing says that the weights arrived, without its type nothing what rounding explains, and
    # without metrics nothing what the losses were.
    stops = kind in ("weights", "engine_info", "step")
    assert verdict.verdict == ("INCONCLUSIVE" if stops else "EQUIVALENT"), verdict.reason
    assert verdict.missing


def test_a_proof_over_no_tokens_proves_nothing(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=scenario(steps=2), native=False)
    for recording in (baseline, candidate):
        for event in recording.events("sync"):
            event.update(proof_tokens=0, proof_max_delta=0.0, proof_mean_delta=0.0)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE" and "without a proof" in verdict.account


def test_engines_without_recorded_packages_leave_the_environment_untested(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=scenario(steps=2), native=False)
    for recording in (baseline, candidate):
        for kind in ("open", "environment"):
            for event in recording.events(kind):
                event.pop("packages", None)
    verdict = put(tmp_path, baseline, candidate)
    assert check(verdict, SUSPICIONS[9]).state == "not tested"


@pytest.mark.slow
@pytest.mark.parametrize("code", [1, -9, "1"])
def test_a_job_that_failed_passes_nothing_and_hides_nothing(tmp_path: Path, code: Any) -> None:
    baseline, candidate = pair(plan=scenario(steps=2), native=False)
    candidate.manifest["exit_code"] = code
    verdict = put(tmp_path, baseline, candidate)
    assert (verdict.verdict, verdict.reason) == ("INCONCLUSIVE", f"the candidate's job ended with exit code {code}")
    candidate.frame("rollout", 1).arrays["logprob"].values -= 0.5
    (tmp_path / "divergent").mkdir()
    assert put(tmp_path / "divergent", baseline, candidate).verdict == "DIVERGENT"


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, None])
def test_a_job_that_ended_well_is_judged(tmp_path: Path, code: Any) -> None:
    baseline, candidate = pair(plan=scenario(steps=2), native=False)
    candidate.manifest["exit_code"] = code
    assert put(tmp_path, baseline, candidate).verdict == "EQUIVALENT"


@pytest.mark.by_day(3)
@pytest.mark.slow
@pytest.mark.parametrize("part", ["scenario", "model", "rollout", "sampling", "engine"])
@pytest.mark.parametrize("value", [[1], "x", 5])
def test_a_part_of_run_json_that_is_no_object_is_unreadable(tmp_path: Path, part: str, value: Any) -> None:
    sides = pair(plan=scenario(steps=2), native=False)
    for recording in sides:
        (recording.manifest if part == "scenario" else recording.manifest["scenario"])[part] = value
    verdict = put(tmp_path, *sides)
    assert verdict.verdict == "INCONCLUSIVE"
    assert "the baseline's recording is unreadable" in verdict.account and part in verdict.account


@pytest.mark.slow
def test_a_close_event_that_counts_no_frames_is_torn(tmp_path: Path) -> None:
    paths = [one.write(tmp_path / name) for name, one in zip("bc", pair(plan=scenario(steps=2)), strict=True)]
    journal = next((paths[1] / "events").glob("rollout*"))
    events = [decode_line(line) for line in journal.read_bytes().splitlines(keepends=True)]
    assert events[-1]["kind"] == "close"
    journal.write_bytes(encode_events([*events[:-1], events[-1] | {"frames": "x"}]))
    verdict = judge(*paths)
    assert verdict.verdict == "INCONCLUSIVE" and "is not a number" in verdict.account


@pytest.mark.slow
def test_a_cap_of_nothing_is_no_default(tmp_path: Path) -> None:
    verdict = put(tmp_path, *pair(plan=scenario(steps=2), native=False), cap=0.0)
    assert verdict.verdict == "DIVERGENT" and verdict.parity.floor["cap"] == 0.0
    assert verdict.coverage["cap_set_by_user"] == 0.0


@pytest.mark.slow
def test_a_verdict_under_the_users_cap_says_so(tmp_path: Path) -> None:
    both = pair(plan=scenario(steps=2), native=False)
    (tmp_path / "own").mkdir()
    verdict = put(tmp_path / "own", *both, cap=1e9)
    assert verdict.verdict == "EQUIVALENT" and "1,000,000,000" in verdict.account
    (tmp_path / "default").mkdir()
    plain = put(tmp_path / "default", *both)
    assert "cap" not in plain.account and "cap_set_by_user" not in plain.coverage


@pytest.mark.by_day(3)
@pytest.mark.slow
@pytest.mark.parametrize("which", ["baseline", "candidate"])
@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("repeat", "has no `repeat` frames"),
        ("fits", "has no `fits`"),
        ("outside", "has no `outside` of every token"),
        ("processed_logprob", "has no `processed_logprob` of every token"),
    ],
)
def test_a_native_stage_that_nobody_read_rules_nothing_out(tmp_path: Path, which: str, lost: str, said: str) -> None:
    sides = pair(plan=scenario(mode="native", train=False))
    (tmp_path / "whole").mkdir()
    whole = put(tmp_path / "whole", *sides)
    assert whole.verdict == "EQUIVALENT", whole.reason
    recording = sides[which == "candidate"]
    if lost == "repeat":
        recording.drop("repeat")
    score = next(recording.frames("native_score"))
    score.fields.pop(lost, None)
    score.arrays.pop(lost, None)
    (tmp_path / "part").mkdir()
    verdict = put(tmp_path / "part", *sides)
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason
    assert f"the {which}'s native stage {said}" in verdict.account
    for name in ("native", "sampling-parameter-map"):
        assert check(whole, name).state == "ruled out"
        assert check(verdict, name).state == "not tested" and said in check(verdict, name).evidence


@pytest.mark.slow
def test_a_coupled_run_passes_without_a_native_stage_that_was_read_and_says_so(tmp_path: Path) -> None:
    sides = pair(plan=scenario(steps=2))
    for recording in sides:
        recording.drop("repeat")
    verdict = put(tmp_path, *sides)
    assert verdict.verdict == "EQUIVALENT"
    assert "`repeat`" in verdict.account
    assert check(verdict, "native").state == check(verdict, "sampling-parameter-map").state == "not tested"


def test_an_engine_inside_the_trainers_process_has_the_packages_of_that_process(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=scenario(steps=2), native=False)
    for recording in (baseline, candidate):
        for event in recording.events("open"):
            event["role"] = "trainer"
        for event in recording.events("engine_info"):
            event["role"] = "trainer"
    verdict = put(tmp_path, baseline, candidate)
    found = check(verdict, SUSPICIONS[9])
    assert found.state == "confirmed" and "sglang" in found.evidence  # of these two engines


@pytest.mark.slow
def test_a_native_stage_that_was_sent_other_prompts_says_nothing_of_sampling_parameters(tmp_path: Path) -> None:
    baseline, candidate = pair()
    for frame in candidate.frames("native"):
        rows = frame.arrays["prompt_seen"].rows()
        frame.arrays["prompt_seen"] = jagged([np.concatenate([row[:1], row]) for row in rows])
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT"
    assert check(verdict, "sampling-parameter-map").state == "not tested"
