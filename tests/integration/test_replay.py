"""Replay: recorded rollouts drive the training again, another engine scores them, from any checkpoint on."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from local_cluster import LocalCluster
from ppo_support import random_models
from recordings import check

from harness import cli, envs
from harness.cluster.experiment import Experiment
from harness.cluster.launch import Cluster
from harness.cluster.side import Side
from harness.errors import BadInput
from harness.parity import judge
from harness.parity.runs import run_engines
from harness.parity.runs.replay import run_replay
from harness.parity.runs.source import source
from probes.format import Run, write_manifest
from reports.model import Finding, Verdict
from scenarios.planted.differences.fault import Fault
from scenarios.settings import PPO, Model, Rollout, Sampling, Scenario

STEPS = 4


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    torch.set_num_threads(1)
    return random_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def plan(models: dict[str, str]) -> Scenario:
    return Scenario(
        steps=STEPS,
        model=Model(path=models["policy"], reward=models["reward"]),
        rollout=Rollout(prompts_per_step=4, samples_per_prompt=4),
        sampling=Sampling(max_tokens=10),
        ppo=PPO(actor_lr=3e-3, critic_lr=3e-3, train_batch_size=8, micro_batch_size=4, checkpoint_every=2),
    )


def record(folder: Path, plan: Scenario, fault: Fault | None = None, guide: Path | None = None) -> Path:
    """A run of the hf engine, with a fault or none."""
    side = Side(
        "candidate" if guide else "run", "hf", envs.resolve("hf"), plan, folder, plants=(fault or Fault()).plants()
    )
    with LocalCluster() as cluster:
        experiment = Experiment(cluster, [side], progress=lambda event: None, device="cpu")  # type: ignore[arg-type]
        experiment.begin()
        experiment.record(side, guide=guide)
    return folder


@pytest.fixture(scope="module")
def recorded(plan: Scenario, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recorded") / "run", plan)


pytestmark = pytest.mark.usefixtures("without_charts")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(run_engines, "Cluster", LocalCluster)
    monkeypatch.chdir(tmp_path)
    yield


def replayed(run: Path, **options: Any) -> Verdict:
    return run_replay(run, out="replay", device="cpu", stall_s=0, **options)


def finding(verdict: Verdict, name: str) -> Finding:
    return next(one for one in verdict.findings if one.name == name)


def learners(run: Path) -> dict[int, tuple[str, str, str]]:
    return {e["step"]: (e["actor"], e["critic"], e["batch"]) for e in Run(run).events(kind="learner")}


def test_a_sound_run_replays_bit_for_bit(recorded: Path) -> None:
    verdict = replayed(recorded)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert learners(Path("replay")) == learners(recorded)
    assert finding(verdict, "replay: training half").effect == "agrees"
    assert finding(verdict, "replay: rollout half").effect == "agrees"
    assert check(verdict, "logprobs").state == "ruled out" and "tokens" in verdict.parity.not_applicable
    assert (verdict.headline, verdict.strict.exit_code) == ("EQUIVALENT", 0), verdict.reservations
    frames = list(Run("replay").frames(kind="rollout"))
    assert {frame.fields["mode"] for frame in frames} == {"replay"}
    ours, theirs = (list(Run(one).frames(kind="rollout")) for one in ("replay", recorded))
    assert [f.arrays["output"].rows() for f in ours] == [f.arrays["output"].rows() for f in theirs]
    again = judge(recorded, "replay", native=False)  # run.json alone says that it is a replay, and of which steps
    assert (again.verdict, again.coverage["steps"]) == ("EQUIVALENT", STEPS)
    assert json.loads(Path("replay/verdict.json").read_text())["verdict"] == "EQUIVALENT"


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    ("asked", "first", "told"), [(3, 2, "from the checkpoint after 2 steps"), (2, 2, ""), (1, 0, "from step 0")]
)
def test_it_begins_at_the_last_checkpoint_and_arrives_at_the_same_weights(
    recorded: Path, asked: int, first: int, told: str
) -> None:
    verdict = replayed(recorded, from_step=asked)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert learners(Path("replay")) == {k: v for k, v in learners(recorded).items() if k >= first}
    assert verdict.coverage["steps"] == STEPS - first
    assert [one.summary for one in verdict.findings if one.name == "replay: start"] == [
        f"step {asked} was asked for; the run saved no later checkpoint before it, so the replay begins {told}"
    ] * bool(told)
    last = [Path(run) / f"checkpoints/step-{STEPS}/policy/model.safetensors" for run in (recorded, "replay")]
    assert last[0].read_bytes() == last[1].read_bytes()


@pytest.mark.night
def test_a_bundle_replays_unless_its_prompts_are_hashed(recorded: Path, tmp_path: Path) -> None:
    whole, hashed = tmp_path / "whole.zip", tmp_path / "hashed.zip"
    assert cli.main(["bundle", str(recorded), "--out", str(whole)]) == 0
    assert cli.main(["bundle", str(recorded), "--out", str(hashed), "--hash-prompts"]) == 0
    verdict = replayed(whole)
    assert (verdict.verdict, verdict.coverage["steps"]) == ("EQUIVALENT", STEPS), verdict.reason
    with pytest.raises(BadInput, match="were hashed"):
        replayed(hashed)


def test_it_ends_where_it_is_told_to(recorded: Path) -> None:
    verdict = replayed(recorded, steps=3)
    assert (verdict.verdict, verdict.coverage["steps"]) == ("EQUIVALENT", 3), verdict.reason
    assert sorted(learners(Path("replay"))) == [0, 1, 2]


@pytest.mark.parametrize(
    "plant", [{"scale": 0.9, "first_step": 2}, pytest.param({"shift": 1, "first_step": 2}, marks=pytest.mark.night)]
)
def test_a_faulty_trainer_is_told_from_faulty_rollouts(plan: Scenario, tmp_path: Path, plant: dict[str, Any]) -> None:
    faulty = record(tmp_path / "run", plan, Fault("trainer", trainer=plant))
    events: list[Any] = []
    verdict = replayed(faulty, progress=events.append)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert {cause.party for cause in verdict.causes} == {"trainer"}, verdict.causes
    assert verdict.parity.first_divergence.step == 2
    assert finding(verdict, "replay: training half").effect == "parts"
    assert finding(verdict, "replay: rollout half").effect == "agrees"
    told = [event.message for event in events if "not the recorded one" in event.message]
    assert told == ["after the update of step 2 the learner is not the recorded one: batch, actor, critic"]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault("late", engine={"shift": 1}), marks=pytest.mark.night),
        pytest.param(Fault("noise", engine={"noise": 1e-2}), marks=pytest.mark.night),
        Fault("stale", trainer={"omit_tensors": {2: ("model.layers.0.mlp.down_proj.weight",)}}),
        pytest.param(Fault("hot", mapping={"edits": {"sampling": {"temperature": 0.8}}}), marks=pytest.mark.night),
    ],
    ids=lambda fault: fault.name,
)
def test_faulty_rollouts_are_told_from_a_faulty_trainer(plan: Scenario, tmp_path: Path, fault: Fault) -> None:
    faulty = record(tmp_path / "run", plan, fault)
    verdict = replayed(faulty)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert learners(Path("replay")) == learners(faulty)
    assert check(verdict, "learner").state == "ruled out"
    assert finding(verdict, "replay: training half").effect == "agrees"
    assert finding(verdict, "replay: rollout half").effect == "parts"
    assert verdict.causes and not {"trainer", "candidate"} & {cause.party for cause in verdict.causes}, verdict.causes


@pytest.mark.night
def test_either_side_of_a_guided_pair_replays(plan: Scenario, recorded: Path, tmp_path: Path) -> None:
    pair = tmp_path / "pair"
    shutil.copytree(recorded, pair / "baseline")
    hot = Fault("hot", mapping={"edits": {"sampling": {"temperature": 0.8}}})  # so that it flips
    record(pair / "candidate", plan, hot, guide=pair / "baseline")
    with pytest.raises(BadInput, match="it holds the runs baseline and candidate") as refused:
        replayed(pair)
    assert refused.value.fix == str(pair / "baseline")  # in the place of what was typed
    verdict = replayed(pair / "candidate")
    assert learners(Path("replay")) == learners(recorded)  # the guide's tokens drove both
    assert check(verdict, "learner").state == "ruled out" and check(verdict, "logprobs").state == "ruled out"


# --- what cannot be replayed -------------------------------------------------------------------------


def copy(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "copy"))


def test_prompts_that_changed_since_are_refused(
    models: dict[str, str], plan: Scenario, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        "".join(json.dumps({"prompt": f"the cat {word}"}) + "\n" for word in ("runs", "sits", "eats", "is"))
    )
    own = dataclasses.replace(plan, steps=1, prompts=dataclasses.replace(plan.prompts, path=str(file)))
    run = record(tmp_path / "run", own)
    file.write_text(file.read_text().replace("eats", "drinks"))
    assert cli.main(["replay", str(run), "--out", "replay", "--device", "cpu", "--stall", "0"]) == 2
    assert "the prompts, or the tokenizer, have changed since" in capsys.readouterr().err


def test_a_checkpoint_that_does_not_belong_to_the_run_is_refused(
    plan: Scenario, recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(run: Path) -> str:
        shutil.rmtree("replay", ignore_errors=True)
        options = ["--from-step", "2", "--out", "replay", "--device", "cpu", "--stall", "0"]
        assert cli.main(["replay", str(run), *options]) == 2
        return capsys.readouterr().err

    altered = copy(recorded, tmp_path / "altered")
    with open(altered / "checkpoints/step-2/learner.pt", "r+b") as stream:
        stream.seek(1000)
        stream.write(b"\xff\xff")
    assert "learner.pt: has changed since the checkpoint was written" in said(altered)
    other = record(tmp_path / "other", dataclasses.replace(plan, steps=2, seed=7))
    foreign = copy(recorded, tmp_path / "foreign")
    shutil.rmtree(foreign / "checkpoints/step-2")
    shutil.copytree(other / "checkpoints/step-2", foreign / "checkpoints/step-2")
    assert "was made by another scenario: seed differ" in said(foreign)
    manifest = foreign / "checkpoints/step-2/manifest.json"
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(told | {"scenario": told["scenario"] | {"seed": plan.seed}}))
    assert "does not belong to the run" in said(foreign)  # its weights are not those that the run recorded


def test_a_run_that_was_cut_short_replays_as_far_as_it_reaches_and_is_no_pass(recorded: Path, tmp_path: Path) -> None:
    short = copy(recorded, tmp_path)
    for file in (short / "tokens").glob("rollout-*.bin"):
        with open(file, "r+b") as stream:
            stream.truncate(file.stat().st_size * 2 // 5)
    whole = source(short).steps
    assert 0 < whole < STEPS
    verdict = replayed(short)
    assert (verdict.verdict, verdict.exit_code) == ("INCONCLUSIVE", 3) and "torn" in verdict.account
    assert learners(Path("replay")) == {k: v for k, v in learners(recorded).items() if k < whole}
    assert finding(verdict, "replay: training half").effect == "agrees"


def test_a_replay_without_its_frames_is_no_pass(recorded: Path, tmp_path: Path) -> None:
    replayed(recorded, from_step=2)
    run = Path("replay")
    for file in (run / "tokens").glob("rollout-*.bin"):
        file.unlink()
    verdict = judge(recorded, run, native=False)
    assert verdict.verdict == "INCONCLUSIVE"
    write_manifest(run, {k: v for k, v in Run(run, strict=False).manifest.items() if k != "replay"})
    assert judge(recorded, run, native=False).verdict == "INCONCLUSIVE"


@pytest.mark.night
@pytest.mark.engines
@pytest.mark.timeout(2400)
def test_a_real_engine_scores_what_another_drew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import harness

    monkeypatch.setattr(run_engines, "Cluster", Cluster)
    overrides = ["ppo.checkpoint_every=1", "rollout.prompts_per_step=4"]
    run = harness.run_scenario("ppo-tiny", backend="hf", overrides=overrides, steps=2, out=tmp_path / "run")
    verdict = run_replay(run, backend="sglang", from_step=1, out=tmp_path / "replay")
    assert (verdict.verdict, verdict.coverage["steps"]) == ("EQUIVALENT", 1), verdict.reason
    assert learners(tmp_path / "replay") == {1: learners(run)[1]}
    assert verdict.coverage["compared_tokens"] >= 200
    last = [Path(one) / "checkpoints/step-2/policy/model.safetensors" for one in (run, tmp_path / "replay")]
    assert last[0].read_bytes() == last[1].read_bytes()
