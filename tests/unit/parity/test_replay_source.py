"""What a replay refuses before anything starts: each in one sentence, with nothing left behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from recordings import make, put, scenario

from harness import cli
from harness.errors import BadInput
from harness.parity.runs.source import source
from harness.parity.subjects.recording.observed_replay import ROLLOUTS, TRAINING, halves, replayed
from harness.recordings.store import Recording
from probes.format import FormatError, encode_manifest, read_manifest
from reports.model import Verdict
from reports.sections.parity import suspicions


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sigterm: None) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A whole recording whose models and prompts are the built-in ones."""
    recording = make("baseline", scenario(steps=4), native=False)
    recording.manifest["scenario"]["model"]["path"] = "builtin:tiny"
    return recording.write(tmp_path / "run")


def edited(run: Path, **fields: Any) -> Path:
    manifest = read_manifest(run) | fields
    kept = {key: value for key, value in manifest.items() if value is not None}
    (run / "run.json").write_bytes(encode_manifest(kept))
    return run


@pytest.mark.parametrize(("version", "fix"), [(99, "a newer one"), (None, "record the run again")])
def test_a_run_that_cannot_be_read_is_answered_with_what_helps_it(run: Path, version: int | None, fix: str) -> None:
    with pytest.raises(BadInput) as refusal:
        source(edited(run, format_version=version))
    assert fix in str(refusal.value.fix)


def refused(capsys: pytest.CaptureFixture[str], run: Path, *options: str) -> str:
    assert cli.main(["replay", str(run), "--out", "replay", "--stall", "0", *options]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("harness: ")]
    assert len(told) == 1 and "a defect of the harness" not in told[0]
    assert not Path("replay").exists()
    return told[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"format_version": 99}, "format_version is 99"),
        ({"format_version": None}, "no format_version"),
        ({"scenario": None}, "has no scenario"),
        ({"scenario": {"steps": 4, "colour": 1}}, "unknown key colour"),
        ({"scenario": {"steps": 4, "model": {"path": "/no/model"}}}, "model.path = '/no/model': no such directory"),
        ({"scenario": {"steps": 4, "prompts": {"path": "gone.jsonl"}}}, "gone.jsonl"),
        ({"replay": {"first_step": 2, "of": "x"}}, "itself a replay that begins at step 2"),
    ],
)
def test_a_manifest_that_cannot_be_replayed(
    run: Path, fields: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in refused(capsys, edited(run, **fields))


@pytest.mark.slow
def test_what_is_no_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing does not exist" in refused(capsys, tmp_path / "nothing")
    pair = put_aside(run, tmp_path / "pair" / "baseline").parent
    assert "baseline" in refused(capsys, pair)
    assert cli.main(["diff", str(pair), str(run)]) == 2
    assert "baseline" in capsys.readouterr().err
    assert cli.main(["diff", str(pair / "baseline"), str(pair / "baseline"), "--cap", "inf"]) == 2
    assert "would believe any noise" in capsys.readouterr().err


def put_aside(run: Path, where: Path) -> Path:
    return Path(shutil.copytree(run, where))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--steps", "9"), "holds 4 whole steps, 9 were asked for"),
        (("--from-step", "4"), "the steps to replay are 0 to 3"),
        (("--from-step", "2", "--steps", "2"), "the steps to replay are 0 to 1"),
        (("--backend", "nothing"), "nothing"),
        (("--backend", "vllm@absent"), "absent"),
    ],
)
def test_options_that_cannot_be(
    run: Path, options: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in refused(capsys, run, *options)


def test_a_run_without_rollouts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "tokens")
    assert "holds no rollouts" in refused(capsys, run)


def test_rollouts_without_prompts(tmp_path: Path) -> None:
    recording = make("baseline", scenario(steps=2), native=False)
    del recording.frame("rollout", 0).arrays["prompt"]
    with pytest.raises(BadInput, match="'prompt'"):
        source(recording.write(tmp_path / "foreign"))


@pytest.mark.slow
def test_a_broken_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run / "checkpoints" / "step-2"
    folder.mkdir(parents=True)
    assert "manifest.json" in refused(capsys, run, "--from-step", "3")
    (folder / "manifest.json").write_text("{}")
    assert "is not a manifest of a checkpoint" in refused(capsys, run, "--from-step", "2")
    assert source(run).checkpoint(1) is None


def test_only_steps_that_are_there_from_the_first_on_are_whole(tmp_path: Path) -> None:
    recording = make("baseline", scenario(steps=5), native=False)
    trainer = recording.logs["trainer"]
    trainer.frames = [frame for frame in trainer.frames if frame.step != 3]
    assert source(recording.write(tmp_path / "run")).steps == 3


def test_which_recordings_are_replays(run: Path) -> None:
    assert replayed(Recording(run)) is None
    assert replayed(Recording(edited(run, replay={"of": "x", "first_step": 1, "stop": 3}))) == range(1, 3)
    for broken in ({"first_step": 3, "stop": 3}, {"first_step": -1, "stop": 3}, "replay"):
        assert replayed(Recording(edited(run, replay=broken))) is None
    with pytest.raises(FormatError, match=r"replay.first_step"):
        Recording(edited(run, replay={"first_step": "1"}))


def replay_of(folder: Path, damage: Any = lambda baseline: None) -> Verdict:
    """The verdict on a replay of four steps, of a recorded run that was damaged."""
    sides = [make(side, scenario(steps=4), native=False) for side in ("baseline", "candidate")]
    for frame in sides[1].frames("rollout"):
        frame.fields.update(mode="replay", guided=False)
    sides[1].manifest |= {"sampling_mode": "replay", "replay": {"of": "x", "first_step": 0, "stop": 4}}
    damage(sides[0])
    folder.mkdir()
    return put(folder, *sides)


@pytest.mark.slow
def test_a_sound_replay_passes_strictly_and_says_what_it_cannot_show(tmp_path: Path) -> None:
    verdict = replay_of(tmp_path / "sound")
    assert verdict.verdict == "EQUIVALENT" and verdict.reservations == []
    assert verdict.parity is not None and {"tokens", "lengths", "native"} <= {*verdict.parity.not_applicable}
    assert not {*verdict.parity.not_applicable} & {check.name for check in verdict.parity.checks}
    assert any("draws nothing" in sentence for sentence in verdict.evidence)
    assert not [check for check in suspicions(verdict.parity) if check.state == "not tested"]


@pytest.mark.slow
def test_what_a_replay_could_show_and_did_not_is_untested(tmp_path: Path) -> None:
    verdict = replay_of(tmp_path / "silent", lambda baseline: baseline.drop("learner"))
    assert "learner" in [check.name for check in verdict.parity.checks if check.state == "not tested"]
    assert verdict.strict.exit_code == 3


@pytest.mark.slow
def test_each_half_of_a_replay_speaks_for_itself(tmp_path: Path) -> None:
    def effects(name: str, damage: Any = lambda baseline: None) -> dict[str, str]:
        return {one.name: one.effect for one in halves(replay_of(tmp_path / name, damage), range(4))}

    def trained(baseline: Any) -> None:
        for event in baseline.events("learner", step=2):
            event["actor"] = "another"

    def rolled(baseline: Any) -> None:
        baseline.frame("rollout", 2).arrays["logprob"].values[:] -= 0.1

    def silent(baseline: Any) -> None:
        baseline.drop("learner")

    assert effects("sound") == {TRAINING: "agrees", ROLLOUTS: "agrees"}
    assert effects("trained", trained) == {TRAINING: "parts", ROLLOUTS: "agrees"}
    assert effects("rolled", rolled) == {TRAINING: "agrees", ROLLOUTS: "parts"}
    assert effects("silent", silent)[TRAINING] == "not tested"
