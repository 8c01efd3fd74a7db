"""The lifted stage: what it confirms, what it rules out, when nothing is known, and what vanishes in float32."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recordings
from cause_keys import of
from recordings import FrameRecord, Recording, causes, check, pair, put, scenario

from harness.parity import judge
from harness.parity.verdict import FurtherEvidence, judged_pair
from probes.format import write_manifest
from reports.model import Verdict
from scenarios import memory_fit
from scenarios.lifted import FOLDER, lifted, lifts, steps
from scenarios.settings import Lifted, Rollout, Sampling, Scenario

CHECK = "lifted-precision"
HALF = dataclasses.replace(scenario(steps=2, prompts=8, dtype="bfloat16", train=False), lifted=Lifted(samples=32))


def stage(side: str, plan: Scenario = HALF, **options: Any) -> Recording:
    return recordings.stage(side, plan, **options)


def stages(plan: Scenario = HALF) -> tuple[Recording, Recording]:
    return stage("baseline", plan), stage("candidate", plan)


def with_stages(
    folder: Path, runs: tuple[Recording, Recording], of_runs: tuple[Recording | None, Recording | None], **options: Any
) -> Verdict:
    for side, one in zip(("baseline", "candidate"), of_runs, strict=True):
        if one is not None:
            one.write(folder / side / FOLDER)
    return put(folder, *runs, native=False, **options)


def biased(recording: Recording, by: float, first: int = 0) -> Recording:
    """What the engine reports is off by so many nats, in its rollouts from step `first` on and in its floor alike."""
    for frame in [*recording.frames("rollout"), *recording.frames("floor")]:
        if frame.step >= first or frame.kind == "floor":
            frame.arrays["logprob"].values = frame.arrays["logprob"].values + by  # type: ignore[union-attr]
    return recording


def rounded(recording: Recording, mean: float) -> Recording:
    """The learner's own rounding was recorded: so many nats everywhere."""
    frame = recording.frame("floor", 0)
    logprob = frame.arrays["logprob"].copy()
    logprob.values = np.full(len(logprob.values), mean)  # type: ignore[union-attr]
    arrays = {"sample": frame.arrays["sample"], "rounding": logprob}
    recording.logs["trainer"].frames.append(FrameRecord("floor", 0, {"variant": "rounding"}, arrays))
    return recording


@pytest.mark.slow
def test_float32_has_nothing_to_lift_and_says_nothing_of_it(tmp_path: Path) -> None:
    verdict = put(tmp_path, *pair(native=False), native=False)
    assert verdict.parity is not None and CHECK not in [one.name for one in verdict.parity.checks]
    assert "lifted" not in verdict.coverage and "float32" not in verdict.account


@pytest.mark.slow
def test_half_precision_without_a_stage_is_not_tested_and_said(tmp_path: Path) -> None:
    verdict = with_stages(tmp_path, pair(plan=HALF, native=False), (None, None))
    assert check(verdict, CHECK).state == "not tested" and verdict.coverage["lifted"] == "not run"
    assert any(item.startswith(CHECK) for item in verdict.missing)
    assert verdict.verdict == "EQUIVALENT" and "float32: not tested" in verdict.account


@pytest.mark.slow
def test_a_sound_stage_rules_out_and_says_what_vanishes(tmp_path: Path) -> None:
    verdict = with_stages(tmp_path, pair(plan=HALF, native=False), stages())
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    found = check(verdict, CHECK)
    assert found.state == "ruled out" and found.details["largest"] < 1e-5 < found.details["tolerance"] < 1e-4
    assert "float32" in verdict.account
    assert "lifted" in verdict.coverage["modes"] and verdict.coverage["lifted"]["compared_tokens"] > 200
    finding = next(one for one in verdict.findings if one.name == "lifted precision")
    assert "arithmetic of the format" in finding.summary and "another code path" in finding.summary


@pytest.mark.slow
def test_what_hides_in_bfloat16_is_confirmed_in_float32(tmp_path: Path) -> None:
    """1e-3 nats on every token: a fiftieth of what bfloat16 may differ by, ten times what float32 may."""
    runs = pair(plan=HALF, native=False)
    verdict = with_stages(tmp_path / "1", (runs[0], biased(runs[1], 1e-3)), (None, None))
    assert verdict.verdict == "EQUIVALENT"  # the control: bfloat16 alone does not see it
    runs = pair(plan=HALF, native=False)
    of_runs = stage("baseline"), biased(stage("candidate"), 1e-3)
    verdict = with_stages(tmp_path / "2", (runs[0], biased(runs[1], 1e-3)), of_runs)
    assert verdict.verdict == "DIVERGENT" and check(verdict, CHECK).state == "confirmed"
    assert [(one.name, one.party, one.details["stage"]) for one in verdict.causes] == [
        ("UNEXPLAINED", "candidate", "lifted")
    ]
    assert verdict.parity is not None and verdict.parity.first_divergence is not None
    assert verdict.parity.first_divergence.phase == "lifted"
    assert "in the lifted stage" in verdict.evidence[0]


def shifted(recording: Recording) -> Recording:
    for frame in recording.frames("rollout"):
        rows = [np.roll(row, 1) for row in frame.arrays["logprob"].rows()]  # type: ignore[union-attr]
        frame.arrays["logprob"].values = np.concatenate(rows)  # type: ignore[union-attr]
    return recording


@pytest.mark.slow
def test_a_cause_that_both_show_is_named_once(tmp_path: Path) -> None:
    runs = pair(plan=HALF, native=False)
    of_runs = stage("baseline"), shifted(stage("candidate"))
    verdict = with_stages(tmp_path, (runs[0], shifted(runs[1])), of_runs)
    assert [(one.name, one.party) for one in verdict.causes] == [("ALIGNMENT", "candidate")], verdict.causes


@pytest.mark.slow
def test_a_cause_of_the_stage_alone_says_where_it_was_seen(tmp_path: Path) -> None:
    of_runs = stage("baseline"), shifted(stage("candidate"))
    verdict = with_stages(tmp_path, pair(plan=HALF, native=False), of_runs)
    assert [(one.name, one.party) for one in verdict.causes] == [("ALIGNMENT", "candidate")]
    assert "float32" in verdict.causes[0].evidence


@pytest.mark.slow
def test_the_verdict_that_interventions_made_of_the_stage_counts(tmp_path: Path) -> None:
    of_runs = stage("baseline"), biased(stage("candidate"), 1e-3)
    with_stages(tmp_path, pair(plan=HALF, native=False), of_runs)
    folders = [tmp_path / side for side in ("baseline", "candidate")]
    own = judged_pair(*(folder / FOLDER for folder in folders), native=False).verdict
    proven = dataclasses.replace(own, causes=[of("STALE_DERIVED", "candidate", "kept")])
    verdict = judged_pair(*folders, native=False, further=FurtherEvidence(lifted=proven)).verdict
    assert causes(verdict) == ["STALE_DERIVED"] and verdict.verdict == "DIVERGENT"


# --- when nothing is known --------------------------------------------------------------------------


def untested(verdict: Verdict, ends: str = "INCONCLUSIVE") -> str:
    """Why the stage was not tested; a run of which no side recorded one is judged as without it."""
    found = check(verdict, CHECK)
    assert (verdict.verdict, found.state) == (ends, "not tested"), (verdict.reason, found)
    untested = verdict.reason.endswith(f"tokens equal, but {CHECK} was not tested")
    assert ends == "EQUIVALENT" or (untested and verdict.evidence == [found.evidence])
    assert found.evidence in " ".join(verdict.missing)
    return found.evidence


@pytest.mark.slow
def test_a_stage_that_did_not_fit_says_its_sentence(tmp_path: Path) -> None:
    for side in ("baseline", "candidate"):
        write_manifest(tmp_path / side / FOLDER, {"lifted": {"held": "bfloat16", "skipped": "no room: --lifted"}})
    verdict = with_stages(tmp_path, pair(plan=HALF, native=False), (None, None))
    assert "no room: --lifted" in untested(verdict, "EQUIVALENT")


@pytest.mark.slow
def test_a_stage_that_broke_off_is_not_one_that_never_was(tmp_path: Path) -> None:
    """The reason is written over the run.json of a stage whose other engine died; what the first recorded stays."""
    one, _ = stages()
    one.manifest["lifted"]["skipped"] = "an engine died"
    write_manifest(tmp_path / "candidate" / FOLDER, {"lifted": {"held": "bfloat16", "skipped": "an engine died"}})
    assert "an engine died" in untested(with_stages(tmp_path, pair(plan=HALF, native=False), (one, None)))


def test_a_stage_of_one_side_proves_nothing(tmp_path: Path) -> None:
    verdict = with_stages(tmp_path, pair(plan=HALF, native=False), (stage("baseline"), None))
    assert "of the candidate" in untested(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["torn", "no run.json", "copied", "no log-probabilities"])
def test_damage_hides_no_fault_that_the_stage_shows(damage: str, tmp_path: Path) -> None:
    one, two = stage("baseline"), biased(stage("candidate"), 0.02)
    for frame in two.frames("rollout"):
        if damage == "no log-probabilities":
            del frame.arrays["logprob"]
    recordings = pair(plan=HALF, native=False)
    for recording in recordings:  # an index would miss what is damaged below
        recording.manifest["index"] = False
    runs = [recording.write(tmp_path / recording.manifest["side"]) for recording in recordings]
    folders = [own.write(run / FOLDER) for own, run in zip((one, two), runs, strict=True)]
    tokens = next((folders[1] / "tokens").glob("rollout*"))
    if damage == "torn":
        tokens.write_bytes(tokens.read_bytes()[:-1000])
    elif damage == "no run.json":
        (folders[1] / "run.json").unlink()
    elif damage == "copied":
        shutil.rmtree(folders[1])
        shutil.copytree(folders[0], folders[1])
    verdict = judge(*runs)
    untested(verdict)


@pytest.mark.slow
def test_other_weights_than_the_runs_prove_nothing(tmp_path: Path) -> None:
    one, two = stages()
    for event in [*one.events("weights"), *two.events("weights")]:
        event["digests"] = dict.fromkeys(event["digests"], "another")
    assert "other weights than the baseline ended with" in untested(
        with_stages(tmp_path / "other", pair(plan=HALF, native=False), (one, two))
    )
    runs = pair(plan=HALF, native=False)
    for recording in runs:
        recording.drop("weights")
    found = check(with_stages(tmp_path / "unknown", runs, stages()), CHECK)
    assert found.state == "not tested" and "no digests" in found.evidence


@pytest.mark.slow
@pytest.mark.parametrize("told", ["bfloat16", None])
def test_an_engine_that_was_not_lifted_proves_nothing(told: str | None, tmp_path: Path) -> None:
    one, two = stages()
    for event in two.events("engine_info"):
        event["resolved"] = {key: value for key, value in event["resolved"].items() if key != "dtype"}
        event["resolved"] |= {"dtype": told} if told else {}
    verdict = with_stages(tmp_path, pair(plan=HALF, native=False), (one, two))
    found = check(verdict, CHECK)
    assert found.state == "not tested" and "candidate" in found.evidence, found
    assert verdict.verdict == "INCONCLUSIVE"


@pytest.mark.slow
def test_a_torn_stage_and_one_without_its_steps_prove_nothing(tmp_path: Path) -> None:
    one, two = stages()
    two.logs["rollout"].closed = False
    assert "INCONCLUSIVE" in untested(with_stages(tmp_path / "torn", pair(plan=HALF, native=False), (one, two)))
    one, two = stages()
    window = steps(HALF)
    for recording in (one, two):
        recording.manifest["lifted"]["stop"] = window.stop + 1
    verdict = with_stages(tmp_path / "short", pair(plan=HALF, native=False), (one, two))
    assert f"step {window.stop}" in untested(verdict)


@pytest.mark.slow
@pytest.mark.parametrize(("said", "by", "state"), [
    ({"device": "cpu"}, 5e-3, "confirmed"), ({"device": "cuda"}, 5e-3, "not tested"),
    ({"device": "cuda"}, 0.1, "confirmed"), ({"device": "cuda", "tf32": False}, 5e-3, "confirmed"),
])  # fmt: skip
def test_what_tensor_cores_may_have_made_is_not_blamed(
    said: dict[str, Any], by: float, state: str, tmp_path: Path
) -> None:
    one, two = stage("baseline"), biased(stage("candidate"), by)
    for recording in (one, two):
        for event in recording.events("engine_info"):
            event["resolved"] = {**event["resolved"], **said}
    verdict = with_stages(tmp_path, pair(plan=HALF, native=False), (one, two))
    found = check(verdict, CHECK)
    assert found.state == state, found
    assert verdict.verdict == ("EQUIVALENT" if state == "not tested" else "DIVERGENT")  # a limit, and no damage
    assert ("TF32" in found.evidence) == (state == "not tested")


# --- what vanishes ----------------------------------------------------------------------------------


def coarse(sd: float = 0.04) -> tuple[Recording, Recording]:
    """A candidate with noise beyond what is tolerated in bfloat16, and no other tokens."""
    one, two = pair(plan=HALF, native=False)
    own = np.random.default_rng(3)
    for frame, same in zip(two.frames("rollout"), one.frames("rollout"), strict=True):
        logprob = frame.arrays["logprob"]
        frame.arrays["output"] = same.arrays["output"].copy()
        truth = same.arrays["logprob"].values  # type: ignore[union-attr]
        logprob.values = truth + own.normal(0, sd, len(logprob.values))  # type: ignore[union-attr]
    return one, two


@pytest.mark.slow
def test_what_vanishes_is_named_arithmetic_of_the_format_and_stays_divergent(tmp_path: Path) -> None:
    one, two = coarse()
    verdict = with_stages(tmp_path, (one, rounded(two, 0.02)), stages())
    # The baseline's learner says nothing of its rounding: its side of the comparison is not excused.
    assert causes(verdict) == ["UNEXPLAINED"]
    verdict = with_stages(tmp_path / "both", tuple(rounded(run, 0.02) for run in coarse()), stages())  # type: ignore[arg-type]
    assert verdict.verdict == "DIVERGENT"
    assert [(cause.name, cause.party) for cause in verdict.causes] == [("ARITHMETIC(bfloat16)", "candidate")]
    found = verdict.causes[0]
    assert not found.proofs and "kernel that only bfloat16 runs" in found.evidence  # its rival is not excluded


@pytest.mark.slow
def test_more_than_rounding_is_not_called_rounding(tmp_path: Path) -> None:
    verdict = with_stages(tmp_path, tuple(rounded(run, 0.005) for run in coarse()), stages())  # type: ignore[arg-type]
    assert causes(verdict) == ["UNEXPLAINED"]
    assert "the stage's fresh engines do not have" in verdict.causes[0].evidence


@pytest.mark.slow
def test_nothing_vanishes_without_a_stage_that_agrees(tmp_path: Path) -> None:
    runs = tuple(rounded(run, 0.02) for run in coarse())
    verdict = with_stages(tmp_path / "none", runs, (None, None))  # type: ignore[arg-type]
    assert causes(verdict) == ["UNEXPLAINED"]
    differing = stage("baseline"), biased(stage("candidate"), 1e-3)
    verdict = with_stages(tmp_path / "differs", runs, differing)  # type: ignore[arg-type]
    assert set(causes(verdict)) == {"UNEXPLAINED"} and len(verdict.causes) == 2
    assert any("is no arithmetic of bfloat16" in one.evidence for one in verdict.causes)


# --- what differs in both -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("stage_names", ["this engine", "the other engine", "nothing"])
def test_what_the_stage_names_of_an_engine_explains_the_same_kinds_of_it_in_half_precision(
    stage_names: str, tmp_path: Path
) -> None:
    """Scaled log-probabilities are proven in the stage; what is left of that engine in bfloat16 is no second fault."""
    one, two = tuple(rounded(run, 0.02) for run in coarse())
    at = {"this engine": "candidate", "the other engine": "baseline"}.get(stage_names)
    differing = {side: stage(side) for side in ("baseline", "candidate")}
    for frame in differing[at].frames("rollout") if at else []:
        frame.arrays["logprob"].values = 1.05 * frame.arrays["logprob"].values  # type: ignore[union-attr]
    verdict = with_stages(tmp_path, (one, two), (differing["baseline"], differing["candidate"]))
    names = sorted({cause.name for cause in verdict.causes})
    if at == "candidate":
        assert names == ["LOGPROB_SEMANTICS(scaled)"], verdict.causes
    elif at == "baseline":
        assert names == ["LOGPROB_SEMANTICS(scaled)", "UNEXPLAINED"]
    else:
        assert names == ["ARITHMETIC(bfloat16)"]


# --- the stage's scenario, and its memory -----------------------------------------------------------


def test_the_stages_scenario_is_short_and_holds_the_runs_weights() -> None:
    run = Scenario(
        steps=8,
        rollout=Rollout(prompts_per_step=64, samples_per_prompt=16),
        sampling=Sampling(max_tokens=4096, min_tokens=100),
        model=dataclasses.replace(HALF.model, dtype="float16"),
    )
    own = lifted(run)
    assert (own.model.dtype, own.model.held, own.train) == ("float32", "float16", False)
    assert steps(run) == range(8, 10) and steps(dataclasses.replace(run, train=False)) == range(8, 9)
    assert own.rollout.prompts_per_step * own.rollout.samples_per_prompt == run.lifted.samples
    assert own.sampling.max_tokens == 100  # never fewer than what every sample must have
    assert Scenario.from_json(own.to_json()) == own
    assert lifts(run) and not lifts(own) and not lifts(Scenario())
    assert not lifts(dataclasses.replace(run, lifted=Lifted(samples=0)))
    assert not lifts(dataclasses.replace(run, rollout=Rollout(mode="native")))


GIB = 2**30


@pytest.mark.parametrize(("options", "fits"), [
    ({"device": "cpu", "free": 15 * GIB, "room": None}, True),  # 6 of the learner and 4 of each engine
    ({"device": "cpu", "free": 13 * GIB, "room": None}, False),
    ({"device": "cpu", "free": None, "room": None}, True),
    ({"device": "cuda", "free": 1, "room": 9 * GIB}, True),
    ({"device": "cuda", "free": 1, "room": 7 * GIB}, False),
    ({"device": "cuda", "free": 1, "room": 7 * GIB, "workers": 2}, True),
])  # fmt: skip
def test_float32_weights_must_fit(options: dict[str, Any], fits: bool) -> None:
    room = memory_fit.Room(options["device"], options["free"], options["room"])
    said = memory_fit.no_room(GIB, room, engines=2, share=0.5, workers=options.get("workers", 1))
    assert (said == "") is fits
    assert fits or said.endswith("--lifted runs it all the same")


def test_free_memory_is_known_here() -> None:
    found = memory_fit.free()
    assert found is None or found > 0
